//! The operating system as `svc` sees it: private files, sockets, processes and who they are, the spool of hooks, the log, and the
//! configuration.
//!
//! Modules stand alone, but for files: `private_file` reads by `bounded_file`, which `svc-install` needs as well and so has, and what
//! keeps something keeps it in a private file.

pub mod backoff;
pub mod client_records;
pub mod config;
pub mod connection_owner;
pub mod hook_spool;
pub mod lines;
pub mod local_socket;
pub mod log_file;
pub mod private_file;
pub mod process_list;
pub mod project_folder;
pub mod server_process;
pub mod session_secret;
pub mod spool_file;
pub mod telemetry;

pub use svc_install::bounded_file;
