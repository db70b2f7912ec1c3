//! One call of a tool: its caller, what the tool sends to its client before the result, and its
//! result or failure.
//!
//! A tool has no connection to its client. It sends [`ToolSignal`]s to the adapter that runs the
//! call. The adapter knows whether a response is open, a row has to be written, or the client polls
//! a task.
//!
//! The result of a call through `ToolCall` names the called tool in its `_meta`, for clients and
//! people who see only `ToolCall`.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use svc_model::{Caller, Timestamp, limits, quote};
use svc_sys::telemetry;
use svc_wire::mcp;
use tokio::sync::{mpsc, oneshot};

use crate::service::{self, Services, agents::AnswerWaiter, process::RequestSender};

/// Capacity of the channel to the adapter. When it is full, the tool waits.
const SIGNALS: usize = 16;

#[derive(Debug, Clone)]
pub struct Call {
    pub services: Services,
    pub caller: Caller,
    /// The session that the call is made for: that of the token, else the one that the operator
    /// names with the `Svc-Session-Id` header, else the MCP session; `None` if there is none of
    /// these.
    pub session: Option<Arc<str>>,
    /// Time of the call. A repeat after a restart keeps it, so that a bound on waiting holds across
    /// the restart.
    pub started_at: Timestamp,
    /// The client whose model calls; `None` for a program that gets only the result: a hook,
    /// `curl`.
    pub client: Option<ToolClient>,
    /// The client's ids of the request, which are passed on to child servers, and its sender.
    pub trace: RequestTrace,
    /// The request's `params`, unchanged, for a child server; `None` if the call was composed here.
    pub params: Option<Arc<RawValue>>,
    /// The waits whose answers the result has; `None` if the adapter does not know when it has
    /// handed the response to the connection.
    pub answers: Option<UnhandedAnswers>,
}

/// Waits of a call whose answers its result has. If they are dropped before the response was handed
/// to the connection, messages bring the answers. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct UnhandedAnswers(Arc<Mutex<Vec<AnswerWaiter>>>);

impl UnhandedAnswers {
    fn lock(&self) -> MutexGuard<'_, Vec<AnswerWaiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The response was handed to the connection, or is on record.
    pub fn note_handed(&self) {
        self.lock().drain(..).for_each(AnswerWaiter::note_handed);
    }
}

/// The client's ids of a request, and who sent it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestTrace {
    /// `X-Request-Id`.
    pub request_id: Option<Arc<str>>,
    /// `traceparent` (W3C Trace Context).
    pub parent: Option<Arc<str>>,
    pub sender: RequestSender,
}

impl Call {
    pub fn alone(services: Services, caller: Caller) -> Self {
        let session = caller.session().map(Arc::from);
        let started_at = services.now();
        let (client, trace) = (None, RequestTrace::default());
        let (params, answers) = (None, None);
        Self { services, caller, session, started_at, client, trace, params, answers }
    }

    /// Keeps the wait for an answer that the result has until the response was handed over.
    pub(super) fn keep_until_handed(&self, wait: Option<AnswerWaiter>) {
        match (&self.answers, wait) {
            (Some(answers), Some(wait)) => answers.lock().push(wait),
            (None, Some(wait)) => wait.note_handed(),
            (_, None) => {}
        }
    }

    /// Whether a program made the call that gets only the result: a hook, `curl`.
    pub fn is_bare(&self) -> bool {
        self.client.is_none()
    }

    /// Whether this is a repeat of a call that a restart interrupted.
    pub fn is_resumed(&self) -> bool {
        self.client.is_some() && self.params.is_none()
    }

    /// The remaining part of a bound on waiting. The bound counts from the time of the call, so a
    /// repeat does not extend it.
    pub fn time_left(&self, bound: Duration) -> Duration {
        bound.saturating_sub(self.services.now().since(self.started_at))
    }

    pub fn progress(&self, progress: ToolProgress) -> impl Future<Output = ()> {
        self.note(ClientNote::Progress(progress.into_params()))
    }

    /// Sends a log message to a client that wants messages of this level.
    pub fn log(&self, level: LogLevel, mut data: Value) -> impl Future<Output = ()> {
        quote::value(&mut data);
        self.note(ClientNote::log(level, data))
    }

    pub fn note(&self, note: ClientNote) -> impl Future<Output = ()> {
        self.send(ToolSignal::Note(note))
    }

