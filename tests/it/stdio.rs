//! `svc stdio`: what its client and the daemon receive, with and without failures.
//!
//! The daemon here is a fake with a script, so that it can fail at any byte.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit as _, Mac as _};
use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::daemon::{Home, Ran, Running, eventually, free_port, quickly, until};

const SOON: Duration = Duration::from_secs(20);
const TOKEN: &str = "tok";
const MODERN: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;

/// A request that the fake received.
#[derive(Clone, Debug)]
struct Seen {
    method: String,
    target: String,
    headers: HashMap<String, String>,
    body: String,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The body; null if there is none.
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }

    fn asks_for_proof(&self) -> bool {
        self.target == "/v1/daemon_proof"
    }

    /// The proof of knowing the token, as the reference describes it.
    fn proof(&self, token: &str) -> String {
        let nonce = self.json()["nonce"].as_str().expect("a nonce").to_owned();
        let text = format!("svc daemon proof 1\n{nonce}\n{}", self.header("host").expect("a host"));
        let key = Sha256::digest(token.as_bytes());
        let mut code = Hmac::<Sha256>::new_from_slice(&key).expect("any key will do");
        code.update(text.as_bytes());
        hex::encode(code.finalize().into_bytes())
    }

    /// The HTTP method of a request without a body, else the JSON-RPC method.
    fn what(&self) -> String {
        match &self.json()["method"] {
            Value::String(method) => method.clone(),
            _ => self.method.clone(),
        }
    }
}

/// A connection of the fake.
struct Wire(TcpStream);

impl Wire {
    /// The client may be gone, which some tests expect.
    fn send(&mut self, text: &str) {
        drop(self.0.write_all(text.as_bytes()));
    }

    fn reply(&mut self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        self.send(&format!(
            "HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
    }

    fn json(&mut self, body: &Value) {
        self.reply("200 OK", "content-type: application/json\r\n", &body.to_string());
    }

    /// Sends the response to this request.
    fn result(&mut self, seen: &Seen, result: &Value) {
        self.json(&json!({ "jsonrpc": "2.0", "id": seen.json()["id"], "result": result }));
    }

    fn accepted(&mut self) {
        self.reply("202 Accepted", "", "");
    }

    /// Sends the head of a stream and its first events; the stream stays open until the script
    /// returns.
    fn stream(&mut self, events: &str) {
        self.send(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
        );
        self.send(events);
    }

    /// Waits until the client disconnects.
    fn closed(&mut self) {
        drop(self.0.set_read_timeout(Some(SOON)));
        assert!(matches!(self.0.read(&mut [0; 16]), Ok(0) | Err(_)), "nothing more is sent");
    }
}

/// A fake daemon that responds to each request on a connection of its own, by a function.
struct Fake {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    over: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl Fake {
    fn start(script: impl Fn(&Seen, &mut Wire) + Send + Sync + 'static) -> Self {
        Self::at(0, script)
    }

    fn at(port: u16, script: impl Fn(&Seen, &mut Wire) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let addr = listener.local_addr().expect("is bound");
        let (seen, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (log, end, script) = (Arc::clone(&seen), Arc::clone(&over), Arc::new(script));
        let listener = thread::spawn(move || {
            for socket in listener.incoming() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let (log, script) = (Arc::clone(&log), Arc::clone(&script));
                let mut wire = Wire(socket.expect("a connection"));
                thread::spawn(move || {
                    let mut request = read_request(&mut wire.0);
                    if let Some(question) = request.take_if(|it| it.asks_for_proof()) {
                        let proof = json!({ "proof": question.proof(TOKEN) }).to_string();
                        let length = proof.len();
                        wire.send(&format!(
                            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{proof}"
                        ));
                        request = read_request(&mut wire.0);
                    }
                    if let Some(request) = request {
                        log.lock().expect("no holder panics").push(request.clone());
                        script(&request, &mut wire);
                    }
                });
            }
        });
        Self { addr, seen, over, listener: Some(listener) }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no holder panics").clone()
    }

    fn what(&self) -> Vec<String> {
        self.seen().iter().map(Seen::what).collect()
    }

    /// Waits for this many requests of one kind.
    #[track_caller]
    fn wait(&self, what: &str, count: usize) -> Vec<Seen> {
        until(SOON, || {
            let mut seen = self.seen();
            seen.retain(|seen| seen.what() == what);
            (seen.len() >= count).then_some(seen)
        })
    }

    /// From now on connections are refused.
    fn stop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.addr));
        if let Some(listener) = self.listener.take() {
            listener.join().expect("the listener does not panic");
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop();
    }
}

fn read_request(socket: &mut TcpStream) -> Option<Seen> {
    let mut reader = BufReader::new(socket);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |it| it.parse().expect("a length"));
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8(body).expect("UTF-8");
    (!method.is_empty()).then_some(Seen { method, target, headers, body })
}

