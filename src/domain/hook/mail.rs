//! Messages as text for a session's model.

use crate::domain::{Message, Peer, limits, stamp::neutralised};

/// Of one message, in characters: a longer one is read in the inbox.
const MESSAGE_CHARS: usize = 3_000;
/// Of all messages together, in characters. The rest waits for the next event.
const DIGEST_CHARS: usize = 7_500;

/// Messages that are handed over together.
#[derive(Debug, Default)]
pub struct MailDigest {
    messages: Vec<Message>,
    text: String,
}

impl MailDigest {
    /// Adds a message with its stamp; `false` if there is no room for it. The first always has room.
    #[must_use]
    pub fn add(&mut self, message: Message, stamp: &str) -> bool {
        let one = message_text(&message, stamp);
        let is_full = self.text.chars().count() + one.chars().count() > DIGEST_CHARS;
        if !self.text.is_empty() && is_full {
            return false;
        }
        self.text.push_str(&one);
        self.messages.push(message);
        true
    }

    /// The messages that it holds.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The messages that it holds, to mark them as handed over.
    pub fn messages_mut(&mut self) -> &mut [Message] {
        &mut self.messages
    }

    /// The text for the model of `peer`, which receives them.
    pub fn text_for(&self, peer: &Peer) -> String {
        let (count, text) = (self.messages.len(), &self.text);
        let (noun, them) = if count == 1 { ("message", "it") } else { ("messages", "them") };
        let (id, name) = (&peer.peer_id, &peer.display_name);
        format!(
            "{count} {noun} for you, peer {id} ({name}), from svc. {text}\n\nAnswer with peer_send (to, type \"response\", \
             correlation_id: the message's id). When you have dealt with {them}, say so: peer_ack (peer_id {id}, ids)."
        )
    }
}

fn message_text(message: &Message, stamp: &str) -> String {
    let body = &message.text;
    let shown: String = body.chars().take(MESSAGE_CHARS).collect();
    let mut text = format!(
        "\n\n--- message {}, {}, {}",
        message.id,
        serde_json::to_string(&message.kind).unwrap_or_default().trim_matches('"'),
        message.timestamp,
    );
    if let Some(answered) = &message.correlation_id {
        text.push_str(", correlation_id ");
        text.extend(answered.chars().filter(|c| !c.is_control()).take(limits::ID_BYTES));
    }
    text.push('\n');
    text.push_str(stamp);
    text.push('\n');
    text.push_str(&neutralised(&shown));
    if shown.len() < body.len() {
        let bytes = body.len();
        let note = format!("\n[cut: {bytes} bytes in all; peer_inbox with peek shows them]");
        text.push_str(&note);
    }
    text.push_str("\n---");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        DeliveryState, MessageId, MessageType, PeerId, PeerRole, PeerStatus, Timestamp,
    };

    fn message(number: u32, text: String) -> Message {
        Message {
            id: MessageId::from(format!("msg_{number}")),
            kind: MessageType::Query,
            from_peer: "peer_2".to_owned(),
            to_peer: PeerId::from("peer_1".to_owned()),
            text,
            correlation_id: Some("c\n1".to_owned()),
            timestamp: Timestamp::from_millis(0),
            state: DeliveryState::Queued,
        }
    }

    fn peer() -> Peer {
        Peer {
            peer_id: PeerId::from("peer_1".to_owned()),
            display_name: "ada".to_owned(),
            path: None,
            backend: "codex".to_owned(),
            circle: "default".to_owned(),
            role: PeerRole::Agent,
            status: PeerStatus::Idle,
            session_id: None,
            tmux_pane: None,
            pid: None,
            metadata: None,
            registered_at: Timestamp::from_millis(0),
            last_seen: Timestamp::from_millis(0),
        }
    }

    #[test]
    fn one_message_with_its_stamp() {
        let mut digest = MailDigest::default();
        assert!(digest.add(message(1, "hello".to_owned()), "[stamp]"));
        assert_eq!(
            digest.text_for(&peer()),
            "1 message for you, peer peer_1 (ada), from svc. \n\n--- message msg_1, query, 1970-01-01T00:00:00.000Z, \
             correlation_id c1\n[stamp]\nhello\n---\n\nAnswer with peer_send (to, type \"response\", correlation_id: \
             the message's id). When you have dealt with it, say so: peer_ack (peer_id peer_1, ids)."
        );
    }

    #[test]
    fn a_long_message_is_cut_and_says_so() {
        let text = "ü".repeat(MESSAGE_CHARS);
        let mut digest = MailDigest::default();
        assert!(digest.add(message(1, text.clone()), ""));
        assert!(!digest.text_for(&peer()).contains("[cut: "));
        let mut digest = MailDigest::default();
        assert!(digest.add(message(1, text + "ü"), ""));
        let text = digest.text_for(&peer());
        assert_eq!(text.matches('ü').count(), MESSAGE_CHARS);
        assert!(text.contains("\n[cut: 6002 bytes in all; peer_inbox with peek shows them]\n---"));
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let mut digest = MailDigest::default();
        let taken = (0..20).take_while(|n| digest.add(message(*n, "m".repeat(2_400)), "")).count();
        assert_eq!((taken, digest.messages().len()), (3, 3));
        assert!(digest.text_for(&peer()).starts_with("3 messages for you"));
        // One that would not fit into any digest goes alone.
        let mut digest = MailDigest::default();
        assert!(digest.add(message(1, "x".to_owned()), &"s".repeat(DIGEST_CHARS)));
    }
}
