//! Reading the log: pages, and the one subscription that everything which follows a stream is made of.
//!
//! A subscription is a cursor. It reads the table until it has caught up, then takes what the bus tells of commits,
//! and goes back to the table whenever it fell behind that. Nothing waits for it, and it keeps nothing but its cursor
//! and, while it reads the table, one page.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use tokio_util::task::AbortOnDropHandle;

use super::Log;
use crate::{
    domain::{Caller, Event, Framing, Seq, StreamName, StreamReader, limits},
    service::{Error, ResourceKind, check},
    store::{
        Batch, Commit, FeedScope, FramePage, Heard, Listener, LogPage, PageSize, Store, StoreError,
        StreamView,
    },
};

/// Which events to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// One stream; places are seqs.
    Stream(String),
    /// All streams whose name begins so; places are positions. Empty for everything.
    Prefix(String),
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// After this place. Any number that a client may send; the log's are smaller.
    Place(u64),
    /// With what comes from now on.
    Latest,
}

/// A page of events.
#[derive(Debug)]
pub struct EventPage {
    /// The events.
    pub events: Vec<Event>,
    /// Where the next page begins, if there is one.
    pub next: Option<i64>,
}

/// What a subscriber is told when the log does not have what it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// The cursor that it came with.
    pub requested: u64,
    /// The oldest place there is in what is read.
    pub oldest: i64,
    /// The latest place there is.
    pub latest: i64,
    /// Why it is not there.
    pub reason: GapReason,
}

/// Why the log does not have what a subscriber asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GapReason {
    /// Retention removed it.
    Pruned,
    /// The cursor is from a later life of this database, as after a backup was restored. Everything follows from the
    /// start.
    Ahead,
}

impl GapReason {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pruned => "pruned",
            Self::Ahead => "ahead",
        }
    }
}

/// What a subscription gives.
#[derive(Debug)]
pub enum Chunk {
    /// Whole frames, one or many.
    Frames(Bytes),
    /// Something is missing before what follows.
    Gap(Gap),
}

impl Log {
    /// A page of events after a cursor, of streams that the caller may read.
    pub async fn event_page(
        &self,
        caller: &Caller,
        selector: &Selector,
        after: i64,
        kind: Option<&str>,
        limit: Option<u32>,
    ) -> Result<EventPage, Error> {
        let take = PageSize::rows(check::limit(limit)?);
        self.page_after(selector, StreamReader::of(caller), after, kind, take).await
    }

    /// A page of events after a cursor, of streams that the reader may read.
    pub(in crate::service) async fn page_after(
        &self,
        selector: &Selector,
        reader: StreamReader,
        after: i64,
        kind: Option<&str>,
        take: PageSize,
    ) -> Result<EventPage, Error> {
        let LogPage { events, more } = match selector {
            Selector::Stream(name) => {
                let (name, view) = self.readable(reader, name).await?;
                self.core.store.events(view.id, &name, after, kind, take).await?
            }
            Selector::Prefix(prefix) => {
                let scope = FeedScope::prefix(prefix, reader);
                self.core.store.feed_events(&scope, after, i64::MAX, kind, take).await?
            }
        };
        let place = |event: &Event| match selector {
            Selector::Stream(_) => event.seq,
            Selector::Prefix(_) => event.position,
        };
        let next = events.last().filter(|_| more).map(place);
        Ok(EventPage { events, next })
    }

    /// Follows a stream, or several, from a cursor on and without end, as far as the caller may
    /// read them.
    pub async fn subscribe(
        &self,
        caller: &Caller,
        selector: &Selector,
        after: After,
        kind: Option<String>,
    ) -> Result<Subscription, Error> {
        match selector {
            Selector::Stream(name) => {
                let framing = Framing::ItemBySeq;
                self.readable(StreamReader::of(caller), name).await?;
                let feed = self.subscribe_stream(name, after, framing, kind).await?;
                Ok(Subscription { endless: true, ..feed })
            }
            Selector::Prefix(prefix) => {
                let scope = FeedScope::prefix(prefix, StreamReader::of(caller));
                self.subscribe_feed(scope, after, kind).await
            }
        }
    }

