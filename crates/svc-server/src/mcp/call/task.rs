//! Tasks (SEP-2663): a call of a stateless client that goes on without it, as the client sees it.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use svc_core::{
    service::{self, Services, mcp::CallEnd},
    tools::{Failure, Output},
};
use svc_model::{CallId, StreamName, Timestamp, limits};
use svc_store::{CallRow, CallState};

use super::{
    super::rpc::AnswerEra,
    answer::{CallToolResult, output_of},
};

/// What a task came to. It is stored in this form, and passed on byte for byte.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TaskOutcome {
    /// A `CallToolResult`, which may say that the tool failed.
    Result(Box<RawValue>),
    /// A JSON-RPC error.
    Error(Box<RawValue>),
}

/// A task with all that is known of it (`DetailedTask`).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskView {
    task_id: CallId,
    status: CallState,
    created_at: Timestamp,
    last_updated_at: Timestamp,
    /// `null`: a task is kept.
    ttl_ms: Option<u64>,
    poll_interval_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_requests: Option<Box<RawValue>>,
    #[serde(flatten)]
    outcome: Option<TaskOutcome>,
}

impl TaskView {
    /// The state of a task, without its questions and its outcome.
    pub(crate) fn status_of(row: &CallRow) -> Self {
        Self {
            task_id: row.call_id.clone(),
            status: row.state,
            created_at: row.started_at,
            last_updated_at: row.updated_at,
            ttl_ms: None,
            poll_interval_ms: u64::try_from(limits::MCP_PATIENCE.as_millis()).unwrap_or(u64::MAX),
            input_requests: None,
            outcome: None,
        }
    }

    /// A task with its questions, or its outcome.
    pub(crate) async fn of(services: &Services, row: &CallRow) -> Result<Self, service::Error> {
        let mut view = Self::status_of(row);
        match row.state {
            CallState::InputRequired => {
                let questions = row.asks.clone().and_then(|asks| RawValue::from_string(asks).ok());
                view.input_requests = questions;
            }
            CallState::Completed | CallState::Failed => {
                let stream = StreamName::of("mcp", &row.call_id);
                let stored = services.mcp.last_message(&stream).await?;
                view.outcome = stored.and_then(|stored| serde_json::from_str(&stored).ok());
            }
            CallState::Working | CallState::Cancelled => {}
        }
        Ok(view)
    }
}

/// How a task ends.
pub(crate) fn task_end(outcome: Result<Output, Failure>) -> CallEnd {
    let (state, outcome) = match output_of(outcome, AnswerEra::Legacy) {
        Ok(output) => {
            let result = to_raw_value(&CallToolResult::of(&output));
            (CallState::Completed, result.map(TaskOutcome::Result))
        }
        Err(error) => (CallState::Failed, to_raw_value(&error).map(TaskOutcome::Error)),
    };
    let message = outcome.and_then(|outcome| serde_json::to_string(&outcome));
    CallEnd { state, message: Some(message.expect("an outcome has a JSON form")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_stored_and_read_byte_for_byte() {
        let object = RawValue::from_string(r#"{"b": 1.0,"a":2}"#.to_owned()).unwrap();
        let end = task_end(Ok(Output::Object(object)));
        assert_eq!(end.state, CallState::Completed);
        let stored = end.message.unwrap();
        assert!(stored.starts_with(r#"{"result":{"content""#), "{stored}");
        assert!(stored.contains(r#""structuredContent":{"b": 1.0,"a":2}"#), "{stored}");
        let read: TaskOutcome = serde_json::from_str(&stored).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), stored);
        let protocol = Failure::Protocol { code: -5, message: "no".into(), data: None };
        let end = task_end(Err(protocol));
        assert_eq!(end.state, CallState::Failed);
        assert_eq!(end.message.unwrap(), r#"{"error":{"code":-5,"message":"no"}}"#);
    }
}
