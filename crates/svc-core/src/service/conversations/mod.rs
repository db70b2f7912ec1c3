//! Conversations between sessions: sending to one and waiting for its answer, listing sessions,
//! reading their history, and starting new ones.
//!
//! This file resolves the caller and the session that the caller names, as far as the caller may
//! see it. `send` stores a send before it is answered, and `reply` waits for its result. What a
//! target's turn does to a send is in `service/assignments`, as it is part of the commits that end
//! turns. `list` and `history` read sessions; `spawn` starts one.

mod history;
mod list;
mod reply;
mod send;
mod spawn;

use svc_model::{
    AgentId, Caller, PeerId, PeerReference, PeerStatus, Principal, READ_ALL, Timestamp,
    conversation::{SessionRelation, SessionsPolicy},
    is_agent_key,
    stamp::address,
};
use svc_store::{AgentRow, AssignmentEnd, PeerRow};

use super::{
    Error, ResourceKind, Result,
    agents::Agents,
    core::Core,
    hooks::Hooks,
    team::{UNKNOWN_CLIENT, peers_named},
};

pub use history::{HistoryText, SessionHistory, SessionHistoryQuery};
pub use list::{
    LastMessage, ListSessions, SessionEntry, SessionKind, SessionStatusView, SessionWaiting,
    SessionsPage,
};
pub use send::{SendDelivery, SendToSession, SessionReply};
pub use spawn::{Cleanup, SpawnSession, SpawnedSession};

#[derive(Debug, Clone)]
pub struct Conversations {
    core: Core,
    agents: Agents,
    hooks: Hooks,
}

impl Conversations {
    pub(super) const fn new(core: Core, agents: Agents, hooks: Hooks) -> Self {
        Self { core, agents, hooks }
    }

    fn policy(&self) -> &SessionsPolicy {
        &self.core.sessions.policy
    }
}

/// The key of the person, who has no session.
const OPERATOR: &str = PeerId::OPERATOR;
/// Stands for the caller's own session.
const CURRENT: &str = "current";

/// The caller of a conversation, as resolved from its credential.
#[derive(Debug, Clone)]
struct ConversationCaller {
    key: String,
    agent_id: String,
    peer: Option<PeerId>,
    /// The client's own id of the caller's session, or a hosted agent's session key.
    session: Option<String>,
    agent: Option<AgentId>,
    /// Sessions that this principal started are the caller's children.
    principal: Principal,
    project: Option<String>,
    cwd: Option<String>,
    /// Whether the caller sees every session: the person does, and so does a caller with the scope
    /// [`READ_ALL`] in calls that only read.
    sees_all: bool,
}

/// A session: the peer that stands for it, and its agent if the daemon hosts it.
#[derive(Debug, Clone)]
struct SessionRow {
    peer: Box<PeerRow>,
    agent: Option<Box<AgentRow>>,
}

impl SessionRow {
    fn is_alive(&self) -> bool {
        match &self.agent {
            Some(agent) => agent.ended_at.is_none(),
            None => self.peer.peer.status != PeerStatus::Offline,
        }
    }

    /// When the agent ended or started, or when the peer was last seen.
    fn seen_at(&self) -> Timestamp {
        match &self.agent {
            Some(agent) => agent.ended_at.unwrap_or(agent.info.started_at),
            None => self.peer.peer.last_seen,
        }
    }

    fn key(&self) -> String {
        let id = &self.peer.peer.peer_id;
        self.peer.session_key().unwrap_or_else(|| id.to_string())
    }

    /// The instance of a hosted session, or the backend of an attended one as its key has it.
    fn agent_id(&self) -> String {
        match &self.agent {
            Some(agent) => agent.info.instance.clone(),
            None => backend_in(&self.key()).to_owned(),
        }
    }

    /// The principal that started a hosted session; `None` for an attended one.
    fn parent(&self) -> Option<&Principal> {
        self.agent.as_ref()?.owned.owner.as_ref()
    }

    /// The id of the present incarnation: the agent's, or the client's own id of the session.
    fn incarnation(&self) -> String {
        let peer = &self.peer.peer;
        match &self.agent {
            Some(agent) => agent.info.id.to_string(),
            None => peer.session_id.clone().unwrap_or_else(|| peer.peer_id.to_string()),
        }
    }

    /// Whether `named` is the id of the present incarnation, or the vendor's id of its
    /// conversation.
    fn is_incarnation(&self, named: &str) -> bool {
        let vendor = self.agent.as_ref().and_then(|agent| agent.info.session_id.as_deref());
        self.incarnation().eq_ignore_ascii_case(named) || vendor == Some(named)
    }

