//! How a running tool talks back to its client: on the open response, through the log, or as the state of a task.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{Mcp, calls::Running, ladder::Modern, message::notification_text, session::Session};
use crate::{
    domain::{CallId, Caller, McpSessionId, StreamName, Timestamp, mcp::Revision},
    service::mcp::NewCall,
    store::McpTransport,
    telemetry,
    tools::{
        ClientAnswers, ClientQuestion, ErrorType, Failure, FarEnd, LogLevel, ToolError,
        ToolProgress,
    },
};

/// One call's line to its client.
#[derive(Debug)]
pub(super) struct Wire {
    mcp: Mcp,
    caller: Caller,
    pub(super) line: Line,
    pub(super) draft: Draft,
    state: Mutex<State>,
    /// The tool has said how far it is, so nobody says it for it.
    reported: AtomicBool,
    /// Becoming a task and coming to an end do not happen at once.
    turning: tokio::sync::Mutex<()>,
    /// The call has become a task.
    pub(super) detached: CancellationToken,
    /// Counts wishes to close the connection that waits.
    pub(super) hung_up: watch::Sender<u64>,
    /// Counts answers to a task's questions.
    answered: watch::Sender<u64>,
}

/// Which era the client is of.
#[derive(Debug, Clone)]
pub(super) enum Line {
    Legacy(Arc<Session>),
    Modern(Modern),
}

/// What is put on record of a call when it has to be.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) rpc_id: String,
    pub(super) tool: String,
    pub(super) params: Map<String, Value>,
    pub(super) acts_for: Option<Arc<str>>,
    pub(super) started_at: Timestamp,
}

#[derive(Debug)]
struct State {
    out: Out,
    answers: ClientAnswers,
    /// What the client is asked: of a task what it waits for, else what the tool stopped at.
    asks: Vec<ClientQuestion>,
    kept: Option<Value>,
    /// The tool is done, and its outcome is on its way to whoever waits: it is too late for a task.
    is_over: bool,
}

/// Where messages go.
#[derive(Debug, Clone)]
pub(super) enum Out {
    /// To the response that is open. Unbounded, as nothing must wait for a reader: what a tool says on its way is
    /// little.
    Channel(mpsc::UnboundedSender<String>),
    /// Into the log, where the response reads it.
    Log(StreamName),
    /// Nowhere: a task has a state, which the client asks for.
    Task(CallId),
}

/// Questions to legacy clients that wait for an answer, by their JSON-RPC id.
#[derive(Debug, Default)]
pub(super) struct Questions(Mutex<HashMap<String, Question>>);

#[derive(Debug)]
struct Question {
    session: McpSessionId,
    reply: oneshot::Sender<Result<Value, Value>>,
}

impl Questions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Question>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands in an answer. One that nobody waits for is dropped: the question may be from before a restart.
    pub(super) fn answer(&self, session: &McpSessionId, id: &Value, outcome: Result<Value, Value>) {
        let Some(id) = id.as_str() else { return };
        let mut questions = self.lock();
        if questions.get(id).is_some_and(|question| question.session == *session)
            && let Some(question) = questions.remove(id)
        {
            // The tool may have gone in the meantime.
            question.reply.send(outcome).ok();
        }
    }
}

/// Takes a question back when the tool does not wait for it any more.
struct Asked<'a> {
    questions: &'a Questions,
    id: String,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.questions.lock().remove(&self.id);
    }
}

