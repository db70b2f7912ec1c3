//! The state that all parts of the server share: the parts that it is made from, the sessions of
//! legacy clients, and the counters of requests.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Instant,
};

use futures_util::FutureExt as _;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
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
    call::{OpenQuestions, RequestStateSigner, RunningCalls},
    offers::{PromptTemplate, ResourceProvider},
    rpc::RequestEra,
};

#[derive(Debug, Clone)]
pub struct McpServer(Arc<McpServerState>);

#[derive(Debug)]
pub struct McpServerParts {
    pub services: Services,
    pub catalogue: Arc<Catalogue>,
    pub resources: Vec<Box<dyn ResourceProvider>>,
    pub prompts: Vec<PromptTemplate>,
    /// Child servers, whose resources and prompts are shown, too.
    pub sources: Option<SourceManager>,
    pub metrics: McpMetrics,
    /// Ends the streams, and leaves running calls to the next start of the daemon.
    pub stop: CancellationToken,
    /// Which tools are shown if the client's request does not say; `None`: the credential decides.
    pub exposure: Option<ToolExposure>,
}

#[derive(Debug)]
pub struct McpServerState {
    parts: McpServerParts,
    pub(crate) sessions: McpSessions,
    pub(crate) running: RunningCalls,
    pub(crate) questions: OpenQuestions,
    pub(crate) state_signer: RequestStateSigner,
    /// Counts changes of the list of resources; changes within a few seconds count once.
    pub(crate) resources_changed: watch::Sender<u64>,
    pub(crate) prompts_changed: watch::Sender<u64>,
    pub(crate) tasks_changed: watch::Sender<u64>,
    /// Work that no request waits for.
    pub(crate) background: TaskTracker,
}

impl Deref for McpServerState {
    type Target = McpServerParts;

    fn deref(&self) -> &McpServerParts {
        &self.parts
    }
}

impl Deref for McpServer {
    type Target = McpServerState;

    fn deref(&self) -> &McpServerState {
        &self.0
    }
}

impl McpServer {
    /// Creates a server that does not take up the calls that the last stop or crash cut off.
    pub(crate) async fn assemble(parts: McpServerParts) -> Result<Self, service::Error> {
        let key = parts.services.mcp.secret("mcp.request_state").await?;
        let background = TaskTracker::new();
        Ok(Self(Arc::new(McpServerState {
            sessions: McpSessions {
                services: parts.services.clone(),
                background: background.clone(),
                cached: Mutex::default(),
            },
            parts,
            running: RunningCalls::default(),
            questions: OpenQuestions::default(),
            state_signer: RequestStateSigner::new(key),
            resources_changed: watch::Sender::new(0),
            prompts_changed: watch::Sender::new(0),
            tasks_changed: watch::Sender::new(0),
            background,
        })))
    }

    /// Tells clients that the list of prompts has changed.
    pub fn note_prompts_changed(&self) {
        self.prompts_changed.send_modify(|count| *count += 1);
    }
}

/// The sessions of legacy clients.
///
/// A session is a row, and a copy in memory with the signals that connect its streams and calls.
/// The row decides; losing the copy loses nothing.
#[derive(Debug)]
pub(crate) struct McpSessions {
    services: Services,
    background: TaskTracker,
    cached: Mutex<HashMap<McpSessionId, Arc<McpSession>>>,
}

impl McpSessions {
    pub(crate) async fn open(
        &self,
        caller: &Caller,
        new: NewMcpSession,
    ) -> Result<Arc<McpSession>, service::Error> {
        let row = self.services.mcp.open_mcp_session(caller, new).await?;
        Ok(self.insert(McpSession::new(row)))
    }

