//! Arguments and results of the store: plain values, independent of the engine. Those of streams
//! and pages are here.

mod agent;
mod journal;
mod mcp;
mod team;

use std::sync::Arc;

use bytes::Bytes;
use svc_model::{Reader, Seq, StreamName, StreamVisibility, limits};

use crate::bus::Batch;

pub use {agent::*, journal::*, mcp::*, team::*};

/// The writer's cached state of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    pub id: i64,
    /// Seq of the last event; 0 if there is none.
    pub head: Seq,
    /// No event may follow.
    pub closed: bool,
    pub visibility: Arc<StreamVisibility>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendedSeqs {
    pub first: Seq,
    pub last: Seq,
}

/// A stream, as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamView {
    pub id: i64,
    /// Seq of the last event that retention removed; 0 if none.
    pub floor: Seq,
    /// Seq of the last event; 0 if there is none.
    pub head: Seq,
    pub closed: bool,
    pub visibility: StreamVisibility,
}

/// A page of a replay.
#[derive(Debug, Clone)]
pub struct FramePage {
    /// The frames, concatenated. Empty if no event that was read matched.
    pub bytes: Bytes,
    /// The cursor of the next read: the last position or seq that was read.
    pub cursor: i64,
    /// Whether there was more to read.
    pub more: bool,
}

/// Bounds of one page of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize {
    pub rows: u32,
    /// Maximum bytes: of rows, their JSON; of events, their `data`. The first row is returned
    /// whatever its size.
    pub bytes: usize,
}

#[derive(Debug, Clone)]
pub struct RowPage<T> {
    pub rows: Vec<T>,
    /// Whether more rows follow: the page was full.
    pub more: bool,
}

impl<T> RowPage<T> {
    pub(crate) fn map<U>(self, convert: impl FnMut(T) -> U) -> RowPage<U> {
        RowPage { rows: self.rows.into_iter().map(convert).collect(), more: self.more }
    }
}

impl PageSize {
    /// Up to `rows` rows, within the usual bound of bytes.
    pub fn rows(rows: u32) -> Self {
        Self { rows, bytes: limits::PAGE_BYTES }
    }

    /// Tells of one row after the other whether it does not fit any more. `bytes` is what a row
    /// counts; the first row always fits.
    pub(crate) fn is_full<T>(self, bytes: impl Fn(&T) -> usize) -> impl FnMut(&T) -> bool {
        let (mut rows, mut total) = (0, 0_usize);
        move |row| {
            total = total.saturating_add(bytes(row));
            rows += 1;
            rows > 1 && (rows > self.rows || total > self.bytes)
        }
    }

    /// One row more than the page, to learn whether more rows follow.
    pub(crate) fn limit(self) -> i64 {
        i64::from(self.rows) + 1
    }
}

/// The streams that a feed shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedScope {
    prefix: String,
    reader: Reader,
}

impl FeedScope {
    /// Streams whose name begins with `prefix` (empty for all) and that `reader` may read.
    pub fn prefix(prefix: &str, reader: Reader) -> Self {
        Self { prefix: prefix.to_owned(), reader }
    }

    pub fn contains(&self, batch: &Batch) -> bool {
        self.has(&batch.stream, &batch.visibility)
    }

    pub fn has(&self, stream: &StreamName, visibility: &StreamVisibility) -> bool {
        stream.as_str().starts_with(&self.prefix) && self.reader.may_read(visibility)
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Inclusive lower bound of the names.
    pub(crate) fn lowest(&self) -> &str {
        &self.prefix
    }

    /// Exclusive upper bound of the names. Names are ASCII, and DEL sorts after every character
    /// that a name may contain.
    pub(crate) fn beyond(&self) -> String {
        format!("{}\x7f", self.prefix)
    }
}
