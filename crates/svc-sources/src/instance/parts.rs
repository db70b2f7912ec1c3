//! What an instance is made of, and what it tells.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use svc_core::service::{Services, sources::SourceStatus};
use svc_model::{StreamName, Timestamp};
use svc_sys::config::{Env, sources::SourceVault};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::{
    auth::SourceAuth, connection::SourceConnection, containers::Containers,
    http_clients::HttpClients, lists::FetchedLists, spec::SourceSpec, stderr::StderrLines,
};

/// What an instance needs.
#[derive(Debug, Clone)]
pub(crate) struct InstanceParts {
    pub(crate) services: Services,
    pub(crate) spec: Arc<SourceSpec>,
    /// The project or session that it serves; empty for the one that learns the lists.
    pub(crate) serves: String,
    /// The project whose folder is its only root.
    pub(crate) root: Option<String>,
    /// The project that it works in.
    pub(crate) project: Option<String>,
    pub(crate) env: Arc<Env>,
    /// How many may start at once.
    pub(crate) starts: Arc<Semaphore>,
    /// Where lists go; `None` if another instance learns them.
    pub(crate) learned: Option<mpsc::UnboundedSender<StartLesson>>,
    /// Containers of servers that run in one.
    pub(crate) containers: Containers,
    /// Streams of resources that have changed.
    pub(crate) moved: mpsc::Sender<ResourceMove>,
    /// Lines of error output, for the server's stream.
    pub(crate) said: StderrLines,
    /// Whether it has worked before, in this process or an earlier one.
    pub(crate) has_worked: bool,
    /// Secrets of the server.
    pub(crate) vault: SourceVault,
    /// The login to a server at a URL.
    pub(crate) auth: Arc<SourceAuth>,
    pub(crate) clients: HttpClients,
}

/// Lists that a server gave.
#[derive(Debug)]
pub(crate) struct StartLesson {
    pub(crate) spec: Arc<SourceSpec>,
    pub(crate) lists: FetchedLists,
    /// Hears when callers see them.
    pub(crate) done: oneshot::Sender<()>,
}

/// A resource that somebody watches has changed.
#[derive(Debug)]
pub(crate) struct ResourceMove {
    /// The stream that tells of it.
    pub(crate) stream: StreamName,
    /// The URI, as the server says it.
    pub(crate) uri: String,
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
pub(crate) struct SourceInstanceStatus {
    pub(crate) status: SourceStatus,
    pub(crate) since: Timestamp,
    pub(crate) pid: Option<u32>,
    pub(crate) connection: Option<Arc<SourceConnection>>,
}
