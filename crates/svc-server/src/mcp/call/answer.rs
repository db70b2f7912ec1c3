//! What the client of a call gets: the answer made from an outcome, a task (SEP-2663) and its
//! outcome, and the questions of the tool.
//!
//! The client of a session gets a question as a request, and answers with a message. A client
//! without sessions gets the questions as the result of its request, and sends the request again
//! with the answers and with a signed state.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};
use svc_core::{
    service::{self, Services, mcp::CallEnd},
    tools::{ClientAnswers, ClientQuestion, ErrorType, Failure, Output, QuestionReply, ToolError},
};
use svc_model::{CallId, Caller, StreamName, Timestamp, limits, quote};
use svc_store::{CallRow, CallState};
use svc_sys::telemetry;
use tokio::sync::mpsc;

use super::{
    super::{
        McpServer,
        rpc::{
            CacheHint, EraResult, INTERNAL_ERROR, INVALID_PARAMS, RequestEra, ResultType, RpcError,
            UNAUTHORIZED, error_message, object_or_empty, raw_in_era, request_message,
            result_message,
        },
        server::{McpSession, RequestOutcome},
    },
    active::{CallRecord, RequestState, state_binding},
};

pub(crate) struct CallAnswer {
    pub(crate) message: String,
    pub(crate) status: u16,
    pub(crate) outcome: RequestOutcome,
}

/// An answer that may take a while, and the messages before it.
pub(crate) struct PendingAnswer {
    pub(crate) answer: BoxFuture<'static, CallAnswer>,
    pub(crate) messages: Option<mpsc::UnboundedReceiver<String>>,
    /// Whether the request may be repeated if the daemon stops before the answer.
    pub(crate) is_repeatable: bool,
    /// Whether a stream ends with the caller's token: not if the call may end its own session.
    pub(crate) ends_with_token: bool,
}

#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum CallToolResult<'a> {
    Own {
        content: ContentBlocks<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        structured_content: Option<StructuredContent<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
    },
    Verbatim(&'a RawValue),
}

#[derive(Serialize)]
#[serde(untagged)]
enum ContentBlocks<'a> {
    /// The structured content as text, for clients that read only text.
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
        match output {
            Output::Object(object) => Self::Own {
                content: ContentBlocks::Text([TextBlock { text: object.get() }]),
                structured_content: Some(StructuredContent::Raw(object)),
                is_error: None,
            },
            Output::Content { content, structured, is_error } => Self::Own {
                content: ContentBlocks::Blocks(content),
                structured_content: structured.as_ref().map(StructuredContent::Value),
                is_error: is_error.then_some(true),
            },
            Output::Verbatim(result) => Self::Verbatim(result),
        }
    }
}

/// The output for the client, which may say that the tool failed; or a JSON-RPC error.
fn output_of(outcome: Result<Output, Failure>, era: RequestEra) -> Result<Output, RpcError> {
    match outcome {
        Ok(output) => Ok(output),
        Err(Failure::Tool(error)) => Ok(Output::error(&error)),
        Err(Failure::MissingCapability(_)) if era != RequestEra::Modern => {
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
    pub(super) fn new(id: &RawValue, result: &impl Serialize, outcome: RequestOutcome) -> Self {
        Self { message: result_message(id, result), status: 200, outcome }
    }

    /// The end of a recorded call, whose stream ends with this answer.
    pub(super) fn into_end(self) -> (CallEnd, RequestOutcome) {
        let state = match self.outcome {
            RequestOutcome::Error => CallState::Failed,
            _ => CallState::Completed,
        };
        (CallEnd { state, message: Some(self.message) }, self.outcome)
    }

    pub(super) fn from_outcome(
        id: &RawValue,
        outcome: Result<Output, Failure>,
        era: RequestEra,
    ) -> Self {
        let output = match output_of(outcome, era) {
            Ok(output) => output,
            Err(error) => return Self::error(id, &error),
        };
        let outcome =
            if output.is_error() { RequestOutcome::ToolError } else { RequestOutcome::Result };
        let message = match CallToolResult::from_output(&output) {
            own @ CallToolResult::Own { .. } => {
                result_message(id, &EraResult::complete(era, own, None))
            }
            CallToolResult::Verbatim(result) => result_message(id, &raw_in_era(result, era, None)),
        };
        Self { message, status: 200, outcome }
    }

    /// The answer with a child server's result, which passes byte for byte.
    pub(crate) fn verbatim(
        id: &RawValue,
        era: RequestEra,
        result: &RawValue,
        cache: Option<CacheHint>,
    ) -> Self {
        let message = result_message(id, &raw_in_era(result, era, cache));
        Self { message, status: 200, outcome: RequestOutcome::Result }
    }

    pub(crate) fn error(id: &RawValue, error: &RpcError) -> Self {
        let message = error_message(Some(id), error);
        Self { message, status: error.status, outcome: RequestOutcome::Error }
    }

    /// The answer if the process stops, or if the runtime's task of the call was lost. A program
    /// that repeats requests, such as `svc stdio`, recognises this answer by its data. If the
    /// request may have changed something, its outcome is unknown.
    pub(crate) fn lost(id: &RawValue, is_repeatable: bool) -> Self {
        let (text, data) = if is_repeatable {
            ("the daemon is going down", json!({ "code": "unavailable", "retryable": true }))
        } else {
            (
                "the daemon went down in the middle of the call, and its outcome is unknown: look before you call it \
                 again",
                json!({ "code": "unavailable", "retryable": false, "outcome": "unknown" }),
            )
        };
        Self::error(id, &RpcError::new(INTERNAL_ERROR, text).data(data).status(500))
    }
}

/// The outcome of a task. It is stored in this form and passed on byte for byte.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum McpTaskOutcome {
    /// A `CallToolResult`, which may say that the tool failed.
    Result(Box<RawValue>),
    Error(Box<RawValue>),
}

/// A task of MCP: `DetailedTask` of its schema.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct McpTaskView {
    task_id: CallId,
    status: CallState,
    created_at: Timestamp,
    last_updated_at: Timestamp,
    /// `null`: tasks are kept.
    ttl_ms: Option<u64>,
    poll_interval_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_requests: Option<Box<RawValue>>,
    #[serde(flatten)]
    outcome: Option<McpTaskOutcome>,
}

