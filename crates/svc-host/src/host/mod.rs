//! The agent host: a small process that owns one agent and outlives the daemon.
//!
//! Read `run` for its life and `agent` for what an agent is to it. `backend` has the protocols of the vendors, each a
//! state machine without input or output. The stream is numbered here and kept in the spool of [`crate::runner`]; clients
//! read it at their own pace in `connection`. `entry` is how the process begins.

mod agent;
mod backend;
mod commands;
mod connection;
mod decode;
mod entry;
mod environment;
mod fuzzed;
mod output_line;
mod paths;
mod requests;
mod run;
mod saying;
mod server;
mod stderr_tail;
#[cfg(test)]
mod testing;
mod turn;

pub use entry::run_if_asked;
pub use fuzzed::{read_output, read_socket};
