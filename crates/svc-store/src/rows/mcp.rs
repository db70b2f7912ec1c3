//! The Model Context Protocol: sessions, tool calls that are on record, and child servers.

use serde::{Deserialize, Serialize};
use svc_model::{CallId, McpSessionId, Principal, StreamName, Timestamp};
use svc_wire::mcp::Revision;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpSessionRow {
    pub session_id: McpSessionId,
    /// The principal that opened it; `None` if the stored value does not parse: then the session
    /// belongs to nobody.
    pub principal: Option<Principal>,
    pub transport: McpTransport,
    pub revision: Revision,
    /// JSON: the client's `clientInfo`.
    pub client: Option<String>,
    pub capabilities: String,
    /// The lowest level of log messages that the client wants.
    pub log_level: Option<String>,
    /// Fingerprint of the list of tools that the client has seen.
    pub tools: Option<i64>,
    /// The client's own session id, as far as its hooks have reported it.
    pub client_session: Option<String>,
    /// When it was last used, accurate to a minute.
    pub last_seen_at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum McpTransport {
    /// Streamable HTTP: one path; results arrive on the response of the request.
    Http,
    /// The transport of 2024-11-05: results arrive on one stream of server-sent events.
    Sse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    Working,
    /// The tool waits for the client's answer.
    InputRequired,
    /// The call has a result; the result may state that the tool failed.
    Completed,
    /// The call ended with an error and has no result.
    Failed,
    Cancelled,
}

impl CallState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRow {
    /// Id of the call, and of its task if it has one.
    pub call_id: CallId,
    /// The session of the request; `None` where requests have no session.
    pub session_id: Option<McpSessionId>,
    /// The caller; `None` if the stored value does not parse: then the call belongs to nobody.
    pub principal: Option<Principal>,
    /// A one-way form of the request's credential; `None` in rows of earlier releases.
    pub credential: Option<String>,
    /// The session that the tool acts for.
    pub acts_for: Option<String>,
    /// The request's protocol revision; `None` if the stored value does not parse.
    pub revision: Option<Revision>,
    /// JSON: the id of the request.
    pub rpc_id: String,
    pub tool: String,
    /// JSON: the request's `params`.
    pub params: String,
    /// Whether the client was given a task for it.
    pub is_task: bool,
    pub state: CallState,
    /// JSON: what the client is asked.
    pub asks: Option<String>,
    /// JSON: the client's answers.
    pub answers: Option<String>,
    /// When the request arrived.
    pub started_at: Timestamp,
    /// When `state` last changed.
    pub updated_at: Timestamp,
}

impl CallRow {
    /// The stream of the call's messages.
    pub fn stream(&self, transport: McpTransport) -> StreamName {
        match (&self.session_id, transport) {
            (Some(session), McpTransport::Sse) => StreamName::new("mcp", session),
            _ => StreamName::new("mcp", &self.call_id),
        }
    }
}

/// What a server listed when it last worked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceListRow {
    pub name: String,
    /// The project whose file configures the server; empty for none.
    pub project: String,
    /// Fingerprint of its configuration entry.
    pub fingerprint: String,
    /// JSON: the tools, as the server listed them.
    pub tools: String,
    /// JSON.
    pub resources: String,
    /// JSON: the resource templates.
    pub templates: String,
    /// JSON.
    pub prompts: String,
}

/// The definitions of a server that a person has approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePinRow {
    /// The approved lists. The fingerprint covers the approval and the configuration entry.
    pub list: SourceListRow,
    /// JSON: the changes that an event has reported.
    pub told: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStateRow {
    pub name: String,
    /// The project whose file configures the server; empty for none.
    pub project: String,
    /// Text form of `SourceState`.
    pub state: String,
    pub reason: Option<String>,
    /// What a person can do about it.
    pub next_action: Option<String>,
    /// Number of consecutive failed starts.
    pub attempt: Option<u32>,
    pub next_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceProcessRow {
    /// Value in the environment of the process and of all its descendants.
    pub mark: String,
    pub pid: u32,
    /// Start time in the system's unit, with the boot id.
    pub started: String,
    pub name: String,
    /// The project whose file configures the server; empty for none.
    pub project: String,
    pub instance: String,
}
