//! Clients that get an entry among their MCP servers and have no hooks of ours.

use std::path::Path;

use serde_json::json;

use super::change::FileChange;
use super::client::{InstallScope, KnownClient};
use super::command::ClientCommand;
use super::document::FileFormat;
use super::edit::Edit;
use super::locations::ClientLocations;

/// The entry of a client whose folder is `folder`; `None` where it has no file for the scope, or hooks of ours too.
pub(super) fn change(
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
    let (program, args) = (command.executable(scope), command.arguments(scope, &["stdio"]));
    let entry = match client {
        KnownClient::Vscode | KnownClient::Droid => {
            json!({ "type": "stdio", "command": program, "args": args })
        }
        KnownClient::CopilotCli => {
            json!({ "type": "local", "command": program, "args": args, "tools": ["*"] })
        }
        _ => json!({ "command": program, "args": args }),
    };
    let path = match scope {
        InstallScope::User => user,
        InstallScope::Project => project?,
    };
    Some(FileChange { path, format: FileFormat::Json, edits: vec![Edit::Server { table, entry }] })
}