    /// Asks the client (a person, a model, a list of roots). Returns its answers by the keys of the
    /// questions.
    ///
    /// Depending on the client's revision, the tool waits here, or is run again from its beginning
    /// with the answers. So the code before the question must be idempotent, and a failure must be
    /// passed on with `?`.
    pub async fn ask(&self, mut questions: Vec<ClientQuestion>) -> Result<ClientAnswers, Failure> {
        let unavailable =
            |text: &str| ToolError::new(ErrorType::Unavailable, text.to_owned()).retryable(false);
        if self.is_bare() {
            let text = "this tool has to ask the client something, and a call without a session cannot be asked";
            return Err(unavailable(text).into());
        }
        for question in &mut questions {
            quote::value(&mut question.params);
        }
        let (reply, answers) = oneshot::channel();
        self.send(ToolSignal::Ask(questions, reply)).await;
        answers.await.unwrap_or_else(|_| Err(unavailable("the client is gone").into()))
    }

    /// Continues in the background: a client that supports tasks gets a task in place of the
    /// result. Call this before long work.
    pub async fn detach(&self) -> Result<(), Failure> {
        let (reply, done) = oneshot::channel();
        self.send(ToolSignal::Detach(reply)).await;
        // Without an adapter, nothing waits for the result.
        done.await.unwrap_or(Ok(()))
    }

    /// Closes the connection that waits for the response; the client reconnects for it (SEP-1699).
    pub fn close_response(&self) -> impl Future<Output = ()> {
        self.send(ToolSignal::CloseResponse)
    }

    async fn send(&self, signal: ToolSignal) {
        if let Some(client) = &self.client {
            client.0.signals.send(signal).await.ok();
        }
    }

    /// Stores a state for the run after the question.
    pub fn keep(&self, state: Value) {
        if let Some(client) = &self.client {
            *client.0.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        }
    }

    /// The state that this run or an earlier one stored.
    pub fn kept(&self) -> Option<Value> {
        self.client.as_ref().and_then(ToolClient::kept)
    }

    /// Whether a question ends the request, so that the client repeats the request with the
    /// answers.
    pub fn asks_between_requests(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.0.asks_between_requests)
    }

    pub fn capabilities(&self) -> Arc<Map<String, Value>> {
        let client = self.client.as_ref();
        client.map(|client| Arc::clone(&client.0.capabilities)).unwrap_or_default()
    }

    pub fn cancel_reason(&self) -> CancelReason {
        self.client.as_ref().map(|client| client.0.cancel_reason.clone()).unwrap_or_default()
    }
}

/// The client of a call, as the tool sees it. Clones share their state.
#[derive(Debug, Clone)]
pub struct ToolClient(Arc<ToolClientState>);

#[derive(Debug)]
struct ToolClientState {
    signals: mpsc::Sender<ToolSignal>,
    capabilities: Arc<Map<String, Value>>,
    asks_between_requests: bool,
    cancel_reason: CancelReason,
    kept: Mutex<Option<Value>>,
}

impl ToolClient {
    /// A client, and the receiver of the tool's signals. `kept` is the state of an earlier run.
    pub fn new(
        capabilities: Arc<Map<String, Value>>,
        asks_between_requests: bool,
        cancel_reason: CancelReason,
        kept: Option<Value>,
    ) -> (Self, mpsc::Receiver<ToolSignal>) {
        let (signals, receiver) = mpsc::channel(SIGNALS);
        let kept = Mutex::new(kept);
        let state =
            ToolClientState { signals, capabilities, asks_between_requests, cancel_reason, kept };
        (Self(Arc::new(state)), receiver)
    }

