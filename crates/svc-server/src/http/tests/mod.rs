//! Tests of the adapter in process: requests go through the edge and the routes to services over a
//! temporary store.
//!
//! `server` is the daemon's HTTP side without a socket. `script` records requests and responses,
//! and `answers` has the snapshots of every REST response. `client` sends single requests, and
//! `shapes` checks the forms of their responses; the other files are tests by resource.
//!
//! Tests that need a process, a socket, a file or a restart are in `tests/it`.

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

/// Callers and replies by the names that `shapes` uses.
mod wire {
    pub(crate) use super::{client::Client as Caller, server::Reply};
}
