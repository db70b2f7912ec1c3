//! How waiting messages get into a session: with the reply to a hook, or by its client's own way (a
//! plugin in its process, its inbox, its server), which also wakes an idle session.
//!
//! `hand_over` chooses the messages that a session gets together, and makes one text of them. A
//! message is `offered` when it is in such a text. If the text was the reply to a hook, the
//! session's next event shows that the session continued with it, and the message becomes
//! `injected`. A message that was read in the inbox is `offered`, too, but no event shows whether
//! the model has it.
//!
//! `engine` hands the text over by a client's own way (`NativeWays`). A text is handed over once: a
//! row of `handover` is committed, with the messages `offered`, before the text leaves, and from
//! then on no other way takes the messages. Only the client decides what follows. Its prompt hook
//! with a message's stamp, or its own record of the conversation, makes a message `injected`. If
//! the record does not show the messages, they are free for the next way: the wake by a hook, or
//! the session's next turn. If the record cannot be read, they are `undeliverable`.
//!
//! Claude Code writes a prompt into its record when the hooks of the prompt are done. If it is
//! killed before that, the prompt is lost. So for Claude Code the record is checked after the hook,
//! too: a message that the record does not show is handed over again, although it was `injected`.

mod engine;
mod native_way;
mod plugin;

use std::{sync::Arc, time::Duration};

use svc_model::{
    Caller, DeliveryState, HandoverId, HandoverWay, Ids, Message, MessageId, MessageType, Peer,
    PeerId, ProcessState, Timestamp, client_session_id,
    hook::{HookClient, MailDigest, MailOffer, headline},
    quote::ModelText,
    stamp::{self, MessageSender},
};
use svc_store::{HandoverRow, PeerRow, StoreError, UndeliveredChoice, WriteTx};

use self::native_way::{NativeSession, NativeWays, way_of};
use super::{
    Error, ResourceKind, Result,
    codex::AppServerConnections,
    core::{Core, Tuning},
    team::{advance, ids_of},
};

pub use plugin::{PluginHold, PluginReport, PluginWord};

#[derive(Debug, Clone)]
pub struct Handovers {
    core: Core,
    ways: NativeWays,
    /// Clients whose sessions are not woken by messages.
    off: Arc<[HookClient]>,
}

impl Handovers {
    pub(super) fn new(
        core: Core,
        app_servers: Arc<AppServerConnections>,
        off: Vec<HookClient>,
    ) -> Self {
        let ways = NativeWays { plugins: Arc::default(), app_servers };
        Self { core, ways, off: off.into() }
    }

    /// Whether the sessions of a client are not woken by messages.
    pub(super) fn is_off(&self, backend: &str) -> bool {
        HookClient::parse(backend).is_some_and(|client| self.off.contains(&client))
    }

    /// The way to a session that is open now.
    async fn open_way(&self, session: &NativeSession) -> Option<HandoverWay> {
        let client = HookClient::parse(&session.backend)?;
        let way = way_of(client).filter(|_| !self.off.contains(&client))?;
        self.ways.is_open(way, session).await.then_some(way)
    }

    /// The session of a peer, as a client's own way names it; `None` if the peer has no session or
    /// its process does not run here.
    async fn session_of(&self, row: &PeerRow) -> Result<Option<NativeSession>, StoreError> {
        let (Some(session), Some(process), None) =
            (row.peer.session_id.clone(), row.process(), row.agent_key())
        else {
            return Ok(None);
        };
        // A process of another machine is reached from that machine.
        if self.core.state_of(&process) != ProcessState::Running {
            return Ok(None);
        }
        let owned = self.core.store.sessions().owner(&session).await?;
        Ok(Some(NativeSession {
            peer: row.peer.peer_id.clone(),
            backend: row.peer.backend.clone(),
            session_id: client_session_id(&session).to_owned(),
            process: process.process,
            owner: owned.and_then(|owned| owned.owner),
        }))
    }

    /// The client's own way that brings a message to a peer's session now, if there is one. It
    /// wakes an idle session.
    pub(super) async fn way_to(&self, row: &PeerRow) -> Result<Option<HandoverWay>, StoreError> {
        let Some(session) = self.session_of(row).await? else { return Ok(None) };
        Ok(self.open_way(&session).await)
    }

