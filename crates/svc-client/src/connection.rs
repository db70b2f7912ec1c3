//! A small HTTP/1.1 client: JSON requests and responses, streams, and the JSON-RPC messages of an
//! MCP server, either in one document or in a stream of events.
//!
//! A connection is used only if its peer is the daemon, so that no token goes to anybody else: on
//! the Unix socket the kernel says whose process listens, and over TCP the daemon proves that it
//! knows the token.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use svc_model::{PROCESS_HEADER, ProofQuestion, TokenFingerprint, new_secret, token_hash};
use svc_sys::local_socket::{self, ConnectError};
use svc_wire::mcp_request::McpRequest;
use svc_wire::retry_after;
use svc_wire::sse::{self, SseEvent, SseParser};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::discover::{DaemonTarget, Endpoint, Token, Url};
use super::error::{ClientError, ClientProblem};

/// Time limit for connecting, and for a proof.
const CONNECT: Duration = Duration::from_secs(5);
/// Largest proof, in bytes.
const MAX_PROOF: usize = 64 * 1024;

type Sender = SendRequest<Full<Bytes>>;

impl DaemonTarget {
    /// Returns the connection, and the daemon's process, which the kernel reports only on the
    /// socket.
    async fn connect(&self) -> Result<(Sender, Option<i32>), ClientError> {
        match &self.endpoint {
            Endpoint::Socket(path) => {
                let stream = self.in_time(CONNECT, local_socket::connect(path)).await?;
                let stream = stream.map_err(|error| self.refused(error))?;
                let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
                Ok((self.open(stream).await?, pid))
            }
            Endpoint::Tcp(url) => {
                let stream = match self.in_time(CONNECT, TcpStream::connect(url.socket())).await? {
                    Ok(stream) => stream,
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                        return Err(ClientError::NotRunning { url: self.url() });
                    }
                    Err(error) => return Err(self.broken(&error, false)),
                };
                // With Nagle's algorithm each small message would take 40 ms longer.
                stream.set_nodelay(true).map_err(|error| self.broken(&error, false))?;
                let address = stream.peer_addr().map_err(|error| self.broken(&error, false))?;
                let mut sender = self.open(stream).await?;
                if let Some(token) = &self.token {
                    self.in_time(CONNECT, self.prove(url, address, token, &mut sender)).await??;
                }
                Ok((sender, None))
            }
        }
    }

    async fn open(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Sender, ClientError> {
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error, false))?;
        // The task ends when the sender is dropped or the peer closes the connection.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    /// Requires a proof that the peer knows the token. The question reveals nothing about it.
    async fn prove(
        &self,
        url: &Url,
        address: SocketAddr,
        token: &Token,
        sender: &mut Sender,
    ) -> Result<(), ClientError> {
        let unproven = |problem: String, is_unknown_token| ClientError::Unproven {
            url: url.to_string(),
            problem,
            is_unknown_token,
        };
        let (hash, nonce) = (token_hash(token.expose()), new_secret());
        // The name of this machine may have several addresses; the proof is for the connected one.
        let authority =
            if url.is_address_or_localhost() { address.to_string() } else { url.authority() };
        let question = ProofQuestion { nonce: &nonce, authority: &authority };
        let body =
            json!({ "token": TokenFingerprint::from_hash(&hash).to_string(), "nonce": nonce });
        let request = Request::builder()
            .method(Method::POST)
            .uri(url.path("/v1/daemon_proof"))
            .header(HOST, &authority)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.to_string().into()))
            .map_err(|error| unproven(error.to_string(), false))?;
        let response =
            sender.send_request(request).await.map_err(|error| self.broken(&error, false))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_PROOF).collect().await;
        let body = body.map_err(|error| self.broken(&error, false))?.to_bytes();
        let source = &self.token_source;
        match status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => {
                let problem = format!(
                    "it does not know {source}: it is the daemon of another data folder, or the token is no longer good"
                );
                return Err(unproven(problem, true));
            }
            StatusCode::FORBIDDEN => {
                let problem = format!(
                    "it was not reached at an address of its own: behind a proxy or a mapped port it needs --allowed-host {authority}"
                );
                return Err(unproven(problem, false));
            }
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                let problem = ClientProblem::parse(status, None, &body, source.clone());
                return Err(ClientError::Problem(Box::new(problem)));
            }
            _ => {
                let problem = format!(
                    "it gives no proof ({status}): it is no svc daemon, or one of an earlier version (`svc restart` there)"
                );
                return Err(unproven(problem, false));
            }
        }
        let reply: Value = serde_json::from_slice(&body).unwrap_or_default();
        if reply["proof"].as_str().is_some_and(|proof| question.accepts(&hash, proof)) {
            return sender.ready().await.map_err(|error| self.broken(&error, false));
        }
        let problem = "its proof is wrong: it is another program, or one that passes requests on under another Host";
        Err(unproven(problem.to_owned(), false))
    }

    fn url(&self) -> String {
        self.endpoint.to_string()
    }

    async fn in_time<F: Future>(&self, limit: Duration, work: F) -> Result<F::Output, ClientError> {
        let late = |_| ClientError::Timeout { url: self.url(), seconds: limit.as_secs() };
        timeout(limit, work).await.map_err(late)
    }

    fn refused(&self, error: ConnectError) -> ClientError {
        match error {
            ConnectError::Absent(_) => ClientError::NotRunning { url: self.url() },
            ConnectError::Foreign { .. } | ConnectError::OtherProcess { .. } => {
                ClientError::Foreign(error.to_string())
            }
            ConnectError::Io { source, .. } => self.broken(&source, false),
        }
    }

    fn broken(&self, problem: &dyn Display, sent: bool) -> ClientError {
        ClientError::Connection { url: self.url(), problem: problem.to_string(), sent }
    }

    fn unexpected(&self, problem: &dyn Display) -> ClientError {
        ClientError::Unexpected { url: self.url(), problem: problem.to_string() }
    }
}

