//! What a legacy client finds again. The row is what counts; what is kept in memory beside it saves reading it, and
//! connects what goes on at the moment.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Mcp;
use crate::{
    domain::{Caller, McpSessionId, Principal, Timestamp, limits, mcp::Revision},
    service::{self, mcp::NewMcpSession},
    store::{McpSessionRow, McpTransport},
    telemetry,
    tools::LogLevel,
};

/// A session, as long as somebody uses it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: McpSessionId,
    /// Who opened it: nobody else may use it, and `None` is nobody.
    pub(super) principal: Option<Principal>,
    pub(super) transport: McpTransport,
    facts: Mutex<Facts>,
    seen_at: AtomicI64,
    /// Counts the standalone streams that were opened: only the latest goes on.
    pub(super) streams: watch::Sender<u64>,
    /// Counts changes of what it is subscribed to.
    pub(super) subscriptions: watch::Sender<u64>,
    /// Held while a call is put on record, so that the same request is not there twice.
    pub(super) beginning: tokio::sync::Mutex<()>,
    /// Ends what goes on in it.
    pub(super) closed: CancellationToken,
}

/// What a client says of itself, and has seen.
#[derive(Debug, Clone)]
struct Facts {
    revision: Revision,
    capabilities: Arc<Map<String, Value>>,
    log_level: Option<LogLevel>,
    tools: Option<i64>,
    client_session: Option<Arc<str>>,
}

/// The sessions in memory.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<HashMap<McpSessionId, Arc<Session>>>);

impl Session {
    fn new(row: McpSessionRow) -> Self {
        let level =
            row.log_level.and_then(|level| serde_json::from_value(Value::String(level)).ok());
        Self {
            id: row.session_id,
            principal: row.principal,
            transport: row.transport,
            facts: Mutex::new(Facts {
                revision: row.revision,
                capabilities: capabilities(&row.capabilities),
                log_level: level,
                tools: row.tools,
                client_session: row.client_session.map(Arc::from),
            }),
            seen_at: AtomicI64::new(row.last_seen_at.as_millis()),
            streams: watch::Sender::new(0),
            subscriptions: watch::Sender::new(0),
            beginning: tokio::sync::Mutex::new(()),
            closed: CancellationToken::new(),
        }
    }

    pub(super) fn revision(&self) -> Revision {
        self.facts().revision
    }

    pub(super) fn capabilities(&self) -> Arc<Map<String, Value>> {
        Arc::clone(&self.facts().capabilities)
    }

    pub(super) fn log_level(&self) -> Option<LogLevel> {
        self.facts().log_level
    }

    /// Fingerprint of the list of tools that the client has seen.
    pub(super) fn tools(&self) -> Option<i64> {
        self.facts().tools
    }

    /// The client's own session, if its hooks have shown which.
    pub(super) fn client_session(&self) -> Option<Arc<str>> {
        self.facts().client_session.clone()
    }

    /// Takes it to be this one; `false` if it was that already.
    pub(super) fn tie(&self, client_session: &Arc<str>) -> bool {
        let mut facts = self.facts();
        let is_new = facts.client_session.as_ref() != Some(client_session);
        facts.client_session = Some(Arc::clone(client_session));
        is_new
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn capabilities(json: &str) -> Arc<Map<String, Value>> {
    Arc::new(serde_json::from_str(json).unwrap_or_default())
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<McpSessionId, Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &str) -> Option<Arc<Session>> {
        let id = McpSessionId::parse(id)?;
        self.lock().get(&id).cloned()
    }

    fn put(&self, session: Session) -> Arc<Session> {
        let mut sessions = self.lock();
        if sessions.len() >= limits::MCP_SESSIONS_CACHED {
            // Those that nobody holds are a row away.
            sessions.retain(|_, session| Arc::strong_count(session) > 1);
        }
        // Another request may have been faster; there is one of each, or streams would not know of each other.
        Arc::clone(sessions.entry(session.id.clone()).or_insert_with(|| Arc::new(session)))
    }

    fn remove(&self, id: &McpSessionId) {
        self.lock().remove(id);
    }
}

impl Mcp {
    /// Opens a session for this caller.
    pub(super) async fn open_session(
        &self,
        caller: &Caller,
        new: NewMcpSession,
    ) -> Result<Arc<Session>, service::Error> {
        let row = self.services.mcp.open_mcp_session(caller, new).await?;
        Ok(self.sessions.put(Session::new(row)))
    }

