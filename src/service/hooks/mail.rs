//! Messages on their way into a session, by its hooks. A message is `offered` when a reply holds it, and `injected` when
//! the session's next event shows that it went on with that. A message that was read in the inbox is `offered`, too, and
//! no event shows anything about it.

use std::time::Duration;

use crate::{
    domain::{
        DeliveryState, Message, MessageType, Peer, PeerId, Timestamp,
        hook::{MailDigest, MailOffer, headline},
        quote::ModelText,
        stamp::{self, MessageSender},
    },
    service::{Error, team::advance},
    store::{PeerRow, StoreError, WriteTx},
};

/// Messages that one event looks at.
const BATCH: u32 = 20;

/// Longest excerpt of a message in the line that a person sees, in bytes.
const EXCERPT_BYTES: usize = 100;
/// The same in the line that stands before the messages.
const SHORT_EXCERPT_BYTES: usize = 48;

/// Messages that are handed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedMail {
    /// For the model.
    pub text: ModelText,
    /// One line, for the person.
    pub headline: ModelText,
}

/// Notes that a session has what hooks gave it before this event, which arrived at `arrived`. What was given since then may
/// not have been printed yet. Answers which messages these are.
pub(super) async fn confirm_given(
    tx: &mut WriteTx,
    peer: &PeerId,
    arrived: Timestamp,
) -> Result<Vec<Message>, StoreError> {
    let mut messages = tx.given_messages(peer, arrived).await?;
    advance(tx, peer, &mut messages, DeliveryState::Injected, None).await?;
    Ok(messages)
}

/// The line for a person at whose terminal these messages woke the session, which `prompt` began; `None` if none of them did.
/// Such a prompt has the line that the waiter printed.
pub(super) async fn headline_of_wake(
    tx: &mut WriteTx,
    messages: &[Message],
    prompt: &str,
) -> Result<Option<ModelText>, StoreError> {
    for first in messages {
        let name = name_of(tx, &first.from_peer).await?;
        // The one without others is the beginning of those with some.
        for others in (0..BATCH as usize).rev() {
            let printed = headline(first, &name, others, SHORT_EXCERPT_BYTES);
            if prompt.contains(printed.as_str()) {
                return Ok(Some(headline(first, &name, others, EXCERPT_BYTES)));
            }
        }
    }
    Ok(None)
}

/// Hands messages of a peer's inbox over with the reply to `hook_id`, which leases them; `None` if there is nothing to hand
/// over.
pub(super) async fn hand_over(
    tx: &mut WriteTx,
    peer: &Peer,
    hook_id: &str,
    offer: MailOffer,
    lease: Duration,
) -> Result<Option<HandedMail>, Error> {
    let with_given = match offer {
        MailOffer::Nothing => return Ok(None),
        MailOffer::New => false,
        MailOffer::NewAndGiven => true,
    };
    let messages = tx.undelivered_messages(&peer.peer_id, with_given, BATCH).await?;
    give(tx, peer, hook_id, messages, lease).await
}

/// Hands over the questions that the hook of the session's start gave: nothing shows that the model has them, and no turn
/// began. `None` if there are none.
pub(super) async fn hand_over_questions_of_start(
    tx: &mut WriteTx,
    peer: &Peer,
    hook_id: &str,
    lease: Duration,
) -> Result<Option<HandedMail>, Error> {
    let mut messages = tx.given_messages(&peer.peer_id, tx.now()).await?;
    messages.retain(|message| message.kind == MessageType::Query);
    give(tx, peer, hook_id, messages, lease).await
}

/// Gives these messages with the reply to `hook_id`, as many as one reply holds.
async fn give(
    tx: &mut WriteTx,
    peer: &Peer,
    hook_id: &str,
    messages: Vec<Message>,
    lease: Duration,
) -> Result<Option<HandedMail>, Error> {
    let mut digest = MailDigest::default();
    for message in messages {
        let sender = sender(tx, &message.from_peer).await?;
        let stamp = stamp::stamp(&message, &sender);
        if !digest.add(message, &stamp) {
            break;
        }
    }
    let Some(first) = digest.messages().first() else { return Ok(None) };
    let name = name_of(tx, &first.from_peer).await?;
    let headline = headline(first, &name, digest.messages().len() - 1, SHORT_EXCERPT_BYTES);
    let ids: Vec<_> = digest.messages().iter().map(|message| message.id.clone()).collect();
    let until = tx.now().plus(lease);
    tx.lease_messages(&ids, until, Some(hook_id)).await?;
    advance(tx, &peer.peer_id, digest.messages_mut(), DeliveryState::Offered, None).await?;
    Ok(Some(HandedMail { text: digest.text(), headline }))
}

async fn sender(tx: &mut WriteTx, from: &str) -> Result<MessageSender, StoreError> {
    let row = peer_of(tx, from).await?;
    let sender = MessageSender::new(from, row.as_ref().map(|row| &row.peer));
    Ok(sender.with_owner(row.as_ref().and_then(|row| row.owner.as_deref())))
}

/// The name of a sender, for people.
async fn name_of(tx: &mut WriteTx, from: &str) -> Result<String, StoreError> {
    let peer = peer_of(tx, from).await?;
    Ok(peer.map_or_else(|| from.to_owned(), |row| row.peer.display_name))
}

async fn peer_of(tx: &mut WriteTx, from: &str) -> Result<Option<PeerRow>, StoreError> {
    match PeerId::parse(from) {
        Some(id) => tx.peer(&id).await,
        None => Ok(None),
    }
}
