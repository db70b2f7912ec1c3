//! Resolves the names of peers and messages: one resolver for every adapter.

use svc_model::{
    AccessLevel, Caller, IdReference, LATEST, Message, MessageId, NewEvent, OpenCalls, Peer,
    PeerId, PeerReference, Principal, READ_ALL, Reader, StreamName, StreamVisibility, choose,
    limits,
};
use svc_store::{AgentRow, PeerRow, Store, StoreError, WriteTx};

use super::{Team, peers::may_act_for};
use crate::service::{Candidate, Error, ResourceKind, core::Core};

impl Team {
    /// The id of the peer that a text names: by its id or the beginning of that, by the key of its
    /// session, or by its display name. Of several matches, the only one that is not offline is
    /// meant. A whole id is returned unchecked.
    ///
    /// # Errors
    /// [`Error::NotFound`] of `kind` if nothing that the caller may see has that name.
    /// [`Error::Ambiguous`] if several have it.
    pub async fn find_peer(
        &self,
        caller: &Caller,
        text: &str,
        kind: ResourceKind,
    ) -> Result<PeerId, Error> {
        find_peer(&self.core, caller, text, kind).await
    }

    /// The id of the message that a text names: by its id or the beginning of that, or by `latest`:
    /// for the operator, the last message to the operator.
    ///
    /// # Errors
    /// As for [`Self::find_peer`].
    pub(super) async fn find_message(
        &self,
        caller: &Caller,
        text: &str,
    ) -> Result<MessageId, Error> {
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
        match candidates.as_slice() {
            [] => Err(unknown()),
            [only] => Ok(only.id.clone()),
            several => {
                let candidates = several.iter().map(|message| Candidate {
                    id: message.id.as_str().to_owned(),
                    about: format!(
                        "{} from {} to {} at {}",
                        message.kind.as_str(),
                        message.from_peer,
                        message.to_peer,
                        message.timestamp
                    ),
                });
                let candidates = candidates.collect();
                Err(Error::Ambiguous {
                    kind: ResourceKind::Message,
                    name: text.to_owned(),
                    candidates,
                })
            }
        }
    }

    /// Whether a caller sent a message, receives it, or reads everything.
    pub(super) async fn concerns(&self, caller: &Caller, message: &Message) -> Result<bool, Error> {
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

/// See [`Team::find_peer`].
pub(in crate::service) async fn find_peer(
    core: &Core,
    caller: &Caller,
    text: &str,
    kind: ResourceKind,
) -> Result<PeerId, Error> {
    let unknown = || Error::not_found(kind, text);
    let store = &core.store;
    let mut of_agent = None;
    let rows = match PeerReference::parse(text).ok_or_else(unknown)? {
        PeerReference::Id(id) if id.is_operator() => return find_operator(core).await,
        PeerReference::Id(id) => return Ok(id),
        PeerReference::IdPrefix(prefix) => {
            store.peers().with_prefix(&prefix, limits::PAGE_DEFAULT).await?
        }
        PeerReference::SessionKey(key) => {
            let rows = store.peers().of_session_key(&key.session_id, limits::PAGE_DEFAULT).await?;
            // A session that the caller may not see is not found by its key.
            let reader = Reader::from_caller(caller);
            let mut rows: Vec<PeerRow> =
                rows.into_iter().filter(|row| key.is_of(&row.clone().shown_to(&reader))).collect();
            // The key of a hosted agent names the agent's peer.
            let own = store.peers().of_key(&text.to_ascii_lowercase()).await?;
            let own = own.filter(|row| row.clone().shown_to(&reader) == row.peer);
            if let Some(own) = own {
                rows.retain(|row| row.peer.peer_id != own.peer.peer_id);
                of_agent = Some(own.peer.peer_id.clone());
                rows.push(own);
            }
            rows
        }
        PeerReference::Name { id_prefix } => {
            let mut rows = store.peers().named(text, limits::PAGE_DEFAULT).await?;
            if let Some(prefix) = id_prefix {
                rows.extend(store.peers().with_prefix(&prefix, limits::PAGE_DEFAULT).await?);
            }
            if rows.is_empty() {
                rows.extend(peers_of_agents(store, caller, text).await?);
            }
            rows
        }
    };
    let reader = Reader::from_caller(caller);
    let is_key = matches!(PeerReference::parse(text), Some(PeerReference::SessionKey(_)));
    let mut candidates: Vec<Peer> = rows.into_iter().map(|row| row.shown_to(&reader)).collect();
    // A session that the caller may not see is not found by its key.
    candidates.retain(|peer| {
        !is_key
            || peer.session_id.is_some()
            || text.contains(peer.peer_id.as_str())
            || of_agent.as_ref() == Some(&peer.peer_id)
    });
    match choose(candidates, |peer| peer) {
        Ok(peer) => Ok(peer.peer_id),
        Err(none) if none.is_empty() => Err(unknown()),
        Err(several) => {
            let candidates = several.iter().map(candidate).collect();
            Err(Error::Ambiguous { kind, name: text.to_owned(), candidates })
        }
    }
}

/// The peers of the agents whose id begins with `text`, or whose session key is `agent:<text>` or
/// `agent:<text>:main`: of the live ones, else of the latest that ended.
async fn peers_of_agents(
    store: &Store,
    caller: &Caller,
    text: &str,
) -> Result<Vec<PeerRow>, StoreError> {
    let mut agents = store.agents().named(&text.to_ascii_lowercase()).await?;
    agents.retain(|agent| caller.access_to(&agent.owned) != AccessLevel::Hidden);
    let lives = |agent: &AgentRow| agent.ended_at.is_none();
    if agents.iter().any(lives) {
        agents.retain(lives);
    } else {
        agents.truncate(1);
    }
    let mut peers: Vec<PeerRow> = Vec::new();
    for agent in agents {
        let peer = store.peers().of_key(&agent.info.session_key).await?;
        peers.extend(
            peer.filter(|peer| peers.iter().all(|it| it.peer.peer_id != peer.peer.peer_id)),
        );
    }
    Ok(peers)
}

/// The operator's own peer. It is made when somebody first writes to it or names it.
async fn find_operator(core: &Core) -> Result<PeerId, Error> {
    let id = PeerId::operator();
    if core.store.peers().get(&id).await?.is_none() {
        let made = core.store.write(|tx| Box::pin(async move { operator_peer(tx).await }));
        made.await?;
    }
    Ok(id)
}

/// The row of the operator's own peer; makes the peer if there is none.
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
    let team = StreamName::fixed(StreamName::TEAM);
    tx.streams().open(&team, &StreamVisibility::Team).await?;
    let registered = NewEvent::new("peer.registered", &row.peer.presence());
    tx.append(&team, vec![registered]).await?;
    Ok(row)
}

/// What distinguishes a peer from others with its name.
fn candidate(peer: &Peer) -> Candidate {
    let mut about = format!("{}, {}", peer.status.as_str(), peer.backend);
    if let Some(path) = &peer.path {
        about.push_str(" in ");
        about.push_str(path);
    }
    about.push_str(" since ");
    about.push_str(&peer.registered_at.to_string());
    Candidate { id: peer.peer_id.as_str().to_owned(), about }
}
