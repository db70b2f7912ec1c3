//! The connections that this program drives itself, through rusqlite. A statement through sqlx
//! passes to another thread and back, which costs several times as much as SQLite's own work.
//!
//! [`DirectConnection`] is the writer's, which calls it on its own thread. [`ReadConnections`] read
//! a few rows by an index on the caller's thread: a reader of the write-ahead log never waits for
//! the writer, so the call blocks its thread only for pages that are mostly in memory. Queries
//! whose number of rows grows with the database, and pages of the log, run on threads that may
//! block.
//!
//! The SQL of jobs and of reads comes from the macros of `statement`, where sqlx checks it.
//! The SQL of this file has no such check, so a test prepares each statement against the migrated
//! schema.

use std::{
    path::Path,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
};

use rusqlite::{CachedStatement, Connection, OpenFlags, Row, params_from_iter, types::ValueRef};
use svc_model::{EventKind, Seq, StreamVisibility, Timestamp, limits};
use tokio::{
    sync::{Semaphore, oneshot},
    task,
};

use super::file::{SHRINK, check_names};
use crate::{
    Result, StoreError,
    columns::{EngineRow, Fault, Parameter},
};

const BEGIN: &str = "begin immediate";
const COMMIT: &str = "commit";
const ROLLBACK: &str = "rollback";
const SAVEPOINT: &str = "savepoint job";
const RELEASE: &str = "release job";
const ROLLBACK_TO_SAVEPOINT: &str = "rollback to job";
/// Cached prepared statements: those above, one for each size of an insert, and those of the jobs.
const WRITER_STATEMENTS: usize = 256;

/// An event with its seq, not yet written.
#[derive(Debug)]
pub(crate) struct UncommittedEvent {
    pub(crate) stream: Arc<str>,
    pub(crate) stream_id: i64,
    pub(crate) visibility: Arc<StreamVisibility>,
    pub(crate) seq: Seq,
    pub(crate) kind: EventKind,
    pub(crate) data: Arc<str>,
    pub(crate) producer_id: Option<Arc<str>>,
}

/// Maximum rows of one statement: 5 parameters each, below SQLite's bound of 32,766.
const MAX_ROWS: usize = 1024;

/// One statement for each power of two of rows. Unbound rows are null, and the `where` skips them:
/// eleven prepared statements serve every size.
static INSERTS: LazyLock<Vec<Arc<str>>> = LazyLock::new(|| {
    (0..=MAX_ROWS.trailing_zeros())
        .map(|power| {
            let rows = vec!["(?,?,?,?,?)"; 1 << power].join(",");
            // The first parameter is the time, which all rows of a commit share.
            format!(
                "insert into event (at, stream_id, seq, kind, data, producer_id) \
                 select ?, column1, column2, column3, column4, column5 \
                 from (values {rows}) where column1 is not null"
            )
            .into()
        })
        .collect()
});

fn insert_of(rows: usize) -> &'static Arc<str> {
    &INSERTS[rows.next_power_of_two().trailing_zeros() as usize]
}

impl EngineRow for Row<'_> {
    fn value(&self, at: usize) -> Result<ValueRef<'_>, Fault> {
        Ok(self.get_ref(at)?)
    }

    fn name(&self, at: usize) -> &str {
        self.as_ref().column_name(at).unwrap_or_default()
    }
}

/// Takes a row, and tells whether the next one is wanted.
pub(crate) type TakeRow<'a> = &'a mut (dyn FnMut(&dyn EngineRow) -> Result<bool> + Send);

