//! Messages between peers, and the states of their delivery.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    MessageId, NOT_BLANK, PeerId, PeerStatus, Timestamp, conversation::Provenance, limits,
};

/// A stored message.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// When it was accepted.
    pub timestamp: Timestamp,
    /// Present state of its delivery.
    pub state: DeliveryState,
    /// Where it comes from, as the daemon knows it; absent of messages from before that was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

impl Message {
    /// Whether it is a question whose delivery did not end without an answer.
    pub const fn may_be_answered(&self) -> bool {
        let is_lost = matches!(
            self.state,
            DeliveryState::Expired | DeliveryState::Refused | DeliveryState::Undeliverable
        );
        matches!(self.kind, MessageType::Query) && !is_lost
    }

    /// The message that this answer names; `None` if it is no answer, or names none.
    pub fn answered(&self) -> Option<MessageId> {
        let first = self.correlation_id.clone().filter(|_| self.kind == MessageType::Response);
        first.map(MessageId::from)
    }
}

/// A message to be sent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
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
    /// A repeat with the same key sends nothing and returns the first message.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub idempotency_key: Option<String>,
    /// The sender; your own peer by default. Only the operator may choose another.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub from_peer: Option<String>,
    /// Do not wake it.
    #[serde(default)]
    pub no_wake: bool,
}

/// Kind of message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MessageType {
    /// Wants an answer.
    Query,
    /// Is an answer.
    Response,
    /// Wants none.
    Notification,
    /// Went to many.
    Broadcast,
}

impl MessageType {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Response => "response",
            Self::Notification => "notification",
            Self::Broadcast => "broadcast",
        }
    }
}

/// State of a delivery. `accepted → queued → offered → injected → acked`, none skipped; or one of
/// the last three, with a reason.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// The daemon took it.
    Accepted,
    /// It is on the disk, in the receiver's inbox.
    Queued,
    /// The receiver's client was given it.
    Offered,
    /// The receiver has it before its eyes.
    Injected,
    /// The receiver said so.
    Acked,
    /// It waited too long.
    Expired,
    /// The receiver, or its full inbox, did not take it.
    Refused,
    /// The receiver is gone.
    Undeliverable,
}

impl DeliveryState {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Queued => "queued",
            Self::Offered => "offered",
            Self::Injected => "injected",
            Self::Acked => "acked",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Undeliverable => "undeliverable",
        }
    }

    /// Whether nothing follows it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Acked | Self::Expired | Self::Refused | Self::Undeliverable)
    }

    /// The states to pass through on the way to `to`, `to` included. Empty if it is no way forward.
    pub fn path_to(self, to: Self) -> &'static [Self] {
        use DeliveryState::{Accepted, Acked, Injected, Offered, Queued};
        const WAY: [DeliveryState; 5] = [Accepted, Queued, Offered, Injected, Acked];
        const ENDS: [DeliveryState; 3] =
            [DeliveryState::Expired, DeliveryState::Refused, DeliveryState::Undeliverable];
        let rank = |state| WAY.iter().position(|&step| step == state);
        if let Some(end) = ENDS.iter().position(|&end| end == to) {
            // From anywhere on the way, at once.
            return if self.is_terminal() { &[] } else { &ENDS[end..=end] };
        }
        match (rank(self), rank(to)) {
            (Some(from), Some(to)) if from < to => &WAY[from + 1..=to],
            _ => &[],
        }
    }
}

/// A state that a delivery reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delivery {
    /// The state.
    pub state: DeliveryState,
    /// When it was reached.
    pub at: Timestamp,
    /// Why, for the states that end a delivery without success, and of what the client keeps for its
    /// person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The way by which it was offered: `hook`, or the client's own: `plugin`, `inbox`,
    /// `app-server`. Absent if the receiver read its inbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// A client's own way to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandoverWay {
    /// The plugin in the client's process.
    Plugin,
    /// The session's inbox, a socket.
    Inbox,
    /// The client's server of its sessions.
    AppServer,
}

impl HandoverWay {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Inbox => "inbox",
            Self::AppServer => "app-server",
        }
    }

    /// Whether the client tells of a prompt by a hook before it keeps the prompt: killed between
    /// the two, it has lost it.
    pub const fn records_after_hook(self) -> bool {
        matches!(self, Self::Inbox | Self::Plugin)
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
    /// The rule. `reaches_each_turn`: its client's hooks hand messages over in every turn, if only
    /// at its end. `wakes`: a process waits beside its idle session.
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
