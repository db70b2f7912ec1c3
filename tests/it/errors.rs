//! Errors: every one is a problem document that names what is wrong, and the daemon stays healthy.

use std::time::Duration;

use serde_json::json;

use crate::daemon::Daemon;
use crate::expect::{page, problem, with_task};
use crate::wire::{Conn, exchange};

const MIB: usize = 1024 * 1024;

#[test]
fn body_over_one_mebibyte_is_refused_and_nothing_stored() {
    let (d, task) = with_task();
    let path = format!("/v1/tasks/{task}/events");
    let event = |size: usize| {
        let frame = "{\"kind\":\"frame\",\"data\":{\"kind\":\"stdout\",\"line\":\"\"}}";
        let line = "x".repeat(size - frame.len());
        frame.replace("\"line\":\"\"", &format!("\"line\":\"{line}\""))
    };
    let request = || d.request("POST", &path).header("Content-Type", "application/json");

    request().body(event(MIB)).send().ok(200);
    problem(&request().body(event(MIB + 1)).send(), 413, "payload_too_large");

    // A chunked body announces no length.
    let body = event(MIB + 1);
    let mut bytes = request().header("Transfer-Encoding", "chunked").bytes();
    for piece in body.as_bytes().chunks(64 * 1024) {
        bytes.extend(format!("{:x}\r\n", piece.len()).bytes());
        bytes.extend(piece);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    problem(&exchange(d.addr, &bytes).unwrap(), 413, "payload_too_large");

    // A body whose announced length is too large is refused before it is sent.
    let mut conn = Conn::open(d.addr).unwrap();
    conn.write(&request().header("Content-Length", "1099511627776").bytes()).unwrap();
    problem(&conn.reply().unwrap(), 413, "payload_too_large");

    assert_eq!(d.get(&format!("/v1/tasks/{task}")).ok(200)["last_id"], 2);
}

#[test]
fn stalled_body_times_out() {
    let d = Daemon::with(|plan| plan.env("SVC_BODY_TIMEOUT_MS", "500"));
    let request = d
        .request("POST", "/v1/tasks")
        .header("Content-Type", "application/json")
        .header("Content-Length", "1000");
    let mut conn = Conn::open(d.addr).unwrap();
    conn.write(&request.bytes()).unwrap();
    conn.write(b"{\"title\": \"half").unwrap();
    let reply = conn.reply().unwrap();
    assert_eq!(reply.status(), 408, "{reply:?}");
    let problem = reply.json();
    assert_eq!(problem["status"], 408);
    assert_eq!(problem["retryable"], json!(true));
    assert!(page(&d.get("/v1/tasks"), "tasks").is_empty());

    // A slow body is not stalled: as long as bytes arrive the daemon waits. On a busy machine the
    // pause between two bytes may be too long, so one of several has to pass.
    let body = json!({ "title": "slow" }).to_string();
    let request = d
        .request("POST", "/v1/tasks")
        .header("Content-Type", "application/json")
        .header("Content-Length", &body.len().to_string());
    let passes = || {
        let mut conn = Conn::open(d.addr).unwrap();
        conn.write(&request.bytes()).unwrap();
        for byte in body.bytes() {
            // The daemon may have closed the connection.
            drop(conn.write(&[byte]));
            std::thread::sleep(Duration::from_millis(50));
        }
        conn.reply().is_ok_and(|reply| reply.status() == 201 && reply.json()["title"] == "slow")
    };
    assert!((0..20).any(|_| passes()), "none passed");
}

#[test]
fn client_that_disconnects_midway_stores_nothing() {
    let d = Daemon::start();
    for _ in 0..20 {
        let request = d
            .request("POST", "/v1/tasks")
            .header("Content-Type", "application/json")
            .header("Content-Length", "20");
        let mut conn = Conn::open(d.addr).unwrap();
        conn.write(&request.bytes()).unwrap();
        conn.write(b"{\"title\"").unwrap();
    }
    for garbage in ["\r\n\r\n", "GET\r\n\r\n", "\u{16}\u{3}\u{1}", "GET / HTTP/9.9\r\n\r\n"] {
        let mut conn = Conn::open(d.addr).unwrap();
        conn.write(garbage.as_bytes()).unwrap();
    }
    assert!(page(&d.get("/v1/tasks"), "tasks").is_empty());
    d.get("/v1/health").ok(200);
}
