//! The operating system as `svc` sees it: private files, sockets, processes and who they are, the
//! spool of hooks, the log, and the configuration.
//!
//! - Files: `private_file` writes them for their owner alone and reads them by `bounded_file` of
//!   `svc-install`, `lines` splits bytes into lines, `spool` has files of lines, also those of
//!   hooks. `session_secret` uses private files. [`backoff`] is the delay before a retry.
//! - Peers: `local_socket` says which process connects to the Unix socket, `connection_owner` which
//!   user's program is the peer of a TCP connection.
//! - Processes: `process_list` is the system's list and says whether a process runs,
//!   `server_process` is a child of the daemon with all its descendants, `machine` says on which
//!   machine they are.
//! - Coding agents: `client_records` reads their own records of their sessions, `git_repository`
//!   finds a project's root and reads what the repository there is.
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
