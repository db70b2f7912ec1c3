//! Hooks: what an event of a coding agent's client changes, and the reply to it.
//!
//! `event` takes an event through its phases: recognise the session, write, compose the reply.
//! `write_job` writes all rows of an event in one commit; [`domain::hook`](svc_model::hook) decides
//! which rows, and `handovers` decides which messages the reply has. `mail_wait` waits for
//! messages on behalf of an idle session, and `sending` reports to a sender when its message
//! arrives. `between_hooks` remembers which process waits for which session, which calls of tools
//! hooks announced, and what a turn reported before it continued with messages. `codex_threads`
//! makes sessions of threads that no hook has reported yet.

mod between_hooks;
mod codex_threads;
mod event;
mod mail_wait;
mod sending;
mod write_job;

pub use event::Hooks;
pub use mail_wait::{MailWait, MailWaiter};
pub use write_job::HookCall;
