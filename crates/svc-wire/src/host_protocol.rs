//! The host's socket protocol 1.1.
//!
//! Each message is one line of JSON. A client writes a [`HostRequest`]. A host answers with a
//! [`HostReply`] of the same type and id, and writes events in between once the client is attached,
//! so a client reads [`HostFrame`]s, as `svc_client::hosts::HostClient` does.
//!
//! | request | payload | payload of the reply |
//! |---|---|---|
//! | `host.ping` | [`PingHost`] | [`PingAnswer`] |
//! | `host.status` | | [`HostStatus`] |
//! | `host.list` | | [`HostList`]: always one agent |
//! | `host.attach` | [`AttachStream`] | [`AttachAnswer`], then events |
//! | `host.detach` | | |
//! | `host.history` | [`HistoryQuery`] | [`HistoryPage`] |
//! | `host.send` | [`SendInput`] | [`SendAnswer`] |
//! | `host.answer` | [`AnswerAgent`] | |
//! | `host.interrupt` | [`InterruptAgent`] | |
//! | `host.stop` | [`StopAgent`] | [`StopAnswer`], once the program is reaped |
//!
//! ```
//! use svc_wire::host_protocol::{HostFrame, HostRequest, HostRequestKind, SendAnswer, SendInput};
//! let input = SendInput::new("run the tests");
//! let request = HostRequest::new(HostRequestKind::Send, Some(&input))?;
//! assert_eq!(request.to_line(), b"{\"type\":\"host.send\",\"payload\":{\"input\":\"run the tests\",\"mode\":\"queue\"}}\n");
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

pub const HOST_PROTOCOL: &str = "1.1";
/// The error of a host without a turn to steer or interrupt. Clients compare it.
pub const NO_TURN: &str = "not running a turn";
/// The error of a host for an answer without the key of the daemon. Clients compare it.
pub const NOT_THE_DAEMON: &str = "forbidden: only the daemon answers requests";

/// Whether a client of this version has the major version of this host.
pub fn agrees_with_protocol(version: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    major == "1" && minor.split('.').all(is_number)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostRequestKind {
    Ping,
    Status,
    List,
    Attach,
    Detach,
    History,
    Send,
    Answer,
    Interrupt,
    Stop,
}

impl HostRequestKind {
    const NAMES: [(Self, &'static str); 10] = [
        (Self::Ping, "host.ping"),
        (Self::Status, "host.status"),
        (Self::List, "host.list"),
        (Self::Attach, "host.attach"),
        (Self::Detach, "host.detach"),
        (Self::History, "host.history"),
        (Self::Send, "host.send"),
        (Self::Answer, "host.answer"),
        (Self::Interrupt, "host.interrupt"),
        (Self::Stop, "host.stop"),
    ];

    pub const fn as_str(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(_, known)| *known == name).map(|(kind, _)| kind)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostRequest {
    #[serde(rename = "type", default)]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

impl HostRequest {
    /// Fails if the payload has no JSON form.
    pub fn new(
        kind: HostRequestKind,
        payload: Option<&impl Serialize>,
    ) -> Result<Self, serde_json::Error> {
        let payload = payload.map(serde_json::to_value).transpose()?;
        Ok(Self { kind: kind.as_str().to_owned(), id: None, payload })
    }

    pub fn to_line(&self) -> Vec<u8> {
        to_line(self)
    }

    /// The payload as a host reads it; absent or `null` it is an empty object.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, String> {
        let name = self.kind.strip_prefix("host.").unwrap_or(&self.kind);
        let payload = match &self.payload {
            None | Some(Value::Null) => Value::Object(serde_json::Map::new()),
            // serde would read a list as the members in order.
            Some(payload) if !payload.is_object() => {
                return Err(format!("invalid {name} payload: expected an object"));
            }
            Some(payload) => payload.clone(),
        };
        serde_json::from_value(payload).map_err(|error| format!("invalid {name} payload: {error}"))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HostReply {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub success: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

#[derive(Debug, thiserror::Error)]
pub enum ReplyError {
    #[error("{0}")]
    Refused(String),
    #[error("the host's answer cannot be read: {0}")]
    Unreadable(serde_json::Error),
}

impl HostReply {
    pub fn success(request: &HostRequest, payload: Option<Value>) -> Self {
        let (kind, id) = (request.kind.clone(), request.id.clone());
        Self { kind, id, success: true, error: None, payload }
    }

    pub fn refusal(request: &HostRequest, error: String) -> Self {
        let (kind, id) = (request.kind.clone(), request.id.clone());
        Self { kind, id, success: false, error: Some(error), payload: None }
    }

    pub fn to_line(&self) -> Vec<u8> {
        to_line(self)
    }

    /// The payload as a client reads it; absent it is `null`.
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

/// Replies and events come interleaved.
#[derive(Debug, Clone, PartialEq)]
pub enum HostFrame {
    Reply(HostReply),
    Event(Box<AgentEvent>),
}

impl HostFrame {
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

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingHost {
    /// The version that the client speaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingAnswer {
    pub version: String,
    pub protocol_version: String,
    /// Such as `1h30m0s`.
    pub uptime: String,
    pub started_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    pub pid: u32,
    pub version: String,
    pub protocol_version: String,
    pub started_at: Timestamp,
    pub socket_path: String,
    /// Clients that follow the stream now.
    #[serde(default)]
    pub attached: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    pub host: HostInfo,
    pub agent: AgentInfo,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostList {
    pub agents: Vec<AgentInfo>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachStream {
    /// The last offset that the client has; 0 or absent for none.
    #[serde(default)]
    pub offset: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachAnswer {
    pub agent_id: AgentId,
    /// The last offset now; 0 without events.
    pub stream_offset: u64,
    /// The first offset that is kept.
    pub oldest_offset: u64,
    /// Changes if offsets start again.
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

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendInput {
    pub input: String,
    /// A repeat with this key is not given to the agent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[serde(default)]
    pub mode: SendMode,
    /// The host makes one if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl SendInput {
    /// A turn of its own, after those that wait.
    pub fn new(input: impl Into<String>) -> Self {
        Self { input: input.into(), ..Self::default() }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendMode {
    /// A turn of its own, after those that wait.
    #[default]
    Queue,
    /// Within the current turn.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerAgent {
    pub request_id: AgentRequestId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<AnswerKey>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptAgent {
    /// End the turn of this input, or take it back if it waits. Absent: the current turn.
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
    fn unreadable_answer_names_its_cause_once() {
        let error = ReplyError::Unreadable(serde_json::from_str::<u32>("x").unwrap_err());
        assert!(std::error::Error::source(&error).is_none(), "{error} has it already");
    }

    #[test]
    fn client_of_the_same_major_version_agrees() {
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
    fn line_is_a_reply_or_an_event() {
        let output = AgentOutput {
            data: "a".to_owned(),
            encoding: None,
            truncated: false,
            ends_turn: false,
        };
        let event = AgentEvent {
            body: AgentEventBody::Output(output),
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
