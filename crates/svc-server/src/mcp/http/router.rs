//! The table of routes.

use axum::{
    Router,
    routing::{get, post},
};

use super::{super::McpServer, legacy_sse, post::post_message, session};
use crate::web::RouteName;

/// The routes of the MCP server.
pub fn routes(server: McpServer) -> Router {
    let mcp = post(post_message).get(session::open_stream).delete(session::close);
    let sse = get(legacy_sse::open).post(legacy_sse::refuse_post);
    let messages = post(legacy_sse::post_message);
    Router::new()
        .route("/mcp", mcp.layer(RouteName::layer("/mcp")))
        .route("/sse", sse.layer(RouteName::layer("/sse")))
        .route("/messages", messages.layer(RouteName::layer("/messages")))
        .with_state(server)
}
