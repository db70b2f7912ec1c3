//! What the client of a call gets: the answer that an outcome makes, or a task (SEP-2663) and what
//! it came to.

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use svc_core::{
    service::{self, Services, mcp::CallEnd},
    tools::{ErrorType, Failure, Output, ToolError},
};
use svc_model::{CallId, Caller, StreamName, Timestamp, limits, quote};
use svc_store::{CallRow, CallState};
use svc_sys::telemetry;
use tokio::sync::mpsc;

use super::super::{
    McpServer,
    metrics::RequestOutcome,
    rpc::{
        AnswerEra, CacheHint, EraResult, INTERNAL_ERROR, INVALID_PARAMS, ResultType, RpcError,
        UNAUTHORIZED, error_message, raw_in_era, result_message, result_message_with_room,
    },
};

/// The message that answers a request, and how the request ended.
#[derive(Debug)]
pub(crate) struct CallAnswer {
    pub(crate) message: String,
    /// HTTP status.
    pub(crate) status: u16,
    pub(crate) outcome: RequestOutcome,
}

/// An answer that may take a while, and the messages on the way to it.
pub(crate) struct PendingAnswer {
    pub(crate) answer: BoxFuture<'static, CallAnswer>,
    pub(crate) messages: Option<mpsc::UnboundedReceiver<String>>,
    /// Whether the request may be made again if the daemon goes down before the answer.
    pub(crate) is_repeatable: bool,
}