    /// An open session of this caller; `None` if there is none of that id, or it is somebody else's.
    pub(super) async fn session(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<Option<Arc<Session>>, service::Error> {
        let known = match self.sessions.get(id) {
            Some(session) => session,
            None => match Box::pin(self.services.mcp.mcp_session(caller, id)).await? {
                Some(row) => self.sessions.put(Session::new(row)),
                None => return Ok(None),
            },
        };
        if known.principal != Some(caller.principal()) || known.closed.is_cancelled() {
            return Ok(None);
        }
        let seen = Timestamp::from_millis(known.seen_at.load(Relaxed));
        if self.services.now().since(seen) >= limits::MCP_SESSION_IDLE {
            self.sessions.remove(&known.id);
            return Ok(None);
        }
        self.touch(&known);
        Ok(Some(known))
    }

    /// Notes, now and then, that a session is alive. Nobody waits for it.
    pub(super) fn touch(&self, session: &Arc<Session>) {
        let now = self.services.now();
        let seen = session.seen_at.load(Relaxed);
        let resolution = i64::try_from(limits::MCP_SEEN_RESOLUTION.as_millis()).unwrap_or(i64::MAX);
        let due = now.as_millis().saturating_sub(seen) >= resolution;
        if !due
            || session.seen_at.compare_exchange(seen, now.as_millis(), Relaxed, Relaxed).is_err()
        {
            return;
        }
        let (mcp, session) = (self.clone(), Arc::clone(session));
        self.tasks.spawn(async move {
            if let Err(error) = mcp.services.mcp.touch_mcp_session(&session.id).await {
                tracing::warn!(
                    error = telemetry::chain(&error),
                    "cannot note that a session is alive"
                );
            }
        });
    }

    /// What `initialize` says of a session that was opened before it.
    pub(super) async fn describe_session(
        &self,
        session: &Session,
        revision: Revision,
        client: Option<String>,
        capabilities_json: String,
    ) -> Result<(), service::Error> {
        let known = capabilities(&capabilities_json);
        self.services
            .mcp
            .describe_mcp_session(&session.id, revision, client, capabilities_json)
            .await?;
        let mut facts = session.facts();
        facts.revision = revision;
        facts.capabilities = known;
        Ok(())
    }

    /// The lightest log messages that the client wants from now on.
    pub(super) async fn set_log_level(
        &self,
        session: &Session,
        level: LogLevel,
    ) -> Result<(), service::Error> {
        self.services.mcp.set_mcp_log_level(&session.id, level.as_str()).await?;
        session.facts().log_level = Some(level);
        Ok(())
    }

    /// Remembers which list of tools the client has seen, so that it is told of another one, also after a restart.
    pub(super) async fn note_tools_seen(&self, session: &Session) -> Result<(), service::Error> {
        let tools = self.catalogue.fingerprint();
        if session.tools() == Some(tools) {
            return Ok(());
        }
        session.facts().tools = Some(tools);
        self.services.mcp.set_mcp_tools(&session.id, tools).await
    }

    /// Ends a session, its streams and its calls.
    pub(super) async fn close_session(&self, session: &Session) -> Result<(), service::Error> {
        self.services.mcp.close_mcp_session(&session.id).await?;
        session.closed.cancel();
        self.sessions.remove(&session.id);
        Ok(())
    }
}
