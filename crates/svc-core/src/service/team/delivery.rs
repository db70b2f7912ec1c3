//! Delivery of messages: how a message gets into an inbox, its states, its expiry, and their events
//! in the receiver's stream. All of this runs inside write jobs.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::json;
use svc_model::{
    Caller, DeliveryState, Message, MessageId, MessageType, NewEvent, NewMessage, PeerId, RunId,
    Timestamp,
    conversation::{Provenance, SourceTool},
    is_agent_key, limits,
};
use svc_store::{DeliveryTerms, StoreError, WriteTx, job};

use super::{Team, append_to_peer};
use crate::boxed;
use crate::service::{
    Error, Result,
    assignments::{self, AssignmentEvent, AssignmentOutcome},
    core::Core,
};

/// A message to one receiver, or to many; then several write jobs store the copies.
#[derive(Debug)]
pub(in crate::service) struct OutgoingMessage {
    pub(in crate::service) core: Core,
    pub(in crate::service) caller: Caller,
    /// The sender: the id of a peer, or a session key.
    pub(in crate::service) from: String,
    pub(in crate::service) input: Arc<NewMessage>,
    /// Row of the text that copies share; `None` before the first copy.
    pub(in crate::service) text_id: Option<i64>,
    pub(in crate::service) tool: SourceTool,
    /// The send that the message belongs to; `None` if the message is a send of its own.
    pub(in crate::service) run_id: Option<RunId>,
}

impl OutgoingMessage {
    pub(in crate::service) fn new(
        core: Core,
        caller: Caller,
        from: String,
        input: impl Into<Arc<NewMessage>>,
        tool: SourceTool,
    ) -> Self {
        Self { core, caller, from, input: input.into(), text_id: None, tool, run_id: None }
    }

    fn sent_by(&self) -> String {
        self.caller.principal().to_string()
    }

    fn message(
        &self,
        id: MessageId,
        to: &PeerId,
        kind: MessageType,
        (at, session): (Timestamp, Option<String>),
    ) -> Message {
        let run = self.run_id.clone().unwrap_or_else(|| RunId::of_message(&id));
        Message {
            provenance: Some(Provenance::inter_session(session, self.tool, run)),
            id,
            kind,
            from_peer: self.from.clone(),
            to_peer: to.clone(),
            text: self.input.text.clone(),
            correlation_id: self.input.correlation_id.clone(),
            timestamp: at,
            state: DeliveryState::Accepted,
        }
    }
}

/// A message without a correlation id or an idempotency key.
pub(in crate::service) fn plain_message(text: String, kind: MessageType) -> NewMessage {
    NewMessage { text, kind: Some(kind), ..NewMessage::default() }
}

/// The session key of a sender; `None` for the person, and for a removed peer.
async fn source_session(tx: &mut WriteTx, from: &str) -> Result<Option<String>, StoreError> {
    match PeerId::parse(from) {
        Some(id) => Ok(tx.peers().get(&id).await?.and_then(|row| row.session_key())),
        None => Ok(is_agent_key(from).then(|| from.to_owned())),
    }
}

/// Stores a message as `queued`.
pub(in crate::service) async fn put(
    tx: &mut WriteTx,
    message: &mut Message,
    (sent_by, key): (&str, Option<&str>),
    terms: DeliveryTerms,
) -> Result<(), StoreError> {
    let path = [DeliveryState::Accepted, DeliveryState::Queued];
    message.state = path[1];
    tx.messages().insert(message, sent_by, key, terms).await?;
    tx.messages().note_states(std::slice::from_ref(&message.id), &path, None).await?;
    append_to_peer(tx, &message.to_peer, vec![delivery_event(message, None)]).await
}

/// The message that was stored with the same idempotency key for a receiver that was removed since.
///
/// # Errors
/// [`Error::Conflict`] if only other messages were.
pub(super) async fn repeated_to_removed(
    tx: &mut WriteTx,
    from: &str,
    (input, kind): (&NewMessage, MessageType),
) -> Result<Option<Message>> {
    let Some(key) = input.idempotency_key.as_deref() else { return Ok(None) };
    let mut to_removed = tx.messages().to_removed_by_key(from, key).await?;
    match to_removed.iter().position(|stored| is_same(stored, input, kind)) {
        Some(same) => Ok(Some(to_removed.swap_remove(same))),
        None => to_removed.first().map_or(Ok(None), |other| Err(other_message(key, other))),
    }
}

