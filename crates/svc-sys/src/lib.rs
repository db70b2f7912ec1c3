//! The operating system as `svc` sees it: private files, sockets, processes and who they are, the
//! spool of hooks, the log, and the configuration.
//!
//! - Files: `private_file` writes them for their owner alone and reads them through `bounded_file`
//!   of `svc-install`, `lines` splits bytes into lines, `spool` has files of lines, including the
//!   hooks' spool. `session_secret` stores secrets in private files. [`backoff`] is the delay
//!   before a retry.
//! - Peers: `local_socket` checks which process listens on a Unix socket, and `connection_owner`
//!   finds the user whose program is the peer of a TCP connection.
//! - Processes: `process_list` is the system's list and says whether a process runs,
//!   `server_process` is a child of the daemon with all its descendants, `machine` identifies the
//!   machine that they run on.
//! - Coding agents: `client_records` reads their own records of their sessions, `git_repository`
//!   finds a project's root and identifies the repository there.
//! - [`config`] resolves the configuration, [`telemetry`] writes the log.

pub mod backoff;
pub mod client_records;
pub mod config;
pub mod connection_owner;
pub mod git_repository;
pub mod lines;
pub mod local_socket;
pub mod machine;
pub mod private_file;
pub mod process_list;
pub mod server_process;
pub mod session_secret;
pub mod spool;
pub mod telemetry;

pub use svc_install::bounded_file;
