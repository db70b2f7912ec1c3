//! One principal, a client without a credential or a child server floods the daemon with allowed
//! requests. The daemon's memory stays bounded, its refusals say what to free, and a neighbour gets
//! responses and loses nothing. Latencies are not tested here: `svc-bench --only floods` measures
//! them.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, eventually, until};
use crate::expect::text;
use crate::sources::call;
use crate::wire::{Caller, Reply};

/// The most memory that the daemon may use, whatever is requested.
const MOST_MEMORY: u64 = 300 << 20;
/// Deadline for what must come, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(30);
/// The daemon's timeouts for readers and bodies, with a margin for a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(90);
/// Bytes of a body without a credential.
const STRANGE_BODY: usize = 990_000;
/// Most connections without a valid credential.
const STRANGERS: usize = 64;

/// A session during the flood, which appends and remembers what was acknowledged.
struct Neighbour {
    caller: Caller,
    task: String,
    acknowledged: usize,
}

impl Neighbour {
    fn start(d: &Daemon) -> Self {
        let caller = d.session("neighbour");
        let task = caller.post("/v1/tasks", &json!({ "title": "mine" })).ok(201);
        Self { caller, task: text(&task, "task_id"), acknowledged: 0 }
    }

    /// Appends `times` times, each on a new connection. All appends are acknowledged.
    #[track_caller]
    fn append(&mut self, times: usize) {
        let path = format!("/v1/tasks/{}/events", self.task);
        for _ in 0..times {
            let line = self.acknowledged.to_string();
            let event = json!({ "kind": "frame", "data": { "line": line, "kind": "stdout" } });
            self.caller.post(&path, &event).ok(200);
            self.acknowledged += 1;
        }
    }

    /// Asserts that all acknowledged events exist once and in order.
    #[track_caller]
    fn assert_nothing_lost(&self) {
        let (mut after, mut lines) = (0, Vec::new());
        loop {
            let target =
                format!("/v1/events?stream=task/{}&kind=frame&after={after}&limit=500", self.task);
            let page = self.caller.get(&target).ok(200);
            for event in page["events"].as_array().expect("events") {
                after = event["seq"].as_u64().expect("a number");
                lines.push(text(&event["data"], "line"));
            }
            if page.get("next_cursor").is_none_or(Value::is_null) {
                break;
            }
        }
        let sent: Vec<_> = (0..self.acknowledged).map(|number| number.to_string()).collect();
        assert_eq!(lines, sent);
    }
}

