//! The server: what its parts share.

use std::{ops::Deref, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    McpMetrics, Prompt, ResourceProvider, calls::Calls, far_end::Questions, seal::Seal,
    session::Sessions,
};
use crate::{service::Services, tools::Catalogue, web::Beat};

/// The MCP server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Mcp(Arc<Parts>);

/// What a server is made of.
#[derive(Debug)]
pub struct McpParts {
    /// What the system does.
    pub services: Services,
    /// The tools.
    pub catalogue: Arc<Catalogue>,
    /// The resources.
    pub resources: Vec<Box<dyn ResourceProvider>>,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// What was counted.
    pub metrics: McpMetrics,
    /// Says when a silent stream sends a comment.
    pub beat: Beat,
    /// Ends the streams, and leaves what is running to the next start.
    pub stop: CancellationToken,
}

/// What the parts of a server share.
#[derive(Debug)]
pub struct Parts {
    pub(super) services: Services,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) resources: Vec<Box<dyn ResourceProvider>>,
    pub(super) prompts: watch::Sender<Arc<Vec<Prompt>>>,
    pub(super) metrics: McpMetrics,
    pub(super) stop: CancellationToken,
    pub(super) sessions: Sessions,
    pub(super) calls: Calls,
    pub(super) questions: Questions,
    pub(super) seal: Seal,
    pub(super) beat: Beat,
    pub(super) silence: Duration,
    /// Counts changes of the list of resources, a few seconds' worth at a time.
    pub(super) resources_changed: watch::Sender<u64>,
    /// Counts changes of tasks.
    pub(super) tasks_changed: watch::Sender<u64>,
    /// What goes on beside requests.
    pub(super) tasks: TaskTracker,
}

impl Deref for Mcp {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Mcp {
    /// Puts a server together, and takes up the calls that the last stop or crash cut off.
    pub async fn start(parts: McpParts) -> Result<Self, crate::service::Error> {
        let silence = parts.services.tuning().sse_keep_alive;
        let key = parts.services.mcp.secret("mcp.request_state").await?;
        let mcp = Self(Arc::new(Parts {
            services: parts.services,
            catalogue: parts.catalogue,
            resources: parts.resources,
            prompts: watch::Sender::new(Arc::new(parts.prompts)),
            metrics: parts.metrics,
            stop: parts.stop,
            sessions: Sessions::default(),
            calls: Calls::default(),
            questions: Questions::default(),
            seal: Seal::new(key),
            beat: parts.beat,
            silence,
            resources_changed: watch::Sender::new(0),
            tasks_changed: watch::Sender::new(0),
            tasks: TaskTracker::new(),
        }));
        mcp.recover_calls().await?;
        mcp.tasks.spawn(mcp.clone().watch_streams());
        Ok(mcp)
    }

    /// Waits until what goes on beside requests is at rest, after the stop.
    pub async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// The tools.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Puts other prompts in the place of these.
    pub fn set_prompts(&self, prompts: Vec<Prompt>) {
        self.prompts.send_replace(Arc::new(prompts));
    }

    /// Turns new streams into news of the list of resources: the first at once, and then no oftener than every few
    /// seconds, because every client reads the list again.
    async fn watch_streams(self) {
        let mut opened = self.services.log.streams_opened();
        let pause = self.services.tuning().list_changed_pause;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                changed = opened.changed() => if changed.is_err() { return },
            }
            self.resources_changed.send_modify(|count| *count += 1);
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