/// A gate that opens once.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().expect("no holder panics") = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        assert!(self.opens_within(SOON), "the gate was not opened");
    }

    fn opens_within(&self, bound: Duration) -> bool {
        let open = self.0.0.lock().expect("no holder panics");
        *self.0.1.wait_timeout_while(open, bound, |open| !*open).expect("no panic").0
    }
}

/// A running `svc stdio` and its client.
struct Bridge {
    running: Running,
    stdin: Option<ChildStdin>,
    ahead: Vec<String>,
}

impl Bridge {
    fn to(fake: &Fake) -> Self {
        Self::start(&Home::new(), &["stdio", "--url", &format!("http://{}", fake.addr)], TOKEN)
    }

    fn start(home: &Home, args: &[&str], token: &str) -> Self {
        let mut command = home.command(args);
        command.stdin(Stdio::piped());
        if !token.is_empty() {
            command.env("SVC_TOKEN", token);
        }
        let mut running = Running::spawn(command);
        let stdin = Some(running.stdin());
        Self { running, stdin, ahead: Vec::new() }
    }

    fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("it reads");
        stdin.flush().expect("it reads");
    }

    #[track_caller]
    fn line(&mut self) -> String {
        if self.ahead.is_empty() {
            return self.running.line().expect("a line before the end");
        }
        self.ahead.remove(0)
    }

    #[track_caller]
    fn next_message(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The response to a request, whenever it comes; other lines are kept for later.
    #[track_caller]
    fn answer(&mut self, id: impl Into<Value>) -> Value {
        let id = id.into();
        let is_it = |line: &str| {
            let message: Value = serde_json::from_str(line).expect("every line is JSON");
            (message["id"] == id && message["method"].is_null()).then_some(message)
        };
        for place in 0..self.ahead.len() {
            if let Some(answer) = is_it(&self.ahead[place]) {
                self.ahead.remove(place);
                return answer;
            }
        }
        self.running.find(|line| {
            let answer = is_it(line);
            if answer.is_none() {
                self.ahead.push(line.to_owned());
            }
            answer
        })
    }

    /// The handshake of an older client.
    #[track_caller]
    fn begin(&mut self) {
        self.say(&initialize());
        assert_eq!(self.answer("init")["result"]["protocolVersion"], "2025-06-18");
        self.say(INITIALIZED);
    }

    fn close(&mut self) {
        self.stdin = None;
    }

    /// Closes its input and asserts a successful end without further output.
    #[track_caller]
    fn end(mut self) -> Ran {
        self.close();
        let ran = self.running.wait(SOON);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for line in ran.stdout.lines() {
            let message: Value = serde_json::from_str(line).expect("every line is JSON");
            assert!(message.is_object() || message.is_array(), "{line}");
        }
        ran
    }
}

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn initialize() -> String {
    json!({ "jsonrpc": "2.0", "id": "init", "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
    } })
    .to_string()
}

fn request(id: u32, method: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method }).to_string()
}

fn call(id: u32, tool: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{{"n":1}}}}}}"#
    )
}

fn modern(id: u32, method: &str, rest: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{{MODERN}{rest}}}}}"#)
}

/// The default script: the handshake of session `s1`, and responses to everything else.
fn usual(seen: &Seen, wire: &mut Wire) {
    match seen.what().as_str() {
        "initialize" => {
            let body = json!({ "jsonrpc": "2.0", "id": seen.json()["id"], "result": {
                "protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": { "name": "f", "version": "1" },
            } });
            let headers = "content-type: application/json\r\nmcp-session-id: s1\r\n";
            wire.reply("200 OK", headers, &body.to_string());
        }
        "GET" => wire.reply("405 Method Not Allowed", "allow: POST\r\n", ""),
        "DELETE" => wire.reply("204 No Content", "", ""),
        "tools/list" => wire.result(
            seen,
            &json!({ "tools": [
                { "name": "read", "inputSchema": {}, "annotations": { "readOnlyHint": true } },
                { "name": "again", "inputSchema": {}, "annotations": { "idempotentHint": true } },
                { "name": "once", "inputSchema": {}, "annotations": { "idempotentHint": false } },
                { "name": "routed", "inputSchema": { "type": "object", "properties": {
                    "region": { "type": "string", "x-mcp-header": "Region" },
                } } },
            ] }),
        ),
        _ if seen.json()["id"].is_null() || seen.json()["method"].is_null() => wire.accepted(),
        _ => wire.result(seen, &json!({ "ok": true })),
    }
}

