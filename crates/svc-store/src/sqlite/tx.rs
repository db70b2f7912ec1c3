//! What a write job sees: the write connection inside a transaction, and the events that the job
//! appends. What it does with rows stands with them, see `families`.
//!
//! An append gives its events their seqs at once, in memory, and leaves the writing to the end of
//! the commit: then all events of all its jobs go in one statement, which costs a tenth less than
//! one for each event.

use std::{collections::HashMap, sync::Arc};

use svc_model::{Event, NewEvent, Seq, StreamName, StreamVisibility, Timestamp};

use super::{
    direct_connection::DirectConnection, event_insert::UncommittedEvent, statement::select_value,
};
use crate::{AppendedSeqs, Batch, Bus, StoreError, StreamState};

/// The write side of the database. The writer owns the only one, and lends it to one job at a time.
///
/// A job never awaits anything but its own statements: while it runs, nobody else writes.
#[derive(Debug)]
pub struct WriteTx {
    pub(super) direct: DirectConnection,
    pub(super) bus: Arc<Bus>,
    /// Heads of the streams that were touched lately. The writer is the only one who moves them.
    pub(super) streams: HashMap<Arc<str>, StreamState>,
    /// Events of the present commit. They are written in one statement at its end.
    pub(super) pending: Vec<UncommittedEvent>,
    /// Streams closed since the last commit, with an event or without.
    pub(super) closing: Vec<Arc<str>>,
    /// Streams whose readers are others than before this group of jobs.
    pub(super) reseen: Vec<Arc<str>>,
    /// Highest position given out.
    pub(super) position: i64,
    /// How to take back what the present job did to `streams`.
    pub(super) undo: Vec<Undo>,
    pub(super) now: Timestamp,
}

/// One step back for a stream's state in memory.
#[derive(Debug)]
pub(super) enum Undo {
    /// It was like this.
    Restore(Arc<str>, StreamState),
    /// It was not there.
    Forget(Arc<str>),
}

impl WriteTx {
    /// The time of this commit. All that one commit writes happened at one time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Where a job begins, to return to if it fails.
    pub(super) fn mark(&mut self) -> usize {
        self.undo.clear();
        self.pending.len()
    }

    /// Takes back in memory what the job since `mark` did; its rows are taken back by the writer.
    pub(super) fn rewind(&mut self, mark: usize) {
        self.pending.truncate(mark);
        while let Some(step) = self.undo.pop() {
            match step {
                Undo::Restore(name, state) => self.streams.insert(name, state),
                Undo::Forget(name) => self.streams.remove(&name),
            };
        }
    }

    /// Forgets all that memory knows, after a commit that failed: the table is right.
    pub(super) fn reset(&mut self) -> Result<(), StoreError> {
        self.pending.clear();
        self.closing.clear();
        self.reseen.clear();
        self.undo.clear();
        self.streams.clear();
        self.position =
            select_value!(self, r#"select max(position) as "max: i64" from event"#).unwrap_or(0);
        Ok(())
    }

    /// Appends to a stream that exists and is open. Events whose producer id the stream has already
    /// are not appended again; they are answered with the seq they have, also when the stream is
    /// closed by now.
    ///
    /// # Errors
    /// [`StoreError::NoStream`]; [`StoreError::StreamClosed`] if there is anything new.
    ///
    /// # Panics
    /// If `events` is empty: the caller has checked.
    pub async fn append(
        &mut self,
        name: &StreamName,
        events: Vec<NewEvent>,
    ) -> Result<AppendedSeqs, StoreError> {
        let known = self.streams().known_producer_ids(name, &events).await?;
        let state = self.streams().state(name).await?.ok_or(StoreError::NoStream)?;
        self.give_seqs(name, state, events, &known)
    }

    /// Gives events their seqs, but for those whose producer ids are known.
    fn give_seqs(
        &mut self,
        name: &StreamName,
        mut state: StreamState,
        events: Vec<NewEvent>,
        known: &HashMap<Arc<str>, Seq>,
    ) -> Result<AppendedSeqs, StoreError> {
        let before = state.clone();
        let shared = name.shared();
        let mut seqs = AppendedSeqs { first: Seq::MAX, last: 0 };
        let mut fresh: HashMap<Arc<str>, Seq> = HashMap::new();
        let mark = self.pending.len();
        for event in events {
            let repeated = event
                .producer_id
                .as_ref()
                .and_then(|id| known.get(id).or_else(|| fresh.get(id)))
                .copied();
            let seq = if let Some(seq) = repeated {
                seq
            } else {
                if state.closed {
                    self.pending.truncate(mark);
                    return Err(StoreError::StreamClosed);
                }
                state.head += 1;
                if let Some(id) = &event.producer_id {
                    fresh.insert(Arc::clone(id), state.head);
                }
                self.pending.push(UncommittedEvent {
                    stream: Arc::clone(&shared),
                    stream_id: state.id,
                    visibility: Arc::clone(&state.visibility),
                    seq: state.head,
                    kind: event.kind,
                    data: event.data,
                    producer_id: event.producer_id,
                });
                state.head
            };
            seqs.first = seqs.first.min(seq);
            seqs.last = seqs.last.max(seq);
        }
        assert!(seqs.last > 0, "an append has at least one event");
        self.put_state(shared, before, state);
        Ok(seqs)
    }

    /// Puts the events of this commit in the order of their positions. Stream by stream, so that
    /// positions are contiguous within a stream and a feed over several streams sees them in the
    /// order of its ids.
    fn sort_pending(&mut self) {
        if self.pending.windows(2).any(|pair| pair[0].stream_id > pair[1].stream_id) {
            self.pending.sort_by_key(|pending| pending.stream_id);
        }
    }

    /// Commits the events directly, where there is nothing else to commit.
    pub(super) fn commit_appends(&mut self) -> Result<(), StoreError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.sort_pending();
        self.position = self.direct.insert_alone(self.now, &self.pending)?;
        Ok(())
    }

