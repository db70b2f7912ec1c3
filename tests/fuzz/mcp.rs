//! Requests to the MCP server, head and body, through the real edge and router over a real
//! database: whatever comes, the status is one of a few, a request is answered under its own id,
//! and nothing panics.
//!
//! An input is a text: method and path, headers, an empty line, the body. `$SESSION` stands for a
//! session that is open.

#![no_main]

use std::{
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use svc_core::service::{ServiceSettings, Services, Tokens, Tuning};
use svc_model::{Clock, Ids, LocalProcess, ManualClock, Timestamp};
use svc_server::{
    http::{App, AppState, Edge, EntryRules, Identity, Metrics},
    mcp::{self, McpMetrics, McpServer, McpServerParts, StreamResources},
};
use svc_store::{OpenOptions, Store};

use axum::body::Body;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::BodyExt as _;
use libfuzzer_sys::fuzz_target;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// For streams, which need not end.
const LISTEN: Duration = Duration::from_millis(20);
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}"#;

struct World {
    runtime: Runtime,
    edge: Edge,
    session: Mutex<String>,
    _folder: tempfile::TempDir,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = Runtime::new().expect("a runtime");
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::from_millis(1)));
    let edge = Edge::new(EntryRules { no_auth: true, ..EntryRules::default() }, "fuzz");
    let session = runtime.block_on(async {
        let path = folder.path().join("svc.db");
        let options = OpenOptions::for_file(path).expect("a machine");
        let (store, writer) = Store::open(&options, Arc::clone(&clock)).await.expect("a store");
        // It lives as long as the process.
        std::mem::forget(writer);
        let tokens = Tokens::open_or_make(&folder.path().join("token")).expect("a token");
        let tuning = Tuning { mcp_task_after: LISTEN / 2, ..Tuning::default() };
        let services = Services::new(
            store,
            clock,
            Ids::counting(),
            tuning,
            tokens,
            ServiceSettings::default(),
        );
        let (tools, stop) = (svc_core::tools::catalogue(), CancellationToken::new());
        let mcp = McpServer::start(McpServerParts {
            services: services.clone(),
            catalogue: Arc::clone(&tools),
            resources: vec![Box::new(StreamResources)],
            prompts: Vec::new(),
            sources: None,
            metrics: McpMetrics::default(),
            stop: stop.clone(),
            exposure: None,
        });
        let mcp = mcp.await.expect("a server");
        let identity =
            Identity { boot_id: "fuzz".to_owned(), pid: 1, started_at: Timestamp::from_millis(1) };
        let metrics = Metrics::default();
        let app = App::new(AppState {
            services,
            tools,
            sources: None,
            doctor: None,
            metrics,
            identity,
            stop,
        });
        edge.ready(app, mcp::routes(mcp));
        open(&edge).await
    });
    World { runtime, edge, session: Mutex::new(session), _folder: folder }
});

/// Opens a session.
async fn open(edge: &Edge) -> String {
    let request = Request::post("/mcp")
        .header("host", "localhost")
        // As over the Unix socket: without a token only this user's programs come in.
        .extension(LocalProcess { uid: 0, pid: None, started: None })
        .header("content-type", "application/json")
        .body(Body::from(INITIALIZE))
        .expect("a request");
    let response = edge.answer(request).await;
    let id = response.headers().get("mcp-session-id").expect("a session");
    id.to_str().expect("visible ASCII").to_owned()
}

/// An answer, as far as it came.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    whole: bool,
}

async fn send(edge: &Edge, request: Request<Body>) -> Answer {
    let (head, mut body) = edge.answer(request).await.into_parts();
    let mut bytes = Vec::new();
    let whole = tokio::time::timeout(LISTEN, async {
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.expect("a body does not break").into_data() {
                bytes.extend_from_slice(&data);
            }
        }
    });
    let whole = whole.await.is_ok();
    Answer { status: head.status, headers: head.headers, body: bytes, whole }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    jsonrpc: Option<&'a str>,
    method: Option<String>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The id of a request, if the body is one that nobody can misunderstand.
