//! Which sessions there are.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    Caller, MessageId, MessageType, NOT_BLANK, PeerId, Principal, StatusEvidence, Timestamp,
    conversation::redacted, limits,
};
use svc_store::PageSize;

use super::{
    Conversations,
    party::{Requester, SessionRow},
    status::SessionWaiting,
};
use crate::service::Error;

/// Characters of a last message in a list.
const EXCERPT_CHARS: usize = 200;
/// Sessions of people that a list looks at, those heard of last.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What it is doing.
    pub state: String,
    /// What that rests on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<StatusEvidence>,
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

/// What a list has found so far.
#[derive(Debug, Default)]
struct FoundSessions {
    entries: Vec<(SessionEntry, SessionRow)>,
    /// Number of those that the requester may not see.
    hidden: usize,
}

impl Conversations {
    /// The sessions that the caller may see, those heard of last first.
    pub async fn sessions(
        &self,
        caller: &Caller,
        session: Option<&str>,
        query: &ListSessions,
    ) -> Result<SessionsPage, Error> {
        let requester = self.reader(caller, session).await?;
        let limit = query.limit.unwrap_or(100).clamp(1, limits::SESSIONS_MAX) as usize;
        let mut found = FoundSessions::default();
        for agent in self.core.store.agents().live().await? {
            let row = self.hosted(agent).await?;
            self.look_at(&requester, query, row, &mut found).await?;
        }
        let hosted = found.entries.len();
        let at_once = u32::try_from(limit + 1).unwrap_or(u32::MAX).clamp(100, LOOKED_AT);
        let (mut looked_at, mut before) = (0, None);
        // These come in the order of the list: reading ends when they fill a page.
        while found.entries.len() - hosted <= limit && looked_at < LOOKED_AT {
            let (peers, from) = (self.core.store.peers(), before.as_ref());
            let cursor = from.map(|(at, id): &(Timestamp, PeerId)| (*at, id));
            let peers = peers.of_sessions(cursor, at_once.min(LOOKED_AT - looked_at)).await?;
            let Some(last) = peers.last() else { break };
            before = Some((last.peer.last_seen, last.peer.peer_id.clone()));
            looked_at += u32::try_from(peers.len()).unwrap_or(u32::MAX);
            for peer in peers {
                let row = SessionRow::Attended(Box::new(peer));
                self.look_at(&requester, query, row, &mut found).await?;
            }
        }
        let FoundSessions { mut entries, hidden } = found;
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
        let visibility = (hidden > 0)
            .then(|| format!("sessions.visibility is `{setting}`: others are left out"));
        Ok(SessionsPage { count: sessions.len(), sessions, has_more, visibility })
    }

    /// Adds a session to those that were found, if the requester may see it and asks for it.
    async fn look_at(
        &self,
        requester: &Requester,
        query: &ListSessions,
        row: SessionRow,
        found: &mut FoundSessions,
    ) -> Result<(), Error> {
        if !(requester.sees_all || self.policy().may_see(requester.sight(&row)).is_ok()) {
            found.hidden += 1;
            return Ok(());
        }
        let entry = self.entry(requester, &row).await?;
        if self.fits(&entry, query) {
            found.entries.push((entry, row));
        }
        Ok(())
    }

    pub(super) async fn entry(
        &self,
        requester: &Requester,
        row: &SessionRow,
    ) -> Result<SessionEntry, Error> {
        let label = row.peer().map(|peer| peer.peer.display_name.clone());
        let parent_session_key = match row.parent() {
            Some(Principal::Session(parent)) => {
                let own = self.core.store.peers().of_key(parent).await?;
                own.and_then(|row| row.session_key())
            }
            _ => None,
        };
        let heard = row.peer().map(|peer| peer.peer.last_seen);
        let (kind, state, cwd, backend, updated_at) = match row {
            SessionRow::Hosted(agent, _) => (
                SessionKind::Hosted,
                row.peer()
                    .map_or(agent.info.state.as_str(), |peer| peer.peer.status.as_str())
                    .to_owned(),
                Some(agent.info.worktree.clone()),
                agent.info.backend.to_string(),
                self.last_activity(agent.info.started_at, &agent.info.id).await?,
            ),
            SessionRow::Attended(peer) => (
                SessionKind::Attended,
                peer.peer.status.as_str().to_owned(),
                peer.peer.path.clone(),
                row.agent_id(),
                peer.peer.last_seen,
            ),
        };
        Ok(SessionEntry {
            key: row.key(),
            agent_id: row.agent_id(),
            session_id: row.incarnation(),
            kind,
            label,
            state,
            evidence: row.peer().map(|row| row.peer.evidence),
            cwd,
            backend,
            parent_session_key,
            waiting_for: row.peer().and_then(|row| SessionWaiting::of_peer(&row.peer)),
            updated_at: heard.map_or(updated_at, |heard| heard.max(updated_at)),
            is_you: requester.sight(row).is_self,
            last_message: None,
        })
    }

    fn fits(&self, entry: &SessionEntry, query: &ListSessions) -> bool {
        let has = |text: &str, part: &str| text.to_lowercase().contains(part);
        let search = query.search.as_deref().map(str::to_lowercase);
        let is_found = search.is_none_or(|part| {
            let texts = [Some(&entry.key), Some(&entry.agent_id)];
            let texts = texts.into_iter().chain([entry.label.as_ref(), entry.cwd.as_ref()]);
            texts.flatten().any(|text| has(text, &part))
        });
        let active_within = query.active_minutes.map(|it| Duration::from_mins(u64::from(it)));
        let since = active_within.map(|within| self.core.now().minus(within));
        is_found
            && query
                .kinds
                .as_ref()
                .is_none_or(|kinds| kinds.is_empty() || kinds.contains(&entry.kind))
            && since.is_none_or(|since| entry.updated_at >= since)
    }

    async fn last_message(
        &self,
        requester: &Requester,
        row: &SessionRow,
    ) -> Result<Option<LastMessage>, Error> {
        let (Some(own), Some(peer)) = (&requester.peer, row.peer()) else { return Ok(None) };
        let between = self
            .core
            .store
            .messages()
            .between(own, &peer.peer.peer_id, None, PageSize::rows(1))
            .await?;
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
