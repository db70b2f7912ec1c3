//! The state that all parts of the server share, and the sessions of legacy clients.
//!
//! A session is a row, and a copy in memory with the signals that connect its streams and calls.
//! The row decides; losing the copy loses nothing.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use serde_json::{Map, Value};
use svc_core::{
    service::{self, Services, mcp::NewMcpSession},
    tools::{Catalogue, LogLevel},
};
use svc_model::{Caller, McpSessionId, Principal, Timestamp, ToolExposure, limits};
use svc_sources::SourceManager;
use svc_store::{McpSessionRow, McpTransport};
use svc_sys::telemetry;
use svc_wire::mcp::Revision;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    call::{OpenQuestions, RunningCalls},
    metrics::McpMetrics,
    prompts::PromptTemplate,
    request_state::RequestStateSigner,
    resources::ResourceProvider,
};
use crate::web::{KeepAlive, KeepAliveTimer};

/// The MCP server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct McpServer(Arc<McpServerState>);

/// The parts that a server is made of.
#[derive(Debug)]
pub struct McpServerParts {
    /// The services that tools and methods call.
    pub services: Services,
    pub catalogue: Arc<Catalogue>,
    pub resources: Vec<Box<dyn ResourceProvider>>,
    pub prompts: Vec<PromptTemplate>,
    /// The servers behind the daemon, whose resources and prompts are shown, too.
    pub sources: Option<SourceManager>,
    pub metrics: McpMetrics,
    /// Says when a silent stream sends a comment.
    pub beat: KeepAlive,
    /// Ends the streams, and leaves running calls to the next start.
    pub stop: CancellationToken,
    /// Which tools clients are shown that do not ask; by their credential if this is `None`.
    pub exposure: Option<ToolExposure>,
}

#[derive(Debug)]
pub struct McpServerState {
    pub services: Services,
    pub catalogue: Arc<Catalogue>,
    pub resources: Vec<Box<dyn ResourceProvider>>,
    pub prompts: watch::Sender<Arc<Vec<PromptTemplate>>>,
    pub sources: Option<SourceManager>,
    pub metrics: McpMetrics,
    pub stop: CancellationToken,
    pub exposure: Option<ToolExposure>,
    pub(crate) sessions: McpSessions,
    pub(crate) running: RunningCalls,
    pub(crate) questions: OpenQuestions,
    pub(crate) seal: RequestStateSigner,
    beat: KeepAlive,
    /// Counts changes of the list of resources. Those of a few seconds count once.
    pub(crate) resources_changed: watch::Sender<u64>,
    pub(crate) tasks_changed: watch::Sender<u64>,
    /// Work that no request waits for.
    pub(crate) background: TaskTracker,
}

impl Deref for McpServer {
    type Target = McpServerState;

    fn deref(&self) -> &McpServerState {
        &self.0
    }
}

impl McpServer {
    /// Puts a server together. Calls that the last stop or crash cut off are not taken up.
    pub(crate) async fn assemble(parts: McpServerParts) -> Result<Self, service::Error> {
        let key = parts.services.mcp.secret("mcp.request_state").await?;
        let background = TaskTracker::new();
        Ok(Self(Arc::new(McpServerState {
            sessions: McpSessions::new(parts.services.clone(), background.clone()),
            services: parts.services,
            catalogue: parts.catalogue,
            resources: parts.resources,
            prompts: watch::Sender::new(Arc::new(parts.prompts)),
            sources: parts.sources,
            metrics: parts.metrics,
            stop: parts.stop,
            exposure: parts.exposure,
            running: RunningCalls::default(),
            questions: OpenQuestions::default(),
            seal: RequestStateSigner::new(key),
            beat: parts.beat,
            resources_changed: watch::Sender::new(0),
            tasks_changed: watch::Sender::new(0),
            background,
        })))
    }

    /// The tick by which a silent stream, or a silent call, gives a sign of life.
    pub(crate) fn pulse(&self) -> KeepAliveTimer {
        self.beat.pulse()
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    pub fn set_prompts(&self, prompts: Vec<PromptTemplate>) {
        self.prompts.send_replace(Arc::new(prompts));
    }
}

/// The sessions of legacy clients: their rows, and copies of those in use.
#[derive(Debug)]
pub(crate) struct McpSessions {
    services: Services,
    background: TaskTracker,
    cached: Mutex<HashMap<McpSessionId, Arc<McpSession>>>,
}

impl McpSessions {
    fn new(services: Services, background: TaskTracker) -> Self {
        Self { services, background, cached: Mutex::default() }
    }

