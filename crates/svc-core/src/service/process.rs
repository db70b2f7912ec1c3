//! Processes on this machine, by an id that a caller gave, and the process at the other end of a
//! connection.

use std::net::SocketAddr;

use svc_model::{LocalProcess, ProcessIdentity};
use svc_sys::{
    connection_owner,
    process_list::{self, ProcessEntry},
};

/// The other end of a request's connection, as far as the connection identifies it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RequestSender {
    /// The Unix socket identifies the process.
    Local(LocalProcess),
    /// A connection over TCP: the system's list of sockets has the process.
    Tcp { from: SocketAddr, to: SocketAddr },
    /// No connection: the call was composed here, or is run again.
    #[default]
    Unknown,
}

impl RequestSender {
    /// The sender's process id; `None` if the process is of another machine or user.
    pub(super) async fn process(self) -> Option<u32> {
        match self {
            Self::Local(process) => process.pid,
            Self::Tcp { from, to } => {
                let find = move || connection_owner::process_of_connection(from, to);
                tokio::task::spawn_blocking(find).await.ok().flatten()
            }
            Self::Unknown => None,
        }
    }
}

/// The running process with this id; `None` if there is none, or the system does not report it.
pub(super) fn running(pid: u32) -> Option<ProcessIdentity> {
    ProcessEntry::read(pid).filter(|entry| entry.is_running).map(|entry| entry.identity(pid))
}

/// The process with this id. Its start is empty if the system does not report it.
pub(super) fn identity(pid: u32) -> ProcessIdentity {
    process_list::identity(pid, ProcessEntry::read(pid).map_or(0, |entry| entry.started))
}
