//! The host's socket protocol 1.1: requests, their answers, and what else a reader finds on a connection.
//!
//! Each is one line of JSON. A client writes a [`HostRequest`]. A host answers with a [`HostReply`] of the same type and id, and
//! writes events in between once the client is attached, so a client reads [`HostFrame`]s, as `svc_client::hosts::HostClient` does.
//!
//! ```
//! use svc_wire::host_protocol::{HostFrame, HostRequest, HostRequestKind, SendAnswer, SendInput};
//!
//! let input = SendInput::new("run the tests");
//! let request = HostRequest::new(HostRequestKind::Send, Some(&input))?;
//! assert_eq!(request.to_line(), b"{\"type\":\"host.send\",\"payload\":{\"input\":\"run the tests\",\"mode\":\"queue\"}}\n");
//!
//! let line = br#"{"type":"host.send","success":true,"payload":{"message_id":"msg_1","queued":false}}"#;
//! let HostFrame::Reply(reply) = HostFrame::parse(line)? else { panic!("an event") };
//! let answer: SendAnswer = reply.decode()?;
//! assert_eq!(answer.message_id, "msg_1");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use svc_model::agent::{AgentEvent, AgentInfo, AgentState, AnswerKey, HistoryEntry};
use svc_model::{AgentId, AgentRequestId, Timestamp};

/// The version that a host speaks.
pub const HOST_PROTOCOL: &str = "1.1";
/// Why a host does not steer or interrupt: no turn is under way. It is a word of the protocol.
pub const NO_TURN: &str = "not running a turn";
/// Why a host does not take an answer: it is not the daemon's. It is a word of the protocol.
pub const NOT_THE_DAEMON: &str = "forbidden: only the daemon answers requests";

/// Whether a client of this version and a host of ours agree: their majors are the same.
pub fn agrees_with_protocol(version: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    major == "1" && minor.split('.').all(is_number)
}

/// Names of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostRequestKind {
    /// `host.ping`.
    Ping,
    /// `host.status`.
    Status,
    /// `host.list`.
    List,
    /// `host.attach`.
    Attach,
    /// `host.detach`.
    Detach,
    /// `host.history`.
    History,
    /// `host.send`.
    Send,
    /// `host.answer`.
    Answer,
    /// `host.interrupt`.
    Interrupt,
    /// `host.stop`.
    Stop,
}

impl HostRequestKind {
    const ALL: [Self; 10] = [
        Self::Ping,
        Self::Status,
        Self::List,
        Self::Attach,
        Self::Detach,
        Self::History,
        Self::Send,
        Self::Answer,
        Self::Interrupt,
        Self::Stop,
    ];

    /// Its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ping => "host.ping",
            Self::Status => "host.status",
            Self::List => "host.list",
            Self::Attach => "host.attach",
            Self::Detach => "host.detach",
            Self::History => "host.history",
            Self::Send => "host.send",
            Self::Answer => "host.answer",
            Self::Interrupt => "host.interrupt",
            Self::Stop => "host.stop",
        }
    }

    /// The request of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// A request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostRequest {
    /// Its name.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Comes back with the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What the request needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

impl HostRequest {
    /// A request with what it needs.
    ///
    /// # Errors
    /// If the payload has no JSON form.
    pub fn new(
        kind: HostRequestKind,
        payload: Option<&impl Serialize>,
    ) -> Result<Self, serde_json::Error> {
        let payload = payload.map(serde_json::to_value).transpose()?;
        Ok(Self { kind: kind.as_str().to_owned(), id: None, payload })
    }

    /// Its line, with the end.
    pub fn to_line(&self) -> Vec<u8> {
        to_line(self)
    }

