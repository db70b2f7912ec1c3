//! Runs a program as a task: what it prints and how it ends become events of the daemon's log.
//!
//! A line goes from the program's pipe through `lines` into the `Spool` file, and from there through
//! [`EventSender`] to the daemon. The spool is the buffer: the program never waits for the daemon, and a line that the
//! daemon has not acknowledged is on the disk. Every event carries an id of ours, so the daemon knows a repeat as one.
//!
//! Nothing here prints: the caller of a run watches it as a [`RunObserver`].
//!
//! An agent's program runs below a reaper as an `AgentProcess`, and its events have a spool of their own
//! kind, `AgentSpool`.

mod agent_process;
mod agent_spool;
mod cancel;
mod child;
mod document;
mod event;
mod exit;
mod lines;
mod observer;
mod output;
mod process_tree;
mod reaper;
mod run;
mod sender;
mod signals;
mod spool;
mod supervise;

pub(crate) use agent_process::{AgentCommandLine, AgentExit, AgentPipes, AgentProcess};
pub(crate) use agent_spool::{AgentSpool, SpoolEnd, agent_spool_path};
pub use child::RunnerChild;
pub use document::TaskDocument;
pub use event::OutputFrame;
pub(crate) use exit::RunExit;
pub use observer::{RunNotice, RunObserver};
pub(crate) use reaper::run_reaper;
pub use run::{Run, RunReport};
pub use sender::{EventSender, SendOutcome};
pub use signals::Signals;
pub use spool::{LeftoverSpool, SpoolHeader};
