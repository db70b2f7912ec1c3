//! An agent and its state.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AgentBackend;
use crate::{AgentId, Timestamp};

/// What an agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// Its program was started and has not answered the handshake.
    Starting,
    /// It works on a turn.
    Running,
    /// It has nothing to do.
    Idle,
    /// It waits for a permission or an answer.
    RequiresAction,
    /// The vendor refuses, as too much was used.
    Limited,
    /// It was asked to stop.
    Stopping,
    /// It ended: by itself with exit code 0, or as it was asked to.
    Done,
    /// It ended otherwise, or never began.
    Error,
    /// Its host ended before it.
    Lost,
    /// Its host does not answer. This is shown of an agent, and no host says it.
    Unreachable,
}

impl AgentState {
    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Idle => "idle",
            Self::RequiresAction => "requires_action",
            Self::Limited => "limited",
            Self::Stopping => "stopping",
            Self::Done => "done",
            Self::Error => "error",
            Self::Lost => "lost",
            Self::Unreachable => "unreachable",
        }
    }

    /// The state of this name.
    pub fn parse(name: &str) -> Option<Self> {
        const ALL: [AgentState; 10] = [
            AgentState::Starting,
            AgentState::Running,
            AgentState::Idle,
            AgentState::RequiresAction,
            AgentState::Limited,
            AgentState::Stopping,
            AgentState::Done,
            AgentState::Error,
            AgentState::Lost,
            AgentState::Unreachable,
        ];
        ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether nothing follows it.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Error | Self::Lost)
    }
}

/// An agent, as its host and the daemon tell of it.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// What people say of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How it is run.
    pub backend: AgentBackend,
    /// The configured way to run it.
    pub instance: String,
    /// Its address: `agent:<instance>:<name>`.
    pub session_key: String,
    /// The vendor's id of the conversation, by which it can be resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The exit code of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The number of the signal that ended its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
