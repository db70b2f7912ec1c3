//! Streams and pages of the log.

use std::sync::Arc;

use bytes::Bytes;
use svc_model::{Event, Reader, Seq, StreamName, StreamVisibility, limits};

use crate::bus::Batch;

/// What the writer knows of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    /// The row.
    pub id: i64,
    /// Seq of the last event; 0 if there is none.
    pub head: Seq,
    /// Whether nothing may follow.
    pub closed: bool,
    /// Who may read it.
    pub visibility: Arc<StreamVisibility>,
}

/// Seqs of appended events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendedSeqs {
    pub first: Seq,
    pub last: Seq,
}

/// A stream, as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamView {
    /// The row.
    pub id: i64,
    /// Seq of the last event that retention removed; 0 if none.
    pub floor: Seq,
    /// Seq of the last event; 0 if there is none.
    pub head: Seq,
    /// Whether nothing follows.
    pub closed: bool,
    /// Who may read it.
    pub visibility: StreamVisibility,
}

/// A page of a replay.
#[derive(Debug, Clone)]
pub struct FramePage {
    /// The frames, one after the other. Empty if no event that was read matched.
    pub bytes: Bytes,
    /// The cursor to read on from: the last position or seq that was read.
    pub cursor: i64,
    /// Whether there was more to read.
    pub more: bool,
}

/// How much to read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize {
    /// Rows at most.
    pub rows: u32,
    /// Bytes at most: of the rows as JSON, of events those of `data`. The first row is given
    /// whatever its size.
    pub bytes: usize,
}

/// Rows of a list.
#[derive(Debug, Clone)]
pub struct RowPage<T> {
    /// The rows, in order.
    pub rows: Vec<T>,
    /// Whether others follow: the page was full.
    pub more: bool,
}

impl PageSize {
    /// So many rows, if they are not large.
    pub fn rows(rows: u32) -> Self {
        Self { rows, bytes: limits::PAGE_BYTES }
    }

    /// One more, to know whether there are more.
    pub(crate) fn limit(self) -> i64 {
        i64::from(self.rows) + 1
    }
}

/// A page of events.
#[derive(Debug, Clone, Default)]
pub struct LogPage {
    /// The events, in order.
    pub events: Vec<Event>,
    /// Whether others follow: the page was full.
    pub more: bool,
}

/// What a feed over several streams shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedScope {
    prefix: String,
    reader: Reader,
}

impl FeedScope {
    /// Streams whose name begins with `prefix`, all if it is empty, as far as `reader` may read
    /// them.
    pub fn prefix(prefix: &str, reader: Reader) -> Self {
        Self { prefix: prefix.to_owned(), reader }
    }

    /// Whether a commit's events belong to it.
    pub fn contains(&self, batch: &Batch) -> bool {
        self.has(&batch.stream, &batch.visibility)
    }

    /// Whether a stream belongs to it.
    pub fn has(&self, stream: &StreamName, visibility: &StreamVisibility) -> bool {
        stream.as_str().starts_with(&self.prefix) && self.reader.may_read(visibility)
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Names from here up belong to it …
    pub(crate) fn lowest(&self) -> &str {
        &self.prefix
    }

    /// … and below this. Names are ASCII, and DEL is above all that may stand in one.
    pub(crate) fn beyond(&self) -> String {
        format!("{}\x7f", self.prefix)
    }
}
