//! What a person has decided about servers: which files are approved, and which servers are off.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use svc_install::file::FolderLock;
use svc_model::new_secret;

use crate::private_file;

/// Decisions of a person, kept in `sources.json` in the data folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceChoices {
    /// By path, the hash of the content that was approved.
    approved: BTreeMap<PathBuf, String>,
    /// By path, what names the last approval: the definitions of a file's servers are pinned by it.
    approvals: BTreeMap<PathBuf, String>,
    /// By name, whether a server is to run, whatever its entry says.
    enabled: BTreeMap<String, bool>,
}

/// The hash of a file's content.
pub fn content_hash(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

impl SourceChoices {
    /// The file in a data folder.
    pub fn file(home: &Path) -> PathBuf {
        home.join("sources.json")
    }

    /// Reads them. A file that is damaged decides nothing: no project's file is approved by it.
    pub fn load(home: &Path) -> io::Result<Self> {
        let text = private_file::read_settings(&Self::file(home))?;
        let Some(text) = text else { return Ok(Self::default()) };
        serde_json::from_str(&text).map_err(io::Error::other)
    }

    /// Changes them, one change after the other.
    pub fn change(home: &Path, change: impl FnOnce(&mut Self)) -> io::Result<()> {
        private_file::prepare_home(home)?;
        let _lock = FolderLock::take(home)?;
        let mut choices = Self::load(home)?;
        change(&mut choices);
        choices.save(home)
    }

    /// Writes them.
    pub fn save(&self, home: &Path) -> io::Result<()> {
        private_file::prepare_home(home)?;
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        private_file::replace(&Self::file(home), format!("{text}\n").as_bytes())
    }

    /// Whether this content of a file was approved.
    pub fn is_approved(&self, path: &Path, content: &str) -> bool {
        self.approved.get(path).is_some_and(|hash| *hash == content_hash(content))
    }

    /// Approves this content of a file, with what its servers say at their next connection.
    pub fn approve(&mut self, path: PathBuf, content: &str) {
        self.approvals.insert(path.clone(), new_secret().split_at(16).0.to_owned());
        self.approved.insert(path, content_hash(content));
    }

    /// Goes on with an approval after an edit of our own: nobody has looked at the file's servers again.
    pub fn go_on(&mut self, path: PathBuf, content: &str) {
        self.approved.insert(path, content_hash(content));
    }

    /// What names the last approval of a file. Approvals of earlier versions have no name.
    pub fn approval(&self, path: &Path) -> &str {
        self.approvals.get(path).map_or("", String::as_str)
    }

    /// What was decided of a server.
    pub fn switch(&self, name: &str) -> Option<bool> {
        self.enabled.get(name).copied()
    }

    /// Turns a server on or off.
    pub fn set_switch(&mut self, name: &str, enabled: bool) {
        self.enabled.insert(name.to_owned(), enabled);
    }

    /// Forgets what was decided of a server.
    pub fn forget(&mut self, name: &str) {
        self.enabled.remove(name);
    }
}
