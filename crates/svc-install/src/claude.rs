//! Claude Code: servers in `~/.claude.json` (or `.mcp.json`), hooks in `settings.json`.
//!
//! Hooks are commands in shell form, which all versions since 2.0.0 run: those before 2.1.139
//! ignore `args`, so that the program would run without arguments. The shell also checks whether
//! the program still exists, and costs about a millisecond. Handlers of the type `mcp_tool` would
//! be a millisecond or two cheaper, but when the server is not in the session (its start is not
//! done, `/mcp` has it disabled, `--strict-mcp-config`, the daemon is away) Claude Code 2.1.197 and
//! 2.1.329 tell the person of a failed hook at every tool call and every turn, and `SessionStart`
//! and `SessionEnd` do not run them. `http` handlers need the token and are never called for
//! `SessionStart`. A command is silent whatever happens.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::client::ClientCommand;
use super::client::ClientLocations;
use super::client::ClientVersion;
use super::client::{InstallParts, InstallScope};
use super::document::FileFormat;
use super::edit::{Edit, FileChange};
use super::entries;

/// The first version that passes `args` to a hook's command.
const ARGS_SINCE: ClientVersion = ClientVersion([2, 1, 139]);
/// The first version that knows each event. Earlier ones ignore the whole file because of it, with
/// all that the person has there.
const LATE_EVENTS: [(&str, ClientVersion); 3] = [
    ("PostToolUseFailure", ClientVersion([2, 0, 57])),
    ("PermissionRequest", ClientVersion([2, 0, 57])),
    ("StopFailure", ClientVersion([2, 1, 78])),
];

/// Events that the daemon uses, and the limits of their handlers in seconds. `svc hook` has a
/// shorter limit of its own; these are for a machine under load.
const EVENTS: &[(&str, u32)] = &[
    ("SessionStart", 10),
    ("UserPromptSubmit", 10),
    ("PreToolUse", 5),
    ("PostToolUse", 5),
    ("PostToolUseFailure", 5),
    // It holds the prompt beside the dialog until somebody answers.
    ("PermissionRequest", 86_400),
    ("Notification", 5),
    ("Stop", 10),
    ("StopFailure", 10),
    // Without a limit all handlers of this event share 1.5 s.
    ("SessionEnd", 5),
];

/// Notifications of a prompt, or of the end of a turn.
const WAITING: &str = "idle_prompt|permission_prompt|agent_needs_input|elicitation_dialog";

/// Events that start a waiter. A waiter ends with the message that begins a turn, and no hook
/// reports a turn that the person interrupts: so the next one starts with the turn.
const WAKING_EVENTS: [&str; 4] = ["SessionStart", "UserPromptSubmit", "Stop", "StopFailure"];

/// Limit of a waiter, in seconds: a day. Each of those events starts a new one.
const WAIT: u32 = 86_400;

pub(crate) fn folder(locations: &ClientLocations) -> PathBuf {
    locations.variable("CLAUDE_CONFIG_DIR").unwrap_or_else(|| locations.home.join(".claude"))
}

/// A person's servers, including those of single projects.
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
        let mut entry = command.server_entry(scope);
        entry["type"] = json!("stdio");
        let edits = vec![Edit::Server { table: &["mcpServers"], entry }];
        changes.push(FileChange { path: servers, format: FileFormat::Json, edits });
    }
    if parts.hooks {
        // A shared file is for all versions; `refused` reports if this one ignores it.
        let version = locations.claude_version.filter(|_| scope == InstallScope::User);
        let edits = vec![Edit::Hooks { groups: groups(command, scope, version) }];
        changes.push(FileChange { path: settings, format: FileFormat::Json, edits });
    }
    changes
}

