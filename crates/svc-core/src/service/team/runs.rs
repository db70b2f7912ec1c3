//! Sends between sessions: what a target's turn is to them, and who gets the reply. All of this is
//! part of a write job.
//!
//! A reply is a message, stored in the commit that ends the turn. While a call waits for it, nobody
//! else is given it; so it is taken once, by the call or by the inbox, and a crash in between loses
//! nothing.

use svc_model::{
    Caller, DeliveryState, Message, MessageId, MessageType, Peer, PeerId, PeerState, PeerStatus,
    RegisterInput, RunId, Timestamp, TokenId,
    agent::{TurnEnd, TurnOutcome},
    conversation::{Provenance, RunState, SourceTool, TurnReply, next_turn},
    is_agent_key, is_reserved_name, limits, stamp,
};
use svc_store::{AgentRow, MessageTerms, PeerRow, RunRow, StoreError, WriteTx};
use svc_wire::host_protocol::NO_TURN;

use super::{
    delivery::{AGENT_ENDED, advance, close_questions, give_up, put, store_run, tell_run},
    find::operator_peer,
    peers,
};
use crate::service::{Error, core::Core};

/// Kind of client of a session that no hook has told of.
pub(in crate::service) const UNKNOWN_CLIENT: &str = "mcp";

/// What is told to whoever asked an agent that has ended since, and had the question or had it not.
const IN_TURN: &str = "the agent ended in the turn: what came of it is not known";
const UNSEEN: &str = "the agent ended before it had the message";
/// The same of a session that a person started.
const SESSION_ENDED: &str = "the session ended in the turn: what came of it is not known";
const INTERRUPTED: &str = "the turn was interrupted";

