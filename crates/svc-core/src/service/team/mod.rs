//! Peers, the messages between them, and the sessions of coding agents. This file has the service,
//! the check who may act for a peer, and the functions that append to the streams of sessions, of
//! peers and of the team.

mod delivery;
mod find;
mod inbox;
mod last_calls;
mod ownership;
mod peers;
mod presence;
mod records;
mod sessions;

use std::sync::Arc;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use svc_model::{
    Caller, NewEvent, Ownership, Peer, PeerId, PeerState, PeerStatus, Principal, StatusEvidence,
    StreamName, StreamVisibility, Timestamp, WaitingFor, WaitingKind, limits,
};
use svc_store::{PeerRow, StoreError, WriteTx};

use super::{
    Error, Page, ResourceKind, Result,
    access::Access,
    core::{Core, open_and_append},
    error::SHOWN_ID_CHARS,
    reads::ReadCache,
};

use last_calls::LastCalls;

pub use inbox::{BroadcastReach, MessageDetail, Stamped};
pub use sessions::{ActingSession, NewSession, SessionDetail};

pub(super) use delivery::{
    AGENT_ENDED, OutgoingMessage, advance, close_questions, deliver, end_deliveries, give_up, hold,
    ids_of, note_unseen, plain_message, put,
};
pub(super) use find::{
    UNKNOWN_CLIENT, find_peer, hosted_peer, is_namesake, operator_peer, peer_of_agent,
    peer_of_speaker, peers_named, remove_agents_peer,
};
pub(super) use inbox::send_answer;
pub(super) use ownership::{claim, refusal};
pub(super) use peers::{create, update};
pub(super) use sessions::{
    begin, end, owns_session, readable_session, remove_sessions, touch_session, touch_uncharged,
};

#[derive(Debug, Clone)]
pub struct Team {
    core: Core,
    access: Access,
    peer_pages: Arc<ReadCache<Page<Peer>>>,
    session_peers: Arc<ReadCache<Option<Peer>>>,
    /// The latest open session of each principal.
    latest_sessions: Arc<ReadCache<Option<String>>>,
    last_calls: Arc<LastCalls>,
}

impl Team {
    pub(super) fn new(core: Core, access: Access) -> Self {
        Self {
            core,
            access,
            peer_pages: Arc::default(),
            session_peers: Arc::default(),
            latest_sessions: Arc::default(),
            last_calls: Arc::default(),
        }
    }
}

/// The operator may act for any peer; a session token may act for the peers of its session.
pub(super) fn may_act_for(caller: &Caller, row: &PeerRow) -> Result<()> {
    if caller.is_operator() || row.principal() == caller.principal() {
        return Ok(());
    }
    let id = &row.peer.peer_id;
    let whose = if id.is_operator() { "is the operator's" } else { "belongs to another session" };
    Err(Error::Forbidden(format!("peer {id} {whose}")))
}

/// Logs that a caller named a session or peer for which the caller may not act. The name is the
/// caller's text, so the log has it escaped and cut.
pub(super) fn log_impersonation(caller: &Caller, field: &'static str, named: &str) {
    let named: String = named.chars().take(SHOWN_ID_CHARS).collect();
    let principal = caller.principal().to_string();
    tracing::warn!(?principal, field, ?named, "a caller may not act for another");
}

/// The peer with this id, if the caller may act for it.
async fn own_peer(
    tx: &mut WriteTx,
    caller: &Caller,
    id: &PeerId,
    kind: ResourceKind,
) -> Result<PeerRow> {
    let row = tx.peers().get(id).await?.ok_or_else(|| Error::not_found(kind, id.as_str()))?;
    may_act_for(caller, &row).inspect_err(|_| log_impersonation(caller, "peer_id", id.as_str()))?;
    Ok(row)
}

