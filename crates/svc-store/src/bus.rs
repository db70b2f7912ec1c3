//! Wakes readers: after a commit, the listeners of each stream that it touched are notified.
//!
//! A notification is a level, the seq or position of the last event, so a listener cannot miss one.
//! The channel also keeps the stream's tail: the events of the last commits, and their frames once
//! a listener has asked for them. A thousand subscribers therefore cost one rendering and no read.
//! A reader that is behind the tail reads the table, which is authoritative. No producer waits for
//! a reader, and a reader keeps only its cursor.
//!
//! The writer publishes what it commits. On a server, `postgres/listener.rs` publishes what other
//! connections commit; either may publish an event first, and it is published once.
//!
//! [`UnfinishedEntries`] has text that an agent streams before an event records it, only in memory.
//! [`Version`] numbers the states of the database, for caches of reads.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicI64, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use bytes::Bytes;
use svc_model::{
    Event, Framing, Seq, StreamName, StreamVisibility, Timestamp, agent::AgentDelta, limits,
};
use svc_wire::sse;
use tokio::sync::watch;

use crate::boxed;

#[derive(Debug)]
pub struct Batch {
    pub stream: StreamName,
    /// First and last seq of the events.
    pub seqs: (Seq, Seq),
    /// First and last position of the events. They are contiguous: a commit writes stream by
    /// stream.
    pub positions: (i64, i64),
    pub closed: bool,
    pub visibility: Arc<StreamVisibility>,
    pub events: Box<[Event]>,
    bytes: usize,
    frames: [OnceLock<Bytes>; Framing::COUNT],
}

impl Batch {
    pub(crate) fn new(
        events: Vec<Event>,
        closed: bool,
        visibility: Arc<StreamVisibility>,
    ) -> Option<Self> {
        let (first, last) = (events.first()?, events.last()?);
        Some(Self {
            stream: first.stream.clone(),
            seqs: (first.seq, last.seq),
            positions: (first.position, last.position),
            closed,
            visibility,
            bytes: events.iter().map(sse::frame_len).sum(),
            events: events.into(),
            frames: Default::default(),
        })
    }

    /// All events of the batch, framed. The first caller renders them; later callers share the
    /// bytes.
    pub fn frames(&self, framing: Framing) -> Bytes {
        self.frames[framing.index()].get_or_init(|| render(&self.events, framing)).clone()
    }
}

pub fn render(events: &[Event], framing: Framing) -> Bytes {
    let mut text = String::with_capacity(events.iter().map(sse::frame_len).sum());
    for event in events {
        sse::push_frame(&mut text, event, framing);
    }
    Bytes::from(text)
}

/// The batches of one commit, in the order of positions.
pub type Commit = Box<[Arc<Batch>]>;

/// A change of a stream of which its listeners are notified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamChange {
    /// With an event or without.
    Closed,
    /// Its visibility changed, or it may have been removed: its readers look.
    Readers,
    /// It lost its name.
    Retired,
}

/// One channel for each stream that has a listener, created by the first listener and removed with
/// the last, and one channel for all streams.
#[derive(Debug)]
pub struct Bus {
    streams: Mutex<HashMap<Arc<str>, Arc<Channel<Batch>>>>,
    everything: Arc<Channel<Commit>>,
    /// All events up to this position were published.
    position: AtomicI64,
    opened: watch::Sender<u64>,
    unfinished_entries: UnfinishedEntries,
}