/// How a turn ended that a message began.
#[derive(Debug)]
enum TurnWords {
    /// With these words.
    Said(TurnReply),
    /// Without an answer, for a reason: a code, and the same in words.
    Failed(&'static str, String),
}

/// The terms of a reply to a send: a call that waits for it has it first; whoever it reaches late
/// may answer it in turn.
pub(super) fn terms_of_reply(tx: &WriteTx, run: Option<&RunRow>) -> MessageTerms {
    let now = tx.now();
    run.map_or_else(MessageTerms::default, |run| MessageTerms {
        turn: Some(1),
        held_until: run.waits_until.filter(|until| *until > now),
        by_call: false,
    })
}

/// Stores a send whose message stands, and says so to both ends.
pub(in crate::service) async fn open_run(tx: &mut WriteTx, run: &RunRow) -> Result<(), StoreError> {
    tx.runs().insert(run).await?;
    tell_run(tx, run).await
}

/// The peer of a hosted agent, which is made with the agent. What waits for an earlier agent of
/// this name is not for this one.
pub(in crate::service) async fn hosted_peer(
    tx: &mut WriteTx,
    core: &Core,
    agent: &AgentRow,
    label: Option<&str>,
) -> Result<(), Error> {
    let info = &agent.info;
    let key = info.session_key.as_str();
    let name = key.strip_prefix("agent:").unwrap_or(key);
    let label = label.filter(|label| !is_reserved_name(label));
    let name = label.unwrap_or_else(|| name.strip_suffix(":main").unwrap_or(name));
    let known = tx.peers().of_key(key).await?;
    if let Some(mut known) = known.filter(|row| row.owner.as_deref() == Some(key)) {
        // The end of that agent left at most what came in between.
        while give_up(tx, &known.peer.peer_id, "it was for an earlier agent of this name").await? {}
        known.project.clone_from(&agent.owned.project);
        known.peer.path = Some(info.worktree.clone());
        known.peer.display_name = name.to_owned();
        known.peer.last_seen = tx.now();
        tx.peers().put(&known).await?;
        return Ok(show_start(tx, &mut known.peer).await?);
    }
    let input = RegisterInput {
        display_name: name.to_owned(),
        backend: info.backend.to_string(),
        path: Some(info.worktree.clone()),
        circle: None,
        role: None,
        session_id: Some(key.to_owned()),
        tmux_pane: None,
        pid: None,
        metadata: None,
    };
    let caller = Caller::Session {
        key: key.into(),
        token: agent.token_id.clone().unwrap_or_else(|| TokenId::from(String::new())),
        scopes: std::sync::Arc::from([]),
        project: agent.owned.project.as_deref().map(Into::into),
        process: None,
        folder: None,
    };
    if let Some(mut other) = tx.peers().by_identity(&input.backend, key, "", "", Some(key)).await? {
        // Of whoever called its session so before such ids were the daemon's. It stays, and is
        // called something else.
        other.peer.session_id = Some(other.peer.peer_id.to_string());
        tx.peers().put(&other).await?;
    }
    let id = PeerId::new(&core.ids, tx.now());
    let mut peer = peers::create(tx, &caller, id, input, agent.owned.project.clone(), None).await?;
    Ok(show_start(tx, &mut peer).await?)
}

/// An agent starts: it is busy until its host says otherwise.
async fn show_start(tx: &mut WriteTx, peer: &mut Peer) -> Result<(), StoreError> {
    let state = PeerState { status: PeerStatus::Busy, waiting_for: None, at: tx.now() };
    peers::set_hosted_state(tx, peer, state, "started").await
}

/// A hosted agent has a message before its eyes: its host has recorded it as input.
pub(in crate::service) async fn turn_began(
    tx: &mut WriteTx,
    agent: &AgentRow,
    message_id: &str,
) -> Result<(), Error> {
    let Some(mut message) = message_to(tx, agent, message_id).await? else { return Ok(()) };
    let until = tx.now();
    let given_by = agent.info.id.as_str();
    tx.inboxes().lease(std::slice::from_ref(&message.id), until, Some(given_by)).await?;
    let to = message.to_peer.clone();
    advance(tx, &to, std::slice::from_mut(&mut message), DeliveryState::Injected, None).await?;
    Ok(())
}

/// A turn of a hosted agent is over. If a message began it, its words are the reply.
pub(in crate::service) async fn turn_ended(
    tx: &mut WriteTx,
    core: &Core,
    agent: &AgentRow,
    turn: &TurnEnd,
) -> Result<(), Error> {
    let Some(named) = turn.message_id.as_deref() else { return Ok(()) };
    let Some(message) = message_to(tx, agent, named).await? else { return Ok(()) };
    let words = words_of(turn);
    match message.kind {
        MessageType::Query => reply(tx, core, message, words).await,
        MessageType::Response => answer_reply(tx, core, &message, words).await,
        MessageType::Notification | MessageType::Broadcast => Ok(()),
    }
}

fn words_of(turn: &TurnEnd) -> TurnWords {
    let failed = |reason, otherwise: &str| {
        TurnWords::Failed(reason, turn.error.clone().unwrap_or_else(|| otherwise.to_owned()))
    };
    match turn.outcome {
        TurnOutcome::Completed => {
            TurnWords::Said(TurnReply::from_text(turn.result.as_deref().unwrap_or_default()))
        }
        TurnOutcome::Interrupted => failed("interrupted", INTERRUPTED),
        TurnOutcome::Failed => failed("failed", "the turn failed"),
        TurnOutcome::Refused => failed("refused", "the vendor refused"),
        TurnOutcome::Ended => failed("target_ended", "the program ended in the turn"),
    }
}

/// A turn of a session that its hooks tell of is over, with these last words: they are the reply to
/// the questions with which it began, and to no other.
pub(in crate::service) async fn turn_said(
    tx: &mut WriteTx,
    core: &Core,
    peer: &PeerId,
    words: &str,
) -> Result<(), Error> {
    for question in end_turn(tx, peer).await? {
        reply(tx, core, question, TurnWords::Said(TurnReply::from_text(words))).await?;
    }
    Ok(())
}

/// Fails the questions of a turn without last words: for this reason, or as its person interrupted
/// it.
pub(in crate::service) async fn turn_failed(
    tx: &mut WriteTx,
    core: &Core,
    peer: &PeerId,
    failure: Option<&str>,
) -> Result<(), Error> {
    let (code, why) = failure.map_or(("interrupted", INTERRUPTED), |why| ("failed", why));
    for question in end_turn(tx, peer).await? {
        reply(tx, core, question, TurnWords::Failed(code, why.to_owned())).await?;
    }
    Ok(())
}

/// Fails the questions of a turn whose end no hook has reported: by the client's own record, the
/// end of its process, or silence.
pub(super) async fn silent_turn_ended(
    tx: &mut WriteTx,
    core: &Core,
    peer: &PeerId,
    before: Timestamp,
) -> Result<(), Error> {
    let Some(row) = tx.peers().get(peer).await?.filter(|row| row.peer.since < before) else {
        return Ok(());
    };
    let (code, why) = match row.peer.status {
        PeerStatus::Idle => ("interrupted", INTERRUPTED),
        PeerStatus::Offline => ("target_ended", SESSION_ENDED),
        _ => return Ok(()),
    };
    let is_hosted = tx.peers().is_hosted(peer).await?;
    for question in end_turn(tx, peer).await? {
        // The host of a hosted agent reports its turns.
        if !is_hosted {
            reply(tx, core, question, TurnWords::Failed(code, why.to_owned())).await?;
        }
    }
    Ok(())
}

/// The questions with which the ended turn had begun. Clears their mark, so that the next turn does
/// not answer them.
async fn end_turn(tx: &mut WriteTx, peer: &PeerId) -> Result<Vec<Message>, StoreError> {
    let mut questions = tx.messages().questions_of_turn(peer).await?;
    // One that was given a moment ago may belong to the next turn.
    questions.retain(|question| question.state >= DeliveryState::Injected);
    let ids: Vec<MessageId> = questions.iter().map(|question| question.id.clone()).collect();
    tx.messages().note_turn(&ids, false).await?;
    Ok(questions)
}

/// A turn of a session that its hooks tell of begins with this prompt: one of the questions that
/// are in it, or a person's. Returns whether a question is in it.
///
/// An earlier turn of which no end was told is over, so its questions fail as interrupted. `given`
/// are messages which this event shows that the session has. A question among them that is not in
/// the prompt began no turn yet: a person's prompt came before that of the wake.
pub(in crate::service) async fn turn_prompted(
    tx: &mut WriteTx,
    core: &Core,
    peer: &PeerId,
    given: &[Message],
    prompt: &str,
) -> Result<bool, Error> {
    let is_in = |message: &Message| prompt.contains(stamp::naming(&message.id).as_str());
    let mut over = tx.messages().questions_of_turn(peer).await?;
    over.retain(|message| !is_in(message));
    let ids = |messages: &[Message]| -> Vec<MessageId> {
        messages.iter().map(|message| message.id.clone()).collect()
    };
    tx.messages().note_turn(&ids(&over), false).await?;
    for question in over {
        if !given.iter().any(|message| message.id == question.id) {
            reply(tx, core, question, TurnWords::Failed("interrupted", INTERRUPTED.to_owned()))
                .await?;
        }
    }
    if !prompt.contains(stamp::NAMING) {
        return Ok(false);
    }
    let mut begun = tx.inboxes().waiting(peer, limits::ENDED_MESSAGES_PER_JOB).await?;
    begun.retain(|message| message.kind == MessageType::Query && is_in(message));
    tx.messages().note_turn(&ids(&begun), true).await?;
    Ok(!begun.is_empty())
}

/// The same of a prompt that is reported late. Questions may have been given since then, so none
/// fails; those that are not in the prompt are answered by no words of the turn.
pub(in crate::service) async fn late_turn_prompted(
    tx: &mut WriteTx,
    peer: &PeerId,
    prompt: &str,
) -> Result<(), Error> {
    let mut over = tx.messages().questions_of_turn(peer).await?;
    over.retain(|message| !prompt.contains(stamp::naming(&message.id).as_str()));
    let ids: Vec<MessageId> = over.into_iter().map(|message| message.id).collect();
    Ok(tx.messages().note_turn(&ids, false).await?)
}

/// A hosted agent's host does not take a message.
pub(in crate::service) async fn mail_refused(
    tx: &mut WriteTx,
    core: &Core,
    id: &MessageId,
    reason: String,
) -> Result<(), Error> {
    let waits = |message: &Message| message.state < DeliveryState::Offered;
    let Some(message) = tx.messages().get(id).await?.filter(waits) else { return Ok(()) };
    let code = if reason == NO_TURN { "not_running" } else { "refused" };
    let (to, mut refused) = (message.to_peer.clone(), message.clone());
    reply(tx, core, message, TurnWords::Failed(code, reason)).await?;
    let state = DeliveryState::Undeliverable;
    let why = Some("its host did not take it");
    Ok(advance(tx, &to, std::slice::from_mut(&mut refused), state, why).await?)
}

/// A hosted agent has ended: what it was asked is not answered any more, and what waits for it does
/// not reach it, nor anybody else of its name. The peer, if more waits for it than one write job
/// ends: see [`super::end_deliveries`].
pub(in crate::service) async fn agent_ended(
    tx: &mut WriteTx,
    core: &Core,
    agent: &AgentRow,
) -> Result<Option<PeerId>, Error> {
    let Some(own) = peer_of_agent(tx, agent).await? else { return Ok(None) };
    let peer = own.peer.peer_id;
    for run in tx.runs().open_of_agent(&peer, &agent.info.id).await? {
        let Some(question) = tx.messages().get(&run.message_id).await? else { continue };
        let why = if run.begun_at.is_some() { IN_TURN } else { UNSEEN };
        reply(tx, core, question, TurnWords::Failed("target_ended", why.to_owned())).await?;
    }
    // Who asked by `peer_send` hears of it, too.
    for question in tx.inboxes().waiting(&peer, limits::ENDED_MESSAGES_PER_JOB).await? {
        if question.kind == MessageType::Query {
            let why = if question.state >= DeliveryState::Injected { IN_TURN } else { UNSEEN };
            reply(tx, core, question, TurnWords::Failed("target_ended", why.to_owned())).await?;
        }
    }
    let has_more = give_up(tx, &peer, AGENT_ENDED).await?;
    Ok(has_more.then_some(peer))
}

/// The peer that was made with an agent.
async fn peer_of_agent(tx: &mut WriteTx, agent: &AgentRow) -> Result<Option<PeerRow>, StoreError> {
    let key = agent.info.session_key.as_str();
    let own = tx.peers().of_key(key).await?;
    Ok(own.filter(|row| row.owner.as_deref() == Some(key)))
}

/// Takes the peer of an agent that has ended out of the list.
pub(in crate::service) async fn remove_agents_peer(
    tx: &mut WriteTx,
    agent: &AgentRow,
) -> Result<(), StoreError> {
    let Some(own) = peer_of_agent(tx, agent).await? else { return Ok(()) };
    peers::remove(tx, &own.peer).await
}

/// The message of this id, if it is for this agent.
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

/// Ends a send with what its turn came to, and answers whoever asked. A question that was answered
/// before is left alone.
async fn reply(
    tx: &mut WriteTx,
    core: &Core,
    mut question: Message,
    words: TurnWords,
) -> Result<(), Error> {
    let mut run = tx.runs().of_message(&question.id).await?;
    let is_answered =
        run.as_ref().map_or(question.state == DeliveryState::Acked, |run| run.ended_at.is_some());
    if is_answered {
        return Ok(());
    }
    let id = &question.id;
    let (state, kind, text, why) = match words {
        TurnWords::Said(TurnReply::Text(text)) => (RunState::Ok, MessageType::Response, text, None),
        TurnWords::Said(TurnReply::Silence) => {
            let text = format!("No answer to {id}: the turn ended without text.");
            (RunState::NoReply, MessageType::Notification, text, None)
        }
        TurnWords::Failed(code, error) => {
            let text = format!("No answer to {id}: {error}");
            (RunState::Error, MessageType::Notification, text, Some((code, error)))
        }
    };
    let failure = why.as_ref().map(|(_, error)| error.clone());
    let mut terms = terms_of_reply(tx, run.as_ref());
    if kind != MessageType::Response {
        terms.turn = None;
    }
    // The message about the end of a failed task says it already.
    let is_told = failure.is_some() && tool_of(&question) == SourceTool::SendMessage;
    let reply_id =
        if is_told { None } else { put_reply(tx, core, &question, (kind, text), terms).await? };
    if let Some(run) = &mut run {
        (run.state, run.reply_id) = (state, reply_id);
        (run.reason, run.error) =
            why.map_or((None, None), |(code, error)| (Some(code.to_owned()), Some(error)));
        store_run(tx, run).await?;
    }
    let to = question.to_peer.clone();
    match failure {
        // An answer acknowledges its question. What came to nothing stays as it is.
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

/// The words of a turn that a late reply began go back to whoever replied, as often as is
/// configured.
async fn answer_reply(
    tx: &mut WriteTx,
    core: &Core,
    received: &Message,
    words: TurnWords,
) -> Result<(), Error> {
    let TurnWords::Said(words) = words else { return Ok(()) };
    let Some(turn) = tx.messages().turn_of(&received.id).await? else { return Ok(()) };
    let next = next_turn(turn, core.sessions().max_ping_pong, &words);
    if let (Some(next), TurnReply::Text(text)) = (next, words) {
        let terms = MessageTerms { turn: Some(next), ..MessageTerms::default() };
        put_reply(tx, core, received, (MessageType::Response, text), terms).await?;
    }
    Ok(())
}

/// Stores the answer to a message for whoever sent it; `None` if that is no peer any more. The
/// sender has asked for it, so no bound of the inbox keeps it out.
async fn put_reply(
    tx: &mut WriteTx,
    core: &Core,
    question: &Message,
    (kind, mut text): (MessageType, String),
    terms: MessageTerms,
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
    if is_namesake(tx, &asker, question).await? {
        let why = Some("the agent that asked has ended");
        let state = DeliveryState::Undeliverable;
        advance(tx, &to, std::slice::from_mut(&mut message), state, why).await?;
    }
    Ok(Some(id))
}

/// What a message was sent with.
fn tool_of(message: &Message) -> SourceTool {
    message.provenance.as_ref().map_or(SourceTool::PeerSend, |it| it.source_tool)
}

/// Whether a peer is that of a hosted agent which has ended, and no agent of its name lives.
pub(super) async fn has_ended(tx: &mut WriteTx, row: &PeerRow) -> Result<bool, StoreError> {
    let Some(key) = row.owner.as_deref().filter(|owner| is_agent_key(owner)) else {
        return Ok(false);
    };
    Ok(tx.agents().live(key).await?.is_none() && tx.agents().was_run(key).await?)
}

/// Whether the hosted agent that sent a message has ended, although one of its name may live.
async fn is_namesake(
    tx: &mut WriteTx,
    sender: &PeerRow,
    message: &Message,
) -> Result<bool, StoreError> {
    let Some(key) = sender.owner.as_deref().filter(|owner| is_agent_key(owner)) else {
        return Ok(false);
    };
    match tx.agents().live(key).await? {
        Some(live) => Ok(live.info.started_at > message.timestamp),
        None => tx.agents().was_run(key).await,
    }
}

/// The peer of a session that speaks for the first time, and that no hook has told of.
pub(in crate::service) async fn peer_of_speaker(
    tx: &mut WriteTx,
    core: &Core,
    caller: &Caller,
    session: &str,
) -> Result<Peer, Error> {
    let known = tx.peers().of_session(session).await?;
    let mut known = known.filter(|row| caller.session().is_none_or(|key| row.is_for(key)));
    if let (None, Some(key)) = (&known, caller.session().filter(|key| *key == session)) {
        known = tx.peers().of_key(key).await?;
    }
    if let Some(known) = known {
        return Ok(known.peer);
    }
    core.budget.check_rows(tx, caller, 1).await?;
    let input = RegisterInput {
        display_name: session.to_owned(),
        backend: UNKNOWN_CLIENT.to_owned(),
        path: None,
        circle: None,
        role: None,
        session_id: Some(session.to_owned()),
        tmux_pane: None,
        pid: caller.process().map(|process| process.pid),
        metadata: None,
    };
    let id = PeerId::new(&core.ids, tx.now());
    let project = caller.project().map(str::to_owned);
    peers::create(tx, caller, id, input, project, caller.process().cloned()).await
}
