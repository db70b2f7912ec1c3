//! Hosted agents as they are on the wire: what an agent is, its events, its history, and the host's protocol 1.1.

mod backend;
mod event;
mod history;
mod info;
mod protocol;
mod start;
mod wire;

pub use backend::{AgentBackend, PermissionMode};
pub use event::{
    AgentDelta, AgentEvent, AgentEventBody, AgentOutput, AgentRequest, AgentUsage, RequestKind,
    RequestOption, RequestOptionKind, TurnEnd, TurnOutcome,
};
pub use history::{HistoryEntry, HistoryRole};
pub use info::{AgentInfo, AgentState};
pub use protocol::{
    AnswerAgent, AttachAnswer, AttachStream, HOST_PROTOCOL, HistoryPage, HistoryQuery, HostFrame,
    HostInfo, HostReply, HostRequest, HostRequestKind, HostStatus, InterruptAgent, NO_TURN,
    NOT_THE_DAEMON, PingAnswer, PingHost, SendAnswer, SendInput, SendMode, StopAgent, StopAnswer,
    agrees_with_protocol,
};
pub use start::{AGENT_MARK, AgentInput, AgentMcpServer, AnswerKey, HostSpec, HostStarted};
