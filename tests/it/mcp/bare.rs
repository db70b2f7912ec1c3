//! Bare calls: no session, no era, no promises about headers, as hooks and `curl` call.

use serde_json::{Value, json};

use super::{
    BOTH, SOON, Stream, finish, given, message, post, refused, request, result, subscribers, tool,
    tool_error, wait_for,
};
use crate::daemon::{Daemon, eventually};
use crate::expect::{new_task, page, problem, with_task};
use crate::wire::Conn;

#[test]
fn any_accept_header_is_served() {
    let d = Daemon::start();
    let bodies = [
        request(7, "ping", &json!({})),
        request("a b", "tools/list", &json!({})),
        request(-1, "tools/call", &tool("peer_list", &json!({}))),
    ];
    let json = [
        None,
        Some(""),
        Some("*/*"),
        Some("application/json"),
        Some("Application/JSON"),
        Some("application/*"),
        Some(BOTH),
        Some("text/event-stream, application/json"),
        Some("text/event-stream;q=0.9, application/json;q=0.1"),
        Some("application/json, text/event-stream;q=0"),
        Some("text/html, */*;q=0.1"),
        Some("image/png"),
        Some(";;,,=/"),
    ];
    let events = [
        "text/event-stream",
        "Text/Event-Stream; charset=utf-8",
        "text/event-stream;q=0.5, application/json;q=0",
        "application/json; q=0.000, text/event-stream",
        "*/*, application/json;q=0",
        "text/*",
    ];
    for body in &bodies {
        for accept in json.into_iter().chain(events.map(Some)) {
            let mut asked = post(&d, body);
            if let Some(accept) = accept {
                asked = asked.header("Accept", accept);
            }
            let reply = asked.send();
            let kind = match accept {
                Some(accept) if events.contains(&accept) => "text/event-stream",
                _ => "application/json",
            };
            assert_eq!(reply.header("content-type"), Some(kind), "{accept:?}: {reply:?}");
            assert_eq!(message(&reply)["id"], body["id"], "{accept:?}");
            result(&reply);
            assert_eq!(reply.header("mcp-session-id"), None);
            assert_eq!(reply.header("mcp-method"), body["method"].as_str());
            let text = String::from_utf8_lossy(&reply.body);
            let resumes = |line: &str| line.starts_with("id:") || line.starts_with("retry:");
            assert!(!text.lines().any(resumes), "nothing to resume: {text}");
        }
    }
}

#[test]
fn a_body_must_say_that_it_is_json() {
    let d = Daemon::start();
    let body = request(1, "ping", &json!({})).to_string();
    for (kind, fine) in [
        (None, false),
        (Some(""), false),
        (Some("text/plain"), false),
        (Some("application/x-www-form-urlencoded"), false),
        (Some("multipart/form-data; boundary=json"), false),
        (Some("application/jsonp"), false),
        (Some("text/json"), false),
        (Some("application/json"), true),
        (Some("application/json; charset=utf-8"), true),
        (Some("APPLICATION/JSON"), true),
        (Some("application/vnd.mcp+json"), true),
    ] {
        let mut asked = d.request("POST", "/mcp").body(body.clone());
        if let Some(kind) = kind {
            asked = asked.header("Content-Type", kind);
        }
        let reply = asked.send();
        if fine {
            result(&reply);
        } else {
            problem(&reply, 415, "unsupported_media_type");
        }
    }
}

#[test]
fn body_is_bounded_and_must_not_stall() {
    let d = Daemon::with(|plan| plan.env("SVC_BODY_TIMEOUT_MS", "300"));
    let arguments = json!({ "display_name": "big", "backend": "claude" });
    let body = request(1, "tools/call", &tool("peer_register", &arguments)).to_string();
    let padded = |len: usize| {
        let space = " ".repeat(len - body.len());
        d.request("POST", "/mcp")
            .header("Content-Type", "application/json")
            .body(body.clone() + &space)
    };
    let most = 4 * 1024 * 1024;
    problem(&padded(most + 1).send(), 413, "payload_too_large");
    assert!(page(&d.get("/v1/peers"), "peers").is_empty(), "nothing was stored");
    given(&result(&padded(most).send()));
    assert_eq!(page(&d.get("/v1/peers"), "peers").len(), 1);

    let mut half = Conn::open(d.addr).expect("a connection");
    let bytes = padded(1000).bytes();
    half.write(&bytes[..bytes.len() - 900]).expect("a part of it");
    let reply = half.reply().expect("an answer to half a request");
    problem(&reply, 408, "request_timeout");
}

