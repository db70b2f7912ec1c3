//! Access to the MCP server, and its metrics.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    Client, SOON, finish, initialize, modern, modern_body, modern_post, post, request, tool,
    wait_for, with_client, with_tasks,
};
use crate::daemon::{Daemon, eventually};
use crate::expect::{new_task, problem};
use crate::wire::Request;

#[test]
fn unauthenticated_requests_get_nothing() {
    let (d, client) = with_client();
    let nobody = d.stranger();
    let wrong = d.with_token(&"0".repeat(64));
    let doors = |caller: &crate::wire::Caller| -> Vec<Request> {
        vec![
            post(caller, &request(1, "ping", &json!({}))),
            post(caller, &request(1, "initialize", &json!({ "protocolVersion": "2025-11-25" }))),
            modern_post(caller, &modern_body(1, "server/discover", &json!({}), &json!({}))),
            client.of(caller).post(&request(1, "ping", &json!({}))),
            client.of(caller).listen_request(None),
            client.of(caller).listen_request(Some("x.1")),
            caller.request("DELETE", "/mcp").header("Mcp-Session-Id", &client.session),
            caller.request("GET", "/mcp"),
            caller.request("PUT", "/mcp"),
            caller.request("GET", "/sse"),
            caller.request("POST", "/messages?session_id=x").json(&json!({})),
            caller.request("POST", "/mcp").body("nonsense"),
        ]
    };
    for caller in [&nobody, &wrong] {
        for door in doors(caller) {
            let reply = door.send();
            problem(&reply, 401, "unauthorized");
            let challenge = reply.header("www-authenticate").unwrap_or_default();
            assert!(challenge.starts_with("Bearer"), "{challenge}");
            assert_eq!(reply.header("mcp-session-id"), None);
        }
    }
    for (name, value) in
        [("Origin", "http://evil.example"), ("Origin", "null"), ("Host", "evil.example")]
    {
        for door in doors(&d) {
            let reply = door.without(name).header(name, value).send();
            problem(&reply, 403, "forbidden");
        }
    }
    let port = d.port();
    for origin in [format!("http://127.0.0.1:{port}"), "http://localhost:1".to_owned()] {
        let asked = post(&d, &request(1, "ping", &json!({}))).header("Origin", &origin);
        assert_eq!(asked.send().status(), 200, "{origin}");
    }
    client.ask("ping", &json!({}));
    // Clients look here for OAuth metadata, and must not take a 401 as an invitation to log in.
    for path in [
        "oauth-protected-resource",
        "oauth-protected-resource/mcp",
        "oauth-authorization-server",
        "openid-configuration",
    ] {
        let path = format!("/.well-known/{path}");
        for reply in [nobody.get(&path), nobody.post(&path, &json!({}))] {
            problem(&reply, 404, "not_found");
            assert_eq!(reply.header("www-authenticate"), None);
        }
    }
}

#[test]
fn revoked_token_ends_access_to_its_session() {
    let d = Daemon::start();
    let minted = d.post("/v1/tokens", &json!({ "session": "s-1" })).ok(201);
    let mine = d.with_token(minted["token"].as_str().expect("a token"));
    let client = Client::open(&mine, "2025-11-25");
    client.ask("ping", &json!({}));
    let id = minted["token_id"].as_str().or(minted["id"].as_str()).expect("an id");
    assert!(d.delete(&format!("/v1/tokens/{id}")).status() < 300);
    problem(&client.post(&request(1, "ping", &json!({}))).send(), 401, "unauthorized");
    // A new token for the same session has access again.
    client.of(&d.session("s-1")).ask("ping", &json!({}));
}

/// The counters by their labels: method, name, era, outcome.
fn counted(d: &Daemon) -> BTreeMap<[String; 4], u64> {
    let metrics = d.get("/metrics");
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    let lines = text.lines().filter_map(|line| line.strip_prefix("svc_mcp_requests_total{"));
    lines
        .map(|line| {
            let (labels, value) = line.split_once("} ").expect("labels and a value");
            let all: BTreeMap<&str, &str> = labels
                .split(',')
                .map(|label| {
                    let (name, value) = label.split_once('=').expect("a label");
                    (name, value.trim_matches('"'))
                })
                .collect();
            assert_eq!(all.len(), 4, "{line}");
            let labels = ["method", "name", "era", "outcome"].map(|name| all[name].to_owned());
            (labels, value.parse().expect("a count"))
        })
        .collect()
}

