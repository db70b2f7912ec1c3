//! Hooks: what an event of a coding agent's client changes, and the reply to it.
//!
//! `event` takes an event through its phases: recognise the session, write, compose the reply.
//! `write_job` writes all rows of an event in one commit; [`domain::hook`](svc_model::hook) decides
//! which rows, and `handovers` decides which messages the reply has. `mail_wait` waits for
//! messages on behalf of an idle session, and `waiters` knows which process waits for which
//! session. `sending` reports to a sender when its message arrives. `announced_calls` finds the
//! session in which an MCP tool is called.
//! `earlier_output` removes text that a turn reported before it continued with messages.
//! `codex_threads` makes sessions of threads that no hook has reported yet.

mod announced_calls;
mod codex_threads;
mod earlier_output;
mod event;
mod mail_wait;
mod sending;
mod waiters;
mod write_job;

pub use event::{HookCall, Hooks};
pub use mail_wait::{MailWait, MailWaiter};
