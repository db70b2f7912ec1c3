//! The origin of a message between sessions, as the daemon knows it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::RunId;

/// Where a message comes from. It is stored with the message, and is in its events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provenance {
    /// What kind of source it is.
    pub kind: ProvenanceKind,
    /// Key of the session that sent it; absent if the person did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_session_key: Option<String>,
    /// The call that it came by.
    pub source_tool: SourceTool,
    /// The send that it belongs to: a reply has that of its question.
    pub run_id: RunId,
}

/// Kind of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProvenanceKind {
    /// Another session, or the person through the daemon: not the user of the receiving session.
    InterSession,
}

/// The call by which a message came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SourceTool {
    /// A message to one peer, also over HTTP and on the terminal.
    #[serde(rename = "peer_send")]
    PeerSend,
    /// A message to many.
    #[serde(rename = "peer_broadcast")]
    PeerBroadcast,
    /// A message to a session, or the reply to one.
    #[serde(rename = "sessions_send")]
    SessionsSend,
    /// The end of a child.
    #[serde(rename = "sessions_spawn")]
    SessionsSpawn,
    /// The end of a dispatched task.
    #[serde(rename = "SendMessage")]
    SendMessage,
    /// What a hosted agent asks leave for.
    #[serde(rename = "agent_request")]
    AgentRequest,
}

impl SourceTool {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PeerSend => "peer_send",
            Self::PeerBroadcast => "peer_broadcast",
            Self::SessionsSend => "sessions_send",
            Self::SessionsSpawn => "sessions_spawn",
            Self::SendMessage => "SendMessage",
            Self::AgentRequest => "agent_request",
        }
    }
}

impl Provenance {
    /// Provenance of a message from this session; `None` for the person.
    pub fn inter_session(
        source_session_key: Option<String>,
        source_tool: SourceTool,
        run_id: RunId,
    ) -> Self {
        Self { kind: ProvenanceKind::InterSession, source_session_key, source_tool, run_id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provenance_has_this_form_on_the_wire() {
        use SourceTool::{
            AgentRequest, PeerBroadcast, PeerSend, SendMessage, SessionsSend, SessionsSpawn,
        };

        let key = Some("agent:reviewer:main".to_owned());
        let run = RunId::from("run_1".to_owned());
        let provenance = Provenance::inter_session(key, SessionsSend, run);
        assert_eq!(
            serde_json::to_value(&provenance).unwrap(),
            serde_json::json!({
                "kind": "inter_session", "sourceSessionKey": "agent:reviewer:main",
                "sourceTool": "sessions_send", "runId": "run_1",
            })
        );
        for tool in
            [PeerSend, PeerBroadcast, SessionsSend, SessionsSpawn, SendMessage, AgentRequest]
        {
            assert_eq!(serde_json::json!(tool), tool.as_str());
        }
    }
}
