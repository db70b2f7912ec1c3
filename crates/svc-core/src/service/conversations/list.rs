//! Lists sessions, and reports the status of each.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    AgentId, Caller, MessageId, MessageType, NOT_BLANK, PeerId, PeerStatus, Principal,
    StatusEvidence, StreamName, Timestamp, WaitingFor, WaitingKind,
    agent::{AgentEvent, AgentEventBody, AgentUsage},
    conversation::redacted,
    limits,
};
use svc_store::PageSize;

use super::{ConversationCaller, Conversations, OPERATOR, SessionRow};
use crate::boxed;
use crate::service::Result;

const EXCERPT_CHARS: usize = 200;
/// Most attended sessions that a list looks at, those heard of last.
const LOOKED_AT: u32 = 1000;

/// Kind of session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionKind {
    /// The daemon runs it.
    Hosted,
    /// A person started it.
    Attended,
}

/// Which sessions to list.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListSessions {
    /// Only these kinds.
    pub kinds: Option<Vec<SessionKind>>,
    /// How many at most.
    #[schemars(range(min = 1, max = limits::SESSIONS_MAX), extend("default" = 100))]
    pub limit: Option<u32>,
    /// Only those active within so many minutes.
    #[schemars(range(min = 1, max = 525_600))]
    pub active_minutes: Option<u32>,
    /// Only those whose key, name or folder contains this.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub search: Option<String>,
    /// Include the last message between you and each session.
    pub include_last_message: Option<bool>,
}

/// A session.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionEntry {
    /// What `sessions_send` addresses.
    pub key: String,
    /// Its instance, or the backend of one that a person started.
    pub agent_id: String,
    /// Its present incarnation.
    pub session_id: String,
    /// Who runs it.
    pub kind: SessionKind,
    /// What it is called.
    pub label: String,
    /// What it is doing.
    pub state: PeerStatus,
    /// What that rests on.
    pub evidence: StatusEvidence,
    /// Where it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Kind of agent.
    pub backend: String,
    /// The session that started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_session_key: Option<String>,
    /// What it waits for, of a person or of its vendor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<SessionWaiting>,
    /// When it was last heard of.
    pub updated_at: Timestamp,
    /// True of the caller's own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_you: bool,
    /// The last message between it and the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message: Option<LastMessage>,
}

/// The last message between a session and the caller.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastMessage {
    /// Its id.
    pub message_id: MessageId,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: MessageType,
    /// Whether the caller sent it.
    pub is_yours: bool,
    /// Its beginning.
    pub text: String,
    /// When it was sent.
    pub at: Timestamp,
}

/// A page of sessions.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionsPage {
    /// How many are here.
    pub count: usize,
    /// Those heard of last first.
    pub sessions: Vec<SessionEntry>,
    /// There are more.
    pub has_more: bool,
    /// What is left out, with the setting that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<String>,
}

