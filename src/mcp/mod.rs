//! The Model Context Protocol: one server for every revision from 2024-11-05 to 2026-07-28, over the log.
//!
//! A client's session, what it subscribed to and its calls that take time are rows, and what such a call says is a
//! stream of the log. So a client that comes back after `kill -9` finds its session, reads on where it was, and gets
//! the answer it was waiting for.
//!
//! Reading order, along the way of a request: `http` takes it in, `ladder` finds out which era it is of and whether
//! its headers agree with it, `dispatch` answers what can be answered at once, `calls` runs tools, and `bodies` are the
//! streams that answers come in. `session` is what a legacy client finds again, `far_end` how a tool talks back to its
//! client, `tasks` the extension of that name, `notices` what clients are told unasked, `resources` and `prompts` what
//! there is beside tools, `seal` the state that a stateless client carries for us.

mod bodies;
mod calls;
mod dispatch;
mod far_end;
mod http;
mod ladder;
mod message;
mod metrics;
mod notices;
mod prompts;
mod resources;
mod seal;
mod server;
mod session;
mod tasks;
mod whose;

pub use http::router;
pub use message::RpcError;
pub use metrics::McpMetrics;
pub use prompts::{Prompt, PromptArgument, builtin as builtin_prompts};
pub use resources::{Resource, ResourcePage, ResourceProvider, ResourceTemplate, StreamResources};
pub use server::{Mcp, McpParts};
