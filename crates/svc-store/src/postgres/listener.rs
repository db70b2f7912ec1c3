//! The connection that holds the schema's lock for this daemon, and on which the server notifies
//! the daemon of commits of other connections.
//!
//! A notification only wakes the listener. The listener reads the committed events by position,
//! once for all subscribers, and gives them to the bus. So no event is missed while nobody listens,
//! or after a new connection. With `store.listen = poll`, the log is read each second instead.
//!
//! The removal of a stream is no event: a notification of its own names the stream. Where it may
//! have been missed, the listener looks which of the followed streams exist.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use sqlx::{
    Acquire as _, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use svc_model::{Event, StreamVisibility, Timestamp};
use tokio::time::{Instant, sleep, timeout};

use super::{
    connection::{is_lost, try_take},
    write_connection::{READERS_CHANGED, WriterState},
};
use crate::{
    Batch, Bus, Result,
    bus::{StreamChange, Version},
    columns::visibility_of,
};

/// After this time without a notification, the log's last position is read.
const QUIET: Duration = Duration::from_secs(1);
/// How long the server may take for an answer.
const ANSWER: Duration = Duration::from_secs(4);
/// How long an attempt to connect again may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(100);
const PAGE: i64 = 200;

/// Whether the schema's connection is answered, and whether it receives notifications.
#[derive(Debug, Default)]
pub(super) struct LockConnectionState {
    /// Since when the server has not answered.
    away: Mutex<Option<Instant>>,
    /// The server notifies us of commits.
    pub(super) is_listening: AtomicBool,
}

