//! The stream of an agent: its events, and the entries of its conversation.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::AgentState;
use crate::{AgentId, AgentRequestId, Timestamp};

/// One event, as it stands in the spool, on the host's socket and, without `agent_id` and `offset`,
/// in the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentEvent {
    #[serde(flatten)]
    pub body: AgentEventBody,
    pub agent_id: AgentId,
    /// Its number in the stream: 1, 2, 3 …; `seq` in the log. 0 for a `delta`, which has none.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub offset: u64,
    #[serde(deserialize_with = "moment")]
    pub timestamp: Timestamp,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AgentEventBody {
    Output(AgentOutput),
    Stderr(AgentOutput),
    /// A change of state, or of what is known about the agent.
    State {
        state: AgentState,
        /// What it was given to do, if that changed.
        task: Option<String>,
        /// Its description, if that changed.
        description: Option<String>,
        /// When the vendor's refusal ends, in Unix milliseconds, if the vendor says so.
        until: Option<i64>,
        /// The vendor's id of the conversation, with the first state in which it is known.
        session_id: Option<String>,
        reason: Option<String>,
        /// How the turn before this state ended.
        turn: Option<TurnEnd>,
    },
    ChatEntry {
        chat_entry: HistoryEntry,
    },
    /// Words of an unfinished entry. Neither the spool nor the log has them.
    Delta(AgentDelta),
    /// Input that is given to the agent now. It is on record before the agent has it.
    Input {
        data: String,
        from: Option<String>,
        /// Its id, which the sender was told.
        message_id: String,
    },
    /// The agent waits for a permission or an answer.
    Request(AgentRequest),
    Answer {
        request_id: AgentRequestId,
        option_id: Option<String>,
        /// Who answered: a principal, or `policy`, `timeout`, `interrupt`, `exit`.
        by: String,
    },
    Usage(AgentUsage),
    Error {
        error: String,
    },
    /// The program ended. The last event of a stream.
    Exit {
        exit_code: Option<i32>,
        /// The number of the signal that ended it.
        signal: Option<i32>,
        final_state: AgentState,
    },
}

impl AgentEventBody {
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Output(_) => "output",
            Self::Stderr(_) => "stderr",
            Self::State { .. } => "state",
            Self::ChatEntry { .. } => "chat_entry",
            Self::Delta(_) => "delta",
            Self::Input { .. } => "input",
            Self::Request(_) => "request",
            Self::Answer { .. } => "answer",
            Self::Usage(_) => "usage",
            Self::Error { .. } => "error",
            Self::Exit { .. } => "exit",
        }
    }
}

/// A line as the program printed it, without its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOutput {
    /// The line, in base 64 if `encoding` says so.
    pub data: String,
    /// `base64` if the line is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// Whether the line went on beyond what is here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Whether the line only ends the turn, and is no word of the agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ends_turn: bool,
}

/// Words of an entry that is not finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentDelta {
    /// Who says them.
    pub role: HistoryRole,
    /// What follows what was said before; of the first that a reader gets, all so far.
    pub text: String,
    /// The same for all words of an entry.
    pub of: String,
}

/// What an agent asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentRequest {
    /// Its id.
    pub request_id: AgentRequestId,
    /// What kind of answer it waits for.
    pub kind: RequestKind,
    /// The request in one line.
    pub title: String,
    /// What may be answered.
    pub options: Vec<RequestOption>,
    /// The call that it is about: `{name, input, tool_use_id?}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<Value>,
}

/// What kind of answer is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Leave to do something.
    Permission,
    /// An answer to a question.
    Question,
}

/// One answer that a request offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestOption {
    /// By this id it is chosen.
    pub option_id: String,
    /// What people read.
    pub name: String,
    /// What it means.
    pub kind: RequestOptionKind,
    /// Whether words may go along with it.
    #[serde(default)]
    pub text: bool,
}

/// What an option means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestOptionKind {
    /// Yes, this time.
    AllowOnce,
    /// Yes, and do not ask again.
    AllowAlways,
    /// No.
    // Hosts outlive the daemon that started them, and hosts of earlier releases send these words.
    #[serde(alias = "reject_once", alias = "reject_always")]
    Deny,
    /// An answer to a question.
    #[serde(alias = "answer")]
    Choice,
}

/// What a turn has used.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AgentUsage {
    /// Tokens read.
    pub input_tokens: Option<u64>,
    /// Tokens written.
    pub output_tokens: Option<u64>,
    /// US dollars, as the vendor counts them.
    pub cost_usd: Option<f64>,
}

