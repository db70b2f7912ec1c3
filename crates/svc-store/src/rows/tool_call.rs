//! Tool calls of sessions, and their counts.

use svc_model::journal::Ghap;

/// A tool call to count.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The client's own id of the session. The session is created if it is missing.
    pub session_id: String,
    /// The sub-agent; empty for the session itself.
    pub agent_id: String,
    /// The tool, if it has its own counter.
    pub tool_name: Option<String>,
    /// The caller, recorded if the session is created.
    pub created_by: String,
    /// Number of calls after which a check-in is due and the count restarts at zero.
    pub frequency: Option<i64>,
}

/// The count after a tool call.
#[derive(Debug, Clone)]
pub struct ToolCallCount {
    /// Calls since the last reset, including this one.
    pub since: i64,
    pub due: bool,
    /// The session's active record if a check-in is due; `None` for a sub-agent.
    pub active: Option<Box<Ghap>>,
}
