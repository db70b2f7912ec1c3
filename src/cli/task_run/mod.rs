//! `svc task run -- CMD…` and `svc task resend`: the command line of [`svc_host::runner`], and what
//! both print.
//!
//! The command keeps running when the daemon goes away or refuses; it is never started without one.

mod claim;
mod printer;
mod resend;
mod run;

pub(super) use resend::resend;
pub(super) use run::{EXAMPLES, RunArgs, run};
