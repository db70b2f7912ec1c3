//! What is known of each client: its folder, whether it is on this machine, and what an installation changes.

use std::path::PathBuf;

use super::change::FileChange;
use super::client::{InstallParts, InstallScope, KnownClient};
use super::command::ClientCommand;
use super::locations::ClientLocations;
use super::{claude, codex, gemini, opencode, servers_only};

impl KnownClient {
    /// The folder in which it keeps a person's configuration.
    pub fn folder(self, locations: &ClientLocations) -> PathBuf {
        match self {
            Self::ClaudeCode => claude::folder(locations),
            Self::Codex => codex::folder(locations),
            Self::Gemini => gemini::folder(locations),
            Self::Opencode => opencode::folder(locations),
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

    /// What an installation of `parts` is, file by file. Empty where a client has no such scope.
    pub fn changes(
        self,
        locations: &ClientLocations,
        command: &ClientCommand,
        scope: InstallScope,
        parts: InstallParts,
    ) -> Vec<FileChange> {
        match self {
            Self::ClaudeCode => claude::changes(locations, command, scope, parts),
            Self::Codex => codex::changes(locations, command, scope, parts),
            Self::Gemini => gemini::changes(locations, command, scope, parts),
            Self::Opencode => opencode::changes(locations, command, scope, parts),
            _ if parts.server => {
                let folder = self.folder(locations);
                servers_only::change(self, &folder, locations, command, scope).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }
}
