//! Coding agents that a person started, reached by their own protocols.
//!
//! - `codex` is the protocol of Codex' app-server: a state machine without I/O, which reads what
//!   the client tells and writes what is wanted of it.
//! - `codex_socket` is the connection to that app-server.

pub mod codex;
pub mod codex_socket;
