//! `svc install`, `svc install status`, `svc uninstall`: the entries of svc among the servers and
//! hooks of coding agents.
//!
//! The package `svc-install` knows the files and their entries. This module has the flags, the
//! translation of the daemon's settings, and the output.

mod args;
mod change;
mod daemon;
mod here;
mod report;
mod status;

pub(super) use args::{EXAMPLES, InstallArgs, UninstallArgs};
pub(super) use change::{install, uninstall};
pub(super) use status::drift;
