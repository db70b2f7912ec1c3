//! Server-sent events as text: how an event is framed (WHATWG HTML, 9.2 "Server-sent events").
//!
//! The store writes the very same text in SQL for replay (`store/replay.rs`); a test there holds the two together.

use std::fmt::Write as _;

use super::{Event, Framing};

/// A comment, which clients skip: it keeps the connection alive.
pub const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// Appends the frame of `event` to `out`.
pub fn push_frame(out: &mut String, event: &Event, framing: Framing) {
    let id = match framing {
        Framing::Data | Framing::ItemBySeq => event.seq,
        Framing::ItemByPosition => event.position,
    };
    push_head(out, id, &event.kind);
    match framing {
        Framing::Data => out.push_str(&event.data),
        Framing::ItemBySeq | Framing::ItemByPosition => push_item(out, event),
    }
    out.push_str("\n\n");
}

/// Appends the JSON item of `event`: `{position, stream, seq, kind, data, at}`.
pub fn push_item(out: &mut String, event: &Event) {
    // A stream's name and a kind hold nothing that JSON escapes (`StreamName::parse`, our own kinds).
    infallible(write!(
        out,
        r#"{{"position":{},"stream":"{}","seq":{},"kind":"{}","data":{},"at":"{}"}}"#,
        event.position, event.stream, event.seq, event.kind, event.data, event.at
    ));
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

fn push_head(out: &mut String, id: i64, kind: &str) {
    infallible(write!(out, "id: {id}\nevent: {kind}\ndata: "));
}

fn infallible(written: std::fmt::Result) {
    written.expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{StreamName, Timestamp};

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
