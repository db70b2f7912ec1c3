//! The MCP server, through hand-written requests, so that every header and every byte of a stream
//! is visible.

mod bare;
mod crash;
mod eras;
mod exposure;
mod guard;
mod legacy_sse;
mod listening;
mod modern;
mod quoting;
mod resources;
mod restart;
mod sessions;
mod streams;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::daemon::Daemon;
use crate::wire::{Block, Caller, ConnectionCutter, Reply, Request, Sse};

/// The revisions that begin with `initialize`.
const LEGACY: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];
const MODERN: &str = "2026-07-28";
const BOTH: &str = "application/json, text/event-stream";
/// Deadline for what must come, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(15);
/// How long to wait for what must not come.
const SILENCE: Duration = Duration::from_millis(250);
/// How long messages other than the wanted one may come: a call at work reports progress for ever.
const MESSAGES_WITHIN: Duration = Duration::from_mins(3);

/// A JSON-RPC request.
fn request(id: impl Into<Value>, method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params })
}

fn notification(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": method, "params": params })
}

/// The `params` of `tools/call`.
fn tool(name: &str, arguments: &Value) -> Value {
    json!({ "name": name, "arguments": arguments })
}

/// The arguments of a `TaskWait` that outlives its test if nobody ends it.
fn wait_for(task: &str) -> Value {
    json!({ "task_id": task, "timeout_s": 600 })
}

/// A bare POST.
fn post(caller: &Caller, body: &Value) -> Request {
    caller.request("POST", "/mcp").json(body)
}

/// The JSON-RPC message of a response: JSON, or the one event of a stream.
#[track_caller]
fn message(reply: &Reply) -> Value {
    if reply.header("content-type") != Some("text/event-stream") {
        assert_eq!(reply.header("content-type"), Some("application/json"), "{reply:?}");
        return reply.json();
    }
    let text = String::from_utf8_lossy(&reply.body);
    let data: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let [data] = data.as_slice() else { panic!("one event: {reply:?}") };
    serde_json::from_str(data).expect("an event's data is JSON")
}

/// The result of a request; asserts success.
#[track_caller]
fn result(reply: &Reply) -> Value {
    assert_eq!(reply.status(), 200, "{reply:?}");
    let mut message = message(reply);
    assert_eq!(message["jsonrpc"], "2.0", "{message}");
    assert!(message.get("error").is_none(), "{message}");
    message["result"].take()
}

/// The error of a request that was refused with this status and code. The body is always JSON-RPC.
#[track_caller]
fn refused(reply: &Reply, status: u16, code: i64) -> Value {
    assert_eq!(reply.status(), status, "{reply:?}");
    let mut message = message(reply);
    assert_eq!(message["jsonrpc"], "2.0", "{message}");
    assert_eq!(message["error"]["code"], json!(code), "{message}");
    let text = message["error"]["message"].as_str().unwrap_or_default();
    assert!(!text.is_empty(), "{message}");
    assert!(message.get("id").is_some(), "an error has an id, if only null: {message}");
    message["error"].take()
}

/// The result of a tool; asserts success, and that the text is the same JSON.
#[track_caller]
fn given(result: &Value) -> Value {
    assert_ne!(result["isError"], json!(true), "{result}");
    same_text(result)
}

/// The error of a tool.
#[track_caller]
fn tool_error(result: &Value, kind: &str) -> Value {
    assert_eq!(result["isError"], json!(true), "{result}");
    let error = same_text(result)["error"].clone();
    assert_eq!(error["type"], json!(kind), "{result}");
    assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{result}");
    error
}

#[track_caller]
fn same_text(result: &Value) -> Value {
    let content = result["content"].as_array().expect("content");
    let [text] = content.as_slice() else { panic!("one content: {result}") };
    assert_eq!(text["type"], "text", "{result}");
    let text: Value =
        serde_json::from_str(text["text"].as_str().unwrap_or_default()).expect("the text is JSON");
    assert!(text.is_object(), "{result}");
    assert_eq!(text, result["structuredContent"], "{result}");
    text
}

/// A legacy client in its session.
#[derive(Clone, Debug)]
struct Client {
    caller: Caller,
    session: String,
    revision: String,
    next: Arc<AtomicU64>,
}

impl Client {
    #[track_caller]
    fn open(caller: &Caller, revision: &str) -> Self {
        Self::open_with(caller, revision, &json!({}))
    }

    /// Initializes a session with these capabilities.
    #[track_caller]
    fn open_with(caller: &Caller, revision: &str, capabilities: &Value) -> Self {
        let reply = initialize(caller, revision, capabilities);
        let answer = result(&reply);
        assert_eq!(answer["protocolVersion"], json!(revision), "{answer}");
        let session = reply.header("mcp-session-id").expect("a session id").to_owned();
        let client = Self {
            caller: caller.clone(),
            session,
            revision: revision.to_owned(),
            next: Arc::default(),
        };
        let initialized = client.post(&notification("notifications/initialized", &json!({})));
        assert_eq!(initialized.send().status(), 202);
        client
    }