fn id_of(body: &str) -> Option<String> {
    let message: Message<'_> = serde_json::from_str(body).ok()?;
    let id = message.id?.get();
    let is_id = id.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit());
    (is_id && message.jsonrpc == Some("2.0") && message.method.is_some()).then(|| id.to_owned())
}

/// The messages of an answer.
fn messages(answer: &Answer) -> Vec<String> {
    let text = std::str::from_utf8(&answer.body).expect("text");
    match answer.headers.get("content-type").map(HeaderValue::as_bytes) {
        Some(b"application/json") => vec![text.to_owned()],
        Some(b"text/event-stream") => {
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            data.filter(|data| !data.is_empty()).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}

fn request_of(text: &str) -> Option<(Request<Body>, String, String)> {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let (method, path) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(path);
    let headers = request.headers_mut()?;
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let name: HeaderName = name.trim().parse().ok()?;
        headers.append(name, HeaderValue::from_bytes(value.trim().as_bytes()).ok()?);
    }
    if headers.len() > 100 || headers.contains_key("expect") || headers.contains_key("upgrade") {
        return None;
    }
    headers.entry("host").or_insert(HeaderValue::from_static("localhost"));
    headers.entry("content-type").or_insert(HeaderValue::from_static("application/json"));
    // As over the Unix socket: without a token only this user's programs come in.
    let request = request.extension(LocalProcess { uid: 0, pid: None, started: None });
    let request = request.body(Body::from(body.to_owned())).ok()?;
    Some((request, format!("{method} {path}"), body.to_owned()))
}

fuzz_target!(|bytes: &[u8]| {
    let World { runtime, edge, session, .. } = &*WORLD;
    let mut session = session.lock().expect("one at a time");
    let text = String::from_utf8_lossy(bytes).replace("$SESSION", &session);
    let Some((request, line, body)) = request_of(&text) else { return };
    let answer = runtime.block_on(send(edge, request));
    if line.starts_with("DELETE /mcp") && answer.status == StatusCode::NO_CONTENT {
        *session = runtime.block_on(open(edge));
    }
    let status = answer.status.as_u16();
    assert!(
        matches!(status, 200 | 202 | 204 | 400 | 403 | 404 | 405 | 413 | 415 | 422),
        "{line}: {status}"
    );
    if line != "POST /mcp" || matches!(status, 403 | 413 | 415) && !is_rpc(&answer) {
        return;
    }
    let messages = messages(&answer);
    // What it holds is bounded, also when it is the log, which has the answers to the inputs
    // before.
    assert!(answer.body.len() < 4 << 20, "{} bytes for {line}", answer.body.len());
    for message in &messages {
        if answer.whole
            || answer.headers.get("content-type").is_some_and(|it| it == "text/event-stream")
        {
            serde_json::from_str::<&RawValue>(message).expect("every message is JSON");
        }
    }
    let Some(id) = id_of(&body) else {
        // Whatever it was, it is a batch, a notification, or refused.
        assert!(matches!(status, 200 | 202 | 400 | 404), "{status} to what is no request");
        return;
    };
    assert_ne!(status, 202, "a request is not a notification");
    if !answer.whole {
        return;
    }
    let last = messages.last().expect("a request has an answer");
    let last: Message<'_> = serde_json::from_str(last).expect("an answer is a message");
    assert_eq!(last.id.map(RawValue::get), Some(&*id), "the id comes back as it was");
    assert_eq!(last.jsonrpc, Some("2.0"));
    assert!(last.result.is_some() != last.error.is_some(), "one of the two");
    assert!(last.error.is_some() || status == 200, "{status} with a result");
});

fn is_rpc(answer: &Answer) -> bool {
    answer.headers.get("content-type").is_some_and(|it| it != "application/problem+json")
}
