//! Server-sent events as text: how an event is framed (WHATWG HTML, 9.2 "Server-sent events").
//!
//! Each stream of frames, live or replayed, is written here. It is the inner loop of a replay: nothing is formatted
//! where it can be copied.

use svc_model::{Event, Framing, Seq, Timestamp};

/// A comment, which clients skip: it keeps the connection alive.
pub const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// An event, borrowed from wherever it stands.
#[derive(Debug, Clone, Copy)]
pub struct EventParts<'a> {
    /// Where it stands in the whole log.
    pub position: i64,
    /// The stream.
    pub stream: &'a str,
    /// Where it stands in its stream.
    pub seq: Seq,
    /// Its kind.
    pub kind: &'a str,
    /// One line of JSON.
    pub data: &'a str,
    /// When it was committed.
    pub at: Timestamp,
}

impl<'a> From<&'a Event> for EventParts<'a> {
    fn from(event: &'a Event) -> Self {
        Self {
            position: event.position,
            stream: event.stream.as_str(),
            seq: event.seq,
            kind: &event.kind,
            data: &event.data,
            at: event.at,
        }
    }
}

impl EventParts<'_> {
    /// The id of its frame: the cursor behind it.
    pub fn id(&self, framing: Framing) -> i64 {
        match framing {
            Framing::Data | Framing::ItemBySeq => self.seq,
            Framing::ItemByPosition => self.position,
        }
    }
}

/// Appends the frame of `event` to `out`.
pub fn push_frame<'a>(out: &mut String, event: impl Into<EventParts<'a>>, framing: Framing) {
    let event = event.into();
    let mut digits = itoa::Buffer::new();
    for part in ["id: ", digits.format(event.id(framing)), "\nevent: ", event.kind, "\ndata: "] {
        out.push_str(part);
    }
    match framing {
        Framing::Data => out.push_str(event.data),
        Framing::ItemBySeq | Framing::ItemByPosition => push_item(out, event),
    }
    out.push_str("\n\n");
}

/// Appends the JSON item of `event`: `{position, stream, seq, kind, data, at}`.
pub fn push_item<'a>(out: &mut String, event: impl Into<EventParts<'a>>) {
    let event = event.into();
    let (mut position, mut seq) = (itoa::Buffer::new(), itoa::Buffer::new());
    // A stream's name and a kind hold nothing that JSON escapes (`StreamName::parse`, our own kinds).
    for part in [
        r#"{"position":"#,
        position.format(event.position),
        r#","stream":""#,
        event.stream,
        r#"","seq":"#,
        seq.format(event.seq),
        r#","kind":""#,
        event.kind,
        r#"","data":"#,
        event.data,
        r#","at":""#,
    ] {
        out.push_str(part);
    }
    event.at.push_to(out);
    out.push_str(r#""}"#);
}

/// A frame that is not an event of the log and so has no id: the client's cursor stays where it is.
pub fn notice(kind: &str, data: &impl serde::Serialize) -> String {
    let data = serde_json::to_string(data).expect("a value of ours has a JSON form");
    format!("event: {kind}\ndata: {data}\n\n")
}

/// About how long the frame of `event` is, to reserve room.
pub fn frame_len(event: &Event) -> usize {
    event.data.len() + event.kind.len() + event.stream.as_str().len() + 128
}

#[cfg(test)]
mod tests {
    use svc_model::{StreamName, Timestamp};

    use super::*;

    #[test]
    fn frames_are_what_the_contract_shows() {
        let event = Event {
            position: 12,
            stream: StreamName::of("task", "t1"),
            seq: 3,
            kind: "frame".into(),
            data: r#"{"line":"hello"}"#.into(),
            at: Timestamp::from_millis(0),
        };
        let item = r#"{"position":12,"stream":"task/t1","seq":3,"kind":"frame","data":{"line":"hello"},"at":"1970-01-01T00:00:00.000Z"}"#;
        for (framing, id, data) in [
            (Framing::Data, 3, r#"{"line":"hello"}"#),
            (Framing::ItemBySeq, 3, item),
            (Framing::ItemByPosition, 12, item),
        ] {
            let mut out = String::new();
            push_frame(&mut out, &event, framing);
            assert_eq!(out, format!("id: {id}\nevent: frame\ndata: {data}\n\n"));
            assert!(out.len() <= frame_len(&event));
        }
    }
}