    /// Opens a session for this caller.
    pub(crate) async fn open(
        &self,
        caller: &Caller,
        new: NewMcpSession,
    ) -> Result<Arc<McpSession>, service::Error> {
        let row = self.services.mcp.open_mcp_session(caller, new).await?;
        Ok(self.insert(McpSession::new(row)))
    }

    /// An open session of this caller; `None` if there is none of that id, or it is another
    /// caller's.
    pub(crate) async fn find(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<Option<Arc<McpSession>>, service::Error> {
        let session = match self.cached(id) {
            Some(session) => session,
            None => match Box::pin(self.services.mcp.mcp_session(caller, id)).await? {
                Some(row) => self.insert(McpSession::new(row)),
                None => return Ok(None),
            },
        };
        if session.principal != Some(caller.principal()) || session.closed.is_cancelled() {
            return Ok(None);
        }
        if self.services.now().since(session.seen_at()) >= limits::MCP_SESSION_IDLE {
            self.remove(&session.id);
            return Ok(None);
        }
        self.touch(&session);
        Ok(Some(session))
    }

    /// Notes, once in a while, that a session is alive. The caller does not wait for the row.
    pub(crate) fn touch(&self, session: &Arc<McpSession>) {
        if !session.note_alive(self.services.now()) {
            return;
        }
        let (services, session) = (self.services.clone(), Arc::clone(session));
        self.background.spawn(async move {
            if let Err(error) = services.mcp.touch_mcp_session(&session.id).await {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "cannot note that a session is alive");
            }
        });
    }

    /// The result of `initialize` in a session that was opened before it.
    pub(crate) async fn describe(
        &self,
        session: &McpSession,
        revision: Revision,
        client: Option<String>,
        capabilities: String,
    ) -> Result<(), service::Error> {
        self.services
            .mcp
            .describe_mcp_session(&session.id, revision, client, capabilities.clone())
            .await?;
        session.describe_client(revision, &capabilities);
        Ok(())
    }

    /// Sets the lightest log messages that the client is sent.
    pub(crate) async fn set_log_level(
        &self,
        session: &McpSession,
        level: LogLevel,
    ) -> Result<(), service::Error> {
        self.services.mcp.set_mcp_log_level(&session.id, level.as_str()).await?;
        session.set_log_level(level);
        Ok(())
    }

    /// Remembers which list of tools the client was given, by its fingerprint, so that it hears of
    /// a change, also after a restart.
    pub(crate) async fn note_tools_seen(
        &self,
        session: &McpSession,
        tools: i64,
    ) -> Result<(), service::Error> {
        if session.tools() == Some(tools) {
            return Ok(());
        }
        session.set_tools(tools);
        self.services.mcp.set_mcp_tools(&session.id, tools).await
    }

