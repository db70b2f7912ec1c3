//! Where a reader begins, and what it is told if the log no longer has what it asks for.

use serde::Serialize;
use svc_model::{Event, GapReason};

/// Which events to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// One stream. Its cursors are seqs.
    Stream(String),
    /// All streams whose names begin so, or all streams if it is empty. Its cursors are positions.
    Prefix(String),
}

impl Selector {
    /// The stream or the prefix.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Stream(name) | Self::Prefix(name) => name,
        }
    }

    /// The cursor behind an event.
    pub(super) fn cursor_of(&self, event: &Event) -> i64 {
        match self {
            Self::Stream(_) => event.seq,
            Self::Prefix(_) => event.position,
        }
    }
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAfter {
    /// After this cursor. Any number that a client may send; those of the log are smaller.
    Cursor(u64),
    /// After the last event that there is.
    Latest,
}

/// What a reader asked for and the log does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// The cursor that the reader came with.
    pub requested: u64,
    /// The first event that there is after `requested`, or after the start if the cursor is ahead:
    /// its seq or position.
    pub oldest: i64,
    /// The latest event, likewise.
    pub latest: i64,
    /// Why the log does not have it.
    pub reason: GapReason,
}

/// The bounds of what is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogBounds {
    /// The cursor before the oldest event.
    pub(super) floor: i64,
    /// The cursor behind the latest event.
    pub(super) head: i64,
    /// Nothing follows the head.
    pub(super) closed: bool,
}

impl LogBounds {
    /// The cursor to begin with, and what the log does not have.
    pub(super) fn start(self, after: StartAfter) -> (i64, Option<Gap>) {
        let Self { floor, head, .. } = self;
        let StartAfter::Cursor(requested) = after else {
            return (head, None);
        };
        let gap =
            |reason| Some(Gap { requested, oldest: (floor + 1).min(head), latest: head, reason });
        match i64::try_from(requested) {
            Ok(cursor) if cursor < floor => (floor, gap(GapReason::Pruned)),
            Ok(cursor) if cursor <= head => (cursor, None),
            _ => (0, gap(GapReason::Ahead)),
        }
    }
}
