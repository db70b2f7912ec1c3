//! Sessions of MCP clients, and their calls that take time.

use serde::{Deserialize, Serialize};
use svc_model::{CallId, McpSessionId, Principal, StreamName, Timestamp};
use svc_wire::mcp::Revision;

/// A session of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpSessionRow {
    /// What the client sends to be known again.
    pub session_id: McpSessionId,
    /// Who opened it; `None` if the row does not say so in a form that we know: then it is
    /// nobody's.
    pub principal: Option<Principal>,
    /// How its messages travel.
    pub transport: McpTransport,
    /// What was agreed on.
    pub revision: Revision,
    /// JSON: who the client says it is.
    pub client: Option<String>,
    /// JSON: what the client can do.
    pub capabilities: String,
    /// The lightest log messages that it wants.
    pub log_level: Option<String>,
    /// Fingerprint of the list of tools that it has seen.
    pub tools: Option<i64>,
    /// The client's own session at the other end, as far as its hooks have shown.
    pub client_session: Option<String>,
    /// When it was last heard of, give or take a minute.
    pub last_seen_at: Timestamp,
}

/// How the messages of a session travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McpTransport {
    /// Streamable HTTP: one path, answers on the request's own response.
    Http,
    /// The transport of 2024-11-05: answers on one stream of server-sent events.
    Sse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// The tool runs.
    Working,
    /// The tool waits for the client's answer.
    InputRequired,
    /// It has a result, which may be that the tool failed.
    Completed,
    /// It ended with an error and has no result.
    Failed,
    /// The client cancelled it.
    Cancelled,
}

impl CallState {
    /// Its text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it is final.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// A call that takes time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRow {
    /// Its id; a task's too.
    pub call_id: CallId,
    /// The session that it came in; `None` where requests stand for themselves.
    pub session_id: Option<McpSessionId>,
    /// Who called; `None` if the row does not say so in a form that we know: then it is nobody's.
    pub principal: Option<Principal>,
    /// The credential that the request came with, in a form that tells nothing of it; `None` in
    /// rows from before.
    pub credential: Option<String>,
    /// For whom the tool acts.
    pub acts_for: Option<String>,
    /// The revision that it came in; `None` if the row does not say so in a form that we know.
    pub revision: Option<Revision>,
    /// JSON: the id of the request.
    pub rpc_id: String,
    pub tool: String,
    /// JSON: the request's `params`.
    pub params: String,
    /// Whether the client was given it as a task.
    pub is_task: bool,
    pub state: CallState,
    /// JSON: what the client is asked.
    pub asks: Option<String>,
    /// JSON: what it has answered.
    pub answers: Option<String>,
    /// When it came.
    pub started_at: Timestamp,
    /// When its state last changed.
    pub updated_at: Timestamp,
}

impl CallRow {
    /// The stream of its messages.
    pub fn stream(&self, transport: McpTransport) -> StreamName {
        match (&self.session_id, transport) {
            (Some(session), McpTransport::Sse) => StreamName::new("mcp", session),
            _ => StreamName::new("mcp", &self.call_id),
        }
    }
}
