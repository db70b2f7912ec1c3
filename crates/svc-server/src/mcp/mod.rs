//! The Model Context Protocol: one server for every revision from 2024-11-05 to 2026-07-28, over the log.
//!
//! A client's session, its subscriptions and its calls that take time are rows, and the messages of such a call are a
//! stream of the log. So a client that comes back after `kill -9` finds its session, reads on from its cursor, and gets
//! the answer that it was waiting for.
//!
//! The code calls the revisions up to 2025-11-25 legacy (they begin with `initialize` and have sessions) and those from
//! 2026-07-28 on modern (stateless). A bare call has neither a session nor a revision.
//!
//! Reading order, each after those that it builds on:
//!
//! 1. `rpc`: messages of JSON-RPC that come in and go out.
//! 2. `introduction` is what is kept of what a client says of itself. `era` finds the era of a request and checks its headers. `session` is a legacy session in memory, `origin` says
//!    where a request comes from.
//! 3. `prompts` and `resources` are what there is beside tools, `metrics` the counters, `seal` signs the state that a
//!    stateless client carries.
//! 4. `running` are the calls at work. `server` is the state that all parts share, `session_access` opens and finds sessions, `exposure` says which tools a caller is shown, `acting_session` finds the
//!    session that a call acts in.
//! 5. `call`: a tool's call from the request to the answer, at once, as a task, or on record; and its recovery.
//! 6. `notices`: what clients are told without a request. `methods`: all methods that have one answer.
//! 7. `stream`: the bodies of responses. `http`: the routes.
//! 8. `start`: how it all begins and ends.

mod acting_session;
mod call;
mod era;
mod exposure;
mod http;
mod introduction;
mod methods;
mod metrics;
mod notices;
mod origin;
mod prompts;
mod resources;
mod rpc;
mod running;
mod seal;
mod server;
mod session;
mod session_access;
mod start;
mod stream;

pub use self::http::routes;
pub use metrics::McpMetrics;
pub use prompts::{PromptArgument, PromptTemplate, builtin as builtin_prompts, servers_prompt};
pub use resources::{Resource, ResourcePage, ResourceProvider, ResourceTemplate, StreamResources};
pub use rpc::RpcError;
pub use server::{McpServer, McpServerParts};
