//! The kinds of clients whose hooks the daemon understands.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HookClient {
    /// Claude Code.
    ClaudeCode,
    /// Codex CLI.
    Codex,
    /// Gemini CLI.
    Gemini,
    /// opencode.
    Opencode,
}

/// The shape of what a hook prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HookFormat {
    /// The client's own.
    #[default]
    Client,
    /// `{"type": …}`, for scripts that read them.
    Spec,
}

impl HookClient {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ClaudeCode, Self::Codex, Self::Gemini, Self::Opencode];

    /// The word for it, as in a peer's `backend`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
        }
    }

    /// Whether a hook at the end of a turn makes the session go on with what the hook says. With
    /// opencode only a further tool call of the turn brings it a message.
    pub const fn goes_on_at_stop(self) -> bool {
        !matches!(self, Self::Opencode)
    }

    /// The client that a person names on the command line; `claude` is Claude Code.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "claude" => Some(Self::ClaudeCode),
            name => Self::ALL.into_iter().find(|client| client.as_str() == name),
        }
    }
}
