//! The end of a call on record.

use svc_core::service::mcp::CallEnd;
use svc_model::{CallId, StreamName, limits};
use svc_store::CallState;
use svc_sys::telemetry;

use super::super::McpServer;

/// The end of a call whose client wants no answer any more.
pub(super) fn cancelled() -> CallEnd {
    CallEnd { state: CallState::Cancelled, message: None }
}

/// Puts the end of a call on record. Without one its client would wait for ever, so a write that fails is repeated
/// until the server stops.
pub(super) async fn end_call(server: &McpServer, id: &CallId, stream: &StreamName, end: CallEnd) {
    while let Err(error) = server.services.mcp.end_call(id, stream, end.clone()).await {
        tracing::error!(error = telemetry::chain(&error), call = %id, "cannot end a call");
        tokio::select! {
            () = server.stop.cancelled() => break,
            () = tokio::time::sleep(limits::MCP_PATIENCE) => {}
        }
    }
    server.running.remove(id);
    server.tasks_changed.send_modify(|count| *count += 1);
}

/// Ends a call because its client wants no answer any more.
pub(crate) async fn cancel_call(server: &McpServer, id: &CallId, stream: &StreamName) {
    let running = server.running.get(id);
    end_call(server, id, stream, cancelled()).await;
    if let Some(running) = running {
        running.cancel.cancel();
    }
}
