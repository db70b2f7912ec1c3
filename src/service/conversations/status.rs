//! How a session stands.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Conversations,
    party::{NoSession, OPERATOR, SessionName, SessionRow},
};
use crate::{
    domain::{
        AgentId, Caller, StreamName, Timestamp,
        agent::{AgentEvent, AgentEventBody, AgentState, AgentUsage},
        limits,
    },
    service::{Error, ResourceKind},
    store::PageSize,
};

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
    /// The session whose answer it waits for, or what it asks a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<String>,
    /// Messages that it has not before its eyes yet.
    pub queued: u64,
    /// When it was last heard of.
    pub last_activity: Timestamp,
    /// What it has used, if it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<AgentUsage>,
}

impl Conversations {
    /// How a session stands; the caller's own if none is named.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none that the caller may see.
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
            // One that was never heard of has no row, and stands all the same.
            Err(_) if named == requester.key && named != OPERATOR => {
                return Ok(SessionStatusView {
                    session_key: requester.key,
                    agent_id: requester.agent_id,
                    state: "online".to_owned(),
                    waiting_for: None,
                    queued: 0,
                    last_activity: self.core.now(),
                    tokens: None,
                });
            }
            Err(none) => return Err(unseen(named, &none)),
        };
        let entry = self.entry(&requester, &row).await?;
        let awaited = self.core.store.awaited_by(&entry.key, self.core.now()).await?;
        let mut waiting_for = awaited.into_iter().next();
        let mut tokens = None;
        if let SessionRow::Hosted(agent, _) = &row {
            if agent.info.state == AgentState::RequiresAction {
                let open = self.agents.open_request_titles(&agent.info.id).await?;
                waiting_for = open.into_iter().next().or(waiting_for);
            }
            tokens = self.tokens(&agent.info.id).await?;
        }
        let queued = match row.peer() {
            Some(peer) => self.core.store.mail_of_peer(&peer.peer.peer_id).await?,
            None => 0,
        };
        Ok(SessionStatusView {
            session_key: entry.key,
            agent_id: entry.agent_id,
            state: entry.state,
            waiting_for,
            queued,
            last_activity: entry.updated_at,
            tokens,
        })
    }

    /// How many sends of the caller are open.
    pub async fn open_sends(&self, caller: &Caller, session: Option<&str>) -> Result<u64, Error> {
        let requester = self.requester(caller, session).await?;
        Ok(self.core.store.open_sends_of(&requester.key).await?)
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

    /// When a hosted agent was last heard of.
    pub(super) async fn last_activity(
        &self,
        started_at: Timestamp,
        id: &AgentId,
    ) -> Result<Timestamp, Error> {
        let last = self.core.store.last_event_at(&StreamName::of("agent", id)).await?;
        Ok(last.unwrap_or(started_at).max(started_at))
    }

    /// The sum of what a hosted agent says it has used.
    async fn tokens(&self, id: &AgentId) -> Result<Option<AgentUsage>, Error> {
        let stream = StreamName::of("agent", id);
        let Some(view) = self.core.store.view(&stream).await? else { return Ok(None) };
        let (mut after, mut total) = (0, None::<AgentUsage>);
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0) + more);
            }
        };
        loop {
            let size = PageSize::rows(limits::PAGE_MAX);
            let page = self.core.store.events(view.id, &stream, after, Some("usage"), size).await?;
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

/// The error of a session that is not there, or not for the caller to see: both are the same.
pub(super) fn unseen(named: &str, none: &NoSession) -> Error {
    match none {
        NoSession::Unseen(denial) => {
            Error::Forbidden(format!("{}: {}", denial.as_str(), denial.explanation()))
        }
        NoSession::Unknown => Error::not_found(ResourceKind::Session, named),
        NoSession::Ambiguous(keys) => {
            Error::invalid("sessionKey", format!("several are called so: {}", keys.join(", ")))
        }
    }
}
