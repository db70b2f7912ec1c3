//! Messages from peer to peer: each passes an inbox, and every state of its delivery is on record.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use svc_model::{
    Caller, Delivery, DeliveryState, Message, MessageFilter, MessageId, MessageType, NewMessage,
    Peer, PeerId, PeerRole, PeerStatus, Principal, READ_ALL,
    conversation::SourceTool,
    json_bytes, limits,
    quote::{self, ModelText},
    stamp::{self, MessageSender, MessageStamp},
};
use svc_store::{
    AssignmentRow, DeliveryTerms, ListedMessage, MessageRow, StoreError, WriteTx, job,
};

use super::{
    Team,
    delivery::{OutgoingMessage, advance, deliver, deliver_copies, ids_of, repeated_to_removed},
    find::has_ended,
    log_impersonation, may_act_for, own_peer,
};
use crate::boxed;
use crate::service::{
    Error, Listed, Page, PageBounds, ResourceKind, Result,
    assignments::{AssignmentOutcome, end_answered, terms_of_reply},
    check,
    core::Core,
};

/// Most messages that one write job acknowledges.
const ACKS_PER_JOB: usize = 500;

impl Listed for ListedMessage {
    const NAME: &'static str = "messages";
}

/// A message as an agent reads it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Stamped {
    /// The message. What looks like a stamp in it was made harmless.
    #[serde(flatten)]
    pub message: Message,
    /// Who it is from, by the sender's credential: the daemon wrote this, and nobody else can.
    pub stamp: ModelText,
    /// The call that answers it, if it asks something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<ModelText>,
}

impl Listed for Stamped {
    const NAME: &'static str = "messages";
}

/// A message with the history of its delivery.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MessageDetail {
    /// The message.
    #[serde(flatten)]
    pub message: Message,
    /// The states that it went through.
    pub states: Vec<Delivery>,
}

/// Whom a broadcast reaches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BroadcastReach {
    /// How many inboxes took it.
    pub delivered_to: u64,
    /// Of those, the inboxes of peers that are here.
    pub now: u64,
    /// Of those, the inboxes of peers that are offline: they get it when they are back.
    pub later: u64,
    /// Peers whose inbox is full and did not take it. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_by: Vec<PeerId>,
}

/// The idempotency key of a broadcast, and what tells its request from another.
#[derive(Debug, Clone)]
struct BroadcastKey {
    sent_by: String,
    key: String,
    fingerprint: String,
}

impl BroadcastKey {
    /// `None` if the request has no key.
    fn of(caller: &Caller, circle: Option<&str>, input: &NewMessage) -> Option<Self> {
        let key = input.idempotency_key.clone()?;
        let kind = input.kind.unwrap_or(MessageType::Broadcast);
        let body = json!([circle, kind, input.text, input.correlation_id, input.no_wake]);
        let fingerprint = hex::encode(Sha256::digest(body.to_string()));
        Some(Self { sent_by: caller.principal().to_string(), key, fingerprint })
    }

    /// Notes that the broadcast begins, or returns the answer of the one that was sent with this
    /// key. Neither notes nor returns anything if an earlier request broke off: the rest of the
    /// copies are to be stored.
    async fn begin(
        &self,
        tx: &mut WriteTx,
        (core, caller): (&Core, &Caller),
        from: &str,
    ) -> Result<Option<BroadcastReach>> {
        let known = tx.messages().broadcast_of_key(&self.sent_by, from, &self.key).await?;
        let Some((fingerprint, answer)) = known else {
            core.budget.check_rows(tx, caller, 1).await?;
            let pair = (self.key.as_str(), self.fingerprint.as_str());
            tx.messages().begin_broadcast(&self.sent_by, from, pair).await?;
            return Ok(None);
        };
        if fingerprint != self.fingerprint {
            let key = &self.key;
            return Err(Error::Conflict(format!(
                "idempotency_key {key:?} stands for another broadcast"
            )));
        }
        Ok(answer.and_then(|answer| serde_json::from_str(&answer).ok()))
    }

    /// The answer of the broadcast that was sent with this key from a peer that is gone.
    async fn answer(
        &self,
        tx: &mut WriteTx,
        from: Option<&str>,
    ) -> Result<Option<BroadcastReach>, StoreError> {
        let pair = (self.key.as_str(), self.fingerprint.as_str());
        let answer = tx.messages().broadcast_answer(&self.sent_by, from, pair).await?;
        Ok(answer.and_then(|answer| serde_json::from_str(&answer).ok()))
    }

