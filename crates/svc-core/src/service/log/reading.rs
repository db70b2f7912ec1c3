//! Events for readers without a connection: a page, for a program or a tool; the events of one
//! stream as they are appended; and which of a set of streams have new events.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use svc_model::{Caller, Event, Reader, Seq, StreamName, limits};
use svc_store::{Commit, ListenerRead, PageSize, RowPage, StreamListener, StreamView};
use tokio::sync::watch;

use super::{
    Log,
    subscription::{Gap, LogSource, Selector, StartAfter},
};
use crate::boxed;
use crate::service::{Error, ResourceKind, Result, check};

/// The events after a cursor.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EventReading {
    pub events: Vec<Event>,
    /// How many there are.
    pub count: usize,
    /// Goes into `after` the next time.
    pub next_after: i64,
    /// What was asked for and the log does not have any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
    /// The stream is over: nothing will follow.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
}

impl Log {
    /// The events after a cursor, for tools. Streams of responses are hidden from every caller: the
    /// response of this call becomes an event of such a stream, so each one would contain all
    /// earlier ones.
    #[boxed]
    pub async fn read_events(
        &self,
        caller: &Caller,
        selector: &Selector,
        after: u64,
        kind: Option<&str>,
        limit: Option<u32>,
    ) -> Result<EventReading> {
        let size = PageSize { rows: check::limit(limit)?, bytes: limits::AGENT_PAGE_BYTES };
        let reader = Reader::for_tool(caller);
        // The head is read before the page, so events up to the head that the filter skipped have
        // been read.
        let (mut source, bounds) = LogSource::open(&self.core.store, selector, reader).await?;
        let (cursor, gap) = source.start(StartAfter::Cursor(after), bounds).await?;
        let RowPage { rows: events, more } = source.events(cursor, i64::MAX, kind, size).await?;
        if !source.is_readable_now().await? {
            return Err(Error::not_found(ResourceKind::Stream, selector.name()));
        }
        let last = events.last().map(|event| source.cursor_of(event));
        let next_after = match last {
            Some(last) if more => last,
            last => cursor.max(bounds.head).max(last.unwrap_or(0)),
        };
        let closed = !more && bounds.closed && next_after == bounds.head;
        Ok(EventReading { count: events.len(), events, next_after, gap, closed })
    }
}

#[derive(Debug)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// The cursor of the next page, if there is one.
    pub next: Option<i64>,
}

impl Log {
    #[boxed]
    pub async fn event_page(
        &self,
        caller: &Caller,
        selector: &Selector,
        after: i64,
        kind: Option<&str>,
        limit: Option<u32>,
    ) -> Result<EventPage> {
        let size = PageSize::rows(check::limit(limit)?);
        let reader = Reader::from_caller(caller);
        let (source, _) = LogSource::open(&self.core.store, selector, reader).await?;
        let RowPage { rows: events, more } = source.events(after, i64::MAX, kind, size).await?;
        let next = events.last().filter(|_| more).map(|event| source.cursor_of(event));
        Ok(EventPage { events, next })
    }
}

/// A reader of one stream that returns events instead of frames.
#[derive(Debug)]
pub struct StreamFollower {
    source: LogSource,
    cursor: Seq,
    /// The stream was closed when the follower began.
    was_closed: bool,
}

impl Log {
    /// Follows one stream from a cursor to its end.
    #[boxed]
    pub async fn follow(&self, name: StreamName, after: Seq) -> Result<StreamFollower> {
        let (source, bounds) = LogSource::stream(&self.core.store, name, None).await?;
        Ok(StreamFollower { source, cursor: after, was_closed: bounds.closed })
    }
}

