//! Hosts of agents, from the daemon's side: starting one, asking one, following one, and reading what a dead one left.
//!
//! Nothing here knows rows or services. `client` speaks the protocol on a host's socket, `launch` starts a host, `spool`
//! reads the file of a host that is gone, `tree` ends what one has left running.

mod client;
mod launch;
mod spool;
mod tree;

pub use client::{HostClient, HostError, HostInput, HostNews, RawAgentEvent};
pub use launch::launch;
pub use spool::{DeadSpool, remove_files, socket_path};
pub use tree::end_tree;