impl Wire {
    pub(super) fn new(mcp: Mcp, caller: Caller, line: Line, draft: Draft, out: Out) -> Arc<Self> {
        Arc::new(Self {
            mcp,
            caller,
            line,
            draft,
            state: Mutex::new(State {
                out,
                answers: ClientAnswers::new(),
                asks: Vec::new(),
                kept: None,
                is_over: false,
            }),
            reported: AtomicBool::new(false),
            turning: tokio::sync::Mutex::new(()),
            detached: CancellationToken::new(),
            hung_up: watch::Sender::new(0),
            answered: watch::Sender::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the client has answered already, and what the tool kept in an earlier round.
    pub(super) fn remember(&self, answers: ClientAnswers, kept: Option<Value>) {
        let mut state = self.state();
        state.answers.extend(answers);
        state.kept = kept;
    }

    /// What the tool stopped at, what was answered before, and what it wants to have again.
    pub(super) fn round(&self) -> (Vec<ClientQuestion>, ClientAnswers, Option<Value>) {
        let state = self.state();
        (state.asks.clone(), state.answers.clone(), state.kept.clone())
    }

    /// The task that the call has become. Held until the guard is dropped, so that it is so for whoever ends the call.
    pub(super) async fn settled(&self) -> (tokio::sync::MutexGuard<'_, ()>, Option<CallId>) {
        let guard = self.turning.lock().await;
        let task = match &self.state().out {
            Out::Task(id) => Some(id.clone()),
            _ => None,
        };
        (guard, task)
    }

    /// The outcome is given to whoever waits. Called while [`Self::settled`] is held.
    pub(super) fn is_over(&self) {
        self.state().is_over = true;
    }

    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(super) fn principal(&self) -> String {
        self.caller.principal().to_string()
    }

    pub(super) fn progress_token(&self) -> Option<&Value> {
        progress_token(&self.draft.params)
    }

    async fn send(&self, text: String) {
        let out = self.state().out.clone();
        match out {
            // Whoever reads may have gone; then so will the call.
            Out::Channel(sender) => drop(sender.send(text)),
            Out::Log(stream) => {
                if let Err(error) = self.mcp.services.mcp.say(&stream, text).await {
                    tracing::warn!(
                        error = telemetry::chain(&error),
                        "a message to a client is lost"
                    );
                }
            }
            Out::Task(_) => {}
        }
    }

    /// Says that the tool is still at it, for tools that do not say so themselves.
    pub(super) async fn heartbeat(&self, elapsed: std::time::Duration) {
        if self.reported.load(Relaxed) {
            return;
        }
        if let Some(token) = self.progress_token() {
            let message = format!("{} goes on", self.draft.tool);
            let progress = ToolProgress {
                progress: elapsed.as_secs_f64(),
                total: None,
                message: Some(message),
            };
            self.send(progress_text(token, &progress)).await;
        }
    }

    /// Takes in what a client answers to a task's questions.
    pub(super) async fn answer(&self, given: ClientAnswers) -> Result<(), crate::service::Error> {
        let (id, asks, answers) = {
            let mut state = self.state();
            let Out::Task(id) = state.out.clone() else { return Ok(()) };
            for (key, value) in given {
                if state.asks.iter().any(|ask| ask.key == key) {
                    state.answers.insert(key, value);
                }
            }
            let State { asks, answers, .. } = &mut *state;
            asks.retain(|ask| !answers.contains_key(&ask.key));
            let asks = (!asks.is_empty()).then(|| asks_json(asks).to_string());
            (id, asks, Value::from(answers.clone()).to_string())
        };
        self.mcp.services.mcp.ask_in_call(&id, asks, Some(answers)).await?;
        self.answered.send_modify(|count| *count += 1);
        self.mcp.tasks_changed.send_modify(|count| *count += 1);
        Ok(())
    }

    async fn ask_legacy(
        &self,
        session: &Session,
        asks: Vec<ClientQuestion>,
    ) -> Result<ClientAnswers, Failure> {
        let mut answers = ClientAnswers::new();
        for ask in asks {
            let id = format!("svc-{}", crate::service::new_secret().split_at(24).0);
            let (reply, answer) = oneshot::channel();
            let question = Question { session: session.id.clone(), reply };
            self.mcp.questions.lock().insert(id.clone(), question);
            let _asked = Asked { questions: &self.mcp.questions, id: id.clone() };
            let request =
                json!({ "jsonrpc": "2.0", "id": id, "method": ask.method, "params": ask.params });
            self.send(request.to_string()).await;
            let gone = || ToolError::new(ErrorType::Unavailable, "the client did not answer");
            match answer.await.map_err(|_| gone())? {
                Ok(value) => answers.insert(ask.key, value),
                Err(error) => {
                    let said =
                        error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
                    let text = format!("the client refused {}: {said}", ask.method);
                    return Err(ToolError::new(ErrorType::Unavailable, text).into());
                }
            };
        }
        Ok(answers)
    }

    async fn ask_modern(&self, asks: Vec<ClientQuestion>) -> Result<ClientAnswers, Failure> {
        let keys: Vec<String> = asks.iter().map(|ask| ask.key.clone()).collect();
        let task = {
            let mut state = self.state();
            if let Some(answers) = all_of(&keys, &state.answers) {
                return Ok(answers);
            }
            state.asks = asks;
            let State { asks, answers, .. } = &mut *state;
            asks.retain(|ask| !answers.contains_key(&ask.key));
            match &state.out {
                Out::Task(id) => {
                    let answers = Value::from(state.answers.clone()).to_string();
                    (id.clone(), asks_json(&state.asks).to_string(), answers)
                }
                _ => return Err(Failure::NeedsInput),
            }
        };
        let mut answered = self.answered.subscribe();
        let (id, asks, answers) = task;
        self.mcp.services.mcp.ask_in_call(&id, Some(asks), Some(answers)).await?;
        self.mcp.tasks_changed.send_modify(|count| *count += 1);
        loop {
            if let Some(answers) = all_of(&keys, &self.state().answers) {
                return Ok(answers);
            }
            // We hold the sender.
            answered.changed().await.ok();
        }
    }

    /// Puts the call on record as a task, if the client can look after one.
    async fn become_task(self: &Arc<Self>) -> Result<(), Failure> {
        let Line::Modern(modern) = &self.line else { return Ok(()) };
        if !modern.has_tasks() {
            return Ok(());
        }
        let _turning = self.turning.lock().await;
        {
            let state = self.state();
            if state.is_over || matches!(state.out, Out::Task(_)) {
                return Ok(());
            }
        }
        let answers = Value::from(self.state().answers.clone()).to_string();
        let new = self.draft.record(None, modern.revision, true, Some(answers));
        let (row, _) = self.mcp.services.mcp.begin_call(&self.caller, new, None).await?;
        self.state().out = Out::Task(row.call_id.clone());
        self.mcp.calls.insert(row.call_id, None, Running::new(Arc::clone(self)));
        self.detached.cancel();
        Ok(())
    }
}

impl Draft {
    /// The record to be made of it.
    pub(super) fn record(
        &self,
        session: Option<(McpSessionId, McpTransport)>,
        revision: Revision,
        is_task: bool,
        answers: Option<String>,
    ) -> NewCall {
        NewCall {
            session,
            acts_for: self.acts_for.as_deref().map(str::to_owned),
            revision,
            rpc_id: self.rpc_id.clone(),
            tool: self.tool.clone(),
            params: Value::from(self.params.clone()).to_string(),
            is_task,
            answers,
            started_at: self.started_at,
        }
    }
}

fn all_of(keys: &[String], answers: &ClientAnswers) -> Option<ClientAnswers> {
    keys.iter().map(|key| Some((key.clone(), answers.get(key)?.clone()))).collect()
}

/// Questions as `inputRequests`.
pub(super) fn asks_json(asks: &[ClientQuestion]) -> Value {
    asks.iter()
        .map(|ask| (ask.key.clone(), json!({ "method": ask.method, "params": ask.params })))
        .collect()
}

pub(super) fn progress_token(params: &Map<String, Value>) -> Option<&Value> {
    let token = params.get("_meta")?.get("progressToken")?;
    (token.is_string() || token.is_number()).then_some(token)
}

pub(super) fn progress_text(token: &Value, progress: &ToolProgress) -> String {
    let mut params = json!({ "progressToken": token, "progress": progress.progress });
    if let Some(total) = progress.total {
        params["total"] = json!(total);
    }
    if let Some(message) = &progress.message {
        params["message"] = json!(message);
    }
    notification_text("notifications/progress", &params)
}

pub(super) fn log_text(level: LogLevel, data: &Value) -> String {
    let params = json!({ "level": level, "logger": "svc", "data": data });
    notification_text("notifications/message", &params)
}

/// A wire as tools hold it.
#[derive(Debug)]
pub(super) struct End(pub(super) Arc<Wire>);

impl FarEnd for End {
    fn progress(&self, progress: ToolProgress) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.reported.store(true, Relaxed);
            if let Some(token) = self.0.progress_token() {
                self.0.send(progress_text(token, &progress)).await;
            }
        })
    }

