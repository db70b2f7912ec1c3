//! One call of a tool: who makes it, and what the tool tells and asks its client before the result.
//!
//! A tool has no connection to its client. It sends [`ToolSignal`]s to the adapter that runs the
//! call, which knows whether a response is open, a row has to be written, or the client asks for
//! the state of a task.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use serde_json::{Map, Value, json, value::RawValue};
use svc_model::{Caller, Timestamp, limits, quote};
use tokio::sync::{mpsc, oneshot};

use super::{ErrorType, Failure, ToolError};
use crate::service::Services;

/// Signals of one call that the adapter has not taken yet. A tool that sends more waits.
const SIGNALS: usize = 16;

/// One call of a tool. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Call {
    /// What does the work.
    pub services: Services,
    /// Who calls, by credential.
    pub caller: Caller,
    /// The session on whose behalf the call is made: that of the token, else the one that the
    /// operator names with the `Svc-Session-Id` header, else the MCP session; `None` if there is
    /// none of these.
    pub session: Option<Arc<str>>,
    /// When the call came in. One that is run again after a restart keeps its time, so that a bound
    /// on waiting holds across it.
    pub started_at: Timestamp,
    /// The client, whose model calls; `None` for a program that gets the result and nothing before
    /// it: a hook, `curl`.
    pub client: Option<ToolClient>,
    /// What the client has named the request by, which servers behind the daemon are told.
    pub trace: RequestTrace,
    /// The request's `params` as they came, for a server behind the daemon; `None` if the call was
    /// put together here.
    pub params: Option<Arc<RawValue>>,
}

/// What a client has named a request by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestTrace {
    /// `X-Request-Id`.
    pub request_id: Option<Arc<str>>,
    /// `traceparent` (W3C Trace Context).
    pub parent: Option<Arc<str>>,
}

impl Call {
    /// A call without a client.
    pub fn alone(services: Services, caller: Caller) -> Self {
        let session = caller.session().map(Arc::from);
        let started_at = services.now();
        let (client, trace, params) = (None, RequestTrace::default(), None);
        Self { services, caller, session, started_at, client, trace, params }
    }

    /// Whether a restart cut the call off, and it is run again.
    pub fn is_resumed(&self) -> bool {
        self.client.is_some() && self.params.is_none()
    }

    /// What is left of a bound on waiting. The bound counts from when the call came in, so a call
    /// that is run again waits no longer.
    pub fn time_left(&self, bound: Duration) -> Duration {
        bound.saturating_sub(self.services.now().since(self.started_at))
    }

    /// Says how far the tool has come, to a client that asked for it.
    pub async fn progress(&self, progress: ToolProgress) {
        self.note(ClientNote::Progress(progress.into_params())).await;
    }

    /// Sends a log message to a client that wants messages of this level.
    pub async fn log(&self, level: LogLevel, mut data: Value) {
        quote::value(&mut data);
        self.note(ClientNote::log(level, data)).await;
    }

    /// Sends a notification, as far as the client wants it.
    pub async fn note(&self, note: ClientNote) {
        self.send(ToolSignal::Note(note)).await;
    }

