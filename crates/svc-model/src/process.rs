//! Processes of clients, and how requests on the Unix socket name them.

use serde::{Deserialize, Serialize};

/// A client's process, told from a later one with the same id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClientProcess {
    /// Its id.
    pub pid: u32,
    /// When it started, as the system counts it, and in which run of the system.
    pub started: String,
}

/// The process at the other end of a Unix socket, as the kernel noted it at the moment of connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalProcess {
    /// Its effective user, which is the daemon's own.
    pub uid: u32,
    /// Its id; `None` where the system does not say it.
    pub pid: Option<u32>,
    /// When it started, as the system counts it, read when the connection was accepted; `None` where the system has no list of
    /// processes, or the process had ended by then. The id may be another process's by the time of a request.
    pub started: Option<u64>,
}

/// Header by which a request on the Unix socket names the client's process that started the one that asks.
pub const PROCESS_HEADER: &str = "svc-process";
/// Path at which a process on the Unix socket gets a token for its client.
pub const PROCESS_TOKENS_PATH: &str = "/v1/process_tokens";

/// Programs that stand between a client and the command that it starts: they are not the client.
pub const SHELLS: [&str; 7] = ["sh", "bash", "dash", "zsh", "fish", "env", "timeout"];
