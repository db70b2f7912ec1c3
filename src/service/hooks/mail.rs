//! Messages on their way into a session, by its hooks: `offered` when they are in what a hook prints, `injected` when the
//! session's next event shows that it went on with it. What a reader took out of the inbox is `offered`, too, and no
//! event shows anything about that.
//!
//! Each call of a hook has an id, and what it gives is marked with that. A call whose answer nobody saw takes it back.

use crate::{
    domain::{
        DeliveryState, Message, Peer, PeerId, Timestamp, limits,
        stamp::{Sender, neutralised},
    },
    service::{
        Error,
        team::{advance, note_unseen, stamp_of},
    },
    store::{StoreError, WriteTx},
};

/// Of one message, in characters: what is longer is read in the inbox.
const MOST_OF_ONE: usize = 3_000;
/// Of all together, in characters. The rest waits for the next event.
const MOST: usize = 7_500;
/// Messages that one event looks at.
const BATCH: u32 = 20;

/// The session goes on: with an event that arrived at `arrived` it shows that it has what hooks gave it before. What
/// was given since then may not have been printed yet.
pub(super) async fn confirm(
    tx: &mut WriteTx,
    peer: &PeerId,
    arrived: Timestamp,
) -> Result<(), StoreError> {
    let mut messages = tx.given_messages(peer, arrived).await?;
    advance(tx, peer, &mut messages, DeliveryState::Injected, None).await
}

/// Nobody saw, or will see, the answers to these calls of hooks: what the session was given with them it is given again.
pub(super) async fn take_back(
    tx: &mut WriteTx,
    session_id: &str,
    calls: &[String],
) -> Result<(), StoreError> {
    if calls.is_empty() {
        return Ok(());
    }
    tx.remember_lost(calls).await?;
    tx.take_back_seen(session_id, calls).await?;
    tx.take_back_reminders(session_id, calls).await?;
    let Some(row) = tx.peer_of_session(session_id).await? else { return Ok(()) };
    let unseen = tx.take_back_messages(&row.peer.peer_id, calls).await?;
    note_unseen(tx, &row.peer.peer_id, &unseen).await
}

/// What waits for a peer, as text for its model, given by this call of a hook; `None` if nothing does. A session that begins anew may never have
/// seen what it was given before: with `again` it is given that once more.
pub(super) async fn offer(
    tx: &mut WriteTx,
    peer: &Peer,
    (call, again): (&str, bool),
    lease: std::time::Duration,
) -> Result<Option<String>, Error> {
    let waiting = tx.undelivered_messages(&peer.peer_id, again, BATCH).await?;
    let mut given: Vec<Message> = Vec::new();
    let mut text = String::new();
    for message in waiting {
        let from = sender(tx, &message.from_peer).await?;
        let one = written(&message, &stamp_of(&message, &from, peer));
        if !text.is_empty() && text.chars().count() + one.chars().count() > MOST {
            break;
        }
        text.push_str(&one);
        given.push(message);
    }
    if given.is_empty() {
        return Ok(None);
    }
    let ids: Vec<_> = given.iter().map(|message| message.id.clone()).collect();
    let until = tx.now().plus(lease);
    tx.lease_messages(&ids, until, Some(call)).await?;
    advance(tx, &peer.peer_id, &mut given, DeliveryState::Offered, None).await?;
    let count = given.len();
    let (noun, them) = if count == 1 { ("message", "it") } else { ("messages", "them") };
    let me = &peer.peer_id;
    Ok(Some(format!(
        "{count} {noun} for you, peer {me} ({}), from svc. {text}\n\nAnswer with peer_send (to, type \"response\", \
         correlation_id: the message's id). When you have dealt with {them}, say so: peer_ack (peer_id {me}, ids).",
        peer.display_name
    )))
}

async fn sender(tx: &mut WriteTx, from: &str) -> Result<Sender, StoreError> {
    let peer = match PeerId::parse(from) {
        Some(id) => tx.peer(&id).await?.map(|row| row.peer),
        None => None,
    };
    Ok(Sender::new(from, peer.as_ref()))
}

fn written(message: &Message, stamp: &str) -> String {
    let text = &message.text;
    let long = text.chars().count() > MOST_OF_ONE;
    let shown: String = text.chars().take(MOST_OF_ONE).collect();
    let mut written = format!(
        "\n\n--- message {}, {}, {}",
        message.id,
        serde_json::to_string(&message.kind).unwrap_or_default().trim_matches('"'),
        message.timestamp,
    );
    if let Some(answers) = &message.correlation_id {
        written.push_str(", correlation_id ");
        written.extend(answers.chars().filter(|c| !c.is_control()).take(limits::ID_BYTES));
    }
    written.push('\n');
    written.push_str(stamp);
    written.push('\n');
    written.push_str(&neutralised(&shown));
    if long {
        let bytes = text.len();
        let note = format!("\n[cut: {bytes} bytes in all; peer_inbox with peek shows them]");
        written.push_str(&note);
    }
    written.push_str("\n---");
    written
}
