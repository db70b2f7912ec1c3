//! `svc start`, `stop`, `restart`, `status`, `logs` and `health`: the daemon as a process.
//!
//! All of them ask on the socket in the data folder. `daemon.json` is for people, and for a daemon
//! of an earlier version that has no socket. A pid alone proves nothing, since the system reuses
//! pids: the file is believed only if its process answers `/health` with the same pid.

mod log_line;
mod logs;
mod probe;
mod start;
mod status;
mod stop;
mod url;

pub(super) use logs::{LogsArgs, logs};
pub(super) use probe::{DaemonProbe, find_daemon, no_socket, not_ready, probe};
pub(super) use start::{EnsuredDaemon, ensure_apart, start, start_unattended};
pub(super) use status::{health, status};
pub(super) use stop::{StopArgs, agents_that_go_on, restart, stop, stop_running};
pub(super) use url::daemon_url;
