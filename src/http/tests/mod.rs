//! The adapter in process: requests go through the edge and the routes to services over a temporary store.
//!
//! `server` is the daemon's HTTP side without a socket. `script` writes requests and answers down, and `answers` are the
//! snapshots of every REST answer. `client` sends requests one by one; the other files are tests by resource.
//!
//! What needs a process, a socket, a file or a restart is tested from outside, in `tests/it`.

mod answers;
mod client;
mod errors;
mod messages;
mod peers;
mod script;
mod server;
mod tasks;
