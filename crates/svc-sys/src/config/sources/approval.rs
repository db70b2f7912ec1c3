//! What a person approves with a project's file.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// What a server runs or calls, and which of the daemon's variables and secrets it is given.
#[derive(Debug, Serialize)]
pub struct ApprovedEntry {
    name: String,
    /// The program with its arguments, or the URL.
    target: String,
    variables: Vec<String>,
}

impl ApprovedEntry {
    /// Reads an entry as it was written.
    pub fn of(name: &str, entry: &Value) -> Self {
        let words = entry["args"].as_array().into_iter().flatten();
        let words = entry["command"].as_str().into_iter().chain(words.filter_map(Value::as_str));
        let target = match entry["url"].as_str() {
            Some(url) => url.to_owned(),
            None => words.collect::<Vec<_>>().join(" "),
        };
        Self { name: name.to_owned(), target, variables: variables_in(&entry.to_string()) }
    }

    /// What it runs or calls, and what it is given.
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
    fn who_approves_is_told_where_secrets_go() {
        let headers = json!({ "A": "Bearer ${WT}", "B": "${X:-y}${WT}" });
        let entry = json!({ "url": "https://e/mcp", "headers": headers });
        assert_eq!(
            ApprovedEntry::of("wiki", &entry).to_string(),
            "wiki: https://e/mcp; it is given WT, X"
        );
        let entry = json!({ "command": "npx", "args": ["-y", "a"] });
        assert_eq!(ApprovedEntry::of("a", &entry).to_string(), "a: npx -y a");
    }
}