/// Why this version does not run hooks of svc in a settings file.
pub(crate) fn refused(settings: &Value, version: ClientVersion) -> Option<String> {
    let ours = entries::our_handlers(settings);
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
            // Versions without `asyncRewake` would wait for it, so `svc hook wait` checks the
            // version.
            let mut waiter = handler(command, scope, &["hook", "wait"], WAIT);
            waiter["asyncRewake"] = json!(true);
            // Instead of "Stop hook feedback" for the person and "Stop hook blocking error" for the
            // model.
            waiter["rewakeSummary"] = json!("svc: a message for this session");
            waiter["rewakeMessage"] = json!("From svc, the daemon of this machine's agents:");
            handlers.push(waiter);
        }
        let mut group = json!({ "hooks": handlers });
        if event == "Notification" {
            // Only when the session waits for the person. Compaction sends a `SessionStart` of its
            // own.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::document::ConfigDocument;
    use super::super::edit;
    use super::*;

    fn written(version: Option<[u32; 3]>, scope: InstallScope) -> Value {
        let mut locations = ClientLocations::new("/h".into(), "/p".into(), |_| None);
        locations.claude_version = version.map(ClientVersion);
        let home = Path::new("/d");
        let command = ClientCommand::new(Path::new("/a b/svc"), home, Some(home));
        let parts = InstallParts { server: false, hooks: true };
        let changes = changes(&locations, &command.expect("is text"), scope, parts);
        let text = edit::apply("", FileFormat::Json, &changes[0].edits[0]).expect("applies").0;
        ConfigDocument::parse(FileFormat::Json, &text).expect("parses").value()
    }

    #[test]
    fn hooks_that_a_version_refuses_are_reported() {
        for (version, knows_failed_tools, knows_failed_turns) in [
            (None, true, true),
            (Some([2, 0, 0]), false, false),
            (Some([2, 0, 56]), false, false),
            (Some([2, 0, 57]), true, false),
            (Some([2, 1, 77]), true, false),
            (Some([2, 1, 78]), true, true),
            (Some([2, 1, 330]), true, true),
        ] {
            let settings = written(version, InstallScope::User);
            let has = |event: &str| settings["hooks"].get(event).is_some();
            let there = (has("PostToolUseFailure"), has("StopFailure"));
            assert_eq!(there, (knows_failed_tools, knows_failed_turns), "{version:?}");
            assert!(!settings.to_string().contains("\"args\""), "{settings}");
            let version = ClientVersion(version.unwrap_or([9, 0, 0]));
            assert_eq!(refused(&settings, version), None, "{version}");
        }
        let shared = written(Some([2, 0, 0]), InstallScope::Project);
        let reason = refused(&shared, ClientVersion([2, 0, 0])).expect("it is refused");
        assert!(reason.contains("PostToolUseFailure"), "{reason}");
        let reason = refused(&shared, ClientVersion([2, 1, 70])).expect("it is refused");
        assert!(reason.contains("StopFailure") && reason.contains("2.1.78"), "{reason}");
        let former = json!({ "hooks": { "Stop": [{ "hooks": [
            { "type": "command", "command": "/a/svc", "args": ["hook", "claude-code"] },
        ]}]}});
        let refusal = |version| refused(&former, ClientVersion(version));
        assert!(refusal([2, 1, 138]).expect("it is refused").contains("ignores"), "{former}");
        assert_eq!(refusal([2, 1, 139]), None);
        let others = json!({ "hooks": { "Stop": [{ "hooks": [
            { "type": "command", "command": "/a/other", "args": ["x"] },
        ]}]}});
        assert_eq!(refused(&others, ClientVersion([2, 0, 60])), None, "the person's own");
    }

    /// However a turn ends that a message began, a waiter was started since: the last one ended
    /// with that message.
    #[test]
    fn waiter_starts_with_each_turn_and_at_each_end() {
        let hooks = written(None, InstallScope::User)["hooks"].clone();
        let mut waking: Vec<&str> = hooks
            .as_object()
            .expect("events")
            .iter()
            .filter(|(_, groups)| groups.to_string().contains("\"asyncRewake\":true"))
            .map(|(event, _)| event.as_str())
            .collect();
        waking.sort_unstable();
        assert_eq!(waking, ["SessionStart", "Stop", "StopFailure", "UserPromptSubmit"]);
    }
}
