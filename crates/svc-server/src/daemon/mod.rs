//! The daemon: composition, recovery, sweeps, drains and shutdown, that is, all that runs in the
//! daemon and serves no request.
//!
//! Only [`run`] makes a store, services and listeners. It prints nothing: the command line reports
//! that the daemon is ready.

mod compose;
mod daemon_file;
mod hook_drain;
mod lifecycle;
mod page_name;
mod sweeps;
mod tuning;

pub use compose::{Ready, run, worker_threads};
pub use daemon_file::{
    forget_killed, keep_stopped, live_file, lock_holder, stays_stopped, was_killed,
};
pub use page_name::page_host;