    /// The payload as a host reads it. Without one, or with `null`, it is an empty object.
    ///
    /// # Errors
    /// If it is no object, or not such a one.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, String> {
        let name = self.kind.strip_prefix("host.").unwrap_or(&self.kind);
        let payload = match &self.payload {
            None | Some(Value::Null) => Value::Object(serde_json::Map::new()),
            // A list would be taken for the members in their order.
            Some(payload) if !payload.is_object() => {
                return Err(format!("invalid {name} payload: expected an object"));
            }
            Some(payload) => payload.clone(),
        };
        serde_json::from_value(payload).map_err(|error| format!("invalid {name} payload: {error}"))
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostReply {
    /// The request's name.
    #[serde(rename = "type")]
    pub kind: String,
    /// The request's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether it was done.
    pub success: bool,
    /// Why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What it came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

/// Why a reply has no payload of the type that was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ReplyError {
    /// The host says no.
    #[error("{0}")]
    Refused(String),
    /// The payload is another.
    #[error("the host's answer cannot be read: {0}")]
    Unreadable(#[source] serde_json::Error),
}

impl HostReply {
    /// The answer to a request that was done.
    pub fn success(request: &HostRequest, payload: Option<Value>) -> Self {
        let (kind, id) = (request.kind.clone(), request.id.clone());
        Self { kind, id, success: true, error: None, payload }
    }

    /// The answer to a request that was not done.
    pub fn refusal(request: &HostRequest, error: String) -> Self {
        let (kind, id) = (request.kind.clone(), request.id.clone());
        Self { kind, id, success: false, error: Some(error), payload: None }
    }

    /// Its line, with the end.
    pub fn to_line(&self) -> Vec<u8> {
        to_line(self)
    }

    /// The payload as a client reads it. Without one it is `null`.
    ///
    /// # Errors
    /// If the host says no, or the payload is not of this type.
    pub fn decode<T: DeserializeOwned>(self) -> Result<T, ReplyError> {
        if !self.success {
            let reason = self.error.unwrap_or_else(|| "no reason".to_owned());
            return Err(ReplyError::Refused(reason));
        }
        serde_json::from_value(self.payload.unwrap_or(Value::Null)).map_err(ReplyError::Unreadable)
    }
}

fn to_line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// What a reader finds on a connection: events and answers to requests, which come interleaved.
#[derive(Debug, Clone, PartialEq)]
pub enum HostFrame {
    /// An answer.
    Reply(HostReply),
    /// An event.
    Event(Box<AgentEvent>),
}

impl HostFrame {
    /// Reads one line.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Shape {
            success: Option<bool>,
        }
        let shape: Shape = serde_json::from_slice(line)?;
        if shape.success.is_some() {
            serde_json::from_slice(line).map(Self::Reply)
        } else {
            serde_json::from_slice(line).map(Self::Event)
        }
    }
}

/// Payload of `host.ping`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingHost {
    /// The version that the client speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
}

/// Answer to `host.ping`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingAnswer {
    /// Version of the program.
    pub version: String,
    /// Version of the protocol.
    pub protocol_version: String,
    /// Such as `1h30m0s`.
    pub uptime: String,
    /// When the host started.
    pub started_at: Timestamp,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Its process.
    pub pid: u32,
    /// Version of the program.
    pub version: String,
    /// Version of the protocol.
    pub protocol_version: String,
    /// When it started.
    pub started_at: Timestamp,
    /// Where it listens.
    pub socket_path: String,
    /// How many clients follow its stream now.
    #[serde(default)]
    pub attached: usize,
}

/// Answer to `host.status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// The host.
    pub host: HostInfo,
    /// Its agent.
    pub agent: AgentInfo,
}

/// Answer to `host.list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostList {
    /// The host's agent: always one.
    pub agents: Vec<AgentInfo>,
}

/// Payload of `host.attach`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachStream {
    /// The last offset that the client has; 0 or absent: none.
    #[serde(default)]
    pub offset: i64,
}

/// Answer to `host.attach`. It comes before the events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachAnswer {
    /// The agent.
    pub agent_id: AgentId,
    /// The last offset at this moment; 0 if there is no event.
    pub stream_offset: u64,
    /// The first offset that can be had.
    pub oldest_offset: u64,
    /// Changes if offsets began anew.
    pub epoch: String,
}

