//! Notices to clients without a request: a list, a resource or a task has changed.
//!
//! A notice is a level and not an edge: it says that something is new since the client last looked.
//! So nothing is kept for a client that is away. When it comes back, the log says what has changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures_util::future::OptionFuture;
use serde::Serialize;
use serde_json::value::RawValue;
use svc_core::{
    service::{Error, log::StreamChanges},
    tools::Catalogue,
};
use svc_model::{CallId, Caller, ToolExposure};
use svc_store::CallState;
use svc_wire::mcp::meta;
use tokio::{sync::watch, time::Instant};

use super::{
    McpServer, call::McpTaskView, methods::CallerResources, rpc::notification_message,
    server::McpSession,
};

/// Least time between notices of resources, since a client reads the resource each time.
const PAUSE: Duration = Duration::from_millis(100);
/// Time from a change of the tools to its notice: one act of a person changes them several times.
const TOOLS_PAUSE: Duration = Duration::from_millis(200);

/// URIs of resources, by the stream whose events change them.
pub(crate) type WatchedResources = BTreeMap<String, BTreeSet<String>>;

#[derive(Debug, Clone, Default)]
pub(crate) struct NoticeFilter {
    pub(crate) tools: bool,
    /// The session that notes which tools the client has listed.
    pub(crate) session: Option<Arc<McpSession>>,
    pub(crate) prompts: bool,
    pub(crate) resources: bool,
    pub(crate) watched: WatchedResources,
    pub(crate) tasks: Vec<CallId>,
}

pub(super) enum Notice {
    ToolsChanged,
    PromptsChanged,
    ResourcesChanged,
    ResourceUpdated {
        uri: String,
        /// Position of the log up to which all updates have been sent once this one is.
        position: Option<i64>,
    },
    TaskChanged(Box<McpTaskView>),
}

#[derive(Serialize)]
struct NoticeParams<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    uri: Option<&'a str>,
    #[serde(flatten)]
    task: Option<&'a McpTaskView>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<BTreeMap<&'static str, &'a RawValue>>,
}

impl Notice {
    /// The notification. It names the listen request of a stateless client.
    pub(super) fn message(&self, listen_request: Option<&RawValue>) -> String {
        let meta = listen_request.map(|id| BTreeMap::from([(meta::SUBSCRIPTION_ID, id)]));
        let mut params = NoticeParams { uri: None, task: None, meta };
        let method = match self {
            Self::ToolsChanged => "notifications/tools/list_changed",
            Self::PromptsChanged => "notifications/prompts/list_changed",
            Self::ResourcesChanged => "notifications/resources/list_changed",
            Self::ResourceUpdated { uri, .. } => {
                params.uri = Some(uri);
                "notifications/resources/updated"
            }
            Self::TaskChanged(task) => {
                params.task = Some(task);
                "notifications/tasks"
            }
        };
        notification_message(method, &params)
    }
}

pub(crate) struct NoticeQueue {
    server: McpServer,
    caller: Caller,
    filter: NoticeFilter,
    /// `None` if the client wants no notices of tools.
    tools: Option<Box<KnownTools>>,
    prompts: watch::Receiver<u64>,
    resources: watch::Receiver<u64>,
    /// `None` if no resources are watched.
    updates: Option<Box<ResourceUpdates>>,
    /// `None` if no tasks are watched.
    tasks: Option<Box<McpTaskChanges>>,
    queue: VecDeque<Notice>,
}

/// The tools that a client knows: those that it is shown, and those that it can find.
struct KnownTools {
    catalogue: Arc<Catalogue>,
    exposure: Option<ToolExposure>,
    caller: Caller,
    session: Option<Arc<McpSession>>,
    changes: watch::Receiver<u64>,
    hash: i64,
    /// When to compare the tools.
    due: Option<Instant>,
}

