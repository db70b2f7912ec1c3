//! Sessions of coding agents: their start and end, their counters, and which session a call acts
//! in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use svc_model::{
    AccessLevel, Caller, GhapId, IMPLICIT_SESSION, LATEST, NOT_BLANK, PeerId, PeerReference,
    Principal, Reader, SessionFilter, SessionReference, Timestamp, TokenId, is_own_session,
    journal::{Ghap, Session, SessionSource, ToolUse},
    limits, own_session_ids,
};
use svc_store::{SessionStart, StoreError, ToolCall, ToolCallCount, WriteTx, job};

use super::{Team, ownership::claim, stream_of, tell, visibility_of};
use crate::boxed;
use crate::service::{
    Candidate, Error, Page, PageBounds, ResourceKind, Result, budget::Budget, check, core::Core,
};

/// Bytes of the shortest beginning of a session's id that names the session.
const SESSION_PREFIX_MIN: usize = 4;

/// Where a call of the journal belongs: a session, or a sub-agent in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActingSession {
    /// The client's own id of the session.
    pub session_id: String,
    /// The sub-agent; empty for the session itself.
    pub agent_id: String,
}

/// A session that begins.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct NewSession {
    /// The client's own id of the session; a new one if omitted.
    #[schemars(regex(pattern = NOT_BLANK))]
    pub session_id: Option<String>,
    /// The folder that it works in; the nearest repository above it is the project.
    #[schemars(regex(pattern = NOT_BLANK))]
    pub cwd: Option<String>,
    /// How it begins; new by default.
    pub source: Option<SessionSource>,
    /// Which program it is, such as `claude-code`.
    #[schemars(regex(pattern = NOT_BLANK))]
    pub client: Option<String>,
}

/// A session with its counters.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SessionDetail {
    /// The session.
    #[serde(flatten)]
    pub session: Session,
    /// How often each tool was called, the most called first; those of sub-agents apart.
    pub tools: Vec<ToolUse>,
    /// Its active record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_ghap: Option<Ghap>,
}

/// The setting with the id of the session that the operator last started.
const CURRENT: &str = "current_session";

/// The session with this id, if it exists and the caller may read it.
pub(in crate::service) async fn readable_session(
    core: &Core,
    caller: &Caller,
    session_id: &str,
) -> Result<Option<Session>> {
    let Some(owner) = core.store.sessions().owner(session_id).await? else { return Ok(None) };
    let is_own = is_own_session(&caller.principal(), session_id, Some(owner.owner.as_ref()));
    if !is_own && caller.access_to(&owner) == AccessLevel::Hidden {
        return Ok(None);
    }
    Ok(core.store.sessions().get(session_id).await?)
}

impl Team {
    /// The session that a call is about: the one that it names, the one that it came in, or the
    /// caller's default. The operator's default is the session that the operator last started, else
    /// the one that every database has.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if a session token names a session that is not its own.
    #[boxed]
    pub async fn acting_session(
        &self,
        caller: &Caller,
        own: Option<&str>,
        named: Option<&str>,
        agent_id: Option<&str>,
    ) -> Result<ActingSession> {
        check::key("session_id", named)?;
        check::short("agent_id", agent_id)?;
        let session_id = if let Some(id) = named.or(own) {
            if named.is_some() || !caller.is_operator() {
                self.check_named(caller, id).await?
            } else {
                id.to_owned()
            }
        } else if let Some(default) = self.default_session(caller).await? {
            default
        } else {
            let last = self.core.store.settings().get(CURRENT).await?;
            last.unwrap_or_else(|| IMPLICIT_SESSION.to_owned())
        };
        check::key("session_id", Some(&session_id))?;
        Ok(ActingSession { session_id, agent_id: agent_id.unwrap_or_default().to_owned() })
    }

