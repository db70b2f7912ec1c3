//! Running tools: at once, on a stream that can be resumed, or as a task.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use serde_json::{Map, Value, json, value::RawValue};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{
    Mcp, RpcError,
    dispatch::server_meta,
    far_end::{Draft, End, Line, Out, Wire, asks_json, log_text, progress_text, progress_token},
    ladder,
    message::{INTERNAL_ERROR, Request, error_text, result_text},
    seal::{Binding, Carried},
    session::Session,
    tasks,
};
use crate::{
    domain::{CallId, Caller, McpSessionId, StreamName, Timestamp, limits, mcp::Revision},
    service::{self, mcp::CallEnd},
    store::{CallRow, CallState, McpTransport},
    telemetry,
    tools::{
        Call, ClientAnswers, ErrorType, Failure, FarEnd, LogLevel, NoFarEnd, Output, Pace, Tool,
        ToolError, ToolProgress,
    },
};

/// What a request is answered with, and how it went.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) status: u16,
    pub(super) outcome: &'static str,
}

/// An answer that may take a while, and what is said on the way to it.
pub(super) struct Pending {
    pub(super) answer: BoxFuture<'static, Answer>,
    pub(super) messages: Option<mpsc::UnboundedReceiver<String>>,
}

/// What comes of a call.
pub(super) enum Reply {
    /// The answer, as soon as it is there.
    Pending(Pending),
    /// A stream of the log that has the answer at its end.
    Stream { call: CallId, stream: StreamName, session: Arc<Session> },
}

/// Calls that are at work in this process.
#[derive(Debug, Default)]
pub(super) struct Calls(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    running: HashMap<CallId, Running>,
    /// By session and request id, for `notifications/cancelled` and for requests that come twice. The id as we write
    /// it: clients write the same text in several ways.
    requests: HashMap<(McpSessionId, String), CallId>,
}

/// A call at work.
#[derive(Debug, Clone)]
pub(super) struct Running {
    pub(super) wire: Arc<Wire>,
    pub(super) cancel: CancellationToken,
}

impl Running {
    pub(super) fn new(wire: Arc<Wire>) -> Self {
        Self { wire, cancel: CancellationToken::new() }
    }
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(
        &self,
        id: CallId,
        request: Option<(McpSessionId, String)>,
        running: Running,
    ) {
        let mut known = self.lock();
        if let Some(request) = request {
            known.requests.insert(request, id.clone());
        }
        known.running.insert(id, running);
    }

    pub(super) fn get(&self, id: &CallId) -> Option<Running> {
        self.lock().running.get(id).cloned()
    }

    /// The call at work for a request of this session.
    pub(super) fn of_request(
        &self,
        session: &McpSessionId,
        rpc_id: &Value,
    ) -> Option<(CallId, Running)> {
        let known = self.lock();
        let id = known.requests.get(&(session.clone(), rpc_id.to_string()))?;
        Some((id.clone(), known.running.get(id)?.clone()))
    }

    fn remove(&self, id: &CallId) {
        let mut known = self.lock();
        known.running.remove(id);
        known.requests.retain(|_, call| call != id);
    }
}

/// Where a `tools/call` comes from.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// No session, no era: a hook, `curl`.
    Bare,
    Legacy(Arc<Session>),
    Modern(ladder::Modern),
}

