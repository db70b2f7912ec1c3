//! The state that all parts of the server share. It starts in `start`.

use std::{ops::Deref, sync::Arc};

use svc_core::{
    service::{self, Services},
    tools::Catalogue,
};
use svc_model::ToolExposure;
use svc_sources::SourceManager;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    metrics::McpMetrics,
    prompts::PromptTemplate,
    resources::ResourceProvider,
    running::{OpenQuestions, RunningCalls},
    seal::RequestStateSeal,
    session::McpSessionTable,
};
use crate::web::{Beat, Pulse};

/// The MCP server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct McpServer(Arc<McpServerState>);

/// The parts that a server is made of.
#[derive(Debug)]
pub struct McpServerParts {
    /// The services that tools and methods call.
    pub services: Services,
    /// The tools.
    pub catalogue: Arc<Catalogue>,
    /// The resources.
    pub resources: Vec<Box<dyn ResourceProvider>>,
    /// The prompts.
    pub prompts: Vec<PromptTemplate>,
    /// The servers behind the daemon, whose resources and prompts are shown, too.
    pub sources: Option<SourceManager>,
    /// The counters.
    pub metrics: McpMetrics,
    /// Says when a silent stream sends a comment.
    pub beat: Beat,
    /// Ends the streams, and leaves running calls to the next start.
    pub stop: CancellationToken,
    /// Which tools clients are shown that do not ask; by their credential if this is `None`.
    pub exposure: Option<ToolExposure>,
}

/// The state behind [`McpServer`].
#[derive(Debug)]
pub struct McpServerState {
    pub services: Services,
    pub catalogue: Arc<Catalogue>,
    pub resources: Vec<Box<dyn ResourceProvider>>,
    pub prompts: watch::Sender<Arc<Vec<PromptTemplate>>>,
    pub sources: Option<SourceManager>,
    pub metrics: McpMetrics,
    pub stop: CancellationToken,
    pub exposure: Option<ToolExposure>,
    pub(crate) sessions: McpSessionTable,
    pub(crate) running: RunningCalls,
    pub(crate) questions: OpenQuestions,
    pub(crate) seal: RequestStateSeal,
    beat: Beat,
    /// Counts changes of the list of resources. Those of a few seconds count once.
    pub(crate) resources_changed: watch::Sender<u64>,
    /// Counts changes of tasks.
    pub(crate) tasks_changed: watch::Sender<u64>,
    /// Work that no request waits for.
    pub(crate) background: TaskTracker,
}

impl Deref for McpServer {
    type Target = McpServerState;

    fn deref(&self) -> &McpServerState {
        &self.0
    }
}

impl McpServer {
    /// Puts a server together. Calls that the last stop or crash cut off are not taken up.
    pub(crate) async fn assemble(parts: McpServerParts) -> Result<Self, service::Error> {
        let key = parts.services.mcp.secret("mcp.request_state").await?;
        Ok(Self(Arc::new(McpServerState {
            services: parts.services,
            catalogue: parts.catalogue,
            resources: parts.resources,
            prompts: watch::Sender::new(Arc::new(parts.prompts)),
            sources: parts.sources,
            metrics: parts.metrics,
            stop: parts.stop,
            exposure: parts.exposure,
            sessions: McpSessionTable::default(),
            running: RunningCalls::default(),
            questions: OpenQuestions::default(),
            seal: RequestStateSeal::new(key),
            beat: parts.beat,
            resources_changed: watch::Sender::new(0),
            tasks_changed: watch::Sender::new(0),
            background: TaskTracker::new(),
        })))
    }

    /// The tick by which a silent stream, or a silent call, gives a sign of life.
    pub(crate) fn pulse(&self) -> Pulse {
        self.beat.pulse()
    }

    /// The tools.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Replaces the prompts.
    pub fn set_prompts(&self, prompts: Vec<PromptTemplate>) {
        self.prompts.send_replace(Arc::new(prompts));
    }
}
