//! `svc task run -- CMD…` and `svc task resend`: the command line of [`svc_host::runner`], and the
//! output of both.
//!
//! The command goes on when the daemon is away or refuses; it is never started without a daemon.

mod claim;
mod printer;
mod resend;
mod run;

pub(super) use resend::resend;
pub(super) use run::{EXAMPLES, RunArgs, run};
