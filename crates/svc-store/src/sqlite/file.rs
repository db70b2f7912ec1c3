//! The database's file: its lock, the settings of its connections, its copies, and its integrity.

use std::{
    ffi::OsString,
    fs::{File, Metadata, Permissions, TryLockError},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    str::FromStr as _,
    thread,
    time::Duration,
};

use rustix::fs::OFlags;
use sqlx::{
    ConnectOptions as _, Connection as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use svc_model::limits;
use svc_sys::private_file;

use crate::{LastBackup, Result, StoreError, boxed};

/// Attempts to take the lock. A process that probes the lock holds it for a moment.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// The kernel releases the lock when the process ends for whatever reason, so a lock is never
/// stale.
#[derive(Debug)]
pub struct DatabaseLock {
    path: PathBuf,
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
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let mut attempt = 1;
        loop {
            let file = options.open(path).map_err(failed)?;
            match file.try_lock() {
                // If the earlier holder removed the file that was opened here, another process may
                // lock a new file of this name.
                Ok(()) if is_at(&file, path) => {
                    return Ok(Self { path: path.to_owned(), _file: file });
                }
                Ok(()) if attempt < TRIES => {}
                Ok(()) => return Err(LockError::Held),
                Err(TryLockError::WouldBlock) if attempt >= TRIES => return Err(LockError::Held),
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
            attempt += 1;
        }
    }

    /// Removes the file, then releases the lock. Only where there is no database.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
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

/// Whether `path` names this open file.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path)) else {
        return false;
    };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
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

const FILES: [&str; 4] = ["", "-wal", "-shm", "-journal"];
/// Bits of a mode that let the group or others in.
const OTHERS: u32 = 0o077;

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

/// Frees the pages that a connection has cached.
pub(crate) const SHRINK: &str = "pragma shrink_memory";

/// Rejects links, which SQLite would follow.
pub(super) fn check_names(path: &Path) -> Result<()> {
    for path in FILES.map(|end| with_end(path, end)) {
        private_file::check_one_name(&path)
            .map_err(|untrusted| StoreError::Linked(untrusted.to_string()))?;
    }
    Ok(())
}

fn options(path: &Path) -> Result<SqliteConnectOptions> {
    check_names(path)?;
    Ok(SqliteConnectOptions::from_str("sqlite:")?
        .filename(path)
        .foreign_keys(true)
        .busy_timeout(limits::BUSY_TIMEOUT)
        .pragma("temp_store", "memory")
        // Logging each statement costs more than the statement.
        .disable_statement_logging())
}

/// Makes the files readable by their owner alone: one may have been copied here, and SQLite gives
/// `-wal` and `-shm` the mode of the database.
fn close_files(path: &Path) {
    for path in FILES.map(|end| with_end(path, end)) {
        let Ok(mode) = std::fs::metadata(&path).map(|meta| meta.mode()) else { continue };
        if mode & OTHERS != 0
            && let Err(error) = std::fs::set_permissions(&path, Permissions::from_mode(0o600))
        {
            tracing::warn!(%error, path = %path.display(), "others may read the database");
        }
    }
}

pub(crate) fn writer_options(path: &Path) -> Result<SqliteConnectOptions> {
    let options = options(path)?;
    close_files(path);
    Ok(options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("journal_size_limit", limits::WAL_BYTES.to_string()))
}

pub(crate) fn reader_options(path: &Path) -> Result<SqliteConnectOptions> {
    Ok(options(path)?.read_only(true))
}

/// For a file from an untrusted place. `trusted_schema = off` keeps its schema from calling unsafe
/// functions, and the rollback journal mode leaves no file beside it.
pub(super) fn restore_options(path: &Path) -> Result<SqliteConnectOptions> {
    Ok(options(path)?
        .journal_mode(SqliteJournalMode::Delete)
        .synchronous(SqliteSynchronous::Full)
        .pragma("trusted_schema", "off")
        .pragma("cell_size_check", "on")
        .pragma("mmap_size", "0"))
}

/// Copies the database at `from` to the new file `to`, and checks the copy. A daemon may be writing
/// to the database meanwhile.
#[boxed]
pub async fn backup(from: &Path, to: &Path) -> Result<()> {
    let mut conn = reader_options(from)?.connect().await?;
    vacuum_into(&mut conn, to).await?;
    conn.close().await?;
    Ok(())
}

const NOTE_BYTES: u64 = 64 * 1024;

/// The note of the last backup is a file beside the database `db`. `svc backup` does not write to
/// the database, and the copy would lack the note.
fn backup_note(db: &Path) -> PathBuf {
    let mut name = db.as_os_str().to_owned();
    name.push(".last-backup");
    PathBuf::from(name)
}

pub fn note_backup(db: &Path, backup: &LastBackup) -> io::Result<()> {
    private_file::replace(&backup_note(db), &serde_json::to_vec(backup)?)
}

/// The last backup of the database at `db`; `None` if there is none or the note cannot be read.
pub fn last_backup(db: &Path) -> Option<LastBackup> {
    let note = private_file::read_secret_bytes(&backup_note(db), NOTE_BYTES).ok()??;
    serde_json::from_slice(&note).ok()
}

/// The copy gets its name only when it is complete and checked. It holds all data of the database,
/// so its mode excludes other users at all times; a link at its path is an error.
pub(super) async fn vacuum_into(conn: &mut SqliteConnection, to: &Path) -> Result<()> {
    let file = private_file::temporary_beside(to).map_err(failed)?;
    let text = file.path().display().to_string();
    sqlx::query("vacuum into ?").bind(text).execute(conn).await?;
    check_integrity(file.path()).await?;
    file.as_file().sync_all().map_err(failed)?;
    private_file::persist_new(file, to).map_err(failed)
}

async fn check_integrity(path: &Path) -> Result<()> {
    let mut conn = reader_options(path)?.connect().await?;
    findings(&mut conn, path, "pragma integrity_check(20)").await?;
    conn.close().await?;
    Ok(())
}

/// Runs the engine's integrity check on the whole file at `path`.
pub(super) async fn findings(
    conn: &mut SqliteConnection,
    path: &Path,
    check: &'static str,
) -> Result<()> {
    let findings = sqlx::query_scalar::<_, String>(check).fetch_all(conn).await?;
    if findings == ["ok"] {
        return Ok(());
    }
    Err(StoreError::IntegrityCheckFailed {
        file: path.display().to_string(),
        findings: findings.join("; "),
    })
}

fn failed(error: io::Error) -> StoreError {
    sqlx::Error::Io(error).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_whose_file_is_removed_is_taken_on_a_new_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("svc.db.lock");
        let lock = DatabaseLock::acquire(&path).expect("is free");
        // Opened before the file is removed, as by a process that waits for the lock.
        let old = existing(&path).expect("is there");
        lock.remove().expect("can be removed");
        assert!(!path.exists() && !is_at(&old, &path));
        let _lock = DatabaseLock::acquire(&path).expect("is free");
        assert!(DatabaseLock::is_held(&path) && !is_at(&old, &path));
    }

    #[tokio::test]
    async fn database_that_others_could_read_is_closed_to_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("svc.db");
        let open = async || writer_options(&path).expect("options").connect().await.expect("opens");
        let conn = open().await;
        conn.close().await.expect("closes");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("it is ours");
        let mut conn = open().await;
        sqlx::query("create table t (x)").execute(&mut conn).await.expect("writes");
        for end in ["", "-wal", "-shm"] {
            let mode = std::fs::metadata(with_end(&path, end)).expect("is there").mode();
            assert_eq!(mode & 0o777, 0o600, "{end}");
        }
    }

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
