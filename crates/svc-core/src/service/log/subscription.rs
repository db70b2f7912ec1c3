//! Following the log. [`LogSource`] has the two places a reader reads from: the table, and the
//! tail, which holds the last commits in memory. Also where a reader begins, and the gap it is told
//! of if the log no longer has the events after its cursor. Every reader that follows the log is
//! built on it: [`Subscription`] for frames of server-sent events,
//! [`StreamFollower`](super::StreamFollower) for events, [`Log::read_events`] for one response.
//!
//! A subscription is a cursor. It reads the table until it has caught up, then reads the last
//! commits from the tail, and returns to the table whenever it falls behind the tail. No producer
//! waits for a subscription, and it holds only its cursor and, while it reads the table, a few
//! pages.

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use svc_model::{Caller, Event, Framing, GapReason, Reader, StreamName, StreamVisibility, limits};
use svc_store::{
    Batch, Commit, EntryDelta, EntryListener, FeedScope, FramePage, ListenerRead, PageSize,
    PrecedingEvent, RowPage, Store, StoreError, StreamListener, StreamView,
};
use svc_wire::sse;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::Log;
use crate::{
    boxed,
    service::{Error, ResourceKind, Result},
};

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

impl LogSource {
    /// The streams of `selector`, as far as the reader may read them.
    pub(super) async fn open(
        store: &Store,
        selector: &Selector,
        reader: Reader,
    ) -> Result<(Self, LogBounds)> {
        match selector {
            Selector::Stream(name) => Self::stream(store, stream_named(name)?, Some(reader)).await,
            Selector::Prefix(prefix) => Self::feed(store, FeedScope::prefix(prefix, reader)).await,
        }
    }

    pub(super) async fn stream(
        store: &Store,
        name: StreamName,
        reader: Option<Reader>,
    ) -> Result<(Self, LogBounds)> {
        // Listen first and read second, or a commit in between is missed.
        let listener = store.bus().listen(&name);
        let view = view_of(store, &name, reader.as_ref()).await?;
        let bounds = LogBounds::of_stream(&view);
        let followed = Followed::Stream { id: view.id, name, reader, listener };
        Ok((Self { store: store.clone(), followed }, bounds))
    }

