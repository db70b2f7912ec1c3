//! Events and the names of the streams that they stand in.

use std::{fmt, sync::Arc};

use super::{Timestamp, limits};

/// Number of an event within its stream: 1, 2, 3 …, without a hole. As a cursor, 0 is before the
/// first.
pub type Seq = i64;

/// Name of a stream, such as `task/<id>` or `team`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamName(Arc<str>);

impl StreamName {
    /// Arrivals, departures and states of peers.
    pub const TEAM: &'static str = "team";
    /// Starts and stops of the daemon itself.
    pub const DAEMON: &'static str = "daemon";

    /// The stream of a kind of thing (`task`, `peer`, …) and its id.
    pub fn new(kind: &str, id: impl fmt::Display) -> Self {
        Self(format!("{kind}/{id}").into())
    }

    /// A stream of the daemon's own.
    pub fn fixed(name: &'static str) -> Self {
        Self(name.into())
    }

    /// Reads a name that a caller gave. `None` if it is empty, longer than [`limits::ID_BYTES`] +
    /// 16, or has characters other than printable ASCII without quotation mark and backslash.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = !text.is_empty()
            && text.len() <= limits::ID_BYTES + 16
            && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\'));
        fits.then(|| Self(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before the slash: `task` in `task/<id>`. Empty for a stream of the daemon's own.
    pub fn kind(&self) -> &str {
        self.0.split_once('/').map_or("", |(kind, _)| kind)
    }

    /// The text, shared.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Arc<str>> for StreamName {
    fn from(name: Arc<str>) -> Self {
        Self(name)
    }
}

/// Kind of an event, such as `frame` or `peer.status`. Shared, because a commit has hundreds of one
/// kind.
pub type EventKind = Arc<str>;

/// An event that is to be appended.
#[derive(Debug, Clone)]
pub struct NewEvent {
    /// What happened.
    pub kind: EventKind,
    /// One line of JSON.
    pub data: Arc<str>,
    /// The producer's own id for it, if it wants to be able to repeat itself.
    pub producer_id: Option<Arc<str>>,
}

impl NewEvent {
    /// An event of the daemon's own.
    ///
    /// # Panics
    /// If `data` does not serialise, which types of ours with string keys always do.
    pub fn new(kind: impl Into<EventKind>, data: &impl serde::Serialize) -> Self {
        let data = serde_json::to_string(data).expect("a value of ours has a JSON form");
        Self { kind: kind.into(), data: data.into(), producer_id: None }
    }
}

/// A committed event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Orders the whole log. Never used twice.
    pub position: i64,
    /// Stream that it belongs to.
    pub stream: StreamName,
    /// Orders its stream.
    pub seq: Seq,
    /// What happened.
    pub kind: EventKind,
    /// One line of JSON.
    pub data: Arc<str>,
    /// When it was committed.
    pub at: Timestamp,
}

/// The forms in which an event goes out as a server-sent event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Framing {
    /// `id` is the seq and `data` the event's own data: the feed of one task.
    Data,
    /// `id` is the seq and `data` the whole item: a feed of one stream.
    ItemBySeq,
    /// `id` is the position and `data` the whole item: a feed of several streams.
    ItemByPosition,
}

impl Framing {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// A number below [`Self::COUNT`].
    pub const fn index(self) -> usize {
        self as usize
    }
}