#[test]
fn session_works_from_initialize_to_its_end() {
    let fake = Fake::start(|seen, wire| match seen.what().as_str() {
        "GET" => {
            wire.stream("id: g.1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n");
            wire.closed();
        }
        "tools/call" => {
            wire.stream(": hello\n\nid: c.0\ndata: \n\n");
            wire.send("id: c.1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progress\":1e2}}\n\n");
            wire.send(
                "data: {\"jsonrpc\":\"2.0\",\"id\":9,\ndata:  \"method\":\"roots/list\"}\n\n",
            );
            wire.send("data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"n\":12345678901234567890123,\"é\":\"\\u00e9\"},\"x\":1}\n\n");
        }
        _ => usual(seen, wire),
    });
    let mut bridge = Bridge::to(&fake);
    bridge.begin();
    assert_eq!(bridge.next_message()["method"], "notifications/tools/list_changed");
    bridge.say(&call(2, "once"));
    assert_eq!(
        bridge.line(),
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1e2}}"#
    );
    assert_eq!(bridge.line(), r#"{"jsonrpc":"2.0","id":9,  "method":"roots/list"}"#);
    assert_eq!(
        bridge.line(),
        r#"{"jsonrpc":"2.0","id":2,"result":{"n":12345678901234567890123,"é":"\u00e9"},"x":1}"#
    );
    let response = r#"{"jsonrpc": "2.0", "id": 9, "result": {"roots": []}}"#;
    bridge.say(response);
    eventually(SOON, || fake.seen().iter().any(|seen| seen.body == response));
    bridge.end();

    let seen = fake.seen();
    let order: Vec<String> = seen.iter().map(Seen::what).collect();
    assert_eq!(
        order,
        ["initialize", "notifications/initialized", "GET", "tools/call", "POST", "DELETE"]
    );
    let first = &seen[0];
    assert_eq!(first.body, initialize());
    assert_eq!(first.header("mcp-method"), Some("initialize"));
    assert_eq!(first.header("accept"), Some("application/json, text/event-stream"));
    assert_eq!(first.header("content-type"), Some("application/json"));
    assert!(first.header("mcp-session-id").is_none());
    assert!(first.header("mcp-protocol-version").is_none());
    for later in &seen[1..] {
        assert_eq!(later.header("mcp-session-id"), Some("s1"), "{later:?}");
        assert_eq!(later.header("mcp-protocol-version"), Some("2025-06-18"), "{later:?}");
        assert_eq!(later.header("authorization"), Some("Bearer tok"), "{later:?}");
    }
    assert_eq!(seen[3].header("mcp-name"), Some("once"));
    assert_eq!(seen[3].body, call(2, "once"), "as the client wrote it");
    assert_eq!(seen[1].header("mcp-method"), Some("notifications/initialized"));
    assert!(seen[4].header("mcp-method").is_none(), "a response has none");
}

#[test]
fn slow_call_blocks_nothing_but_initialize_does() {
    let (slow, begin) = (Gate::default(), Gate::default());
    let gates = (slow.clone(), begin.clone(), Gate::default());
    let fake = Fake::start(move |seen, wire| {
        match seen.what().as_str() {
            "initialize" => gates.1.wait(),
            "notifications/initialized" => {
                assert!(!gates.2.opens_within(Duration::from_millis(300)), "a request overtook");
            }
            "ping" => gates.2.open(),
            "tools/call" => gates.0.wait(),
            _ => {}
        }
        usual(seen, wire);
    });
    let mut bridge = Bridge::to(&fake);
    // Sent without waiting: the bridge keeps the order by itself.
    for line in [&initialize(), INITIALIZED, &call(1, "once"), &request(2, "ping")] {
        bridge.say(line);
    }
    fake.wait("initialize", 1);
    begin.open();
    assert_eq!(bridge.answer(2)["result"]["ok"], true);
    assert_eq!(fake.what()[..2], ["initialize", "notifications/initialized"]);
    assert_eq!(fake.wait("ping", 1)[0].header("mcp-session-id"), Some("s1"));
    // A call under way when the input ends is finished.
    fake.wait("tools/call", 1);
    bridge.close();
    slow.open();
    assert_eq!(bridge.answer(1)["result"]["ok"], true);
    bridge.end();
    fake.wait("DELETE", 1);
}

#[test]
fn bad_line_gets_an_error_and_the_next_line_works() {
    let fake = Fake::start(|seen, wire| {
        if seen.body.starts_with('[') {
            wire.json(
                &json!([{ "jsonrpc": "2.0", "id": 1, "result": {} }, { "id": 2, "result": {} }]),
            );
        } else {
            usual(seen, wire);
        }
    });
    let mut bridge = Bridge::to(&fake);
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(4 * 1024 * 1024));
    for (line, code) in [("{\"id\":", -32700), ("17", -32600), (&long, -32600), ("", 0)] {
        bridge.say(line);
        if code != 0 {
            let reply = bridge.next_message();
            assert_eq!(reply["error"]["code"], code, "{reply}");
            assert!(reply["id"].is_null());
        }
    }
    let largest = json!({ "jsonrpc": "2.0", "id": 7, "method": "ping", "params": { "x": "" } });
    let room = 4 * 1024 * 1024 - largest.to_string().len();
    let largest = largest.to_string().replace("\"\"", &format!("\"{}\"", "y".repeat(room)));
    bridge.say(&largest);
    assert_eq!(bridge.answer(7)["result"]["ok"], true);
    let batch = format!("[{}, {}]", request(1, "ping"), request(2, "ping"));
    bridge.say(&batch);
    assert_eq!(bridge.next_message().as_array().map(Vec::len), Some(2));
    bridge.end();
    let bodies: Vec<String> = fake.seen().into_iter().map(|seen| seen.body).collect();
    assert!(bodies == [largest, batch], "nothing but these two was sent, as they were");
}

