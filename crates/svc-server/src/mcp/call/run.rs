//! A running call: the state machine that the top comment of `call` draws.

use std::{sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, OptionFuture};
use serde_json::{Map, Value};
use svc_core::{
    service,
    tools::{
        Call, CancelReason, ClientAnswers, ClientNote, ClientQuestion, Failure, LogLevel, Output,
        Pace, QuestionReply, Tool, ToolClient, ToolProgress, ToolSignal, UnhandedAnswers,
    },
};
use svc_model::{CallId, Caller, StreamName};
use svc_store::{CallRow, McpTransport};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    super::{
        McpServer,
        request::{ModernClient, RequestOrigin},
        rpc::{RequestEra, RpcError, notification_message},
        server::{RequestMeter, RequestOutcome},
    },
    active::{ActiveCall, CallRecord, GivenAnswers, RequestKey, RequestState},
    answer::{
        CallAnswer, CallMode, Round, ask_session, cancelled, end_call, missing_capability,
        open_round, say, still_permitted, task_end,
    },
};
use crate::web::SilenceTimer;

/// Capacity of the queue of answers to a task's questions.
const GIVEN: usize = 4;

/// The reply to a request whose call runs in another task of the runtime.
pub(super) enum RunReply {
    Answer(CallAnswer),
    Task(CallId),
}

pub(crate) enum WorkEnd<T> {
    Outcome(Result<T, Failure>),
    Cancelled,
    /// The response was dropped, or the daemon stops. The next start takes up recorded calls.
    Left,
}

pub(crate) struct CallRun {
    server: McpServer,
    caller: Caller,
    origin: RequestOrigin,
    pub(crate) record: Arc<CallRecord>,
    mode: CallMode,
    /// The sender to the request, if the call runs in another task of the runtime. It closes when
    /// the response is dropped.
    pub(super) reply: Option<oneshot::Sender<RunReply>>,
    client: Option<ToolClient>,
    signals: Option<mpsc::Receiver<ToolSignal>>,
    round: Round,
    asking: Vec<AbortOnDropHandle<()>>,
    control: Option<CallControl>,
    /// The tool reports its progress itself, so the run does not.
    reports_progress: bool,
    /// Dropped with the run: if the response was not handed over by then, messages bring them.
    answers: UnhandedAnswers,
}

/// The run's ends of the channels of an [`ActiveCall`].
struct CallControl {
    cancel: CancellationToken,
    given: mpsc::Receiver<GivenAnswers>,
    close_requests: watch::Sender<u64>,
}

enum RunEvent {
    End(WorkEnd<()>),
    Signal(ToolSignal),
    Given(GivenAnswers),
    /// The call has taken so long that it becomes a task.
    TaskDue,
    KeepAliveTimer,
}

impl CallRun {
    pub(super) fn new(
        server: &McpServer,
        caller: Caller,
        origin: RequestOrigin,
        record: CallRecord,
        mode: CallMode,
        RequestState { answers, kept }: RequestState,
    ) -> Self {
        let client = |capabilities, asks_between| {
            ToolClient::new(capabilities, asks_between, CancelReason::default(), kept)
        };
        let client = match &origin {
            RequestOrigin::Bare => None,
            RequestOrigin::Legacy(session) => Some(client(session.capabilities(), false)),
            RequestOrigin::Modern(modern) => Some(client(Arc::clone(&modern.capabilities), true)),
        };
        let (client, signals) = client.unzip();
        Self {
            server: server.clone(),
            caller,
            origin,
            record: Arc::new(record),
            mode,
            reply: None,
            client,
            signals,
            round: Round::new(answers),
            asking: Vec::new(),
            control: None,
            reports_progress: false,
            answers: UnhandedAnswers::default(),
        }
    }

    /// A call whose response is open, with the state that the client carries from earlier rounds.
    pub(crate) fn attached(
        server: &McpServer,
        caller: Caller,
        origin: RequestOrigin,
        record: CallRecord,
        messages: Option<mpsc::UnboundedSender<String>>,
    ) -> Result<Self, RpcError> {
        let round = match &origin {
            RequestOrigin::Modern(_) => open_round(server, &caller, &record)?,
            RequestOrigin::Bare | RequestOrigin::Legacy(_) => RequestState::default(),
        };
        Ok(Self::new(server, caller, origin, record, CallMode::Attached(messages), round))
    }

    pub(crate) fn call(&self) -> Call {
        let CallRecord { acting_session, started_at, trace, raw_params, .. } = &*self.record;
        Call {
            services: self.server.services.clone(),
            caller: self.caller.clone(),
            session: acting_session.clone(),
            started_at: *started_at,
            client: self.client.clone(),
            trace: trace.clone(),
            params: raw_params.clone(),
            answers: Some(self.answers.clone()),
        }
    }

