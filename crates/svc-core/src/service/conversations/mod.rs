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
    conversation::{SessionDenial, SessionRelation, SessionsPolicy},
    is_agent_key, limits,
    stamp::address,
};
use svc_store::{AgentRow, AssignmentEnd, PeerRow};

use super::{Result, agents::Agents, core::Core, hooks::Hooks, team::UNKNOWN_CLIENT};

pub use history::{HistoryText, SessionHistory, SessionHistoryQuery};
pub use list::{
    LastMessage, ListSessions, SessionEntry, SessionKind, SessionStatusView, SessionWaiting,
    SessionWaitingKind, SessionsPage,
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

#[derive(Debug, Clone)]
enum SessionRow {
    /// The agent, and its peer if there is one.
    Hosted(Box<AgentRow>, Option<Box<PeerRow>>),
    Attended(Box<PeerRow>),
}

/// How a caller names a session.
#[derive(Debug, Clone, Copy)]
enum SessionName<'a> {
    /// By its key, the id of its agent, or the client's own id; if none matches, by its display
    /// name.
    Key(&'a str),
    /// By its display name, or else the name that it was started with.
    Label(&'a str),
    /// The main session of an instance, or its only one.
    Instance(&'a str),
}

/// Why a session name did not resolve.
#[derive(Debug)]
enum UnresolvedSession {
    /// The session does not exist, or the caller may not see it; the caller is not told which.
    Unseen(SessionDenial),
    /// The session does not exist, and the caller sees every session.
    Unknown,
    /// Several sessions have that name: their keys.
    Ambiguous(Vec<String>),
}

impl SessionRow {
    fn is_alive(&self) -> bool {
        match self {
            Self::Hosted(agent, _) => agent.ended_at.is_none(),
            Self::Attended(peer) => peer.peer.status != PeerStatus::Offline,
        }
    }

    /// When the agent ended or started, or when the peer was last seen.
    fn seen_at(&self) -> Timestamp {
        match self {
            Self::Hosted(agent, _) => agent.ended_at.unwrap_or(agent.info.started_at),
            Self::Attended(peer) => peer.peer.last_seen,
        }
    }

    fn key(&self) -> String {
        match self {
            Self::Hosted(agent, _) => agent.info.session_key.clone(),
            Self::Attended(peer) => {
                peer.session_key().unwrap_or_else(|| peer.peer.peer_id.to_string())
            }
        }
    }

    /// The instance of a hosted session, or the backend of an attended one as its key has it.
    fn agent_id(&self) -> String {
        match self {
            Self::Hosted(agent, _) => agent.info.instance.clone(),
            Self::Attended(_) => self.key().split(':').nth(1).unwrap_or_default().to_owned(),
        }
    }

    fn agent(&self) -> Option<&AgentRow> {
        match self {
            Self::Hosted(agent, _) => Some(agent),
            Self::Attended(_) => None,
        }
    }

    fn peer(&self) -> Option<&PeerRow> {
        match self {
            Self::Hosted(_, peer) => peer.as_deref(),
            Self::Attended(peer) => Some(peer),
        }
    }

    fn project(&self) -> Option<&str> {
        match self {
            Self::Hosted(agent, _) => agent.owned.project.as_deref(),
            Self::Attended(peer) => peer.project.as_deref(),
        }
    }

    /// The principal that started a hosted session; `None` for an attended one.
    fn parent(&self) -> Option<&Principal> {
        self.agent()?.owned.owner.as_ref()
    }

    /// The id of the present incarnation: the agent's, or the client's own id of the session.
    fn incarnation(&self) -> String {
        match self {
            Self::Hosted(agent, _) => agent.info.id.as_str().to_owned(),
            Self::Attended(peer) => {
                let id = &peer.peer.peer_id;
                peer.peer.session_id.clone().unwrap_or_else(|| id.as_str().to_owned())
            }
        }
    }

    /// Whether `named` is the id of the present incarnation, or the vendor's id of its
    /// conversation.
    fn is_incarnation(&self, named: &str) -> bool {
        let vendor = self.agent().and_then(|agent| agent.info.session_id.as_deref());
        self.incarnation().eq_ignore_ascii_case(named) || vendor == Some(named)
    }

    /// Whether messages can be sent to the session: an attended one that is offline may come back.
    fn is_there(&self) -> bool {
        matches!(self, Self::Attended(_)) || self.is_alive()
    }

    fn end(&self, peer: PeerId) -> AssignmentEnd {
        let agent = self.agent().map(|agent| agent.info.id.clone());
        AssignmentEnd { session: self.key(), peer, agent }
    }
}

impl ConversationCaller {
    fn sight(&self, row: &SessionRow) -> SessionRelation {
        let own = row.peer().map(|peer| &peer.peer.peer_id);
        SessionRelation {
            // The agent's id counts, not the session's name: an earlier agent may have had the same
            // name.
            is_self: row.agent().is_some_and(|agent| self.agent.as_ref() == Some(&agent.info.id))
                || own.is_some() && own == self.peer.as_ref(),
            is_child: row.parent() == Some(&self.principal),
            is_of_project: self.project.is_some() && self.project.as_deref() == row.project(),
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
                let own = self.peer_of_agent(key).await?;
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
            let agent_id = key.split(':').nth(1).unwrap_or_default().to_owned();
            return Ok(ConversationCaller {
                key,
                agent_id,
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

    /// The session that `name` names, if the caller may see it.
    async fn find(
        &self,
        requester: &ConversationCaller,
        name: SessionName<'_>,
    ) -> Result<Result<SessionRow, UnresolvedSession>> {
        let mut rows = match name {
            SessionName::Key(text) => self.named_by_key(requester, text).await?,
            SessionName::Label(text) => {
                let rows = self.core.store.peers().named(text, limits::PAGE_DEFAULT).await?;
                self.sessions_of(rows).await?
            }
            SessionName::Instance(text) => self.of_instance(text).await?,
        };
        let policy = self.policy();
        let is_seen =
            |row: &SessionRow| requester.sees_all || policy.may_see(requester.sight(row)).is_ok();
        rows.retain(is_seen);
        if let (SessionName::Key(text), true) = (name, rows.is_empty()) {
            // Models copy display names from `peer_list`. A text with the form of a key or an id is
            // no display name.
            if let Some(PeerReference::Name { .. }) = PeerReference::parse(text) {
                let named = self.core.store.peers().named(text, limits::PAGE_DEFAULT).await?;
                rows = self.sessions_of(named).await?;
                rows.retain(is_seen);
            }
        }
        if let (SessionName::Label(text), true) = (name, rows.is_empty()) {
            rows = self.started_as(text).await?;
            rows.retain(is_seen);
        }
        if rows.iter().any(SessionRow::is_alive) {
            rows.retain(SessionRow::is_alive);
        } else if let Some(latest) = rows.iter().max_by_key(|row| row.seen_at()) {
            // If none of several is alive, takes the latest.
            rows = vec![latest.clone()];
        }
        Ok(match rows.len() {
            1 => Ok(rows.remove(0)),
            0 => Err(match policy.unseen() {
                Some(denial) if !requester.sees_all => UnresolvedSession::Unseen(denial),
                _ => UnresolvedSession::Unknown,
            }),
            _ => Err(UnresolvedSession::Ambiguous(rows.iter().map(SessionRow::key).collect())),
        })
    }

    async fn named_by_key(
        &self,
        requester: &ConversationCaller,
        text: &str,
    ) -> Result<Vec<SessionRow>> {
        let store = &self.core.store;
        let text = if text == "current" { requester.key.as_str() } else { text };
        let lower = text.to_ascii_lowercase();
        let agent = match AgentId::parse(text).filter(|id| id.as_str().starts_with(AgentId::PREFIX))
        {
            Some(id) => store.agents().get(&id).await?,
            None => store.agents().of_key(&lower).await?,
        };
        let peers = match PeerReference::parse(text) {
            Some(PeerReference::SessionKey(key)) => {
                let rows =
                    store.peers().of_session_key(&key.session_id, limits::PAGE_DEFAULT).await?;
                let mut rows: Vec<PeerRow> =
                    rows.into_iter().filter(|row| key.is_of(&row.peer)).collect();
                // A token that has the form of an agent's key gives its session that key.
                let own = store.peers().of_key(&lower).await?;
                let own = own.filter(|own| own.session_key().as_ref() == Some(&lower));
                let is_new =
                    |new: &PeerRow| rows.iter().all(|it| it.peer.peer_id != new.peer.peer_id);
                let new = own.filter(is_new);
                rows.extend(new);
                rows
            }
            Some(PeerReference::Id(id)) if !id.is_operator() => {
                store.peers().get(&id).await?.into_iter().collect()
            }
            _ => {
                let own = store.peers().of_session(text).await?;
                own.into_iter().filter(|row| row.peer.session_id.as_deref() == Some(text)).collect()
            }
        };
        if let Some(agent) = agent {
            return Ok(vec![self.hosted(agent).await?]);
        }
        self.sessions_of(peers).await
    }

    /// The live sessions of an instance: only the main one if it is among them.
    async fn of_instance(&self, instance: &str) -> Result<Vec<SessionRow>> {
        let instance = instance.to_ascii_lowercase();
        let mut rows = self.live(|agent| agent.info.instance == instance).await?;
        let main = format!("agent:{instance}:main");
        if rows.iter().any(|row| row.key() == main) {
            rows.retain(|row| row.key() == main);
        }
        Ok(rows)
    }

    /// The live agents that were started with this name, with which their keys end.
    async fn started_as(&self, name: &str) -> Result<Vec<SessionRow>> {
        let is_called = |agent: &AgentRow| {
            let own = agent.info.session_key.rsplit_once(':').map(|(_, own)| own);
            own.is_some_and(|own| own.eq_ignore_ascii_case(name))
        };
        self.live(is_called).await
    }

    async fn live(&self, is_meant: impl Fn(&AgentRow) -> bool + Send) -> Result<Vec<SessionRow>> {
        let mut rows = Vec::new();
        for agent in self.core.store.agents().live().await? {
            if is_meant(&agent) {
                rows.push(self.hosted(agent).await?);
            }
        }
        Ok(rows)
    }

    async fn hosted(&self, agent: AgentRow) -> Result<SessionRow> {
        let peer = self.peer_of_agent(&agent.info.session_key).await?;
        Ok(SessionRow::Hosted(Box::new(agent), peer.map(Box::new)))
    }

    async fn peer_of_agent(&self, key: &str) -> Result<Option<PeerRow>> {
        let own = self.core.store.peers().of_key(key).await?;
        Ok(own.filter(|row| row.owner.as_deref() == Some(key)))
    }

    /// The sessions of peers. The peer of the person has no session.
    async fn sessions_of(&self, peers: Vec<PeerRow>) -> Result<Vec<SessionRow>> {
        let mut rows = Vec::with_capacity(peers.len());
        for peer in peers {
            if peer.session_key().is_none() {
                continue;
            }
            let agent = match peer.owner.as_deref().filter(|owner| is_agent_key(owner)) {
                Some(key) => self.core.store.agents().of_key(key).await?,
                None => None,
            };
            rows.push(match agent {
                Some(agent) => SessionRow::Hosted(Box::new(agent), Some(Box::new(peer))),
                None => SessionRow::Attended(Box::new(peer)),
            });
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
