//! One call of a tool: who makes it, and how the tool speaks to the client on the way.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, value::RawValue};
use svc_model::{Caller, Timestamp, limits, quote};

use super::{Failure, ToolError};
use crate::service::Services;

/// One call of a tool. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Call {
    /// The rooms that do the work.
    pub services: Services,
    /// Who calls, by credential.
    pub caller: Caller,
    /// The session on whose behalf the call is made: that of the token, else the one that the operator names with
    /// the `Svc-Session-Id` header, else the MCP session; `None` if there is none of these.
    pub session: Option<Arc<str>>,
    /// When the call came in. One that is run again after a restart keeps its time, so that a bound on waiting holds
    /// across it.
    pub started_at: Timestamp,
    /// The client.
    pub far_end: Arc<dyn FarEnd>,
    /// What the client has named the request by, which servers behind the daemon are told.
    pub trace: RequestTrace,
    /// The request's `params` as they came, for a server behind the daemon; `None` if the call was put together here.
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
    /// A call whose client cannot be spoken to on the way.
    pub fn alone(services: Services, caller: Caller) -> Self {
        let session = caller.session().map(Arc::from);
        let started_at = services.now();
        Self {
            services,
            caller,
            session,
            started_at,
            far_end: Arc::new(NoFarEnd),
            trace: RequestTrace::default(),
            params: None,
        }
    }

    /// Whether a restart cut the call off, and it is run again.
    pub fn is_resumed(&self) -> bool {
        self.far_end.is_client() && self.params.is_none()
    }

    /// Whether a program made the call by itself, as a hook does, and no model over its client's connection.
    pub fn is_of_program(&self) -> bool {
        !self.far_end.is_client()
    }

    /// What is left of a bound on waiting. The bound counts from when the call came in, so a call that is run again waits no
    /// longer.
    pub fn time_left(&self, bound: Duration) -> Duration {
        bound.saturating_sub(self.services.now().since(self.started_at))
    }

    /// Says how far the tool has come, to a client that asked for it.
    pub async fn progress(&self, mut progress: ToolProgress) {
        progress.message = progress.message.map(|message| quote::plain(&message).into_owned());
        self.far_end.progress(progress).await;
    }

    /// Sends a log message to a client that wants messages of this level.
    pub async fn log(&self, level: LogLevel, mut data: Value) {
        quote::value(&mut data);
        self.far_end.log(level, data).await;
    }

    /// Asks the client (a person, a model, a list of roots), and gives its answers by the keys of the questions.
    ///
    /// Depending on the client's revision the tool waits here, or is run again from its beginning with the answers. So
    /// what stands before the question must be harmless to repeat, and a failure must be passed on with `?`.
    pub async fn ask(&self, mut asks: Vec<ClientQuestion>) -> Result<ClientAnswers, Failure> {
        for ask in &mut asks {
            quote::value(&mut ask.params);
        }
        self.far_end.ask(asks).await
    }

    /// Goes on in the background: a client that can gets a task in place of the result. What follows may take long.
    pub async fn detach(&self) -> Result<(), Failure> {
        self.far_end.detach().await
    }
}

/// A notification of a server behind the daemon about a call, with the params that it gave.
#[derive(Debug, Clone)]
pub enum RelayedNote {
    /// `notifications/progress`. The token is replaced by the client's own.
    Progress(Map<String, Value>),
    /// `notifications/message`.
    Log(LogLevel, Map<String, Value>),
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

/// The client at the other end of a call, as a tool sees it.
pub trait FarEnd: fmt::Debug + Send + Sync {
    /// Whether a client of MCP is there, whose model calls.
    fn is_client(&self) -> bool {
        true
    }
    /// See [`Call::progress`].
    fn progress(&self, progress: ToolProgress) -> BoxFuture<'_, ()>;
    /// See [`Call::log`].
    fn log(&self, level: LogLevel, data: Value) -> BoxFuture<'_, ()>;
    /// Passes a notification of a server behind the daemon on, as far as the client wants it.
    fn relay(&self, note: RelayedNote) -> BoxFuture<'_, ()>;
    /// See [`Call::ask`].
    fn ask(&self, asks: Vec<ClientQuestion>) -> BoxFuture<'_, Result<ClientAnswers, Failure>>;
    /// Whether a question ends the request, and the client makes the request again with the answers.
    fn asks_between_requests(&self) -> bool {
        false
    }
    /// See [`Call::detach`].
    fn detach(&self) -> BoxFuture<'_, Result<(), Failure>>;
    /// Closes the connection that waits for the answer, which the client comes back for (SEP-1699).
    fn hang_up(&self) -> BoxFuture<'_, ()>;
    /// Keeps a state for the run after a question.
    fn keep(&self, state: Value);
    /// The state that an earlier run kept.
    fn kept(&self) -> Option<Value>;
    /// The client's capabilities, as an object.
    fn capabilities(&self) -> Value;
    /// Where the reason stands as soon as the client has cancelled the call and said why.
    fn cancel_reason(&self) -> CancelReason {
        CancelReason::default()
    }
}

/// Why a client cancelled its call, in its own words. Empty until it has. Clones are one.
#[derive(Debug, Clone, Default)]
pub struct CancelReason(Arc<OnceLock<String>>);

impl CancelReason {
    /// Keeps the reason that a client gave, cut to [`limits::CANCEL_REASON_CHARS`]. The first counts.
    pub fn give(&self, reason: &str) {
        let cut = reason.chars().take(limits::CANCEL_REASON_CHARS).collect();
        // One that came before stays.
        self.0.set(cut).ok();
    }

    /// The reason.
    pub fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// A client that cannot be spoken to on the way: a hook, `curl`, a test.
#[derive(Debug)]
pub struct NoFarEnd;

impl FarEnd for NoFarEnd {
    fn is_client(&self) -> bool {
        false
    }

    fn progress(&self, _: ToolProgress) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn log(&self, _: LogLevel, _: Value) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn relay(&self, _: RelayedNote) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn ask(&self, _: Vec<ClientQuestion>) -> BoxFuture<'_, Result<ClientAnswers, Failure>> {
        let error = ToolError::new(
            super::ErrorType::Unavailable,
            "this tool has to ask the client something, and a call without a session cannot be asked",
        )
        .retryable(false);
        Box::pin(std::future::ready(Err(error.into())))
    }

    fn detach(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn hang_up(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn keep(&self, _: Value) {}

    fn kept(&self) -> Option<Value> {
        None
    }

    fn capabilities(&self) -> Value {
        Value::Object(Map::new())
    }
}
