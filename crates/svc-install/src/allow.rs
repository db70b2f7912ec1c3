//! Permissions of each client: which tools of svc its model may call without asking the person.
//!
//! A session that a message wakes while nobody is at the terminal gets stuck at a permission
//! dialog. So a person may allow the harmless tools with `svc install --allow-tools`.
//!
//! - Claude Code: `permissions.allow` in `settings.json`.
//! - Codex: `approval_mode` of each tool below the server's entry in `config.toml`. Without one,
//!   and in mode `auto`, Codex does not ask for tools that are annotated as harmless.
//! - Gemini CLI: a separate file of rules, since `trust` in the server's entry would allow every
//!   tool. Gemini CLI reads no rules from a project.
//! - opencode: `permission`. Without that setting opencode asks for nothing, so nothing is written.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::client::{ClientLocations, InstallScope, KnownClient};
use super::document::content;
use super::edit::{Edit, FileChange, GrantForm};
use super::entries::{OUR_RULES, SERVER, at};

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ToolApprovals {
    /// The file that allows the tools, or would allow them.
    pub path: PathBuf,
    /// Number of harmless tools that are allowed.
    pub allowed: usize,
    /// Harmless tools for which the client asks each time.
    pub missing: Vec<String>,
}

impl KnownClient {
    /// The tools of `tools` that the client's rules may name if its models see only `listed`.
    /// Gemini CLI takes the name of an unlisted tool for a misspelling, and warns at its start.
    pub fn named_in_rules<'a>(self, tools: &[&'a str], listed: &[&str]) -> Vec<&'a str> {
        let is_named = |tool: &&&str| self != Self::Gemini || listed.contains(*tool);
        tools.iter().filter(is_named).copied().collect()
    }

    /// The change that allows `tools`; `None` if the client has no such file in this scope, or asks
    /// for nothing anyway.
    pub fn grant(
        self,
        locations: &ClientLocations,
        scope: InstallScope,
        tools: &[&str],
    ) -> Option<FileChange> {
        let path = self.grant_file(locations, scope)?;
        let named = |prefix: &str| tools.iter().map(|tool| format!("{prefix}{tool}")).collect();
        let edit = match self {
            Self::ClaudeCode => Edit::Allow {
                table: &["permissions", "allow"],
                tools: named("mcp__svc__"),
                form: GrantForm::ListItem,
            },
            Self::Codex => Edit::Allow {
                table: &["mcp_servers", SERVER, "tools"],
                tools: named(""),
                form: GrantForm::Key(json!({ "approval_mode": "approve" })),
            },
            Self::Gemini => Edit::Whole { text: rules(tools) },
            Self::Opencode => Edit::Allow {
                table: &["permission"],
                tools: named("svc_"),
                form: GrantForm::Key(json!("allow")),
            },
            _ => return None,
        };
        if self == Self::Opencode && asks_nothing(&content(&path)) {
            return None;
        }
        Some(FileChange { path, edits: vec![edit] })
    }

    pub(crate) fn grant_file(
        self,
        locations: &ClientLocations,
        scope: InstallScope,
    ) -> Option<PathBuf> {
        match self {
            Self::ClaudeCode | Self::Codex | Self::Opencode => self.settings(locations, scope),
            Self::Gemini if scope == InstallScope::User => {
                Some(self.folder(locations).join("policies/svc.toml"))
            }
            _ => None,
        }
    }

    /// Which of `tools` the client's files allow; `None` if the client's permissions are unknown.
    pub fn approvals(self, locations: &ClientLocations, tools: &[&str]) -> Option<ToolApprovals> {
        let path = self.grant_file(locations, InstallScope::User)?;
        let scopes = [InstallScope::User, InstallScope::Project];
        let files: Vec<(PathBuf, Value)> = scopes
            .into_iter()
            .filter_map(|scope| self.grant_file(locations, scope))
            .map(|path| (path.clone(), content(&path)))
            .collect();
        let asks_nothing =
            self == Self::Opencode && files.iter().all(|(_, document)| asks_nothing(document));
        let allows = |tool: &str| {
            files.iter().any(|(path, document)| self.allows(locations, path, document, tool))
        };
        // The annotations allow these tools: harmless tools neither destroy anything nor reach
        // beyond this machine.
        let is_auto = |tool: &str| {
            let is_silent = |(_, document): &(PathBuf, Value)| codex_mode(document, tool).is_none();
            self == Self::Codex && files.iter().all(is_silent)
        };
        let is_allowed = |tool: &str| asks_nothing || is_auto(tool) || allows(tool);
        let missing: Vec<String> =
            tools.iter().filter(|tool| !is_allowed(tool)).map(|tool| (*tool).to_owned()).collect();
        Some(ToolApprovals { path, allowed: tools.len() - missing.len(), missing })
    }

    fn allows(self, locations: &ClientLocations, path: &Path, rules: &Value, tool: &str) -> bool {
        match self {
            Self::ClaudeCode => {
                let list = at(rules, &["permissions", "allow"]).and_then(Value::as_array);
                let names =
                    ["mcp__svc".to_owned(), "mcp__svc__*".into(), format!("mcp__svc__{tool}")];
                list.is_some_and(|list| {
                    list.iter().filter_map(Value::as_str).any(|it| names.iter().any(|n| n == it))
                })
            }
            Self::Codex => {
                codex_mode(rules, tool).is_some_and(|mode| mode == "approve" || mode == "auto")
            }
            Self::Gemini => {
                let settings = self.settings(locations, InstallScope::User);
                let settings = settings.map(|path| content(&path)).unwrap_or_default();
                let trusts = at(&settings, &["mcpServers", SERVER, "trust"]) == Some(&json!(true));
                trusts || path.exists() && rule_names(rules).any(|name| name == tool)
            }
            Self::Opencode => match rules.get("permission") {
                None => false,
                Some(Value::Object(map)) => {
                    let own = map.get(&format!("svc_{tool}")).or_else(|| map.get("svc_*"));
                    own.or_else(|| map.get("*")).is_none_or(|it| it == "allow")
                }
                Some(other) => other == "allow",
            },
            _ => false,
        }
    }
}

