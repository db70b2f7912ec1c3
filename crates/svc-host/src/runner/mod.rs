//! Runs a program as a task: what it prints and how it ends become events of the daemon's log.
//!
//! A line goes from the program's pipe through `output` into the `Spool` file, and from there
//! through [`EventSender`] to the daemon. The spool is the buffer: the program never waits for the
//! daemon, and a line that the daemon has not acknowledged is on the disk. Every event carries an
//! id of ours, so the daemon recognises a repeat. Nothing here prints: the caller of a run watches
//! it as a [`RunObserver`].
//!
//! An agent's program runs below a reaper as an `AgentProcess`, and its events have a spool of
//! their own kind, `AgentSpool`.

mod agent_process;
mod agent_spool;
mod event;
mod output;
mod program;
mod reaper;
mod run;
mod sender;
mod spool;

pub(crate) use agent_process::{AgentExit, AgentPipes, AgentProcess};
pub(crate) use agent_spool::{AgentSpool, SpoolEnd, agent_spool_path};
pub use event::{OutputFrame, RunNotice, RunObserver, TaskDocument};
pub(crate) use program::RunExit;
pub use program::{RunnerChild, Signals};
pub(crate) use reaper::{ReaperOrder, run_reaper};
pub use run::{Run, RunReport};
pub use sender::{EventSender, SendOutcome};
pub use spool::{LeftoverSpool, SpoolHeader};