    pub fn kept(&self) -> Option<Value> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
pub enum ToolSignal {
    Note(ClientNote),
    /// See [`Call::ask`].
    Ask(Vec<ClientQuestion>, QuestionReply),
    /// See [`Call::detach`].
    Detach(oneshot::Sender<Result<(), Failure>>),
    /// See [`Call::close_response`].
    CloseResponse,
}

pub type QuestionReply = oneshot::Sender<Result<ClientAnswers, Failure>>;

#[derive(Debug, Clone)]
pub enum ClientNote {
    /// `notifications/progress`, without the client's token.
    Progress(Map<String, Value>),
    /// `notifications/message`.
    Log(LogLevel, Map<String, Value>),
}

impl ClientNote {
    pub fn log(level: LogLevel, data: Value) -> Self {
        let members = [("level", json!(level)), ("logger", json!("svc")), ("data", data)];
        Self::Log(
            level,
            members.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
        )
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ToolProgress {
    /// Must increase from one notification to the next.
    pub progress: f64,
    pub total: Option<f64>,
    /// The present step, for people.
    pub message: Option<String>,
}

impl ToolProgress {
    /// The params of the notification, without the client's token.
    pub fn into_params(self) -> Map<String, Value> {
        let message = self.message.map(|message| quote::plain(&message).into_owned());
        let members =
            [("total", self.total.map(Value::from)), ("message", message.map(Value::from))];
        let members = members.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let members = members.chain([("progress", json!(self.progress))]);
        members.map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Level of a log message, from the lowest (RFC 5424 6.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Debug,
    Info,
    /// Normal, but significant.
    Notice,
    Warning,
    Error,
    /// A component has failed.
    Critical,
    /// Somebody has to act at once.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl LogLevel {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }
}

#[derive(Debug, Clone)]
pub struct ClientQuestion {
    pub key: String,
    /// `elicitation/create`, `sampling/createMessage` or `roots/list`.
    pub method: &'static str,
    pub params: Value,
}

pub type ClientAnswers = Map<String, Value>;

/// The client's reason for cancelling a call; empty until then. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct CancelReason(Arc<OnceLock<String>>);

impl CancelReason {
    /// Stores the client's reason, cut to [`limits::CANCEL_REASON_CHARS`]. Only the first call
    /// counts.
    pub fn give(&self, reason: &str) {
        let cut = reason.chars().take(limits::CANCEL_REASON_CHARS).collect();
        self.0.set(cut).ok();
    }

    pub fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

pub(super) const TOOL_CALL: &str = "ToolCall";
const OWN: &str = "svc";

/// Whether the client called this tool through `ToolCall`.
pub(super) fn is_through_tool_call(call: &Call) -> bool {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let Some(params) = call.params.as_deref().map(RawValue::get) else { return false };
    // Cheap check first: most calls are direct, and their arguments may be long.
    params.contains(TOOL_CALL)
        && serde_json::from_str(params).is_ok_and(|Named { name }| name == TOOL_CALL)
}

/// Adds the called tool to the `_meta` of a result. The rest of the result stays byte for byte.
pub(super) fn named(output: Output, server: Option<&str>, tool: &str) -> Output {
    let meta = json!({ "svc/server": server.unwrap_or(OWN), "svc/tool": tool });
    let whole = match &output {
        Output::Verbatim(result) => Some(with_meta(result.get(), &meta)),
        Output::Object(object) => {
            #[derive(Serialize)]
            #[serde(rename_all = "camelCase")]
            struct Members<'a> {
                content: [Value; 1],
                structured_content: &'a RawValue,
                #[serde(rename = "_meta")]
                meta: &'a Value,
            }
            let content = [json!({ "type": "text", "text": object.get() })];
            let members = Members { content, structured_content: object, meta: &meta };
            serde_json::to_string(&members).ok()
        }
        Output::Content { content, structured, is_error } => {
            let mut members = json!({ "content": content, "_meta": meta });
            if let Some(structured) = structured {
                members["structuredContent"] = structured.clone();
            }
            if *is_error {
                members["isError"] = json!(true);
            }
            Some(members.to_string())
        }
    };
    let whole = whole.and_then(|whole| RawValue::from_string(whole).ok());
    whole.map_or(output, Output::Verbatim)
}

/// Adds members to the `_meta` of an object.
fn with_meta(object: &str, meta: &Value) -> String {
    #[derive(Deserialize)]
    struct Known<'a> {
        #[serde(borrow, rename = "_meta")]
        meta: Option<&'a RawValue>,
    }
    let members = meta.to_string();
    let members = members.trim_matches(['{', '}']);
    let known = serde_json::from_str(object).ok().and_then(|Known { meta }| meta);
    let (at, head, tail) = match known.map(RawValue::get).filter(|it| it.starts_with('{')) {
        // Offset of the content of `_meta` in the text.
        Some(known) => (known.as_ptr().addr() - object.as_ptr().addr() + 1, "", known),
        None => (object.find('{').map_or(0, |at| at + 1), "\"_meta\":{", object),
    };
    let is_empty = tail.trim_start_matches('{').trim_start().starts_with('}');
    let end = if head.is_empty() { "" } else { "}" };
    let comma = if is_empty { "" } else { "," };
    format!("{}{head}{members}{end}{comma}{}", &object[..at], &object[at..])
}

/// What kind of failure it is. The words are a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorType {
    /// An argument breaks a rule.
    ValidationError,
    /// There is no such thing.
    NotFound,
    /// The call does not fit the present state.
    Conflict,
    /// Not for this caller.
    Forbidden,
    /// Not now: the daemon restarts, a bound is reached, the disk is full. The same call may do
    /// better later.
    Unavailable,
    /// A fault of the daemon.
    InternalError,
    /// The session has an active record already.
    ActiveGhapExists,
    /// There are too few records to say anything; `have` and `need` say how many.
    InsufficientData,
}

/// A failure as the caller sees it: `structuredContent.error` of a result with `isError`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ToolError {
    /// What kind of failure it is.
    #[serde(rename = "type")]
    pub kind: ErrorType,
    /// What went wrong and what to do, for people and models.
    pub message: String,
    /// The argument that breaks a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What that argument may be: a list of values, or a range in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Box<Value>>,
    /// How much there is, if there is too little.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub have: Option<u64>,
    /// How much it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need: Option<u64>,
    /// Why, in a word: `limit_reached`, or the setting that hides a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// Whether the same call may do better later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}

impl ToolError {
    /// An error of this kind. `Unavailable` is retryable, unless [`Self::retryable`] sets it
    /// otherwise.
    pub fn new(kind: ErrorType, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            kind,
            message,
            field: None,
            allowed: None,
            have: None,
            need: None,
            reason: None,
            retryable: (kind == ErrorType::Unavailable).then_some(true),
        }
    }

    /// The error of a call that began and whose outcome is unknown. A repeat may do its work twice.
    pub fn unknown_outcome(message: impl Into<String>) -> Self {
        Self::new(ErrorType::Unavailable, message)
            .retryable(false)
            .allowed(serde_json::json!({ "outcome": "unknown" }))
    }

    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(ErrorType::ValidationError, message) }
    }

