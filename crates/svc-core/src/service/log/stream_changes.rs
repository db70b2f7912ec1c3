//! Which of a set of streams have new events.
//!
//! For clients that subscribe to resources: the streams that they may read, without streams of
//! responses.
//!
//! This is a level, not an edge: it names the streams that have moved since a position of the log,
//! with the last position of each. So nothing is stored for a reader that is away.

use std::collections::BTreeMap;

use svc_model::{Caller, Reader, Seq, StreamName};
use svc_store::{Commit, Heard, StreamListener};
use tokio::sync::watch;

use super::Log;
use crate::service::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamEnd {
    /// Seq of its last event; 0 if it has none.
    pub head: Seq,
    /// Nothing follows the head.
    pub closed: bool,
}

#[derive(Debug)]
pub struct StreamChanges {
    log: Log,
    reader: Reader,
    listener: StreamListener<Commit>,
    /// Position up to which moves were returned.
    cursor: i64,
}

impl Log {
    /// Watches the log from the position `from`, or from its end. Also returns which of the streams
    /// have moved since.
    pub async fn watch_streams(
        &self,
        caller: &Caller,
        names: Vec<String>,
        from: Option<i64>,
    ) -> Result<(StreamChanges, Vec<(String, i64)>), Error> {
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
    pub async fn log_head(&self) -> Result<i64, Error> {
        Ok(self.core.store.events().bounds().await?.1)
    }

    /// The end of a stream, for a caller who has checked its ownership. `None` if there is no
    /// stream of that name.
    pub async fn stream_end(&self, name: &StreamName) -> Result<Option<StreamEnd>, Error> {
        let view = self.core.store.streams().view(name).await?;
        Ok(view.map(|view| StreamEnd { head: view.head, closed: view.closed }))
    }

    /// The end of a stream that the caller may read and that holds no responses; `None` if there is
    /// none.
    pub async fn readable_stream_end(
        &self,
        caller: &Caller,
        name: &StreamName,
    ) -> Result<Option<StreamEnd>, Error> {
        let reader = Reader::for_tool(caller);
        let view = self.core.store.streams().view(name).await?;
        let view = view.filter(|view| reader.may_read(&view.visibility));
        Ok(view.map(|view| StreamEnd { head: view.head, closed: view.closed }))
    }

    /// Counts the commits that opened a stream which lists may show.
    pub fn streams_opened(&self) -> watch::Receiver<u64> {
        self.core.store.bus().opened()
    }
}

impl StreamChanges {
    /// Position up to which moves were returned.
    pub fn cursor(&self) -> i64 {
        self.cursor
    }

    /// Waits until the log goes beyond the cursor. Cancel safe.
    pub async fn wait(&mut self) {
        self.listener.wait(self.cursor).await;
    }

    /// The streams (keys of `streams`) that have moved since the last call, each with its last
    /// position.
    pub async fn take<V: Sync>(
        &mut self,
        streams: &BTreeMap<String, V>,
    ) -> Result<Vec<(String, i64)>, Error> {
        match self.listener.hear(self.cursor, usize::MAX) {
            Heard::Nothing | Heard::Closed => Ok(Vec::new()),
            Heard::Items(commits) => {
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
            Heard::Behind => {
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
