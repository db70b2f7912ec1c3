//! The adapter in process: requests go through the edge and the routes to services over a temporary store.
//!
//! `server` is the daemon's HTTP side without a socket, `script` writes requests and answers down, `answers` are the
//! snapshots of every REST answer.

mod answers;
mod script;
mod server;
