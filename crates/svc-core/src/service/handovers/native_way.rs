//! What a client's own way to its sessions is.

use std::fmt::Debug;

use futures_util::future::BoxFuture;
use svc_model::{
    HandoverId, HandoverWay, MessageId, PeerId, Principal, ProcessIdentity, hook::HookClient,
    quote::ModelText,
};

/// A session in a client's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) struct NativeSession {
    pub(in crate::service) peer: PeerId,
    /// As in its peer.
    pub(in crate::service) backend: String,
    /// The client's own id of it.
    pub(in crate::service) session_id: String,
    /// Where its hooks or `svc stdio` came from.
    pub(in crate::service) process: ProcessIdentity,
    pub(in crate::service) owner: Option<Principal>,
}

/// A text for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) struct NativeText {
    /// Ours, and unique: a way that takes an id of the sender gives it this one.
    pub(in crate::service) id: HandoverId,
    pub(in crate::service) text: ModelText,
    /// Whether it is for the turn under way.
    pub(in crate::service) joins_turn: bool,
}

/// What is known at once of a text that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum NativeDelivery {
    /// The client has it, in its queue at least.
    Taken,
    /// It certainly has not.
    NotTaken,
    /// It may have it: its own record decides.
    Unknown,
}

/// Messages that are looked for in a client's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) struct NativeQuestion {
    pub(in crate::service) id: HandoverId,
    /// Each with the words of its stamp that name it and no other.
    pub(in crate::service) marks: Vec<(MessageId, String)>,
    /// What [`NativeWay::record`] gave before the text was handed over.
    pub(in crate::service) record: Option<String>,
}

/// What a client's own record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) enum NativeRecord {
    /// What it knows of these messages. Of others it knows nothing.
    Shows {
        /// They are in the conversation.
        read: Vec<MessageId>,
        /// They wait in the client.
        waiting: Vec<MessageId>,
        /// The client has begun a prompt with them that is not in the conversation yet.
        begun: Vec<MessageId>,
    },
    /// It cannot be read now.
    Unreadable,
}

/// The fixed properties of a client's own way.
#[derive(Debug, Clone, Copy)]
pub(in crate::service) struct NativeTraits {
    pub(in crate::service) via: HandoverWay,
    /// The client whose sessions the way reaches.
    pub(in crate::service) client: HookClient,
    /// Whether a text that comes in a turn is read in that turn.
    pub(in crate::service) joins_turns: bool,
    /// How often the way is tried for one message. A client that answers for itself can be given a
    /// text again which it does not know.
    pub(in crate::service) tries: u32,
    /// Whether the client answers from its own state, so that its record counts as soon as it can
    /// be read. Otherwise the record counts some time after the text was handed over.
    pub(in crate::service) answers_for_itself: bool,
    /// Whether what waits in the client still waits there after its process has ended.
    pub(in crate::service) keeps_queue: bool,
}

/// A client's own way to its sessions. Nothing here writes to the store.
pub(in crate::service) trait NativeWay: Debug + Send + Sync {
    fn traits(&self) -> NativeTraits;

    /// Whether a text can be handed to this session now.
    fn is_open<'a>(&'a self, session: &'a NativeSession) -> BoxFuture<'a, bool>;

    /// Where the record of this session is, if that can be read without the client.
    fn record<'a>(&'a self, session: &'a NativeSession) -> BoxFuture<'a, Option<String>>;

    /// Hands a text over. The row that says so is committed.
    fn deliver<'a>(
        &'a self,
        session: &'a NativeSession,
        text: &'a NativeText,
    ) -> BoxFuture<'a, NativeDelivery>;

    /// What the client's record says of messages that were handed over. `None` for the session
    /// means that its client is gone.
    fn record_shows<'a>(
        &'a self,
        session: Option<&'a NativeSession>,
        question: &'a NativeQuestion,
    ) -> BoxFuture<'a, NativeRecord>;
}
