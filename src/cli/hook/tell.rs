//! The one request.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::super::context::Context;
use crate::client::{Client, ClientError};

/// Why the daemon has nothing to say.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was sent: no daemon is there.
    Away(String),
    /// It was sent, perhaps, and nobody answered; or the daemon says that something went wrong with it.
    Lost(String),
    /// The daemon does not want it.
    Refused(String),
}

/// Tells of an event, and gives what is to be printed.
pub(super) fn tell(context: &Context, arguments: &Value) -> Result<Option<String>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Away(error.to_string()))?;
    runtime.block_on(ask(context, arguments))
}

async fn ask(context: &Context, arguments: &Value) -> Result<Option<String>, Failure> {
    let away = |problem: String| Failure::Away(problem);
    let discovery = context.discovery().map_err(|error| away(format!("{error:#}")))?;
    let target = discovery.target().map_err(|error| away(error.to_string()))?;
    // Whoever listens at the configured address without having said so may be anybody.
    if !discovery.is_fixed() && target.daemon.is_none() {
        return Err(away("no daemon runs".to_owned()));
    }
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "hook_event", "arguments": arguments },
    });
    let client = Client::new(target);
    let reply = client.exchange(Method::POST, "/mcp", Some(body.to_string().into())).await;
    let reply = reply.map_err(|error| match error {
        ClientError::Connection { sent: false, .. } | ClientError::NotRunning { .. } => {
            away(error.to_string())
        }
        error => Failure::Lost(error.to_string()),
    })?;
    if reply.status == StatusCode::SERVICE_UNAVAILABLE {
        return Err(Failure::Lost("the daemon is not ready".to_owned()));
    }
    if reply.status.is_server_error() {
        return Err(Failure::Lost(reply.problem().to_string()));
    }
    if !reply.status.is_success() {
        return Err(Failure::Refused(reply.problem().to_string()));
    }
    let answer: Value = reply.json().map_err(|error| Failure::Refused(error.to_string()))?;
    let result = &answer["result"];
    if result["isError"] == true || result.is_null() {
        let error = &result["structuredContent"]["error"];
        let said = error["message"].as_str().or_else(|| answer["error"]["message"].as_str());
        let said = said.unwrap_or("the answer is none").to_owned();
        // What went wrong may have done so after the event was taken in.
        let is_its_own = ["internal_error", "unavailable"].iter().any(|it| error["type"] == **it);
        return Err(if is_its_own { Failure::Lost(said) } else { Failure::Refused(said) });
    }
    Ok(match &result["structuredContent"] {
        Value::Object(printed) if !printed.is_empty() => {
            Some(Value::from(printed.clone()).to_string())
        }
        _ => None,
    })
}