/// Passes the rows of a query to `take`.
pub(crate) fn each(
    conn: &Connection,
    sql: &str,
    values: &[Parameter<'_>],
    take: TakeRow<'_>,
) -> Result<()> {
    each_row(&mut conn.prepare_cached(sql)?, values, take)
}

/// The single number that a query of the engine itself returns.
pub(crate) fn number(conn: &Connection, sql: &str) -> Result<i64> {
    Ok(conn.query_row(sql, [], |row| row.get(0))?)
}

fn each_row(
    statement: &mut CachedStatement<'_>,
    values: &[Parameter<'_>],
    take: TakeRow<'_>,
) -> Result<()> {
    let mut rows = statement.query(params_from_iter(values))?;
    while let Some(row) = rows.next()? {
        if !take(row)? {
            break;
        }
    }
    Ok(())
}

/// How the writes of a failed job are rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobIsolation {
    /// The only job of its transaction: the transaction is rolled back.
    Alone,
    /// The job writes in a savepoint. SQLite then copies each page that the job changes.
    Savepoint,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SavepointState {
    Unneeded,
    /// Begins before the first statement that writes.
    Due,
    Open,
}

#[derive(Debug)]
pub(crate) struct DirectConnection {
    conn: Connection,
    savepoint: SavepointState,
}

impl DirectConnection {
    /// Opens a database that has the current schema. Writes beyond `max_bytes` fail like writes on
    /// a full disk.
    pub(crate) fn open(path: &Path, max_bytes: Option<u64>) -> Result<Self> {
        check_names(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(path, flags)?;
        conn.set_prepared_statement_cache_capacity(WRITER_STATEMENTS);
        conn.busy_timeout(limits::BUSY_TIMEOUT)?;
        conn.pragma_update(None, "synchronous", "full")?;
        conn.pragma_update(None, "foreign_keys", true)?;
        conn.pragma_update(None, "temp_store", "memory")?;
        conn.pragma_update(None, "journal_size_limit", limits::WAL_BYTES.cast_signed())?;
        // Plans must not depend on statistics: those of a smaller table make a scan look cheap.
        conn.execute_batch("drop table if exists sqlite_stat1; drop table if exists sqlite_stat4")?;
        if let Some(bytes) = max_bytes {
            let page: i64 = conn.pragma_query_value(None, "page_size", |row| row.get(0))?;
            let pages = i64::try_from(bytes).unwrap_or(i64::MAX) / page.max(1);
            conn.pragma_update(None, "max_page_count", pages)?;
        }
        Ok(Self { conn, savepoint: SavepointState::Unneeded })
    }

    /// Checkpoints the write-ahead log and closes the connection.
    pub(crate) fn close(self) -> Result<()> {
        let moved = self.conn.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()));
        let closed = self.conn.close().map_err(|(_, error)| error);
        Ok(moved.and(closed)?)
    }

    #[cfg(test)]
    pub(crate) fn execute(&mut self, statements: &str) -> Result<()> {
        Ok(self.conn.execute_batch(statements)?)
    }

    fn run(&self, statement: &str) -> Result<()> {
        self.conn.prepare_cached(statement)?.execute([])?;
        Ok(())
    }

    pub(crate) fn begin(&self) -> Result<()> {
        self.run(BEGIN)
    }

    pub(crate) fn commit(&self) -> Result<()> {
        self.run(COMMIT)
    }

    /// Rolls back the transaction, unless SQLite has done so by itself, as it does on a full disk.
    pub(crate) fn rollback(&mut self) -> Result<()> {
        self.savepoint = SavepointState::Unneeded;
        if self.conn.is_autocommit() { Ok(()) } else { self.run(ROLLBACK) }
    }

    pub(crate) fn begin_job(&mut self, isolation: JobIsolation) {
        self.savepoint = match isolation {
            JobIsolation::Alone => SavepointState::Unneeded,
            JobIsolation::Savepoint => SavepointState::Due,
        };
    }

    /// Ends a job: keeps its writes or rolls them back.
    ///
    /// # Errors
    /// Also if no transaction is open: SQLite rolls back by itself after some failures, and later
    /// writes would then be committed one by one.
    pub(crate) fn end_job(&mut self, isolation: JobIsolation, keep: bool) -> Result<()> {
        let savepoint = std::mem::replace(&mut self.savepoint, SavepointState::Unneeded);
        if self.conn.is_autocommit() {
            let error = std::io::Error::other("SQLite has rolled the transaction back");
            return Err(StoreError::Database(Arc::new(error)));
        }
        if isolation == JobIsolation::Alone && !keep {
            self.run(ROLLBACK)?;
            return self.run(BEGIN);
        }
        if savepoint != SavepointState::Open {
            return Ok(());
        }
        if !keep {
            self.run(ROLLBACK_TO_SAVEPOINT)?;
        }
        self.run(RELEASE)
    }

    fn prepare(&mut self, sql: &str) -> Result<CachedStatement<'_>> {
        let statement = self.conn.prepare_cached(sql)?;
        if self.savepoint == SavepointState::Due && !statement.readonly() {
            self.conn.prepare_cached(SAVEPOINT)?.execute([])?;
            self.savepoint = SavepointState::Open;
        }
        Ok(statement)
    }

    pub(crate) fn change(&mut self, sql: &str, values: &[Parameter<'_>]) -> Result<u64> {
        let changed = self.prepare(sql)?.execute(params_from_iter(values))?;
        Ok(u64::try_from(changed).unwrap_or(u64::MAX))
    }

    /// Passes the rows of a query to `take`.
    pub(crate) fn each(
        &mut self,
        sql: &str,
        values: &[Parameter<'_>],
        take: TakeRow<'_>,
    ) -> Result<()> {
        each_row(&mut self.prepare(sql)?, values, take)
    }

    /// Writes events within the current commit, in order, and returns the position of the last. One
    /// statement writes many rows: a statement for each row costs a tenth more.
    pub(crate) fn insert(&mut self, now: Timestamp, events: &[UncommittedEvent]) -> Result<i64> {
        for rows in events.chunks(MAX_ROWS) {
            // Returning a statement to the cache clears its bindings, so unbound parameters are
            // null.
            let mut statement = self.conn.prepare_cached(insert_of(rows.len()))?;
            statement.raw_bind_parameter(1, now.as_millis())?;
            let mut parameter = 1;
            for row in rows {
                let UncommittedEvent { stream_id, seq, kind, data, producer_id, .. } = row;
                statement.raw_bind_parameter(parameter + 1, stream_id)?;
                statement.raw_bind_parameter(parameter + 2, seq)?;
                statement.raw_bind_parameter(parameter + 3, &**kind)?;
                statement.raw_bind_parameter(parameter + 4, &**data)?;
                parameter += 5;
                if let Some(id) = producer_id {
                    statement.raw_bind_parameter(parameter, &**id)?;
                }
            }
            statement.raw_execute()?;
        }
        Ok(self.conn.last_insert_rowid())
    }

    /// Like [`Self::insert`], in a commit of its own.
    pub(crate) fn insert_alone(
        &mut self,
        now: Timestamp,
        events: &[UncommittedEvent],
    ) -> Result<i64> {
        if events.len() <= MAX_ROWS {
            // A single statement is a transaction of its own.
            return self.insert(now, events);
        }
        self.begin()?;
        let written =
            self.insert(now, events).and_then(|position| self.commit().map(|()| position));
        if written.is_err() {
            self.rollback()?;
        }
        written
    }
}

/// Cached prepared statements of a reading connection.
const READER_STATEMENTS: usize = 128;

/// Connections that read, opened on demand and kept. Their number is the highest number of
/// concurrent reads: [`limits::READERS`], and one for each thread of the runtime.
#[derive(Debug)]
pub(crate) struct ReadConnections {
    path: Arc<Path>,
    /// Maximum page cache of a connection, in KiB; `None` for SQLite's own.
    cache_kib: Option<i64>,
    idle: Mutex<Vec<Connection>>,
    /// One for each read on a thread that blocks; closed with the store.
    permits: Arc<Semaphore>,
}

impl ReadConnections {
    pub(crate) fn new(path: Arc<Path>, cache_kib: Option<i64>) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(limits::READERS as usize));
        Arc::new(Self { path, cache_kib, idle: Mutex::default(), permits })
    }

    /// Waits for the reads under way and closes the connections. Later reads fail.
    pub(crate) async fn close(&self) {
        // An error means that it was closed before. Holding all permits keeps new reads out.
        let all = self.permits.acquire_many(limits::READERS).await;
        // Before the lock: a read on its caller's thread, which takes no permit, looks under it.
        self.permits.close();
        self.idle().clear();
        drop(all);
    }

    /// Runs `read` on a connection, on the caller's thread.
    pub(crate) fn read_here<T>(&self, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        if self.permits.is_closed() {
            return Err(StoreError::Stopped);
        }
        let idle = self.idle().pop();
        let conn = idle.map_or_else(|| self.open(), Ok)?;
        let read = read(&conn);
        let mut idle = self.idle();
        // A connection that was in use during `close` is closed here.
        if !self.permits.is_closed() {
            idle.push(conn);
        }
        read
    }

    fn open(&self) -> Result<Connection> {
        let conn = open(&self.path)?;
        conn.pragma_update(None, "temp_store", "memory")?;
        if let Some(kib) = self.cache_kib {
            // A negative value is in KiB.
            conn.pragma_update(None, "cache_size", -kib)?;
        }
        conn.set_prepared_statement_cache_capacity(READER_STATEMENTS);
        Ok(conn)
    }

    /// Runs `read` on a connection, on a thread that may block. `read` must be short; it runs to
    /// its end even if the caller's future is dropped.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        // A caller that is gone takes no answer.
        self.run(Box::new(move |conn| drop(reply.send(read(conn))))).await?;
        answer.await.map_err(|_| StoreError::Stopped)?
    }

    /// Apart, so that the program has it once and not for each type of a row.
    async fn run(self: &Arc<Self>, read: Box<dyn FnOnce(&Connection) + Send>) -> Result<()> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::Stopped)?;
        let readers = Arc::clone(self);
        let job = task::spawn_blocking(move || {
            let idle = readers.idle().pop();
            let conn = idle.map_or_else(|| readers.open(), Ok)?;
            read(&conn);
            readers.idle().push(conn);
            drop(permit);
            Ok(())
        });
        job.await.map_err(|_| StoreError::Stopped)?
    }

    /// Closes idle connections but for one, and frees the pages that it has cached.
    pub(crate) fn release_memory(&self) -> Result<()> {
        let mut idle = self.idle();
        idle.truncate(1);
        Ok(idle.first().map_or(Ok(()), |conn| conn.execute_batch(SHRINK))?)
    }

    pub(crate) fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        // No code panics under this lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn open(path: &Path) -> Result<Connection> {
    check_names(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(limits::BUSY_TIMEOUT)?;
    Ok(conn)
}

