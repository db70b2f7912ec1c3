//! An incremental parser of event streams, by the rules of the WHATWG HTML standard (9.2.6).
//!
//! Bytes go in as they arrive, cut anywhere; events come out. It does no I/O and keeps no more than one event.

use std::time::Duration;

/// Largest line and largest event (its data), in bytes.
pub const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// One dispatched event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// The `id` of this very block, if it had one. [`SseParser::last_event_id`] is the one that carries over.
    pub id: Option<String>,
    /// The event's type; `message` if the block named none.
    pub event: String,
    /// The `data` lines, joined by line feeds.
    pub data: String,
}

/// A stream that cannot be read on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A line or an event beyond the bound, [`MAX_EVENT_BYTES`] unless another was set.
    #[error("a line or an event is too large")]
    TooLarge,
}

/// The parser's state between two pieces of input.
#[derive(Debug, Default)]
pub struct SseParser {
    /// Whether the first line is over: only that may begin with a byte order mark.
    started: bool,
    line: Vec<u8>,
    after_cr: bool,
    data: Option<String>,
    event: String,
    id: Option<String>,
    last_event_id: String,
    retry: Option<Duration>,
    /// Largest line and event, if not the usual.
    bound: Option<usize>,
}

impl SseParser {
    /// A parser at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// A parser at the start of a stream whose lines and events may have up to this many bytes.
    pub fn with_bound(bytes: usize) -> Self {
        Self { bound: Some(bytes), ..Self::default() }
    }

    fn bound(&self) -> usize {
        self.bound.unwrap_or(MAX_EVENT_BYTES)
    }

    /// Takes the next bytes and appends the events that they complete.
    ///
    /// Fails with [`SseError::TooLarge`]; events completed before that are in `events`, and the parser is of no
    /// further use. What is incomplete when the stream ends is no event: just drop the parser.
    pub fn feed(&mut self, bytes: &[u8], events: &mut Vec<SseEvent>) -> Result<(), SseError> {
        let mut rest = bytes;
        if self.after_cr
            && let Some((first, others)) = rest.split_first()
        {
            self.after_cr = false;
            if *first == b'\n' {
                rest = others;
            }
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

    /// The id to resume from: of the last block that had one, dispatched or not. Empty if there was none.
    pub fn last_event_id(&self) -> &str {
        &self.last_event_id
    }

    /// The reconnection time that the stream asked for last.
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

    use super::*;

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
    fn follows_the_standard() {
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
    fn what_is_too_large_is_refused_and_not_kept() {
        let piece = vec![b'x'; 1024 * 1024];
        let mut parser = SseParser::new();
        let result = (0..9).try_for_each(|_| parser.feed(&piece, &mut Vec::new()));
        assert_eq!(result, Err(SseError::TooLarge));
        let mut parser = SseParser::new();
        let line = [b"data: ".as_slice(), &piece, b"\n"].concat();
        let result = (0..9).try_for_each(|_| parser.feed(&line, &mut Vec::new()));
        assert_eq!(result, Err(SseError::TooLarge));
    }

    /// Text dense in everything that matters to the parser.
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
