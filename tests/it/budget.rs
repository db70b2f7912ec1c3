//! The budgets of one principal: memory, disk, streams, calls; and that its neighbours are
//! unaffected.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{Daemon, eventually, svc, until};
use crate::wire::{Caller, Reply};

/// Memory of the daemon, in bytes.
pub(crate) fn resident(d: &Daemon) -> u64 {
    resident_of(d.pid())
}

/// Memory of a process, in bytes.
pub(crate) fn resident_of(pid: u32) -> u64 {
    kib(pid, "VmRSS:") * 1024
}

fn kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("is running");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Memory of the daemon that is not its program's file, in MiB.
fn anonymous_mib(d: &Daemon) -> u64 {
    kib(d.pid(), "RssAnon:") / 1024
}

fn initialize(caller: &Caller, capabilities: &str) -> Reply {
    post(
        caller,
        "/mcp",
        &format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-06-18","capabilities":{capabilities}}}}}"#
        ),
    )
}

fn post(caller: &Caller, target: &str, body: &str) -> Reply {
    let request = caller.request("POST", target).header("Content-Type", "application/json");
    request.body(body).send()
}

/// `bytes` of text: objects of one member each, which take eighty times their length in memory.
fn dense(bytes: usize) -> String {
    format!("[{}0]", r#"{"":0},"#.repeat(bytes / 7))
}

/// The page caches of the connections, and what is free in the arenas of the allocator.
#[test]
fn memory_is_given_back_when_work_is_over() {
    // Long enough that nothing is given back while it works.
    let d = Daemon::with(|plan| plan.env("SVC_QUIET_MS", "3000"));
    for n in 0..8 {
        let task = json!({ "title": format!("task {n}"), "prompt": "x".repeat(900_000) });
        d.post("/v1/tasks", &task).ok(201);
    }
    // The most memory that the daemon has while it works: on a busy machine it may pause, and give
    // memory back, before it has done all.
    let work = |d: &Daemon| {
        let most = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        d.get("/v1/tasks?limit=500").ok(200);
                        most.fetch_max(anonymous_mib(d), Ordering::Relaxed);
                    }
                });
            }
        });
        // Otherwise there is nothing to give back for.
        d.post("/v1/tasks", &json!({ "title": "the last" })).ok(201);
        most.into_inner().max(anonymous_mib(d))
    };
    // How much the allocator keeps differs with the order of the requests.
    let is_given_back = (0..5).any(|_| {
        let worked = work(&d);
        let end = Instant::now() + Duration::from_secs(20);
        let mut least = worked;
        eventually(Duration::from_secs(30), || {
            least = least.min(anonymous_mib(&d));
            least < worked - worked / 5 || Instant::now() > end
        });
        least < worked - worked / 5
    });
    assert!(is_given_back, "five times the daemon kept what it used");
}

#[test]
fn client_capabilities_take_no_memory() {
    let d = Daemon::start();
    let agent = d.session("greedy");
    assert_eq!(initialize(&agent, "{}").status(), 200);
    let before = resident(&d);
    let long = format!(r#"{{"experimental":"{}"}}"#, "x".repeat(2_400_000));
    let (heavy, small) =
        [2_400_000, 60_000].map(|bytes| format!(r#"{{"roots":{}}}"#, dense(bytes))).into();
    for (capabilities, status, said) in
        [(&long, 413, "65536 bytes"), (&heavy, 413, "too many values"), (&small, 200, "")]
    {
        for _ in 0..40 {
            let reply = initialize(&agent, capabilities);
            assert_eq!(reply.status(), status, "{reply:?}");
            let error = &reply.json()["error"]["message"];
            assert!(error.as_str().unwrap_or_default().contains(said), "{error}");
        }
    }
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"get_session","_meta":{{"x":{}}}}}}}"#,
        dense(4_000_000)
    );
    assert_eq!(post(&agent, "/mcp", &call).status(), 413, "too many values");
    let task = format!(r#"{{"title":"t","metadata":{{"x":{}}}}}"#, dense(1_000_000));
    assert_eq!(post(&agent, "/v1/tasks", &task).status(), 413, "too many values");
    let grown = resident(&d).saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB for 120 sessions", grown >> 20);
}