    /// Follows one stream, in the given form, to its end if it has one.
    pub async fn subscribe_stream(
        &self,
        name: &str,
        after: After,
        framing: Framing,
        kind: Option<String>,
    ) -> Result<Subscription, Error> {
        let name =
            StreamName::parse(name).ok_or_else(|| Error::not_found(ResourceKind::Stream, name))?;
        // Listen first and look after, or what is committed in between is missed.
        let listener = self.core.store.bus().listen(&name);
        let view = self.view(&name).await?;
        let bounds = (view.floor, view.head);
        let (cursor, gap) = begin(after, bounds);
        Ok(Subscription {
            store: self.core.store.clone(),
            source: Source::Stream { id: view.id, name, listener },
            framing,
            kind: kind.map(Arc::from),
            cursor,
            gap,
            closed: view.closed,
            endless: false,
            head: view.head,
            live: false,
            ahead: None,
        })
    }

    async fn subscribe_feed(
        &self,
        scope: FeedScope,
        after: After,
        kind: Option<String>,
    ) -> Result<Subscription, Error> {
        let listener = self.core.store.bus().listen_all();
        let bounds = self.core.store.log_bounds().await?;
        let (cursor, gap) = self.begin_feed(&scope, after, bounds).await?;
        Ok(Subscription {
            store: self.core.store.clone(),
            source: Source::Feed { scope, listener },
            framing: Framing::ItemByPosition,
            kind: kind.map(Arc::from),
            cursor,
            gap,
            closed: false,
            endless: true,
            head: bounds.1,
            live: false,
            ahead: None,
        })
    }

    /// The position to begin a feed with, and what the log cannot give any more.
    pub(in crate::service) async fn begin_feed(
        &self,
        scope: &FeedScope,
        after: After,
        bounds: (i64, i64),
    ) -> Result<(i64, Option<Gap>), StoreError> {
        let (mut cursor, mut gap) = begin(after, bounds);
        if let Some(gap) = &mut gap {
            // The last event of each stream is still there, and may be before those that were pruned.
            let oldest =
                self.core.store.feed_events(scope, 0, i64::MAX, None, PageSize::rows(1)).await?;
            if let Some(event) = oldest.events.first() {
                gap.oldest = event.position;
            }
            if gap.reason == GapReason::Pruned {
                cursor = i64::try_from(gap.requested).unwrap_or(cursor);
            }
        }
        Ok((cursor, gap))
    }

    /// Follows one stream event by event, from a place on and to its end.
    pub async fn follow(&self, name: StreamName, after: Seq) -> Result<Follow, Error> {
        // Listen first and look after, or what is committed in between is missed.
        let listener = self.core.store.bus().listen(&name);
        let view = self.view(&name).await?;
        let store = self.core.store.clone();
        Ok(Follow { store, id: view.id, name, listener, cursor: after, closed: view.closed })
    }

    /// A stream that the reader may read. One that it may not is not there.
    pub(in crate::service) async fn readable(
        &self,
        reader: StreamReader,
        name: &str,
    ) -> Result<(StreamName, StreamView), Error> {
        let unknown = || Error::not_found(ResourceKind::Stream, name);
        let stream = StreamName::parse(name).ok_or_else(unknown)?;
        let view = self.core.store.view(&stream).await?;
        let view = view.filter(|view| reader.may_read(view.visibility)).ok_or_else(unknown)?;
        Ok((stream, view))
    }

    pub(in crate::service) async fn view(&self, name: &StreamName) -> Result<StreamView, Error> {
        let view = self.core.store.view(name).await?;
        view.ok_or_else(|| Error::not_found(ResourceKind::Stream, name.as_str()))
    }
}

/// The cursor to begin with, and what the log cannot give any more.
pub(in crate::service) fn begin(after: After, (floor, head): (i64, i64)) -> (i64, Option<Gap>) {
    let After::Place(requested) = after else {
        return (head, None);
    };
    let gap = |reason| Some(Gap { requested, oldest: (floor + 1).min(head), latest: head, reason });
    match i64::try_from(requested) {
        Ok(asked) if asked < floor => (floor, gap(GapReason::Pruned)),
        Ok(asked) if asked <= head => (asked, None),
        _ => (0, gap(GapReason::Ahead)),
    }
}

/// A place in one stream that moves forward, for whoever wants events and not frames.
#[derive(Debug)]
pub struct Follow {
    store: Store,
    id: i64,
    name: StreamName,
    listener: Listener<Batch>,
    cursor: Seq,
    closed: bool,
}

