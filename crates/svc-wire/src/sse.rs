//! Server-sent events (WHATWG HTML, 9.2): frames as text, and an incremental parser.
//!
//! This file writes each frame, live or replayed, in the inner loop of a replay, so it copies
//! instead of formatting where it can. The parser takes bytes cut anywhere, does no I/O, and keeps
//! at most one event.

use std::fmt::{self, Write as _};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use svc_model::{Event, Framing, Seq, Timestamp};

pub const MEDIA_TYPE: &str = "text/event-stream";

/// A comment, which clients skip.
pub const KEEP_ALIVE: &str = ": keep-alive\n\n";

#[derive(Debug, Clone, Copy)]
pub struct EventParts<'a> {
    /// Position in the whole log.
    pub position: i64,
    pub stream: &'a str,
    /// Number within its stream.
    pub seq: Seq,
    pub kind: &'a str,
    /// One line of JSON.
    pub data: &'a str,
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
    /// The id of the event's frame: the cursor after the event.
    pub fn id(&self, framing: Framing) -> i64 {
        match framing {
            Framing::Data | Framing::ItemBySeq => self.seq,
            Framing::ItemByPosition => self.position,
        }
    }
}

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
    // Names of streams and kinds need no JSON escapes (`StreamName::parse`, our own kinds).
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

/// A frame that is not an event of the log: without an id it does not move the client's cursor.
pub fn notice(kind: &str, data: &impl serde::Serialize) -> String {
    message(kind, &serde_json::to_string(data).expect("a value of ours has a JSON form"))
}

/// `data` is one line.
pub fn message(kind: &str, data: &str) -> String {
    ["event: ", kind, "\ndata: ", data, "\n\n"].concat()
}

/// `data` is one line; a client resumes after `id`.
pub fn push_message(out: &mut String, id: fmt::Arguments<'_>, kind: &str, data: &str) {
    write!(out, "id: {id}\nevent: {kind}\ndata: {data}\n\n")
        .expect("writing to a string does not fail");
}

/// Headers of an event stream, which no proxy may cache or buffer.
pub fn announce(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// Ignores parameters of the media type.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(|kind| kind.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case(MEDIA_TYPE))
}

/// Approximate length of the frame, to reserve room.
pub fn frame_len(event: &Event) -> usize {
    event.data.len() + event.kind.len() + event.stream.as_str().len() + 128
}

/// Maximum line, and maximum data of an event, in bytes.
const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;

const BOM: &[u8] = b"\xEF\xBB\xBF";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// The `id` of this block. [`SseParser::last_event_id`] is the one that carries over.
    pub id: Option<String>,
    /// `message` if the block named none.
    pub event: String,
    /// The `data` lines, joined by line feeds.
    pub data: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("a line or an event is too large")]
    TooLarge,
}

/// The parser's state between two pieces of input.
#[derive(Debug, Default)]
pub struct SseParser {
    /// Whether the first line, which may begin with a byte order mark, is over.
    started: bool,
    line: Vec<u8>,
    after_cr: bool,
    data: Option<String>,
    event: String,
    id: Option<String>,
    last_event_id: String,
    retry: Option<Duration>,
    /// Maximum line and event; by default [`MAX_EVENT_BYTES`].
    bound: Option<usize>,
}

impl SseParser {
    pub fn new() -> Self {
        Self::default()
    }

    /// A parser with another bound for lines and events than 8 MiB.
    pub fn with_bound(bytes: usize) -> Self {
        Self { bound: Some(bytes), ..Self::default() }
    }

    fn bound(&self) -> usize {
        self.bound.unwrap_or(MAX_EVENT_BYTES)
    }

