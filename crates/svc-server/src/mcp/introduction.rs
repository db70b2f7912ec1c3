//! What a client says of itself in `initialize`. Of it is kept what is used, within bounds: it stays in memory for as long
//! as the session.

use serde_json::{Map, Value, json};
use svc_core::service::mcp::NewMcpSession;
use svc_model::limits;
use svc_store::McpTransport;
use svc_wire::mcp::{Revision, TASKS_EXTENSION};

use super::rpc::RpcError;

/// Capabilities of clients that the protocol names, but for extensions.
const CAPABILITIES: [&str; 4] = ["elicitation", "roots", "sampling", "tasks"];

/// Reads the params of `initialize`: the revision to be agreed on, the client's name and its capabilities.
pub(super) fn introduction(
    params: &Map<String, Value>,
    transport: McpTransport,
) -> Result<NewMcpSession, RpcError> {
    let requested = match params.get("protocolVersion") {
        Some(Value::String(requested)) => Some(requested.as_str()),
        None => None,
        Some(_) => {
            return Err(RpcError::invalid_params("params.protocolVersion: must be a string"));
        }
    };
    let latest = Revision::LEGACY[Revision::LEGACY.len() - 1];
    let revision = requested.and_then(Revision::parse).filter(|revision| !revision.is_modern());
    let client = params.get("clientInfo").and_then(Value::as_object).map(known_client);
    let capabilities = match params.get("capabilities") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(capabilities)) => known_capabilities(capabilities),
        Some(_) => return Err(RpcError::invalid_params("params.capabilities: must be an object")),
    };
    let revision = revision.unwrap_or(latest);
    let capabilities = Value::Object(capabilities).to_string();
    Ok(NewMcpSession { transport, revision, client, capabilities })
}

/// The client's name of itself, in the params of `initialize` or in the metadata of a request without a session.
pub(crate) fn client_name(params: &Map<String, Value>) -> Option<&str> {
    let meta = || params.get("_meta")?.get("io.modelcontextprotocol/clientInfo");
    params.get("clientInfo").or_else(meta)?.get("name")?.as_str()
}

/// The capabilities that the server may use. Of one that is large it is kept that the client has it.
pub(crate) fn known_capabilities(capabilities: &Map<String, Value>) -> Map<String, Value> {
    let mut known = Map::new();
    for name in CAPABILITIES {
        if let Some(capability) = capabilities.get(name) {
            known.insert(name.to_owned(), bounded(capability));
        }
    }
    let extensions = capabilities.get("extensions");
    if let Some(tasks) = extensions.and_then(|all| all.get(TASKS_EXTENSION)) {
        known.insert("extensions".to_owned(), json!({ TASKS_EXTENSION: bounded(tasks) }));
    }
    known
}

fn bounded(capability: &Value) -> Value {
    let is_small = capability.to_string().len() <= limits::MCP_CAPABILITY_BYTES;
    if is_small { capability.clone() } else { json!({}) }
}

/// JSON: the client's name, title and version.
fn known_client(info: &Map<String, Value>) -> String {
    let mut known = Map::new();
    for name in ["name", "title", "version"] {
        if let Some(text) = info.get(name).and_then(Value::as_str) {
            let text: String = text.chars().take(limits::MCP_CLIENT_NAME_CHARS).collect();
            known.insert(name.to_owned(), text.into());
        }
    }
    Value::Object(known).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_client_is_kept_what_is_used_within_bounds() {
        let large = "x".repeat(10_000);
        let params = json!({
            "protocolVersion": "2025-06-18",
            "clientInfo": { "name": "é".repeat(300), "version": "1", "icons": [large] },
            "capabilities": {
                "elicitation": { "form": {} }, "roots": { "listChanged": true, "x": large },
                "sampling": {}, "experimental": { "x": large }, "other": {},
                "extensions": { TASKS_EXTENSION: {}, "other/extension": large },
            },
        });
        let Value::Object(params) = params else { panic!("an object") };
        let new = introduction(&params, McpTransport::Http).unwrap();
        let client: Value = serde_json::from_str(&new.client.unwrap()).unwrap();
        assert_eq!(client, json!({ "name": "é".repeat(200), "version": "1" }));
        let capabilities: Value = serde_json::from_str(&new.capabilities).unwrap();
        let expected = json!({
            "elicitation": { "form": {} }, "roots": {}, "sampling": {},
            "extensions": { TASKS_EXTENSION: {} },
        });
        assert_eq!(capabilities, expected);
    }
}
