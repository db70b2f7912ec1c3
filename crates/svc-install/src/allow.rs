//! The permission that each client keeps for tools: which of svc's its model may call without asking the person.
//!
//! A session that a message wakes while nobody is at the terminal stands still at a dialog. So a person may allow the
//! tools that destroy nothing, with `svc install --allow-tools`; the rest are asked for as ever.
//!
//! - Claude Code: `permissions.allow` in `settings.json`.
//! - Codex: `approval_mode` of each tool below the server's entry in `config.toml`. Without one, and in mode `auto`, it asks for
//!   no tool that is annotated as harmless.
//! - Gemini CLI: a file of rules of its own, since `trust` in the server's entry would allow every tool. It reads no rules
//!   of a project.
//! - opencode: `permission`. Where the person has none, nothing is asked for, and nothing has to be written.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::bounded_file::{self, CLIENT_FILE_BYTES};
use super::change::FileChange;
use super::client::{InstallScope, KnownClient};
use super::document::{ConfigDocument, FileFormat};
use super::edit::{Edit, GrantForm, OUR_RULES, SERVER, at};
use super::locations::ClientLocations;
use super::{claude, codex, gemini, opencode};

/// What a client's files say of tools that need no question.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ToolApprovals {
    /// The file that allows them, or would.
    pub path: PathBuf,
    /// How many of the harmless tools are allowed.
    pub allowed: usize,
    /// Those that the client asks for each time.
    pub missing: Vec<String>,
}

impl KnownClient {
    /// Those of `tools` that its rules name if its models are shown `listed` alone. Gemini CLI takes the name of a tool that it is
    /// not shown for a slip, and warns of it when it starts.
    pub fn named_in_rules<'a>(self, tools: &[&'a str], listed: &[&str]) -> Vec<&'a str> {
        let is_named = |tool: &&&str| self != Self::Gemini || listed.contains(*tool);
        tools.iter().filter(is_named).copied().collect()
    }

    /// The change that allows `tools`. None where a client keeps no such permission in this scope, or asks for nothing.
    pub fn grant(
        self,
        locations: &ClientLocations,
        scope: InstallScope,
        tools: &[&str],
    ) -> Option<FileChange> {
        let (path, format) = self.grant_file(locations, scope)?;
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
        if self == Self::Opencode && asks_nothing(&document(&path, format)) {
            return None;
        }
        Some(FileChange { path, format, edits: vec![edit] })
    }

    /// The file in which this client keeps what is allowed.
    pub(crate) fn grant_file(
        self,
        locations: &ClientLocations,
        scope: InstallScope,
    ) -> Option<(PathBuf, FileFormat)> {
        let is_user = scope == InstallScope::User;
        let json = |path| Some((path, FileFormat::Json));
        match self {
            Self::ClaudeCode => json(claude::settings_file(locations, scope)),
            Self::Codex => {
                Some((codex::folder_of(locations, scope).join("config.toml"), FileFormat::Toml))
            }
            Self::Gemini if is_user => {
                Some((gemini::folder(locations).join("policies/svc.toml"), FileFormat::Toml))
            }
            Self::Opencode => json(opencode::settings_file(locations, scope)),
            _ => None,
        }
    }

    /// Which of `tools` the client's files allow. None for a client whose permissions are not known.
    pub fn approvals(self, locations: &ClientLocations, tools: &[&str]) -> Option<ToolApprovals> {
        let (path, _) = self.grant_file(locations, InstallScope::User)?;
        let scopes = [InstallScope::User, InstallScope::Project];
        let files: Vec<(PathBuf, Value)> = scopes
            .into_iter()
            .filter_map(|scope| self.grant_file(locations, scope))
            .map(|(path, format)| (path.clone(), document(&path, format)))
            .collect();
        let asks_nothing =
            self == Self::Opencode && files.iter().all(|(_, document)| asks_nothing(document));
        let allows = |tool: &str| {
            files.iter().any(|(path, document)| self.allows(locations, path, document, tool))
        };
        // By their annotations: none of the harmless tools destroys, or reaches out of this machine.
        let is_auto = |tool: &str| {
            let is_silent = |(_, document): &(PathBuf, Value)| codex_mode(document, tool).is_none();
            self == Self::Codex && files.iter().all(is_silent)
        };
        let is_allowed = |tool: &str| asks_nothing || is_auto(tool) || allows(tool);
        let missing: Vec<String> =
            tools.iter().filter(|tool| !is_allowed(tool)).map(|tool| (*tool).to_owned()).collect();
        Some(ToolApprovals { path, allowed: tools.len() - missing.len(), missing })
    }

    /// Whether it would ask its person before one of `tools` is called.
    pub fn asks_for_tools(self, locations: &ClientLocations, tools: &[&str]) -> bool {
        self.approvals(locations, tools).is_some_and(|approvals| !approvals.missing.is_empty())
    }

    fn allows(
        self,
        locations: &ClientLocations,
        path: &Path,
        document: &Value,
        tool: &str,
    ) -> bool {
        match self {
            Self::ClaudeCode => {
                let list = at(document, &["permissions", "allow"]).and_then(Value::as_array);
                let names =
                    ["mcp__svc".to_owned(), "mcp__svc__*".into(), format!("mcp__svc__{tool}")];
                list.is_some_and(|list| {
                    list.iter().filter_map(Value::as_str).any(|it| names.iter().any(|n| n == it))
                })
            }
            Self::Codex => {
                codex_mode(document, tool).is_some_and(|mode| mode == "approve" || mode == "auto")
            }
            Self::Gemini => {
                let settings = document_of_settings(locations);
                let trusts = at(&settings, &["mcpServers", SERVER, "trust"]) == Some(&json!(true));
                trusts || path.exists() && rule_names(document).any(|name| name == tool)
            }
            Self::Opencode => match document.get("permission") {
                None => false,
                Some(Value::Object(map)) => {
                    let of_tool = map.get(&format!("svc_{tool}")).or_else(|| map.get("svc_*"));
                    of_tool.or_else(|| map.get("*")).is_none_or(|it| it == "allow")
                }
                Some(other) => other == "allow",
            },
            _ => false,
        }
    }
}