fn is_same(stored: &Message, input: &NewMessage, kind: MessageType) -> bool {
    stored.text == input.text
        && stored.kind == kind
        && stored.correlation_id == input.correlation_id
}

/// Stores a message for `to`, or returns the message that was stored with the same idempotency key.
///
/// # Errors
/// [`Error::Conflict`] if that is another message. [`Error::LimitReached`] if the inbox is full, or
/// the sender has reached its bound of stored rows.
pub(in crate::service) async fn deliver(
    tx: &mut WriteTx,
    outgoing: &OutgoingMessage,
    to: PeerId,
    kind: MessageType,
    terms: DeliveryTerms,
) -> Result<Message> {
    let OutgoingMessage { core, caller, from, input, .. } = outgoing;
    let key = input.idempotency_key.as_deref();
    if let Some(key) = key
        && let Some(stored) = tx.messages().by_key(from, &to, key).await?
    {
        let is_same = is_same(&stored, input, kind);
        return if is_same { Ok(stored) } else { Err(other_message(key, &stored)) };
    }
    let bound = core.tuning.inbox_max;
    if tx.inboxes().is_full(&to, bound).await? {
        let name =
            tx.peers().get(&to).await?.map_or_else(|| to.to_string(), |row| row.peer.display_name);
        return Err(Error::LimitReached(format!(
            "the inbox of {name:?} holds {bound} messages already; none was dropped to make room"
        )));
    }
    core.budget.check_rows(tx, caller, 1).await?;
    let now = tx.now();
    let session = source_session(tx, from).await?;
    let id = MessageId::new(&core.ids, now);
    let mut message = outgoing.message(id, &to, kind, (now, session));
    put(tx, &mut message, (&outgoing.sent_by(), key), terms).await?;
    Ok(message)
}

/// Stores a broadcast for each of these receivers. Returns the receivers whose inbox is full.
///
/// # Errors
/// [`Error::LimitReached`] if the sender has reached its bound of stored rows; then no copy is
/// stored.
pub(in crate::service) async fn deliver_copies(
    tx: &mut WriteTx,
    outgoing: &mut OutgoingMessage,
    mut to: Vec<PeerId>,
) -> Result<Vec<PeerId>> {
    let key = outgoing.input.idempotency_key.clone();
    if let Some(key) = &key {
        let known = tx.messages().receivers_of_key(&outgoing.from, &to, key).await?;
        if let Some(first) = known.first()
            && let Some(stored) = tx.messages().by_key(&outgoing.from, first, key).await?
            && !is_same(&stored, &outgoing.input, MessageType::Broadcast)
        {
            return Err(other_message(key, &stored));
        }
        to.retain(|peer| !known.contains(peer));
    }
    let OutgoingMessage { core, caller, .. } = &*outgoing;
    let copies = u64::try_from(to.len()).unwrap_or(u64::MAX);
    core.budget.check_rows(tx, caller, copies).await?;
    let full = tx.inboxes().full(&to, core.tuning.inbox_max).await?;
    to.retain(|peer| !full.contains(peer));
    accept_copies(tx, outgoing, to, key.as_deref(), (DeliveryState::Queued, None)).await?;
    // Stored without the idempotency key, because a repeat may find room.
    let refusal = (DeliveryState::Refused, Some("the inbox is full"));
    accept_copies(tx, outgoing, full.clone(), None, refusal).await?;
    Ok(full)
}

fn other_message(key: &str, stored: &Message) -> Error {
    Error::Conflict(format!("idempotency_key {key:?} stands for another message, {}", stored.id))
}

