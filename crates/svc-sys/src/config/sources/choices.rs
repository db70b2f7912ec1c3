//! Decisions of a person about servers: approved files, and servers that are off.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use svc_install::file::FolderLock;
use svc_model::new_secret;

use crate::private_file;

/// Decisions of a person, kept in `sources.json` in the data folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceChoices {
    /// By path, the hash of the approved content.
    approved: BTreeMap<PathBuf, String>,
    /// By path, the id of the last approval, which pins the definitions of the file's servers.
    approvals: BTreeMap<PathBuf, String>,
    /// By name; overrides the entry.
    enabled: BTreeMap<String, bool>,
}

pub fn content_hash(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

impl SourceChoices {
    pub fn file(home: &Path) -> PathBuf {
        home.join("sources.json")
    }

    /// A damaged file decides nothing: it approves no file of a project.
    pub fn load(home: &Path) -> io::Result<Self> {
        let text = private_file::read_settings(&Self::file(home))?;
        let Some(text) = text else { return Ok(Self::default()) };
        serde_json::from_str(&text).map_err(io::Error::other)
    }

    /// Serialised by a lock.
    pub fn change(home: &Path, change: impl FnOnce(&mut Self)) -> io::Result<()> {
        private_file::prepare_home(home)?;
        let _lock = FolderLock::take(home)?;
        let mut choices = Self::load(home)?;
        change(&mut choices);
        choices.save(home)
    }

    pub fn save(&self, home: &Path) -> io::Result<()> {
        private_file::prepare_home(home)?;
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        private_file::replace(&Self::file(home), format!("{text}\n").as_bytes())
    }

    pub fn is_approved(&self, path: &Path, content: &str) -> bool {
        self.approved.get(path).is_some_and(|hash| *hash == content_hash(content))
    }

    /// Approves this content, and the definitions of its servers at their next connection.
    pub fn approve(&mut self, path: PathBuf, content: &str) {
        self.approvals.insert(path.clone(), new_secret().split_at(16).0.to_owned());
        self.approved.insert(path, content_hash(content));
    }

    /// Keeps an approval after an edit of our own, with its id.
    pub fn go_on(&mut self, path: PathBuf, content: &str) {
        self.approved.insert(path, content_hash(content));
    }

    /// The id of the last approval; empty for those of earlier versions.
    pub fn approval(&self, path: &Path) -> &str {
        self.approvals.get(path).map_or("", String::as_str)
    }

    pub fn switch(&self, name: &str) -> Option<bool> {
        self.enabled.get(name).copied()
    }

    pub fn set_switch(&mut self, name: &str, enabled: bool) {
        self.enabled.insert(name.to_owned(), enabled);
    }

    pub fn forget(&mut self, name: &str) {
        self.enabled.remove(name);
    }
}

/// For approval: what a server runs or calls, and which variables and secrets of the daemon it
/// gets.
#[derive(Debug, Serialize)]
pub struct ApprovedEntry {
    name: String,
    /// The program with its arguments, or the URL.
    target: String,
    variables: Vec<String>,
}

impl ApprovedEntry {
    pub fn new(name: &str, entry: &Value) -> Self {
        let words = entry["args"].as_array().into_iter().flatten();
        let words = entry["command"].as_str().into_iter().chain(words.filter_map(Value::as_str));
        let target = match entry["url"].as_str() {
            Some(url) => url.to_owned(),
            None => words.collect::<Vec<_>>().join(" "),
        };
        Self { name: name.to_owned(), target, variables: variables_in(&entry.to_string()) }
    }

    pub fn runs(&self) -> String {
        if self.variables.is_empty() {
            self.target.clone()
        } else {
            format!("{}; it is given {}", self.target, self.variables.join(", "))
        }
    }
}

impl fmt::Display for ApprovedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.runs())
    }
}

/// The names in `${NAME}` and `${NAME:-default}`, each once.
fn variables_in(text: &str) -> Vec<String> {
    let parts = text.split("${").skip(1);
    let names = parts.filter_map(|part| part.split(['}', ':']).next());
    let names: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
    names.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn approved_entry_shows_its_target_and_variables() {
        let headers = json!({ "A": "Bearer ${WT}", "B": "${X:-y}${WT}" });
        let entry = json!({ "url": "https://e/mcp", "headers": headers });
        assert_eq!(
            ApprovedEntry::new("wiki", &entry).to_string(),
            "wiki: https://e/mcp; it is given WT, X"
        );
        let entry = json!({ "command": "npx", "args": ["-y", "a"] });
        assert_eq!(ApprovedEntry::new("a", &entry).to_string(), "a: npx -y a");
    }
}