#[cfg(test)]
mod tests {
    use svc_model::StreamName;

    use super::*;
    use crate::{
        columns::{Columns, parameter},
        testing::{TestStore, append, event},
    };

    /// Replaces the check that sqlx does of its queries at compile time.
    #[tokio::test]
    async fn statements_prepare_against_the_migrated_schema() {
        let test = TestStore::open().await;
        let connection = DirectConnection::open(test.store.path(), None).unwrap();
        let own = [BEGIN, COMMIT, ROLLBACK, SAVEPOINT, RELEASE, ROLLBACK_TO_SAVEPOINT];
        let inserts = [(&**insert_of(1), 6), (&**insert_of(MAX_ROWS), 1 + 5 * MAX_ROWS)];
        for (sql, parameters) in own.map(|sql| (sql, 0)).into_iter().chain(inserts) {
            let statement = connection.conn.prepare(sql).unwrap();
            assert_eq!(statement.parameter_count(), parameters, "{sql}");
        }
    }

    #[tokio::test]
    async fn the_connection_has_the_settings_of_a_writer() {
        let test = TestStore::of_size(Some(1024 * 1024)).await;
        append(&test.store, &StreamName::new("task", "t"), vec![event("frame", "{}")]).await;
        let conn = DirectConnection::open(test.store.path(), Some(1024 * 1024)).unwrap().conn;
        let pragma =
            |name: &str| -> i64 { conn.pragma_query_value(None, name, |row| row.get(0)).unwrap() };
        assert_eq!(pragma("synchronous"), 2, "full: an answer means that the disk has it");
        assert_eq!(pragma("foreign_keys"), 1);
        assert_eq!(pragma("max_page_count"), 256);
        let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
    }

