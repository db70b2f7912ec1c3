//! The writer's second connection, for commits of appends and of jobs that need no other statements than those of
//! `statement`. The writer calls it on its own thread.
//!
//! A statement through sqlx is a hand-over to another thread and back, which is most of what it costs beside the disk. The statements of
//! this file leave sqlx's check at compile time, so a test prepares each against the migrated schema. Both connections are the
//! writer's: it uses one at a time, so there is one writer all the same.

use std::{path::PathBuf, sync::Arc};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, ToSql, params, types::FromSql};
use svc_model::{Seq, StreamName, Timestamp, limits};

use super::{
    connect::check_names,
    event_insert::{MAX_ROWS, UncommittedEvent, insert_of},
    json::to_json,
    visibility::visibility_of,
};
use crate::{StoreError, StreamState};

const BEGIN: &str = "begin immediate";
const COMMIT: &str = "commit";
const ROLLBACK: &str = "rollback";
/// Prepared statements that are kept: these, one for each size of an insert, and those of the jobs.
const STATEMENTS: usize = 128;
const STREAM: &str = "select id, closed_at is not null, visibility, owner, runner, project, \
    (select coalesce(max(seq), 0) from event where stream_id = stream.id) from stream where name = ?";
const KNOWN_IDS: &str = "select producer_id, seq from event \
    where stream_id = ? and producer_id in (select value from json_each(?))";

/// A row as this connection reads it: the columns in the order of the fields.
pub(super) trait DirectRow: Sized {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self>;
}

/// The connection. It opens with the first commit that needs it, so that a daemon at rest does not hold a second schema.
#[derive(Debug)]
pub(super) struct DirectConnection {
    path: PathBuf,
    /// Bound of the file's size, in pages.
    max_pages: Option<i64>,
    open: Option<Connection>,
}

impl DirectConnection {
    /// One to a database that is open already, and has its schema.
    pub(super) fn new(path: PathBuf, max_pages: Option<i64>) -> Self {
        Self { path, max_pages, open: None }
    }

    fn get(&mut self) -> Result<&Connection, StoreError> {
        let conn = match self.open.take() {
            Some(conn) => conn,
            None => self.connect()?,
        };
        Ok(self.open.insert(conn))
    }

