//! What one principal may take of the machine: memory, disk, streams, calls; and that its neighbours do not notice.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{Daemon, eventually, svc, until};
use crate::wire::{Caller, Reply, exchange};

/// Memory of the daemon, in bytes.
fn resident(d: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", d.pid())).expect("is running");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
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

/// Objects of one member each, which take eighty times their length in memory. `bytes` of text.
fn dense(bytes: usize) -> String {
    format!("[{}0]", r#"{"":0},"#.repeat(bytes / 7))
}

#[test]
fn what_a_client_says_of_itself_takes_no_memory() {
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

/// A daemon whose principals may hold two of everything.
fn narrow() -> Daemon {
    Daemon::with(|plan| {
        ["mcp_sessions", "subscriptions", "streams", "calls", "peers", "sessions", "tasks"]
            .into_iter()
            .chain(["messages", "records", "memories"])
            .fold(plan, |plan, kind| plan.env(&format!("SVC_BUDGET_{}", kind.to_uppercase()), "2"))
    })
}

/// The answer says which bound was reached and what to free.
#[track_caller]
fn refused(reply: &Reply, kind: &str, advice: &str) {
    assert_eq!(reply.status(), 429, "{reply:?}");
    let body = reply.json();
    let (code, text) = match body.get("error") {
        Some(error) if error.is_object() => (&error["data"]["code"], &error["message"]),
        _ => (&body["code"], &body["detail"]),
    };
    assert_eq!(code, "limit_reached", "{body}");
    let text = text.as_str().unwrap_or_default();
    assert!(text.starts_with(&format!("budget.{kind}: 2 of 2 ")), "{text}");
    assert!(text.contains(advice), "{text}");
}

fn register(caller: &Caller, name: &str) -> Reply {
    caller
        .post("/v1/peers/register", &json!({ "display_name": name, "backend": "b", "path": name }))
}

#[test]
fn sessions_of_clients_peers_and_tasks_have_a_bound_that_is_counted_from_rows() {
    let mut d = narrow();
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let opened: Vec<Reply> = (0..2).map(|_| initialize(&greedy, "{}")).collect();
    refused(&initialize(&greedy, "{}"), "mcp_sessions", "DELETE /mcp");
    let peers: Vec<_> = ["a", "b"].map(|name| register(&greedy, name).ok(200)).into();
    refused(&register(&greedy, "c"), "peers", "DELETE /v1/peers/");
    register(&greedy, "a").ok(200);
    let make = |caller: &Caller| caller.post("/v1/tasks", &json!({ "title": "t" }));
    let tasks: Vec<_> = (0..2).map(|_| make(&greedy).ok(201)).collect();
    refused(&make(&greedy), "tasks", "svc task cancel");
    // Neither a neighbour nor the operator is bound by it.
    assert_eq!(initialize(&other, "{}").status(), 200);
    register(&other, "o").ok(200);
    make(&other).ok(201);
    for _ in 0..3 {
        make(&d).ok(201);
        assert_eq!(initialize(&d, "{}").status(), 200);
    }
    d.kill9();
    d.restart();
    refused(&initialize(&greedy, "{}"), "mcp_sessions", "DELETE /mcp");
    refused(&register(&greedy, "c"), "peers", "DELETE /v1/peers/");
    refused(&make(&greedy), "tasks", "svc task cancel");
    let session = opened[0].header("mcp-session-id").expect("a session");
    let end = greedy.request("DELETE", "/mcp").header("Mcp-Session-Id", session);
    assert_eq!(end.send().status(), 204);
    assert_eq!(initialize(&greedy, "{}").status(), 200);
    greedy.delete(&format!("/v1/peers/{}", peers[0]["peer_id"].as_str().expect("an id"))).ok(200);
    register(&greedy, "c").ok(200);
    let cancel = format!("/v1/tasks/{}/cancel", tasks[0]["task_id"].as_str().expect("an id"));
    greedy.post(&cancel, &json!({})).ok(200);
    make(&greedy).ok(201);
    refused(&make(&greedy), "tasks", "svc task cancel");
}

#[test]
fn messages_have_a_bound_until_they_are_acknowledged_and_a_broadcast_counts_each_copy() {
    let d = narrow();
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let own = json!({ "display_name": "g", "backend": "b", "session_id": "greedy" });
    greedy.post("/v1/peers/register", &own).ok(200);
    let peer = register(&other, "o").ok(200)["peer_id"].as_str().expect("an id").to_owned();
    let inbox = format!("/v1/peers/{peer}/messages");
    let send = || greedy.post(&inbox, &json!({ "text": "hello" }));
    let first = send().ok(200)["id"].clone();
    send().ok(200);
    refused(&send(), "messages", "svc message ack");
    let broadcast = |text: &str| greedy.post("/v1/peers/broadcast", &json!({ "text": text }));
    refused(&broadcast("all"), "messages", "svc message ack");
    d.post(&inbox, &json!({ "text": "the operator's" })).ok(200);
    other.post(&format!("{inbox}/ack"), &json!({ "ids": [first] })).ok(200);
    assert_eq!(broadcast("all").ok(200)["delivered_to"], 1);
    refused(&send(), "messages", "svc message ack");
    let texts: Vec<_> = d.get(&format!("{inbox}?peek=true")).ok(200)["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .map(|message| message["text"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(texts, ["hello", "the operator's", "all"]);
}

/// What `budget.KIND` says in a refusal of REST.
#[track_caller]
fn beyond(reply: &Reply, kind: &str, advice: &str) {
    assert_eq!(reply.status(), 429, "{reply:?}");
    let body = reply.json();
    assert_eq!(body["code"], "limit_reached", "{body}");
    let text = body["detail"].as_str().unwrap_or_default();
    assert!(text.starts_with(&format!("budget.{kind}: ")) && text.contains(advice), "{text}");
}

#[test]
fn texts_of_messages_have_a_bound_by_sender_and_by_inbox_which_the_operator_finds_open() {
    let d = Daemon::with(|plan| {
        plan.env("SVC_BUDGET_MESSAGE_BYTES", "2500").env("SVC_BUDGET_INBOX_BYTES", "4000")
    });
    let receiver = d.session("receiver");
    let peer = register(&receiver, "r").ok(200)["peer_id"].as_str().expect("an id").to_owned();
    let inbox = format!("/v1/peers/{peer}/messages");
    let sender = |key: &str| {
        let caller = d.session(key);
        let own = json!({ "display_name": key, "backend": "b", "session_id": key });
        caller.post("/v1/peers/register", &own).ok(200);
        caller
    };
    let send =
        |caller: &Caller, bytes: usize| caller.post(&inbox, &json!({ "text": "x".repeat(bytes) }));
    let (first, second) = (sender("first"), sender("second"));
    let long = send(&first, 2000).ok(200)["id"].clone();
    beyond(&send(&first, 501), "message_bytes", "svc message ack");
    beyond(&send(&second, 1001), "inbox_bytes", "its owner");
    send(&second, 1000).ok(200);
    beyond(&send(&second, 1), "inbox_bytes", "its owner");
    send(&d, 1000).ok(200);
    beyond(&send(&d, 1), "inbox_bytes", "its owner");
    receiver.post(&format!("{inbox}/ack"), &json!({ "ids": [long] })).ok(200);
    send(&first, 1000).ok(200);
}

#[test]
fn bytes_of_tasks_have_a_bound_until_they_end() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_TASK_BYTES", "10000"));
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let make = |caller: &Caller| {
        caller.post("/v1/tasks", &json!({ "title": "t", "prompt": "x".repeat(6000) }))
    };
    let task = make(&greedy).ok(201)["task_id"].as_str().expect("an id").to_owned();
    beyond(&make(&greedy), "task_bytes", "svc task cancel");
    make(&other).ok(201);
    greedy.post(&format!("/v1/tasks/{task}/cancel"), &json!({})).ok(200);
    make(&greedy).ok(201);
}

#[test]
fn answers_that_nobody_saw_have_a_bound() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_LOST_REPLIES", "3"));
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let report = |caller: &Caller, key: &str, lost: &[&str]| {
        let arguments = json!({ "event": "SessionStart", "client": "claude-code", "lost": lost,
            "payload": { "session_id": key, "hook_event_name": "SessionStart", "cwd": "/tmp", "source": "startup" } });
        let call = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": { "name": "hook_event", "arguments": arguments } });
        caller.post("/mcp", &call).ok(200)["result"].take()
    };
    for lost in [&["a", "b"][..], &["c"]] {
        let taken = report(&greedy, "greedy", lost);
        assert_ne!(taken["isError"], true, "{taken}");
    }
    let refused = report(&greedy, "greedy", &["d"]).to_string();
    assert!(refused.contains("budget.lost_replies: 3 of 3 "), "{refused}");
    let taken = report(&other, "other", &["d"]);
    assert_ne!(taken["isError"], true, "{taken}");
}

#[test]
fn subscriptions_have_a_bound() {
    let d = narrow();
    let greedy = d.session("greedy");
    let opened = initialize(&greedy, "{}");
    let session = opened.header("mcp-session-id").expect("a session").to_owned();
    let subscribe = |stream: &str| {
        let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "resources/subscribe",
            "params": { "uri": format!("svc://stream/{stream}") } });
        greedy.request("POST", "/mcp").header("Mcp-Session-Id", &session).json(&call).send()
    };
    let own = |_| {
        let task = greedy.post("/v1/tasks", &json!({ "title": "t" })).ok(201);
        format!("task/{}", task["task_id"].as_str().expect("an id"))
    };
    let streams = [0, 1].map(own);
    for stream in &streams {
        let answer = subscribe(stream).ok(200);
        assert!(answer.get("error").is_none(), "{answer}");
    }
    greedy.post(&format!("/v1/tasks/{}/cancel", &streams[0]["task/".len()..]), &json!({})).ok(200);
    refused(&subscribe(&own(2)), "subscriptions", "resources/unsubscribe");
}

