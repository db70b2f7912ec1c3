//! Tool calls of sessions, and their counts.

use svc_model::journal::Ghap;

/// A tool call to count.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The client's own id of the session. It is made if there is none.
    pub session_id: String,
    /// The sub-agent; empty for the session itself.
    pub agent_id: String,
    /// The tool, if its own counter goes up as well.
    pub tool_name: Option<String>,
    /// The caller, for the session's row if there is none.
    pub created_by: String,
    /// After how many calls a check-in is due; then they are counted from zero again.
    pub frequency: Option<i64>,
}

/// The count after a tool call.
#[derive(Debug, Clone)]
pub struct ToolCallCount {
    /// Calls since the last reset, this one included.
    pub since: i64,
    /// Whether a check-in is due.
    pub due: bool,
    /// If so, the active record of the session; that of a sub-agent has none.
    pub active: Option<Box<Ghap>>,
}