impl McpTaskView {
    /// The state of a task, without its questions and its outcome.
    pub(super) fn status(row: &CallRow) -> Self {
        Self {
            task_id: row.call_id.clone(),
            status: row.state,
            created_at: row.started_at,
            last_updated_at: row.updated_at,
            ttl_ms: None,
            poll_interval_ms: limits::MCP_POLL_MS,
            input_requests: None,
            outcome: None,
        }
    }

    pub(crate) async fn read(services: &Services, row: &CallRow) -> Result<Self, service::Error> {
        let mut view = Self::status(row);
        match row.state {
            CallState::InputRequired => {
                view.input_requests =
                    row.asks.clone().map(RawValue::from_string).and_then(Result::ok);
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
            let result = EraResult::stateless(ResultType::Task, McpTaskView::status(&row), None);
            CallAnswer::new(id, &result, RequestOutcome::Task)
        }
        Err(error) => CallAnswer::error(id, &error.into()),
    }
}

pub(super) fn task_end(outcome: Result<Output, Failure>) -> CallEnd {
    let (state, outcome) = match output_of(outcome, RequestEra::Legacy) {
        Ok(output) => {
            let result = to_raw_value(&CallToolResult::from_output(&output));
            (CallState::Completed, result.map(McpTaskOutcome::Result))
        }
        Err(error) => (CallState::Failed, to_raw_value(&error).map(McpTaskOutcome::Error)),
    };
    let message = outcome.and_then(|outcome| serde_json::to_string(&outcome));
    CallEnd { state, message: Some(message.expect("an outcome has a JSON form")) }
}

pub(super) async fn still_permitted(
    server: &McpServer,
    caller: &Caller,
    credential: &str,
) -> Result<(), Failure> {
    let checked = server.services.access.check_credential(caller, credential).await;
    checked.map_err(|_| unauthorized())
}

/// The answer to a request whose response ends with its caller's token.
pub(crate) fn token_ended(id: &RawValue) -> String {
    error_message(Some(id), &rpc_error_of(unauthorized()))
}

/// Replaces the answer if the caller's token was revoked meanwhile.
pub(super) fn unauthorized() -> Failure {
    Failure::Protocol {
        code: UNAUTHORIZED,
        message: "unauthorized: the token of this call is no longer good".into(),
        data: Some(json!({ "code": "unauthorized", "retryable": false })),
    }
}

pub(super) fn cancelled() -> CallEnd {
    CallEnd { state: CallState::Cancelled, message: None }
}

/// Records the end of a call. Without it the client would wait for ever, so a write that fails is
/// repeated until the server stops. Returns whether this end is on record, or may be.
pub(super) async fn end_call(
    server: &McpServer,
    id: &CallId,
    stream: &StreamName,
    end: CallEnd,
) -> bool {
    // A commit of unknown outcome may have taken place.
    let mut may_be = false;
    let is_recorded = loop {
        match server.services.mcp.end_call(id, stream, end.clone()).await {
            Ok(is_recorded) => break is_recorded || may_be,
            Err(error) => {
                may_be |= matches!(error, service::Error::OutcomeUnknown { .. });
                tracing::error!(error = telemetry::chain(&error), call = %id, "cannot end a call");
            }
        }
        tokio::select! {
            () = server.stop.cancelled() => break may_be,
            () = tokio::time::sleep(limits::MCP_END_RETRY) => {}
        }
    };
    server.running.remove(id);
    server.tasks_changed.send_modify(|count| *count += 1);
    is_recorded
}

pub(crate) async fn cancel_call(server: &McpServer, id: &CallId, stream: &StreamName) {
    let running = server.running.get(id);
    end_call(server, id, stream, cancelled()).await;
    if let Some(running) = running {
        running.cancel.cancel();
    }
}

/// The destination of the messages and the outcome of a call.
#[derive(Debug, Clone)]
pub(crate) enum CallMode {
    /// The open response; `None` if nobody reads its messages. The channel is unbounded: a tool
    /// must not wait for a reader, and it sends few messages.
    Attached(Option<mpsc::UnboundedSender<String>>),
    /// The stream of a recorded call, which the response reads.
    Logged(CallId, StreamName),
    /// The row of a task, which the client polls. Messages are dropped.
    Task(CallId),
}

pub(super) async fn say(server: &McpServer, caller: &Caller, mode: &CallMode, message: String) {
    match mode {
        // If the reader is gone, the call is about to end.
        CallMode::Attached(Some(sender)) => drop(sender.send(message)),
        CallMode::Attached(None) | CallMode::Task(_) => {}
        CallMode::Logged(_, stream) => {
            if let Err(error) = server.services.mcp.say(caller, stream, message).await {
                tracing::warn!(error = telemetry::chain(&error), "a message to a client is lost");
            }
        }
    }
}

/// The capability that the client has not declared and that one of the questions needs.
pub(super) fn missing_capability(
    capabilities: &Map<String, Value>,
    questions: &[ClientQuestion],
) -> Option<Failure> {
    let mut needed = questions.iter().map(|question| match question.method {
        "elicitation/create" => "elicitation",
        "sampling/createMessage" => "sampling",
        _ => "roots",
    });
    let missing = needed.find(|name| !capabilities.contains_key(*name))?;
    Some(Failure::MissingCapability(json!({ missing: {} })))
}

/// Asks the client of a session. Fails if the caller's token is revoked meanwhile.
pub(super) async fn ask_session(
    server: McpServer,
    caller: Caller,
    credential: String,
    session: Arc<McpSession>,
    mode: CallMode,
    questions: Vec<ClientQuestion>,
) -> Result<ClientAnswers, Failure> {
    let unavailable = |text: String| ToolError::new(ErrorType::Unavailable, text);
    let mut answers = ClientAnswers::new();
    for ClientQuestion { key, method, params } in questions {
        let mut question = server.questions.open(&session.id);
        say(&server, &caller, &mode, request_message(&question.id, method, &params)).await;
        let reply = (&mut question.reply).await;
        match reply.map_err(|_| unavailable("the client did not answer".to_owned()))? {
            Ok(answer) => {
                still_permitted(&server, &caller, &credential).await?;
                answers.insert(key, answer);
            }
            Err(error) => {
                let reason = error.get("message").and_then(Value::as_str);
                let reason = reason.unwrap_or("no reason given");
                let text = format!("the client refused {method}: {reason}");
                return Err(unavailable(text).retryable(false).into());
            }
        }
    }
    Ok(answers)
}

/// Questions to a client without sessions, and its answers in this round and earlier ones.
pub(super) struct Round {
    answers: ClientAnswers,
    /// Unanswered questions. A task waits for the answers; any other call ends with the questions.
    open: Vec<ClientQuestion>,
    /// Keys of questions of a task, and the senders for their answers.
    waiting: Vec<(Vec<String>, QuestionReply)>,
}

impl Round {
    pub(super) fn new(answers: ClientAnswers) -> Self {
        Self { answers, open: Vec::new(), waiting: Vec::new() }
    }

