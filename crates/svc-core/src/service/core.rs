//! What every service uses: the store, the clock, ids, and times that a test shortens.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, OnceLock},
    time::Duration,
};

use svc_model::{
    BudgetBounds, Clock, Ids, MachineId, MachineProcess, ProcessIdentity, ProcessState, Retention,
    Timestamp, conversation::SessionsPolicy, limits,
};
use svc_store::Store;
use svc_sys::{config::SessionScopes, process_list, session_secret::SessionSecrets};

use super::{Error, budget::Budget, projects::Projects, read_turns::ReadScheduler};

/// Shared by all services. A clone costs one reference count: services and thousands of readers of
/// the log hold one.
#[derive(Debug, Clone)]
pub(in crate::service) struct Core(Arc<CoreInner>);

#[derive(Debug)]
pub(in crate::service) struct CoreInner {
    pub(in crate::service) store: Store,
    pub(in crate::service) clock: Arc<dyn Clock>,
    pub(in crate::service) ids: Ids,
    pub(in crate::service) tuning: Tuning,
    pub(in crate::service) budget: Budget,
    pub(in crate::service) read_turns: ReadScheduler,
    pub(in crate::service) projects: Projects,
    /// Notified when the queue of dispatches has to be looked at.
    pub(in crate::service) work: tokio::sync::Notify,
    /// Changes when a hook of Codex tells of a session that begins or of a turn.
    pub(in crate::service) codex_hooks: tokio::sync::watch::Sender<()>,
    /// Which sessions a session sees and may send to.
    sessions: OnceLock<SessionsPolicy>,
    /// Scopes of attended sessions.
    session_scopes: OnceLock<SessionScopes>,
    session_secrets: OnceLock<SessionSecrets>,
}

impl Deref for Core {
    type Target = CoreInner;

    fn deref(&self) -> &CoreInner {
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
        let projects = Projects::new(store.clone(), Arc::clone(&clock));
        Self(Arc::new(CoreInner {
            store,
            clock,
            ids,
            tuning: *tuning,
            budget,
            read_turns: ReadScheduler::default(),
            projects,
            work,
            codex_hooks: tokio::sync::watch::Sender::new(()),
            sessions: OnceLock::new(),
            session_scopes: OnceLock::new(),
            session_secrets: OnceLock::new(),
        }))
    }

    /// Only the first call counts.
    pub(in crate::service) fn set_sessions(&self, policy: SessionsPolicy) {
        self.sessions.set(policy).ok();
    }

    pub(in crate::service) fn sessions(&self) -> &SessionsPolicy {
        self.sessions.get_or_init(SessionsPolicy::default)
    }

    /// Only the first call counts.
    pub(in crate::service) fn set_session_scopes(&self, scopes: SessionScopes) {
        self.session_scopes.set(scopes).ok();
    }

    /// The scopes that a new attended session gets.
    pub(in crate::service) fn session_scopes(&self) -> Vec<String> {
        self.session_scopes.get().map(SessionScopes::now).unwrap_or_default()
    }

    /// Only the first call counts.
    pub(in crate::service) fn set_session_secrets(&self, secrets: SessionSecrets) {
        self.session_secrets.set(secrets).ok();
    }

    /// `None` without a data folder; then no session changes its owner.
    pub(in crate::service) fn session_secrets(&self) -> Option<&SessionSecrets> {
        self.session_secrets.get()
    }

    pub(in crate::service) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The names of the machines, if there are several: lists then say what is where.
    pub(in crate::service) async fn machine_names(
        &self,
    ) -> Result<HashMap<MachineId, String>, Error> {
        let all = self.store.machines().all().await?;
        let is_team = all.len() > 1;
        let named = all.into_iter().filter(|_| is_team);
        Ok(named.map(|machine| (machine.machine_id, machine.name)).collect())
    }

    /// A process that was seen on this machine, as a row names it.
    pub(in crate::service) fn here(&self, process: &ProcessIdentity) -> MachineProcess {
        let machine_id = self.store.machine().machine_id.clone();
        MachineProcess { machine_id, process: process.clone() }
    }

    /// Whether a process of a row runs.
    pub(in crate::service) fn state_of(&self, process: &MachineProcess) -> ProcessState {
        process_list::state(process, &self.store.machine().machine_id)
    }

    /// Whether the process of a row is known to have ended.
    pub(in crate::service) fn is_gone(&self, process: &MachineProcess) -> bool {
        self.state_of(process) == ProcessState::Gone
    }
}

/// The bounds of the configuration, and times and bounds that a test shortens: users have no reason
/// to change those.
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
    /// [`limits::WAKES`].
    pub wakes: u32,
    /// [`limits::RUNNER_GRACE`].
    pub runner_grace: Duration,
    /// [`limits::MAINTENANCE`].
    pub maintenance: Duration,
    /// [`limits::QUIET`].
    pub quiet: Duration,
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
    pub budget: BudgetBounds,
    /// How much of the log is kept.
    pub retention: Retention,
    /// Most bytes that the database may have.
    pub store_max_bytes: Option<u64>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            peer_timeout: limits::PEER_TIMEOUT,
            lease: limits::LEASE,
            inbox_max: limits::INBOX_MAX,
            session_sends: limits::SESSION_SENDS,
            wakes: limits::WAKES,
            runner_grace: limits::RUNNER_GRACE,
            maintenance: limits::MAINTENANCE,
            quiet: limits::QUIET,
            sse_keep_alive: limits::SSE_KEEP_ALIVE,
            body_stall: limits::BODY_STALL,
            mcp_task_after: limits::MCP_TASK_AFTER,
            list_changed_pause: limits::LIST_CHANGED_PAUSE,
            first_hook: limits::FIRST_HOOK,
            budget: BudgetBounds::default(),
            retention: Retention::default(),
            store_max_bytes: None,
        }
    }
}
