//! The server's HTTP routes: `/mcp` for every revision and for bare calls, `/sse` and `/messages`
//! for 2024-11-05.
//!
//! `request` has what all paths need of a request; `post` answers `POST /mcp`, `streams` opens
//! streams; `legacy_sse` are the two paths of 2024-11-05.

mod legacy_sse;
mod post;
mod request;
mod streams;

use axum::{
    Router,
    routing::{get, post},
};

use self::post::post_message;
use super::McpServer;
use crate::web::RouteName;

/// The routes of the MCP server.
pub fn routes(server: McpServer) -> Router {
    let mcp = post(post_message).get(streams::open_stream).delete(streams::close);
    let sse = get(legacy_sse::open).post(legacy_sse::refuse_post);
    let messages = post(legacy_sse::post_message);
    Router::new()
        .route("/mcp", mcp.layer(RouteName::layer("/mcp")))
        .route("/sse", sse.layer(RouteName::layer("/sse")))
        .route("/messages", messages.layer(RouteName::layer("/messages")))
        .with_state(server)
}
