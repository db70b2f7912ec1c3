//! Chooses the messages that a session gets together, and makes one text of them. A message is
//! `offered` when it is in such a text. If the text was the reply to a hook, the session's next
//! event shows that the session continued with it, and the message becomes `injected`. A message
//! that was read in the inbox is `offered`, too, but no event shows whether the model has it.

use std::time::Duration;

use svc_model::{
    DeliveryState, Message, MessageId, MessageType, Peer, PeerId, Timestamp,
    hook::{MailDigest, MailOffer, headline},
    quote::ModelText,
    stamp::{self, MessageSender},
};
use svc_store::{PeerRow, StoreError, UndeliveredChoice, WriteTx};

use crate::service::{
    Result,
    core::Tuning,
    team::{advance, ids_of},
};

/// Bound on the messages that one event reads.
const BATCH: u32 = 20;
/// Bound on the messages that are counted as waiting.
const COUNTED: u32 = 1_000;

/// Messages that one reply hands over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedMail {
    pub text: ModelText,
    /// Names the sender; goes above the text of a wake. Empty if the name does not fit there.
    pub wake_line: ModelText,
    /// For each of these messages, a line for the person.
    pub headlines: Vec<ModelText>,
    /// How many messages wait besides these.
    pub others: usize,
    pub(in crate::service) ids: Vec<MessageId>,
}

/// Notes that a session has what hooks gave it before this event, which arrived at `arrived`. Text
/// that was given after that may not have been printed yet. Returns the confirmed messages.
pub(in crate::service) async fn confirm_given(
    tx: &mut WriteTx,
    peer: &PeerId,
    arrived: Timestamp,
) -> Result<Vec<Message>, StoreError> {
    let mut messages = tx.inboxes().given(peer, arrived).await?;
    advance(tx, peer, &mut messages, DeliveryState::Injected, None).await?;
    Ok(messages)
}

/// The lines for the person at the terminal about the messages of `given` whose stamps are in
/// `prompt`: these messages woke the session.
pub(in crate::service) async fn headlines_of_wake(
    tx: &mut WriteTx,
    given: &[Message],
    prompt: &str,
) -> Result<Vec<ModelText>, StoreError> {
    let mut lines = Vec::new();
    for message in given {
        if prompt.contains(stamp::naming(&message.id).as_str()) {
            lines.push(headline(message, &name_of(tx, &message.from_peer).await?));
        }
    }
    Ok(lines)
}

/// The turn in which messages are handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum TurnOfMail {
    /// A person began the turn, and it is under way: its end answers no question.
    Person,
    /// The turn begins with these messages. Its last text answers one question, so only one
    /// question is handed over.
    Begins,
    /// The turn began with a question. Its last text answers that question, so no other is handed
    /// over.
    BegunByQuestion,
}

/// The means by which messages are given.
#[derive(Clone, Copy)]
pub(in crate::service) struct MailGiver<'a> {
    /// The id of the event whose reply has the messages, or of the hand-over.
    pub(in crate::service) id: &'a str,
    pub(in crate::service) via: &'a str,
    /// Chooses messages by how often a client's own way has failed for them: minimum and maximum.
    pub(in crate::service) failed_handovers: (u32, u32),
}

impl<'a> MailGiver<'a> {
    /// The reply to an event of a hook, which takes all messages, however often another way failed.
    pub(in crate::service) const fn hook(id: &'a str) -> Self {
        Self { id, via: "hook", failed_handovers: (0, u32::MAX) }
    }
}