/// Appends to a session's stream; opens the stream if it is new.
pub(super) async fn tell(
    tx: &mut WriteTx,
    session_id: &str,
    kind: &'static str,
    data: &serde_json::Value,
) -> Result<(), StoreError> {
    let stream = stream_of(session_id);
    if tx.streams().state(&stream).await?.is_none() {
        let visibility = visibility_of(tx, session_id).await?;
        tx.streams().open(&stream, &visibility).await?;
    }
    tx.append(&stream, vec![NewEvent::new(kind, data)]).await?;
    Ok(())
}

/// The visibility of a session's stream.
async fn visibility_of(tx: &mut WriteTx, session_id: &str) -> Result<StreamVisibility, StoreError> {
    let row = tx.sessions().owner(session_id).await?;
    let mut thing = row.unwrap_or_else(|| Ownership::from_row("", String::new()));
    // The stream of a session that the operator registered is readable with a token for that
    // session. The operator can read every stream anyway.
    if matches!(thing.owner, None | Some(Principal::Operator)) {
        thing.owner = Some(Principal::Session(session_id.into()));
    }
    Ok(StreamVisibility::shared(&thing))
}

/// The stream of a session. A client's id that is no valid part of a stream's name is replaced by
/// its hash.
fn stream_of(session_id: &str) -> StreamName {
    let name = format!("session/{session_id}");
    let fits = session_id.len() <= limits::ID_BYTES;
    StreamName::parse(&name).filter(|_| fits).unwrap_or_else(|| {
        StreamName::new("session", hex::encode(&Sha256::digest(session_id)[..16]))
    })
}

pub(super) async fn append_to_peer(
    tx: &mut WriteTx,
    to: &PeerId,
    events: Vec<NewEvent>,
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let stream = StreamName::new("peer", to);
    // The stream is opened when the peer is created. A peer of an old database may have none; then
    // its stream is the operator's.
    open_and_append(tx, &stream, &StreamVisibility::private(&Principal::Operator), events).await
}

/// Appends to the team stream, which everybody reads.
pub(super) async fn append_to_team(tx: &mut WriteTx, event: NewEvent) -> Result<(), StoreError> {
    let team = StreamName::fixed(StreamName::TEAM);
    open_and_append(tx, &team, &StreamVisibility::Team, vec![event]).await
}

/// Appends a peer's change to the team stream. Everybody reads that stream, so the event has
/// presence only.
async fn note_peer(tx: &mut WriteTx, kind: &'static str, peer: &Peer) -> Result<(), StoreError> {
    append_to_team(tx, NewEvent::new(kind, &peer.presence())).await
}

/// Stores a peer's status as shown by its process or a call, and the time; appends an event if the
/// status changes. A peer that stays `waiting` keeps what it waits for.
async fn set_status(
    tx: &mut WriteTx,
    peer: &mut Peer,
    next: PeerStatus,
    reason: &'static str,
) -> Result<(), StoreError> {
    let waiting_for = peer.waiting_for.clone().filter(|_| next == PeerStatus::Waiting);
    let at = tx.now();
    let state = PeerState { status: next, waiting_for, at, evidence: StatusEvidence::Process };
    set_state(tx, peer, state, reason).await
}

/// Changes the status of a peer because its machine went away or came back. The evidence stays,
/// because nothing else has reported the peer's status.
pub(super) async fn set_reach(
    tx: &mut WriteTx,
    peer: &mut Peer,
    next: PeerStatus,
    at: Timestamp,
    reason: &'static str,
) -> Result<(), StoreError> {
    let state = PeerState { status: next, waiting_for: None, at, evidence: peer.evidence };
    set_hosted_state(tx, peer, state, reason).await
}

/// Like [`set_status`], but also stores what the peer waits for and since when; a change of that is
/// an event, too. For a hosted agent only the time is stored: only its host reports its status.
pub(super) async fn set_state(
    tx: &mut WriteTx,
    peer: &mut Peer,
    state: PeerState,
    reason: &'static str,
) -> Result<(), StoreError> {
    if tx.peers().is_hosted(&peer.peer_id).await? {
        return tx.peers().touch(peer).await;
    }
    set_hosted_state(tx, peer, state, reason).await
}

