//! The writer's connection to PostgreSQL.
//!
//! All writers of a schema take one lock inside PostgreSQL, for the time of a commit. A group of
//! appends is one statement; a group with jobs is a transaction. Each group has a number: after a
//! lost connection the daemon asks by that number whether its group was committed. The answer is
//! final, because the server then rejects the group if it arrives later.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use sqlx::{Connection as _, Executor as _, PgConnection, Row as _, postgres::PgConnectOptions};
use svc_model::Timestamp;
use svc_sys::backoff::Backoff;
use tokio::time::{Instant, error::Elapsed, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::connection::{change, each, is_lost, translated};
use crate::{
    Result, StoreError,
    columns::Parameter,
    sqlite::direct_connection::{JobIsolation, SavepointState, TakeRow, UncommittedEvent},
};

/// How long a statement may take. The server's own bounds are shorter.
const STATEMENT: Duration = Duration::from_secs(8);
/// How long a group waits for a server that does not answer, before anything was sent.
const CONNECT: Duration = Duration::from_secs(4);
/// How long a commit may stay unanswered.
const OUTCOME: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
/// How long writes are refused without a connection, while the server takes none: a connection has
/// the server's settings of its beginning, so each look needs a new one.
const READ_ONLY: Backoff = Backoff::new(PAUSE, Duration::from_secs(2));

/// In a notification, the part between the daemon's id and a stream's name: the stream's visibility
/// changed, or it was removed. In other notifications it is the number of the commit.
pub(super) const READERS_CHANGED: &str = "readers";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransactionState {
    None,
    Open,
    /// A statement outside a savepoint failed: the transaction can only be rolled back.
    Failed,
}

#[derive(Debug)]
pub(crate) struct PgWriter {
    options: PgConnectOptions,
    conn: Option<PgConnection>,
    daemon: String,
    group: i64,
    /// Number of the commit whose state the caller has cached.
    known_commit: i64,
    /// Number of the commit that is under way.
    commit: i64,
    savepoint: SavepointState,
    transaction: TransactionState,
    /// Another daemon wrote, or the connection is new: the caller's cached state may be outdated.
    is_stale: bool,
    is_away: bool,
    refusals: Refusals,
    state: Arc<WriterState>,
}

/// The refusals of a server that takes no writes, since its last commit.
#[derive(Debug, Default)]
struct Refusals {
    count: u32,
    /// The last refusal, and until when writes are refused with it.
    last: Option<(StoreError, Instant)>,
}

impl Refusals {
    fn note(&mut self, error: &StoreError, now: Instant) {
        self.last = Some((error.clone(), now + READ_ONLY.wait(self.count)));
        self.count = self.count.saturating_add(1);
    }

    fn check(&self, now: Instant) -> Result<()> {
        match &self.last {
            Some((error, until)) if now < *until => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

impl PgWriter {
    pub(super) async fn connect(
        options: PgConnectOptions,
        daemon: String,
        state: Arc<WriterState>,
    ) -> Result<Self> {
        let mut writer = Self {
            options,
            conn: None,
            daemon,
            group: 0,
            known_commit: 0,
            commit: 0,
            savepoint: SavepointState::Unneeded,
            transaction: TransactionState::None,
            is_stale: true,
            is_away: false,
            refusals: Refusals::default(),
            state,
        };
        writer.ready().await?;
        Ok(writer)
    }

    pub(crate) async fn close(self) -> Result<()> {
        match self.conn {
            Some(conn) => Ok(conn.close().await?),
            None => Ok(()),
        }
    }

    /// Whether the caller's cached state may differ from the tables. Called once for each group;
    /// the caller then reads the tables again.
    pub(crate) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.is_stale)
    }

    pub(crate) const fn is_away(&self) -> bool {
        self.is_away
    }

    /// Connects if there is no connection. Afterwards the outcome of the last group is final: it
    /// was committed, or never will be.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        if self.state.is_fenced() {
            return Err(fenced());
        }
        self.is_stale |= self.state.take_others();
        let Some(conn) = &mut self.conn else {
            self.refusals.check(Instant::now())?;
            let decided = timeout(CONNECT, self.decide()).await.unwrap_or_else(|_| Err(silent()));
            self.is_away = matches!(decided, Err(StoreError::Unavailable(_)));
            return decided.map(drop);
        };
        if self.is_stale {
            match timeout(STATEMENT, last_commit(conn)).await.unwrap_or_else(|_| Err(silent())) {
                Ok(number) => self.known_commit = number,
                Err(error) => {
                    self.conn = None;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Connects, and returns whether the last group was committed.
    async fn decide(&mut self) -> Result<bool> {
        let mut conn = PgConnection::connect_with(&self.options).await?;
        let query = sqlx::query("select svc_decide($1, $2)").bind(&self.daemon).bind(self.group);
        let decided = query.fetch_one(&mut conn).await.map_err(StoreError::from);
        if let Err(error) = &decided {
            // The row of a daemon is removed by the next daemon that takes the schema.
            if matches!(error, StoreError::Fenced(_)) {
                self.state.set_fenced();
            }
            self.note_refusal(error);
        }
        let reached: i64 = decided?.try_get(0)?;
        let is_committed = reached >= self.group;
        self.known_commit = last_commit(&mut conn).await?;
        self.group = self.group.max(reached);
        self.conn = Some(conn);
        self.state.set_stalled(false);
        self.transaction = TransactionState::None;
        self.savepoint = SavepointState::Unneeded;
        self.is_stale = true;
        Ok(is_committed)
    }

    /// Finds out whether a commit took place that was not answered. Fails unless it did.
    async fn settle(&mut self, error: StoreError, until: Instant) -> Result<()> {
        self.conn = None;
        loop {
            match timeout_at(until, self.decide()).await {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) => return Err(unavailable(error)),
                // With the daemon's row, the number of its last commit is gone.
                Ok(Err(StoreError::Fenced(_))) => return Err(unknown(error)),
                Ok(Err(_)) if Instant::now() + PAUSE < until => tokio::time::sleep(PAUSE).await,
                Ok(Err(_)) | Err(_) => return Err(unknown(error)),
            }
        }
    }

    /// Handles a commit that is not answered in time. The server continues the commit, nobody
    /// cancels it, and the next group waits for its end.
    fn stall(&mut self) -> StoreError {
        self.conn = None;
        self.state.set_stalled(true);
        unknown(silent())
    }

    fn note_refusal(&mut self, error: &StoreError) {
        if matches!(error, StoreError::ServerReadOnly(_)) {
            self.state.set_read_only(true);
            self.refusals.note(error, Instant::now());
        }
    }

    fn note_accepted(&mut self) {
        self.state.set_read_only(false);
        self.refusals = Refusals::default();
    }

    fn conn(&mut self) -> Result<&mut PgConnection> {
        self.conn.as_mut().ok_or_else(lost)
    }

    pub(crate) async fn begin(&mut self) -> Result<()> {
        self.ready().await?;
        self.group += 1;
        let begun = timeout(STATEMENT, self.begin_group()).await.unwrap_or_else(|_| Err(silent()));
        if let Err(error) = &begun {
            self.note_refusal(error);
            // The next group reconnects and learns whether the server began this one.
            self.conn = None;
        }
        begun
    }

    async fn begin_group(&mut self) -> Result<()> {
        let (daemon, group) = (self.daemon.clone(), self.group);
        let conn = self.conn()?;
        conn.execute("begin").await?;
        let begun = sqlx::query("select a_commit, a_waited from svc_begin($1, $2)")
            .bind(daemon)
            .bind(group);
        let begun = begun.fetch_one(conn).await?;
        let commit: i64 = begun.try_get(0)?;
        self.state.waited(begun.try_get(1)?);
        self.note_accepted();
        self.is_stale |= commit != self.known_commit + 1;
        (self.commit, self.known_commit) = (commit, commit);
        self.transaction = TransactionState::Open;
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> Result<()> {
        match self.transaction {
            TransactionState::None => return Ok(()),
            TransactionState::Failed => return Err(failed()),
            TransactionState::Open => {}
        }
        self.transaction = TransactionState::None;
        let until = Instant::now() + OUTCOME;
        let conn = self.conn()?;
        match timeout_at(until, conn.execute("commit")).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if !is_lost(&error) => {
                self.conn = None;
                Err(error.into())
            }
            Ok(Err(error)) => self.settle(error.into(), until).await,
            Err(_) => Err(self.stall()),
        }
    }

    pub(crate) async fn rollback(&mut self) -> Result<()> {
        self.savepoint = SavepointState::Unneeded;
        if self.transaction == TransactionState::None {
            return Ok(());
        }
        self.transaction = TransactionState::None;
        // Both numbers are free again: the transaction that had them is rolled back and cannot be
        // committed later.
        self.group -= 1;
        self.known_commit = self.commit - 1;
        self.run("rollback").await
    }

    pub(crate) fn begin_job(&mut self, isolation: JobIsolation) {
        self.savepoint = match isolation {
            JobIsolation::Alone => SavepointState::Unneeded,
            JobIsolation::Savepoint => SavepointState::Due,
        };
    }

    pub(crate) async fn end_job(&mut self, isolation: JobIsolation, keep: bool) -> Result<()> {
        let savepoint = std::mem::replace(&mut self.savepoint, SavepointState::Unneeded);
        self.conn()?;
        if isolation == JobIsolation::Alone && !keep {
            // The only job of its group.
            return self.rollback().await;
        }
        if savepoint != SavepointState::Open {
            return if self.transaction == TransactionState::Open { Ok(()) } else { Err(failed()) };
        }
        if !keep {
            self.run("rollback to savepoint job").await?;
            self.transaction = TransactionState::Open;
        }
        self.run("release savepoint job").await
    }

    async fn run(&mut self, statement: &'static str) -> Result<()> {
        let conn = self.conn()?;
        let ran = timeout(STATEMENT, conn.execute(statement)).await;
        let ran = ran.map_err(|_| silent()).and_then(|ran| Ok(ran?));
        if ran.is_err() {
            self.conn = None;
        }
        ran.map(drop)
    }

    /// The connection for a statement of a job, and PostgreSQL's text of the statement. Opens the
    /// job's savepoint if the statement writes.
    async fn due(&mut self, sql: &'static str) -> Result<(&mut PgConnection, &'static str)> {
        if self.savepoint == SavepointState::Due && writes(sql) {
            self.run("savepoint job").await?;
            self.savepoint = SavepointState::Open;
        }
        Ok((self.conn()?, translated(sql)))
    }

    fn ended<T, E>(&mut self, ran: Result<Result<T, E>, Elapsed>) -> Result<T>
    where
        StoreError: From<E>,
    {
        let ran = ran.map_err(|_| silent()).and_then(|ran| Ok(ran?));
        // The server does not know of a row that the program refuses: only its job fails.
        let has_failed = !matches!(ran, Ok(_) | Err(StoreError::BadRow { .. }));
        if has_failed && self.transaction == TransactionState::Open {
            self.transaction = TransactionState::Failed;
        }
        if matches!(ran, Err(StoreError::Unavailable(_))) {
            self.conn = None;
        }
        ran
    }

    pub(crate) async fn change(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<u64> {
        let (conn, sql) = self.due(sql).await?;
        let ran = timeout(STATEMENT, change(conn, sql, values)).await;
        self.ended(ran)
    }

    /// Passes the rows of a query to `take`.
    pub(crate) async fn each(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
        take: TakeRow<'_>,
    ) -> Result<()> {
        let (conn, sql) = self.due(sql).await?;
        let ran = timeout(STATEMENT, each(conn, sql, values, &mut |row| take(row))).await;
        self.ended(ran)
    }

    /// Writes events within the current commit, in order, and returns the position of the last.
    pub(crate) async fn insert(
        &mut self,
        now: Timestamp,
        events: &[UncommittedEvent],
    ) -> Result<i64> {
        let columns = EventColumns::new(events);
        let conn = self.conn()?;
        let query = sqlx::query("select svc_insert($1, $2, $3, $4, $5, $6)").bind(now.as_millis());
        let row = timeout(STATEMENT, columns.bind(query).fetch_one(conn)).await;
        match row.map_err(|_| silent()).and_then(|row| Ok(row?.try_get(0)?)) {
            Ok(position) => Ok(position),
            Err(error) => {
                self.transaction = TransactionState::Failed;
                Err(error)
            }
        }
    }

    /// Notifies other daemons, once the current commit has taken place, that the visibility of
    /// these streams changed or that they were removed.
    pub(crate) async fn notify_readers_changed(&mut self, streams: &[&str]) -> Result<()> {
        let daemon = self.daemon.clone();
        let conn = self.conn()?;
        let text = "select pg_notify('svc_' || current_schema(), $1::text || ':' || $2::text || ':' || name)
            from unnest($3::text[]) as name
            where exists (select 1 from svc_group where daemon_id <> $1)";
        let query = sqlx::query(text).bind(daemon).bind(READERS_CHANGED).bind(streams);
        let ran = timeout(STATEMENT, query.execute(conn)).await;
        self.ended(ran).map(drop)
    }

    /// Like [`Self::insert`], in a commit of its own.
    pub(crate) async fn insert_alone(
        &mut self,
        now: Timestamp,
        events: &[UncommittedEvent],
    ) -> Result<i64> {
        self.ready().await?;
        self.group += 1;
        let columns = EventColumns::new(events);
        let (daemon, group, known) = (self.daemon.clone(), self.group, self.known_commit);
        let conn = self.conn()?;
        let text = "select a_commit, a_position, a_waited from svc_append($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let query = sqlx::query(text).bind(daemon).bind(group).bind(known).bind(now.as_millis());
        let until = Instant::now() + OUTCOME;
        let error = match timeout_at(until, columns.bind(query).fetch_one(conn)).await {
            Ok(Ok(row)) => {
                self.known_commit = row.try_get(0)?;
                self.state.waited(row.try_get(2)?);
                self.note_accepted();
                return Ok(row.try_get(1)?);
            }
            Ok(Err(error)) if !is_lost(&error) => {
                self.group -= 1;
                self.is_stale = true;
                let error = StoreError::from(error);
                self.note_refusal(&error);
                if matches!(error, StoreError::Fenced(_) | StoreError::ServerReadOnly(_)) {
                    // A new connection has the server's settings of then, and learns whether this
                    // daemon was replaced.
                    self.conn = None;
                }
                return Err(error);
            }
            Ok(Err(error)) => error.into(),
            Err(_) => return Err(self.stall()),
        };
        self.settle(error, until).await?;
        // The commit took place, so the table has the position of the last event.
        let last = events.last().ok_or_else(lost)?;
        let conn = self.conn()?;
        let found = sqlx::query("select position from event where stream_id = $1 and seq = $2");
        let found = found.bind(last.stream_id).bind(last.seq).fetch_one(conn).await?;
        Ok(found.try_get(0)?)
    }
}

type PgQuery<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// The events of a commit, column by column.
struct EventColumns<'a> {
    streams: Vec<i64>,
    seqs: Vec<i64>,
    kinds: Vec<&'a str>,
    data: Vec<&'a str>,
    producers: Vec<Option<&'a str>>,
}

impl<'a> EventColumns<'a> {
    fn new(events: &'a [UncommittedEvent]) -> Self {
        Self {
            streams: events.iter().map(|event| event.stream_id).collect(),
            seqs: events.iter().map(|event| event.seq).collect(),
            kinds: events.iter().map(|event| &*event.kind).collect(),
            data: events.iter().map(|event| &*event.data).collect(),
            producers: events.iter().map(|event| event.producer_id.as_deref()).collect(),
        }
    }

    fn bind<'q>(self, query: PgQuery<'q>) -> PgQuery<'q>
    where
        'a: 'q,
    {
        let query = query.bind(self.streams).bind(self.seqs).bind(self.kinds);
        query.bind(self.data).bind(self.producers)
    }
}

/// Number of the last commit. Read before the tables: a commit after this read is noticed, because
/// the number of our own next commit then skips one.
async fn last_commit(conn: &mut PgConnection) -> Result<i64> {
    let number = sqlx::query("select number from svc_commit");
    Ok(number.fetch_one(conn).await?.try_get(0)?)
}

/// Whether a statement of a job changes rows, by its first word.
fn writes(sql: &str) -> bool {
    !sql.trim_start().starts_with("select")
}

fn lost() -> StoreError {
    StoreError::Unavailable(Arc::new(std::io::Error::other("the connection was lost")))
}

fn fenced() -> StoreError {
    let why = std::io::Error::other("this daemon has not started anew since");
    StoreError::Fenced(Arc::new(why))
}

fn silent() -> StoreError {
    StoreError::Unavailable(Arc::new(std::io::Error::from(std::io::ErrorKind::TimedOut)))
}

fn failed() -> StoreError {
    let why = std::io::Error::other("a statement of the transaction failed");
    StoreError::Database(Arc::new(why))
}

fn unavailable(error: StoreError) -> StoreError {
    StoreError::Unavailable(Arc::new(error))
}

fn unknown(error: StoreError) -> StoreError {
    StoreError::OutcomeUnknown(Arc::new(error))
}

const KEPT: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct WriterState {
    /// A commit was not answered in time, and nobody knows its outcome yet.
    is_stalled: AtomicBool,
    /// Another connection has committed, so the writer's cached state may be outdated.
    others: AtomicBool,
    /// Another daemon has taken the schema: no group of this one is ever committed again.
    is_fenced: AtomicBool,
    /// The server refused the last write, because it takes none.
    is_read_only: AtomicBool,
    /// Cancelled once this daemon is fenced and nobody else holds the schema.
    pub(super) released: CancellationToken,
    /// How long the last commits waited for the lock of the writers, in microseconds.
    lock_waits: Mutex<VecDeque<u64>>,
}

impl WriterState {
    pub(super) fn set_stalled(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, Relaxed);
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.is_stalled.load(Relaxed)
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Relaxed)
    }

    pub(super) fn set_fenced(&self) {
        if !self.is_fenced.swap(true, Relaxed) {
            tracing::error!(
                "another daemon has taken the database: this one takes no writes, and starts anew \
                 as soon as no other runs on it"
            );
        }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Relaxed)
    }

    fn set_read_only(&self, is_read_only: bool) {
        if self.is_read_only.load(Relaxed) == is_read_only {
            return;
        }
        self.is_read_only.store(is_read_only, Relaxed);
        if is_read_only {
            tracing::error!(
                "the server of the database takes no writes: look at its \
                 default_transaction_read_only, and whether it is a standby"
            );
        } else {
            tracing::info!("the server of the database takes writes again");
        }
    }

    pub(super) fn set_others(&self) {
        self.others.store(true, Relaxed);
    }

    pub(super) fn take_others(&self) -> bool {
        self.others.load(Relaxed) && self.others.swap(false, Relaxed)
    }

    pub(super) fn waited(&self, micros: i64) {
        let mut waits = self.lock_waits.lock().unwrap_or_else(PoisonError::into_inner);
        if waits.len() == KEPT {
            waits.pop_front();
        }
        waits.push_back(micros.unsigned_abs());
    }

    /// 99th percentile of the waits for the writers' lock.
    pub(super) fn lock_wait(&self) -> Duration {
        let waits = self.lock_waits.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut waits: Vec<u64> = waits.into();
        waits.sort_unstable();
        let most = (waits.len() * 99).div_ceil(100);
        Duration::from_micros(waits[..most].last().copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{postgres::testing::is_installed, readers::Rows as _, testing::open_on_server};

    #[tokio::test]
    async fn a_row_that_the_program_refuses_fails_no_transaction() {
        if !is_installed() {
            return;
        }
        let clock = Arc::new(svc_model::ManualClock::new(Timestamp::from_millis(1)));
        let (store, writer) = open_on_server(clock).await;
        let numbers: Result<Vec<(i64,)>> = store
            .write(crate::job!(|tx| {
                let word: Result<Option<(i64,)>> = tx.direct.one("select 'x' as word", &[]).await;
                assert!(matches!(word, Err(StoreError::BadRow { .. })), "{word:?}");
                tx.direct.all("select 7 as number", &[]).await
            }))
            .await;
        assert_eq!(numbers.unwrap(), [(7,)]);
        writer.close(store).await.unwrap();
    }

    #[test]
    fn a_server_that_takes_no_writes_is_asked_ever_more_seldom() {
        let (mut refusals, mut now) = (Refusals::default(), Instant::now());
        assert!(refusals.check(now).is_ok());
        let error = StoreError::ServerReadOnly(Arc::new(std::io::Error::other("read-only")));
        for least in [100, 200, 400, 800, 1600, 2000, 2000] {
            refusals.note(&error, now);
            now += Duration::from_millis(least - 1);
            assert!(matches!(refusals.check(now), Err(StoreError::ServerReadOnly(_))));
            now += Duration::from_millis(least / 4 + 2);
            assert!(refusals.check(now).is_ok());
        }
    }

    #[test]
    fn one_wait_in_a_hundred_does_not_count() {
        let state = WriterState::default();
        assert_eq!(state.lock_wait(), Duration::ZERO);
        for wait in 0..200 {
            state.waited(if wait % 100 == 0 { 9_000 } else { 7 });
        }
        assert_eq!(state.lock_wait(), Duration::from_micros(7));
        state.waited(9_000);
        assert_eq!(state.lock_wait(), Duration::from_millis(9));
    }
}
