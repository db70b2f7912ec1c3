//! Sessions of clients.

use schemars::JsonSchema;
use serde::Serialize;

use super::vocabulary::SessionSource;
use crate::Timestamp;

/// A client's session.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Session {
    /// The client's own id.
    pub session_id: String,
    /// The project that it works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Which program it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// How it last began.
    pub source: SessionSource,
    /// When it first began.
    pub started_at: Timestamp,
    /// When it was last heard of.
    pub last_seen_at: Timestamp,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<String>,
    /// Tool calls, those of sub-agents left out.
    pub tool_calls: i64,
    /// Tool calls since the last check-in, update of the record, or reset.
    pub tool_count: i64,
}

/// How often a tool was called in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ToolUse {
    /// The tool.
    pub tool_name: String,
    /// The sub-agent that called it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// How often.
    pub count: i64,
    /// When last.
    pub last_at: Timestamp,
}
