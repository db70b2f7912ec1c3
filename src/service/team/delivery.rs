//! Delivery of messages: how one gets into an inbox, the states that it passes, and their events in the receiver's
//! stream. All of this is part of a write job.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;

use crate::{
    domain::{
        DeliveryState, Ids, Message, MessageId, MessageType, NewEvent, NewMessage, PeerId,
        Principal, StreamName, StreamVisibility, limits,
        quote::ModelText,
        stamp::{self, MessageSender},
    },
    service::Error,
    store::{StoreError, WriteTx},
};

/// Stores a message for `to`, or finds the one that was stored for its key; `None` if the inbox is full.
pub(in crate::service) async fn deliver(
    tx: &mut WriteTx,
    ids: &Ids,
    from: &str,
    to: PeerId,
    kind: MessageType,
    input: &NewMessage,
    bound: u32,
) -> Result<Option<Message>, Error> {
    if let Some(key) = &input.idempotency_key
        && let Some(stored) = tx.message_by_key(from, &to, key).await?
    {
        return Ok(Some(stored));
    }
    if tx.inbox_full(&to, bound).await? {
        return Ok(None);
    }
    let key = input.idempotency_key.as_deref();
    let mut message = accept(tx, ids, from, &to, kind, input, key).await?;
    advance(tx, &to, std::slice::from_mut(&mut message), DeliveryState::Queued, None).await?;
    Ok(Some(message))
}

/// A broadcast on its way: its copies are stored by many write jobs, and its text by the first that stores one.
#[derive(Debug)]
pub(in crate::service) struct Broadcast {
    pub(in crate::service) from: String,
    pub(in crate::service) input: Arc<NewMessage>,
    /// Row of the text; `None` before the first copy.
    pub(in crate::service) text_id: Option<i64>,
}

/// Stores a broadcast for each of these receivers; answers how many have it now.
pub(in crate::service) async fn deliver_copies(
    tx: &mut WriteTx,
    ids: &Ids,
    broadcast: &mut Broadcast,
    mut to: Vec<PeerId>,
    bound: u32,
) -> Result<u64, StoreError> {
    let (from, input) = (&broadcast.from, &broadcast.input);
    let receivers = to.len();
    let key = input.idempotency_key.as_deref();
    if let Some(key) = key {
        let known = tx.receivers_of_key(from, &to, key).await?;
        to.retain(|peer| !known.contains(peer));
    }
    let full = tx.full_inboxes(&to, bound).await?;
    to.retain(|peer| !full.contains(peer));
    let refused = full.len();
    let key = key.map(str::to_owned);
    accept_copies(tx, ids, broadcast, to, key.as_deref(), (DeliveryState::Queued, None)).await?;
    // Without the message's key: a repeat may find room.
    let refusal = (DeliveryState::Refused, Some("the inbox is full"));
    accept_copies(tx, ids, broadcast, full, None, refusal).await?;
    Ok(u64::try_from(receivers - refused).unwrap_or(u64::MAX))
}

