//! Gemini CLI: servers and hooks in one `settings.json`.
//!
//! It has handlers of the type `command` alone, run by a shell, with limits in milliseconds. `PreCompress` is left out,
//! which fires before every call of the model.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::change::FileChange;
use super::client::{InstallParts, InstallScope};
use super::command::ClientCommand;
use super::document::FileFormat;
use super::edit::Edit;
use super::locations::ClientLocations;

/// The events of which the daemon makes something, and how long a handler may take, in milliseconds.
const EVENTS: &[(&str, u32)] = &[
    ("SessionStart", 10_000),
    ("BeforeAgent", 10_000),
    ("BeforeTool", 5_000),
    ("AfterTool", 5_000),
    // That it asks its person.
    ("Notification", 5_000),
    ("AfterAgent", 10_000),
    ("SessionEnd", 5_000),
];

pub(crate) fn folder(locations: &ClientLocations) -> PathBuf {
    locations.variable("GEMINI_CLI_HOME").unwrap_or_else(|| locations.home.clone()).join(".gemini")
}

pub(crate) fn changes(
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
    parts: InstallParts,
) -> Vec<FileChange> {
    let folder = match scope {
        InstallScope::User => folder(locations),
        InstallScope::Project => locations.project.join(".gemini"),
    };
    let mut edits = Vec::new();
    if parts.server {
        let entry = json!({
            "command": command.executable(scope),
            "args": command.arguments(scope, &["stdio"]),
        });
        edits.push(Edit::Server { table: &["mcpServers"], entry });
    }
    if parts.hooks {
        edits.push(Edit::Hooks { groups: groups(command, scope) });
    }
    vec![FileChange { path: folder.join("settings.json"), format: FileFormat::Json, edits }]
}

fn groups(command: &ClientCommand, scope: InstallScope) -> Vec<(&'static str, Value)> {
    let line = command.shell_line(scope, &["hook", "gemini"]);
    let group = |&(event, timeout): &(&'static str, u32)| {
        // The name is what its warnings about changed hooks and `/hooks` show.
        let handler =
            json!({ "type": "command", "name": "svc", "command": line, "timeout": timeout });
        (event, json!({ "hooks": [handler] }))
    };
    EVENTS.iter().map(group).collect()
}
