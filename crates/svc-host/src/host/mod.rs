//! The agent host: a small process that owns one agent and outlives the daemon.
//!
//! Read `run` for its life and `agent` for the state of its agent. `backend` has the protocols of
//! the vendors, each a state machine without I/O. The spool of [`crate::runner`] holds the numbered
//! stream; clients read it at their own pace in `connection`. `entry` starts the process.

mod agent;
mod backend;
mod connection;
mod decode;
mod entry;
mod fuzzed;
mod partial_entry;
mod record;
mod run;
mod turn;

pub use entry::run_if_asked;
pub use fuzzed::{read_output, read_socket};
