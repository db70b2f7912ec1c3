//! One daemon or migrator per database: an operating system lock on `<database>.lock`.
//!
//! The kernel releases it when the process is gone, however it went, so there is nothing stale to
//! clean up. The file itself stays: removing it would let two processes hold locks on two files of
//! one name.

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

/// Attempts to take the lock. Who probes whether it is held takes it for a moment.
const TRIES: usize = 20;
/// The wait between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

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
    /// Takes the lock at `path`, and waits for nobody but those who look whether it is held.
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

    /// Whether this process holds the lock at `path`.
    ///
    /// Where the system does not say which files a process has open, whether any process holds it.
    pub fn is_held_by(path: &Path, pid: i32) -> bool {
        let Some(file) = existing(path) else { return false };
        let Ok(meta) = file.metadata() else { return false };
        has_open(pid, &meta) != Some(false) && is_locked(&file)
    }

    /// Whether any process holds the lock at `path`.
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

/// Whether a process has this file open; `None` if the system does not say so.
fn has_open(pid: i32, file: &Metadata) -> Option<bool> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut files = descriptors.flatten().filter_map(|entry| std::fs::metadata(entry.path()).ok());
    Some(files.any(|open| (open.dev(), open.ino()) == (file.dev(), file.ino())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_the_lock_is_known_by_its_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("svc.db.lock");
        let own = i32::try_from(std::process::id()).expect("fits");
        assert!(!DatabaseLock::is_held_by(&path, own), "there is none");
        assert!(!DatabaseLock::is_held(&path));
        let lock = DatabaseLock::acquire(&path).expect("is free");
        assert!(DatabaseLock::is_held_by(&path, own) && DatabaseLock::is_held(&path));
        assert!(matches!(DatabaseLock::acquire(&path), Err(LockError::Held)));
        let mut stranger = std::process::Command::new("sleep").arg("60").spawn().expect("starts");
        let pid = stranger.id().try_into().expect("fits");
        if std::fs::exists("/proc/self/fd").expect("can be asked") {
            assert!(!DatabaseLock::is_held_by(&path, pid), "a stranger has not opened it");
        }
        stranger.kill().expect("our own child");
        stranger.wait().expect("our own child");
        drop(lock);
        assert!(!DatabaseLock::is_held_by(&path, own), "nobody holds it any more");
        assert!(!DatabaseLock::is_held(&path));
        std::fs::hard_link(&path, folder.path().join("other")).expect("links");
        let error = DatabaseLock::acquire(&path).expect_err("has two names");
        assert!(matches!(error, LockError::Io { .. }), "{error:?}");
    }
}
