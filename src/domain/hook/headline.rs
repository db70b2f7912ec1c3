//! What a person sees of messages: one line that says who and what.

use crate::domain::{
    Message, MessageType,
    quote::{self, ModelText, model_text},
};

/// Longest name of a sender, in bytes.
const NAME_BYTES: usize = 60;

/// The line for `first` and `others` further messages, with at most `text_bytes` of its text. `from` is the sender's name.
///
/// Nothing in it moves a terminal's cursor, turns the line's direction or ends it.
pub fn headline(first: &Message, from: &str, others: usize, text_bytes: usize) -> ModelText {
    let verb = match first.kind {
        MessageType::Query => "asks",
        MessageType::Response => "answered",
        MessageType::Notification => "says",
        MessageType::Broadcast => "tells everybody",
    };
    let (name, text) = (quote::line(from, NAME_BYTES), quote::line(&first.text, text_bytes));
    let mut line = model_text!("svc: {} {}: {}", name, verb, text);
    if others > 0 {
        line.push(&model_text!(" (and {} more)", others));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{DeliveryState, MessageId, PeerId, Timestamp};

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
        for (kind, others, is) in [
            (Query, 0, "svc: codex@repo asks: is it green?"),
            (Response, 0, "svc: codex@repo answered: is it green?"),
            (Notification, 2, "svc: codex@repo says: is it green? (and 2 more)"),
            (Broadcast, 0, "svc: codex@repo tells everybody: is it green?"),
        ] {
            let line = headline(&message(kind, "is it\ngreen?"), "codex@repo", others, 48);
            assert_eq!(line.as_str(), is);
        }
    }

    #[test]
    fn it_is_one_short_line_without_anything_that_a_terminal_obeys() {
        let text = "a\u{1b}[2J\u{1b}]52;c;x\u{7}\r\n\u{202e}b\u{2028}c\u{9b}1mä".repeat(50);
        let line = headline(&message(MessageType::Query, &text), &text, 3, 48).into_string();
        assert!(line.len() < 60 + 48 + 40, "{line}");
        assert!(!line.chars().any(|c| c == '\n' || quote::is_invisible(c)), "{line:?}");
        assert!(line.starts_with("svc: a") && line.ends_with("… (and 3 more)"), "{line}");
    }
}