impl KnownTools {
    /// Without a session that knows what the client listed, perhaps from an earlier daemon, the
    /// client is taken to know the present tools.
    fn new(server: &McpServer, caller: &Caller, session: Option<&Arc<McpSession>>) -> Self {
        let (catalogue, exposure) = (Arc::clone(&server.catalogue), server.exposure);
        let (changes, caller) = (catalogue.changes(), caller.clone());
        let session = session.map(Arc::clone);
        let hash = catalogue.hash_for(&caller, exposure);
        let due = Some(Instant::now());
        Self { catalogue, exposure, caller, session, changes, hash, due }
    }

    /// Waits until the caller has other tools. Cancel safe.
    async fn changed(&mut self) {
        loop {
            let due = match self.due {
                Some(due) => due,
                None => match self.changes.changed().await {
                    Ok(()) => *self.due.insert(Instant::now() + TOOLS_PAUSE),
                    Err(_) => std::future::pending().await,
                },
            };
            tokio::time::sleep_until(due).await;
            // The tools that are read now contain all changes so far.
            self.changes.mark_unchanged();
            self.due = None;
            let hash = self.catalogue.hash_for(&self.caller, self.exposure);
            let before = std::mem::replace(&mut self.hash, hash);
            // A client may have listed tools that were there for a moment.
            let listed = self.session.as_ref().and_then(|session| session.client().tools);
            if before != hash || listed.is_some_and(|listed| listed != hash) {
                return;
            }
        }
    }
}

struct ResourceUpdates {
    moves: StreamChanges,
    not_before: Instant,
}

struct McpTaskChanges {
    changed: watch::Receiver<u64>,
    /// A task may have changed since the tasks were last read.
    due: bool,
    given: HashMap<CallId, CallState>,
}

impl ResourceUpdates {
    async fn moved(&mut self) {
        tokio::time::sleep_until(self.not_before).await;
        self.moves.wait().await;
    }
}

impl NoticeQueue {
    /// Notices of changes from now on; for resources, from a position of the log on.
    pub(crate) async fn new(
        server: &McpServer,
        caller: &Caller,
        filter: NoticeFilter,
        from: Option<i64>,
    ) -> Result<Self, Error> {
        let (updates, queue) =
            resource_updates(server, caller, &filter.watched, from, None).await?;
        let tasks = (!filter.tasks.is_empty()).then(|| {
            let changed = server.tasks_changed.subscribe();
            // The first notice of each task is its present state.
            Box::new(McpTaskChanges { changed, due: true, given: HashMap::new() })
        });
        let known = || Box::new(KnownTools::new(server, caller, filter.session.as_ref()));
        let tools = filter.tools.then(known);
        Ok(Self {
            tools,
            prompts: server.prompts_changed.subscribe(),
            resources: server.resources_changed.subscribe(),
            updates,
            tasks,
            queue,
            server: server.clone(),
            caller: caller.clone(),
            filter,
        })
    }

    /// Watches other resources. New ones are watched from the position `since` of the log, because
    /// a client may append as soon as its subscription is answered. Cancel safe.
    pub(crate) async fn watch(
        &mut self,
        watched: WatchedResources,
        since: Option<i64>,
    ) -> Result<(), Error> {
        let cursor = self.updates.as_ref().map(|updates| updates.moves.cursor());
        let from = cursor.into_iter().chain(since).min();
        let seen = cursor.map(|cursor| (&self.filter.watched, cursor));
        let (updates, missed) =
            resource_updates(&self.server, &self.caller, &watched, from, seen).await?;
        self.filter.watched = watched;
        self.updates = updates;
        self.queue.extend(missed);
        Ok(())
    }

