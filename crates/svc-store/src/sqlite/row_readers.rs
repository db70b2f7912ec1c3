//! Connections that read a few rows by an index, on the caller's thread.
//!
//! Through sqlx such a read passes to another thread and back, which costs several times as much as
//! SQLite's own work. A reader of the write-ahead log never waits for the writer, so the call
//! blocks its thread only for pages that are mostly in memory. Queries whose number of rows grows
//! with the database go through sqlx.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params_from_iter, types::FromSql};
use svc_model::limits;

use super::{
    connect::{SHRINK, check_names},
    direct_connection::read_row,
    row::{DirectRow, Parameter},
};
use crate::StoreError;

/// Cached prepared statements of a connection: all that use this path.
const STATEMENTS: usize = 32;

/// The connections, opened on demand and kept. Their number is the highest number of concurrent
/// reads.
#[derive(Debug)]
pub(super) struct RowReaders {
    path: Arc<Path>,
    /// Idle connections; `None` once closed.
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

    /// The single value of a query that returns one row.
    pub(super) fn value<T: FromSql>(
        &self,
        sql: &str,
        values: &[Parameter<'_>],
    ) -> Result<T, StoreError> {
        self.read(|conn| {
            conn.prepare_cached(sql)?.query_row(params_from_iter(values), |row| row.get(0))
        })
    }

    /// The row of a query that returns at most one.
    pub(super) fn one<T: DirectRow>(
        &self,
        sql: &str,
        values: &[Parameter<'_>],
    ) -> Result<Option<T>, StoreError> {
        self.read(|conn| {
            conn.prepare_cached(sql)?.query_row(params_from_iter(values), read_row).optional()
        })
    }

    pub(super) fn all<T: DirectRow>(
        &self,
        sql: &str,
        values: &[Parameter<'_>],
    ) -> Result<Vec<T>, StoreError> {
        self.read(|conn| {
            conn.prepare_cached(sql)?.query_map(params_from_iter(values), read_row)?.collect()
        })
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let idle = self.idle().as_mut().ok_or(StoreError::Stopped)?.pop();
        let conn = idle.map_or_else(|| open(&self.path), Ok)?;
        let read = read(&conn);
        // A connection that was in use during `close` is closed here.
        if let Some(idle) = self.idle().as_mut() {
            idle.push(conn);
        }
        Ok(read?)
    }

    /// Closes idle connections but for one, and frees the pages that it has cached.
    pub(super) fn release_memory(&self) -> Result<(), StoreError> {
        let mut idle = self.idle();
        let Some(idle) = idle.as_mut() else { return Ok(()) };
        idle.truncate(1);
        Ok(idle.first().map_or(Ok(()), |conn| conn.execute_batch(SHRINK))?)
    }

    fn idle(&self) -> MutexGuard<'_, Option<Vec<Connection>>> {
        // No code panics under this lock.
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
    use super::{super::statement::direct_row, *};
    use crate::testing::TestStore;

    direct_row! { struct Number { number: i64 } }

    #[tokio::test]
    async fn an_idle_connection_is_kept_until_close() {
        let test = TestStore::open().await;
        let readers = RowReaders::new(test.store.path().into());
        let read = |sql: &str| readers.one::<Number>(sql, &[]).map(|row| row.map(|row| row.number));
        assert_eq!(read("select 7 as number").unwrap(), Some(7));
        assert_eq!(read("select 7 as number where false").unwrap(), None);
        assert!(read("select nothing").is_err(), "the connection survives a failure");
        assert!(read("delete from setting").is_err(), "it only reads");
        assert_eq!(readers.value::<i64>("select 8", &[]).unwrap(), 8);
        let two = "select 1 as number union all select 2";
        let rows = readers.all::<Number>(two, &[]).unwrap();
        assert_eq!(rows.iter().map(|row| row.number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(readers.idle().as_ref().unwrap().len(), 1, "one thread opens one connection");
        readers.close();
        assert!(matches!(read("select 7 as number"), Err(StoreError::Stopped)));
    }
}
