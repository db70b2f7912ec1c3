//! The daemon's HTTP side without a socket. Ids are counted, and the clock advances with each
//! request, so a response is the same in each run.

use std::{
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use axum::{body::Body, response::Response};
use http::{HeaderMap, Method, Request, header};
use http_body_util::BodyExt as _;
use serde_json::Value;
use svc_core::service::{Services, Tokens, Tuning};
use svc_model::{Ids, LocalProcess, Timestamp, limits};
use svc_store::testing::TestStore;
use tokio_util::sync::CancellationToken;

use crate::{
    http::{App, Edge, EntryRules, Identity, Metrics, Parts, Transport, listener::LocalAddress},
    mcp::{self, McpMetrics, McpServer, McpServerParts, StreamResources},
    web::KeepAlive,
};

/// How far the clock advances with a request.
const TICK: Duration = Duration::from_millis(10);

pub(super) struct TestServer {
    pub(super) edge: Edge,
    pub(super) services: Services,
    operator: String,
    test: TestStore,
    /// The connection of the requests: identification looks it up in the system's list.
    connection: (TcpListener, TcpStream),
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl TestServer {
    pub(super) async fn start() -> Self {
        Self::with(&Tuning::default()).await
    }

    pub(super) async fn with(tuning: &Tuning) -> Self {
        let server = Self::starting(tuning).await;
        server.ready().await;
        server
    }

    /// A server whose database has at most this many bytes.
    pub(super) async fn of_size(max_bytes: u64) -> Self {
        let test = TestStore::of_size(Some(max_bytes)).await;
        let server = Self::over(test, &Tuning::default());
        server.ready().await;
        server
    }

    /// A server that is not ready yet.
    pub(super) async fn starting(tuning: &Tuning) -> Self {
        Self::over(TestStore::open().await, tuning)
    }

    fn over(test: TestStore, tuning: &Tuning) -> Self {
        let file = test.folder().join("token");
        let tokens = Tokens::open_or_make(&file).unwrap();
        let clock = Arc::clone(&test.clock) as _;
        let services = Services::new(test.store.clone(), clock, Ids::counting(), *tuning, tokens);
        let operator = std::fs::read_to_string(file).unwrap().trim().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let edge = Edge::new(EntryRules::default(), "test");
        Self { edge, services, operator, test, connection: (listener, client) }
    }

    pub(super) async fn ready(&self) {
        let (beat, stop) = (KeepAlive::new(limits::SSE_KEEP_ALIVE), CancellationToken::new());
        let mcp = McpServer::start(McpServerParts {
            services: self.services.clone(),
            catalogue: svc_core::tools::catalogue(),
            resources: vec![Box::new(StreamResources)],
            prompts: mcp::builtin_prompts(),
            sources: None,
            metrics: McpMetrics::default(),
            beat: beat.clone(),
            stop: stop.clone(),
            exposure: None,
        });
        let mcp = mcp.await.unwrap();
        let app = App::new(Parts {
            services: self.services.clone(),
            tools: svc_core::tools::catalogue(),
            sources: None,
            doctor: None,
            metrics: Metrics::default(),
            identity: Identity {
                boot_id: "test".to_owned(),
                pid: 1,
                started_at: Timestamp::from_millis(0),
            },
            beat,
            stop,
        });
        self.edge.ready(app, mcp::routes(mcp));
    }

    /// Writes impossible values into the rows of tasks.
    pub(super) async fn contradict_tasks(&self) {
        self.test.contradict_tasks().await;
    }

    /// A request with this token, or with the operator's.
    pub(super) fn request(
        &self,
        token: Option<&str>,
        method: Method,
        path: &str,
    ) -> http::request::Builder {
        let token = token.unwrap_or(&self.operator);
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Reply {
        let (parts, body) = self.answer(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        self.reply(&parts, &body)
    }

    /// The first `blocks` blocks of an endless stream.
    pub(super) async fn send_and_read(&self, request: Request<Body>, blocks: usize) -> Reply {
        let (parts, mut body) = self.answer(request).await.into_parts();
        let mut text = Vec::new();
        while text.windows(2).filter(|pair| pair == b"\n\n").count() < blocks {
            let frame = body.frame().await.expect("the stream goes on").unwrap();
            text.extend_from_slice(&frame.into_data().unwrap());
        }
        self.reply(&parts, &text)
    }

    async fn answer(&self, mut request: Request<Body>) -> Response {
        self.test.clock.advance(TICK);
        let (_, client) = &self.connection;
        let (to, from) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
        let extensions = request.extensions_mut();
        if extensions.get::<LocalProcess>().is_none() {
            let to = extensions.get().map_or(to, |LocalAddress(address)| *address);
            Transport::Tcp { to, from }.describe(extensions);
        }
        self.edge.answer(request).await
    }

    fn reply(&self, parts: &http::response::Parts, body: &[u8]) -> Reply {
        let folder = self.test.folder().display().to_string();
        let body = std::str::from_utf8(body).unwrap().replace(&folder, "<folder>");
        Reply { status: parts.status.as_u16(), headers: parts.headers.clone(), body }
    }
}

impl Reply {
    /// The body of a response with this status.
    #[track_caller]
    pub(super) fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// A text member of the body.
    pub(super) fn text(&self, member: &str) -> String {
        let body = self.json();
        body[member].as_str().unwrap_or_else(|| panic!("`{member}` in {body}")).to_owned()
    }
}