    /// Waits for the next notice. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Notice, Error> {
        loop {
            if let Some(notice) = self.queue.pop_front() {
                return Ok(notice);
            }
            let filter = &self.filter;
            let moved = self.updates.as_mut().map(|updates| updates.moved());
            let other_tools = self.tools.as_mut().map(|tools| tools.changed());
            tokio::select! {
                biased;
                Some(()) = OptionFuture::from(other_tools) => return Ok(Notice::ToolsChanged),
                Ok(()) = self.prompts.changed(), if filter.prompts => return Ok(Notice::PromptsChanged),
                Ok(()) = self.resources.changed(), if filter.resources => return Ok(Notice::ResourcesChanged),
                Some(()) = OptionFuture::from(moved) => Box::pin(self.read_updates()).await?,
                () = tasks_changed(self.tasks.as_mut()) => Box::pin(self.read_tasks()).await?,
                else => std::future::pending().await,
            }
        }
    }

    async fn read_updates(&mut self) -> Result<(), Error> {
        let Some(updates) = &mut self.updates else { return Ok(()) };
        let moved = updates.moves.take(&self.filter.watched).await?;
        if !moved.is_empty() {
            updates.not_before = Instant::now() + PAUSE;
            self.queue.extend(update_notices(&self.filter.watched, moved));
        }
        Ok(())
    }

    async fn read_tasks(&mut self) -> Result<(), Error> {
        let Some(tasks) = &mut self.tasks else { return Ok(()) };
        let services = &self.server.services;
        for id in &self.filter.tasks {
            if tasks.given.get(id).is_some_and(|state| state.is_terminal()) {
                continue;
            }
            let row = services.mcp.call(&self.caller, id.as_str()).await?;
            let Some(row) = row.filter(|row| row.is_task) else { continue };
            if tasks.given.get(id) != Some(&row.state) {
                let task = McpTaskView::read(services, &row).await?;
                tasks.given.insert(id.clone(), row.state);
                self.queue.push_back(Notice::TaskChanged(Box::new(task)));
            }
        }
        tasks.due = false;
        Ok(())
    }
}

/// Starts to watch resources, and returns the notices of changes since `from`. `seen` are resources
/// whose notices were given up to a position.
async fn resource_updates(
    server: &McpServer,
    caller: &Caller,
    watched: &WatchedResources,
    from: Option<i64>,
    seen: Option<(&WatchedResources, i64)>,
) -> Result<(Option<Box<ResourceUpdates>>, VecDeque<Notice>), Error> {
    if watched.is_empty() {
        return Ok((None, VecDeque::new()));
    }
    let of_servers = watched.iter().filter(|(stream, _)| stream.starts_with("source/"));
    let resources = CallerResources { server, caller };
    resources.watch_again(of_servers.flat_map(|(_, uris)| uris.iter().cloned()).collect());
    let names: Vec<String> = watched.keys().cloned().collect();
    let (moves, mut missed) = server.services.log.watch_streams(caller, names, from).await?;
    if let Some((known, cursor)) = seen {
        missed.retain(|(stream, position)| *position > cursor || !known.contains_key(stream));
    }
    let updates = ResourceUpdates { moves, not_before: Instant::now() };
    Ok((Some(Box::new(updates)), update_notices(watched, missed).into()))
}

/// Notices in the order of positions, so that a client that resumes after one of them has all
/// before it. Of several at one position only the last has the position.
fn update_notices(watched: &WatchedResources, mut moved: Vec<(String, i64)>) -> Vec<Notice> {
    moved.sort_by_key(|(_, position)| *position);
    let mut notices = Vec::new();
    for (stream, position) in moved {
        let mut uris = watched.get(&stream).into_iter().flatten().peekable();
        while let Some(uri) = uris.next() {
            let position = uris.peek().is_none().then_some(position);
            notices.push(Notice::ResourceUpdated { uri: uri.clone(), position });
        }
    }
    notices
}

async fn tasks_changed(tasks: Option<&mut Box<McpTaskChanges>>) {
    match tasks {
        None => std::future::pending().await,
        Some(tasks) if tasks.due => {}
        Some(tasks) => {
            // The server holds the sender, so this does not fail.
            tasks.changed.changed().await.ok();
            tasks.due = true;
        }
    }
}
