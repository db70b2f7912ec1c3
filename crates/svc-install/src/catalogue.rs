//! Each client but Claude Code: its folder, and what an installation changes.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::bounded_file::{self, CLIENT_FILE_BYTES};
use super::claude;
use super::client::{ClientCommand, ClientLocations, InstallParts, InstallScope, KnownClient};
use super::document::{ConfigDocument, FileFormat};
use super::edit::{Edit, FileChange};
use super::entries::OUR_FILE;

impl KnownClient {
    /// The folder of a person's configuration.
    pub fn folder(self, locations: &ClientLocations) -> PathBuf {
        match self {
            Self::ClaudeCode => claude::folder(locations),
            Self::Codex => codex_folder(locations),
            Self::Gemini => gemini_folder(locations),
            Self::Opencode => opencode_folder(locations),
            Self::Cursor => locations.home.join(".cursor"),
            Self::Vscode => locations.application_data().join("Code/User"),
            Self::Windsurf => locations.home.join(".codeium/windsurf"),
            Self::Zed => locations.config().join("zed"),
            Self::CopilotCli => locations.home.join(".copilot"),
            Self::Kiro => locations.home.join(".kiro"),
            Self::Droid => locations.home.join(".factory"),
        }
    }

    /// Whether it is on this machine, or was.
    pub fn is_here(self, locations: &ClientLocations) -> bool {
        self.folder(locations).is_dir()
            || self.executable().is_some_and(|name| locations.find(name).is_some())
    }