    #[must_use]
    pub fn allowed(self, allowed: impl Into<Value>) -> Self {
        Self { allowed: Some(Box::new(allowed.into())), ..self }
    }

    #[must_use]
    pub fn retryable(self, retryable: bool) -> Self {
        Self { retryable: Some(retryable), ..self }
    }

    /// The caller lacks the scope of a tool. The text says how a person grants it.
    pub fn needs_scope(caller: &Caller, tool: &str, scope: &str) -> Self {
        let advice = caller.scope_advice(scope);
        Self::new(ErrorType::Forbidden, format!("{tool} needs the scope `{scope}`: {advice}"))
    }

    pub fn internal() -> Self {
        Self::new(ErrorType::InternalError, "internal error: the daemon's log says more")
    }
}

impl From<service::Error> for ToolError {
    fn from(error: service::Error) -> Self {
        use service::Error;
        let text = || error.to_string();
        let because = |kind, reason| Self { reason: Some(reason), ..Self::new(kind, text()) };
        let kind = match &error {
            Error::Invalid { field, .. } => return Self::invalid(field.clone(), text()),
            Error::NotYours { field, .. } => {
                let field = Some(field.clone());
                return Self { field, ..Self::new(ErrorType::Forbidden, text()) };
            }
            Error::Ambiguous { candidates, .. } => {
                let ids: Vec<&str> = candidates.iter().map(|one| one.id.as_str()).collect();
                return Self::new(ErrorType::ValidationError, text()).allowed(ids);
            }
            Error::NotFound { .. } => ErrorType::NotFound,
            Error::InsufficientData { have, need } => {
                let error = Self::new(ErrorType::InsufficientData, text());
                return Self { have: Some(*have), need: Some(*need), ..error };
            }
            Error::Conflict(_) | Error::SessionWithoutPeer => ErrorType::Conflict,
            Error::Unconfirmed { .. } => return because(ErrorType::Conflict, "confirm"),
            Error::WaitCycle(_) => return because(ErrorType::Conflict, "wait_cycle"),
            Error::ActiveGhap { .. } => ErrorType::ActiveGhapExists,
            Error::Forbidden(_) | Error::Unauthorized => ErrorType::Forbidden,
            Error::Unseen(denial) => return because(ErrorType::Forbidden, denial.as_str()),
            Error::LimitReached(_) => return because(ErrorType::Unavailable, "limit_reached"),
            Error::OutcomeUnknown { may_repeat, .. } => {
                return Self::unknown_outcome(text()).retryable(*may_repeat);
            }
            Error::StoreUnavailable(cause) => {
                return because(ErrorType::Unavailable, Error::code_of_server(cause));
            }
            Error::NotNow(_) | Error::Unavailable(_) | Error::StorageFull(_) => {
                ErrorType::Unavailable
            }
            Error::Internal(_) => {
                tracing::error!(error = telemetry::chain(&error), "a tool failed");
                ErrorType::InternalError
            }
        };
        Self::new(kind, format!("{error}{}", tool_hint(&error)))
    }
}

