//! Following one stream event by event.

use svc_model::{Event, Seq, StreamName, limits};
use svc_store::PageSize;

use super::{
    Log,
    source::{LogSource, TailRead},
};
use crate::service::Error;

/// A reader of one stream that takes events instead of frames.
#[derive(Debug)]
pub struct StreamFollower {
    source: LogSource,
    cursor: Seq,
    /// The stream was closed when the follower began.
    was_closed: bool,
}

impl Log {
    /// Follows one stream from a cursor to its end.
    pub async fn follow(&self, name: StreamName, after: Seq) -> Result<StreamFollower, Error> {
        let (source, bounds) = LogSource::stream(&self.core.store, name, None).await?;
        Ok(StreamFollower { source, cursor: after, was_closed: bounds.closed })
    }
}

impl StreamFollower {
    /// Waits for the next events; `None` at the end of a closed stream. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Vec<Event>>, Error> {
        loop {
            let events = match self.source.tail(&mut self.cursor, limits::CHUNK_BYTES) {
                TailRead::Batches(batches) => {
                    batches.iter().flat_map(|batch| batch.events.iter().cloned()).collect()
                }
                // The tail has only commits since this reader began to listen.
                TailRead::Nothing | TailRead::Closed | TailRead::Behind | TailRead::Withdrawn => {
                    Box::pin(self.read_table()).await?
                }
            };
            if !events.is_empty() {
                return Ok(Some(events));
            }
            match self.source.tail(&mut self.cursor.clone(), 0) {
                TailRead::Closed => return Ok(None),
                TailRead::Nothing if self.was_closed => return Ok(None),
                TailRead::Nothing => self.source.wait(self.cursor).await,
                TailRead::Batches(_) | TailRead::Behind | TailRead::Withdrawn => {}
            }
        }
    }

    /// The cursor after the last returned event.
    pub fn cursor(&self) -> Seq {
        self.cursor
    }

    async fn read_table(&mut self) -> Result<Vec<Event>, Error> {
        let size = PageSize::rows(limits::REPLAY_ROWS);
        let events = self.source.events(self.cursor, i64::MAX, None, size).await?.events;
        self.cursor = events.last().map_or(self.cursor, |event| event.seq);
        Ok(events)
    }
}