    /// The same session, used by another caller.
    fn of(&self, caller: &Caller) -> Self {
        Self { caller: caller.clone(), ..self.clone() }
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn with_headers(&self, request: Request) -> Request {
        request
            .header("Mcp-Session-Id", &self.session)
            .header("MCP-Protocol-Version", &self.revision)
    }

    fn post(&self, body: &Value) -> Request {
        self.with_headers(self.caller.request("POST", "/mcp")).header("Accept", BOTH).json(body)
    }

    /// Sends a request and returns its result.
    #[track_caller]
    fn ask(&self, method: &str, params: &Value) -> Value {
        let id = self.id();
        let reply = self.post(&request(id, method, params)).send();
        let answer = result(&reply);
        assert_eq!(message(&reply)["id"], json!(id));
        answer
    }

    /// Calls a tool that responds at once.
    #[track_caller]
    fn call(&self, name: &str, arguments: &Value) -> Value {
        self.ask("tools/call", &tool(name, arguments))
    }

    #[track_caller]
    fn notify(&self, method: &str, params: &Value) {
        let reply = self.post(&notification(method, params)).send();
        assert_eq!(reply.status(), 202, "{reply:?}");
        assert!(reply.body.is_empty(), "{reply:?}");
    }

    /// Begins a call whose response is a stream. Returns the request's id, too.
    #[track_caller]
    fn begin(&self, name: &str, arguments: &Value) -> (u64, Stream) {
        self.begin_with(&tool(name, arguments))
    }

    #[track_caller]
    fn begin_with(&self, params: &Value) -> (u64, Stream) {
        let id = self.id();
        (id, Stream::open(&self.post(&request(id, "tools/call", params))))
    }

    fn listen_request(&self, last: Option<&str>) -> Request {
        let request = self.with_headers(self.caller.request("GET", "/mcp"));
        let request = request.header("Accept", "text/event-stream");
        match last {
            Some(last) => request.header("Last-Event-ID", last),
            None => request,
        }
    }

    /// Opens the standalone stream, or resumes another.
    #[track_caller]
    fn listen(&self, last: Option<&str>) -> Stream {
        Stream::open(&self.listen_request(last))
    }

    /// The refusal of a stream that must not be granted.
    #[track_caller]
    fn no_stream(&self, last: Option<&str>) -> Reply {
        match self.listen_request(last).follow().expect("an answer") {
            Ok(stream) => panic!("a stream: {:?}", stream.head),
            Err(reply) => reply,
        }
    }

    fn delete(&self) -> Reply {
        self.with_headers(self.caller.request("DELETE", "/mcp")).send()
    }
}

fn initialize(caller: &Caller, revision: &str, capabilities: &Value) -> Reply {
    let params = json!({
        "protocolVersion": revision,
        "capabilities": capabilities,
        "clientInfo": { "name": "a test", "version": "1" },
    });
    post(caller, &request(0, "initialize", &params)).header("Accept", BOTH).send()
}

/// The body of a stateless request of a client with these capabilities.
fn modern_body(id: impl Into<Value>, method: &str, params: &Value, capabilities: &Value) -> Value {
    let mut params = params.as_object().cloned().unwrap_or_default();
    let meta = params.entry("_meta").or_insert_with(|| Value::from(Map::new()));
    meta["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
    meta["io.modelcontextprotocol/clientCapabilities"] = capabilities.clone();
    request(id, method, &Value::from(params))
}

/// A stateless request, with the headers that its body requires.
fn modern_post(caller: &Caller, body: &Value) -> Request {
    let method = body["method"].as_str().unwrap_or_default();
    let request = post(caller, body)
        .header("Accept", BOTH)
        .header("MCP-Protocol-Version", MODERN)
        .header("Mcp-Method", method);
    let member = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return request,
    };
    request.header("Mcp-Name", body["params"][member].as_str().unwrap_or_default())
}

/// Sends a stateless request of a client without capabilities.
fn modern(caller: &Caller, method: &str, params: &Value) -> Reply {
    modern_post(caller, &modern_body(1, method, params, &json!({}))).send()
}

/// The capabilities of a client that supports tasks.
fn with_tasks() -> Value {
    json!({ "extensions": { "io.modelcontextprotocol/tasks": {} } })
}

/// A message of a stream. A priming event has an id and no message.
#[derive(Clone, Debug, PartialEq)]
struct Message {
    id: Option<String>,
    json: Value,
}

impl Message {
    fn is_answer(&self) -> bool {
        self.json.get("result").is_some() || self.json.get("error").is_some()
    }

    fn method(&self) -> &str {
        self.json["method"].as_str().unwrap_or_default()
    }

