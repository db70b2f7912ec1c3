//! One running server: the task that starts, watches and restarts it, and its handle for callers.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use svc_core::service::sources::SourceStatus;
use svc_model::{
    StreamName,
    source::{STARTS_BEFORE_FAILED, SourceState, restart_pause},
};
use svc_sys::telemetry;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::start::{
    InstanceParts, Running, ServerStarter, SourceInstanceStatus, StartFailure, WatchedResource,
    WatchedStreams,
};
use crate::{
    connection::SourceConnection, lists::fetch, pace::RefetchBackoff, spec::SourceSpec,
    stdio::ServerLog,
};

/// The handle of a server that is kept running.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) spec: Arc<SourceSpec>,
    status: watch::Receiver<SourceInstanceStatus>,
    pub(crate) log: Arc<ServerLog>,
    wake: Arc<Notify>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
    used: Mutex<Instant>,
    watched: WatchedStreams,
}

impl Instance {
    /// Starts the task that keeps a server running.
    pub(crate) fn keep(parts: InstanceParts) -> Arc<Self> {
        let since = parts.services.now();
        let status = SourceStatus::from_state(SourceState::Pending);
        let (sender, status) =
            watch::channel(SourceInstanceStatus { status, since, pid: None, connection: None });
        let (wake, stop, log) =
            (Arc::new(Notify::new()), CancellationToken::new(), Arc::new(ServerLog::default()));
        let spec = Arc::clone(&parts.spec);
        let watched = WatchedStreams::default();
        let starter = ServerStarter {
            parts,
            watched: Arc::clone(&watched),
            log: Arc::clone(&log),
            stop: stop.clone(),
        };
        let keeper = Supervisor { starter, status: sender, wake: Arc::clone(&wake) };
        let task = tokio::spawn(keeper.run());
        Arc::new(Self {
            spec,
            status,
            log,
            wake,
            stop,
            task: Mutex::new(Some(task)),
            used: Mutex::new(Instant::now()),
            watched,
        })
    }

    pub(crate) fn status(&self) -> SourceInstanceStatus {
        self.status.borrow().clone()
    }

    /// The server's connection. Waits while the server starts.
    pub(crate) async fn connection(
        &self,
        patience: Duration,
    ) -> Result<Arc<SourceConnection>, SourceStatus> {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let mut status = self.status.clone();
        let settled = status.wait_for(|status| !status.status.state.is_starting());
        let settled = tokio::time::timeout(patience, settled).await;
        drop(settled);
        let now = self.status();
        match now.connection {
            Some(connection) if !connection.closed.is_cancelled() => Ok(connection),
            // It has just ended; the status will say so.
            Some(_) => Err(SourceStatus {
                reason: Some("it has ended".to_owned()),
                next_action: Some("svc restarts it".to_owned()),
                ..SourceStatus::from_state(SourceState::BackingOff)
            }),
            None => Err(now.status),
        }
    }

    /// Subscribes to a resource; returns true for the first watcher. `again`: the watcher may be
    /// counted already.
    pub(crate) fn watch_resource(&self, uri: &str, stream: StreamName, again: bool) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = watched.get_mut(uri) {
            known.watchers += usize::from(!again);
            return false;
        }
        watched.insert(uri.to_owned(), WatchedResource { stream, watchers: 1 });
        true
    }

    /// Removes a watcher; returns true for the last one.
    pub(crate) fn forget_resource(&self, uri: &str) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = watched.get_mut(uri) else { return false };
        known.watchers = known.watchers.saturating_sub(1);
        known.watchers == 0 && watched.remove(uri).is_some()
    }

    /// How long ago the last call was.
    pub(crate) fn silent_for(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Restarts it at once.
    pub(crate) fn reconnect(&self) {
        self.wake.notify_one();
    }

    /// Ends it, and waits until no process of it is left.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.await.ok();
        }
    }
}

/// After this uptime the backoff starts again from its shortest delay.
const STEADY: Duration = Duration::from_mins(1);

