//! The table of all routes. One call for each makes the route and its description.

use std::{any::Any, sync::Arc};

use axum::{
    Router,
    extract::FromRequestParts,
    handler::Handler,
    response::{IntoResponse as _, Response},
    routing::{MethodFilter, on},
};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;

use super::{
    Code, Metrics, Problem, events, health, journal, messages, metrics,
    openapi::{Document, Operation},
    peers, protocol, tasks, tokens, tools,
};
use crate::{
    domain::{Caller, Timestamp},
    service::Services,
    tools::Catalogue,
    web::RouteName,
};

/// What handlers share. Cheap to clone: each request does so several times.
#[derive(Debug, Clone)]
pub struct App(Arc<Parts>);

/// What there is to share.
#[derive(Debug)]
pub struct Parts {
    /// What the system does.
    pub services: Services,
    /// What a model may ask of it.
    pub tools: Arc<Catalogue>,
    /// What was counted.
    pub metrics: Metrics,
    /// Which process this is.
    pub identity: Identity,
    /// Ends the streams.
    pub stop: CancellationToken,
}

impl App {
    /// Shares these.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl std::ops::Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Which process this is.
#[derive(Debug)]
pub struct Identity {
    /// Changes with each start.
    pub boot_id: String,
    /// Process id.
    pub pid: u32,
    /// When it started.
    pub started_at: Timestamp,
}

/// The routes, with what serves them, and those of another adapter.
pub(super) fn router(app: App, others: Router) -> Router {
    let api = api();
    let document = Arc::new(api.document.finish().to_string());
    api.router
        .route("/openapi.json", health::openapi_route(document))
        .with_state(app)
        .merge(others)
        .fallback(async || Problem::new(Code::NotFound, "there is no such path: see /openapi.json"))
        .method_not_allowed_fallback(async || {
            Problem::new(Code::MethodNotAllowed, "this path has other methods: see Allow")
        })
        .layer(CatchPanicLayer::custom(panicked))
}

/// The description of all routes (OpenAPI 3.1).
pub fn openapi_document() -> serde_json::Value {
    api().document.finish()
}

/// The route that answered, as it stands in the table; for metrics, where an id in a path would make a series each.
pub(super) fn route_of(response: &Response) -> &'static str {
    RouteName::of(response)
}

fn api() -> Api {
    let mut document = Document::new();
    protocol::describe(&mut document);
    let api = Api { router: Router::new(), document };
    let api = health::routes(api);
    let api = peers::routes(api);
    let api = messages::routes(api);
    let api = tasks::routes(api);
    let api = events::routes(api);
    let api = journal::routes(api);
    let api = tokens::routes(api);
    let api = tools::routes(api);
    metrics::routes(api)
}

/// Routes and their description, made together.
pub(super) struct Api {
    router: Router<App>,
    document: Document,
}

impl Api {
    pub(super) fn get<H, T>(self, path: &'static str, operation: Operation, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        self.add(path, MethodFilter::GET, "get", operation, handler)
    }

    pub(super) fn post<H, T>(self, path: &'static str, operation: Operation, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        self.add(path, MethodFilter::POST, "post", operation, handler)
    }

    pub(super) fn delete<H, T>(self, path: &'static str, operation: Operation, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        self.add(path, MethodFilter::DELETE, "delete", operation, handler)
    }

    fn add<H, T>(
        mut self,
        path: &'static str,
        filter: MethodFilter,
        method: &str,
        operation: Operation,
        handler: H,
    ) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        self.document.add(path, method, operation);
        self.router = self.router.route(path, on(filter, handler).layer(RouteName::layer(path)));
        self
    }
}

/// Who is asking, in a handler.
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

#[expect(clippy::needless_pass_by_value, reason = "the signature is tower-http's")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    tracing::error!(message, "a handler panicked");
    Problem::new(Code::Internal, "internal error").into_response()
}