#[test]
fn cut_response_is_resumed() {
    let times = AtomicUsize::new(0);
    let fake = Fake::start(move |seen, wire| {
        match (seen.what().as_str(), seen.header("last-event-id")) {
        ("tools/call", _) => wire.stream("retry: 1\nid: c.1\ndata: {\"method\":\"notifications/progress\"}\n\nid: c.2\ndata: \n\nid: c.3\ndata: {\"je"),
        ("GET", Some("c.2")) => match times.fetch_add(1, Ordering::SeqCst) {
            // Unreachable, starting, cut again, and present.
            0 => {}
            1 => wire.reply("503 Service Unavailable", "", ""),
            2 => wire.stream(": only a comment\n\n"),
            _ => wire.stream("id: c.3\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"late\":true}}\n\n"),
        },
        _ => usual(seen, wire),
    }
    });
    let mut bridge = Bridge::to(&fake);
    bridge.begin();
    bridge.say(&call(1, "once"));
    assert_eq!(bridge.next_message()["method"], "notifications/progress");
    assert_eq!(bridge.next_message()["result"]["late"], true);
    bridge.end();
    assert_eq!(fake.wait("tools/call", 1).len(), 1, "it is not sent again");
}

#[track_caller]
fn assert_unknown(answer: &Value) {
    let result = &answer["result"];
    assert_eq!(result["isError"], true, "{answer}");
    let error = &result["structuredContent"]["error"];
    assert_eq!(error["type"], "unavailable", "{answer}");
    assert!(error["message"].as_str().is_some_and(|it| it.contains("outcome is unknown")));
    let text: Value =
        serde_json::from_str(result["content"][0]["text"].as_str().expect("a text")).expect("JSON");
    assert_eq!(text, result["structuredContent"]);
}

#[test]
fn response_lost_by_the_daemon_is_an_unknown_outcome() {
    for status in ["204 No Content", "404 Not Found"] {
        let fake = Fake::start(move |seen, wire| {
            match (seen.what().as_str(), seen.header("last-event-id")) {
                ("tools/call", _) => wire.stream("retry: 1\nid: c.1\ndata: \n\n"),
                ("GET", Some(_)) => wire.reply(status, "", ""),
                _ => usual(seen, wire),
            }
        });
        let mut bridge = Bridge::to(&fake);
        bridge.begin();
        bridge.say(&call(1, "once"));
        assert_unknown(&bridge.answer(1));
        bridge.end();
    }
}

