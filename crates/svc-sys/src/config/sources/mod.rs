//! The files that name child MCP servers, and which entry of a name counts. Nothing is started
//! here.
//!
//! A [`SourceDocument`] is one document, also of `svc serve --mcp-config`. [`SourceChoices`] are a
//! person's approvals and switches. `import` reads files of other clients, `plan` orders all of
//! them by precedence, and `vault` stores secrets and logins.

mod import;
mod plan;
mod vault;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use svc_install::file::FolderLock;
use svc_model::limits::{SOURCE_FILE_BYTES, SOURCE_FILE_SERVERS};
use svc_model::source::{BUILTIN_CORE, SourceEntry, SourceProblem, SourceTransport, source_name};
use svc_model::{OrderedMembers, new_secret};

use crate::{bounded_file, private_file};

pub use import::ImportFile;
pub use plan::{
    PlannedSource, SourceFiles, SourcePlan, SourceStanding, naming_folder, project_files,
};
pub use vault::{KeptSecrets, MAX_SOURCE_SECRET, SecretBearer, SourceVault};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSource {
    /// The name as tools use it; as written if it cannot be converted.
    pub name: String,
    pub entry: Result<SourceEntry, SourceProblem>,
    pub warnings: Vec<String>,
    pub written: Value,
}

/// Entries in the order of the document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceDocument(pub Vec<FoundSource>);

#[derive(Deserialize)]
struct Servers {
    #[serde(rename = "mcpServers")]
    servers: Option<OrderedMembers<Value>>,
}

impl SourceDocument {
    /// Reads `{"mcpServers": {…}}`.
    pub fn parse_json(text: &str) -> Result<Self, String> {
        let servers: Servers = serde_json::from_str(text)
            .map_err(|error| format!("is not {{\"mcpServers\": {{…}}}}: {error}"))?;
        let OrderedMembers(members) =
            servers.servers.ok_or_else(|| "has no mcpServers".to_owned())?;
        if members.len() > SOURCE_FILE_SERVERS {
            let count = members.len();
            return Err(format!(
                "names {count} servers, and none counts: at most {SOURCE_FILE_SERVERS} may be named"
            ));
        }
        Ok(Self::from_members(members, false))
    }

    pub(in crate::config) fn from_config<'a>(
        entries: impl Iterator<Item = (&'a String, &'a Value)>,
    ) -> Self {
        let entries = entries.map(|(name, value)| {
            let mut value = value.clone();
            if name == BUILTIN_CORE
                && let Value::Object(core) = &mut value
            {
                core.entry("type").or_insert_with(|| json!("builtin"));
                core.entry("name").or_insert_with(|| json!(BUILTIN_CORE));
                core.entry("enabled").or_insert_with(|| json!(false));
            }
            (name.clone(), value)
        });
        Self::from_members(entries.collect(), true)
    }

    /// `trusted`: whether the entries are from the program's own configuration.
    fn from_members(members: Vec<(String, Value)>, trusted: bool) -> Self {
        let (mut all, mut names): (Vec<FoundSource>, _) = (Vec::new(), HashSet::new());
        for (written_name, written) in members {
            let (mut warnings, mut entry) = match SourceEntry::parse(&written, trusted) {
                Ok((entry, warnings)) => (warnings, Ok(entry)),
                Err(problem) => (Vec::new(), Err(problem)),
            };
            let name = match source_name(&written_name) {
                Ok(name) => name,
                Err(problem) => {
                    entry = Err(problem);
                    written_name.clone()
                }
            };
            if name == BUILTIN_CORE && !trusted {
                entry = Err(SourceProblem::new("", "`core` is the built-in server's name"));
            }
            if name != written_name {
                warnings.push(format!("its name is written {written_name:?}"));
            }
            if !names.insert(name.clone()) {
                let problem = format!("is the same name as another's in this file: {name}");
                entry = Err(SourceProblem::new("", problem));
            }
            all.push(FoundSource { name, entry, warnings, written });
        }
        Self(all)
    }

    /// `None` if the file does not exist.
    pub fn load(path: &Path) -> Option<Result<(Self, String), String>> {
        match bounded_file::read_text(path, SOURCE_FILE_BYTES) {
            Ok(text) => text.map(|text| Self::parse_json(&text).map(|document| (document, text))),
            Err(error) => Some(Err(format!("cannot be read: {error}"))),
        }
    }
}

