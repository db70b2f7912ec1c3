//! The clients that can be configured, and whose files an installation changes.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A program that runs models and reads a list of MCP servers from a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KnownClient {
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
pub enum InstallScope {
    /// Yours, for all projects
    User,
    /// That of the project in this folder, for everybody who works on it
    Project,
}

impl InstallScope {
    /// The name by which commands know it.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Project => "project",
        }
    }
}

/// Which halves of an installation are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstallParts {
    /// The entry among the client's MCP servers.
    pub server: bool,
    /// The hooks.
    pub hooks: bool,
}

impl InstallParts {
    /// Everything.
    pub const ALL: Self = Self { server: true, hooks: true };
}

impl KnownClient {
    /// All of them, the best supported first.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// The name by which commands and hooks know it.
    pub fn name(self) -> &'static str {
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
    pub fn executable(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some("claude"),
            Self::Codex => Some("codex"),
            Self::Gemini => Some("gemini"),
            Self::Opencode => Some("opencode"),
            _ => None,
        }
    }

    /// Whether it takes hooks that we have.
    pub fn has_hooks(self) -> bool {
        self.executable().is_some()
    }
}
