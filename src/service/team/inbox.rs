//! Messages: from a peer to a peer, through an inbox, with every state of the delivery on record.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::{
    Team,
    peers::{may_act_for, own_peer, peer_id},
};
use crate::{
    domain::{
        Caller, Delivery, DeliveryState, Ids, Message, MessageId, MessageType, NewEvent,
        NewMessage, Peer, PeerId, StreamName, limits,
        stamp::{self, MessageSender, neutralised},
    },
    service::{Error, ResourceKind, check},
    store::{StoreError, WriteTx},
};

/// What a reader finds in an inbox.
#[derive(Debug)]
pub struct Inbox {
    /// The messages, in the order of arrival.
    pub messages: Vec<Message>,
    /// Where the next page begins, if there is one and the reader only peeks.
    pub next_cursor: Option<String>,
}

/// A message as an agent reads it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Stamped {
    /// The message. What looks like a stamp in its text was made harmless.
    #[serde(flatten)]
    pub message: Message,
    /// Who it is from, by the sender's credential: the daemon wrote this, and nobody else can.
    pub stamp: String,
}

/// A message with the history of its delivery.
#[derive(Debug)]
pub struct MessageDetail {
    /// The message.
    pub message: Message,
    /// The states that it went through.
    pub states: Vec<Delivery>,
}

impl Team {
    /// Puts a message into a peer's inbox.
    pub async fn send_message(
        &self,
        caller: &Caller,
        to: &str,
        input: NewMessage,
    ) -> Result<Message, Error> {
        let to = peer_id(to, ResourceKind::Peer)?;
        check_message(&input)?;
        let (caller, ids, bound) =
            (caller.clone(), self.core.ids.clone(), self.core.tuning.inbox_max);
        self.core.store
            .write(move |tx| {
                Box::pin(async move {
                    if tx.peer(&to).await?.is_none() {
                        return Err(Error::not_found(ResourceKind::Peer, to.as_str()));
                    }
                    let from = sender(tx, &caller, input.from_peer.as_deref()).await?;
                    let kind = input.kind.unwrap_or(MessageType::Notification);
                    match deliver(tx, &ids, &from, to, kind, &input, bound).await? {
                        Some(message) => Ok(message),
                        None => Err(Error::LimitReached(format!(
                            "the inbox holds {bound} messages already; none was dropped to make room"
                        ))),
                    }
                })
            })
            .await
    }

