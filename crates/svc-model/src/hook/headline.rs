//! What a person sees of messages: a line for each, that says who and what.

use crate::{
    Message, MessageType,
    quote::{self, ModelText, model_text},
};

/// Longest name of a sender, in bytes.
const NAME_BYTES: usize = 60;
/// Longest excerpt of a message, in bytes.
const EXCERPT_BYTES: usize = 100;
/// Most messages that a person is shown a line of.
pub(super) const LINES: usize = 8;
/// Longest line, in characters: its name, its excerpt, and the words between.
pub(super) const LINE_CHARS: usize = 300;

/// The line for a message from `from`, with the beginning of its text.
///
/// Nothing in it moves a terminal's cursor, turns the line's direction or ends it.
pub fn headline(message: &Message, from: &str) -> ModelText {
    let text = quote::line(&message.text, EXCERPT_BYTES);
    model_text!("svc: {} {}: {}", quote::line(from, NAME_BYTES), verb(message), text)
}

/// These lines, one below the other, and how many further messages there are: those whose line has
/// no room, and `others`.
pub fn headlines(lines: &[ModelText], others: usize) -> Option<ModelText> {
    let mut shown = ModelText::default();
    for line in lines.iter().take(LINES) {
        if !shown.is_empty() {
            shown.push(&"\n");
        }
        shown.push(line);
    }
    let others = others + lines.len().saturating_sub(LINES);
    if others > 0 {
        shown.push(&model_text!(" (and {} more)", others));
    }
    (!lines.is_empty()).then_some(shown)
}

/// The line above the text of messages that wake a session: the first one's sender, and how many
/// others there are.
pub(super) fn wake_line(first: &Message, from: &str, others: usize) -> ModelText {
    let mut line = model_text!("svc: {} {}", quote::line(from, NAME_BYTES), verb(first));
    if others > 0 {
        line.push(&model_text!(" (and {} more)", others));
    }
    line
}

const fn verb(message: &Message) -> &'static str {
    match message.kind {
        MessageType::Query => "asks",
        MessageType::Response => "answered",
        MessageType::Notification => "says",
        MessageType::Broadcast => "tells everybody",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeliveryState, MessageId, PeerId, Timestamp};

    fn message(kind: MessageType, text: &str) -> Message {
        Message {
            id: MessageId::from("msg_1".to_owned()),
            kind,
            from_peer: "peer_2".to_owned(),
            to_peer: PeerId::from("peer_1".to_owned()),
            text: text.to_owned(),
            correlation_id: None,
            timestamp: Timestamp::from_millis(0),
            state: DeliveryState::Queued,
            provenance: None,
        }
    }

    #[test]
    fn it_says_who_and_what() {
        use MessageType::{Broadcast, Notification, Query, Response};
        for (kind, is) in [
            (Query, "svc: codex@repo asks: is it green?"),
            (Response, "svc: codex@repo answered: is it green?"),
            (Notification, "svc: codex@repo says: is it green?"),
            (Broadcast, "svc: codex@repo tells everybody: is it green?"),
        ] {
            let line = headline(&message(kind, "is it\ngreen?"), "codex@repo");
            assert_eq!(line.as_str(), is);
        }
    }

    #[test]
    fn each_message_has_its_line_and_the_rest_is_counted() {
        let lines = |count: usize| vec![model_text!("svc: a asks: b"); count];
        assert_eq!(headlines(&[], 3), None);
        let shown = |count, others| headlines(&lines(count), others).unwrap().into_string();
        assert_eq!(shown(1, 0), "svc: a asks: b");
        assert_eq!(shown(2, 0), "svc: a asks: b\nsvc: a asks: b");
        assert_eq!(shown(2, 4), "svc: a asks: b\nsvc: a asks: b (and 4 more)");
        assert_eq!(shown(LINES, 0).lines().count(), LINES);
        let many = shown(LINES + 3, 2);
        assert_eq!(many.lines().count(), LINES);
        assert!(many.ends_with("svc: a asks: b (and 5 more)"), "{many}");
    }

    #[test]
    fn it_is_one_short_line_without_anything_that_a_terminal_obeys() {
        let text = "a\u{1b}[2J\u{1b}]52;c;x\u{7}\r\n\u{202e}b\u{2028}c\u{9b}1mä".repeat(50);
        let line = headline(&message(MessageType::Query, &text), &text).into_string();
        assert!(line.len() < NAME_BYTES + EXCERPT_BYTES + 40, "{line}");
        assert!(line.chars().count() + 20 <= LINE_CHARS);
        assert!(!line.chars().any(|c| c == '\n' || quote::is_invisible(c)), "{line:?}");
        assert!(line.starts_with("svc: a") && line.ends_with('…'), "{line}");
    }
}
