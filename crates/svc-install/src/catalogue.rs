//! The folder of each client, and the changes of an installation in it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::client::{
    ClientCommand, ClientLocations, ClientVersion, InstallParts, InstallScope, KnownClient,
};
use super::document::content;
use super::edit::{Edit, FileChange};
use super::entries::{OUR_FILE, our_handlers};

impl KnownClient {
    /// The folder of a person's configuration.
    pub fn folder(self, locations: &ClientLocations) -> PathBuf {
        match self {
            Self::ClaudeCode => locations
                .variable("CLAUDE_CONFIG_DIR")
                .unwrap_or_else(|| locations.home.join(".claude")),
            Self::Codex => {
                locations.variable("CODEX_HOME").unwrap_or_else(|| locations.home.join(".codex"))
            }
            Self::Gemini => {
                let home = locations.variable("GEMINI_CLI_HOME");
                home.unwrap_or_else(|| locations.home.clone()).join(".gemini")
            }
            Self::Opencode => locations.config().join("opencode"),
            Self::Cursor => locations.home.join(".cursor"),
            Self::Vscode => locations.application_data().join("Code/User"),
            Self::Windsurf => locations.home.join(".codeium/windsurf"),
            Self::Zed => locations.config().join("zed"),
            Self::CopilotCli => locations.home.join(".copilot"),
            Self::Kiro => locations.home.join(".kiro"),
            Self::Droid => locations.home.join(".factory"),
        }
    }

    /// Whether the client is on this machine, or has been.
    pub fn is_here(self, locations: &ClientLocations) -> bool {
        self.folder(locations).is_dir()
            || self == Self::ClaudeCode && claude_servers(locations).is_file()
            || self.executable().is_some_and(|name| locations.find(name).is_some())
    }

    /// The changes of an installation, one per file. Empty if the client has no files in this
    /// scope.
    pub fn changes(
        self,
        locations: &ClientLocations,
        command: &ClientCommand,
        scope: InstallScope,
        parts: InstallParts,
    ) -> Vec<FileChange> {
        let server = parts.server.then(|| self.server_change(locations, command, scope)).flatten();
        let hooks = parts.hooks.then(|| self.hooks_change(locations, command, scope)).flatten();
        FileChange::joined(server.into_iter().chain(hooks))
    }

    /// The file of the settings of a client with hooks.
    pub(crate) fn settings(
        self,
        locations: &ClientLocations,
        scope: InstallScope,
    ) -> Option<PathBuf> {
        let in_folder = |of_project: &str| {
            scope.choose(self.folder(locations), locations.project.join(of_project))
        };
        match self {
            Self::ClaudeCode => Some(in_folder(".claude").join("settings.json")),
            Self::Codex => Some(in_folder(".codex").join("config.toml")),
            Self::Gemini => Some(in_folder(".gemini").join("settings.json")),
            Self::Opencode => Some(opencode_file(&in_folder(""))),
            _ => None,
        }
    }

    /// The change for the entry among the client's servers; `None` if it has no file in this scope.
    fn server_change(
        self,
        locations: &ClientLocations,
        command: &ClientCommand,
        scope: InstallScope,
    ) -> Option<FileChange> {
        const SERVERS: &str = "mcpServers";
        let folder = self.folder(locations);
        let in_project = |name: &str| Some(locations.project.join(name));
        // The user's file, the project's, and the table of servers in it.
        let settings = |table| {
            let of_scope = |scope| self.settings(locations, scope);
            Some((of_scope(InstallScope::User)?, of_scope(InstallScope::Project), table))
        };
        let (user, project, table) = match self {
            Self::ClaudeCode => (claude_servers(locations), in_project(".mcp.json"), SERVERS),
            Self::Codex => settings("mcp_servers")?,
            Self::Gemini => settings(SERVERS)?,
            Self::Opencode => settings("mcp")?,
            Self::Cursor => (folder.join("mcp.json"), in_project(".cursor/mcp.json"), SERVERS),
            Self::Vscode => (folder.join("mcp.json"), in_project(".vscode/mcp.json"), "servers"),
            Self::Windsurf => (folder.join("mcp_config.json"), None, SERVERS),
            Self::Zed => {
                (folder.join("settings.json"), in_project(".zed/settings.json"), "context_servers")
            }
            Self::CopilotCli => (folder.join("mcp-config.json"), None, SERVERS),
            Self::Kiro => {
                (folder.join("settings/mcp.json"), in_project(".kiro/settings/mcp.json"), SERVERS)
            }
            Self::Droid => (folder.join("mcp.json"), in_project(".factory/mcp.json"), SERVERS),
        };
        let path = scope.choose(Some(user), project)?;
        let (program, arguments) =
            (command.executable(scope), command.arguments(scope, &["stdio"]));
        let entry = match self {
            Self::ClaudeCode | Self::Vscode | Self::Droid => {
                json!({ "type": "stdio", "command": program, "args": arguments })
            }
            Self::Opencode => {
                let words: Vec<String> = [program].into_iter().chain(arguments).collect();
                json!({ "type": "local", "command": words, "enabled": true })
            }
            Self::CopilotCli => {
                json!({ "type": "local", "command": program, "args": arguments, "tools": ["*"] })
            }
            _ => json!({ "command": program, "args": arguments }),
        };
        Some(FileChange { path, edits: vec![Edit::Server { table, entry }] })
    }