impl Follow {
    /// Waits for what comes next; `None` at the end of a closed stream. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Vec<Event>>, Error> {
        loop {
            let events = match self.listener.hear(self.cursor, limits::CHUNK_BYTES) {
                Heard::Items(batches) => {
                    batches.iter().flat_map(|batch| batch.events.iter().cloned()).collect()
                }
                // The listener knows only what came after it: the table is right.
                _ => Box::pin(self.read()).await?,
            };
            if let Some(last) = events.last() {
                self.cursor = last.seq;
                return Ok(Some(events));
            }
            match self.listener.hear(self.cursor, 0) {
                Heard::Closed => return Ok(None),
                Heard::Nothing if self.closed => return Ok(None),
                Heard::Nothing => self.listener.wait(self.cursor).await,
                Heard::Items(_) | Heard::Behind => {}
            }
        }
    }

    /// The place up to which everything was given.
    pub fn cursor(&self) -> Seq {
        self.cursor
    }

    async fn read(&self) -> Result<Vec<Event>, StoreError> {
        let take = PageSize::rows(limits::REPLAY_ROWS);
        Ok(self.store.events(self.id, &self.name, self.cursor, None, take).await?.events)
    }
}

/// A place in the log that moves forward.
#[derive(Debug)]
pub struct Subscription {
    store: Store,
    source: Source,
    framing: Framing,
    kind: Option<Arc<str>>,
    cursor: i64,
    gap: Option<Gap>,
    /// Nothing follows the head.
    closed: bool,
    /// Goes on all the same: a client would take the end for a fault and come back for ever.
    endless: bool,
    /// The latest place when the subscription was made.
    head: i64,
    /// The table has been read to its end; from here on the bus tells.
    live: bool,
    /// The next page of the table, read while the last one is on its way to the client.
    ahead: Option<AbortOnDropHandle<Result<Option<FramePage>, StoreError>>>,
}

#[derive(Debug)]
enum Source {
    Stream { id: i64, name: StreamName, listener: Listener<Batch> },
    Feed { scope: FeedScope, listener: Listener<Commit> },
}

impl Subscription {
    /// Whether the subscriber has everything already and nothing will follow.
    pub fn is_complete(&self) -> bool {
        self.closed && self.gap.is_none() && self.cursor == self.head
    }

    /// The place up to which everything was given.
    pub fn cursor(&self) -> i64 {
        self.cursor
    }

    /// Waits for what comes next; `None` at the end of a closed stream. Dropping the future loses nothing that was
    /// not given.
    pub async fn next(&mut self) -> Result<Option<Chunk>, Error> {
        if let Some(gap) = self.gap.take() {
            return Ok(Some(Chunk::Gap(gap)));
        }
        loop {
            if !self.live {
                // Boxed: a subscriber that has caught up does not carry the room that queries take.
                match Box::pin(self.read()).await? {
                    Some(frames) if !frames.is_empty() => return Ok(Some(Chunk::Frames(frames))),
                    Some(_) => continue,
                    None => self.live = true,
                }
            }
            match self.hear() {
                Told::Frames(frames) if frames.is_empty() => {}
                Told::Frames(frames) => return Ok(Some(Chunk::Frames(frames))),
                Told::Behind => self.live = false,
                Told::Closed | Told::Nothing if self.closed && !self.endless => return Ok(None),
                Told::Closed if self.endless => std::future::pending().await,
                Told::Closed => self.closed = true,
                Told::Nothing => self.wait().await,
            }
        }
    }

    /// The next page of the table; `None` if the cursor is at its end.
    async fn read(&mut self) -> Result<Option<Bytes>, Error> {
        if let Some(kind) = self.kind.clone() {
            return self.read_kind(&kind).await;
        }
        let page = match &mut self.ahead {
            None => self.page().await?,
            Some(ahead) => {
                let page = ahead.await.map_err(|_| StoreError::Stopped);
                self.ahead = None;
                page??
            }
        };
        let Some(page) = page else { return Ok(None) };
        self.cursor = page.cursor;
        if page.more {
            self.ahead = Some(AbortOnDropHandle::new(tokio::spawn(self.page())));
        } else {
            self.live = true;
        }
        Ok(Some(page.bytes))
    }

