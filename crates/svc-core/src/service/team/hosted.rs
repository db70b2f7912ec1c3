//! The peers of hosted agents, and of sessions that no hook has registered.

use svc_model::{
    Caller, Message, Peer, PeerId, PeerState, PeerStatus, RegisterInput, StatusEvidence, TokenId,
    is_agent_key, is_reserved_name,
};
use svc_store::{AgentRow, PeerRow, StoreError, WriteTx};

use super::{delivery::give_up, peers};
use crate::service::{Error, core::Core};

/// The backend of a session that no hook has registered.
pub(in crate::service) const UNKNOWN_CLIENT: &str = "mcp";

/// Makes the peer of a hosted agent that starts, or takes over that of an earlier agent of this
/// name. Messages that wait for the earlier agent are given up.
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
        // The end of that agent gave up its mail, so only messages that came since are left.
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
        root: None,
        folder: None,
    };
    if let Some(mut other) = tx.peers().by_identity(&input.backend, key, "", "", Some(key)).await? {
        // A client chose this session id before such ids were the daemon's. Its peer stays, with
        // another session id.
        other.peer.session_id = Some(other.peer.peer_id.to_string());
        tx.peers().put(&other).await?;
    }
    let id = PeerId::new(&core.ids, tx.now());
    let mut peer = peers::create(tx, &caller, id, input, agent.owned.project.clone(), None).await?;
    Ok(show_start(tx, &mut peer).await?)
}

/// Shows that an agent starts: it is busy until its host reports otherwise.
async fn show_start(tx: &mut WriteTx, peer: &mut Peer) -> Result<(), StoreError> {
    let evidence = StatusEvidence::Host;
    let state = PeerState { status: PeerStatus::Busy, waiting_for: None, at: tx.now(), evidence };
    peers::set_hosted_state(tx, peer, state, "started").await
}

/// The peer that was made with an agent.
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

/// Whether a peer is that of a hosted agent that has ended, and no agent of its name lives.
pub(in crate::service) async fn has_ended(
    tx: &mut WriteTx,
    row: &PeerRow,
) -> Result<bool, StoreError> {
    let Some(key) = row.owner.as_deref().filter(|owner| is_agent_key(owner)) else {
        return Ok(false);
    };
    Ok(tx.agents().live(key).await?.is_none() && tx.agents().was_run(key).await?)
}

/// Whether the hosted agent that sent a message has ended, even if a later agent of its name lives.
pub(in crate::service) async fn is_namesake(
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

/// The peer of a caller in a session that no hook has registered; makes the peer if there is none.
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