#[test]
fn streams_and_calls_have_a_bound_and_are_given_back_when_their_reader_goes() {
    let d = narrow();
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let events = |caller: &Caller| {
        let request = caller.request("GET", "/v1/events").header("Accept", "text/event-stream");
        request.follow().expect("an answer")
    };
    let first = events(&greedy).expect("a stream");
    let _second = events(&greedy).expect("a stream");
    refused(&events(&greedy).err().expect("no third"), "streams", "close one");
    events(&other).expect("a stream");
    greedy.get("/v1/events").ok(200);
    drop(first);
    until(Duration::from_secs(10), || events(&greedy).ok());

    let task = greedy.post("/v1/tasks", &json!({ "title": "t" })).ok(201)["task_id"].clone();
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
    refused(&wait(&greedy).err().expect("no third"), "calls", "cancel");
    drop(wait(&d).expect("the operator's"));
    drop(first);
    until(Duration::from_secs(10), || wait(&greedy).ok());
}

#[test]
fn what_is_stored_of_an_agent_has_a_bound() {
    let d = narrow();
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let call = |caller: &Caller, tool: &str, arguments: Value| {
        let call = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": { "name": tool, "arguments": arguments } });
        let mut result = caller.post("/mcp", &call).ok(200);
        result["result"]["structuredContent"].take()
    };
    let store = |caller: &Caller, text: &str| {
        call(caller, "store_memory", json!({ "content": text, "category": "fact" }))
    };
    let full = |answer: &Value, kind: &str, advice: &str| {
        assert_eq!(answer["error"]["type"], "unavailable", "{answer}");
        let text = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            text.starts_with(&format!("budget.{kind}: 2 of 2 ")) && text.contains(advice),
            "{text}"
        );
    };
    let memory = store(&greedy, "one")["id"].clone();
    assert!(memory.is_string(), "{memory}");
    store(&greedy, "two");
    full(&store(&greedy, "three"), "memories", "delete_memory");
    assert!(store(&other, "three")["id"].is_string());
    let removed = call(&greedy, "delete_memory", json!({ "memory_id": memory }));
    assert!(removed.get("error").is_none(), "{removed}");
    assert!(store(&greedy, "three")["id"].is_string());

    for _ in 0..2 {
        let draft = json!({ "domain": "debugging", "strategy": "root-cause-analysis",
            "goal": "find the cause", "hypothesis": "the lock is held too long",
            "action": "measure the time of each hold", "prediction": "one is above a second" });
        let begun = call(&greedy, "start_ghap", draft);
        assert!(begun.get("error").is_none(), "{begun}");
        let end = json!({ "status": "abandoned", "result": "no time" });
        let over = call(&greedy, "resolve_ghap", end);
        assert!(over.get("error").is_none(), "{over}");
    }
    let draft = json!({ "domain": "debugging", "strategy": "root-cause-analysis", "goal": "g",
        "hypothesis": "h", "action": "a", "prediction": "p" });
    full(&call(&greedy, "start_ghap", draft), "records", "operator");
}