    /// Writes the events of this commit.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        if !self.pending.is_empty() {
            self.sort_pending();
            self.position = self.direct.insert(self.now, &self.pending)?;
        }
        Ok(())
    }

    /// Tells the listeners what was committed, and makes room for the next commit.
    pub(super) fn publish(&mut self) {
        let mut position = self.position - i64::try_from(self.pending.len()).unwrap_or(i64::MAX);
        let groups: Vec<(i64, usize)> = self
            .pending
            .chunk_by(|a, b| a.stream_id == b.stream_id)
            .map(|group| (group[0].stream_id, group.len()))
            .collect();
        let mut began = 0;
        let is_new = groups.iter().any(|(_, len)| {
            let first = &self.pending[began];
            began += len;
            first.seq == 1 && *first.visibility != StreamVisibility::Answers
        });
        if is_new {
            self.bus.tell_opened();
        }
        let firsts = groups.iter().scan(0, |at, (_, len)| {
            let first = *at;
            *at += len;
            Some(first)
        });
        let wanted = self.bus.wanted(firsts.map(|first| &*self.pending[first].stream));
        // Who may read is what the last job of the group decided.
        let lasts = groups.iter().scan(0, |end, (_, len)| {
            *end += len;
            Some(*end - 1)
        });
        let visibilities: Vec<Arc<StreamVisibility>> =
            lasts.map(|last| Arc::clone(&self.pending[last].visibility)).collect();
        let mut batches = Vec::new();
        let mut pending = self.pending.drain(..);
        for (((_, len), wanted), visibility) in groups.into_iter().zip(wanted).zip(visibilities) {
            let group = pending.by_ref().take(len);
            if wanted {
                let events: Vec<Event> = group
                    .map(|row| {
                        position += 1;
                        Event {
                            position,
                            stream: row.stream.into(),
                            seq: row.seq,
                            kind: row.kind,
                            data: row.data,
                            at: self.now,
                        }
                    })
                    .collect();
                let closed = events.last().is_some_and(|last| {
                    self.streams.get(last.stream.as_str()).is_some_and(|state| state.closed)
                });
                batches.extend(Batch::new(events, closed, visibility));
            } else {
                position += i64::try_from(group.count()).unwrap_or(0);
            }
        }
        drop(pending);
        self.bus.publish(batches);
        for name in std::mem::take(&mut self.reseen) {
            self.bus.tell_readers_changed(&name);
        }
        // A stream may end without a last word, and its listeners must not wait for one.
        for name in std::mem::take(&mut self.closing) {
            if self.streams.get(&name).is_none_or(|state| state.closed) {
                self.bus.tell_closed(&name);
            }
        }
    }

    pub(super) fn put_state(&mut self, name: Arc<str>, before: StreamState, after: StreamState) {
        self.undo.push(Undo::Restore(Arc::clone(&name), before));
        self.streams.insert(name, after);
    }
}
