//! Waking readers: after a commit, each stream that it touched gets a signal.
//!
//! A signal may carry the committed events, and their frames once one subscriber has asked for them: then a
//! thousand subscribers cost one rendering and no read. But the table is always right and the signal only makes it
//! fast. A listener that lagged, or finds a hole, goes back to the table, and no producer ever waits for a reader.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use tokio::sync::broadcast;

use crate::domain::{Event, Framing, Seq, StreamName, limits, sse};

/// What one commit appended to one stream.
#[derive(Debug)]
pub struct Batch {
    /// The stream.
    pub stream: StreamName,
    /// First and last seq that the commit gave out in it.
    pub seqs: (Seq, Seq),
    /// First and last position of them. They are contiguous: a commit writes stream by stream.
    pub positions: (i64, i64),
    /// Whether the commit also closed the stream.
    pub closed: bool,
    /// The events, unless they are too large to be kept around for slow listeners.
    events: Option<Box<[Event]>>,
    frames: [OnceLock<Bytes>; Framing::COUNT],
}

impl Batch {
    pub(super) fn new(events: Vec<Event>, closed: bool) -> Option<Self> {
        let (first, last) = (events.first()?, events.last()?);
        let bytes: usize = events.iter().map(sse::frame_len).sum();
        Some(Self {
            stream: first.stream.clone(),
            seqs: (first.seq, last.seq),
            positions: (first.position, last.position),
            closed,
            events: (bytes <= limits::SIGNAL_BYTES).then(|| events.into()),
            frames: Default::default(),
        })
    }

    /// The events; `None` if the reader has to fetch them.
    pub fn events(&self) -> Option<&[Event]> {
        self.events.as_deref()
    }

    /// All events of the batch, framed; rendered by whoever asks first and shared with everybody after.
    pub fn frames(&self, framing: Framing) -> Option<Bytes> {
        let events = self.events()?;
        let render = || render(events, framing);
        Some(self.frames[framing.index()].get_or_init(render).clone())
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

/// A commit, to those who follow several streams.
pub type Feed = Arc<[Arc<Batch>]>;

/// The channels. One for each stream that somebody listens to, made by the first and gone with the last, and one
/// for everything.
#[derive(Debug)]
pub struct Bus {
    streams: Mutex<Streams>,
    feed: broadcast::Sender<Feed>,
}

type Streams = HashMap<Arc<str>, broadcast::Sender<Arc<Batch>>>;

impl Bus {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { streams: Mutex::default(), feed: broadcast::Sender::new(limits::SIGNALS) })
    }

    /// Listens to one stream, from the next commit on. Listen first and read the table after, and nothing is missed.
    pub fn listen(self: &Arc<Self>, stream: &StreamName) -> Listener {
        let name = stream.shared();
        let receiver = self
            .lock()
            .entry(Arc::clone(&name))
            .or_insert_with(|| broadcast::Sender::new(limits::SIGNALS))
            .subscribe();
        Listener { name, receiver: Some(receiver), bus: Arc::clone(self) }
    }

    /// Listens to every stream, from the next commit on.
    pub fn listen_all(&self) -> broadcast::Receiver<Feed> {
        self.feed.subscribe()
    }

    /// How many listeners there are.
    pub fn listeners(&self) -> usize {
        let streams: usize = self.lock().values().map(broadcast::Sender::receiver_count).sum();
        streams + self.feed.receiver_count()
    }

    /// Tells which of `streams` anybody listens to. With a listener to everything, that is each.
    pub(super) fn wanted<'a>(&self, streams: impl Iterator<Item = &'a str>) -> Vec<bool> {
        let everything = self.feed.receiver_count() > 0;
        let listened = self.lock();
        streams.map(|name| everything || listened.contains_key(name)).collect()
    }

    /// Signals a commit: the batches of the wanted streams, by position.
    pub(super) fn publish(&self, batches: Vec<Batch>) {
        if batches.is_empty() {
            return;
        }
        let batches: Feed = batches.into_iter().map(Arc::new).collect();
        let streams = self.lock();
        for batch in &*batches {
            if let Some(sender) = streams.get(batch.stream.as_str()) {
                // An error says that the last listener just left.
                sender.send(Arc::clone(batch)).ok();
            }
        }
        drop(streams);
        if self.feed.receiver_count() > 0 {
            self.feed.send(batches).ok();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Streams> {
        // No await and no panic happens under this lock; a poisoned map is as good as new.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in one stream's channel.
#[derive(Debug)]
pub struct Listener {
    name: Arc<str>,
    receiver: Option<broadcast::Receiver<Arc<Batch>>>,
    bus: Arc<Bus>,
}

/// What a listener hears.
#[derive(Debug)]
pub enum Signal {
    /// A commit.
    Batch(Arc<Batch>),
    /// It was too slow for the channel: the table knows what it missed.
    Lagged,
}

impl Listener {
    /// Waits for the next signal. Dropping the future loses none.
    pub async fn next(&mut self) -> Signal {
        match self.receiver().recv().await {
            Ok(batch) => Signal::Batch(batch),
            // `Closed` cannot be: the sender lives in the map while there is a listener.
            Err(_) => Signal::Lagged,
        }
    }

    /// The next signal if it is there already.
    pub fn try_next(&mut self) -> Option<Signal> {
        match self.receiver().try_recv() {
            Ok(batch) => Some(Signal::Batch(batch)),
            Err(broadcast::error::TryRecvError::Lagged(_)) => Some(Signal::Lagged),
            Err(_) => None,
        }
    }

    fn receiver(&mut self) -> &mut broadcast::Receiver<Arc<Batch>> {
        self.receiver.as_mut().expect("the receiver is there until the listener is dropped")
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut streams = self.bus.lock();
        drop(self.receiver.take());
        if streams.get(&self.name).is_some_and(|sender| sender.receiver_count() == 0) {
            streams.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
