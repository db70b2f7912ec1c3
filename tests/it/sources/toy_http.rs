//! A small MCP server over HTTP for tests, and an issuer for its logins.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::{broadcast, mpsc};

/// The revision that it supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToyEra {
    /// With sessions.
    Legacy,
    /// Without sessions.
    Modern,
    /// The transport of 2024-11-05.
    Sse,
}

/// The server; it ends on drop.
pub(super) struct ToyHttp {
    pub(super) addr: SocketAddr,
    pub(super) toy: Arc<Toy>,
    runtime: Option<tokio::runtime::Runtime>,
}

pub(super) struct Toy {
    era: ToyEra,
    addr: Mutex<Option<SocketAddr>>,
    /// Open sessions, and the number of sessions so far.
    pub(super) sessions: Mutex<HashSet<String>>,
    pub(super) opened: AtomicU32,
    pub(super) deleted: AtomicU32,
    grown: AtomicBool,
    /// Calls of `bump` and `echo` that were carried out.
    pub(super) bumped: AtomicU32,
    pub(super) echoed: AtomicU32,
    /// Methods of received notifications.
    pub(super) notes: Mutex<Vec<String>>,
    /// `X-Request-Id`, `traceparent` and `_meta` of calls of `echo`.
    pub(super) traces: Mutex<Vec<(String, String, Value)>>,
    /// Responses for resumed streams.
    later: Mutex<HashMap<String, String>>,
    to_all: broadcast::Sender<String>,
    /// It has a prompt that asks, and a tool that becomes a task.
    pub(super) asks: AtomicBool,
    /// The answer to a task's question, and the number of cancelled tasks.
    told: Mutex<Option<Value>>,
    pub(super) cancelled: AtomicU32,
    /// It responds to nothing any more.
    pub(super) hangs: AtomicBool,
    /// What it responds with in place of all else: the status of a proxy, or 1 for a truncated
    /// response.
    pub(super) sick: AtomicU16,
    /// How many further requests of `server/discover` get no response.
    pub(super) unanswered_discoveries: AtomicU32,
    /// How many further requests for a stream of messages to all are refused, and with which
    /// status.
    pub(super) refused_streams: AtomicU32,
    pub(super) stream_refusal: AtomicU16,
    pub(super) issuer: Mutex<Issuer>,
    /// A header that each request needs.
    pub(super) wants: Mutex<Option<(String, String)>>,
}

#[derive(Default)]
pub(super) struct Issuer {
    /// Whether the server requires a token.
    pub(super) is_wanted: bool,
    pub(super) access: String,
    pub(super) refresh: String,
    pub(super) lasts: u64,
    challenge: String,
    pub(super) refreshes: u32,
    /// Renewals that were refused.
    pub(super) refusals: u32,
    pub(super) registered: u32,
    pub(super) revoked: Vec<String>,
    /// It cannot be reached.
    pub(super) is_gone: bool,
    serial: u32,
    /// False members of its metadata.
    pub(super) lies: HashMap<&'static str, Value>,
    /// The scope of the last login request.
    pub(super) asked: String,
    /// A scope that calls need.
    pub(super) needs: Option<String>,
    pub(super) granted: String,
}

impl ToyHttp {
    pub(super) fn start(era: ToyEra) -> Self {
        Self::start_at(era, 0)
    }