/// Like [`set_state`], also for hosted agents. A state with weaker evidence than the present one is
/// ignored.
pub(super) async fn set_hosted_state(
    tx: &mut WriteTx,
    peer: &mut Peer,
    state: PeerState,
    reason: &'static str,
) -> Result<(), StoreError> {
    let Some(evidence) = peer.evidence_after(&state) else { return tx.peers().touch(peer).await };
    let PeerState { status: next, waiting_for, at, .. } = state;
    let waiting_for = waiting_for.map(|next| same_limit(peer.waiting_for.as_ref(), next));
    let previous = std::mem::replace(&mut peer.status, next);
    // The first hook after a session's registration needs no event of its own.
    let is_first = peer.evidence == StatusEvidence::Process;
    let is_changed = previous != next
        || waiting_for != peer.waiting_for
        || evidence != peer.evidence && !is_first;
    if previous != next {
        peer.since = at;
    }
    let earlier = std::mem::replace(&mut peer.waiting_for, waiting_for);
    peer.evidence = evidence;
    tx.peers().touch(peer).await?;
    if !is_changed {
        return Ok(());
    }
    note_status(tx, peer, previous, reason).await?;
    let known = limit_of(earlier.as_ref());
    match limit_of(peer.waiting_for.as_ref()) {
        Some(limit) if known.is_none_or(|known| known.until != limit.until) => {
            note_limit(tx, peer, limit, known.is_some()).await
        }
        _ => Ok(()),
    }
}

fn limit_of(waiting_for: Option<&WaitingFor>) -> Option<&WaitingFor> {
    waiting_for.filter(|waiting| waiting.kind == WaitingKind::Limit)
}

/// A limit that is reported again is the same limit: it keeps its start, and its end if that was
/// known.
fn same_limit(known: Option<&WaitingFor>, mut next: WaitingFor) -> WaitingFor {
    if let (Some(known), WaitingKind::Limit) = (limit_of(known), next.kind) {
        next.since = known.since;
        next.until = next.until.or(known.until);
    }
    next
}

/// Appends to the team stream that a peer has reached its vendor's usage limit, with the end of the
/// limit if it is known. `corrects`: the team stream has this limit already, with another end or
/// none.
async fn note_limit(
    tx: &mut WriteTx,
    peer: &Peer,
    limit: &WaitingFor,
    corrects: bool,
) -> Result<(), StoreError> {
    let mut data = json!({
        "peer_id": peer.peer_id, "display_name": peer.display_name, "since": limit.since,
    });
    if let Some(until) = limit.until {
        data["until"] = json!(until);
    }
    if corrects {
        data["corrects"] = json!(true);
    }
    append_to_team(tx, NewEvent::new("limit", &data)).await
}

/// Notes that the evidence of a peer's status is lost. The status stays until other evidence
/// changes it.
async fn lose_evidence(
    tx: &mut WriteTx,
    peer: &mut Peer,
    lost: StatusEvidence,
    reason: &'static str,
) -> Result<(), StoreError> {
    let Some(evidence) = peer.evidence_without(lost) else { return Ok(()) };
    peer.evidence = evidence;
    tx.peers().touch(peer).await?;
    note_status(tx, peer, peer.status, reason).await
}

/// Appends the status of a peer to the team stream. Everybody reads that stream, so the event
/// leaves out what the peer is asked.
async fn note_status(
    tx: &mut WriteTx,
    peer: &Peer,
    previous: PeerStatus,
    reason: &'static str,
) -> Result<(), StoreError> {
    let data = json!({
        "peer_id": peer.peer_id, "display_name": peer.display_name, "status": peer.status,
        "previous": previous, "reason": reason, "evidence": peer.evidence,
    });
    append_to_team(tx, NewEvent::new("peer.status", &data)).await
}
