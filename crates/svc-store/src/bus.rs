//! Waking readers: after a commit, the listeners of each stream that it touched are notified.
//!
//! A notification is a level, the seq or position of the last event, so a listener cannot miss one.
//! Beside it the channel keeps the stream's tail: the events of the last commits, and their frames
//! once a listener has asked for them, so that a thousand subscribers cost one rendering and no
//! read. A reader that is behind the tail reads the table, which is always right. No producer waits
//! for a reader, and a reader keeps nothing but its cursor.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use svc_model::{Event, Framing, Seq, StreamName, StreamVisibility, limits};
use svc_wire::sse;
use tokio::sync::watch;

use super::saying::Sayings;

/// What one commit appended to one stream.
#[derive(Debug)]
pub struct Batch {
    pub stream: StreamName,
    /// First and last seq that the commit gave out in it.
    pub seqs: (Seq, Seq),
    /// First and last position of them. They are contiguous: a commit writes stream by stream.
    pub positions: (i64, i64),
    /// Whether the commit also closed the stream.
    pub closed: bool,
    /// Who may read the stream.
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

    /// All events of the batch, framed; rendered by whoever asks first and shared with everybody
    /// after.
    pub fn frames(&self, framing: Framing) -> Bytes {
        self.frames[framing.index()].get_or_init(|| render(&self.events, framing)).clone()
    }
}

/// The frames of `events`, one after the other.
pub fn render(events: &[Event], framing: Framing) -> Bytes {
    let mut text = String::with_capacity(events.iter().map(sse::frame_len).sum());
    for event in events {
        sse::push_frame(&mut text, event, framing);
    }
    Bytes::from(text)
}

/// What one commit appended to all streams, in the order of positions.
pub type Commit = Box<[Arc<Batch>]>;

/// The channels. One for each stream that somebody listens to, made by the first and gone with the
/// last, and one for everything.
#[derive(Debug)]
pub struct Bus {
    streams: Mutex<HashMap<Arc<str>, Arc<Channel<Batch>>>>,
    everything: Arc<Channel<Commit>>,
    opened: watch::Sender<u64>,
    sayings: Sayings,
}

impl Bus {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            streams: Mutex::default(),
            everything: Arc::default(),
            opened: watch::Sender::new(0),
            sayings: Sayings::new(),
        })
    }

    /// Listens to one stream, from the next commit on. Listen first and read the table after, and
    /// nothing is missed.
    pub fn listen(self: &Arc<Self>, stream: &StreamName) -> StreamListener<Batch> {
        let name = stream.shared();
        let channel = Arc::clone(self.lock().entry(Arc::clone(&name)).or_default());
        StreamListener::new(channel, Some((name, Arc::clone(self))))
    }

    /// Listens to every stream, from the next commit on.
    pub fn listen_all(&self) -> StreamListener<Commit> {
        StreamListener::new(Arc::clone(&self.everything), None)
    }

    /// What is being said in streams, beside their events.
    pub const fn sayings(&self) -> &Sayings {
        &self.sayings
    }

    /// Counts commits in which a stream began that lists may name.
    pub fn opened(&self) -> watch::Receiver<u64> {
        self.opened.subscribe()
    }

    /// Notifies that a stream has begun that lists may name.
    pub(crate) fn tell_opened(&self) {
        self.opened.send_modify(|count| *count += 1);
    }

    /// Notifies that nothing follows in a stream after its last event.
    pub(crate) fn tell_closed(&self, stream: &str) {
        if let Some(channel) = self.lock().get(stream) {
            channel.level.send_modify(|level| level.closed = true);
        }
    }

    /// Notifies that who may read a stream is decided anew.
    pub(crate) fn tell_readers_changed(&self, stream: &str) {
        if let Some(channel) = self.lock().get(stream) {
            channel.level.send_modify(|level| level.readers += 1);
        }
    }

    /// How many listeners there are.
    pub fn listeners(&self) -> usize {
        let streams: usize =
            self.lock().values().map(|channel| channel.level.receiver_count()).sum();
        streams + self.everything.level.receiver_count()
    }

    /// Which of `streams` have a listener. With a listener to everything, that is each.
    pub(crate) fn wanted<'a>(&self, streams: impl Iterator<Item = &'a str>) -> Vec<bool> {
        let everything = self.everything.level.receiver_count() > 0;
        let listened = self.lock();
        streams.map(|name| everything || listened.contains_key(name)).collect()
    }

    /// Notifies of a commit: the batches of the wanted streams, by position.
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
        // No await and no panic happens under this lock; a poisoned map is as good as new.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The level and the tail of one stream, or of all.
#[derive(Debug)]
struct Channel<T> {
    level: watch::Sender<StreamLevel>,
    tail: Mutex<Tail<T>>,
}

/// How far a stream has come.
#[derive(Debug, Clone, Copy, Default)]
struct StreamLevel {
    /// Seq or position of the last event that was published.
    last: i64,
    /// Nothing follows it.
    closed: bool,
    /// How often it was decided anew who may read it.
    readers: u64,
}

