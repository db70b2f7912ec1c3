//! Errors: every one is a problem document that names what is wrong.

use std::{convert::Infallible, sync::Arc};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use http::Method;
use serde_json::{Value, json};
use svc_core::service::Tuning;
use svc_model::{BudgetKind, limits};

use super::{
    Client, Reply, TestServer,
    shapes::{done, instant, invalid, new_task, page, peer, problem, text},
};
use crate::http::ConnectionBounds;

#[test]
fn body_that_is_not_json_gets_400() {
    let d = Client::start();
    let id = peer(&d, "s-1");
    let task = new_task(&d);
    let routes = [
        "/v1/peers/register".to_owned(),
        format!("/v1/peers/{id}/heartbeat"),
        format!("/v1/peers/{id}/messages"),
        format!("/v1/peers/{id}/messages/ack"),
        "/v1/peers/broadcast".to_owned(),
        "/v1/tasks".to_owned(),
        format!("/v1/tasks/{task}/events"),
        "/v1/tokens".to_owned(),
    ];
    let bodies: [&[u8]; 5] =
        [b"{", b"{\"a\":}", b"not json", b"{} {}", b"{\"text\": \"\xff\xfe\"}"];
    for route in &routes {
        for body in bodies {
            let reply = d.post_text(route, body);
            assert_eq!(reply.status, 400, "{route} {:?}", String::from_utf8_lossy(body));
            problem(&reply, 400, "invalid_request");
        }
        for body in ["[[]]", "5", "null", "\"text\""] {
            let reply = d.post_text(route, body);
            assert_eq!(reply.status, 422, "{route} {body}: {reply:?}");
            problem(&reply, 422, "invalid_request");
        }
    }
    let reply = d.post_text("/v1/tasks", "[".repeat(100_000));
    assert!(matches!(reply.status, 400 | 422), "{reply:?}");
    d.get("/v1/health").ok(200);
}

#[test]
fn a_body_must_say_that_it_is_json() {
    let d = Client::start();
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"] {
        let request = d.request("POST", "/v1/tasks").header("Content-Type", kind).body("{}");
        problem(&request.send(), 415, "unsupported_media_type");
    }
    problem(&d.request("POST", "/v1/tasks").body("{}").send(), 415, "unsupported_media_type");
    assert!(page(&d.get("/v1/tasks"), "tasks").is_empty(), "nothing was made");
    for kind in ["application/json", "application/json; charset=utf-8", "Application/JSON"] {
        d.request("POST", "/v1/tasks").header("Content-Type", kind).body("{}").send().ok(201);
    }
}

