//! The Model Context Protocol: one server for every revision from 2024-11-05 to 2026-07-28, over
//! the log.
//!
//! A client's session, its subscriptions and its calls that take time are rows, and the messages of
//! such a call are a stream of the log. So a client that comes back after `kill -9` finds its
//! session, reads on from its cursor, and gets the answer that it was waiting for.
//!
//! The code calls the revisions up to 2025-11-25 legacy (they begin with `initialize` and have
//! sessions) and those from 2026-07-28 on modern (stateless). A bare call has neither a session nor
//! a revision.
//!
//! # A tool is called
//!
//! 1. `post.rs` reads the body (`rpc`). `request` finds the era of the request, its MCP session
//!    (`server`), the agent's session that the call acts in, and with it the project.
//! 2. `call/mod.rs` finds the tool, and chooses how its call runs: its top comment draws that. A
//!    slow call in a session is stored first.
//! 3. `call/run.rs` polls the tool, and meanwhile handles the tool's messages and questions for the
//!    client.
//! 4. `call/answer.rs` makes the answer from the outcome, and `stream` the response: the whole
//!    answer, or a stream of events.
//!
//! `introduction` is how a client begins, `methods` are all methods that have one answer, `notices`
//! what clients are told without a request, `streams` the streams that clients open, `legacy_sse`
//! the transport of 2024-11-05. `offers` is what the server offers beside tools.

mod call;
mod introduction;
mod legacy_sse;
mod methods;
mod notices;
mod offers;
mod post;
mod request;
mod rpc;
mod server;
mod stream;
mod streams;

use axum::{
    Router,
    routing::{get, post},
};
use futures_util::FutureExt as _;
use svc_core::service;

use self::call::recover_calls;
use crate::web::{Code, Problem, RouteName};

pub use offers::{
    PromptArgument, PromptTemplate, Provided, ResourcePage, ResourceProvider, StreamResources,
    servers_prompt,
};
pub use rpc::RpcError;
pub use server::{McpMetrics, McpServer, McpServerParts};

/// `/mcp` is for every revision and for bare calls, `/sse` and `/messages` are for 2024-11-05.
pub fn routes(server: McpServer) -> Router {
    let mcp = post(post::post_message).get(streams::open_stream).delete(streams::close);
    // Clients of both transports try `POST /sse` first, and some need a 404 to fall back to `GET`.
    let fall_back = async || {
        let why = "POST goes to /mcp, or with GET /sse to the address that it gives";
        Problem::new(Code::NotFound, why)
    };
    let sse = get(legacy_sse::open).post(fall_back);
    let messages = post(legacy_sse::post_message);
    Router::new()
        .route("/mcp", mcp.layer(RouteName::layer("/mcp")))
        .route("/sse", sse.layer(RouteName::layer("/sse")))
        .route("/messages", messages.layer(RouteName::layer("/messages")))
        .with_state(server)
}

impl McpServer {
    /// Creates a server, and takes up the calls that the last stop or crash cut off.
    pub async fn start(parts: McpServerParts) -> Result<Self, service::Error> {
        let server = Self::assemble(parts).await?;
        recover_calls(&server).await?;
        server.background.spawn(watch_new_streams(server.clone()).boxed());
        server.background.spawn(watch_servers(server.clone()).boxed());
        Ok(server)
    }

    /// Waits after the stop until no call and no other work is running.
    pub async fn finish(&self) {
        self.background.close();
        self.background.wait().await;
    }
}

/// Tells clients that the resources or prompts of child servers have changed.
async fn watch_servers(server: McpServer) {
    let Some(sources) = &server.sources else { return };
    let (mut resources, mut prompts) = (sources.resource_changes(), sources.prompt_changes());
    loop {
        tokio::select! {
            () = server.stop.cancelled() => return,
            Ok(()) = resources.changed() => {
                server.resources_changed.send_modify(|count| *count += 1);
            }
            // The daemon's own prompts are unchanged; clients read the whole list again.
            Ok(()) = prompts.changed() => server.note_prompts_changed(),
            else => return,
        }
    }
}

/// Tells clients that new streams have changed the list of resources: the first time at once, then
/// at most every few seconds, since every client reads the list again.
async fn watch_new_streams(server: McpServer) {
    let mut opened = server.services.log.streams_opened();
    let pause = server.services.tuning().list_changed_pause;
    loop {
        tokio::select! {
            () = server.stop.cancelled() => return,
            changed = opened.changed() => if changed.is_err() { return },
        }
        server.resources_changed.send_modify(|count| *count += 1);
        tokio::select! {
            () = server.stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
