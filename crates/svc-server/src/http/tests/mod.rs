//! Tests of the adapter in process: requests go through the edge and the routes to services over a
//! temporary store.
//!
//! [`TestServer`] is the daemon's HTTP side without a socket. [`Script`] records requests and
//! responses, and `answers` has the snapshots of every REST response. [`Client`] sends single
//! requests, and `shapes` checks the forms of their responses; the other files are tests by
//! resource.
//!
//! Tests that need a process, a socket, a file or a restart are in `tests/it`.

mod answers;
mod errors;
mod messages;
mod peers;
#[path = "../../../../../tests/it/shapes.rs"]
mod shapes;
mod tasks;

use std::{
    fmt::Write as _,
    net::{TcpListener, TcpStream},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderName, Method, Request, header, request::Builder};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use svc_core::service::{ServiceSettings, Services, Tokens, Tuning, process::RequestSender};
use svc_model::{Ids, LocalProcess, Timestamp};
use svc_store::testing::TestStore;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::{
    http::{App, AppState, Edge, EntryRules, Identity, Metrics},
    mcp::{self, McpMetrics, McpServer, McpServerParts, StreamResources},
};

/// Callers and replies by the names that `shapes` uses.
mod wire {
    pub(crate) use super::{Client as Caller, Reply};
}

/// How far the clock advances with a request.
const TICK: Duration = Duration::from_millis(10);

/// The daemon's HTTP side without a socket. Ids are counted, and the clock advances with each
/// request, so a response is the same in each run.
struct TestServer {
    edge: Edge,
    services: Services,
    operator: String,
    test: TestStore,
    /// The connection of the requests: identification looks it up in the system's list.
    connection: (TcpListener, TcpStream),
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl TestServer {
    async fn start() -> Self {
        Self::with(&Tuning::default()).await
    }

    async fn with(tuning: &Tuning) -> Self {
        let server = Self::starting(tuning).await;
        server.ready().await;
        server
    }

    /// A server whose database has at most this many bytes.
    async fn of_size(max_bytes: u64) -> Self {
        let test = TestStore::of_size(Some(max_bytes)).await;
        let server = Self::over(test, &Tuning::default());
        server.ready().await;
        server
    }

    /// A server that is not ready yet.
    async fn starting(tuning: &Tuning) -> Self {
        Self::over(TestStore::open().await, tuning)
    }

    fn over(test: TestStore, tuning: &Tuning) -> Self {
        let file = test.folder().join("token");
        let tokens = Tokens::open_or_make(&file).unwrap();
        let clock = Arc::clone(&test.clock) as _;
        let services = Services::new(
            test.store.clone(),
            clock,
            Ids::counting(),
            *tuning,
            tokens,
            ServiceSettings::default(),
        );
        let operator = std::fs::read_to_string(file).unwrap().trim().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let edge = Edge::new(EntryRules::default(), "test");
        Self { edge, services, operator, test, connection: (listener, client) }
    }

    async fn ready(&self) {
        let stop = CancellationToken::new();
        let mcp = McpServer::start(McpServerParts {
            services: self.services.clone(),
            catalogue: svc_core::tools::catalogue(),
            resources: vec![Box::new(StreamResources)],
            prompts: Vec::new(),
            sources: None,
            metrics: McpMetrics::default(),
            stop: stop.clone(),
            exposure: None,
        });
        let mcp = mcp.await.unwrap();
        let app = App::new(AppState {
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
            stop,
        });
        self.edge.ready(app, mcp::routes(mcp));
    }

    /// Writes impossible values into the rows of tasks.
    async fn contradict_tasks(&self) {
        self.test.contradict_tasks().await;
    }

    /// A request with this token, or with the operator's.
    fn request(&self, token: Option<&str>, method: Method, path: &str) -> Builder {
        let token = token.unwrap_or(&self.operator);
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
    }

    async fn send(&self, request: Request<Body>) -> Reply {
        let (parts, body) = self.answer(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        self.reply(&parts, &body)
    }

    /// The first `blocks` blocks of an endless stream.
    async fn send_and_read(&self, request: Request<Body>, blocks: usize) -> Reply {
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
            let to = match extensions.get() {
                Some(RequestSender::Tcp { to, .. }) => *to,
                _ => to,
            };
            extensions.insert(RequestSender::Tcp { from, to });
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
    fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.json()
    }

    fn status(&self) -> u16 {
        self.status
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// A text member of the body.
    fn text(&self, member: &str) -> String {
        let body = self.json();
        body[member].as_str().unwrap_or_else(|| panic!("`{member}` in {body}")).to_owned()
    }
}

/// A blocking client of the adapter in process: the operator, or a session.
pub(crate) struct Client {
    local: Rc<Local>,
    token: Option<String>,
}

struct Local {
    server: TestServer,
    runtime: Runtime,
}

/// A request that is not sent yet.
struct Draft<'a> {
    client: &'a Client,
    builder: Builder,
    body: Body,
}

impl Client {
    fn start() -> Self {
        Self::with(&Tuning::default())
    }

    fn with(tuning: &Tuning) -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let server = runtime.block_on(TestServer::with(tuning));
        Self { local: Rc::new(Local { server, runtime }), token: None }
    }

    /// The client with a token of this session.
    fn session(&self, session: &str) -> Self {
        let minted = self.post("/v1/tokens", &json!({ "session": session })).ok(201);
        Self { local: Rc::clone(&self.local), token: minted["token"].as_str().map(str::to_owned) }
    }

    fn get(&self, path: &str) -> Reply {
        self.request("GET", path).send()
    }

    fn delete(&self, path: &str) -> Reply {
        self.request("DELETE", path).send()
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, body.to_string())
    }

