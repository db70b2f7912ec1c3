//! Machines and their daemons.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MachineId, Timestamp};

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