    /// Begins a session, or begins it again: then it gets back what it left open.
    #[boxed]
    pub async fn start_session(
        &self,
        caller: &Caller,
        own: Option<&str>,
        new: NewSession,
    ) -> Result<Session> {
        for (field, text) in [("cwd", &new.cwd), ("client", &new.client)] {
            check::key(field, text.as_deref())?;
        }
        let session_id = match (new.session_id.as_deref(), own) {
            (Some(named), _) => {
                check::key("session_id", Some(named))?;
                // A client's process may choose any unclaimed id; a token that a person minted is
                // for one session.
                self.session_of(caller, named, caller.process().is_some()).await?
            }
            (None, Some(own)) => own.to_owned(),
            (None, None) => fresh_session_id(),
        };
        let start = SessionStart {
            session_id,
            project: self.core.projects.to_start(caller, new.cwd.as_deref()).await?,
            client: new.client,
            source: new.source.unwrap_or(SessionSource::Startup),
            created_by: caller.principal().to_string(),
        };
        let is_named = new.session_id.is_some() || !caller.is_operator();
        let (caller, budget) = (caller.clone(), self.core.budget.clone());
        let job = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            if is_named {
                claim(tx, &caller, &start.session_id, SessionReference::Call).await?;
            }
            let known = tx.sessions().get(&start.session_id).await?;
            check_open(tx, &budget, &caller, known.as_ref()).await?;
            // Only the operator's start changes the session of operator calls that name none.
            if caller.is_operator() {
                tx.settings().put(CURRENT, &start.session_id).await?;
            }
            begin(tx, &start).await
        }));
        job.await
    }

    /// Ends a session. Returns it with the id of its open record, which is an orphan from then on.
    #[boxed]
    pub async fn end_session(
        &self,
        acting: ActingSession,
        reason: Option<String>,
    ) -> Result<(Session, Option<GhapId>)> {
        check::short("reason", reason.as_deref())?;
        let job = self.core.store.write(job!(|tx| {
            let id = &acting.session_id;
            let unknown = || Error::not_found(ResourceKind::Session, id);
            tx.sessions().get(id).await?.ok_or_else(unknown)?;
            let left = end(tx, id, reason.as_deref()).await?;
            Ok::<_, Error>((tx.sessions().get(id).await?.ok_or_else(unknown)?, left))
        }));
        let (session, left) = job.await?;
        self.access.forget(&left.tokens);
        Ok((session, left.record))
    }

    /// Removes the secrets of sessions that ended so long ago that their ids are free.
    #[boxed]
    pub async fn sweep_session_secrets(&self) -> Result<()> {
        let Some(secrets) = &self.core.sessions.secrets else { return Ok(()) };
        let before = self.core.now().minus(limits::SESSION_KEY_KEPT);
        loop {
            let over =
                self.core.store.sessions().to_forget(before, limits::SECRETS_PER_JOB).await?;
            let is_last = over.len() < limits::SECRETS_PER_JOB as usize;
            for id in &over {
                if let Err(error) = secrets.remove(id) {
                    tracing::warn!(%error, "cannot remove the secret of a session that is over");
                }
            }
            if !over.is_empty() {
                self.core
                    .change(job!(|tx| tx.sessions().forget_secrets(&over, before).await))
                    .await?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    #[boxed]
    pub async fn project_of(&self, acting: &ActingSession) -> Result<Option<String>> {
        let session = self.core.store.sessions().get(&acting.session_id).await?;
        Ok(session.and_then(|session| session.project))
    }

    /// A session with its counters, by its id or the beginning of that.
    #[boxed]
    pub async fn session_detail(&self, caller: &Caller, session_id: &str) -> Result<SessionDetail> {
        let unknown = || Error::not_found(ResourceKind::Session, session_id);
        let session_id = &*self.find_session(caller, session_id).await?;
        let session = readable_session(&self.core, caller, session_id).await?;
        let session = session.ok_or_else(unknown)?;
        let tools = self.core.store.tool_counts().uses(session_id).await?;
        let active_ghap = self.core.store.ghaps().active(session_id).await?;
        Ok(SessionDetail { session, tools, active_ghap })
    }

    /// The id of the session that a text names: its id, or the beginning of the id of one that the
    /// caller may read, alone or in the session's key, as lists cut it; or `latest`.
    async fn find_session(&self, caller: &Caller, text: &str) -> Result<String> {
        let is_id = self.core.store.sessions().owner(text).await?.is_some();
        if text == LATEST && !is_id {
            let (any, one) = (SessionFilter::default(), PageBounds::new(None, Some(1)));
            let latest = self.sessions(caller, &any, one).await?.items.into_iter().next();
            let unknown = || Error::not_found(ResourceKind::Session, text);
            return latest.map(|session| session.session_id).ok_or_else(unknown);
        }
        let key = match PeerReference::parse(text) {
            Some(PeerReference::SessionKey(key)) => Some(key),
            _ => None,
        };
        let begin = key.as_ref().map_or(text, |key| &key.session_id);
        if is_id || begin.len() < SESSION_PREFIX_MIN {
            return Ok(text.to_owned());
        }
        let (reader, limit) = (Reader::from_caller(caller), limits::PAGE_DEFAULT);
        let mut rows = self.core.store.sessions().with_prefix(&reader, begin, limit).await?;
        if let Some(key) = &key {
            rows.retain(|row| row.client.as_deref().is_none_or(|client| key.is_backend(client)));
        }
        if let Some(whole) = rows.iter().position(|row| row.session_id == begin) {
            return Ok(rows.swap_remove(whole).session_id);
        }
        Ok(Error::only_one(ResourceKind::Session, text, rows, candidate)?.session_id)
    }

    /// A page of sessions that the caller may read, the last seen first.
    pub async fn sessions(
        &self,
        caller: &Caller,
        filter: &SessionFilter,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Page<Session>> {
        let reader = Reader::from_caller(caller);
        let project = self.core.projects.named(filter.project.as_deref()).await?;
        let filter = &SessionFilter { project, ..filter.clone() };
        let read = async |before: Option<(i64, String)>, limit| {
            let before = before.as_ref().map(|(at, id)| (Timestamp::from_millis(*at), id.as_str()));
            self.core.store.sessions().list(&reader, filter, before, limit).await
        };
        let key =
            |session: &Session| (session.last_seen_at.as_millis(), session.session_id.clone());
        Page::read("sessions", page.into(), read, key).await
    }

    /// Counts a tool call. With a frequency, tells whether it is time to look at the record; if so,
    /// resets the count. One write job does all of it, so exactly one of many concurrent calls is
    /// told.
    #[boxed]
    pub async fn count_tool(
        &self,
        caller: &Caller,
        acting: ActingSession,
        tool_name: Option<String>,
        frequency: Option<i64>,
    ) -> Result<ToolCallCount> {
        check::key("tool_name", tool_name.as_deref())?;
        let ActingSession { session_id, agent_id } = acting;
        let call = ToolCall { session_id, agent_id, tool_name, frequency };
        let (caller, budget) = (caller.clone(), self.core.budget.clone());
        let job = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            touch_session(tx, &budget, &caller, &call.session_id).await?;
            Ok::<_, Error>(tx.tool_counts().count_call(&call).await?)
        }));
        job.await
    }

    /// Tool calls since the last reset.
    #[boxed]
    pub async fn tool_count(&self, acting: ActingSession) -> Result<i64> {
        let session = self.core.store.sessions().get(&acting.session_id).await?;
        Ok(session.map_or(0, |session| session.tool_count))
    }

    #[boxed]
    pub async fn reset_tool_count(&self, caller: &Caller, acting: ActingSession) -> Result<()> {
        let (caller, budget) = (caller.clone(), self.core.budget.clone());
        let job = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            touch_session(tx, &budget, &caller, &acting.session_id).await?;
            tx.tool_counts().reset(&acting.session_id, &acting.agent_id).await?;
            Ok(())
        }));
        job.await
    }
}

