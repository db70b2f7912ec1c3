//! What a client's own way to its sessions is.

use std::fmt::Debug;

use futures_util::future::BoxFuture;
use svc_model::{
    HandoverId, HandoverWay, MessageId, PeerId, Principal, ProcessIdentity, quote::ModelText,
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

/// Messages of which a client's record is asked.
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
    /// These messages are in the conversation, and those wait in the client. It knows no others.
    Shows { read: Vec<MessageId>, waiting: Vec<MessageId> },
    /// It cannot be read now.
    Unreadable,
}

/// A client's own way to its sessions. Nothing here writes to the store.
pub(in crate::service) trait NativeWay: Debug + Send + Sync {
    fn via(&self) -> HandoverWay;

    /// The clients that have it, as `backend` of their peers.
    fn backend(&self) -> &'static str;

    /// Whether a text goes into a turn that is under way, and is read in it.
    fn joins_turns(&self) -> bool;

    /// How often it is tried for one message.
    fn tries(&self) -> u32;

    /// Whether the client itself answers for what it was given, so that its record counts as soon
    /// as it can be read. Otherwise it counts some time after the text was handed over.
    fn answers_for_itself(&self) -> bool;

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