    pub(super) fn start_at(era: ToyEra, port: u16) -> Self {
        let toy = Arc::new(Toy {
            era,
            addr: Mutex::default(),
            sessions: Mutex::default(),
            opened: AtomicU32::new(0),
            deleted: AtomicU32::new(0),
            grown: AtomicBool::new(false),
            bumped: AtomicU32::new(0),
            echoed: AtomicU32::new(0),
            notes: Mutex::default(),
            traces: Mutex::default(),
            later: Mutex::default(),
            to_all: broadcast::Sender::new(16),
            asks: AtomicBool::new(false),
            told: Mutex::default(),
            cancelled: AtomicU32::new(0),
            hangs: AtomicBool::new(false),
            sick: AtomicU16::new(0),
            unanswered_discoveries: AtomicU32::new(0),
            refused_streams: AtomicU32::new(0),
            stream_refusal: AtomicU16::new(429),
            issuer: Mutex::default(),
            wants: Mutex::default(),
        });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind(("127.0.0.1", port)));
        let listener = listener.expect("a port");
        let addr = listener.local_addr().expect("an address");
        *toy.addr.lock().expect("a lock") = Some(addr);
        let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&toy));
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self { addr, toy, runtime: Some(runtime) }
    }

    pub(super) fn url(&self) -> String {
        let path = if self.toy.era == ToyEra::Sse { "sse" } else { "mcp" };
        format!("http://{}/{path}", self.addr)
    }

    /// Forgets all sessions, like a restarted server.
    pub(super) fn forget(&self) {
        self.toy.sessions.lock().expect("a lock").clear();
    }

    pub(super) fn issuer(&self) -> std::sync::MutexGuard<'_, Issuer> {
        self.toy.issuer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ToyHttp {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn respond(status: u16, kind: &str, body: impl Into<Body>) -> Response {
    let response = Response::builder().status(status).header("content-type", kind);
    response.body(body.into()).expect("is one")
}

fn json_of(status: u16, value: &Value) -> Response {
    respond(status, "application/json", value.to_string())
}

fn text_of(status: u16, text: &str) -> Response {
    respond(status, "text/plain", text.to_owned())
}

/// A stream of what is sent, until the sender is dropped.
fn stream_of(taken: mpsc::UnboundedReceiver<String>) -> Response {
    let stream = futures_util::stream::unfold(taken, |mut taken| async move {
        let text = taken.recv().await?;
        Some((Ok::<_, Infallible>(Bytes::from(text)), taken))
    });
    respond(200, "text/event-stream", Body::from_stream(stream))
}

fn question() -> Value {
    let schema = json!({ "type": "object", "properties": {} });
    let params = json!({ "mode": "form", "message": "well?", "requestedSchema": schema });
    json!({ "method": "elicitation/create", "params": params })
}

/// A prompt with an answer in it.
fn prompt_of(params: &Value) -> Value {
    let answers = &params["inputResponses"];
    if !answers.is_object() || params["requestState"] != "state-1" {
        let requests = json!({ "who": question() });
        return json!({ "resultType": "input_required", "inputRequests": requests, "requestState": "state-1" });
    }
    let content = json!({ "type": "text", "text": answers.to_string() });
    json!({ "resultType": "complete", "messages": [{ "role": "user", "content": content }] })
}

fn event(message: &Value) -> String {
    format!("event: message\ndata: {message}\n\n")
}

async fn answer(
    State(toy): State<Arc<Toy>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if toy.hangs.load(SeqCst) {
        std::future::pending::<()>().await;
    }
    match toy.sick.load(SeqCst) {
        0 => {}
        1 => {
            let part = [Ok("{"), Err(std::io::Error::other("cut"))];
            let body = Body::from_stream(futures_util::stream::iter(part));
            return respond(200, "application/json", body);
        }
        status => return text_of(status, "no"),
    }
    let unanswered = &toy.unanswered_discoveries;
    if String::from_utf8_lossy(&body).contains("server/discover")
        && unanswered.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    {
        std::future::pending::<()>().await;
    }
    let header =
        |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let base = format!("http://{}", toy.addr.lock().expect("a lock").expect("is bound"));
    match (method.as_str(), uri.path()) {
        ("GET", "/mcp" | "/sse") | ("POST" | "DELETE", "/mcp" | "/messages") => {}
        ("POST", "/moved") => {
            let response = Response::builder().status(307).header("location", "/mcp");
            return response.body(Body::empty()).expect("is one");
        }
        ("POST", "/elsewhere") => {
            let response =
                Response::builder().status(307).header("location", "http://localhost:1/mcp");
            return response.body(Body::empty()).expect("is one");
        }
        (_, path) => return toy.issuer_answer(path, &uri, &base, &body),
    }
    if let Some((name, value)) = &*toy.wants.lock().expect("a lock")
        && header(name) != value
    {
        return text_of(401, "no");
    }
    {
        let issuer = toy.issuer.lock().expect("a lock");
        let challenge = |more: &str| {
            let text = format!("Bearer resource_metadata=\"{base}/metadata-of-mcp\"{more}");
            let response = Response::builder().status(if more.is_empty() { 401 } else { 403 });
            response.header("www-authenticate", text).body(Body::empty()).expect("is one")
        };
        if issuer.is_wanted && header("authorization") != format!("Bearer {}", issuer.access) {
            return challenge("");
        }
        if let Some(needs) = &issuer.needs
            && String::from_utf8_lossy(&body).contains("\"tools/call\"")
            && !issuer.granted.split(' ').any(|scope| scope == needs)
        {
            return challenge(&format!(", error=\"insufficient_scope\", scope=\"{needs}\""));
        }
    }
    let asks_for_stream =
        method == Method::GET || String::from_utf8_lossy(&body).contains("subscriptions/listen");
    if asks_for_stream
        && toy.refused_streams.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    {
        return text_of(toy.stream_refusal.load(SeqCst), "not now");
    }
    match (method.as_str(), toy.era) {
        ("GET", ToyEra::Sse) => toy.open_sse(),
        ("GET", ToyEra::Legacy) => toy.open_get(header("mcp-session-id"), header("last-event-id")),
        ("DELETE", ToyEra::Legacy) => {
            toy.deleted.fetch_add(1, SeqCst);
            let known = toy.sessions.lock().expect("a lock").remove(header("mcp-session-id"));
            text_of(if known { 204 } else { 404 }, "")
        }
        ("POST", _) => toy.post(&headers, &body),
        _ => text_of(405, "no"),
    }
}

impl Toy {
    fn open_sse(&self) -> Response {
        let (sender, taken) = mpsc::unbounded_channel();
        sender.send("event: endpoint\ndata: /messages?s=1\n\n".to_owned()).expect("is taken");
        self.pass_on(sender);
        stream_of(taken)
    }

    /// Subscribes a stream to messages for all.
    fn pass_on(&self, sender: mpsc::UnboundedSender<String>) {
        let mut all = self.to_all.subscribe();
        tokio::spawn(async move {
            while let Ok(text) = all.recv().await {
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
    }

    fn open_get(&self, session: &str, last: &str) -> Response {
        if !self.sessions.lock().expect("a lock").contains(session) {
            return text_of(404, "no session");
        }
        let (sender, taken) = mpsc::unbounded_channel();
        if let Some(later) = self.later.lock().expect("a lock").remove(last) {
            sender.send(later).expect("is taken");
        } else {
            self.pass_on(sender);
        }
        stream_of(taken)
    }

    fn post(self: &Arc<Self>, headers: &HeaderMap, body: &Bytes) -> Response {
        let header = |name: &str| {
            headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
        };
        let message: Value = serde_json::from_slice(body).expect("JSON");
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        if message.get("id").is_none() || method.is_empty() {
            let note = if header("mcp-method") == method {
                method
            } else {
                format!("{method} without its header")
            };
            self.notes.lock().expect("a lock").push(note);
            return text_of(202, "");
        }
        match self.era {
            ToyEra::Legacy if method == "initialize" => {}
            ToyEra::Legacy => {
                if method == "server/discover" {
                    return text_of(400, "Bad Request: no session");
                }
                if !self.sessions.lock().expect("a lock").contains(header("mcp-session-id")) {
                    return text_of(404, "no session");
                }
                assert_eq!(header("mcp-protocol-version"), "2025-11-25", "{message}");
            }
            ToyEra::Modern => {
                let meta = &message["params"]["_meta"];
                let is_good = header("mcp-protocol-version") == "2026-07-28"
                    && header("mcp-method") == method
                    && meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
                    && meta["io.modelcontextprotocol/clientCapabilities"].is_object()
                    && (method != "tools/call" || message["params"]["name"] == header("mcp-name"));
                if !is_good {
                    let error = json!({ "code": -32020, "message": "headers" });
                    return json_of(400, &json!({ "jsonrpc": "2.0", "id": null, "error": error }));
                }
            }
            ToyEra::Sse => {}
        }
        let id = message["id"].clone();
        let result = |result: Value| json!({ "jsonrpc": "2.0", "id": id, "result": result });
        if method == "initialize" {
            let number = self.opened.fetch_add(1, SeqCst);
            let session = format!("session-{number}");
            self.sessions.lock().expect("a lock").insert(session.clone());
            let version = if self.era == ToyEra::Sse { "2024-11-05" } else { "2025-11-25" };
            let reply = result(json!({
                "protocolVersion": version, "serverInfo": { "name": "toy", "version": "1" },
                "capabilities": { "tools": { "listChanged": true } },
            }));
            if self.era == ToyEra::Sse {
                return self.say(&reply);
            }
            let response = Response::builder().header("mcp-session-id", session);
            let response = response.header("content-type", "application/json");
            return response.body(Body::from(reply.to_string())).expect("is one");
        }
        if method == "subscriptions/listen" {
            let (sender, taken) = mpsc::unbounded_channel();
            self.pass_on(sender);
            return stream_of(taken);
        }
        let reply = match method.as_str() {
            "server/discover" => result(json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                "capabilities": { "tools": { "listChanged": true }, "prompts": {} },
            })),
            "prompts/list" => {
                let asks = self.asks.load(SeqCst).then(|| json!({ "name": "greet" }));
                result(json!({ "prompts": Vec::from_iter(asks) }))
            }
            "prompts/get" => result(prompt_of(&message["params"])),
            "tasks/get" => result(self.task_state()),
            "tasks/update" => {
                let told = message["params"]["inputResponses"].clone();
                *self.told.lock().expect("a lock") = Some(told);
                result(json!({ "resultType": "complete" }))
            }
            "tasks/cancel" => {
                self.cancelled.fetch_add(1, SeqCst);
                result(json!({ "resultType": "complete" }))
            }
            "tools/list" => result(json!({ "tools": self.tools() })),
            "tools/call" => return self.call(&message, headers),
            _ => {
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "no such method" } })
            }
        };
        self.say(&reply)
    }

    /// Responds on the stream of 2024-11-05, or in the response.
    fn say(&self, reply: &Value) -> Response {
        if self.era == ToyEra::Sse {
            self.to_all.send(event(reply)).ok();
            return text_of(202, "");
        }
        json_of(200, reply)
    }

    fn task(status: &str) -> Value {
        let now = "2026-01-01T00:00:00Z";
        let kind = if status == "working" { "task" } else { "complete" };
        json!({
            "resultType": kind, "taskId": "task-1", "status": status, "createdAt": now, "lastUpdatedAt": now,
            "ttlMs": null, "pollIntervalMs": 20,
        })
    }

    /// It asks a question, and its result is the answer.
    fn task_state(&self) -> Value {
        let told = self.told.lock().expect("a lock").clone();
        let mut state = Self::task(if told.is_some() { "completed" } else { "input_required" });
        match told {
            None => state["inputRequests"] = json!({ "who": question() }),
            Some(told) => {
                let content = json!([{ "type": "text", "text": told.to_string() }]);
                state["result"] = json!({ "resultType": "complete", "content": content });
            }
        }
        state
    }

    fn tools(&self) -> Value {
        let tool = |name: &str| {
            json!({
                "name": name, "inputSchema": { "type": "object" },
                "annotations": { "readOnlyHint": name == "echo" },
            })
        };
        let mut all: Vec<Value> = ["echo", "step", "grow", "cut", "bump"].map(tool).to_vec();
        let mut head = tool("head");
        head["inputSchema"] = json!({ "type": "object", "properties": { "region": { "type": "string", "x-mcp-header": "Region" } } });
        all.push(head);
        if self.era == ToyEra::Modern {
            let mut bad = tool("bad");
            bad["inputSchema"] = json!({ "type": "object", "properties": { "a": { "type": "object", "x-mcp-header": "A" } } });
            all.push(bad);
        }
        if self.asks.load(SeqCst) {
            all.push(tool("dig"));
        }
        if self.grown.load(SeqCst) {
            all.push(tool("sprout"));
        }
        json!(all)
    }

    fn call(self: &Arc<Self>, message: &Value, headers: &HeaderMap) -> Response {
        let (id, params) = (message["id"].clone(), &message["params"]);
        let complete = self.era == ToyEra::Modern;
        let reply = |text: &str| {
            let mut result = json!({ "content": [{ "type": "text", "text": text }] });
            if complete {
                result["resultType"] = json!("complete");
            }
            json!({ "jsonrpc": "2.0", "id": id, "result": result })
        };
        let value = params["arguments"]["value"].as_str().unwrap_or_default();
        match params["name"].as_str().unwrap_or_default() {
            "echo" => {
                self.echoed.fetch_add(1, SeqCst);
                let of = |name: &str| {
                    let value = headers.get(name).and_then(|value| value.to_str().ok());
                    value.unwrap_or_default().to_owned()
                };
                let trace = (of("x-request-id"), of("traceparent"), params["_meta"].clone());
                self.traces.lock().expect("a lock").push(trace);
                self.say(&reply(value))
            }
            "dig" => {
                let extensions =
                    &params["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"];
                assert!(extensions["io.modelcontextprotocol/tasks"].is_object(), "{message}");
                *self.told.lock().expect("a lock") = None;
                self.say(&json!({ "jsonrpc": "2.0", "id": id, "result": Self::task("working") }))
            }
            "bump" => {
                self.bumped.fetch_add(1, SeqCst);
                self.say(&reply("bumped"))
            }
            "head" => {
                let region = headers.get("mcp-param-region").and_then(|value| value.to_str().ok());
                self.say(&reply(region.unwrap_or("none")))
            }
            "grow" => {
                self.grown.store(true, SeqCst);
                let note =
                    json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
                self.to_all.send(event(&note)).ok();
                self.say(&reply("grown"))
            }
            "step" => {
                let token = &params["_meta"]["progressToken"];
                let note = json!({ "jsonrpc": "2.0", "method": "notifications/progress",
                    "params": { "progressToken": token, "progress": 1, "total": 2 } });
                if self.era == ToyEra::Sse {
                    self.to_all.send(event(&note)).ok();
                    return self.say(&reply("stepped"));
                }
                let (sender, taken) = mpsc::unbounded_channel();
                for text in [event(&note), event(&reply("stepped"))] {
                    sender.send(text).expect("is taken");
                }
                stream_of(taken)
            }
            "cut" => {
                // The stream breaks before the response; a client that resumes it gets the
                // response.
                let event_id = format!("cut-{id}");
                self.later
                    .lock()
                    .expect("a lock")
                    .insert(event_id.clone(), event(&reply("resumed")));
                let (sender, taken) = mpsc::unbounded_channel();
                sender.send(format!("id: {event_id}\nretry: 20\ndata: \n\n")).expect("is taken");
                stream_of(taken)
            }
            _ => self.say(&reply("called")),
        }
    }

    fn issuer_answer(&self, path: &str, uri: &Uri, base: &str, body: &Bytes) -> Response {
        let mut issuer = self.issuer.lock().expect("a lock");
        let query: HashMap<String, String> =
            form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
                .into_owned()
                .collect();
        let form: HashMap<String, String> = form_urlencoded::parse(body).into_owned().collect();
        let with_lies = |mut document: Value, issuer: &Issuer| {
            for (name, lie) in &issuer.lies {
                document[*name] = lie.clone();
            }
            json_of(200, &document)
        };
        match path {
            "/metadata-of-mcp" => with_lies(
                json!({ "resource": format!("{base}/mcp"), "authorization_servers": [base], "scopes_supported": ["tools"] }),
                &issuer,
            ),
            "/.well-known/oauth-authorization-server" => with_lies(
                json!({
                    "issuer": base,
                    "authorization_endpoint": format!("{base}/authorize"),
                    "token_endpoint": format!("{base}/token"),
                    "registration_endpoint": format!("{base}/register"),
                    "revocation_endpoint": format!("{base}/revoke"),
                    "code_challenge_methods_supported": ["S256"],
                    "token_endpoint_auth_methods_supported": ["none"],
                    "authorization_response_iss_parameter_supported": true,
                }),
                &issuer,
            ),
            "/register" => {
                issuer.registered += 1;
                json_of(
                    201,
                    &json!({ "client_id": "client-1", "token_endpoint_auth_method": "none" }),
                )
            }
            "/authorize" => {
                assert_eq!(query["resource"], format!("{base}/mcp"));
                assert_eq!(query["code_challenge_method"], "S256");
                issuer.challenge.clone_from(&query["code_challenge"]);
                issuer.asked = query.get("scope").cloned().unwrap_or_default();
                let back = form_urlencoded::Serializer::new(String::new())
                    .append_pair("code", "code-1")
                    .append_pair("state", &query["state"])
                    .append_pair("iss", base)
                    .finish();
                let location = format!("{}?{back}", query["redirect_uri"]);
                let response =
                    Response::builder().status(StatusCode::FOUND).header("location", location);
                response.body(Body::empty()).expect("is one")
            }
            "/token" if issuer.is_gone => text_of(503, "secret-of-issuer"),
            "/token" => {
                let refusal = |code: &str| {
                    json_of(400, &json!({ "error": code, "error_description": "secret-of-issuer" }))
                };
                assert_eq!(form["resource"], format!("{base}/mcp"));
                if form["grant_type"].as_str() == "authorization_code" {
                    let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"]));
                    if hash != issuer.challenge || form["code"] != "code-1" {
                        return refusal("invalid_grant");
                    }
                    let asked = issuer.asked.clone();
                    issuer.granted = asked;
                } else {
                    if form["refresh_token"] != issuer.refresh {
                        issuer.refusals += 1;
                        return refusal("invalid_grant");
                    }
                    issuer.refreshes += 1;
                }
                issuer.serial += 1;
                issuer.access = format!("access-secret-{}", issuer.serial);
                issuer.refresh = format!("refresh-secret-{}", issuer.serial);
                let mut given = json!({
                    "access_token": issuer.access, "refresh_token": issuer.refresh, "token_type": "Bearer",
                });
                if issuer.lasts > 0 {
                    given["expires_in"] = json!(issuer.lasts);
                }
                json_of(200, &given)
            }
            "/revoke" => {
                issuer.revoked.push(form["token"].clone());
                text_of(200, "")
            }
            _ => text_of(404, "nothing here"),
        }
    }
}
