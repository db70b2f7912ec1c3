//! What a reader follows: the table, and the tail of the last commits beside it.
//!
//! Everything that follows the log is made of this: [`Subscription`](super::Subscription) for
//! frames, [`StreamFollower`](super::StreamFollower) for events,
//! [`Log::read_events`](super::Log::read_events) for one answer.

use std::sync::Arc;

use svc_model::{Event, Framing, GapReason, Reader, StreamName, StreamVisibility};
use svc_store::{
    Batch, Commit, FeedScope, FramePage, Heard, HeardWords, LogPage, PageSize, SaidAfter,
    SayingListener, Store, StoreError, StreamListener, StreamView,
};
use tokio::sync::mpsc;

use super::cursor::{Gap, LogBounds, StartAfter};
use crate::service::{Error, ResourceKind};

/// One stream, or all streams of a scope.
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
        /// Who reads, if it is to be asked again whether it still may; `None` if the caller has
        /// checked whose the stream is.
        reader: Option<Reader>,
        listener: StreamListener<Batch>,
    },
    Feed {
        scope: FeedScope,
        listener: StreamListener<Commit>,
    },
}

/// What the tail has behind a cursor.
#[derive(Debug)]
pub(super) enum TailRead {
    /// The commits that follow, as far as they are of this source; perhaps none of them is. The
    /// cursor has moved behind them.
    Batches(Vec<Arc<Batch>>),
    /// Nothing follows yet.
    Nothing,
    /// Nothing follows, and nothing will.
    Closed,
    /// Something follows that only the table has.
    Behind,
    /// Something follows that the reader may not read any more.
    Withdrawn,
}

impl LogSource {
    /// Follows one stream: for a reader who may read it now, or for a caller who has checked whose
    /// it is.
    pub(super) async fn stream(
        store: &Store,
        name: StreamName,
        reader: Option<Reader>,
    ) -> Result<(Self, LogBounds), Error> {
        // Listen first and look after, or what is committed in between is missed.
        let listener = store.bus().listen(&name);
        let unknown = || Error::not_found(ResourceKind::Stream, name.as_str());
        let view = store.streams().view(&name).await?;
        let is_readable =
            |view: &StreamView| reader.as_ref().is_none_or(|it| it.may_read(&view.visibility));
        let view = view.filter(is_readable).ok_or_else(unknown)?;
        let bounds = LogBounds { floor: view.floor, head: view.head, closed: view.closed };
        let followed = Followed::Stream { id: view.id, name, reader, listener };
        Ok((Self { store: store.clone(), followed }, bounds))
    }

    /// Follows all streams of a scope.
    pub(super) async fn feed(store: &Store, scope: FeedScope) -> Result<(Self, LogBounds), Error> {
        let listener = store.bus().listen_all();
        let source = Self { store: store.clone(), followed: Followed::Feed { scope, listener } };
        let bounds = source.bounds().await?;
        Ok((source, bounds))
    }

    pub(super) async fn bounds(&self) -> Result<LogBounds, StoreError> {
        match &self.followed {
            Followed::Stream { name, .. } => {
                let view = self.store.streams().view(name).await?.ok_or(StoreError::NoStream)?;
                Ok(LogBounds { floor: view.floor, head: view.head, closed: view.closed })
            }
            Followed::Feed { .. } => {
                let (floor, head) = self.store.events().bounds().await?;
                Ok(LogBounds { floor, head, closed: false })
            }
        }
    }

    /// Whether the reader may still read the stream, after it was decided anew who may. Cheap when
    /// it was not.
    pub(super) async fn is_readable(&mut self) -> Result<bool, StoreError> {
        let has_changed = match &mut self.followed {
            Followed::Stream { listener, .. } => listener.take_readers_changed(),
            Followed::Feed { .. } => false,
        };
        if has_changed { self.is_readable_now().await } else { Ok(true) }
    }