/// Payload of `host.history`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryQuery {
    /// How many of the last entries; 0, the default: all.
    #[serde(default)]
    pub limit: u64,
    /// Only entries of events before this offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Whether calls of tools and their results are entries too; by default they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include_tools: Option<bool>,
}

/// Answer to `host.history`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryPage {
    /// The agent.
    pub agent_id: AgentId,
    /// Oldest first.
    pub entries: Vec<HistoryEntry>,
    /// The last offset at this moment.
    pub offset: u64,
    /// How many entries there are without the limit.
    pub total: u64,
}

/// Payload of `host.send`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendInput {
    /// The text.
    pub input: String,
    /// By this key a repeat is known, and not sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// When the agent gets it.
    #[serde(default)]
    pub mode: SendMode,
    /// Its id; the host makes one if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Who sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl SendInput {
    /// A text as a turn of its own, after those before it.
    pub fn new(input: impl Into<String>) -> Self {
        Self { input: input.into(), ..Self::default() }
    }
}

/// When an agent gets its input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendMode {
    /// As a turn of its own, after those before it.
    #[default]
    Queue,
    /// Within the turn that is under way.
    Steer,
}

/// Answer to `host.send`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SendAnswer {
    /// The input's id.
    pub message_id: String,
    /// Whether it waits for a turn that is under way.
    pub queued: bool,
}

/// Payload of `host.answer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerAgent {
    /// The request.
    pub request_id: AgentRequestId,
    /// The option that is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    /// What is said to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Who answers, as the daemon says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Shows that the daemon asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<AnswerKey>,
}

/// Payload of `host.interrupt`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptAgent {
    /// Only this input: its turn is ended, or it is taken back if it waits. By default the turn that is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
}

/// Payload of `host.stop`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopAgent {
    /// Kill it at once.
    #[serde(default)]
    pub force: bool,
    /// Seconds until it is killed: from 0 to 3600, by default 30.
    #[serde(default)]
    pub timeout: i64,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answer to `host.stop`. It comes when the program is reaped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopAnswer {
    /// Whether the program has ended.
    pub stopped: bool,
    /// Its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The number of the signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether it ended without SIGKILL.
    pub graceful: bool,
    /// How long that took, such as `1.204s`.
    pub duration: String,
    /// The agent's state from now on.
    pub final_state: AgentState,
}

#[cfg(test)]
mod tests {
    use svc_model::agent::{AgentEventBody, AgentOutput};

    use super::*;

    #[test]
    fn a_client_of_the_same_major_agrees() {
        for (version, agrees) in [
            ("1.0", true),
            ("1.1", true),
            ("1.99", true),
            ("1", true),
            ("2.0", false),
            ("0.9", false),
            ("", false),
            ("1.x", false),
            ("11.0", false),
        ] {
            assert_eq!(agrees_with_protocol(version), agrees, "{version:?}");
        }
    }

    #[test]
    fn a_line_is_an_answer_or_an_event() {
        let event = AgentEvent {
            body: AgentEventBody::Output(AgentOutput {
                data: "a".to_owned(),
                encoding: None,
                truncated: false,
            }),
            agent_id: AgentId::from("ag_1".to_owned()),
            offset: 3,
            timestamp: Timestamp::from_millis(7),
        };
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(
            line,
            r#"{"type":"output","data":"a","agent_id":"ag_1","offset":3,"timestamp":"1970-01-01T00:00:00.007Z"}"#
        );
        assert_eq!(HostFrame::parse(line.as_bytes()).unwrap(), HostFrame::Event(Box::new(event)));
        let reply = br#"{"type":"host.ping","success":false,"error":"x"}"#;
        assert!(
            matches!(HostFrame::parse(reply).unwrap(), HostFrame::Reply(reply) if !reply.success)
        );
        assert!(HostFrame::parse(b"{").is_err());
    }
}