#[test]
fn deep_metadata_is_refused_and_the_deepest_can_be_listed() {
    let d = Client::start();
    // The object is the first level.
    let body = |levels: usize| {
        let (open, close) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
        format!(r#"{{"metadata":{{"a":{open}{close}}}}}"#)
    };
    let made = d.post_text("/v1/tasks", body(64)).ok(201);
    for levels in [65, 100, 125] {
        invalid(&d.post_text("/v1/tasks", body(levels)), "metadata");
    }
    assert_eq!(page(&d.get("/v1/tasks"), "tasks")[0]["metadata"], made["metadata"]);
    assert!(!page(&d.get("/v1/events"), "events").is_empty());
}

#[test]
fn cursor_is_for_its_own_list() {
    let d = Client::start();
    for _ in 0..2 {
        d.post("/v1/tasks", &json!({ "agent": "a" })).ok(201);
    }
    let next = |path: &str| text(&d.get(path).ok(200), "next_cursor");
    let cursor = next("/v1/tasks?limit=1");
    assert_eq!(d.get(&format!("/v1/tasks?limit=2&cursor={cursor}")).ok(200)["count"], 1);
    for other in ["sessions", "hosts", "requests", "tools", "ghap"] {
        invalid(&d.get(&format!("/v1/{other}?cursor={cursor}")), "cursor");
    }
    let filtered = next("/v1/tasks?limit=1&agent=a");
    assert_eq!(d.get(&format!("/v1/tasks?agent=a&cursor={filtered}")).ok(200)["count"], 1);
    let capitals = cursor.to_uppercase();
    assert_ne!(capitals, cursor);
    invalid(&d.get(&format!("/v1/tasks?cursor={capitals}")), "cursor");
}

#[test]
fn optional_body_may_be_missing() {
    let d = Client::start();
    let id = peer(&d, "s-1");
    let task = new_task(&d);
    d.request("POST", &format!("/v1/peers/{id}/heartbeat")).body("").send().ok(200);
    d.request("POST", &format!("/v1/peers/{id}/heartbeat")).send().ok(200);
    d.request("POST", &format!("/v1/tasks/{task}/cancel")).body("").send().ok(200);
    // In chunks, of which the head does not say that there are none.
    let chunks = |chunks: Vec<Result<Bytes, Infallible>>| {
        let body = Body::from_stream(stream::iter(chunks));
        d.request("POST", &format!("/v1/peers/{id}/heartbeat")).body(body).send()
    };
    chunks(Vec::new()).ok(200);
    problem(&chunks(vec![Ok("{}".into())]), 415, "unsupported_media_type");
}

#[test]
fn body_of_a_route_that_uses_none_is_checked() {
    let d = Client::start();
    let (id, task) = (peer(&d, "s-1"), new_task(&d));
    let routes = [
        format!("/v1/peers/{id}/heartbeat"),
        format!("/v1/tasks/{task}/cancel"),
        "/v1/login_codes".to_owned(),
    ];
    for route in &routes {
        for (body, status) in [("{", 400), ("[]", 422), ("null", 422)] {
            problem(&d.post_text(route, body), status, "invalid_request");
        }
        let plain = d.request("POST", route).header("Content-Type", "text/plain").body("{}");
        problem(&plain.send(), 415, "unsupported_media_type");
        problem(&d.request("POST", route).body("{}").send(), 415, "unsupported_media_type");
    }
    assert_eq!(d.get(&format!("/v1/tasks/{task}")).ok(200)["status"], "pending");
    d.post(&format!("/v1/tasks/{task}/cancel"), &json!({ "more": 1 })).ok(200);
}

#[test]
fn error_names_a_field_of_the_wrong_type() {
    let d = Client::start();
    let id = peer(&d, "s-1");
    let task = new_task(&d);
    let register = |field: &str, value: Value| {
        let mut body = json!({ "display_name": "a", "backend": "claude", "session_id": "s-9" });
        body[field] = value;
        body
    };
    let event = |field: &str, value: Value| {
        let mut body = json!({ "kind": "frame", "data": { "line": "a", "kind": "stdout" } });
        body[field] = value;
        body
    };
    let data = |kind: &str, data: Value| json!({ "kind": kind, "data": data });
    let beat = format!("/v1/peers/{id}/heartbeat");
    let send = format!("/v1/peers/{id}/messages");
    let ack = format!("/v1/peers/{id}/messages/ack");
    let events = format!("/v1/tasks/{task}/events");
    let (register_at, broadcast, tasks, tokens) =
        ("/v1/peers/register", "/v1/peers/broadcast", "/v1/tasks", "/v1/tokens");
    let table: Vec<(&str, Value, &str)> = vec![
        (register_at, json!({ "backend": "claude" }), "display_name"),
        (register_at, json!({ "display_name": "a" }), "backend"),
        (register_at, register("display_name", json!("")), "display_name"),
        (register_at, register("display_name", json!(5)), "display_name"),
        (register_at, register("backend", json!("  ")), "backend"),
        (register_at, register("backend", json!(["claude"])), "backend"),
        (register_at, register("role", json!("banana")), "role"),
        (register_at, register("role", json!(1)), "role"),
        (register_at, register("pid", json!("12")), "pid"),
        (register_at, register("pid", json!(-1)), "pid"),
        (register_at, register("pid", json!(1.5)), "pid"),
        (register_at, register("path", json!(7)), "path"),
        (register_at, register("circle", json!({})), "circle"),
        (register_at, register("session_id", json!(5)), "session_id"),
        (register_at, register("tmux_pane", json!(false)), "tmux_pane"),
        (register_at, register("metadata", json!([])), "metadata"),
        (register_at, register("metadata", json!({ "a": 1 })), "metadata"),
        (&beat, json!({ "status": "banana" }), "status"),
        (&beat, json!({ "status": 5 }), "status"),
        (&send, json!({}), "text"),
        (&send, json!({ "text": "" }), "text"),
        (&send, json!({ "text": " \t\n\u{a0}" }), "text"),
        (&send, json!({ "text": 5 }), "text"),
        (&send, json!({ "text": "a", "type": "shout" }), "type"),
        (&send, json!({ "text": "a", "from_peer": 5 }), "from_peer"),
        (&send, json!({ "text": "a", "correlation_id": 5 }), "correlation_id"),
        (&send, json!({ "text": "a", "idempotency_key": 5 }), "idempotency_key"),
        (&ack, json!({}), "ids"),
        (&ack, json!({ "ids": "msg" }), "ids"),
        (&ack, json!({ "ids": [5] }), "ids"),
        (broadcast, json!({}), "text"),
        (broadcast, json!({ "text": "  " }), "text"),
        (broadcast, json!({ "text": "a", "circle": 5 }), "circle"),
        (tasks, json!({ "title": 5 }), "title"),
        (tasks, json!({ "agent": [] }), "agent"),
        (tasks, json!({ "prompt": {} }), "prompt"),
        (tasks, json!({ "from": 5 }), "from"),
        (tasks, json!({ "metadata": 5 }), "metadata"),
        (tasks, json!({ "idempotency_key": 5 }), "idempotency_key"),
        (&events, json!({ "data": {} }), "kind"),
        (&events, event("kind", json!("banana")), "kind"),
        (&events, event("kind", json!(5)), "kind"),
        (&events, event("id", json!("")), "id"),
        (&events, event("id", json!("x".repeat(129))), "id"),
        (&events, event("id", json!(5)), "id"),
        (&events, data("frame", json!({ "kind": "stdout" })), "line"),
        (&events, data("frame", json!({ "line": 5, "kind": "stdout" })), "line"),
        (&events, data("frame", json!({ "line": "a", "kind": "stdwhat" })), "kind"),
        (&events, data("frame", json!({ "line": "a" })), "kind"),
        (&events, data("terminal", json!({})), "status"),
        (&events, data("terminal", json!({ "status": "active" })), "status"),
        (&events, data("terminal", json!({ "status": "banana" })), "status"),
        (&events, data("terminal", json!({ "status": "done", "exit_code": "0" })), "exit_code"),
        (&events, data("terminal", json!({ "status": "failed", "error": 5 })), "error"),
        (&events, data("task", json!({ "status": "banana" })), "status"),
        (&events, data("task", json!({ "status": "done" })), "data.status"),
        (
            &events,
            json!([event("id", json!("ok")), data("terminal", json!({ "status": "active" }))]),
            "[1].data.status",
        ),
        (&events, json!([event("id", json!("ok")), event("id", json!(5))]), "id"),
        (tokens, json!({}), "session"),
        (tokens, json!({ "session": "" }), "session"),
        (tokens, json!({ "session": 5 }), "session"),
        (tokens, json!({ "session": "s", "scopes": "exec" }), "scopes"),
        (tokens, json!({ "session": "s", "ttl_seconds": 0 }), "ttl_seconds"),
        (tokens, json!({ "session": "s", "ttl_seconds": 2_592_001 }), "ttl_seconds"),
        (tokens, json!({ "session": "s", "ttl_seconds": "600" }), "ttl_seconds"),
    ];
    for (path, body, field) in table {
        let reply = d.post(path, &body);
        assert_eq!(reply.status, 422, "{path} {body}: {reply:?}");
        invalid(&reply, field);
    }
    assert_eq!(page(&d.get("/v1/peers"), "peers").len(), 1, "nobody else was registered");
    assert_eq!(page(&d.get("/v1/tasks"), "tasks").len(), 1, "no task was made");
    assert_eq!(d.get(&format!("/v1/tasks/{task}")).ok(200)["last_id"], 1, "nothing was appended");
    assert!(page(&d.get(&send), "messages").is_empty(), "nothing was sent");
    assert!(page(&d.get(tokens), "tokens").is_empty(), "nothing was minted");
}

#[test]
fn unknown_fields_are_ignored() {
    let d = Client::start();
    let body = json!({ "display_name": "a", "backend": "b", "from_the_future": { "x": [1] } });
    let id = text(&d.post("/v1/peers/register", &body).ok(200), "peer_id");
    let message = json!({ "text": "a", "id": "mine", "timestamp": "never", "state": "acked" });
    let sent = d.post(&format!("/v1/peers/{id}/messages"), &message).ok(200);
    assert_ne!(sent["id"], "mine", "the id is the daemon's");
    instant(&sent["timestamp"]);
    assert_eq!(sent["state"], "queued");
    d.post("/v1/tasks", &json!({ "status": "done", "task_id": "mine", "x": null })).ok(201);
    let agent = json!({ "instance": "nobody", "from_the_future": 1 });
    invalid(&d.post("/v1/hosts", &agent), "instance");
    for action in ["login", "login/wait", "approve"] {
        let body = json!({ "digest": "x", "from_the_future": 1 });
        let reply = d.post(&format!("/v1/sources/nothing/{action}"), &body);
        assert_ne!(reply.status(), 422, "{action}: {reply:?}");
    }
}

#[test]
fn method_not_allowed_lists_the_allowed_ones() {
    let d = Client::start();
    let id = peer(&d, "s-1");
    let task = new_task(&d);
    let table = [
        ("POST", "/health".to_owned(), vec!["GET"]),
        ("POST", "/v1/health".to_owned(), vec!["GET"]),
        ("PATCH", "/v1/peers".to_owned(), vec!["GET"]),
        ("PUT", format!("/v1/peers/{id}"), vec!["GET", "DELETE"]),
        ("DELETE", format!("/v1/peers/{id}/messages"), vec!["GET", "POST"]),
        ("GET", format!("/v1/peers/{id}/messages/ack"), vec!["POST"]),
        ("GET", format!("/v1/peers/{id}/heartbeat"), vec!["POST"]),
        ("DELETE", "/v1/messages/msg_x".to_owned(), vec!["GET"]),
        ("DELETE", "/v1/tasks".to_owned(), vec!["GET", "POST"]),
        ("PUT", format!("/v1/tasks/{task}"), vec!["GET"]),
        ("GET", format!("/v1/tasks/{task}/events"), vec!["POST"]),
        ("GET", format!("/v1/tasks/{task}/cancel"), vec!["POST"]),
        ("POST", format!("/v1/biam/subscribe?task_id={task}"), vec!["GET"]),
        ("DELETE", "/v1/events".to_owned(), vec!["GET"]),
        ("PUT", "/v1/tokens".to_owned(), vec!["GET", "POST"]),
        ("POST", "/v1/tokens/tok_x".to_owned(), vec!["DELETE"]),
        ("GET", "/v1/token/rotate".to_owned(), vec!["POST"]),
    ];
    for (method, path, allowed) in table {
        let reply = d.request(method, &path).send();
        assert_eq!(reply.status, 405, "{method} {path}: {reply:?}");
        problem(&reply, 405, "method_not_allowed");
        let allow = reply.header("allow").unwrap_or_default().to_owned();
        let listed: Vec<_> = allow.split(',').map(str::trim).collect();
        assert!(!listed.contains(&method), "{method} {path}: Allow is {allow}");
        for method in allowed {
            assert!(listed.contains(&method), "{path}: Allow is {allow}");
        }
    }
}

#[test]
fn missing_resource_gets_404() {
    let d = Client::start();
    let body = json!({ "text": "a", "ids": [], "kind": "frame", "data": { "line": "a", "kind": "stdout" } });
    for path in [
        "/v1",
        "/v1/",
        "/v1/peers/",
        "/v1/peers/unknown",
        "/v1/peers/unknown/messages",
        "/v1/peers/unknown/nothing",
        "/v1/messages/msg_unknown",
        "/v1/tasks/task_unknown",
        "/v1/biam/subscribe?task_id=task_unknown",
        "/v1/events?stream=task/unknown",
        "/v1/biam",
        "//v1/peers",
    ] {
        problem(&d.get(path), 404, "not_found");
    }
    for path in [
        "/v1/peers/unknown/messages",
        "/v1/peers/unknown/messages/ack",
        "/v1/peers/unknown/heartbeat",
        "/v1/tasks/task_unknown/cancel",
    ] {
        problem(&d.post(path, &body), 404, "not_found");
    }
    problem(&d.post("/v1/tasks/task_unknown/events", &done()), 404, "not_found");
    for path in ["/v1/peers/unknown", "/v1/tokens/tok_unknown"] {
        problem(&d.delete(path), 404, "not_found");
    }
}

/// Other than ids that the daemon gives, which are shorter.
#[test]
fn session_ids_and_keys_have_up_to_4096_bytes() {
    let d = Client::start();
    let ada = json!({ "backend": "claude", "display_name": "ada" });
    for (path, field, mut body) in
        [("/v1/tasks", "idempotency_key", json!({})), ("/v1/peers/register", "session_id", ada)]
    {
        for len in [129, limits::SHORT_TEXT_BYTES] {
            body[field] = json!("x".repeat(len));
            let reply = d.post(path, &body);
            assert!(matches!(reply.status, 200 | 201), "{field} {len}: {reply:?}");
        }
        body[field] = json!("x".repeat(limits::SHORT_TEXT_BYTES + 1));
        invalid(&d.post(path, &body), field);
    }
}

#[test]
fn list_accepts_limits_1_to_500_and_its_own_cursors() {
    let d = Client::start();
    let id = peer(&d, "s-1");
    let inbox = format!("/v1/peers/{id}/messages?peek=true");
    let lists = ["/v1/peers?", "/v1/tasks?", "/v1/tokens?", "/v1/events?", &inbox];
    for list in lists {
        for limit in ["0", "501", "abc", "-1", "1.5", "99999999999999999999"] {
            invalid(&d.get(&format!("{list}&limit={limit}")), "limit");
        }
        invalid(&d.get(&format!("{list}&limit=1&limit=2")), "limit");
        for limit in ["1", "500"] {
            d.get(&format!("{list}&limit={limit}")).ok(200);
        }
        let cursor = if list.contains("events") { "after" } else { "cursor" };
        for bad in ["abc", "%00", "!!!!", "-1"] {
            invalid(&d.get(&format!("{list}&{cursor}={bad}")), cursor);
        }
    }
}

/// A feed has no pages, but a wrong `limit` is wrong there, too.
#[test]
fn feed_of_the_log_refuses_a_wrong_limit() {
    let d = Client::start();
    for limit in ["0", "501", "-1", "many"] {
        let path = format!("/v1/events?limit={limit}");
        let reply = d.request("GET", &path).header("Accept", "text/event-stream").send();
        assert_eq!(problem(&reply, 422, "invalid_request")["field"], "limit", "{limit}");
    }
}

/// Only the routes that give streams count as streams.
#[test]
fn accept_does_not_evade_the_bound_of_requests() {
    let mut tuning = Tuning::default();
    tuning.budget.set(BudgetKind::Requests, 0);
    let d = Client::with(&tuning);
    let session = d.session("s-1");
    for accept in ["application/json", "text/event-stream"] {
        let reply = session.request("GET", "/v1/tasks").header("Accept", accept).send();
        let detail = text(&problem(&reply, 429, "limit_reached"), "detail");
        assert!(detail.starts_with("budget.requests: "), "{accept}: {detail}");
    }
}

/// A route that needs no credential says nothing of the client.
#[tokio::test]
async fn connection_is_known_by_the_last_credential_that_it_showed() {
    let server = TestServer::start().await;
    let client = ConnectionBounds::of_tcp().connection();
    for (path, token, is_known) in [
        ("/v1/peers", Some("wrong"), false),
        ("/v1/peers", None, true),
        ("/health", Some("wrong"), true),
        ("/v1/nothing", None, true),
        ("/v1/peers", Some("wrong"), false),
        ("/health", None, false),
        ("/v1/peers", None, true),
    ] {
        let request = server.request(token, Method::GET, path);
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(Arc::clone(&client));
        server.send(request).await;
        assert_eq!(client.check().is_none(), is_known, "{path} {token:?}");
    }
}

#[test]
fn each_problem_has_a_request_id() {
    let d = Client::start();
    let id = |reply: &Reply| problem(reply, 404, "not_found")["request_id"].clone();
    assert_ne!(id(&d.get("/v1/nothing")), id(&d.get("/v1/nothing")));
}