/// The approval mode that Codex's file sets for a tool of svc.
fn codex_mode(document: &Value, tool: &str) -> Option<Value> {
    let server = at(document, &["mcp_servers", SERVER])?;
    let own = at(server, &["tools", tool, "approval_mode"]);
    own.or_else(|| server.get("default_tools_approval_mode")).cloned()
}

/// Whether opencode asks for none of svc's tools.
fn asks_nothing(document: &Value) -> bool {
    match document.get("permission") {
        None => true,
        Some(permission) => permission == "allow",
    }
}

/// Priority 100 overrides a person's "always" and is overridden by what the person forbids.
fn rules(tools: &[&str]) -> String {
    let names: Vec<String> = tools.iter().map(|tool| format!("  \"{tool}\",\n")).collect();
    format!(
        "{OUR_RULES}\n\n[[rule]]\nmcpName = \"{SERVER}\"\ntoolName = [\n{}]\ndecision = \"allow\"\npriority = 100\n",
        names.concat()
    )
}

fn rule_names(document: &Value) -> impl Iterator<Item = &str> {
    let rules = document.get("rule").and_then(Value::as_array).into_iter().flatten();
    let ours = |rule: &&Value| {
        rule.get("mcpName") == Some(&json!(SERVER)) && rule.get("decision") == Some(&json!("allow"))
    };
    rules.filter(ours).flat_map(|rule| {
        rule.get("toolName")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gemini CLI compares the names in rules with the tools that it sees, and warns of a name that
    /// is similar to a tool's.
    #[test]
    fn rules_of_gemini_name_only_listed_tools() {
        let tools = ["peer_list", "peer_ack", "ToolSearch"];
        let listed = ["ToolSearch", "ToolCall", "peer_list"];
        assert_eq!(
            KnownClient::Gemini.named_in_rules(&tools, &listed),
            ["peer_list", "ToolSearch"]
        );
        for client in [KnownClient::ClaudeCode, KnownClient::Codex, KnownClient::Opencode] {
            assert_eq!(client.named_in_rules(&tools, &listed), tools);
        }
    }
}
