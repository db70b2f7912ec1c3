//! Resolves a peer or a message: by name (one resolver for all adapters), by agent, or by the
//! caller. Also creates the peers that no client registers: the operator's, hosted agents', and
//! those of sessions that no hook has registered.

use std::cmp::Reverse;

use svc_model::{
    AccessLevel, Caller, IdReference, LATEST, Message, MessageId, OpenCalls, Peer, PeerId,
    PeerReference, PeerState, PeerStatus, Principal, READ_ALL, Reader, RegisterInput,
    StatusEvidence, StreamName, StreamVisibility, choose, is_reserved_name, limits,
};
use svc_store::{AgentRow, PeerRow, Store, StoreError, WriteTx, job};

use super::{Team, delivery::give_up, may_act_for, note_peer, peers, set_hosted_state};
use crate::boxed;
use crate::service::{Candidate, Error, ResourceKind, Result, assignments, core::Core};

impl Team {
    /// The id of the peer that a text names: by its id or a prefix of its id, by its session's key,
    /// or by its display name. If several peers match and exactly one is not offline, returns that
    /// one. A complete id is returned unchecked.
    ///
    /// # Errors
    /// [`Error::NotFound`] of `kind` if no peer that the caller may see has that name.
    /// [`Error::Ambiguous`] if several have it.
    #[boxed]
    pub async fn find_peer(
        &self,
        caller: &Caller,
        text: &str,
        kind: ResourceKind,
    ) -> Result<PeerId> {
        find_peer(&self.core, caller, text, kind).await
    }

    /// The id of the message that a text names: by its id, by a prefix of its id, or for the
    /// operator as `latest`, the last message to the operator.
    pub(super) async fn find_message(&self, caller: &Caller, text: &str) -> Result<MessageId> {
        let unknown = || Error::not_found(ResourceKind::Message, text);
        let store = &self.core.store;
        if text == LATEST && caller.is_operator() {
            return store.messages().latest_to_operator().await?.ok_or_else(unknown);
        }
        let prefix = match IdReference::parse(text, MessageId::PREFIX).ok_or_else(unknown)? {
            IdReference::Whole => return MessageId::parse(text).ok_or_else(unknown),
            IdReference::Prefix(prefix) => prefix,
        };
        let mut candidates = Vec::new();
        for message in store.messages().with_prefix(&prefix, limits::PAGE_DEFAULT).await? {
            if self.concerns(caller, &message).await? {
                candidates.push(message);
            }
        }
        let candidate = |message: &Message| {
            let Message { from_peer: from, to_peer: to, timestamp: at, .. } = message;
            let about = format!("{} from {from} to {to} at {at}", message.kind.as_str());
            Candidate { id: message.id.as_str().to_owned(), about }
        };
        Ok(Error::only_one(ResourceKind::Message, text, candidates, candidate)?.id)
    }

