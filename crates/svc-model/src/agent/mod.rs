//! Hosted agents as they are on the wire: what an agent is, its events, its history, and the host's
//! protocol 1.1.

mod backend;
mod event;
mod history;
mod info;
mod start;
mod wire;

pub use backend::{AgentBackend, PermissionMode};
pub use event::{
    AgentDelta, AgentEvent, AgentEventBody, AgentOutput, AgentRequest, AgentUsage, RequestKind,
    RequestOption, RequestOptionKind, TurnEnd, TurnOutcome,
};
pub use history::{HistoryEntry, HistoryRole};
pub use info::{AgentInfo, AgentState};
pub use start::{AGENT_MARK, AgentInput, AgentMcpServer, AnswerKey, HostSpec, HostStarted};
