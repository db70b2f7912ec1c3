//! The interface of a write job: the write connection inside a transaction, and the appended
//! events. Methods for rows are in the files of their families, see `families`.
//!
//! An append gives its events their seqs at once, from memory, and leaves the insert to the end of
//! the commit: one statement for all events of all jobs costs a tenth less than one for each event.

use std::{collections::HashMap, sync::Arc};

use svc_model::{Event, MachineId, NewEvent, Seq, StreamName, StreamVisibility, Timestamp, limits};

use crate::{
    AppendedSeqs, Batch, Bus, Result, RowPage, StoreError, StreamState, boxed,
    bus::StreamChange,
    columns::{DirectRow, Parameter},
    readers::{CollectedRows, Rows, by_engine},
    sqlite::direct_connection::{DirectConnection, JobIsolation, TakeRow, UncommittedEvent},
    statement::value,
};

#[cfg(feature = "postgres")]
use crate::postgres::PgWriter;

/// The write side of the database. The writer owns the only instance and lends it to one job at a
/// time.
///
/// A job must await nothing but its own statements: no other job runs meanwhile.
#[derive(Debug)]
pub struct WriteTx {
    pub(super) direct: WriteConnection,
    pub(super) bus: Arc<Bus>,
    /// State of recently used streams. Valid because only the writer changes streams.
    pub(super) streams: HashMap<Arc<str>, StreamState>,
    /// Events of the current commit. One statement writes them at its end.
    pub(super) pending: Vec<UncommittedEvent>,
    /// What the current commit does to streams beside their events.
    pub(super) changes: Vec<(Arc<str>, StreamChange)>,
    pub(super) position: i64,
    /// Steps that revert the current job's changes to `streams`.
    pub(super) undo: Vec<Undo>,
    pub(super) now: Timestamp,
    pub(super) machine: MachineId,
}

/// How much the jobs before this one added to the lists of the current commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobStart {
    pending: usize,
    changes: usize,
}

/// Reverts one change of a cached stream state.
#[derive(Debug)]
pub(super) enum Undo {
    Restore(Arc<str>, StreamState),
    Forget(Arc<str>),
}

