//! One document that names servers.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Value, json};
use svc_model::limits::{SOURCE_FILE_BYTES, SOURCE_FILE_SERVERS};
use svc_model::source::{BUILTIN_CORE, SourceEntry, SourceProblem, source_name};

use crate::bounded_file;

/// A server that a document names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSource {
    /// Its name, in the form that tools' names have; as it was written where it has none.
    pub name: String,
    /// The entry, or what is wrong with it.
    pub entry: Result<SourceEntry, SourceProblem>,
    /// What is odd about it.
    pub warnings: Vec<String>,
    /// The entry as it was written.
    pub written: Value,
}

/// The servers of one document, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceDocument(pub Vec<FoundSource>);

/// Members of an object in their order.
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
    /// Reads `{"mcpServers": {…}}`. The error says what is wrong with the document.
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
        Ok(Self::of(members, false))
    }

    /// The entries of `[sources]`.
    pub(in crate::config) fn of_config<'a>(
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
        Self::of(entries.collect(), true)
    }

    /// The servers of another client.
    pub(super) fn of_client(entries: Vec<(String, Value)>) -> Self {
        Self::of(entries, false)
    }

    /// `trusted` says that the person wrote it into the program's own configuration.
    fn of(members: Vec<(String, Value)>, trusted: bool) -> Self {
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

    /// Reads a file; `None` if there is none.
    pub fn load(path: &Path) -> Option<Result<(Self, String), String>> {
        match bounded_file::read_text(path, SOURCE_FILE_BYTES) {
            Ok(text) => text.map(|text| Self::parse_json(&text).map(|document| (document, text))),
            Err(error) => Some(Err(format!("cannot be read: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_entries_stand_alone() {
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
}
