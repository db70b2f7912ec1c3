//! What clients are told unasked: that a list has changed, that a resource has, that a task has.
//!
//! All of it is a level and not an edge: it says that something is new since the client last looked. So nothing is
//! kept for a client that is away; what has moved meanwhile is read off the log when it comes back.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use super::{Mcp, Prompt};
use crate::{
    domain::{CallId, Caller},
    service::{Error, log::StreamMoves},
    store::CallState,
};

/// News of resources come no oftener than this: a client reads the resource each time.
const PAUSE: Duration = Duration::from_millis(100);

/// What a client wants to be told.
#[derive(Debug, Clone, Default)]
pub(super) struct Wants {
    pub(super) tools: bool,
    pub(super) prompts: bool,
    pub(super) resources: bool,
    /// URIs, by the stream behind them.
    pub(super) uris: BTreeMap<String, BTreeSet<String>>,
    pub(super) tasks: Vec<CallId>,
}

/// Something that a client is told.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Notice {
    Tools,
    Prompts,
    Resources,
    Updated {
        uri: String,
        /// Of the log: everything up to it was told then.
        position: Option<i64>,
    },
    Task(Value),
}

/// Waits for what a client wants to be told.
#[derive(Debug)]
pub(super) struct Notices {
    mcp: Mcp,
    caller: Caller,
    wants: Wants,
    tools: watch::Receiver<u64>,
    prompts: watch::Receiver<Arc<Vec<Prompt>>>,
    resources: watch::Receiver<u64>,
    /// Only for those who have subscribed to something.
    feed: Option<Box<Feed>>,
    tasks: Option<Box<Tasks>>,
    queue: VecDeque<Notice>,
}

#[derive(Debug)]
struct Feed {
    moves: StreamMoves,
    not_before: Instant,
}

#[derive(Debug)]
struct Tasks {
    changed: watch::Receiver<u64>,
    told: HashMap<CallId, CallState>,
}

impl Notice {
    /// The method and parameters of the notification.
    pub(super) fn parts(&self) -> (&'static str, Value) {
        match self {
            Self::Tools => ("notifications/tools/list_changed", json!({})),
            Self::Prompts => ("notifications/prompts/list_changed", json!({})),
            Self::Resources => ("notifications/resources/list_changed", json!({})),
            Self::Updated { uri, .. } => ("notifications/resources/updated", json!({ "uri": uri })),
            Self::Task(task) => ("notifications/tasks", task.clone()),
        }
    }
}

impl Notices {
    /// From now on, or, for resources, from a position of the log.
    pub(super) async fn new(
        mcp: &Mcp,
        caller: &Caller,
        wants: Wants,
        from: Option<i64>,
    ) -> Result<Self, Error> {
        let (feed, queue) = feed(mcp, &wants, from).await?;
        let tasks = (!wants.tasks.is_empty()).then(|| {
            let mut changed = mcp.tasks_changed.subscribe();
            // Where they stand is told at once.
            changed.mark_changed();
            Box::new(Tasks { changed, told: HashMap::new() })
        });
        let resources = mcp.resources_changed.subscribe();
        Ok(Self {
            tools: mcp.catalogue.changes(),
            prompts: mcp.prompts.subscribe(),
            resources,
            feed,
            tasks,
            queue,
            mcp: mcp.clone(),
            caller: caller.clone(),
            wants,
        })
    }

    /// Puts something before what comes.
    pub(super) fn push(&mut self, notice: Notice) {
        self.queue.push_back(notice);
    }

    /// Other resources from now on.
    pub(super) async fn subscribe_to(
        &mut self,
        uris: BTreeMap<String, BTreeSet<String>>,
    ) -> Result<(), Error> {
        let from = self.feed.as_ref().map(|feed| feed.moves.cursor());
        self.wants.uris = uris;
        let (feed, missed) = feed(&self.mcp, &self.wants, from).await?;
        self.feed = feed;
        self.queue.extend(missed);
        Ok(())
    }

    /// Waits for what comes next. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Result<Notice, Error> {
        loop {
            if let Some(notice) = self.queue.pop_front() {
                return Ok(notice);
            }
            let wants = &self.wants;
            tokio::select! {
                biased;
                Ok(()) = self.tools.changed(), if wants.tools => return Ok(Notice::Tools),
                Ok(()) = self.prompts.changed(), if wants.prompts => return Ok(Notice::Prompts),
                Ok(()) = self.resources.changed(), if wants.resources => return Ok(Notice::Resources),
                () = moved(self.feed.as_mut()) => Box::pin(self.look_at_feed()).await?,
                () = changed(self.tasks.as_mut()) => Box::pin(self.look_at_tasks()).await?,
                else => std::future::pending().await,
            }
        }
    }

    async fn look_at_feed(&mut self) -> Result<(), Error> {
        let Some(feed) = &mut self.feed else { return Ok(()) };
        let moved = feed.moves.take(&self.wants.uris).await?;
        if moved.is_empty() {
            return Ok(());
        }
        feed.not_before = Instant::now() + PAUSE;
        self.queue.extend(updates(&self.wants, moved));
        Ok(())
    }

    async fn look_at_tasks(&mut self) -> Result<(), Error> {
        let Some(tasks) = &mut self.tasks else { return Ok(()) };
        for id in &self.wants.tasks {
            if tasks.told.get(id).is_some_and(|state| state.is_terminal()) {
                continue;
            }
            let Some(row) = self.mcp.services.mcp.call(&self.caller, id.as_str()).await? else {
                continue;
            };
            if row.is_task && tasks.told.insert(id.clone(), row.state) != Some(row.state) {
                let task = self.mcp.detailed(&row).await?;
                self.queue.push_back(Notice::Task(Value::from(task)));
            }
        }
        Ok(())
    }
}

/// The feed for these wishes, and what has moved since `from`.
async fn feed(
    mcp: &Mcp,
    wants: &Wants,
    from: Option<i64>,
) -> Result<(Option<Box<Feed>>, VecDeque<Notice>), Error> {
    if wants.uris.is_empty() {
        return Ok((None, VecDeque::new()));
    }
    let names: Vec<String> = wants.uris.keys().cloned().collect();
    let (moves, missed) = mcp.services.log.watch_streams(names, from).await?;
    let missed = updates(wants, missed).into();
    Ok((Some(Box::new(Feed { moves, not_before: Instant::now() })), missed))
}

/// By position, so that the last one told stands for all before it. Of several at one position only the last does.
fn updates(wants: &Wants, mut moved: Vec<(String, i64)>) -> Vec<Notice> {
    moved.sort_by_key(|(_, position)| *position);
    let mut notices = Vec::new();
    for (stream, position) in moved {
        let mut uris = wants.uris.get(&stream).into_iter().flatten().peekable();
        while let Some(uri) = uris.next() {
            let position = uris.peek().is_none().then_some(position);
            notices.push(Notice::Updated { uri: uri.clone(), position });
        }
    }
    notices
}

async fn moved(feed: Option<&mut Box<Feed>>) {
    match feed {
        None => std::future::pending().await,
        Some(feed) => {
            tokio::time::sleep_until(feed.not_before).await;
            feed.moves.wait().await;
        }
    }
}

async fn changed(tasks: Option<&mut Box<Tasks>>) {
    match tasks {
        None => std::future::pending().await,
        // The server holds the sender.
        Some(tasks) => tasks.changed.changed().await.unwrap_or_default(),
    }
}
