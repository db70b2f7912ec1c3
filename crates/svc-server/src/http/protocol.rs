//! The OpenAPI description of the MCP server's paths.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::openapi::{Document, Operation};

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

pub(super) fn describe(document: &mut Document) {
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
    document.add("/mcp", "post", post);
    let get =
        session(Operation::new("What a session is told unasked, or the rest of a call's stream"))
            .header("Last-Event-ID", "The last id received: what follows it is sent")
            .answer_with(200, "Until the session's end, or the call's", "text/event-stream")
            .answer_with(204, "The client has all of that stream", "");
    document.add("/mcp", "get", get);
    let delete = session(Operation::new("End a session")).answer_with(204, "It is over", "");
    document.add("/mcp", "delete", delete);
    let sse = Operation::new(
        "MCP as of 2024-11-05: a session's stream, which begins with where to POST to",
    )
    .header("Last-Event-ID", "The last id received: the same session goes on")
    .answer_with(200, "Until the session's end", "text/event-stream");
    document.add("/sse", "get", sse);
    let fall_back = Operation::new(
        "Never served: clients that know both transports fall back to GET at this 404",
    );
    document.add("/sse", "post", fall_back);
    let messages =
        Operation::new("MCP as of 2024-11-05: a message; it is answered on the session's stream")
            .query::<SessionQuery>()
            .body::<JsonRpc>()
            .answer_with(202, "Taken", "");
    document.add("/messages", "post", messages);
}