    /// The answer made from an outcome; it may be a question to a client without sessions.
    fn answer(&self, outcome: Result<Output, Failure>) -> CallAnswer {
        match (self.origin.era(), outcome) {
            (RequestEra::Modern, Err(Failure::NeedsInput)) => self.input_required(),
            (era, outcome) => CallAnswer::from_outcome(&self.record.rpc_id, outcome, era),
        }
    }

    pub(crate) fn input_required(&self) -> CallAnswer {
        let kept = self.client.as_ref().and_then(ToolClient::kept);
        let Self { server, caller, record, round, .. } = self;
        let result = round.input_required(server, caller, record, kept);
        CallAnswer::new(&record.rpc_id, &result, RequestOutcome::InputRequired)
    }

    /// Registers a recorded call by its id, and by its request in a session.
    pub(super) fn register(&mut self, id: CallId, request: Option<RequestKey>) {
        let (given, receiver) = mpsc::channel(GIVEN);
        let (cancel, close_requests) = (CancellationToken::new(), watch::Sender::new(0));
        let active = ActiveCall {
            record: Arc::clone(&self.record),
            request,
            cancel: cancel.clone(),
            cancel_reason: self.call().cancel_reason(),
            close_requests: close_requests.subscribe(),
            given,
        };
        self.control = Some(CallControl { cancel, given: receiver, close_requests });
        self.server.running.insert(id, active);
    }

