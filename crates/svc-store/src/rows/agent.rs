//! Agents and their requests.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use svc_model::{
    AgentId, AgentRequestId, MachineId, MachineProcess, Ownership, PeerId, ProcessIdentity, TaskId,
    Timestamp, TokenId,
    agent::{AgentInfo, RequestKind, RequestOption},
};

/// An agent with what only the daemon knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    /// The agent as its host reports it.
    pub info: AgentInfo,
    /// Owner: the principal that started the agent. Runner: the agent itself.
    pub owned: Ownership,
    /// The machine that it runs on.
    pub machine_id: MachineId,
    /// The process of its host, on that machine; `None` until it is known.
    pub host: Option<ProcessIdentity>,
    /// Pid of the last process of the agent's program, even if it has ended; 0 until it is known.
    pub last_pid: u32,
    /// The agent's own credential.
    pub token_id: Option<TokenId>,
    /// The dispatched task that the agent was started for.
    pub task_id: Option<TaskId>,
    /// A request that nobody answers within this time is denied.
    pub request_timeout: Duration,
    pub ended_at: Option<Timestamp>,
}

impl AgentRow {
    /// The process of its host, with its machine.
    pub fn host_process(&self) -> Option<MachineProcess> {
        let machine_id = self.machine_id.clone();
        self.host.clone().map(|process| MachineProcess { machine_id, process })
    }
}

/// What a hosted agent, or the client of an attended session, asks of a person.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[schemars(rename = "RequestView")]
pub struct RequestRow {
    /// Its id.
    pub request_id: AgentRequestId,
    /// The hosted agent that asks; absent if the client of an attended session does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The session that asks.
    pub session_key: String,
    /// The peer of that session, while the request is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_id: Option<PeerId>,
    /// Whose the agent or the session is.
    #[serde(skip)]
    pub owned: Ownership,
    /// What kind of answer it waits for.
    pub kind: RequestKind,
    /// In one line.
    pub title: String,
    /// The folder in which it would be done, of an attended session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The call that it is about: `{name, input, tool_use_id?}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Value>,
    /// What a client asks in its own form, from which its answer is made.
    #[serde(skip)]
    pub prompt: Option<Value>,
    /// What may be answered; empty if nobody can answer it here.
    pub options: Vec<RequestOption>,
    /// When it was asked.
    pub opened_at: Timestamp,
    /// When it is denied, if it is.
    #[serde(skip)]
    pub deadline: Option<Timestamp>,
    /// An answer that the client was given and has not shown to have taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answering: Option<RequestAnswerRow>,
    /// When it was answered, or denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<Timestamp>,
    /// The answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<RequestAnswerRow>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RequestAnswerRow {
    /// The option that was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    /// What was answered in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Who answered: a principal, or `terminal`, `timeout`, `policy`, `interrupt`, `exit`, `lost`,
    /// `gone`.
    pub by: String,
}

impl RequestAnswerRow {
    /// The end of a request of which no answer is known.
    pub fn by(by: &str) -> Self {
        Self { option_id: None, text: None, by: by.to_owned() }
    }
}