impl WriteTx {
    /// Time of the current commit; all its rows share it.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    pub fn machine_id(&self) -> &MachineId {
        &self.machine
    }

    /// Start of a job, to which [`Self::rewind`] returns if the job fails.
    pub(super) fn mark(&mut self) -> JobStart {
        self.undo.clear();
        JobStart { pending: self.pending.len(), changes: self.changes.len() }
    }

    /// Reverts in memory the changes since `start`. The writer rolls back the rows.
    pub(super) fn rewind(&mut self, start: JobStart) {
        self.pending.truncate(start.pending);
        self.changes.truncate(start.changes);
        while let Some(step) = self.undo.pop() {
            match step {
                Undo::Restore(name, state) => self.streams.insert(name, state),
                Undo::Forget(name) => self.streams.remove(&name),
            };
        }
    }

    /// Drops all cached state after a failed commit; the tables are authoritative.
    pub(super) fn forget(&mut self) {
        self.pending.clear();
        self.changes.clear();
        self.undo.clear();
        self.streams.clear();
    }

    /// [`Self::forget`], and reads the highest position again.
    pub(super) async fn reset(&mut self) -> Result<()> {
        self.forget();
        self.position =
            value!(self.direct, r#"select max(position) as "max: i64" from event"#).unwrap_or(0);
        Ok(())
    }

    /// Appends to a stream that exists and is open. An event whose producer id the stream already
    /// has is not appended again: the answer contains its existing seq, even if the stream has been
    /// closed since.
    ///
    /// # Errors
    /// [`StoreError::NoStream`]; [`StoreError::StreamClosed`] if any event is new.
    ///
    /// # Panics
    /// If `events` is empty.
    #[boxed]
    pub async fn append(
        &mut self,
        name: &StreamName,
        events: Vec<NewEvent>,
    ) -> Result<AppendedSeqs> {
        let known = self.streams().known_producer_ids(name, &events).await?;
        let state = self.streams().state(name).await?.ok_or(StoreError::NoStream)?;
        self.assign_seqs(name, state, events, &known)
    }

    /// Assigns seqs to all events except those whose producer id is known.
    fn assign_seqs(
        &mut self,
        name: &StreamName,
        mut state: StreamState,
        events: Vec<NewEvent>,
        known: &HashMap<Arc<str>, Seq>,
    ) -> Result<AppendedSeqs> {
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

    /// Sorts the events of this commit by stream, so that positions are contiguous within a stream
    /// and a feed over several streams is in the order of event ids.
    fn sort_pending(&mut self) {
        if self.pending.windows(2).any(|pair| pair[0].stream_id > pair[1].stream_id) {
            self.pending.sort_by_key(|pending| pending.stream_id);
        }
    }

    /// Begins a group of appends. It needs no transaction, because it runs one statement.
    pub(super) async fn begin_appends(&mut self) -> Result<()> {
        self.direct.ready().await?;
        if self.direct.take_stale() {
            self.reset().await?;
        }
        Ok(())
    }

    pub(super) async fn begin(&mut self) -> Result<()> {
        self.direct.begin().await?;
        if self.direct.take_stale() {
            self.reset().await?;
        }
        Ok(())
    }

    /// Commits the events without an explicit transaction, for a group of appends only.
    pub(super) async fn commit_appends(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.sort_pending();
        self.position = self.direct.insert_alone(self.now, &self.pending).await?;
        Ok(())
    }

    pub(super) async fn flush(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            self.sort_pending();
            self.position = self.direct.insert(self.now, &self.pending).await?;
        }
        let changes = self.changes.iter().filter(|(_, change)| *change != StreamChange::Closed);
        let streams: Vec<&str> = changes.map(|(name, _)| &**name).collect();
        if streams.is_empty() {
            return Ok(());
        }
        self.direct.notify_readers_changed(&streams).await
    }

    /// Notifies the listeners of the commit, and resets the state for the next commit.
    pub(super) fn publish(&mut self) {
        let before = self.position - i64::try_from(self.pending.len()).unwrap_or(i64::MAX);
        let mut position = before;
        let groups = || self.pending.chunk_by(|a, b| a.stream_id == b.stream_id);
        let is_new = groups()
            .any(|group| group[0].seq == 1 && *group[0].visibility != StreamVisibility::Answers);
        if is_new {
            self.bus.notify_opened();
        }
        let wanted = self.bus.wanted(groups().map(|group| &*group[0].stream));
        // The last job of the group decides a stream's visibility.
        let last = |group: &[UncommittedEvent]| Arc::clone(&group[group.len() - 1].visibility);
        let streams: Vec<_> = groups().map(|group| (group.len(), last(group))).collect();
        let mut batches = Vec::new();
        let mut pending = self.pending.drain(..);
        for ((len, visibility), wanted) in streams.into_iter().zip(wanted) {
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
        self.bus.advance(before, self.position);
        for (name, change) in std::mem::take(&mut self.changes) {
            // A stream may be closed without a last event, and its listeners must not wait for one.
            self.bus.notify(&name, change);
        }
    }

    pub(super) fn put_state(&mut self, name: Arc<str>, before: StreamState, after: StreamState) {
        self.undo.push(Undo::Restore(Arc::clone(&name), before));
        self.streams.insert(name, after);
    }
}

impl Rows for WriteConnection {
    async fn rows<T: DirectRow + Send + 'static>(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
        is_full: impl FnMut(&T) -> bool + Send + 'static,
    ) -> Result<RowPage<T>> {
        let mut rows = CollectedRows::new(is_full);
        self.each(sql, values, &mut |row| rows.take(row)).await?;
        Ok(rows.page)
    }
}

/// Maximum savepoints of one transaction. PostgreSQL keeps 64 subtransactions in memory and becomes
/// slow beyond them.
#[cfg(feature = "postgres")]
const SAVEPOINTS: usize = 32;

