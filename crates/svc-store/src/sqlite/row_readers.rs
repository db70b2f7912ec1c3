//! Connections for reads that do not go through the pools of sqlx, where a read passes to another
//! thread and back, which costs several times as much as SQLite's own work. [`RowReaders`] read a
//! few rows by an index, on the caller's thread. A reader of the write-ahead log never waits for
//! the writer, so the call blocks its thread only for pages that are mostly in memory. Queries
//! whose number of rows grows with the database go through sqlx. [`FrameReaders`] read pages of the
//! log, on threads that may block.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params_from_iter, types::FromSql};
use svc_model::limits;
use tokio::{sync::Semaphore, task};

use super::{
    direct_connection::read_row,
    file::{SHRINK, check_names},
};
use crate::{
    Result, StoreError,
    columns::{DirectRow, Parameter},
};

/// Cached prepared statements of a connection: all that use this path.
const STATEMENTS: usize = 32;

/// The connections, opened on demand and kept. Their number is the highest number of concurrent
/// reads.
#[derive(Debug)]
pub(crate) struct RowReaders {
    path: Arc<Path>,
    idle: Mutex<Option<Vec<Connection>>>,
}

impl RowReaders {
    pub(crate) fn new(path: Arc<Path>) -> Arc<Self> {
        Arc::new(Self { path, idle: Mutex::new(Some(Vec::new())) })
    }

    pub(crate) fn close(&self) {
        drop(self.idle().take());
    }

    pub(crate) fn value<T: FromSql>(&self, sql: &str, values: &[Parameter<'_>]) -> Result<T> {
        self.read(|conn| {
            conn.prepare_cached(sql)?.query_row(params_from_iter(values), |row| row.get(0))
        })
    }

    pub(crate) fn one<T: DirectRow>(
        &self,
        sql: &str,
        values: &[Parameter<'_>],
    ) -> Result<Option<T>> {
        self.read(|conn| {
            conn.prepare_cached(sql)?.query_row(params_from_iter(values), read_row).optional()
        })
    }

    pub(crate) fn all<T: DirectRow>(&self, sql: &str, values: &[Parameter<'_>]) -> Result<Vec<T>> {
        self.read(|conn| {
            conn.prepare_cached(sql)?.query_map(params_from_iter(values), read_row)?.collect()
        })
    }

    fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        let idle = self.idle().as_mut().ok_or(StoreError::Stopped)?.pop();
        let conn = idle.map_or_else(
            || {
                let conn = open(&self.path)?;
                conn.pragma_update(None, "temp_store", "memory")?;
                conn.set_prepared_statement_cache_capacity(STATEMENTS);
                Ok::<_, StoreError>(conn)
            },
            Ok,
        )?;
        let read = read(&conn);
        // A connection that was in use during `close` is closed here.
        if let Some(idle) = self.idle().as_mut() {
            idle.push(conn);
        }
        Ok(read?)
    }

    pub(crate) fn release_memory(&self) -> Result<()> {
        self.idle().as_mut().map_or(Ok(()), release_memory)
    }

    fn idle(&self) -> MutexGuard<'_, Option<Vec<Connection>>> {
        // No code panics under this lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connections that read pages. At most [`limits::READERS`], opened on demand and kept.
#[derive(Debug)]
pub(crate) struct FrameReaders {
    path: Arc<Path>,
    idle: Mutex<Vec<Connection>>,
    /// One for each connection; closed with the store.
    permits: Arc<Semaphore>,
}

impl FrameReaders {
    pub(crate) fn new(path: Arc<Path>) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(limits::READERS as usize));
        Arc::new(Self { path, idle: Mutex::default(), permits })
    }

    /// Waits for the pages under way and closes the connections. Later reads fail.
    pub(crate) async fn close(&self) {
        // An error means that it was closed before. Holding all permits keeps new reads out.
        let all = self.permits.acquire_many(limits::READERS).await;
        self.permits.close();
        self.idle().clear();
        drop(all);
    }

    /// Runs `read` on a connection, on a thread that may block. `read` must be short; it runs to
    /// its end even if the caller's future is dropped.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::Stopped)?;
        let readers = Arc::clone(self);
        let job = task::spawn_blocking(move || {
            let idle = readers.idle().pop();
            let conn = idle.map_or_else(
                || {
                    let conn = open(&readers.path)?;
                    // A replay reads each page of the file once. A negative value is in KiB.
                    conn.pragma_update(None, "cache_size", -limits::REPLAY_CACHE_KIB)?;
                    Ok::<_, StoreError>(conn)
                },
                Ok,
            )?;
            let read = read(&conn);
            readers.idle().push(conn);
            drop(permit);
            Ok(read?)
        });
        job.await.map_err(|_| StoreError::Stopped)?
    }

    pub(crate) fn release_memory(&self) -> Result<()> {
        release_memory(&mut self.idle())
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

/// Closes idle connections but for one, and frees the pages that it has cached.
fn release_memory(idle: &mut Vec<Connection>) -> Result<()> {
    idle.truncate(1);
    Ok(idle.first().map_or(Ok(()), |conn| conn.execute_batch(SHRINK))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{statement::direct_row, testing::TestStore};

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