    #[tokio::test]
    async fn a_savepoint_begins_with_the_first_statement_that_writes() {
        const PUT: &str = "insert into setting (name, value) values (?, '')";
        const COUNT: &str = "select count(*) from setting where name in ('kept', 'undone')";
        let test = TestStore::open().await;
        let mut connection = DirectConnection::open(test.store.path(), None).unwrap();
        let count = |connection: &mut DirectConnection| -> i64 {
            connection.prepare(COUNT).unwrap().query_row([], |row| row.get(0)).unwrap()
        };
        connection.begin().unwrap();
        for (name, keep) in [("kept", true), ("undone", false)] {
            connection.begin_job(JobIsolation::Savepoint);
            count(&mut connection);
            assert_eq!(connection.savepoint, SavepointState::Due);
            connection.change(PUT, &[parameter(name).unwrap()]).unwrap();
            assert_eq!(connection.savepoint, SavepointState::Open);
            connection.end_job(JobIsolation::Savepoint, keep).unwrap();
            assert_eq!(count(&mut connection), 1, "{name}");
        }
        connection.commit().unwrap();
        assert_eq!(count(&mut connection), 1);
        let ended = connection.end_job(JobIsolation::Alone, true);
        assert!(ended.is_err(), "later writes would be in no transaction");
        connection.rollback().unwrap();
    }

