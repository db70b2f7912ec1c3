//! How a running tool talks to its client: on the open response, through the log, or by the state of a task.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::{Map, Value, json};
use svc_core::{
    service::{self, access::Access},
    tools::{
        Call, CancelReason, ClientAnswers, ClientQuestion, ErrorType, Failure, FarEnd, LogLevel,
        Output, Pace, RelayedNote, Tool, ToolError, ToolProgress,
    },
};
use svc_model::Caller;
use svc_sys::telemetry;
use tokio::time::Instant;

use super::super::{
    McpServer,
    era::ModernClient,
    rpc::{UNAUTHORIZED, notification_message, request_message},
    running::{AskOutcome, CallConversation, CallRecord, MessageSink, TaskQuestions},
    session::McpSession,
};

/// One call's way to its client.
#[derive(Debug)]
pub(crate) struct ClientChannel {
    pub(crate) server: McpServer,
    pub(crate) caller: Caller,
    pub(crate) client: CallClient,
    pub(crate) conversation: Arc<CallConversation>,
    /// The tool reports its progress itself, so nobody does it for the tool.
    reports_progress: AtomicBool,
}

/// The client of a call.
#[derive(Debug, Clone)]
pub(crate) enum CallClient {
    Legacy(Arc<McpSession>),
    Modern(ModernClient),
}

/// Params of `notifications/progress`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProgressParams<'a> {
    progress_token: &'a Value,
    progress: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

/// Params of `notifications/message`.
#[derive(Serialize)]
struct LogParams<'a> {
    level: LogLevel,
    logger: &'static str,
    data: &'a Value,
}

/// A tool's outcome, unless the caller's token was taken back while the tool waited. A tool that answers at once is not asked
/// about: it may have been the end of its own session.
pub(crate) async fn still_permitted(
    access: &Access,
    caller: &Caller,
    credential: &str,
    tool: &Tool,
    outcome: Result<Output, Failure>,
) -> Result<Output, Failure> {
    if tool.pace() == Pace::Fast {
        return outcome;
    }
    match access.check_credential(caller, credential).await {
        Ok(()) => outcome,
        Err(_) => Err(unauthorized()),
    }
}

/// What a caller gets in place of an answer when its token was taken back meanwhile.
pub(crate) fn unauthorized() -> Failure {
    Failure::Protocol {
        code: UNAUTHORIZED,
        message: "unauthorized: the token of this call is no longer good".into(),
        data: Some(json!({ "code": "unauthorized", "retryable": false })),
    }
}

/// `notifications/progress`.
pub(crate) fn progress_message(token: &Value, progress: &ToolProgress) -> String {
    let params = ProgressParams {
        progress_token: token,
        progress: progress.progress,
        total: progress.total,
        message: progress.message.as_deref(),
    };
    notification_message("notifications/progress", &params)
}

/// `notifications/message`.
pub(crate) fn log_message(level: LogLevel, data: &Value) -> String {
    notification_message("notifications/message", &LogParams { level, logger: "svc", data })
}

impl ClientChannel {
    pub(crate) fn new(
        server: &McpServer,
        caller: &Caller,
        client: CallClient,
        record: CallRecord,
        sink: MessageSink,
    ) -> Arc<Self> {
        Arc::new(Self {
            server: server.clone(),
            caller: caller.clone(),
            client,
            conversation: Arc::new(CallConversation::new(record, sink)),
            reports_progress: AtomicBool::new(false),
        })
    }

    /// The call as its tool sees it.
    pub(crate) fn call(self: &Arc<Self>) -> Call {
        let record = &self.conversation.record;
        Call {
            services: self.server.services.clone(),
            caller: self.caller.clone(),
            session: record.acting_session.clone(),
            started_at: record.started_at,
            far_end: Arc::clone(self) as Arc<dyn FarEnd>,
            trace: record.trace.clone(),
            params: record.raw_params.clone(),
        }
    }

