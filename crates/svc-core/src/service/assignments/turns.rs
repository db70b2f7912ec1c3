//! Relates the turn of a participant to the messages that began it, and decides who gets the reply.
//!
//! A reply is a message, stored in the commit that ends the turn. While a call waits for the reply,
//! the inbox does not hand it out. So either the call or the inbox takes it, once, and a crash in
//! between loses nothing.

use svc_model::{
    DeliveryState, Message, MessageId, MessageType, PeerId, PeerStatus, RunId, Timestamp,
    agent::TurnEnd,
    conversation::{Provenance, SourceTool, TurnReply, next_turn},
    limits, stamp,
};
use svc_store::{AgentRow, AssignmentRow, DeliveryTerms, PeerRow, StoreError, WriteTx};
use svc_wire::host_protocol::NO_TURN;

use super::{
    AssignmentOutcome,
    settle::{INTERRUPTED, end_answered, failure_of},
};
use crate::service::{
    Result,
    core::Core,
    team::{self, AGENT_ENDED, advance, close_questions, give_up, ids_of, operator_peer, put},
};

/// The errors for the sender of a question to an agent that ended, after or before it had the
/// question.
const IN_TURN: &str = "the agent ended during the turn, and its outcome is unknown";
const UNSEEN: &str = "the agent ended before it had the message";
/// The same error for a session that a person started.
const SESSION_ENDED: &str = "the session ended during the turn, and its outcome is unknown";