    /// Puts a message into every inbox but the sender's, or into those of a circle. Answers how many took it; of each
    /// other there is a message that was refused.
    pub async fn broadcast(
        &self,
        caller: &Caller,
        circle: Option<String>,
        input: NewMessage,
    ) -> Result<u64, Error> {
        check_message(&input)?;
        let (caller, ids, bound) =
            (caller.clone(), self.core.ids.clone(), self.core.tuning.inbox_max);
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let from = sender(tx, &caller, input.from_peer.as_deref()).await?;
                    let mut delivered = 0;
                    for to in tx.peer_ids(circle.as_deref()).await? {
                        if to.as_str() == from {
                            continue;
                        }
                        let kind = MessageType::Broadcast;
                        let took =
                            deliver(tx, &ids, &from, to.clone(), kind, &input, bound).await?;
                        match took {
                            Some(_) => delivered += 1,
                            None => refuse(tx, &ids, &from, to, kind, &input).await?,
                        }
                    }
                    Ok(delivered)
                })
            })
            .await
    }

    /// Takes waiting messages out on lease: they come again after it unless they are acknowledged.
    pub async fn take_messages(
        &self,
        caller: &Caller,
        peer: &str,
        limit: Option<u32>,
    ) -> Result<Inbox, Error> {
        let peer = peer_id(peer, ResourceKind::Peer)?;
        let limit = check::limit(limit)?;
        let (caller, lease) = (caller.clone(), self.core.tuning.lease);
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    own_peer(tx, &caller, &peer, ResourceKind::Peer).await?;
                    let until = tx.now().plus(lease);
                    let mut messages = tx.free_messages(&peer, until, limit).await?;
                    let ids: Vec<_> = messages.iter().map(|message| message.id.clone()).collect();
                    tx.lease_messages(&ids, until, None).await?;
                    advance(tx, &peer, &mut messages, DeliveryState::Offered, None).await?;
                    Ok(Inbox { messages, next_cursor: None })
                })
            })
            .await
    }

    /// Looks into an inbox and leaves it as it is. Shows what is on lease, too.
    pub async fn peek_messages(
        &self,
        caller: &Caller,
        peer: &str,
        cursor: Option<&str>,
        limit: Option<u32>,
    ) -> Result<Inbox, Error> {
        let peer = peer_id(peer, ResourceKind::Peer)?;
        let limit = check::limit(limit)?;
        let after: i64 = check::cursor(cursor)?.unwrap_or(0);
        let row = self.core.store.peer(&peer).await?;
        may_act_for(
            caller,
            &row.ok_or_else(|| Error::not_found(ResourceKind::Peer, peer.as_str()))?,
        )?;
        let mut rows = self.core.store.inbox(&peer, after, limit + 1).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let next_cursor = rows.last().filter(|_| more).map(|row| check::make_cursor(&row.id));
        let messages = rows.into_iter().map(|row| row.message).collect();
        Ok(Inbox { messages, next_cursor })
    }

    /// The messages of a peer's inbox with their stamps.
    pub async fn stamped(&self, peer: &str, messages: Vec<Message>) -> Result<Vec<Stamped>, Error> {
        let id = peer_id(peer, ResourceKind::Peer)?;
        let to = self
            .core
            .store
            .peer(&id)
            .await?
            .ok_or_else(|| Error::not_found(ResourceKind::Peer, peer))?
            .peer;
        let mut senders: HashMap<String, MessageSender> = HashMap::new();
        let mut stamped = Vec::with_capacity(messages.len());
        for mut message in messages {
            if !senders.contains_key(&message.from_peer) {
                let peer = match PeerId::parse(&message.from_peer) {
                    Some(id) => self.core.store.peer(&id).await?.map(|row| row.peer),
                    None => None,
                };
                let sender = MessageSender::new(&message.from_peer, peer.as_ref());
                senders.insert(message.from_peer.clone(), sender);
            }
            let stamp = stamp_of(&message, &senders[&message.from_peer], &to);
            if let Cow::Owned(text) = neutralised(&message.text) {
                message.text = text;
            }
            stamped.push(Stamped { message, stamp });
        }
        Ok(stamped)
    }

    /// Says that the receiver has these messages. Once more is harmless.
    pub async fn ack_messages(
        &self,
        caller: &Caller,
        peer: &str,
        ids: Vec<String>,
    ) -> Result<Vec<MessageId>, Error> {
        let peer = peer_id(peer, ResourceKind::Peer)?;
        let caller = caller.clone();
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    own_peer(tx, &caller, &peer, ResourceKind::Peer).await?;
                    let unknown = |id: &str| Error::not_found(ResourceKind::MessageToPeer, id);
                    let acked = ids
                        .iter()
                        .map(|id| MessageId::parse(id).ok_or_else(|| unknown(id)))
                        .collect::<Result<Vec<_>, _>>()?;
                    let mut messages = tx.messages_to(&peer, &acked).await?;
                    let missing =
                        acked.iter().find(|id| !messages.iter().any(|known| known.id == **id));
                    if let Some(id) = missing {
                        return Err(unknown(id.as_str()));
                    }
                    advance(tx, &peer, &mut messages, DeliveryState::Acked, None).await?;
                    Ok(acked)
                })
            })
            .await
    }

    /// A message and the history of its delivery, for its sender, its receiver and the operator.
    pub async fn message(&self, caller: &Caller, id: &str) -> Result<MessageDetail, Error> {
        let unknown = || Error::not_found(ResourceKind::Message, id);
        let id = MessageId::parse(id).ok_or_else(unknown)?;
        let message = self.core.store.message(&id).await?.ok_or_else(unknown)?;
        if let Some(session) = caller.session() {
            let own = self.core.store.peer_of_session(session).await?.map(|row| row.peer.peer_id);
            let concerned =
                own.is_some_and(|own| own == message.to_peer || own.as_str() == message.from_peer);
            if !concerned {
                return Err(Error::Forbidden("this message is between other peers".to_owned()));
            }
        }
        let states = self.core.store.deliveries(&id).await?;
        Ok(MessageDetail { message, states })
    }
}

