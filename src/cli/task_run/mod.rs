//! `svc task run -- CMD…`: a command as a task.
//!
//! The way of a line: pipe → [`lines`] → spool file → [`sender`] → daemon. The spool is the buffer: the command never
//! waits for the daemon, and a line that the daemon has not acknowledged is on the disk. Every event carries an id of
//! ours, so sending again doubles nothing.
//!
//! The command keeps running when the daemon goes away or refuses; it is never started without one.

mod cancel;
mod child;
mod echo;
mod event;
mod lines;
mod resend;
mod run;
mod sender;
mod spool;
mod supervise;

pub(super) use resend::resend;
pub(super) use run::{EXAMPLES, RunArgs, run};