    /// Runs a tool, and gives its outcome if the caller may still have it.
    pub(crate) async fn run(
        self: &Arc<Self>,
        tool: &Tool,
        arguments: Map<String, Value>,
    ) -> Result<Output, Failure> {
        let outcome = tool.call(self.call(), arguments).await;
        let (access, record) = (&self.server.services.access, &self.conversation.record);
        still_permitted(access, &self.caller, &record.credential, tool, outcome).await
    }

    /// Runs a tool, and reports now and then that it goes on.
    pub(crate) async fn with_heartbeat<T>(&self, run: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let mut pulse = self.server.pulse();
        let mut run = std::pin::pin!(run);
        loop {
            tokio::select! {
                biased;
                outcome = &mut run => return outcome,
                () = pulse.due() => self.report_alive(started.elapsed()).await,
            }
            pulse.spoke();
        }
    }

    async fn report_alive(&self, elapsed: Duration) {
        if self.reports_progress.load(Relaxed) {
            return;
        }
        let record = &self.conversation.record;
        if let Some(token) = record.progress_token() {
            let message = Some(format!("{} goes on", record.tool));
            let progress = ToolProgress { progress: elapsed.as_secs_f64(), total: None, message };
            self.send(progress_message(token, &progress)).await;
        }
    }

    async fn send(&self, message: String) {
        match self.conversation.sink() {
            // If the reader is gone, the call is about to end.
            MessageSink::Response(sender) => drop(sender.send(message)),
            MessageSink::Log(stream) => {
                if let Err(error) =
                    self.server.services.mcp.say(&self.caller, &stream, message).await
                {
                    let error = telemetry::chain(&error);
                    tracing::warn!(error, "a message to a client is lost");
                }
            }
            MessageSink::Task(_) => {}
        }
    }

    /// Asks one after the other, and waits for each answer.
    async fn ask_legacy(
        &self,
        session: &McpSession,
        questions: Vec<ClientQuestion>,
    ) -> Result<ClientAnswers, Failure> {
        let mut answers = ClientAnswers::new();
        for ask in questions {
            let mut question = self.server.questions.open(&session.id);
            self.send(request_message(&question.id, ask.method, &ask.params)).await;
            let gone = |_| ToolError::new(ErrorType::Unavailable, "the client did not answer");
            match (&mut question.reply).await.map_err(gone)? {
                Ok(answer) => {
                    let credential = &self.conversation.record.credential;
                    let access = &self.server.services.access;
                    let good = access.check_credential(&self.caller, credential).await;
                    good.map_err(|_| unauthorized())?;
                    answers.insert(ask.key, answer)
                }
                Err(error) => {
                    let reason = error.get("message").and_then(Value::as_str);
                    let reason = reason.unwrap_or("no reason given");
                    let text = format!("the client refused {}: {reason}", ask.method);
                    return Err(ToolError::new(ErrorType::Unavailable, text)
                        .retryable(false)
                        .into());
                }
            };
        }
        Ok(answers)
    }

    async fn ask_modern(&self, questions: Vec<ClientQuestion>) -> Result<ClientAnswers, Failure> {
        let keys: Vec<String> = questions.iter().map(|ask| ask.key.clone()).collect();
        match self.conversation.ask(questions) {
            AskOutcome::Answered(answers) => Ok(answers),
            AskOutcome::NextRound => Err(Failure::NeedsInput),
            AskOutcome::TaskWaits(task) => {
                store_questions(&self.server, task).await?;
                Ok(self.conversation.wait_for_answers(&keys).await)
            }
        }
    }

    /// Puts the call on record as a task, if the client can look after one.
    async fn become_task(&self) -> Result<(), Failure> {
        let CallClient::Modern(client) = &self.client else { return Ok(()) };
        if !client.has_tasks() {
            return Ok(());
        }
        let conversation = &self.conversation;
        let (_settled, _) = conversation.settled().await;
        if !conversation.may_become_task() {
            return Ok(());
        }
        let new = conversation.record.as_task(client.revision, conversation.answers_json());
        let (row, _) = self.server.services.mcp.begin_call(&self.caller, new, None).await?;
        self.server.running.insert(row.call_id.clone(), None, Arc::clone(conversation));
        conversation.set_task(row.call_id);
        Ok(())
    }