/// Stores a broadcast for each of these receivers, and moves its deliveries on to `state` for
/// `reason`.
async fn accept_copies(
    tx: &mut WriteTx,
    outgoing: &mut OutgoingMessage,
    to: Vec<PeerId>,
    key: Option<&str>,
    (state, reason): (DeliveryState, Option<&'static str>),
) -> Result<(), StoreError> {
    let now = tx.now();
    let copies: Vec<(MessageId, PeerId)> =
        to.into_iter().map(|peer| (MessageId::new(&outgoing.core.ids, now), peer)).collect();
    let Some((first, receiver)) = copies.first() else { return Ok(()) };
    let source = (now, source_session(tx, &outgoing.from).await?);
    let mut message = outgoing.message(first.clone(), receiver, MessageType::Broadcast, source);
    let text_id = match outgoing.text_id {
        Some(id) => id,
        None => tx.messages().insert_shared_text(&message.text).await?,
    };
    outgoing.text_id = Some(text_id);
    let message_ids: Vec<MessageId> = copies.iter().map(|(id, _)| id.clone()).collect();
    let (first, then) = (message.state, message.state.path_to(state));
    message.state = state;
    let terms = (key, outgoing.input.no_wake);
    tx.messages().insert_copies(&message, &copies, (text_id, &outgoing.sent_by()), terms).await?;
    tx.messages().note_states(&message_ids, &[first], None).await?;
    tx.messages().note_states(&message_ids, then, reason).await?;
    for (id, peer) in copies {
        if let Some(provenance) = &mut message.provenance {
            provenance.run_id = RunId::of_message(&id);
        }
        message.id = id;
        message.to_peer = peer;
        let event = delivery_event(&message, reason);
        append_to_peer(tx, &message.to_peer, vec![event]).await?;
    }
    Ok(())
}

/// Moves messages of one inbox forward to `state` through the states in between, and appends each
/// step to the receiver's stream. Skips messages that are already past `state`.
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
        tx.messages().advance(&ids, path, reason).await?;
    }
    append_to_peer(tx, to, events).await?;
    let sent = messages.iter().filter(|message| {
        let tool = message.provenance.as_ref().map(|it| it.source_tool);
        let is_given = matches!(tool, Some(SourceTool::SessionsSend | SourceTool::SendMessage));
        message.state == state && is_given
    });
    for message in sent {
        follow_delivery(tx, message, reason).await?;
    }
    Ok(())
}

/// Applies a step of a message's delivery to the message's assignment. If the message of a task
/// cannot be delivered, the queue ends the task.
async fn follow_delivery(
    tx: &mut WriteTx,
    message: &Message,
    reason: Option<&'static str>,
) -> Result<(), StoreError> {
    let event = match message.state {
        DeliveryState::Injected => AssignmentEvent::Begun,
        DeliveryState::Expired => AssignmentEvent::Ended(AssignmentOutcome::Expired),
        DeliveryState::Refused | DeliveryState::Undeliverable => {
            AssignmentEvent::Ended(AssignmentOutcome::Failed)
        }
        _ => return Ok(()),
    };
    let Some(mut row) = tx.assignments().of_message(&message.id).await? else { return Ok(()) };
    if event != AssignmentEvent::Begun {
        if row.task_id.is_some() || row.ended_at.is_some() {
            return Ok(());
        }
        row.reason = Some("undeliverable".to_owned());
        row.error = Some(reason.unwrap_or(message.state.as_str()).to_owned());
    }
    assignments::apply(tx, &mut row, event).await?;
    Ok(())
}

pub(in crate::service) fn ids_of(messages: &[Message]) -> Vec<MessageId> {
    messages.iter().map(|message| message.id.clone()).collect()
}

/// Records that questions which their receiver has will not be answered, and why. They stay
/// `injected`.
pub(in crate::service) async fn close_questions(
    tx: &mut WriteTx,
    to: &PeerId,
    questions: &[Message],
    reason: &str,
) -> Result<(), StoreError> {
    if questions.is_empty() {
        return Ok(());
    }
    tx.messages().close_questions(&ids_of(questions), reason).await?;
    let events = questions.iter().map(|question| delivery_event(question, Some(reason))).collect();
    append_to_peer(tx, to, events).await
}

