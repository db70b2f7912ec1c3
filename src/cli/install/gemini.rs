//! Gemini CLI: servers and hooks in one `settings.json`.
//!
//! It has handlers of the type `command` alone, run by a shell, with limits in milliseconds. `PreCompress` is left out,
//! which fires before every call of the model, and `BeforeTool`, from which nothing reaches the model.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::clients::{Change, Parts, Places, Scope};
use super::document::Format;
use super::edit::Edit;
use super::program::Program;

/// The events of which the daemon makes something, and how long a handler may take, in milliseconds.
const EVENTS: &[(&str, u32)] = &[
    ("SessionStart", 10_000),
    ("BeforeAgent", 10_000),
    ("AfterTool", 5_000),
    ("AfterAgent", 10_000),
    ("SessionEnd", 5_000),
];

pub(super) fn folder(places: &Places) -> PathBuf {
    places.variable("GEMINI_CLI_HOME").unwrap_or_else(|| places.home.clone()).join(".gemini")
}

pub(super) fn changes(
    places: &Places,
    program: &Program,
    scope: Scope,
    parts: Parts,
) -> Vec<Change> {
    let folder = match scope {
        Scope::User => folder(places),
        Scope::Project => places.project.join(".gemini"),
    };
    let mut edits = Vec::new();
    if parts.server {
        let entry = json!({
            "command": program.command(scope),
            "args": program.arguments(scope, &["stdio"]),
        });
        edits.push(Edit::Server { table: &["mcpServers"], entry });
    }
    if parts.hooks {
        edits.push(Edit::Hooks { groups: groups(program, scope) });
    }
    vec![Change { path: folder.join("settings.json"), format: Format::Json, edits }]
}

fn groups(program: &Program, scope: Scope) -> Vec<(&'static str, Value)> {
    let line = program.line(scope, &["hook", "gemini"]);
    let group = |&(event, timeout): &(&'static str, u32)| {
        // The name is what its warnings about changed hooks and `/hooks` show.
        let handler =
            json!({ "type": "command", "name": "svc", "command": line, "timeout": timeout });
        (event, json!({ "hooks": [handler] }))
    };
    EVENTS.iter().map(group).collect()
}
