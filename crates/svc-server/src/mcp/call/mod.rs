//! Calls, from the request to the answer.
//!
//! One [`CallRun`] runs every call: it polls the tool's future, and meanwhile handles the tool's
//! messages and questions for its client. It is in one of three modes, and independent of the
//! protocol's transports.
//!
//! ```text
//!  bare, fast, or           ┌──────────┐ the tool ends: answer in the response
//!  without sessions ──────► │ Attached │ question to a client without sessions: `input_required`
//!                           └────┬─────┘ the response is dropped: so is the tool
//!       the tool or a timer asks │ for it, and the client looks after tasks: row first
//!                                ▼
//!                           ┌──────────┐ the tool ends: outcome in the row's stream
//!  recovery of a task ────► │   Task   │ `tasks/cancel`: end in the row
//!                           └──────────┘ the daemon ends: the row stays open for the next start
//!
//!  slow, in a session:      ┌──────────┐ the tool ends: answer in its stream of the log
//!  row first; recovery ───► │  Logged  │ cancelled, session closed: end in the row
//!                           └──────────┘ the daemon ends: the row stays open for the next start
//! ```
//!
//! Reading order: `active` is a running call as the rest of the server sees it, `answer` has the
//! answers and the questions to its client, `run` is the state machine. This file chooses the mode,
//! stores slow calls before their tools begin, and takes up stored calls after a restart.

mod active;
mod answer;
mod run;

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use http::HeaderMap;
use serde_json::{Map, Value, json, value::RawValue};
use svc_core::{
    service::{Error, ResourceKind, mcp::CallEnd},
    tools::{
        ClientAnswers, DelegatedCall, Failure, LogLevel, Pace, RequestTrace, Tool, ToolError,
        ToolProgress,
    },
};
use svc_model::{BudgetKind, CallId, Caller, StreamName};
use svc_store::{CallRow, CallState, McpTransport};
use svc_wire::mcp::{Revision, meta};
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use self::{
    active::RequestState,
    answer::{CallMode, cancelled, task_answer, task_end, unauthorized},
    run::RunReply,
};
pub(super) use self::{
    active::{CallRecord, OpenQuestions, RequestKey, RequestStateSigner, RunningCalls},
    answer::{CallAnswer, McpTaskView, PendingAnswer, cancel_call, rpc_error_of, token_ended},
    run::{CallRun, WorkEnd},
};
use super::{
    McpServer,
    request::{ModernClient, RequestContext, RequestOrigin, SessionSearch, check_argument_headers},
    rpc::{ClientRequest, RequestEra, RpcError, notification_message, object_or_empty, shortened},
    server::{McpSession, RequestMeter},
};

/// How long a call waits for a server that was never connected to say which tools it has.
const FIRST_LISTS: Duration = Duration::from_secs(5);

pub(crate) enum CallReply {
    /// The answer of a method that calls no tool.
    Whole(String),
    Pending(PendingAnswer),
    /// The stream of the call ends with its answer.
    Recorded(RecordedCall),
}

impl McpServer {
    pub(crate) async fn call_tool(
        &self,
        context: RequestContext,
        headers: &HeaderMap,
        mut request: ClientRequest,
        meter: &mut RequestMeter,
    ) -> Result<CallReply, RpcError> {
        let RequestContext { caller, origin, acting_session, trace, .. } = context;
        if !request.params.get("name").is_some_and(Value::is_string) {
            return Err(RpcError::invalid_params("params.name: must name a tool"));
        }
        let hold = self.services.hold(&caller, BudgetKind::Requests, 1)?.map(Arc::new);
        let search = SessionSearch { server: self, caller: &caller, headers, origin: &origin };
        let acting_session = search.of_call(acting_session, &request.params).await?;
        // The session's project decides what the caller sees and which tools it has.
        let caller = self.services.team.in_project_of(&caller, acting_session.as_deref()).await?;
        let tool = match self.tool_of(&caller, &origin, headers, &mut request, meter).await? {
            Ok(tool) => tool,
            Err(error) => {
                let (id, era) = (&request.id, origin.era());
                let answer = CallAnswer::from_outcome(id, Err(error.into()), era);
                let answer = std::future::ready(answer).boxed();
                return Ok(CallReply::Pending(PendingAnswer {
                    answer,
                    messages: None,
                    is_repeatable: true,
                    ends_with_token: false,
                }));
            }
        };
        if let RequestOrigin::Modern(client) = &origin
            && tool.is_task_only()
            && !client.has_tasks()
        {
            return Err(rpc_error_of(Failure::needs_tasks()));
        }
        let arguments = match &origin {
            // Moved out: they may be large, and nothing reads them from the params of a bare call.
            RequestOrigin::Bare => request.params.remove("arguments"),
            _ => request.params.get("arguments").cloned(),
        };
        let arguments = object_or_empty(arguments, "arguments")?;
        let record = CallRecord {
            rpc_id: request.id,
            method: "tools/call",
            name: tool.name().to_owned(),
            params: request.params,
            raw_params: request.raw_params,
            trace,
            acting_session,
            credential: self.services.access.credential_name(&caller),
            started_at: self.services.now(),
            hold,
        };
        if let (Pace::Slow, RequestOrigin::Legacy(session)) = (tool.pace, &origin) {
            let session = Arc::clone(session);
            let call = record_and_run(self, caller, session, tool, arguments, record);
            return Ok(CallReply::Recorded(Box::pin(call).await?));
        }
        self.run_attached(caller, &origin, record, tool, arguments).map(CallReply::Pending)
    }