#[test]
fn only_idempotent_requests_are_retried() {
    // The first response of each kind is cut, some in the head, some in the body.
    let times = Mutex::new(HashMap::<String, usize>::new());
    let fake = Fake::start(move |seen, wire| {
        let key = format!("{} {:?}", seen.what(), seen.header("mcp-name"));
        let count = {
            let mut times = times.lock().expect("no holder panics");
            let count = times.entry(key).or_default();
            *count += 1;
            *count
        };
        match (seen.what().as_str(), seen.header("mcp-name")) {
            ("prompts/list", _) | ("tools/call", Some("again")) if count == 1 => {}
            ("resources/list", _) if count == 1 => {
                wire.send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{");
            }
            ("tools/call", Some("read")) if count == 1 => wire.stream("data: "),
            ("tools/call", Some("once" | "stranger")) => wire.stream(": working\n\n"),
            ("ping", _) => {}
            _ => usual(seen, wire),
        }
    });
    let mut bridge = Bridge::to(&fake);
    for (id, method) in [(1, "prompts/list"), (2, "resources/list")] {
        bridge.say(&request(id, method));
        assert_eq!(bridge.answer(id)["result"]["ok"], true);
    }
    for (id, tool) in [(3, "read"), (4, "again")] {
        bridge.say(&call(id, tool));
        assert_eq!(bridge.answer(id)["result"]["ok"], true, "{tool}");
    }
    for (id, tool) in [(5, "once"), (6, "stranger")] {
        bridge.say(&call(id, tool));
        assert_unknown(&bridge.answer(id));
    }
    // It is retried a few times, not for ever.
    bridge.say(&request(7, "ping"));
    assert_eq!(bridge.answer(7)["error"]["data"]["type"], "unavailable");
    bridge.end();
    let calls = fake.wait("tools/call", 6);
    let of = |tool| calls.iter().filter(|it| it.header("mcp-name") == Some(tool)).count();
    assert_eq!(["read", "again", "once", "stranger"].map(of), [2, 2, 1, 1]);
    assert_eq!(fake.wait("ping", 4).len(), 4);
    let own = &fake.wait("tools/list", 1)[0];
    assert!(own.header("mcp-session-id").is_none(), "a bare call: {own:?}");
    assert_eq!(
        own.header("svc-expose"),
        Some("all"),
        "of tools that the client does not list, too"
    );
}

/// The token of a process is replaced when it ends, and a call may outlive it.
#[test]
fn call_whose_token_ended_is_repeated_if_it_is_idempotent() {
    let times = AtomicUsize::new(0);
    let ended = |id: u32| {
        format!(
            "data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{{\"code\":-32003,\"message\":\"m\",\
             \"data\":{{\"code\":\"unauthorized\",\"retryable\":false}}}}}}\n\n"
        )
    };
    let fake = Fake::start(move |seen, wire| match seen.header("mcp-name") {
        Some("again") if times.fetch_add(1, Ordering::SeqCst) == 0 => wire.stream(&ended(1)),
        Some("once") => wire.stream(&ended(2)),
        _ => usual(seen, wire),
    });
    let mut bridge = Bridge::to(&fake);
    bridge.say(&call(1, "again"));
    assert_eq!(bridge.answer(1)["result"]["ok"], true);
    bridge.say(&call(2, "once"));
    assert_unknown(&bridge.answer(2));
    bridge.end();
    let calls = fake.wait("tools/call", 3);
    assert_eq!(calls.len(), 3, "{calls:?}");
}

#[test]
fn bridge_waits_for_an_absent_daemon() {
    let mut fake = Fake::at(free_port(), usual);
    let mut bridge = Bridge::to(&fake);
    bridge.begin();
    let (port, initialized) = (fake.addr.port(), fake.wait("GET", 1));
    assert_eq!(initialized.len(), 1);
    fake.stop();
    // Nothing of these was sent, so any tool is retried.
    bridge.say(&call(1, "once"));
    bridge.say(&request(2, "ping"));
    let refused = TcpStream::connect(fake.addr);
    assert!(refused.is_err(), "nobody is there");
    let times = AtomicUsize::new(0);
    let fake = Fake::at(port, move |seen, wire| match times.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => wire.reply("503 Service Unavailable", "retry-after: 0\r\n", "{}"),
        _ => usual(seen, wire),
    });
    assert_eq!(bridge.answer(1)["result"]["ok"], true);
    assert_eq!(bridge.answer(2)["result"]["ok"], true);
    assert!(fake.what().iter().all(|what| what != "initialize"), "the session is the same");
    assert_eq!(fake.wait("tools/call", 1)[0].header("mcp-session-id"), Some("s1"));
    bridge.end();
}

/// The daemon answers each request, but cannot read or write: its client gets the same error as all
/// others, and a call that may have been carried out is not sent again.
#[test]
fn error_of_an_absent_database_reaches_the_client() {
    let problem = |code: &str, retryable: bool| {
        json!({ "code": code, "detail": "no database", "retryable": retryable }).to_string()
    };
    let fake = Fake::start(move |seen, wire| {
        let status = "503 Service Unavailable";
        match seen.what().as_str() {
            "ping" => wire.reply(status, "retry-after: 1\r\n", &problem("store_unavailable", true)),
            "prompts/list" => {
                let data = json!({ "code": "store_unavailable", "retryable": true });
                let error =
                    json!({ "code": -32603, "message": "as the daemon says", "data": data });
                let body = json!({ "jsonrpc": "2.0", "id": seen.json()["id"], "error": error });
                wire.reply(status, "retry-after: 1\r\n", &body.to_string());
            }
            "tools/call" => wire.reply(status, "", &problem("outcome_unknown", false)),
            _ => usual(seen, wire),
        }
    });
    let mut bridge = Bridge::to(&fake);
    bridge.begin();
    bridge.say(&call(1, "once"));
    let unknown = &bridge.answer(1)["error"];
    assert_eq!(unknown["data"], json!({ "code": "outcome_unknown", "retryable": false }));
    assert_eq!(fake.wait("tools/call", 1).len(), 1);
    for (id, method, message) in
        [(2, "ping", "no database"), (3, "prompts/list", "as the daemon says")]
    {
        bridge.say(&request(id, method));
        let error = &bridge.answer(id)["error"];
        assert_eq!((&error["code"], &error["message"]), (&json!(-32603), &json!(message)));
        assert_eq!(error["data"], json!({ "code": "store_unavailable", "retryable": true }));
    }
    bridge.end();
}

