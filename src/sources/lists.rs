//! What a server offers: its tools, resources, templates and prompts, page by page.

use std::{collections::HashSet, sync::Arc};

use serde_json::{Map, Value, json};

use super::connection::Connection;
use crate::domain::mcp::Revision;

/// Most items of one list.
const MAX_ITEMS: usize = 1000;

/// What a server offers, as it says it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OfferedLists {
    pub(super) tools: Vec<Value>,
    pub(super) resources: Vec<Value>,
    pub(super) templates: Vec<Value>,
    pub(super) prompts: Vec<Value>,
}

/// Introduces this client; gives the server's capabilities.
pub(super) async fn introduce(connection: &Arc<Connection>) -> Result<Map<String, Value>, String> {
    let params = json!({
        "protocolVersion": Revision::V2025_11_25.as_str(),
        "capabilities": {
            "roots": { "listChanged": false }, "sampling": {}, "elicitation": { "form": {}, "url": {} },
        },
        "clientInfo": { "name": "svc", "title": "svc", "version": env!("CARGO_PKG_VERSION") },
    });
    let result = ask(connection, "initialize", &params).await?;
    let version = result.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
    if !Revision::LEGACY.iter().any(|known| known.as_str() == version) {
        return Err(format!(
            "it speaks revision {version:?} of the protocol, which this client does not"
        ));
    }
    let closed = |_| "it ended while it was introduced".to_owned();
    connection.notify("notifications/initialized", &json!({})).await.map_err(closed)?;
    Ok(result.get("capabilities").and_then(Value::as_object).cloned().unwrap_or_default())
}

/// Fetches all lists that the server has.
pub(super) async fn fetch(
    connection: &Arc<Connection>,
    capabilities: &Map<String, Value>,
) -> Result<OfferedLists, String> {
    let mut lists = OfferedLists::default();
    if capabilities.contains_key("tools") {
        lists.tools = pages(connection, "tools/list", "tools").await?;
    }
    if capabilities.contains_key("resources") {
        lists.resources = pages(connection, "resources/list", "resources").await?;
        // Many servers with resources have no templates, and say so with an error.
        let templates = pages(connection, "resources/templates/list", "resourceTemplates").await;
        lists.templates = templates.unwrap_or_default();
    }
    if capabilities.contains_key("prompts") {
        lists.prompts = pages(connection, "prompts/list", "prompts").await?;
    }
    Ok(lists)
}

async fn pages(
    connection: &Arc<Connection>,
    method: &str,
    member: &str,
) -> Result<Vec<Value>, String> {
    let (mut items, mut seen) = (Vec::new(), HashSet::new());
    let mut params = json!({});
    loop {
        let mut page = ask(connection, method, &params).await?;
        if let Some(Value::Array(more)) = page.get_mut(member) {
            items.append(more);
        }
        let next = page.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
        match next {
            Some(cursor) if items.len() < MAX_ITEMS && seen.insert(cursor.clone()) => {
                params = json!({ "cursor": cursor });
            }
            _ => {
                items.truncate(MAX_ITEMS);
                return Ok(items);
            }
        }
    }
}

async fn ask(connection: &Arc<Connection>, method: &str, params: &Value) -> Result<Value, String> {
    match connection.request(method, params).await {
        Err(_) => Err(format!("it ended in {method}")),
        Ok(Err(error)) => {
            let text = format!("{method}: {} ({})", error.message, error.code);
            Err(connection.redactor.hide(&text).into_owned())
        }
        Ok(Ok(result)) => serde_json::from_str(result.get())
            .map_err(|error| format!("{method}: the result cannot be read: {error}")),
    }
}
