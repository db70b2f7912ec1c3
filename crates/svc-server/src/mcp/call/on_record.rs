//! Tools that may wait, in a session: the call is put on record first, and its stream of the log ends with the answer.

use std::sync::Arc;

use serde_json::{Map, Value, json, value::RawValue};
use svc_core::{
    service::mcp::CallEnd,
    tools::{LogLevel, Tool, ToolProgress},
};
use svc_model::{CallId, Caller, StreamName};
use svc_store::{CallState, McpTransport};
use svc_wire::mcp::Revision;

use super::{
    super::{
        McpServer,
        metrics::{RequestEra, RequestMeter, RequestOutcome},
        rpc::{AnswerEra, RpcError},
        running::{CallRecord, MessageSink, RequestKey},
        session::McpSession,
    },
    answer::CallAnswer,
    channel::{CallClient, ClientChannel, log_message, progress_message},
    end::{cancelled, end_call},
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
pub(crate) async fn record_and_run(
    server: &McpServer,
    caller: &Caller,
    session: Arc<McpSession>,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
    record: CallRecord,
) -> Result<RecordedCall, RpcError> {
    // The same request once more is from a client that lost its connection before it saw an id.
    let is_repeatable = tool.is_repeatable();
    let recording = session.recording.lock().await;
    let request = request_key(&session, &record.rpc_id);
    if let Some((id, running)) = server.running.of_request(&request)
        && running.conversation.record.params == record.params
    {
        let stream = log_stream_of(&id, &session);
        drop(recording);
        return Ok(RecordedCall { id, stream, session, is_repeatable });
    }
    let revision = session.revision();
    let first = first_message(&record, revision);
    let new = record.in_session(session.id.clone(), session.transport, revision);
    let (row, stream) = server.services.mcp.begin_call(caller, new, first).await?;
    let call =
        RecordedCall { id: row.call_id, stream, session: Arc::clone(&session), is_repeatable };
    run_recorded(server, caller, &call, tool, arguments, record);
    drop(recording);
    Ok(call)
}

/// Runs the tool of a call on record.
pub(crate) fn run_recorded(
    server: &McpServer,
    caller: &Caller,
    call: &RecordedCall,
    tool: Arc<Tool>,
    arguments: Map<String, Value>,
    record: CallRecord,
) {
    let (id, stream, session) = (call.id.clone(), call.stream.clone(), Arc::clone(&call.session));
    let meter = RequestMeter::start("tools/call", &record.tool, RequestEra::Legacy);
    let request = request_key(&session, &record.rpc_id);
    let client = CallClient::Legacy(Arc::clone(&session));
    let channel =
        ClientChannel::new(server, caller, client, record, MessageSink::Log(stream.clone()));
    let conversation = Arc::clone(&channel.conversation);
    let cancel = server.running.insert(id.clone(), Some(request), conversation);
    let run = async move {
        let server = &channel.server;
        let (end, outcome) = tokio::select! {
            biased;
            // The next start takes the call up.
            () = server.stop.cancelled() => return,
            () = cancel.cancelled() => (cancelled(), RequestOutcome::Cancelled),
            () = session.closed.cancelled() => (cancelled(), RequestOutcome::Cancelled),
            outcome = channel.with_heartbeat(channel.run(&tool, arguments)) => {
                let rpc_id = &channel.conversation.record.rpc_id;
                let answer = CallAnswer::of(rpc_id, outcome, AnswerEra::Legacy);
                let state = match answer.outcome {
                    RequestOutcome::Error => CallState::Failed,
                    _ => CallState::Completed,
                };
                (CallEnd { state, message: Some(answer.message) }, answer.outcome)
            }
        };
        meter.count(&server.metrics, outcome);
        end_call(server, &id, &stream, end).await;
    };
    server.background.spawn(run);
}

/// The stream of the log that a call of this session is answered in.
pub(crate) fn log_stream_of(call: &CallId, session: &McpSession) -> StreamName {
    match session.transport {
        McpTransport::Http => StreamName::of("mcp", call),
        McpTransport::Sse => StreamName::of("mcp", &session.id),
    }
}

fn request_key(session: &McpSession, rpc_id: &RawValue) -> RequestKey {
    let rpc_id: Value = serde_json::from_str(rpc_id.get()).unwrap_or_default();
    RequestKey::new(&session.id, &rpc_id)
}

/// Revisions before 2025-11-25 have no priming event, and one of their clients breaks at it. A first message gives the
/// stream an id just as well, so that the client can come back for the rest.
fn first_message(record: &CallRecord, revision: Revision) -> Option<String> {
    if revision >= Revision::V2025_11_25 {
        return None;
    }
    let message = format!("{} has begun", record.tool);
    Some(match record.progress_token() {
        Some(token) => {
            let progress = ToolProgress { progress: 0.0, total: None, message: Some(message) };
            progress_message(token, &progress)
        }
        None => log_message(LogLevel::Debug, &json!(message)),
    })
}