/// Appends events that messages of one inbox were given but not seen. Their states stay; the events
/// wake readers that wait for mail.
pub(in crate::service) async fn note_unseen(
    tx: &mut WriteTx,
    to: &PeerId,
    messages: &[Message],
) -> Result<(), StoreError> {
    let events = messages.iter().map(|message| event_of("message.unseen", message, None)).collect();
    append_to_peer(tx, to, events).await
}

/// Holds a message for a waiting call until `until`; `None` if no call waits for it any more. The
/// state of the message stays; the event wakes readers that wait for mail.
pub(in crate::service) async fn hold(
    tx: &mut WriteTx,
    message: &Message,
    until: Option<Timestamp>,
) -> Result<(), StoreError> {
    tx.inboxes().hold(&message.id, until).await?;
    let event = delivery_event(message, Some("a call that waited for it was cut"));
    append_to_peer(tx, &message.to_peer, vec![event]).await
}

fn delivery_event(message: &Message, reason: Option<&str>) -> NewEvent {
    let kind = match message.state {
        DeliveryState::Queued => "message.queued",
        DeliveryState::Offered => "message.offered",
        DeliveryState::Injected => "message.injected",
        DeliveryState::Acked => "message.acked",
        DeliveryState::Refused => "message.refused",
        DeliveryState::Expired => "message.expired",
        _ => "message.undeliverable",
    };
    event_of(kind, message, reason)
}

/// The event leaves out the text: a reader of the log may not be allowed to read every message.
fn event_of(kind: &'static str, message: &Message, reason: Option<&str>) -> NewEvent {
    let mut data = json!({
        "id": message.id, "type": message.kind, "from_peer": message.from_peer,
        "to_peer": message.to_peer, "state": message.state,
    });
    if let Some(reason) = reason {
        data["reason"] = reason.into();
    }
    if let Some(provenance) = &message.provenance {
        data["provenance"] = json!(provenance);
    }
    NewEvent::new(kind, &data)
}

/// Why a message to an ended hosted agent is undeliverable.
pub(in crate::service) const AGENT_ENDED: &str = "its agent ended";

/// Ends the deliveries to a receiver that takes no more messages, in several write jobs, so that a
/// full inbox does not block other writes.
pub(in crate::service) async fn end_deliveries(
    core: &Core,
    peer: &PeerId,
    why: &'static str,
) -> Result<()> {
    loop {
        let peer = peer.clone();
        let some = core.change(job!(|tx| give_up(tx, &peer, why).await));
        if !some.await? {
            return Ok(());
        }
    }
}

/// Ends as many deliveries to a peer that is gone as one write job may. Returns whether there may
/// be more.
pub(in crate::service) async fn give_up(
    tx: &mut WriteTx,
    peer: &PeerId,
    reason: &'static str,
) -> Result<bool, StoreError> {
    let limit = limits::ENDED_MESSAGES_PER_JOB;
    let messages = tx.inboxes().waiting(peer, limit).await?;
    let full = u32::try_from(messages.len()).is_ok_and(|len| len == limit);
    let is_seen_question = |message: &Message| {
        message.kind == MessageType::Query && message.state == DeliveryState::Injected
    };
    let (questions, mut others): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(is_seen_question);
    close_questions(tx, peer, &questions, reason).await?;
    advance(tx, peer, &mut others, DeliveryState::Undeliverable, Some(reason)).await?;
    Ok(full)
}

const NOBODY_TOOK_IT: &str = "nobody took it in time";

impl Team {
    /// Expires messages that were not taken within `age`, and forgets the keys of broadcasts of
    /// before. Spares messages that a reader has leased,
    /// and questions that their receiver has seen.
    #[boxed]
    pub async fn expire_messages(&self, age: Duration) -> Result<()> {
        let before = self.core.now().minus(age);
        for peer in self.core.store.inboxes().with_old_messages(before).await? {
            loop {
                let peer = peer.clone();
                let some = self.core.change(job!(|tx| expire_some(tx, &peer, before).await));
                if !some.await? {
                    break;
                }
            }
        }
        let limit = limits::SWEPT_ROWS_PER_JOB;
        let mut forgotten = u64::from(limit);
        while forgotten == u64::from(limit) {
            let some =
                self.core.change(job!(|tx| tx.messages().forget_broadcasts(before, limit).await));
            forgotten = some.await?;
        }
        Ok(())
    }
}

