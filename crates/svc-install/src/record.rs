//! What `svc install` changed: `installed.json` in the data folder. Without it `svc uninstall`
//! finds the entries of svc, but does not know what they replaced.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::bounded_file::{self, CLIENT_FILE_BYTES};
use super::client::{InstallScope, KnownClient};
use super::edit::UndoInfo;
use super::file::{FileError, ForeignFile};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstallRecord {
    pub files: Vec<InstalledFile>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstalledFile {
    pub client: KnownClient,
    pub scope: InstallScope,
    /// Before links are followed.
    pub path: PathBuf,
    pub created: bool,
    /// Folders created for it, the outermost first.
    #[serde(default)]
    pub folders: Vec<PathBuf>,
    /// A copy of the earlier text; valid until another program changes the file.
    #[serde(default)]
    pub backup: Option<FileBackup>,
    /// The SHA-256 of the text that svc wrote, in hex.
    pub after: String,
    #[serde(flatten)]
    pub undo: UndoInfo,
    /// The folder in which links were followed: the person's home, or the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileBackup {
    pub path: PathBuf,
    /// The SHA-256 of its text, in hex.
    pub digest: String,
    /// Whether it has no entry of svc in it.
    pub pristine: bool,
}

impl InstallRecord {
    /// `home` is the data folder.
    pub fn path(home: &Path) -> PathBuf {
        home.join("installed.json")
    }

    /// Reads it; empty if there is none.
    pub fn read(home: &Path) -> anyhow::Result<Self> {
        let path = Self::path(home);
        match bounded_file::read(&path, CLIENT_FILE_BYTES) {
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).with_context(|| {
                format!("{} cannot be understood; move it away, then try again", path.display())
            }),
            Ok(None) => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Writes it, or removes the file if the record is empty.
    pub fn write(&self, home: &Path) -> anyhow::Result<()> {
        let path = Self::path(home);
        if self.files.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("cannot remove {}", path.display()))
                }
                _ => Ok(()),
            };
        }
        let text = format!("{}\n", serde_json::to_string_pretty(self)?);
        let written = ForeignFile::read_within(&path, &[home.to_path_buf()])
            .and_then(|file| file.replace(&text, InstallScope::User));
        let error = match written {
            Ok(_) => return Ok(()),
            Err(FileError::Io(_, error)) => anyhow::Error::new(error),
            Err(error) => error.into(),
        };
        Err(error.context(format!("cannot write {}", path.display())))
    }

    pub fn find(&self, path: &Path) -> Option<&InstalledFile> {
        self.files.iter().find(|entry| entry.path == path)
    }

    /// Replaces the file's earlier entry.
    pub fn put(&mut self, entry: InstalledFile) {
        self.forget(&entry.path);
        self.files.push(entry);
    }

    pub fn forget(&mut self, path: &Path) {
        self.files.retain(|entry| entry.path != path);
    }
}

/// The SHA-256 of a text, in hex.
pub fn digest(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}