/// Hands over messages of a peer's inbox and leases them to `giver`; `None` if there is nothing to
/// hand over. If a turn begins with them, senders that have reached their bound of begun turns are
/// left out, so that two agents do not answer each other for ever.
pub(in crate::service) async fn hand_over(
    tx: &mut WriteTx,
    peer: &Peer,
    giver: MailGiver<'_>,
    (offer, turn): (MailOffer, TurnOfMail),
    tuning: &Tuning,
) -> Result<Option<HandedMail>> {
    if offer == MailOffer::Nothing {
        return Ok(None);
    }
    let with_given = matches!(offer, MailOffer::NewAndGiven | MailOffer::NewAndGivenNews);
    let excluded = match turn {
        TurnOfMail::Begins => {
            tx.inboxes().senders_at_wake_bound(&peer.peer_id, tuning.wakes).await?
        }
        TurnOfMail::Person | TurnOfMail::BegunByQuestion => Vec::new(),
    };
    let chosen = UndeliveredChoice { excluded, failed_handovers: giver.failed_handovers };
    let mut messages = tx.inboxes().undelivered(&peer.peer_id, with_given, &chosen, BATCH).await?;
    if offer == MailOffer::NewAndGivenNews {
        // Ends the leases of questions that were given before the session was restarted: nothing
        // shows that the model has them, and no turn began with them.
        let questions = messages.extract_if(.., |message| message.kind == MessageType::Query);
        let offered = questions.filter(|question| question.state == DeliveryState::Offered);
        let (ids, now) = (ids_of(&offered.collect::<Vec<_>>()), tx.now());
        tx.inboxes().lease(&ids, now, None).await?;
        tx.messages().note_turn(&ids, false).await?;
    }
    give(tx, peer, giver, (messages, turn), tuning.lease).await
}

/// Hands over as many of these messages as one text holds and the turn takes. Messages that do not
/// wake the session begin no turn without others.
async fn give(
    tx: &mut WriteTx,
    peer: &Peer,
    giver: MailGiver<'_>,
    (messages, turn): (Vec<Message>, TurnOfMail),
    lease: Duration,
) -> Result<Option<HandedMail>> {
    let begins_turn = turn != TurnOfMail::Person;
    let mut has_question = turn == TurnOfMail::BegunByQuestion;
    let mut digest = MailDigest::default();
    let mut others = 0;
    let is_batch_full = messages.len() >= BATCH as usize;
    for message in messages {
        let from = peer_of(tx, &message.from_peer).await?;
        let sender = MessageSender::new(&message.from_peer, from.as_ref().map(|row| &row.peer))
            .with_owner(from.as_ref().and_then(|row| row.owner.as_deref()));
        let answered = match message.answered() {
            Some(first) => tx.messages().get(&first).await?.map(|first| first.kind),
            None => None,
        };
        let stamp = stamp::stamp(&message, &sender, answered, begins_turn);
        let is_question = message.kind == MessageType::Query;
        let is_held = begins_turn && has_question && is_question;
        if others > 0 || is_held || !digest.add(message, &stamp) {
            others += 1;
        } else {
            has_question |= is_question;
        }
    }
    let Some(first) = digest.messages().first() else { return Ok(None) };
    let ids = ids_of(digest.messages());
    if turn == TurnOfMail::Begins && tx.inboxes().sleeping(&ids).await?.len() == ids.len() {
        return Ok(None);
    }
    if is_batch_full {
        let waiting = tx.inboxes().waiting(&peer.peer_id, COUNTED).await?;
        let new = waiting.iter().filter(|message| message.state < DeliveryState::Injected);
        others = new.count().saturating_sub(digest.messages().len());
    }
    let wake_line = digest.wake_line(&name_of(tx, &first.from_peer).await?);
    let mut headlines = Vec::new();
    for message in digest.messages() {
        headlines.push(headline(message, &name_of(tx, &message.from_peer).await?));
    }
    let until = tx.now().plus(lease);
    tx.inboxes().lease(&ids, until, Some(giver.id)).await?;
    // A turn that a question began takes no further question, so only `Begins` marks questions.
    tx.messages().note_turn(&ids, turn == TurnOfMail::Begins).await?;
    advance(tx, &peer.peer_id, digest.messages_mut(), DeliveryState::Offered, None).await?;
    tx.messages().note_via(&ids, giver.via).await?;
    Ok(Some(HandedMail { text: digest.text(), wake_line, headlines, others, ids }))
}

/// The name of a sender, for people.
async fn name_of(tx: &mut WriteTx, from: &str) -> Result<String, StoreError> {
    let peer = peer_of(tx, from).await?;
    Ok(peer.map_or_else(|| from.to_owned(), |row| row.peer.display_name))
}

async fn peer_of(tx: &mut WriteTx, from: &str) -> Result<Option<PeerRow>, StoreError> {
    match PeerId::parse(from) {
        Some(id) => tx.peers().get(&id).await,
        None => Ok(None),
    }
}
