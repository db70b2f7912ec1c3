//! Calls on record: stored before their tools begin, and taken up by the next start.
//!
//! After a restart a call runs again if its tool may be repeated and its row can be read as a
//! whole. Any other call ends with an error that says that its outcome is unknown: a caller that
//! cannot be read is nobody, and arguments that cannot be read are not replaced by others.

use std::sync::Arc;

use serde_json::{Map, Value, json, value::RawValue};
use svc_core::{
    service::{self, access::RecordedCaller, mcp::CallEnd},
    tools::{ClientAnswers, Failure, LogLevel, RequestTrace, Tool, ToolError, ToolProgress},
};
use svc_model::{BudgetKind, CallId, Caller, StreamName};
use svc_store::{CallRow, CallState, McpTransport};
use svc_wire::mcp::{Revision, meta};
use tracing::{info, warn};

use super::{
    super::{
        McpServer,
        era::ModernClient,
        origin::RequestOrigin,
        request_state::RequestState,
        rpc::{AnswerEra, RpcError, notification_message},
        server::McpSession,
    },
    active::{CallRecord, RequestKey},
    answer::{CallAnswer, CallMode, cancelled, task_end, unauthorized},
    run::CallRun,
};

/// A call on record, whose answer is read from the log.
#[derive(Debug)]
pub(crate) struct RecordedCall {
    pub(crate) id: CallId,
    pub(crate) stream: StreamName,
    pub(crate) session: Arc<McpSession>,
    /// Whether the next start runs it again.
    pub(crate) is_repeatable: bool,
}

/// Puts a call on record and runs its tool.
pub(super) async fn record_and_run(
    server: &McpServer,
    caller: Caller,
    session: Arc<McpSession>,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
    record: CallRecord,
) -> Result<RecordedCall, RpcError> {
    let is_repeatable = tool.is_repeatable();
    let recorded = |id, stream| {
        let session = Arc::clone(&session);
        RecordedCall { id, stream, session, is_repeatable }
    };
    let recording = session.recording.lock().await;
    // The same request once more is from a client that lost its connection before it saw an id.
    let request = request_key(&session, &record.rpc_id);
    if let Some((id, running)) = server.running.by_request(&request)
        && running.record.params == record.params
    {
        let stream = log_stream_of(&id, &session);
        return Ok(recorded(id, stream));
    }
    let revision = session.revision();
    let first = first_message(&record, revision);
    let new = record.in_session(session.id.clone(), session.transport, revision);
    let (row, stream) = server.services.mcp.begin_call(&caller, new, first).await?;
    let call = recorded(row.call_id, stream);
    run_recorded(server, caller, &call, tool, arguments, record);
    drop(recording);
    Ok(call)
}

/// Runs the tool of a call on record.
fn run_recorded(
    server: &McpServer,
    caller: Caller,
    call: &RecordedCall,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
    record: CallRecord,
) {
    let RecordedCall { id, stream, session, .. } = call;
    let request = request_key(session, &record.rpc_id);
    let origin = RequestOrigin::Legacy(Arc::clone(session));
    let mode = CallMode::Logged(id.clone(), stream.clone());
    let mut run = CallRun::new(server, caller, origin, record, mode, RequestState::default());
    run.register(id.clone(), Some(request));
    server.background.spawn(run.run_tool(tool, arguments));
}

/// The stream of the log that a call of this session is answered in.
pub(crate) fn log_stream_of(call: &CallId, session: &McpSession) -> StreamName {
    match session.transport {
        McpTransport::Http => StreamName::new("mcp", call),
        McpTransport::Sse => StreamName::new("mcp", &session.id),
    }
}

fn request_key(session: &McpSession, rpc_id: &RawValue) -> RequestKey {
    let rpc_id: Value = serde_json::from_str(rpc_id.get()).unwrap_or_default();
    RequestKey::new(&session.id, &rpc_id)
}

/// Revisions before 2025-11-25 have no priming event, and one of their clients breaks at it. A
/// first message gives the stream an id just as well, so that the client can come back for the
/// rest.
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

/// A call that can run again.
struct ResumableCall {
    caller: Caller,
    origin: RequestOrigin,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
    answers: ClientAnswers,
    record: CallRecord,
}

