//! Processes on this machine, by an id that a caller gave.

use std::net::SocketAddr;

use svc_model::ProcessIdentity;
use svc_sys::{
    connection_owner,
    process_list::{self, ProcessEntry},
};

/// The other end of a request's connection, as far as that shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RequestSender {
    /// The Unix socket shows the process.
    Local(Option<u32>),
    /// A connection over TCP: the system's list of sockets has its process.
    Tcp { from: SocketAddr, to: SocketAddr },
    /// No connection: a call that was composed here, or is run again.
    #[default]
    Unknown,
}

impl RequestSender {
    /// Its process id; `None` if it is of another machine or user.
    pub(super) async fn process(self) -> Option<u32> {
        match self {
            Self::Local(pid) => pid,
            Self::Tcp { from, to } => {
                let find = move || connection_owner::process_of_connection(from, to);
                tokio::task::spawn_blocking(find).await.ok().flatten()
            }
            Self::Unknown => None,
        }
    }
}

/// The running process with this id; `None` if there is none, or the system does not say.
pub(super) fn running(pid: u32) -> Option<ProcessIdentity> {
    ProcessEntry::read(pid).filter(|entry| entry.is_running).map(|entry| entry.identity(pid))
}

/// The process with this id. Its start is empty where the system does not say it.
pub(super) fn identity(pid: u32) -> ProcessIdentity {
    process_list::identity(pid, ProcessEntry::read(pid).map_or(0, |entry| entry.started))
}