/// Time limit for the head of a response, and again for its body.
const ANSWER: Duration = Duration::from_secs(30);
/// Largest JSON response, in bytes.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// A client of one daemon. Clones share one kept-alive connection and use it in turns.
#[derive(Debug, Clone)]
pub struct Client {
    target: Arc<DaemonTarget>,
    idle: Arc<Mutex<Option<Sender>>>,
    /// The daemon's pid as the kernel reports it; 0 if unknown.
    pid: Arc<AtomicI32>,
}

#[derive(Debug)]
pub struct HttpReply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    target: Arc<DaemonTarget>,
}

/// A response whose body is still arriving.
#[derive(Debug)]
pub struct StreamingReply {
    /// 2xx, unless the reply is from [`Client::open`], which returns any status.
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    target: Arc<DaemonTarget>,
}

impl Client {
    /// Does not connect until the first request.
    pub fn new(target: DaemonTarget) -> Self {
        Self { target: Arc::new(target), idle: Arc::default(), pid: Arc::default() }
    }

    pub fn target(&self) -> &DaemonTarget {
        &self.target
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::GET, path, None).await?.json()
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| self.target.unexpected(&error))?;
        self.request(Method::POST, path, Some(body.into())).await?.json()
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.request(Method::DELETE, path, None).await?.json()
    }

    /// Sends a request with a JSON body. Any status but 2xx is an error.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<HttpReply, ClientError> {
        let reply = self.exchange(method, path, body).await?;
        if reply.status.is_success() {
            return Ok(reply);
        }
        Err(ClientError::Problem(Box::new(reply.problem())))
    }

    /// Returns the response with any status.
    ///
    /// The request is repeated on a new connection only if the kept-alive one was closed before any
    /// part of the request was written.
    pub async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<HttpReply, ClientError> {
        let mut request = self.build(method, path, body, &accept("application/json"))?;
        let mut idle = self.idle.lock().await;
        let response = loop {
            let kept = match idle.take() {
                // If the connection is not ready, it was closed, or a response on it was abandoned.
                Some(mut sender) => sender.ready().await.is_ok().then_some(sender),
                None => None,
            };
            let (mut sender, reused) = match kept {
                Some(sender) => (sender, true),
                None => (self.connect().await?, false),
            };
            match self.target.in_time(ANSWER, sender.try_send_request(request)).await? {
                Ok(response) => {
                    *idle = Some(sender);
                    break response;
                }
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if reused => request = unsent,
                    unsent => return Err(self.target.broken(failed.error(), unsent.is_none())),
                },
            }
        };
        let reply = self.streaming(response).collect();
        let reply = self.target.in_time(ANSWER, reply).await.flatten();
        if reply.is_err() {
            *idle = None;
        }
        reply
    }

    /// Opens a stream on a new connection. Only the response's head has a time limit.
    pub async fn stream(
        &self,
        path: &str,
        headers: &[(&'static str, String)],
    ) -> Result<StreamingReply, ClientError> {
        let mut all = accept(sse::MEDIA_TYPE);
        for (name, value) in headers {
            let value =
                HeaderValue::from_str(value).map_err(|error| self.target.unexpected(&error))?;
            all.insert(*name, value);
        }
        let request = self.build(Method::GET, path, None, &all)?;
        let stream = self.target.in_time(ANSWER, self.send(request)).await??;
        if stream.status.is_success() {
            return Ok(stream);
        }
        let reply = self.target.in_time(ANSWER, stream.collect()).await??;
        Err(ClientError::Problem(Box::new(reply.problem())))
    }

    /// Sends a request to an MCP server on a new connection, and returns a response with any
    /// status.
    ///
    /// Only the connecting has a time limit: a tool may take as long as its caller allows. The
    /// connection closes when the response or this future is dropped.
    pub async fn open(
        &self,
        path: &str,
        outgoing: &McpRequest,
    ) -> Result<StreamingReply, ClientError> {
        let McpRequest { method, headers, body } = outgoing;
        let body = (!body.is_empty()).then(|| body.clone());
        self.send(self.build(method.clone(), path, body, headers)?).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<StreamingReply, ClientError> {
        let mut sender = self.connect().await?;
        let response = sender.try_send_request(request).await.map_err(|mut failed| {
            let unsent = failed.take_message().is_some();
            self.target.broken(failed.error(), !unsent)
        })?;
        Ok(self.streaming(response))
    }

    fn streaming(&self, response: Response<Incoming>) -> StreamingReply {
        let (Parts { status, headers, .. }, body) = response.into_parts();
        StreamingReply { status, headers, body, target: Arc::clone(&self.target) }
    }

    fn build(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        headers: &HeaderMap,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        if has_blank_segment(path) {
            return Err(ClientError::BlankName);
        }
        let mut request = Request::builder()
            .method(method)
            .uri(self.target.endpoint.path(path))
            .header(HOST, self.target.endpoint.authority())
            .header(USER_AGENT, concat!("svc/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(token) = &self.target.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                .map_err(|error| self.target.unexpected(&error))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if let Some(process) = self.target.process {
            request = request.header(PROCESS_HEADER, process);
        }
        if body.is_some() && !headers.contains_key(CONTENT_TYPE) {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| self.target.unexpected(&error))
    }

    async fn connect(&self) -> Result<Sender, ClientError> {
        let (sender, pid) = self.target.connect().await?;
        if let Some(pid) = pid {
            self.pid.store(pid, Relaxed);
        }
        Ok(sender)
    }

    /// The daemon's pid; `None` before the first connection to the socket.
    pub fn pid(&self) -> Option<i32> {
        Some(self.pid.load(Relaxed)).filter(|pid| *pid > 0)
    }
}

impl HttpReply {
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body).map_err(|error| self.target.unexpected(&error))
    }

    pub fn problem(&self) -> ClientProblem {
        ClientProblem::parse(
            self.status,
            retry_after(&self.headers),
            &self.body,
            self.target.token_source.clone(),
        )
    }
}

impl StreamingReply {
    /// The next bytes, or `None` at the end of the body.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| self.target.broken(&error, true))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads the next bytes; fails if none arrive within `silence`.
    pub(super) async fn chunk_within(
        &mut self,
        silence: Duration,
    ) -> Result<Option<Bytes>, ClientError> {
        let target = Arc::clone(&self.target);
        target.in_time(silence, self.chunk()).await.flatten()
    }

    pub async fn collect(mut self) -> Result<HttpReply, ClientError> {
        let mut body = BytesMut::new();
        while let Some(data) = self.chunk().await? {
            if body.len() + data.len() > MAX_ANSWER {
                let problem = format!("the answer is larger than {MAX_ANSWER} bytes");
                return Err(self.target.broken(&problem, true));
            }
            body.extend_from_slice(&data);
        }
        let Self { status, headers, target, .. } = self;
        Ok(HttpReply { status, headers, body: body.freeze(), target })
    }

    pub fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.headers)
    }

    pub fn is_event_stream(&self) -> bool {
        sse::is_event_stream(&self.headers)
    }

    pub fn url(&self) -> String {
        self.target.url()
    }
}