impl Bus {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            streams: Mutex::default(),
            everything: Arc::default(),
            position: AtomicI64::new(0),
            opened: watch::Sender::new(0),
            unfinished_entries: UnfinishedEntries::new(),
        })
    }

    /// Listens to one stream, from the next commit on. A caller that listens first and then reads
    /// the table misses no event.
    pub fn listen(self: &Arc<Self>, stream: &StreamName) -> StreamListener<Batch> {
        let name = stream.shared();
        let channel = Arc::clone(self.lock().entry(Arc::clone(&name)).or_default());
        StreamListener::new(channel, Some((name, Arc::clone(self))))
    }

    pub fn listen_all(&self) -> StreamListener<Commit> {
        StreamListener::new(Arc::clone(&self.everything), None)
    }

    /// Text that agents stream now and that no event records yet.
    pub const fn unfinished_entries(&self) -> &UnfinishedEntries {
        &self.unfinished_entries
    }

    /// Counts commits that opened a stream which lists may name.
    pub fn opened(&self) -> watch::Receiver<u64> {
        self.opened.subscribe()
    }

    /// Notifies that a commit opened a stream which lists may name.
    pub(crate) fn notify_opened(&self) {
        self.opened.send_modify(|count| *count += 1);
    }

    pub(crate) fn notify(&self, stream: &str, change: StreamChange) {
        let mut listened = self.lock();
        let channel = if change == StreamChange::Retired {
            // Who listens to the name from now on waits for another stream.
            listened.remove(stream)
        } else {
            listened.get(stream).cloned()
        };
        let Some(channel) = channel else { return };
        channel.level.send_modify(|level| {
            level.closed |= change != StreamChange::Readers;
            level.readers += u64::from(change != StreamChange::Closed);
        });
    }

    pub fn listeners(&self) -> usize {
        let streams: usize =
            self.lock().values().map(|channel| channel.level.receiver_count()).sum();
        streams + self.everything.level.receiver_count()
    }

    /// Whether each of `streams` has a listener. A listener to all streams counts for each.
    pub(crate) fn wanted<'a>(&self, streams: impl Iterator<Item = &'a str>) -> Vec<bool> {
        let everything = self.everything.level.receiver_count() > 0;
        let listened = self.lock();
        streams.map(|name| everything || listened.contains_key(name)).collect()
    }

    /// Marks the events up to this position as published: they were committed before anybody
    /// listened.
    pub(crate) fn begin_after(&self, position: i64) {
        self.position.store(position, Relaxed);
    }

    /// Records that the events after `before` and up to `last` were published. Does nothing while
    /// earlier events, which another connection committed, are not published yet.
    pub(crate) fn advance(&self, before: i64, last: i64) {
        let next = |known| (before <= known && known < last).then_some(last);
        self.position.fetch_update(Relaxed, Relaxed, next).ok();
    }

    #[cfg(any(test, feature = "postgres"))]
    pub(crate) fn position(&self) -> i64 {
        self.position.load(Relaxed)
    }

    /// The streams that have a listener; `None` if somebody listens to all.
    #[cfg(feature = "postgres")]
    pub(crate) fn listened(&self) -> Option<Vec<String>> {
        let is_all = self.everything.level.receiver_count() > 0;
        (!is_all).then(|| self.listened_streams())
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn listened_streams(&self) -> Vec<String> {
        self.lock().keys().map(ToString::to_string).collect()
    }

    /// Publishes a commit: the batches of streams that have a listener, in the order of positions.
    pub(crate) fn publish(&self, batches: Vec<Batch>) {
        let batches: Commit = batches.into_iter().map(Arc::new).collect();
        let (Some(first), Some(last)) = (batches.first(), batches.last()) else { return };
        let positions = (first.positions.0, last.positions.1);
        let listened = self.lock();
        for batch in &batches {
            if let Some(channel) = listened.get(batch.stream.as_str()) {
                channel.publish(batch.seqs, batch.bytes, batch.closed, Arc::clone(batch));
            }
        }
        drop(listened);
        if self.everything.level.receiver_count() > 0 {
            let bytes = batches.iter().map(|batch| batch.bytes).sum();
            self.everything.publish(positions, bytes, false, Arc::new(batches));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Channel<Batch>>>> {
        // No code awaits or panics under this lock, so the map is consistent even if poisoned.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Level and tail of one stream, or of all streams.
#[derive(Debug)]
struct Channel<T> {
    level: watch::Sender<StreamLevel>,
    tail: Mutex<Tail<T>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct StreamLevel {
    /// Seq or position of the last published event.
    last: i64,
    /// No event follows `last`.
    closed: bool,
    /// How often the stream's visibility changed.
    readers: u64,
}

#[derive(Debug)]
struct Tail<T> {
    /// May have gaps: a listener can join while a commit is being published.
    items: VecDeque<TailItem<T>>,
    bytes: usize,
}

#[derive(Debug)]
struct TailItem<T> {
    /// First and last seq or position.
    range: (i64, i64),
    bytes: usize,
    item: Arc<T>,
}

impl<T> Default for Channel<T> {
    fn default() -> Self {
        Self {
            level: watch::Sender::default(),
            tail: Mutex::new(Tail { items: VecDeque::new(), bytes: 0 }),
        }
    }
}

impl<T> Channel<T> {
    /// Skips an item that was published before, or after which later ones were published: readers
    /// find it in the table, since the tail need not be contiguous.
    fn publish(&self, range: (i64, i64), bytes: usize, closed: bool, item: Arc<T>) {
        // Locked to the end: the writer and a server's listener both publish.
        let mut tail = self.tail();
        if range.1 <= self.level.borrow().last {
            if closed {
                self.level.send_modify(|level| level.closed = true);
            }
            return;
        }
        tail.items.push_back(TailItem { range, bytes, item });
        tail.bytes += bytes;
        while tail.bytes > limits::TAIL_BYTES {
            let Some(oldest) = tail.items.pop_front() else { break };
            tail.bytes -= oldest.bytes;
        }
        self.level.send_modify(|level| {
            *level = StreamLevel { last: range.1, closed, ..*level };
        });
    }

    fn tail(&self) -> MutexGuard<'_, Tail<T>> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub struct StreamListener<T> {
    level: watch::Receiver<StreamLevel>,
    channel: Arc<Channel<T>>,
    /// The bus that removes the channel with its last listener, and the channel's key there.
    home: Option<(Arc<str>, Arc<Bus>)>,
    /// The last visibility change that [`Self::take_visibility_changed`] reported.
    readers: u64,
}

#[derive(Debug)]
pub enum ListenerRead<T> {
    /// The commits that follow the cursor directly.
    Items(Vec<Arc<T>>),
    /// No event follows the cursor yet.
    Nothing,
    /// No event follows the cursor, and the stream is closed.
    Closed,
    /// The tail lacks the events after the cursor: read the table.
    Behind,
}

impl<T: Send + Sync> StreamListener<T> {
    fn new(channel: Arc<Channel<T>>, home: Option<(Arc<str>, Arc<Bus>)>) -> Self {
        let level = channel.level.subscribe();
        let readers = level.borrow().readers;
        Self { level, channel, home, readers }
    }

    /// Whether the stream's visibility changed since the last call, or since the listener began.
    pub fn take_visibility_changed(&mut self) -> bool {
        let readers = self.level.borrow().readers;
        std::mem::replace(&mut self.readers, readers) != readers
    }

    /// Seq or position of the last event that was published while there was a listener; 0 before
    /// the first. A caller that takes this number, reads the table, and then waits for events after
    /// the number misses no event.
    pub fn last(&self) -> i64 {
        self.level.borrow().last
    }

    /// Waits until an event follows `cursor` or the stream is closed. Cancel safe.
    #[boxed]
    pub async fn wait(&mut self, cursor: i64) {
        // The channel owns the sender, and `self` owns the channel, so the sender exists.
        self.level.wait_for(|level| level.last > cursor || level.closed).await.ok();
    }

    /// Like [`Self::wait`], and also returns when the stream's visibility changed.
    #[boxed]
    pub async fn wait_or_visibility_change(&mut self, cursor: i64) {
        let readers = self.readers;
        self.level
            .wait_for(|level| level.last > cursor || level.closed || level.readers != readers)
            .await
            .ok();
    }

    /// Waits for a commit that closes the stream. Does not notice a stream that was closed before
    /// this listener began. Cancel safe.
    #[boxed]
    pub async fn wait_closed(&mut self) {
        self.level.wait_for(|level| level.closed).await.ok();
    }

    /// The batches after `cursor`, up to about `budget` bytes, at least one.
    pub fn read(&self, cursor: i64, budget: usize) -> ListenerRead<T> {
        let level = *self.level.borrow();
        if level.last <= cursor {
            return if level.closed { ListenerRead::Closed } else { ListenerRead::Nothing };
        }
        let tail = self.channel.tail();
        let from = tail.items.partition_point(|entry| entry.range.1 <= cursor);
        let (mut expected, mut bytes) = (cursor + 1, 0);
        let mut items = Vec::new();
        for entry in tail.items.range(from..) {
            if entry.range.0 != expected || (bytes > 0 && bytes + entry.bytes > budget) {
                break;
            }
            expected = entry.range.1 + 1;
            bytes += entry.bytes;
            items.push(Arc::clone(&entry.item));
        }
        if items.is_empty() { ListenerRead::Behind } else { ListenerRead::Items(items) }
    }
}

impl<T> Drop for StreamListener<T> {
    fn drop(&mut self) {
        let Some((name, bus)) = self.home.take() else { return };
        let mut streams = bus.lock();
        // Another stream may have the name by now.
        let is_ours = streams.get(&name).is_some_and(|channel| {
            std::ptr::addr_eq(Arc::as_ptr(channel), Arc::as_ptr(&self.channel))
        });
        // Our receiver still counts: it is dropped after this block.
        if is_ours && self.channel.level.receiver_count() <= 1 {
            streams.remove(&name);
        }
    }
}

/// Numbers the states of the database: a cached read is valid while the number is unchanged. Counts
/// each commit twice: before it can become visible, and after it is visible. An odd number
/// means that readers may see the former or the new state; an even number stands for exactly one
/// state.
///
/// While we hold the lock of a file, only the writer changes it, and a change by another program is
/// seen after the next commit. A server notifies us of commits of other connections.
#[derive(Debug, Default)]
pub(crate) struct Version {
    number: AtomicU64,
    /// Other connections may commit without notifying us.
    is_unnotified: AtomicBool,
}

impl Version {
    /// The next commit may be visible from now on.
    pub(crate) fn begin(&self) {
        self.number.fetch_add(1, SeqCst);
    }

    /// The commit is visible, or it failed. Called before any caller is answered.
    pub(crate) fn end(&self) {
        self.number.fetch_add(1, SeqCst);
    }

    pub(crate) fn settled(&self) -> Option<u64> {
        if self.is_unnotified.load(Relaxed) {
            return None;
        }
        Some(self.number.load(SeqCst)).filter(|number| number.is_multiple_of(2))
    }
}

#[cfg(feature = "postgres")]
impl Version {
    /// Counts a commit of another connection.
    pub(crate) fn count_other(&self) {
        self.number.fetch_add(2, SeqCst);
    }

    /// Sets whether the server notifies us of commits of other connections. Call
    /// [`Self::count_other`] before `true`, because commits may have been missed.
    pub(crate) fn set_notified(&self, is_notified: bool) {
        self.is_unnotified.store(!is_notified, Relaxed);
    }
}

const MOST: usize = 64 * 1024;

/// The unfinished entry of each stream that has one.
#[derive(Debug)]
pub struct UnfinishedEntries {
    entries: Mutex<HashMap<StreamName, UnfinishedEntry>>,
    /// Incremented on each [`Self::append`], to wake listeners.
    count: watch::Sender<u64>,
}

#[derive(Debug)]
struct UnfinishedEntry {
    visibility: Arc<StreamVisibility>,
    after: PrecedingEvent,
    delta: AgentDelta,
    at: Timestamp,
}

/// The last event before an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrecedingEvent {
    pub seq: i64,
    /// Position of that event in the log, or a later position.
    pub position: i64,
}

/// Text that a reader has not received yet.
#[derive(Debug)]
pub struct EntryDelta {
    pub stream: StreamName,
    pub delta: AgentDelta,
    pub at: Timestamp,
}

/// A reader's progress: for each stream, the entry's id and the bytes that the reader has received.
#[derive(Debug)]
pub struct EntryListener {
    count: watch::Receiver<u64>,
    received: HashMap<StreamName, (String, usize)>,
}

impl UnfinishedEntries {
    pub(crate) fn new() -> Self {
        Self { entries: Mutex::default(), count: watch::Sender::default() }
    }

    /// Appends a delta to the stream's entry; a delta of another entry replaces the entry.
    pub fn append(
        &self,
        stream: &StreamName,
        visibility: &Arc<StreamVisibility>,
        after: PrecedingEvent,
        delta: &AgentDelta,
        at: Timestamp,
    ) {
        let mut entries = self.lock();
        match entries.get_mut(stream) {
            Some(known) if known.delta.of == delta.of => {
                known.delta.text.push_str(&delta.text);
                known.at = at;
            }
            _ => {
                let (visibility, delta) = (Arc::clone(visibility), delta.clone());
                entries.insert(stream.clone(), UnfinishedEntry { visibility, after, delta, at });
            }
        }
        drop(entries);
        self.count.send_modify(|count| *count += 1);
    }

    /// Removes the entry, because an event is about to record it or none ever will.
    pub fn finish(&self, stream: &StreamName) {
        self.lock().remove(stream);
    }

    /// Listens from the beginning of each unfinished entry.
    pub fn listen(&self) -> EntryListener {
        EntryListener { count: self.count.subscribe(), received: HashMap::new() }
    }

    /// The next text that the reader has not received, of a stream for which `may_read` is true.
    pub fn next_delta(
        &self,
        listener: &mut EntryListener,
        may_read: impl Fn(&StreamName, &StreamVisibility, PrecedingEvent) -> bool,
    ) -> Option<EntryDelta> {
        let entries = self.lock();
        for (stream, UnfinishedEntry { visibility, after, delta, at }) in &*entries {
            if !may_read(stream, visibility, *after) {
                continue;
            }
            let known = listener.received.get(stream);
            let received =
                known.filter(|(of, _)| *of == delta.of).map_or(0, |(_, received)| *received);
            let Some(rest) = delta.text.get(received..).filter(|rest| !rest.is_empty()) else {
                continue;
            };
            let text = rest[..rest.floor_char_boundary(MOST)].to_owned();
            let stream = stream.clone();
            listener.received.insert(stream.clone(), (delta.of.clone(), received + text.len()));
            let (role, of, at) = (delta.role, delta.of.clone(), *at);
            return Some(EntryDelta { stream, delta: AgentDelta { role, text, of }, at });
        }
        // Progress in a stream without an entry is kept for a while: after a broken connection the
        // host repeats the entry from its beginning.
        if listener.received.len() > 2 * entries.len() + 64 {
            listener.received.retain(|stream, _| entries.contains_key(stream));
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StreamName, UnfinishedEntry>> {
        // No code panics under this lock.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EntryListener {
    /// Waits until any entry grows.
    #[boxed]
    pub async fn changed(&mut self) {
        // The bus owns the sender, and the reader's store owns the bus.
        if self.count.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use svc_model::agent::HistoryRole;

    use super::*;

    fn batch(seqs: std::ops::RangeInclusive<i64>, size: usize, closed: bool) -> Batch {
        let events = seqs.map(|seq| Event {
            position: seq + 100,
            stream: StreamName::fixed("team"),
            seq,
            kind: "a".into(),
            data: "x".repeat(size).into(),
            at: Timestamp::from_millis(0),
        });
        Batch::new(events.collect(), closed, Arc::new(StreamVisibility::Team)).unwrap()
    }

    fn heard(listener: &StreamListener<Batch>, cursor: i64, budget: usize) -> Option<(i64, i64)> {
        match listener.read(cursor, budget) {
            ListenerRead::Items(items) => Some((items.first()?.seqs.0, items.last()?.seqs.1)),
            _ => None,
        }
    }

    #[test]
    fn a_channel_is_removed_with_its_last_listener() {
        let bus = Bus::new();
        let name = StreamName::fixed("team");
        let (one, two) = (bus.listen(&name), bus.listen(&name));
        assert_eq!(bus.wanted(["team", "daemon"].into_iter()), [true, false]);
        drop(one);
        assert_eq!(bus.listeners(), 1);
        drop(two);
        assert_eq!(bus.wanted(["team"].into_iter()), [false]);
        let _all = bus.listen_all();
        assert_eq!(bus.wanted(["team"].into_iter()), [true]);
    }

    #[test]
    fn the_tail_returns_batches_after_the_cursor_or_reports_behind() {
        let bus = Bus::new();
        let listener = bus.listen(&StreamName::fixed("team"));
        assert!(matches!(listener.read(0, 1000), ListenerRead::Nothing));
        bus.publish(vec![batch(5..=6, 10, false)]);
        bus.publish(vec![batch(7..=7, 10, false)]);
        assert!(matches!(listener.read(3, 1000), ListenerRead::Behind));
        assert_eq!(heard(&listener, 4, 1_000_000), Some((5, 7)));
        assert_eq!(heard(&listener, 4, 1), Some((5, 6)), "at least one batch");
        assert_eq!(heard(&listener, 6, 1_000_000), Some((7, 7)));
        assert!(
            matches!(listener.read(5, 1000), ListenerRead::Behind),
            "in the middle of a commit"
        );
        assert!(matches!(listener.read(7, 1000), ListenerRead::Nothing));
        // A commit that exceeds the tail's bound is published nevertheless.
        bus.publish(vec![batch(8..=8, limits::TAIL_BYTES + 1, true)]);
        assert!(matches!(listener.read(7, 1000), ListenerRead::Behind));
        assert!(matches!(listener.read(8, 1000), ListenerRead::Closed));
        assert!(listener.channel.tail().items.is_empty());
    }

    /// Two tasks publish: the writer, and the listener that reads commits of other connections.
    #[test]
    fn an_event_that_comes_late_or_again_is_read_from_the_table() {
        let bus = Bus::new();
        bus.begin_after(100);
        let listener = bus.listen(&StreamName::fixed("team"));
        // The writer's commit overtakes another connection's.
        bus.publish(vec![batch(2..=2, 10, false)]);
        bus.advance(101, 102);
        assert_eq!(bus.position(), 100, "one is missing");
        assert!(matches!(listener.read(0, 1000), ListenerRead::Behind));
        bus.publish(vec![batch(1..=2, 10, false)]);
        bus.advance(100, 102);
        assert_eq!(bus.position(), 102);
        assert_eq!(listener.last(), 2, "the level does not fall");
        assert!(matches!(listener.read(0, 1000), ListenerRead::Behind));
        assert!(matches!(listener.read(2, 1000), ListenerRead::Nothing));
        bus.publish(vec![batch(2..=2, 10, true)]);
        assert!(matches!(listener.read(2, 1000), ListenerRead::Closed), "this it learns");
        bus.advance(100, 101);
        assert_eq!(bus.position(), 102);
    }

    fn delta(of: &str, text: &str) -> AgentDelta {
        AgentDelta { role: HistoryRole::Assistant, text: text.to_owned(), of: of.to_owned() }
    }

    #[test]
    fn a_reader_gets_each_delta_once_and_nothing_of_finished_entries() {
        let (entries, stream) = (UnfinishedEntries::new(), StreamName::new("agent", "ag_1"));
        let visibility = Arc::new(StreamVisibility::Team);
        let after = PrecedingEvent { seq: 3, position: 9 };
        let say = |of: &str, text: &str| {
            entries.append(
                &stream,
                &visibility,
                after,
                &delta(of, text),
                Timestamp::from_millis(1),
            );
        };
        let hear = |listener: &mut EntryListener, cursor: i64| {
            let heard = entries.next_delta(listener, |_, _, after| cursor >= after.seq);
            heard.map(|heard| (heard.delta.of, heard.delta.text))
        };
        let mut early = entries.listen();
        assert_eq!(hear(&mut early, 9), None);
        say("1", "one ");
        assert_eq!(hear(&mut early, 2), None, "the reader has not read the preceding event");
        assert_eq!(hear(&mut early, 3), Some(("1".to_owned(), "one ".to_owned())));
        say("1", "two");
        assert_eq!(hear(&mut early, 3), Some(("1".to_owned(), "two".to_owned())));
        assert_eq!(hear(&mut early, 3), None);
        let mut late = entries.listen();
        assert_eq!(hear(&mut late, 3), Some(("1".to_owned(), "one two".to_owned())));
        // The connection to the host broke; the host repeats the whole entry.
        entries.finish(&stream);
        assert_eq!(hear(&mut late, 3), None);
        say("1", "one two three");
        assert_eq!(hear(&mut late, 3), Some(("1".to_owned(), " three".to_owned())));
        say("2", &"é".repeat(MOST));
        let (_, first) = hear(&mut late, 3).unwrap();
        let (_, second) = hear(&mut late, 3).unwrap();
        assert_eq!((first.len(), second.len()), (MOST, MOST));
    }
}