    fn wants_log(&self, level: LogLevel) -> bool {
        let lightest = match &self.client {
            CallClient::Legacy(session) => Some(session.log_level().unwrap_or(LogLevel::Info)),
            CallClient::Modern(client) => client.log_level,
        };
        lightest.is_some_and(|lightest| level >= lightest)
    }

    /// The capability that the client has not declared and that one of the questions needs.
    fn missing_capability(&self, questions: &[ClientQuestion]) -> Option<Failure> {
        let capabilities = self.capabilities();
        let needed = questions.iter().map(|ask| match ask.method {
            "elicitation/create" => "elicitation",
            "sampling/createMessage" => "sampling",
            _ => "roots",
        });
        let missing = needed.into_iter().find(|name| capabilities.get(name).is_none())?;
        Some(Failure::MissingCapability(json!({ missing: {} })))
    }
}

/// Stores the questions and answers of a task, and tells those who watch tasks.
pub(crate) async fn store_questions(
    server: &McpServer,
    task: TaskQuestions,
) -> Result<(), service::Error> {
    let TaskQuestions { task, questions, answers } = task;
    server.services.mcp.ask_in_call(&task, questions, Some(answers)).await?;
    server.tasks_changed.send_modify(|count| *count += 1);
    Ok(())
}

impl FarEnd for ClientChannel {
    fn progress(&self, progress: ToolProgress) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.reports_progress.store(true, Relaxed);
            if let Some(token) = self.conversation.record.progress_token() {
                self.send(progress_message(token, &progress)).await;
            }
        })
    }

    fn log(&self, level: LogLevel, data: Value) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if self.wants_log(level) {
                self.send(log_message(level, &data)).await;
            }
        })
    }

    fn relay(&self, note: RelayedNote) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let message = match note {
                RelayedNote::Progress(mut params) => {
                    self.reports_progress.store(true, Relaxed);
                    let Some(token) = self.conversation.record.progress_token() else { return };
                    params.insert("progressToken".to_owned(), token.clone());
                    notification_message("notifications/progress", &params)
                }
                RelayedNote::Log(level, params) if self.wants_log(level) => {
                    notification_message("notifications/message", &params)
                }
                RelayedNote::Log(..) => return,
            };
            self.send(message).await;
        })
    }

    fn ask(&self, questions: Vec<ClientQuestion>) -> BoxFuture<'_, Result<ClientAnswers, Failure>> {
        Box::pin(async move {
            if let Some(failure) = self.missing_capability(&questions) {
                return Err(failure);
            }
            match &self.client {
                CallClient::Legacy(session) => self.ask_legacy(session, questions).await,
                CallClient::Modern(_) => self.ask_modern(questions).await,
            }
        })
    }

    fn asks_between_requests(&self) -> bool {
        matches!(self.client, CallClient::Modern(_))
    }

    fn detach(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(self.become_task())
    }

    fn hang_up(&self) -> BoxFuture<'_, ()> {
        self.conversation.hang_ups.send_modify(|count| *count += 1);
        Box::pin(std::future::ready(()))
    }

    fn keep(&self, state: Value) {
        self.conversation.keep(state);
    }

    fn kept(&self) -> Option<Value> {
        self.conversation.kept()
    }

    fn capabilities(&self) -> Value {
        match &self.client {
            CallClient::Legacy(session) => Value::Object(Map::clone(&session.capabilities())),
            CallClient::Modern(client) => Value::Object(client.capabilities.clone()),
        }
    }

    fn cancel_reason(&self) -> CancelReason {
        self.conversation.cancel_reason.clone()
    }
}