/// Names the tools that help after this error, as the end of its sentence.
fn tool_hint(error: &service::Error) -> &'static str {
    use service::{Error, ResourceKind};
    match error {
        Error::NotFound { kind, .. } => match kind {
            ResourceKind::Peer | ResourceKind::ReportingPeer => ": peer_list shows who is here",
            ResourceKind::Task => ": TaskList shows what there is",
            ResourceKind::MessageToPeer => ": peer_inbox shows what there is",
            _ => "",
        },
        Error::SessionWithoutPeer => ": call peer_register first",
        Error::ActiveGhap { .. } => ": resolve it with resolve_ghap, or change it with update_ghap",
        _ => "",
    }
}

#[derive(Debug)]
pub enum Failure {
    /// A failure that is reported to the model.
    Tool(ToolError),
    /// The tool needs an answer from the client first. The adapter asks, and runs the tool again
    /// with the answer: see [`Call::ask`](super::Call::ask).
    NeedsInput,
    /// The client lacks a capability that the tool needs (-32021). An object of client
    /// capabilities.
    MissingCapability(Value),
    /// The request itself is wrong: a JSON-RPC error in place of a result.
    Protocol { code: i64, message: Cow<'static, str>, data: Option<Value> },
}

impl Failure {
    /// The client did not declare the tasks extension, which the tool needs.
    pub fn needs_tasks() -> Self {
        Self::MissingCapability(serde_json::json!({ "extensions": { mcp::TASKS_EXTENSION: {} } }))
    }
}

impl From<ToolError> for Failure {
    fn from(error: ToolError) -> Self {
        Self::Tool(error)
    }
}

impl From<service::Error> for Failure {
    fn from(error: service::Error) -> Self {
        Self::Tool(error.into())
    }
}

#[derive(Debug, Clone)]
pub enum Output {
    Object(Box<RawValue>),
    /// The whole result of a child server, byte for byte.
    Verbatim(Box<RawValue>),
    Content {
        content: Vec<Value>,
        structured: Option<Value>,
        is_error: bool,
    },
}

impl Output {
    pub(super) fn from_result(result: &impl Serialize) -> Result<Self, Failure> {
        let json = serde_json::value::to_raw_value(result).map_err(|_| ToolError::internal())?;
        Ok(Self::Object(json))
    }

    /// Quotes all strings for a model: see [`quote`].
    pub(super) fn plain(mut self) -> Self {
        match &mut self {
            Self::Object(object) => {
                if let Cow::Owned(json) = quote::json(object.get()) {
                    match RawValue::from_string(json) {
                        Ok(plain) => *object = plain,
                        // Unreachable: only strings were replaced, by strings.
                        Err(_) => return Self::error(&ToolError::internal()),
                    }
                }
            }
            Self::Verbatim(_) => {}
            Self::Content { content, structured, .. } => {
                content.iter_mut().chain(structured).for_each(quote::value);
            }
        }
        self
    }

    pub fn text(text: impl Into<String>) -> Self {
        let block = json!({ "type": "text", "text": text.into() });
        Self::Content { content: vec![block], structured: None, is_error: false }
    }

    /// A failure that is reported to the model.
    pub fn error(error: &ToolError) -> Self {
        let mut structured = json!({ "error": error });
        quote::value(&mut structured);
        let block = json!({ "type": "text", "text": structured.to_string() });
        Self::Content { content: vec![block], structured: Some(structured), is_error: true }
    }

