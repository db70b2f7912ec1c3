//! Reading the log call by call, for readers that keep no connection: a page, and where to go on.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{
    Log,
    subscription::{After, Gap, Selector, begin},
};
use crate::{
    domain::{Event, StreamName, StreamReader, limits},
    service::{Error, check},
    store::{Batch, Commit, FeedScope, Heard, Listener, PageSize},
};

/// What follows a place.
#[derive(Debug)]
pub struct Reading {
    /// The events; none if nothing followed in time.
    pub events: Vec<Event>,
    /// The place to go on from.
    pub next_after: i64,
    /// What the log cannot give any more.
    pub gap: Option<Gap>,
    /// Nothing will follow: the stream is closed, and this is its end.
    pub closed: bool,
}

impl Log {
    /// The events after a place, which are waited for if there are none yet.
    ///
    /// This is for agents, and nothing private is among them, whoever asks: the answer itself becomes an event of a
    /// private stream, and would be in the next answer, which would be in the one after that.
    pub async fn read_events(
        &self,
        selector: &Selector,
        after: u64,
        kind: Option<&str>,
        limit: Option<u32>,
        wait: Duration,
    ) -> Result<Reading, Error> {
        let until = Instant::now() + wait;
        let take = PageSize { rows: check::limit(limit)?, bytes: limits::AGENT_PAGE_BYTES };
        // Listen first and look after, or what is committed in between is waited for in vain.
        let mut ear = match selector {
            Selector::Stream(name) => {
                let (name, _) = self.readable(StreamReader::Team, name).await?;
                let listener = self.core.store.bus().listen(&name);
                Ear::Stream(name, listener)
            }
            Selector::Prefix(prefix) => {
                let scope = FeedScope::prefix(prefix, StreamReader::Team);
                Ear::Feed(scope, self.core.store.bus().listen_all())
            }
        };
        let (after, (bounds, _)) = (After::Place(after), self.bounds(&ear).await?);
        let (mut place, gap) = match &ear {
            Ear::Stream(..) => begin(after, bounds),
            Ear::Feed(scope, _) => self.begin_feed(scope, after, bounds).await?,
        };
        loop {
            // The end is looked at before the page, so that what is passed over for its kind was seen.
            let ((_, head), closed) = self.bounds(&ear).await?;
            let page = self.page_after(selector, StreamReader::Team, place, kind, take).await?;
            if let Some(next_after) = page.next {
                return Ok(Reading { events: page.events, next_after, gap, closed: false });
            }
            let last = page.events.last().map_or(0, |event| match selector {
                Selector::Stream(_) => event.seq,
                Selector::Prefix(_) => event.position,
            });
            place = place.max(head).max(last);
            let closed = closed && place == head;
            let over = !page.events.is_empty() || gap.is_some() || closed;
            if over || timeout_at(until, ear.hear(&mut place, kind)).await.is_err() {
                return Ok(Reading { events: page.events, next_after: place, gap, closed });
            }
        }
    }

    /// Floor and head, and whether nothing will follow.
    async fn bounds(&self, ear: &Ear) -> Result<((i64, i64), bool), Error> {
        match ear {
            Ear::Stream(name, _) => {
                let view = self.view(name).await?;
                Ok(((view.floor, view.head), view.closed))
            }
            Ear::Feed(..) => Ok((self.core.store.log_bounds().await?, false)),
        }
    }
}

/// Listens for what may concern a reader, so that the table is not read for each commit of a busy daemon.
enum Ear {
    Stream(StreamName, Listener<Batch>),
    Feed(FeedScope, Listener<Commit>),
}

impl Ear {
    /// Waits until the table is worth a look, and moves `place` over what does not matter.
    async fn hear(&mut self, place: &mut i64, kind: Option<&str>) {
        let wanted = |batch: &Batch| {
            kind.is_none_or(|kind| batch.events.iter().any(|event| &*event.kind == kind))
        };
        loop {
            match self {
                Self::Stream(_, listener) => {
                    listener.wait(*place).await;
                    let Heard::Items(batches) = listener.hear(*place, limits::CHUNK_BYTES) else {
                        return;
                    };
                    if batches.iter().any(|batch| batch.closed || wanted(batch)) {
                        return;
                    }
                    *place = batches.last().map_or(*place, |batch| batch.seqs.1);
                }
                Self::Feed(scope, listener) => {
                    listener.wait(*place).await;
                    let Heard::Items(commits) = listener.hear(*place, limits::CHUNK_BYTES) else {
                        return;
                    };
                    for batch in commits.iter().flat_map(|commit| commit.iter()) {
                        // A listener that came while a commit was being told may see a part of it.
                        let whole = batch.positions.0 == *place + 1;
                        let ours = scope.contains(batch);
                        if !whole || (ours && wanted(batch)) {
                            return;
                        }
                        *place = batch.positions.1;
                    }
                }
            }
        }
    }
}
