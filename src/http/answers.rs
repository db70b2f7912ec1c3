//! Every route's success and its typical refusals, whole: status, headers and body.

use std::fmt::Write as _;

use axum::body::Body;
use http::{Method, Request, header};
use serde_json::{Value, json};

use super::testing::{Answered, TestServer};

/// Requests that follow each other, written down with their answers.
struct Script {
    server: TestServer,
    /// In the place of the operator's.
    token: Option<String>,
    text: String,
}

impl Script {
    async fn new() -> Self {
        Self { server: TestServer::start().await, token: None, text: String::new() }
    }

    fn builder(&self, method: &Method, path: &str) -> http::request::Builder {
        match &self.token {
            Some(token) => self.server.request_as(token, method.clone(), path),
            None => self.server.request(method.clone(), path),
        }
    }

    async fn get(&mut self, path: &str) -> Answered {
        let request = self.builder(&Method::GET, path).body(Body::empty()).unwrap();
        self.send(request, "").await
    }

    async fn delete(&mut self, path: &str) -> Answered {
        let request = self.builder(&Method::DELETE, path).body(Body::empty()).unwrap();
        self.send(request, "").await
    }

    async fn post(&mut self, path: &str, body: Value) -> Answered {
        self.post_text(path, "application/json", &body.to_string()).await
    }

    async fn post_text(&mut self, path: &str, media_type: &str, body: &str) -> Answered {
        let request = self.builder(&Method::POST, path).header(header::CONTENT_TYPE, media_type);
        self.send(request.body(Body::from(body.to_owned())).unwrap(), body).await
    }

    async fn send(&mut self, request: Request<Body>, body: &str) -> Answered {
        writeln!(self.text, "> {} {}", request.method(), request.uri()).unwrap();
        if !body.is_empty() {
            writeln!(self.text, "> {body}").unwrap();
        }
        let answered = self.server.send(request).await;
        writeln!(self.text, "{}", answered.status).unwrap();
        for (name, value) in &answered.headers {
            writeln!(self.text, "{name}: {}", value.to_str().unwrap()).unwrap();
        }
        match serde_json::from_str::<Value>(&answered.body) {
            Ok(json) => writeln!(self.text, "{}", pretty(json)).unwrap(),
            Err(_) => writeln!(self.text, "{}", answered.body).unwrap(),
        }
        self.text.push('\n');
        answered
    }
}

/// JSON for people, without what differs from run to run.
fn pretty(mut json: Value) -> String {
    for (member, shown) in [("token", "<secret>"), ("version", "<version>"), ("target", "<target>")]
    {
        redact(&mut json, member, shown);
    }
    for member in ["size_bytes", "wal_bytes", "schema_version", "profile"] {
        redact(&mut json, member, "<store>");
    }
    serde_json::to_string_pretty(&json).unwrap()
}