/// The error says which bound was reached, how much is used, and what frees it.
#[track_caller]
pub(crate) fn refused(reply: &Reply, key: &str, advice: &str) {
    assert_eq!(reply.status(), 429, "{reply:?}");
    let body = reply.json();
    let (code, text) = match body.get("error") {
        Some(error) if error.is_object() => (&error["data"]["code"], &error["message"]),
        _ => (&body["code"], &body["detail"]),
    };
    assert_eq!(code, "limit_reached", "{body}");
    let text = text.as_str().unwrap_or_default();
    assert!(text.starts_with(&format!("budget.{key}: ")) && text.contains(advice), "{text}");
}

fn register(caller: &Caller, name: &str) -> Reply {
    caller
        .post("/v1/peers/register", &json!({ "display_name": name, "backend": "b", "path": name }))
}

fn make(caller: &Caller) -> Reply {
    caller.post("/v1/tasks", &json!({ "title": "t" }))
}

fn call(caller: &Caller, tool: &str, arguments: &Value) -> Value {
    caller.tool(tool, arguments)["structuredContent"].take()
}

#[test]
fn row_budget_covers_all_kinds_and_survives_a_restart() {
    let mut d = Daemon::with(|plan| plan.env("SVC_BUDGET_ROWS", "4"));
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let opened = initialize(&greedy, "{}");
    let peer = register(&greedy, "a").ok(200);
    let tasks: Vec<_> = (0..2).map(|_| make(&greedy).ok(201)).collect();
    let full = |greedy: &Caller| {
        refused(&initialize(greedy, "{}"), "rows", "DELETE /mcp");
        refused(&register(greedy, "one-more"), "rows", "DELETE /v1/peers/");
        refused(&make(greedy), "rows", "svc task cancel");
    };
    full(&greedy);
    // An existing row takes no budget.
    register(&greedy, "a").ok(200);
    // Neither a neighbour nor the operator is affected.
    assert_eq!(initialize(&other, "{}").status(), 200);
    register(&other, "o").ok(200);
    for _ in 0..6 {
        make(&d).ok(201);
    }
    d.kill_and_restart();
    full(&greedy);
    let session = opened.header("mcp-session-id").expect("a session");
    let end = greedy.request("DELETE", "/mcp").header("Mcp-Session-Id", session);
    assert_eq!(end.send().status(), 204);
    make(&greedy).ok(201);
    full(&greedy);
    greedy.delete(&format!("/v1/peers/{}", peer["peer_id"].as_str().expect("an id"))).ok(200);
    register(&greedy, "c").ok(200);
    full(&greedy);
    let cancel = format!("/v1/tasks/{}/cancel", tasks[0]["task_id"].as_str().expect("an id"));
    greedy.post(&cancel, &json!({})).ok(200);
    make(&greedy).ok(201);
    full(&greedy);
}

#[test]
fn tool_refusal_has_the_reason_and_is_retryable() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_ROWS", "3"));
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let store = |caller: &Caller, number: u32| {
        let memory = json!({ "content": format!("fact {number}"), "category": "fact" });
        call(caller, "store_memory", &memory)
    };
    let stored: Vec<Value> = (0..4).map(|number| store(&greedy, number)).collect();
    let refusal = &stored[3]["error"];
    assert_eq!(refusal["type"], "unavailable", "{refusal}");
    assert_eq!(refusal["reason"], "limit_reached", "{refusal}");
    assert_eq!(refusal["retryable"], true, "{refusal}");
    let text = refusal["message"].as_str().unwrap_or_default();
    assert!(text.starts_with("budget.rows: ") && text.contains("delete_memory"), "{text}");
    assert!(store(&other, 0)["id"].is_string());
    let removed = call(&greedy, "delete_memory", &json!({ "memory_id": stored[0]["id"] }));
    assert!(removed.get("error").is_none(), "{removed}");
    assert!(store(&greedy, 9)["id"].is_string());
}

#[test]
fn messages_use_their_senders_budget_until_acknowledged() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_ROWS", "3"));
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let own = json!({ "display_name": "g", "backend": "b", "session_id": "greedy" });
    greedy.post("/v1/peers/register", &own).ok(200);
    let peer = register(&other, "o").ok(200)["peer_id"].as_str().expect("an id").to_owned();
    let inbox = format!("/v1/peers/{peer}/messages");
    let send = |caller: &Caller| caller.post(&inbox, &json!({ "text": "hello" }));
    let first = send(&greedy).ok(200)["id"].clone();
    send(&greedy).ok(200);
    refused(&send(&greedy), "rows", "acknowledge");
    send(&d).ok(200);
    other.post(&format!("{inbox}/ack"), &json!({ "ids": [first] })).ok(200);
    send(&greedy).ok(200);
    refused(&send(&greedy), "rows", "acknowledge");
}