    #[tokio::test]
    async fn a_failed_commit_leaves_no_rows_and_no_transaction() {
        let test = TestStore::open().await;
        let name = StreamName::new("task", "t");
        append(&test.store, &name, vec![event("frame", "{}")]).await;
        let mut connection = DirectConnection::open(test.store.path(), None).unwrap();
        let stream = test.store.streams().view(&name).await.unwrap().unwrap();
        let row = |seq| UncommittedEvent {
            stream: name.shared(),
            stream_id: stream.id,
            visibility: Arc::new(StreamVisibility::Team),
            seq,
            kind: "frame".into(),
            data: "{}".into(),
            producer_id: None,
        };
        let now = Timestamp::from_millis(1);
        let many = i64::try_from(MAX_ROWS).unwrap() + 1;
        for last in [2, many] {
            // 1 exists already: in the only statement, or in the last of two.
            let rows: Vec<_> = (2..=last).chain([1]).map(row).collect();
            assert!(connection.insert_alone(now, &rows).is_err(), "{last}");
            assert_eq!(test.store.streams().view(&name).await.unwrap().unwrap().head, 1);
        }
        assert_eq!(connection.insert_alone(now, &[row(2), row(3), row(4)]).unwrap(), 4);
        // Fewer rows than the statement takes, after a full statement.
        assert_eq!(connection.insert_alone(now, &[row(5), row(6), row(7), row(8)]).unwrap(), 8);
        assert_eq!(connection.insert_alone(now, &[row(9), row(10), row(11)]).unwrap(), 11);
        let rows: Vec<_> = (12..=many + 11).map(row).collect();
        assert_eq!(connection.insert_alone(now, &rows).unwrap(), many + 11);
        assert_eq!(test.store.streams().view(&name).await.unwrap().unwrap().head, many + 11);
    }

    #[tokio::test]
    async fn an_idle_connection_is_kept_until_close() {
        let test = TestStore::open().await;
        let readers = ReadConnections::new(test.store.path().into(), None);
        let read = |sql: &str| -> Result<Vec<i64>> {
            readers.read_here(|conn| {
                let mut numbers = Vec::new();
                each(conn, sql, &[], &mut |row| {
                    numbers.push(Columns::new(row).next("number").unwrap());
                    Ok(true)
                })?;
                Ok(numbers)
            })
        };
        assert_eq!(read("select 7 as number").unwrap(), [7]);
        assert!(read("select 7 as number where false").unwrap().is_empty());
        assert!(read("select nothing").is_err(), "the connection survives a failure");
        assert!(read("delete from setting").is_err(), "it only reads");
        let two = "select 1 as number union all select 2";
        assert_eq!(read(two).unwrap(), [1, 2]);
        assert_eq!(readers.idle().len(), 1, "one thread opens one connection");
        readers.close().await;
        assert!(matches!(read("select 7 as number"), Err(StoreError::Stopped)));
    }
}