/// Expires as many messages as one write job may. Returns whether there may be more.
async fn expire_some(
    tx: &mut WriteTx,
    peer: &PeerId,
    before: Timestamp,
) -> Result<bool, StoreError> {
    let limit = limits::ENDED_MESSAGES_PER_JOB;
    let ids = tx.inboxes().old(peer, before, limit).await?;
    let mut messages = Vec::new();
    for id in &ids {
        messages.extend(tx.messages().get(id).await?);
    }
    advance(tx, peer, &mut messages, DeliveryState::Expired, Some(NOBODY_TOOK_IT)).await?;
    Ok(u32::try_from(ids.len()).is_ok_and(|count| count == limit))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::{Caller, MessageId};

    use super::*;
    use crate::service::{PageBounds, testing::opened};

    const AGE: Duration = Duration::from_hours(720);

    #[tokio::test]
    async fn key_of_a_broadcast_is_forgotten_with_its_age() {
        let (test, services) = opened().await;
        let cast = async |text: &str| {
            let input = json!({ "text": text, "idempotency_key": "k" });
            let input = serde_json::from_value(input).unwrap();
            services.team.broadcast(&Caller::Operator, None, input).await
        };
        cast("a").await.unwrap();
        services.team.expire_messages(AGE).await.unwrap();
        cast("b").await.unwrap_err();
        test.clock.advance(AGE + Duration::from_secs(1));
        services.team.expire_messages(AGE).await.unwrap();
        cast("b").await.unwrap();
    }

    #[tokio::test]
    async fn a_message_that_nobody_took_for_long_expires_with_a_reason() {
        let (test, services) = opened().await;
        let operator = Caller::Operator;
        let input = json!({ "display_name": "a", "backend": "test", "path": "/a" });
        let peer = services
            .team
            .register_peer(&operator, None, serde_json::from_value(input).unwrap())
            .await;
        let peer = peer.unwrap().peer_id;
        let send = async || {
            let message = serde_json::from_value(json!({ "text": "hello" })).unwrap();
            services.team.send_message(&operator, peer.as_str(), message).await.unwrap().id
        };
        let state =
            async |id: &MessageId| services.team.message(&operator, id.as_str()).await.unwrap();
        let mut old = Vec::new();
        for _ in 0..=limits::ENDED_MESSAGES_PER_JOB {
            old.push(send().await);
        }
        let seen = old.remove(0);
        let ids = vec![seen.as_str().to_owned()];
        services.team.ack_messages(&operator, peer.as_str(), ids).await.unwrap();
        test.clock.advance(AGE);
        services.team.expire_messages(AGE).await.unwrap();
        assert_eq!(state(&old[0]).await.message.state, DeliveryState::Queued, "not older");
        let taken = services
            .team
            .take_messages(&operator, peer.as_str(), PageBounds::new(None, Some(1)))
            .await
            .unwrap();
        let taken = taken.items[0].id.clone();
        test.clock.advance(Duration::from_secs(1));
        let young = send().await;
        services.team.expire_messages(AGE).await.unwrap();
        assert_eq!(state(&seen).await.message.state, DeliveryState::Acked);
        assert_eq!(state(&young).await.message.state, DeliveryState::Queued);
        assert_eq!(state(&taken).await.message.state, DeliveryState::Offered, "a reader has it");
        let end = state(old.last().unwrap()).await;
        assert_eq!(end.message.state, DeliveryState::Expired);
        let last = end.states.last().unwrap();
        assert_eq!(
            (last.state, last.reason.as_deref()),
            (DeliveryState::Expired, Some(NOBODY_TOOK_IT))
        );
        test.clock.advance(limits::LEASE);
        services.team.expire_messages(AGE).await.unwrap();
        assert_eq!(
            state(&taken).await.message.state,
            DeliveryState::Expired,
            "nobody has it any more"
        );
    }
}