    /// Stores the answer for repeats. One that nobody took may be sent again.
    async fn end(
        &self,
        tx: &mut WriteTx,
        from: &str,
        reach: &BroadcastReach,
    ) -> Result<(), StoreError> {
        let answer = (!reach.is_refused()).then(|| json!(reach).to_string());
        tx.messages().end_broadcast(&self.sent_by, (from, &self.key), answer.as_deref()).await
    }
}

/// Checks that a sender may store a broadcast for all of its receivers. The body of the request
/// has paid for the first copy's text.
async fn check_copies(
    tx: &mut WriteTx,
    core: &Core,
    caller: &Caller,
    (circle, from): (Option<&str>, &str),
    input: &NewMessage,
) -> Result<()> {
    if caller.is_operator() {
        return Ok(());
    }
    let copies = tx.peers().count_receivers(circle, from, input.idempotency_key.as_deref()).await?;
    core.budget.check_rows(tx, caller, copies).await?;
    let bytes = u64::try_from(input.text.len()).unwrap_or(u64::MAX);
    core.budget.take_stored(caller, copies.saturating_sub(1).saturating_mul(bytes), tx.now())
}

impl BroadcastReach {
    /// Whether there are receivers, and nobody took it.
    fn is_refused(&self) -> bool {
        self.delivered_to == 0 && !self.refused_by.is_empty()
    }

    fn add(&mut self, took: &[(PeerId, PeerStatus)]) {
        for (_, status) in took {
            self.delivered_to += 1;
            match status {
                PeerStatus::Unreachable | PeerStatus::Offline => self.later += 1,
                _ => self.now += 1,
            }
        }
    }
}