    /// The answers to these questions, if all are there; else the unanswered questions become open.
    pub(super) fn ask(
        &mut self,
        keys: &[String],
        questions: Vec<ClientQuestion>,
    ) -> Option<ClientAnswers> {
        let answers = self.answers_to(keys);
        if answers.is_none() {
            self.open = questions;
            self.drop_answered();
        }
        answers
    }

    fn answers_to(&self, keys: &[String]) -> Option<ClientAnswers> {
        keys.iter().map(|key| Some((key.clone(), self.answers.get(key)?.clone()))).collect()
    }

    pub(super) fn wait(&mut self, keys: Vec<String>, reply: QuestionReply) {
        self.waiting.push((keys, reply));
    }

    pub(super) fn take(&mut self, given: ClientAnswers) {
        let Self { answers, open, .. } = self;
        let is_open = |key: &String| open.iter().any(|question| question.key == *key);
        answers.extend(given.into_iter().filter(|(key, _)| is_open(key)));
        self.drop_answered();
    }

    fn drop_answered(&mut self) {
        self.open.retain(|question| !self.answers.contains_key(&question.key));
    }

    /// Gives the answers to the tools that wait for them.
    pub(super) fn wake(&mut self) {
        for (keys, reply) in std::mem::take(&mut self.waiting) {
            match self.answers_to(&keys) {
                Some(answers) => drop(reply.send(Ok(answers))),
                None => self.waiting.push((keys, reply)),
            }
        }
    }

