//! Kinds of agents, and what they may do unasked.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A way to run one kind of agent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum AgentBackend {
    /// Claude Code, by JSON lines on its standard input and output.
    Claude,
    /// Codex, by its app server.
    Codex,
    /// Gemini CLI, by the Agent Client Protocol.
    Gemini,
    /// `OpenCode`, by the Agent Client Protocol.
    OpenCode,
    /// Any agent that speaks the Agent Client Protocol, by its command.
    Acp,
    /// Any program; its lines are its words.
    Exec,
}

impl AgentBackend {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Claude, Self::Codex, Self::Gemini, Self::OpenCode, Self::Acp, Self::Exec];

    /// Its name in settings and on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::OpenCode => "opencode",
            Self::Acp => "acp",
            Self::Exec => "exec",
        }
    }

    /// The backend of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.as_str() == name)
    }

    /// The program that it runs unless settings name one; `None` where they have to.
    pub const fn program(self) -> Option<&'static str> {
        match self {
            Self::Claude | Self::Codex | Self::Gemini | Self::OpenCode => Some(self.as_str()),
            Self::Acp | Self::Exec => None,
        }
    }

    /// Whether the vendor has a switch that lets the agent do anything unasked.
    pub const fn has_bypass(self) -> bool {
        matches!(self, Self::Claude | Self::Codex | Self::Gemini)
    }
}

impl fmt::Display for AgentBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What becomes of an agent's requests for permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermissionMode {
    /// Somebody is asked.
    #[default]
    Ask,
    /// Edits inside the working folder are allowed; for all else somebody is asked.
    AcceptEdits,
    /// The vendor's own switch: nothing is asked.
    Bypass,
    /// Each is denied.
    Deny,
}
