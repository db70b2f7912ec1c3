//! One daemon or migrator per database: an operating system lock on `<database>.lock`.
//!
//! The kernel releases the lock when the process ends for whatever reason, so a lock is never
//! stale. The file stays: if it were removed, two processes could hold locks on two files of the
//! same name.

use std::{
    fs::{File, Metadata, TryLockError},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    thread,
    time::Duration,
};

use rustix::fs::OFlags;
use svc_sys::private_file;

/// Attempts to take the lock. A process that probes the lock holds it for a moment.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct DatabaseLock {
    _file: File,
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another process holds the lock")]
    Held,
    #[error("cannot lock {path}")]
    Io {
        path: String,
        #[source]
        source: io::Error,
    },
}

impl DatabaseLock {
    /// Takes the lock at `path`. Waits only for processes that probe the lock, not for an owner.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { path: path.display().to_string(), source };
        private_file::check_one_name(path).map_err(|untrusted| failed(untrusted.into()))?;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
            .map_err(failed)?;
        for attempt in 1.. {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if attempt == TRIES => return Err(LockError::Held),
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
        }
        Ok(Self { _file: file })
    }

    /// Whether process `pid` holds the lock at `path`.
    ///
    /// Where the system does not list a process's open files: whether any process holds the lock.
    pub fn is_held_by(path: &Path, pid: i32) -> bool {
        let Some(file) = existing(path) else { return false };
        let Ok(meta) = file.metadata() else { return false };
        has_open(pid, &meta) != Some(false) && is_locked(&file)
    }

    pub fn is_held(path: &Path) -> bool {
        existing(path).is_some_and(|file| is_locked(&file))
    }
}

fn existing(path: &Path) -> Option<File> {
    let mut options = File::options();
    options.read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path).ok()
}

fn is_locked(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Whether a process has this file open; `None` if the system does not report it.
fn has_open(pid: i32, file: &Metadata) -> Option<bool> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut files = descriptors.flatten().filter_map(|entry| std::fs::metadata(entry.path()).ok());
    Some(files.any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_held_by_recognises_only_the_holding_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("svc.db.lock");
        let own = i32::try_from(std::process::id()).expect("fits");
        assert!(!DatabaseLock::is_held_by(&path, own), "no lock file exists");
        assert!(!DatabaseLock::is_held(&path));
        let lock = DatabaseLock::acquire(&path).expect("is free");
        assert!(DatabaseLock::is_held_by(&path, own) && DatabaseLock::is_held(&path));
        assert!(matches!(DatabaseLock::acquire(&path), Err(LockError::Held)));
        let mut stranger = std::process::Command::new("sleep").arg("60").spawn().expect("starts");
        let pid = stranger.id().try_into().expect("fits");
        if std::fs::exists("/proc/self/fd").expect("can be asked") {
            assert!(!DatabaseLock::is_held_by(&path, pid), "another process has not opened it");
        }
        stranger.kill().expect("our own child");
        stranger.wait().expect("our own child");
        drop(lock);
        assert!(!DatabaseLock::is_held_by(&path, own), "the lock was released");
        assert!(!DatabaseLock::is_held(&path));
        std::fs::hard_link(&path, folder.path().join("other")).expect("links");
        let error = DatabaseLock::acquire(&path).expect_err("has two names");
        assert!(matches!(error, LockError::Io { .. }), "{error:?}");
    }
}
