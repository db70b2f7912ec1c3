//! Messages on their way into a session, by its hooks. A message is `offered` when a reply holds it, and `injected` when
//! the session's next event shows that it went on with that. A message that was read in the inbox is `offered`, too, and
//! no event shows anything about it.

use std::time::Duration;

use crate::{
    domain::{
        DeliveryState, Peer, PeerId, Timestamp,
        hook::{MailDigest, MailOffer},
        quote::ModelText,
        stamp::{self, MessageSender},
    },
    service::{Error, team::advance},
    store::{StoreError, WriteTx},
};

/// Messages that one event looks at.
const BATCH: u32 = 20;

/// Notes that a session has what hooks gave it before this event, which arrived at `arrived`. What was given since then may
/// not have been printed yet.
pub(super) async fn confirm_given(
    tx: &mut WriteTx,
    peer: &PeerId,
    arrived: Timestamp,
) -> Result<(), StoreError> {
    let mut messages = tx.given_messages(peer, arrived).await?;
    advance(tx, peer, &mut messages, DeliveryState::Injected, None).await
}

/// Hands messages of a peer's inbox over with the reply to `hook_id`, which leases them; `None` if there is nothing to hand
/// over.
pub(super) async fn hand_over(
    tx: &mut WriteTx,
    peer: &Peer,
    hook_id: &str,
    offer: MailOffer,
    lease: Duration,
) -> Result<Option<ModelText>, Error> {
    let with_given = match offer {
        MailOffer::Nothing => return Ok(None),
        MailOffer::New => false,
        MailOffer::NewAndGiven => true,
    };
    let mut digest = MailDigest::default();
    for message in tx.undelivered_messages(&peer.peer_id, with_given, BATCH).await? {
        let sender = sender(tx, &message.from_peer).await?;
        let stamp = stamp::stamp(&message, &sender);
        if !digest.add(message, &stamp) {
            break;
        }
    }
    if digest.messages().is_empty() {
        return Ok(None);
    }
    let ids: Vec<_> = digest.messages().iter().map(|message| message.id.clone()).collect();
    let until = tx.now().plus(lease);
    tx.lease_messages(&ids, until, Some(hook_id)).await?;
    advance(tx, &peer.peer_id, digest.messages_mut(), DeliveryState::Offered, None).await?;
    Ok(Some(digest.text()))
}

async fn sender(tx: &mut WriteTx, from: &str) -> Result<MessageSender, StoreError> {
    let peer = match PeerId::parse(from) {
        Some(id) => tx.peer(&id).await?.map(|row| row.peer),
        None => None,
    };
    Ok(MessageSender::new(from, peer.as_ref()))
}
