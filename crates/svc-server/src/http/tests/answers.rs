//! Snapshots of every REST answer: each route's success and its typical refusals, with status,
//! headers and body.
//!
//! A missing or changed snapshot fails. `INSTA_UPDATE=always cargo test --lib http::` writes them
//! anew.

use std::{collections::BTreeSet, fmt::Write as _, path::Path, time::Duration};

use axum::body::Body;
use http::{Method, Request, header, request::Builder};
use serde_json::{Value, json};
use svc_core::service::{
    Tuning,
    process::RequestSender,
    team::{ActingSession, NewSession, Team},
};
use svc_model::{
    Caller, LocalProcess, NewTask, ProofQuestion, TokenFingerprint,
    journal::{Domain, GhapDraft, Strategy},
    limits, token_hash,
};
use svc_sys::process_list::ProcessEntry;

use super::{Exchange, Script, TestServer};

/// Every script by the name of its snapshot.
async fn scripts() -> Vec<(&'static str, Script)> {
    vec![
        ("edge", edge().await),
        ("start_and_stop", start_and_stop().await),
        ("bodies", bodies().await),
        ("description", description().await),
        ("metrics", metrics().await),
        ("peers", peers().await),
        ("messages", messages().await),
        ("full_inbox", full_inbox().await),
        ("tokens", tokens().await),
        ("projects", projects().await),
        ("daemon_proof", daemon_proof().await),
        ("process_tokens", process_tokens().await),
        ("tasks", tasks().await),
        ("task_feed", task_feed().await),
        ("events", events().await),
        ("sessions", sessions().await),
        ("journal", journal().await),
        ("tools", tools().await),
        ("mcp", mcp().await),
        ("faults", faults().await),
        ("browser", browser().await),
        ("agents", agents().await),
        ("sources", sources().await),
    ]
}

