//! Files of other programs: read whole, and replaced whole if no other program has changed them
//! meanwhile. [`edit`] is the only way to change one, for `svc install` and for `svc mcp`. Edits by
//! svc are serialised by a lock, and retried if another program was faster.
//!
//! Links are followed and kept, unless they lead out of the edited scope: somebody else may have
//! written a project's settings, and a link there would make svc change a file of the person. Mode
//! and owner stay. A reader sees the old or the new text, also after a power cut. A read-only file
//! is not changed, although a rename would succeed.

use std::fs::{File, Metadata, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use tempfile::NamedTempFile;

use super::bounded_file::{self, CLIENT_FILE_BYTES};
use super::client::InstallScope;

const MAX_LINKS: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused the operation that the verb names.
    #[error("cannot be {0}: {1}")]
    Io(&'static str, io::Error),
    #[error("is read-only (mode {0:o})")]
    ReadOnly(u32),
    /// More than `MAX_LINKS` links.
    #[error("is a link to itself")]
    Loop,
    #[error(
        "leads by a link to {}, which is outside of {within}; svc changes nothing there: edit that file by hand, or put a \
         file in place of the link", .real.display()
    )]
    Outside { real: PathBuf, within: String },
    #[error(
        "is a link to {}; svc writes through no link here: edit that file by hand, or put a file in place of the link", .real.display()
    )]
    Link { real: PathBuf },
    /// Another program has written the file since it was read.
    #[error("is being changed by another program; try again when that has ended")]
    Busy,
}

/// Where the links of a file that is changed may lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkRule {
    /// For a file that only the person writes.
    Anywhere,
    Within(Vec<PathBuf>),
    /// The file must not be a link, and must be in this folder.
    Nowhere(PathBuf),
}

/// Attempts to edit a file that another program is writing.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(25);
const LOCK_TRIES: u32 = 400;

