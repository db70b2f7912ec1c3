//! Hooks: what a coding agent's client tells of its session as it goes on, and what it can be told in return.
//!
//! `read` makes one vocabulary of four clients' payloads; `answer` makes each client's own shape of what there is to
//! say. Shapes are those that the installed clients really send and accept (`fixtures/hooks`), and what one of them
//! would refuse, or show as an error, is not sent to it.

mod answer;
mod read;

pub use answer::{Note, Said};
pub use read::{Missing, read, session_of};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::journal::SessionSource;
use super::outcome::Verdict;

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

/// Something that happened in a client's session.
#[derive(Debug, Clone, PartialEq)]
pub struct Hook {
    /// Which client.
    pub client: HookClient,
    /// The client's own name of the event.
    pub event: String,
    /// The client's own id of the session.
    pub session_id: String,
    /// The sub-agent in which it happened; empty for the session itself.
    pub agent_id: String,
    /// The working folder.
    pub cwd: Option<String>,
    /// What happened.
    pub moment: Moment,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Moment {
    /// The session begins, or begins again.
    Start {
        /// How.
        source: SessionSource,
    },
    /// A person, or whoever plays one, said something.
    Prompt {
        /// What.
        text: String,
    },
    /// A tool is about to run.
    ToolStart(ToolUse),
    /// A tool has run, or failed.
    ToolEnd(ToolUse),
    /// The turn is over.
    Stop {
        /// Whether this turn goes on only because a hook wanted it to.
        again: bool,
    },
    /// The session waits for a person.
    Waiting,
    /// What the model had before it was cut down.
    Compacted,
    /// The session is over.
    End {
        /// Why.
        reason: Option<String>,
    },
    /// Anything else: a sign of life.
    Other,
}

/// One use of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolUse {
    /// The tool, by the client's name for it.
    pub tool: String,
    /// The client's id of this use.
    pub use_id: Option<String>,
    /// Its arguments.
    pub arguments: serde_json::Value,
    /// What came of it, if it is over and was a test, a build or a check.
    pub ran: Option<Ran>,
}

/// A test, a build or a check that a session ran.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    /// The command.
    pub command: String,
    /// What came of it.
    pub verdict: Verdict,
}

impl ToolUse {
    /// Whether it calls this tool of ours: `mcp_svc_peer_list` and `svc_peer_list` are `peer_list`.
    pub fn calls(&self, ours: &str) -> bool {
        let prefix = self.tool.strip_suffix(ours);
        prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('_'))
    }
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

    /// What a person may call it.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "claude" => Some(Self::ClaudeCode),
            name => Self::ALL.into_iter().find(|client| client.as_str() == name),
        }
    }

    /// Where tool calls are counted: where the client takes context, so that a reminder reaches the model. Gemini drops
    /// what comes before a tool, and opencode has no place for it there.
    pub fn counts(self, moment: &Moment) -> bool {
        match self {
            Self::ClaudeCode | Self::Codex => matches!(moment, Moment::ToolStart(_)),
            Self::Gemini | Self::Opencode => matches!(moment, Moment::ToolEnd(_)),
        }
    }
}

impl Hook {
    /// Whether it happened in a sub-agent.
    pub fn is_beneath(&self) -> bool {
        !self.agent_id.is_empty()
    }

    /// Whether what is said in return would reach the model.
    pub fn takes_context(&self) -> bool {
        use Moment::{Prompt, Start, Stop, ToolEnd, ToolStart};
        match (self.client, &self.moment) {
            (_, Start { .. } | Prompt { .. } | ToolEnd(_)) => {
                self.client != HookClient::Opencode
                    || matches!(self.moment, Prompt { .. } | ToolEnd(_))
            }
            (HookClient::ClaudeCode | HookClient::Codex, ToolStart(_)) => true,
            // Once in a turn, or two agents that write to each other would go on for ever.
            (HookClient::ClaudeCode | HookClient::Codex | HookClient::Gemini, Stop { again }) => {
                !again
            }
            _ => false,
        }
    }
}