    /// The change for the client's hooks; `None` if it has none.
    fn hooks_change(
        self,
        locations: &ClientLocations,
        command: &ClientCommand,
        scope: InstallScope,
    ) -> Option<FileChange> {
        let settings = self.settings(locations, scope)?;
        let (path, groups) = match self {
            Self::ClaudeCode => (settings, claude_groups(locations, command, scope)),
            Self::Codex => (codex_hooks_file(settings), codex_groups(command, scope)),
            Self::Gemini => (settings, gemini_groups(command, scope)),
            Self::Opencode => {
                let (user, project) = (
                    self.folder(locations).join("plugin"),
                    locations.project.join(".opencode/plugin"),
                );
                let path = scope.choose(user, project).join("svc.js");
                let text = opencode_plugin(command.data_folder(scope));
                return Some(FileChange { path, edits: vec![Edit::Whole { text }] });
            }
            _ => return None,
        };
        Some(FileChange { path, edits: vec![Edit::Hooks { groups }] })
    }
}

// Claude Code: servers in `~/.claude.json` (or `.mcp.json`), hooks in `settings.json`.
//
// Hooks are commands in shell form, which all versions since 2.0.0 run: versions before 2.1.139
// ignore `args` and would run the program without arguments. The shell also checks whether the
// program still exists, and costs about a millisecond. Handlers of the type `mcp_tool` would be one
// or two milliseconds cheaper. But when the server is not in the session (it has not started yet,
// `/mcp` has disabled it, `--strict-mcp-config`, the daemon is away), Claude Code 2.1.197 and
// 2.1.329 report a failed hook to the person at every tool call and every turn, and do not run the
// hook at all for `SessionStart` and `SessionEnd`. `http` handlers need the token and are never
// called for `SessionStart`. A command never prints a failure.

/// The first version that knows each event. Earlier versions ignore the whole file because of it,
/// including the person's own settings.
const LATE_EVENTS: [(&str, ClientVersion); 4] = [
    ("PostToolUseFailure", ClientVersion([2, 0, 57])),
    ("PermissionRequest", ClientVersion([2, 0, 57])),
    ("StopFailure", ClientVersion([2, 1, 78])),
    (BATCH_END, ClientVersion([2, 1, 197])),
];

/// The end of the tools that the model called at once. 2.1.197 is the first version that is known
/// to have it, so it is not written for a version that is unknown.
const BATCH_END: &str = "PostToolBatch";

/// Events that the daemon uses, and the limits of their handlers in seconds. `svc hook` has a
/// shorter limit of its own; these are for a machine under load.
const CLAUDE_EVENTS: &[(&str, u32)] = &[
    ("SessionStart", 10),
    ("UserPromptSubmit", 10),
    ("PreToolUse", 5),
    ("PostToolUse", 5),
    ("PostToolUseFailure", 5),
    (BATCH_END, 5),
    // This hook holds the prompt beside the dialog until somebody answers.
    ("PermissionRequest", 86_400),
    ("Notification", 5),
    ("Stop", 10),
    ("StopFailure", 10),
    // Without a limit, all handlers of this event share 1.5 s.
    ("SessionEnd", 5),
];

/// Kinds of notifications that report a prompt, its answer or the end of a turn.
const WAITING: &str =
    "idle_prompt|permission_prompt|agent_needs_input|elicitation_dialog|elicitation_response";

/// Events that start a waiter. A waiter ends with the message that begins a turn, and no hook
/// reports a turn that the person interrupts. So each turn starts a new waiter at its beginning.
const WAKING_EVENTS: [&str; 4] = ["SessionStart", "UserPromptSubmit", "Stop", "StopFailure"];

/// Limit of a waiter in seconds: one day. Each of those events starts a new waiter.
const WAIT: u32 = 86_400;

