//! Pages of the log, for readers that do not follow it.

use svc_model::{Caller, Event, Reader, StreamName};
use svc_store::{FeedScope, LogPage, PageSize, StreamView};

use super::{Log, cursor::Selector};
use crate::service::{Error, ResourceKind, check};

#[derive(Debug)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// The cursor of the next page, if there is one.
    pub next: Option<i64>,
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
        let size = PageSize::rows(check::limit(limit)?);
        let LogPage { events, more } = match selector {
            Selector::Stream(name) => {
                let (name, view) = self.readable(&Reader::from_caller(caller), name).await?;
                self.core.store.events().of_stream(view.id, &name, after, kind, size).await?
            }
            Selector::Prefix(prefix) => {
                let scope = FeedScope::prefix(prefix, Reader::from_caller(caller));
                self.core.store.events().of_feed(&scope, after, i64::MAX, kind, size).await?
            }
        };
        let next = events.last().filter(|_| more).map(|event| selector.cursor_of(event));
        Ok(EventPage { events, next })
    }

    /// A stream that the reader may read; any other gives the same error as an unknown one.
    pub(super) async fn readable(
        &self,
        reader: &Reader,
        name: &str,
    ) -> Result<(StreamName, StreamView), Error> {
        let unknown = || Error::not_found(ResourceKind::Stream, name);
        let stream = StreamName::parse(name).ok_or_else(unknown)?;
        let view = self.core.store.streams().view(&stream).await?;
        let view = view.filter(|view| reader.may_read(&view.visibility)).ok_or_else(unknown)?;
        Ok((stream, view))
    }
}
