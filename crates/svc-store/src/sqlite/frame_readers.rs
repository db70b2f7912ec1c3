//! Connections for reads on a thread that may block, besides the pools of sqlx.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::{Connection, OpenFlags};
use svc_model::limits;
use tokio::{sync::Semaphore, task};

use super::connect::{SHRINK, check_names};
use crate::StoreError;

/// Connections that read pages. At most [`limits::READERS`], opened on demand and kept.
#[derive(Debug)]
pub(super) struct FrameReaders {
    path: Arc<Path>,
    idle: Mutex<Vec<Connection>>,
    /// One for each connection; closed with the store.
    permits: Arc<Semaphore>,
}

impl FrameReaders {
    pub(super) fn new(path: Arc<Path>) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(limits::READERS as usize));
        Arc::new(Self { path, idle: Mutex::default(), permits })
    }

    /// Waits for the pages under way and closes the connections. Later reads fail.
    pub(super) async fn close(&self) {
        // An error means that it was closed before. Holding all permits keeps new reads out.
        let all = self.permits.acquire_many(limits::READERS).await;
        self.permits.close();
        self.idle().clear();
        drop(all);
    }

    /// Runs `read` on a connection, on a thread that may block. `read` must be short; it runs to
    /// its end even if the caller's future is dropped.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| StoreError::Stopped)?;
        let readers = Arc::clone(self);
        let job = task::spawn_blocking(move || {
            let idle = readers.idle().pop();
            let conn = idle.map_or_else(|| open(&readers.path), Ok)?;
            let read = read(&conn);
            readers.idle().push(conn);
            drop(permit);
            Ok(read?)
        });
        job.await.map_err(|_| StoreError::Stopped)?
    }

    /// Closes idle connections but for one, and frees the pages that it has cached.
    pub(super) fn release_memory(&self) -> Result<(), StoreError> {
        let mut idle = self.idle();
        idle.truncate(1);
        Ok(idle.first().map_or(Ok(()), |conn| conn.execute_batch(SHRINK))?)
    }

    pub(super) fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        // No code panics under this lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    check_names(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(limits::BUSY_TIMEOUT)?;
    // A replay reads each page of the file once. A negative value is in KiB.
    conn.pragma_update(None, "cache_size", -limits::REPLAY_CACHE_KIB)?;
    Ok(conn)
}
