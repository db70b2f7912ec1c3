//! Hosts of agents, from the other side: starting one, asking one, following one, and reading what a dead one left.
//!
//! Nothing here knows rows or services. `client` speaks the protocol on a host's socket, `launch` starts a host, `spool`
//! reads the file of a host that is gone, `tree` ends what one has left running.

mod client;
mod launch;
mod spool;
mod tree;

pub use client::{HostClient, HostError, HostFeed, HostInput, HostNews, HostProbe, RawAgentEvent};
pub use launch::launch;
pub use spool::{DeadSpool, SpoolLines, remove_files, socket_path};
pub use tree::end_tree;