impl StreamFollower {
    /// Waits for the next events; `None` at the end of a closed stream. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Vec<Event>>> {
        loop {
            let events = match self.source.tail(&mut self.cursor, limits::CHUNK_BYTES) {
                Some(ListenerRead::Items(batches)) => {
                    batches.iter().flat_map(|batch| batch.events.iter().cloned()).collect()
                }
                // The tail has only commits since this reader began to listen.
                _ => Box::pin(self.read_table()).await?,
            };
            if !events.is_empty() {
                return Ok(Some(events));
            }
            match self.source.tail(&mut self.cursor.clone(), 0) {
                Some(ListenerRead::Closed) => return Ok(None),
                Some(ListenerRead::Nothing) if self.was_closed => return Ok(None),
                Some(ListenerRead::Nothing) => self.source.wait(self.cursor).await,
                // The table had no more than the cursor, so the stream may have been removed.
                Some(ListenerRead::Behind) => {
                    if !Box::pin(self.source.is_there()).await? {
                        return Ok(None);
                    }
                }
                Some(ListenerRead::Items(_)) | None => {}
            }
        }
    }

    /// The cursor after the last returned event.
    pub fn cursor(&self) -> Seq {
        self.cursor
    }

    async fn read_table(&mut self) -> Result<Vec<Event>> {
        let size = PageSize::rows(limits::REPLAY_ROWS);
        let events = self.source.events(self.cursor, i64::MAX, None, size).await?.rows;
        self.cursor = events.last().map_or(self.cursor, |event| event.seq);
        Ok(events)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamEnd {
    /// Seq of the stream's last event; 0 if it has none.
    pub head: Seq,
    pub closed: bool,
}

impl From<StreamView> for StreamEnd {
    fn from(view: StreamView) -> Self {
        Self { head: view.head, closed: view.closed }
    }
}

/// Watches which of a set of streams have new events, for clients that subscribe to resources.
///
/// It reports state, not each change: the streams that have moved since a position of the log, with
/// the last position of each. So nothing is stored for an absent reader.
#[derive(Debug)]
pub struct StreamChanges {
    log: Log,
    reader: Reader,
    listener: StreamListener<Commit>,
    cursor: i64,
}

impl Log {
    /// Watches the log from the position `from`, or from its end. Also returns which of the streams
    /// have moved since.
    #[boxed]
    pub async fn watch_streams(
        &self,
        caller: &Caller,
        names: Vec<String>,
        from: Option<i64>,
    ) -> Result<(StreamChanges, Vec<(String, i64)>)> {
        let reader = Reader::for_tool(caller);
        // Listen first and read second, or a commit in between is missed.
        let listener = self.core.store.bus().listen_all();
        let head = self.log_head().await?;
        let after = from.unwrap_or(head).min(head);
        let missed = if after < head {
            self.core.store.streams().moved(&reader, &names, after).await?
        } else {
            Vec::new()
        };
        Ok((StreamChanges { log: self.clone(), reader, listener, cursor: head }, missed))
    }

    /// Position of the last event of the log.
    #[boxed]
    pub async fn log_head(&self) -> Result<i64> {
        Ok(self.core.store.events().bounds().await?.1)
    }

    /// The end of a stream; `None` if there is no stream of that name. The caller has checked the
    /// ownership.
    #[boxed]
    pub async fn stream_end(&self, name: &StreamName) -> Result<Option<StreamEnd>> {
        Ok(self.core.store.streams().view(name).await?.map(StreamEnd::from))
    }

    /// The end of a stream that the caller may read and that holds no responses.
    #[boxed]
    pub async fn readable_stream_end(
        &self,
        caller: &Caller,
        name: &StreamName,
    ) -> Result<Option<StreamEnd>> {
        let reader = Reader::for_tool(caller);
        let view = self.core.store.streams().view(name).await?;
        Ok(view.filter(|view| reader.may_read(&view.visibility)).map(StreamEnd::from))
    }

    pub fn streams_opened(&self) -> watch::Receiver<u64> {
        self.core.store.bus().opened()
    }
}

impl StreamChanges {
    pub fn cursor(&self) -> i64 {
        self.cursor
    }

    pub async fn wait(&mut self) {
        self.listener.wait(self.cursor).await;
    }

    /// The streams (keys of `streams`) that have moved since the last call, each with its last
    /// position.
    pub async fn take<V: Sync>(
        &mut self,
        streams: &BTreeMap<String, V>,
    ) -> Result<Vec<(String, i64)>> {
        match self.listener.read(self.cursor, usize::MAX) {
            ListenerRead::Nothing | ListenerRead::Closed => Ok(Vec::new()),
            ListenerRead::Items(commits) => {
                let mut moved = BTreeMap::new();
                for batch in commits.iter().flat_map(|commit| commit.iter()) {
                    self.cursor = self.cursor.max(batch.positions.1);
                    let is_readable = self.reader.may_read(&batch.visibility);
                    if is_readable && streams.contains_key(batch.stream.as_str()) {
                        moved.insert(batch.stream.as_str(), batch.positions.1);
                    }
                }
                Ok(moved.into_iter().map(|(name, last)| (name.to_owned(), last)).collect())
            }
            ListenerRead::Behind => {
                let names: Vec<String> = streams.keys().cloned().collect();
                let head = self.log.log_head().await?;
                let moved =
                    self.log.core.store.streams().moved(&self.reader, &names, self.cursor).await?;
                self.cursor = head;
                Ok(moved)
            }
        }
    }
}