impl Team {
    #[boxed]
    pub async fn send_message(
        &self,
        caller: &Caller,
        to: &str,
        input: NewMessage,
    ) -> Result<Message> {
        check_message(&input)?;
        let has_key = input.idempotency_key.is_some();
        let named = to.to_owned();
        let to = match self.find_peer(caller, to, ResourceKind::Peer).await {
            // The message may repeat one to a peer that was removed since.
            Err(Error::NotFound { .. }) if has_key => None,
            to => Some(to?),
        };
        let input = self.with_sender(caller, input).await?;
        let (core, caller) = (self.core.clone(), caller.clone());
        let job = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let kind = input.kind.unwrap_or(MessageType::Notification);
            let receiver = match &to {
                Some(to) => tx.peers().get(to).await?,
                None => None,
            };
            let Some(receiver) = receiver else {
                let unknown = || Error::not_found(ResourceKind::Peer, &named);
                if !has_key {
                    return Err(unknown());
                }
                let from = sender(tx, &caller, input.from_peer.as_deref()).await?;
                return repeated_to_removed(tx, &from, (&input, kind)).await?.ok_or_else(unknown);
            };
            let is_gone = has_ended(tx, &receiver).await?;
            let receiver = receiver.peer;
            let to = receiver.peer_id.clone();
            let from = sender(tx, &caller, input.from_peer.as_deref()).await?;
            // Scripts of the operator may send the operator a message.
            if from == to.as_str() && !to.is_operator() {
                let why = "is the sender's own peer: send to another peer";
                return Err(Error::invalid("to", why));
            }
            let outgoing = OutgoingMessage::new(core, caller, from, input, SourceTool::PeerSend);
            let mut sent = send_answer(tx, outgoing, &receiver, kind).await?;
            if is_gone {
                // A later agent of this name must not get a message for this one.
                let (copy, why) = (std::slice::from_mut(&mut sent), "its agent has ended");
                advance(tx, &to, copy, DeliveryState::Undeliverable, Some(why)).await?;
            }
            Ok(sent)
        }));
        job.await.map_err(|error: Error| error.of_repeatable(has_key))
    }

    /// The message with its sender's id, whatever names the sender.
    async fn with_sender(&self, caller: &Caller, input: NewMessage) -> Result<NewMessage> {
        let Some(named) = input.from_peer.as_deref().filter(|named| *named != PeerId::OPERATOR)
        else {
            return Ok(input);
        };
        let from_peer = match self.find_peer(caller, named, ResourceKind::Peer).await {
            Ok(id) => Some(id.as_str().to_owned()),
            // The write job checks who may send as whom, and refuses an unknown name.
            Err(Error::NotFound { .. }) => input.from_peer,
            Err(Error::Ambiguous { .. }) if !caller.is_operator() => input.from_peer,
            Err(error) => return Err(error),
        };
        Ok(NewMessage { from_peer, ..input })
    }

    /// Puts a message into every inbox but the sender's, or into those of a circle. Returns how
    /// many took it, now and for later; for each of the others a refused message is stored. The
    /// text is stored once.
    ///
    /// Each write job stores [`limits::COPIES_PER_JOB`] copies, so that other writers come between.
    /// After a failure some inboxes have the message and some do not; a repeat with the same
    /// idempotency key reaches the rest. A repeat of a broadcast that is complete gets the answer
    /// of the first and sends nothing.
    #[boxed]
    pub async fn broadcast(
        &self,
        caller: &Caller,
        circle: Option<String>,
        input: NewMessage,
    ) -> Result<BroadcastReach> {
        check_message(&input)?;
        let key = BroadcastKey::of(caller, circle.as_deref(), &input);
        let input = self.with_sender(caller, input).await?;
        let (limit, has_key) = (limits::COPIES_PER_JOB, key.is_some());
        let (circle, input, key) = (Arc::new(circle), Arc::new(input), Arc::new(key));
        let (mut after, mut text_id): (Option<PeerId>, Option<i64>) = (None, None);
        let mut reach = BroadcastReach::default();
        let mut is_first = true;
        loop {
            let (core, sent_by) = (self.core.clone(), caller.clone());
            let (circle, input, key) = (Arc::clone(&circle), Arc::clone(&input), Arc::clone(&key));
            let mut so_far = reach.clone();
            let job = self.core.store.on_behalf_of(caller).write(job!(|tx| {
                let named = input.from_peer.as_deref();
                let from = match (sender(tx, &sent_by, named).await, &*key) {
                    (Err(error), Some(key)) if is_first => {
                        // Its peer was removed, perhaps after the broadcast that this one repeats.
                        let known = key.answer(tx, named).await?;
                        return known.map(|reach| (reach, None, None)).ok_or(error);
                    }
                    (from, _) => from?,
                };
                let circle = circle.as_deref();
                if is_first
                    && let Some(key) = &*key
                    && let Some(reach) = key.begin(tx, (&core, &sent_by), &from).await?
                {
                    return Ok((reach, None, None));
                }
                if is_first {
                    check_copies(tx, &core, &sent_by, (circle, &from), &input).await?;
                }
                let mut to = tx.peers().ids(circle, after.as_ref(), limit).await?;
                let last = to.last().filter(|_| to.len() >= limit as usize).cloned();
                to.retain(|(peer, _)| peer.as_str() != from);
                let tool = SourceTool::PeerBroadcast;
                let outgoing = OutgoingMessage::new(core, sent_by, from, input, tool);
                let mut outgoing = OutgoingMessage { text_id, ..outgoing };
                let receivers = to.iter().map(|(peer, _)| peer.clone()).collect();
                let full = deliver_copies(tx, &mut outgoing, receivers).await?;
                to.retain(|(peer, _)| !full.contains(peer));
                so_far.add(&to);
                so_far.refused_by.extend(full);
                if let (Some(key), None) = (&*key, &last) {
                    key.end(tx, &outgoing.from, &so_far).await?;
                }
                Ok::<_, Error>((so_far, outgoing.text_id, last.map(|(peer, _)| peer)))
            }));
            let (reached, text, last) = job.await.map_err(|error| error.of_repeatable(has_key))?;
            (reach, text_id, is_first) = (reached, text, false);
            if last.is_none() {
                break;
            }
            after = last;
        }
        if reach.is_refused() {
            let bound = self.core.tuning.inbox_max;
            return Err(Error::LimitReached(format!(
                "every inbox that it was for holds {bound} messages already; their owners free them with peer_ack or `svc \
                 message ack`"
            )));
        }
        Ok(reach)
    }

    /// Takes waiting messages on lease: they come again after the lease unless they are
    /// acknowledged.
    pub async fn take_messages(
        &self,
        caller: &Caller,
        peer: &str,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Page<Message>> {
        let peer = self.find_peer(caller, peer, ResourceKind::Peer).await?;
        let size = page.into().size()?;
        let (caller, lease) = (caller.clone(), self.core.tuning.lease);
        let job = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            own_peer(tx, &caller, &peer, ResourceKind::Peer).await?;
            if tx.peers().is_hosted(&peer).await? {
                // The host takes messages for a hosted agent, and makes turns of them.
                return Ok(Page::last(Vec::new()));
            }
            let until = tx.now().plus(lease);
            let mut messages = tx.inboxes().unleased(&peer, until, size).await?;
            // The length of a row is that of its text, and its JSON is longer.
            let mut bytes = 0_usize;
            let fitting = messages.iter().take_while(|message| {
                bytes = bytes.saturating_add(json_bytes(message));
                bytes <= size.bytes
            });
            let fitting = fitting.count().max(1);
            messages.truncate(fitting);
            tx.inboxes().lease(&ids_of(&messages), until, None).await?;
            advance(tx, &peer, &mut messages, DeliveryState::Offered, None).await?;
            Ok(Page::last(messages))
        }));
        job.await
    }

    /// A page of the messages in an inbox, also of those on lease, in the order of arrival. Changes
    /// nothing.
    pub async fn peek_messages(
        &self,
        caller: &Caller,
        peer: &str,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Page<Message>> {
        let peer = self.find_peer(caller, peer, ResourceKind::Peer).await?;
        let row = self.core.store.peers().get(&peer).await?;
        let row = row.ok_or_else(|| Error::not_found(ResourceKind::Peer, peer.as_str()))?;
        if !caller.has_scope(READ_ALL) {
            may_act_for(caller, &row)
                .inspect_err(|_| log_impersonation(caller, "peer_id", peer.as_str()))?;
        }
        let read = async |after: Option<i64>, limit| {
            self.core.store.inboxes().list(&peer, after.unwrap_or(0), limit).await
        };
        let page = Page::read("inbox", page.into(), read, |row: &MessageRow| row.id).await?;
        Ok(page.map(|row| row.message))
    }

    /// A page of the messages between all peers, the latest first, for callers with [`READ_ALL`].
    pub async fn messages(
        &self,
        caller: &Caller,
        mut filter: MessageFilter,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Page<ListedMessage>> {
        if !caller.has_scope(READ_ALL) {
            let why = "everybody's messages are for the operator, or need read_all: see an inbox of your own";
            return Err(Error::Forbidden(why.to_owned()));
        }
        if let Some(peer) = &filter.peer {
            let id = self.find_peer(caller, peer, ResourceKind::Peer).await?;
            filter.peer = Some(id.as_str().to_owned());
        }
        let filter = &filter;
        let read = async |before: Option<i64>, limit| {
            self.core.store.messages().list(filter, before, limit).await
        };
        Page::read("messages", page.into(), read, |listed: &ListedMessage| listed.id).await
    }

    #[boxed]
    pub async fn stamped(&self, messages: Vec<Message>) -> Result<Vec<Stamped>> {
        let mut senders: HashMap<String, MessageSender> = HashMap::new();
        let mut stamped = Vec::with_capacity(messages.len());
        for mut message in messages {
            if !senders.contains_key(&message.from_peer) {
                let row = match PeerId::parse(&message.from_peer) {
                    Some(id) => self.core.store.peers().get(&id).await?,
                    None => None,
                };
                let peer = row.as_ref().map(|row| &row.peer);
                let sender = MessageSender::new(&message.from_peer, peer)
                    .with_owner(row.as_ref().and_then(|row| row.owner.as_deref()));
                senders.insert(message.from_peer.clone(), sender);
            }
            let answered = match message.answered() {
                Some(first) => {
                    self.core.store.messages().get(&first).await?.map(|first| first.kind)
                }
                None => None,
            };
            let mut sender = senders[&message.from_peer].clone();
            if let Some((run, key)) = sender.removed_in(&message)
                && let Some(work) = self.core.store.assignments().get(run).await?
                && work.target_session == key
            {
                sender = sender.with_backend(&work.backend);
            }
            let MessageStamp { before: stamp, answer, .. } =
                stamp::stamp(&message, &sender, answered, false, None);
            message.text = quote::plain(&message.text).into_owned();
            message.correlation_id =
                message.correlation_id.map(|answered| quote::plain(&answered).into_owned());
            stamped.push(Stamped { message, stamp, answer });
        }
        Ok(stamped)
    }

    /// Acknowledges messages for their receiver. A repeat is harmless. One write job takes 500: if
    /// a later message is unknown, those of earlier jobs stay acknowledged.
    #[boxed]
    pub async fn ack_messages(
        &self,
        caller: &Caller,
        peer: &str,
        ids: Vec<String>,
    ) -> Result<Vec<MessageId>> {
        let peer = self.find_peer(caller, peer, ResourceKind::Peer).await?;
        let mut whole = Vec::with_capacity(ids.len());
        for text in ids {
            whole.push(match self.find_message(caller, &text).await {
                Ok(id) => Ok(id),
                Err(Error::NotFound { .. }) => MessageId::parse(&text).ok_or(text),
                Err(error) => return Err(error),
            });
        }
        let unknown = |id: String| Error::not_found(ResourceKind::MessageToPeer, &id);
        let ids = whole.into_iter().collect::<Result<Vec<_>, _>>().map_err(unknown)?;
        let (first, rest) = ids.split_at(ids.len().min(ACKS_PER_JOB));
        self.ack_part(caller, &peer, first.to_vec()).await?;
        for part in rest.chunks(ACKS_PER_JOB) {
            self.ack_part(caller, &peer, part.to_vec()).await?;
        }
        Ok(ids)
    }

    async fn ack_part(&self, caller: &Caller, peer: &PeerId, ids: Vec<MessageId>) -> Result<()> {
        let (caller, peer) = (caller.clone(), peer.clone());
        let job = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            own_peer(tx, &caller, &peer, ResourceKind::Peer).await?;
            let mut messages = tx.inboxes().messages(&peer, &ids).await?;
            let known: HashSet<&MessageId> = messages.iter().map(|message| &message.id).collect();
            if let Some(id) = ids.iter().find(|id| !known.contains(id)) {
                return Err(Error::not_found(ResourceKind::MessageToPeer, id.as_str()));
            }
            advance(tx, &peer, &mut messages, DeliveryState::Acked, None).await?;
            Ok(())
        }));
        job.await.map_err(|error: Error| error.of_repeatable(true))
    }

    /// A message and the history of its delivery, for its sender, its receiver and the operator.
    #[boxed]
    pub async fn message(&self, caller: &Caller, id: &str) -> Result<MessageDetail> {
        let unknown = || Error::not_found(ResourceKind::Message, id);
        let id = self.find_message(caller, id).await?;
        let message = self.core.store.messages().get(&id).await?.ok_or_else(unknown)?;
        if !self.concerns(caller, &message).await? {
            return Err(unknown());
        }
        let states = self.core.store.messages().deliveries(&id).await?;
        Ok(MessageDetail { message, states })
    }
}