    #[track_caller]
    fn event_id(&self) -> &str {
        self.id.as_deref().expect("an event with an id")
    }
}

/// A daemon with a session of the revision that most clients speak.
#[track_caller]
fn with_client() -> (Daemon, Client) {
    let d = Daemon::start();
    let client = Client::open(&d, "2025-11-25");
    (d, client)
}

/// A stream of messages.
struct Stream(Sse);

impl Stream {
    /// Opens a stream; the response must be one.
    #[track_caller]
    fn open(request: &Request) -> Self {
        match request.follow().expect("an answer") {
            Ok(sse) => {
                assert_eq!(sse.head.header("content-type"), Some("text/event-stream"));
                assert_eq!(sse.head.header("cache-control"), Some("no-cache"));
                assert_eq!(sse.head.header("x-accel-buffering"), Some("no"));
                Self(sse)
            }
            Err(reply) => panic!("no stream: {reply:?}"),
        }
    }

    /// The next block, comments included; `None` at a clean end.
    #[track_caller]
    fn block(&mut self) -> Option<Block> {
        self.0.block().expect("the stream goes on")
    }

    /// The next message, skipping comments.
    fn try_next(&mut self) -> io::Result<Option<Message>> {
        let end = Instant::now() + crate::wire::MAX_WAIT;
        loop {
            let Some(block) = self.0.block()? else { return Ok(None) };
            let [data] = block.data.as_slice() else {
                assert!(block.data.is_empty(), "one line of data: {block:?}");
                // Comments keep a connection from being silent, and would keep a test from ending.
                if Instant::now() > end {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing but comments"));
                }
                continue;
            };
            let json = match data.as_str() {
                "" => Value::Null,
                data => serde_json::from_str(data).expect("data is JSON"),
            };
            return Ok(Some(Message { id: block.id, json }));
        }
    }

    #[track_caller]
    fn next(&mut self) -> Message {
        self.try_next().expect("the stream goes on").expect("a message before the end")
    }

    /// All messages up to a clean end.
    #[track_caller]
    fn rest(&mut self) -> Vec<Message> {
        let (mut messages, end) = (Vec::new(), Instant::now() + MESSAGES_WITHIN);
        while let Some(message) = self.try_next().expect("a clean end") {
            messages.push(message);
            assert!(Instant::now() < end, "it goes on: {messages:?}");
        }
        messages
    }

    /// The response, with which the stream ends.
    #[track_caller]
    fn answer(&mut self) -> Message {
        let last = self.rest().pop().expect("an answer");
        assert!(last.is_answer(), "{last:?}");
        last
    }

    /// The next notification of this kind, skipping others.
    #[track_caller]
    fn news(&mut self, method: &str) -> Message {
        let end = Instant::now() + MESSAGES_WITHIN;
        loop {
            let next = self.next();
            if next.method() == method {
                return next;
            }
            assert!(Instant::now() < end, "only others; the last: {next:?}");
        }
    }

    /// Asserts that only comments come for a while.
    #[track_caller]
    fn is_silent(&mut self) {
        let end = Instant::now() + SILENCE;
        self.0.set_timeout(SILENCE);
        while Instant::now() < end {
            match self.0.block() {
                Ok(Some(block)) => assert!(block.data.is_empty(), "{block:?}"),
                Ok(None) => panic!("it ended"),
                Err(_) => break,
            }
        }
        self.0.set_timeout(crate::wire::MAX_WAIT);
    }

    /// Asserts that it ended or broke.
    #[track_caller]
    fn is_over(&mut self) {
        while let Ok(Some(_)) = self.try_next() {}
    }

    fn knife(&self) -> ConnectionCutter {
        self.0.knife()
    }
}

/// The states of the recorded calls, the oldest first.
fn call_states(d: &Daemon) -> Vec<String> {
    let rows = d.home.rows("select state from mcp_call order by started_at, call_id").into_iter();
    rows.map(|row| row[0].as_str().expect("a state").to_owned()).collect()
}

/// The number of open subscriptions.
fn subscribers(d: &Daemon) -> f64 {
    let metrics = d.get("/metrics");
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix("svc_subscribers "));
    value.and_then(|value| value.parse().ok()).expect("a gauge of subscribers")
}

/// Ends a task, and with it every wait for it.
#[track_caller]
fn finish(caller: &Caller, task: &str) {
    crate::expect::append(caller, task, &crate::expect::done());
}

/// Asserts the response to a `TaskWait` for a task that was ended with [`finish`].
#[track_caller]
fn is_wait_answer(message: &Value, id: u64) {
    assert_eq!(message["id"], json!(id), "{message}");
    let waited = given(&message["result"]);
    assert_eq!(waited["task"]["status"], "done", "{message}");
    assert_eq!(waited["timed_out"], json!(false), "{message}");
}