    pub fn is_error(&self) -> bool {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Verdict {
            #[serde(default)]
            is_error: bool,
        }
        match self {
            Self::Object(_) => false,
            Self::Content { is_error, .. } => *is_error,
            Self::Verbatim(result) => {
                serde_json::from_str(result.get()).is_ok_and(|Verdict { is_error }| is_error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use svc_model::GhapId;

    use super::*;
    use crate::service::ResourceKind;

    #[test]
    fn the_called_tool_is_added_to_the_meta_of_an_unchanged_result() {
        let meta = r#""svc/server":"db","svc/tool":"db__query""#;
        for (result, expected) in [
            (r#"{ "z":1e400 }"#, format!(r#"{{"_meta":{{{meta}}}, "z":1e400 }}"#)),
            (r"{ }", format!(r#"{{"_meta":{{{meta}}} }}"#)),
            (
                r#"{"content":[],"_meta":{"x":1.0}}"#,
                format!(r#"{{"content":[],"_meta":{{{meta},"x":1.0}}}}"#),
            ),
            (r#"{"_meta": { } }"#, format!(r#"{{"_meta": {{{meta} }} }}"#)),
        ] {
            let output = Output::Verbatim(RawValue::from_string(result.to_owned()).unwrap());
            let Output::Verbatim(named) = named(output, Some("db"), "db__query") else {
                panic!("{result}")
            };
            assert_eq!(named.get(), expected);
            serde_json::from_str::<Value>(&expected.replace("1e400", "1")).unwrap();
        }
        let object = RawValue::from_string(r#"{"b":1.0}"#.to_owned()).unwrap();
        let Output::Verbatim(own) = named(Output::Object(object), None, "peer_list") else {
            panic!("a whole result")
        };
        let own: Value = serde_json::from_str(own.get()).unwrap();
        assert_eq!(own["_meta"], json!({ "svc/server": "svc", "svc/tool": "peer_list" }));
        assert_eq!(own["content"][0]["text"], r#"{"b":1.0}"#);
        assert_eq!(own["structuredContent"], json!({ "b": 1.0 }));
    }

    #[test]
    fn an_unavailable_error_says_whether_it_is_retryable() {
        let retryable =
            |error: ToolError| serde_json::to_value(error).unwrap()["retryable"].clone();
        let full = service::Error::LimitReached("full".to_owned());
        let away = service::Error::NotNow("the agent's host is away".to_owned());
        for (error, expected) in [
            (ToolError::from(full), Value::Bool(true)),
            (ToolError::from(away), Value::Bool(true)),
            (ToolError::new(ErrorType::Unavailable, "away"), Value::Bool(true)),
            (ToolError::unknown_outcome("it ended"), Value::Bool(false)),
            (ToolError::new(ErrorType::Conflict, "no"), Value::Null),
            (ToolError::internal(), Value::Null),
        ] {
            assert_eq!(retryable(error.clone()), expected, "{error:?}");
        }
    }

    #[test]
    fn an_error_names_the_tool_that_helps() {
        let not_found = |kind| service::Error::not_found(kind, "x");
        let active = service::Error::ActiveGhap { id: GhapId::from("ghap_1".to_owned()) };
        for (error, kind, message) in [
            (
                not_found(ResourceKind::Peer),
                ErrorType::NotFound,
                "there is no peer \"x\": peer_list shows who is here",
            ),
            (
                not_found(ResourceKind::ReportingPeer),
                ErrorType::NotFound,
                "there is no peer \"x\": peer_list shows who is here",
            ),
            (
                not_found(ResourceKind::MessageToPeer),
                ErrorType::NotFound,
                "there is no message for this peer \"x\": peer_inbox shows what there is",
            ),
            (not_found(ResourceKind::Message), ErrorType::NotFound, "there is no message \"x\""),
            (
                service::Error::SessionWithoutPeer,
                ErrorType::Conflict,
                "this session has no peer yet: call peer_register first",
            ),
            (
                active,
                ErrorType::ActiveGhapExists,
                "this session has an active record, ghap_1: resolve it with resolve_ghap, or change it with update_ghap",
            ),
        ] {
            let error = ToolError::from(error);
            assert_eq!((error.kind, error.message.as_str()), (kind, message));
        }
    }
}