    /// Appends the events that `bytes` complete.
    ///
    /// After an error the events before it are in `events`, and the parser is unusable. An
    /// incomplete event at the end of the stream is dropped with the parser.
    pub fn feed(&mut self, bytes: &[u8], events: &mut Vec<SseEvent>) -> Result<(), SseError> {
        let mut rest = bytes;
        if let (true, Some((first, others))) = (self.after_cr, rest.split_first()) {
            self.after_cr = false;
            rest = if *first == b'\n' { others } else { rest };
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.extend(&rest[..end])?;
            let is_cr = rest[end] == b'\r';
            rest = &rest[end + 1..];
            if is_cr {
                match rest.first() {
                    Some(b'\n') => rest = &rest[1..],
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            self.end_line(events)?;
        }
        self.extend(rest)
    }

    /// The id to resume from: of the last block with one, dispatched or not. Empty if there was
    /// none.
    pub fn last_event_id(&self) -> &str {
        &self.last_event_id
    }

    /// The last reconnection time of the stream.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len() + bytes.len() > self.bound() {
            return Err(SseError::TooLarge);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<SseEvent>) -> Result<(), SseError> {
        let mut line = std::mem::take(&mut self.line);
        let mut bytes = line.as_slice();
        if !self.started {
            bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
            self.started = true;
        }
        if bytes.is_empty() {
            self.dispatch(events);
        } else {
            // Line ends are ASCII, so decoding line by line equals decoding the whole.
            self.field(&String::from_utf8_lossy(bytes))?;
        }
        line.clear();
        self.line = line;
        Ok(())
    }

    fn field(&mut self, line: &str) -> Result<(), SseError> {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => value.clone_into(&mut self.event),
            "data" => {
                let bound = self.bound();
                let data = self.data.get_or_insert_default();
                if data.len() + value.len() + 1 > bound {
                    return Err(SseError::TooLarge);
                }
                data.push_str(value);
                data.push('\n');
            }
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry = value.parse().ok().map(Duration::from_millis).or(self.retry);
            }
            // A comment has an empty name; unknown fields are ignored.
            _ => {}
        }
        Ok(())
    }

    fn dispatch(&mut self, events: &mut Vec<SseEvent>) {
        let id = self.id.take();
        if let Some(id) = &id {
            id.clone_into(&mut self.last_event_id);
        }
        let event = std::mem::take(&mut self.event);
        let Some(mut data) = self.data.take() else {
            return;
        };
        data.pop();
        let event = if event.is_empty() { "message".to_owned() } else { event };
        events.push(SseEvent { id, event, data });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use svc_model::StreamName;

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
    fn frames_have_the_documented_form() {
        let event = Event {
            position: 12,
            stream: StreamName::new("task", "t1"),
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

    fn parse(chunks: &[&[u8]]) -> (Vec<SseEvent>, String, Option<Duration>) {
        let (mut parser, mut events) = (SseParser::new(), Vec::new());
        for chunk in chunks {
            parser.feed(chunk, &mut events).expect("is small");
        }
        (events, parser.last_event_id().to_owned(), parser.retry())
    }

    fn brief(text: &[u8]) -> Vec<(Option<String>, String, String)> {
        parse(&[text]).0.into_iter().map(|e| (e.id, e.event, e.data)).collect()
    }

    fn event(id: Option<&str>, event: &str, data: &str) -> (Option<String>, String, String) {
        (id.map(str::to_owned), event.to_owned(), data.to_owned())
    }

    #[test]
    fn parser_follows_the_standard() {
        let cases: Vec<(&[u8], Vec<_>)> = vec![
            (b"data: a\n\n", vec![event(None, "message", "a")]),
            (
                b"data:a\r\rdata:b\r\n\r\n",
                vec![event(None, "message", "a"), event(None, "message", "b")],
            ),
            (b"data: a\ndata\ndata: b\n\n", vec![event(None, "message", "a\n\nb")]),
            (b"data\n\n", vec![event(None, "message", "")]),
            (
                b"event: x\nid: 1\ndata: a\n\nevent: y\n\ndata: b\n\n",
                vec![event(Some("1"), "x", "a"), event(None, "message", "b")],
            ),
            (b"\xEF\xBB\xBFdata: a\n\n", vec![event(None, "message", "a")]),
            (b"\xEF\xBB\xBF\xEF\xBB\xBFdata: a\n\n", vec![]),
            (b": hello\n\n:\n\n", vec![]),
            (b"id: a\0b\ndata: c\n\n", vec![event(None, "message", "c")]),
            (b"data:  two\n\n", vec![event(None, "message", " two")]),
            (b"data: \xFF\n\n", vec![event(None, "message", "\u{FFFD}")]),
            (b"data: cut off", vec![]),
            (b"data: cut off\n", vec![]),
            (b"DATA: a\nfoo: b\n\n", vec![]),
        ];
        for (text, expected) in cases {
            assert_eq!(brief(text), expected, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn id_and_retry_carry_over() {
        let cases: &[(&str, &str, Option<u64>)] = &[
            ("id: 7\n\n", "7", None),
            ("id: 7\ndata: a\n\ndata: b\n\n", "7", None),
            ("id: 7\n\nid\n\n", "", None),
            ("id: 7\n", "", None),
            ("retry: 1000\n\n", "", Some(1000)),
            ("retry: 10\nretry: x\nretry: -1\nretry:\n", "", Some(10)),
            ("retry: 99999999999999999999999\n", "", None),
        ];
        for (text, id, retry) in cases {
            let (_, last, asked) = parse(&[text.as_bytes()]);
            assert_eq!((last.as_str(), asked), (*id, retry.map(Duration::from_millis)), "{text:?}");
        }
    }

    #[test]
    fn line_or_event_above_the_bound_is_refused() {
        let piece = vec![b'x'; 1024 * 1024];
        let mut parser = SseParser::new();
        let result = (0..9).try_for_each(|_| parser.feed(&piece, &mut Vec::new()));
        assert_eq!(result, Err(SseError::TooLarge));
        let mut parser = SseParser::new();
        let line = [b"data: ".as_slice(), &piece, b"\n"].concat();
        let result = (0..9).try_for_each(|_| parser.feed(&line, &mut Vec::new()));
        assert_eq!(result, Err(SseError::TooLarge));
    }

    /// Streams dense in line ends and fields.
    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"\n".to_vec()),
            Just(b"\r".to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b"data: a".to_vec()),
            Just(b"data".to_vec()),
            Just(b"id: 4".to_vec()),
            Just(b"event: e".to_vec()),
            Just(b"retry: 5".to_vec()),
            Just(b": c".to_vec()),
            Just(BOM.to_vec()),
            Just("é€".as_bytes().to_vec()),
            any::<u8>().prop_map(|byte| vec![byte]),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_chunking_gives_the_same_events(text in streams(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            prop_assert_eq!(parse(&chunks), parse(&[&text]));
            prop_assert_eq!(parse(&bytes), parse(&[&text]));
        }
    }
}