impl LockConnectionState {
    /// How long the server has not answered; `None` if it answers.
    pub(super) fn away(&self) -> Option<Duration> {
        self.lock().map(|since| since.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receivers of the commits of other connections.
#[derive(Debug)]
pub(super) struct NotificationTargets {
    pub(super) bus: Arc<Bus>,
    pub(super) version: Arc<Version>,
    pub(super) lock_state: Arc<LockConnectionState>,
    pub(super) writer: Arc<WriterState>,
}

#[derive(Debug)]
pub(super) struct LockConnection {
    pub(super) options: PgConnectOptions,
    /// `None` if the log is read each second.
    pub(super) channel: Option<String>,
    /// Id of this daemon, to recognise its own notifications.
    pub(super) daemon: String,
}

/// Opens a connection that does not reconnect by itself: a new connection must take the schema's
/// lock again.
pub(super) async fn connect(
    options: &PgConnectOptions,
    within: Duration,
) -> Result<PgListener, sqlx::Error> {
    let one = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
    let one = one.acquire_timeout(within).connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&one).await?;
    listener.eager_reconnect(false);
    Ok(listener)
}

/// The channel of a schema's writers, as `writer.sql` names it.
pub(super) fn channel(schema: &str) -> String {
    format!("svc_{schema}")
}

/// Whether a listening connection receives its own notification within [`QUIET`].
pub(super) async fn returns(
    options: &PgConnectOptions,
    channel: &str,
) -> Result<bool, sqlx::Error> {
    let mut listener = connect(options, ANSWER).await?;
    // Not the writers' channel: a notification there would wake their listeners.
    let channel = format!("{channel}_trial");
    listener.listen(&channel).await?;
    sqlx::query("select pg_notify($1, '')").bind(&channel).execute(&mut listener).await?;
    Ok(timeout(QUIET, listener.recv()).await.is_ok_and(|word| word.is_ok()))
}

enum End {
    /// The server ended it, or does not answer.
    Lost,
    /// The server reported an error.
    Failed(sqlx::Error),
}

impl From<sqlx::Error> for End {
    fn from(error: sqlx::Error) -> Self {
        if is_lost(&error) { Self::Lost } else { Self::Failed(error) }
    }
}

impl LockConnection {
    /// Publishes commits of other connections until it is aborted.
    pub(super) async fn run(
        self,
        mut listener: PgListener,
        readers: PgPool,
        targets: NotificationTargets,
    ) {
        loop {
            let Err(end) = self.follow(&mut listener, &readers, &targets).await;
            // Dropped first, because it may still hold the schema's lock.
            drop(listener);
            targets.lock_state.is_listening.store(false, Relaxed);
            targets.version.set_notified(false);
            if let End::Failed(error) = end {
                tracing::warn!(
                    error = svc_sys::telemetry::chain(&error),
                    "the database does not let us listen"
                );
                sleep(QUIET).await;
            }
            let (again, is_registered) = self.connect_again(&readers, &targets).await;
            if !is_registered {
                // The caller starts the daemon anew. Until then this connection keeps the schema.
                targets.writer.released.cancel();
                let _schema = again;
                return std::future::pending().await;
            }
            listener = again;
        }
    }

    async fn follow(
        &self,
        listener: &mut PgListener,
        readers: &PgPool,
        targets: &NotificationTargets,
    ) -> Result<std::convert::Infallible, End> {
        if let Some(channel) = &self.channel {
            listener.listen(channel).await?;
            targets.version.count_other();
            targets.version.set_notified(true);
            targets.lock_state.is_listening.store(true, Relaxed);
        }
        // There may be commits, and removals, from before this connection listened.
        let (mut is_behind, mut may_miss_removals) = (true, true);
        loop {
            if targets.writer.is_fenced() {
                // The row was removed otherwise: by a restored dump. A new connection looks.
                return Err(End::Lost);
            }
            if is_behind && targets.publish(readers).await.is_ok() {
                is_behind = false;
            }
            if may_miss_removals && targets.notify_of_removals(readers).await.is_ok() {
                may_miss_removals = false;
            }
            let word = if self.channel.is_some() {
                timeout(QUIET, listener.try_recv()).await.ok()
            } else {
                sleep(QUIET).await;
                None
            };
            if let Some(word) = word {
                let word = word?.ok_or(End::Lost)?;
                let mut parts = word.payload().splitn(3, ':');
                if parts.next() != Some(&*self.daemon) {
                    targets.version.count_other();
                    is_behind = true;
                    if let (Some(READERS_CHANGED), Some(stream)) = (parts.next(), parts.next()) {
                        targets.bus.notify(stream, StreamChange::Readers);
                    }
                }
            } else {
                // This read also checks that the server answers.
                let head = timeout(ANSWER, head(listener.acquire().await?)).await;
                let has_missed = head.map_err(|_| End::Lost)?? > targets.bus.position();
                is_behind |= has_missed;
                may_miss_removals |= has_missed;
            }
            if is_behind {
                targets.writer.set_others();
            }
        }
    }

    /// A connection that holds the schema, and whether this daemon's row is still there.
    async fn connect_again(
        &self,
        readers: &PgPool,
        targets: &NotificationTargets,
    ) -> (PgListener, bool) {
        let mut looked = Instant::now();
        loop {
            let mut pause = PAUSE;
            let error = match timeout(ANSWER, self.connect_and_take()).await {
                Ok(Ok((listener, is_registered))) => {
                    if !is_registered {
                        targets.writer.set_fenced();
                        pause = QUIET;
                    }
                    let is_back = listener.is_some() || !is_registered;
                    if is_back && targets.lock_state.lock().take().is_some() {
                        tracing::info!("the database answers again");
                    }
                    if let Some(listener) = listener {
                        return (listener, is_registered);
                    }
                    // The lock is held by another daemon; or, if our row is there, the server has
                    // not noticed yet that the former connection is gone.
                    None
                }
                Ok(Err(error)) => Some(error),
                Err(_) => Some(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
            };
            let is_away = error.as_ref().is_some_and(is_lost);
            let is_known = targets.lock_state.away().is_some();
            if is_away && !is_known {
                *targets.lock_state.lock() = Some(Instant::now());
                let why = error.as_ref().map(|error| svc_sys::telemetry::chain(error));
                tracing::warn!(error = why, "the database does not answer");
            }
            if !is_away && looked.elapsed() >= QUIET {
                targets.publish(readers).await.ok();
                looked = Instant::now();
            }
            sleep(pause).await;
        }
    }

    /// `None` if another connection has the schema. The second value is whether this daemon's row
    /// is there: a daemon that takes the schema removes the rows of others.
    async fn connect_and_take(&self) -> Result<(Option<PgListener>, bool), sqlx::Error> {
        let mut listener = connect(&self.options, ATTEMPT).await?;
        let is_taken = try_take(listener.acquire().await?).await?;
        let registered =
            sqlx::query_scalar("select exists (select 1 from svc_group where daemon_id = $1)");
        let is_registered =
            registered.bind(&self.daemon).fetch_one(listener.acquire().await?).await?;
        Ok((is_taken.then_some(listener), is_registered))
    }
}

async fn head(conn: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("select coalesce(max(position), 0) from event").fetch_one(conn).await
}

/// An event and the state of its stream.
#[derive(sqlx::FromRow)]
struct NotifiedEvent {
    position: i64,
    name: String,
    seq: i64,
    kind: String,
    data: String,
    at: i64,
    visibility: String,
    owner: Option<String>,
    runner: Option<String>,
    project: Option<String>,
    closes: bool,
}

impl NotifiedEvent {
    fn visibility(&self) -> StreamVisibility {
        let (owner, runner) = (self.owner.clone(), self.runner.clone());
        visibility_of(&self.visibility, owner, runner, self.project.clone())
    }
}

impl NotificationTargets {
    /// Publishes the events that the bus does not have.
    async fn publish(&self, readers: &PgPool) -> Result<()> {
        let mut conn = readers.acquire().await?;
        let head = head(&mut conn).await?;
        let mut known = self.bus.position();
        while known < head {
            // A listener that begins later reads these events from the table.
            let listened = self.bus.listened();
            let rows: Vec<NotifiedEvent> = sqlx::query_as(
                "select e.position, s.name, e.seq, e.kind, e.data, e.at,
                    s.visibility, s.owner, s.runner, s.project,
                    s.closed_at is not null and not exists (
                        select 1 from event later
                        where later.stream_id = e.stream_id and later.seq > e.seq
                    ) as closes
                from event e join stream s on s.id = e.stream_id
                where e.position > $1 and e.position <= $2
                    and ($3::text[] is null or e.seq = 1 or s.name = any($3))
                order by e.position limit $4",
            )
            .bind(known)
            .bind(head)
            .bind(listened)
            .bind(PAGE)
            .fetch_all(&mut *conn)
            .await?;
            let is_full = i64::try_from(rows.len()) == Ok(PAGE);
            let last = rows.last().map_or(head, |row| row.position);
            self.publish_rows(rows);
            let until = if is_full { last } else { head };
            self.bus.advance(known, until);
            known = until;
        }
        Ok(())
    }

    /// Lets the readers of streams that do not exist look whether theirs was removed.
    async fn notify_of_removals(&self, readers: &PgPool) -> Result<()> {
        let listened = self.bus.listened_streams();
        if listened.is_empty() {
            return Ok(());
        }
        let missing: Vec<String> = sqlx::query_scalar(
            "select listened from unnest($1::text[]) as listened
            where not exists (select 1 from stream where name = listened)",
        )
        .bind(listened)
        .fetch_all(&mut *readers.acquire().await?)
        .await?;
        for name in missing {
            self.bus.notify(&name, StreamChange::Readers);
        }
        Ok(())
    }

    fn publish_rows(&self, rows: Vec<NotifiedEvent>) {
        let is_new =
            |row: &NotifiedEvent| row.seq == 1 && row.visibility() != StreamVisibility::Answers;
        if rows.iter().any(is_new) {
            self.bus.notify_opened();
        }
        let mut rows = rows.into_iter().peekable();
        let mut batches: Vec<Batch> = Vec::new();
        while let Some(first) = rows.next() {
            let visibility = Arc::new(first.visibility());
            let (mut position, mut closes) = (first.position, first.closes);
            let name = first.name.clone();
            let mut events = vec![event(first)];
            let follows = |row: &NotifiedEvent, position: i64| {
                row.name == name && row.position == position + 1
            };
            while let Some(row) = rows.next_if(|row| follows(row, position)) {
                (position, closes) = (row.position, row.closes);
                events.push(event(row));
            }
            let is_after = |last: &Batch| last.positions.1 + 1 == events[0].position;
            // Batches that are published together are contiguous.
            if !batches.last().is_none_or(is_after) {
                self.bus.publish(std::mem::take(&mut batches));
            }
            batches.extend(Batch::new(events, closes, visibility));
        }
        self.bus.publish(batches);
    }
}

fn event(row: NotifiedEvent) -> Event {
    Event {
        position: row.position,
        stream: Arc::<str>::from(row.name).into(),
        seq: row.seq,
        kind: row.kind.into(),
        data: row.data.into(),
        at: Timestamp::from_millis(row.at),
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, Executor as _};
    use svc_model::{ManualClock, StreamName};
    use svc_sys::config::ListenMode;

    use super::*;
    use crate::{
        postgres::testing::{is_installed, new_database},
        testing::{append, event, open_in_database},
    };

    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn daemons_tell_each_other_which_streams_they_removed() {
        if !is_installed() {
            return;
        }
        for listen in [ListenMode::Notify, ListenMode::Poll] {
            let url = new_database();
            let clock = Arc::new(ManualClock::new(Timestamp::from_millis(1_000)));
            let (store, writer) = open_in_database(&url, listen, clock).await;
            let mut other = PgConnection::connect(&url).await.unwrap();
            let group = "set search_path = svc, pg_catalog;
                insert into svc_group (daemon_id, number) values ('other', 0)";
            other.execute(group).await.unwrap();
            let mut words = PgListener::connect(&url).await.unwrap();
            words.listen(&channel("svc")).await.unwrap();
            let [own, theirs] = ["own", "theirs"].map(|id| StreamName::new("session", id));
            for name in [&own, &theirs] {
                append(&store, name, vec![event("a", "{}")]).await;
            }

            let name = own.clone();
            let removed: Result<()> =
                store.write(crate::job!(|tx| tx.streams().retire(&name).await)).await;
            removed.unwrap();
            let told = async {
                while !words.recv().await.unwrap().payload().ends_with(":readers:session/own") {}
            };
            timeout(LONG, told).await.expect("other daemons are notified");

            let mut reader = store.bus().listen(&theirs);
            let removal = "begin;
                update stream set name = 'removed/' || id where name = 'session/theirs';
                insert into stream (name, created_at, visibility) values ('team', 1, 'team');
                insert into event (position, stream_id, seq, kind, data, at)
                    select 3, id, 1, 'agent.removed', '{}', 1 from stream where name = 'team';";
            other.execute(removal).await.unwrap();
            if listen == ListenMode::Notify {
                let notify = "select pg_notify('svc_svc', 'other:readers:session/theirs')";
                other.execute(notify).await.unwrap();
            }
            other.execute("commit").await.unwrap();
            let told = timeout(LONG, reader.wait_or_visibility_change(i64::MAX)).await;
            told.expect("the reader is told");
            assert!(reader.take_visibility_changed(), "{listen:?}");
            assert!(store.streams().view(&theirs).await.unwrap().is_none());
            writer.close(store).await.unwrap();
        }
    }
}
