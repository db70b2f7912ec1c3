//! `svc hook`: what coding agents run at their events.
//!
//! A client waits for its hooks, shows their failures to people, and takes some exit codes for
//! orders. So: one request, a deadline over everything, the client's own shape on standard output
//! or nothing at all, and exit code 0 whatever happens. `hooks.log` has what went wrong.
//! `hooks.spool` has the events that the daemon did not get, and those whose answers were not
//! printed; the session's next hook names the latter to the daemon. A hook that its client kills
//! writes neither.

mod args;
mod attempt;
mod cold;
mod deliver;
mod hold;
mod hook_log;
mod offline;
mod payload;
mod print;
mod revival;
mod run;
mod stray;
mod wait;
mod waiting_client;

pub(super) use args::{EXAMPLES, HookArgs};
pub(super) use run::{print_wait_help, run, run_alone};
pub(super) use stray::is_called_without_arguments;
