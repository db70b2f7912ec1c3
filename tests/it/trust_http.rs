//! Connections: readers that do not read, clients without a credential, streams whose credential
//! has ended.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::budget::resident;
use crate::daemon::{Daemon, eventually};
use crate::expect::{subscribe, with_task};
use crate::shapes::{append, done, frame, new_task};
use crate::wire::{Caller, Conn, Sse, exchange};

const SOON: Duration = Duration::from_secs(20);

/// The budget of one kind that all sessions hold.
fn held(d: &Daemon, kind: &str) -> u64 {
    let reply = d.get("/metrics");
    let text = String::from_utf8(reply.body).expect("text");
    let name = format!("svc_budget_used{{kind=\"{kind}\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name)).expect("the metric");
    line.parse().expect("a number")
}

/// A task with 21 MB of frames: more than the sockets' buffers at both ends hold.
fn long_task(d: &Daemon) -> String {
    let task = new_task(d);
    let batch: Vec<_> = (0..60).map(|_| frame(&"x".repeat(9000))).collect();
    for _ in 0..40 {
        append(d, &task, &json!(batch));
    }
    task
}

/// A connection that has sent these bytes, and reads nothing.
fn half_open(caller: &Caller, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(caller.addr).expect("a connection");
    stream.set_read_timeout(Some(SOON)).expect("a socket takes a timeout");
    stream.write_all(sent).expect("it is taken");
    stream
}

/// Whether the daemon has closed a connection without a response.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn stalled_reader_times_out_but_slow_or_idle_ones_do_not() {
    // On a machine that held the slow reader up for almost the timeout, the readers begin anew.
    let was_read = (0..5).any(|_| {
        let d = Daemon::with(|plan| plan.env("SVC_BODY_TIMEOUT_MS", "4000"));
        let task = long_task(&d);
        append(&d, &task, &json!(done()));
        let mut idle = d.follow("/v1/events?stream_prefix=task/&after=latest");
        idle.block().expect("it begins");
        let mut stalled = d.reader("stalled").follow(&subscribe(&task));
        let cut = AtomicBool::new(false);
        let slow_read = thread::scope(|scope| {
            let slow = scope.spawn(|| read_slowly(&d, &task, &cut));
            eventually(SOON, || held(&d, "streams") == 0);
            cut.store(true, Ordering::Relaxed);
            slow.join().expect("the slow reader")
        });
        let Some(events) = slow_read else { return false };
        assert_eq!(events, 2402);
        loop {
            match stalled.try_event() {
                Ok(Some(event)) => assert_ne!(event.kind, "terminal", "it was cut off before"),
                Ok(None) => panic!("a clean end"),
                Err(_) => break,
            }
        }
        let other = new_task(&d);
        assert!(idle.event().data.to_string().contains(&other), "the idle stream goes on");
        true
    });
    assert!(was_read, "each time, the slow reader was held up");
}

/// Reads a task's events with a request after each until the other reader is cut off, and counts
/// the events; `None` if it was held up and then cut off itself.
fn read_slowly(d: &Daemon, task: &str, cut: &AtomicBool) -> Option<u32> {
    let mut slow = d.follow(&subscribe(task));
    let (mut events, mut was_held_up, mut last) = (0, false, Instant::now());
    loop {
        let event = slow.try_event();
        was_held_up |= last.elapsed() > Duration::from_secs(2);
        last = Instant::now();
        match event {
            Ok(Some(event)) => {
                events += 1;
                if event.kind == "terminal" {
                    return Some(events);
                }
            }
            Ok(None) => return Some(events),
            Err(error) => {
                assert!(was_held_up, "it is not cut off: {error}");
                return None;
            }
        }
        if !cut.load(Ordering::Relaxed) {
            d.get("/health").ok(200);
        }
    }
}

#[test]
fn unread_pages_are_bounded_and_the_refusal_says_what_to_free() {
    const READERS: usize = 300;
    let d = Daemon::start();
    let task = long_task(&d);
    let (greedy, other) = (d.reader("greedy"), d.reader("other"));
    let target = format!("/v1/events?stream=task/{task}&limit=500");
    let page = greedy.get(&target);
    assert!(page.body.len() > 3_000_000, "{}", page.body.len());
    let before = resident(&d);
    let request = greedy.request("GET", &target).bytes();
    let readers: Vec<_> = (0..READERS).map(|_| half_open(&greedy, &request)).collect();
    let mut text = String::new();
    eventually(SOON, || {
        let reply = greedy.get(&target);
        if reply.status() != 429 {
            return false;
        }
        text = reply.json()["detail"].as_str().unwrap_or_default().to_owned();
        text.starts_with("budget.unread_bytes: ")
    });
    assert!(text.contains("read the answers that wait"), "{text}");
    assert_eq!(other.get(&target).status(), 200, "a neighbour reads");
    let grown = resident(&d).saturating_sub(before);
    assert!(grown < 250 << 20, "{} MiB for {READERS} readers", grown >> 20);
    drop(readers);
    eventually(SOON, || greedy.get(&target).status() == 200);
    eventually(SOON, || held(&d, "unread_bytes") == 0);
}