#[test]
fn bytes_have_a_bound_while_they_are_worked_on_and_within_the_hour() {
    let d = Daemon::with(|plan| {
        plan.env("SVC_BUDGET_BYTES_PER_HOUR", "100000").env("SVC_BUDGET_REQUEST_BYTES", "600000")
    });
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let make = |caller: &Caller, bytes: usize| {
        post(caller, "/v1/tasks", &format!(r#"{{"title":"t","prompt":"{}"}}"#, "x".repeat(bytes)))
    };
    let reply = make(&greedy, 150_001);
    assert_eq!(reply.status(), 429, "four times this body is too much: {reply:?}");
    assert!(
        reply.json()["detail"]
            .as_str()
            .is_some_and(|text| text.starts_with("budget.request_bytes"))
    );
    make(&greedy, 120_000).ok(201);
    let reply = make(&greedy, 1);
    assert_eq!(reply.status(), 429, "{reply:?}");
    assert!(
        reply.json()["detail"]
            .as_str()
            .is_some_and(|text| text.starts_with("budget.bytes_per_hour"))
    );
    assert!(reply.header("retry-after").is_some(), "{reply:?}");
    greedy.get("/v1/tasks").ok(200);
    make(&other, 1).ok(201);
    for _ in 0..3 {
        make(&d, 150_001).ok(201);
    }
}

/// To refuse takes time, which is the neighbours': one that asks on is heard at a pace, and nobody else is.
#[test]
fn what_is_read_for_nothing_costs_its_sender_time_by_its_size() {
    let d = Daemon::start();
    let greedy = d.session("greedy");
    // Not JSON.
    let body = "x".repeat(1_000_000);
    let request = || greedy.request("POST", "/v1/tasks").header("Content-Type", "application/json");
    let chunked = {
        let mut bytes = request().header("Transfer-Encoding", "chunked").bytes();
        bytes.extend(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).bytes());
        bytes
    };
    for way in ["announced", "chunked"] {
        let began = Instant::now();
        for _ in 0..24 {
            let reply = match way {
                "announced" => request().body(body.as_str()).send(),
                _ => exchange(d.addr, &chunked).expect("an answer"),
            };
            assert_eq!(reply.status(), 400, "{reply:?}");
        }
        // Each counts for 61 ms. For the first 500 ms nobody waits.
        assert!(began.elapsed() >= Duration::from_millis(23 * 61 - 500), "{way}");
        eventually(Duration::from_secs(20), || {
            let asked = Instant::now();
            greedy.post("/v1/tasks", &json!({ "title": "t" })).ok(201);
            asked.elapsed() < Duration::from_millis(100)
        });
    }
}

#[test]
fn who_is_refused_again_and_again_is_heard_at_a_pace() {
    let d = narrow();
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    let make = |caller: &Caller| caller.post("/v1/tasks", &json!({ "title": "t" }));
    for _ in 0..2 {
        make(&greedy).ok(201);
    }
    let began = Instant::now();
    for _ in 0..75 {
        refused(&make(&greedy), "tasks", "TaskCancel");
    }
    // Twenty-five come at once, and the others one each twenty milliseconds.
    assert!(began.elapsed() >= Duration::from_millis(49 * 20), "{:?}", began.elapsed());
    for _ in 0..2 {
        make(&other).ok(201);
    }
    // What it frees it has at once.
    let page = greedy.get("/v1/tasks").ok(200);
    let task = page["tasks"][0]["task_id"].as_str().expect("a task").to_owned();
    greedy.post(&format!("/v1/tasks/{task}/cancel"), &json!({})).ok(200);
    make(&greedy).ok(201);
}

#[test]
fn the_bounds_are_in_the_configuration_and_the_use_is_in_the_metrics() {
    let d = narrow();
    let shown = svc(&d.home, &["config", "show", "--json"]).json();
    let bounds = shown["settings"].as_array().expect("rows");
    let of = |key: &str| {
        bounds.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key}: {shown}"))
    };
    assert_eq!(of("budget.streams")["value"], 64, "the environment of the daemon is its own");
    assert_eq!(of("budget.request_bytes")["origin"], "default");
    d.post("/v1/tasks", &json!({ "title": "t" })).ok(201);
    let metrics = d.request("GET", "/metrics").send();
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(text.contains("\nsvc_budget_used{kind=\"tasks\"} 1\n"), "{text}");
    assert!(text.contains("\nsvc_budget_used{kind=\"streams\"} 0\n"), "{text}");
}
