//! A router and its description, made together: no route is undescribed, and no description is unserved.

use axum::{
    Router,
    handler::Handler,
    routing::{MethodFilter, on},
};
use serde_json::Value;

use super::{
    App,
    openapi::{Document, Operation},
};
use crate::web::RouteName;

/// Routes and their description.
#[derive(Debug)]
pub(super) struct Api {
    router: Router<App>,
    document: Document,
}

impl Api {
    /// No routes, and the description of those that others serve.
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