    /// Posts any bytes as JSON.
    fn post_text(&self, path: &str, body: impl Into<Body>) -> Reply {
        let request = self.request("POST", path).header("Content-Type", "application/json");
        request.body(body).send()
    }

    fn request(&self, method: &str, path: &str) -> Draft<'_> {
        let method: Method = method.parse().unwrap();
        let builder = self.local.server.request(self.token.as_deref(), method, path);
        Draft { client: self, builder, body: Body::empty() }
    }
}

impl Draft<'_> {
    fn header(mut self, name: &str, value: &str) -> Self {
        self.builder = self.builder.header(name, value);
        self
    }

    fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    fn send(self) -> Reply {
        let local = &self.client.local;
        let request = self.builder.body(self.body).unwrap();
        local.runtime.block_on(local.server.send(request))
    }
}

/// Consecutive requests, recorded with their responses.
struct Script {
    server: TestServer,
    /// The token of the next requests; `None` for the operator's.
    token: Option<String>,
    /// Requests and responses, without what differs from run to run.
    text: String,
    exchanges: Vec<Exchange>,
}

/// The request and response that coverage counts.
struct Exchange {
    method: Method,
    path: String,
    status: u16,
}

impl Script {
    async fn new() -> Self {
        Self::over(TestServer::start().await)
    }

    async fn with(tuning: &Tuning) -> Self {
        Self::over(TestServer::with(tuning).await)
    }

    fn over(server: TestServer) -> Self {
        Self { server, token: None, text: String::new(), exchanges: Vec::new() }
    }

    async fn get(&mut self, path: &str) -> Reply {
        self.call(Method::GET, path).await
    }

    async fn delete(&mut self, path: &str) -> Reply {
        self.call(Method::DELETE, path).await
    }

    /// Sends a request without a body.
    async fn call(&mut self, method: Method, path: &str) -> Reply {
        let request = self.request(method, path).body(Body::empty()).unwrap();
        self.send(request, "").await
    }

    async fn get_with(&mut self, path: &str, name: HeaderName, value: &str) -> Reply {
        let request = self.request(Method::GET, path).header(name, value);
        self.send(request.body(Body::empty()).unwrap(), "").await
    }

    async fn post(&mut self, path: &str, body: Value) -> Reply {
        self.post_text(path, "application/json", &body.to_string()).await
    }

    async fn post_text(&mut self, path: &str, media_type: &str, body: &str) -> Reply {
        let request = self.request(Method::POST, path).header(header::CONTENT_TYPE, media_type);
        self.send(request.body(Body::from(body.to_owned())).unwrap(), body).await
    }

    /// Metrics without their values, sorted by name.
    async fn get_metrics(&mut self, accept: &str) -> Reply {
        let request = self.request(Method::GET, "/metrics").header(header::ACCEPT, accept);
        let request = request.body(Body::empty()).unwrap();
        self.note_request(&request, "");
        let mut reply = self.server.send(request).await;
        let mut lines: Vec<_> = reply.body.lines().map(without_value).collect();
        lines.sort_unstable();
        reply.body = lines.join("\n");
        self.note_reply(Method::GET, "/metrics".to_owned(), &reply);
        reply
    }

