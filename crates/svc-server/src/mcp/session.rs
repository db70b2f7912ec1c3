//! Sessions of legacy clients, as this process holds them: a copy of the row, and the signals that connect the streams
//! and calls of a session. The row decides; losing the copy loses nothing.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use serde_json::{Map, Value};
use svc_core::tools::LogLevel;
use svc_model::{McpSessionId, Principal, Timestamp, limits};
use svc_store::{McpSessionRow, McpTransport};
use svc_wire::mcp::Revision;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// An open session.
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
    /// Counts changes of the session's subscriptions.
    pub(crate) subscriptions: watch::Sender<u64>,
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

/// The sessions in memory.
#[derive(Debug, Default)]
pub(crate) struct McpSessionTable(Mutex<HashMap<McpSessionId, Arc<McpSession>>>);

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
            subscriptions: watch::Sender::new(0),
            recording: tokio::sync::Mutex::new(()),
            closed: CancellationToken::new(),
        }
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

    /// Notes in memory that it is alive; `false` if that was noted less than a minute ago, or by another request just
    /// now. Then the row does not have to be written.
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

impl McpSessionTable {
    fn lock(&self) -> MutexGuard<'_, HashMap<McpSessionId, Arc<McpSession>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<McpSession>> {
        let id = McpSessionId::parse(id)?;
        self.lock().get(&id).cloned()
    }

    pub(crate) fn insert(&self, session: McpSession) -> Arc<McpSession> {
        let mut sessions = self.lock();
        if sessions.len() >= limits::MCP_SESSIONS_CACHED {
            // Those that nobody holds are read from their rows again.
            sessions.retain(|_, session| Arc::strong_count(session) > 1);
        }
        // Another request may have been faster. There is one copy of each, or streams would not hear each other.
        Arc::clone(sessions.entry(session.id.clone()).or_insert_with(|| Arc::new(session)))
    }

    pub(crate) fn remove(&self, id: &McpSessionId) {
        self.lock().remove(id);
    }
}
