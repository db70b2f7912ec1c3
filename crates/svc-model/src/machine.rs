//! Machines, their daemons, and processes on them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{MachineId, Timestamp};

/// A data folder on a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// The same for this host and folder for ever.
    pub machine_id: MachineId,
    /// `[daemon] name`, else the host's name.
    pub name: String,
}

/// A daemon that has not said that it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonView {
    /// Changes with each start.
    pub daemon_id: String,
    /// Name of its machine.
    pub name: String,
    /// Its machine.
    pub machine: MachineId,
    /// Where other daemons reach it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Its version.
    pub version: String,
    /// Until then it is there, by the database's clock, unless it renews the lease before.
    pub lease_until: Timestamp,
    /// Number of live agents of its machine.
    pub agents: i64,
    /// Whether it is the daemon that answers.
    pub is_self: bool,
}

/// A process, distinguished from all others that ever have its id, also in earlier runs of the
/// system. `svc-sys/process_list.rs` reads it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
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
    /// It is another machine's, and only that machine's daemon can tell. No other daemon ends,
    /// revokes or marks anything for it.
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
