//! Who a process is, and how requests on the Unix socket name the client's.

use serde::{Deserialize, Serialize};

/// A process, told from all others that had or will have its id, also those before the system
/// started anew.
///
/// `svc-sys/process_list.rs` reads it from the system and says whether it still runs. Where the
/// system does not list processes there is none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its id.
    pub pid: u32,
    /// When it started, as the system counts it, and in which run of the system: `TICKS@BOOT`.
    pub started: String,
}

/// The process at the other end of a Unix socket, as the kernel noted it at the moment of
/// connecting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalProcess {
    /// Its effective user, which is the daemon's own.
    pub uid: u32,
    /// Its id; `None` where the system does not say it.
    pub pid: Option<u32>,
    /// When it started, as the system counts it, read when the connection was accepted; `None`
    /// where the system has no list of processes, or the process had ended by then. The id may be
    /// another process's by the time of a request.
    pub started: Option<u64>,
}

/// Header by which a request on the Unix socket names the client's process that started the one
/// that asks.
pub const PROCESS_HEADER: &str = "svc-process";
/// Path at which a process on the Unix socket gets a token for its client.
pub const PROCESS_TOKENS_PATH: &str = "/v1/process_tokens";

/// Programs that stand between a client and the command that it starts: they are not the client.
pub const SHELLS: [&str; 7] = ["sh", "bash", "dash", "zsh", "fish", "env", "timeout"];