    fn connect(&self) -> Result<Connection, StoreError> {
        check_names(&self.path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.path, flags)?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS);
        conn.busy_timeout(limits::BUSY_TIMEOUT)?;
        conn.pragma_update(None, "synchronous", "full")?;
        conn.pragma_update(None, "foreign_keys", true)?;
        conn.pragma_update(None, "temp_store", "memory")?;
        conn.pragma_update(None, "journal_size_limit", limits::WAL_BYTES.cast_signed())?;
        if let Some(pages) = self.max_pages {
            conn.pragma_update(None, "max_page_count", pages)?;
        }
        Ok(conn)
    }

    /// Runs statements without parameters that answer nothing.
    pub(super) fn execute(&mut self, statements: &str) -> Result<(), StoreError> {
        Ok(self.get()?.execute_batch(statements)?)
    }

    /// How many rows this connection has changed since it was opened, triggers included.
    pub(super) fn changes(&mut self) -> Result<u64, StoreError> {
        Ok(self.get()?.total_changes())
    }

    /// # Errors
    /// If no transaction is open: SQLite rolls back by itself after some failures, as of a full disk.
    pub(super) fn check_transaction(&mut self) -> Result<(), StoreError> {
        if self.get()?.is_autocommit() {
            let error = std::io::Error::other("SQLite has rolled the transaction back");
            return Err(StoreError::Database(Arc::new(error)));
        }
        Ok(())
    }

    /// Changes rows; how many.
    pub(super) fn change(&mut self, sql: &str, values: &[&dyn ToSql]) -> Result<u64, StoreError> {
        let changed = self.get()?.prepare_cached(sql)?.execute(values)?;
        Ok(u64::try_from(changed).unwrap_or(u64::MAX))
    }

    /// The one value of the one row of a query.
    pub(super) fn value<T: FromSql>(
        &mut self,
        sql: &str,
        values: &[&dyn ToSql],
    ) -> Result<T, StoreError> {
        Ok(self.get()?.prepare_cached(sql)?.query_row(values, |row| row.get(0))?)
    }

    /// The one row of a query, if it has one.
    pub(super) fn one<T: DirectRow>(
        &mut self,
        sql: &str,
        values: &[&dyn ToSql],
    ) -> Result<Option<T>, StoreError> {
        Ok(self.get()?.prepare_cached(sql)?.query_row(values, T::read).optional()?)
    }

    /// The rows of a query.
    pub(super) fn all<T: DirectRow>(
        &mut self,
        sql: &str,
        values: &[&dyn ToSql],
    ) -> Result<Vec<T>, StoreError> {
        let mut statement = self.get()?.prepare_cached(sql)?;
        let rows = statement.query_map(values, T::read)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// What stands at `name`; `None` if there is no such stream.
    pub(super) fn stream(&mut self, name: &StreamName) -> Result<Option<StreamState>, StoreError> {
        let mut statement = self.get()?.prepare_cached(STREAM)?;
        let state = statement.query_row([name.as_str()], |row| {
            let visibility: String = row.get(2)?;
            Ok(StreamState {
                id: row.get(0)?,
                closed: row.get(1)?,
                visibility: Arc::new(visibility_of(
                    &visibility,
                    row.get(3)?,
                    row.get(4)?,
                    row.get(5)?,
                )),
                head: row.get(6)?,
            })
        });
        Ok(state.optional()?)
    }

    /// Which of these ids of producers a stream has, and the seqs of their events.
    pub(super) fn known_producer_ids(
        &mut self,
        stream: i64,
        ids: &impl serde::Serialize,
    ) -> Result<Vec<(Arc<str>, Seq)>, StoreError> {
        let mut statement = self.get()?.prepare_cached(KNOWN_IDS)?;
        let rows = statement.query_map(params![stream, to_json(ids)], |row| {
            let id: String = row.get(0)?;
            Ok((id.into(), row.get(1)?))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Writes events within the present commit, in their order, and answers the position of the last.
    pub(super) fn insert(
        &mut self,
        now: Timestamp,
        events: &[UncommittedEvent],
    ) -> Result<i64, StoreError> {
        Ok(insert(self.get()?, now, events)?)
    }

    /// The same in a commit of their own.
    pub(super) fn commit(
        &mut self,
        now: Timestamp,
        events: &[UncommittedEvent],
    ) -> Result<i64, StoreError> {
        let conn = self.get()?;
        if events.len() <= MAX_ROWS {
            // One statement is a transaction of its own.
            return Ok(insert(conn, now, events)?);
        }
        conn.prepare_cached(BEGIN)?.execute([])?;
        let written = insert(conn, now, events)
            .and_then(|position| conn.prepare_cached(COMMIT)?.execute([]).map(|_| position));
        if written.is_err() && !conn.is_autocommit() {
            // On a full disk SQLite has rolled back by itself.
            conn.prepare_cached(ROLLBACK)?.execute([])?;
        }
        Ok(written?)
    }
}

/// With each row its own statement, a row costs a tenth more.
fn insert(conn: &Connection, now: Timestamp, events: &[UncommittedEvent]) -> rusqlite::Result<i64> {
    for rows in events.chunks(MAX_ROWS) {
        // What an earlier commit has bound was cleared when its statement went back into the cache.
        let mut statement = conn.prepare_cached(insert_of(rows.len()))?;
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
    Ok(conn.last_insert_rowid())
}

#[cfg(test)]
mod tests {
    use svc_model::StreamVisibility;

    use super::*;
    use crate::testing::{TestStore, append, event};

    /// What sqlx checks of its queries when they are compiled.
    #[tokio::test]
    async fn each_statement_fits_the_migrated_schema() {
        let test = TestStore::open().await;
        let mut connection = DirectConnection::new(test.store.path().to_owned(), None);
        let conn = connection.get().unwrap();
        for (sql, parameters, columns) in [
            (BEGIN, 0, &[][..]),
            (COMMIT, 0, &[]),
            (ROLLBACK, 0, &[]),
            (&**insert_of(1), 6, &[]),
            (&**insert_of(MAX_ROWS), 1 + 5 * MAX_ROWS, &[]),
            (STREAM, 1, &["id", "visibility", "owner", "runner", "project"]),
            (KNOWN_IDS, 2, &["producer_id", "seq"]),
        ] {
            let statement = conn.prepare(sql).unwrap();
            assert_eq!(statement.parameter_count(), parameters, "{sql}");
            let names = statement.column_names();
            assert!(columns.iter().all(|name| names.contains(name)), "{sql}: {names:?}");
        }
    }

    #[tokio::test]
    async fn it_keeps_what_the_other_connection_of_the_writer_keeps() {
        let test = TestStore::of_size(Some(1024 * 1024)).await;
        append(&test.store, &StreamName::of("task", "t"), vec![event("frame", "{}")]).await;
        let mut connection = DirectConnection::new(test.store.path().to_owned(), Some(256));
        let conn = connection.get().unwrap();
        let pragma =
            |name: &str| -> i64 { conn.pragma_query_value(None, name, |row| row.get(0)).unwrap() };
        assert_eq!(pragma("synchronous"), 2, "full: an answer means that the disk has it");
        assert_eq!(pragma("foreign_keys"), 1);
        assert_eq!(pragma("max_page_count"), 256);
        let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
    }

    #[tokio::test]
    async fn both_connections_read_the_same_of_a_stream() {
        let test = TestStore::open().await;
        let mut connection = DirectConnection::new(test.store.path().to_owned(), None);
        let text = |text: &str| Some(Arc::from(text));
        for (number, visibility) in [
            StreamVisibility::Team,
            StreamVisibility::Shared { owner: text("a"), runner: text("b"), project: text("/c") },
            StreamVisibility::Shared { owner: None, runner: None, project: None },
            StreamVisibility::Private { owner: "a".into() },
            StreamVisibility::Answers,
        ]
        .into_iter()
        .enumerate()
        {
            let name = StreamName::of("task", number);
            let opened = name.clone();
            let state: Result<StreamState, StoreError> = test
                .store
                .write(move |tx| {
                    Box::pin(async move { tx.open_stream(&opened, &visibility).await })
                })
                .await;
            assert_eq!(connection.stream(&name).unwrap(), Some(state.unwrap()));
        }
        assert_eq!(connection.stream(&StreamName::of("task", "none")).unwrap(), None);
    }

    #[tokio::test]
    async fn a_commit_that_fails_leaves_nothing_and_no_transaction() {
        let test = TestStore::open().await;
        let name = StreamName::of("task", "t");
        append(&test.store, &name, vec![event("frame", "{}")]).await;
        let mut connection = DirectConnection::new(test.store.path().to_owned(), None);
        let stream = connection.stream(&name).unwrap().unwrap();
        let row = |seq| UncommittedEvent {
            stream: name.shared(),
            stream_id: stream.id,
            visibility: Arc::clone(&stream.visibility),
            seq,
            kind: "frame".into(),
            data: "{}".into(),
            producer_id: None,
        };
        let now = Timestamp::from_millis(1);
        let many = i64::try_from(MAX_ROWS).unwrap() + 1;
        for last in [2, many] {
            // 1 is there already: in the only statement, or in the last of two.
            let rows: Vec<_> = (2..=last).chain([1]).map(row).collect();
            assert!(connection.commit(now, &rows).is_err(), "{last}");
            assert_eq!(connection.stream(&name).unwrap().unwrap().head, 1);
        }
        assert_eq!(connection.commit(now, &[row(2), row(3), row(4)]).unwrap(), 4);
        // Fewer than the statement has room for, after as many.
        assert_eq!(connection.commit(now, &[row(5), row(6), row(7), row(8)]).unwrap(), 8);
        assert_eq!(connection.commit(now, &[row(9), row(10), row(11)]).unwrap(), 11);
        let rows: Vec<_> = (12..=many + 11).map(row).collect();
        assert_eq!(connection.commit(now, &rows).unwrap(), many + 11);
        assert_eq!(connection.stream(&name).unwrap().unwrap().head, many + 11);
    }
}