#[derive(Debug)]
struct Tail<T> {
    /// Not always contiguous: a listener that comes while a commit is being published sees a hole.
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
    fn publish(&self, range: (i64, i64), bytes: usize, closed: bool, item: Arc<T>) {
        let mut tail = self.tail();
        tail.items.push_back(TailItem { range, bytes, item });
        tail.bytes += bytes;
        while tail.bytes > limits::TAIL_BYTES {
            let Some(oldest) = tail.items.pop_front() else { break };
            tail.bytes -= oldest.bytes;
        }
        drop(tail);
        self.level.send_modify(|level| {
            *level = StreamLevel { last: range.1, closed, ..*level };
        });
    }

    fn tail(&self) -> MutexGuard<'_, Tail<T>> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader's end of a channel.
#[derive(Debug)]
pub struct StreamListener<T> {
    level: watch::Receiver<StreamLevel>,
    channel: Arc<Channel<T>>,
    /// The bus that drops the channel with its last listener, and the key of the channel there.
    home: Option<(Arc<str>, Arc<Bus>)>,
    /// The decision about readers that this one was asked after.
    readers: u64,
}

/// What the tail has for a reader.
#[derive(Debug)]
pub enum Heard<T> {
    /// What follows the cursor directly: one commit or several.
    Items(Vec<Arc<T>>),
    /// Nothing follows the cursor yet.
    Nothing,
    /// Nothing follows the cursor, and nothing will.
    Closed,
    /// Something follows that the tail does not have: read the table.
    Behind,
}

impl<T: Send + Sync> StreamListener<T> {
    fn new(channel: Arc<Channel<T>>, home: Option<(Arc<str>, Arc<Bus>)>) -> Self {
        let level = channel.level.subscribe();
        let readers = level.borrow().readers;
        Self { level, channel, home, readers }
    }

    /// Whether it was decided anew who may read the stream, since the listener began or this was
    /// last asked.
    pub fn take_readers_changed(&mut self) -> bool {
        let readers = self.level.borrow().readers;
        std::mem::replace(&mut self.readers, readers) != readers
    }

    /// Number of the last event that was published while somebody listened; 0 before the first. Who
    /// asks for it, reads the table, and then waits for what follows it, misses no event.
    pub fn last(&self) -> i64 {
        self.level.borrow().last
    }

    /// Waits until something follows `cursor`, or nothing will. Dropping the future loses nothing.
    pub async fn wait(&mut self, cursor: i64) {
        // The sender cannot be gone: the channel holds it, and we hold the channel.
        self.level.wait_for(|level| level.last > cursor || level.closed).await.ok();
    }

    /// The same, and until it was decided anew who may read.
    pub async fn wait_as_reader(&mut self, cursor: i64) {
        let readers = self.readers;
        self.level
            .wait_for(|level| level.last > cursor || level.closed || level.readers != readers)
            .await
            .ok();
    }

    /// Waits for a commit that closes the stream. A stream that was closed before this listener
    /// existed is not noticed. Dropping the future loses nothing.
    pub async fn wait_closed(&mut self) {
        self.level.wait_for(|level| level.closed).await.ok();
    }

    /// What follows `cursor`, up to about `budget` bytes of it.
    pub fn hear(&self, cursor: i64, budget: usize) -> Heard<T> {
        let level = *self.level.borrow();
        if level.last <= cursor {
            return if level.closed { Heard::Closed } else { Heard::Nothing };
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
        if items.is_empty() { Heard::Behind } else { Heard::Items(items) }
    }
}

impl<T> Drop for StreamListener<T> {
    fn drop(&mut self) {
        let Some((name, bus)) = self.home.take() else { return };
        let mut streams = bus.lock();
        // Ours is still counted: it goes after this.
        if self.channel.level.receiver_count() <= 1 {
            streams.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use svc_model::Timestamp;

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
        match listener.hear(cursor, budget) {
            Heard::Items(items) => Some((items.first()?.seqs.0, items.last()?.seqs.1)),
            _ => None,
        }
    }

    #[test]
    fn a_channel_goes_with_its_last_listener() {
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
    fn the_tail_gives_what_follows_and_says_when_it_cannot() {
        let bus = Bus::new();
        let listener = bus.listen(&StreamName::fixed("team"));
        assert!(matches!(listener.hear(0, 1000), Heard::Nothing));
        bus.publish(vec![batch(5..=6, 10, false)]);
        bus.publish(vec![batch(7..=7, 10, false)]);
        assert!(matches!(listener.hear(3, 1000), Heard::Behind));
        assert_eq!(heard(&listener, 4, 1_000_000), Some((5, 7)));
        assert_eq!(heard(&listener, 4, 1), Some((5, 6)), "one at least");
        assert_eq!(heard(&listener, 6, 1_000_000), Some((7, 7)));
        assert!(matches!(listener.hear(5, 1000), Heard::Behind), "in the middle of a commit");
        assert!(matches!(listener.hear(7, 1000), Heard::Nothing));
        // A commit that is larger than the tail is published all the same.
        bus.publish(vec![batch(8..=8, limits::TAIL_BYTES + 1, true)]);
        assert!(matches!(listener.hear(7, 1000), Heard::Behind));
        assert!(matches!(listener.hear(8, 1000), Heard::Closed));
        assert!(listener.channel.tail().items.is_empty());
    }
}