/// Stores a broadcast for each of these receivers, and moves the deliveries on to `state` for `reason`.
async fn accept_copies(
    tx: &mut WriteTx,
    ids: &Ids,
    broadcast: &mut Broadcast,
    to: Vec<PeerId>,
    key: Option<&str>,
    (state, reason): (DeliveryState, Option<&'static str>),
) -> Result<(), StoreError> {
    let now = tx.now();
    let copies: Vec<(MessageId, PeerId)> =
        to.into_iter().map(|peer| (MessageId::new(ids, now), peer)).collect();
    let Some((first, receiver)) = copies.first() else { return Ok(()) };
    let mut message = Message {
        id: first.clone(),
        kind: MessageType::Broadcast,
        from_peer: broadcast.from.clone(),
        to_peer: receiver.clone(),
        text: String::new(),
        correlation_id: broadcast.input.correlation_id.clone(),
        timestamp: now,
        state: DeliveryState::Accepted,
    };
    let text_id = match broadcast.text_id {
        Some(id) => id,
        None => tx.insert_shared_text(&broadcast.input.text).await?,
    };
    broadcast.text_id = Some(text_id);
    tx.insert_copies(&message, &copies, text_id, key).await?;
    let message_ids: Vec<MessageId> = copies.iter().map(|(id, _)| id.clone()).collect();
    let path = [&[message.state][..], message.state.path_to(state)].concat();
    tx.advance_messages(&message_ids, &path[..1], None).await?;
    tx.advance_messages(&message_ids, &path[1..], reason).await?;
    message.state = state;
    for (id, peer) in copies {
        message.id = id;
        message.to_peer = peer;
        let event = delivery_event(&message, reason);
        append_to_peer(tx, &message.to_peer, vec![event]).await?;
    }
    Ok(())
}

/// Stores the message that the daemon makes of what a sender gave it: its first state.
async fn accept(
    tx: &mut WriteTx,
    ids: &Ids,
    from: &str,
    to: &PeerId,
    kind: MessageType,
    input: &NewMessage,
    key: Option<&str>,
) -> Result<Message, StoreError> {
    let message = Message {
        id: MessageId::new(ids, tx.now()),
        kind,
        from_peer: from.to_owned(),
        to_peer: to.clone(),
        text: input.text.clone(),
        correlation_id: input.correlation_id.clone(),
        timestamp: tx.now(),
        state: DeliveryState::Accepted,
    };
    tx.insert_message(&message, key).await?;
    tx.advance_messages(std::slice::from_ref(&message.id), &[message.state], None).await?;
    Ok(message)
}

/// The stamp on a message.
pub(in crate::service) fn stamp_of(message: &Message, from: &MessageSender) -> ModelText {
    let tool = if message.kind == MessageType::Broadcast { "peer_broadcast" } else { "peer_send" };
    stamp::stamp(&message.id, message.kind, from, tool)
}

/// Moves messages of one inbox forward to `state`, through those in between, and says so in the receiver's stream.
/// Those for which it is no way forward stay as they are.
pub(in crate::service) async fn advance(
    tx: &mut WriteTx,
    to: &PeerId,
    messages: &mut [Message],
    state: DeliveryState,
    reason: Option<&'static str>,
) -> Result<(), StoreError> {
    let mut events = Vec::new();
    let present: BTreeSet<_> = messages.iter().map(|message| message.state).collect();
    for from in present {
        let path = from.path_to(state);
        if path.is_empty() {
            continue;
        }
        let moved = messages.iter_mut().filter(|message| message.state == from);
        let mut ids = Vec::new();
        for message in moved {
            message.state = state;
            ids.push(message.id.clone());
            events.push(delivery_event(message, reason));
        }
        tx.advance_messages(&ids, path, reason).await?;
    }
    append_to_peer(tx, to, events).await
}

/// Says that messages of one inbox, which were given, were not seen. Their states stay; who waits for mail looks again.
pub(in crate::service) async fn note_unseen(
    tx: &mut WriteTx,
    to: &PeerId,
    messages: &[Message],
) -> Result<(), StoreError> {
    let events = messages.iter().map(|message| event_of("message.unseen", message, None)).collect();
    append_to_peer(tx, to, events).await
}

async fn append_to_peer(
    tx: &mut WriteTx,
    to: &PeerId,
    events: Vec<NewEvent>,
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let stream = StreamName::of("peer", to);
    // It was opened with the peer; that of a peer of long ago may be missing, and is the operator's then.
    tx.open_stream(&stream, &StreamVisibility::private(&Principal::Operator)).await?;
    tx.append(&stream, events).await?;
    Ok(())
}

/// The event of a delivery.
fn delivery_event(message: &Message, reason: Option<&'static str>) -> NewEvent {
    let kind = match message.state {
        DeliveryState::Queued => "message.queued",
        DeliveryState::Offered => "message.offered",
        DeliveryState::Injected => "message.injected",
        DeliveryState::Acked => "message.acked",
        DeliveryState::Refused => "message.refused",
        _ => "message.undeliverable",
    };
    event_of(kind, message, reason)
}

/// Without the text: whoever may read the log may not read everybody's messages.
fn event_of(kind: &'static str, message: &Message, reason: Option<&'static str>) -> NewEvent {
    let mut data = json!({
        "id": message.id, "type": message.kind, "from_peer": message.from_peer,
        "to_peer": message.to_peer, "state": message.state,
    });
    if let Some(reason) = reason {
        data["reason"] = reason.into();
    }
    NewEvent::new(kind, &data)
}

/// Ends deliveries that wait for a peer that is no more, as many as one write job may; answers whether more may wait.
pub(in crate::service) async fn give_up(
    tx: &mut WriteTx,
    peer: &PeerId,
    reason: &'static str,
) -> Result<bool, StoreError> {
    let limit = limits::ENDED_MESSAGES_PER_JOB;
    let mut messages = tx.waiting_messages(peer, limit).await?;
    let full = u32::try_from(messages.len()).is_ok_and(|len| len == limit);
    advance(tx, peer, &mut messages, DeliveryState::Undeliverable, Some(reason)).await?;
    Ok(full)
}