/// Stores a message to `receiver`. If it answers a question of that peer, it also answers and
/// acknowledges the question.
pub(in crate::service) async fn send_answer(
    tx: &mut WriteTx,
    mut outgoing: OutgoingMessage,
    receiver: &Peer,
    kind: MessageType,
) -> Result<Message> {
    let to = receiver.peer_id.clone();
    let mut answered = match kind {
        MessageType::Response => answered_assignment(tx, &outgoing, receiver).await?,
        _ => None,
    };
    if let Some(row) = &answered {
        outgoing.run_id = Some(row.run_id.clone());
    }
    let terms = DeliveryTerms {
        by_call: outgoing.tool == SourceTool::SessionsSend,
        no_wake: outgoing.input.no_wake,
        ..terms_of_reply(tx, answered.as_ref())
    };
    let sent = deliver(tx, &outgoing, to, kind, terms).await?;
    if let Some(row) = &mut answered {
        row.reply_id = Some(sent.id.clone());
        let text = Some(sent.text.clone());
        end_answered(tx, &outgoing.core, row, AssignmentOutcome::Answered, text).await?;
    }
    let source = answered.map(|row| row.source_peer);
    acknowledge_answered(tx, &sent, receiver, source).await?;
    Ok(sent)
}

/// The assignment that a message answers: the message names what was sent, and comes from the peer
/// that it was sent to.
async fn answered_assignment(
    tx: &mut WriteTx,
    answer: &OutgoingMessage,
    receiver: &Peer,
) -> Result<Option<AssignmentRow>, StoreError> {
    let named = answer.input.correlation_id.as_deref().and_then(MessageId::parse);
    let Some(question) = named else { return Ok(None) };
    let is_open =
        |row: &AssignmentRow| row.is_unanswered() && row.target_peer.as_str() == answer.from;
    let Some(row) = tx.assignments().of_message(&question).await?.filter(is_open) else {
        return Ok(None);
    };
    // What the operator asked without a peer may be answered to the person's peer.
    let is_to_source = row.source_peer == receiver.peer_id
        || receiver.role == PeerRole::Human && row.source_peer.is_operator();
    if !is_to_source && !is_of_same_process(tx, &row, &receiver.peer_id).await? {
        return Ok(None);
    }
    Ok(Some(row))
}