    async fn feed(store: &Store, scope: FeedScope) -> Result<(Self, LogBounds)> {
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
            if let Some(event) = next.rows.first() {
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
    ) -> Result<RowPage<Event>, StoreError> {
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

    /// The commits of this source after the cursor, possibly none, up to about `budget` bytes. The
    /// cursor moves past all commits read. `None` if the reader may no longer read them.
    pub(super) fn tail(&self, cursor: &mut i64, budget: usize) -> Option<ListenerRead<Batch>> {
        use ListenerRead::{Behind, Closed, Items, Nothing};
        Some(match &self.followed {
            Followed::Stream { listener, reader, .. } => {
                let read = listener.read(*cursor, budget);
                if let Items(batches) = &read {
                    let may_read = |batch: &Arc<Batch>| {
                        reader.as_ref().is_none_or(|it| it.may_read(&batch.visibility))
                    };
                    if !batches.iter().all(may_read) {
                        return None;
                    }
                    *cursor = batches.last().map_or(*cursor, |batch| batch.seqs.1);
                }
                read
            }
            Followed::Feed { scope, listener } => match listener.read(*cursor, budget) {
                Items(commits) => {
                    let mut next = *cursor;
                    let mut ours = Vec::new();
                    for batch in commits.iter().flat_map(|commit| commit.iter()) {
                        // A listener that began while a commit was being published may see a part
                        // of it.
                        if batch.positions.0 != next + 1 {
                            return Some(Behind);
                        }
                        next = batch.positions.1;
                        if scope.contains(batch) {
                            ours.push(Arc::clone(batch));
                        }
                    }
                    *cursor = next;
                    Items(ours)
                }
                Nothing => Nothing,
                Closed => Closed,
                Behind => Behind,
            },
        })
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAfter {
    /// After this cursor: any number that a client may send. Cursors of the log fit in an `i64`.
    Cursor(u64),
    /// After the latest event.
    Latest,
}

/// The events that a reader asked for and that the log does not have. `oldest` and `latest` are
/// seqs or positions, as the cursor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Gap {
    pub requested: u64,
    /// The first position after `requested` that there is.
    pub oldest: i64,
    /// The latest position there is.
    pub latest: i64,
    /// `pruned`: removed by age or size. `ahead`: the log was set back to a backup, and is given
    /// from its start.
    #[schemars(with = "String")]
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

/// Kind of a notice with partial output of an agent.
const DELTA_KIND: &str = "delta";

#[derive(Debug)]
pub enum SubscriptionChunk {
    /// Whole frames, one or many.
    Frames(Bytes),
    /// Events are missing before the next chunk.
    Gap(Gap),
}

#[derive(Debug)]
pub struct Subscription {
    source: LogSource,
    framing: Framing,
    kind: Option<Arc<str>>,
    cursor: i64,
    gap: Option<Gap>,
    closed: bool,
    /// Whether the subscription stays open at the end of a closed stream. A client would take the
    /// end for a failure and reconnect for ever.
    endless: bool,
    /// The head when the subscription was made.
    head: i64,
    /// Whether the table has been read to its end; from then on the tail is read.
    live: bool,
    /// Partial output of agents, which is not in the log.
    deltas: Option<Box<EntryListener>>,
    /// The next pages of the table, read while the client is sent the last one.
    ahead: Option<PagesAhead>,
}

#[derive(Debug)]
struct PagesAhead {
    /// The cursor before the first page.
    after: i64,
    pages: mpsc::Receiver<FramePage>,
    reader: AbortOnDropHandle<Result<(), StoreError>>,
}

impl PagesAhead {
    fn read(source: &LogSource, after: i64, framing: Framing) -> Self {
        let (sender, pages) = mpsc::channel(limits::REPLAY_AHEAD);
        let reader = AbortOnDropHandle::new(tokio::spawn(source.frames(after, framing, sender)));
        Self { after, pages, reader }
    }

    /// The next page; `None` after the last. Cancel safe.
    async fn next(&mut self) -> Result<Option<FramePage>, StoreError> {
        if let Some(page) = self.pages.recv().await {
            return Ok(Some(page));
        }
        (&mut self.reader).await.map_err(|_| StoreError::Stopped)?.map(|()| None)
    }

    fn is_over(&self) -> bool {
        self.pages.is_closed() && self.pages.is_empty()
    }
}

impl Log {
    /// Follows one or several streams from a cursor, without end, as far as the caller may read
    /// them.
    #[boxed]
    pub async fn subscribe(
        &self,
        caller: &Caller,
        selector: &Selector,
        after: StartAfter,
        kind: Option<String>,
    ) -> Result<Subscription> {
        let reader = Reader::from_caller(caller);
        let (source, bounds) = LogSource::open(&self.core.store, selector, reader).await?;
        let framing = match selector {
            Selector::Stream(_) => Framing::ItemBySeq,
            Selector::Prefix(_) => Framing::ItemByPosition,
        };
        let subscription = Subscription::start(source, bounds, after, framing, kind).await?;
        let wants_deltas = subscription.kind.as_deref().is_none_or(|kind| kind == DELTA_KIND);
        let deltas = wants_deltas.then(|| Box::new(subscription.source.listen_to_deltas()));
        Ok(Subscription { endless: true, deltas, ..subscription })
    }

    /// Follows one stream, in the given framing, to its end if it has one. The caller has checked
    /// its ownership.
    #[boxed]
    pub async fn subscribe_stream(
        &self,
        name: &str,
        after: StartAfter,
        framing: Framing,
        kind: Option<String>,
    ) -> Result<Subscription> {
        let (source, bounds) =
            LogSource::stream(&self.core.store, stream_named(name)?, None).await?;
        Subscription::start(source, bounds, after, framing, kind).await
    }
}

fn stream_named(name: &str) -> Result<StreamName> {
    StreamName::parse(name).ok_or_else(|| Error::not_found(ResourceKind::Stream, name))
}

/// A stream that the reader may read (any reader, if the caller has checked the ownership). An
/// unreadable stream gives the same error as an unknown one.
async fn view_of(store: &Store, name: &StreamName, reader: Option<&Reader>) -> Result<StreamView> {
    let view = store.streams().view(name).await?;
    view.filter(|view| reader.is_none_or(|reader| reader.may_read(&view.visibility)))
        .ok_or_else(|| Error::not_found(ResourceKind::Stream, name.as_str()))
}

impl Subscription {
    async fn start(
        source: LogSource,
        bounds: LogBounds,
        after: StartAfter,
        framing: Framing,
        kind: Option<String>,
    ) -> Result<Self> {
        let (cursor, gap) = source.start(after, bounds).await?;
        Ok(Self {
            source,
            framing,
            kind: kind.map(Arc::from),
            cursor,
            gap,
            closed: bounds.closed,
            endless: false,
            head: bounds.head,
            live: false,
            deltas: None,
            ahead: None,
        })
    }

    pub fn is_complete(&self) -> bool {
        self.closed && self.gap.is_none() && self.cursor == self.head
    }

    pub fn cursor(&self) -> i64 {
        self.cursor
    }

    /// Waits for the next chunk; `None` at the end of a closed stream, and when the stream becomes
    /// unreadable for this subscriber. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<SubscriptionChunk>> {
        if let Some(gap) = self.gap.take() {
            return Ok(Some(SubscriptionChunk::Gap(gap)));
        }
        loop {
            if !Box::pin(self.source.is_readable()).await? {
                return Ok(None);
            }
            let was_live = self.live;
            if !self.live {
                // Boxed, so that a subscriber that has caught up does not carry the futures of
                // queries.
                let frames = Box::pin(self.read_table()).await?;
                if frames.is_some() && !Box::pin(self.source.is_readable_now()).await? {
                    return Ok(None);
                }
                match frames {
                    Some(frames) if !frames.is_empty() => {
                        return Ok(Some(SubscriptionChunk::Frames(frames)));
                    }
                    Some(_) => continue,
                    None => self.live = true,
                }
            }
            if let Some(frame) = self.read_delta() {
                return Ok(Some(SubscriptionChunk::Frames(frame)));
            }
            // Up to a chunk's size: the cost is one system call per subscriber, not the bytes.
            match self.source.tail(&mut self.cursor, limits::CHUNK_BYTES) {
                Some(ListenerRead::Items(batches)) => {
                    let frames = join(batches.iter().map(|it| self.frames_of(it)).collect());
                    if !frames.is_empty() {
                        return Ok(Some(SubscriptionChunk::Frames(frames)));
                    }
                }
                // The table has no more than the cursor, so the stream may have been removed.
                Some(ListenerRead::Behind) if !was_live => {
                    if !Box::pin(self.source.is_there()).await? {
                        return Ok(None);
                    }
                    self.live = false;
                }
                Some(ListenerRead::Behind) => self.live = false,
                // The reader may no longer read the stream.
                None => return Ok(None),
                Some(ListenerRead::Closed | ListenerRead::Nothing)
                    if self.closed && !self.endless =>
                {
                    return Ok(None);
                }
                Some(ListenerRead::Closed) if self.endless => std::future::pending().await,
                Some(ListenerRead::Closed) => self.closed = true,
                Some(ListenerRead::Nothing) => match &mut self.deltas {
                    Some(deltas) => tokio::select! {
                        () = self.source.wait(self.cursor) => {}
                        () = deltas.changed() => {}
                    },
                    None => self.source.wait(self.cursor).await,
                },
            }
        }
    }

    /// The next page of the table; `None` if the cursor is at its end.
    async fn read_table(&mut self) -> Result<Option<Bytes>> {
        if let Some(kind) = self.kind.clone() {
            return self.read_table_by_kind(&kind).await;
        }
        let read_from = |cursor| PagesAhead::read(&self.source, cursor, self.framing);
        let page = loop {
            let ahead = self.ahead.get_or_insert_with(|| read_from(self.cursor));
            match ahead.next().await? {
                Some(page) => break page,
                None if ahead.after == self.cursor => {
                    self.ahead = None;
                    return Ok(None);
                }
                // The pages ended because the channel was full, not because there are no more
                // events.
                None => self.ahead = None,
            }
        };
        self.cursor = page.cursor;
        if !page.more {
            self.ahead = None;
            self.live = true;
        } else if self.ahead.as_ref().is_some_and(PagesAhead::is_over) {
            self.ahead = Some(read_from(self.cursor));
        }
        Ok(Some(page.bytes))
    }

    /// Like [`Self::read_table`], event by event with a filter, which is rare.
    async fn read_table_by_kind(&mut self, kind: &str) -> Result<Option<Bytes>> {
        let size = PageSize::rows(limits::REPLAY_ROWS);
        let head = match self.source.bounds().await {
            Ok(bounds) => bounds.head,
            // The stream was removed; the tail knows that.
            Err(StoreError::NoStream) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let RowPage { rows: events, more } =
            self.source.events(self.cursor, head, Some(kind), size).await?;
        let last = events.last().map(|event| self.source.cursor_of(event));
        if self.cursor >= head && last.is_none() {
            return Ok(None);
        }
        // A full page ends at its last event; any other page covers everything up to the head.
        self.cursor = match last {
            Some(last) if more => last,
            Some(last) => head.max(last),
            None => head,
        };
        Ok(Some(svc_store::render(&events, self.framing)))
    }

    /// New partial output, as an event without an id.
    fn read_delta(&mut self) -> Option<Bytes> {
        let EntryDelta { stream, delta, at } =
            self.source.next_delta(self.deltas.as_mut()?, self.cursor)?;
        let item =
            json!({ "stream": stream.as_str(), "kind": DELTA_KIND, "data": delta, "at": at });
        Some(sse::notice(DELTA_KIND, &item).into())
    }

    fn frames_of(&self, batch: &Batch) -> Bytes {
        let Some(kind) = &self.kind else { return batch.frames(self.framing) };
        let of_kind: Vec<Event> =
            batch.events.iter().filter(|event| event.kind == *kind).cloned().collect();
        svc_store::render(&of_kind, self.framing)
    }
}

/// Joins frames into one chunk. A single frame is passed on without a copy: all subscribers share
/// it.
fn join(frames: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(frames) {
        Ok([single]) => single,
        Err(several) => several.concat().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use svc_model::{Principal, READ_ALL};
    use svc_store::testing::{TestStore, append, event};
    use tokio::time::timeout;

    use super::*;
    use crate::service::{
        Services,
        testing::{opened, session},
    };

    fn name() -> StreamName {
        StreamName::new("task", "t")
    }

    fn stream() -> Selector {
        Selector::Stream("task/t".to_owned())
    }

    fn prefix(prefix: &str) -> Selector {
        Selector::Prefix(prefix.to_owned())
    }

    async fn subscribe(
        services: &Services,
        caller: &Caller,
        selector: &Selector,
        after: StartAfter,
        kind: Option<&str>,
    ) -> Subscription {
        let kind = kind.map(str::to_owned);
        services.log.subscribe(caller, selector, after, kind).await.unwrap()
    }

    /// Follows the stream `task/t` to its end.
    async fn subscribe_task(services: &Services, after: u64) -> Subscription {
        let after = StartAfter::Cursor(after);
        services.log.subscribe_stream("task/t", after, Framing::Data, None).await.unwrap()
    }

    /// The ids of the frames in a chunk; a gap is its negative cursor.
    fn ids(chunk: Option<SubscriptionChunk>) -> Vec<i64> {
        match chunk {
            None => vec![],
            Some(SubscriptionChunk::Gap(gap)) => vec![-i64::try_from(gap.requested).unwrap()],
            Some(SubscriptionChunk::Frames(frames)) => std::str::from_utf8(&frames)
                .unwrap()
                .lines()
                .filter_map(|line| line.strip_prefix("id: ")?.parse().ok())
                .collect(),
        }
    }

    async fn collect(subscription: &mut Subscription, until: i64) -> Vec<i64> {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last| *last < until) {
            let chunk = subscription.next().await.unwrap();
            assert!(chunk.is_some(), "the stream ended after {seen:?}");
            seen.extend(ids(chunk));
        }
        seen
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn followers_see_every_event_once_in_order_while_producers_append() {
        const EVENTS: i64 = 4000;
        let (test, services) = opened().await;
        append(&test.store, &name(), vec![event("frame", "{}")]).await;
        let mut followers = Vec::new();
        for n in 0..12 {
            let selector = match n % 3 {
                0 => prefix("task/"),
                1 => prefix(""),
                _ => stream(),
            };
            let services = services.clone();
            followers.push(async move {
                let after = StartAfter::Cursor(0);
                let mut subscription =
                    subscribe(&services, &Caller::Operator, &selector, after, None).await;
                collect(&mut subscription, EVENTS).await
            });
        }
        let producers = (0..8).map(|_| {
            let store = test.store.clone();
            async move {
                for n in 0..=((EVENTS - 1) / 8) {
                    let view = store.streams().view(&name()).await.unwrap().unwrap();
                    if view.head >= EVENTS {
                        break;
                    }
                    let events = (0..=n % 7).map(|_| event("frame", "{}")).collect();
                    store.append(name(), events).await.unwrap();
                }
            }
        });
        let (seen, _) = futures_util::future::join(
            futures_util::future::join_all(
                followers.into_iter().map(|it| timeout(Duration::from_mins(1), it)),
            ),
            futures_util::future::join_all(producers),
        )
        .await;
        for seen in seen {
            let seen = seen.expect("a follower came to the end in time");
            let ordered: Vec<i64> = (1..=*seen.last().unwrap()).collect();
            assert!(seen == ordered, "a hole, a repeat or a swap: {} ids", seen.len());
        }
    }

    #[tokio::test]
    async fn a_subscription_to_a_closed_stream_ends_from_every_cursor() {
        let (test, services) = opened().await;
        append(&test.store, &name(), vec![event("task", "{}"), event("frame", "{}")]).await;
        let open = subscribe_task(&services, 1).await;
        let closed: Result<(), StoreError> = test
            .store
            .write(svc_store::job!(|tx| {
                tx.append(&name(), vec![event("terminal", "{}")]).await?;
                tx.streams().close(&name()).await
            }))
            .await;
        closed.unwrap();
        let late = subscribe_task(&services, 1).await;
        for mut subscription in [open, late] {
            assert!(!subscription.is_complete());
            assert_eq!(collect(&mut subscription, 3).await, [2, 3]);
            assert!(subscription.next().await.unwrap().is_none());
        }
        assert!(subscribe_task(&services, 3).await.is_complete());
    }

    /// A stream that takes the name of a removed one has other readers.
    #[tokio::test]
    async fn a_subscription_to_a_removed_stream_ends() {
        let (test, services) = opened().await;
        let first = StartAfter::Cursor(0);
        for kind in [None, Some("frame")] {
            append(&test.store, &name(), vec![event("frame", "{}"), event("frame", "{}")]).await;
            let mut followed =
                subscribe(&services, &Caller::Operator, &stream(), first, kind).await;
            let mut unread = subscribe(&services, &Caller::Operator, &stream(), first, kind).await;
            let mut everything =
                subscribe(&services, &Caller::Operator, &prefix(""), StartAfter::Latest, None)
                    .await;
            assert_eq!(collect(&mut followed, 2).await, [1, 2]);
            let retired: Result<(), StoreError> =
                test.store.write(svc_store::job!(|tx| tx.streams().retire(&name()).await)).await;
            retired.unwrap();
            append(&test.store, &StreamName::fixed("team"), vec![event("a", "{}")]).await;
            test.store.upkeep().remove_retired().await.unwrap();
            for subscription in [&mut followed, &mut unread] {
                let next = timeout(Duration::from_mins(1), subscription.next()).await;
                assert!(next.expect("it ends").unwrap().is_none(), "{kind:?}");
            }
            assert_eq!(ids(everything.next().await.unwrap()).len(), 1, "the next event");
        }
        append(&test.store, &name(), vec![event("frame", "{}")]).await;
        let mut another = subscribe(&services, &Caller::Operator, &stream(), first, None).await;
        assert_eq!(collect(&mut another, 1).await, [1]);
    }

    #[tokio::test]
    async fn a_pruned_or_future_cursor_gets_a_gap() {
        let (test, services) = opened().await;
        for _ in 0..10 {
            append(&test.store, &name(), vec![event("frame", "{}")]).await;
        }
        assert_eq!(test.store.upkeep().trim(4, u64::MAX).await.unwrap().removed, 4);
        let (stream, everything) = (stream(), prefix(""));
        for (selector, after, expected, gap) in [
            (&stream, 0, [-0, 5].as_slice(), Some((0, 5, 10, GapReason::Pruned))),
            (&stream, 4, &[5], None),
            (&stream, 10, &[], None),
            (&stream, 99, &[-99, 5], Some((99, 5, 10, GapReason::Ahead))),
            (&everything, 2, &[-2, 5], Some((2, 5, 10, GapReason::Pruned))),
            (&everything, 11, &[-11, 5], Some((11, 5, 10, GapReason::Ahead))),
        ] {
            let place = StartAfter::Cursor(after);
            let mut subscription =
                subscribe(&services, &Caller::Operator, selector, place, None).await;
            if let Some((requested, oldest, latest, reason)) = gap {
                let Some(SubscriptionChunk::Gap(told)) = subscription.next().await.unwrap() else {
                    panic!("no gap for {selector:?} after {after}")
                };
                assert_eq!(told, Gap { requested, oldest, latest, reason });
            }
            if let Some(first) = expected.last() {
                let seen = ids(subscription.next().await.unwrap());
                assert_eq!((seen.first(), seen.last()), (Some(first), Some(&10)));
            }
        }
    }

    async fn give(test: &TestStore, key: &str, said: Option<&'static str>) {
        give_stream(test, name(), key, said).await;
    }

    async fn give_stream(
        test: &TestStore,
        name: StreamName,
        key: &str,
        said: Option<&'static str>,
    ) {
        let owner = Principal::Session(key.into());
        let write = test.store.write(svc_store::job!(|tx| {
            let visibility = StreamVisibility::private(&owner);
            tx.streams().open(&name, &visibility).await?;
            tx.streams().set_visibility(&name, &visibility).await?;
            if let Some(kind) = said {
                tx.append(&name, vec![event(kind, "{}")]).await?;
            }
            Ok(())
        }));
        let given: Result<(), StoreError> = write.await;
        given.unwrap();
    }

    /// The new owner of a stream writes events that the former owner must not read.
    #[tokio::test]
    async fn a_stream_that_changes_its_owner_ends_for_its_former_readers() {
        for (kind, said) in [(None, None), (None, Some("b")), (Some("b"), Some("b"))] {
            let (test, services) = opened().await;
            give(&test, "a", Some("b")).await;
            let (former, stream) = (session("a", &[]), stream());
            let follow =
                async || subscribe(&services, &former, &stream, StartAfter::Cursor(0), kind).await;
            let mut waiting = follow().await;
            assert_eq!(collect(&mut waiting, 1).await, [1]);
            let mut before_the_table = follow().await;
            let after = StartAfter::Cursor(1);
            let mut feed = subscribe(&services, &former, &prefix(""), after, None).await;
            let ended = timeout(Duration::from_secs(20), waiting.next());
            let (ended, ()) = tokio::join!(ended, give(&test, "c", said));
            assert!(ended.unwrap().unwrap().is_none(), "{said:?}");
            services.log.read_events(&former, &stream, 1, None, None).await.unwrap_err();
            assert!(before_the_table.next().await.unwrap().is_none(), "{said:?}");
            let late = services.log.subscribe(&former, &stream, StartAfter::Latest, None).await;
            assert!(late.is_err());
            // The feed goes on with the events that the reader may read.
            give(&test, "c", Some("c")).await;
            give_stream(&test, StreamName::new("task", "u"), "a", Some("d")).await;
            let Some(SubscriptionChunk::Frames(frames)) = feed.next().await.unwrap() else {
                panic!("no frames")
            };
            let frames = std::str::from_utf8(&frames).unwrap();
            assert!(frames.contains("event: d") && !frames.contains("event: c"), "{frames}");
        }
    }

    /// The last event of each stream is kept, so the oldest event of a feed may be far older than
    /// the pruned ones.
    #[tokio::test]
    async fn the_oldest_of_a_gap_is_the_first_event_that_follows_the_cursor() {
        let (test, services) = opened().await;
        let named = |name: &str| StreamName::parse(name).unwrap();
        for (name, count) in [("mcp/c", 1), ("peer/p", 2), ("task/t", 6), ("team", 1)] {
            append(&test.store, &named(name), (0..count).map(|_| event("a", "{}")).collect()).await;
        }
        // 1 mcp/c, 2 and 3 peer/p, 4 to 9 task/t, 10 team: 1, 3, 7 and later stay.
        assert_eq!(test.store.upkeep().trim(6, u64::MAX).await.unwrap().removed, 4);
        let agent = session("s", &[READ_ALL]);
        for (caller, name, after, oldest, first) in [
            (&Caller::Operator, "", 0, 1, 1),
            (&agent, "", 0, 3, 3),
            (&agent, "", 4, 7, 7),
            (&Caller::Operator, "", 1, 3, 3),
            (&Caller::Operator, "", 3, 7, 7),
            (&agent, "task/", 0, 7, 7),
            (&agent, "task/", 99, 7, 7),
            (&agent, "te", 0, 10, 10),
        ] {
            let (selector, place) = (prefix(name), StartAfter::Cursor(after));
            let mut feed = subscribe(&services, caller, &selector, place, None).await;
            let Some(SubscriptionChunk::Gap(gap)) = feed.next().await.unwrap() else {
                panic!("no gap for {name:?} after {after}")
            };
            assert_eq!((gap.requested, gap.oldest, gap.latest), (after, oldest, 10), "{name}");
            assert_eq!(ids(feed.next().await.unwrap()).first(), Some(&first), "{name}");
            if !caller.is_operator() {
                let read = services.log.read_events(caller, &selector, after, None, None);
                let read = read.await.unwrap();
                assert_eq!(read.gap, Some(gap), "{name}");
                assert_eq!(read.events[0].position, first, "{name}");
            }
        }
    }

    #[tokio::test]
    async fn a_filter_selects_its_kind_in_the_table_and_in_the_tail() {
        let (test, services) = opened().await;
        let pair = || vec![event("a", "{}"), event("b", "{}")];
        append(&test.store, &name(), pair()).await;
        for selector in [stream(), prefix("")] {
            let after = StartAfter::Cursor(0);
            let mut subscription =
                subscribe(&services, &Caller::Operator, &selector, after, Some("b")).await;
            let head = test.store.events().bounds().await.unwrap().1;
            let seen = collect(&mut subscription, head).await;
            assert!(seen.iter().all(|id| id % 2 == 0), "{seen:?}");
            append(&test.store, &name(), pair()).await;
            assert_eq!(ids(subscription.next().await.unwrap()), [head + 2]);
        }
    }

    #[tokio::test]
    async fn a_subscription_from_latest_gets_new_events_only() {
        let (test, services) = opened().await;
        append(&test.store, &name(), vec![event("a", "{}")]).await;
        let mut subscription =
            subscribe(&services, &Caller::Operator, &stream(), StartAfter::Latest, None).await;
        append(&test.store, &name(), vec![event("a", "{}")]).await;
        assert_eq!(ids(subscription.next().await.unwrap()), [2]);
    }

    #[tokio::test]
    async fn pages_return_every_event_once() {
        let (test, services) = opened().await;
        for n in 0..25 {
            let name = if n % 2 == 0 { name() } else { StreamName::fixed("team") };
            append(&test.store, &name, vec![event("a", "{}")]).await;
        }
        for (selector, total) in [(prefix(""), 25), (prefix("te"), 12), (stream(), 13)] {
            let (mut seen, mut after) = (0, 0);
            loop {
                let page =
                    services.log.event_page(&Caller::Operator, &selector, after, None, Some(4));
                let page = page.await.unwrap();
                seen += page.events.len();
                match page.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
            assert_eq!(seen, total, "{selector:?}");
        }
        let unknown = Selector::Stream("no".into());
        services.log.event_page(&Caller::Operator, &unknown, 0, None, None).await.unwrap_err();
    }
}
