//! What every room stands on: the store, the clock, the maker of ids, and times that a test
//! shortens.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
    time::Duration,
};

use svc_model::{BudgetBounds, Clock, Ids, Timestamp, conversation::SessionsPolicy, limits};
use svc_store::Store;
use svc_sys::{config::SessionScopes, session_secret::SessionSecrets};

use super::{budget::Budget, read_turns::ReadTurns};

/// The means that all rooms share. A clone is one count: rooms hold it, and so do readers of the
/// log, of which there are thousands.
#[derive(Debug, Clone)]
pub(in crate::service) struct Core(Arc<SharedMeans>);

#[derive(Debug)]
pub(in crate::service) struct SharedMeans {
    pub(in crate::service) store: Store,
    pub(in crate::service) clock: Arc<dyn Clock>,
    pub(in crate::service) ids: Ids,
    pub(in crate::service) tuning: Tuning,
    pub(in crate::service) budget: Budget,
    pub(in crate::service) read_turns: ReadTurns,
    /// Something changed for the queue of dispatches.
    pub(in crate::service) work: tokio::sync::Notify,
    /// Whom sessions see and send to, as configured.
    sessions: OnceLock<SessionsPolicy>,
    /// Scopes of the sessions that a person starts.
    session_scopes: OnceLock<SessionScopes>,
    /// Where the secrets of sessions are kept.
    session_secrets: OnceLock<SessionSecrets>,
}

impl Deref for Core {
    type Target = SharedMeans;

    fn deref(&self) -> &SharedMeans {
        &self.0
    }
}

impl Core {
    pub(in crate::service) fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        ids: Ids,
        tuning: &Tuning,
    ) -> Self {
        let budget = Budget::new(tuning.budget);
        let work = tokio::sync::Notify::new();
        Self(Arc::new(SharedMeans {
            store,
            clock,
            ids,
            tuning: *tuning,
            budget,
            read_turns: ReadTurns::default(),
            work,
            sessions: OnceLock::new(),
            session_scopes: OnceLock::new(),
            session_secrets: OnceLock::new(),
        }))
    }

    /// Sets whom sessions see and send to. Only the first call counts.
    pub(in crate::service) fn set_sessions(&self, policy: SessionsPolicy) {
        self.sessions.set(policy).ok();
    }

    /// Whom sessions see and send to.
    pub(in crate::service) fn sessions(&self) -> &SessionsPolicy {
        self.sessions.get_or_init(SessionsPolicy::default)
    }

    /// Sets which scopes sessions get that a person starts. Only the first call counts.
    pub(in crate::service) fn set_session_scopes(&self, scopes: SessionScopes) {
        self.session_scopes.set(scopes).ok();
    }

    /// The scopes of a session that a person starts now.
    pub(in crate::service) fn session_scopes(&self) -> Vec<String> {
        self.session_scopes.get().map(SessionScopes::now).unwrap_or_default()
    }

    /// Sets where the secrets of sessions are kept. Only the first call counts.
    pub(in crate::service) fn set_session_secrets(&self, secrets: SessionSecrets) {
        self.session_secrets.set(secrets).ok();
    }

    /// Where the secrets of sessions are kept; `None` without a data folder, and then no session
    /// goes over.
    pub(in crate::service) fn session_secrets(&self) -> Option<&SessionSecrets> {
        self.session_secrets.get()
    }

    pub(in crate::service) fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Times and bounds that a test shortens. A user has no reason to.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// [`limits::PEER_TIMEOUT`].
    pub peer_timeout: Duration,
    /// [`limits::LEASE`].
    pub lease: Duration,
    /// [`limits::INBOX_MAX`].
    pub inbox_max: u32,
    /// [`limits::SESSION_SENDS`].
    pub session_sends: u32,
    /// [`limits::RUNNER_GRACE`].
    pub runner_grace: Duration,
    /// [`limits::MAINTENANCE`].
    pub maintenance: Duration,
    /// [`limits::SSE_KEEP_ALIVE`].
    pub sse_keep_alive: Duration,
    /// [`limits::BODY_STALL`].
    pub body_stall: Duration,
    /// [`limits::MCP_TASK_AFTER`].
    pub mcp_task_after: Duration,
    /// [`limits::LIST_CHANGED_PAUSE`].
    pub list_changed_pause: Duration,
    /// [`limits::FIRST_HOOK`].
    pub first_hook: Duration,
    /// What one principal may hold, as configured.
    pub budget: BudgetBounds,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            peer_timeout: limits::PEER_TIMEOUT,
            lease: limits::LEASE,
            inbox_max: limits::INBOX_MAX,
            session_sends: limits::SESSION_SENDS,
            runner_grace: limits::RUNNER_GRACE,
            maintenance: limits::MAINTENANCE,
            sse_keep_alive: limits::SSE_KEEP_ALIVE,
            body_stall: limits::BODY_STALL,
            mcp_task_after: limits::MCP_TASK_AFTER,
            list_changed_pause: limits::LIST_CHANGED_PAUSE,
            first_hook: limits::FIRST_HOOK,
            budget: BudgetBounds::default(),
        }
    }
}
