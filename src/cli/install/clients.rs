//! The clients that we know: how each is recognised, which files it reads, and what we want in them.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::document::Format;
use super::edit::Edit;
use super::program::Program;
use super::{claude, codex, gemini, opencode};
use crate::config::Env;

/// A program that runs models and reads a file of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Client {
    /// Claude Code
    #[value(alias = "claude")]
    ClaudeCode,
    /// Codex CLI
    Codex,
    /// Gemini CLI
    Gemini,
    /// opencode
    Opencode,
    /// Cursor
    Cursor,
    /// Visual Studio Code
    #[value(alias = "code")]
    Vscode,
    /// Windsurf
    Windsurf,
    /// Zed
    Zed,
    /// GitHub Copilot CLI
    #[value(alias = "copilot")]
    CopilotCli,
    /// Kiro
    Kiro,
    /// Factory Droid
    #[value(alias = "factory")]
    Droid,
}

/// Whose configuration is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Scope {
    /// Yours, for all projects
    User,
    /// That of the project in this folder, for everybody who works on it
    Project,
}

/// Which halves of an installation are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    /// The entry among the client's MCP servers.
    pub(super) server: bool,
    /// The hooks.
    pub(super) hooks: bool,
}

/// Where this person's and this project's files are.
#[derive(Debug, Clone)]
pub(super) struct Places {
    /// `$HOME`.
    pub(super) home: PathBuf,
    /// The folder that `--scope project` means.
    pub(super) project: PathBuf,
    /// Some clients have variables that move their files.
    pub(super) env: Env,
}

/// One file and what we want in it.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// The file, which need not exist.
    pub(super) path: PathBuf,
    /// How it is written.
    pub(super) format: Format,
    /// What we want in it, in this order.
    pub(super) edits: Vec<Edit>,
}

impl Client {
    /// All of them, the best supported first.
    pub(super) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// The name by which commands and hooks know it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
            Self::Cursor => "cursor",
            Self::Vscode => "vscode",
            Self::Windsurf => "windsurf",
            Self::Zed => "zed",
            Self::CopilotCli => "copilot-cli",
            Self::Kiro => "kiro",
            Self::Droid => "droid",
        }
    }

    /// Its executable, if it is one that can say its version and is worth asking.
    pub(super) fn executable(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some("claude"),
            Self::Codex => Some("codex"),
            Self::Gemini => Some("gemini"),
            Self::Opencode => Some("opencode"),
            _ => None,
        }
    }

    /// Whether it takes hooks that we have.
    pub(super) fn has_hooks(self) -> bool {
        self.executable().is_some()
    }

    /// The folder in which it keeps a person's configuration.
    pub(super) fn folder(self, places: &Places) -> PathBuf {
        match self {
            Self::ClaudeCode => claude::folder(places),
            Self::Codex => codex::folder(places),
            Self::Gemini => gemini::folder(places),
            Self::Opencode => opencode::folder(places),
            Self::Cursor => places.home.join(".cursor"),
            Self::Vscode => places.application_data().join("Code/User"),
            Self::Windsurf => places.home.join(".codeium/windsurf"),
            Self::Zed => places.config().join("zed"),
            Self::CopilotCli => places.home.join(".copilot"),
            Self::Kiro => places.home.join(".kiro"),
            Self::Droid => places.home.join(".factory"),
        }
    }

    /// Whether it is on this machine, or was.
    pub(super) fn is_here(self, places: &Places) -> bool {
        self.folder(places).is_dir()
            || self.executable().is_some_and(|name| places.find(name).is_some())
    }

    /// What an installation of `parts` is, file by file. Empty where a client has no such scope.
    pub(super) fn changes(
        self,
        places: &Places,
        program: &Program,
        scope: Scope,
        parts: Parts,
    ) -> Vec<Change> {
        match self {
            Self::ClaudeCode => claude::changes(places, program, scope, parts),
            Self::Codex => codex::changes(places, program, scope, parts),
            Self::Gemini => gemini::changes(places, program, scope, parts),
            Self::Opencode => opencode::changes(places, program, scope, parts),
            _ if parts.server => self.servers_only(places, program, scope).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// The clients that get an entry among their servers and nothing else.
    fn servers_only(self, places: &Places, program: &Program, scope: Scope) -> Option<Change> {
        const SERVERS: &[&str] = &["mcpServers"];
        let folder = self.folder(places);
        let in_project = |name: &str| Some(places.project.join(name));
        let (user, project, table): (_, _, &[&str]) = match self {
            Self::Cursor => (folder.join("mcp.json"), in_project(".cursor/mcp.json"), SERVERS),
            Self::Vscode => (folder.join("mcp.json"), in_project(".vscode/mcp.json"), &["servers"]),
            Self::Windsurf => (folder.join("mcp_config.json"), None, SERVERS),
            Self::Zed => (
                folder.join("settings.json"),
                in_project(".zed/settings.json"),
                &["context_servers"],
            ),
            Self::CopilotCli => (folder.join("mcp-config.json"), None, SERVERS),
            Self::Kiro => {
                (folder.join("settings/mcp.json"), in_project(".kiro/settings/mcp.json"), SERVERS)
            }
            Self::Droid => (folder.join("mcp.json"), in_project(".factory/mcp.json"), SERVERS),
            Self::ClaudeCode | Self::Codex | Self::Gemini | Self::Opencode => return None,
        };
        let (command, args) = (program.command(scope), program.arguments(scope, &["stdio"]));
        let entry = match self {
            Self::Vscode | Self::Droid => {
                json!({ "type": "stdio", "command": command, "args": args })
            }
            Self::CopilotCli => {
                json!({ "type": "local", "command": command, "args": args, "tools": ["*"] })
            }
            _ => json!({ "command": command, "args": args }),
        };
        let path = match scope {
            Scope::User => user,
            Scope::Project => project?,
        };
        Some(Change { path, format: Format::Json, edits: vec![Edit::Server { table, entry }] })
    }
}

impl Places {
    /// The XDG folder of configurations.
    pub(super) fn config(&self) -> PathBuf {
        self.variable("XDG_CONFIG_HOME").unwrap_or_else(|| self.home.join(".config"))
    }

    /// A folder that a variable names; a relative one would mean another folder for every caller.
    pub(super) fn variable(&self, name: &str) -> Option<PathBuf> {
        self.env.os(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    fn application_data(&self) -> PathBuf {
        if cfg!(target_os = "macos") {
            self.home.join("Library/Application Support")
        } else {
            self.config()
        }
    }

    /// The executable of this name on the PATH.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        let paths = self.env.os("PATH")?;
        std::env::split_paths(paths).map(|folder| folder.join(name)).find(|path| is_program(path))
    }
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
