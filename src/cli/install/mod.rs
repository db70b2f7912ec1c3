//! `svc install`, `svc install status`, `svc uninstall`: svc among the servers and hooks of coding
//! agents.
//!
//! The package `svc-install` knows what is installed and how. Here are the flags, the way from the
//! daemon's settings to it, and what is printed.

mod args;
mod change;
mod daemon;
mod here;
mod report;
mod status;

pub(super) use args::{EXAMPLES, InstallArgs, UninstallArgs};
pub(super) use change::{install, uninstall};
pub(super) use status::drift;