/// Reads a file and lets `work` replace it; only one process of svc does so at a time. Retries if
/// another program was faster (`is_busy`).
pub fn edit<T, E: From<FileError>>(
    path: &Path,
    links: &LinkRule,
    is_busy: impl Fn(&E) -> bool,
    mut work: impl FnMut(ForeignFile) -> Result<T, E>,
) -> Result<T, E> {
    let mut once = || -> Result<T, E> {
        let file = ForeignFile::read_by(path, links)?;
        let folder = file.real.parent().unwrap_or(Path::new("/"));
        let _lock = FolderLock::take(folder).map_err(|error| FileError::Io("locked", error))?;
        // Read under the lock, as the file may have changed before the lock was taken.
        work(ForeignFile::read_by(path, links)?)
    };
    for _ in 1..TRIES {
        match once() {
            Err(error) if is_busy(&error) => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
    once()
}

/// A lock: while it lives, no other process of svc changes files in the folder. Some file systems,
/// such as NFS, cannot lock folders. There only [`edit`] notices a concurrent change.
#[derive(Debug)]
pub struct FolderLock {
    /// The lock lasts as long as the open file.
    _file: Option<File>,
}

impl FolderLock {
    /// Waits up to 10 s for the lock of a folder, or of its nearest existing ancestor.
    pub fn take(folder: &Path) -> io::Result<Self> {
        let there = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
        Self::lock(File::open(there)?, there)
    }

    fn lock(file: File, folder: &Path) -> io::Result<Self> {
        for _ in 0..LOCK_TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: Some(file) }),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                // NFS locks only files that are open for writing, and no folder can be.
                Err(TryLockError::Error(error)) if locks_no_folders(&error) => {
                    return Ok(Self { _file: None });
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        let text =
            format!("another process holds {}; try again when that has ended", folder.display());
        Err(io::Error::other(text))
    }
}

/// Whether an error means that the file system cannot lock folders, or has no locks at all.
fn locks_no_folders(error: &io::Error) -> bool {
    let codes = [Errno::BADF, Errno::INVAL, Errno::NOLCK, Errno::NOSYS, Errno::OPNOTSUPP];
    Errno::from_io_error(error).is_some_and(|code| codes.contains(&code))
}

#[derive(Debug)]
pub struct ForeignFile {
    pub real: PathBuf,
    /// The file's text; `None` if the file does not exist.
    pub text: Option<String>,
    meta: Option<Metadata>,
}

impl ForeignFile {
    fn read_by(path: &Path, links: &LinkRule) -> Result<Self, FileError> {
        match links {
            LinkRule::Anywhere => Self::read(path),
            LinkRule::Within(folders) => Self::read_within(path, folders),
            LinkRule::Nowhere(folder) => {
                if std::fs::read_link(path).is_ok() {
                    return Err(FileError::Link { real: resolved(&follow(path)?) });
                }
                Self::read_within(path, std::slice::from_ref(folder))
            }
        }
    }

    /// Reads a file; refuses it if its links lead out of all `folders`.
    pub fn read_within(path: &Path, folders: &[PathBuf]) -> Result<Self, FileError> {
        let real = resolved(&follow(path)?);
        if folders.iter().any(|folder| real.starts_with(resolved(folder))) {
            return Self::read(path);
        }
        let names: Vec<String> =
            folders.iter().map(|folder| folder.display().to_string()).collect();
        Err(FileError::Outside { real, within: names.join(" and ") })
    }

    /// Reads a file; its links may lead anywhere.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let real = follow(path)?;
        let failed = |error| FileError::Io("read", error);
        let file = match bounded_file::open_regular(&real) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Self { real, text: None, meta: None });
            }
            Err(error) => return Err(failed(error)),
        };
        let meta = file.metadata().map_err(failed)?;
        let bytes = bounded_file::read_open(file, CLIENT_FILE_BYTES).map_err(failed)?;
        let text = bounded_file::text_of(bytes).map_err(failed)?;
        Ok(Self { real, text: Some(text), meta: Some(meta) })
    }

    /// The file's text; empty if the file does not exist.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    pub fn check_writable(&self) -> Result<(), FileError> {
        match self.meta.as_ref().map(|meta| meta.permissions().mode() & 0o7777) {
            Some(mode) if mode & 0o200 == 0 => Err(FileError::ReadOnly(mode)),
            _ => Ok(()),
        }
    }

    /// Replaces the text and returns the folders that it created. Fails with [`FileError::Busy`] if
    /// the file has changed since it was read.
    pub fn replace(&self, text: &str, scope: InstallScope) -> Result<Vec<PathBuf>, FileError> {
        self.check_writable()?;
        let folder = self.real.parent().unwrap_or(Path::new("/"));
        let made = make_folders(folder, scope).map_err(|error| FileError::Io("written", error))?;
        let written = self.written_beside(text, scope)?;
        if !self.is_as_read() {
            return Err(FileError::Busy);
        }
        written.persist(&self.real).map_err(|error| FileError::Io("written", error.error))?;
        sync_names(Some(folder));
        Ok(made)
    }

    /// Copies the text to a file beside the original, with the same mode and owner.
    pub fn back_up(&self, scope: InstallScope) -> Result<PathBuf, FileError> {
        let backup = copy_of(&self.real);
        let written = self.written_beside(self.text(), scope)?;
        written.persist(&backup).map_err(|error| FileError::Io("backed up", error.error))?;
        Ok(backup)
    }

    pub fn remove(&self) -> Result<(), FileError> {
        self.check_writable()?;
        if !self.is_as_read() {
            return Err(FileError::Busy);
        }
        std::fs::remove_file(&self.real).map_err(|error| FileError::Io("removed", error))?;
        sync_names(self.real.parent());
        Ok(())
    }

    /// A new file with a random name beside this one, with the same mode and owner.
    fn written_beside(&self, text: &str, scope: InstallScope) -> Result<NamedTempFile, FileError> {
        let failed = |error| FileError::Io("written", error);
        // A person's file is private; a project's file gets the mode that an editor would give it.
        let mode = if scope == InstallScope::User { 0o600 } else { 0o666 };
        let mut named = tempfile::Builder::new()
            .prefix(".svc-")
            .suffix(".tmp")
            .rand_bytes(12)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(self.real.parent().unwrap_or(Path::new("/")))
            .map_err(failed)?;
        let file = named.as_file_mut();
        if let Some(meta) = &self.meta {
            let new = file.metadata().map_err(failed)?;
            if (new.uid(), new.gid()) != (meta.uid(), meta.gid()) {
                std::os::unix::fs::fchown(&*file, Some(meta.uid()), Some(meta.gid()))
                    .map_err(failed)?;
            }
            let mode = meta.permissions().mode() & 0o7777;
            file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        }
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(named)
    }

    fn is_as_read(&self) -> bool {
        let bytes = bounded_file::read(&self.real, CLIENT_FILE_BYTES);
        bytes.is_ok_and(|bytes| bytes.as_deref() == self.text.as_deref().map(str::as_bytes))
    }
}

