//! Runs a program and sends what it prints to the daemon.
//!
//! A line goes from the pipe through [`OutputLines`] into the [`Spool`] file, and from there through [`EventSender`] to
//! the daemon. The spool is the buffer: the program never waits for the daemon, and a line that the daemon has not
//! acknowledged is on the disk. Every event carries an id of ours, so the daemon knows a repeat as one.
//!
//! Nothing here prints: whoever runs a program gets a [`RunNotice`] and says it in its own way.

mod cancel;
mod child;
mod event;
mod lines;
mod notice;
mod sender;
mod spool;
mod supervise;

pub(crate) use cancel::requested;
pub(crate) use child::{Ended, exit_code_of, find, spawn};
pub(crate) use event::{Frame, Numbering, Pipe, active, terminal, timestamp};
pub(crate) use lines::OutputLines;
pub(crate) use notice::RunNotice;
pub(crate) use sender::{EventSender, Outcome, Progress};
pub(crate) use spool::{Header, Spool, open};
pub(crate) use supervise::{Signals, supervise};