    /// The first `blocks` blocks of an endless feed.
    async fn follow(&mut self, path: &str, blocks: usize) -> Reply {
        let request = self.request(Method::GET, path).header(header::ACCEPT, "text/event-stream");
        let request = request.body(Body::empty()).unwrap();
        self.note_request(&request, "");
        let (method, target) = (request.method().clone(), request.uri().path().to_owned());
        let reply = self.server.send_and_read(request, blocks).await;
        self.note_reply(method, target, &reply);
        reply
    }

    /// A message to the MCP server, or a request for its messages. Of an endless feed the first
    /// `blocks` blocks are read.
    async fn mcp(
        &mut self,
        method: Method,
        target: &str,
        session: Option<&str>,
        body: &str,
        blocks: Option<usize>,
    ) -> Reply {
        let media_types = "application/json, text/event-stream";
        let mut request = self.request(method.clone(), target).header(header::ACCEPT, media_types);
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let Some(blocks) = blocks else { return self.send(request, body).await };
        self.note_request(&request, body);
        let path = request.uri().path().to_owned();
        let reply = self.server.send_and_read(request, blocks).await;
        self.note_reply(method, path, &reply);
        reply
    }

    fn request(&self, method: Method, path: &str) -> Builder {
        self.server.request(self.token.as_deref(), method, path)
    }

    /// `body` is the text for the body in the snapshot.
    async fn send(&mut self, request: Request<Body>, body: &str) -> Reply {
        self.note_request(&request, body);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let reply = self.server.send(request).await;
        self.note_reply(method, path, &reply);
        reply
    }

    fn note_request(&mut self, request: &Request<Body>, body: &str) {
        writeln!(self.text, "> {} {}", request.method(), request.uri()).unwrap();
        let authorization = request.headers().get(header::AUTHORIZATION);
        match authorization.map(|value| value.to_str().unwrap()) {
            None => writeln!(self.text, "> (no authorization)").unwrap(),
            Some(value) if !value.starts_with("Bearer ") => {
                writeln!(self.text, "> authorization: {value}").unwrap();
            }
            Some(_) if self.token.is_some() => {
                writeln!(self.text, "> authorization: Bearer <not the operator's>").unwrap();
            }
            Some(_) => {}
        }
        let usual = [("host", "localhost"), ("content-type", "application/json")];
        for (name, value) in request.headers() {
            let value = value.to_str().unwrap();
            if name != header::AUTHORIZATION && !usual.contains(&(name.as_str(), value)) {
                writeln!(self.text, "> {name}: {value}").unwrap();
            }
        }
        if !body.is_empty() {
            writeln!(self.text, "> {body}").unwrap();
        }
    }

    fn note_reply(&mut self, method: Method, path: String, reply: &Reply) {
        writeln!(self.text, "{}", reply.status).unwrap();
        let id = reply.headers["x-request-id"].to_str().unwrap();
        // The length of a body that contains a size or a version differs.
        let headers = reply.headers.iter().filter(|(name, _)| *name != header::CONTENT_LENGTH);
        for (name, value) in headers {
            let value = value.to_str().unwrap().replace(id, "<request-id>");
            writeln!(self.text, "{name}: {value}").unwrap();
        }
        let body = reply.body.replace(&json!(id).to_string(), "\"<request-id>\"");
        match serde_json::from_str::<Value>(&body) {
            Ok(json) => writeln!(self.text, "{}", pretty(json)).unwrap(),
            Err(_) => writeln!(self.text, "{body}").unwrap(),
        }
        self.text.push('\n');
        self.exchanges.push(Exchange { method, path, status: reply.status });
    }
}

/// A sample without its value; a comment unchanged.
fn without_value(line: &str) -> &str {
    match line.rsplit_once(' ') {
        Some((sample, _)) if !line.starts_with('#') => sample,
        _ => line,
    }
}

/// JSON on several lines, without what differs from run to run.
fn pretty(mut json: Value) -> String {
    for member in [
        "token",
        "version",
        "target",
        "profile",
        "size_bytes",
        "wal_bytes",
        "free_bytes",
        "schema_version",
        "score",
        "proof",
    ] {
        redact(&mut json, member);
    }
    serde_json::to_string_pretty(&json).unwrap()
}

/// Replaces every text or number called `member` by a placeholder.
fn redact(json: &mut Value, member: &str) {
    match json {
        Value::Object(members) => {
            for (name, value) in members {
                if name == member && (value.is_string() || value.is_number()) {
                    *value = format!("<{member}>").into();
                } else {
                    redact(value, member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, member)),
        _ => {}
    }
}