#[tokio::test]
async fn answers_are_as_the_snapshots_say() {
    let mut made = BTreeSet::new();
    for (name, script) in Box::pin(scripts()).await {
        insta::assert_snapshot!(name, script.text);
        made.insert(format!("svc_server__http__tests__answers__{name}.snap"));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/tests/snapshots");
    let files = std::fs::read_dir(folder).unwrap();
    let stored = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let is_proposal = |file: &str| Path::new(file).extension().is_some_and(|end| end == "new");
    let orphans: Vec<_> =
        stored.filter(|file| !is_proposal(file) && !made.contains(file)).collect();
    assert!(orphans.is_empty(), "no script makes these any more: {orphans:?}");
}

/// A new route without a snapshot fails here.
#[tokio::test]
async fn every_described_operation_has_a_success_and_a_refusal() {
    let server = TestServer::start().await;
    let request = server.request(None, Method::GET, "/openapi.json");
    let document = server.send(request.body(Body::empty()).unwrap()).await.json();
    let described = operations(&document);
    assert!(described.len() > 30, "{described:?}");

    let (mut successes, mut refusals) = (BTreeSet::new(), BTreeSet::new());
    for (name, script) in Box::pin(scripts()).await {
        // The MCP server's paths are no part of the description.
        let is_rest = |it: &Exchange| {
            !["/mcp", "/sse", "/messages"].iter().any(|mcp| it.path.starts_with(mcp))
        };
        for exchange in script.exchanges.into_iter().filter(is_rest) {
            let Some(pattern) = pattern_of(&exchange.path, &described) else {
                assert!(exchange.status >= 400, "{name}: {} is not described", exchange.path);
                continue;
            };
            let operation = (pattern, exchange.method.as_str().to_lowercase());
            match exchange.status {
                200..300 => {
                    assert!(described.contains(&operation), "{name}: {operation:?}");
                    successes.insert(operation);
                }
                405 => {}
                _ => {
                    refusals.insert(operation);
                }
            }
        }
    }
    let without = |seen: &BTreeSet<_>, but: &[(&str, &str)]| {
        let left =
            described.difference(seen).map(|(path, method)| (path.as_str(), method.as_str()));
        format!("{:?}", left.filter(|operation| !but.contains(operation)).collect::<Vec<_>>())
    };
    assert_eq!(without(&successes, &WITH_PROCESSES), "[]", "without a success");
    assert_eq!(without(&refusals, &[]), "[]", "without a refusal");
}

/// Operations that succeed only with processes of their own. `tests/it/agents.rs`,
/// `tests/it/sources` and `tests/it/health.rs` test them.
const WITH_PROCESSES: [(&str, &str); 27] = [
    ("/v1/doctor", "get"),
    ("/v1/handovers/hold", "post"),
    ("/v1/handovers/{id}/report", "post"),
    ("/v1/hosts", "post"),
    ("/v1/hosts/{id}", "get"),
    ("/v1/hosts/{id}/answer", "post"),
    ("/v1/hosts/{id}/history", "get"),
    ("/v1/hosts/{id}/interrupt", "post"),
    ("/v1/hosts/{id}/send", "post"),
    ("/v1/hosts/{id}/stop", "post"),
    ("/v1/prompts/{id}/hold", "post"),
    ("/v1/prompts/{id}/printed", "post"),
    ("/v1/requests/{id}/answer", "post"),
    ("/v1/send_message", "post"),
    ("/v1/sessions/{id}/history", "get"),
    ("/v1/sources", "get"),
    ("/v1/sources/reload", "post"),
    ("/v1/sources/{name}", "get"),
    ("/v1/sources/{name}/approve", "post"),
    ("/v1/sources/{name}/changes", "get"),
    ("/v1/sources/{name}/disable", "post"),
    ("/v1/sources/{name}/enable", "post"),
    ("/v1/sources/{name}/log", "get"),
    ("/v1/sources/{name}/login", "post"),
    ("/v1/sources/{name}/login/wait", "post"),
    ("/v1/sources/{name}/logout", "post"),
    ("/v1/sources/{name}/reconnect", "post"),
];

/// Paths and methods of a description.
fn operations(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().unwrap();
    let methods =
        |methods: &Value| methods.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    paths
        .iter()
        .flat_map(|(path, entry)| methods(entry).into_iter().map(|method| (path.clone(), method)))
        .collect()
}

/// The described path that serves `path`: of several, the one with the fewest parameters.
fn pattern_of(path: &str, described: &BTreeSet<(String, String)>) -> Option<String> {
    let fits = |pattern: &&String| {
        pattern.split('/').count() == path.split('/').count()
            && pattern.split('/').zip(path.split('/')).all(|(a, b)| a.starts_with('{') || a == b)
    };
    let patterns = described.iter().map(|(pattern, _)| pattern).filter(fits);
    patterns.min_by_key(|pattern| pattern.matches('{').count()).cloned()
}

/// A browser signs in and out. The page's files are not in the snapshot: `tests/it/page.rs` checks
/// them.
async fn browser() -> Script {
    let mut script = Script::new().await;
    for path in ["/", "/login", "/ui/now", "/assets/app.js", "/assets/none.js"] {
        for host in ["localhost", "evil.example"] {
            let request = Request::get(path).header(header::HOST, host).body(Body::empty());
            let status = script.server.send(request.unwrap()).await.status();
            writeln!(script.text, "GET {path} of {host}: {status}").unwrap();
            script.exchanges.push(Exchange { method: Method::GET, path: path.to_owned(), status });
        }
    }
    script.post("/login", json!({ "code": "0" })).await;
    let made = script.call(Method::POST, "/v1/login_codes").await;
    let code = made.text("code");
    let ticket = script.call(Method::POST, "/v1/login_tickets").await.text("ticket");
    let token = script.token.replace("none".to_owned());
    script.call(Method::POST, "/v1/login_codes").await;
    script.call(Method::POST, "/v1/login_tickets").await;
    script.delete("/login").await;
    script.token = token;
    let request = json_post("/login", "localhost").header("svc-page", "1");
    let body = json!({ "code": code }).to_string();
    let signed_in = script.server.send(request.body(Body::from(body)).unwrap()).await;
    let cookie = signed_in.header("set-cookie").unwrap_or_default();
    let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
    for (method, path, status) in [
        (Method::POST, "/login", signed_in.status()),
        (Method::DELETE, "/login", {
            let request = Request::delete("/login")
                .header(header::HOST, "localhost")
                .header("svc-page", "1")
                .header(header::COOKIE, cookie);
            script.server.send(request.body(Body::empty()).unwrap()).await.status()
        }),
    ] {
        writeln!(script.text, "{method} {path} of a browser with a code: {status}").unwrap();
        script.exchanges.push(Exchange { method, path: path.to_owned(), status });
    }
    script.text = script.text.replace(&code, "<code>").replace(&ticket, "<ticket>");
    script
}

fn json_post(path: &str, host: &str) -> Builder {
    Request::post(path).header(header::HOST, host).header(header::CONTENT_TYPE, "application/json")
}

/// Requests about agents, with none configured.
async fn agents() -> Script {
    let mut script = Script::new().await;
    for path in ["/v1/agents?status=disabled", "/v1/hosts", "/v1/requests?open=true"] {
        script.get(path).await;
    }
    script.get("/v1/agents?status=none").await;
    script.get("/v1/hosts?state=none").await;
    script.get("/v1/requests?open=perhaps").await;
    script.post("/v1/hosts", json!({ "instance": "nobody" })).await;
    script.get("/v1/hosts/ag_none").await;
    script.get("/v1/hosts/ag_none/history").await;
    for (action, body) in [
        ("send", json!({ "input": "x" })),
        ("answer", json!({ "request_id": "req_x", "option_id": "x" })),
        ("interrupt", json!({})),
        ("stop", json!({})),
    ] {
        script.post(&format!("/v1/hosts/ag_none/{action}"), body).await;
    }
    script.post("/v1/requests/req_none/answer", json!({ "option_id": "x" })).await;
    script.post("/v1/handovers/hold", json!({})).await;
    script.post("/v1/handovers/ho_none/report", json!({ "state": "taken" })).await;
    for action in ["hold", "printed"] {
        script.post(&format!("/v1/prompts/req_none/{action}"), json!({})).await;
    }
    script.post("/v1/send_message", json!({ "prompt": "x", "instance": "nobody" })).await;
    script.get("/v1/ghap/calibration").await;
    script.get("/v1/ghap/calibration?domain=none").await;
    script
}

/// Requests about child servers, with none configured.
async fn sources() -> Script {
    let mut script = Script::new().await;
    script.get("/v1/doctor").await;
    script.get("/v1/sources").await;
    script.call(Method::POST, "/v1/sources/reload").await;
    script.get("/v1/sources/none").await;
    script.get("/v1/sources/none/log").await;
    script.get("/v1/sources/none/changes").await;
    script.post("/v1/sources/none/approve", json!({ "digest": "x" })).await;
    for action in ["login", "login/wait"] {
        script.post(&format!("/v1/sources/none/{action}"), json!({})).await;
    }
    for action in ["disable", "enable", "logout", "reconnect"] {
        script.call(Method::POST, &format!("/v1/sources/none/{action}")).await;
    }
    let token = script.token.replace("none".to_owned());
    script.get("/v1/sources").await;
    script.get("/v1/doctor").await;
    script.call(Method::POST, "/v1/sources/reload").await;
    script.token = token;
    script
}

async fn edge() -> Script {
    let mut script = Script::new().await;
    script.get("/health").await;
    script.get("/v1/health").await;
    script.get("/v1/nothing").await;
    script.delete("/v1/tasks").await;
    script.call(Method::PUT, "/v1/peers/peer_x").await;
    script.call(Method::POST, "/health").await;
    script.token = Some("wrong".to_owned());
    for path in ["/v1/health", "/v1/nothing", "/openapi.json", "/metrics"] {
        script.get(path).await;
    }
    script.token = Some("${SVC_TOKEN}".to_owned());
    script.get("/v1/health").await;
    script.token = None;
    let nobody = || Request::get("/v1/peers").header(header::HOST, "localhost");
    script.send(nobody().body(Body::empty()).unwrap(), "").await;
    let basic = nobody().header(header::AUTHORIZATION, "Basic b3A6");
    script.send(basic.body(Body::empty()).unwrap(), "").await;
    script.get("/.well-known/oauth-protected-resource").await;
    let foreign = Request::get("/health").header(header::HOST, "evil.example");
    script.send(foreign.body(Body::empty()).unwrap(), "").await;
    script.get_with("/health", header::ORIGIN, "http://evil.example").await;
    script
}

async fn start_and_stop() -> Script {
    let mut script = Script::over(TestServer::starting(&Tuning::default()).await);
    script.get("/health").await;
    script.get("/v1/peers").await;
    script.server.ready().await;
    script.get("/health").await;
    script.server.edge.drain();
    script.get("/health").await;
    script
}

/// The MCP server's paths: sessions, their ends, and refusals. `tests/it/mcp` tests the answers to
/// messages.
async fn mcp() -> Script {
    const INITIALIZE: &str = concat!(
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"#,
        r#""clientInfo":{"name":"test","version":"1"}}}"#,
    );
    const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
    let mut script = Script::new().await;
    let opened = script.mcp(post.clone(), "/mcp", None, INITIALIZE, None).await;
    let session = opened.header("mcp-session-id").unwrap().to_owned();
    script.mcp(post.clone(), "/mcp", Some(&session), INITIALIZED, None).await;
    script.mcp(post.clone(), "/mcp", None, "{", None).await;
    script.mcp(post.clone(), "/mcp", Some("nothing"), INITIALIZED, None).await;
    script.mcp(get.clone(), "/mcp", Some(&session), "", Some(0)).await;
    script.mcp(get.clone(), "/mcp", Some("nothing"), "", None).await;
    script.mcp(delete.clone(), "/mcp", Some(&session), "", None).await;
    script.mcp(delete.clone(), "/mcp", Some(&session), "", None).await;
    script.mcp(delete, "/mcp", None, "", None).await;

    let stream = script.mcp(get.clone(), "/sse", None, "", Some(1)).await;
    let endpoint = stream.body.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    script.mcp(post.clone(), endpoint, None, INITIALIZED, None).await;
    script.mcp(post.clone(), "/messages?session_id=nothing", None, INITIALIZED, None).await;
    script.mcp(post.clone(), "/sse", None, INITIALIZE, None).await;
    script.token = Some("wrong".to_owned());
    script.mcp(get, "/sse", None, "", None).await;
    script.mcp(post, "/mcp", None, INITIALIZE, None).await;
    script
}

/// Failures of the store: a row that cannot be read, and a database that is full.
async fn faults() -> Script {
    let mut script = Script::new().await;
    let task = script.post("/v1/tasks", json!({ "title": "tests" })).await.text("task_id");
    script.server.contradict_tasks().await;
    script.get(&format!("/v1/tasks/{task}")).await;
    script.get("/v1/tasks").await;

    let text = std::mem::take(&mut script.text);
    let full = TestServer::of_size(1024 * 1024).await;
    for bytes in [64 * 1024, 1024, 0] {
        let task = || NewTask { prompt: Some("x".repeat(bytes)), ..NewTask::default() };
        while full.services.tasks.create_task(&Caller::Operator, task()).await.is_ok() {}
    }
    let mut script = Script { text, exchanges: script.exchanges, ..Script::over(full) };
    script.post("/v1/tasks", json!({})).await;
    script.get("/v1/tasks?limit=1&agent=nobody").await;
    script
}

async fn bodies() -> Script {
    let stall = Duration::from_millis(1);
    let mut script = Script::with(&Tuning { body_stall: stall, ..Tuning::default() }).await;
    for (media_type, body) in [
        ("application/json", "{"),
        ("application/json", "[]"),
        ("application/json", "null"),
        ("text/plain", "{}"),
    ] {
        script.post_text("/v1/tasks", media_type, body).await;
    }
    let json = |script: &Script| {
        script.request(Method::POST, "/v1/tasks").header(header::CONTENT_TYPE, "application/json")
    };
    let no_text = json(&script).body(Body::from(&b"{\"title\": \"\xff\"}"[..])).unwrap();
    script.send(no_text, "<no UTF-8>").await;
    let large = json(&script).body(Body::from(" ".repeat(limits::V1_BODY_BYTES + 1))).unwrap();
    script.send(large, "<1 MiB and a byte>").await;
    let pending = futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
    let stalls = json(&script).body(Body::from_stream(pending)).unwrap();
    script.send(stalls, "<nothing comes>").await;
    script
}

async fn description() -> Script {
    let mut script = Script::new().await;
    script.get("/openapi.json").await;
    script
}

async fn metrics() -> Script {
    let mut script = Script::new().await;
    script.get("/health").await;
    script.get_metrics("*/*").await;
    script.get_metrics("application/openmetrics-text").await;
    script
}

async fn peers() -> Script {
    let mut script = Script::new().await;
    let register = "/v1/peers/register";
    let ada = json!({
        "display_name": "ada", "backend": "claude", "path": "/work", "session_id": "s-1", "pid": 4_000_000,
        "tmux_pane": "%1", "metadata": { "model": "large" }, "from_the_future": true,
    });
    let ada = script.post(register, ada).await.text("peer_id");
    script.post(register, json!({ "display_name": "bob", "backend": "codex" })).await;
    script.post(register, json!({ "display_name": "bob b.", "backend": "codex" })).await;
    script.post(register, json!({ "display_name": "ada" })).await;
    script.post(register, json!({ "display_name": 1, "backend": "b" })).await;
    script.post(register, json!({ "display_name": " ", "backend": "b" })).await;
    let king = json!({ "display_name": "a", "backend": "b", "role": "king" });
    script.post(register, king).await;
    script.get("/v1/peers").await;
    let first = script.get("/v1/peers?limit=1").await.text("next_cursor");
    script.get(&format!("/v1/peers?limit=1&cursor={first}")).await;
    script.get("/v1/peers?backend=nobody").await;
    script.get("/v1/peers?limit=0").await;
    script.get("/v1/peers?limit=501").await;
    script.get("/v1/peers?cursor=zz").await;
    script.get("/v1/peers?status=banana").await;
    script.get(&format!("/v1/peers/{ada}")).await;
    script.get("/v1/peers/nothing").await;
    let beat = format!("/v1/peers/{ada}/heartbeat");
    script.post(&beat, json!({ "status": "busy" })).await;
    script.call(Method::POST, &beat).await;
    script.post(&beat, json!({ "status": "banana" })).await;
    script.post("/v1/peers/nothing/heartbeat", json!({})).await;
    script.delete(&format!("/v1/peers/{ada}")).await;
    script.delete(&format!("/v1/peers/{ada}")).await;
    script
}

async fn messages() -> Script {
    let mut script = Script::new().await;
    let ada = peer(&mut script, "ada").await;
    let bob = peer(&mut script, "bob").await;
    let inbox = format!("/v1/peers/{ada}/messages");
    let query = json!({
        "text": "look at main", "type": "query", "from_peer": bob, "correlation_id": "c-1",
        "idempotency_key": "k-1",
    });
    let sent = script.post(&inbox, query.clone()).await.text("id");
    script.post(&inbox, query).await;
    script.post(&inbox, json!({ "text": "and at this" })).await;
    script.post(&inbox, json!({ "text": " " })).await;
    script.post(&inbox, json!({ "text": "a", "type": "shout" })).await;
    script.post(&inbox, json!({ "text": "a", "from_peer": "nothing" })).await;
    script.post("/v1/peers/nothing/messages", json!({ "text": "hello" })).await;
    let first = script.get(&format!("{inbox}?peek=true&limit=1")).await.text("next_cursor");
    script.get(&format!("{inbox}?peek=true&limit=1&cursor={first}")).await;
    script.get(&format!("{inbox}?peek=1")).await;
    script.get(&format!("{inbox}?cursor={first}")).await;
    script.get(&inbox).await;
    script.get(&inbox).await;
    script.get("/v1/peers/nothing/messages").await;
    script.get(&format!("/v1/messages/{sent}")).await;
    let ack = format!("{inbox}/ack");
    script.post(&ack, json!({ "ids": [sent, "nothing"] })).await;
    script.post(&ack, json!({ "ids": [sent] })).await;
    script.post(&ack, json!({ "ids": [sent] })).await;
    script.post(&ack, json!({})).await;
    script.get(&format!("/v1/messages/{sent}")).await;
    script.get("/v1/messages/nothing").await;
    let next = script.get("/v1/messages?limit=1").await.text("next_cursor");
    script.get(&format!("/v1/messages?limit=1&cursor={next}")).await;
    script.get(&format!("/v1/messages?open=true&peer={ada}")).await;
    script.get("/v1/messages?type=shout").await;
    script.post("/v1/peers/broadcast", json!({ "text": "all of you", "from_peer": ada })).await;
    script.post("/v1/peers/broadcast", json!({ "text": "nobody", "circle": "blue" })).await;
    script.post("/v1/peers/broadcast", json!({ "text": "" })).await;
    script
}

async fn full_inbox() -> Script {
    let mut script = Script::with(&Tuning { inbox_max: 1, ..Tuning::default() }).await;
    let ada = peer(&mut script, "ada").await;
    let inbox = format!("/v1/peers/{ada}/messages");
    script.post(&inbox, json!({ "text": "the first" })).await;
    script.post(&inbox, json!({ "text": "too many" })).await;
    script
}

async fn tokens() -> Script {
    let mut script = Script::new().await;
    let ada = peer(&mut script, "ada").await;
    let minted = script.post("/v1/tokens", json!({ "session": "s-2" })).await;
    let wide = json!({ "session": "s-3", "scopes": ["exec"], "ttl_seconds": 60 });
    script.post("/v1/tokens", wide).await;
    script.post("/v1/tokens", json!({ "session": " " })).await;
    script.post("/v1/tokens", json!({ "session": "s", "ttl_seconds": 0 })).await;
    script.get("/v1/tokens").await;
    script.get("/v1/tokens?limit=0").await;
    let id = minted.text("token_id");
    let inbox = format!("/v1/peers/{ada}/messages");

    script.token = Some(minted.text("token"));
    script.get("/v1/tokens").await;
    script.post("/v1/tokens", json!({ "session": "s-4" })).await;
    script.delete(&format!("/v1/tokens/{id}")).await;
    script.post("/v1/token/rotate", json!({})).await;
    script.get("/v1/peers").await;
    script.post(&inbox, json!({ "text": "hello" })).await;
    script.post(&inbox, json!({ "text": "hello", "from_peer": ada })).await;
    script.get(&inbox).await;
    script.post(&format!("{inbox}/ack"), json!({ "ids": [] })).await;
    script.post(&format!("/v1/peers/{ada}/heartbeat"), json!({})).await;
    script.delete(&format!("/v1/peers/{ada}")).await;
    let other = json!({ "display_name": "x", "backend": "claude", "session_id": "ada" });
    script.post("/v1/peers/register", other).await;

    let session = script.token.take();
    script.delete(&format!("/v1/tokens/{id}")).await;
    script.delete("/v1/tokens/nothing").await;
    script.token = session;
    script.get("/v1/peers").await;
    script.token = None;
    script.post("/v1/token/rotate", json!({})).await;
    script.get("/v1/peers").await;
    script
}

async fn projects() -> Script {
    let mut script = Script::new().await;
    let minted = script.post("/v1/tokens", json!({ "session": "s-2", "project": "/" })).await;
    script.get("/v1/projects").await;
    script.get("/v1/projects?limit=0").await;
    script.post("/v1/projects/move", json!({ "folder": "/" })).await;
    script.post("/v1/projects/move", json!({ "folder": "no/folder" })).await;
    script.post("/v1/projects/move", json!({})).await;
    script.token = Some(minted.text("token"));
    script.get("/v1/projects").await;
    script.post("/v1/projects/move", json!({ "folder": "/" })).await;
    script
}

async fn daemon_proof() -> Script {
    let mut script = Script::new().await;
    let minted = script.post("/v1/tokens", json!({ "session": "s-2" })).await;
    let hash = token_hash(&minted.text("token"));
    let (token, nonce) = (TokenFingerprint::from_hash(&hash).to_string(), "5e".repeat(32));
    let ask = async |script: &mut Script, body: Value, host: &str, shown: &str| {
        let request = json_post("/v1/daemon_proof", host);
        let mut request = request.body(Body::from(body.to_string())).unwrap();
        let address = "127.0.0.1:6334".parse().unwrap();
        request.extensions_mut().insert(RequestSender::Tcp { from: address, to: address });
        script.send(request, shown).await
    };
    let host = "127.0.0.1:6334";
    let good = json!({ "token": token, "nonce": nonce });
    let proof = ask(&mut script, good.clone(), host, "a token's fingerprint, and a nonce").await;
    let question = ProofQuestion { nonce: &nonce, authority: host };
    assert!(question.accepts(&hash, &proof.text("proof")));
    ask(&mut script, good.clone(), "127.0.0.1:6335", "the same, to another port").await;
    ask(&mut script, good.clone(), "localhost:6334", "the same, by a name").await;
    for wrong in [
        json!({ "token": "0".repeat(16), "nonce": nonce }),
        json!({ "token": "0", "nonce": nonce }),
        json!({ "token": "0".repeat(16), "nonce": "0" }),
        json!({ "nonce": nonce }),
    ] {
        let shown = wrong.to_string();
        ask(&mut script, wrong, host, &shown).await;
    }
    let id = minted.text("token_id");
    script.delete(&format!("/v1/tokens/{id}")).await;
    ask(&mut script, good, host, "of a token that is revoked").await;
    script
}

/// The process `pid`, as the listener of the Unix socket records it.
fn connected(pid: u32) -> LocalProcess {
    let started = ProcessEntry::read(pid).map(|entry| entry.started);
    LocalProcess { uid: 0, pid: Some(pid), started }
}

async fn process_tokens() -> Script {
    let mut script = Script::new().await;
    // Over TCP the daemon cannot tell which process sent a request.
    script.post("/v1/process_tokens", json!({})).await;
    let own = std::process::id();
    for body in [json!({ "client_pid": own, "client": "Some Agent" }), json!({ "client_pid": 1 })] {
        let request = json_post("/v1/process_tokens", "localhost").extension(connected(own));
        let reply = script.send(request.body(Body::from(body.to_string())).unwrap(), "").await;
        let Value::Object(members) = reply.json() else { panic!("{reply:?}") };
        for member in ["session", "cwd", "project"] {
            if let Some(Value::String(text)) = members.get(member) {
                // Replaced with the member's name, since the folder and the project may be the same
                // text.
                let named = |text: &str| format!("\"{member}\": \"{text}\"");
                script.text = script.text.replace(&named(text), &named(&format!("<{member}>")));
            }
        }
        script.text = script.text.replace(&format!("process {own}"), "process <pid>");
        let own_pid = format!("\"client_pid\": {own}");
        script.text = script.text.replace(&own_pid, "\"client_pid\": <pid>");
    }
    script
}

async fn tasks() -> Script {
    let mut script = Script::new().await;
    let new = json!({
        "title": "tests", "agent": "ada", "prompt": "run them", "from": "me", "metadata": { "ticket": "7" },
        "idempotency_key": "k-1",
    });
    let task = script.post("/v1/tasks", new.clone()).await.text("task_id");
    script.post("/v1/tasks", new).await;
    let other = script.post("/v1/tasks", json!({})).await.text("task_id");
    script.post("/v1/tasks", json!({ "title": 5 })).await;
    script.get("/v1/tasks").await;
    let first = script.get("/v1/tasks?limit=1").await.text("next_cursor");
    script.get(&format!("/v1/tasks?limit=1&cursor={first}")).await;
    script.get("/v1/tasks?agent=ada&since=1970-01-01T00:00:00Z").await;
    script.get("/v1/tasks?status=banana").await;
    script.get("/v1/tasks?since=yesterday").await;
    script.get("/v1/tasks?limit=abc").await;
    script.get(&format!("/v1/tasks/{task}")).await;
    script.get("/v1/tasks/nothing").await;

    let events = format!("/v1/tasks/{task}/events");
    let frame = json!({ "kind": "frame", "data": { "line": "one", "kind": "stdout" }, "id": "a" });
    let active = json!({ "kind": "task", "data": { "status": "active" } });
    script.post(&events, frame.clone()).await;
    script.post(&events, frame.clone()).await;
    script
        .post(
            &events,
            json!([active, { "kind": "frame", "data": { "line": "two", "kind": "stdout" } }]),
        )
        .await;
    script.post(&events, json!([])).await;
    script.post(&events, json!({ "kind": "banana", "data": {} })).await;
    script.post(&events, json!([frame, { "kind": "frame", "data": {} }])).await;
    script
        .post(&events, json!([frame, { "kind": "frame", "data": { "line": 1, "kind": "stdout" } }]))
        .await;
    script.post(&events, json!([{ "kind": "frame", "data": 5 }])).await;
    script.post(&events, json!({ "kind": "terminal", "data": { "status": "active" } })).await;
    script.post("/v1/tasks/nothing/events", frame.clone()).await;
    script.post(&format!("/v1/tasks/{task}/cancel"), json!({})).await;
    let terminal = json!({ "kind": "terminal", "data": { "status": "failed", "exit_code": 3, "error": "red" } });
    script.post(&events, terminal).await;
    script
        .post(&events, json!({ "kind": "frame", "data": { "line": "late", "kind": "stdout" } }))
        .await;
    script.get(&format!("/v1/tasks/{task}")).await;
    script.post(&format!("/v1/tasks/{task}/cancel"), json!({})).await;
    script.post(&format!("/v1/tasks/{other}/cancel"), json!({})).await;
    script.post("/v1/tasks/nothing/cancel", json!({})).await;
    script
}

async fn task_feed() -> Script {
    let mut script = Script::new().await;
    let task = script.post("/v1/tasks", json!({ "title": "tests" })).await.text("task_id");
    let events = json!([
        { "kind": "frame", "data": { "line": "one", "kind": "stderr" } },
        { "kind": "terminal", "data": { "status": "done", "exit_code": 0 } },
    ]);
    script.post(&format!("/v1/tasks/{task}/events"), events).await;
    let feed = format!("/v1/biam/subscribe?task_id={task}");
    script.get(&feed).await;
    script.get(&format!("{feed}&last_event_id=2")).await;
    script.get(&format!("{feed}&last_event_id=3")).await;
    script.get(&format!("{feed}&last_event_id=99")).await;
    script.get_with(&feed, header::HeaderName::from_static("last-event-id"), "x").await;
    script.get(&format!("{feed}&last_event_id=-1")).await;
    script.get("/v1/biam/subscribe").await;
    script.get("/v1/biam/subscribe?task_id=%20").await;
    script.get("/v1/biam/subscribe?task_id=nothing").await;
    script.call(Method::POST, &feed).await;
    script
}

async fn events() -> Script {
    let mut script = Script::new().await;
    let task = script.post("/v1/tasks", json!({})).await.text("task_id");
    peer(&mut script, "ada").await;
    let frames: Vec<_> = ["one", "two"]
        .map(|line| json!({ "kind": "frame", "data": { "line": line, "kind": "stdout" } }))
        .into();
    script.post(&format!("/v1/tasks/{task}/events"), json!(frames)).await;
    script.get("/v1/events").await;
    let stream = format!("/v1/events?stream=task/{task}");
    let first = script.get(&format!("{stream}&limit=2")).await.text("next_cursor");
    script.get(&format!("{stream}&limit=2&after={first}")).await;
    script.get("/v1/events?stream_prefix=task/&kind=frame").await;
    script.get("/v1/events?stream_prefix=nothing/").await;
    script.get("/v1/events?after=latest").await;
    script.get("/v1/events?after=-1").await;
    script.get("/v1/events?limit=0").await;
    script.get("/v1/events?stream=nothing").await;
    script.get("/v1/events?stream=a&stream_prefix=b").await;
    script.get("/v1/events?cursor=x").await;
    script.follow("/v1/events", 5).await;
    script.follow("/v1/events?after=latest", 2).await;
    // The cursor is beyond the head of the log.
    script.follow("/v1/events?stream=team&after=99", 3).await;
    script
}

async fn sessions() -> Script {
    let mut script = Script::new().await;
    let team = script.server.services.team.clone();
    let acting = begin(&team, "s-1", Some("claude")).await;
    begin(&team, "s-2", Some("codex")).await;
    team.count_tool(&Caller::Operator, acting, Some("Bash".to_owned()), None).await.unwrap();
    script.get("/v1/sessions").await;
    script.get("/v1/sessions?client=codex&open=true&project=/work").await;
    let first = script.get("/v1/sessions?limit=1").await.text("next_cursor");
    script.get(&format!("/v1/sessions?limit=1&cursor={first}")).await;
    script.get("/v1/sessions?limit=501").await;
    script.get("/v1/sessions?open=maybe").await;
    script.get("/v1/sessions/s-1").await;
    script.get("/v1/sessions/nothing").await;
    script.get("/v1/sessions/nothing/history").await;
    script.get("/v1/sessions/nothing/history?limit=0").await;

    let ada = json!({ "display_name": "ada", "backend": "claude", "session_id": "s-1" });
    let ada = script.post("/v1/peers/register", ada).await.text("peer_id");
    script.post(&format!("/v1/peers/{ada}/messages"), json!({ "text": "look at main" })).await;
    script.post("/v1/sessions/s-1/wait", json!({ "waiter": "hook_2" })).await;
    script.post("/v1/sessions/s-1/wait", json!({ "waiter": "hook_1" })).await;
    script.post("/v1/sessions/s-1/wait", json!({ "waiter": "hook_3", "seconds": 26 })).await;
    script.post("/v1/sessions/s-1/wait", json!({})).await;
    script.post("/v1/sessions/nothing/wait", json!({ "waiter": "hook_1" })).await;
    script
}

async fn begin(team: &Team, session_id: &str, client: Option<&str>) -> ActingSession {
    let new = NewSession {
        session_id: Some(session_id.to_owned()),
        cwd: Some("/work".to_owned()),
        client: client.map(str::to_owned),
        source: None,
    };
    team.start_session(&Caller::Operator, None, new).await.unwrap();
    ActingSession { session_id: session_id.to_owned(), agent_id: String::new() }
}

fn draft(goal: &str, hypothesis: &str) -> GhapDraft {
    GhapDraft {
        domain: Domain::Debugging,
        strategy: Strategy::ReadTheError,
        goal: goal.to_owned(),
        hypothesis: hypothesis.to_owned(),
        action: "look".to_owned(),
        prediction: "it is seen".to_owned(),
        probability: None,
    }
}

async fn journal() -> Script {
    let mut script = Script::new().await;
    let (team, journal) = (&script.server.services.team, &script.server.services.journal);
    for (session, goal) in [("s-0", "find the leak"), ("s-1", "make it quick")] {
        let acting = begin(team, session, None).await;
        let leaks = draft(goal, "the pool leaks");
        let id = journal.start_ghap(&Caller::Operator, acting.clone(), leaks).await.unwrap().id;
        team.end_session(acting.clone(), None).await.unwrap();
        let given_up = "Given up.".to_owned();
        journal
            .abandon_orphan(&Caller::Operator, acting, Some(id.as_str()), given_up)
            .await
            .unwrap();
    }
    let listed = script.get("/v1/ghap?limit=1").await;
    script.get(&format!("/v1/ghap?limit=1&cursor={}", listed.text("next_cursor"))).await;
    script.get("/v1/ghap?status=banana").await;
    script.get("/v1/ghap?limit=0").await;
    let id = listed.json()["ghap"][0]["id"].as_str().unwrap().to_owned();
    script.get(&format!("/v1/ghap/{id}")).await;
    script.get("/v1/ghap/nothing").await;
    script.get("/v1/ghap/search?q=leak").await;
    script.get("/v1/ghap/search?q=%20").await;
    script.get("/v1/ghap/search?q=leak&limit=51").await;
    script.get("/v1/ghap/search").await;

    // A record that a search finds while it is open, and that is abandoned after its session has
    // ended.
    let (team, journal) = (&script.server.services.team, &script.server.services.journal);
    let acting = begin(team, "s-2", None).await;
    let draft = draft("find the zeppelin", "it leaks");
    let open = journal.start_ghap(&Caller::Operator, acting.clone(), draft).await.unwrap().id;
    let (team, abandon) = (team.clone(), format!("/v1/ghap/{open}/abandon"));
    script.get("/v1/ghap/search?q=zeppelin").await;
    script.post(&abandon, json!({})).await;
    team.end_session(acting, None).await.unwrap();
    script.post(&abandon, json!({ "reason": "the branch was dropped" })).await;
    script.post(&abandon, json!({})).await;
    script.post("/v1/ghap/nothing/abandon", json!({})).await;
    script
}

async fn tools() -> Script {
    let mut script = Script::new().await;
    let first = script.get("/v1/tools?limit=1&family=peers").await.text("next_cursor");
    script.get(&format!("/v1/tools?limit=1&family=peers&cursor={first}")).await;
    script.get("/v1/tools?family=nothing").await;
    script.get("/v1/tools?limit=0").await;
    script.get("/v1/tools?cursor=zz").await;
    script
}

/// Registers a peer that is identified by its session.
async fn peer(script: &mut Script, name: &str) -> String {
    let body = json!({ "display_name": name, "backend": "claude", "session_id": name });
    script.post("/v1/peers/register", body).await.text("peer_id")
}
