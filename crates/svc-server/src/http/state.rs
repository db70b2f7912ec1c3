//! What handlers share, and what they know of the request's sender.

use std::{convert::Infallible, ops::Deref, sync::Arc};

use axum::extract::FromRequestParts;
use svc_core::{service::Services, tools::Catalogue};
use svc_model::{Caller, Timestamp};
use svc_sources::SourceManager;
use tokio_util::sync::CancellationToken;

use super::{Code, Doctor, Metrics, Problem};
use crate::web::Beat;

/// What handlers share. Cheap to clone: each request does so several times.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

/// The members of an [`App`].
#[derive(Debug)]
pub struct Parts {
    /// What the system does.
    pub services: Services,
    /// What a model may ask of it.
    pub tools: Arc<Catalogue>,
    /// Child MCP servers; `None` where there are none.
    pub sources: Option<SourceManager>,
    /// Looks for what is wrong with the installation; `None` where there is no such program.
    pub doctor: Option<Doctor>,
    /// Counts of requests.
    pub metrics: Metrics,
    /// Which process this is.
    pub identity: Identity,
    /// Says when a silent stream sends a comment.
    pub beat: Beat,
    /// Ends the streams.
    pub stop: CancellationToken,
}

/// Which process this is.
#[derive(Debug)]
pub struct Identity {
    /// Changes with each start.
    pub boot_id: String,
    /// Process id.
    pub pid: u32,
    pub started_at: Timestamp,
}

impl App {
    /// Shares these.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl FromRequestParts<App> for App {
    type Rejection = Infallible;

    async fn from_request_parts(
        _: &mut http::request::Parts,
        app: &App,
    ) -> Result<Self, Infallible> {
        Ok(app.clone())
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &App,
    ) -> Result<Self, Problem> {
        // The edge has put it there for every route that asks for a token.
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| Problem::new(Code::Unauthorized, "a valid token is needed"))
    }
}