    /// Reads the page after the cursor.
    fn page(&self) -> impl Future<Output = Result<Option<FramePage>, StoreError>> + Send + use<> {
        let (store, cursor, framing) = (self.store.clone(), self.cursor, self.framing);
        let source = match &self.source {
            Source::Stream { id, name, .. } => Ok((*id, name.clone())),
            Source::Feed { scope, .. } => Err(scope.clone()),
        };
        async move {
            match source {
                Ok((id, name)) => store.frames(id, &name, cursor, framing).await,
                Err(scope) => {
                    let (_, head) = store.log_bounds().await?;
                    store.feed_frames(&scope, cursor, head).await
                }
            }
        }
    }

    /// The same with a filter, which is rare: event by event.
    async fn read_kind(&mut self, kind: &str) -> Result<Option<Bytes>, Error> {
        let take = PageSize::rows(limits::REPLAY_ROWS);
        let (LogPage { events, more }, end) = match &self.source {
            Source::Stream { id, name, .. } => {
                let head = self.store.view(name).await?.map_or(0, |view| view.head);
                (self.store.events(*id, name, self.cursor, Some(kind), take).await?, head)
            }
            Source::Feed { scope, .. } => {
                let (_, head) = self.store.log_bounds().await?;
                (self.store.feed_events(scope, self.cursor, head, Some(kind), take).await?, head)
            }
        };
        let last = events.last().map(|event| match self.framing {
            Framing::ItemByPosition => event.position,
            _ => event.seq,
        });
        if self.cursor >= end && last.is_none() {
            return Ok(None);
        }
        // A full page ends at its last event; any other has looked at everything up to the end.
        self.cursor = match last {
            Some(last) if more => last,
            Some(last) => end.max(last),
            None => end,
        };
        Ok(Some(crate::store::render(&events, self.framing)))
    }

    async fn wait(&mut self) {
        match &mut self.source {
            Source::Stream { listener, .. } => listener.wait(self.cursor).await,
            Source::Feed { listener, .. } => listener.wait(self.cursor).await,
        }
    }

    /// What the last commits brought, framed, up to the size of a chunk: what costs is the system call for each
    /// subscriber and not its bytes.
    fn hear(&mut self) -> Told {
        let budget = limits::CHUNK_BYTES;
        let (frames, cursor) = match &self.source {
            Source::Stream { listener, .. } => match listener.hear(self.cursor, budget) {
                Heard::Items(batches) => (
                    batches.iter().map(|batch| self.frames_of(batch)).collect::<Vec<_>>(),
                    batches.last().map(|batch| batch.seqs.1),
                ),
                Heard::Nothing => return Told::Nothing,
                Heard::Closed => return Told::Closed,
                Heard::Behind => return Told::Behind,
            },
            Source::Feed { scope, listener } => match listener.hear(self.cursor, budget) {
                Heard::Items(commits) => {
                    let batches = commits.iter().flat_map(|commit| commit.iter());
                    // A listener that came while a commit was being told may see a part of it.
                    let mut expected = self.cursor + 1;
                    let mut frames = Vec::new();
                    for batch in batches {
                        if batch.positions.0 != expected {
                            return Told::Behind;
                        }
                        expected = batch.positions.1 + 1;
                        if scope.contains(batch) {
                            frames.push(self.frames_of(batch));
                        }
                    }
                    (frames, Some(expected - 1))
                }
                Heard::Nothing => return Told::Nothing,
                Heard::Closed => return Told::Closed,
                Heard::Behind => return Told::Behind,
            },
        };
        self.cursor = cursor.unwrap_or(self.cursor);
        Told::Frames(join(frames))
    }

    fn frames_of(&self, batch: &Batch) -> Bytes {
        let Some(kind) = &self.kind else { return batch.frames(self.framing) };
        let wanted: Vec<Event> =
            batch.events.iter().filter(|event| event.kind == *kind).cloned().collect();
        crate::store::render(&wanted, self.framing)
    }
}

/// What the bus has for a subscription.
enum Told {
    /// Frames that follow the cursor; none, if nothing of it concerns us.
    Frames(Bytes),
    /// Nothing yet.
    Nothing,
    /// Nothing, and nothing will come.
    Closed,
    /// The table knows.
    Behind,
}