/// Whether a peer is another session of the process that asked for a task. A task is its
/// principal's, whichever session asked.
async fn is_of_same_process(
    tx: &mut WriteTx,
    row: &AssignmentRow,
    other: &PeerId,
) -> Result<bool, StoreError> {
    if row.task_id.is_none() {
        return Ok(false);
    }
    let source = tx.peers().get(&row.source_peer).await?.map(|row| row.principal());
    let source = source.filter(|source| *source != Principal::Operator);
    Ok(source.is_some() && source == tx.peers().get(other).await?.map(|row| row.principal()))
}

/// Acknowledges the message that an answer names, unless the answer is a question in return.
/// `source` is who sent it, if it is an assignment.
async fn acknowledge_answered(
    tx: &mut WriteTx,
    answer: &Message,
    receiver: &Peer,
    source: Option<PeerId>,
) -> Result<(), StoreError> {
    let Some(answered) = answer.correlation_id.as_deref() else { return Ok(()) };
    let Some(own) = PeerId::parse(&answer.from_peer) else { return Ok(()) };
    if answer.kind == MessageType::Query {
        return Ok(());
    }
    let mut asker = vec![answer.to_peer.as_str()];
    asker.extend(source.as_ref().map(PeerId::as_str));
    if receiver.role == PeerRole::Human {
        // The answer to a question that the operator asked without a peer goes to the person's
        // peer.
        asker.push("operator");
    }
    if let Some(mut question) = tx.messages().answered(&own, &asker, answered).await? {
        advance(tx, &own, std::slice::from_mut(&mut question), DeliveryState::Acked, None).await?;
    }
    Ok(())
}

