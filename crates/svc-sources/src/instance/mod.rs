//! One running server: the task that starts, watches and restarts it, and its handle for callers.
//! `start` starts and ends it.

mod start;

pub(super) use start::{InstanceParts, ResourceChange, StartLists, StateChange};

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt as _;
use svc_core::service::sources::SourceStatus;
use svc_model::{
    StreamName,
    limits::SOURCE_REFETCH_PAUSE,
    source::{STARTS_BEFORE_FAILED, SourceState},
};
use svc_sys::backoff::Backoff;
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use self::start::{
    Running, ServerStarter, SourceInstanceStatus, WatchedResource, WatchedStreams, end_of,
};
use super::{
    connection::SourceConnection,
    lists::{FetchedLists, fetch},
    lock,
    message::ConnectionEnd,
    spec::SourceSpec,
    stdio::ServerLog,
};

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
    pub(crate) fn keep(parts: InstanceParts) -> Arc<Self> {
        let since = parts.services.now();
        let status = SourceStatus::from_state(SourceState::Pending);
        let (sender, status) =
            watch::channel(SourceInstanceStatus { status, since, pid: None, connection: None });
        let (wake, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let (log, watched) = (Arc::<ServerLog>::default(), WatchedStreams::default());
        let spec = Arc::clone(&parts.spec);
        let starter = ServerStarter {
            parts,
            watched: Arc::clone(&watched),
            log: Arc::clone(&log),
            stop: stop.clone(),
        };
        let keeper = Supervisor { starter, status: sender, wake: Arc::clone(&wake) };
        let task = Mutex::new(Some(tokio::spawn(keeper.run().boxed())));
        let used = Mutex::new(Instant::now());
        Arc::new(Self { spec, status, log, wake, stop, task, used, watched })
    }

    pub(crate) fn status(&self) -> SourceInstanceStatus {
        self.status.borrow().clone()
    }

    /// The server's connection. Waits while the server starts.
    pub(crate) async fn connection(
        &self,
        max_wait: Duration,
    ) -> Result<Arc<SourceConnection>, SourceStatus> {
        *lock(&self.used) = Instant::now();
        let mut status = self.status.clone();
        let settled = status.wait_for(|status| !status.status.state.is_starting());
        drop(tokio::time::timeout(max_wait, settled).await);
        let now = self.status();
        match now.connection {
            Some(connection) if !connection.closed.is_cancelled() => Ok(connection),
            // The connection has just ended, and the status does not say so yet.
            Some(_) => Err(backing_off("it has ended".to_owned())),
            None => Err(now.status),
        }
    }

    /// Subscribes to a resource; returns true for the first watcher. `again`: the watcher may be
    /// counted already.
    pub(crate) fn watch_resource(&self, uri: &str, stream: StreamName, again: bool) -> bool {
        let mut watched = lock(&self.watched);
        if let Some(known) = watched.get_mut(uri) {
            known.watchers += usize::from(!again);
            return false;
        }
        watched.insert(uri.to_owned(), WatchedResource { stream, watchers: 1 });
        true
    }

    /// Removes a watcher; returns true for the last one.
    pub(crate) fn forget_resource(&self, uri: &str) -> bool {
        let mut watched = lock(&self.watched);
        let Some(known) = watched.get_mut(uri) else { return false };
        known.watchers = known.watchers.saturating_sub(1);
        known.watchers == 0 && watched.remove(uri).is_some()
    }

    pub(crate) fn silent_for(&self) -> Duration {
        lock(&self.used).elapsed()
    }

    pub(crate) fn reconnect(&self) {
        self.wake.notify_one();
    }

    /// Ends the instance, and waits until none of its processes is left.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        let task = lock(&self.task).take();
        if let Some(task) = task {
            task.await.ok();
        }
    }
}

/// The pause before a server that ended starts again.
const RESTART: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// After this uptime the backoff starts again from its shortest delay.
const STEADY: Duration = Duration::from_mins(1);