fn accept(kind: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(kind))])
}

/// Silence after which a stream counts as broken: the daemon sends a comment every 15 s.
const SILENCE: Duration = Duration::from_mins(1);

/// The messages of a response: one document, or events.
#[derive(Debug)]
pub struct McpReply {
    /// `None` after the document.
    stream: Option<StreamingReply>,
    events: Option<(SseParser, VecDeque<SseEvent>)>,
}

impl McpReply {
    pub fn new(stream: StreamingReply) -> Self {
        let events = stream.is_event_stream().then(|| (SseParser::new(), VecDeque::new()));
        Self { stream: Some(stream), events }
    }

    /// The next message, unchanged except for line breaks; `None` at the end.
    ///
    /// Skips comments, and events that have only an id.
    pub async fn next(&mut self) -> Result<Option<String>, ClientError> {
        let Some((parser, queue)) = &mut self.events else {
            let Some(stream) = self.stream.take() else { return Ok(None) };
            let url = stream.url();
            let body = stream.collect().await?.body;
            let text = String::from_utf8(body.into())
                .map_err(|error| ClientError::Unexpected { url, problem: error.to_string() })?;
            return Ok((!text.trim().is_empty()).then(|| one_line(text)));
        };
        let Some(stream) = &mut self.stream else { return Ok(None) };
        loop {
            match queue.pop_front() {
                Some(event) if event.data.is_empty() => continue,
                Some(event) => return Ok(Some(one_line(event.data))),
                None => {}
            }
            let Some(bytes) = stream.chunk_within(SILENCE).await? else { return Ok(None) };
            let mut events = Vec::new();
            parser
                .feed(&bytes, &mut events)
                .map_err(|source| ClientError::Stream { url: stream.url(), source })?;
            queue.extend(events);
        }
    }