    /// An open session of this caller; `None` if the id is unknown or belongs to another caller.
    pub(crate) async fn find(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<Option<Arc<McpSession>>, service::Error> {
        let cached = McpSessionId::parse(id).and_then(|id| self.lock().get(&id).cloned());
        let session = match cached {
            Some(session) => session,
            None => match Box::pin(self.services.mcp.mcp_session(caller, id)).await? {
                Some(row) => self.insert(McpSession::new(row)),
                None => return Ok(None),
            },
        };
        if session.principal != Some(caller.principal()) || session.closed.is_cancelled() {
            return Ok(None);
        }
        let seen_at = Timestamp::from_millis(session.seen_at.load(Relaxed));
        if self.services.now().since(seen_at) >= limits::MCP_SESSION_IDLE {
            self.lock().remove(&session.id);
            return Ok(None);
        }
        self.touch(&session);
        Ok(Some(session))
    }

    /// Records that a session is alive, at most once a minute, without waiting for the row.
    pub(crate) fn touch(&self, session: &Arc<McpSession>) {
        if !session.note_alive(self.services.now()) {
            return;
        }
        let (services, session) = (self.services.clone(), Arc::clone(session));
        let touch = async move {
            if let Err(error) = services.mcp.touch_mcp_session(&session.id).await {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "cannot note that a session is alive");
            }
        };
        self.background.spawn(touch.boxed());
    }

    /// Records the client's description from `initialize`, in a session that was opened before.
    pub(crate) async fn describe(
        &self,
        session: &McpSession,
        revision: Revision,
        client: Option<String>,
        capabilities: String,
    ) -> Result<(), service::Error> {
        let known = parse_capabilities(&capabilities);
        let mcp = &self.services.mcp;
        mcp.describe_mcp_session(&session.id, revision, client, capabilities).await?;
        let mut client = session.client();
        (client.revision, client.capabilities) = (revision, known);
        Ok(())
    }

    /// Sets the least severe level of log messages that the client is sent.
    pub(crate) async fn set_log_level(
        &self,
        session: &McpSession,
        level: LogLevel,
    ) -> Result<(), service::Error> {
        self.services.mcp.set_mcp_log_level(&session.id, level.as_str()).await?;
        session.client().log_level = Some(level);
        Ok(())
    }

    /// Records the fingerprint of the list of tools that the client was given, so that the
    /// client is told of a change, also after a restart.
    pub(crate) async fn note_tools_seen(
        &self,
        session: &McpSession,
        tools: i64,
    ) -> Result<(), service::Error> {
        if session.client().tools == Some(tools) {
            return Ok(());
        }
        session.client().tools = Some(tools);
        self.services.mcp.set_mcp_tools(&session.id, tools).await
    }

    pub(crate) async fn close(&self, session: &McpSession) -> Result<(), service::Error> {
        self.services.mcp.close_mcp_session(&session.id).await?;
        session.closed.cancel();
        self.lock().remove(&session.id);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<McpSessionId, Arc<McpSession>>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, session: McpSession) -> Arc<McpSession> {
        let mut sessions = self.lock();
        if sessions.len() >= limits::MCP_SESSIONS_CACHED {
            // An evicted session is read from its row again.
            sessions.retain(|_, session| Arc::strong_count(session) > 1);
        }
        // Another request may have inserted it. Streams signal each other through the one copy.
        Arc::clone(sessions.entry(session.id.clone()).or_insert_with(|| Arc::new(session)))
    }
}

#[derive(Debug)]
pub(crate) struct McpSession {
    pub(crate) id: McpSessionId,
    /// The caller that opened the session; no other may use it. `None`: nobody may.
    pub(crate) principal: Option<Principal>,
    pub(crate) transport: McpTransport,
    client: Mutex<ClientDescription>,
    /// When the session was last recorded as alive, in milliseconds since 1970.
    seen_at: AtomicI64,
    /// Counts the standalone streams that were opened. All but the latest end.
    pub(crate) streams: watch::Sender<u64>,
    /// Notifies of changes of the session's subscriptions. Holds the position of the log before the
    /// first subscription that the session's stream has not read.
    pub(crate) subscriptions: watch::Sender<Option<i64>>,
    /// Held while a call is recorded, so that a repeated request finds the first one.
    pub(crate) recording: tokio::sync::Mutex<()>,
    /// Ends the streams and the calls of the session.
    pub(crate) closed: CancellationToken,
}

#[derive(Debug, Clone)]
pub(crate) struct ClientDescription {
    pub(crate) revision: Revision,
    capabilities: Arc<Map<String, Value>>,
    pub(crate) log_level: Option<LogLevel>,
    /// Fingerprint of the list of tools that the client was given last.
    pub(crate) tools: Option<i64>,
    /// The client's own session (a conversation, with its hooks and its peer), if known.
    client_session: Option<Arc<str>>,
}

