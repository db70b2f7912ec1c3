//! Bodies and queries of every route, through the real edge and router over a real database:
//! whatever comes, the answer is a success or a problem with all its members, never a 500, and the
//! daemon serves the next request.

#![no_main]

use std::sync::{Arc, LazyLock};

use svc_core::service::{ServiceSettings, Services, Tokens, Tuning};
use svc_model::{Clock, Ids, LocalProcess, ManualClock, Timestamp};
use svc_server::http::{App, AppState, Edge, EntryRules, Identity, Metrics};
use svc_store::{OpenOptions, Store};

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

struct World {
    runtime: Runtime,
    edge: Edge,
    peer: String,
    task: String,
    _folder: tempfile::TempDir,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = Runtime::new().expect("a runtime");
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::from_millis(1)));
    let edge = Edge::new(EntryRules { no_auth: true, ..EntryRules::default() }, "fuzz");
    let (peer, task) = runtime.block_on(async {
        let path = folder.path().join("svc.db");
        let options = OpenOptions::for_file(path).expect("a machine");
        let (store, writer) = Store::open(&options, Arc::clone(&clock)).await.expect("a store");
        // It lives as long as the process.
        std::mem::forget(writer);
        let tokens = Tokens::open_or_make(&folder.path().join("token")).expect("a token");
        let services = Services::new(
            store,
            clock,
            Ids::counting(),
            Tuning::default(),
            tokens,
            ServiceSettings::default(),
        );
        let app = App::new(AppState {
            services,
            tools: svc_core::tools::catalogue(),
            sources: None,
            doctor: None,
            metrics: Metrics::default(),
            identity: Identity {
                boot_id: "fuzz".to_owned(),
                pid: 1,
                started_at: Timestamp::from_millis(1),
            },
            stop: tokio_util::sync::CancellationToken::new(),
        });
        edge.ready(app, axum::Router::new());
        let peer = r#"{"display_name":"a","backend":"b"}"#;
        let peer = send(&edge, "POST", "/v1/peers/register", peer.as_bytes()).await.1;
        let task = send(&edge, "POST", "/v1/tasks", b"{}").await.1;
        (peer["peer_id"].to_string(), task["task_id"].to_string())
    });
    let plain = |text: String| text.trim_matches('"').to_owned();
    World { runtime, edge, peer: plain(peer), task: plain(task), _folder: folder }
});

async fn send(
    edge: &Edge,
    method: &str,
    path: &str,
    body: &[u8],
) -> (StatusCode, serde_json::Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        // As over the Unix socket: without a token only this user's programs come in.
        .extension(LocalProcess { uid: 0, pid: None, started: None })
        .header("content-type", "application/json");
    // Of a stream the bytes are where it is resumed.
    let (last, body) = if method == "RESUME" { (Some(body), &b""[..]) } else { (None, body) };
    let request = match last {
        Some(last) => request
            .method("GET")
            .header("accept", "text/event-stream")
            .header("last-event-id", last),
        None => request,
    };
    let request = request.body(Body::from(body.to_vec()));
    let Ok(request) = request else { return (StatusCode::BAD_REQUEST, serde_json::Value::Null) };
    let response = edge.answer(request).await;
    let status = response.status();
    if response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream") {
        return (status, serde_json::Value::Null);
    }
    let body = response.into_body().collect().await.expect("a whole body").to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fuzz_target!(|input: (u8, &[u8])| {
    let (route, bytes) = input;
    let World { runtime, edge, peer, task, .. } = &*WORLD;
    let query: String =
        bytes.iter().filter(|b| b.is_ascii_graphic()).map(|&b| char::from(b)).collect();
    let query = query.replace('#', "");
    let (method, path) = match route % 18 {
        0 => ("POST", "/v1/peers/register".to_owned()),
        1 => ("POST", format!("/v1/peers/{peer}/heartbeat")),
        2 => ("POST", format!("/v1/peers/{peer}/messages")),
        3 => ("POST", format!("/v1/peers/{peer}/messages/ack")),
        4 => ("POST", "/v1/peers/broadcast".to_owned()),
        5 => ("POST", "/v1/tasks".to_owned()),
        6 | 7 => ("POST", format!("/v1/tasks/{task}/events")),
        8 => ("POST", "/v1/tokens".to_owned()),
        9 => ("GET", format!("/v1/peers?{query}")),
        10 => ("GET", format!("/v1/tasks?{query}")),
        11 => ("GET", format!("/v1/events?{query}")),
        12 => ("GET", format!("/v1/peers/{peer}/messages?{query}")),
        13 => ("GET", format!("/v1/biam/subscribe?{query}")),
        14 => ("GET", format!("/v1/peers/{query}")),
        15 => ("GET", format!("/{query}")),
        16 => ("RESUME", format!("/v1/biam/subscribe?task_id={task}")),
        _ => ("RESUME", "/v1/events?stream_prefix=task/".to_owned()),
    };
    let (status, body) = runtime.block_on(send(edge, method, &path, bytes));
    assert!(status.as_u16() < 500, "{method} {path}: {status} {body}");
    if status.is_client_error() && !body.is_null() {
        for member in
            ["type", "title", "status", "detail", "code", "retryable", "request_id", "error"]
        {
            assert!(!body[member].is_null(), "{method} {path}: {status} without {member}");
        }
        assert_eq!(body["error"], body["detail"]);
    }
});
