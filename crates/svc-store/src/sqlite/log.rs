//! Appending to the log.
//!
//! An append gives its events their seqs at once, in memory, and leaves the writing to the end of the commit:
//! then all events of all its jobs go in one statement, which costs a tenth less than one for each event.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use svc_model::{Event, NewEvent, Seq, StreamName, StreamVisibility};

use super::{
    errors::changed,
    event_insert::UncommittedEvent,
    json::to_json,
    statement::{change, select_fields, select_value},
    tx::{Undo, WriteTx},
    visibility::{VisibilityColumns, visibility_of},
};
use crate::{AppendedSeqs, Batch, StoreError, StreamState};

impl WriteTx {
    /// What stands at `name`; `None` if there is no such stream.
    pub async fn stream(&mut self, name: &StreamName) -> Result<Option<StreamState>, StoreError> {
        if let Some(state) = self.streams.get(name.as_str()) {
            return Ok(Some(state.clone()));
        }
        let text = name.as_str();
        let row = select_fields!(
            select_one,
            self,
            {
                id: i64,
                closed_at: Option<i64>,
                visibility: String,
                owner: Option<String>,
                runner: Option<String>,
                project: Option<String>,
                head: i64
            },
            r#"select id, closed_at, visibility, owner, runner, project,
                (select coalesce(max(seq), 0) from event where stream_id = stream.id) as "head!: i64"
            from stream where name = ?"#,
            text
        );
        let state = row.map(|row| StreamState {
            id: row.id,
            head: row.head,
            closed: row.closed_at.is_some(),
            visibility: Arc::new(visibility_of(
                &row.visibility,
                row.owner,
                row.runner,
                row.project,
            )),
        });
        if let Some(state) = &state {
            self.streams.insert(name.shared(), state.clone());
        }
        Ok(state)
    }

    /// What stands at `name`, which is made if it is new: then for these readers.
    pub async fn open_stream(
        &mut self,
        name: &StreamName,
        visibility: &StreamVisibility,
    ) -> Result<StreamState, StoreError> {
        if let Some(state) = self.stream(name).await? {
            return Ok(state);
        }
        let (text, columns) = (name.as_str(), VisibilityColumns::from(visibility));
        let id = select_value!(
            self,
            r#"insert into stream (name, created_at, visibility, owner, runner, project) values (?, ?, ?, ?, ?, ?)
            returning id as "id!: i64""#,
            text,
            self.now,
            columns.visibility,
            columns.owner,
            columns.runner,
            columns.project
        );
        let visibility = Arc::new(visibility.clone());
        let state = StreamState { id, head: 0, closed: false, visibility };
        self.undo.push(Undo::Forget(name.shared()));
        self.streams.insert(name.shared(), state.clone());
        Ok(state)
    }

    /// Appends to a stream that exists and is open. Events whose producer id the stream has already are not
    /// appended again; they are answered with the seq they have, also when the stream is closed by now.
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
        let known = self.known_producer_ids(name, &events).await?;
        let state = self.stream(name).await?.ok_or(StoreError::NoStream)?;
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

    /// Says that nothing may follow in this stream.
    pub async fn close_stream(&mut self, name: &StreamName) -> Result<(), StoreError> {
        let text = name.as_str();
        let before = self.stream(name).await?.ok_or(StoreError::NoStream)?;
        let done =
            change!(self, "update stream set closed_at = ? where id = ?", self.now, before.id);
        changed(done, "stream", text)?;
        let after = StreamState { closed: true, ..before.clone() };
        self.put_state(name.shared(), before, after);
        self.closing.push(name.shared());
        Ok(())
    }

    /// Where events stand whose producer ids this stream has already, in the table or in this very commit.
    pub async fn known_producer_ids(
        &mut self,
        name: &StreamName,
        events: &[NewEvent],
    ) -> Result<HashMap<Arc<str>, Seq>, StoreError> {
        let ids = producer_ids(events);
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        let mut known = self.uncommitted_producer_ids(name, &ids);
        let Some(state) = self.stream(name).await? else {
            return Ok(known);
        };
        let ids = to_json(&ids);
        let rows = select_fields!(
            select_all,
            self,
            { producer_id: String, seq: Seq },
            r#"select producer_id as "producer_id!", seq from event
            where stream_id = ? and producer_id in (select value from json_each(?))"#,
            state.id,
            ids
        );
        known.extend(rows.into_iter().map(|row| (row.producer_id.into(), row.seq)));
        Ok(known)
    }

    /// The same for the events of this very commit.
    fn uncommitted_producer_ids(
        &self,
        name: &StreamName,
        ids: &HashSet<&str>,
    ) -> HashMap<Arc<str>, Seq> {
        self.pending
            .iter()
            .filter(|pending| *pending.stream == *name.as_str())
            .filter_map(|pending| Some((pending.producer_id.clone()?, pending.seq)))
            .filter(|(id, _)| ids.contains(&**id))
            .collect()
    }

    /// Puts the events of this commit in the order of their positions. Stream by stream, so that positions are contiguous
    /// within a stream and a feed over several streams sees them in the order of its ids.
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

    fn put_state(&mut self, name: Arc<str>, before: StreamState, after: StreamState) {
        self.undo.push(Undo::Restore(Arc::clone(&name), before));
        self.streams.insert(name, after);
    }
}

/// The ids that producers gave their events.
fn producer_ids(events: &[NewEvent]) -> HashSet<&str> {
    events.iter().filter_map(|event| event.producer_id.as_deref()).collect()
}