/// What Codex' file says of a tool of ours, if it says anything.
fn codex_mode(document: &Value, tool: &str) -> Option<Value> {
    let server = at(document, &["mcp_servers", SERVER])?;
    let own = at(server, &["tools", tool, "approval_mode"]);
    own.or_else(|| server.get("default_tools_approval_mode")).cloned()
}

fn document_of_settings(locations: &ClientLocations) -> Value {
    document(&gemini::folder(locations).join("settings.json"), FileFormat::Json)
}

/// The file as a value; null if it is not there or does not parse.
fn document(path: &Path, format: FileFormat) -> Value {
    let text = bounded_file::read_text(path, CLIENT_FILE_BYTES).ok().flatten().unwrap_or_default();
    ConfigDocument::parse(format, &text).map(|document| document.value()).unwrap_or_default()
}

/// Whether an opencode without rules of its person would ask for nothing of ours.
fn asks_nothing(document: &Value) -> bool {
    match document.get("permission") {
        None => true,
        Some(permission) => permission == "allow",
    }
}

/// Gemini's rules. Its own, at the person's rank, win over what a person has chosen as "always" and lose to what they forbid.
fn rules(tools: &[&str]) -> String {
    let names: Vec<String> = tools.iter().map(|tool| format!("  \"{tool}\",\n")).collect();
    format!(
        "{OUR_RULES}\n\n[[rule]]\nmcpName = \"{SERVER}\"\ntoolName = [\n{}]\ndecision = \"allow\"\npriority = 100\n",
        names.concat()
    )
}

/// The tools that a file of rules allows.
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