#[test]
fn unknown_session_is_renewed_transparently() {
    let sessions = AtomicUsize::new(0);
    let fake = Fake::start(move |seen, wire| {
        let forgotten = seen.header("mcp-session-id") == Some("s1");
        match seen.what().as_str() {
            "initialize" => {
                let id = sessions.fetch_add(1, Ordering::SeqCst) + 1;
                let body = json!({ "jsonrpc": "2.0", "id": seen.json()["id"], "result": {
                    "protocolVersion": "2025-06-18", "capabilities": {},
                } });
                // As an event stream, too.
                wire.send(&format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nmcp-session-id: s{id}\r\nconnection: close\r\n\r\ndata: {body}\n\n"));
            }
            "ping" | "tools/call" if forgotten => wire.reply("404 Not Found", "", "{}"),
            _ => usual(seen, wire),
        }
    });
    let mut bridge = Bridge::to(&fake);
    bridge.begin();
    fake.wait("GET", 1);
    // Two concurrent calls cause one renewal.
    bridge.say(&call(1, "once"));
    bridge.say(&request(2, "ping"));
    assert_eq!(bridge.answer(1)["result"]["ok"], true);
    assert_eq!(bridge.answer(2)["result"]["ok"], true);
    let ran = bridge.end();
    assert_eq!(ran.stdout.lines().count(), 3, "the client sees nothing of it: {ran:?}");
    let begun = fake.wait("initialize", 2);
    assert_eq!(begun.len(), 2);
    assert_eq!(begun[0].json()["params"], begun[1].json()["params"]);
    let initialized = fake.wait("notifications/initialized", 2);
    assert_eq!(initialized[1].header("mcp-session-id"), Some("s2"));
    assert_eq!(fake.wait("DELETE", 1)[0].header("mcp-session-id"), Some("s2"));
}

#[test]
fn failing_session_renewal_does_not_loop() {
    let fake = Fake::start(|seen, wire| match seen.what().as_str() {
        "ping" => wire.reply("404 Not Found", "", "no such thing"),
        _ => usual(seen, wire),
    });
    let mut bridge = Bridge::to(&fake);
    bridge.begin();
    bridge.say(&request(1, "ping"));
    let error = &bridge.answer(1)["error"];
    assert!(error["message"].as_str().is_some_and(|it| it.contains("no such thing")), "{error}");
    bridge.end();
    assert_eq!(fake.wait("initialize", 2).len(), 2);
}

#[test]
fn session_stream_is_resumed_until_the_daemon_has_none() {
    let times = AtomicUsize::new(0);
    let fake = Fake::start(move |seen, wire| match seen.what().as_str() {
        "GET" => match times.fetch_add(1, Ordering::SeqCst) {
            0 => {
                wire.stream("retry: 1\nid: g.1\ndata: {\"method\":\"n\",\"params\":{\"k\":1}}\n\n");
            }
            1 => wire.stream(
                "id: g.2\ndata: {\"method\":\"n\",\"params\":{\"k\":2}}\n\ndata: not JSON\n\n",
            ),
            // The stream is forgotten, but not the session.
            2 => wire.reply("404 Not Found", "", ""),
            3 => wire.stream("data: {\"method\":\"n\",\"params\":{\"k\":3}}\n\n"),
            _ => wire.reply("405 Method Not Allowed", "", ""),
        },
        _ => usual(seen, wire),
    });
    let mut bridge = Bridge::to(&fake);
    bridge.begin();
    for k in 1..=3 {
        assert_eq!(bridge.next_message()["params"]["k"], k);
    }
    let gets = fake.wait("GET", 5);
    let last: Vec<Option<&str>> = gets.iter().map(|get| get.header("last-event-id")).collect();
    assert_eq!(last, [None, Some("g.1"), Some("g.2"), None, None]);
    let ran = bridge.end();
    assert!(ran.stderr.contains("no JSON-RPC message"), "{ran:?}");
    assert_eq!(fake.wait("GET", 5).len(), 5, "405 is the last word");
}

#[test]
fn renewed_session_opens_a_new_stream() {
    let renewed = Gate::default();
    let is_renewed = renewed.clone();
    let fake = Fake::start(move |seen, wire| {
        match (seen.what().as_str(), seen.header("mcp-session-id")) {
            ("initialize", _) if seen.json()["id"] != "init" => {
                let body = json!({ "jsonrpc": "2.0", "id": seen.json()["id"], "result": { "protocolVersion": "2025-06-18" } });
                let headers = "content-type: application/json\r\nmcp-session-id: s2\r\n";
                wire.reply("200 OK", headers, &body.to_string());
            }
            ("GET", Some("s1")) => {
                wire.stream("retry: 1\nid: g.1\ndata: {\"method\":\"n\"}\n\n");
                is_renewed.wait();
            }
            ("ping", Some("s1")) => wire.reply("404 Not Found", "", ""),
            _ => usual(seen, wire),
        }
    });
    let mut bridge = Bridge::to(&fake);
    bridge.begin();
    assert_eq!(bridge.next_message()["method"], "n");
    bridge.say(&request(1, "ping"));
    assert_eq!(bridge.answer(1)["result"]["ok"], true);
    renewed.open();
    let gets = fake.wait("GET", 2);
    assert_eq!(gets[1].header("mcp-session-id"), Some("s2"));
    assert_eq!(gets[1].header("last-event-id"), None, "that was another session's");
    bridge.end();
}

#[test]
fn modern_request_needs_no_session_and_ends_with_its_connection() {
    let dropped = Gate::default();
    let seen_dropped = dropped.clone();
    let fake = Fake::start(move |seen, wire| match seen.json()["id"].as_i64() {
        Some(id @ (2 | 3)) => {
            wire.stream(": working\n\n");
            wire.closed();
            if id == 3 {
                seen_dropped.open();
            }
        }
        _ => usual(seen, wire),
    });
    let mut bridge = Bridge::to(&fake);
    // A session beside it does not matter.
    bridge.begin();
    let discover = modern(1, "server/discover", "");
    bridge.say(&discover);
    assert_eq!(bridge.answer(1)["result"]["ok"], true);
    bridge.say(&modern(2, "tools/call", r#","name":"grün","arguments":{}"#));
    fake.wait("tools/call", 1);
    bridge.say(&format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":2,{MODERN}}}}}"#));
    // Whatever its description claims.
    bridge.say(&modern(3, "tools/call", r#","name":"x""#));
    fake.wait("tools/call", 2);
    bridge.say(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#);
    dropped.wait();
    // The older way is a message.
    bridge.say(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}"#);
    fake.wait("notifications/cancelled", 1);
    let ran = bridge.end();
    assert_eq!(ran.stdout.lines().count(), 2, "no answer to what was taken back: {ran:?}");
    let seen = fake.wait("server/discover", 1).remove(0);
    assert_eq!(seen.body, discover);
    assert_eq!(seen.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(seen.header("mcp-method"), Some("server/discover"));
    assert!(seen.header("mcp-session-id").is_none());
    assert_eq!(fake.wait("tools/call", 1)[0].header("mcp-name"), Some("=?base64?Z3LDvG4=?="));
    let cancelled = fake.wait("notifications/cancelled", 1);
    assert_eq!(cancelled.len(), 1);
    assert_eq!(cancelled[0].json()["params"]["requestId"], 77);
    assert_eq!(cancelled[0].header("mcp-session-id"), Some("s1"));
}

#[test]
fn session_call_is_cancelled_by_a_message() {
    let mut fake = Fake::at(free_port(), |seen, wire| match seen.what().as_str() {
        "tools/call" => {
            wire.stream(": working\n\n");
            wire.closed();
        }
        _ => usual(seen, wire),
    });
    let cancel = |id: u32| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        )
    };
    let mut bridge = Bridge::to(&fake);
    bridge.begin();
    fake.wait("GET", 1);
    bridge.say(&call(1, "once"));
    fake.wait("tools/call", 1);
    bridge.say(&cancel(1));
    let cancelled = fake.wait("notifications/cancelled", 1);
    assert_eq!(cancelled[0].header("mcp-session-id"), Some("s1"));
    // A cancelled request that waits for the daemon is not sent when the daemon is back.
    let port = fake.addr.port();
    fake.stop();
    for line in [&call(2, "once"), &cancel(2), &request(3, "ping")] {
        bridge.say(line);
    }
    // It reads in order, so it has read all lines before.
    bridge.say("17");
    assert_eq!(bridge.answer(Value::Null)["error"]["code"], -32600);
    let fake = Fake::at(port, usual);
    assert_eq!(bridge.answer(3)["result"]["ok"], true);
    fake.wait("notifications/cancelled", 1);
    assert_eq!(bridge.end().stdout.lines().count(), 3, "initialize, ping and 17 have answers");
    assert!(!fake.what().contains(&"tools/call".to_owned()), "{:?}", fake.what());
}

#[test]
fn subscription_is_renewed_after_a_cut() {
    let ack =
        r#"{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{}}"#;
    quickly(Duration::from_secs(8), || {
        let times = AtomicUsize::new(0);
        let fake = Fake::start(move |seen, wire| match seen.what().as_str() {
            "subscriptions/listen" => {
                let k = times.fetch_add(1, Ordering::SeqCst);
                if k != 1 {
                    wire.stream(&format!(
                        "data: {ack}\n\ndata: {{\"method\":\"n\",\"params\":{{\"k\":{k}}}}}\n\n"
                    ));
                }
                if k == 2 {
                    wire.closed();
                }
            }
            _ => usual(seen, wire),
        });
        let mut bridge = Bridge::to(&fake);
        let listen =
            modern(1, "subscriptions/listen", r#","notifications":{"toolsListChanged":true}"#);
        bridge.say(&listen);
        assert_eq!(bridge.line(), ack);
        assert_eq!(bridge.next_message()["params"]["k"], 0);
        assert_eq!(bridge.next_message()["params"]["k"], 2, "no second acknowledgement");
        // The stream never ends by itself, and must not delay the exit.
        let since = Instant::now();
        bridge.end();
        let took = since.elapsed();
        let listens = fake.wait("subscriptions/listen", 3);
        assert!(listens.iter().all(|seen| seen.body == listen));
        took
    });
}

#[test]
fn arguments_are_repeated_in_headers_as_the_schema_requires() {
    let fake = Fake::start(|seen, wire| match seen.what().as_str() {
        "tools/call" if seen.header("mcp-param-region").is_none() => {
            let body = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32020,"message":"Mcp-Param-Region is missing","data":{"k":1}}}"#;
            wire.reply("400 Bad Request", "content-type: application/json\r\n", body);
        }
        _ => usual(seen, wire),
    });
    let mut bridge = Bridge::to(&fake);
    for id in 1..=2 {
        bridge.say(&modern(id, "tools/call", r#","name":"routed","arguments":{"region":"eu"}"#));
        assert_eq!(bridge.answer(id)["result"]["ok"], true);
    }
    // An error that the bridge cannot cure is forwarded, under the id of the request.
    bridge.say(&modern(3, "tools/call", r#","name":"other","arguments":{"region":"eu"}"#));
    let answer = bridge.answer(3);
    assert_eq!(
        answer["error"],
        json!({ "code": -32020, "message": "Mcp-Param-Region is missing", "data": { "k": 1 } })
    );
    bridge.end();
    let calls = fake.wait("tools/call", 5);
    let routed: Vec<Option<&str>> =
        calls[..3].iter().map(|it| it.header("mcp-param-region")).collect();
    assert_eq!(routed, [None, Some("eu"), Some("eu")], "it is learned once");
    let own = &fake.wait("tools/list", 1)[0];
    assert_eq!(own.header("mcp-protocol-version"), Some("2026-07-28"), "{own:?}");
}

#[test]
fn refused_token_is_reported_once() {
    let fake = Fake::start(|_, wire| {
        let body = r#"{"code":"unauthorized","detail":"the token is not known"}"#;
        wire.reply("401 Unauthorized", "content-type: application/problem+json\r\n", body);
    });
    let mut bridge = Bridge::to(&fake);
    bridge.say(&initialize());
    assert!(
        bridge.answer("init")["error"]["message"]
            .as_str()
            .is_some_and(|it| it.contains("SVC_TOKEN"))
    );
    bridge.say(&call(1, "once"));
    assert!(bridge.answer(1)["error"]["code"].is_i64());
    bridge.say(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#);
    fake.wait("notifications/x", 1);
    let ran = bridge.end();
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("unset it to use the operator's token file"), "{ran:?}");
}

#[test]
fn signal_ends_the_bridge_and_its_session_at_once() {
    for signal in [Signal::TERM, Signal::INT] {
        quickly(Duration::from_secs(8), || {
            let fake = Fake::start(|seen, wire| match seen.what().as_str() {
                "tools/call" => {
                    wire.stream(": working\n\n");
                    wire.closed();
                }
                _ => usual(seen, wire),
            });
            let mut bridge = Bridge::to(&fake);
            bridge.begin();
            bridge.say(&call(1, "once"));
            fake.wait("tools/call", 1);
            let since = Instant::now();
            bridge.running.signal(signal);
            let ran = bridge.running.wait(SOON);
            let took = since.elapsed();
            assert_eq!(ran.code, Some(0), "{ran:?}");
            fake.wait("DELETE", 1);
            took
        });
    }
}

#[test]
fn bridge_starts_a_missing_or_killed_daemon() {
    let home = Home::new();
    let listen = format!("127.0.0.1:{}", free_port());
    home.write("config.toml", &format!("listen = [\"{listen}\"]\n"));
    let mut bridge = Bridge::start(&home, &["stdio"], "");
    let pid = |home: &Home| home.daemon_json().and_then(|json| json["pid"].as_i64());
    let answered = |answer: &Value| answer["result"].is_object() || answer["error"].is_object();
    bridge.say(&initialize());
    assert!(answered(&bridge.answer("init")));
    let first = pid(&home).expect("a daemon runs");
    bridge.say(&request(1, "ping"));
    assert!(answered(&bridge.answer(1)));
    assert_eq!(pid(&home), Some(first), "one is enough");
    assert_eq!(home.daemon_json().expect("it runs")["url"], format!("http://{listen}"));

    let process =
        i32::try_from(first).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(process, Signal::KILL).expect("it is ours");
    bridge.say(&request(2, "ping"));
    assert!(answered(&bridge.answer(2)));
    let second = pid(&home).expect("a daemon runs again");
    assert_ne!(first, second);
    let ran = bridge.end();
    assert_eq!(ran.stderr.matches("started the daemon").count(), 2, "{ran:?}");
    // The end of the bridge is not that of the daemon.
    assert_eq!(crate::daemon::svc(&home, &["status"]).code, Some(0));
    assert_eq!(crate::daemon::svc(&home, &["stop"]).code, Some(0));
}
