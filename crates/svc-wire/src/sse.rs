//! Server-sent events as text: how an event is framed (WHATWG HTML, 9.2 "Server-sent events").
//!
//! Each stream of frames, live or replayed, is written here. It is the inner loop of a replay: nothing is formatted
//! where it can be copied.

use std::fmt::{self, Write as _};

use http::{HeaderMap, HeaderValue, header};
use svc_model::{Event, Framing, Seq, Timestamp};

/// The media type of an event stream.
pub const MEDIA_TYPE: &str = "text/event-stream";

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
    message(kind, &serde_json::to_string(data).expect("a value of ours has a JSON form"))
}

/// A frame of one line of text, without an id.
pub fn message(kind: &str, data: &str) -> String {
    ["event: ", kind, "\ndata: ", data, "\n\n"].concat()
}

/// Appends a frame of one line of text, with an id to resume after.
pub fn push_message(out: &mut String, id: fmt::Arguments<'_>, kind: &str, data: &str) {
    write!(out, "id: {id}\nevent: {kind}\ndata: {data}\n\n")
        .expect("writing to a string does not fail");
}

/// Makes headers those of an event stream, which nothing on the way may cache or hold back.
pub fn announce(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// Whether headers announce an event stream, whatever the parameters of its type.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(|kind| kind.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case(MEDIA_TYPE))
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
    fn event_streams_are_recognised_by_their_media_type() {
        let mut headers = HeaderMap::new();
        assert!(!is_event_stream(&headers));
        announce(&mut headers);
        assert!(is_event_stream(&headers));
        for (kind, expected) in [
            ("text/event-stream; charset=utf-8", true),
            (" Text/Event-Stream ;x", true),
            ("text/event-streams", false),
            ("application/json", false),
        ] {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            assert_eq!(is_event_stream(&headers), expected, "{kind}");
        }
    }

    #[test]
    fn messages_are_framed_with_and_without_an_id() {
        assert_eq!(message("message", "{}"), "event: message\ndata: {}\n\n");
        let mut out = String::new();
        push_message(&mut out, format_args!("s.{}", 7), "message", "{}");
        assert_eq!(out, "id: s.7\nevent: message\ndata: {}\n\n");
    }

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
