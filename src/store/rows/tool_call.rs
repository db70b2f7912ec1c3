//! Tool calls, to be counted.

use crate::domain::journal::Ghap;

/// A tool call to count.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The client's own id of the session. It is made if there is none.
    pub session_id: String,
    /// The sub-agent; empty for the session itself.
    pub agent_id: String,
    /// The tool, if it is to be counted by itself, too.
    pub tool_name: Option<String>,
    /// Who makes the session known, if nobody has.
    pub created_by: String,
    /// After how many calls a check-in is due; then they are counted from zero again.
    pub frequency: Option<i64>,
}

/// What became of it.
#[derive(Debug, Clone)]
pub struct ToolCallCount {
    /// Calls since the last reset, this one included.
    pub since: i64,
    /// Whether a check-in is due.
    pub due: bool,
    /// If so, the active record of the session; that of a sub-agent has none.
    pub active: Option<Box<Ghap>>,
}