impl McpSession {
    fn new(row: McpSessionRow) -> Self {
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

    pub(crate) fn capabilities(&self) -> Arc<Map<String, Value>> {
        Arc::clone(&self.client().capabilities)
    }

    pub(crate) fn client_session(&self) -> Option<Arc<str>> {
        self.client().client_session.clone()
    }

    /// Sets the client's own session; returns false if it is unchanged.
    pub(crate) fn set_client_session(&self, client_session: &Arc<str>) -> bool {
        self.client().client_session.replace(Arc::clone(client_session)).as_ref()
            != Some(client_session)
    }

    /// Records in memory that the session is alive. Returns false if that was recorded less than a
    /// minute ago, or by a concurrent request: then the row need not be written.
    fn note_alive(&self, now: Timestamp) -> bool {
        let seen = self.seen_at.load(Relaxed);
        let resolution = i64::try_from(limits::MCP_SEEN_RESOLUTION.as_millis()).unwrap_or(i64::MAX);
        now.as_millis().saturating_sub(seen) >= resolution
            && self.seen_at.compare_exchange(seen, now.as_millis(), Relaxed, Relaxed).is_ok()
    }

    /// The client's description. Hold the guard for one statement only.
    pub(crate) fn client(&self) -> MutexGuard<'_, ClientDescription> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse_capabilities(json: &str) -> Arc<Map<String, Value>> {
    Arc::new(serde_json::from_str(json).unwrap_or_default())
}

#[derive(Debug, Clone)]
pub struct McpMetrics {
    requests: Family<McpRequestLabels, Counter>,
    seconds: Family<MethodLabel, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct McpRequestLabels {
    method: &'static str,
    name: Arc<str>,
    era: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    Result,
    /// A result that says that the tool failed.
    ToolError,
    /// The result has questions to the client.
    InputRequired,
    Task,
    Error,
    /// No answer: the client cancelled the request.
    Cancelled,
}

impl RequestOutcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Result => "ok",
            Self::ToolError => "tool_error",
            Self::InputRequired => "input_required",
            Self::Task => "task",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Default for McpMetrics {
    fn default() -> Self {
        let seconds = Family::new_with_constructor(histogram as fn() -> Histogram);
        Self { requests: Family::default(), seconds }
    }
}

fn histogram() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0])
}

impl McpMetrics {
    /// Adds the metrics to `registry`, whose prefix is `svc`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("mcp_requests", "MCP requests answered", self.requests.clone());
        registry.register_with_unit(
            "mcp_request_duration",
            "Time to the answer of an MCP request",
            Unit::Seconds,
            self.seconds.clone(),
        );
    }
}

/// A request that will be counted when it is answered.
#[derive(Debug, Clone)]
pub(crate) struct RequestMeter {
    method: &'static str,
    /// A name that the server knows, or empty: otherwise each name that a client invents would make
    /// a series.
    pub(crate) name: Arc<str>,
    pub(crate) era: RequestEra,
    started: Instant,
}

impl RequestMeter {
    pub(crate) fn start(method: &str, name: &str, era: RequestEra) -> Self {
        Self { method: known_method(method), name: name.into(), era, started: Instant::now() }
    }

    pub(crate) fn count(&self, metrics: &McpMetrics, outcome: RequestOutcome) {
        let (method, era) = (self.method, self.era.as_str());
        let (name, outcome) = (Arc::clone(&self.name), outcome.as_str());
        let labels = McpRequestLabels { method, name, era, outcome };
        metrics.requests.get_or_create(&labels).inc();
        let elapsed = self.started.elapsed().as_secs_f64();
        metrics.seconds.get_or_create(&MethodLabel { method }).observe(elapsed);
    }
}

fn known_method(method: &str) -> &'static str {
    const METHODS: [&str; 20] = [
        "completion/complete",
        "initialize",
        "logging/setLevel",
        "ping",
        "prompts/get",
        "prompts/list",
        "resources/list",
        "resources/read",
        "resources/subscribe",
        "resources/templates/list",
        "resources/unsubscribe",
        "server/discover",
        "subscriptions/listen",
        "tasks/cancel",
        "tasks/get",
        "tasks/update",
        "tools/call",
        "tools/list",
        "notifications/cancelled",
        "notifications/initialized",
    ];
    METHODS.into_iter().find(|known| *known == method).unwrap_or("other")
}