    /// Runs a tool to its end. Returns the answer if the caller of this function waits for it.
    /// Boxed, since it is large, and spawned and awaited in several places.
    pub(super) fn run_tool(
        mut self,
        tool: Arc<Tool>,
        arguments: Map<String, Value>,
    ) -> BoxFuture<'static, Option<CallAnswer>> {
        Box::pin(async move {
            let is_slow = tool.pace == Pace::Slow;
            // Any other call is counted with its request.
            let meter = matches!(self.mode, CallMode::Logged(..))
                .then(|| RequestMeter::start("tools/call", &self.record.name, RequestEra::Legacy));
            let work = tool.call(self.call(), arguments);
            let end = match self.drive(is_slow, work).await {
                // The token is not checked after a fast tool: the tool may have ended its own
                // session.
                WorkEnd::Outcome(outcome) if is_slow => {
                    WorkEnd::Outcome(self.still_permitted().await.and(outcome))
                }
                end => end,
            };
            let (mode, server) = (self.mode.clone(), self.server.clone());
            let has_result = matches!(end, WorkEnd::Outcome(Ok(_)));
            match (mode, end) {
                // A task's cancellation is recorded by `cancel_call`.
                (_, WorkEnd::Left)
                | (CallMode::Attached(_) | CallMode::Task(_), WorkEnd::Cancelled) => None,
                (CallMode::Attached(_), WorkEnd::Outcome(outcome)) => {
                    let answer = self.answer(outcome);
                    let Some(reply) = self.reply.take() else {
                        self.note_handed(has_result);
                        return Some(answer);
                    };
                    // The response may just have been dropped.
                    let is_there = reply.send(RunReply::Answer(answer)).is_ok();
                    self.note_handed(has_result && is_there);
                    None
                }
                (CallMode::Logged(id, stream), end) => {
                    let (end, outcome) = match end {
                        WorkEnd::Outcome(outcome) => self.answer(outcome).into_end(),
                        _ => (cancelled(), RequestOutcome::Cancelled),
                    };
                    if let Some(meter) = meter {
                        meter.count(&server.metrics, outcome);
                    }
                    let is_kept = end_call(&server, &id, &stream, end).await;
                    self.note_handed(has_result && is_kept);
                    None
                }
                (CallMode::Task(id), WorkEnd::Outcome(outcome)) => {
                    let stream = StreamName::new("mcp", &id);
                    let is_kept = end_call(&server, &id, &stream, task_end(outcome)).await;
                    self.note_handed(has_result && is_kept);
                    None
                }
            }
        })
    }

    /// Notes that the answers in the result were handed to the response, or are on record.
    fn note_handed(&self, is_so: bool) {
        if is_so {
            self.answers.note_handed();
        }
    }

    /// Fails if the caller's token was revoked while the tool waited.
    pub(crate) fn still_permitted(&self) -> impl Future<Output = Result<(), Failure>> {
        still_permitted(&self.server, &self.caller, &self.record.credential)
    }

    /// Polls `work` to its end, and meanwhile handles the tool's messages and questions for its
    /// client. A call that `is_slow` reports progress, and becomes a task if it takes long and its
    /// client supports tasks.
    pub(crate) async fn drive<T: Send>(
        &mut self,
        is_slow: bool,
        work: impl Future<Output = Result<T, Failure>> + Send,
    ) -> WorkEnd<T> {
        let mut outcome = None;
        let work = Box::pin(async {
            outcome = Some(work.await);
        });
        let end = self.poll_to_end(is_slow, work).await;
        match (end, outcome) {
            (WorkEnd::Outcome(_), Some(outcome)) => WorkEnd::Outcome(outcome),
            (WorkEnd::Cancelled, _) => WorkEnd::Cancelled,
            (WorkEnd::Left, _) | (WorkEnd::Outcome(_), None) => WorkEnd::Left,
        }
    }

    /// The loop of [`Self::drive`], which knows nothing of the outcome: so it exists once in the
    /// program and not for each kind of work.
    async fn poll_to_end(&mut self, is_slow: bool, mut work: BoxFuture<'_, ()>) -> WorkEnd<()> {
        let tuning = self.server.services.tuning();
        let (task_after, mut timer) =
            (tuning.mcp_task_after, SilenceTimer::new(tuning.sse_keep_alive));
        let started = Instant::now();
        let reports_alive = is_slow && self.client.is_some();
        let mut task_due = self.may_become_task().then(|| started + task_after);
        loop {
            let Self { server, origin, reply, signals, control, .. } = self;
            let control = control.as_mut().map(|it| (&it.cancel, &mut it.given));
            let (cancel, given) = control.unzip();
            let signal = signals.as_mut().map(mpsc::Receiver::recv);
            let given = given.map(mpsc::Receiver::recv);
            let event = tokio::select! {
                biased;
                end = interruption(server, origin, reply.as_mut(), cancel) => RunEvent::End(end),
                Some(Some(signal)) = OptionFuture::from(signal) => RunEvent::Signal(signal),
                Some(Some(given)) = OptionFuture::from(given) => RunEvent::Given(given),
                () = &mut work => RunEvent::End(WorkEnd::Outcome(Ok(()))),
                Some(()) = OptionFuture::from(task_due.map(sleep_until)) => RunEvent::TaskDue,
                () = timer.due(), if reports_alive => RunEvent::KeepAliveTimer,
            };
            match event {
                RunEvent::End(end) => {
                    Box::pin(self.pass_rest()).await;
                    return end;
                }
                RunEvent::Signal(signal) => Box::pin(self.take(signal)).await,
                RunEvent::Given((answers, stored)) => {
                    stored.send(Box::pin(self.take_answers(answers)).await).ok();
                }
                RunEvent::TaskDue => {
                    task_due = None;
                    if let Err(error) = Box::pin(self.become_task()).await {
                        tracing::warn!(?error, "a call cannot become a task");
                    }
                }
                RunEvent::KeepAliveTimer => {
                    Box::pin(self.report_alive(started.elapsed())).await;
                    timer.restart();
                }
            }
        }
    }

    async fn take(&mut self, signal: ToolSignal) {
        match signal {
            ToolSignal::Note(note) => {
                self.reports_progress |= matches!(note, ClientNote::Progress(_));
                self.pass(note).await;
            }
            ToolSignal::Ask(questions, reply) => self.ask(questions, reply).await,
            ToolSignal::Detach(reply) => {
                reply.send(self.become_task().await.map_err(Failure::from)).ok();
            }
            ToolSignal::CloseResponse => {
                if let Some(control) = &self.control {
                    control.close_requests.send_modify(|count| *count += 1);
                }
            }
        }
    }

    /// Sends the messages that the tool queued just before its end, ahead of the answer.
    async fn pass_rest(&mut self) {
        while let Some(Ok(signal)) = self.signals.as_mut().map(mpsc::Receiver::try_recv) {
            if let ToolSignal::Note(note) = signal {
                self.pass(note).await;
            }
        }
    }

    async fn pass(&self, note: ClientNote) {
        let (method, params) = match note {
            ClientNote::Progress(mut params) => {
                let Some(token) = self.record.progress_token() else { return };
                params.insert("progressToken".to_owned(), token.clone());
                ("notifications/progress", params)
            }
            ClientNote::Log(level, params) if self.wants_log(level) => {
                ("notifications/message", params)
            }
            ClientNote::Log(..) => return,
        };
        say(&self.server, &self.caller, &self.mode, notification_message(method, &params)).await;
    }

    fn wants_log(&self, level: LogLevel) -> bool {
        let lightest = match &self.origin {
            RequestOrigin::Bare => None,
            RequestOrigin::Legacy(session) => {
                Some(session.client().log_level.unwrap_or(LogLevel::Info))
            }
            RequestOrigin::Modern(client) => client.log_level,
        };
        lightest.is_some_and(|lightest| level >= lightest)
    }

    async fn report_alive(&self, elapsed: Duration) {
        if !self.reports_progress {
            let message = Some(format!("{} goes on", self.record.name));
            let progress = ToolProgress { progress: elapsed.as_secs_f64(), total: None, message };
            self.pass(ClientNote::Progress(progress.into_params())).await;
        }
    }

    async fn ask(&mut self, questions: Vec<ClientQuestion>, reply: QuestionReply) {
        let capabilities = self.call().capabilities();
        if let Some(failure) = missing_capability(&capabilities, &questions) {
            reply.send(Err(failure)).ok();
            return;
        }
        match &self.origin {
            RequestOrigin::Bare => {}
            RequestOrigin::Legacy(session) => {
                let (server, caller) = (self.server.clone(), self.caller.clone());
                let (credential, session) = (self.record.credential.clone(), Arc::clone(session));
                let asked =
                    ask_session(server, caller, credential, session, self.mode.clone(), questions);
                self.asking.push(AbortOnDropHandle::new(tokio::spawn(async move {
                    reply.send(asked.await).ok();
                })));
            }
            RequestOrigin::Modern(_) => self.ask_stateless(questions, reply).await,
        }
    }

    /// Asks a client without sessions those questions that it has not answered.
    async fn ask_stateless(&mut self, questions: Vec<ClientQuestion>, reply: QuestionReply) {
        let keys: Vec<String> = questions.iter().map(|question| question.key.clone()).collect();
        let outcome = match self.round.ask(&keys, questions) {
            Some(answers) => Ok(answers),
            None => match self.store_round().await {
                Ok(true) => return self.round.wait(keys, reply),
                Ok(false) => Err(Failure::NeedsInput),
                Err(error) => Err(error.into()),
            },
        };
        reply.send(outcome).ok();
    }

    async fn take_answers(&mut self, given: ClientAnswers) -> Result<(), service::Error> {
        self.round.take(given);
        self.store_round().await?;
        self.round.wake();
        Ok(())
    }

    /// Stores a task's open questions and its answers; returns false if the call is no task.
    async fn store_round(&self) -> Result<bool, service::Error> {
        let CallMode::Task(id) = &self.mode else { return Ok(false) };
        let (questions, answers) = (self.round.questions_json(), self.round.answers_json());
        self.server.services.mcp.ask_in_call(id, questions, Some(answers)).await?;
        self.server.tasks_changed.send_modify(|count| *count += 1);
        Ok(true)
    }

    fn may_become_task(&self) -> bool {
        self.reply.is_some() && self.origin.modern().is_some_and(ModernClient::has_tasks)
    }

    /// Records the call as a task, if its client supports tasks and waits for the answer.
    async fn become_task(&mut self) -> Result<(), service::Error> {
        let (Some(client), true) = (self.origin.modern(), self.may_become_task()) else {
            return Ok(());
        };
        let answers = Some(self.round.answers_json());
        let (services, caller) = (&self.server.services, &self.caller);
        let row = self.record.row(services, caller, client.revision);
        let id = row.call_id.clone();
        let row = CallRow { is_task: true, answers, ..row };
        services.mcp.begin_call(caller, row, McpTransport::Http, None).await?;
        self.register(id.clone(), None);
        self.mode = CallMode::Task(id.clone());
        if let Some(reply) = self.reply.take() {
            // The task continues if its client has just disconnected.
            reply.send(RunReply::Task(id)).ok();
        }
        Ok(())
    }
}

/// Waits for an interruption: a recorded call ends by cancellation, with its session or at the
/// daemon's stop; any other call ends with its response.
async fn interruption(
    server: &McpServer,
    origin: &RequestOrigin,
    reply: Option<&mut oneshot::Sender<RunReply>>,
    cancel: Option<&CancellationToken>,
) -> WorkEnd<()> {
    let Some(cancel) = cancel else {
        match reply {
            Some(reply) => reply.closed().await,
            None => std::future::pending().await,
        }
        return WorkEnd::Left;
    };
    let closed = async {
        match origin {
            RequestOrigin::Legacy(session) => session.closed.cancelled().await,
            RequestOrigin::Bare | RequestOrigin::Modern(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = server.stop.cancelled() => WorkEnd::Left,
        () = cancel.cancelled() => WorkEnd::Cancelled,
        () = closed => WorkEnd::Cancelled,
    }
}
