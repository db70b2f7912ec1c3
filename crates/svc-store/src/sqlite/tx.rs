//! What a write job sees: the write connection inside a transaction, and the events that the job appends.

use std::{collections::HashMap, sync::Arc};

use svc_model::Timestamp;

use super::{
    direct_connection::DirectConnection, event_insert::UncommittedEvent, statement::select_value,
};
use crate::{Bus, StoreError, StreamState};

/// The write side of the database. The writer owns the only one, and lends it to one job at a time.
///
/// A job never awaits anything but its own statements: while it runs, nobody else writes.
#[derive(Debug)]
pub struct WriteTx {
    pub(super) direct: DirectConnection,
    pub(super) bus: Arc<Bus>,
    /// Heads of the streams that were touched lately. The writer is the only one who moves them.
    pub(super) streams: HashMap<Arc<str>, StreamState>,
    /// Events of the present commit. They are written in one statement at its end.
    pub(super) pending: Vec<UncommittedEvent>,
    /// Streams closed since the last commit, with an event or without.
    pub(super) closing: Vec<Arc<str>>,
    /// Streams whose readers are others than before this group of jobs.
    pub(super) reseen: Vec<Arc<str>>,
    /// Highest position given out.
    pub(super) position: i64,
    /// How to take back what the present job did to `streams`.
    pub(super) undo: Vec<Undo>,
    pub(super) now: Timestamp,
}

/// One step back for a stream's state in memory.
#[derive(Debug)]
pub(super) enum Undo {
    /// It was like this.
    Restore(Arc<str>, StreamState),
    /// It was not there.
    Forget(Arc<str>),
}

impl WriteTx {
    /// The time of this commit. All that one commit writes happened at one time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Where a job begins, to return to if it fails.
    pub(super) fn mark(&mut self) -> usize {
        self.undo.clear();
        self.pending.len()
    }

    /// Takes back in memory what the job since `mark` did; its rows are taken back by the writer.
    pub(super) fn rewind(&mut self, mark: usize) {
        self.pending.truncate(mark);
        while let Some(step) = self.undo.pop() {
            match step {
                Undo::Restore(name, state) => self.streams.insert(name, state),
                Undo::Forget(name) => self.streams.remove(&name),
            };
        }
    }

    /// Forgets all that memory knows, after a commit that failed: the table is right.
    pub(super) fn reset(&mut self) -> Result<(), StoreError> {
        self.pending.clear();
        self.closing.clear();
        self.reseen.clear();
        self.undo.clear();
        self.streams.clear();
        self.position =
            select_value!(self, r#"select max(position) as "max: i64" from event"#).unwrap_or(0);
        Ok(())
    }
}