    /// The tool that a request calls, or why the caller has none of that name. A call of `ToolCall`
    /// becomes one of the tool that it names, also in its record and after a restart.
    async fn tool_of(
        &self,
        caller: &Caller,
        origin: &RequestOrigin,
        headers: &HeaderMap,
        request: &mut ClientRequest,
        meter: &mut RequestMeter,
    ) -> Result<Result<Arc<Tool>, ToolError>, RpcError> {
        let name = request.params.get("name").and_then(Value::as_str).unwrap_or_default();
        let Some(tool) = self.catalogue.find_soon(caller, name, FIRST_LISTS).await else {
            let unknown = || RpcError::invalid_params(format!("Unknown tool: {}", shortened(name)));
            return self.catalogue.absence(caller, name).map(Err).ok_or_else(unknown);
        };
        meter.name = tool.name().into();
        if let RequestOrigin::Modern(_) = origin {
            check_argument_headers(headers, &tool, &request.params)?;
        }
        let delegated = self.catalogue.called_by(caller, &tool, &request.params, FIRST_LISTS);
        let Some(DelegatedCall { tool, arguments }) = delegated.await else { return Ok(Ok(tool)) };
        request.params.insert("name".to_owned(), tool.name().into());
        request.params.insert("arguments".to_owned(), arguments.into());
        Ok(Ok(tool))
    }

    fn run_attached(
        &self,
        caller: Caller,
        origin: &RequestOrigin,
        record: CallRecord,
        tool: Arc<Tool>,
        arguments: Map<String, Value>,
    ) -> Result<PendingAnswer, RpcError> {
        let is_repeatable = tool.is_repeatable();
        let ends_with_token = tool.pace == Pace::Slow;
        let (sender, messages) = mpsc::unbounded_channel();
        let (sender, messages) = match origin {
            RequestOrigin::Bare => (None, None),
            _ => (Some(sender), Some(messages)),
        };
        let id = record.rpc_id.clone();
        let lost = move || CallAnswer::lost(&id, is_repeatable);
        let mut run = CallRun::attached(self, caller.clone(), origin.clone(), record, sender)?;
        let answer = match (origin, tool.pace) {
            (RequestOrigin::Modern(_), Pace::Slow) => {
                let (reply, answer) = oneshot::channel();
                run.reply = Some(reply);
                let (server, id) = (self.clone(), run.record.rpc_id.clone());
                self.background.spawn(run.run_tool(tool, arguments));
                async move {
                    match answer.await {
                        Ok(RunReply::Answer(answer)) => answer,
                        Ok(RunReply::Task(task)) => {
                            let row = server.services.mcp.call(&caller, task.as_str()).await;
                            let unknown = || Error::not_found(ResourceKind::Task, task.as_str());
                            task_answer(&id, row.and_then(|row| row.ok_or_else(unknown)))
                        }
                        Err(_) => lost(),
                    }
                }
                .boxed()
            }
            // A legacy client that disconnects does not cancel a tool that changes something.
            (RequestOrigin::Legacy(_), _) if !tool.annotations.read_only_hint => {
                let run = tokio::spawn(run.run_tool(tool, arguments));
                async move { run.await.ok().flatten().unwrap_or_else(lost) }.boxed()
            }
            _ => run.run_tool(tool, arguments).map(|answer| answer.unwrap_or_else(lost)).boxed(),
        };
        Ok(PendingAnswer { answer, messages, is_repeatable, ends_with_token })
    }
}