#[test]
fn unauthenticated_bodies_have_a_small_bound() {
    let d = Daemon::start();
    let before = resident(&d);
    for path in ["/login", "/v1/daemon_proof"] {
        let body = format!("{{\"code\":\"{}\"}}", "x".repeat(990_000));
        let whole = d.stranger().request("POST", path).header("Content-Type", "application/json");
        let bytes = whole.body(body).bytes();
        assert_eq!(exchange(d.addr, &bytes).expect("an answer").status(), 413, "{path}");
        let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        // Only the beginning of a body comes: the response does not wait for the rest.
        let answer = exchange(d.addr, &bytes[..head + 1000]).expect("an answer");
        assert_eq!(answer.status(), 413, "{path}");
        let many: Vec<_> = (0..300)
            .map(|_| {
                let mut stream = TcpStream::connect(d.addr).expect("a connection");
                // Some are closed for others in between.
                drop(stream.write_all(&bytes[..head + 50_000]));
                stream
            })
            .collect();
        let grown = resident(&d).saturating_sub(before);
        assert!(grown < 64 << 20, "{} MiB for {} bodies", grown >> 20, many.len());
    }
    let small = d.stranger().post("/v1/daemon_proof", &json!({ "token": "x".repeat(60_000) }));
    assert_eq!(small.status(), 422, "{small:?}");
}