    /// What an installation changes, file by file. Empty where the client lacks the scope.
    pub fn changes(
        self,
        locations: &ClientLocations,
        command: &ClientCommand,
        scope: InstallScope,
        parts: InstallParts,
    ) -> Vec<FileChange> {
        match self {
            Self::ClaudeCode => claude::changes(locations, command, scope, parts),
            Self::Codex => codex_changes(locations, command, scope, parts),
            Self::Gemini => gemini_changes(locations, command, scope, parts),
            Self::Opencode => opencode_changes(locations, command, scope, parts),
            _ if parts.server => {
                let folder = self.folder(locations);
                server_change(self, &folder, locations, command, scope).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }
}

// Codex: servers in `config.toml`, hooks in `hooks.json`, or in `config.toml` where the person has
// theirs there (with both Codex warns at every start). A handler of the type `mcp_tool` fails when
// the server is not there or a `${path}` is missing, and cannot be used for `SessionEnd`.

/// Events that the daemon uses, and the limits of their handlers in seconds.
const CODEX_EVENTS: &[(&str, u32)] = &[
    ("SessionStart", 10),
    ("UserPromptSubmit", 10),
    ("PreToolUse", 5),
    ("PostToolUse", 5),
    (CODEX_REQUEST, 5),
    ("Interrupt", 5),
    ("Stop", 10),
    // Codex cuts more down to this, and tells the person at every start.
    ("SessionEnd", 3),
];

/// Codex shows its dialog after the handlers of this event, so ours is asynchronous.
const CODEX_REQUEST: &str = "PermissionRequest";

pub(crate) fn codex_folder(locations: &ClientLocations) -> PathBuf {
    locations.variable("CODEX_HOME").unwrap_or_else(|| locations.home.join(".codex"))
}

pub(crate) fn codex_scope_folder(locations: &ClientLocations, scope: InstallScope) -> PathBuf {
    match scope {
        InstallScope::User => codex_folder(locations),
        InstallScope::Project => locations.project.join(".codex"),
    }
}

pub(crate) fn codex_changes(
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
    parts: InstallParts,
) -> Vec<FileChange> {
    let folder = codex_scope_folder(locations, scope);
    let config = folder.join("config.toml");
    let mut toml = FileChange { path: config, format: FileFormat::Toml, edits: Vec::new() };
    let mut changes = Vec::new();
    if parts.server {
        let entry = command.server_entry(scope);
        toml.edits.push(Edit::Server { table: &["mcp_servers"], entry });
    }
    if parts.hooks {
        let hooks = Edit::Hooks { groups: codex_groups(command, scope) };
        if has_codex_hooks(&toml.path) {
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

/// Whether a `config.toml` has hooks, and not only their trust.
fn has_codex_hooks(config: &Path) -> bool {
    let text =
        bounded_file::read_text(config, CLIENT_FILE_BYTES).ok().flatten().unwrap_or_default();
    let Ok(document) = ConfigDocument::parse(FileFormat::Toml, &text) else { return false };
    let value = document.value();
    let hooks = value.get("hooks").and_then(Value::as_object);
    hooks.is_some_and(|hooks| hooks.values().any(Value::is_array))
}

fn codex_groups(command: &ClientCommand, scope: InstallScope) -> Vec<(&'static str, Value)> {
    let line = command.shell_line(scope, &["hook", "codex"]);
    let group = |&(event, timeout): &(&'static str, u32)| {
        let mut handler = json!({ "type": "command", "command": line, "timeout": timeout });
        if event == CODEX_REQUEST {
            handler["async"] = json!(true);
        }
        (event, json!({ "hooks": [handler] }))
    };
    CODEX_EVENTS.iter().map(group).collect()
}

// Gemini CLI: servers and hooks in one `settings.json`. It runs handlers of the type `command`
// alone, by a shell. `PreCompress` is left out: it fires before every call of the model.

/// Events that the daemon uses, and the limits of their handlers in milliseconds.
const GEMINI_EVENTS: &[(&str, u32)] = &[
    ("SessionStart", 10_000),
    ("BeforeAgent", 10_000),
    ("BeforeTool", 5_000),
    ("AfterTool", 5_000),
    // Sent when it asks the person.
    ("Notification", 5_000),
    ("AfterAgent", 10_000),
    ("SessionEnd", 5_000),
];

pub(crate) fn gemini_folder(locations: &ClientLocations) -> PathBuf {
    locations.variable("GEMINI_CLI_HOME").unwrap_or_else(|| locations.home.clone()).join(".gemini")
}

pub(crate) fn gemini_changes(
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
    parts: InstallParts,
) -> Vec<FileChange> {
    let folder = match scope {
        InstallScope::User => gemini_folder(locations),
        InstallScope::Project => locations.project.join(".gemini"),
    };
    let mut edits = Vec::new();
    if parts.server {
        let entry = command.server_entry(scope);
        edits.push(Edit::Server { table: &["mcpServers"], entry });
    }
    if parts.hooks {
        edits.push(Edit::Hooks { groups: gemini_groups(command, scope) });
    }
    vec![FileChange { path: folder.join("settings.json"), format: FileFormat::Json, edits }]
}

fn gemini_groups(command: &ClientCommand, scope: InstallScope) -> Vec<(&'static str, Value)> {
    let line = command.shell_line(scope, &["hook", "gemini"]);
    let group = |&(event, timeout): &(&'static str, u32)| {
        // Gemini CLI shows the name in `/hooks` and in warnings of changed hooks.
        let handler =
            json!({ "type": "command", "name": "svc", "command": line, "timeout": timeout });
        (event, json!({ "hooks": [handler] }))
    };
    GEMINI_EVENTS.iter().map(group).collect()
}

// opencode: servers in `opencode.json(c)`, hooks as a plugin, a file that svc writes whole.

/// The plugin. `@SETTINGS@` stands for the settings of this installation.
const PLUGIN: &str = include_str!("opencode_plugin.js");

pub(crate) fn opencode_folder(locations: &ClientLocations) -> PathBuf {
    locations.config().join("opencode")
}

pub(crate) fn opencode_settings(locations: &ClientLocations, scope: InstallScope) -> PathBuf {
    match scope {
        InstallScope::User => opencode_file(&opencode_folder(locations)),
        InstallScope::Project => opencode_file(&locations.project),
    }
}

pub(crate) fn opencode_changes(
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
    parts: InstallParts,
) -> Vec<FileChange> {
    let (folder, plugins) = match scope {
        InstallScope::User => {
            (opencode_folder(locations), opencode_folder(locations).join("plugin"))
        }
        InstallScope::Project => {
            (locations.project.clone(), locations.project.join(".opencode/plugin"))
        }
    };
    let mut changes = Vec::new();
    if parts.server {
        let mut words = vec![command.executable(scope)];
        words.extend(command.arguments(scope, &["stdio"]));
        let entry = json!({ "type": "local", "command": words, "enabled": true });
        changes.push(FileChange {
            path: opencode_file(&folder),
            format: FileFormat::Json,
            edits: vec![Edit::Server { table: &["mcp"], entry }],
        });
    }
    if parts.hooks {
        let text = opencode_plugin(command.data_folder(scope));
        let edits = vec![Edit::Whole { text }];
        changes.push(FileChange { path: plugins.join("svc.js"), format: FileFormat::Json, edits });
    }
    changes
}

/// The file that exists, or else that of opencode's own `mcp add`. opencode reads both.
fn opencode_file(folder: &Path) -> PathBuf {
    let names = ["opencode.jsonc", "opencode.json"];
    let existing = names.iter().map(|name| folder.join(name)).find(|path| path.exists());
    existing.unwrap_or_else(|| folder.join("opencode.json"))
}

fn opencode_plugin(home: Option<&str>) -> String {
    let home = home.map_or(Value::Null, Value::from);
    format!("{OUR_FILE}\n{}", PLUGIN.replace("@SETTINGS@", &json!({ "home": home }).to_string()))
}

// Clients with an entry among their MCP servers and no hooks of ours.

/// `None` where the client has no file for the scope, or hooks of ours too.
fn server_change(
    client: KnownClient,
    folder: &Path,
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
) -> Option<FileChange> {
    const SERVERS: &[&str] = &["mcpServers"];
    let in_project = |name: &str| Some(locations.project.join(name));
    let (user, project, table): (_, _, &[&str]) = match client {
        KnownClient::Cursor => (folder.join("mcp.json"), in_project(".cursor/mcp.json"), SERVERS),
        KnownClient::Vscode => {
            (folder.join("mcp.json"), in_project(".vscode/mcp.json"), &["servers"])
        }
        KnownClient::Windsurf => (folder.join("mcp_config.json"), None, SERVERS),
        KnownClient::Zed => {
            (folder.join("settings.json"), in_project(".zed/settings.json"), &["context_servers"])
        }
        KnownClient::CopilotCli => (folder.join("mcp-config.json"), None, SERVERS),
        KnownClient::Kiro => {
            (folder.join("settings/mcp.json"), in_project(".kiro/settings/mcp.json"), SERVERS)
        }
        KnownClient::Droid => (folder.join("mcp.json"), in_project(".factory/mcp.json"), SERVERS),
        KnownClient::ClaudeCode
        | KnownClient::Codex
        | KnownClient::Gemini
        | KnownClient::Opencode => return None,
    };
    let mut entry = command.server_entry(scope);
    match client {
        KnownClient::Vscode | KnownClient::Droid => entry["type"] = json!("stdio"),
        KnownClient::CopilotCli => (entry["type"], entry["tools"]) = (json!("local"), json!(["*"])),
        _ => {}
    }
    let path = match scope {
        InstallScope::User => user,
        InstallScope::Project => project?,
    };
    Some(FileChange { path, format: FileFormat::Json, edits: vec![Edit::Server { table, entry }] })
}