/// A call on record, whose answer is read from the log.
pub(crate) struct RecordedCall {
    pub(crate) id: CallId,
    pub(crate) session: Arc<McpSession>,
    /// Whether the next start runs it again.
    pub(crate) is_repeatable: bool,
}

async fn record_and_run(
    server: &McpServer,
    caller: Caller,
    session: Arc<McpSession>,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
    record: CallRecord,
) -> Result<RecordedCall, RpcError> {
    let is_repeatable = tool.is_repeatable();
    let recorded = |id| RecordedCall { id, session: Arc::clone(&session), is_repeatable };
    let recording = session.recording.lock().await;
    // A client that lost its connection before it saw an id repeats the request.
    let request = request_key(&session, &record.rpc_id);
    if let Some((id, running)) = server.running.by_request(&request)
        && running.record.params == record.params
        && is_same_id(&running.record.rpc_id, &record.rpc_id)
    {
        return Ok(recorded(id));
    }
    let revision = session.client().revision;
    let first = first_message(&record, revision);
    let session_id = Some(session.id.clone());
    let row = CallRow { session_id, ..record.row(&server.services, &caller, revision) };
    let call = recorded(row.call_id.clone());
    server.services.mcp.begin_call(&caller, row, session.transport, first).await?;
    run_recorded(server, caller, &call, tool, arguments, record);
    drop(recording);
    Ok(call)
}

fn run_recorded(
    server: &McpServer,
    caller: Caller,
    call: &RecordedCall,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
    record: CallRecord,
) {
    let RecordedCall { id, session, .. } = call;
    let request = request_key(session, &record.rpc_id);
    let origin = RequestOrigin::Legacy(Arc::clone(session));
    let mode = CallMode::Logged(id.clone(), log_stream_of(id, session));
    let mut run = CallRun::new(server, caller, origin, record, mode, RequestState::default());
    run.register(id.clone(), Some(request));
    server.background.spawn(run.run_tool(tool, arguments));
}

/// The stream of the log that has the answer to a call of this session.
pub(crate) fn log_stream_of(call: &CallId, session: &McpSession) -> StreamName {
    match session.transport {
        McpTransport::Http => StreamName::new("mcp", call),
        McpTransport::Sse => StreamName::new("mcp", &session.id),
    }
}

/// Whether two ids with one key are the same. The key of a long number has not all of its digits.
fn is_same_id(one: &RawValue, other: &RawValue) -> bool {
    one.get().starts_with('"') || one.get() == other.get()
}

fn request_key(session: &McpSession, rpc_id: &RawValue) -> RequestKey {
    let rpc_id: Value = serde_json::from_str(rpc_id.get()).unwrap_or_default();
    RequestKey::new(&session.id, &rpc_id)
}

/// Revisions before 2025-11-25 have no priming event, and a client of such a revision fails on one.
/// A first message also gives the stream an id, so that the client can resume.
fn first_message(record: &CallRecord, revision: Revision) -> Option<String> {
    if revision >= Revision::V2025_11_25 {
        return None;
    }
    let message = format!("{} has begun", record.name);
    Some(if let Some(token) = record.progress_token() {
        let progress = ToolProgress { progress: 0.0, total: None, message: Some(message) };
        let mut params = progress.into_params();
        params.insert("progressToken".to_owned(), token.clone());
        notification_message("notifications/progress", &params)
    } else {
        let params = json!({ "level": LogLevel::Debug, "logger": "svc", "data": message });
        notification_message("notifications/message", &params)
    })
}

