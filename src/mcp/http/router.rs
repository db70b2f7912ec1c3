//! The table of routes.

use axum::{
    Router,
    routing::{get, post},
};

use super::{super::McpServer, legacy_sse, post::post_message, session};
use crate::web::{AdapterRoutes, DirectPost, MCP, RouteName};

/// The routes of the MCP server.
pub fn routes(server: McpServer) -> AdapterRoutes {
    let direct = server.clone();
    let post_mcp = DirectPost::new(move |caller, headers, body| {
        let server = direct.clone();
        async move { server.post(caller, headers, body).await }
    });
    AdapterRoutes { table: table(server), post_mcp: Some(post_mcp) }
}

fn table(server: McpServer) -> Router {
    let mcp = post(post_message).get(session::open_stream).delete(session::close);
    let sse = get(legacy_sse::open).post(legacy_sse::refuse_post);
    let messages = post(legacy_sse::post_message);
    Router::new()
        .route(MCP, mcp.layer(RouteName::layer(MCP)))
        .route("/sse", sse.layer(RouteName::layer("/sse")))
        .route("/messages", messages.layer(RouteName::layer("/messages")))
        .with_state(server)
}
