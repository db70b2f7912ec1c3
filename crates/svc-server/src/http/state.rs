//! The state that handlers share, and extractors for a request's sender.

use std::{convert::Infallible, ops::Deref, sync::Arc};

use axum::extract::FromRequestParts;
use svc_core::{service::Services, tools::Catalogue};
use svc_model::{Caller, Timestamp};
use svc_sources::SourceManager;
use tokio_util::sync::CancellationToken;

use super::{Code, Doctor, Metrics, Problem};
use crate::web::KeepAlive;

/// The state that handlers share. Cheap to clone: each request does so several times.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

/// The members of an [`App`].
#[derive(Debug)]
pub struct Parts {
    pub services: Services,
    /// The tools that models call.
    pub tools: Arc<Catalogue>,
    /// Child MCP servers; `None` if there are none.
    pub sources: Option<SourceManager>,
    /// Runs `svc doctor`; `None` if the program does not exist.
    pub doctor: Option<Doctor>,
    pub metrics: Metrics,
    pub identity: Identity,
    /// Says when a silent stream sends a comment.
    pub beat: KeepAlive,
    /// Ends the streams.
    pub stop: CancellationToken,
}

/// This process.
#[derive(Debug)]
pub struct Identity {
    /// Changes with each start.
    pub boot_id: String,
    pub pid: u32,
    pub started_at: Timestamp,
}

impl App {
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
        // The edge adds the extension for every route that needs a token.
        parts
            .extensions
            .get::<Self>()
            .cloned()
            .ok_or_else(|| Problem::new(Code::Unauthorized, "a valid token is needed"))
    }
}