    /// The id after which the stream can be resumed.
    pub fn last_event_id(&self) -> Option<&str> {
        let (parser, _) = self.events.as_ref()?;
        Some(parser.last_event_id()).filter(|id| !id.is_empty())
    }

    /// The last reconnection time that the stream has sent.
    pub fn retry(&self) -> Option<Duration> {
        self.events.as_ref().and_then(|(parser, _)| parser.retry())
    }
}

/// Puts JSON on one line.
///
/// JSON strings escape line breaks, so a raw line break is between tokens and a space can replace
/// it. Every other byte stays.
pub fn one_line(text: String) -> String {
    let text = if text.contains(['\n', '\r']) { text.replace(['\n', '\r'], " ") } else { text };
    let trimmed = text.trim();
    if trimmed.len() == text.len() { text } else { trimmed.to_owned() }
}

/// Whether a segment of a path is empty, as where an empty id was put into it.
fn has_blank_segment(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    path.strip_prefix('/')
        .is_some_and(|rest| !rest.is_empty() && rest.split('/').any(str::is_empty))
}

#[cfg(test)]
mod tests {
    use svc_wire::mcp_request::{RequestSetting, post};

    use super::super::tests::{FakeDaemon, answer, stream, target};
    use super::*;

    #[tokio::test]
    async fn one_connection_serves_many_requests_and_a_closed_one_is_replaced() {
        let fine = || answer("200 OK", "", "{\"n\":1}");
        // The first connection closes without notice after two responses.
        let home = tempfile::tempdir().expect("a folder");
        let fake = FakeDaemon::start(home.path(), vec![vec![fine(), fine()], vec![fine()]]);
        let client = Client::new(target(home.path()));
        for _ in 0..3 {
            let value: Value = client.post("/v1/x", &json!({ "a": 1 })).await.expect("answers");
            assert_eq!(value["n"], 1);
        }
        let requests = fake.requests();
        assert_eq!(requests.len(), 3);
        let first = requests[0].to_ascii_lowercase();
        for part in [
            "post /v1/x http/1.1",
            "authorization: bearer tok",
            "content-type: application/json",
            "{\"a\":1}",
        ] {
            assert!(first.contains(part), "{part} in {first}");
        }
        assert!(first.contains("host: localhost"), "{first}");
    }

    #[tokio::test]
    async fn blank_id_in_a_path_is_refused_before_a_connection() {
        for (path, is_blank) in [
            ("/", false),
            ("/v1/tasks", false),
            ("/v1/tasks/task_x?a=//", false),
            ("/v1/tasks/", true),
            ("/v1/tasks/?wait=true", true),
            ("/v1/tasks//cancel", true),
        ] {
            assert_eq!(has_blank_segment(path), is_blank, "{path}");
        }
        let home = tempfile::tempdir().expect("a folder");
        let client = Client::new(target(home.path()));
        let refused = client.get::<Value>("/v1/tasks/").await.expect_err("is blank");
        assert!(matches!(refused, ClientError::BlankName), "{refused}");
    }