impl Mcp {
    /// Answers `tools/call`.
    pub(super) async fn call_tool(
        &self,
        caller: &Caller,
        origin: Origin,
        acts_for: Option<Arc<str>>,
        headers: &http::HeaderMap,
        mut request: Request,
    ) -> Result<Reply, RpcError> {
        let name = request.params.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| RpcError::invalid_params("params.name: must name a tool"))?;
        let Some(tool) = self.catalogue.find(caller, name) else {
            let name: String = name.chars().take(64).collect();
            return Err(RpcError::invalid_params(format!("Unknown tool: {name}")));
        };
        let acts_for = self.whose(caller, headers, &origin, acts_for, &request.params).await;
        let started_at = self.services.now();
        let line = match origin {
            Origin::Bare => {
                let arguments = arguments_of(request.params.remove("arguments"))?;
                let call = self.call(caller, acts_for, started_at, Arc::new(NoFarEnd));
                let run =
                    async move { conclude(&request.id, tool.call(call, arguments).await, None) };
                return Ok(Reply::Pending(Pending { answer: run.boxed(), messages: None }));
            }
            Origin::Legacy(session) => Line::Legacy(session),
            Origin::Modern(modern) => Line::Modern(modern),
        };
        let arguments = arguments_of(request.params.get("arguments").cloned())?;
        let (rpc_id, name) = (request.id.get().to_owned(), tool.name().to_owned());
        let draft = Draft { rpc_id, tool: name, params: request.params, acts_for, started_at };
        if let Line::Modern(modern) = &line {
            ladder::check_params(headers, &tool, &draft.params)?;
            if tool.is_task_only() && !modern.has_tasks() {
                return Err(missing(&Failure::needs_tasks()));
            }
        }
        Ok(match (tool.pace(), line) {
            (Pace::Fast, line) => {
                Reply::Pending(self.call_fast(caller, line, tool, arguments, draft, request.id))
            }
            (Pace::Slow, Line::Legacy(session)) => {
                let call = self.call_on_record(caller, session, tool, arguments, draft, request.id);
                Box::pin(call).await?
            }
            (Pace::Slow, line @ Line::Modern(_)) => {
                Reply::Pending(self.call_slow(caller, line, tool, arguments, draft, request.id)?)
            }
        })
    }

    pub(super) fn call(
        &self,
        caller: &Caller,
        acts_for: Option<Arc<str>>,
        started_at: Timestamp,
        far_end: Arc<dyn FarEnd>,
    ) -> Call {
        let (services, caller) = (self.services.clone(), caller.clone());
        Call { services, caller, session: acts_for, started_at, far_end }
    }

    /// The call that has this line to its client.
    fn call_over(&self, wire: &Arc<Wire>) -> Call {
        let (acts_for, started_at) = (wire.draft.acts_for.clone(), wire.draft.started_at);
        self.call(wire.caller(), acts_for, started_at, Arc::new(End(Arc::clone(wire))))
    }

    /// A tool that answers at once. It may still say something on the way.
    fn call_fast(
        &self,
        caller: &Caller,
        line: Line,
        tool: Arc<Tool>,
        arguments: Map<String, Value>,
        draft: Draft,
        id: Box<RawValue>,
    ) -> Pending {
        let (sender, messages) = mpsc::unbounded_channel();
        let wire = Wire::new(self.clone(), caller.clone(), line, draft, Out::Channel(sender));
        if let Err(error) = self.restore_round(&wire, "tools/call", tool.name()) {
            let answer = answer_error(&id, &error);
            return Pending { answer: std::future::ready(answer).boxed(), messages: None };
        }
        let call = self.call_over(&wire);
        let mcp = self.clone();
        let legacy = matches!(wire.line, Line::Legacy(_));
        let only_reads = tool.annotations().read_only_hint;
        let request = id.clone();
        let run = async move {
            let outcome = tool.call(call, arguments).await;
            mcp.conclude_round(&id, outcome, &wire)
        };
        // A legacy client that goes away does not cancel, so what changes something runs to its end.
        let answer = if legacy && !only_reads {
            let run = tokio::spawn(run);
            async move { run.await.unwrap_or_else(|_| lost(&request)) }.boxed()
        } else {
            run.boxed()
        };
        Pending { answer, messages: Some(messages) }
    }

    /// A tool that may wait, for a client without sessions: if it is gone the call is over, unless it has become a
    /// task.
    fn call_slow(
        &self,
        caller: &Caller,
        line: Line,
        tool: Arc<Tool>,
        arguments: Map<String, Value>,
        draft: Draft,
        id: Box<RawValue>,
    ) -> Result<Pending, RpcError> {
        let has_tasks = matches!(&line, Line::Modern(modern) if modern.has_tasks());
        let (sender, messages) = mpsc::unbounded_channel();
        let wire = Wire::new(self.clone(), caller.clone(), line, draft, Out::Channel(sender));
        self.restore_round(&wire, "tools/call", tool.name())?;
        let (done, finished) = oneshot::channel();
        let gone = CancellationToken::new();
        let runner = self.clone().run_slow(tool, arguments, Arc::clone(&wire), gone.clone(), done);
        self.tasks.spawn(runner);
        let (mcp, guard) = (self.clone(), gone.drop_guard());
        let answer = async move {
            let mut finished = finished;
            let patience = tokio::time::sleep(mcp.services.tuning().mcp_task_after);
            let mut patience = std::pin::pin!(patience);
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut finished => {
                        return match outcome {
                            Ok(outcome) => mcp.conclude_round(&id, outcome, &wire),
                            // It was done just when it became a task, and the task has the outcome.
                            Err(_) if wire.detached.is_cancelled() => break,
                            Err(_) => lost(&id),
                        };
                    }
                    () = wire.detached.cancelled() => break,
                    () = &mut patience, if has_tasks && !patience.is_elapsed() => {
                        let end = End(Arc::clone(&wire));
                        if let Err(error) = FarEnd::detach(&end).await {
                            tracing::warn!(?error, "a call cannot become a task");
                        }
                    }
                }
            }
            guard.disarm();
            match mcp.new_task(&wire).await {
                Ok(members) => {
                    Answer { text: result_text(&id, &members), status: 200, outcome: "task" }
                }
                Err(error) => answer_error(&id, &error.into()),
            }
        };
        Ok(Pending { answer: answer.boxed(), messages: Some(messages) })
    }

    async fn run_slow(
        self,
        tool: Arc<Tool>,
        arguments: Map<String, Value>,
        wire: Arc<Wire>,
        gone: CancellationToken,
        done: oneshot::Sender<Result<Output, Failure>>,
    ) {
        let call = self.call_over(&wire);
        let run = self.with_heartbeat(&wire, tool.call(call, arguments));
        let mut run = std::pin::pin!(run);
        let outcome = tokio::select! {
            biased;
            // Also the end of the process: then the client's connection is gone, too.
            () = gone.cancelled() => {
                let (_settled, task) = wire.settled().await;
                if task.is_none() {
                    return;
                }
                None
            }
            outcome = &mut run => Some(outcome),
            () = wire.detached.cancelled() => None,
        };
        let outcome = if let Some(outcome) = outcome {
            let (_settled, task) = wire.settled().await;
            if task.is_none() {
                wire.is_over();
                // Whoever waited may have gone just now.
                done.send(outcome).ok();
                return;
            }
            outcome
        } else {
            let (guard, task) = wire.settled().await;
            drop(guard);
            let Some(cancel) = task.and_then(|id| self.calls.get(&id)).map(|it| it.cancel) else {
                return;
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = cancel.cancelled() => return,
                outcome = &mut run => outcome,
            }
        };
        let (_settled, task) = wire.settled().await;
        if let Some(id) = task {
            let stream = StreamName::of("mcp", &id);
            self.end(&id, &stream, tasks::end_of(outcome)).await;
        }
    }

    /// A tool that may wait, in a session: put on record first, and answered through the log.
    async fn call_on_record(
        &self,
        caller: &Caller,
        session: Arc<Session>,
        tool: Arc<Tool>,
        arguments: Map<String, Value>,
        draft: Draft,
        id: Box<RawValue>,
    ) -> Result<Reply, RpcError> {
        // The same request once more is a client that lost its connection before it saw an id.
        let beginning = session.beginning.lock().await;
        if let Some((call, running)) = self.calls.of_request(&session.id, &value_of(&id))
            && running.wire.draft.params == draft.params
        {
            let stream = stream_of(&call, &session);
            drop(beginning);
            return Ok(Reply::Stream { call, stream, session });
        }
        let revision = session.revision();
        let first = first_message(&draft, revision);
        let new =
            draft.record(Some((session.id.clone(), session.transport)), revision, false, None);
        let (row, stream) = self.services.mcp.begin_call(caller, new, first).await?;
        let wire = Wire::new(
            self.clone(),
            caller.clone(),
            Line::Legacy(Arc::clone(&session)),
            draft,
            Out::Log(stream.clone()),
        );
        self.spawn_on_record(&row.call_id, &stream, tool, arguments, wire, id);
        drop(beginning);
        Ok(Reply::Stream { call: row.call_id, stream, session })
    }

    fn spawn_on_record(
        &self,
        call_id: &CallId,
        stream: &StreamName,
        tool: Arc<Tool>,
        arguments: Map<String, Value>,
        wire: Arc<Wire>,
        id: Box<RawValue>,
    ) {
        let Line::Legacy(session) = wire.line.clone() else { return };
        let running = Running::new(Arc::clone(&wire));
        let cancel = running.cancel.clone();
        let request = (session.id.clone(), value_of(&id).to_string());
        self.calls.insert(call_id.clone(), Some(request), running);
        let call = self.call_over(&wire);
        let (mcp, call_id, stream) = (self.clone(), call_id.clone(), stream.clone());
        let started = Instant::now();
        self.tasks.spawn(async move {
            let cancelled = CallEnd { state: CallState::Cancelled, message: None };
            let (end, outcome) = tokio::select! {
                biased;
                // The next start takes it up.
                () = mcp.stop.cancelled() => return,
                () = cancel.cancelled() => (cancelled, "cancelled"),
                () = session.closed.cancelled() => (cancelled, "cancelled"),
                outcome = mcp.with_heartbeat(&wire, tool.call(call, arguments)) => {
                    let answer = conclude(&id, outcome, None);
                    let state = if answer.outcome == "error" { CallState::Failed } else { CallState::Completed };
                    (CallEnd { state, message: Some(answer.text) }, answer.outcome)
                }
            };
            let name = wire.draft.tool.as_str().into();
            mcp.metrics.observe("tools/call", name, "legacy", outcome, started.elapsed());
            mcp.end(&call_id, &stream, end).await;
        });
    }

    /// Runs a tool, and says now and then that it goes on.
    async fn with_heartbeat<T>(&self, wire: &Wire, run: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let mut beats = tokio::time::interval_at(started + self.silence, self.silence);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut run = std::pin::pin!(run);
        loop {
            tokio::select! {
                biased;
                outcome = &mut run => return outcome,
                _ = beats.tick() => wire.heartbeat(started.elapsed()).await,
            }
        }
    }

    /// Puts the end of a call on record. A call without an end would have its client wait for ever, so a disk that is
    /// full now is tried again.
    pub(super) async fn end(&self, id: &CallId, stream: &StreamName, end: CallEnd) {
        loop {
            match self.services.mcp.end_call(id, stream, end.clone()).await {
                Ok(_) => break,
                Err(error) => {
                    tracing::error!(error = telemetry::chain(&error), call = %id, "cannot end a call");
                    tokio::select! {
                        () = self.stop.cancelled() => break,
                        () = tokio::time::sleep(limits::MCP_PATIENCE) => {}
                    }
                }
            }
        }
        self.calls.remove(id);
        self.tasks_changed.send_modify(|count| *count += 1);
    }

    /// Takes up the calls that the last stop or crash cut off: again from the beginning where that changes nothing,
    /// else with a result that says that nobody knows.
    pub(super) async fn recover_calls(&self) -> Result<(), service::Error> {
        for row in self.services.mcp.open_calls().await? {
            let id = row.call_id.clone();
            let caller = row.principal.as_ref().map(Caller::recovered);
            let transport = match &row.session_id {
                None => Some(McpTransport::Http),
                Some(session) => self.services.mcp.mcp_transport(session).await?,
            };
            let stream = row.stream(transport.unwrap_or(McpTransport::Http));
            if transport.is_none() {
                let end = CallEnd { state: CallState::Cancelled, message: None };
                self.services.mcp.end_call(&id, &stream, end).await?;
                continue;
            }
            let rpc_id = RawValue::from_string(row.rpc_id.clone()).ok();
            // Nobody's call, or one whose parameters cannot be read, is never run again.
            let again =
                caller.zip(serde_json::from_str(&row.params).ok()).and_then(|(caller, params)| {
                    let tool = self.catalogue.find(&caller, &row.tool)?;
                    tool.is_repeatable().then_some((caller, params, tool))
                });
            let (Some((caller, params, tool)), Some(rpc_id)) = (again, rpc_id.clone()) else {
                tracing::info!(call = %id, tool = row.tool, "a call was cut off by the restart");
                let error = cut_off(&row.tool);
                let end = if row.is_task {
                    tasks::end_of(Err(error.into()))
                } else {
                    let id = rpc_id.unwrap_or_else(|| RawValue::NULL.to_owned());
                    let answer = conclude(&id, Err(error.into()), None);
                    CallEnd { state: CallState::Completed, message: Some(answer.text) }
                };
                self.services.mcp.end_call(&id, &stream, end).await?;
                continue;
            };
            tracing::info!(call = %id, tool = row.tool, "a call goes on after the restart");
            self.resume_call(caller, row, params, stream, tool, rpc_id).await?;
        }
        Ok(())
    }

    async fn resume_call(
        &self,
        caller: Caller,
        row: CallRow,
        params: Map<String, Value>,
        stream: StreamName,
        tool: Arc<Tool>,
        rpc_id: Box<RawValue>,
    ) -> Result<(), service::Error> {
        let arguments =
            params.get("arguments").and_then(Value::as_object).cloned().unwrap_or_default();
        let draft = Draft {
            rpc_id: row.rpc_id.clone(),
            tool: row.tool.clone(),
            params,
            acts_for: row.acts_for.as_deref().map(Arc::from),
            started_at: row.started_at,
        };
        if let Some(session) = &row.session_id {
            let Some(session) = self.session(&caller, session.as_str()).await? else {
                return Ok(());
            };
            let out = Out::Log(stream.clone());
            let wire = Wire::new(self.clone(), caller.clone(), Line::Legacy(session), draft, out);
            self.spawn_on_record(&row.call_id, &stream, tool, arguments, wire, rpc_id);
            return Ok(());
        }
        let meta = draft.params.get("_meta").cloned().unwrap_or_default();
        let capabilities = meta.get(crate::domain::mcp::meta::CLIENT_CAPABILITIES);
        let modern = ladder::Modern {
            revision: row.revision,
            capabilities: capabilities.and_then(Value::as_object).cloned().unwrap_or_default(),
            log_level: None,
        };
        let out = Out::Task(row.call_id.clone());
        let wire = Wire::new(self.clone(), caller.clone(), Line::Modern(modern), draft, out);
        let answers: Option<ClientAnswers> =
            row.answers.as_deref().and_then(|it| serde_json::from_str(it).ok());
        wire.remember(answers.unwrap_or_default(), None);
        wire.detached.cancel();
        self.calls.insert(row.call_id, None, Running::new(Arc::clone(&wire)));
        let (done, _) = oneshot::channel();
        let runner = self.clone().run_slow(tool, arguments, wire, CancellationToken::new(), done);
        self.tasks.spawn(runner);
        Ok(())
    }

    /// What the client brings along from an earlier round of the same request.
    pub(super) fn restore_round(
        &self,
        wire: &Wire,
        method: &str,
        name: &str,
    ) -> Result<(), RpcError> {
        if matches!(wire.line, Line::Legacy(_)) {
            return Ok(());
        }
        let params = &wire.draft.params;
        let mut answers = match params.get("inputResponses") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(answers)) => answers.clone(),
            Some(_) => {
                return Err(RpcError::invalid_params("params.inputResponses: must be an object"));
            }
        };
        // What is no answer is asked for again.
        answers.retain(|_, answer| answer.is_object());
        let mut kept = None;
        match params.get("requestState") {
            None | Some(Value::Null) => {}
            Some(Value::String(state)) => {
                let principal = wire.principal();
                let arguments = params.get("arguments").unwrap_or(&Value::Null);
                let binding = Binding { principal: &principal, method, name, arguments };
                let carried = self.seal.open(state, &binding, self.services.now())?;
                kept = carried.kept;
                for (key, answer) in carried.answers {
                    answers.entry(key).or_insert(answer);
                }
            }
            Some(_) => {
                return Err(RpcError::invalid_params("params.requestState: must be a string"));
            }
        }
        wire.remember(answers, kept);
        Ok(())
    }

    /// The result that asks a stateless client for more, and has it bring along what was answered before.
    pub(super) fn input_required(&self, wire: &Wire, method: &str, name: &str) -> String {
        let (asks, answers, kept) = wire.round();
        let mut members =
            format!(r#""resultType":"input_required","inputRequests":{}"#, asks_json(&asks));
        if kept.is_some() || !answers.is_empty() {
            let principal = wire.principal();
            let arguments = wire.draft.params.get("arguments").unwrap_or(&Value::Null);
            let binding = Binding { principal: &principal, method, name, arguments };
            let state = self.seal.close(Carried { answers, kept }, &binding, self.services.now());
            members.push_str(r#","requestState":""#);
            members.push_str(&state);
            members.push('"');
        }
        members.push(',');
        members.push_str(&server_meta());
        members
    }

    /// The answer of a call whose tool may have stopped at a question.
    fn conclude_round(
        &self,
        id: &RawValue,
        outcome: Result<Output, Failure>,
        wire: &Wire,
    ) -> Answer {
        match (&wire.line, outcome) {
            (Line::Legacy(_), outcome) => conclude(id, outcome, None),
            (Line::Modern(_), Err(Failure::NeedsInput)) => {
                let members = self.input_required(wire, "tools/call", &wire.draft.tool);
                Answer { text: result_text(id, &members), status: 200, outcome: "input_required" }
            }
            (Line::Modern(_), outcome) => conclude(id, outcome, Some(&server_meta())),
        }
    }
}

fn arguments_of(given: Option<Value>) -> Result<Map<String, Value>, RpcError> {
    match given {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(arguments)) => Ok(arguments),
        Some(_) => Err(RpcError::invalid_params("params.arguments: must be an object")),
    }
}