/// One chunk of several; a single one is passed on as it is, shared by all subscribers.
fn join(frames: Vec<Bytes>) -> Bytes {
    match <[Bytes; 1]>::try_from(frames) {
        Ok([single]) => single,
        Err(several) => several.concat().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{Ids, TokenId},
        service::testing::services,
        store::testing::{TestStore, append, event},
    };

    fn name() -> StreamName {
        StreamName::of("task", "t")
    }

    /// The ids of the frames in a chunk; a gap is its negative cursor.
    fn ids(chunk: Option<Chunk>) -> Vec<i64> {
        match chunk {
            None => vec![],
            Some(Chunk::Gap(gap)) => vec![-i64::try_from(gap.requested).unwrap()],
            Some(Chunk::Frames(frames)) => std::str::from_utf8(&frames)
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
        let test = TestStore::open().await;
        let services = services(&test);
        append(&test.store, &name(), vec![event("frame", "{}")]).await;
        let mut followers = Vec::new();
        for n in 0..12 {
            let selector = match n % 3 {
                0 => Selector::Prefix("task/".to_owned()),
                1 => Selector::Prefix(String::new()),
                _ => Selector::Stream("task/t".to_owned()),
            };
            let services = services.clone();
            followers.push(async move {
                let mut subscription = services
                    .log
                    .subscribe(&Caller::Operator, &selector, After::Place(0), None)
                    .await
                    .unwrap();
                collect(&mut subscription, EVENTS).await
            });
        }
        let producers = (0..8).map(|_| {
            let store = test.store.clone();
            async move {
                for n in 0..=((EVENTS - 1) / 8) {
                    let view = store.view(&name()).await.unwrap().unwrap();
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
                followers
                    .into_iter()
                    .map(|it| tokio::time::timeout(std::time::Duration::from_mins(1), it)),
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
    async fn a_closed_stream_ends_for_every_cursor() {
        let test = TestStore::open().await;
        let services = services(&test);
        append(&test.store, &name(), vec![event("task", "{}"), event("frame", "{}")]).await;
        let open = services
            .log
            .subscribe_stream("task/t", After::Place(1), Framing::Data, None)
            .await
            .unwrap();
        let closed: Result<(), StoreError> = test
            .store
            .write(|tx| {
                Box::pin(async move {
                    tx.append(&name(), vec![event("terminal", "{}")]).await?;
                    tx.close_stream(&name()).await
                })
            })
            .await;
        closed.unwrap();
        let late = services
            .log
            .subscribe_stream("task/t", After::Place(1), Framing::Data, None)
            .await
            .unwrap();
        for mut subscription in [open, late] {
            assert!(!subscription.is_complete());
            assert_eq!(collect(&mut subscription, 3).await, [2, 3]);
            assert!(subscription.next().await.unwrap().is_none());
        }
        let done = services
            .log
            .subscribe_stream("task/t", After::Place(3), Framing::Data, None)
            .await
            .unwrap();
        assert!(done.is_complete());
    }

    #[tokio::test]
    async fn what_is_missing_is_told() {
        let test = TestStore::open().await;
        let services = services(&test);
        for _ in 0..10 {
            append(&test.store, &name(), vec![event("frame", "{}")]).await;
        }
        assert_eq!(test.store.trim(4, u64::MAX).await.unwrap().removed, 4);
        let stream = Selector::Stream("task/t".to_owned());
        let everything = Selector::Prefix(String::new());
        for (selector, after, expected, gap) in [
            (&stream, 0, [-0, 5].as_slice(), Some((0, 5, 10, GapReason::Pruned))),
            (&stream, 4, &[5], None),
            (&stream, 10, &[], None),
            (&stream, 99, &[-99, 5], Some((99, 5, 10, GapReason::Ahead))),
            (&everything, 2, &[-2, 5], Some((2, 5, 10, GapReason::Pruned))),
            (&everything, 11, &[-11, 5], Some((11, 5, 10, GapReason::Ahead))),
        ] {
            let mut subscription = services
                .log
                .subscribe(&Caller::Operator, selector, After::Place(after), None)
                .await
                .unwrap();
            if let Some((requested, oldest, latest, reason)) = gap {
                let Some(Chunk::Gap(told)) = subscription.next().await.unwrap() else {
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

    /// The last event of each stream stays, so the oldest that a feed has may be far below what was pruned.
    #[tokio::test]
    async fn the_oldest_of_a_feed_is_one_that_it_has() {
        let test = TestStore::open().await;
        let services = services(&test);
        let named = |name: &str| StreamName::parse(name).unwrap();
        for (name, count) in [("mcp/c", 1), ("peer/p", 2), ("task/t", 6), ("team", 1)] {
            append(&test.store, &named(name), (0..count).map(|_| event("a", "{}")).collect()).await;
        }
        // 1 mcp/c, 2 and 3 peer/p, 4 to 9 task/t, 10 team: 1, 3, 7 and later stay.
        assert_eq!(test.store.trim(6, u64::MAX).await.unwrap().removed, 4);
        let token = TokenId::new(&Ids::counting(), services.now());
        let agent = Caller::Session { key: "s".into(), token, scopes: Arc::from([]) };
        for (caller, prefix, after, oldest, first) in [
            (&Caller::Operator, "", 0, 1, 1),
            (&agent, "", 0, 3, 3),
            (&agent, "", 4, 3, 7),
            (&agent, "task/", 0, 7, 7),
            (&agent, "task/", 99, 7, 7),
            (&agent, "te", 0, 10, 10),
        ] {
            let (selector, place) = (Selector::Prefix(prefix.to_owned()), After::Place(after));
            let mut feed = services.log.subscribe(caller, &selector, place, None).await.unwrap();
            let Some(Chunk::Gap(gap)) = feed.next().await.unwrap() else {
                panic!("no gap for {prefix:?} after {after}")
            };
            assert_eq!((gap.requested, gap.oldest, gap.latest), (after, oldest, 10), "{prefix}");
            assert_eq!(ids(feed.next().await.unwrap()).first(), Some(&first), "{prefix}");
            if !caller.is_operator() {
                let wait = std::time::Duration::ZERO;
                let read =
                    services.log.read_events(&selector, after, None, None, wait).await.unwrap();
                assert_eq!(read.gap, Some(gap), "{prefix}");
                assert_eq!(read.events[0].position, first, "{prefix}");
            }
        }
    }

    #[tokio::test]
    async fn a_filter_shows_its_kind_only_before_and_after_now() {
        let test = TestStore::open().await;
        let services = services(&test);
        let pair = || vec![event("a", "{}"), event("b", "{}")];
        append(&test.store, &name(), pair()).await;
        for selector in [Selector::Stream("task/t".to_owned()), Selector::Prefix(String::new())] {
            let mut subscription = services
                .log
                .subscribe(&Caller::Operator, &selector, After::Place(0), Some("b".to_owned()))
                .await
                .unwrap();
            let head = test.store.log_bounds().await.unwrap().1;
            let seen = collect(&mut subscription, head).await;
            assert!(seen.iter().all(|id| id % 2 == 0), "{seen:?}");
            append(&test.store, &name(), pair()).await;
            assert_eq!(ids(subscription.next().await.unwrap()), [head + 2]);
        }
    }

    #[tokio::test]
    async fn latest_shows_what_comes_from_now_on() {
        let test = TestStore::open().await;
        let services = services(&test);
        append(&test.store, &name(), vec![event("a", "{}")]).await;
        let stream = Selector::Stream("task/t".to_owned());
        let mut subscription =
            services.log.subscribe(&Caller::Operator, &stream, After::Latest, None).await.unwrap();
        append(&test.store, &name(), vec![event("a", "{}")]).await;
        assert_eq!(ids(subscription.next().await.unwrap()), [2]);
    }

    #[tokio::test]
    async fn pages_walk_through_everything_once() {
        let test = TestStore::open().await;
        let services = services(&test);
        for n in 0..25 {
            let name = if n % 2 == 0 { name() } else { StreamName::fixed("team") };
            append(&test.store, &name, vec![event("a", "{}")]).await;
        }
        for (selector, total) in [
            (Selector::Prefix(String::new()), 25),
            (Selector::Prefix("te".to_owned()), 12),
            (Selector::Stream("task/t".to_owned()), 13),
        ] {
            let (mut seen, mut after) = (0, 0);
            loop {
                let page = services
                    .log
                    .event_page(&Caller::Operator, &selector, after, None, Some(4))
                    .await
                    .unwrap();
                seen += page.events.len();
                match page.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
            assert_eq!(seen, total, "{selector:?}");
        }
        services
            .log
            .event_page(&Caller::Operator, &Selector::Stream("no".into()), 0, None, None)
            .await
            .unwrap_err();
    }
}
