//! The two places a reader reads from: the table, and the tail, which holds the last commits in
//! memory. Also where a reader begins, and the gap it is told of if the log no longer has the
//! events after its cursor.
//!
//! Every reader that follows the log is built on [`LogSource`]:
//! [`Subscription`](super::Subscription) for frames, [`StreamFollower`](super::StreamFollower) for
//! events, [`Log::read_events`](super::Log::read_events) for one response.

use std::sync::Arc;

use serde::Serialize;
use svc_model::{Event, Framing, GapReason, Reader, StreamName, StreamVisibility};
use svc_store::{
    Batch, Commit, EntryDelta, EntryListener, FeedScope, FramePage, ListenerRead, LogPage,
    PageSize, PrecedingEvent, Store, StoreError, StreamListener, StreamView,
};
use tokio::sync::mpsc;

use crate::service::{Error, ResourceKind, Result};

#[derive(Debug)]
pub(super) struct LogSource {
    store: Store,
    followed: Followed,
}

#[derive(Debug)]
enum Followed {
    Stream {
        id: i64,
        name: StreamName,
        /// The reader, whose permission is checked again after changes; `None` if the caller has
        /// checked the ownership of the stream.
        reader: Option<Reader>,
        listener: StreamListener<Batch>,
    },
    Feed {
        scope: FeedScope,
        listener: StreamListener<Commit>,
    },
}

/// What the tail has after a cursor.
#[derive(Debug)]
pub(super) enum TailRead {
    /// The commits of this source, possibly none. The cursor has moved past all commits read.
    Batches(Vec<Arc<Batch>>),
    /// No event follows yet.
    Nothing,
    /// No event follows, and the stream is closed.
    Closed,
    /// Events follow that only the table has.
    Behind,
    /// Events follow that the reader may no longer read.
    Withdrawn,
}

impl LogSource {
    pub(super) async fn stream(
        store: &Store,
        name: StreamName,
        reader: Option<Reader>,
    ) -> Result<(Self, LogBounds)> {
        // Listen first and read second, or a commit in between is missed.
        let listener = store.bus().listen(&name);
        let unknown = || Error::not_found(ResourceKind::Stream, name.as_str());
        let view = store.streams().view(&name).await?;
        let is_readable =
            |view: &StreamView| reader.as_ref().is_none_or(|it| it.may_read(&view.visibility));
        let view = view.filter(is_readable).ok_or_else(unknown)?;
        let bounds = LogBounds::of_stream(&view);
        let followed = Followed::Stream { id: view.id, name, reader, listener };
        Ok((Self { store: store.clone(), followed }, bounds))
    }

    pub(super) async fn feed(store: &Store, scope: FeedScope) -> Result<(Self, LogBounds)> {
        let listener = store.bus().listen_all();
        let source = Self { store: store.clone(), followed: Followed::Feed { scope, listener } };
        let bounds = source.bounds().await?;
        Ok((source, bounds))
    }

    pub(super) async fn bounds(&self) -> Result<LogBounds, StoreError> {
        match &self.followed {
            Followed::Stream { name, .. } => {
                let view = self.store.streams().view(name).await?.ok_or(StoreError::NoStream)?;
                Ok(LogBounds::of_stream(&view))
            }
            Followed::Feed { .. } => {
                let (floor, head) = self.store.events().bounds().await?;
                Ok(LogBounds { floor, head, closed: false })
            }
        }
    }

    /// Whether the reader may still read the stream. Reads the table only after the stream's
    /// visibility has changed.
    pub(super) async fn is_readable(&mut self) -> Result<bool, StoreError> {
        let has_changed = match &mut self.followed {
            Followed::Stream { listener, .. } => listener.take_visibility_changed(),
            Followed::Feed { .. } => false,
        };
        if !has_changed {
            return Ok(true);
        }
        Ok(self.is_there().await? && self.is_readable_now().await?)
    }

    /// Whether the stream has not been removed. Another one may have its name since.
    pub(super) async fn is_there(&self) -> Result<bool, StoreError> {
        let Followed::Stream { id, name, .. } = &self.followed else { return Ok(true) };
        let view = self.store.streams().view(name).await?;
        Ok(view.is_some_and(|view| view.id == *id))
    }

    /// Whether the reader may read the stream, according to the table. Checked after each page of
    /// the table, because a page may be read between the commit that withdraws the stream and its
    /// notification.
    pub(super) async fn is_readable_now(&mut self) -> Result<bool, StoreError> {
        let Followed::Stream { id, reader, name, listener } = &mut self.followed else {
            // The query of a feed checks each event.
            return Ok(true);
        };
        // Reset first, so that a later change wakes the reader again.
        listener.take_visibility_changed();
        // Only a session's reader can lose a stream that it began with and that still exists.
        let Some(reader @ Reader::Session { .. }) = reader else { return Ok(true) };
        let view = self.store.streams().view(name).await?;
        Ok(view.is_some_and(|view| view.id == *id && reader.may_read(&view.visibility)))
    }

    /// The cursor to begin with, and the gap before it.
    pub(super) async fn start(
        &self,
        after: StartAfter,
        bounds: LogBounds,
    ) -> Result<(i64, Option<Gap>), StoreError> {
        let (mut cursor, mut gap) = bounds.start(after);
        if let (Followed::Feed { scope, .. }, Some(gap)) = (&self.followed, &mut gap) {
            if gap.reason == GapReason::Pruned {
                cursor = i64::try_from(gap.requested).unwrap_or(cursor);
            }
            // The last event of each stream is never pruned, so an event older than the pruned ones
            // may follow the cursor.
            let (events, size) = (self.store.events(), PageSize::rows(1));
            let next = events.of_feed(scope, cursor, i64::MAX, None, size).await?;
            if let Some(event) = next.events.first() {
                gap.oldest = event.position;
            }
        }
        Ok((cursor, gap))
    }