/// The file of a person's servers, which also has the servers of single projects.
fn claude_servers(locations: &ClientLocations) -> PathBuf {
    locations
        .variable("CLAUDE_CONFIG_DIR")
        .unwrap_or_else(|| locations.home.clone())
        .join(".claude.json")
}

/// Why this version does not run svc's hooks in a settings file.
pub(crate) fn claude_refusal(settings: &Value, version: ClientVersion) -> Option<String> {
    let ours = our_handlers(settings);
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

fn claude_groups(
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
) -> Vec<(&'static str, Value)> {
    // A project's file is shared by all versions; `claude_refusal` reports if this version ignores
    // it.
    let version = locations.claude_version.filter(|_| scope == InstallScope::User);
    let group = |&(event, timeout): &(&'static str, u32)| {
        let mut handlers = vec![claude_handler(command, scope, &["hook", "claude-code"], timeout)];
        if WAKING_EVENTS.contains(&event) {
            // Versions without `asyncRewake` would block on the waiter, so `svc hook wait` checks
            // the version.
            let mut waiter = claude_handler(command, scope, &["hook", "wait"], WAIT);
            waiter["asyncRewake"] = json!(true);
            // Replace "Stop hook feedback" for the person and "Stop hook blocking error" for the
            // model.
            waiter["rewakeSummary"] = json!("svc: a message for this session");
            waiter["rewakeMessage"] = json!("From svc, the daemon of this machine's agents:");
            handlers.push(waiter);
        }
        let mut group = json!({ "hooks": handlers });
        if event == "Notification" {
            // Only notifications that say whether the session waits for the person. The end of a
            // compaction needs none: it sends `SessionStart`.
            group["matcher"] = json!(WAITING);
        }
        (event, group)
    };
    let is_known = |event: &str| {
        let late = LATE_EVENTS.iter().find(|(late, _)| *late == event);
        late.is_none_or(|(late, since)| {
            version.map_or(*late != BATCH_END, |version| version >= *since)
        })
    };
    CLAUDE_EVENTS.iter().filter(|(event, _)| is_known(event)).map(group).collect()
}

fn claude_handler(
    command: &ClientCommand,
    scope: InstallScope,
    words: &[&str],
    timeout: u32,
) -> Value {
    json!({ "type": "command", "command": command.shell_line(scope, words), "timeout": timeout })
}

// Codex: servers in `config.toml`; hooks in `hooks.json`, or in `config.toml` if the person has
// hooks there, since Codex warns at every start if both files have hooks. A handler of the type
// `mcp_tool` fails when the server is missing or a `${path}` is missing, and cannot be used for
// `SessionEnd`.

/// Events that the daemon uses, and the limits of their handlers in seconds.
const CODEX_EVENTS: &[(&str, u32)] = &[
    ("SessionStart", 10),
    ("UserPromptSubmit", 10),
    ("PreToolUse", 5),
    ("PostToolUse", 5),
    (CODEX_REQUEST, 5),
    // Codex reduces a higher limit of `Interrupt` and of `SessionEnd` to 3 seconds, and tells the
    // person at every start.
    ("Interrupt", 3),
    ("Stop", 10),
    ("SessionEnd", 3),
];

/// Codex shows its dialog after the handlers of this event, so svc's handler is asynchronous.
const CODEX_REQUEST: &str = "PermissionRequest";

/// The file for hooks beside a `config.toml`, or that file itself if it has hooks, and not just
/// hashes of trusted hooks.
fn codex_hooks_file(config: PathBuf) -> PathBuf {
    let document = content(&config);
    let mut hooks = document.get("hooks").and_then(Value::as_object).into_iter().flatten();
    if hooks.any(|(_, groups)| groups.is_array()) {
        return config;
    }
    config.with_file_name("hooks.json")
}

fn codex_groups(command: &ClientCommand, scope: InstallScope) -> Vec<(&'static str, Value)> {
    let line = command.shell_line(scope, &["hook", "codex"]);
    hook_groups(CODEX_EVENTS, |event, timeout| {
        let mut handler = json!({ "type": "command", "command": line, "timeout": timeout });
        if event == CODEX_REQUEST {
            handler["async"] = json!(true);
        }
        handler
    })
}

/// One group with one handler for each event.
fn hook_groups(
    events: &[(&'static str, u32)],
    handler: impl Fn(&str, u32) -> Value,
) -> Vec<(&'static str, Value)> {
    let group = |&(event, timeout): &(&'static str, u32)| {
        (event, json!({ "hooks": [handler(event, timeout)] }))
    };
    events.iter().map(group).collect()
}

// Gemini CLI: servers and hooks in one `settings.json`. It runs only handlers of the type
// `command`, through a shell. `PreCompress` is left out, as it fires before every call of the
// model.

/// Events that the daemon uses, and the limits of their handlers in milliseconds.
const GEMINI_EVENTS: &[(&str, u32)] = &[
    ("SessionStart", 10_000),
    ("BeforeAgent", 10_000),
    ("BeforeTool", 5_000),
    ("AfterTool", 5_000),
    // Sent when Gemini CLI asks the person.
    ("Notification", 5_000),
    ("AfterAgent", 10_000),
    ("SessionEnd", 5_000),
];

fn gemini_groups(command: &ClientCommand, scope: InstallScope) -> Vec<(&'static str, Value)> {
    let line = command.shell_line(scope, &["hook", "gemini"]);
    // Gemini CLI shows this name in `/hooks` and in warnings about changed hooks.
    hook_groups(
        GEMINI_EVENTS,
        |_, timeout| json!({ "type": "command", "name": "svc", "command": line, "timeout": timeout }),
    )
}

// opencode: servers in `opencode.json(c)`; hooks in a plugin, which is a file that svc writes
// whole.

/// The plugin. `@SETTINGS@` is replaced with the settings of this installation.
const PLUGIN: &str = include_str!("opencode_plugin.js");

/// The existing file, else the one that opencode's own `mcp add` uses. opencode reads both.
fn opencode_file(folder: &Path) -> PathBuf {
    let names = ["opencode.jsonc", "opencode.json"];
    let existing = names.iter().map(|name| folder.join(name)).find(|path| path.exists());
    existing.unwrap_or_else(|| folder.join("opencode.json"))
}

fn opencode_plugin(home: Option<&str>) -> String {
    let home = home.map_or(Value::Null, Value::from);
    format!("{OUR_FILE}\n{}", PLUGIN.replace("@SETTINGS@", &json!({ "home": home }).to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::document::{ConfigDocument, FileFormat};
    use super::super::edit;
    use super::*;

    fn written(version: Option<[u32; 3]>, scope: InstallScope) -> Value {
        let mut locations = ClientLocations::new("/h".into(), "/p".into(), |_| None);
        locations.claude_version = version.map(ClientVersion);
        let home = Path::new("/d");
        let command = ClientCommand::new(Path::new("/a b/svc"), home, Some(home));
        let command = command.expect("is text");
        let change = KnownClient::ClaudeCode.hooks_change(&locations, &command, scope);
        let edit = &change.expect("it has hooks").edits[0];
        let text = edit::apply("", FileFormat::Json, edit).expect("applies").0;
        ConfigDocument::parse(FileFormat::Json, &text).expect("parses").value()
    }

    #[test]
    fn hooks_that_a_version_refuses_are_reported() {
        for (version, knows_failed_tools, knows_failed_turns, knows_batches) in [
            (None, true, true, false),
            (Some([2, 0, 0]), false, false, false),
            (Some([2, 0, 56]), false, false, false),
            (Some([2, 0, 57]), true, false, false),
            (Some([2, 1, 77]), true, false, false),
            (Some([2, 1, 78]), true, true, false),
            (Some([2, 1, 196]), true, true, false),
            (Some([2, 1, 197]), true, true, true),
            (Some([2, 1, 330]), true, true, true),
        ] {
            let settings = written(version, InstallScope::User);
            let has = |event: &str| settings["hooks"].get(event).is_some();
            let there = (has("PostToolUseFailure"), has("StopFailure"), has("PostToolBatch"));
            let expected = (knows_failed_tools, knows_failed_turns, knows_batches);
            assert_eq!(there, expected, "{version:?}");
            assert!(!settings.to_string().contains("\"args\""), "{settings}");
            let version = ClientVersion(version.unwrap_or([9, 0, 0]));
            assert_eq!(claude_refusal(&settings, version), None, "{version}");
        }
        let shared = written(Some([2, 0, 0]), InstallScope::Project);
        let reason = claude_refusal(&shared, ClientVersion([2, 0, 0])).expect("it is refused");
        assert!(reason.contains("PostToolUseFailure"), "{reason}");
        let reason = claude_refusal(&shared, ClientVersion([2, 1, 70])).expect("it is refused");
        assert!(reason.contains("StopFailure") && reason.contains("2.1.78"), "{reason}");
        let others = json!({ "hooks": { "StopFailure": [{ "hooks": [
            { "type": "command", "command": "/a/other x" },
        ]}]}});
        assert_eq!(claude_refusal(&others, ClientVersion([2, 0, 60])), None, "the person's own");
    }

    /// However a turn that a message began ends, a new waiter has been started since: the previous
    /// one ended with that message.
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
