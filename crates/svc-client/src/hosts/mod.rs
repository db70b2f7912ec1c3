//! Hosts of agents as a client sees them. `client` speaks the protocol on a host's socket;
//! `lifecycle` starts a host, reads the spool of a dead one, and ends the processes that it left.

mod client;
mod lifecycle;

pub use client::{HostClient, HostError, HostFeed, HostInput, HostNews, HostProbe, RawAgentEvent};
pub use lifecycle::{DeadSpool, SpoolLines, end_tree, launch, remove_files, socket_path};
