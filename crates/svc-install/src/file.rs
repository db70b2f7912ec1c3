//! Files of other programs: read whole, and replaced whole if no other program has changed them meanwhile.
//!
//! Links are followed and stay links. Mode and owner stay. A reader sees the old text or the new one, also after a power
//! cut. A file that its owner may not write is left alone, although a rename would succeed.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::client::InstallScope;

/// The largest file that is edited, in bytes. Clients keep histories in theirs, of a few megabytes.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// Links followed one after the other.
const MAX_LINKS: usize = 16;

/// Why a file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses; the verb says what.
    #[error("cannot be {0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// It is a folder, a device or a pipe.
    #[error("is not a file")]
    NotAFile,
    /// It is not text.
    #[error("is not UTF-8")]
    NotText,
    /// It is larger than anything a client writes.
    #[error("is larger than {} MiB", MAX_BYTES / 1024 / 1024)]
    TooLarge,
    /// Its owner may not write it.
    #[error("is read-only (mode {0:o})")]
    ReadOnly(u32),
    /// More links than `MAX_LINKS`: a loop.
    #[error("is a link to itself")]
    Loop,
    /// Another program has written it since it was read.
    #[error("is being changed by another program; try again when that has ended")]
    Busy,
}

/// A file as it was read.
#[derive(Debug)]
pub struct ForeignFile {
    /// The path with links followed.
    pub real: PathBuf,
    /// Its text; `None` if there is no such file.
    pub text: Option<String>,
    meta: Option<Metadata>,
}

impl ForeignFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let real = follow(path)?;
        let mut file = match OpenOptions::new().read(true).custom_flags(nonblocking()).open(&real) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Self { real, text: None, meta: None });
            }
            Err(error) => return Err(FileError::Io("read", error)),
        };
        let meta = file.metadata().map_err(|error| FileError::Io("read", error))?;
        if !meta.is_file() {
            return Err(FileError::NotAFile);
        }
        if meta.len() > MAX_BYTES {
            return Err(FileError::TooLarge);
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| FileError::Io("read", error))?;
        let text = String::from_utf8(bytes).map_err(|_| FileError::NotText)?;
        Ok(Self { real, text: Some(text), meta: Some(meta) })
    }

    /// The text, which is empty for a file that does not exist.
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Whether its text may be replaced.
    pub fn check_writable(&self) -> Result<(), FileError> {
        match self.meta.as_ref().map(|meta| meta.permissions().mode() & 0o7777) {
            Some(mode) if mode & 0o200 == 0 => Err(FileError::ReadOnly(mode)),
            _ => Ok(()),
        }
    }

    /// Replaces what was read by `text`; gives the folders that it created for the file.
    ///
    /// Fails with [`FileError::Busy`] if the file is no longer what was read.
    pub fn replace(&self, text: &str, scope: InstallScope) -> Result<Vec<PathBuf>, FileError> {
        self.check_writable()?;
        let folder = self.real.parent().unwrap_or(Path::new("/"));
        let made = make_folders(folder, scope).map_err(|error| FileError::Io("written", error))?;
        let temporary = beside(&self.real, &format!(".{}.svc-tmp", std::process::id()));
        let written = self.write(&temporary, text, scope).and_then(|()| {
            if self.is_as_read() {
                std::fs::rename(&temporary, &self.real)
                    .map_err(|error| FileError::Io("written", error))
            } else {
                Err(FileError::Busy)
            }
        });
        if written.is_err() {
            std::fs::remove_file(&temporary).ok();
        }
        written?;
        // The rename is in the folder.
        File::open(folder).and_then(|folder| folder.sync_all()).ok();
        Ok(made)
    }

    /// Copies what was read to a file beside it, with its mode and owner.
    pub fn back_up(&self, scope: InstallScope) -> Result<PathBuf, FileError> {
        let backup = beside(&self.real, ".svc-backup");
        let temporary = beside(&self.real, &format!(".{}.svc-tmp", std::process::id()));
        let written = self.write(&temporary, self.text(), scope).and_then(|()| {
            std::fs::rename(&temporary, &backup).map_err(|error| FileError::Io("backed up", error))
        });
        if written.is_err() {
            std::fs::remove_file(&temporary).ok();
        }
        written.map(|()| backup)
    }

    /// Removes the file that was read.
    pub fn remove(&self) -> Result<(), FileError> {
        self.check_writable()?;
        if !self.is_as_read() {
            return Err(FileError::Busy);
        }
        std::fs::remove_file(&self.real).map_err(|error| FileError::Io("removed", error))
    }

    fn write(&self, path: &Path, text: &str, scope: InstallScope) -> Result<(), FileError> {
        let failed = |error| FileError::Io("written", error);
        // A person's file is private; a project's is made as an editor would make it.
        let mode = if scope == InstallScope::User { 0o600 } else { 0o666 };
        // A file of this name is left over from a killed process with the same number.
        std::fs::remove_file(path).ok();
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)
            .map_err(failed)?;
        if let Some(meta) = &self.meta {
            let new = file.metadata().map_err(failed)?;
            if (new.uid(), new.gid()) != (meta.uid(), meta.gid()) {
                std::os::unix::fs::fchown(&file, Some(meta.uid()), Some(meta.gid()))
                    .map_err(failed)?;
            }
            let mode = meta.permissions().mode() & 0o7777;
            file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        }
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
    }

    fn is_as_read(&self) -> bool {
        match std::fs::read(&self.real) {
            Ok(bytes) => self.text.as_ref().is_some_and(|text| text.as_bytes() == bytes),
            Err(error) => error.kind() == ErrorKind::NotFound && self.text.is_none(),
        }
    }
}

/// Follows links to their target, which need not exist.
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

/// To open a pipe must not wait for its other end.
fn nonblocking() -> i32 {
    i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// Makes a folder and those above it; gives those that it made, the outermost first.
fn make_folders(folder: &Path, scope: InstallScope) -> io::Result<Vec<PathBuf>> {
    use std::os::unix::fs::DirBuilderExt as _;
    let mut missing: Vec<PathBuf> =
        folder.ancestors().take_while(|path| !path.exists()).map(Path::to_path_buf).collect();
    missing.reverse();
    let mode = if scope == InstallScope::User { 0o700 } else { 0o777 };
    for path in &missing {
        std::fs::DirBuilder::new().mode(mode).create(path)?;
    }
    Ok(missing)
}
