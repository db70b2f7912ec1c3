//! The transport of 2024-11-05: one stream for a session, and a URL to POST to.

use std::thread;

use serde_json::{Value, json};

use super::{
    SOON, Stream, call_states, finish, given, is_wait_answer, notification, refused, request, tool,
    wait_for,
};
use crate::daemon::{Daemon, eventually};
use crate::expect::{append, frame, new_task, problem};
use crate::wire::{Caller, Reply};

/// A client of that version.
struct Client {
    caller: Caller,
    stream: Stream,
    endpoint: String,
    last: Option<String>,
}

impl Client {
    #[track_caller]
    fn open(caller: &Caller, last: Option<&str>) -> Self {
        let mut asked = caller.request("GET", "/sse").header("Accept", "text/event-stream");
        if let Some(last) = last {
            asked = asked.header("Last-Event-ID", last);
        }
        let mut stream = Stream::open(&asked);
        let first = stream.block().expect("a first event");
        assert_eq!(first.event.as_deref(), Some("endpoint"), "{first:?}");
        let [endpoint] = first.data.as_slice() else { panic!("one line: {first:?}") };
        assert!(endpoint.starts_with("/messages?session_id="), "{endpoint}");
        let last = last.map(str::to_owned);
        Self { caller: caller.clone(), endpoint: endpoint.clone(), stream, last }
    }

    fn post(&self, body: &Value) -> Reply {
        self.caller.post(&self.endpoint, body)
    }

    #[track_caller]
    fn send(&self, body: &Value) {
        let reply = self.post(body);
        assert_eq!(reply.status(), 202, "{reply:?}");
    }

    /// The next message; its event has an id if it can be resumed.
    #[track_caller]
    fn next(&mut self) -> Value {
        let next = self.stream.next();
        if next.id.is_some() {
            self.last.clone_from(&next.id);
        }
        next.json
    }

    /// The response to this request, skipping notifications.
    #[track_caller]
    fn answer(&mut self, id: &Value) -> Value {
        loop {
            let next = self.next();
            if next.get("method").is_none() {
                assert_eq!(next["id"], *id, "{next}");
                return next;
            }
        }
    }

    #[track_caller]
    fn ask(&mut self, id: impl Into<Value>, method: &str, params: &Value) -> Value {
        let id = id.into();
        self.send(&request(id.clone(), method, params));
        self.answer(&id)["result"].take()
    }

    #[track_caller]
    fn initialize(&mut self) {
        let params = json!({
            "protocolVersion": "2024-11-05",
            "capabilities": {},
            "clientInfo": { "name": "old", "version": "1" },
        });
        let answer = self.ask(0, "initialize", &params);
        assert_eq!(answer["protocolVersion"], "2024-11-05");
        self.send(&notification("notifications/initialized", &json!({})));
    }

    /// Reconnects after the connection was lost.
    #[track_caller]
    fn back(&mut self) {
        let again = Self::open(&self.caller, self.last.as_deref());
        assert_eq!(again.endpoint, self.endpoint, "the same session");
        *self = again;
    }
}

#[test]
fn client_of_2024_11_05_can_connect_and_call() {
    let d = Daemon::start();
    let mut client = Client::open(&d.reader("s-1"), None);
    client.initialize();
    assert_eq!(client.ask("p", "ping", &json!({})), json!({}));
    let tools = client.ask(1, "tools/list", &json!({}));
    let listed = tools["tools"].as_array().expect("tools");
    assert!((8..=10).contains(&listed.len()), "{tools}");
    assert!(listed.iter().any(|tool| tool["name"] == "peer_list"), "{tools}");
    given(&client.ask(2, "tools/call", &tool("peer_list", &json!({}))));
    assert!(client.ask(3, "resources/list", &json!({}))["resources"].is_array());
    for (id, method, params, code) in [
        (4, "no/such", json!({}), -32601),
        (5, "tools/call", tool("no_such_tool", &json!({})), -32602),
        (6, "resources/read", json!({ "uri": "nonsense" }), -32002),
    ] {
        client.send(&request(id, method, &params));
        let answer = client.answer(&json!(id));
        assert_eq!(answer["error"]["code"], json!(code), "{answer}");
    }
    let task = new_task(&d);
    client.send(&request(7, "tools/call", &tool("TaskWait", &wait_for(&task))));
    // It delays no other call.
    assert_eq!(client.ask(8, "ping", &json!({})), json!({}));
    finish(&d, &task);
    is_wait_answer(&client.answer(&json!(7)), 7);
    // This revision has batches.
    client.send(&json!([request(9, "ping", &json!({})), request(10, "ping", &json!({}))]));
    client.answer(&json!(9));
    client.answer(&json!(10));
    let other = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    assert_eq!(client.ask(11, "initialize", &other)["protocolVersion"], "2025-11-25");
}

