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
//! 1. `http/post.rs` reads the body (`rpc`), and finds the era of the request and its session
//!    (`http/mod.rs`, `era`, `server`).
//! 2. `origin` finds the agent's session that the call acts in, and with it the project.
//! 3. `call/mod.rs` finds the tool, and chooses how its call runs: its top comment draws that. A
//!    slow call in a session is stored first (`call/recorded.rs`).
//! 4. `call/run.rs` polls the tool, and does meanwhile what the tool asks of its client
//!    (`call/questions.rs`).
//! 5. `call/answer.rs` makes the answer of the outcome, and `stream` the response: whole, or a
//!    stream of events.
//!
//! `methods` are all methods that have one answer, `notices` what clients are told without a
//! request. `prompts` and `resources` are what there is beside tools, `metrics` the counters,
//! `request_state` signs the state that a stateless client carries.

mod call;
mod era;
mod http;
mod methods;
mod metrics;
mod notices;
mod origin;
mod prompts;
mod request_state;
mod resources;
mod rpc;
mod server;
mod stream;

use svc_core::service;

use self::call::recover_calls;

pub use self::http::routes;
pub use metrics::McpMetrics;
pub use prompts::{PromptArgument, PromptTemplate, builtin as builtin_prompts, servers_prompt};
pub use resources::{Resource, ResourcePage, ResourceProvider, ResourceTemplate, StreamResources};
pub use rpc::RpcError;
pub use server::{McpServer, McpServerParts};

impl McpServer {
    /// Puts a server together, and takes up the calls that the last stop or crash cut off.
    pub async fn start(parts: McpServerParts) -> Result<Self, service::Error> {
        let server = Self::assemble(parts).await?;
        recover_calls(&server).await?;
        server.background.spawn(watch_new_streams(server.clone()));
        server.background.spawn(watch_servers(server.clone()));
        Ok(server)
    }

    /// Waits after the stop until no call and no other work is running.
    pub async fn finish(&self) {
        self.background.close();
        self.background.wait().await;
    }
}

/// Tells clients that the resources or prompts of servers behind the daemon have changed.
async fn watch_servers(server: McpServer) {
    let Some(sources) = &server.sources else { return };
    let (mut resources, mut prompts) = (sources.resource_changes(), sources.prompt_changes());
    loop {
        tokio::select! {
            () = server.stop.cancelled() => return,
            Ok(()) = resources.changed() => {
                server.resources_changed.send_modify(|count| *count += 1);
            }
            // The daemon's own are as they were; who is told reads all of them again.
            Ok(()) = prompts.changed() => server.prompts.send_modify(|_| {}),
            else => return,
        }
    }
}

/// Tells clients that new streams have changed the list of resources: of the first at once, and
/// then no oftener than every few seconds, as every client reads the list again.
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
