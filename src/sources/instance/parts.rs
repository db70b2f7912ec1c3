//! What an instance is made of, and what it tells.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::{
    config::{Env, sources::SourceVault},
    domain::{StreamName, Timestamp},
    service::{Services, sources::SourceStatus},
    sources::{
        auth::SourceAuth, connection::SourceConnection, containers::Containers,
        http_clients::HttpClients, lists::FetchedLists, spec::SourceSpec, stderr::StderrLines,
    },
};

/// What an instance needs.
#[derive(Debug, Clone)]
pub(in crate::sources) struct InstanceParts {
    pub(in crate::sources) services: Services,
    pub(in crate::sources) spec: Arc<SourceSpec>,
    /// The project or session that it serves; empty for the one that learns the lists.
    pub(in crate::sources) serves: String,
    /// The project whose folder is its only root.
    pub(in crate::sources) root: Option<String>,
    /// The project that it works in.
    pub(in crate::sources) project: Option<String>,
    pub(in crate::sources) env: Arc<Env>,
    /// How many may start at once.
    pub(in crate::sources) starts: Arc<Semaphore>,
    /// Where lists go; `None` if another instance learns them.
    pub(in crate::sources) learned: Option<mpsc::UnboundedSender<StartLesson>>,
    /// Containers of servers that run in one.
    pub(in crate::sources) containers: Containers,
    /// Streams of resources that have changed.
    pub(in crate::sources) moved: mpsc::Sender<ResourceMove>,
    /// Lines of error output, for the server's stream.
    pub(in crate::sources) said: StderrLines,
    /// Whether it has worked before, in this process or an earlier one.
    pub(in crate::sources) has_worked: bool,
    /// Secrets of the server.
    pub(in crate::sources) vault: SourceVault,
    /// The login to a server at a URL.
    pub(in crate::sources) auth: Arc<SourceAuth>,
    pub(in crate::sources) clients: HttpClients,
}

/// Lists that a server gave.
#[derive(Debug)]
pub(in crate::sources) struct StartLesson {
    pub(in crate::sources) spec: Arc<SourceSpec>,
    pub(in crate::sources) lists: FetchedLists,
    /// Hears when callers see them.
    pub(in crate::sources) done: oneshot::Sender<()>,
}

/// A resource that somebody watches has changed.
#[derive(Debug)]
pub(in crate::sources) struct ResourceMove {
    /// The stream that tells of it.
    pub(in crate::sources) stream: StreamName,
    /// The URI, as the server says it.
    pub(in crate::sources) uri: String,
}

/// A resource that somebody watches.
#[derive(Debug, Clone)]
pub(super) struct WatchedResource {
    /// The stream of its changes.
    pub(super) stream: StreamName,
    /// How many have subscribed to it.
    pub(super) watchers: usize,
}

/// The resources that are watched, by the server's own URIs.
pub(super) type WatchedStreams = Arc<Mutex<HashMap<String, WatchedResource>>>;

/// What an instance is doing.
#[derive(Debug, Clone)]
pub(in crate::sources) struct SourceInstanceStatus {
    pub(in crate::sources) status: SourceStatus,
    pub(in crate::sources) since: Timestamp,
    pub(in crate::sources) pid: Option<u32>,
    pub(in crate::sources) connection: Option<Arc<SourceConnection>>,
}