enum Unresumable {
    /// The reason, for the log. What the call did is unknown.
    Unknown(&'static str),
    Unauthorized,
}

/// Takes up the calls that the last process left.
///
/// A call runs again if its tool may be repeated and its whole row can be read. Any other call ends
/// with an error that says that its outcome is unknown: a principal that does not parse is nobody,
/// and unreadable arguments are not replaced by others.
pub(crate) async fn recover_calls(server: &McpServer) -> Result<(), Error> {
    for row in server.services.mcp.open_calls().await? {
        recover_call(server, row).await?;
    }
    Ok(())
}

async fn recover_call(server: &McpServer, row: CallRow) -> Result<(), Error> {
    let transport = match &row.session_id {
        None => Some(McpTransport::Http),
        Some(session) => server.services.mcp.mcp_transport(session).await?,
    };
    let stream = row.stream(transport.unwrap_or(McpTransport::Http));
    if transport.is_none() {
        // No client can resume a session that is over.
        let ended = server.services.mcp.end_call(&row.call_id, &stream, cancelled()).await;
        return ended.map(drop);
    }
    let (reason, end) = match resume(server, &row).await? {
        Ok(()) => {
            info!(call = %row.call_id, tool = row.tool, "a call goes on after the restart");
            return Ok(());
        }
        Err(Unresumable::Unknown(reason)) => (reason, outcome_unknown(&row)),
        Err(Unresumable::Unauthorized) => {
            ("its token is no longer good", failed_end(&row, unauthorized()))
        }
    };
    warn!(call = %row.call_id, tool = row.tool, reason, "a call was cut off by the restart");
    server.services.mcp.end_call(&row.call_id, &stream, end).await.map(drop)
}

async fn resume(server: &McpServer, row: &CallRow) -> Result<Result<(), Unresumable>, Error> {
    let unknown = |reason| Ok(Err(Unresumable::Unknown(reason)));
    let Some(principal) = &row.principal else { return unknown("its principal cannot be read") };
    let Some(revision) = row.revision else { return unknown("its revision cannot be read") };
    let access = &server.services.access;
    let caller = match access.caller_of_record(principal, row.credential.as_deref()).await {
        Err(Error::Unauthorized) => return Ok(Err(Unresumable::Unauthorized)),
        caller => caller?,
    };
    let credential = row.credential.clone();
    let credential = credential.unwrap_or_else(|| access.credential_name(&caller));
    let Some(mut record) = record_of(row, credential) else {
        return unknown("its request cannot be read");
    };
    let arguments = match record.arguments() {
        Value::Null => Map::new(),
        Value::Object(arguments) => arguments.clone(),
        _ => return unknown("its arguments cannot be read"),
    };
    let answers = match row.answers.as_deref().map(serde_json::from_str) {
        None => ClientAnswers::new(),
        Some(Ok(answers)) => answers,
        Some(Err(_)) => return unknown("the client's answers cannot be read"),
    };
    let acts_for = record.acting_session.as_deref();
    let caller = server.services.team.in_project_of(&caller, acts_for).await?;
    // A call that an earlier daemon began goes on, even above the bound.
    let hold = server.services.hold(&caller, BudgetKind::Requests, 1).ok().flatten();
    record.hold = hold.map(Arc::new);
    let tool = server.catalogue.find(&caller, &row.tool).filter(|tool| tool.is_repeatable());
    let Some(tool) = tool else { return unknown("its tool cannot be repeated") };
    let id = row.call_id.clone();
    if let Some(session) = &row.session_id {
        let Some(session) = server.sessions.find(&caller, session.as_str()).await? else {
            return unknown("its session is over, or another caller's");
        };
        let call = RecordedCall { id, session, is_repeatable: true };
        run_recorded(server, caller, &call, tool, arguments, record);
        return Ok(Ok(()));
    }
    let origin = RequestOrigin::Modern(modern_client_of(revision, &record));
    let (mode, round) = (CallMode::Task(id.clone()), RequestState { answers, kept: None });
    let mut run = CallRun::new(server, caller, origin, record, mode, round);
    run.register(id, None);
    server.background.spawn(run.run_tool(tool, arguments));
    Ok(Ok(()))
}

/// The request of a row; `None` if a part of it cannot be read.
fn record_of(row: &CallRow, credential: String) -> Option<CallRecord> {
    Some(CallRecord {
        rpc_id: RawValue::from_string(row.rpc_id.clone()).ok()?,
        method: "tools/call",
        name: row.tool.clone(),
        params: serde_json::from_str(&row.params).ok()?,
        raw_params: None,
        trace: RequestTrace::default(),
        acting_session: row.acts_for.as_deref().map(Arc::from),
        credential,
        started_at: row.started_at,
        hold: None,
    })
}

fn modern_client_of(revision: Revision, record: &CallRecord) -> ModernClient {
    let meta = record.params.get("_meta");
    let capabilities = meta.and_then(|meta| meta.get(meta::CLIENT_CAPABILITIES));
    ModernClient {
        revision,
        capabilities: capabilities.and_then(Value::as_object).cloned().unwrap_or_default().into(),
        log_level: None,
    }
}

fn outcome_unknown(row: &CallRow) -> CallEnd {
    let text = format!(
        "the daemon restarted while {} was running, and its outcome is unknown: look before you call it again",
        row.tool
    );
    failed_end(row, ToolError::unknown_outcome(text).into())
}

fn failed_end(row: &CallRow, failure: Failure) -> CallEnd {
    if row.is_task {
        return task_end(Err(failure));
    }
    let id = RawValue::from_string(row.rpc_id.clone());
    let id = id.as_deref().unwrap_or(RawValue::NULL);
    let answer = CallAnswer::from_outcome(id, Err(failure), RequestEra::Legacy);
    CallEnd { state: CallState::Completed, message: Some(answer.message) }
}

#[cfg(test)]
mod tests {
    use svc_core::{
        service::testing::services,
        tools::{Call, Catalogue, Output},
    };
    use svc_model::Timestamp;
    use svc_store::testing::TestStore;
    use svc_wire::mcp::TASKS_EXTENSION;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::mcp::{McpMetrics, McpServerParts, server::RequestOutcome};