#[derive(Serialize)]
#[serde(untagged)]
enum CallToolResult<'a> {
    Own(CallToolMembers<'a>),
    /// That of a server behind the daemon.
    Verbatim(&'a RawValue),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CallToolMembers<'a> {
    content: ContentBlocks<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<StructuredContent<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_error: Option<bool>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ContentBlocks<'a> {
    /// A tool's object once more as text, for clients that read no structured content.
    Text([TextBlock<'a>; 1]),
    Blocks(&'a [Value]),
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "text")]
struct TextBlock<'a> {
    text: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum StructuredContent<'a> {
    Raw(&'a RawValue),
    Value(&'a Value),
}

impl<'a> CallToolResult<'a> {
    fn from_output(output: &'a Output) -> Self {
        Self::Own(match output {
            Output::Object(object) => CallToolMembers {
                content: ContentBlocks::Text([TextBlock { text: object.get() }]),
                structured_content: Some(StructuredContent::Raw(object)),
                is_error: None,
            },
            Output::Content { content, structured, is_error } => CallToolMembers {
                content: ContentBlocks::Blocks(content),
                structured_content: structured.as_ref().map(StructuredContent::Value),
                is_error: is_error.then_some(true),
            },
            Output::Verbatim(result) => return Self::Verbatim(result),
        })
    }
}

/// About how many bytes the result has.
fn room_for(output: &Output) -> usize {
    match output {
        // The object twice, once as a string: of its bytes about every sixth is a quote.
        Output::Object(object) => object.get().len() * 2 + object.get().len() / 4 + 256,
        Output::Verbatim(result) => result.get().len() + 64,
        Output::Content { .. } => 512,
    }
}

/// What a tool gives the client: its output, which may say that it failed, or a JSON-RPC error.
fn output_of(outcome: Result<Output, Failure>, era: AnswerEra) -> Result<Output, RpcError> {
    match outcome {
        Ok(output) => Ok(output),
        Err(Failure::Tool(error)) => Ok(Output::error(&error)),
        Err(Failure::MissingCapability(_)) if era == AnswerEra::Legacy => {
            let text = "the client cannot do what this tool needs of it";
            Ok(Output::error(&ToolError::new(ErrorType::Unavailable, text).retryable(false)))
        }
        Err(Failure::NeedsInput) => Ok(Output::error(&ToolError::internal())),
        Err(failure @ (Failure::MissingCapability(_) | Failure::Protocol { .. })) => {
            Err(rpc_error_of(failure))
        }
    }
}

/// A failure as a JSON-RPC error, where a result cannot say that something failed.
pub(crate) fn rpc_error_of(failure: Failure) -> RpcError {
    match failure {
        Failure::Protocol { code, message, data } => {
            RpcError { data, ..RpcError::new(code, message) }
        }
        Failure::MissingCapability(required) => RpcError::missing_capability(&required),
        Failure::Tool(error) => {
            let code = match error.kind {
                ErrorType::ValidationError | ErrorType::NotFound => INVALID_PARAMS,
                _ => INTERNAL_ERROR,
            };
            RpcError::new(code, quote::plain(&error.message).into_owned())
        }
        Failure::NeedsInput => RpcError::internal(),
    }
}

impl CallAnswer {
    /// The answer with a result.
    pub(super) fn new(id: &RawValue, result: &impl Serialize, outcome: RequestOutcome) -> Self {
        Self { message: result_message(id, result), status: 200, outcome }
    }

    /// The end of a call on record whose stream ends with this answer.
    pub(super) fn into_end(self) -> (CallEnd, RequestOutcome) {
        let state = match self.outcome {
            RequestOutcome::Error => CallState::Failed,
            _ => CallState::Completed,
        };
        (CallEnd { state, message: Some(self.message) }, self.outcome)
    }

    /// The answer with a tool's outcome.
    pub(super) fn from_outcome(
        id: &RawValue,
        outcome: Result<Output, Failure>,
        era: AnswerEra,
    ) -> Self {
        let output = match output_of(outcome, era) {
            Ok(output) => output,
            Err(error) => return Self::error(id, &error),
        };
        let outcome =
            if output.is_error() { RequestOutcome::ToolError } else { RequestOutcome::Result };
        let room = room_for(&output);
        let message = match CallToolResult::from_output(&output) {
            CallToolResult::Own(members) => {
                let result = EraResult::complete(era, members, None);
                result_message_with_room(id, &result, room)
            }
            CallToolResult::Verbatim(result) => {
                let result = raw_in_era(result, era, None);
                result_message_with_room(id, &result, room)
            }
        };
        Self { message, status: 200, outcome }
    }

    /// The answer with a server's result, which passes as it is.
    pub(crate) fn verbatim(
        id: &RawValue,
        era: AnswerEra,
        result: &RawValue,
        cache: Option<CacheHint>,
    ) -> Self {
        let room = result.get().len() + 128;
        let message = result_message_with_room(id, &raw_in_era(result, era, cache), room);
        Self { message, status: 200, outcome: RequestOutcome::Result }
    }

    /// The answer with an error.
    pub(crate) fn error(id: &RawValue, error: &RpcError) -> Self {
        let message = error_message(Some(id), error);
        Self { message, status: error.status, outcome: RequestOutcome::Error }
    }

    /// The answer when the process goes down, or a task of the runtime was lost. A program that
    /// asks again, as `svc stdio` does, knows it by its data. Of a request that may have changed
    /// something nobody knows how far it came.
    pub(crate) fn lost(id: &RawValue, is_repeatable: bool) -> Self {
        let error = if is_repeatable {
            RpcError::new(INTERNAL_ERROR, "the daemon is going down")
                .data(json!({ "code": "unavailable", "retryable": true }))
        } else {
            let text = "the daemon went down in the middle of the call, and its outcome is unknown: look before you call it \
                        again";
            RpcError::new(INTERNAL_ERROR, text)
                .data(json!({ "code": "unavailable", "retryable": false, "outcome": "unknown" }))
        };
        Self::error(id, &error.status(500))
    }
}

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
    pub(super) fn status(row: &CallRow) -> Self {
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
    pub(crate) async fn read(services: &Services, row: &CallRow) -> Result<Self, service::Error> {
        let mut view = Self::status(row);
        match row.state {
            CallState::InputRequired => {
                let questions = row.asks.clone().and_then(|asks| RawValue::from_string(asks).ok());
                view.input_requests = questions;
            }
            CallState::Completed | CallState::Failed => {
                let stream = StreamName::new("mcp", &row.call_id);
                let stored = services.mcp.last_message(&stream).await?;
                view.outcome = stored.and_then(|stored| serde_json::from_str(&stored).ok());
            }
            CallState::Working | CallState::Cancelled => {}
        }
        Ok(view)
    }
}

/// The answer of a call that has become a task (`CreateTaskResult`).
pub(super) fn task_answer(id: &RawValue, row: Result<CallRow, service::Error>) -> CallAnswer {
    match row {
        Ok(row) => {
            let result = EraResult::stateless(ResultType::Task, TaskView::status(&row), None);
            CallAnswer::new(id, &result, RequestOutcome::Task)
        }
        Err(error) => CallAnswer::error(id, &error.into()),
    }
}

pub(super) fn task_end(outcome: Result<Output, Failure>) -> CallEnd {
    let (state, outcome) = match output_of(outcome, AnswerEra::Legacy) {
        Ok(output) => {
            let result = to_raw_value(&CallToolResult::from_output(&output));
            (CallState::Completed, result.map(TaskOutcome::Result))
        }
        Err(error) => (CallState::Failed, to_raw_value(&error).map(TaskOutcome::Error)),
    };
    let message = outcome.and_then(|outcome| serde_json::to_string(&outcome));
    CallEnd { state, message: Some(message.expect("an outcome has a JSON form")) }
}

/// Fails if a caller's token was taken back.
pub(super) async fn still_permitted(
    server: &McpServer,
    caller: &Caller,
    credential: &str,
) -> Result<(), Failure> {
    let checked = server.services.access.check_credential(caller, credential).await;
    checked.map_err(|_| unauthorized())
}

/// What a caller gets in place of an answer when its token was taken back meanwhile.
pub(super) fn unauthorized() -> Failure {
    Failure::Protocol {
        code: UNAUTHORIZED,
        message: "unauthorized: the token of this call is no longer good".into(),
        data: Some(json!({ "code": "unauthorized", "retryable": false })),
    }
}

/// The end of a call whose client wants no answer any more.
pub(super) fn cancelled() -> CallEnd {
    CallEnd { state: CallState::Cancelled, message: None }
}

/// Puts the end of a call on record. Without one its client would wait for ever, so a write that
/// fails is repeated until the server stops.
pub(super) async fn end_call(server: &McpServer, id: &CallId, stream: &StreamName, end: CallEnd) {
    while let Err(error) = server.services.mcp.end_call(id, stream, end.clone()).await {
        tracing::error!(error = telemetry::chain(&error), call = %id, "cannot end a call");
        tokio::select! {
            () = server.stop.cancelled() => break,
            () = tokio::time::sleep(limits::MCP_PATIENCE) => {}
        }
    }
    server.running.remove(id);
    server.tasks_changed.send_modify(|count| *count += 1);
}

/// Ends a call because its client wants no answer any more.
pub(crate) async fn cancel_call(server: &McpServer, id: &CallId, stream: &StreamName) {
    let running = server.running.get(id);
    end_call(server, id, stream, cancelled()).await;
    if let Some(running) = running {
        running.cancel.cancel();
    }
}

/// Where the messages and the outcome of a call go.
#[derive(Debug, Clone)]
pub(crate) enum CallMode {
    /// To the response that is open, whose messages nobody reads if this is `None`. Unbounded, as a
    /// tool must not wait for a reader, and says little.
    Attached(Option<mpsc::UnboundedSender<String>>),
    /// Into the stream of a call on record, where the response reads them.
    Logged(CallId, StreamName),
    /// Into the row of a task, which the client asks for. Messages go nowhere.
    Task(CallId),
}

/// Sends a message to where those of a call go.
pub(super) async fn say(server: &McpServer, caller: &Caller, mode: &CallMode, message: String) {
    match mode {
        // If the reader is gone, the call is about to end.
        CallMode::Attached(Some(sender)) => drop(sender.send(message)),
        CallMode::Attached(None) | CallMode::Task(_) => {}
        CallMode::Logged(_, stream) => {
            if let Err(error) = server.services.mcp.say(caller, stream, message).await {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "a message to a client is lost");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tools_object_passes_byte_for_byte_and_once_more_as_text() {
        let object = RawValue::from_string(r#"{"b": 1.0,"a":"x\n"}"#.to_owned()).unwrap();
        let id = RawValue::from_string("7".to_owned()).unwrap();
        let answer = CallAnswer::from_outcome(&id, Ok(Output::Object(object)), AnswerEra::Legacy);
        assert_eq!(
            answer.message,
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"{\"b\": 1.0,\"a\":\"x\\n\"}"}],"structuredContent":{"b": 1.0,"a":"x\n"}}}"#
        );
        assert_eq!((answer.status, answer.outcome), (200, RequestOutcome::Result));
    }

    #[test]
    fn a_servers_result_passes_byte_for_byte() {
        let id = RawValue::from_string("7".to_owned()).unwrap();
        let result =
            r#"{"content":[ {"type":"text","text":"\u0041","x":1.0} ],"z":1e400,"isError":true}"#;
        let output = || Output::Verbatim(RawValue::from_string(result.to_owned()).unwrap());
        let answer = CallAnswer::from_outcome(&id, Ok(output()), AnswerEra::Legacy);
        assert_eq!(answer.message, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#));
        assert_eq!(answer.outcome, RequestOutcome::ToolError);
        let answer = CallAnswer::from_outcome(&id, Ok(output()), AnswerEra::Stateless);
        let typed = result.replacen('{', r#"{"resultType":"complete","#, 1);
        assert_eq!(answer.message, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{typed}}}"#));
    }

    #[test]
    fn what_the_client_lacks_is_an_error_of_the_protocol_only_without_sessions() {
        let id = RawValue::from_string("7".to_owned()).unwrap();
        let missing = || Err(Failure::MissingCapability(json!({ "roots": {} })));
        let answer = CallAnswer::from_outcome(&id, missing(), AnswerEra::Legacy);
        assert_eq!((answer.status, answer.outcome), (200, RequestOutcome::ToolError));
        let answer = CallAnswer::from_outcome(&id, missing(), AnswerEra::Stateless);
        assert_eq!((answer.status, answer.outcome), (400, RequestOutcome::Error));
    }

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