/// How a turn that a message began ended.
#[derive(Clone)]
enum TurnOutput {
    Said(TurnReply),
    /// No answer: a code, and the reason as a text for people.
    Failed(&'static str, String),
}

/// The terms of a reply to a send. A call that waits for the reply gets it first; a receiver that
/// gets it later may answer it.
pub(in crate::service) fn terms_of_reply(
    tx: &WriteTx,
    row: Option<&AssignmentRow>,
) -> DeliveryTerms {
    let now = tx.now();
    row.map_or_else(DeliveryTerms::default, |row| DeliveryTerms {
        turn: Some(1),
        held_until: row.waits_until.filter(|until| *until > now),
        ..DeliveryTerms::default()
    })
}

/// Notes that a hosted agent reads a message: its host has recorded it as input.
pub(in crate::service) async fn turn_began(
    tx: &mut WriteTx,
    agent: &AgentRow,
    message_id: &str,
) -> Result<()> {
    let Some(mut message) = message_to(tx, agent, message_id).await? else { return Ok(()) };
    let until = tx.now();
    let given_by = agent.info.id.as_str();
    tx.inboxes().lease(std::slice::from_ref(&message.id), until, Some(given_by)).await?;
    let to = message.to_peer.clone();
    advance(tx, &to, std::slice::from_mut(&mut message), DeliveryState::Injected, None).await?;
    Ok(())
}

/// Ends a turn of a hosted agent. If a message began the turn, its words are the reply.
pub(in crate::service) async fn turn_ended(
    tx: &mut WriteTx,
    core: &Core,
    agent: &AgentRow,
    turn: &TurnEnd,
) -> Result<()> {
    let Some(named) = turn.message_id.as_deref() else { return Ok(()) };
    let Some(message) = message_to(tx, agent, named).await? else { return Ok(()) };
    let words = match failure_of(turn) {
        Some((code, why)) => TurnOutput::Failed(code, why),
        None => TurnOutput::Said(TurnReply::from_text(turn.result.as_deref().unwrap_or_default())),
    };
    match message.kind {
        MessageType::Query => reply(tx, core, message, words).await,
        MessageType::Response => answer_reply(tx, core, &message, words).await,
        MessageType::Notification | MessageType::Broadcast => Ok(()),
    }
}

/// Ends a turn of a session that hooks report. Its last words are the reply to the questions with
/// which the turn began, and to no other question.
pub(in crate::service) async fn turn_said(
    tx: &mut WriteTx,
    core: &Core,
    peer: &PeerId,
    words: &str,
) -> Result<()> {
    answer_turn(tx, core, peer, TurnOutput::Said(TurnReply::from_text(words))).await
}

/// Fails the questions of a turn that ended without last words, with this reason. `None`: the
/// person interrupted the turn.
pub(in crate::service) async fn turn_failed(
    tx: &mut WriteTx,
    core: &Core,
    peer: &PeerId,
    failure: Option<&str>,
) -> Result<()> {
    let (code, why) = failure.map_or(("interrupted", INTERRUPTED), |why| ("failed", why));
    answer_turn(tx, core, peer, TurnOutput::Failed(code, why.to_owned())).await
}

/// Fails the questions of a turn whose end no hook has reported. The client's own record, the end
/// of its process, or its silence shows that the turn is over.
pub(in crate::service) async fn silent_turn_ended(
    tx: &mut WriteTx,
    core: &Core,
    peer: &PeerId,
    before: Timestamp,
) -> Result<()> {
    let Some(row) = tx.peers().get(peer).await?.filter(|row| row.peer.since < before) else {
        return Ok(());
    };
    let (code, why) = match row.peer.status {
        PeerStatus::Idle => ("interrupted", INTERRUPTED),
        PeerStatus::Offline => ("target_ended", SESSION_ENDED),
        _ => return Ok(()),
    };
    if tx.peers().is_hosted(peer).await? {
        // The host reports the end of turns.
        end_turn(tx, peer).await?;
        return Ok(());
    }
    answer_turn(tx, core, peer, TurnOutput::Failed(code, why.to_owned())).await
}

/// Ends a turn, and answers the questions with which it began.
async fn answer_turn(
    tx: &mut WriteTx,
    core: &Core,
    peer: &PeerId,
    output: TurnOutput,
) -> Result<()> {
    for question in end_turn(tx, peer).await? {
        reply(tx, core, question, output.clone()).await?;
    }
    Ok(())
}

/// The questions with which the ended turn began. Clears their mark, so that the next turn does not
/// answer them.
async fn end_turn(tx: &mut WriteTx, peer: &PeerId) -> Result<Vec<Message>, StoreError> {
    let mut questions = tx.messages().questions_of_turn(peer).await?;
    // A question that was handed over a moment ago may belong to the next turn.
    questions.retain(|question| question.state >= DeliveryState::Injected);
    tx.messages().note_turn(&ids_of(&questions), false).await?;
    Ok(questions)
}

/// Begins a turn of a session that hooks report, with this prompt: it has questions in it, or a
/// person typed it. Returns whether it has a question in it.
///
/// An earlier turn whose end was not reported is over, so its questions fail as interrupted.
/// `given` are the messages that the session has, as this event shows. A question of `given` that
/// is not in the prompt has begun no turn yet, and does not fail: a person's prompt came before the
/// prompt of the wake.
pub(in crate::service) async fn turn_prompted(
    tx: &mut WriteTx,
    core: &Core,
    peer: &PeerId,
    given: &[Message],
    prompt: &str,
) -> Result<bool> {
    let is_in = |message: &Message| prompt.contains(stamp::naming(&message.id).as_str());
    let mut over = tx.messages().questions_of_turn(peer).await?;
    over.retain(|message| !is_in(message));
    tx.messages().note_turn(&ids_of(&over), false).await?;
    for question in over {
        if !given.iter().any(|message| message.id == question.id) {
            reply(tx, core, question, TurnOutput::Failed("interrupted", INTERRUPTED.to_owned()))
                .await?;
        }
    }
    if !prompt.contains(stamp::NAMING) {
        return Ok(false);
    }
    let mut begun = tx.inboxes().waiting(peer, limits::ENDED_MESSAGES_PER_JOB).await?;
    begun.retain(|message| message.kind == MessageType::Query && is_in(message));
    tx.messages().note_turn(&ids_of(&begun), true).await?;
    Ok(!begun.is_empty())
}

/// Like [`turn_prompted`], for a prompt that is reported late. Questions may have been handed over
/// since then, so none fails. The words of the turn answer no question that is not in the prompt.
pub(in crate::service) async fn late_turn_prompted(
    tx: &mut WriteTx,
    peer: &PeerId,
    prompt: &str,
) -> Result<()> {
    let mut over = tx.messages().questions_of_turn(peer).await?;
    over.retain(|message| !prompt.contains(stamp::naming(&message.id).as_str()));
    Ok(tx.messages().note_turn(&ids_of(&over), false).await?)
}

/// Ends the delivery of a message that a hosted agent's host refused.
pub(in crate::service) async fn mail_refused(
    tx: &mut WriteTx,
    core: &Core,
    id: &MessageId,
    reason: String,
) -> Result<()> {
    let waits = |message: &Message| message.state < DeliveryState::Offered;
    let Some(message) = tx.messages().get(id).await?.filter(waits) else { return Ok(()) };
    let code = if reason == NO_TURN { "not_running" } else { "refused" };
    let (to, mut refused) = (message.to_peer.clone(), message.clone());
    reply(tx, core, message, TurnOutput::Failed(code, reason)).await?;
    let state = DeliveryState::Undeliverable;
    let why = Some("its host did not take it");
    Ok(advance(tx, &to, std::slice::from_mut(&mut refused), state, why).await?)
}

/// Fails the questions to an agent that has ended, and ends the deliveries to it, so that a later
/// agent of the same name does not get them. Returns the peer if it has more deliveries than one
/// write job may end: see [`team::end_deliveries`].
pub(in crate::service) async fn agent_ended(
    tx: &mut WriteTx,
    core: &Core,
    agent: &AgentRow,
) -> Result<Option<PeerId>> {
    let Some(own) = team::peer_of_agent(tx, agent).await? else { return Ok(None) };
    let peer = own.peer.peer_id;
    for row in tx.assignments().of_agent(&agent.info.id).await? {
        let Some(id) = &row.message_id else { continue };
        let Some(question) = tx.messages().get(id).await? else { continue };
        let why = if row.begun_at.is_some() { IN_TURN } else { UNSEEN };
        reply(tx, core, question, TurnOutput::Failed("target_ended", why.to_owned())).await?;
    }
    // Senders that asked by `peer_send` get an answer, too.
    for question in tx.inboxes().waiting(&peer, limits::ENDED_MESSAGES_PER_JOB).await? {
        if question.kind == MessageType::Query {
            let why = if question.state >= DeliveryState::Injected { IN_TURN } else { UNSEEN };
            reply(tx, core, question, TurnOutput::Failed("target_ended", why.to_owned())).await?;
        }
    }
    let has_more = give_up(tx, &peer, AGENT_ENDED).await?;
    Ok(has_more.then_some(peer))
}

async fn message_to(
    tx: &mut WriteTx,
    agent: &AgentRow,
    id: &str,
) -> Result<Option<Message>, StoreError> {
    let Some(id) = MessageId::parse(id).filter(|id| id.as_str().starts_with(MessageId::PREFIX))
    else {
        return Ok(None);
    };
    let Some(message) = tx.messages().get(&id).await? else { return Ok(None) };
    let own = tx.peers().of_key(&agent.info.session_key).await?;
    Ok(own.filter(|own| own.peer.peer_id == message.to_peer).map(|_| message))
}

/// Ends a send with the outcome of its turn, and answers the sender. Does nothing if the question
/// has an answer already.
async fn reply(
    tx: &mut WriteTx,
    core: &Core,
    mut question: Message,
    words: TurnOutput,
) -> Result<()> {
    let mut assignment = tx.assignments().of_message(&question.id).await?;
    let is_answered = assignment
        .as_ref()
        .map_or(question.state == DeliveryState::Acked, |row| !row.is_unanswered());
    if is_answered {
        return Ok(());
    }
    let id = &question.id;
    let (outcome, kind, text, why) = match words {
        TurnOutput::Said(TurnReply::Text(text)) => {
            (AssignmentOutcome::Answered, MessageType::Response, text, None)
        }
        TurnOutput::Said(TurnReply::Silence) => {
            let text = format!("No answer to {id}: the turn ended without text.");
            (AssignmentOutcome::Silent, MessageType::Notification, text, None)
        }
        TurnOutput::Failed(code, error) => {
            let text = format!("No answer to {id}: {error}");
            (AssignmentOutcome::Failed, MessageType::Notification, text, Some((code, error)))
        }
    };
    let failure = why.as_ref().map(|(_, error)| error.clone());
    let mut terms = terms_of_reply(tx, assignment.as_ref());
    if kind != MessageType::Response {
        terms.turn = None;
    }
    let result =
        (outcome == AssignmentOutcome::Answered && assignment.is_some()).then(|| text.clone());
    // The message about the end of a failed task has the error already.
    let is_told = failure.is_some() && tool_of(&question) == SourceTool::SendMessage;
    let reply_id =
        if is_told { None } else { put_reply(tx, core, &question, (kind, text), terms).await? };
    if let Some(row) = &mut assignment {
        row.reply_id = reply_id;
        (row.reason, row.error) =
            why.map_or((None, None), |(code, error)| (Some(code.to_owned()), Some(error)));
        end_answered(tx, core, row, outcome, result).await?;
    }
    let to = question.to_peer.clone();
    match failure {
        // An answer acknowledges its question. The state of a question that failed stays.
        Some(why) if question.state == DeliveryState::Injected => {
            close_questions(tx, &to, std::slice::from_ref(&question), &why).await?;
        }
        None if question.state >= DeliveryState::Injected => {
            advance(tx, &to, std::slice::from_mut(&mut question), DeliveryState::Acked, None)
                .await?;
        }
        Some(_) | None => {}
    }
    Ok(())
}

/// Sends the words of a turn that a late reply began to the author of that reply, as often as
/// `max_ping_pong` allows.
async fn answer_reply(
    tx: &mut WriteTx,
    core: &Core,
    received: &Message,
    words: TurnOutput,
) -> Result<()> {
    let TurnOutput::Said(words) = words else { return Ok(()) };
    let Some(turn) = tx.messages().turn_of(&received.id).await? else { return Ok(()) };
    let next = next_turn(turn, core.sessions.policy.max_ping_pong, &words);
    if let (Some(next), TurnReply::Text(text)) = (next, words) {
        let terms = DeliveryTerms { turn: Some(next), ..DeliveryTerms::default() };
        put_reply(tx, core, received, (MessageType::Response, text), terms).await?;
    }
    Ok(())
}

/// Stores the answer to a message for the sender of the message; `None` if that peer is gone. The
/// sender asked for the answer, so the bounds of the inbox do not apply.
async fn put_reply(
    tx: &mut WriteTx,
    core: &Core,
    question: &Message,
    (kind, mut text): (MessageType, String),
    terms: DeliveryTerms,
) -> Result<Option<MessageId>, StoreError> {
    let Some(to) = PeerId::parse(&question.from_peer) else { return Ok(None) };
    let asker =
        if to.is_operator() { Some(operator_peer(tx).await?) } else { tx.peers().get(&to).await? };
    let Some(asker) = asker else { return Ok(None) };
    text.truncate(text.floor_char_boundary(limits::MESSAGE_BYTES));
    let from = question.to_peer.as_str();
    let answerer = tx.peers().get(&question.to_peer).await?;
    let session = answerer.as_ref().and_then(PeerRow::session_key);
    let sent_by = answerer.map_or_else(|| from.to_owned(), |row| row.principal().to_string());
    let provenance = question.provenance.as_ref();
    let tool = tool_of(question);
    let run = provenance.map_or_else(|| RunId::of_message(&question.id), |it| it.run_id.clone());
    let now = tx.now();
    let mut message = Message {
        id: MessageId::new(&core.ids, now),
        kind,
        from_peer: from.to_owned(),
        to_peer: to.clone(),
        text,
        correlation_id: Some(question.id.as_str().to_owned()),
        timestamp: now,
        state: DeliveryState::Accepted,
        provenance: Some(Provenance::inter_session(session, tool, run)),
    };
    put(tx, &mut message, (&sent_by, None), terms).await?;
    let id = message.id.clone();
    if team::is_namesake(tx, &asker, question).await? {
        let why = Some("the agent that asked has ended");
        let state = DeliveryState::Undeliverable;
        advance(tx, &to, std::slice::from_mut(&mut message), state, why).await?;
    }
    Ok(Some(id))
}

fn tool_of(message: &Message) -> SourceTool {
    message.provenance.as_ref().map_or(SourceTool::PeerSend, |it| it.source_tool)
}