    /// Whether messages can be sent to the session: an attended one that is offline may come back.
    fn is_there(&self) -> bool {
        self.agent.is_none() || self.is_alive()
    }

    fn end(&self) -> AssignmentEnd {
        let agent = self.agent.as_ref().map(|agent| agent.info.id.clone());
        AssignmentEnd { session: self.key(), peer: self.peer.peer.peer_id.clone(), agent }
    }
}

/// The second part of a session's key: the instance or the backend.
fn backend_in(key: &str) -> &str {
    key.split(':').nth(1).unwrap_or(key)
}

impl ConversationCaller {
    fn sight(&self, row: &SessionRow) -> SessionRelation {
        let agent = row.agent.as_ref().map(|agent| &agent.info.id);
        SessionRelation {
            // The agent's id counts, not the session's name: an earlier agent may have had the same
            // name.
            is_self: agent.is_some() && agent == self.agent.as_ref()
                || self.peer.as_ref() == Some(&row.peer.peer.peer_id),
            is_child: row.parent() == Some(&self.principal),
            is_of_project: self.project.is_some() && self.project == row.peer.project,
        }
    }
}

impl Conversations {
    /// Resolves the caller by its credential. `session` is the caller's own, in which the call
    /// acts.
    async fn requester(
        &self,
        caller: &Caller,
        session: Option<&str>,
    ) -> Result<ConversationCaller> {
        let store = &self.core.store;
        let operator = ConversationCaller {
            key: OPERATOR.to_owned(),
            agent_id: OPERATOR.to_owned(),
            peer: Some(PeerId::operator()),
            session: None,
            agent: None,
            principal: caller.principal(),
            project: caller.project().map(str::to_owned),
            cwd: None,
            sees_all: caller.is_operator(),
        };
        if let Some(key) = caller.session().filter(|key| is_agent_key(key)) {
            let agent = store.agents().of_key(key).await?.filter(|row| row.ended_at.is_none());
            if let Some(agent) = agent {
                let own = self.peer_of_agent(&agent).await?;
                return Ok(ConversationCaller {
                    key: key.to_owned(),
                    agent_id: agent.info.instance,
                    peer: own.map(|row| row.peer.peer_id),
                    session: Some(key.to_owned()),
                    agent: Some(agent.info.id),
                    project: agent.owned.project,
                    cwd: Some(agent.info.worktree),
                    ..operator
                });
            }
        }
        let named = session.or(caller.session());
        let own = match named {
            Some(session) => store.peers().of_session(session).await?,
            None => None,
        };
        let own = own.filter(|row| caller.session().is_none_or(|key| row.is_for(key)));
        if let Some(own) = own
            && let Some(key) = own.session_key()
        {
            return Ok(ConversationCaller {
                agent_id: backend_in(&key).to_owned(),
                key,
                session: own.peer.session_id.or_else(|| named.map(str::to_owned)),
                peer: Some(own.peer.peer_id),
                project: operator.project.or(own.project),
                ..operator
            });
        }
        let Some(session) = named.filter(|_| !operator.sees_all) else { return Ok(operator) };
        Ok(ConversationCaller {
            key: key_of_unknown(session),
            agent_id: UNKNOWN_CLIENT.to_owned(),
            peer: None,
            session: Some(session.to_owned()),
            ..operator
        })
    }

    /// Like [`Self::requester`], for a call that changes nothing.
    async fn reader(&self, caller: &Caller, session: Option<&str>) -> Result<ConversationCaller> {
        let requester = self.requester(caller, session).await?;
        Ok(ConversationCaller { sees_all: caller.has_scope(READ_ALL), ..requester })
    }

    fn is_seen(&self, requester: &ConversationCaller, row: &SessionRow) -> bool {
        requester.sees_all || self.policy().may_see(requester.sight(row)).is_ok()
    }

