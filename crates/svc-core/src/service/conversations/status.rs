//! The status of a session.

use schemars::JsonSchema;
use serde::Serialize;
use svc_model::{
    AgentId, Caller, Peer, StatusEvidence, StreamName, Timestamp, WaitingKind,
    agent::{AgentEvent, AgentEventBody, AgentUsage},
    limits,
};
use svc_store::PageSize;

use super::{
    Conversations,
    party::{NoSession, OPERATOR, SessionName, SessionRow},
};
use crate::service::{Error, ResourceKind};

/// How a session stands.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStatusView {
    /// The session.
    pub session_key: String,
    /// Its instance, or the backend of one that a person started.
    pub agent_id: String,
    /// What it is doing.
    pub state: String,
    /// What that rests on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<StatusEvidence>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<SessionWaiting>,
    /// Messages that it has not before its eyes yet.
    pub queued: u64,
    /// When it was last heard of.
    pub last_activity: Timestamp,
    /// What it has used, if it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<AgentUsage>,
}

/// What a session waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionWaiting {
    /// What kind of thing it is.
    pub kind: SessionWaitingKind,
    /// Since when.
    pub since: Timestamp,
    /// The session whose reply it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_key: Option<String>,
    /// What is asked, on one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The tool that is to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// When it goes on by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// A kind of thing that a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionWaitingKind {
    /// A person's permission.
    Permission,
    /// A person's answer to a question.
    Question,
    /// The end of a usage limit.
    Limit,
    /// What another session replies.
    Reply,
}

impl SessionWaiting {
    /// What the peer of a session waits for, as the peer reports it.
    pub(super) fn of_peer(peer: &Peer) -> Option<Self> {
        let waiting = peer.waiting_for.as_ref()?;
        Some(Self {
            kind: match waiting.kind {
                WaitingKind::Permission => SessionWaitingKind::Permission,
                WaitingKind::Question => SessionWaitingKind::Question,
                WaitingKind::Limit => SessionWaitingKind::Limit,
            },
            since: waiting.since,
            session_key: None,
            title: waiting.title.clone(),
            tool: waiting.tool.clone(),
            until: waiting.until,
        })
    }
}

impl Conversations {
    /// The status of a session; of the caller's own if none is named.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such session that the caller may see.
    pub async fn status(
        &self,
        caller: &Caller,
        session: Option<&str>,
        named: Option<&str>,
    ) -> Result<SessionStatusView, Error> {
        let requester = self.reader(caller, session).await?;
        let named = named.unwrap_or(&requester.key);
        let row = match self.find(&requester, SessionName::Key(named)).await? {
            Ok(row) => row,
            // A caller whose session has no row yet has a status, too.
            Err(_) if named == requester.key && named != OPERATOR => {
                return Ok(SessionStatusView {
                    session_key: requester.key,
                    agent_id: requester.agent_id,
                    state: "online".to_owned(),
                    evidence: None,
                    waiting_for: None,
                    queued: 0,
                    last_activity: self.core.now(),
                    tokens: None,
                });
            }
            Err(none) => return Err(unseen(named, &none)),
        };
        let entry = self.entry(&requester, &row).await?;
        let waiting_for = match entry.waiting_for {
            Some(waiting) => Some(waiting),
            None => self.awaited(&entry.key).await?,
        };
        let tokens = match &row {
            SessionRow::Hosted(agent, _) => self.tokens(&agent.info.id).await?,
            SessionRow::Attended(_) => None,
        };
        let queued = match row.peer() {
            Some(peer) => self.core.store.inboxes().count_mail(&peer.peer.peer_id).await?,
            None => 0,
        };
        Ok(SessionStatusView {
            session_key: entry.key,
            agent_id: entry.agent_id,
            state: entry.state,
            evidence: entry.evidence,
            waiting_for,
            queued,
            last_activity: entry.updated_at,
            tokens,
        })
    }

    /// The reply that a session waits for.
    async fn awaited(&self, key: &str) -> Result<Option<SessionWaiting>, Error> {
        let awaited = self.core.store.assignments().awaited_by(key, self.core.now()).await?;
        Ok(awaited.map(|(session, since, until)| SessionWaiting {
            kind: SessionWaitingKind::Reply,
            since,
            session_key: Some(session),
            title: None,
            tool: None,
            until: Some(until),
        }))
    }

    /// How many sends of the caller have not ended.
    pub async fn open_sends(&self, caller: &Caller, session: Option<&str>) -> Result<u64, Error> {
        let requester = self.requester(caller, session).await?;
        Ok(self.core.store.assignments().count_open(&requester.key).await?)
    }

    /// The key of the caller, and its instance or backend.
    pub async fn who_calls(
        &self,
        caller: &Caller,
        session: Option<&str>,
    ) -> Result<(String, String), Error> {
        let requester = self.requester(caller, session).await?;
        Ok((requester.key, requester.agent_id))
    }

    /// When a hosted agent's last event was; at least its start.
    pub(super) async fn last_activity(
        &self,
        started_at: Timestamp,
        id: &AgentId,
    ) -> Result<Timestamp, Error> {
        let last = self.core.store.streams().last_event_at(&StreamName::new("agent", id)).await?;
        Ok(last.unwrap_or(started_at).max(started_at))
    }

    /// The sum of the usage that a hosted agent has reported.
    async fn tokens(&self, id: &AgentId) -> Result<Option<AgentUsage>, Error> {
        let stream = StreamName::new("agent", id);
        let Some(view) = self.core.store.streams().view(&stream).await? else { return Ok(None) };
        let (mut after, mut total) = (0, None::<AgentUsage>);
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0) + more);
            }
        };
        loop {
            let size = PageSize::rows(limits::PAGE_MAX);
            let page = self
                .core
                .store
                .events()
                .of_stream(view.id, &stream, after, Some("usage"), size)
                .await?;
            for event in &page.events {
                after = event.seq;
                let Ok(AgentEvent { body: AgentEventBody::Usage(usage), .. }) =
                    serde_json::from_str(&event.data)
                else {
                    continue;
                };
                let total = total.get_or_insert_default();
                add(&mut total.input_tokens, usage.input_tokens);
                add(&mut total.output_tokens, usage.output_tokens);
                if let Some(cost) = usage.cost_usd {
                    total.cost_usd = Some(total.cost_usd.unwrap_or(0.0) + cost);
                }
            }
            if !page.more {
                return Ok(total);
            }
        }
    }
}

/// The error for a session that does not exist or that the caller may not see; the caller is not
/// told which.
pub(super) fn unseen(named: &str, none: &NoSession) -> Error {
    match none {
        NoSession::Unseen(denial) => Error::Unseen(*denial),
        NoSession::Unknown => Error::not_found(ResourceKind::Session, named),
        NoSession::Ambiguous(keys) => {
            Error::invalid("sessionKey", format!("several are called so: {}", keys.join(", ")))
        }
    }
}
