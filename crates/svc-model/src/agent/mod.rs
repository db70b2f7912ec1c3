//! Hosted agents as they are on the wire: the agent and its state here, its stream in `event`, and
//! what a host is started with in `start`. The messages of the host's socket are in `svc-wire`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{AgentId, Timestamp, words::words};

mod event;
mod start;

pub use event::{
    AgentDelta, AgentEvent, AgentEventBody, AgentOutput, AgentRequest, AgentUsage, HistoryEntry,
    HistoryRole, RequestKind, RequestOption, RequestOptionKind, TurnEnd, TurnOutcome,
};
pub use start::{AGENT_MARK, AgentInput, AgentMcpServer, AnswerKey, HostSpec, HostStarted};

words! {
    /// A way to run one kind of agent.
    #[derive(PartialOrd, Ord)]
    pub enum AgentBackend {
        /// Claude Code, by JSON lines on its standard input and output.
        Claude = "claude",
        /// Codex, by its app server.
        Codex = "codex",
        /// Gemini CLI, by the Agent Client Protocol.
        Gemini = "gemini",
        /// `OpenCode`, by the Agent Client Protocol.
        OpenCode = "opencode",
        /// Any agent that speaks the Agent Client Protocol, by its command.
        Acp = "acp",
        /// Any program; its lines are its words.
        Exec = "exec",
    }
}

impl AgentBackend {
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.as_str() == name)
    }

    /// The program that it runs by default; `None` if settings have to name one.
    pub const fn program(self) -> Option<&'static str> {
        match self {
            Self::Claude | Self::Codex | Self::Gemini | Self::OpenCode => Some(self.as_str()),
            Self::Acp | Self::Exec => None,
        }
    }

    /// Whether an agent takes input into the turn under way. Of another one, the host makes it the
    /// next turn.
    pub const fn takes_steers(self) -> bool {
        matches!(self, Self::Claude | Self::Codex | Self::Exec)
    }

    /// Whether the vendor has a switch that turns off all requests for permission.
    pub const fn has_bypass(self) -> bool {
        matches!(self, Self::Claude | Self::Codex | Self::Gemini)
    }
}

/// How an agent's requests for permission are answered.
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

words! {
    /// What an agent does.
    pub enum AgentState {
        /// Its program was started and has not answered the handshake.
        Starting = "starting",
        /// It works on a turn.
        Running = "running",
        /// It has nothing to do.
        Idle = "idle",
        /// It waits for a permission or an answer.
        RequiresAction = "requires_action",
        /// The vendor refuses, as too much was used.
        Limited = "limited",
        /// It was asked to stop.
        Stopping = "stopping",
        /// It ended: by itself with exit code 0, or as it was asked to.
        Done = "done",
        /// It ended otherwise, or never began.
        Error = "error",
        /// Its host ended before it.
        Lost = "lost",
        /// Its host does not answer. This is shown of an agent, and no host says it.
        Unreachable = "unreachable",
    }
}

impl AgentState {
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Error | Self::Lost)
    }
}

/// An agent, as its host and the daemon tell of it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentInfo {
    /// Its id.
    pub id: AgentId,
    /// The project of its folder; may be empty.
    pub project: String,
    /// What it does.
    pub state: AgentState,
    /// Process id of its program; 0 if none runs.
    pub pid: u32,
    /// Its working folder.
    pub worktree: String,
    /// When its program was started.
    pub started_at: Timestamp,
    /// What it was given to do.
    pub task: Option<String>,
    /// What people say of it.
    pub description: Option<String>,
    /// How it is run.
    pub backend: AgentBackend,
    /// The configured way to run it.
    pub instance: String,
    /// Its address: `agent:<instance>:<name>`.
    pub session_key: String,
    /// The vendor's id of the conversation, by which it can be resumed.
    pub session_id: Option<String>,
    /// The exit code of its program.
    pub exit_code: Option<i32>,
    /// The number of the signal that ended its program.
    pub signal: Option<i32>,
    /// Why it failed.
    pub error: Option<String>,
}