#[derive(Debug)]
pub(super) enum WriteConnection {
    Sqlite(DirectConnection),
    #[cfg(feature = "postgres")]
    Postgres(Box<PgWriter>),
}

/// Calls a method that both engines' connections have. SQLite waits only for the disk. The call to
/// PostgreSQL is a boxed future: inline, it would make the futures of all write jobs some kilobytes
/// larger.
macro_rules! forward {
    ($connection:ident.$method:ident($($argument:expr),*)) => {
        match $connection {
            WriteConnection::Sqlite(connection) => connection.$method($($argument),*),
            #[cfg(feature = "postgres")]
            WriteConnection::Postgres(connection) => {
                Box::pin(connection.$method($($argument),*)).await
            }
        }
    };
}

impl WriteConnection {
    /// How many jobs with statements of their own a commit may have.
    pub(super) fn run_limit(&self) -> usize {
        by_engine!(self, Self, limits::RUNS_PER_COMMIT, _ => SAVEPOINTS)
    }

    /// Whether commits wait for a server and not only for the disk.
    pub(super) fn is_of_server(&self) -> bool {
        by_engine!(self, Self, false, _ => true)
    }

    /// Whether the last attempt to connect to the server failed.
    pub(super) fn is_away(&self) -> bool {
        by_engine!(self, Self, false, connection => connection.is_away())
    }

    pub(super) async fn close(self) -> Result<()> {
        match self {
            Self::Sqlite(connection) => {
                let closed = tokio::task::spawn_blocking(move || connection.close()).await;
                closed.map_err(|_| StoreError::Panicked).flatten()
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => Box::pin(connection.close()).await,
        }
    }

    /// Connects, if the connection was lost, before the first statement of a group.
    pub(super) async fn ready(&mut self) -> Result<()> {
        by_engine!(self, Self, Ok(()), connection => Box::pin(connection.ready()).await)
    }

    /// Whether the caller's cached state may differ from the tables. Resets the flag: the caller
    /// then reads the tables again.
    pub(super) fn take_stale(&mut self) -> bool {
        by_engine!(self, Self, false, connection => connection.take_stale())
    }

    pub(super) async fn begin(&mut self) -> Result<()> {
        forward!(self.begin())
    }

    pub(super) async fn commit(&mut self) -> Result<()> {
        forward!(self.commit())
    }

    pub(super) async fn rollback(&mut self) -> Result<()> {
        forward!(self.rollback())
    }

    pub(super) fn begin_job(&mut self, isolation: JobIsolation) {
        match self {
            Self::Sqlite(connection) => connection.begin_job(isolation),
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.begin_job(isolation),
        }
    }

    pub(super) async fn end_job(&mut self, isolation: JobIsolation, keep: bool) -> Result<()> {
        forward!(self.end_job(isolation, keep))
    }

    #[cfg(test)]
    pub(super) fn execute(&mut self, statements: &str) -> Result<()> {
        match self {
            Self::Sqlite(connection) => connection.execute(statements),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => panic!("no file: {statements}"),
        }
    }

    pub(super) async fn change(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<u64> {
        forward!(self.change(sql, values))
    }

    async fn each(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
        take: TakeRow<'_>,
    ) -> Result<()> {
        forward!(self.each(sql, values, take))
    }

    pub(super) async fn insert(
        &mut self,
        now: Timestamp,
        events: &[UncommittedEvent],
    ) -> Result<i64> {
        forward!(self.insert(now, events))
    }

    /// Notifies other daemons, once the current commit has taken place, that the visibility of
    /// these streams changed or that they were removed. A file has no other daemon.
    pub(super) async fn notify_readers_changed(&mut self, streams: &[&str]) -> Result<()> {
        let _ = streams;
        by_engine!(self, Self, Ok(()), connection => {
            Box::pin(connection.notify_readers_changed(streams)).await
        })
    }

    pub(super) async fn insert_alone(
        &mut self,
        now: Timestamp,
        events: &[UncommittedEvent],
    ) -> Result<i64> {
        forward!(self.insert_alone(now, events))
    }
}
