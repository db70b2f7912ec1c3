//! Connections for reads on a thread that may block, beside the pools of sqlx.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rusqlite::{Connection, OpenFlags};
use svc_model::limits;
use tokio::{sync::Semaphore, task};

use super::connect::check_names;
use crate::StoreError;

/// The connections for pages. At most [`limits::READERS`], opened as they are needed and kept.
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
        // An error says that it was closed before. Held until nobody can get one any more.
        let all = self.permits.acquire_many(limits::READERS).await;
        self.permits.close();
        self.idle().clear();
        drop(all);
    }

    /// Runs `read` on a connection, on a thread where it may block. It is short, and runs to its
    /// end also if the caller's future is dropped.
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

    pub(super) fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        // Nothing panics under this lock.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that only reads.
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
    check_names(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(limits::BUSY_TIMEOUT)?;
    // A replay reads each page of the file once. Negative: KiB.
    conn.pragma_update(None, "cache_size", -limits::REPLAY_CACHE_KIB)?;
    Ok(conn)
}