    /// Ends a session, its streams and its calls.
    pub(crate) async fn close(&self, session: &McpSession) -> Result<(), service::Error> {
        self.services.mcp.close_mcp_session(&session.id).await?;
        session.closed.cancel();
        self.remove(&session.id);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<McpSessionId, Arc<McpSession>>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cached(&self, id: &str) -> Option<Arc<McpSession>> {
        let id = McpSessionId::parse(id)?;
        self.lock().get(&id).cloned()
    }

    fn insert(&self, session: McpSession) -> Arc<McpSession> {
        let mut sessions = self.lock();
        if sessions.len() >= limits::MCP_SESSIONS_CACHED {
            // Those that nobody holds are read from their rows again.
            sessions.retain(|_, session| Arc::strong_count(session) > 1);
        }
        // Another request may have been faster. There is one copy of each, or streams would not
        // hear each other.
        Arc::clone(sessions.entry(session.id.clone()).or_insert_with(|| Arc::new(session)))
    }

    fn remove(&self, id: &McpSessionId) {
        self.lock().remove(id);
    }
}

#[derive(Debug)]
pub(crate) struct McpSession {
    pub(crate) id: McpSessionId,
    /// The caller that opened it. No other may use it; `None` is nobody.
    pub(crate) principal: Option<Principal>,
    pub(crate) transport: McpTransport,
    client: Mutex<ClientDescription>,
    /// When it was last noted to be alive, in milliseconds.
    seen_at: AtomicI64,
    /// Counts the standalone streams that were opened. Only the latest goes on.
    pub(crate) streams: watch::Sender<u64>,
    /// Notifies of changes of the session's subscriptions. Holds the position of the log before the
    /// first subscription that the session's stream has not read.
    pub(crate) subscriptions: watch::Sender<Option<i64>>,
    /// Held while a call is put on record, so that a repeated request finds the first one.
    pub(crate) recording: tokio::sync::Mutex<()>,
    /// Ends the streams and the calls of the session.
    pub(crate) closed: CancellationToken,
}

/// What is known of the client at the other end.
#[derive(Debug, Clone)]
struct ClientDescription {
    revision: Revision,
    capabilities: Arc<Map<String, Value>>,
    log_level: Option<LogLevel>,
    /// Fingerprint of the list of tools that it was given last.
    tools: Option<i64>,
    /// Its own session (a conversation, with its hooks and its peer), if that is known.
    client_session: Option<Arc<str>>,
}

impl McpSession {
    pub(crate) fn new(row: McpSessionRow) -> Self {
        let level =
            row.log_level.and_then(|level| serde_json::from_value(Value::String(level)).ok());
        Self {
            id: row.session_id,
            principal: row.principal,
            transport: row.transport,
            client: Mutex::new(ClientDescription {
                revision: row.revision,
                capabilities: parse_capabilities(&row.capabilities),
                log_level: level,
                tools: row.tools,
                client_session: row.client_session.map(Arc::from),
            }),
            seen_at: AtomicI64::new(row.last_seen_at.as_millis()),
            streams: watch::Sender::new(0),
            subscriptions: watch::Sender::new(None),
            recording: tokio::sync::Mutex::new(()),
            closed: CancellationToken::new(),
        }
    }

    /// The position of the log before the first subscription that no stream has read.
    pub(crate) fn take_unread_subscriptions(&self) -> Option<i64> {
        let mut since = None;
        self.subscriptions.send_if_modified(|unread| {
            since = unread.take();
            false
        });
        since
    }

    pub(crate) fn revision(&self) -> Revision {
        self.client().revision
    }

    pub(crate) fn capabilities(&self) -> Arc<Map<String, Value>> {
        Arc::clone(&self.client().capabilities)
    }

    pub(crate) fn log_level(&self) -> Option<LogLevel> {
        self.client().log_level
    }

    /// Fingerprint of the list of tools that the client was given last.
    pub(crate) fn tools(&self) -> Option<i64> {
        self.client().tools
    }

    /// The client's own session, if that is known.
    pub(crate) fn client_session(&self) -> Option<Arc<str>> {
        self.client().client_session.clone()
    }

    /// Sets the client's own session; `false` if it was this one already.
    pub(crate) fn set_client_session(&self, client_session: &Arc<str>) -> bool {
        let mut client = self.client();
        let is_new = client.client_session.as_ref() != Some(client_session);
        client.client_session = Some(Arc::clone(client_session));
        is_new
    }

    /// The result of `initialize` in a session that was opened before it.
    pub(crate) fn describe_client(&self, revision: Revision, capabilities: &str) {
        let mut client = self.client();
        client.revision = revision;
        client.capabilities = parse_capabilities(capabilities);
    }

    pub(crate) fn set_log_level(&self, level: LogLevel) {
        self.client().log_level = Some(level);
    }

    pub(crate) fn set_tools(&self, fingerprint: i64) {
        self.client().tools = Some(fingerprint);
    }

    /// When it was last noted to be alive.
    pub(crate) fn seen_at(&self) -> Timestamp {
        Timestamp::from_millis(self.seen_at.load(Relaxed))
    }

    /// Notes in memory that it is alive; `false` if that was noted less than a minute ago, or by
    /// another request just now. Then the row does not have to be written.
    pub(crate) fn note_alive(&self, now: Timestamp) -> bool {
        let seen = self.seen_at.load(Relaxed);
        let resolution = i64::try_from(limits::MCP_SEEN_RESOLUTION.as_millis()).unwrap_or(i64::MAX);
        now.as_millis().saturating_sub(seen) >= resolution
            && self.seen_at.compare_exchange(seen, now.as_millis(), Relaxed, Relaxed).is_ok()
    }

    fn client(&self) -> MutexGuard<'_, ClientDescription> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse_capabilities(json: &str) -> Arc<Map<String, Value>> {
    Arc::new(serde_json::from_str(json).unwrap_or_default())
}