    /// The session that a text names, if the caller may see it: by the id of its agent, by the
    /// client's own id, or as peers are named.
    ///
    /// # Errors
    /// [`Error::Unseen`] if the session does not exist or the caller may not see it; the caller is
    /// not told which. [`Error::NotFound`] if the caller sees every session. [`Error::Invalid`] if
    /// several sessions have that name.
    async fn find(&self, requester: &ConversationCaller, text: &str) -> Result<SessionRow> {
        let store = &self.core.store;
        let text = if text == CURRENT { requester.key.as_str() } else { text };
        let id = AgentId::parse(text).filter(|id| id.as_str().starts_with(AgentId::PREFIX));
        let agent = match id {
            Some(id) => store.agents().get(&id).await?,
            None => None,
        };
        let mut rows = match agent {
            Some(agent) => self.hosted(agent).await?.into_iter().collect(),
            None => Vec::new(),
        };
        let of_client = store.peers().of_session(text).await?;
        let of_client = of_client.filter(|row| row.peer.session_id.as_deref() == Some(text));
        let mut groups = vec![of_client.into_iter().collect()];
        if let Some(reference) = PeerReference::parse(text) {
            groups.extend(peers_named(store, &reference, text, |_| true).await?);
        }
        for peers in groups {
            rows.extend(self.sessions_of(peers).await?);
            rows.retain(|row| self.is_seen(requester, row));
            if !rows.is_empty() {
                break;
            }
        }
        self.only_one(requester, rows, text)
    }

    /// The session that is meant of those that have a name and that the caller sees: the one that
    /// is alive; if none is, the latest.
    fn only_one(
        &self,
        requester: &ConversationCaller,
        mut rows: Vec<SessionRow>,
        text: &str,
    ) -> Result<SessionRow> {
        if rows.iter().any(SessionRow::is_alive) {
            rows.retain(SessionRow::is_alive);
        } else if let Some(latest) = rows.iter().max_by_key(|row| row.seen_at()) {
            rows = vec![latest.clone()];
        }
        match (rows.pop(), self.policy().unseen()) {
            (Some(row), _) if rows.is_empty() => Ok(row),
            (Some(row), _) => {
                let keys: Vec<String> = rows.iter().chain([&row]).map(SessionRow::key).collect();
                let why = format!("several sessions are called so: {}", keys.join(", "));
                Err(Error::invalid("sessionKey", why))
            }
            (None, Some(denial)) if !requester.sees_all => Err(Error::Unseen(denial)),
            (None, _) => Err(Error::not_found(ResourceKind::Session, text)),
        }
    }

    /// The live session of an instance: the main one, or the only one.
    async fn of_instance(
        &self,
        requester: &ConversationCaller,
        instance: &str,
    ) -> Result<SessionRow> {
        let instance = instance.to_ascii_lowercase();
        let mut rows = self.live().await?;
        rows.retain(|row| row.agent_id() == instance && self.is_seen(requester, row));
        let main = format!("agent:{instance}:main");
        if rows.iter().any(|row| row.key() == main) {
            rows.retain(|row| row.key() == main);
        }
        self.only_one(requester, rows, &instance)
    }

    /// The sessions of the agents that live.
    async fn live(&self) -> Result<Vec<SessionRow>> {
        let mut rows = Vec::new();
        for agent in self.core.store.agents().live().await? {
            rows.extend(self.hosted(agent).await?);
        }
        Ok(rows)
    }

    /// The session of an agent; `None` if the agent's peer was removed.
    async fn hosted(&self, agent: AgentRow) -> Result<Option<SessionRow>> {
        let peer = self.peer_of_agent(&agent).await?;
        Ok(peer.map(|peer| SessionRow { peer: Box::new(peer), agent: Some(Box::new(agent)) }))
    }

    async fn peer_of_agent(&self, agent: &AgentRow) -> Result<Option<PeerRow>> {
        let key = agent.info.session_key.as_str();
        let own = self.core.store.peers().of_key(key).await?;
        Ok(own.filter(|row| row.owner.as_deref() == Some(key)))
    }

    /// The sessions of peers. The peer of the person has no session.
    async fn sessions_of(&self, peers: Vec<PeerRow>) -> Result<Vec<SessionRow>> {
        let mut rows = Vec::with_capacity(peers.len());
        for peer in peers.into_iter().filter(|peer| peer.session_key().is_some()) {
            let agent = match peer.agent_key() {
                Some(key) => self.core.store.agents().of_key(key).await?,
                None => None,
            };
            rows.push(SessionRow { peer: Box::new(peer), agent: agent.map(Box::new) });
        }
        Ok(rows)
    }
}

/// The key of a session that no hook has registered.
fn key_of_unknown(session: &str) -> String {
    let mut peer = svc_model::Peer::operator(Timestamp::from_millis(0));
    UNKNOWN_CLIENT.clone_into(&mut peer.backend);
    peer.session_id = Some(session.to_owned());
    if is_agent_key(session) { session.to_owned() } else { address(&peer).to_string() }
}