    #[tokio::test]
    async fn refusal_has_a_reason_and_a_time_to_retry() {
        let body = r#"{"code":"unavailable","detail":"the daemon is starting","retryable":true}"#;
        let home = tempfile::tempdir().expect("a folder");
        let refusal = answer("503 Service Unavailable", "retry-after: 7\r\n", body);
        FakeDaemon::start(home.path(), vec![vec![refusal]]);
        let error =
            Client::new(target(home.path())).get::<Value>("/v1/x").await.expect_err("is a refusal");
        assert_eq!(error.to_string(), "the daemon is starting; try again in 7 s");
        assert!(error.is_transient());
        assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    }

    #[tokio::test]
    async fn error_of_a_missing_daemon_has_a_remedy() {
        let home = tempfile::tempdir().expect("a folder");
        FakeDaemon::start(home.path(), Vec::new());
        let client = Client::new(target(home.path()));
        // The fake daemon's listener is closed after its last script.
        let error = loop {
            match client.get::<Value>("/v1/x").await {
                Err(error @ ClientError::NotRunning { .. }) => break error,
                Err(ClientError::Connection { .. }) => {}
                other => panic!("{other:?}"),
            }
        };
        assert!(error.to_string().contains("svc start"), "{error}");
    }

    #[tokio::test]
    async fn truncated_response_is_an_error() {
        let cut = "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{}".to_owned();
        let home = tempfile::tempdir().expect("a folder");
        FakeDaemon::start(home.path(), vec![vec![cut]]);
        let error =
            Client::new(target(home.path())).get::<Value>("/v1/x").await.expect_err("is cut");
        assert!(matches!(error, ClientError::Connection { sent: true, .. }), "{error:?}");
    }

    async fn read(raw: String) -> (StatusCode, Vec<String>, Option<String>, bool) {
        let home = tempfile::tempdir().expect("a folder");
        let fake = FakeDaemon::start(home.path(), vec![vec![raw]]);
        let ping =
            post(Bytes::from_static(br#"{"id":1,"method":"ping"}"#), RequestSetting::default());
        let opened = Client::new(target(home.path())).open("/mcp", &ping).await.expect("answers");
        let status = opened.status;
        let (mut answer, mut seen) = (McpReply::new(opened), Vec::new());
        let clean = loop {
            match answer.next().await {
                Ok(Some(message)) => seen.push(message),
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let request = fake.requests().concat().to_ascii_lowercase();
        for part in ["post /mcp", "authorization: bearer tok", "mcp-method: ping"] {
            assert!(request.contains(part), "{part} in {request}");
        }
        (status, seen, answer.last_event_id().map(str::to_owned), clean)
    }

    #[tokio::test]
    async fn document_is_one_message_on_one_line() {
        let kind = "content-type: application/json\r\n";
        let pretty = "{\r\n  \"id\": 1,\n  \"result\": {\"big\": 12345678901234567890123, \"s\": \"a\\nb\"}\n}\n";
        let (status, seen, _, clean) = read(answer("200 OK", kind, pretty)).await;
        assert_eq!(status, 200);
        assert_eq!(
            seen,
            [r#"{    "id": 1,   "result": {"big": 12345678901234567890123, "s": "a\nb"} }"#]
        );
        assert!(clean);
        let refused = answer("404 Not Found", kind, r#"{"id":1,"error":{"code":-32601}}"#);
        assert_eq!(read(refused).await.0, 404);
        assert_eq!(read(answer("202 Accepted", "", "")).await.1, Vec::<String>::new());
    }

    #[tokio::test]
    async fn events_are_messages_and_empty_ones_move_the_id() {
        let text = "retry: 10\nid: s.0\ndata: \n\n: hello\n\nid: s.1\ndata: {\"a\":\ndata: 1}\n\nid: s.2\n\n";
        let (_, seen, last, clean) = read(stream(text)).await;
        assert_eq!(
            (seen, last.as_deref(), clean),
            (vec![r#"{"a": 1}"#.to_owned()], Some("s.2"), true)
        );
    }

    #[tokio::test]
    async fn truncated_stream_is_an_error() {
        let raw = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n";
        let (_, seen, last, clean) = read(raw.to_owned()).await;
        assert_eq!((seen, last, clean), (vec!["1".to_owned()], None, false));
    }
}