/// The path of the copy that [`ForeignFile::back_up`] makes of a file that is no link.
pub(crate) fn copy_of(real: &Path) -> PathBuf {
    let mut name = real.file_name().unwrap_or_default().to_owned();
    name.push(".svc-backup");
    real.with_file_name(name)
}

/// Syncs a folder, so that a power cut loses no file names. Best effort.
fn sync_names(folder: Option<&Path>) {
    let folder = File::open(folder.unwrap_or(Path::new("/")));
    folder.and_then(|folder| folder.sync_all()).ok();
}

/// Follows links to their target, which may not exist.
fn follow(path: &Path) -> Result<PathBuf, FileError> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match std::fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(FileError::Loop)
}

/// The path without links; its last parts may not exist. Empty if it cannot be resolved, which is
/// in no folder.
fn resolved(path: &Path) -> PathBuf {
    for folder in path.ancestors() {
        if let Ok(real) = std::fs::canonicalize(folder) {
            let rest = path.strip_prefix(folder).unwrap_or(Path::new(""));
            // A `..` after a missing folder cannot be resolved.
            let is_plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
            if !is_plain {
                return PathBuf::new();
            }
            // A join with an empty path would add a slash to the path of a file.
            return if rest == Path::new("") { real } else { real.join(rest) };
        }
    }
    PathBuf::new()
}

/// Creates a folder and its ancestors. Returns the folders that it created, the outermost first.
fn make_folders(folder: &Path, scope: InstallScope) -> io::Result<Vec<PathBuf>> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut missing: Vec<PathBuf> =
        folder.ancestors().take_while(|path| !path.exists()).map(Path::to_path_buf).collect();
    missing.reverse();
    let mode = if scope == InstallScope::User { 0o700 } else { 0o777 };
    for path in &missing {
        std::fs::DirBuilder::new().mode(mode).create(path)?;
        sync_names(path.parent());
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_operation_names_its_cause_once() {
        let error = anyhow::Error::from(FileError::Io("read", io::Error::other("no disk")));
        assert_eq!(format!("{error:#}"), "cannot be read: no disk");
    }

    /// A file descriptor that only names the folder is refused as NFS refuses one for reading.
    #[cfg(target_os = "linux")]
    #[test]
    fn folder_that_cannot_be_locked_can_be_changed() {
        use rustix::fs::{Mode, OFlags};

        let folder = tempfile::tempdir().expect("a folder");
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let named = rustix::fs::open(folder.path(), flags, Mode::empty()).expect("it is there");
        let first = FolderLock::lock(named.into(), folder.path()).expect("none is needed");
        drop((first, FolderLock::take(folder.path()).expect("is free")));
    }
}