/// Asserts the bound on the daemon's peak memory.
#[track_caller]
fn assert_memory_bounded(d: &Daemon) {
    let status = fs::read_to_string(format!("/proc/{}/status", d.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its memory");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib * 1024 < MOST_MEMORY, "the daemon had {} MiB in use", kib / 1024);
}

/// Asserts that a refusal says what to free.
#[track_caller]
fn assert_refusal_has_advice(reply: &Reply) {
    assert_eq!(reply.status(), 429, "{reply:?}");
    let body = reply.json();
    assert_eq!(body["code"], "limit_reached", "{body}");
    let detail = text(&body, "detail");
    let is_advice = ["wait", "read", "close", "acknowledge", "cancel", "end ", "remove"];
    assert!(is_advice.iter().any(|word| detail.contains(word)), "{detail}");
}

/// A connection that has sent as much as fits in the socket, and reads nothing.
struct Held {
    socket: TcpStream,
    request: Arc<[u8]>,
    sent: usize,
}

impl Held {
    fn open(addr: SocketAddr, request: &Arc<[u8]>) -> Self {
        let socket = TcpStream::connect_timeout(&addr, SOON).expect("a connection");
        socket.set_nonblocking(true).expect("a socket");
        let mut held = Self { socket, request: Arc::clone(request), sent: 0 };
        held.send();
        held
    }

    /// Sends what fits.
    fn send(&mut self) {
        while self.sent < self.request.len() {
            match self.socket.write(&self.request[self.sent..]) {
                Ok(0) | Err(_) => return,
                Ok(sent) => self.sent += sent,
            }
        }
    }

    /// The beginning of the response: `None` as long as the connection waits.
    fn beginning(&mut self) -> Option<Vec<u8>> {
        self.send();
        let mut beginning = vec![0; 4096];
        match self.socket.peek(&mut beginning) {
            Ok(got) => {
                beginning.truncate(got);
                Some(beginning)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            // It was closed while the request was on its way.
            Err(_) => Some(Vec::new()),
        }
    }
}

#[test]
fn stalled_readers_use_bounded_memory() {
    let d = Daemon::start();
    let greedy = d.session("greedy");
    let task = greedy.post("/v1/tasks", &json!({ "title": "t" })).ok(201);
    let stream = format!("task/{}", text(&task, "task_id"));
    let path = format!("/v1/tasks/{}/events", text(&task, "task_id"));
    let line = "x".repeat(16 * 1024);
    let event = json!({ "kind": "frame", "data": { "line": line, "kind": "stdout" } });
    for _ in 0..10 {
        greedy.post(&path, &json!(vec![event.clone(); 50])).ok(200);
    }
    let mut neighbour = Neighbour::start(&d);
    neighbour.append(20);
    // Each response has the size of a full page, and a connection buffers one or two.
    let page = greedy.request("GET", "/v1/events?stream_prefix=task/&limit=500");
    let request = page.clone().without("Connection").bytes().repeat(4).into();
    let mut readers: Vec<Held> = (0..100).map(|_| Held::open(d.addr, &request)).collect();
    let answered = |readers: &mut Vec<Held>| {
        readers.iter_mut().filter_map(Held::beginning).collect::<Vec<_>>()
    };
    // A connection that waits gets its response when another is closed.
    eventually(MAX_WAIT, || answered(&mut readers).len() == readers.len());
    neighbour.append(50);
    for beginning in answered(&mut readers) {
        let beginning = String::from_utf8_lossy(&beginning).into_owned();
        let is_refusal =
            beginning.starts_with("HTTP/1.1 429") && beginning.contains("limit_reached");
        let is_page = beginning.starts_with("HTTP/1.1 200");
        assert!(is_page || is_refusal || beginning.is_empty(), "{beginning:?}");
        if is_refusal {
            assert!(beginning.contains("read") && beginning.contains("close"), "{beginning}");
        }
    }
    assert_memory_bounded(&d);
    drop(readers);
    // Its unread budget is freed, and the pages have everything once.
    let (mut after, mut count) = (0, 0);
    until(SOON, || (page.send().status() == 200).then_some(()));
    loop {
        let target = format!("/v1/events?stream={stream}&kind=frame&after={after}&limit=500");
        let page = greedy.get(&target).ok(200);
        count += page["events"].as_array().expect("events").len();
        match page["next_cursor"].as_u64().or_else(|| page["next_cursor"].as_str()?.parse().ok()) {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(count, 500);
    neighbour.assert_nothing_lost();
    assert_memory_bounded(&d);
}

#[test]
fn loops_of_large_task_pages_use_bounded_memory() {
    let d = Daemon::start();
    let prompt = "x".repeat(900_000);
    for number in 0..64 {
        let task = json!({ "title": format!("{number}"), "prompt": prompt });
        d.post("/v1/tasks", &task).ok(201);
    }
    let greedy = d.reader("greedy");
    let mut neighbour = Neighbour::start(&d);
    thread::scope(|threads| {
        for _ in 0..8 {
            let greedy = greedy.clone();
            threads.spawn(move || {
                for _ in 0..4 {
                    let page = greedy.get("/v1/tasks?limit=500");
                    if page.status() == 200 {
                        assert!(page.body.len() < 6 << 20, "a page of {} bytes", page.body.len());
                    } else {
                        assert_refusal_has_advice(&page);
                    }
                }
            });
        }
        neighbour.append(50);
    });
    assert_memory_bounded(&d);
    let (mut cursor, mut titles) = (String::new(), Vec::new());
    loop {
        let page = greedy.get(&format!("/v1/tasks?limit=500{cursor}")).ok(200);
        let tasks = page["tasks"].as_array().expect("tasks");
        titles.extend(tasks.iter().map(|task| text(task, "title")));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    titles.retain(|title| title != "mine");
    titles.sort_by_key(|title| title.parse::<u32>().expect("a number"));
    assert_eq!(titles, (0..64).map(|number| number.to_string()).collect::<Vec<_>>());
    neighbour.assert_nothing_lost();
    assert_memory_bounded(&d);
}

#[test]
fn loops_of_searches_do_not_starve_a_neighbour() {
    let d = Daemon::start();
    let greedy = d.session("greedy");
    let long = "the lock is held too long ".repeat(60);
    for number in 0..200 {
        let memory = json!({ "content": format!("{number} {long}"), "category": "fact" });
        let stored = call(&greedy, "store_memory", &memory);
        assert!(stored["result"]["structuredContent"]["id"].is_string(), "{stored}");
    }
    let mut neighbour = Neighbour::start(&d);
    thread::scope(|threads| {
        for number in 0..8 {
            let greedy = greedy.clone();
            threads.spawn(move || {
                for _ in 0..6 {
                    let query = json!({ "query": "a lock that is held too long" });
                    let tool = ["retrieve_memories", "assemble_context"][number % 2];
                    let answer = call(&greedy, tool, &query);
                    let error = &answer["result"]["structuredContent"]["error"];
                    let is_refusal = error["reason"] == "limit_reached";
                    assert!(error.is_null() || is_refusal, "{answer}");
                    assert!(answer["result"]["content"].is_array(), "{answer}");
                    let bytes = answer.to_string().len();
                    assert!(bytes < 512 << 10, "{bytes} bytes");
                }
            });
        }
        neighbour.append(50);
    });
    neighbour.assert_nothing_lost();
    assert_memory_bounded(&d);
}

#[test]
fn unauthenticated_bodies_use_bounded_memory() {
    let d = Daemon::start();
    let mut neighbour = Neighbour::start(&d);
    let body = "x".repeat(STRANGE_BODY);
    let requests = ["/login", "/v1/daemon_proof"].map(|path| {
        let request = d.stranger().request("POST", path).without("Connection");
        let mut request = request.header("Content-Type", "application/json").body(&*body).bytes();
        // Its last byte never comes.
        request.pop();
        Arc::from(request)
    });
    let mut held: Vec<Held> =
        (0..400).map(|number| Held::open(d.addr, &requests[number % 2])).collect();
    neighbour.append(20);
    // Each is refused by its announced length, or closed for a later one.
    eventually(MAX_WAIT, || {
        held.iter_mut().map(Held::beginning).filter(Option::is_none).count() <= STRANGERS
    });
    let said: Vec<String> = held
        .iter_mut()
        .filter_map(Held::beginning)
        .map(|beginning| String::from_utf8_lossy(&beginning).into_owned())
        .collect();
    let refused = said.iter().filter(|said| said.starts_with("HTTP/1.1 413")).count();
    assert!(refused > 0, "nobody was told that the body is too large");
    for said in &said {
        let is_refusal = said.starts_with("HTTP/1.1 413") && said.contains("payload_too_large");
        assert!(is_refusal || said.is_empty(), "{said:?}");
    }
    assert_memory_bounded(&d);
    drop(held);
    neighbour.append(20);
    let honest = d.stranger().post("/v1/daemon_proof", &json!({ "nonce": "5e".repeat(32) }));
    assert!(honest.status() < 500 && honest.status() != 413, "{honest:?}");
    neighbour.assert_nothing_lost();
    assert_memory_bounded(&d);
}

#[test]
fn half_open_connections_block_neither_socket_nor_authenticated_clients() {
    let d = Daemon::start();
    let mut neighbour = Neighbour::start(&d);
    let half = Arc::from(&b"GET /health HTTP/1.1\r\nHost: lo"[..]);
    let mut held: Vec<Held> = (0..300).map(|_| Held::open(d.addr, &half)).collect();
    neighbour.append(20);
    let token = d.home.token().expect("is there");
    for _ in 0..20 {
        let mut socket = UnixStream::connect(d.home.path("svc.sock")).expect("it listens");
        socket.set_read_timeout(Some(SOON)).expect("a socket");
        let head = "GET /v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
        let request = format!("{head}Authorization: Bearer {token}\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("is sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    // This many stay without a credential.
    eventually(MAX_WAIT, || {
        held.iter_mut().map(Held::beginning).filter(Option::is_none).count() <= STRANGERS
    });
    neighbour.append(20);
    neighbour.assert_nothing_lost();
    assert_memory_bounded(&d);
}

#[test]
fn broadcasts_of_one_session_leave_inbox_capacity_for_others() {
    let d = Daemon::start();
    let register = |caller: &Caller, name: &str| {
        let peer = json!({ "display_name": name, "backend": "b", "path": format!("/{name}") });
        text(&caller.post("/v1/peers/register", &peer).ok(200), "peer_id")
    };
    let (greedy, other) = (d.session("greedy"), d.session("other"));
    register(&greedy, "greedy");
    register(&other, "other");
    let peers: Vec<String> = (0..30).map(|number| register(&d, &format!("p{number}"))).collect();
    let mut neighbour = Neighbour::start(&d);
    let large = json!({ "text": "x".repeat(1_000_000) });
    // The receivers without a copy, for each accepted broadcast.
    let mut accepted: Vec<String> = Vec::new();
    for _ in 0..50 {
        let reply = greedy.post("/v1/peers/broadcast", &large);
        if reply.status() == 200 {
            let body = reply.json();
            accepted.push(body.get("refused_by").map(Value::to_string).unwrap_or_default());
        } else {
            assert_refusal_has_advice(&reply);
        }
    }
    assert!(!accepted.is_empty(), "none was accepted");
    neighbour.append(20);
    // Others still reach everybody, each alone and all at once.
    for peer in &peers {
        let sent = other.post(&format!("/v1/peers/{peer}/messages"), &json!({ "text": "hello" }));
        sent.ok(200);
    }
    let reached = other.post("/v1/peers/broadcast", &json!({ "text": "to all" })).ok(200);
    assert!(reached["delivered_to"].as_u64() >= Some(31), "{reached}");
    assert!(reached.get("refused_by").is_none_or(|by| by == &json!([])), "{reached}");
    // Accepted messages exist: some inboxes stand for all, as each has many megabytes.
    for peer in [&peers[0], &peers[17], &peers[29]] {
        let (mut cursor, mut arrived) = (String::new(), 0);
        loop {
            let target = format!("/v1/peers/{peer}/messages?peek=true&limit=500{cursor}");
            let page = d.get(&target).ok(200);
            let messages = page["messages"].as_array().expect("messages");
            let length = |message: &Value| message["text"].as_str().map(str::len);
            arrived += messages.iter().filter(|it| length(it) == Some(1_000_000)).count();
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let expected = accepted.iter().filter(|refused| !refused.contains(peer.as_str())).count();
        assert_eq!(arrived, expected, "{peer}");
    }
    neighbour.assert_nothing_lost();
    assert_memory_bounded(&d);
}

/// A child server whose tool `echo` returns its argument, and which floods the daemon meanwhile.
const NOISY: &str = r#"
import json, sys, threading
lock = threading.Lock()
def send(message):
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
def stderr():
    line = ("warning: " + "x" * 190 + "\n") * 100
    while True:
        sys.stderr.write(line)
def lists():
    while True:
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}},
                  "serverInfo": {"name": "noisy", "version": "1"}}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    else:
        if threading.active_count() == 1:
            noise = {"stderr": stderr, "lists": lists}[sys.argv[1]]
            threading.Thread(target=noise, daemon=True).start()
        result = {"content": [{"type": "text", "text": json.dumps(message["params"].get("arguments"))}]}
    send({"jsonrpc": "2.0", "id": message["id"], "result": result})
"#;

/// A daemon with such a child, which has begun to flood, and calls of it meanwhile.
fn with_flooding_child(noise: &str) -> (Daemon, Neighbour) {
    let home = Home::new();
    let program = home.user().join("noisy.py");
    fs::write(&program, NOISY).expect("can be written");
    let server = json!({ "command": "python3", "args": [program.display().to_string(), noise] });
    let d = Daemon::with(|plan| plan.home(&home).servers(&json!({ "noisy": server })));
    until(SOON, || {
        let source = d.get("/v1/sources/noisy").ok(200);
        (source["state"] == "connected").then_some(())
    });
    let mut neighbour = Neighbour::start(&d);
    for number in 0..20 {
        // The first call begins the flood.
        let answer = call(&d, "noisy__echo", &json!({ "number": number }));
        let given = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert_eq!(given, format!(r#"{{"number": {number}}}"#), "{answer}");
        neighbour.append(10);
    }
    (d, neighbour)
}

#[test]
fn child_stderr_is_rate_limited() {
    let (d, mut neighbour) = with_flooding_child("stderr");
    let stored = || {
        d.home
            .store_files()
            .iter()
            .filter_map(|name| Some(fs::metadata(d.home.path(name)).ok()?.len()))
            .sum::<u64>()
    };
    neighbour.append(100);
    let stored = stored();
    // The appends of the neighbour take less than a megabyte, and a checkpoint comes at 4 MiB.
    assert!(stored < 24 << 20, "the database has {} MiB", stored >> 20);
    let shown = d.get("/v1/sources/noisy").ok(200);
    assert!(shown.to_string().len() < 256 << 10, "its lines are bounded where they are shown");
    neighbour.assert_nothing_lost();
    assert_memory_bounded(&d);
}

#[test]
fn endless_list_changes_do_not_starve_a_neighbour() {
    let (d, mut neighbour) = with_flooding_child("lists");
    neighbour.append(100);
    let source = d.get("/v1/sources/noisy").ok(200);
    assert_eq!(source["state"], "connected", "{source}");
    neighbour.assert_nothing_lost();
    assert_memory_bounded(&d);
}