    /// Whether the reader may read the stream, as the table has it: asked behind each page of the
    /// table, because a page may be read between the commit that withdraws the stream and its
    /// notification.
    pub(super) async fn is_readable_now(&mut self) -> Result<bool, StoreError> {
        let Followed::Stream { reader, name, listener, .. } = &mut self.followed else {
            // The query of a feed asks for each event.
            return Ok(true);
        };
        // What is decided from here on wakes the reader again.
        listener.take_readers_changed();
        // Who reads everything reads every stream that it may begin with.
        let Some(reader @ Reader::Session { .. }) = reader else { return Ok(true) };
        let view = self.store.streams().view(name).await?;
        Ok(view.is_some_and(|view| reader.may_read(&view.visibility)))
    }

    /// The cursor to begin with, and what the log does not have.
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
            // The last event of each stream is still there, and may be before those that were
            // pruned.
            let next = self
                .store
                .events()
                .of_feed(scope, cursor, i64::MAX, None, PageSize::rows(1))
                .await?;
            if let Some(event) = next.events.first() {
                gap.oldest = event.position;
            }
        }
        Ok((cursor, gap))
    }

    /// The cursor behind an event.
    pub(super) fn cursor_of(&self, event: &Event) -> i64 {
        match self.followed {
            Followed::Stream { .. } => event.seq,
            Followed::Feed { .. } => event.position,
        }
    }

    /// A page of events behind the cursor, up to `head`, from the table.
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

    /// Sends pages of frames behind the cursor, from the table: one, if there is anything, and more
    /// while there is room. The future stands alone, so that it may run ahead.
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
                        // It is the first of its channel. An error says that nobody is there any
                        // more.
                        pages.try_send(page).ok();
                    }
                    Ok(())
                }
            }
        }
    }

    /// Waits until something follows the cursor, nothing will, or others may read. Dropping the
    /// future loses nothing.
    pub(super) async fn wait(&mut self, cursor: i64) {
        match &mut self.followed {
            Followed::Stream { listener, reader: Some(_), .. } => {
                listener.wait_as_reader(cursor).await;
            }
            Followed::Stream { listener, .. } => listener.wait(cursor).await,
            Followed::Feed { listener, .. } => listener.wait(cursor).await,
        }
    }

    /// Listens to what is being said, too.
    pub(super) fn listen_to_words(&self) -> SayingListener {
        self.store.bus().sayings().listen()
    }

    /// What is being said and this reader, who has all up to the cursor, has not heard yet.
    pub(super) fn words(&self, listener: &mut SayingListener, cursor: i64) -> Option<HeardWords> {
        let may_hear =
            |stream: &StreamName, visibility: &StreamVisibility, after: SaidAfter| match &self
                .followed
            {
                Followed::Stream { name, reader, .. } => {
                    let may_read = reader.as_ref().is_none_or(|it| it.may_read(visibility));
                    name == stream && cursor >= after.seq && may_read
                }
                Followed::Feed { scope, .. } => {
                    cursor >= after.position && scope.has(stream, visibility)
                }
            };
        self.store.bus().sayings().hear(listener, may_hear)
    }

    /// What the last commits brought behind the cursor, up to about `budget` bytes of it.
    pub(super) fn tail(&self, cursor: &mut i64, budget: usize) -> TailRead {
        match &self.followed {
            Followed::Stream { listener, reader, .. } => match listener.hear(*cursor, budget) {
                Heard::Items(batches) => {
                    let may_read = |batch: &Batch| {
                        reader.as_ref().is_none_or(|it| it.may_read(&batch.visibility))
                    };
                    if !batches.iter().all(|batch| may_read(batch)) {
                        return TailRead::Withdrawn;
                    }
                    *cursor = batches.last().map_or(*cursor, |batch| batch.seqs.1);
                    TailRead::Batches(batches)
                }
                Heard::Nothing => TailRead::Nothing,
                Heard::Closed => TailRead::Closed,
                Heard::Behind => TailRead::Behind,
            },
            Followed::Feed { scope, listener } => match listener.hear(*cursor, budget) {
                Heard::Items(commits) => {
                    let mut next = *cursor;
                    let mut ours = Vec::new();
                    for batch in commits.iter().flat_map(|commit| commit.iter()) {
                        // A listener that came while a commit was being published may see a part of
                        // it.
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
                Heard::Nothing => TailRead::Nothing,
                Heard::Closed => TailRead::Closed,
                Heard::Behind => TailRead::Behind,
            },
        }
    }
}
