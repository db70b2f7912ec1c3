//! One running server, as callers have it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use svc_core::service::sources::SourceStatus;
use svc_model::{StreamName, source::SourceState};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    keeper::Keeper,
    parts::{InstanceParts, SourceInstanceStatus, WatchedResource, WatchedStreams},
    start::ServerStarter,
};
use crate::{connection::SourceConnection, spec::SourceSpec, stdio::ServerLog};

/// A server that is kept running.
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
    /// Starts to keep a server running.
    pub(crate) fn keep(parts: InstanceParts) -> Arc<Self> {
        let since = parts.services.now();
        let status = SourceStatus::of(SourceState::Pending);
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
        let keeper = Keeper { starter, status: sender, wake: Arc::clone(&wake) };
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

    /// What it is doing.
    pub(crate) fn status(&self) -> SourceInstanceStatus {
        self.status.borrow().clone()
    }

    /// Its connection, if it works. One that is starting is waited for.
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
            // It has ended this moment, and the status will say so.
            Some(_) => Err(SourceStatus {
                reason: Some("it has ended".to_owned()),
                next_action: Some("svc restarts it".to_owned()),
                ..SourceStatus::of(SourceState::BackingOff)
            }),
            None => Err(now.status),
        }
    }

    /// Remembers that somebody watches a resource; `true` if nobody did before. `again` says that it may be one who did.
    pub(crate) fn watch_resource(&self, uri: &str, stream: StreamName, again: bool) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = watched.get_mut(uri) {
            known.watchers += usize::from(!again);
            return false;
        }
        watched.insert(uri.to_owned(), WatchedResource { stream, watchers: 1 });
        true
    }

    /// One watches it no more; `true` if nobody does.
    pub(crate) fn forget_resource(&self, uri: &str) -> bool {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = watched.get_mut(uri) else { return false };
        known.watchers = known.watchers.saturating_sub(1);
        known.watchers == 0 && watched.remove(uri).is_some()
    }

    /// How long nobody has called it.
    pub(crate) fn silent_for(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    /// Starts it anew, at once.
    pub(crate) fn reconnect(&self) {
        self.wake.notify_one();
    }

    /// Ends it, and waits until nothing of it is left.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.await.ok();
        }
    }
}