/// Largest file that a flag names, in bytes: it may be a client's settings.
const MAX_FLAG_FILE: u64 = 4 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagSources {
    /// The path of the file, or `--mcp-config` for a document on the command line.
    pub from: String,
    /// The folder of that file, or the working folder.
    pub base: String,
    pub document: SourceDocument,
}

impl FlagSources {
    /// `value` is a document, the name of a file with one, or `-` for a document on the next line
    /// of standard input.
    pub fn read(value: &str) -> Result<Self, String> {
        let mut line = String::new();
        if value == "-" {
            let mut stdin = io::stdin().lock().take(MAX_FLAG_FILE);
            let read = stdin.read_line(&mut line);
            read.map_err(|error| format!("--mcp-config: standard input cannot be read: {error}"))?;
        }
        if value.trim_start().starts_with('{') || !line.is_empty() {
            let handed = HandedDocument::parse(&line);
            let (base, text) = match &handed {
                Some(handed) => (handed.0.clone(), handed.1.get()),
                None => (current_folder(), if line.is_empty() { value } else { line.as_str() }),
            };
            let document = SourceDocument::parse_json(text)
                .map_err(|problem| format!("--mcp-config: the document {problem}"))?;
            return Ok(Self { from: "--mcp-config".to_owned(), base, document });
        }
        let path =
            std::path::absolute(value).map_err(|error| format!("--mcp-config {value}: {error}"))?;
        let text = read_named(&path)
            .map_err(|error| format!("--mcp-config {value}: the file cannot be read: {error}"))?
            .ok_or_else(|| format!("--mcp-config {value}: there is no such file"))?;
        let document = SourceDocument::parse_json(&text)
            .map_err(|problem| format!("--mcp-config {value}: the file {problem}"))?;
        let from = path.display().to_string();
        Ok(Self { base: folder_of(&from), from, document })
    }
}

/// A document of `--mcp-config` that is passed to a background daemon on standard input, with the
/// command's working folder, as the daemon has another.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandedDocument(String, Box<RawValue>);

impl HandedDocument {
    /// One line with the document and the working folder; the unchanged text if it is not a
    /// document.
    pub fn line(document: &str) -> String {
        // Strings in JSON contain no raw line feed, so this changes only spacing.
        let document = document.replace(['\n', '\r'], " ");
        let handed = RawValue::from_string(document.clone());
        let handed = handed.and_then(|it| serde_json::to_string(&Self(current_folder(), it)));
        handed.unwrap_or(document) + "\n"
    }

    fn parse(line: &str) -> Option<Self> {
        line.starts_with('[').then(|| serde_json::from_str(line).ok()).flatten()
    }
}

fn current_folder() -> String {
    std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")).display().to_string()
}

fn folder_of(file: &str) -> String {
    Path::new(file).parent().unwrap_or(Path::new("/")).display().to_string()
}

/// The text of a named file; `None` if it does not exist. It may be a pipe from the shell, which is
/// named as an open file of this process. Other pipes and devices are refused, as they may never
/// end.
fn read_named(path: &Path) -> io::Result<Option<String>> {
    let is_handed_over =
        ["/dev/fd", "/dev/stdin", "/proc/self/fd"].iter().any(|at| path.starts_with(at));
    if !is_handed_over {
        return bounded_file::read_text(path, MAX_FLAG_FILE);
    }
    let bytes = bounded_file::read_open(File::open(path)?, MAX_FLAG_FILE)?;
    bounded_file::text_of(bytes).map(Some)
}

/// A person's decisions, stored in `sources.json` in the data folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceChoices {
    /// The hash of the approved content, by path.
    approved: BTreeMap<PathBuf, String>,
    /// The id of the last approval, by path. It pins the definitions of the file's servers.
    approvals: BTreeMap<PathBuf, String>,
    /// Switches of earlier versions by server name, for the servers of all files.
    enabled: BTreeMap<String, bool>,
    /// Switches, which override the entry, by the folder of a project's file and server name. For
    /// entries of the person's own files and of plugins the folder is empty.
    switched: BTreeMap<String, BTreeMap<String, bool>>,
}

