//! Events, the names of their streams, and what the log keeps of them.

use std::{fmt, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Serialize, Serializer, ser};
use serde_json::value::RawValue;

use crate::{Timestamp, limits, words::words};

/// Number of an event within its stream: 1, 2, 3 …, without gaps. As a cursor, 0 is before the
/// first.
pub type Seq = i64;

/// Name of a stream, such as `task/<id>` or `team`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
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

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before the slash: `task` in `task/<id>`. Empty for a stream of the daemon's own.
    pub fn kind(&self) -> &str {
        self.0.split_once('/').map_or("", |(kind, _)| kind)
    }

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

#[derive(Debug, Clone)]
pub struct NewEvent {
    pub kind: EventKind,
    /// One line of JSON.
    pub data: Arc<str>,
    /// The producer's own id of the event, if the producer may have to repeat it.
    pub producer_id: Option<Arc<str>>,
}

impl NewEvent {
    /// An event of the daemon's own. `data` has to serialise, as types with string keys do.
    pub fn new(kind: impl Into<EventKind>, data: &impl Serialize) -> Self {
        let data = serde_json::to_string(data).expect("a value of ours has a JSON form");
        Self { kind: kind.into(), data: data.into(), producer_id: None }
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ListedEvent")]
pub struct Event {
    /// Position in the whole log.
    pub position: i64,
    #[schemars(with = "String")]
    pub stream: StreamName,
    /// Position in its stream.
    pub seq: Seq,
    pub kind: EventKind,
    /// As the kind has it: one line of JSON.
    #[serde(serialize_with = "as_json")]
    #[schemars(with = "serde_json::Value")]
    pub data: Arc<str>,
    pub at: Timestamp,
}

fn as_json<S: Serializer>(data: &str, serializer: S) -> Result<S::Ok, S::Error> {
    let json: &RawValue = serde_json::from_str(data).map_err(ser::Error::custom)?;
    json.serialize(serializer)
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
    pub const COUNT: usize = 3;

    /// A number below [`Self::COUNT`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

words! {
    /// Why the log does not have what a reader asked for.
    pub enum GapReason {
        /// Retention removed it.
        Pruned = "pruned",
        /// The cursor is ahead of the log, as after a backup was restored. Everything
        /// follows from the start.
        Ahead = "ahead",
    }
}

/// How much of the log is kept. Without either bound nothing is removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Older events are removed.
    pub max_age: Option<Duration>,
    /// Above this size of the rows, in bytes, the oldest events are removed.
    pub max_bytes: Option<u64>,
}
