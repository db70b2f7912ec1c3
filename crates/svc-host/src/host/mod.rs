//! The agent host: a small process that owns one agent and outlives the daemon.
//!
//! Read `entry` for the life of a host and `agent` for the state of its agent. `backend` has the
//! vendors' protocols, each a state machine without I/O. `agent_spool` holds the numbered stream,
//! which clients read at their own pace through `connection`. `reaper` ends the processes that the
//! agent has started.

mod agent;
mod agent_spool;
mod backend;
mod connection;
mod decode;
mod entry;
mod fuzz;
mod reaper;
mod record;
mod turn;

pub use entry::run_if_asked;
pub use fuzz::{read_output, read_socket};
