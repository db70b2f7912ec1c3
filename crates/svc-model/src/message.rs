//! Messages between peers, and the states of their delivery.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    MessageId, NOT_BLANK, PeerId, PeerStatus, Timestamp, conversation::Provenance, limits,
    words::words,
};

/// A stored message.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    /// Given by the daemon.
    pub id: MessageId,
    /// What kind of message it is.
    #[serde(rename = "type")]
    pub kind: MessageType,
    /// The sender, as the daemon knows it: a peer, or `operator`.
    pub from_peer: String,
    /// The receiver.
    pub to_peer: PeerId,
    /// The text, as it was given. It is data.
    pub text: String,
    /// What it answers, or what its answers will name.
    pub correlation_id: Option<String>,
    /// When it was accepted.
    pub timestamp: Timestamp,
    /// Present state of its delivery.
    pub state: DeliveryState,
    /// Where it comes from, as the daemon knows it; absent of messages from before that was stored.
    pub provenance: Option<Provenance>,
}

impl Message {
    /// Whether it is a question that was not lost on its way.
    pub const fn may_be_answered(&self) -> bool {
        use DeliveryState::{Expired, Refused, Undeliverable};
        matches!(self.kind, MessageType::Query)
            && !matches!(self.state, Expired | Refused | Undeliverable)
    }

    /// The message that this answer names; `None` if it is no answer, or names none.
    pub fn answered(&self) -> Option<MessageId> {
        let first = self.correlation_id.clone().filter(|_| self.kind == MessageType::Response);
        first.map(MessageId::from)
    }
}

/// A message to be sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct NewMessage {
    /// The text.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::MESSAGE_BYTES))]
    pub text: String,
    /// What it is.
    #[serde(rename = "type")]
    #[schemars(extend("default" = "notification"))]
    pub kind: Option<MessageType>,
    /// The message that this answers.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub correlation_id: Option<String>,
    /// A repeat with the same key sends nothing and gets the first answer.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub idempotency_key: Option<String>,
    /// The sender; your own peer by default. Only the operator may choose another.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub from_peer: Option<String>,
    /// Do not wake it.
    #[serde(default)]
    pub no_wake: bool,
}

words! {
    /// Kind of message.
    pub enum MessageType {
        /// Wants an answer.
        Query = "query",
        /// Is an answer.
        Response = "response",
        /// Wants none.
        Notification = "notification",
        /// Went to many.
        Broadcast = "broadcast",
    }

    /// State of a delivery. `accepted → queued → offered → injected → acked`, none skipped; or one
    /// of the last three, with a reason.
    #[derive(PartialOrd, Ord)]
    pub enum DeliveryState {
        /// The daemon took it.
        Accepted = "accepted",
        /// It is on the disk, in the receiver's inbox.
        Queued = "queued",
        /// The receiver's client was given it.
        Offered = "offered",
        /// The receiver has it before its eyes.
        Injected = "injected",
        /// The receiver said so.
        Acked = "acked",
        /// It waited too long.
        Expired = "expired",
        /// The receiver, or its full inbox, did not take it.
        Refused = "refused",
        /// The receiver is gone.
        Undeliverable = "undeliverable",
    }
}

impl DeliveryState {
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Acked | Self::Expired | Self::Refused | Self::Undeliverable)
    }

    /// The states to pass through on the way to `to`, including `to`. Empty if `to` is not ahead.
    pub fn path_to(self, to: Self) -> &'static [Self] {
        // `ALL` is in the order of a delivery, with the three ends without success last.
        const ALL: &[DeliveryState] = &DeliveryState::ALL;
        let (from, end) = (self as usize, to as usize);
        if self.is_terminal() || end <= from {
            return &[];
        }
        // An end without success may follow any state directly.
        if to > Self::Acked { &ALL[end..=end] } else { &ALL[from + 1..=end] }
    }
}

/// A state that a delivery reached.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delivery {
    /// The state.
    pub state: DeliveryState,
    /// When it was reached.
    pub at: Timestamp,
    /// Why, for the states that end a delivery without success, and of what the client keeps for
    /// its person.
    pub reason: Option<String>,
    /// The way by which it was offered: `hook`, or the client's own: `plugin`, `inbox`,
    /// `app-server`. Absent if the receiver read its inbox.
    pub via: Option<String>,
}

words! {
    /// A client's own way to a session.
    pub enum HandoverWay {
        /// The plugin in the client's process.
        Plugin = "plugin",
        /// The session's inbox, a socket.
        Inbox = "inbox",
        /// The client's server of its sessions.
        AppServer = "app-server",
    }
}