/// The answer that a call's outcome makes. `meta`: what every result of a stateless revision has beside it.
pub(super) fn conclude(
    id: &RawValue,
    outcome: Result<Output, Failure>,
    meta: Option<&str>,
) -> Answer {
    let output = match outcome {
        Ok(output) => output,
        Err(Failure::Tool(error)) => Output::error(&error),
        Err(Failure::MissingCapability(_)) if meta.is_none() => {
            let text = "the client cannot do what this tool needs of it";
            Output::error(&ToolError::new(ErrorType::Unavailable, text))
        }
        Err(failure @ Failure::MissingCapability(_)) => {
            return answer_error(id, &missing(&failure));
        }
        Err(Failure::Protocol { code, message, data }) => {
            return answer_error(id, &RpcError { code, message, data, status: 200 });
        }
        Err(Failure::NeedsInput) => Output::error(&ToolError::internal()),
    };
    let outcome = if output.is_error() { "tool_error" } else { "ok" };
    let mut members = output.members(meta.map_or(0, |meta| meta.len() + 32));
    if let Some(meta) = meta {
        members.push_str(r#","resultType":"complete","#);
        members.push_str(meta);
    }
    Answer { text: result_text(id, &members), status: 200, outcome }
}

pub(super) fn answer_error(id: &RawValue, error: &RpcError) -> Answer {
    Answer { text: error_text(Some(id), error), status: error.status, outcome: "error" }
}

pub(super) fn missing(failure: &Failure) -> RpcError {
    let Failure::MissingCapability(required) = failure else {
        return RpcError::new(INTERNAL_ERROR, "internal error");
    };
    RpcError::missing_capability(required)
}

fn value_of(id: &RawValue) -> Value {
    serde_json::from_str(id.get()).unwrap_or_default()
}

/// The process goes down, or a task of ours was lost: the connection is gone with it. What comes back and asks again,
/// as the bridge does, knows it by its data.
pub(super) fn lost(id: &RawValue) -> Answer {
    let error = RpcError::new(INTERNAL_ERROR, "the daemon is going down")
        .data(json!({ "code": "unavailable", "retryable": true }));
    answer_error(id, &error.status(500))
}

fn cut_off(tool: &str) -> ToolError {
    let text = format!(
        "the daemon restarted while {tool} was running, and its outcome is unknown: look before you call it again"
    );
    ToolError {
        allowed: Some(json!({ "outcome": "unknown" })),
        ..ToolError::new(ErrorType::Unavailable, text)
    }
}

/// Revisions before 2025-11-25 have no priming event, and one of their clients breaks at it. A first message that
/// says something gives the stream an id just as well, so that the client can come back for the rest.
fn first_message(draft: &Draft, revision: Revision) -> Option<String> {
    if revision >= Revision::V2025_11_25 {
        return None;
    }
    let message = format!("{} has begun", draft.tool);
    Some(match progress_token(&draft.params) {
        Some(token) => progress_text(
            token,
            &ToolProgress { progress: 0.0, total: None, message: Some(message) },
        ),
        None => log_text(LogLevel::Debug, &json!(message)),
    })
}

pub(super) fn stream_of(call: &CallId, session: &Session) -> StreamName {
    match session.transport {
        McpTransport::Http => StreamName::of("mcp", call),
        McpTransport::Sse => StreamName::of("mcp", &session.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::mcp::TASKS_EXTENSION,
        mcp::{McpMetrics, McpParts, ladder::Modern},
        service::testing::services,
        store::testing::TestStore,
        tools::Catalogue,
        web::Beat,
    };

    async fn server() -> (TestStore, Mcp) {
        let test = TestStore::open().await;
        let mcp = Mcp::start(McpParts {
            services: services(&test),
            catalogue: Arc::new(Catalogue::new([])),
            resources: Vec::new(),
            prompts: Vec::new(),
            metrics: McpMetrics::default(),
            beat: Beat::new(limits::SSE_KEEP_ALIVE),
            stop: CancellationToken::new(),
        });
        (test, mcp.await.unwrap())
    }

    fn line() -> Line {
        let Value::Object(capabilities) = json!({ "extensions": { TASKS_EXTENSION: {} } }) else {
            unreachable!("it is one")
        };
        Line::Modern(Modern { revision: Revision::V2026_07_28, capabilities, log_level: None })
    }

    fn draft() -> Draft {
        Draft {
            rpc_id: "1".to_owned(),
            tool: "slow".to_owned(),
            params: Map::new(),
            acts_for: None,
            started_at: Timestamp::from_millis(0),
        }
    }

    #[tokio::test]
    async fn what_is_done_as_it_becomes_a_task_is_a_task() {
        let (_test, mcp) = server().await;
        let tool = Tool::raw("slow", "", json!({ "type": "object" }), |call, _| async move {
            call.detach().await?;
            Ok(Output::text("done"))
        });
        let id = RawValue::from_string("1".to_owned()).unwrap();
        let pending = mcp
            .call_slow(&Caller::Operator, line(), Arc::new(tool.slow()), Map::new(), draft(), id)
            .unwrap();
        // All of it is over before the client's request gets its turn.
        let mut ends = mcp.tasks_changed.subscribe();
        ends.wait_for(|count| *count > 0).await.unwrap();
        let answer = pending.answer.await;
        assert_eq!((answer.status, answer.outcome), (200, "task"), "{}", answer.text);
        assert!(answer.text.contains("\"completed\""), "{}", answer.text);
    }

    #[tokio::test]
    async fn what_is_done_becomes_no_task() {
        let (_test, mcp) = server().await;
        let (sender, _messages) = mpsc::unbounded_channel();
        let wire = Wire::new(mcp.clone(), Caller::Operator, line(), draft(), Out::Channel(sender));
        wire.is_over();
        FarEnd::detach(&End(Arc::clone(&wire))).await.unwrap();
        assert!(wire.settled().await.1.is_none());
        assert!(mcp.services.mcp.open_calls().await.unwrap().is_empty());
    }
}