struct Supervisor {
    starter: ServerStarter,
    status: watch::Sender<SourceInstanceStatus>,
    wake: Arc<Notify>,
}

impl Supervisor {
    async fn run(self) {
        let (mut failures, mut has_worked) = (0_u32, self.starter.parts.has_worked);
        while !self.starter.stop.is_cancelled() {
            let attempt = (failures > 0).then_some(failures);
            let connecting = SourceStatus::from_state(SourceState::Connecting);
            self.show(SourceStatus { attempt, ..connecting }, None);
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
            let name = &self.starter.parts.spec.key.name;
            let (state, reason, next) = match failure {
                ConnectionEnd::Misconfigured(reason) => {
                    let next = format!(
                        "correct the entry, set the variable where the daemon is started, or keep its value with svc mcp secret set {name} KEY"
                    );
                    (SourceState::Misconfigured, reason, next)
                }
                ConnectionEnd::NeedsAuth(reason) => {
                    (SourceState::NeedsAuth, reason, format!("svc mcp login {name}"))
                }
                ConnectionEnd::Refused(reason) => {
                    (SourceState::Failed, reason, "correct its entry, and reconnect it".to_owned())
                }
                ConnectionEnd::Fault(reason) if !has_worked && failures >= STARTS_BEFORE_FAILED => {
                    let next = "see what it says, correct its entry, and reconnect it";
                    (SourceState::Failed, reason, next.to_owned())
                }
                ConnectionEnd::Fault(reason) => {
                    if self.pause(reason, failures).await {
                        failures = 0;
                    }
                    continue;
                }
            };
            self.rest(state, reason, next).await;
            failures = 0;
        }
    }

    /// Waits for a request to restart.
    async fn rest(&self, state: SourceState, reason: String, next_action: String) {
        let (reason, next_action) = (Some(reason), Some(next_action));
        let status = SourceStatus { reason, next_action, ..SourceStatus::from_state(state) };
        self.show(status, None);
        tokio::select! {
            () = self.starter.stop.cancelled() => {}
            () = self.wake.notified() => {}
        }
    }

    /// Waits for the backoff; returns true if a restart is requested earlier.
    async fn pause(&self, reason: String, failures: u32) -> bool {
        let pause = RESTART.wait(failures - 1);
        let next_at = Some(self.starter.parts.services.now().plus(pause));
        let status = SourceStatus { attempt: Some(failures), next_at, ..backing_off(reason) };
        self.show(status, None);
        tokio::select! {
            () = self.starter.stop.cancelled() => false,
            () = self.wake.notified() => true,
            () = tokio::time::sleep(pause) => false,
        }
    }

    fn show(&self, status: SourceStatus, running: Option<&Running>) {
        let since = self.starter.parts.services.now();
        let connection = running.map(|running| Arc::clone(&running.connection));
        let pid = running.and_then(|running| running.link.pid());
        let shown = SourceInstanceStatus { status: status.clone(), since, pid, connection };
        self.status.send_replace(shown);
        let parts = &self.starter.parts;
        if parts.is_learner() {
            let (key, of_instance) = (parts.spec.key.clone(), Some(Arc::clone(&parts.spec)));
            parts.states.send(StateChange { key, status, of_instance }).ok();
        }
    }

    /// Updates the status with the reason why lists are missing, or clears it.
    fn show_problem(&self, running: &Running, problem: Option<String>) {
        let name = &self.starter.parts.spec.key.name;
        let reason = problem
            .map(|problem| format!("some lists are the last known ones, or empty: {problem}"));
        if self.status.borrow().status.reason == reason {
            return;
        }
        if let Some(problem) = reason.as_deref() {
            tracing::warn!(server = name, problem, "a server did not give all of its lists");
        }
        let next_action = reason.is_some().then(|| format!("svc mcp reconnect {name}"));
        let connected = SourceStatus::from_state(SourceState::Connected);
        self.show(SourceStatus { reason, next_action, ..connected }, Some(running));
    }