impl HandoverWay {
    /// Whether the client reports a prompt by a hook before it stores the prompt. A client that is
    /// killed in between loses the prompt.
    pub const fn records_after_hook(self) -> bool {
        matches!(self, Self::Inbox | Self::Plugin)
    }

    /// Whether a text that arrives during a turn is read in that turn. Hooks bring messages into a
    /// turn of Claude Code at the same points as its inbox would.
    pub const fn joins_turns(self) -> bool {
        !matches!(self, Self::Inbox)
    }

    /// Whether the client answers from its own state: its record counts as soon as it can be read,
    /// and a text that it does not have can be handed over again. Otherwise the record counts some
    /// time after the text was handed over.
    pub const fn answers_for_itself(self) -> bool {
        !matches!(self, Self::Inbox)
    }

    /// How often the way is tried for one message.
    pub const fn tries(self) -> u32 {
        if self.answers_for_itself() { 2 } else { 1 }
    }

    /// Whether what waits in the client still waits there after its process has ended.
    pub const fn keeps_queue(self) -> bool {
        matches!(self, Self::AppServer)
    }
}

/// When a message reaches its receiver's model, as it stands when the message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedDelivery {
    /// In the turn under way: with its next tool call, or when its turn ends.
    Now,
    /// At once: its session is idle, and the message wakes it.
    Wakes,
    /// In its next turn: it is in one that may take no message, or nothing wakes it, or no hooks
    /// tell of its session.
    NextTurn,
    /// When it is back: it is offline.
    WhenBack,
    /// Not at all: its agent has ended.
    Never,
}

impl ExpectedDelivery {
    /// `reaches_each_turn`: its client's hooks hand messages over in every turn, if only at the
    /// turn's end. `wakes`: a process waits beside its idle session.
    pub const fn from_status(status: PeerStatus, reaches_each_turn: bool, wakes: bool) -> Self {
        match status {
            PeerStatus::Unreachable | PeerStatus::Offline => Self::WhenBack,
            _ if !reaches_each_turn => Self::NextTurn,
            PeerStatus::Busy | PeerStatus::Waiting => Self::Now,
            PeerStatus::Online | PeerStatus::Idle if wakes => Self::Wakes,
            PeerStatus::Online | PeerStatus::Idle => Self::NextTurn,
        }
    }
}

/// A message as it was stored, and when it will reach its receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SentMessage {
    /// The message.
    #[serde(flatten)]
    pub message: Message,
    /// When it reaches the receiver's model.
    pub delivery: ExpectedDelivery,
}

#[cfg(test)]
impl Message {
    /// A message from `peer_1` to `peer_2`.
    pub(crate) fn example(kind: MessageType, text: &str) -> Self {
        Self {
            id: MessageId::from("msg_1".to_owned()),
            kind,
            from_peer: "peer_1".to_owned(),
            to_peer: PeerId::from("peer_2".to_owned()),
            text: text.to_owned(),
            correlation_id: None,
            timestamp: Timestamp::from_millis(0),
            state: DeliveryState::Queued,
            provenance: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DeliveryState::{
        Accepted, Acked, Expired, Injected, Offered, Queued, Undeliverable,
    };

    #[test]
    fn no_state_is_skipped_and_none_goes_back() {
        for (from, to, path) in [
            (Queued, Offered, &[Offered][..]),
            (Queued, Acked, &[Offered, Injected, Acked]),
            (Accepted, Queued, &[Queued]),
            (Acked, Acked, &[]),
            (Acked, Offered, &[]),
            (Expired, Acked, &[]),
            (Offered, Undeliverable, &[Undeliverable]),
            (Acked, Undeliverable, &[]),
        ] {
            assert_eq!(from.path_to(to), path, "{from:?} to {to:?}");
        }
    }

    #[test]
    fn the_sender_is_told_when_it_arrives() {
        use super::{ExpectedDelivery, PeerStatus};
        for (status, reaches_each_turn, wakes, is) in [
            (PeerStatus::Idle, true, true, "wakes"),
            (PeerStatus::Online, true, true, "wakes"),
            (PeerStatus::Idle, true, false, "next_turn"),
            (PeerStatus::Online, true, false, "next_turn"),
            (PeerStatus::Busy, true, true, "now"),
            (PeerStatus::Busy, true, false, "now"),
            (PeerStatus::Waiting, true, true, "now"),
            (PeerStatus::Unreachable, true, true, "when_back"),
            (PeerStatus::Offline, true, true, "when_back"),
            (PeerStatus::Offline, false, false, "when_back"),
            (PeerStatus::Busy, false, false, "next_turn"),
        ] {
            let delivery = ExpectedDelivery::from_status(status, reaches_each_turn, wakes);
            assert_eq!(serde_json::json!(delivery), is, "{status:?} {reaches_each_turn} {wakes}");
        }
    }
}
