//! A blocking client of the adapter in process, and the shapes that answers must have.

use std::rc::Rc;

use axum::body::Body;
use http::{Method, request::Builder};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::server::{Reply, TestServer};
use crate::{domain::Timestamp, service::Tuning};

/// Who makes requests: the operator, or a session.
pub(super) struct Client {
    local: Rc<Local>,
    token: Option<String>,
}

struct Local {
    server: TestServer,
    runtime: Runtime,
}

/// A request that is not sent yet.
pub(super) struct Draft<'a> {
    client: &'a Client,
    builder: Builder,
    body: Body,
}

impl Client {
    pub(super) fn start() -> Self {
        Self::with(Tuning::default())
    }

    pub(super) fn with(tuning: Tuning) -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let server = runtime.block_on(TestServer::with(tuning));
        Self { local: Rc::new(Local { server, runtime }), token: None }
    }

    /// The same with a token of this session.
    pub(super) fn session(&self, session: &str) -> Self {
        let minted = self.post("/v1/tokens", &json!({ "session": session })).ok(201);
        Self { local: Rc::clone(&self.local), token: Some(text(&minted, "token")) }
    }

    pub(super) fn get(&self, path: &str) -> Reply {
        self.request("GET", path).send()
    }

    pub(super) fn delete(&self, path: &str) -> Reply {
        self.request("DELETE", path).send()
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Reply {
        let request = self.request("POST", path).header("Content-Type", "application/json");
        request.body(body.to_string()).send()
    }

    pub(super) fn request(&self, method: &str, path: &str) -> Draft<'_> {
        let method: Method = method.parse().unwrap();
        let builder = self.local.server.request(self.token.as_deref(), method, path);
        Draft { client: self, builder, body: Body::empty() }
    }
}

impl Draft<'_> {
    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.builder = self.builder.header(name, value);
        self
    }

    pub(super) fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    pub(super) fn send(self) -> Reply {
        let local = &self.client.local;
        let request = self.builder.body(self.body).unwrap();
        local.runtime.block_on(local.server.send(request))
    }
}

/// A complete problem document of this status and with this code.
#[track_caller]
pub(super) fn problem(reply: &Reply, status: u16, code: &str) -> Value {
    assert_eq!(reply.status, status, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{reply:?}");
    let problem = reply.json();
    assert_eq!(problem["status"], json!(status), "{problem}");
    assert_eq!(problem["code"], json!(code), "{problem}");
    for member in ["type", "title", "detail", "request_id", "error"] {
        let text = problem[member].as_str();
        assert!(text.is_some_and(|text| !text.trim().is_empty()), "`{member}` in {problem}");
    }
    assert!(problem["retryable"].is_boolean(), "{problem}");
    assert_eq!(problem["error"], problem["detail"], "{problem}");
    problem
}

/// A 422 that names the field at fault; within arrays and objects a path may stand before it.
#[track_caller]
pub(super) fn invalid(reply: &Reply, field: &str) {
    let problem = problem(reply, 422, "invalid_request");
    let named = problem["field"].as_str().unwrap_or_default();
    assert!(named.contains(field), "`field` should name {field}: {problem}");
}

/// A time as the wire has it: RFC 3339 in UTC with milliseconds. Returns unix milliseconds.
#[track_caller]
pub(super) fn instant(value: &Value) -> i64 {
    let text = value.as_str().unwrap_or_default();
    assert!(text.len() == 24 && text.ends_with('Z') && text.as_bytes()[19] == b'.', "time {value}");
    serde_json::from_value::<Timestamp>(value.clone()).unwrap().as_millis()
}

/// A member of an object that is a text.
#[track_caller]
pub(super) fn text(value: &Value, member: &str) -> String {
    let text = value[member].as_str();
    text.unwrap_or_else(|| panic!("`{member}` in {value}")).to_owned()
}

/// A page of a list, whose `count` must be the page's.
#[track_caller]
pub(super) fn page(reply: &Reply, name: &str) -> Vec<Value> {
    let body = reply.ok(200);
    let items = body[name].as_array().cloned();
    let items = items.unwrap_or_else(|| panic!("a list `{name}` in {body}"));
    assert_eq!(body["count"], json!(items.len()), "{body}");
    items
}

/// Every item of a list, page by page. The target must have a query already.
#[track_caller]
pub(super) fn all_pages(client: &Client, target: &str, name: &str, cursor: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut next = target.to_owned();
    loop {
        let reply = client.get(&next);
        let page = page(&reply, name);
        let is_empty = page.is_empty();
        items.extend(page);
        assert!(items.len() < 10_000, "the pages never end");
        let body = reply.json();
        match body["next_cursor"].as_str() {
            Some(value) if !is_empty => next = format!("{target}&{cursor}={}", escaped(value)),
            _ => return items,
        }
    }
}

fn escaped(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// One text member of each item.
#[track_caller]
pub(super) fn each(items: &[Value], member: &str) -> Vec<String> {
    items.iter().map(|item| text(item, member)).collect()
}

/// Registers a peer and returns it.
#[track_caller]
pub(super) fn register(client: &Client, body: &Value) -> Value {
    client.post("/v1/peers/register", body).ok(200)
}

/// Registers a peer known by its session and returns its id.
#[track_caller]
pub(super) fn peer(client: &Client, session: &str) -> String {
    let body = json!({ "display_name": session, "backend": "claude", "session_id": session });
    text(&register(client, &body), "peer_id")
}

/// Makes a task and returns its id.
#[track_caller]
pub(super) fn new_task(client: &Client) -> String {
    text(&client.post("/v1/tasks", &json!({ "title": "a task" })).ok(201), "task_id")
}

/// The event that ends a task well.
pub(super) fn done() -> Value {
    json!({ "kind": "terminal", "data": { "status": "done", "exit_code": 0 } })
}

/// A frame event's body.
pub(super) fn frame(line: &str) -> Value {
    json!({ "kind": "frame", "data": { "line": line, "kind": "stdout" } })
}

/// Appends to a task and returns the first and last id given.
#[track_caller]
pub(super) fn append(client: &Client, task: &str, events: &Value) -> (u64, u64) {
    let answer = client.post(&format!("/v1/tasks/{task}/events"), events).ok(200);
    let id = |name: &str| answer[name].as_u64().unwrap_or_else(|| panic!("`{name}`: {answer}"));
    (id("first_id"), id("last_id"))
}