#[test]
fn stream_budget_is_freed_when_the_reader_disconnects() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_STREAMS", "2"));
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let events = |caller: &Caller| {
        let request = caller.request("GET", "/v1/events").header("Accept", "text/event-stream");
        request.follow().expect("an answer")
    };
    let first = events(&greedy).expect("a stream");
    let _second = events(&greedy).expect("a stream");
    refused(&events(&greedy).err().expect("no third"), "streams", "close one");
    // However the header is written.
    for accept in [&["Text/Event-Stream"][..], &["application/json", "text/event-stream"]] {
        let request = greedy.request("GET", "/v1/events");
        let request = accept.iter().fold(request, |request, line| request.header("Accept", line));
        let reply = request.follow().expect("an answer").err().expect("no third");
        refused(&reply, "streams", "close one");
    }
    events(&other).expect("a stream");
    greedy.get("/v1/events").ok(200);
    drop(first);
    until(Duration::from_secs(10), || events(&greedy).ok());
}

#[test]
fn running_calls_and_long_bodies_count_as_concurrent_requests() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_REQUESTS", "3"));
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let post_prompt = |caller: &Caller, bytes: usize| {
        post(caller, "/v1/tasks", &format!(r#"{{"title":"t","prompt":"{}"}}"#, "x".repeat(bytes)))
    };
    refused(&post_prompt(&greedy, 200_000), "requests", "wait for the answers");
    post_prompt(&greedy, 100_000).ok(201);
    post_prompt(&d, 200_000).ok(201);

    let task = make(&greedy).ok(201)["task_id"].clone();
    let wait = |caller: &Caller| {
        let arguments = json!({ "task_id": task, "timeout_s": 600 });
        let call = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": { "name": "TaskWait", "arguments": arguments } });
        let request =
            caller.request("POST", "/mcp").header("Accept", "application/json, text/event-stream");
        request.json(&call).follow().expect("an answer")
    };
    let first = wait(&greedy).expect("it waits");
    let _second = wait(&greedy).expect("it waits");
    refused(&wait(&greedy).err().expect("no third"), "requests", "cancel");
    make(&other).ok(201);
    drop(wait(&d).expect("the operator's"));
    drop(first);
    until(Duration::from_secs(10), || wait(&greedy).ok());
}

#[test]
fn stored_bytes_per_hour_are_bounded_for_each_principal() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_STORED_BYTES_PER_HOUR", "200000"));
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let make = |caller: &Caller, bytes: usize| {
        post(caller, "/v1/tasks", &format!(r#"{{"title":"t","prompt":"{}"}}"#, "x".repeat(bytes)))
    };
    make(&greedy, 120_000).ok(201);
    let reply = make(&greedy, 120_000);
    refused(&reply, "stored_bytes_per_hour", "send less");
    assert!(reply.header("retry-after").is_some(), "{reply:?}");
    assert_eq!(greedy.get("/v1/tasks").ok(200)["count"], 1, "nothing of it was stored");
    make(&greedy, 10_000).ok(201);
    make(&other, 120_000).ok(201);
    for _ in 0..3 {
        make(&d, 120_000).ok(201);
    }
}

#[test]
fn budgets_are_configurable_and_their_use_is_in_the_metrics() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_ROWS", "7"));
    let shown = svc(&d.home, &["config", "show", "--json"]).json();
    let bounds = shown["settings"].as_array().expect("rows");
    let keys: Vec<&str> = bounds
        .iter()
        .filter_map(|row| row["key"].as_str().filter(|key| key.starts_with("budget.")))
        .collect();
    let all = ["requests", "streams", "unread_bytes", "stored_bytes_per_hour", "rows"];
    assert_eq!(keys, all.map(|key| format!("budget.{key}")));
    let rows = bounds.iter().find(|row| row["key"] == "budget.rows").expect("a bound");
    assert_eq!(rows["value"], 20_000, "the environment of the daemon is its own");
    assert_eq!(rows["origin"], "default");
    d.post("/v1/tasks", &json!({ "title": "t" })).ok(201);
    let metrics = d.request("GET", "/metrics").send();
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    for line in ["svc_budget_used{kind=\"rows\"} ", "svc_budget_used{kind=\"streams\"} 0\n"] {
        assert!(text.contains(line), "{text}");
    }
}
