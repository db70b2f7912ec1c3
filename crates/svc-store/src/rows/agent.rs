//! Agents, their requests, and the work that they were given.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use svc_model::{
    AgentId, AgentRequestId, MessageId, Ownership, PeerId, TaskId, Timestamp, TokenId,
    agent::{AgentInfo, RequestKind, RequestOption, TurnEnd},
};

/// An agent with what only the daemon knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    /// As its host tells of it.
    pub info: AgentInfo,
    /// Whose it is: of who started it; itself is its runner.
    pub owned: Ownership,
    /// The process of its host; `None` until that is known.
    pub host: Option<HostProcess>,
    /// The last process of its program, also when that has ended; 0 until it is known.
    pub last_pid: u32,
    /// The token that it speaks with.
    pub token_id: Option<TokenId>,
    /// The dispatched task that it was started for.
    pub task_id: Option<TaskId>,
    /// A request of it that nobody answers within this time is denied.
    pub request_timeout: Duration,
    pub ended_at: Option<Timestamp>,
}

/// The process of a host, told from a later one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostProcess {
    /// Its id.
    pub pid: u32,
    /// When it started, as the system counts it; 0 where the system does not say.
    pub started: u64,
}

/// What an agent asks, as everybody sees it who may.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[schemars(rename = "RequestView")]
pub struct RequestRow {
    /// Its id.
    pub request_id: AgentRequestId,
    /// Who asks.
    pub agent_id: AgentId,
    /// The agent's address.
    pub session_key: String,
    /// The peer that speaks for the agent, while the request is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_id: Option<PeerId>,
    /// Whose the agent is.
    #[serde(skip)]
    pub owned: Ownership,
    /// What kind of answer it waits for.
    pub kind: RequestKind,
    /// In one line.
    pub title: String,
    /// The call that it is about: `{name, input, tool_use_id?}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Value>,
    /// What may be answered.
    pub options: Vec<RequestOption>,
    /// When it was asked.
    pub opened_at: Timestamp,
    /// When it is denied.
    #[serde(skip)]
    pub deadline: Timestamp,
    /// When it was answered, or denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Timestamp>,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<RequestAnswerRow>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct RequestAnswerRow {
    /// The option that was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    /// Who answered: a principal, or `timeout`, `policy`, `interrupt`, `exit`.
    pub by: String,
}

/// How far a dispatch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchState {
    /// It waits for its turn.
    Queued,
    /// An agent is being started for it, or the prompt is on its way: nobody knows whether it was
    /// taken.
    Starting,
    /// The host has the prompt.
    Sent,
    /// Its task is over.
    Over,
}

/// Which agents may take a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DispatchMode {
    /// A new one.
    SpawnOnly,
    /// A live one.
    PeerOnly,
    /// A live one if there is one, else a new one.
    PeerPrefer,
}

/// What a dispatch wants of its agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatchWish {
    /// The vendor's model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Where a new agent works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Whether the request chose that folder. Then it has to be one that the caller may use.
    #[serde(default)]
    pub has_chosen_cwd: bool,
    /// The vendor's id of a conversation to go on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<String>,
    /// The live agent that was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The session that a person started and that has it, or was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_id: Option<PeerId>,
    /// The question that this session got.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// Until then a call waits for the answer, and nobody else is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Timestamp>,
}

/// Work that was given to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DispatchRow {
    /// The rank in the order in which they came.
    pub id: i64,
    pub task_id: TaskId,
    /// The instance that has it now.
    pub instance: String,
    /// The kind of agent.
    pub backend: String,
    /// Which agents may take it.
    pub mode: DispatchMode,
    /// What it wants of them.
    pub wish: DispatchWish,
    /// Instances to try after this one.
    pub failover: Vec<String>,
    /// Which attempt this is, from 1 on.
    pub attempt: u32,
    pub state: DispatchState,
    /// The agent that has it.
    pub agent_id: Option<AgentId>,
    /// Whether that was started for it.
    pub is_spawned: bool,
    /// Offset of its prompt in the agent's stream.
    pub taken_at: Option<i64>,
    /// Whether the agent has said anything.
    pub has_words: bool,
    /// Bytes of the entry that it is saying that are frames already.
    pub said: usize,
    /// How its turn ended, if the agent's program has yet to.
    pub turn: Option<TurnEnd>,
}