fn check_message(input: &NewMessage) -> Result<()> {
    check::not_blank("text", &input.text)?;
    check::long("text", &input.text, limits::MESSAGE_BYTES)?;
    check::key("correlation_id", input.correlation_id.as_deref())?;
    check::key("idempotency_key", input.idempotency_key.as_deref())
}

/// Who a message is from: the caller's own peer, or whom the operator names.
async fn sender(tx: &mut WriteTx, caller: &Caller, named: Option<&str>) -> Result<String> {
    let Some(session) = caller.session() else {
        let Some(named) = named else { return Ok("operator".to_owned()) };
        let is_known = match PeerId::parse(named) {
            Some(id) => named == "operator" || tx.peers().get(&id).await?.is_some(),
            None => false,
        };
        let unknown = || Error::invalid("from_peer", "there is no peer with this id");
        return is_known.then(|| named.to_owned()).ok_or_else(unknown);
    };
    let own = tx.peers().of_key(session).await?.map(|row| row.peer.peer_id);
    if let Some(id) = named.and_then(PeerId::parse)
        && let Some(row) = tx.peers().get(&id).await?
        && may_act_for(caller, &row).is_ok()
    {
        // A client's process may have several sessions, each with a peer of its own.
        return Ok(id.as_str().to_owned());
    }
    match (own, named) {
        (Some(own), Some(named)) if own.as_str() != named => {
            log_impersonation(caller, "from_peer", named);
            Err(Error::Forbidden(format!("from_peer: this token sends only as {own}")))
        }
        (None, Some(named)) => {
            log_impersonation(caller, "from_peer", named);
            Err(Error::Forbidden("from_peer: this token sends as its own peer alone".to_owned()))
        }
        (None, None) => Err(Error::SessionWithoutPeer),
        (Some(own), _) => Ok(own.as_str().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::{NewTask, RunId, StreamName, TaskId};

    use super::*;
    use crate::service::{
        SessionSettings, Tuning,
        core::Core,
        tasks,
        testing::{opened, session},
    };

    #[tokio::test]
    async fn a_broadcast_is_many_small_jobs_and_reaches_each_inbox_once() {
        let (test, services) = opened().await;
        let count = limits::COPIES_PER_JOB * 2 + limits::COPIES_PER_JOB / 2;
        let mut peers = Vec::new();
        for number in 0..count {
            let input = json!({ "display_name": number.to_string(), "backend": "test", "path": number.to_string() });
            let input = serde_json::from_value(input).unwrap();
            peers.push(services.team.register_peer(&Caller::Operator, None, input).await.unwrap());
        }
        let broadcast = async |from: &Peer, key: Option<&str>, text: &str| {
            let before = test.store.stats().jobs;
            let input = json!({ "text": text, "from_peer": from.peer_id, "idempotency_key": key });
            let input = serde_json::from_value(input).unwrap();
            let reached = services.team.broadcast(&Caller::Operator, None, input).await.unwrap();
            assert_eq!((reached.now, reached.later), (reached.delivered_to, 0));
            (reached.delivered_to, test.store.stats().jobs - before)
        };
        let others = u64::from(count) - 1;
        assert_eq!(broadcast(&peers[0], Some("k"), "hello").await, (others, 3));
        assert_eq!(broadcast(&peers[0], Some("k"), "hello").await, (others, 1), "a repeat");
        let large = "x".repeat(256 * 1024);
        let before = test.store.upkeep().size().await.unwrap();
        assert_eq!(broadcast(&peers[1], None, &large).await, (others, 3));
        let after = test.store.upkeep().size().await.unwrap();
        let grown = (after.database + after.wal).saturating_sub(before.database + before.wal);
        assert!(grown < 4 * 1024 * 1024, "one text of 256 KiB, not {count}: {grown} bytes");
        for (index, peer) in peers.iter().enumerate() {
            let (id, page) = (peer.peer_id.as_str(), PageBounds::new(None, None));
            let inbox = services.team.peek_messages(&Caller::Operator, id, page);
            let messages = inbox.await.unwrap().items;
            assert_eq!(messages.len(), if index < 2 { 1 } else { 2 }, "peer {index}");
            for message in messages {
                assert!(message.text == "hello" || message.text == large, "peer {index}");
                let detail =
                    services.team.message(&Caller::Operator, message.id.as_str()).await.unwrap();
                let states: Vec<_> = detail.states.iter().map(|delivery| delivery.state).collect();
                assert_eq!(states, [DeliveryState::Accepted, DeliveryState::Queued]);
            }
        }
    }

    /// Makes the task of a question that was sent.
    async fn asked(
        team: &Team,
        by: &Caller,
        (source, target): (&PeerId, &PeerId),
        question: &MessageId,
    ) -> TaskId {
        let (core, by, message) = (team.core.clone(), by.clone(), question.clone());
        let (source_peer, target_peer) = (source.clone(), target.clone());
        let made = team.core.store.write(job!(|tx| {
            let new = NewTask { from: Some(source_peer.to_string()), ..NewTask::default() };
            let task = tasks::make(tx, &core, &by, new).await?.task.task_id;
            let row = AssignmentRow {
                task_id: Some(task.clone()),
                message_id: Some(message),
                source_peer,
                target_peer,
                ..AssignmentRow::new(RunId::from_task(&task), "p".to_owned(), tx.now())
            };
            tx.assignments().insert(&row).await?;
            Ok::<_, Error>(task)
        }));
        made.await.unwrap()
    }

    #[tokio::test]
    async fn person_gets_an_answer_once() {
        let (test, services) = opened().await;
        let team = &services.team;
        let register = async |name: &str, role: &str| {
            let input = json!({ "display_name": name, "backend": "test", "session_id": name, "role": role });
            let input = serde_json::from_value(input).unwrap();
            team.register_peer(&Caller::Operator, None, input).await.unwrap().peer_id
        };
        let (person, target) = (register("me", "human").await, register("agent", "agent").await);
        let send = async |to: &PeerId, message: serde_json::Value| {
            let message = serde_json::from_value(message).unwrap();
            team.send_message(&Caller::Operator, to.as_str(), message).await.unwrap().id
        };
        let question = send(&target, json!({ "text": "go", "type": "query" })).await;
        let operator = PeerId::operator();
        let task = asked(team, &Caller::Operator, (&operator, &target), &question).await;
        let answer = json!({
            "text": "done", "type": "response", "correlation_id": question, "from_peer": target,
        });
        send(&person, answer).await;
        assert!(test.store.tasks().get(&task).await.unwrap().unwrap().task.is_over());
        let told = async |peer: &PeerId| {
            let page = PageBounds::new(None, None);
            let page = team.peek_messages(&Caller::Operator, peer.as_str(), page);
            page.await.unwrap().items.len()
        };
        assert_eq!((told(&person).await, told(&operator).await), (1, 0));
    }

    #[tokio::test]
    async fn answer_to_another_session_of_the_process_that_asked_ends_the_task() {
        let (test, services) = opened().await;
        let team = &services.team;
        let register = async |name: &str| {
            let input = json!({ "display_name": name, "backend": "test", "session_id": name });
            let input = serde_json::from_value(input).unwrap();
            team.register_peer(&Caller::Operator, None, input).await.unwrap().peer_id
        };
        let (asker, other) = (register("one").await, register("two").await);
        let (stranger, target) = (register("three").await, register("four").await);
        test.execute("update peer set owner = 'p' where session_id in ('one', 'two')").await;
        let send = async |to: &PeerId, message: serde_json::Value| {
            let message = serde_json::from_value(message).unwrap();
            team.send_message(&Caller::Operator, to.as_str(), message).await.unwrap().id
        };
        let asks = json!({ "text": "go", "type": "query", "from_peer": asker });
        let question = send(&target, asks).await;
        let task = asked(team, &session("p", &[]), (&asker, &target), &question).await;
        for (to, is_over) in [(&stranger, false), (&other, true)] {
            let answer = json!({
                "text": "done", "type": "response", "correlation_id": question, "from_peer": target,
            });
            send(to, answer).await;
            let row = test.store.tasks().get(&task).await.unwrap().unwrap();
            assert_eq!(row.task.is_over(), is_over, "{to}");
        }
        let inbox =
            team.peek_messages(&Caller::Operator, asker.as_str(), PageBounds::new(None, None));
        let told = inbox.await.unwrap().items;
        assert!(matches!(&told[..], [one] if one.text.contains("done")), "{told:?}");
        let asked = team.message(&Caller::Operator, question.as_str()).await.unwrap();
        assert_eq!(asked.message.state, DeliveryState::Acked);
    }

    #[tokio::test]
    async fn a_full_inbox_refuses_its_copy_of_a_broadcast() {
        let (test, services) = opened().await;
        let input = json!({ "display_name": "a", "backend": "test", "path": "a" });
        let peer = services.team.register_peer(
            &Caller::Operator,
            None,
            serde_json::from_value(input).unwrap(),
        );
        let peer = peer.await.unwrap();
        let to = [peer.peer_id.clone()];
        let text: NewMessage = serde_json::from_value(json!({ "text": "hello" })).unwrap();
        for (bound, refused) in [(1, 0), (1, 1), (2, 0)] {
            let tuning = Tuning { inbox_max: bound, ..*services.tuning() };
            let core = &services.team.core;
            let (store, clock) = (test.store.clone(), Arc::clone(&core.clock));
            let (settings, attended) = (SessionSettings::default(), core.attended);
            let core = Core::new(store, clock, core.ids.clone(), &tuning, settings, attended);
            let (from, tool) = ("operator".to_owned(), SourceTool::PeerBroadcast);
            let mut outgoing =
                OutgoingMessage::new(core, Caller::Operator, from, text.clone(), tool);
            let to = to.to_vec();
            let job = test.store.write(job!(|tx| deliver_copies(tx, &mut outgoing, to).await));
            let done: Result<Vec<PeerId>> = job.await;
            assert_eq!(done.unwrap().len(), refused, "at most {bound}");
        }
        let stream = StreamName::new("peer", &peer.peer_id);
        let view = test.store.streams().view(&stream).await.unwrap().unwrap();
        let take = svc_store::PageSize::rows(10);
        let page = test.store.events().of_stream(view.id, &stream, 0, None, take).await.unwrap();
        let kinds: Vec<&str> = page.rows.iter().map(|event| &*event.kind).collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == "message.refused").count(), 1, "{kinds:?}");
    }
}