    /// Opens the connection on which the plugin of the caller's process gets texts. It replaces an
    /// earlier connection.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if the connection does not show that the caller is a client's process.
    pub fn hold(&self, caller: &Caller) -> Result<PluginHold> {
        if caller.process().is_none() {
            let why = "only the process of a client is given texts for its sessions";
            return Err(Error::Forbidden(why.to_owned()));
        }
        Ok(self.ways.plugins.hold(caller.principal()))
    }

    /// Takes the plugin's report on a hand-over from the caller's process.
    ///
    /// # Errors
    /// [`Error::NotFound`] if no report on this hand-over is expected.
    pub fn report(&self, caller: &Caller, id: &str, report: PluginReport) -> Result<()> {
        let unknown = || Error::not_found(ResourceKind::Handover, id);
        let id = HandoverId::parse(id).ok_or_else(unknown)?;
        if self.ways.plugins.report(&caller.principal(), &id, report) {
            return Ok(());
        }
        Err(unknown())
    }
}

/// What a prompt shows of the texts that were handed to its client.
#[derive(Debug, Default)]
pub(super) struct ShownHandover {
    /// The messages that are in the prompt.
    pub(super) messages: Vec<Message>,
    /// All of them were handed over during a turn, and that turn goes on.
    pub(super) joins_turn: bool,
}

/// Notes that a client has the messages whose stamps are in this prompt.
pub(super) async fn confirm_shown(
    tx: &mut WriteTx,
    peer: &PeerId,
    prompt: &str,
) -> Result<ShownHandover, StoreError> {
    let mut shown = ShownHandover::default();
    if !prompt.contains(stamp::NAMING) {
        return Ok(shown);
    }
    let mut begins_turn = false;
    for row in tx.handovers().of_peer(peer).await? {
        let mut messages = tx.handovers().messages(&row.handover_id).await?;
        messages.retain(|message| prompt.contains(stamp::naming(&message.id).as_str()));
        if messages.is_empty() {
            continue;
        }
        begins_turn |= !row.joins_turn;
        if row.via.records_after_hook() {
            // The record decides: the client may be killed before it writes the prompt.
            advance(tx, peer, &mut messages, DeliveryState::Injected, None).await?;
        } else {
            confirm(tx, peer, &row.handover_id, &mut messages).await?;
        }
        shown.messages.append(&mut messages);
    }
    shown.joins_turn = !shown.messages.is_empty() && !begins_turn;
    Ok(shown)
}

/// Makes a hand-over of the messages that hooks gave to a session of opencode that now begins, so
/// that the session's own record, which the plugin reads, decides: the process that got the
/// messages may have been killed with them. Without the hand-over, the reply to this event could
/// not give them again, and the next event would show nothing about them.
pub(super) async fn leave_to_record(
    tx: &mut WriteTx,
    ids: &Ids,
    (peer, session): (&Peer, &str),
    arrived: Timestamp,
) -> Result<(), StoreError> {
    let given = tx.inboxes().given(&peer.peer_id, arrived).await?;
    if given.is_empty() {
        return Ok(());
    }
    let row = HandoverRow {
        handover_id: HandoverId::new(ids, tx.now()),
        peer_id: peer.peer_id.clone(),
        session_id: session.to_owned(),
        via: HandoverWay::Plugin,
        joins_turn: true,
        is_held: false,
        record: None,
        at: tx.now(),
    };
    tx.handovers().insert(&row, &ids_of(&given)).await
}

/// Notes that a client has these messages of a hand-over.
async fn confirm(
    tx: &mut WriteTx,
    peer: &PeerId,
    id: &HandoverId,
    messages: &mut [Message],
) -> Result<(), StoreError> {
    advance(tx, peer, messages, DeliveryState::Injected, None).await?;
    tx.handovers().release(id, &ids_of(messages)).await
}

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
        let mut sender = MessageSender::new(&message.from_peer, from.as_ref().map(|row| &row.peer))
            .with_owner(from.as_ref().and_then(|row| row.owner.as_deref()));
        if let Some((run, key)) = sender.removed_in(&message)
            && let Some(work) = tx.assignments().get(run).await?
            && work.target_session == key
        {
            sender = sender.with_backend(&work.backend);
        }
        let answered = match message.answered() {
            Some(first) => tx.messages().get(&first).await?.map(|first| first.kind),
            None => None,
        };
        let stamp = stamp::stamp(&message, &sender, answered, begins_turn, None);
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
