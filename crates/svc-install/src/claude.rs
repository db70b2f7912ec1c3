//! Claude Code: servers in `~/.claude.json` (or `.mcp.json`), hooks in `settings.json`.
//!
//! Hooks are commands in shell form, which all versions since 2.0.0 take: those before 2.1.139 ignore `args`, so that the
//! program would run without arguments. The shell also finds out whether the program is still there, and costs about a
//! millisecond. Handlers of the type `mcp_tool` would be a
//! millisecond or two cheaper, but when the server is not in the session (its start is not done, `/mcp` has it
//! disabled, `--strict-mcp-config`, the daemon is away) Claude Code 2.1.197 and 2.1.329 tell the person of a failed
//! hook at every tool call and every turn, and `SessionStart` and `SessionEnd` refuse them altogether. `http` handlers
//! need the token and are never called for `SessionStart`. A command is silent whatever happens.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::change::FileChange;
use super::client::{InstallParts, InstallScope};
use super::command::ClientCommand;
use super::document::FileFormat;
use super::edit::{self, Edit};
use super::locations::ClientLocations;
use super::version::ClientVersion;

/// The first version that passes `args` to a hook's command.
const ARGS_SINCE: ClientVersion = ClientVersion([2, 1, 139]);
/// Events with the first version that knows each. Earlier ones refuse the whole file because of them, with all that the person
/// has there.
const LATE_EVENTS: [(&str, ClientVersion); 3] = [
    ("PostToolUseFailure", ClientVersion([2, 0, 57])),
    ("PermissionRequest", ClientVersion([2, 0, 57])),
    ("StopFailure", ClientVersion([2, 1, 78])),
];

/// The events of which the daemon makes something, and how long a handler may take, in seconds. `svc hook` has a shorter limit of its own; these are for a
/// machine that is out of breath.
const EVENTS: &[(&str, u32)] = &[
    ("SessionStart", 10),
    ("UserPromptSubmit", 10),
    ("PreToolUse", 5),
    ("PostToolUse", 5),
    ("PostToolUseFailure", 5),
    ("PermissionRequest", 5),
    ("Notification", 5),
    ("Stop", 10),
    ("StopFailure", 10),
    // All handlers of this event share 1.5 s unless they say otherwise.
    ("SessionEnd", 5),
];

/// The notifications that tell of a prompt, or of a turn that is over.
const WAITING: &str = "idle_prompt|permission_prompt|agent_needs_input|elicitation_dialog";

/// The events at which a waiter begins. The last waiter ended with the message that began the turn, and no hook tells of a turn
/// that its person interrupts: so the next one begins with the turn.
const WAKING_EVENTS: [&str; 4] = ["SessionStart", "UserPromptSubmit", "Stop", "StopFailure"];

/// How long the waiter that wakes an idle session waits, in seconds: a day. Each of those events begins a new one.
const WAIT: u32 = 86_400;

pub(crate) fn folder(locations: &ClientLocations) -> PathBuf {
    locations.variable("CLAUDE_CONFIG_DIR").unwrap_or_else(|| locations.home.join(".claude"))
}

/// Where a person's servers are, and those of each project that only this person has.
pub(crate) fn servers_file(locations: &ClientLocations) -> PathBuf {
    locations
        .variable("CLAUDE_CONFIG_DIR")
        .unwrap_or_else(|| locations.home.clone())
        .join(".claude.json")
}

/// Where its hooks and permissions are.
pub(crate) fn settings_file(locations: &ClientLocations, scope: InstallScope) -> PathBuf {
    match scope {
        InstallScope::User => folder(locations).join("settings.json"),
        InstallScope::Project => locations.project.join(".claude/settings.json"),
    }
}

pub(crate) fn changes(
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
    parts: InstallParts,
) -> Vec<FileChange> {
    let servers = match scope {
        InstallScope::User => servers_file(locations),
        InstallScope::Project => locations.project.join(".mcp.json"),
    };
    let settings = settings_file(locations, scope);
    let mut changes = Vec::new();
    if parts.server {
        let entry = json!({
            "type": "stdio",
            "command": command.executable(scope),
            "args": command.arguments(scope, &["stdio"]),
        });
        let edits = vec![Edit::Server { table: &["mcpServers"], entry }];
        changes.push(FileChange { path: servers, format: FileFormat::Json, edits });
    }
    if parts.hooks {
        // A shared file is for all versions; `refused` says if this one does not take it.
        let version = locations.claude_version.filter(|_| scope == InstallScope::User);
        let edits = vec![Edit::Hooks { groups: groups(command, scope, version) }];
        changes.push(FileChange { path: settings, format: FileFormat::Json, edits });
    }
    changes
}

/// What this version does not take of the hooks of svc in a settings file, and what comes of it.
pub(crate) fn refused(settings: &Value, version: ClientVersion) -> Option<String> {
    let ours = edit::our_handlers(settings);
    let has_arguments =
        |handler: &Value| handler.get("args").is_some_and(|args| *args != json!([]));
    if version < ARGS_SINCE && ours.iter().any(|(_, handler)| has_arguments(handler)) {
        return Some(format!(
            "have `args`, which Claude Code {version} ignores, so that they run `svc` without arguments; \
             {ARGS_SINCE} is the first that does not"
        ));
    }
    let unknown = |(late, since): &&(&str, ClientVersion)| {
        version < *since && ours.iter().any(|(event, _)| event == late)
    };
    if let Some((event, since)) = LATE_EVENTS.iter().find(unknown) {
        return Some(format!(
            "have the event {event}, for which Claude Code {version} ignores the whole file; \
             {since} is the first that knows it"
        ));
    }
    None
}

fn groups(
    command: &ClientCommand,
    scope: InstallScope,
    version: Option<ClientVersion>,
) -> Vec<(&'static str, Value)> {
    let group = |&(event, timeout): &(&'static str, u32)| {
        let mut handlers = vec![handler(command, scope, &["hook", "claude-code"], timeout)];
        if WAKING_EVENTS.contains(&event) {
            // A version that does not know `asyncRewake` would wait for it: `svc hook wait` looks which one runs it.
            let mut waiter = handler(command, scope, &["hook", "wait"], WAIT);
            waiter["asyncRewake"] = json!(true);
            // In place of "Stop hook feedback" for the person, and of "Stop hook blocking error" for the model.
            waiter["rewakeSummary"] = json!("svc: a message for this session");
            waiter["rewakeMessage"] = json!("From svc, the daemon of this machine's agents:");
            handlers.push(waiter);
        }
        let mut group = json!({ "hooks": handlers });
        if event == "Notification" {
            // That the session waits for its person. A context that was cut down begins anew by `SessionStart`.
            group["matcher"] = json!(WAITING);
        }
        (event, group)
    };
    let is_known = |event: &str| {
        let late = LATE_EVENTS.iter().find(|(late, _)| *late == event);
        late.is_none_or(|(_, since)| version.is_none_or(|version| version >= *since))
    };
    EVENTS.iter().filter(|(event, _)| is_known(event)).map(group).collect()
}

fn handler(command: &ClientCommand, scope: InstallScope, words: &[&str], timeout: u32) -> Value {
    json!({ "type": "command", "command": command.shell_line(scope, words), "timeout": timeout })
}
