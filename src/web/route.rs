//! Routes of adapters, and the name of a route for metrics.

use std::{fmt, sync::Arc};

use axum::{Router, body::Body, response::Response};
use futures_util::{FutureExt as _, future::BoxFuture};
use http::HeaderMap;
use tower::util::MapResponseLayer;

use crate::domain::Caller;

/// The path of the MCP server.
pub const MCP: &str = "/mcp";

/// The routes of an adapter beside ours.
#[derive(Debug, Default)]
pub struct AdapterRoutes {
    /// All of them.
    pub table: Router,
    /// That of `POST /mcp`, which is asked for most, past the table.
    pub post_mcp: Option<DirectPost>,
}

/// Answers a POST past the table of routes.
#[derive(Clone)]
pub struct DirectPost(Arc<Post>);

type Post = dyn Fn(Caller, HeaderMap, Body) -> BoxFuture<'static, Response> + Send + Sync;

impl DirectPost {
    /// One that this function answers.
    pub fn new<F, Fut>(answer: F) -> Self
    where
        F: Fn(Caller, HeaderMap, Body) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response> + Send + 'static,
    {
        Self(Arc::new(move |caller, headers, body| answer(caller, headers, body).boxed()))
    }

    /// The answer.
    pub async fn answer(&self, caller: Caller, headers: HeaderMap, body: Body) -> Response {
        (self.0)(caller, headers, body).await
    }
}

impl fmt::Debug for DirectPost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectPost").finish_non_exhaustive()
    }
}

/// The route that answered, as it stands in the table: an id in a path would make a series each.
#[derive(Debug, Clone, Copy)]
pub struct RouteName(&'static str);

impl RouteName {
    /// The name of no route.
    pub const NONE: &str = "";

    /// Notes it on every response of the route.
    pub fn layer(
        name: &'static str,
    ) -> MapResponseLayer<impl Fn(Response) -> Response + Clone + Send + Sync + 'static> {
        MapResponseLayer::new(move |mut response: Response| {
            response.extensions_mut().insert(Self(name));
            response
        })
    }

    /// The one that was noted, or nothing.
    pub fn of(response: &Response) -> &'static str {
        response.extensions().get::<Self>().map_or(Self::NONE, |route| route.0)
    }
}
