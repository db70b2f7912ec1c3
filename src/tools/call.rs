//! What a running tool knows of its caller, and what it may say to it.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};

use super::{Failure, ToolError};
use crate::{
    domain::{Caller, Timestamp},
    service::Services,
};

/// One call of a tool. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Call {
    /// What the system does.
    pub services: Services,
    /// Who calls, by credential.
    pub caller: Caller,
    /// The session on whose behalf the call is made: that of the token, else the one that the operator names with
    /// the `Svc-Session-Id` header, else the MCP session; `None` if there is none of these.
    pub session: Option<Arc<str>>,
    /// When the call came in. One that is run again after a restart keeps its time, so that a bound on waiting holds
    /// across it.
    pub started_at: Timestamp,
    /// The other end.
    pub far_end: Arc<dyn FarEnd>,
}

impl Call {
    /// A call with nobody to talk to on the way.
    pub fn alone(services: Services, caller: Caller) -> Self {
        let session = caller.session().map(Arc::from);
        let started_at = services.now();
        Self { services, caller, session, started_at, far_end: Arc::new(Nobody) }
    }

    /// What is left of a bound on waiting, which counts from when the call came in: one that is run again waits no
    /// longer for that.
    pub fn time_left(&self, bound: Duration) -> Duration {
        bound.saturating_sub(self.services.now().since(self.started_at))
    }

    /// Says how far the tool has come. Clients that did not ask for it are not bothered.
    pub async fn progress(&self, progress: Progress) {
        self.far_end.progress(progress).await;
    }

    /// Sends a log message to the client, if it wants such.
    pub async fn log(&self, level: LogLevel, data: Value) {
        self.far_end.log(level, data).await;
    }

    /// Asks the client (a person, a model, a list of roots) and answers what it said, by the keys of `asks`.
    ///
    /// Depending on the client's revision the tool waits here, or is run again from its beginning with the answers at
    /// hand: so what stands before the question must be harmless to repeat, and a failure must be passed on with `?`.
    pub async fn ask(&self, asks: Vec<Ask>) -> Result<Answers, Failure> {
        self.far_end.ask(asks).await
    }

    /// Goes on in the background: the client gets a task to look after, if it can. What follows may take long.
    pub async fn detach(&self) -> Result<(), Failure> {
        self.far_end.detach().await
    }
}

/// How far a tool has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Grows from one report to the next.
    pub progress: f64,
    /// What it grows to, if known.
    pub total: Option<f64>,
    /// What is going on.
    pub message: Option<String>,
}

/// Weight of a log message, the lightest first (RFC 5424 6.2.1).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// For who develops.
    Debug,
    /// In the course of things.
    Info,
    /// In the course of things, and of note.
    Notice,
    /// May become a fault.
    Warning,
    /// A fault.
    Error,
    /// A fault of a part.
    Critical,
    /// Somebody has to act.
    Alert,
    /// Nothing works.
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

/// A question to the client.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Names the answer.
    pub key: String,
    /// `elicitation/create`, `sampling/createMessage` or `roots/list`.
    pub method: &'static str,
    /// As the protocol has it for that method.
    pub params: Value,
}

/// What the client answered, by key.
pub type Answers = Map<String, Value>;

/// The other end of a call, as a tool sees it.
pub trait FarEnd: fmt::Debug + Send + Sync {
    /// See [`Call::progress`].
    fn progress(&self, progress: Progress) -> BoxFuture<'_, ()>;
    /// See [`Call::log`].
    fn log(&self, level: LogLevel, data: Value) -> BoxFuture<'_, ()>;
    /// See [`Call::ask`].
    fn ask(&self, asks: Vec<Ask>) -> BoxFuture<'_, Result<Answers, Failure>>;
    /// See [`Call::detach`].
    fn detach(&self) -> BoxFuture<'_, Result<(), Failure>>;
    /// Closes the connection that waits for the answer, which the client comes back for (SEP-1699).
    fn hang_up(&self) -> BoxFuture<'_, ()>;
    /// What the tool wants to have again when it is run again after a question.
    fn keep(&self, state: Value);
    /// What was kept.
    fn kept(&self) -> Option<Value>;
    /// What the client can do: an object of client capabilities.
    fn capabilities(&self) -> Value;
}

/// Nobody at the other end: a hook, `curl`, a test.
#[derive(Debug)]
pub struct Nobody;

impl FarEnd for Nobody {
    fn progress(&self, _: Progress) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn log(&self, _: LogLevel, _: Value) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn ask(&self, _: Vec<Ask>) -> BoxFuture<'_, Result<Answers, Failure>> {
        let error = ToolError::new(
            super::ErrorType::Unavailable,
            "this tool has to ask the client something, and a call without a session cannot be asked",
        );
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
