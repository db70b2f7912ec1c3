//! Reading the log call by call, for readers without a connection.

use std::time::Duration;

use svc_model::{Caller, Event, Reader, limits};
use svc_store::{Batch, FeedScope, PageSize};
use tokio::time::{Instant, timeout_at};

use super::{
    Log,
    cursor::{Gap, Selector, StartAfter},
    source::{LogSource, TailRead},
};
use crate::service::{Error, ResourceKind, check};

/// The events after a cursor.
#[derive(Debug)]
pub struct EventReading {
    /// Empty if no event followed in time.
    pub events: Vec<Event>,
    /// The cursor for the next call.
    pub next_after: i64,
    /// The events that the log does not have.
    pub gap: Option<Gap>,
    /// The stream is closed, and this is its end.
    pub closed: bool,
}

impl Log {
    /// The events after a cursor. If there are none yet, waits up to `wait` for the next.
    ///
    /// For tools. Streams of responses are hidden from every caller: the response of this call
    /// becomes an event of such a stream, so each one would contain all earlier ones.
    pub async fn read_events(
        &self,
        caller: &Caller,
        selector: &Selector,
        after: u64,
        kind: Option<&str>,
        limit: Option<u32>,
        wait: Duration,
    ) -> Result<EventReading, Error> {
        let deadline = Instant::now() + wait;
        let size = PageSize { rows: check::limit(limit)?, bytes: limits::AGENT_PAGE_BYTES };
        let (store, reader) = (&self.core.store, Reader::for_tool(caller));
        let (mut source, bounds) = match selector {
            Selector::Stream(name) => {
                let (name, _) = self.readable(&reader, name).await?;
                LogSource::stream(store, name, Some(reader)).await?
            }
            Selector::Prefix(prefix) => {
                LogSource::feed(store, FeedScope::prefix(prefix, reader)).await?
            }
        };
        let (mut cursor, gap) = source.start(StartAfter::Cursor(after), bounds).await?;
        loop {
            // The head is read before the page, so events up to the head that the filter skipped
            // have been read.
            let bounds = source.bounds().await?;
            let page = source.events(cursor, i64::MAX, kind, size).await?;
            if !source.is_readable_now().await? {
                return Err(Error::not_found(ResourceKind::Stream, selector.name()));
            }
            let last = page.events.last().map(|event| source.cursor_of(event));
            if let Some(last) = last.filter(|_| page.more) {
                return Ok(EventReading {
                    events: page.events,
                    next_after: last,
                    gap,
                    closed: false,
                });
            }
            cursor = cursor.max(bounds.head).max(last.unwrap_or(0));
            let closed = bounds.closed && cursor == bounds.head;
            let has_answer = !page.events.is_empty() || gap.is_some() || closed;
            let is_over = has_answer || {
                let more = wait_for_kind(&mut source, &mut cursor, kind);
                timeout_at(deadline, more).await.is_err()
            };
            if is_over {
                return Ok(EventReading { events: page.events, next_after: cursor, gap, closed });
            }
        }
    }
}

/// Waits until the table may have a matching event. Moves the cursor past commits without an event
/// of the kind, so that a busy daemon does not cause a read of the table for each commit.
async fn wait_for_kind(source: &mut LogSource, cursor: &mut i64, kind: Option<&str>) {
    let concerns = |batch: &Batch| {
        let is_wanted =
            kind.is_none_or(|kind| batch.events.iter().any(|event| &*event.kind == kind));
        batch.closed || is_wanted
    };
    loop {
        source.wait(*cursor).await;
        let mut next = *cursor;
        let TailRead::Batches(batches) = source.tail(&mut next, limits::CHUNK_BYTES) else {
            return;
        };
        if batches.iter().any(|batch| concerns(batch)) {
            return;
        }
        *cursor = next;
    }
}
