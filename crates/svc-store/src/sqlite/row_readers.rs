//! Connections that read a few rows by an index, on the thread of whoever asks.
//!
//! Through sqlx such a read is a hand-over to another thread and back, which costs several times
//! what SQLite needs for it. Here it is a call. A reader of the write-ahead log never waits for the
//! writer, so what blocks the thread is a look at pages that are mostly in memory. Queries whose
//! number of rows grows with the database go through sqlx.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, ToSql, types::FromSql};
use svc_model::limits;

use super::{connect::check_names, direct_connection::DirectRow};
use crate::StoreError;

/// Prepared statements that a connection keeps: all that are read so.
const STATEMENTS: usize = 32;

/// The connections. There are as many as threads have read at the same time, opened as they are
/// needed and kept.
#[derive(Debug)]
pub(super) struct RowReaders {
    path: Arc<Path>,
    /// Those that nobody uses; `None` once they are closed.
    idle: Mutex<Option<Vec<Connection>>>,
}

impl RowReaders {
    pub(super) fn new(path: Arc<Path>) -> Arc<Self> {
        Arc::new(Self { path, idle: Mutex::new(Some(Vec::new())) })
    }

    /// Closes the connections. Later reads fail.
    pub(super) fn close(&self) {
        drop(self.idle().take());
    }

    /// The one value of the one row of a query.
    pub(super) fn value<T: FromSql>(
        &self,
        sql: &str,
        values: &[&dyn ToSql],
    ) -> Result<T, StoreError> {
        self.read(|conn| conn.prepare_cached(sql)?.query_row(values, |row| row.get(0)))
    }

    /// The one row of a query, if it has one.
    pub(super) fn one<T: DirectRow>(
        &self,
        sql: &str,
        values: &[&dyn ToSql],
    ) -> Result<Option<T>, StoreError> {
        self.read(|conn| conn.prepare_cached(sql)?.query_row(values, T::read).optional())
    }

    /// The rows of a query.
    pub(super) fn all<T: DirectRow>(
        &self,
        sql: &str,
        values: &[&dyn ToSql],
    ) -> Result<Vec<T>, StoreError> {
        self.read(|conn| conn.prepare_cached(sql)?.query_map(values, T::read)?.collect())
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let idle = self.idle().as_mut().ok_or(StoreError::Stopped)?.pop();
        let conn = idle.map_or_else(|| open(&self.path), Ok)?;
        let read = read(&conn);
        // One that was in use when the others were closed closes here.
        if let Some(idle) = self.idle().as_mut() {
            idle.push(conn);
        }
        Ok(read?)
    }

    fn idle(&self) -> MutexGuard<'_, Option<Vec<Connection>>> {
        // Nothing panics under this lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(path: &Path) -> Result<Connection, StoreError> {
    check_names(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(limits::BUSY_TIMEOUT)?;
    conn.pragma_update(None, "temp_store", "memory")?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestStore;

    struct Number(i64);

    impl DirectRow for Number {
        fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
            Ok(Self(row.get(0)?))
        }
    }

    #[tokio::test]
    async fn a_connection_is_kept_until_they_are_closed() {
        let test = TestStore::open().await;
        let readers = RowReaders::new(test.store.path().into());
        let read = |sql: &str| readers.one::<Number>(sql, &[]).map(|row| row.map(|row| row.0));
        assert_eq!(read("select 7").unwrap(), Some(7));
        assert_eq!(read("select 7 where false").unwrap(), None);
        assert!(read("select nothing").is_err(), "and it is there after a failure");
        assert!(read("delete from setting").is_err(), "it only reads");
        assert_eq!(readers.value::<i64>("select 8", &[]).unwrap(), 8);
        let rows = readers.all::<Number>("select 1 union all select 2", &[]).unwrap();
        assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(readers.idle().as_ref().unwrap().len(), 1, "one is enough for one thread");
        readers.close();
        assert!(matches!(read("select 7"), Err(StoreError::Stopped)));
    }
}
