//! Coding agents that a person started, reached by their own protocols.
//!
//! - `codex`: the protocol of Codex' app-server, as a state machine without I/O.
//! - `codex_socket`: the connection to that app-server.

pub mod codex;
pub mod codex_socket;
