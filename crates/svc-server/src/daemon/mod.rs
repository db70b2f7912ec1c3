//! The daemon: composition, recovery, sweeps, drains, lifecycle. What runs in the daemon and
//! answers no request.
//!
//! Only [`run`] makes a store, services and listeners. It prints nothing: the command line says
//! when the daemon is ready.

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