/// How a turn ended.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnEnd {
    /// The input that began it; absent if the agent began by itself.
    pub message_id: Option<String>,
    /// How.
    pub outcome: TurnOutcome,
    /// The final text.
    pub result: Option<String>,
    /// What failed.
    pub error: Option<String>,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnOutcome {
    /// The agent had no more to do.
    Completed,
    /// Somebody ended it.
    Interrupted,
    /// The vendor reports a failure.
    Failed,
    /// The vendor refused before the first word, as too much was used or nobody is logged in.
    Refused,
    /// The program ended in it.
    Ended,
}

/// Who said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HistoryRole {
    /// Whoever sends it input.
    User,
    /// The agent.
    Assistant,
    /// A tool that it called: the call, or its result.
    Tool,
    /// The program around the model, such as an error text.
    System,
}

/// One entry of a conversation.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// Who said it.
    pub role: HistoryRole,
    /// Its text.
    pub content: Option<String>,
    /// The tool that is called, or has answered.
    pub tool_name: Option<String>,
    /// The whole input of a call: its JSON text.
    #[serde(default, deserialize_with = "json_text")]
    pub tool_input: Option<String>,
    /// The input of a call in one line.
    pub tool_summary: Option<String>,
    /// The text of a result.
    pub tool_result: Option<String>,
    /// The vendor's id of the call, which its result bears too.
    pub tool_use_id: Option<String>,
    /// Whether it tells of a failure.
    pub is_error: Option<bool>,
    /// Whether its text went on beyond what is here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The offset of its event, in a history: `before` takes it.
    pub offset: Option<u64>,
    /// When.
    #[serde(deserialize_with = "moment")]
    pub timestamp: Timestamp,
}

impl HistoryEntry {
    pub const fn empty(role: HistoryRole) -> Self {
        Self {
            role,
            content: None,
            tool_name: None,
            tool_input: None,
            tool_summary: None,
            tool_result: None,
            tool_use_id: None,
            is_error: None,
            truncated: false,
            offset: None,
            timestamp: Timestamp::from_millis(0),
        }
    }

    pub fn text(role: HistoryRole, content: impl Into<String>) -> Self {
        Self { content: Some(content.into()), ..Self::empty(role) }
    }

    pub fn error(content: impl Into<String>) -> Self {
        Self { is_error: Some(true), ..Self::text(HistoryRole::System, content) }
    }

    /// Whether it is a call of a tool, or its result.
    pub fn is_of_tool(&self) -> bool {
        self.role == HistoryRole::Tool
    }
}

// Hosts of earlier releases may still run, and their events stay in the log. In these a time is a
// number, and the input of a call is a JSON value.

/// A time: RFC 3339, or Unix milliseconds.
fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Moment {
        Text(Timestamp),
        Millis(i64),
    }
    match Moment::deserialize(deserializer) {
        Ok(Moment::Text(at)) => Ok(at),
        Ok(Moment::Millis(millis)) => Ok(Timestamp::from_millis(millis)),
        Err(_) => {
            Err(D::Error::custom("expected an RFC 3339 time such as 2026-01-31T12:00:00.000Z"))
        }
    }
}

/// A string, or the JSON text of another value.
fn json_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Option::<Value>::deserialize(deserializer)? {
        None => None,
        Some(Value::String(text)) => Some(text),
        Some(value) => Some(value.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_of_hosts_that_an_earlier_daemon_started_are_read() {
        for (word, kind) in [
            ("reject_once", RequestOptionKind::Deny),
            ("reject_always", RequestOptionKind::Deny),
            ("answer", RequestOptionKind::Choice),
        ] {
            let option = json!({ "option_id": "a", "name": "A", "kind": word });
            let read: RequestOption = serde_json::from_value(option).unwrap();
            assert_eq!((read.kind, read.text), (kind, false));
        }
    }

    #[test]
    fn an_entry_of_an_earlier_version_is_read_and_written_as_one_of_today() {
        let input = json!({ "command": "ls" });
        let earlier = json!({ "role": "tool", "tool_input": input, "timestamp": 1_500 });
        let entry: HistoryEntry = serde_json::from_value(earlier).unwrap();
        let today = json!({
            "role": "tool", "tool_input": input.to_string(), "timestamp": "1970-01-01T00:00:01.500Z",
        });
        assert_eq!(serde_json::to_value(&entry).unwrap(), today);
        assert_eq!(serde_json::from_value::<HistoryEntry>(today).unwrap(), entry);
        let never = json!({ "role": "tool", "timestamp": "never" });
        let refused = serde_json::from_value::<HistoryEntry>(never).unwrap_err();
        assert!(refused.to_string().starts_with("expected an RFC 3339 time"), "{refused}");
    }
}