/// The task that keeps one server running.
pub(super) struct Supervisor {
    pub(super) starter: ServerStarter,
    pub(super) status: watch::Sender<SourceInstanceStatus>,
    pub(super) wake: Arc<Notify>,
}

impl Supervisor {
    /// Runs until the instance ends.
    pub(super) async fn run(self) {
        let (mut failures, mut has_worked) = (0_u32, self.starter.parts.has_worked);
        while !self.starter.stop.is_cancelled() {
            let attempt = (failures > 0).then_some(failures);
            self.show(
                SourceStatus { attempt, ..SourceStatus::from_state(SourceState::Connecting) },
                None,
            )
            .await;
            let began = Instant::now();
            let failure = match self.starter.start().await {
                Ok(running) => {
                    has_worked = true;
                    let ended = self.watch(running, failures).await;
                    if began.elapsed() >= STEADY {
                        failures = 0;
                    }
                    ended
                }
                Err(failure) => Some(failure),
            };
            // A restart was requested.
            let Some(failure) = failure else {
                failures = 0;
                continue;
            };
            if self.starter.stop.is_cancelled() {
                return;
            }
            failures += 1;
            match failure {
                StartFailure::Misconfigured(reason) => {
                    let name = &self.starter.parts.spec.key.name;
                    let next = format!(
                        "correct the entry, set the variable where the daemon is started, or keep its value with svc mcp secret set {name} KEY"
                    );
                    self.rest(SourceState::Misconfigured, reason, &next).await;
                    failures = 0;
                }
                StartFailure::NeedsAuth(reason) => {
                    let next = format!("svc mcp login {}", self.starter.parts.spec.key.name);
                    self.rest(SourceState::NeedsAuth, reason, &next).await;
                    failures = 0;
                }
                StartFailure::Refused(reason) => {
                    let next = "correct its entry, and reconnect it";
                    self.rest(SourceState::Failed, reason, next).await;
                    failures = 0;
                }
                StartFailure::Failed(reason) if !has_worked && failures >= STARTS_BEFORE_FAILED => {
                    let next = "see what it says, correct its entry, and reconnect it";
                    self.rest(SourceState::Failed, reason, next).await;
                    failures = 0;
                }
                StartFailure::Failed(reason) => {
                    if self.pause(reason, failures).await {
                        failures = 0;
                    }
                }
            }
        }
    }

    /// Waits for a request to restart.
    async fn rest(&self, state: SourceState, reason: String, next_action: &str) {
        let next_action = Some(next_action.to_owned());
        let status =
            SourceStatus { reason: Some(reason), next_action, ..SourceStatus::from_state(state) };
        self.show(status, None).await;
        tokio::select! {
            () = self.starter.stop.cancelled() => {}
            () = self.wake.notified() => {}
        }
    }

    /// Waits for the backoff; returns true if a restart is requested earlier.
    async fn pause(&self, reason: String, failures: u32) -> bool {
        let pause = restart_pause(failures);
        let next_at = self.starter.parts.services.now().plus(pause);
        let status = SourceStatus {
            reason: Some(reason),
            next_action: Some("svc restarts it".to_owned()),
            attempt: Some(failures),
            next_at: Some(next_at),
            ..SourceStatus::from_state(SourceState::BackingOff)
        };
        self.show(status, None).await;
        tokio::select! {
            () = self.starter.stop.cancelled() => false,
            () = self.wake.notified() => true,
            () = tokio::time::sleep(pause) => false,
        }
    }

    async fn show(&self, status: SourceStatus, running: Option<&Running>) {
        let since = self.starter.parts.services.now();
        let connection = running.map(|running| Arc::clone(&running.connection));
        let pid = running.and_then(|running| running.link.pid());
        self.status.send_replace(SourceInstanceStatus {
            status: status.clone(),
            since,
            pid,
            connection,
        });
        if self.starter.parts.learned.is_some() {
            let key = self.starter.parts.spec.key.clone();
            if let Err(error) = self.starter.parts.services.sources.store_status(key, status).await
            {
                tracing::warn!(
                    error = telemetry::chain(&error),
                    "a server's state is not on record"
                );
            }
        }
    }