    /// The open questions as `inputRequests`, if there are any.
    pub(super) fn questions_json(&self) -> Option<String> {
        (!self.open.is_empty()).then(|| self.input_requests().to_string())
    }

    pub(super) fn answers_json(&self) -> String {
        json!(self.answers).to_string()
    }

    fn input_requests(&self) -> Value {
        let requests = self.open.iter().map(|ClientQuestion { key, method, params }| {
            (key.clone(), json!({ "method": method, "params": params }))
        });
        Value::Object(requests.collect())
    }

    /// The result that asks the client for input. The client carries earlier answers and the tool's
    /// state.
    pub(super) fn input_required(
        &self,
        server: &McpServer,
        caller: &Caller,
        record: &CallRecord,
        kept: Option<Value>,
    ) -> EraResult<Value> {
        let mut members = json!({ "inputRequests": self.input_requests() });
        if kept.is_some() || !self.answers.is_empty() {
            let state = RequestState { answers: self.answers.clone(), kept };
            let now = server.services.now();
            let signed = server.state_signer.sign(state, binding(caller, record), now);
            members["requestState"] = signed.into();
        }
        EraResult::stateless(ResultType::InputRequired, members, None)
    }
}

/// The state that a client without sessions carries from earlier rounds of the same request.
pub(super) fn open_round(
    server: &McpServer,
    caller: &Caller,
    record: &CallRecord,
) -> Result<RequestState, RpcError> {
    let given = record.params.get("inputResponses").cloned();
    let mut answers = object_or_empty(given, "inputResponses")?;
    // A question whose answer is no object is asked again.
    answers.retain(|_, answer| answer.is_object());
    let mut kept = None;
    match record.params.get("requestState") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => {
            let binding = binding(caller, record);
            let state = server.state_signer.verify(text, &binding, server.services.now())?;
            kept = state.kept;
            for (key, answer) in state.answers {
                answers.entry(key).or_insert(answer);
            }
        }
        Some(_) => return Err(RpcError::invalid_params("params.requestState: must be a string")),
    }
    Ok(RequestState { answers, kept })
}

fn binding(caller: &Caller, record: &CallRecord) -> String {
    let principal = caller.principal().to_string();
    let session = record.acting_session.as_deref().unwrap_or_default();
    state_binding(&principal, session, record.method, &record.name, record.arguments())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tools_object_passes_byte_for_byte_and_once_more_as_text() {
        let object = RawValue::from_string(r#"{"b": 1.0,"a":"x\n"}"#.to_owned()).unwrap();
        let id = RawValue::from_string("7".to_owned()).unwrap();
        let answer = CallAnswer::from_outcome(&id, Ok(Output::Object(object)), RequestEra::Legacy);
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
        let answer = CallAnswer::from_outcome(&id, Ok(output()), RequestEra::Legacy);
        assert_eq!(answer.message, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#));
        assert_eq!(answer.outcome, RequestOutcome::ToolError);
        let answer = CallAnswer::from_outcome(&id, Ok(output()), RequestEra::Modern);
        let typed = result.replacen('{', r#"{"resultType":"complete","#, 1);
        assert_eq!(answer.message, format!(r#"{{"jsonrpc":"2.0","id":7,"result":{typed}}}"#));
    }

    #[test]
    fn what_the_client_lacks_is_an_error_of_the_protocol_only_without_sessions() {
        let id = RawValue::from_string("7".to_owned()).unwrap();
        let missing = || Err(Failure::MissingCapability(json!({ "roots": {} })));
        let answer = CallAnswer::from_outcome(&id, missing(), RequestEra::Legacy);
        assert_eq!((answer.status, answer.outcome), (200, RequestOutcome::ToolError));
        let answer = CallAnswer::from_outcome(&id, missing(), RequestEra::Modern);
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
        let read: McpTaskOutcome = serde_json::from_str(&stored).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), stored);
        let protocol = Failure::Protocol { code: -5, message: "no".into(), data: None };
        let end = task_end(Err(protocol));
        assert_eq!(end.state, CallState::Failed);
        assert_eq!(end.message.unwrap(), r#"{"error":{"code":-5,"message":"no"}}"#);
    }
}