pub fn content_hash(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

impl SourceChoices {
    pub fn file(home: &Path) -> PathBuf {
        home.join("sources.json")
    }

    /// A damaged file counts as no decisions, so no project's file is approved.
    pub fn load(home: &Path) -> io::Result<Self> {
        let text = private_file::read_settings(&Self::file(home))?;
        let Some(text) = text else { return Ok(Self::default()) };
        serde_json::from_str(&text).map_err(io::Error::other)
    }

    /// Changes are serialised by a lock.
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

    /// Approves this content, and the definitions that its servers have at their next connection.
    pub fn approve(&mut self, path: PathBuf, content: &str) {
        self.approvals.insert(path.clone(), new_secret().split_at(16).0.to_owned());
        self.approved.insert(path, content_hash(content));
    }

    /// Keeps an approval and its id after svc itself has edited the file.
    pub fn go_on(&mut self, path: PathBuf, content: &str) {
        self.approved.insert(path, content_hash(content));
    }

    /// The id of the last approval; empty for an approval by an earlier version.
    pub fn approval(&self, path: &Path) -> &str {
        self.approvals.get(path).map_or("", String::as_str)
    }

    /// The switch of a server that a file in `folder` names; see [`PlannedSource::folder`].
    pub fn switch(&self, name: &str, folder: Option<&str>) -> Option<bool> {
        let own = self.switched.get(folder.unwrap_or_default()).and_then(|own| own.get(name));
        own.or_else(|| self.enabled.get(name)).copied()
    }

    pub fn set_switch(&mut self, name: &str, folder: Option<&str>, enabled: bool) {
        let own = self.switched.entry(folder.unwrap_or_default().to_owned()).or_default();
        own.insert(name.to_owned(), enabled);
    }

    /// Removes the switch of a server whose entry goes. A switch of an earlier version is for the
    /// servers of all files, so it goes with an entry of the person's own alone.
    pub fn forget(&mut self, name: &str, folder: Option<&str>) {
        if folder.is_none() {
            self.enabled.remove(name);
        }
        let folder = folder.unwrap_or_default();
        let Some(own) = self.switched.get_mut(folder) else { return };
        own.remove(name);
        if own.is_empty() {
            self.switched.remove(folder);
        }
    }
}

/// What a person approves: the program or URL of a server as it will be used, and the variables and
/// secrets of the daemon that the server gets.
#[derive(Debug, Serialize)]
pub struct ApprovedEntry {
    name: String,
    /// The program with its arguments; or the URL, with the shell command for its headers.
    target: String,
    variables: Vec<String>,
}

impl ApprovedEntry {
    pub fn new(name: &str, entry: &Result<SourceEntry, SourceProblem>, written: &Value) -> Self {
        let mut variables = variables_in(&written.to_string());
        let target = match entry {
            Ok(entry) => {
                variables.extend(entry.env_inherit.iter().cloned());
                target_of(&entry.transport)
            }
            // It does not run.
            Err(problem) => {
                variables.clear();
                format!("not used: {problem}")
            }
        };
        let variables = variables.into_iter().collect();
        Self { name: name.to_owned(), target, variables }
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

fn target_of(transport: &SourceTransport) -> String {
    match transport {
        SourceTransport::Stdio { command, args, .. } => {
            let words = [command].into_iter().chain(args);
            words.map(String::as_str).collect::<Vec<_>>().join(" ")
        }
        SourceTransport::Remote { url, headers_helper: Some(helper), .. } => {
            format!("{url}; its headers are printed by `{helper}`")
        }
        SourceTransport::Remote { url, .. } => url.clone(),
        SourceTransport::Builtin { name, .. } => name.clone(),
    }
}

/// The names in `${NAME}` and `${NAME:-default}`.
fn variables_in(text: &str) -> BTreeSet<String> {
    let parts = text.split("${").skip(1);
    let names = parts.filter_map(|part| part.split(['}', ':']).next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_entries_leave_the_others_valid() {
        let text = r#"{"mcpServers":{"b.c":{"command":"x"},"a":{"command":3},"b_c":{"command":"y"},"core":{"command":"z"},
            "ci":{"type":"builtin","name":"core","roots":["/"],"allow_private":true},
            "x__y":{"command":"x"},"ok":{"command":"x","colour":1}}}"#;
        let document = SourceDocument::parse_json(text).expect("is a document");
        let all: Vec<_> =
            document.0.iter().map(|found| (found.name.as_str(), found.entry.is_ok())).collect();
        assert_eq!(
            all,
            [
                ("b_c", true),
                ("a", false),
                ("b_c", false),
                ("core", false),
                ("ci", false),
                ("x__y", false),
                ("ok", true)
            ]
        );
        let many: Vec<String> =
            (0..=SOURCE_FILE_SERVERS).map(|n| format!(r#""s{n}":{{}}"#)).collect();
        let many = format!(r#"{{"mcpServers":{{{}}}}}"#, many.join(","));
        let problem = SourceDocument::parse_json(&many).expect_err("has too many");
        assert!(problem.contains("257 servers"), "{problem}");
        for bad in ["", "[]", "{}", r#"{"mcpServers":[]}"#, r#"{"mcpServers":null}"#] {
            SourceDocument::parse_json(bad).expect_err(bad);
        }
    }

    #[test]
    fn error_of_a_flag_names_it() {
        for value in ["/no/such/file", "{", "{}"] {
            let error = FlagSources::read(value).expect_err(value);
            assert!(error.contains("--mcp-config"), "{error}");
        }
    }

    #[test]
    fn handed_document_keeps_its_folder_and_order() {
        let document = "{\"mcpServers\":{\"b\":{\"command\":\"x\"},\n\"a\":{\"command\":\"y\"}}}";
        let line = HandedDocument::line(document);
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        let HandedDocument(folder, text) = HandedDocument::parse(&line).expect("is one");
        assert_eq!(folder, current_folder());
        assert_eq!(text.get(), document.replace('\n', " "));
        // Not a document, so the reader refuses it.
        assert!(HandedDocument::parse(&HandedDocument::line("{")).is_none());
    }

    #[test]
    fn switch_is_that_of_one_file() {
        let old = r#"{"enabled":{"a":false,"b":false}}"#;
        let mut choices: SourceChoices = serde_json::from_str(old).expect("is of a version before");
        let all = |choices: &SourceChoices, name: &str| {
            [None, Some("/p"), Some("/q")].map(|folder| choices.switch(name, folder))
        };
        assert_eq!(all(&choices, "a"), [Some(false); 3]);
        choices.set_switch("a", Some("/p"), true);
        assert_eq!(all(&choices, "a"), [Some(false), Some(true), Some(false)]);
        choices.set_switch("c", None, false);
        assert_eq!(all(&choices, "c"), [Some(false), None, None]);
        choices.set_switch("c", Some("/q"), false);
        choices.forget("c", None);
        assert_eq!(all(&choices, "c"), [None, None, Some(false)]);
        choices.forget("b", Some("/p"));
        assert_eq!(all(&choices, "b"), [Some(false); 3]);
    }

    #[test]
    fn approved_entry_shows_what_will_run_and_its_variables() {
        let url = "https://e/mcp";
        let headers = json!({ "A": "Bearer ${WT}", "B": "${X:-y}${WT}" });
        for (written, shown) in [
            (json!({ "url": url, "headers": headers }), "https://e/mcp; it is given WT, X"),
            (json!({ "command": "npx", "args": ["-y", "a"] }), "npx -y a"),
            (json!({ "command": "sh", "args": ["-c", "id"], "url": url }), "sh -c id"),
            (json!({ "type": "http", "command": "sh", "url": url }), url),
            (
                json!({ "type": "http", "url": url, "headersHelper": "id" }),
                "https://e/mcp; its headers are printed by `id`",
            ),
            (json!({ "command": "x", "env_inherit": ["B", "A"] }), "x; it is given A, B"),
            (json!({ "command": 3, "url": "${A}" }), "not used: command: must be a string"),
        ] {
            let entry = SourceEntry::parse(&written, false).map(|(entry, _)| entry);
            let entry = ApprovedEntry::new("a", &entry, &written);
            assert_eq!(entry.to_string(), format!("a: {shown}"), "{written}");
        }
    }
}