    pub(super) fn cursor_of(&self, event: &Event) -> i64 {
        match self.followed {
            Followed::Stream { .. } => event.seq,
            Followed::Feed { .. } => event.position,
        }
    }

    pub(super) async fn events(
        &self,
        cursor: i64,
        head: i64,
        kind: Option<&str>,
        size: PageSize,
    ) -> Result<LogPage, StoreError> {
        match &self.followed {
            Followed::Stream { id, name, .. } => {
                self.store.events().of_stream(*id, name, cursor, kind, size).await
            }
            Followed::Feed { scope, .. } => {
                self.store.events().of_feed(scope, cursor, head, kind, size).await
            }
        }
    }

    /// Sends pages of frames after the cursor, from the table: one, if there is any, and more while
    /// the channel has capacity. The future borrows nothing, so it can be spawned to read ahead.
    pub(super) fn frames(
        &self,
        cursor: i64,
        framing: Framing,
        pages: mpsc::Sender<FramePage>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send + use<> {
        let store = self.store.clone();
        let followed = match &self.followed {
            Followed::Stream { id, name, .. } => Ok((*id, name.clone())),
            Followed::Feed { scope, .. } => Err(scope.clone()),
        };
        async move {
            match followed {
                Ok((id, name)) => store.frames().of_stream(id, &name, cursor, framing, pages).await,
                Err(scope) => {
                    let (_, head) = store.events().bounds().await?;
                    if let Some(page) = store.frames().of_feed(&scope, cursor, head).await? {
                        // The first page always has capacity. An error means that the receiver is
                        // gone.
                        pages.try_send(page).ok();
                    }
                    Ok(())
                }
            }
        }
    }

    /// Waits until an event follows the cursor, the stream is closed, or its visibility changes.
    /// Cancel safe.
    pub(super) async fn wait(&mut self, cursor: i64) {
        match &mut self.followed {
            Followed::Stream { listener, reader: Some(_), .. } => {
                listener.wait_or_visibility_change(cursor).await;
            }
            Followed::Stream { listener, .. } => listener.wait(cursor).await,
            Followed::Feed { listener, .. } => listener.wait(cursor).await,
        }
    }

    pub(super) fn listen_to_deltas(&self) -> EntryListener {
        self.store.bus().unfinished_entries().listen()
    }

    /// Partial output that this reader has not received yet, for a reader at the cursor.
    pub(super) fn next_delta(
        &self,
        listener: &mut EntryListener,
        cursor: i64,
    ) -> Option<EntryDelta> {
        let is_readable = |stream: &StreamName,
                           visibility: &StreamVisibility,
                           after: PrecedingEvent| match &self.followed {
            Followed::Stream { name, reader, .. } => {
                let may_read = reader.as_ref().is_none_or(|it| it.may_read(visibility));
                name == stream && cursor >= after.seq && may_read
            }
            Followed::Feed { scope, .. } => {
                cursor >= after.position && scope.has(stream, visibility)
            }
        };
        self.store.bus().unfinished_entries().next_delta(listener, is_readable)
    }

    /// The last commits after the cursor, up to about `budget` bytes.
    pub(super) fn tail(&self, cursor: &mut i64, budget: usize) -> TailRead {
        match &self.followed {
            Followed::Stream { listener, reader, .. } => match listener.read(*cursor, budget) {
                ListenerRead::Items(batches) => {
                    let may_read = |batch: &Batch| {
                        reader.as_ref().is_none_or(|it| it.may_read(&batch.visibility))
                    };
                    if !batches.iter().all(|batch| may_read(batch)) {
                        return TailRead::Withdrawn;
                    }
                    *cursor = batches.last().map_or(*cursor, |batch| batch.seqs.1);
                    TailRead::Batches(batches)
                }
                ListenerRead::Nothing => TailRead::Nothing,
                ListenerRead::Closed => TailRead::Closed,
                ListenerRead::Behind => TailRead::Behind,
            },
            Followed::Feed { scope, listener } => match listener.read(*cursor, budget) {
                ListenerRead::Items(commits) => {
                    let mut next = *cursor;
                    let mut ours = Vec::new();
                    for batch in commits.iter().flat_map(|commit| commit.iter()) {
                        // A listener that began while a commit was being published may see a part
                        // of it.
                        if batch.positions.0 != next + 1 {
                            return TailRead::Behind;
                        }
                        next = batch.positions.1;
                        if scope.contains(batch) {
                            ours.push(Arc::clone(batch));
                        }
                    }
                    *cursor = next;
                    TailRead::Batches(ours)
                }
                ListenerRead::Nothing => TailRead::Nothing,
                ListenerRead::Closed => TailRead::Closed,
                ListenerRead::Behind => TailRead::Behind,
            },
        }
    }
}

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

/// The events that a reader asked for and that the log does not have.
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

#[derive(Debug, Clone, Copy)]
pub(super) struct LogBounds {
    /// The cursor before the oldest event.
    pub(super) floor: i64,
    /// The cursor after the latest event.
    pub(super) head: i64,
    /// Whether no event will follow the head.
    pub(super) closed: bool,
}

impl LogBounds {
    fn of_stream(view: &StreamView) -> Self {
        Self { floor: view.floor, head: view.head, closed: view.closed }
    }
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
