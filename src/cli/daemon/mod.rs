//! `svc start`, `stop`, `restart`, `status`, `logs` and `health`: the daemon as a process.
//!
//! All of them ask on the socket in the data folder. `daemon.json` is for people, and for a daemon
//! of an earlier version that has no socket: it is believed only if the process it names answers
//! `/health` under its own pid, as by now a pid alone may belong to anyone.

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
