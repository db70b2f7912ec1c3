//! The adapter in process: requests go through the edge and the routes to services over a temporary store. Ids count and
//! the clock stands, so that an answer is the same at each run.

use axum::{Router, body::Body, response::Response};
use http::{HeaderMap, Method, Request, header};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{App, Edge, EntryRules, Identity, Metrics, Parts};
use crate::{
    domain::{Timestamp, limits},
    service::testing::services,
    store::testing::TestStore,
    web::Beat,
};

pub(super) struct TestServer {
    edge: Edge,
    operator: String,
    test: TestStore,
}

/// An answer, read to its end.
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl TestServer {
    pub(super) async fn start() -> Self {
        let test = TestStore::open().await;
        let services = services(&test);
        let operator = std::fs::read_to_string(test.folder().join("token")).unwrap();
        let edge = Edge::new(EntryRules::default(), "test");
        let app = App::new(Parts {
            services,
            tools: crate::tools::catalogue(),
            metrics: Metrics::default(),
            identity: Identity {
                boot_id: "test".to_owned(),
                pid: 1,
                started_at: Timestamp::from_millis(0),
            },
            beat: Beat::new(limits::SSE_KEEP_ALIVE),
            stop: CancellationToken::new(),
        });
        edge.ready(app, Router::new());
        Self { edge, operator: operator.trim().to_owned(), test }
    }

    /// A request of the operator.
    pub(super) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        self.request_as(&self.operator, method, path)
    }

    /// A request with a token.
    pub(super) fn request_as(
        &self,
        token: &str,
        method: Method,
        path: &str,
    ) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Answered {
        let response: Response = self.edge.answer(request).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let folder = self.test.folder().display().to_string();
        let body = String::from_utf8(body.to_vec()).unwrap().replace(&folder, "<folder>");
        Answered { status: parts.status.as_u16(), headers: parts.headers, body }
    }
}

impl Answered {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}
