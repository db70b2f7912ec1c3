//! One document that names servers.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, Read as _};
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use svc_model::limits::{SOURCE_FILE_BYTES, SOURCE_FILE_SERVERS};
use svc_model::source::{BUILTIN_CORE, SourceEntry, SourceProblem, source_name};

use crate::bounded_file;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSource {
    /// In the form of names of tools; as written if it has none.
    pub name: String,
    pub entry: Result<SourceEntry, SourceProblem>,
    pub warnings: Vec<String>,
    pub written: Value,
}

/// In the order of the document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceDocument(pub Vec<FoundSource>);

struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct OrderedServers;
        impl<'de> Visitor<'de> for OrderedServers {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        source.deserialize_map(OrderedServers)
    }
}

#[derive(serde::Deserialize)]
struct Servers {
    #[serde(rename = "mcpServers")]
    servers: Option<Members>,
}

impl SourceDocument {
    /// Reads `{"mcpServers": {…}}`.
    pub fn parse_json(text: &str) -> Result<Self, String> {
        let servers: Servers = serde_json::from_str(text)
            .map_err(|error| format!("is not {{\"mcpServers\": {{…}}}}: {error}"))?;
        let Members(members) = servers.servers.ok_or_else(|| "has no mcpServers".to_owned())?;
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

    pub(super) fn from_client(entries: Vec<(String, Value)>) -> Self {
        Self::from_members(entries, false)
    }

    /// `trusted`: from the program's own configuration.
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

    /// `None` if there is no file.
    pub fn load(path: &Path) -> Option<Result<(Self, String), String>> {
        match bounded_file::read_text(path, SOURCE_FILE_BYTES) {
            Ok(text) => text.map(|text| Self::parse_json(&text).map(|document| (document, text))),
            Err(error) => Some(Err(format!("cannot be read: {error}"))),
        }
    }
}

/// Largest file of a flag, in bytes: it may be a client's settings.
const MAX_FLAG_FILE: u64 = 4 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagSources {
    /// The file, or `--mcp-config` for a document on the command line.
    pub from: String,
    /// The folder of that file, or the working folder.
    pub base: String,
    pub document: SourceDocument,
}

impl FlagSources {
    /// `value` is a document, the name of a file with one, or `-` for a document on the next
    /// line of standard input.
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

/// A document of `--mcp-config` for the standard input of a background daemon, with the working
/// folder of the command: the daemon has another.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandedDocument(String, Box<RawValue>);

impl HandedDocument {
    /// One line with the document and the working folder; the unchanged text if it is no document.
    pub fn line(document: &str) -> String {
        // JSON strings have no raw line feed.
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

pub(super) fn folder_of(file: &str) -> String {
    Path::new(file).parent().unwrap_or(Path::new("/")).display().to_string()
}

/// The text of a named file; `None` if there is none. It may be a pipe of a shell, which has its
/// name among the open files of this process; other pipes and devices are refused, as they may
/// never end.
fn read_named(path: &Path) -> io::Result<Option<String>> {
    let is_handed_over =
        ["/dev/fd", "/dev/stdin", "/proc/self/fd"].iter().any(|at| path.starts_with(at));
    if !is_handed_over {
        return bounded_file::read_text(path, MAX_FLAG_FILE);
    }
    let bytes = bounded_file::read_open(File::open(path)?, MAX_FLAG_FILE)?;
    bounded_file::text_of(bytes).map(Some)
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
        // Not a document: refused by its reader.
        assert!(HandedDocument::parse(&HandedDocument::line("{")).is_none());
    }
}