#[test]
fn message_reaches_only_its_session() {
    let d = Daemon::start();
    let (mine, theirs) = (d.reader("s-1"), d.session("s-2"));
    let mut client = Client::open(&mine, None);
    client.initialize();
    let ping = request(1, "ping", &json!({}));
    for caller in [&theirs, &*d] {
        problem(&caller.post(&client.endpoint, &ping), 404, "not_found");
    }
    for unknown in ["gone", "", "..%2f", "%ff"] {
        let path = format!("/messages?session_id={unknown}");
        problem(&mine.post(&path, &ping), 404, "not_found");
    }
    assert_eq!(mine.post("/messages", &ping).status(), 400);
    // A session of another transport is not valid here.
    let modern = super::Client::open(&mine, "2025-11-25");
    let path = format!("/messages?session_id={}", modern.session);
    problem(&mine.post(&path, &ping), 404, "not_found");
    let (_, id) = client.endpoint.split_once('=').expect("an id");
    let asked = mine.request("POST", "/mcp").header("Mcp-Session-Id", id).json(&ping);
    refused(&asked.send(), 404, -32001);
    for body in ["{", "", "[]", "{\"jsonrpc\":\"2.0\"}"] {
        let asked =
            mine.request("POST", &client.endpoint).header("Content-Type", "application/json");
        assert_eq!(asked.body(body).send().status(), 400, "{body}");
    }
    let asked = mine.request("POST", &client.endpoint).header("Content-Type", "text/plain");
    assert_eq!(asked.body(ping.to_string()).send().status(), 415);
    assert_eq!(client.ask(2, "ping", &json!({})), json!({}));
    // Another caller with this cursor gets a session of its own.
    let last = client.last.clone().expect("an id");
    let other = Client::open(&theirs, Some(&last));
    assert_ne!(other.endpoint, client.endpoint);
    // Clients that try a POST first take 404 as the sign to fall back.
    let reply = mine.post("/sse", &request(0, "initialize", &json!({})));
    assert_eq!(reply.status(), 404, "{reply:?}");
}

#[test]
fn cursor_beyond_the_end_gets_everything() {
    let d = Daemon::start();
    let mut client = Client::open(&d.reader("s-1"), None);
    client.initialize();
    let last = client.last.clone().expect("an id");
    let (stream, _) = last.rsplit_once('.').expect("a stream and a seq");
    client.last = Some(format!("{stream}.999999"));
    client.back();
    assert_eq!(client.answer(&json!(0))["result"]["protocolVersion"], "2024-11-05");
}

#[test]
fn missed_messages_arrive_after_reconnect() {
    let mut d = Daemon::start();
    let mut client = Client::open(&d.reader("s-1"), None);
    client.initialize();
    let (one, two) = (new_task(&d), new_task(&d));
    client.send(&request(1, "tools/call", &tool("TaskWait", &wait_for(&one))));
    client.send(&request(2, "tools/call", &tool("TaskWait", &wait_for(&two))));
    client.stream.knife().cut();
    client.send(&request(3, "ping", &json!({})));
    finish(&d, &one);
    eventually(SOON, || call_states(&d) == ["completed", "working"]);
    d.kill_and_restart();
    finish(&d, &two);
    client.back();
    let mut answers = Vec::new();
    while answers.len() < 3 {
        let next = client.next();
        if next.get("method").is_none() {
            answers.push(next);
        }
    }
    answers.sort_by_key(|answer| answer["id"].as_u64());
    is_wait_answer(&answers[0], 1);
    is_wait_answer(&answers[1], 2);
    assert_eq!(answers[2]["result"], json!({}));
    client.stream.is_silent();
    // Once more, with nothing left.
    client.stream.knife().cut();
    d.restart();
    client.back();
    client.stream.is_silent();
    assert_eq!(client.ask(4, "ping", &json!({})), json!({}));
}

#[test]
fn client_of_2024_11_05_gets_notifications_and_can_cancel() {
    let d = Daemon::with(|plan| {
        plan.env("SVC_LIST_CHANGED_MS", "1").env("SVC_SSE_KEEPALIVE_MS", "100")
    });
    let mut client = Client::open(&d, None);
    client.initialize();
    let task = new_task(&d);
    client.stream.news("notifications/resources/list_changed");
    let uri = format!("svc://stream/task/{task}");
    assert_eq!(client.ask(1, "resources/subscribe", &json!({ "uri": uri })), json!({}));
    append(&d, &task, &frame("a"));
    let told = client.stream.news("notifications/resources/updated");
    assert_eq!(told.json["params"]["uri"], json!(uri));
    let mut params = tool("TaskWait", &wait_for(&task));
    params["_meta"] = json!({ "progressToken": "t" });
    client.send(&request(2, "tools/call", &params));
    client.stream.news("notifications/progress");
    client.send(&notification("notifications/cancelled", &json!({ "requestId": 2 })));
    eventually(SOON, || call_states(&d) == ["cancelled"]);
    assert_eq!(client.ask(3, "ping", &json!({})), json!({}), "no answer came before this one");
}

#[test]
fn many_concurrent_responses_all_arrive() {
    // The client reads after all requests, which takes long on a busy machine.
    let d = Daemon::with(|plan| plan.env("SVC_BODY_TIMEOUT_MS", "600000"));
    let mut client = Client::open(&d, None);
    client.initialize();
    thread::scope(|scope| {
        for part in 0..4 {
            let client = &client;
            scope.spawn(move || {
                for n in 0..25 {
                    client.send(&request(part * 25 + n, "tools/list", &json!({})));
                }
            });
        }
    });
    let mut ids: Vec<u64> = Vec::new();
    while ids.len() < 100 {
        let next = client.next();
        if next.get("method").is_none() {
            ids.push(next["id"].as_u64().expect("an id"));
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
}