impl Conversations {
    /// The sessions that the caller may see, those heard of last first.
    #[boxed]
    pub async fn sessions(
        &self,
        caller: &Caller,
        session: Option<&str>,
        query: &ListSessions,
    ) -> Result<SessionsPage> {
        let requester = self.reader(caller, session).await?;
        let limit = query.limit.unwrap_or(100).clamp(1, limits::SESSIONS_MAX) as usize;
        let at_once = u32::try_from(limit + 1).unwrap_or(u32::MAX).clamp(100, LOOKED_AT);
        let (mut entries, mut has_hidden) = (Vec::new(), false);
        // First the hosted ones, then some attended ones at a time.
        let mut rows = self.live().await?;
        let (mut hosted, mut looked_at, mut before) = (None, 0, None);
        loop {
            for row in rows {
                if !self.is_seen(&requester, &row) {
                    has_hidden = true;
                    continue;
                }
                let entry = self.entry(&requester, &row).await?;
                if self.fits(&entry, query) {
                    entries.push((entry, row));
                }
            }
            // Attended ones come in the order of the list, so reading stops when they fill a page.
            let attended = entries.len() - *hosted.get_or_insert(entries.len());
            if attended > limit || looked_at >= LOOKED_AT {
                break;
            }
            let cursor = before.as_ref().map(|(at, id): &(Timestamp, PeerId)| (*at, id));
            let most = at_once.min(LOOKED_AT - looked_at);
            let peers = self.core.store.peers().of_sessions(cursor, most).await?;
            let Some(last) = peers.last() else { break };
            before = Some((last.peer.last_seen, last.peer.peer_id.clone()));
            looked_at += u32::try_from(peers.len()).unwrap_or(u32::MAX);
            rows = self.sessions_of(peers).await?;
        }
        entries.sort_by(|(a, _), (b, _)| {
            b.updated_at.cmp(&a.updated_at).then_with(|| a.key.cmp(&b.key))
        });
        let has_more = entries.len() > limit;
        entries.truncate(limit);
        let mut sessions = Vec::with_capacity(entries.len());
        for (mut entry, row) in entries {
            if query.include_last_message.unwrap_or(false) {
                entry.last_message = self.last_message(&requester, &row).await?;
            }
            sessions.push(entry);
        }
        let setting = self.policy().visibility.as_str();
        let visibility =
            has_hidden.then(|| format!("sessions.visibility is `{setting}`: others are left out"));
        Ok(SessionsPage { count: sessions.len(), sessions, has_more, visibility })
    }

    async fn entry(
        &self,
        requester: &ConversationCaller,
        row: &SessionRow,
    ) -> Result<SessionEntry> {
        let parent_session_key = match row.parent() {
            Some(Principal::Session(parent)) => {
                let own = self.core.store.peers().of_key(parent).await?;
                own.and_then(|row| row.session_key())
            }
            _ => None,
        };
        let peer = &row.peer.peer;
        let (kind, cwd, backend, updated_at) = match &row.agent {
            Some(agent) => (
                SessionKind::Hosted,
                Some(agent.info.worktree.clone()),
                agent.info.backend.to_string(),
                self.last_activity(agent.info.started_at, &agent.info.id).await?,
            ),
            None => (SessionKind::Attended, peer.path.clone(), row.agent_id(), peer.last_seen),
        };
        Ok(SessionEntry {
            key: row.key(),
            agent_id: row.agent_id(),
            session_id: row.incarnation(),
            kind,
            label: peer.display_name.clone(),
            state: peer.status,
            evidence: peer.evidence,
            cwd,
            backend,
            parent_session_key,
            waiting_for: peer.waiting_for.clone().map(SessionWaiting::from),
            updated_at: peer.last_seen.max(updated_at),
            is_you: requester.sight(row).is_self,
            last_message: None,
        })
    }

    fn fits(&self, entry: &SessionEntry, query: &ListSessions) -> bool {
        let is_found = query.search.as_deref().map(str::to_lowercase).is_none_or(|part| {
            let SessionEntry { key, agent_id, label, cwd, .. } = entry;
            let texts = [Some(key), Some(agent_id), Some(label), cwd.as_ref()];
            texts.into_iter().flatten().any(|text| text.to_lowercase().contains(&part))
        });
        let is_active = query.active_minutes.is_none_or(|minutes| {
            let within = Duration::from_mins(u64::from(minutes));
            entry.updated_at >= self.core.now().minus(within)
        });
        let kinds = query.kinds.as_deref().unwrap_or_default();
        is_found && is_active && (kinds.is_empty() || kinds.contains(&entry.kind))
    }

    async fn last_message(
        &self,
        requester: &ConversationCaller,
        row: &SessionRow,
    ) -> Result<Option<LastMessage>> {
        let Some(own) = &requester.peer else { return Ok(None) };
        let (messages, one) = (self.core.store.messages(), PageSize::rows(1));
        let between = messages.between(own, &row.peer.peer.peer_id, None, one).await?;
        Ok(between.rows.into_iter().next().map(|row| {
            let message = row.message;
            LastMessage {
                is_yours: message.from_peer == own.as_str(),
                text: redacted(&message.text).chars().take(EXCERPT_CHARS).collect(),
                message_id: message.id,
                kind: message.kind,
                at: message.timestamp,
            }
        }))
    }
}

