//! Who a process is, and how requests on the Unix socket name the client's.

use serde::{Deserialize, Serialize};

use super::MachineId;

/// A process, told from all others that had or will have its id, also those before the system
/// started anew.
///
/// `svc-sys/process_list.rs` reads it from the system. Whether a process of a row still runs is
/// asked with its machine, see [`MachineProcess`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its id.
    pub pid: u32,
    /// When it started, as the system counts it, and in which run of the system: `TICKS@BOOT`.
    /// Empty where the system does not list processes.
    pub started: String,
}

/// A process that a row names, with the machine that it runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineProcess {
    pub machine_id: MachineId,
    pub process: ProcessIdentity,
}

/// Whether a process runs, as far as a machine can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    Running,
    /// It has ended, or the system has started anew since.
    Gone,
    /// It is another machine's, whose daemon alone can tell. Nobody else ends, revokes or marks
    /// anything for it.
    Unknown,
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
