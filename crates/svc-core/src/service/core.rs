//! What every service uses: the store, the clock, ids, and durations that a test shortens.

use std::{collections::HashMap, ops::Deref, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use svc_model::{
    BudgetBounds, Clock, Ids, MachineId, MachineProcess, NewEvent, ProcessIdentity, ProcessState,
    Retention, StreamName, StreamVisibility, Timestamp, conversation::SessionsPolicy,
    hook::AttendedPrompts, limits,
};
use svc_store::{Batch, ListenerRead, Store, StoreError, StreamListener, WriteTx};
use svc_sys::{config::SessionScopes, process_list, session_secret::SessionSecrets};

use super::{Result, budget::Budget, projects::Projects, reads::ReadScheduler};

pub(super) use super::reads::lock;

/// Shared by all services. A clone costs one reference count: services and thousands of readers of
/// the log hold one.
#[derive(Debug, Clone)]
pub(super) struct Core(Arc<CoreInner>);

#[derive(Debug)]
pub(super) struct CoreInner {
    pub(super) store: Store,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ids: Ids,
    pub(super) tuning: Tuning,
    pub(super) budget: Budget,
    pub(super) read_turns: ReadScheduler,
    pub(super) projects: Projects,
    /// Notified when the queue of dispatches has work to check.
    pub(super) work: tokio::sync::Notify,
    /// Changes when a hook of Codex reports a new session or a turn.
    pub(super) codex_hooks: tokio::sync::watch::Sender<()>,
    pub(super) sessions: SessionSettings,
    /// What happens with prompts of attended sessions.
    pub(super) attended: AttendedPrompts,
}

impl Deref for Core {
    type Target = CoreInner;

    fn deref(&self) -> &CoreInner {
        &self.0
    }
}

impl Core {
    pub(super) fn new(
        store: Store,
        clock: Arc<dyn Clock>,
        ids: Ids,
        tuning: &Tuning,
        sessions: SessionSettings,
        attended: AttendedPrompts,
    ) -> Self {
        Self(Arc::new(CoreInner {
            projects: Projects::new(store.clone(), Arc::clone(&clock)),
            budget: Budget::new(tuning.budget),
            read_turns: ReadScheduler::default(),
            store,
            clock,
            ids,
            tuning: *tuning,
            work: tokio::sync::Notify::new(),
            codex_hooks: tokio::sync::watch::Sender::new(()),
            sessions,
            attended,
        }))
    }

    /// The scopes that a new attended session gets.
    pub(super) fn session_scopes(&self) -> Vec<String> {
        self.sessions.scopes.as_ref().map(SessionScopes::now).unwrap_or_default()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A write of the daemon's own, which only the store can refuse.
    pub(super) async fn change<T, F>(&self, work: F) -> Result<T>
    where
        F: for<'tx> FnOnce(&'tx mut WriteTx) -> BoxFuture<'tx, Result<T, StoreError>>
            + Send
            + 'static,
        T: Send + 'static,
    {
        Ok(self.store.write(work).await?)
    }

    pub(super) async fn machine_names(&self) -> Result<HashMap<MachineId, String>> {
        let all = self.store.machines().all().await?;
        let is_team = all.len() > 1;
        let named = all.into_iter().filter(|_| is_team);
        Ok(named.map(|machine| (machine.machine_id, machine.name)).collect())
    }

    /// A process on this machine, in the form of a row.
    pub(super) fn here(&self, process: &ProcessIdentity) -> MachineProcess {
        let machine_id = self.store.machine().machine_id.clone();
        MachineProcess { machine_id, process: process.clone() }
    }

    pub(super) fn state_of(&self, process: &MachineProcess) -> ProcessState {
        process_list::state(process, &self.store.machine().machine_id)
    }

    /// Whether the process of a row is known to have ended.
    pub(super) fn is_gone(&self, process: &MachineProcess) -> bool {
        self.state_of(process) == ProcessState::Gone
    }
}

/// Appends events to a stream; opens the stream if it does not exist.
pub(super) async fn open_and_append(
    tx: &mut WriteTx,
    stream: &StreamName,
    visibility: &StreamVisibility,
    events: Vec<NewEvent>,
) -> Result<(), StoreError> {
    tx.streams().open(stream, visibility).await?;
    tx.append(stream, events).await?;
    Ok(())
}

/// Appends to the daemon's own stream.
pub(super) async fn append_to_daemon(
    tx: &mut WriteTx,
    events: Vec<NewEvent>,
) -> Result<(), StoreError> {
    let stream = StreamName::fixed(StreamName::DAEMON);
    open_and_append(tx, &stream, &StreamVisibility::for_daemon(), events).await
}

/// Bound on the bytes of events that [`wait_for_event`] reads at once.
const EVENTS_BYTES: usize = 64 * 1024;

/// Waits for an event after `cursor` whose kind is wanted. Also returns if the listener does not
/// have the events any more, or the stream is closed.
pub(super) async fn wait_for_event(
    listener: &mut StreamListener<Batch>,
    mut cursor: i64,
    is_wanted: impl Fn(&str) -> bool,
) {
    loop {
        listener.wait(cursor).await;
        let ListenerRead::Items(batches) = listener.read(cursor, EVENTS_BYTES) else { return };
        let mut events = batches.iter().flat_map(|batch| &batch.events);
        if events.any(|event| is_wanted(&event.kind)) {
            return;
        }
        cursor = batches.last().map_or(cursor, |last| last.seqs.1);
    }
}

/// Settings of the sessions of coding agents.
#[derive(Debug, Default)]
pub struct SessionSettings {
    pub policy: SessionsPolicy,
    /// The scopes that a new attended session gets.
    pub scopes: Option<SessionScopes>,
    /// `None` without a data folder; then no session can change its owner.
    pub secrets: Option<SessionSecrets>,
}

/// Bounds from the configuration, and durations and bounds that a test shortens and that are
/// constants of [`limits`] for users.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    pub peer_timeout: Duration,
    pub lease: Duration,
    pub inbox_max: u32,
    pub session_sends: u32,
    pub wakes: u32,
    pub runner_grace: Duration,
    pub maintenance: Duration,
    pub quiet: Duration,
    pub sse_keep_alive: Duration,
    pub body_stall: Duration,
    pub mcp_task_after: Duration,
    pub list_changed_pause: Duration,
    pub first_hook: Duration,
    /// How long a machine may be away before its tasks, agents and tokens end.
    pub away: Duration,
    pub budget: BudgetBounds,
    pub retention: Retention,
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
            away: Duration::from_hours(24),
            budget: BudgetBounds::default(),
            retention: Retention::default(),
            store_max_bytes: None,
        }
    }
}
