//! The table of all routes, and the OpenAPI description of the MCP server's paths.

use std::sync::LazyLock;

use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, header};
use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::{
    access, agents,
    api::{Api, Operation},
    events, health, holds, journal, page, peers, sources, tasks,
};

pub(super) fn api() -> Api {
    let mut api = Api::new();
    describe_mcp(&mut api);
    let api = [
        health::routes,
        peers::routes,
        tasks::routes,
        agents::routes,
        holds::routes,
        events::routes,
        journal::routes,
        access::routes,
        page::routes,
        sources::routes,
    ]
    .into_iter()
    .fold(api, |api, add| add(api));
    let on_document = Operation::new("This description (OpenAPI 3.1)");
    let on_document = on_document.answer_with(200, "The document", "application/json");
    api.get("/openapi.json", on_document, show_document)
}

/// Built by the first request: most daemons are never asked for it.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| api().finish().1.to_string());

async fn show_document() -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], DOCUMENT.as_str()).into_response()
}

/// A JSON-RPC 2.0 message, or, in revisions before 2025-06-18, an array of them.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "stands for the body in the description")]
struct JsonRpc {
    /// `2.0`.
    jsonrpc: String,
    /// Of a request: a string or a number.
    id: Option<Value>,
    method: Option<String>,
    params: Option<Map<String, Value>>,
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "stands for the query in the description")]
struct SessionQuery {
    /// As the `endpoint` event of `GET /sse` said.
    session_id: String,
}

/// Describes the paths of the MCP server, which serves them itself.
fn describe_mcp(api: &mut Api) {
    let session = |operation: Operation| {
        operation.header(
            "Mcp-Session-Id",
            "The session that `initialize` gave, in revisions that have them",
        )
    };
    let post = session(Operation::new(
        "MCP, every revision from 2024-11-05 to 2026-07-28; tools/call, tools/list and ping also without a session",
    ))
    .header("MCP-Protocol-Version", "The revision; 2026-07-28 demands it")
    .header("Mcp-Method", "The body's method; 2026-07-28 demands it")
    .header("Mcp-Name", "What the request is about; 2026-07-28 demands it where there is such a thing")
    .header("Svc-Session-Id", "For which session the operator makes the call")
    .body::<JsonRpc>()
    .answer::<JsonRpc>(200, "The answer; as `text/event-stream` where it takes time")
    .answer_with(202, "A notification or a response was taken", "");
    api.describe("/mcp", "post", post);
    let get =
        session(Operation::new("What a session is told unasked, or the rest of a call's stream"))
            .header("Last-Event-ID", "The last id received: what follows it is sent")
            .answer_with(200, "Until the session's end, or the call's", "text/event-stream")
            .answer_with(204, "The client has all of that stream", "");
    api.describe("/mcp", "get", get);
    let delete = session(Operation::new("End a session")).answer_with(204, "It is over", "");
    api.describe("/mcp", "delete", delete);
    let sse = Operation::new(
        "MCP as of 2024-11-05: a session's stream, which begins with where to POST to",
    )
    .header("Last-Event-ID", "The last id received: the same session goes on")
    .answer_with(200, "Until the session's end", "text/event-stream");
    api.describe("/sse", "get", sse);
    let fall_back = Operation::new(
        "Never served: clients that know both transports fall back to GET at this 404",
    );
    api.describe("/sse", "post", fall_back);
    let messages =
        Operation::new("MCP as of 2024-11-05: a message; it is answered on the session's stream")
            .query::<SessionQuery>()
            .body::<JsonRpc>()
            .answer_with(202, "Taken", "");
    api.describe("/messages", "post", messages);
}
