//! Connections: requests that arrive in pieces.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::expect::with_task;
use crate::wire::{Conn, Reply, exchange};

/// A request that arrives in one piece bypasses the HTTP library; the responses must be equal.
#[test]
fn request_in_pieces_gets_the_same_response() {
    let (d, task) = with_task();
    let path = format!("/v1/tasks/{task}/events");
    let frame = json!({ "kind": "frame", "data": { "line": "a", "kind": "stdout" }, "id": "1" });
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let call = |id: &str| {
        let arguments = json!({ "task_id": id });
        let params = json!({ "name": "TaskGet", "arguments": arguments });
        json!({ "jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params })
    };
    let notice = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let mcp = |body: &Value| {
        let accept = "application/json, text/event-stream";
        d.request("POST", "/mcp").header("Accept", accept).json(body)
    };
    for request in [
        d.request("POST", &path).json(&frame),
        d.request("POST", &path).json(&json!([])),
        d.request("POST", &path).json(&json!({ "kind": "frame" })),
        d.request("POST", &path).header("Content-Type", "text/plain").body("x"),
        d.request("POST", &path).header("Content-Type", "application/json").body("{"),
        d.request("POST", &path).header("Content-Type", "application/json").body(""),
        d.request("POST", &path).header("Origin", "http://evil.example").json(&frame),
        d.request("POST", &path).without("Host").json(&frame),
        d.request("POST", "/v1/tasks/task_none/events").json(&frame),
        d.stranger().request("POST", &path).json(&frame),
        mcp(&list),
        mcp(&call(&task)),
        mcp(&call("task_none")),
        mcp(&notice),
        d.request("POST", "/mcp").json(&list).header("Accept", "text/html"),
    ] {
        let bytes = request.bytes();
        let whole = exchange(d.addr, &bytes).unwrap();
        let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        for cut in [1, head - 2, head, head + (bytes.len() - head) / 2] {
            let in_pieces = || -> std::io::Result<Reply> {
                let mut conn = Conn::open(d.addr)?;
                conn.write(&bytes[..cut])?;
                // The daemon has read the first piece when a later connection has its response.
                d.get("/health").ok(200);
                conn.write(&bytes[cut..])?;
                conn.reply()
            };
            // A head has ten seconds to arrive, and a busy machine may take longer.
            let in_time = (0..5).find_map(|_| {
                let began = Instant::now();
                let parts = in_pieces();
                (began.elapsed() < Duration::from_secs(9)).then_some(parts)
            });
            let parts = in_time.expect("an attempt in time").unwrap();
            assert_eq!(fixed(&parts), fixed(&whole), "{}", String::from_utf8_lossy(&bytes));
        }
    }
    assert_eq!(d.get(&format!("/v1/tasks/{task}")).ok(200)["last_id"], 2);
}

/// A response without what differs from one to the next.
fn fixed(reply: &Reply) -> (u16, Vec<(String, String)>, String) {
    let length = reply.body.len().to_string();
    assert_eq!(reply.header("content-length").unwrap_or("0"), length, "{reply:?}");
    let id = reply.header("x-request-id").expect("an id");
    reply.header("date").expect("a date");
    // Problems contain the request's id, and the length of a body depends on that id.
    let changing = ["x-request-id", "date", "content-length"];
    let mut headers = reply.head.headers().to_vec();
    headers.retain(|(name, _)| !changing.contains(&name.as_str()));
    headers.sort();
    (reply.status(), headers, String::from_utf8_lossy(&reply.body).replace(id, ""))
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (d, task) = with_task();
    let path = format!("/v1/tasks/{task}/events");
    let frame = json!({ "kind": "frame", "data": { "line": "a", "kind": "stdout" } });
    let append = d.request("POST", &path).without("Connection").json(&frame).bytes();
    let read = d.request("GET", &format!("/v1/tasks/{task}")).without("Connection").bytes();
    let mut conn = Conn::open(d.addr).unwrap();
    // The last request comes in two pieces, the first of them together with the requests before.
    let half = append.len() / 2;
    conn.write(&[&append[..], &append, &read, &append, &append[..half]].concat()).unwrap();
    for id in [2, 3] {
        assert_eq!(conn.reply().unwrap().ok(200)["first_id"], id);
    }
    assert_eq!(conn.reply().unwrap().ok(200)["last_id"], 3);
    assert_eq!(conn.reply().unwrap().ok(200)["first_id"], 4);
    conn.write(&append[half..]).unwrap();
    assert_eq!(conn.reply().unwrap().ok(200)["first_id"], 5);

    // The connection closes if the request asks for it.
    let mut conn = Conn::open(d.addr).unwrap();
    conn.write(&append).unwrap();
    assert_eq!(conn.reply().unwrap().ok(200)["first_id"], 6);
    conn.write(&d.request("POST", &path).json(&frame).bytes()).unwrap();
    assert_eq!(conn.reply().unwrap().ok(200)["first_id"], 7);
    assert!(conn.reply().is_err(), "it is over");
}
