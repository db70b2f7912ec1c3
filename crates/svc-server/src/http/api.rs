//! A router and its description, built together, so that they cannot differ.

use axum::{
    Router,
    body::Body,
    handler::Handler,
    response::Response,
    routing::{MethodFilter, on},
};
use futures_util::future::BoxFuture;
use http::Request;
use serde_json::Value;
use svc_model::Caller;

use super::{
    App,
    openapi::{Document, Operation},
};
use crate::web::RouteName;

/// A handler that reads much: it waits for its caller's turn, and renders its response within it.
#[derive(Debug, Clone)]
struct FairRead<H>(H);

impl<H, T> Handler<T, App> for FairRead<H>
where
    H: Handler<T, App>,
    T: 'static,
{
    type Future = BoxFuture<'static, Response>;

    fn call(self, request: Request<Body>, app: App) -> Self::Future {
        let services = app.services.clone();
        let caller = request.extensions().get::<Caller>().cloned();
        let answer = self.0.call(request, app);
        Box::pin(async move {
            match caller {
                Some(caller) => services.read_in_turn(&caller, answer).await,
                // The handler's own error.
                None => answer.await,
            }
        })
    }
}

/// Routes and their description.
#[derive(Debug)]
pub(super) struct Api {
    router: Router<App>,
    document: Document,
}

impl Api {
    /// An empty router, and the description of routes that others serve.
    pub(super) fn new(document: Document) -> Self {
        Self { router: Router::new(), document }
    }

    /// The routes, and the OpenAPI document.
    pub(super) fn finish(self) -> (Router<App>, Value) {
        (self.router, self.document.finish())
    }

    pub(super) fn get<H, T>(self, path: &'static str, operation: Operation, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        self.add(path, MethodFilter::GET, "get", operation, handler)
    }

    /// A `GET` that reads much: a list or a history.
    pub(super) fn list<H, T>(self, path: &'static str, operation: Operation, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        self.add(path, MethodFilter::GET, "get", operation, FairRead(handler))
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
