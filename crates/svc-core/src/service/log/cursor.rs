//! Cursors of readers, and the gap that a reader gets if the log no longer has what it asks for.

use serde::Serialize;
use svc_model::{Event, GapReason};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// One stream. Its cursors are seqs.
    Stream(String),
    /// All streams with this prefix; all streams if it is empty. Its cursors are positions.
    Prefix(String),
}

impl Selector {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Stream(name) | Self::Prefix(name) => name,
        }
    }

    /// The cursor after an event.
    pub(super) fn cursor_of(&self, event: &Event) -> i64 {
        match self {
            Self::Stream(_) => event.seq,
            Self::Prefix(_) => event.position,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAfter {
    /// After this cursor: any number that a client may send. Cursors of the log fit in an `i64`.
    Cursor(u64),
    /// After the latest event.
    Latest,
}

/// The events that a reader asked for and the log does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gap {
    pub requested: u64,
    /// Seq or position of the first event after `requested`; of the first event of all if the
    /// cursor is ahead of the log.
    pub oldest: i64,
    /// Seq or position of the latest event.
    pub latest: i64,
    pub reason: GapReason,
}

/// The bounds of a stream or a feed.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogBounds {
    /// The cursor before the oldest event.
    pub(super) floor: i64,
    /// The cursor after the latest event.
    pub(super) head: i64,
    /// Nothing follows the head.
    pub(super) closed: bool,
}

impl LogBounds {
    /// The cursor to begin with, and the gap before it.
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
