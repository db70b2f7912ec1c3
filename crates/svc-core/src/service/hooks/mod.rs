//! Hooks: what an event of a coding agent's client changes, and the reply to it.
//!
//! `event` leads an event through its phases: recognise the session, write, compose the reply.
//! `write_job` is all that one event writes, in one commit; what is to be written is decided in
//! [`domain::hook`](svc_model::hook), and the messages in it by `handovers`. `lost_replies` takes
//! back what a hook did not print. `mail_wait` waits for messages on behalf of an idle session,
//! `sending` tells a sender when its message arrives, `announced_calls` knows in which session an
//! MCP tool is called, `earlier_output` what a turn had said before it went on with messages, and
//! `codex_threads` makes sessions of threads of which no hook has told yet.

mod announced_calls;
mod codex_threads;
mod earlier_output;
mod event;
mod lost_replies;
mod mail_wait;
mod sending;
mod state;
mod waiters;
mod write_job;

pub use event::HookCall;
pub use mail_wait::{MailWait, MailWaiter};
pub use state::Hooks;