    /// Updates the status with the reason why lists are missing, or clears it.
    async fn show_problem(&self, running: &Running, problem: Option<String>) {
        let name = &self.starter.parts.spec.key.name;
        let reason = problem
            .map(|problem| format!("some lists are the last known ones, or empty: {problem}"));
        if self.status.borrow().status.reason == reason {
            return;
        }
        if let Some(reason) = &reason {
            tracing::warn!(
                server = name.as_str(),
                problem = reason.as_str(),
                "a server did not give all of its lists"
            );
        }
        let next_action = reason.is_some().then(|| format!("svc mcp reconnect {name}"));
        let connected = SourceStatus::from_state(SourceState::Connected);
        self.show(SourceStatus { reason, next_action, ..connected }, Some(running)).await;
    }

    /// Fetches the lists of a working server. On failure the old lists stay.
    async fn refetch(&self, running: &Running) {
        let bound = self.starter.parts.spec.entry.startup_timeout;
        match fetch(&running.connection, &running.capabilities, bound).await {
            Ok(lists) => {
                self.show_problem(running, lists.problem.clone()).await;
                self.starter.teach(lists).await;
            }
            Err(problem) => self.show_problem(running, Some(problem)).await,
        }
    }

    /// Watches a working server until it ends, and returns the reason; `None` if a restart was
    /// requested. `failures` is the number of failed starts in a row before this one.
    async fn watch(&self, mut running: Running, failures: u32) -> Option<StartFailure> {
        let began = Instant::now();
        // A caller that sees the server work may change its lists at once.
        let mut changes = running.changes.clone();
        let learns = self.starter.parts.learned.is_some();
        let (mut pace, mut refetch_at) = (RefetchBackoff::new(), None);
        self.show(SourceStatus::from_state(SourceState::Connected), Some(&running)).await;
        self.show_problem(&running, running.list_problem.clone()).await;
        let is_wanted_anew = loop {
            tokio::select! {
                () = self.starter.stop.cancelled() => break false,
                () = self.wake.notified() => break true,
                () = running.connection.closed.cancelled() => break false,
                () = running.link.ended() => break false,
                changed = changes.changed(), if learns && refetch_at.is_none() => {
                    if changed.is_ok() {
                        refetch_at = Some(pace.due(Instant::now()));
                    }
                }
                () = until(refetch_at), if refetch_at.is_some() => {
                    // These lists contain all changes so far.
                    changes.mark_unchanged();
                    refetch_at = None;
                    self.refetch(&running).await;
                    pace.note(Instant::now());
                }
            }
        };
        // Calls fail before the process is gone.
        running.connection.close();
        let connecting = SourceStatus::from_state(SourceState::Connecting);
        let connection = Arc::clone(&running.connection);
        if is_wanted_anew {
            self.show(connecting, None).await;
        } else {
            // The remaining processes may take seconds to end. Calls meanwhile fail at once.
            let attempt = if began.elapsed() >= STEADY { 1 } else { failures + 1 };
            let next_at = self.starter.parts.services.now().plus(restart_pause(attempt));
            self.status.send_modify(|now| {
                (now.pid, now.connection) = (None, None);
                now.status = SourceStatus {
                    reason: Some("it has ended".to_owned()),
                    next_action: Some("svc restarts it".to_owned()),
                    attempt: Some(attempt),
                    next_at: Some(next_at),
                    ..SourceStatus::from_state(SourceState::BackingOff)
                };
            });
        }
        let end = self.starter.end(running, false).await;
        (!is_wanted_anew).then(|| {
            StartFailure::from_end(&connection, || end.unwrap_or_else(|| "it ended".to_owned()))
        })
    }
}

/// Waits until a time; for ever without one.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