    /// Asks the client (a person, a model, a list of roots), and gives its answers by the keys of
    /// the questions.
    ///
    /// Depending on the client's revision the tool waits here, or is run again from its beginning
    /// with the answers. So what stands before the question must be harmless to repeat, and a
    /// failure must be passed on with `?`.
    pub async fn ask(&self, mut questions: Vec<ClientQuestion>) -> Result<ClientAnswers, Failure> {
        let unavailable =
            |text: &str| ToolError::new(ErrorType::Unavailable, text.to_owned()).retryable(false);
        if self.client.is_none() {
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

    /// Goes on in the background: a client that can gets a task in place of the result. What
    /// follows may take long.
    pub async fn detach(&self) -> Result<(), Failure> {
        let (reply, done) = oneshot::channel();
        self.send(ToolSignal::Detach(reply)).await;
        // Without an adapter nobody waits for the result.
        done.await.unwrap_or(Ok(()))
    }

    /// Closes the connection that waits for the answer, which the client comes back for (SEP-1699).
    pub async fn hang_up(&self) {
        self.send(ToolSignal::HangUp).await;
    }

    async fn send(&self, signal: ToolSignal) {
        if let Some(client) = &self.client {
            client.0.signals.send(signal).await.ok();
        }
    }

    /// Keeps a state for the run after a question.
    pub fn keep(&self, state: Value) {
        if let Some(client) = &self.client {
            *client.0.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        }
    }

    /// The state that this run or an earlier one kept.
    pub fn kept(&self) -> Option<Value> {
        self.client.as_ref().and_then(ToolClient::kept)
    }

    /// Whether a question ends the request, and the client makes the request again with the
    /// answers.
    pub fn asks_between_requests(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.0.asks_between_requests)
    }

    /// The client's capabilities.
    pub fn capabilities(&self) -> Arc<Map<String, Value>> {
        let client = self.client.as_ref();
        client.map(|client| Arc::clone(&client.0.capabilities)).unwrap_or_default()
    }

    /// Has the reason as soon as the client has cancelled the call and said why.
    pub fn cancel_reason(&self) -> CancelReason {
        self.client.as_ref().map(|client| client.0.cancel_reason.clone()).unwrap_or_default()
    }
}

/// A call's client as its tool reaches it. Clones are one.
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
    /// A client, and what the tool tells and asks it. `kept` is the state of an earlier run.
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

    /// The state for the run after a question.
    pub fn kept(&self) -> Option<Value> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a running tool tells or asks its client.
#[derive(Debug)]
pub enum ToolSignal {
    /// A notification.
    Note(ClientNote),
    /// See [`Call::ask`].
    Ask(Vec<ClientQuestion>, QuestionReply),
    /// See [`Call::detach`].
    Detach(oneshot::Sender<Result<(), Failure>>),
    /// See [`Call::hang_up`].
    HangUp,
}

/// Where the answers to questions go.
pub type QuestionReply = oneshot::Sender<Result<ClientAnswers, Failure>>;

/// A notification about a call, with its params.
#[derive(Debug, Clone)]
pub enum ClientNote {
    /// `notifications/progress`, without the client's token.
    Progress(Map<String, Value>),
    /// `notifications/message`.
    Log(LogLevel, Map<String, Value>),
}

impl ClientNote {
    /// A log message of the daemon's own.
    pub fn log(level: LogLevel, data: Value) -> Self {
        let members = [("level", json!(level)), ("logger", json!("svc")), ("data", data)];
        Self::Log(
            level,
            members.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
        )
    }
}

/// How far a tool has come, as the protocol tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolProgress {
    /// Grows from one notification to the next.
    pub progress: f64,
    /// What it grows to, if known.
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

/// Weight of a log message, the lightest first (RFC 5424 6.2.1).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For developers.
    Debug,
    /// Normal operation.
    Info,
    /// Normal, but significant.
    Notice,
    /// May become a fault.
    Warning,
    /// A fault.
    Error,
    /// A part has failed.
    Critical,
    /// Somebody has to act at once.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl LogLevel {
    /// The word for it.
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

/// A question of a tool to the client.
#[derive(Debug, Clone)]
pub struct ClientQuestion {
    /// The key of its answer.
    pub key: String,
    /// `elicitation/create`, `sampling/createMessage` or `roots/list`.
    pub method: &'static str,
    /// The parameters of that method.
    pub params: Value,
}

/// The answers of the client, by the keys of the questions.
pub type ClientAnswers = Map<String, Value>;

/// Why a client cancelled its call, in its own words. Empty until it has. Clones are one.
#[derive(Debug, Clone, Default)]
pub struct CancelReason(Arc<OnceLock<String>>);

impl CancelReason {
    /// Keeps the reason that a client gave, cut to [`limits::CANCEL_REASON_CHARS`]. The first
    /// counts.
    pub fn give(&self, reason: &str) {
        let cut = reason.chars().take(limits::CANCEL_REASON_CHARS).collect();
        // One that came before stays.
        self.0.set(cut).ok();
    }

    pub fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}
