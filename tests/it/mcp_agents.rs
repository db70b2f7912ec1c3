//! Recorded requests of real coding agents: `fixtures/mcp` has them as `tests/clients/agents.py
//! --fixtures` recorded them, each with its response.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::expect::{append, done, new_task, register};
use crate::wire::Sse;

/// The expected response of a recorded request.
struct Got<'a> {
    status: u16,
    content_type: &'a str,
}

/// A recorded request.
struct Sent<'a> {
    method: &'a str,
    target: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    body: &'a str,
    got: Got<'a>,
}

fn parse(exchange: &str) -> Sent<'_> {
    let (request, got) = exchange.trim_end().rsplit_once("\n<<< ").expect("what it got");
    let (status, content_type) = got.split_once(' ').expect("status and type");
    let (head, body) = request.split_once("\n\n").expect("a head");
    let mut lines = head.lines();
    let mut first = lines.next().expect("a first line").split(' ');
    Sent {
        method: first.next().expect("a method"),
        target: first.next().expect("a target"),
        headers: lines.map(|line| line.split_once(": ").expect("a header")).collect(),
        body,
        got: Got { status: status.parse().expect("a status"), content_type },
    }
}

/// Sends a client's requests one after the other, and compares the responses.
fn replay(name: &str, text: &str) {
    let d = Daemon::start();
    register(&d, &json!({ "display_name": "bob", "backend": "codex", "path": "/repo" }));
    let task = new_task(&d);
    append(&d, &task, &json!([done()]));
    let minted =
        d.post("/v1/tokens", &json!({ "session": "agent", "scopes": ["read_all"] })).ok(201);
    let token = minted["token"].as_str().expect("a token");
    let mut session = String::new();
    let mut open: Vec<Sse> = Vec::new();
    for sent in text.split("###\n").map(parse) {
        let fill = |text: &str| {
            text.replace("{token}", token).replace("{task}", &task).replace("{session}", &session)
        };
        let mut request = d.stranger().request(sent.method, &fill(sent.target));
        for (name, value) in sent.headers {
            request = request.header(name, &fill(value));
        }
        let body = fill(sent.body);
        if sent.method == "POST" {
            request = request.body(body.clone());
        }
        let what = format!("{name}: {} {} {body:.300}", sent.method, sent.target);
        if sent.got.content_type == "text/event-stream" {
            let stream = request.follow().expect("an answer");
            let mut stream = stream.unwrap_or_else(|reply| panic!("{what} got {reply:?}"));
            let rpc: Value = serde_json::from_str(&body).unwrap_or_default();
            if rpc["method"] == "tools/call" {
                let mut last = Value::Null;
                while let Some(block) = stream.block().expect("whole blocks") {
                    last = serde_json::from_str(&block.data.concat()).unwrap_or(last);
                }
                assert_eq!(last["id"], rpc["id"], "{what}");
                assert_eq!(last["result"]["isError"], Value::Null, "{what} got {last}");
            }
            open.push(stream);
            continue;
        }
        let reply = request.send();
        assert_eq!(reply.status(), sent.got.status, "{what} got {reply:?}");
        assert_eq!(reply.header("content-type").unwrap_or("-"), sent.got.content_type, "{what}");
        if let Some(id) = reply.header("mcp-session-id") {
            id.clone_into(&mut session);
        }
        if sent.got.content_type == "application/json" {
            let rpc: Value = serde_json::from_str(&body).expect("a request");
            let answer = reply.json();
            assert_eq!(answer["id"], rpc["id"], "{what}");
            assert!(answer["result"].is_object(), "{what} got {answer}");
        }
    }
}

#[test]
fn recorded_agent_requests_get_the_recorded_responses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/mcp");
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("the fixtures") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("text");
        replay(&path.file_stem().expect("a name").to_string_lossy(), &text);
        count += 1;
    }
    assert!(count > 4, "{count} fixtures");
}
