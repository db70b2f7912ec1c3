//! What `svc install` did: `installed.json` in the data folder. Without it `svc uninstall` still finds what is ours,
//! but no longer knows what was there before.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::clients::{Client, Scope};
use super::edit::Done;
use crate::private_file;

/// All that we did on this machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// One entry for each file.
    pub(super) files: Vec<Entry>,
}

/// What we did to one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Whose file it is.
    pub(super) client: Client,
    /// Which configuration it belongs to.
    pub(super) scope: Scope,
    /// The file, as it was named.
    pub(super) path: PathBuf,
    /// Whether there was none before.
    pub(super) created: bool,
    /// Folders that were made for it, the outermost first.
    #[serde(default)]
    pub(super) folders: Vec<PathBuf>,
    /// The text before, in a file beside it, and its digest. Only as long as nobody else has changed the file.
    #[serde(default)]
    pub(super) backup: Option<Backup>,
    /// The digest of the text that we wrote.
    pub(super) after: String,
    /// Tables and lists that we made.
    #[serde(default)]
    pub(super) made: Vec<Vec<String>>,
    /// The server entry that ours took the place of.
    #[serde(default)]
    pub(super) replaced: Option<Value>,
    /// Codex's names of the hooks whose trust we wrote down.
    #[serde(default)]
    pub(super) trusted: Vec<String>,
}

/// A copy of a file from before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Backup {
    /// Where it is.
    pub(super) path: PathBuf,
    /// The SHA-256 of its text.
    pub(super) digest: String,
    /// Whether nothing of ours was in it.
    pub(super) pristine: bool,
}

impl Record {
    /// Where it is kept.
    pub(super) fn path(home: &Path) -> PathBuf {
        home.join("installed.json")
    }

    /// Reads it; empty if there is none.
    pub(super) fn read(home: &Path) -> anyhow::Result<Self> {
        let path = Self::path(home);
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| {
                format!("{} cannot be understood; move it away, then try again", path.display())
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Writes it, or takes it away when nothing is left in it.
    pub(super) fn write(&self, home: &Path) -> anyhow::Result<()> {
        let path = Self::path(home);
        if self.files.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("cannot remove {}", path.display()))
                }
                _ => Ok(()),
            };
        }
        private_file::create_folder(home)
            .with_context(|| format!("cannot create {}", home.display()))?;
        let text = format!("{}\n", serde_json::to_string_pretty(self)?);
        private_file::replace(&path, text.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// What was done to a file.
    pub(super) fn of(&self, path: &Path) -> Option<&Entry> {
        self.files.iter().find(|entry| entry.path == path)
    }

    /// Notes what was done to a file, in the place of what was known of it.
    pub(super) fn put(&mut self, entry: Entry) {
        self.forget(&entry.path);
        self.files.push(entry);
    }

    /// Forgets a file.
    pub(super) fn forget(&mut self, path: &Path) {
        self.files.retain(|entry| entry.path != path);
    }
}

impl Entry {
    /// What undoing an edit must know.
    pub(super) fn done(&self) -> Done {
        Done {
            made: self.made.clone(),
            replaced: self.replaced.clone(),
            trusted: self.trusted.clone(),
        }
    }
}

/// The SHA-256 of a text, in hex.
pub(super) fn digest(text: &str) -> String {
    use std::fmt::Write as _;
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string does not fail");
        hex
    })
}
