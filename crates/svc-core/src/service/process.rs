//! Processes on this machine, by an id that a caller gave.

use std::net::SocketAddr;

use svc_model::ProcessIdentity;
use svc_sys::{connection_owner, process_list::ProcessEntry};

pub(in crate::service) use svc_sys::process_list::{
    is_running as is_alive, is_same_running as is_running,
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
    pub(in crate::service) async fn process(self) -> Option<u32> {
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

/// Start time of a process in the system's own count, to tell it from a later one with the same id.
/// `None` where the system does not say.
pub fn started(pid: u32) -> Option<String> {
    ProcessEntry::read(pid).map(|entry| entry.started.to_string())
}

/// The running process with this id; `None` if there is none, or the system does not say.
pub(in crate::service) fn running(pid: u32) -> Option<ProcessIdentity> {
    ProcessEntry::read(pid).filter(|entry| entry.is_running).map(|entry| entry.identity(pid))
}

/// Whether the process with this id and start time still runs. Without a start time, the id
/// decides.
pub fn is_same_alive(pid: u32, start: Option<&str>) -> bool {
    is_alive(pid) && (start.is_none() || started(pid).as_deref() == start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_another_start_time_is_not_running() {
        let own = std::process::id();
        if let Some(entry) = ProcessEntry::read(own) {
            assert!(is_running(&entry.identity(own)));
            let earlier = ProcessIdentity { started: "1@".to_owned(), ..entry.identity(own) };
            assert!(!is_running(&earlier), "another process had this id");
        }
        assert!(is_alive(own) && is_same_alive(own, started(own).as_deref()));
        assert!(!is_same_alive(own, Some("another start")) || started(own).is_none());
        assert!(!is_alive(0) && !is_alive(u32::MAX));
    }
}
