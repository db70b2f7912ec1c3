//! The beginning and the end of all servers.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, Weak},
};

use svc_core::{service::Services, tools::Catalogue};
use svc_sys::{
    config::{Env, sources::SourceFiles},
    server_process::end_leftovers,
    telemetry,
};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    records::lists_of,
    state::{LearnedLists, ManagerState, SourceManager},
};
use crate::{
    containers::Containers,
    core::CoreServer,
    http_clients::HttpClients,
    metrics::SourceMetrics,
    pins::PinnedLists,
    results::{KeptResults, ResultBounds},
    suspended::SuspendedCalls,
};

/// How many servers start at once.
const PARALLEL_STARTS: usize = 8;
/// Events of calls that wait to be written.
const EVENTS: usize = 4096;

/// What the servers are made of.
#[derive(Debug)]
pub struct SourceManagerParts {
    /// Where lists, states and processes are kept.
    pub services: Services,
    /// Where the servers are named.
    pub files: SourceFiles,
    /// The daemon's environment.
    pub env: Env,
    /// Where their tools are to be found.
    pub catalogue: Weak<Catalogue>,
    /// The counters.
    pub metrics: SourceMetrics,
    /// When a result is kept as a resource, and how much is.
    pub results: ResultBounds,
    /// Files and folders of the daemon itself, closed to the file tools of `core`.
    pub private: Vec<PathBuf>,
}

impl SourceManager {
    /// Reads what there is, and starts it. Nothing is waited for.
    pub async fn start(parts: SourceManagerParts) -> anyhow::Result<Self> {
        let SourceManagerParts { services, files, env, catalogue, metrics, results, private } =
            parts;
        let lists = services.sources.lists().await?;
        let pins = services.sources.pins().await?;
        let left_marks = services.sources.left_marks().await?;
        let clients = HttpClients::default();
        let (learned, lessons) = mpsc::unbounded_channel();
        let (said, lines) = mpsc::channel(EVENTS);
        let (events, calls) = mpsc::channel(EVENTS);
        let (moved, moves) = mpsc::channel(EVENTS);
        let manager = Self(Arc::new(ManagerState {
            core: CoreServer::new(services.clone(), private),
            results: KeptResults::new(&files.home, results),
            suspended: SuspendedCalls::default(),
            moved,
            resources_changed: watch::Sender::new(0),
            prompts_changed: watch::Sender::new(0),
            services,
            files,
            env: Arc::new(env),
            catalogue,
            metrics,
            clients,
            state: Mutex::default(),
            starts: Arc::new(Semaphore::new(PARALLEL_STARTS)),
            learned,
            said,
            events,
            stop: CancellationToken::new(),
            ending: TaskTracker::new(),
        }));
        for (key, kept) in lists {
            let lists = lists_of(&kept);
            manager.state().lists.insert(key, LearnedLists::new(kept.fingerprint, lists));
        }
        for (key, kept, told) in pins {
            let lists = Arc::new(lists_of(&kept));
            let pin = PinnedLists { basis: kept.fingerprint, lists, told };
            manager.state().pins.insert(key, pin);
        }
        for mark in left_marks {
            let this = manager.clone();
            manager.0.ending.spawn(async move {
                end_leftovers(&mark).await;
                Containers::new(this.home()).end(&mark).await;
                if let Err(error) = this.0.services.sources.forget_process(mark).await {
                    tracing::warn!(error = telemetry::chain(&error), "a process stays on record");
                }
            });
        }
        let background = [
            tokio::spawn(manager.clone().learn(lessons)),
            tokio::spawn(manager.clone().write_lines(lines)),
            tokio::spawn(manager.clone().write_calls(calls)),
            tokio::spawn(manager.clone().write_moves(moves)),
            tokio::spawn(manager.clone().sweep_files()),
            tokio::spawn(manager.clone().end_silent()),
            tokio::spawn(manager.clone().follow_plugins()),
            tokio::spawn(manager.clone().end_with_sessions()),
        ];
        let stop = manager.0.stop.clone();
        tokio::spawn(async move {
            stop.cancelled().await;
            background.iter().for_each(tokio::task::JoinHandle::abort);
        });
        manager.reload();
        Ok(manager)
    }

    /// Ends all servers, and waits until nothing of them is left.
    pub async fn finish(&self) {
        let instances: Vec<_> =
            self.state().instances.drain().map(|(_, instance)| instance).collect();
        futures_util::future::join_all(instances.iter().map(|instance| instance.end())).await;
        self.0.core.finish().await;
        self.0.ending.close();
        self.0.ending.wait().await;
        self.0.stop.cancel();
    }
}
