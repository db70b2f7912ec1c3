//! The lock of the database, and the error when another process holds it.

use std::time::Duration;

use svc_server::daemon;
use svc_store::{DatabaseLock, LockError};
use svc_sys::config::Paths;

/// Deadline for the daemon that holds the lock to identify itself; after it the error names a
/// process only.
const INTRODUCTION: Duration = Duration::from_secs(2);

/// Another process holds the database. Exit code 3.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct DatabaseInUse(pub(super) String);

/// Takes the lock. If another process holds it, the error names that process and ends with
/// `advice`.
pub(super) fn lock_database(paths: &Paths, advice: Option<&str>) -> anyhow::Result<DatabaseLock> {
    match DatabaseLock::acquire(&paths.lock) {
        Ok(lock) => return Ok(lock),
        Err(LockError::Held) => {}
        Err(error) => return Err(error.into()),
    }
    let db = paths.db.display();
    let mut text = match daemon::lock_holder(paths, INTRODUCTION) {
        Some(file) => {
            format!("a daemon already runs on {db}: pid {}, {}", file.pid, file.url)
        }
        None => format!("another svc process is at work on {db}"),
    };
    text.extend(advice.into_iter().flat_map(|advice| ["; ", advice]));
    Err(DatabaseInUse(text).into())
}