    /// Takes the lists of a working server that were fetched again. On failure the old lists stay.
    async fn take_lists(&self, running: &Running, fetched: Result<FetchedLists, String>) {
        match fetched {
            Ok(lists) => {
                self.show_problem(running, lists.problem.clone());
                self.starter.teach(lists).await;
            }
            Err(problem) => self.show_problem(running, Some(problem)),
        }
    }

    /// Watches a working server until it ends, and returns the reason; `None` if a restart was
    /// requested. `failures` is the number of failed starts in a row before this one.
    async fn watch(&self, mut running: Running, failures: u32) -> Option<ConnectionEnd> {
        let began = Instant::now();
        // Subscribed first: a caller may change the lists as soon as the status says connected.
        let mut changes = running.changes.clone();
        let bound = self.starter.parts.spec.entry.startup_timeout;
        let (mut fetched_at, mut refetch_at) = (None, None);
        self.show(SourceStatus::from_state(SourceState::Connected), Some(&running));
        self.show_problem(&running, running.list_problem.clone());
        let is_wanted_anew = loop {
            tokio::select! {
                () = self.starter.stop.cancelled() => break false,
                () = self.wake.notified() => break true,
                () = running.connection.closed.cancelled() => break false,
                () = running.link.ended() => break false,
                changed = changes.changed(), if refetch_at.is_none() => {
                    if changed.is_ok() {
                        // A change after a quiet time is fetched at once, more of them later.
                        let earliest = fetched_at.map(|at: Instant| at + SOURCE_REFETCH_PAUSE);
                        refetch_at = Some(earliest.unwrap_or(began).max(Instant::now()));
                    }
                }
                () = until(refetch_at), if refetch_at.is_some() => {
                    // These lists contain all changes so far.
                    changes.mark_unchanged();
                    refetch_at = None;
                    // A server that does not answer must not delay its end.
                    let fetched = tokio::select! {
                        () = self.starter.stop.cancelled() => break false,
                        () = self.wake.notified() => break true,
                        () = running.link.ended() => break false,
                        fetched = fetch(&running.connection, &running.capabilities, bound) => {
                            fetched
                        }
                    };
                    self.take_lists(&running, fetched).await;
                    fetched_at = Some(Instant::now());
                }
            }
        };
        // Open calls fail now, and not when the process has ended.
        running.connection.close();
        let connection = Arc::clone(&running.connection);
        if is_wanted_anew {
            self.show(SourceStatus::from_state(SourceState::Connecting), None);
        } else {
            // The remaining processes may take seconds to end. New calls fail at once meanwhile.
            let failures = if began.elapsed() >= STEADY { 0 } else { failures };
            let next_at = Some(self.starter.parts.services.now().plus(RESTART.wait(failures)));
            let ended = backing_off("it has ended".to_owned());
            let status = SourceStatus { attempt: Some(failures + 1), next_at, ..ended };
            self.status.send_modify(|now| {
                (now.pid, now.connection, now.status) = (None, None, status);
            });
        }
        let end = self.starter.end(running, false).await;
        (!is_wanted_anew)
            .then(|| end_of(&connection, || end.unwrap_or_else(|| "it ended".to_owned())))
    }
}

fn backing_off(reason: String) -> SourceStatus {
    SourceStatus {
        reason: Some(reason),
        next_action: Some("svc restarts it".to_owned()),
        ..SourceStatus::from_state(SourceState::BackingOff)
    }
}

/// Waits until a time; for ever without one.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_pauses_double_to_a_minute_and_differ() {
        for (failures, seconds) in [(0, 1), (1, 2), (5, 32), (6, 60), (u32::MAX, 60)] {
            let base = Duration::from_secs(seconds);
            let pauses: Vec<Duration> = (0..8).map(|_| RESTART.wait(failures)).collect();
            let range = base..=base.mul_f64(1.25);
            assert!(pauses.iter().all(|pause| range.contains(pause)), "{pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{pauses:?}");
        }
    }
}
