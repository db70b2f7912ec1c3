//! One daemon or migrator per database: an operating system lock on `<database>.lock`.
//!
//! The kernel releases it when the process is gone, however it went, so there is nothing stale to clean up. The
//! file itself stays: removing it would let two processes hold locks on two files of one name.

use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::OFlags;

/// Holds the lock for as long as it lives.
#[derive(Debug)]
pub struct DatabaseLock {
    _file: File,
}

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("another process holds the lock")]
    Held,
    /// The lock file cannot be used.
    #[error("cannot lock {path}")]
    Io {
        /// The lock file.
        path: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl DatabaseLock {
    /// Takes the lock at `path`, without waiting.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.display().to_string(), source };
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(LockError::Held),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}
