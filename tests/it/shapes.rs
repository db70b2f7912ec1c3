//! The forms of responses, each checked in one place, and the requests that many tests share.
//!
//! Two crates compile this file: the black-box tests, and the adapter's own tests
//! (`crates/svc-server/src/http/tests`), where no process runs. Each has a `wire` beside it: the
//! caller and the reply.

use std::fmt::Write as _;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::wire::{Caller, Reply};

/// A complete error response with this status and code. Returns the problem.
#[track_caller]
pub(crate) fn problem(reply: &Reply, status: u16, code: &str) -> Value {
    assert_eq!(reply.status(), status, "{reply:?}");
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

/// A 422 that names the field; within arrays and objects a path may precede it.
#[track_caller]
pub(crate) fn invalid(reply: &Reply, field: &str) {
    let problem = problem(reply, 422, "invalid_request");
    let named = problem["field"].as_str().unwrap_or_default();
    assert!(named.contains(field), "`field` should name {field}: {problem}");
}

/// A time on the wire: RFC 3339 in UTC with milliseconds. Returns Unix milliseconds.
#[track_caller]
pub(crate) fn instant(value: &Value) -> i64 {
    let text = value.as_str().unwrap_or_default();
    assert!(text.len() == 24 && text.ends_with('Z') && text.as_bytes()[19] == b'.', "time {value}");
    let time = OffsetDateTime::parse(text, &Rfc3339).expect("a time by RFC 3339");
    time.unix_timestamp() * 1000 + i64::from(time.millisecond())
}

/// An object's member as text, also if it is a number.
#[track_caller]
pub(crate) fn text(value: &Value, member: &str) -> String {
    match &value[member] {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => panic!("`{member}` is {other} in {value}"),
    }
}

/// One page of a list, whose `count` must be the page's.
#[track_caller]
pub(crate) fn page(reply: &Reply, name: &str) -> Vec<Value> {
    let body = reply.ok(200);
    let items = body[name].as_array().cloned();
    let items = items.unwrap_or_else(|| panic!("a list `{name}` in {body}"));
    assert_eq!(body["count"], json!(items.len()), "{body}");
    items
}

/// Every item of a list, page by page. The target must have a query already.
#[track_caller]
pub(crate) fn all_pages(caller: &Caller, target: &str, name: &str, cursor: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut next = target.to_owned();
    loop {
        let reply = caller.get(&next);
        let page = page(&reply, name);
        let empty = page.is_empty();
        items.extend(page);
        assert!(items.len() < 10_000, "the pages never end");
        let body = reply.json();
        if empty || body.get("next_cursor").is_none_or(Value::is_null) {
            return items;
        }
        next = format!("{target}&{cursor}={}", escape(&text(&body, "next_cursor")));
    }
}

/// Percent-encodes everything but letters, digits and the like.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("a string takes everything");
        }
    }
    escaped
}

/// A member of each object of a list, in its order.
#[track_caller]
pub(crate) fn each(items: &[Value], member: &str) -> Vec<String> {
    items.iter().map(|item| text(item, member)).collect()
}

pub(crate) fn frame(line: &str) -> Value {
    json!({ "kind": "frame", "data": { "line": line, "kind": "stdout" } })
}

/// The event that ends a task successfully.
pub(crate) fn done() -> Value {
    json!({ "kind": "terminal", "data": { "status": "done", "exit_code": 0 } })
}

#[track_caller]
pub(crate) fn new_task(caller: &Caller) -> String {
    text(&caller.post("/v1/tasks", &json!({ "title": "a task" })).ok(201), "task_id")
}

/// Appends to a task and returns the first and last id.
#[track_caller]
pub(crate) fn append(caller: &Caller, task: &str, events: &Value) -> (u64, u64) {
    let answer = caller.post(&format!("/v1/tasks/{task}/events"), events).ok(200);
    let id = |name: &str| answer[name].as_u64().unwrap_or_else(|| panic!("`{name}`: {answer}"));
    (id("first_id"), id("last_id"))
}

#[track_caller]
pub(crate) fn register(caller: &Caller, body: &Value) -> Value {
    caller.post("/v1/peers/register", body).ok(200)
}

/// Registers a participant with a session and returns its id.
#[track_caller]
pub(crate) fn peer(caller: &Caller, session: &str) -> String {
    let body = json!({ "display_name": session, "backend": "claude", "session_id": session });
    text(&register(caller, &body), "peer_id")
}

#[track_caller]
pub(crate) fn send(caller: &Caller, to: &str, words: &str) -> String {
    let message = caller.post(&format!("/v1/peers/{to}/messages"), &json!({ "text": words }));
    text(&message.ok(200), "id")
}

/// Takes the messages of an inbox.
#[track_caller]
pub(crate) fn read(caller: &Caller, peer: &str) -> Vec<Value> {
    page(&caller.get(&format!("/v1/peers/{peer}/messages")), "messages")
}

/// The messages of an inbox, without taking them.
#[track_caller]
pub(crate) fn peek(caller: &Caller, peer: &str) -> Vec<Value> {
    page(&caller.get(&format!("/v1/peers/{peer}/messages?peek=true")), "messages")
}

#[track_caller]
pub(crate) fn ack(caller: &Caller, peer: &str, ids: &[&str]) -> Value {
    caller.post(&format!("/v1/peers/{peer}/messages/ack"), &json!({ "ids": ids })).ok(200)
}

/// The states of a message; asserts that their times never decrease and that the last is `state`.
#[track_caller]
pub(crate) fn states(caller: &Caller, id: &str) -> Vec<String> {
    let message = caller.get(&format!("/v1/messages/{id}")).ok(200);
    let states = message["states"].as_array().expect("states").clone();
    let times: Vec<_> = states.iter().map(|state| instant(&state["at"])).collect();
    assert!(times.is_sorted(), "{message}");
    assert_eq!(states.last().map(|last| &last["state"]), Some(&message["state"]), "{message}");
    each(&states, "state")
}