fn fresh_session_id() -> String {
    let mut bytes = [0_u8; 16];
    svc_model::random_bytes(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

pub(in crate::service) struct Left {
    pub(in crate::service) record: Option<GhapId>,
    /// Its tokens, which are revoked. After the commit, the caller of [`end`] has the token cache
    /// forget them.
    pub(in crate::service) tokens: Vec<TokenId>,
}

/// Ends a session that exists, revokes its tokens, and appends the end to its stream.
pub(in crate::service) async fn end(
    tx: &mut WriteTx,
    id: &str,
    reason: Option<&str>,
) -> Result<Left, StoreError> {
    let tokens = match tx.sessions().owner(id).await?.and_then(|row| row.owner) {
        // Revokes the tokens that were minted for this session. If the session is not named after
        // its owner, the owner's tokens stay.
        Some(Principal::Session(key)) if own_session_ids(&key).iter().any(|own| own == id) => {
            tx.tokens().revoke_minted_of(&key).await?
        }
        Some(Principal::Operator) => tx.tokens().revoke_minted_of(id).await?,
        _ => Vec::new(),
    };
    let record = close(tx, id, reason).await?;
    Ok(Left { record, tokens })
}

/// Sessions that one write job removes, with their counters and what they were given.
const REMOVED_PER_JOB: u32 = 10;

/// Removes sessions of an owner that is gone, with their streams; returns their ids. The caller
/// repeats this until none is left.
pub(in crate::service) async fn remove_sessions(
    tx: &mut WriteTx,
    owner: &Principal,
) -> Result<Vec<String>, StoreError> {
    let ids = tx.sessions().all_of(owner, REMOVED_PER_JOB).await?;
    for id in &ids {
        tx.streams().retire(&stream_of(id)).await?;
        tx.sessions().remove(id).await?;
    }
    Ok(ids)
}

/// Ends the session of a peer whose process is gone, if the session is open and the peer speaks for
/// it. Its tokens stay: those of the process ended with it, and any other was minted by somebody
/// who can revoke it.
pub(super) async fn end_left(
    tx: &mut WriteTx,
    peer: &PeerId,
    id: &str,
    reason: &str,
) -> Result<(), StoreError> {
    let speaker = tx.peers().of_session(id).await?;
    let is_open = tx.sessions().get(id).await?.is_some_and(|session| session.ended_at.is_none());
    if is_open && speaker.is_some_and(|row| row.peer.peer_id == *peer) {
        close(tx, id, Some(reason)).await?;
    }
    Ok(())
}

/// Stores the end of a session and appends it to its stream. Returns the record that it leaves
/// open.
async fn close(
    tx: &mut WriteTx,
    id: &str,
    reason: Option<&str>,
) -> Result<Option<GhapId>, StoreError> {
    tx.sessions().end(id, reason).await?;
    tx.tool_counts().reset(id, "").await?;
    let record = tx.ghaps().active(id).await?.map(|ghap| ghap.id);
    let data = json!({ "session_id": id, "reason": reason, "orphan": record });
    tell(tx, id, "session.ended", &data).await?;
    Ok(record)
}

/// Begins a session, or begins it again, and appends that to its stream.
pub(in crate::service) async fn begin(tx: &mut WriteTx, start: &SessionStart) -> Result<Session> {
    tx.sessions().begin(start).await?;
    // The session's project or its owner may have changed.
    let visibility = visibility_of(tx, &start.session_id).await?;
    tx.streams().set_visibility(&stream_of(&start.session_id), &visibility).await?;
    // A session that continues keeps its counts.
    if matches!(start.source, SessionSource::Startup | SessionSource::Clear) {
        tx.tool_counts().reset(&start.session_id, "").await?;
    }
    // The session's context no longer has what it was given, or at best a summary.
    if matches!(start.source, SessionSource::Clear | SessionSource::Compact) {
        tx.seen().forget(&start.session_id).await?;
    }
    let session = tx.sessions().get(&start.session_id).await?;
    let session =
        session.ok_or_else(|| Error::not_found(ResourceKind::Session, &start.session_id))?;
    let data = json!({
        "session_id": session.session_id, "source": session.source,
        "client": session.client, "project": session.project,
    });
    tell(tx, &start.session_id, "session.started", &data).await?;
    Ok(session)
}

/// Checks that a caller may have a session open: an open one counts as a row of the caller.
async fn check_open(
    tx: &mut WriteTx,
    budget: &Budget,
    caller: &Caller,
    known: Option<&Session>,
) -> Result<()> {
    let more = u64::from(known.is_none_or(|session| session.ended_at.is_some()));
    budget.check_rows(tx, caller, more).await
}

/// Notes that the session of a call is alive, and opens one that is missing or over.
pub(in crate::service) async fn touch_session(
    tx: &mut WriteTx,
    budget: &Budget,
    caller: &Caller,
    session_id: &str,
) -> Result<()> {
    let known = tx.sessions().get(session_id).await?;
    check_open(tx, budget, caller, known.as_ref()).await?;
    Ok(touch_uncharged(tx, caller, caller.project(), (session_id, known.as_ref())).await?)
}

/// Like [`touch_session`], for what a hook reports: it is not refused for the row. `known` is the
/// session as this job has read it.
pub(in crate::service) async fn touch_uncharged(
    tx: &mut WriteTx,
    caller: &Caller,
    project: Option<&str>,
    (session_id, known): (&str, Option<&Session>),
) -> Result<(), StoreError> {
    let created_by = caller.principal().to_string();
    if known.is_none() && tx.sessions().owner(session_id).await?.is_some() {
        // The row was kept for the records of a session that was removed.
        let start = SessionStart {
            session_id: session_id.to_owned(),
            project: project.map(str::to_owned),
            client: None,
            source: SessionSource::Startup,
            created_by: created_by.clone(),
        };
        tx.sessions().begin(&start).await?;
    }
    tx.sessions().touch(session_id, &created_by, project).await?;
    if project.is_some() && known.is_some_and(|session| session.project.is_none()) {
        // Who may read the session's stream depends on its project.
        let visibility = visibility_of(tx, session_id).await?;
        tx.streams().set_visibility(&stream_of(session_id), &visibility).await?;
    }
    Ok(())
}

pub(in crate::service) async fn owns_session(
    tx: &mut WriteTx,
    caller: &Caller,
    session_id: &str,
) -> Result<bool, StoreError> {
    let row = tx.sessions().owner(session_id).await?;
    let owner = row.as_ref().map(|row| row.owner.as_ref());
    Ok(caller.is_operator() || is_own_session(&caller.principal(), session_id, owner))
}

fn candidate(session: &Session) -> Candidate {
    let state = if session.ended_at.is_some() { "over" } else { "open" };
    let client = session.client.as_deref().unwrap_or("no client");
    let about = format!("{state}, {client}, since {}", session.started_at);
    Candidate { id: session.session_id.clone(), about }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::testing::opened;

    /// The row of a removed session stays for its records, hidden and without an owner.
    #[tokio::test]
    async fn call_in_a_session_that_was_removed_begins_it_again() {
        let (test, services) = opened().await;
        test.execute(
            "
            insert into session (session_id, source, created_by, started_at, last_seen_at, ended_at)
            values ('s', 'startup', 'removed', 1, 1, 1)",
        )
        .await;
        let team = &services.team;
        let acting = ActingSession { session_id: "s".to_owned(), agent_id: String::new() };
        let count = team.count_tool(&Caller::Operator, acting, None, None).await.unwrap().since;
        let detail = team.session_detail(&Caller::Operator, "s").await.unwrap();
        assert_eq!((count, detail.session.ended_at), (1, None));
        let row = test.store.sessions().owner("s").await.unwrap().unwrap();
        assert_eq!(row.owner, Some(Principal::Operator));
    }
}