fn check_message(input: &NewMessage) -> Result<(), Error> {
    check::not_blank("text", &input.text)?;
    check::long("text", &input.text, limits::MESSAGE_BYTES)?;
    check::key("correlation_id", input.correlation_id.as_deref())?;
    check::key("idempotency_key", input.idempotency_key.as_deref())
}

/// Who a message is from: the caller's own peer, or whom the operator names.
async fn sender(tx: &mut WriteTx, caller: &Caller, named: Option<&str>) -> Result<String, Error> {
    let Some(session) = caller.session() else {
        let Some(named) = named else {
            return Ok("operator".to_owned());
        };
        let known = match PeerId::parse(named) {
            Some(id) => named == "operator" || tx.peer(&id).await?.is_some(),
            None => false,
        };
        return known
            .then(|| named.to_owned())
            .ok_or_else(|| Error::invalid("from_peer", "there is no peer with this id"));
    };
    let own = tx.peer_of_session(session).await?.map(|row| row.peer.peer_id);
    match (own, named) {
        (None, _) => Err(Error::SessionWithoutPeer),
        (Some(own), Some(named)) if own.as_str() != named => Err(Error::Forbidden(format!(
            "from_peer: this token sends as {own} and as nobody else"
        ))),
        (Some(own), _) => Ok(own.as_str().to_owned()),
    }
}

/// Stores a message for `to`, or finds the one that was stored for its key; `None` if the inbox is full.
async fn deliver(
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

/// Stores that a full inbox did not take a message. Without the message's key: a repeat may find room.
async fn refuse(
    tx: &mut WriteTx,
    ids: &Ids,
    from: &str,
    to: PeerId,
    kind: MessageType,
    input: &NewMessage,
) -> Result<(), StoreError> {
    let mut message = accept(tx, ids, from, &to, kind, input, None).await?;
    let reason = Some("the inbox is full");
    advance(tx, &to, std::slice::from_mut(&mut message), DeliveryState::Refused, reason).await
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

/// The stamp on a message for a peer.
pub(in crate::service) fn stamp_of(message: &Message, from: &MessageSender, to: &Peer) -> String {
    let tool = if message.kind == MessageType::Broadcast { "peer_broadcast" } else { "peer_send" };
    stamp::stamp(from, &stamp::address(to), "peer", tool)
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
            events.push(told(message, reason));
        }
        tx.advance_messages(&ids, path, reason).await?;
    }
    say(tx, to, events).await
}

/// Says that messages of one inbox, which were given, were not seen. Their states stay; who waits for mail looks again.
pub(in crate::service) async fn note_unseen(
    tx: &mut WriteTx,
    to: &PeerId,
    messages: &[Message],
) -> Result<(), StoreError> {
    let events = messages.iter().map(|message| event_of("message.unseen", message, None)).collect();
    say(tx, to, events).await
}

async fn say(tx: &mut WriteTx, to: &PeerId, events: Vec<NewEvent>) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let stream = StreamName::of("peer", to);
    tx.open_stream(&stream).await?;
    tx.append(&stream, events).await?;
    Ok(())
}

/// The event of a delivery.
fn told(message: &Message, reason: Option<&'static str>) -> NewEvent {
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

/// Ends the deliveries that wait for a peer that is no more.
pub(in crate::service) async fn give_up(
    tx: &mut WriteTx,
    peer: &PeerId,
    reason: &'static str,
) -> Result<(), StoreError> {
    let mut messages = tx.waiting_messages(peer).await?;
    advance(tx, peer, &mut messages, DeliveryState::Undeliverable, Some(reason)).await
}