#[test]
fn excess_unauthenticated_client_closes_the_longest_idle() {
    let d = Daemon::start();
    let kept = d.request("GET", "/v1/health").without("Connection").bytes();
    let health = d.stranger().request("GET", "/health").bytes();
    // A head may take ten seconds. On a machine that was too busy for that, the clients begin anew.
    let was_quick = (0..5).any(|_| {
        let began = Instant::now();
        let mut known = Conn::open(d.addr).expect("a connection");
        known.write(&kept).expect("it is taken");
        known.reply().expect("an answer").ok(200);
        let mut oldest = half_open(&d, b"");
        let mut others: Vec<_> = (0..63).map(|_| half_open(&d, &health[..7])).collect();
        let mut newest = half_open(&d, &health[..7]);
        let is_oldest_closed = is_closed(&mut oldest);
        let answers = [&mut others[62], &mut newest].map(|client| {
            let mut answer = String::new();
            let sent = client.write_all(&health[7..]);
            sent.and_then(|()| client.read_to_string(&mut answer)).map(|_| answer)
        });
        if began.elapsed() > Duration::from_secs(8) {
            return false;
        }
        assert!(is_oldest_closed, "it is idle longest");
        for answer in answers {
            let answer = answer.expect("it is still open");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
        known.write(&kept).expect("who is known stays");
        known.reply().expect("an answer").ok(200);
        true
    });
    assert!(was_quick, "each time took longer than a head may take");
}

#[test]
fn silent_clients_do_not_block_the_unix_socket() {
    let d = Daemon::with(|plan| plan.descriptors(160));
    let silent: Vec<_> = (0..200).map(|_| half_open(&d, b"")).collect();
    for _ in 0..20 {
        let mut stream = UnixStream::connect(d.home.path("svc.sock")).expect("the daemon listens");
        stream
            .write_all(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .expect("is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert!(!d.stderr().contains("cannot accept"), "there were descriptors: {}", d.stderr());
    // Over TCP too: each new client replaces a silent one.
    d.get("/v1/health").ok(200);
    drop(silent);
}

/// Reads a stream without events to its end.
#[track_caller]
fn ends(stream: &mut Sse) {
    assert!(stream.rest().is_empty());
}

#[test]
fn idle_stream_ends_with_its_credential() {
    // No comment comes by which the stream could notice.
    let d = Daemon::with(|plan| plan.env("SVC_SSE_KEEPALIVE_MS", "3600000"));
    let target = "/v1/events?stream_prefix=task/&after=latest";
    let mint = |session: &str, ttl: u64| {
        let input = json!({ "session": session, "ttl_seconds": ttl });
        d.post("/v1/tokens", &input).ok(201)
    };
    let follow = |token: &serde_json::Value| d.with_token(token.as_str().expect("a token"));
    let (revoked, expires, stays) =
        (mint("revoked", 3600), mint("expires", 5), mint("stays", 3600));
    let mut stays = follow(&stays["token"]).follow(target);
    let mut ended = follow(&expires["token"]).follow(target);
    ends(&mut ended);

    let mut ended = [(); 2].map(|()| follow(&revoked["token"]).follow(target));
    let id = revoked["token_id"].as_str().expect("an id");
    d.delete(&format!("/v1/tokens/{id}")).ok(200);
    ended.iter_mut().for_each(ends);

    let mut ended = d.follow(target);
    let rotated = d.post("/v1/token/rotate", &json!({})).ok(200);
    ends(&mut ended);
    let operator = follow(&rotated["token"]);
    operator.follow(target).block().expect("the new token is good");
    stays.block().expect("its beginning");
    new_task(&follow(&mint_as(&operator, "stays")));
    stays.event();
}

fn mint_as(operator: &Caller, session: &str) -> serde_json::Value {
    operator.post("/v1/tokens", &json!({ "session": session })).ok(201)["token"].clone()
}

#[test]
fn request_keeps_its_clients_ids() {
    let d = Daemon::start();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (path, status) in [("/v1/health", 200), ("/v1/none", 404)] {
        let request = d.request("GET", path).header("X-Request-Id", "mine-1");
        let reply = request.header("traceparent", trace).send();
        assert_eq!(reply.status(), status, "{reply:?}");
        assert_eq!(reply.header("x-request-id"), Some("mine-1"));
        assert_eq!(reply.header("traceparent"), Some(trace));
        if status == 404 {
            assert_eq!(reply.json()["request_id"], "mine-1");
        }
    }
    let long = "x".repeat(200);
    for ids in [&["a", "b"][..], &[long.as_str()], &["a b"], &[]] {
        let request = ids
            .iter()
            .fold(d.request("GET", "/health"), |request, id| request.header("X-Request-Id", id));
        let reply = request.send();
        let id = reply.header("x-request-id").expect("one of its own").to_owned();
        assert!(!ids.contains(&id.as_str()), "{id}");
    }
}

#[test]
fn only_allowed_origins_pass_preflight() {
    let d = Daemon::with(|plan| plan.flag("--allowed-origin").flag("https://board.example"));
    let preflight = |origin: &str| {
        let request = d.stranger().request("OPTIONS", "/v1/tasks").header("Origin", origin);
        let request = request.header("Access-Control-Request-Method", "POST");
        request.header("Access-Control-Request-Headers", "authorization, content-type").send()
    };
    let allow = "access-control-allow-origin";
    let reply = preflight("https://board.example");
    assert_eq!(reply.status(), 200, "{reply:?}");
    assert_eq!(reply.header(allow), Some("https://board.example"));
    let headers = reply.header("access-control-allow-headers").expect("the headers");
    assert!(headers.contains("authorization"), "{headers}");
    assert_eq!(reply.header("access-control-allow-credentials"), None);
    for (origin, status) in [("http://localhost:3000", 401), ("https://evil.example", 403)] {
        let reply = preflight(origin);
        assert_eq!((reply.status(), reply.header(allow)), (status, None), "{reply:?}");
    }
    for (caller, status) in [((*d).clone(), 200), (d.stranger(), 401)] {
        let request = caller.request("GET", "/v1/tasks").header("Origin", "https://board.example");
        let reply = request.send();
        assert_eq!(reply.status(), status, "{reply:?}");
        assert_eq!(reply.header(allow), Some("https://board.example"));
        let request = caller.request("GET", "/v1/tasks").header("Origin", "http://localhost:3000");
        assert_eq!(request.send().header(allow), None);
    }
}

/// Requests whose end two programs may find in two places. A refused request ends the connection,
/// and later bytes are not taken for a request.
#[test]
fn ambiguous_request_framing_is_refused_or_has_one_reading() {
    let (d, task) = with_task();
    let token = d.token.clone().expect("a token");
    let event = r#"{"kind":"frame","data":{"line":"a","kind":"stdout"}}"#;
    let length = event.len();
    let chunked = format!("{length:x}\r\n{event}\r\n0\r\n\r\n");
    for (lines, body, status) in [
        (format!("Content-Length: {length}\r\n"), event, 200),
        ("Transfer-Encoding: chunked\r\n".to_owned(), &*chunked, 200),
        (format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"), event, 200),
        (format!("Content-Length: {length}\r\nContent-Length: 2\r\n"), event, 400),
        (format!("Content-Length: +{length}\r\n"), event, 400),
        (format!("Content-Length: {length}x\r\n"), event, 400),
        ("Content-Length:\r\n".to_owned(), event, 400),
        ("Content-Length: 18446744073709551618\r\n".to_owned(), event, 400),
        (format!("Content-Length : {length}\r\n"), event, 400),
        (format!("Content-Length: {length}\r\n x\r\n"), event, 400),
        ("Transfer-Encoding: chunked, identity\r\n".to_owned(), &*chunked, 400),
        ("Transfer-Encoding: xchunked\r\n".to_owned(), &*chunked, 400),
        (format!("Content-Length: {length}\r\nX: a\u{1}\r\n"), event, 400),
        (format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"), &*chunked, 200),
    ] {
        let mut conn = Conn::open(d.addr).expect("a connection");
        let head = format!(
            "POST /v1/tasks/{task}/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\n{lines}\r\n",
            d.addr
        );
        let behind = format!("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", d.addr);
        conn.write(format!("{head}{body}{behind}").as_bytes()).expect("it is taken");
        let reply = conn.reply().expect("an answer");
        assert_eq!(reply.status(), status, "{lines:?}: {reply:?}");
        let next = conn.reply();
        if status == 400 {
            assert!(next.is_err(), "{lines:?}: {next:?}");
        } else if let Ok(next) = next {
            assert_eq!(next.ok(200)["status"], "healthy", "{lines:?}");
        }
    }
}