#[test]
fn invalid_request_gets_its_own_error() {
    let d = Daemon::start();
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let deep = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"ping","params":{{"a":{deep}}}}}"#);
    for (body, code, id) in [
        ("", -32700, json!(null)),
        ("{", -32700, json!(null)),
        ("{\"jsonrpc\":\"2.0\",", -32700, json!(null)),
        ("nonsense", -32700, json!(null)),
        (&format!("{ping}{ping}"), -32700, json!(null)),
        (&deep, -32602, json!(5)),
        ("[]", -32600, json!(null)),
        ("3", -32600, json!(null)),
        ("null", -32600, json!(null)),
        ("\"ping\"", -32600, json!(null)),
        ("{}", -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#, -32600, json!(null)),
        (r#"{"jsonrpc":"1.0","id":4,"method":"ping"}"#, -32600, json!(4)),
        (r#"{"id":4,"method":"ping"}"#, -32600, json!(4)),
        (r#"{"jsonrpc":"2.0","id":"x"}"#, -32600, json!("x")),
        (r#"{"jsonrpc":"2.0","id":"x","method":7}"#, -32600, json!("x")),
        (r#"{"jsonrpc":"2.0","id":5,"method":"ping","params":[1]}"#, -32602, json!(5)),
        (
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":"peer_list"}"#,
            -32602,
            json!(5),
        ),
        (r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":3}"#, -32602, json!(5)),
    ] {
        for accept in ["application/json", "text/event-stream"] {
            let reply = d
                .request("POST", "/mcp")
                .header("Content-Type", "application/json")
                .header("Accept", accept)
                .body(body)
                .send();
            let error = refused(&reply, 400, code);
            assert_eq!(message(&reply)["id"], id, "{body}: {error}");
            assert_eq!(reply.header("content-type"), Some(accept));
        }
    }
    let bytes = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xff\"}".to_vec();
    let asked = d.request("POST", "/mcp").header("Content-Type", "application/json").body(bytes);
    refused(&asked.send(), 400, -32700);
    result(&post(&d, &request(1, "ping", &json!({}))).send());
}

#[test]
fn request_ids_are_returned_unchanged() {
    let d = Daemon::start();
    for id in [
        "0",
        "-7",
        "1.50",
        "12345678901234567890123",
        "1e3",
        r#""""#,
        r#""a\u0062""#,
        r#""caf\u00e9 ü""#,
        r#""\ud83d\ude00""#,
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let asked = d.request("POST", "/mcp").header("Content-Type", "application/json").body(body);
        let text = String::from_utf8(asked.send().body).expect("text");
        assert!(text.contains(&format!(r#""id":{id},"#)), "{id}: {text}");
    }
}

#[test]
fn unknown_tools_and_bad_arguments_are_refused() {
    let d = Daemon::start();
    let call = |params: &Value| post(&d, &request(1, "tools/call", params)).send();
    for params in [
        json!({}),
        json!({ "name": 3 }),
        json!({ "name": "" }),
        json!({ "name": "no_such_tool" }),
        json!({ "name": "peer_list", "arguments": [] }),
        json!({ "name": "peer_list", "arguments": "all" }),
    ] {
        refused(&call(&params), 200, -32602);
    }
    for method in ["", "no/such", "rpc.discover", "server/discoverx", "tasks/list"] {
        refused(&post(&d, &request(1, method, &json!({}))).send(), 200, -32601);
    }
    for (name, arguments, field) in [
        ("TaskGet", json!({}), "task_id"),
        ("TaskGet", json!({ "task_id": 3 }), "task_id"),
        ("TaskGet", json!({ "task_id": " " }), "task_id"),
        ("TaskGet", json!({ "task_id": "task_x", "frames": 501 }), "frames"),
        ("TaskGet", json!({ "task_id": "task_x", "nonsense": 1 }), "nonsense"),
        ("TaskList", json!({ "status": "sleeping" }), "status"),
    ] {
        let error = tool_error(&result(&call(&tool(name, &arguments))), "validation_error");
        assert_eq!(error["field"], json!(field), "{error}");
        if field == "status" {
            let allowed = error["allowed"].as_array().expect("what is allowed");
            assert!(allowed.contains(&json!("pending")), "{error}");
        }
    }
    let error = result(&call(&tool("TaskGet", &json!({ "task_id": "task_x" }))));
    tool_error(&error, "not_found");
    // Missing and null arguments are the same.
    for params in
        [json!({ "name": "peer_list" }), json!({ "name": "peer_list", "arguments": null })]
    {
        given(&result(&call(&params)));
    }
}

#[test]
fn slow_tool_waits_in_the_form_the_client_accepts() {
    let d = Daemon::with(|plan| plan.env("SVC_SSE_KEEPALIVE_MS", "100"));
    let task = new_task(&d);
    let body = request("w", "tools/call", &tool("TaskWait", &wait_for(&task)));
    // The response begins with white space, so that the client does not time out.
    let mut asked = Conn::open(d.addr).expect("a connection");
    let bytes = post(&d, &body).header("Accept", "application/json").bytes();
    asked.write(&bytes).expect("a request");
    let head = asked.head().expect("a head, although the tool waits");
    assert_eq!(head.header("content-type"), Some("application/json"));

    let mut events = Stream::open(&post(&d, &body).header("Accept", "text/event-stream"));
    let block = events.block().expect("somebody is there");
    assert!(block.id.is_none() && block.comment.is_some(), "{block:?}");
    let silent = post(&d, &body).header("Accept", "application/json");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| silent.send());
        eventually(SOON, || subscribers(&d) >= 3.0);
        finish(&d, &task);
        let reply = waiting.join().expect("an answer");
        let waited = given(&result(&reply));
        assert_eq!(waited["task"]["status"], "done");
        assert_eq!(reply.json()["id"], "w");
    });
    let answer = events.answer();
    assert_eq!((answer.id, &answer.json["id"]), (None, &json!("w")));
    given(&answer.json["result"]);
}

#[test]
fn disconnect_cancels_a_bare_call() {
    let (d, task) = with_task();
    let before = subscribers(&d);
    let body = request(1, "tools/call", &tool("TaskWait", &wait_for(&task)));
    let stream = Stream::open(&post(&d, &body).header("Accept", BOTH));
    eventually(SOON, || subscribers(&d) > before);
    stream.knife().cut();
    eventually(SOON, || subscribers(&d) <= before);
}

#[test]
fn shutdown_ends_a_bare_call_with_a_response() {
    let (mut d, task) = with_task();
    let body = request("w", "tools/call", &tool("TaskWait", &wait_for(&task)));
    let json = post(&d, &body).header("Accept", "application/json");
    let before = subscribers(&d);
    let mut events = Stream::open(&post(&d, &body).header("Accept", "text/event-stream"));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| json.send());
        eventually(SOON, || subscribers(&d) >= before + 2.0);
        d.stop();
        let reply = waiting.join().expect("an answer");
        let error = reply.json();
        assert_eq!((&error["id"], &error["error"]["code"]), (&json!("w"), &json!(-32603)));
    });
    let answer = events.answer().json;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("w"), &json!(-32603)));
}

#[test]
fn batches_need_a_revision_with_batches() {
    let d = Daemon::start();
    let batch = json!([
        request(1, "ping", &json!({})),
        { "jsonrpc": "2.0", "method": "notifications/initialized" },
        request("two", "tools/call", &tool("peer_list", &json!({}))),
        request(3, "no/such", &json!({})),
        { "jsonrpc": "2.0", "id": 9, "result": {} },
        17,
        request(4, "tools/call", &tool("no_such_tool", &json!({}))),
    ]);
    for version in [None, Some("2025-03-26"), Some("2024-11-05")] {
        let mut asked = post(&d, &batch);
        if let Some(version) = version {
            asked = asked.header("MCP-Protocol-Version", version);
        }
        let reply = asked.send();
        let answers = reply.ok(200);
        let ids: Vec<_> = answers.as_array().expect("a batch").iter().map(|it| &it["id"]).collect();
        assert_eq!(json!(ids), json!([1, "two", 3, null, 4]), "{answers}");
        given(&answers[1]["result"]);
        for (at, code) in [(2, -32601), (3, -32600), (4, -32602)] {
            assert_eq!(answers[at]["error"]["code"], json!(code), "{answers}");
        }
        let events = asked.header("Accept", "text/event-stream").send();
        assert_eq!(message(&events)[3], answers[3]);
    }
    for version in ["2025-06-18", "2025-11-25", "2026-07-28", "2031-01-01", "1999-01-01"] {
        let reply = post(&d, &batch).header("MCP-Protocol-Version", version).send();
        refused(&reply, 400, -32600);
    }
    let silent = json!([{ "jsonrpc": "2.0", "method": "notifications/initialized" }]);
    let reply = post(&d, &silent).send();
    assert_eq!((reply.status(), reply.body.len()), (202, 0), "{reply:?}");
    let many: Vec<_> = (0..101).map(|n| request(n, "ping", &json!({}))).collect();
    refused(&post(&d, &json!(many)).send(), 400, -32600);
}

#[test]
fn long_tool_name_does_not_inflate_the_error() {
    let d = Daemon::start();
    let long = "é\r\nx".repeat(50_000);
    for (method, params) in [
        (long.as_str(), json!({})),
        ("tools/call", json!({ "name": long })),
        ("resources/read", json!({ "uri": long })),
    ] {
        let reply = post(&d, &request(1, method, &params)).send();
        assert!(message(&reply)["error"]["code"].is_i64(), "{reply:?}");
        let echoed = ["mcp-method", "mcp-name"].map(|name| reply.header(name).map_or(0, str::len));
        assert!(echoed.iter().sum::<usize>() < 16_000, "{echoed:?}");
    }
}