    /// Whether a caller sent a message, receives it, or may read everything.
    pub(super) async fn concerns(&self, caller: &Caller, message: &Message) -> Result<bool> {
        if caller.has_scope(READ_ALL) {
            return Ok(true);
        }
        for peer in [message.from_peer.as_str(), message.to_peer.as_str()] {
            let Some(peer) = PeerId::parse(peer) else { continue };
            let row = self.core.store.peers().get(&peer).await?;
            if row.is_some_and(|row| may_act_for(caller, &row).is_ok()) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

pub(in crate::service) async fn find_peer(
    core: &Core,
    caller: &Caller,
    text: &str,
    kind: ResourceKind,
) -> Result<PeerId> {
    let unknown = || Error::not_found(kind, text);
    let reference = PeerReference::parse(text).ok_or_else(unknown)?;
    match reference {
        PeerReference::Id(id) if id.is_operator() => return find_operator(core).await,
        PeerReference::Id(id) => return Ok(id),
        _ => {}
    }
    let is_meant = |agent: &AgentRow| caller.access_to(&agent.owned) != AccessLevel::Hidden;
    let [mut rows, of_agents] = peers_named(&core.store, &reference, text, is_meant).await?;
    if rows.is_empty() {
        rows = of_agents;
    }
    let reader = Reader::from_caller(caller);
    if let PeerReference::SessionKey(key) = &reference {
        // A session that the caller may not see cannot be found by its key.
        rows.retain(|row| {
            let shown = row.clone().shown_to(&reader);
            shown == row.peer || key.is_of(&shown)
        });
    }
    let mut candidates: Vec<Peer> = rows.into_iter().map(|row| row.shown_to(&reader)).collect();
    // Of several that are gone, the latest is meant most often.
    candidates.sort_by_key(|peer| Reverse(peer.registered_at));
    match choose(candidates, |peer| peer) {
        Ok(peer) => Ok(peer.peer_id),
        Err(none) if none.is_empty() => Err(unknown()),
        Err(several) => {
            let candidates = several.iter().map(candidate).collect();
            Err(Error::Ambiguous { kind, name: text.to_owned(), candidates })
        }
    }
}

/// The peers that a text may name, in two groups: the second counts if the first has none.
pub(in crate::service) async fn peers_named(
    store: &Store,
    reference: &PeerReference,
    text: &str,
    is_meant: impl Fn(&AgentRow) -> bool,
) -> Result<[Vec<PeerRow>; 2], StoreError> {
    let (peers, limit) = (store.peers(), limits::PAGE_DEFAULT);
    Ok(match reference {
        PeerReference::Id(id) => [peers.get(id).await?.into_iter().collect(), Vec::new()],
        PeerReference::IdPrefix(prefix) => [peers.with_prefix(prefix, limit).await?, Vec::new()],
        PeerReference::SessionKey(key) => {
            // The key of a hosted agent, or of a token in that form, names its holder's peer.
            let lower = text.to_ascii_lowercase();
            let own = peers.of_key(&lower).await?;
            if let Some(own) = own.filter(|own| own.session_key().as_ref() == Some(&lower)) {
                return Ok([vec![own], Vec::new()]);
            }
            let mut rows = peers.of_session_key(&key.session_id, limit).await?;
            rows.retain(|row| key.is_of(&row.peer));
            [rows, Vec::new()]
        }
        PeerReference::Name { id_prefix } => {
            let mut rows = peers.named(text, limit).await?;
            if let Some(prefix) = id_prefix {
                rows.extend(peers.with_prefix(prefix, limit).await?);
            }
            [rows, peers_of_agents(store, text, is_meant).await?]
        }
    })
}

/// The peers of the agents whose id begins with `text`, or whose session key is `agent:<text>` or
/// `agent:<text>:main`, else that were started with this name. Peers of live agents; if there are
/// none, the peer of the agent that ended last.
async fn peers_of_agents(
    store: &Store,
    text: &str,
    is_meant: impl Fn(&AgentRow) -> bool,
) -> Result<Vec<PeerRow>, StoreError> {
    let mut agents = store.agents().named(&text.to_ascii_lowercase()).await?;
    agents.retain(is_meant);
    let lives = |agent: &AgentRow| agent.ended_at.is_none();
    if agents.iter().any(lives) {
        agents.retain(lives);
    } else {
        agents.truncate(1);
    }
    let mut peers: Vec<PeerRow> = Vec::new();
    for agent in agents {
        let peer = store.peers().of_key(&agent.info.session_key).await?;
        let is_new = |new: &PeerRow| peers.iter().all(|it| it.peer.peer_id != new.peer.peer_id);
        let new = peer.filter(is_new);
        peers.extend(new);
    }
    Ok(peers)
}

/// The operator's own peer, created when somebody first writes to it or names it.
async fn find_operator(core: &Core) -> Result<PeerId> {
    let id = PeerId::operator();
    if core.store.peers().get(&id).await?.is_none() {
        core.store.write(job!(|tx| operator_peer(tx).await)).await?;
    }
    Ok(id)
}

/// The row of the operator's own peer; creates the peer if there is none.
pub(in crate::service) async fn operator_peer(tx: &mut WriteTx) -> Result<PeerRow, StoreError> {
    let id = PeerId::operator();
    if let Some(row) = tx.peers().get(&id).await? {
        return Ok(row);
    }
    let row = PeerRow {
        peer: Peer::operator(tx.now()),
        owner: None,
        project: None,
        process_started: None,
        machine_id: None,
        open_calls: OpenCalls::default(),
    };
    tx.peers().put(&row).await?;
    let own = StreamName::new("peer", &id);
    tx.streams().open(&own, &StreamVisibility::private(&Principal::Operator)).await?;
    note_peer(tx, "peer.registered", &row.peer).await?;
    Ok(row)
}

fn candidate(peer: &Peer) -> Candidate {
    let folder = peer.path.as_ref().map(|path| format!(" in {path}")).unwrap_or_default();
    let (name, status, since) = (&peer.display_name, peer.status.as_str(), peer.registered_at);
    let about = format!("{name}, {status}, {}{folder} since {since}", peer.backend);
    Candidate { id: peer.peer_id.as_str().to_owned(), about }
}

/// The backend of a session that no hook has registered.
pub(in crate::service) const UNKNOWN_CLIENT: &str = "mcp";

/// Creates the peer of a hosted agent that starts, or takes over the peer of an earlier agent of
/// this name. Messages that wait for the earlier agent become undeliverable.
pub(in crate::service) async fn hosted_peer(
    tx: &mut WriteTx,
    core: &Core,
    agent: &AgentRow,
    label: Option<&str>,
) -> Result<()> {
    let info = &agent.info;
    let key = info.session_key.as_str();
    let name = key.strip_prefix("agent:").unwrap_or(key);
    let label = label.filter(|label| !is_reserved_name(label));
    let name = label.unwrap_or_else(|| name.strip_suffix(":main").unwrap_or(name));
    let known = tx.peers().of_key(key).await?;
    if let Some(mut known) = known.filter(|row| row.owner.as_deref() == Some(key)) {
        // The end of the earlier agent ended its deliveries, so only messages that came after it
        // are left.
        while give_up(tx, &known.peer.peer_id, "it was for an earlier agent of this name").await? {}
        known.project.clone_from(&agent.owned.project);
        known.peer.path = Some(info.worktree.clone());
        known.peer.display_name = name.to_owned();
        known.peer.last_seen = tx.now();
        tx.peers().put(&known).await?;
        return Ok(show_start(tx, &mut known.peer).await?);
    }
    let input = RegisterInput {
        path: Some(info.worktree.clone()),
        ..registration(name, &info.backend.to_string(), key)
    };
    let caller = assignments::caller_as(key, agent.owned.project.as_deref());
    let id = PeerId::new(&core.ids, tx.now());
    let mut peer = peers::create(tx, &caller, id, input, agent.owned.project.clone(), None).await?;
    Ok(show_start(tx, &mut peer).await?)
}

fn registration(name: &str, backend: &str, session: &str) -> RegisterInput {
    RegisterInput {
        display_name: name.to_owned(),
        backend: backend.to_owned(),
        session_id: Some(session.to_owned()),
        ..RegisterInput::default()
    }
}

/// Shows an agent that starts as busy, until its host reports otherwise.
async fn show_start(tx: &mut WriteTx, peer: &mut Peer) -> Result<(), StoreError> {
    let evidence = StatusEvidence::Host;
    let state = PeerState { status: PeerStatus::Busy, waiting_for: None, at: tx.now(), evidence };
    set_hosted_state(tx, peer, state, "started").await
}

pub(in crate::service) async fn peer_of_agent(
    tx: &mut WriteTx,
    agent: &AgentRow,
) -> Result<Option<PeerRow>, StoreError> {
    let key = agent.info.session_key.as_str();
    let own = tx.peers().of_key(key).await?;
    Ok(own.filter(|row| row.owner.as_deref() == Some(key)))
}

/// Removes the peer of an agent that has ended from the list.
pub(in crate::service) async fn remove_agents_peer(
    tx: &mut WriteTx,
    agent: &AgentRow,
) -> Result<(), StoreError> {
    let Some(own) = peer_of_agent(tx, agent).await? else { return Ok(()) };
    peers::remove(tx, &own.peer).await
}

/// Whether a peer belongs to a hosted agent that has ended, and no other agent of its name lives.
pub(super) async fn has_ended(tx: &mut WriteTx, row: &PeerRow) -> Result<bool, StoreError> {
    let Some(key) = row.agent_key() else { return Ok(false) };
    Ok(tx.agents().live(key).await?.is_none() && tx.agents().was_run(key).await?)
}

/// Whether the hosted agent that sent a message has ended, even if a later agent of its name lives.
pub(in crate::service) async fn is_namesake(
    tx: &mut WriteTx,
    sender: &PeerRow,
    message: &Message,
) -> Result<bool, StoreError> {
    let Some(key) = sender.agent_key() else { return Ok(false) };
    match tx.agents().live(key).await? {
        Some(live) => Ok(live.info.started_at > message.timestamp),
        None => tx.agents().was_run(key).await,
    }
}

/// The peer of a caller in a session that no hook has registered; creates the peer if there is
/// none.
pub(in crate::service) async fn peer_of_speaker(
    tx: &mut WriteTx,
    core: &Core,
    caller: &Caller,
    session: &str,
) -> Result<Peer> {
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
        pid: caller.process().map(|process| process.pid),
        ..registration(session, UNKNOWN_CLIENT, session)
    };
    let id = PeerId::new(&core.ids, tx.now());
    let project = caller.project().map(str::to_owned);
    peers::create(tx, caller, id, input, project, caller.process().cloned()).await
}
