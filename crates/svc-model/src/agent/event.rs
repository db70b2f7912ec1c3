//! Events of an agent's stream.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AgentState, HistoryEntry, HistoryRole};
use crate::{AgentId, AgentRequestId, Timestamp};

/// One event, as it stands in the spool, on the host's socket and, but for `agent_id` and `offset`,
/// in the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentEvent {
    /// What happened.
    #[serde(flatten)]
    pub body: AgentEventBody,
    pub agent_id: AgentId,
    /// Its number in the stream: 1, 2, 3 …; `seq` in the log. 0 of a `delta`, which has none.
    #[serde(default, skip_serializing_if = "has_no_number")]
    pub offset: u64,
    #[serde(deserialize_with = "super::wire::moment")]
    pub timestamp: Timestamp,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AgentEventBody {
    /// A line of standard output.
    Output(AgentOutput),
    /// A line of standard error.
    Stderr(AgentOutput),
    /// A change of state, or of what is known about the agent.
    State {
        /// The state from now on.
        state: AgentState,
        /// What it was given to do, if that changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<String>,
        /// What people say of it, if that changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        /// When the vendor's refusal ends, in Unix milliseconds, if it said so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<i64>,
        /// The vendor's id of the conversation, with the first state in which it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<String>,
        /// Why somebody stops it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// How the turn ended that this state follows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnEnd>,
    },
    /// An entry of the conversation.
    ChatEntry { chat_entry: HistoryEntry },
    /// What it is saying. It stands in no spool and in no log.
    Delta(AgentDelta),
    /// Input that is given to the agent now. It is on record before the agent has it.
    Input {
        /// The text.
        data: String,
        /// Who sent it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        /// Its id, which the sender was told.
        message_id: String,
    },
    /// The agent waits for a permission or an answer.
    Request(AgentRequest),
    /// A request is answered.
    Answer {
        request_id: AgentRequestId,
        /// The option that was chosen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        option_id: Option<String>,
        /// Who answered: a principal, or `policy`, `timeout`, `interrupt`, `exit`.
        by: String,
    },
    /// What a turn has used.
    Usage(AgentUsage),
    /// Something failed.
    Error { error: String },
    /// The program ended. The last event of a stream.
    Exit {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// The number of the signal that ended it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        /// The agent's state from now on.
        final_state: AgentState,
    },
}

impl AgentEventBody {
    /// Its `type`.
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
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
const fn has_no_number(offset: &u64) -> bool {
    *offset == 0
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
    // Hosts outlive the daemon that started them: an earlier one had these words.
    #[serde(alias = "reject_once", alias = "reject_always")]
    Deny,
    /// An answer to a question.
    #[serde(alias = "answer")]
    Choice,
}

impl RequestOptionKind {
    /// Whether it lets the agent go on with what it asked for.
    pub const fn is_allowing(self) -> bool {
        matches!(self, Self::AllowOnce | Self::AllowAlways)
    }
}

/// What a turn has used.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AgentUsage {
    /// Tokens read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// US dollars, as the vendor counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnEnd {
    /// The input that began it; absent if the agent began by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// How.
    pub outcome: TurnOutcome,
    /// The final text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// What failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
}
