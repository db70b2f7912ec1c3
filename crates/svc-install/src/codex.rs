//! Codex: servers in `config.toml`, hooks in `hooks.json` or, where the person has theirs there, in `config.toml`
//! (with both Codex warns at every start).
//!
//! Hooks are commands: a handler of the type `mcp_tool` fails when the server is not there or a `${path}` is missing,
//! and cannot be used for `SessionEnd`. Codex runs a hook only when the person has trusted its hash; see [`super::trust`].

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::bounded_file::{self, CLIENT_FILE_BYTES};
use super::change::FileChange;
use super::client::{InstallParts, InstallScope};
use super::command::ClientCommand;
use super::document::{ConfigDocument, FileFormat};
use super::edit::Edit;
use super::locations::ClientLocations;

/// The events of which the daemon makes something, and how long a handler may take, in seconds.
const EVENTS: &[(&str, u32)] = &[
    ("SessionStart", 10),
    ("UserPromptSubmit", 10),
    ("PreToolUse", 5),
    ("PostToolUse", 5),
    (NOTICE, 5),
    ("Interrupt", 5),
    ("Stop", 10),
    // More is cut down to this, and the person is told so at every start.
    ("SessionEnd", 3),
];

/// The event at which Codex asks its person. It would wait for the handler before it shows the dialog, so ours runs beside it.
const NOTICE: &str = "PermissionRequest";

pub(crate) fn folder(locations: &ClientLocations) -> PathBuf {
    locations.variable("CODEX_HOME").unwrap_or_else(|| locations.home.join(".codex"))
}

pub(crate) fn folder_of(locations: &ClientLocations, scope: InstallScope) -> PathBuf {
    match scope {
        InstallScope::User => folder(locations),
        InstallScope::Project => locations.project.join(".codex"),
    }
}

pub(crate) fn changes(
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
    parts: InstallParts,
) -> Vec<FileChange> {
    let folder = folder_of(locations, scope);
    let config = folder.join("config.toml");
    let mut toml = FileChange { path: config, format: FileFormat::Toml, edits: Vec::new() };
    let mut changes = Vec::new();
    if parts.server {
        let entry = json!({
            "command": command.executable(scope),
            "args": command.arguments(scope, &["stdio"]),
        });
        toml.edits.push(Edit::Server { table: &["mcp_servers"], entry });
    }
    if parts.hooks {
        let hooks = Edit::Hooks { groups: groups(command, scope) };
        if has_hooks(&toml.path) {
            toml.edits.push(hooks);
        } else {
            let path = folder.join("hooks.json");
            changes.push(FileChange { path, format: FileFormat::Json, edits: vec![hooks] });
        }
    }
    if !toml.edits.is_empty() {
        changes.insert(0, toml);
    }
    changes
}

/// Whether a `config.toml` has hooks, and not only what is known of their trust.
fn has_hooks(config: &Path) -> bool {
    let text =
        bounded_file::read_text(config, CLIENT_FILE_BYTES).ok().flatten().unwrap_or_default();
    let Ok(document) = ConfigDocument::parse(FileFormat::Toml, &text) else { return false };
    let value = document.value();
    let hooks = value.get("hooks").and_then(Value::as_object);
    hooks.is_some_and(|hooks| hooks.values().any(Value::is_array))
}

fn groups(command: &ClientCommand, scope: InstallScope) -> Vec<(&'static str, Value)> {
    let line = command.shell_line(scope, &["hook", "codex"]);
    let group = |&(event, timeout): &(&'static str, u32)| {
        let mut handler = json!({ "type": "command", "command": line, "timeout": timeout });
        if event == NOTICE {
            handler["async"] = json!(true);
        }
        (event, json!({ "hooks": [handler] }))
    };
    EVENTS.iter().map(group).collect()
}