fn redact(json: &mut Value, member: &str, shown: &str) {
    match json {
        Value::Object(members) => {
            for (name, value) in members {
                if name == member && (value.is_string() || value.is_number()) {
                    *value = shown.into();
                } else {
                    redact(value, member, shown);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, member, shown)),
        _ => {}
    }
}

fn text_of(answered: &Answered, member: &str) -> String {
    answered.json()[member].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn edge_and_health() {
    let mut script = Script::new().await;
    script.get("/health").await;
    script.get("/v1/health").await;
    script.get("/v1/nothing").await;
    script.delete("/v1/tasks").await;
    script.token = Some("wrong".to_owned());
    script.get("/v1/health").await;
    script.token = Some("${SVC_TOKEN}".to_owned());
    script.get("/v1/health").await;
    let foreign = Request::get("/health").header(header::HOST, "evil.example");
    script.send(foreign.body(Body::empty()).unwrap(), "").await;
    let foreign =
        script.server.request(Method::GET, "/health").header(header::ORIGIN, "http://evil.example");
    script.send(foreign.body(Body::empty()).unwrap(), "").await;
    insta::assert_snapshot!("edge_and_health", script.text);
}

#[tokio::test]
async fn description() {
    let mut script = Script::new().await;
    script.get("/openapi.json").await;
    insta::assert_snapshot!("description", script.text);
}

#[tokio::test]
async fn peers_and_messages() {
    let mut script = Script::new().await;
    let register = "/v1/peers/register";
    let ada =
        json!({ "display_name": "ada", "backend": "claude", "path": "/work", "session_id": "s-1" });
    let ada = text_of(&script.post(register, ada).await, "peer_id");
    script.post(register, json!({ "display_name": "bob", "backend": "codex" })).await;
    script.post(register, json!({ "display_name": "ada" })).await;
    script.post(register, json!({ "display_name": 1, "backend": "b" })).await;
    script.post(register, json!([])).await;
    script.post_text(register, "application/json", "{").await;
    script.post_text(register, "text/plain", "{}").await;
    script.get("/v1/peers").await;
    let first = script.get("/v1/peers?limit=1").await;
    script.get(&format!("/v1/peers?limit=1&cursor={}", text_of(&first, "next_cursor"))).await;
    script.get("/v1/peers?limit=0").await;
    script.get("/v1/peers?cursor=zz").await;
    script.get("/v1/peers?status=banana").await;
    script.get(&format!("/v1/peers/{ada}")).await;
    script.get("/v1/peers/nothing").await;
    script.post(&format!("/v1/peers/{ada}/heartbeat"), json!({ "status": "busy" })).await;
    script.post("/v1/peers/nothing/heartbeat", json!({})).await;

    let inbox = format!("/v1/peers/{ada}/messages");
    let sent = script.post(&inbox, json!({ "text": "look at main" })).await;
    script.post(&inbox, json!({ "text": "and at this" })).await;
    script.post(&inbox, json!({ "text": " " })).await;
    script.post("/v1/peers/nothing/messages", json!({ "text": "hello" })).await;
    script.get(&format!("{inbox}?peek=true&limit=1")).await;
    script.get(&format!("{inbox}?cursor=5b5d")).await;
    script.get(&inbox).await;
    let id = text_of(&sent, "id");
    script.post(&format!("{inbox}/ack"), json!({ "ids": [id] })).await;
    script.post(&format!("{inbox}/ack"), json!({ "ids": ["nothing"] })).await;
    script.get(&format!("/v1/messages/{id}")).await;
    script.get("/v1/messages/nothing").await;
    script.post("/v1/peers/broadcast", json!({ "text": "all of you" })).await;
    script.delete(&format!("/v1/peers/{ada}")).await;
    script.delete(&format!("/v1/peers/{ada}")).await;
    insta::assert_snapshot!("peers_and_messages", script.text);
}

#[tokio::test]
async fn tokens() {
    let mut script = Script::new().await;
    let peer = json!({ "display_name": "ada", "backend": "claude", "session_id": "s-1" });
    let ada = text_of(&script.post("/v1/peers/register", peer).await, "peer_id");
    let minted = script.post("/v1/tokens", json!({ "session": "s-2" })).await;
    script.post("/v1/tokens", json!({ "session": " " })).await;
    script.get("/v1/tokens").await;
    script.token = Some(text_of(&minted, "token"));
    script.get("/v1/tokens").await;
    let inbox = format!("/v1/peers/{ada}/messages");
    script.post(&inbox, json!({ "text": "hello" })).await;
    let refused = script.post(&inbox, json!({ "text": "hello", "from_peer": ada })).await;
    assert_eq!(refused.status, 403, "a session has no say in whom a message is from");
    script.get(&inbox).await;
    script.token = None;
    script.delete(&format!("/v1/tokens/{}", text_of(&minted, "token_id"))).await;
    script.delete("/v1/tokens/nothing").await;
    script.post("/v1/token/rotate", json!({})).await;
    insta::assert_snapshot!("tokens", script.text);
}

#[tokio::test]
async fn tasks_and_events() {
    let mut script = Script::new().await;
    let task = text_of(&script.post("/v1/tasks", json!({ "agent": "ada" })).await, "task_id");
    script.get("/v1/tasks").await;
    script.get("/v1/tasks?status=banana").await;
    script.get(&format!("/v1/tasks/{task}")).await;
    script.get("/v1/tasks/nothing").await;
    let events = format!("/v1/tasks/{task}/events");
    let frame = json!({ "kind": "frame", "data": { "line": "one", "kind": "stdout" } });
    script.post(&events, frame.clone()).await;
    script.post(&events, json!([])).await;
    script.post(&events, json!({ "kind": "banana", "data": {} })).await;
    script.post(&events, json!([frame, { "kind": "frame", "data": {} }])).await;
    script.post(&events, json!([frame, { "kind": "frame", "data": { "line": 1 } }])).await;
    script.post(&events, json!([{ "kind": "frame", "data": 5 }])).await;
    let terminal = json!({ "kind": "terminal", "data": { "status": "completed", "exit_code": 0 } });
    script.post(&events, terminal).await;
    script.post(&events, frame).await;
    script.post(&format!("/v1/tasks/{task}/cancel"), json!({})).await;
    script.get(&format!("/v1/biam/subscribe?task_id={task}")).await;
    script.get(&format!("/v1/biam/subscribe?task_id={task}&last_event_id=99")).await;
    script.get(&format!("/v1/biam/subscribe?task_id={task}&last_event_id=-1")).await;
    script.get("/v1/biam/subscribe").await;
    script.get("/v1/biam/subscribe?task_id=nothing").await;
    let cancelled = text_of(&script.post("/v1/tasks", json!({})).await, "task_id");
    script.post(&format!("/v1/tasks/{cancelled}/cancel"), json!({})).await;

    script.get(&format!("/v1/events?stream=task/{task}&limit=2")).await;
    script.get("/v1/events?after=latest").await;
    script.get("/v1/events?after=-1").await;
    script.get("/v1/events?stream=nothing").await;
    script.get("/v1/events?stream=a&stream_prefix=b").await;
    insta::assert_snapshot!("tasks_and_events", script.text);
}

#[tokio::test]
async fn journal_and_tools() {
    let mut script = Script::new().await;
    let record = json!({
        "id": "old-1", "session_id": "s-1", "created_at": "2026-01-02T03:04:05Z", "domain": "debugging",
        "strategy": "systematic-elimination", "goal": "find the leak", "hypothesis": "the pool leaks",
        "action": "count", "prediction": "the count grows",
    });
    script.post("/v1/ghap/import", json!({ "ghap": [record] })).await;
    script.post("/v1/ghap/import", json!({ "ghap": [{}] })).await;
    script.get("/v1/ghap").await;
    script.get("/v1/ghap?status=banana").await;
    script.get("/v1/ghap/export").await;
    script.get("/v1/ghap/search?q=leak").await;
    script.get("/v1/ghap/search?q=leak&limit=51").await;
    script.get("/v1/ghap/search").await;
    script.get("/v1/ghap/nothing").await;
    script.get("/v1/sessions").await;
    script.get("/v1/sessions/nothing").await;
    script.post("/v1/sessions/nothing/wait", json!({ "waiter": "hook_1" })).await;
    script.post("/v1/sessions/nothing/wait", json!({ "waiter": "hook_1", "seconds": 26 })).await;
    script.get("/v1/tools?limit=1&family=peers").await;
    script.get("/v1/tools?cursor=zz").await;
    insta::assert_snapshot!("journal_and_tools", script.text);
}
