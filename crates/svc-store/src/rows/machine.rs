//! Machines and daemons.

use std::time::Duration;

use svc_model::{Machine, Timestamp};

/// A daemon that begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDaemon {
    pub daemon_id: String,
    pub pid: u32,
    pub version: String,
}

/// A machine that has no daemon now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwayMachine {
    pub machine: Machine,
    /// When a daemon of it was last there, by the database's clock.
    pub since: Timestamp,
    pub lasts: Duration,
}
