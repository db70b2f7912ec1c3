//! The operating system as `svc` sees it: private files, sockets, processes and who they are, the
//! spool of hooks, the log, and the configuration.
//!
//! - Files: `private_file` writes them for their owner alone and `bounded_file` reads them with a
//!   bound. `session_secret`, `hook_spool` and `log_file` keep theirs in private files.
//! - The other end: `local_socket` says which process connects to the Unix socket,
//!   `connection_owner` whose program is at the other end of a TCP connection.
//! - Processes: `process_list` is the system's list, `server_process` a child of the daemon with
//!   all that it starts.
//! - Coding agents: `client_records` reads what they have on record of their own sessions,
//!   `project_folder` finds a project's root.
//! - [`config`] resolves the configuration, [`telemetry`] writes the log.

pub mod bounded_file;
pub mod client_records;
pub mod config;
pub mod connection_owner;
pub mod hook_spool;
pub mod local_socket;
pub mod log_file;
pub mod private_file;
pub mod process_list;
pub mod project_folder;
pub mod server_process;
pub mod session_secret;
pub mod telemetry;