#[test]
fn metric_labels_are_not_chosen_by_clients() {
    let d = Daemon::start();
    let client = Client::open(&d, "2025-06-18");
    client.call("peer_list", &json!({}));
    client.call("TaskGet", &json!({ "task_id": "task_x" }));
    for _ in 0..2 {
        post(&d, &request(1, "tools/call", &tool("peer_list", &json!({})))).send();
    }
    modern(&d, "tools/call", &tool("peer_list", &json!({})));
    modern(&d, "tools/list", &json!({}));
    initialize(&d, "2025-11-25", &json!({}));
    // Names that a client makes up must not become labels.
    for n in 0..50 {
        let made_up = format!("made_up_{n}");
        post(&d, &request(1, &made_up, &json!({ "name": made_up }))).send();
        post(&d, &request(1, "tools/call", &tool(&made_up, &json!({})))).send();
        post(&d, &request(1, "ping", &json!({}))).header("Mcp-Name", &made_up).send();
        post(&d, &request(1, "prompts/get", &json!({ "name": made_up }))).send();
        post(&d, &request(1, "resources/read", &json!({ "uri": made_up }))).send();
        client.post(&request(1, &made_up, &json!({}))).send();
        modern(&d, &made_up, &json!({}));
        modern(&d, "tools/call", &tool(&made_up, &json!({})));
        let body = modern_body(1, "tasks/get", &json!({ "taskId": made_up }), &with_tasks());
        modern_post(&d, &body).send();
        let mut wrong = modern_body(1, "tools/list", &json!({}), &json!({}));
        wrong["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(made_up);
        modern_post(&d, &wrong).send();
    }
    let counted = counted(&d);
    for (labels, count) in [
        (["tools/call", "peer_list", "legacy", "ok"], 1),
        (["tools/call", "TaskGet", "legacy", "tool_error"], 1),
        (["tools/call", "peer_list", "bare", "ok"], 2),
        (["tools/call", "peer_list", "modern", "ok"], 1),
        (["tools/list", "", "modern", "ok"], 1),
        (["initialize", "", "legacy", "ok"], 2),
        (["other", "", "bare", "error"], 50),
        (["other", "", "legacy", "error"], 50),
        (["other", "", "modern", "error"], 50),
        (["tools/call", "", "bare", "error"], 50),
        (["ping", "", "bare", "ok"], 50),
    ] {
        let labels = labels.map(str::to_owned);
        assert_eq!(counted.get(&labels), Some(&count), "{labels:?} in {counted:?}");
    }
    let metrics = String::from_utf8_lossy(&d.get("/metrics").body).into_owned();
    assert!(!metrics.contains("made_up"));
    let timed = "svc_mcp_request_duration_seconds_count{method=\"initialize\"} 2";
    assert!(metrics.contains(timed), "{metrics}");
}

/// A call that waits is counted when it ends, by its outcome.
#[test]
fn waiting_calls_are_counted_at_their_end() {
    let (d, client) = with_client();
    let task = new_task(&d);
    let (_, mut call) = client.begin("TaskWait", &wait_for(&task));
    call.next();
    let of_waits = || -> Vec<(String, u64)> {
        let all = counted(&d).into_iter().filter(|(labels, _)| labels[1] == "TaskWait");
        all.map(|([_, _, _, outcome], count)| (outcome, count)).collect()
    };
    assert_eq!(of_waits(), []);
    finish(&d, &task);
    eventually(SOON, || of_waits() == [("ok".to_owned(), 1)]);
}

#[test]
fn client_input_is_never_logged() {
    let mut d = Daemon::with(|plan| plan.env("SVC_LOG_LEVEL", "trace"));
    let secret = "a-secret-that-nobody-else-knows";
    let client = Client::open(&d, "2025-06-18");
    client.call("TaskGet", &json!({ "task_id": secret }));
    let prompt = json!({ "name": "servers", "arguments": { "x": secret } });
    client.post(&request(1, "prompts/get", &prompt)).send();
    let params = tool("TaskReply", &json!({ "task_id": "task_x", "body": secret }));
    modern(&d, "tools/call", &params);
    d.request("POST", "/mcp")
        .header("Content-Type", "application/json")
        .body(format!("{{{secret}"))
        .send();
    let log = d.stderr();
    d.stop();
    assert!(log.contains("DEBUG"), "everything is told: {log}");
    assert!(!log.contains(secret), "{log}");
    assert!(!log.contains(d.home.token().expect("a token").as_str()));
    assert!(!log.contains(&client.session), "a session's id lets its holder in: {log}");
}
