//! Runs a program as a task: what it prints and how it ends become events of the daemon's log.
//!
//! A line goes from the program's pipe through [`lines`] into the [`Spool`](spool::Spool) file, and from there through
//! [`EventSender`] to the daemon. The spool is the buffer: the program never waits for the daemon, and a line that the
//! daemon has not acknowledged is on the disk. Every event carries an id of ours, so the daemon knows a repeat as one.
//!
//! Nothing here prints: the caller of a run watches it as a [`RunObserver`].
//!
//! An agent's program runs below a [reaper](run_reaper) as an [`AgentProcess`], and its events have a spool of their own
//! kind, [`AgentSpool`]. `markdown` converts pages in a process with bounds.

mod agent_process;
mod agent_spool;
mod byte_lines;
mod cancel;
mod child;
mod document;
mod event;
mod exit;
mod lines;
mod markdown;
mod observer;
mod output;
mod process_tree;
mod reaper;
mod run;
mod sender;
mod server_process;
mod signals;
mod spool;
mod supervise;

pub(crate) use agent_process::{AgentCommandLine, AgentExit, AgentPipes, AgentProcess};
pub(crate) use agent_spool::{AgentSpool, SpoolEnd, agent_spool_path};
pub(crate) use byte_lines::{ByteLine, ByteLines};
pub(crate) use child::{RunnerChild, find_program};
pub(crate) use document::TaskDocument;
pub(crate) use event::OutputFrame;
pub(crate) use exit::RunExit;
pub(crate) use markdown::{CONVERTER, convert_page, markdown_of};
pub(crate) use observer::{RunNotice, RunObserver};
pub(crate) use reaper::run_reaper;
pub(crate) use run::{Run, RunReport};
pub(crate) use sender::{EventSender, SendOutcome};
pub(crate) use server_process::{
    LAUNCHER, ServerCommand, ServerPipes, ServerProcess, end_leftovers, launch_server,
};
pub(crate) use signals::Signals;
pub(crate) use spool::{LeftoverSpool, SpoolHeader};
