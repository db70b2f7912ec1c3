//! The adapter in process: requests go through the edge and the routes to services over a temporary
//! store.
//!
//! `server` is the daemon's HTTP side without a socket. `script` writes requests and answers down,
//! and `answers` are the snapshots of every REST answer. `client` sends requests one by one, and
//! `shapes` says what their answers must be; the other files are tests by resource.
//!
//! What needs a process, a socket, a file or a restart is tested from outside, in `tests/it`.

mod answers;
mod client;
mod errors;
mod messages;
mod peers;
mod script;
mod server;
#[path = "../../../../../tests/it/shapes.rs"]
mod shapes;
mod tasks;

/// Callers and replies as `shapes` names them.
mod wire {
    pub(crate) use super::{client::Client as Caller, server::Reply};
}
