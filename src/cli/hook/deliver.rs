//! The one request of a hook.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use svc_client::{Client, ClientError};
use svc_wire::json_rpc::JsonRpcWriter;

use crate::cli::context::Context;

/// Why an event has no answer. The texts are for the log.
#[derive(Debug)]
pub(super) enum DeliveryError {
    /// Nothing was sent: no daemon is there.
    NotSent(String),
    /// It may have been sent, and there was no answer, or the daemon says that something went wrong
    /// with itself.
    Unanswered(String),
    /// The daemon refuses the event.
    Refused(String),
}

/// Delivers an event of the client's process, and gives the daemon's answer, which may be empty.
pub(super) fn deliver(
    context: &Context,
    process: u32,
    arguments: &Value,
) -> Result<Value, DeliveryError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| DeliveryError::NotSent(error.to_string()))?;
    runtime.block_on(request(context, process, arguments))
}

async fn request(
    context: &Context,
    process: u32,
    arguments: &Value,
) -> Result<Value, DeliveryError> {
    let target = context
        .agent_discovery()
        .and_then(|discovery| discovery.agent_target(process))
        .map_err(|error| DeliveryError::NotSent(error.to_string()))?;
    let params = json!({ "name": "hook_event", "arguments": arguments });
    let body = JsonRpcWriter::new().id(&1).method("tools/call").params(&params).into_bytes();
    let reply = Client::new(target)
        .exchange(Method::POST, "/mcp", Some(body.into()))
        .await
        .map_err(|error| match error {
            ClientError::Connection { sent: false, .. }
            | ClientError::NotRunning { .. }
            | ClientError::Foreign(_)
            | ClientError::Unproven { .. } => DeliveryError::NotSent(error.to_string()),
            error => DeliveryError::Unanswered(error.to_string()),
        })?;
    if reply.status == StatusCode::SERVICE_UNAVAILABLE {
        return Err(DeliveryError::Unanswered("the daemon is not ready".to_owned()));
    }
    if reply.status.is_server_error() {
        return Err(DeliveryError::Unanswered(reply.problem().to_string()));
    }
    if !reply.status.is_success() {
        return Err(DeliveryError::Refused(reply.problem().to_string()));
    }
    let response: Value =
        reply.json().map_err(|error| DeliveryError::Refused(error.to_string()))?;
    answer_in(response)
}

/// The tool's answer in a JSON-RPC response.
fn answer_in(mut response: Value) -> Result<Value, DeliveryError> {
    let result = &response["result"];
    if result["isError"] == true || result.is_null() {
        let error = &result["structuredContent"]["error"];
        let message = error["message"].as_str().or_else(|| response["error"]["message"].as_str());
        let message = message.unwrap_or("the answer is none").to_owned();
        // These may happen after the event was taken in.
        let is_the_daemons =
            ["internal_error", "unavailable"].iter().any(|kind| error["type"] == **kind);
        return Err(if is_the_daemons {
            DeliveryError::Unanswered(message)
        } else {
            DeliveryError::Refused(message)
        });
    }
    Ok(response["result"]["structuredContent"].take())
}