    fn log(&self, level: LogLevel, data: Value) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let wanted = match &self.0.line {
                Line::Legacy(session) => Some(session.log_level().unwrap_or(LogLevel::Info)),
                Line::Modern(modern) => modern.log_level,
            };
            if wanted.is_some_and(|wanted| level >= wanted) {
                self.0.send(log_text(level, &data)).await;
            }
        })
    }

    fn ask(&self, asks: Vec<ClientQuestion>) -> BoxFuture<'_, Result<ClientAnswers, Failure>> {
        Box::pin(async move {
            let capabilities = self.capabilities();
            for ask in &asks {
                let needed = match ask.method {
                    "elicitation/create" => "elicitation",
                    "sampling/createMessage" => "sampling",
                    _ => "roots",
                };
                if capabilities.get(needed).is_none() {
                    return Err(Failure::MissingCapability(json!({ needed: {} })));
                }
            }
            match &self.0.line {
                Line::Legacy(session) => self.0.ask_legacy(session, asks).await,
                Line::Modern(_) => self.0.ask_modern(asks).await,
            }
        })
    }

    fn detach(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.0.become_task())
    }

    fn hang_up(&self) -> BoxFuture<'_, ()> {
        self.0.hung_up.send_modify(|count| *count += 1);
        Box::pin(std::future::ready(()))
    }

    fn keep(&self, state: Value) {
        self.0.state().kept = Some(state);
    }

    fn kept(&self) -> Option<Value> {
        self.0.state().kept.clone()
    }

    fn capabilities(&self) -> Value {
        match &self.0.line {
            Line::Legacy(session) => Value::Object(Map::clone(&session.capabilities())),
            Line::Modern(modern) => Value::Object(modern.capabilities.clone()),
        }
    }
}