/// How a session stands.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStatusView {
    /// The session.
    pub session_key: String,
    /// Its instance, or the backend of one that a person started.
    pub agent_id: String,
    /// What it is doing.
    pub state: PeerStatus,
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
    #[serde(flatten)]
    pub what: WaitingFor,
    /// The session whose reply it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_key: Option<String>,
}

impl From<WaitingFor> for SessionWaiting {
    fn from(what: WaitingFor) -> Self {
        Self { what, session_key: None }
    }
}

impl Conversations {
    /// The status of a session; of the caller's own if none is named.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::service::Error::NotFound) if there is no such session that the
    /// caller may see.
    #[boxed]
    pub async fn status(
        &self,
        caller: &Caller,
        session: Option<&str>,
        named: Option<&str>,
    ) -> Result<SessionStatusView> {
        let requester = self.reader(caller, session).await?;
        let named = named.unwrap_or(&requester.key);
        let row = match self.find(&requester, named).await {
            // A caller whose session has no row yet has a status, too.
            Err(_) if named == requester.key && named != OPERATOR => {
                return Ok(SessionStatusView {
                    session_key: requester.key,
                    agent_id: requester.agent_id,
                    state: PeerStatus::Online,
                    evidence: None,
                    waiting_for: None,
                    queued: 0,
                    last_activity: self.core.now(),
                    tokens: None,
                });
            }
            row => row?,
        };
        let entry = self.entry(&requester, &row).await?;
        let mut waiting_for = entry.waiting_for;
        if waiting_for.is_none() {
            let store = &self.core.store;
            let reply = store.assignments().awaited_by(&entry.key, self.core.now()).await?;
            waiting_for = reply.map(|(session, since, until)| SessionWaiting {
                what: WaitingFor {
                    kind: WaitingKind::Reply,
                    since,
                    title: None,
                    tool: None,
                    until: Some(until),
                },
                session_key: Some(session),
            });
        }
        let tokens = match &row.agent {
            Some(agent) => self.tokens(&agent.info.id).await?,
            None => None,
        };
        let queued = self.core.store.inboxes().count_mail(&row.peer.peer.peer_id).await?;
        Ok(SessionStatusView {
            session_key: entry.key,
            agent_id: entry.agent_id,
            state: entry.state,
            evidence: Some(entry.evidence),
            waiting_for,
            queued,
            last_activity: entry.updated_at,
            tokens,
        })
    }

    /// How many sends of the caller have not ended.
    #[boxed]
    pub async fn open_sends(&self, caller: &Caller, session: Option<&str>) -> Result<u64> {
        let requester = self.requester(caller, session).await?;
        Ok(self.core.store.assignments().count_open(&requester.key).await?)
    }

    /// The key of the caller, and its instance or backend.
    #[boxed]
    pub async fn who_calls(
        &self,
        caller: &Caller,
        session: Option<&str>,
    ) -> Result<(String, String)> {
        let requester = self.requester(caller, session).await?;
        Ok((requester.key, requester.agent_id))
    }

    /// When a hosted agent's last event was; at least its start.
    async fn last_activity(&self, started_at: Timestamp, id: &AgentId) -> Result<Timestamp> {
        let last = self.core.store.streams().last_event_at(&StreamName::new("agent", id)).await?;
        Ok(last.unwrap_or(started_at).max(started_at))
    }

    /// The sum of the usage that a hosted agent has reported.
    async fn tokens(&self, id: &AgentId) -> Result<Option<AgentUsage>> {
        let stream = StreamName::new("agent", id);
        let Some(view) = self.core.store.streams().view(&stream).await? else { return Ok(None) };
        let (mut after, mut total) = (0, None::<AgentUsage>);
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0) + more);
            }
        };
        loop {
            let (events, size) = (self.core.store.events(), PageSize::rows(limits::PAGE_MAX));
            let page = events.of_stream(view.id, &stream, after, Some("usage"), size).await?;
            for event in &page.rows {
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