/// Why a call cannot run again.
enum Unresumable {
    /// The reason, for the log. Nobody knows what the call did.
    Unknown(&'static str),
    /// Its caller's token was taken back.
    Unauthorized,
}

/// Takes up the calls that the last process left.
pub(crate) async fn recover_calls(server: &McpServer) -> Result<(), service::Error> {
    for row in server.services.mcp.open_calls().await? {
        recover_call(server, row).await?;
    }
    Ok(())
}

async fn recover_call(server: &McpServer, row: CallRow) -> Result<(), service::Error> {
    let transport = match &row.session_id {
        None => Some(McpTransport::Http),
        Some(session) => server.services.mcp.mcp_transport(session).await?,
    };
    let stream = row.stream(transport.unwrap_or(McpTransport::Http));
    if transport.is_none() {
        // Nobody can come back to a session that is over.
        server.services.mcp.end_call(&row.call_id, &stream, cancelled()).await?;
        return Ok(());
    }
    match resumable(server, &row).await? {
        Ok(call) => {
            info!(call = %row.call_id, tool = row.tool, "a call goes on after the restart");
            resume(server, row, stream, call);
        }
        Err(reason) => {
            let (reason, end) = match reason {
                Unresumable::Unknown(reason) => (reason, outcome_unknown(&row)),
                Unresumable::Unauthorized => {
                    ("its token is no longer good", failed_end(&row, unauthorized()))
                }
            };
            warn!(call = %row.call_id, tool = row.tool, reason, "a call was cut off by the restart");
            server.services.mcp.end_call(&row.call_id, &stream, end).await?;
        }
    }
    Ok(())
}

/// The call, if it can run again, or the reason why it cannot.
async fn resumable(
    server: &McpServer,
    row: &CallRow,
) -> Result<Result<ResumableCall, Unresumable>, service::Error> {
    let Some(principal) = &row.principal else {
        return Ok(Err(Unresumable::Unknown("its principal cannot be read")));
    };
    let Some(revision) = row.revision else {
        return Ok(Err(Unresumable::Unknown("its revision cannot be read")));
    };
    let access = &server.services.access;
    let caller = match access.caller_of_record(principal, row.credential.as_deref()).await? {
        RecordedCaller::Good(caller) => caller,
        RecordedCaller::Revoked => return Ok(Err(Unresumable::Unauthorized)),
        RecordedCaller::Unknown => {
            return Ok(Err(Unresumable::Unknown("its principal has no such token")));
        }
    };
    let credential = row.credential.clone();
    let credential = credential.unwrap_or_else(|| access.credential_name(&caller));
    let Some(mut record) = record_of(row, credential) else {
        return Ok(Err(Unresumable::Unknown("its request cannot be read")));
    };
    let arguments = match record.arguments() {
        Value::Null => Map::new(),
        Value::Object(arguments) => arguments.clone(),
        _ => return Ok(Err(Unresumable::Unknown("its arguments cannot be read"))),
    };
    let answers = match row.answers.as_deref().map(serde_json::from_str) {
        None => ClientAnswers::new(),
        Some(Ok(answers)) => answers,
        Some(Err(_)) => {
            return Ok(Err(Unresumable::Unknown("the client's answers cannot be read")));
        }
    };
    let acts_for = record.acting_session.as_deref();
    let caller = server.services.team.in_project_of(&caller, acts_for).await?;
    record.hold = server.services.hold_anyway(&caller, BudgetKind::Requests).map(Arc::new);
    let tool = server.catalogue.find(&caller, &row.tool).filter(|tool| tool.is_repeatable());
    let Some(tool) = tool else {
        return Ok(Err(Unresumable::Unknown("its tool cannot be repeated")));
    };
    let origin = match &row.session_id {
        None => RequestOrigin::Modern(modern_client_of(revision, &record)),
        Some(id) => match server.sessions.find(&caller, id.as_str()).await? {
            Some(session) => RequestOrigin::Legacy(session),
            None => {
                return Ok(Err(Unresumable::Unknown("its session is over, or another caller's")));
            }
        },
    };
    Ok(Ok(ResumableCall { caller, origin, tool, arguments, answers, record }))
}

fn resume(server: &McpServer, row: CallRow, stream: StreamName, call: ResumableCall) {
    let ResumableCall { caller, origin, tool, arguments, answers, record } = call;
    if let RequestOrigin::Legacy(session) = origin {
        let call = RecordedCall { id: row.call_id, stream, session, is_repeatable: true };
        run_recorded(server, caller, &call, tool, arguments, record);
        return;
    }
    let (mode, round) = (CallMode::Task(row.call_id.clone()), RequestState { answers, kept: None });
    let mut run = CallRun::new(server, caller, origin, record, mode, round);
    run.register(row.call_id, None);
    server.background.spawn(run.run_tool(tool, arguments));
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

/// The end of a call of which nobody knows what it did.
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
    let answer = CallAnswer::from_outcome(id, Err(failure), AnswerEra::Legacy);
    CallEnd { state: CallState::Completed, message: Some(answer.message) }
}