    async fn server() -> (TestStore, McpServer) {
        let test = TestStore::open().await;
        let server = McpServer::assemble(McpServerParts {
            services: services(&test),
            catalogue: Arc::new(Catalogue::new([])),
            resources: Vec::new(),
            prompts: Vec::new(),
            sources: None,
            metrics: McpMetrics::default(),
            stop: CancellationToken::new(),
            exposure: None,
        });
        (test, server.await.unwrap())
    }

    fn pending<F>(
        server: &McpServer,
        work: impl Fn(Call) -> F + Send + Sync + 'static,
    ) -> PendingAnswer
    where
        F: Future<Output = Result<Output, Failure>> + Send + 'static,
    {
        let Value::Object(capabilities) = json!({ "extensions": { TASKS_EXTENSION: {} } }) else {
            unreachable!("it is one")
        };
        let (revision, capabilities) = (Revision::V2026_07_28, Arc::new(capabilities));
        let client = ModernClient { revision, capabilities, log_level: None };
        let record = CallRecord {
            rpc_id: RawValue::from_string("1".to_owned()).unwrap(),
            method: "tools/call",
            name: "slow".to_owned(),
            params: Map::new(),
            raw_params: None,
            trace: RequestTrace::default(),
            acting_session: None,
            credential: server.services.access.credential_name(&Caller::Operator),
            started_at: Timestamp::from_millis(0),
            hold: None,
        };
        let tool = Tool::raw("slow", "", json!({ "type": "object" }), move |call, _| work(call));
        let (tool, origin) = (Arc::new(tool.slow()), RequestOrigin::Modern(client));
        server.run_attached(Caller::Operator, &origin, record, tool, Map::new()).unwrap()
    }

    #[tokio::test]
    async fn call_that_ends_while_it_detaches_is_a_task() {
        let (_test, server) = server().await;
        let pending = pending(&server, |call| async move {
            call.detach().await?;
            Ok(Output::text("done"))
        });
        // The task has ended before the client's request is polled.
        let mut ends = server.tasks_changed.subscribe();
        ends.wait_for(|count| *count > 0).await.unwrap();
        let CallAnswer { message, status, outcome } = pending.answer.await;
        assert_eq!((status, outcome), (200, RequestOutcome::Task), "{message}");
        assert!(message.contains("\"completed\""), "{message}");
    }

    #[tokio::test]
    async fn detach_after_the_result_creates_no_task() {
        let (_test, server) = server().await;
        let (sender, mut calls) = mpsc::unbounded_channel();
        let pending = pending(&server, move |call| {
            sender.send(call).unwrap();
            std::future::ready(Ok(Output::text("done")))
        });
        assert_eq!(pending.answer.await.outcome, RequestOutcome::Result);
        calls.recv().await.unwrap().detach().await.unwrap();
        assert!(server.services.mcp.open_calls().await.unwrap().is_empty());
    }
}
