//! Legacy sessions: their beginning, their owner and their end.

use serde_json::json;

use super::{
    BOTH, Client, LEGACY, SOON, Stream, call_states, given, initialize, message, post, refused,
    request, result, subscribers, tool, wait_for, with_client,
};
use crate::daemon::{Daemon, eventually};
use crate::expect::{new_task, problem};
use crate::wire::{Caller, Conn};

#[test]
fn client_gets_the_requested_revision() {
    let d = Daemon::start();
    for asked in LEGACY {
        let reply = initialize(&d, asked, &json!({}));
        assert_eq!(result(&reply)["protocolVersion"], json!(asked));
        let id = reply.header("mcp-session-id").expect("a session");
        assert!(!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic()), "{id:?}");
    }
    for unknown in ["2023-01-01", "2025-01-01", "2099-01-01", "2026-07-28", "nonsense", ""] {
        let reply = initialize(&d, unknown, &json!({}));
        assert_eq!(result(&reply)["protocolVersion"], "2025-11-25", "{unknown}");
    }
    // Headers of an earlier session are ignored at the beginning of a new one.
    for (name, value) in [("Mcp-Session-Id", "gone"), ("MCP-Protocol-Version", "2025-11-25")] {
        let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {} });
        let asked = post(&d, &request(0, "initialize", &params)).header(name, value);
        let reply = asked.header("Accept", "text/event-stream").send();
        assert_eq!(result(&reply)["protocolVersion"], "2025-06-18");
        assert!(reply.header("mcp-session-id").is_some_and(|id| id != value));
    }
}

#[test]
fn initialize_lists_the_server_capabilities() {
    let d = Daemon::start();
    let answer = result(&initialize(&d, "2025-11-25", &json!({})));
    let capabilities = json!({
        "tools": { "listChanged": true },
        "resources": { "subscribe": true, "listChanged": true },
        "prompts": { "listChanged": true },
        "completions": {},
        "logging": {},
    });
    assert_eq!(answer["capabilities"], capabilities);
    assert_eq!(answer["serverInfo"]["name"], "svc");
    assert!(answer["serverInfo"]["version"].is_string());
    let instructions = answer["instructions"].as_str().expect("instructions");
    let point: String = instructions.chars().take(240).collect();
    for word in ["svc", "operator", "agents", "peer_list", "peer_send"] {
        assert!(point.contains(word), "{word} in {point:?}");
    }
    let tools = Client::open(&d, "2025-11-25").ask("tools/list", &json!({}));
    let tools = tools["tools"].as_array().expect("tools");
    assert!(tools.len() > 10);
    for tool in tools {
        let name = tool["name"].as_str().expect("a name");
        let fits = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
        assert!((1..=64).contains(&name.len()) && name.chars().all(fits), "{name}");
        let description = tool["description"].as_str().unwrap_or_default();
        assert!((20..2048).contains(&description.len()), "{name}: {description}");
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert_eq!(tool["inputSchema"]["additionalProperties"], json!(false), "{tool}");
        assert!(tool["annotations"].is_object(), "{tool}");
    }
}

#[test]
fn session_belongs_to_its_opener() {
    let d = Daemon::start();
    let (one, two) = (d.session("s-1"), d.session("s-2"));
    let operator: &Caller = &d;
    for (owner, others) in
        [(operator, [&one, &two]), (&one, [operator, &two]), (&two, [operator, &one])]
    {
        let mine = Client::open(owner, "2025-11-25");
        for other in others {
            let theirs = mine.of(other);
            let reply = theirs.post(&request(5, "ping", &json!({}))).send();
            refused(&reply, 404, -32001);
            assert_eq!(message(&reply)["id"], 5);
            let notice = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
            assert_eq!(theirs.post(&notice).send().status(), 404);
            assert_eq!(theirs.post(&json!([request(1, "ping", &json!({}))])).send().status(), 404);
            assert_eq!(theirs.no_stream(None).status(), 404);
            assert_eq!(theirs.delete().status(), 404);
        }
        mine.ask("ping", &json!({}));
    }
    // Another token of the same session is the same principal.
    Client::open(&one, "2025-06-18").of(&d.session("s-1")).ask("ping", &json!({}));
}

#[test]
fn unknown_session_gets_404_and_never_400() {
    let (d, mut client) = with_client();
    for id in ["gone", "0", "..", "' or 1=1", "\u{e9}", &"x".repeat(4000)] {
        id.clone_into(&mut client.session);
        for (method, params) in [
            ("ping", json!({})),
            ("tools/list", json!({})),
            ("tools/call", tool("peer_list", &json!({}))),
        ] {
            let reply = client.post(&request("x", method, &params)).send();
            refused(&reply, 404, -32001);
            assert_eq!(message(&reply)["id"], "x");
        }
        assert_eq!(client.no_stream(None).status(), 404);
        assert_eq!(client.no_stream(Some("x.1")).status(), 404);
        assert_eq!(client.delete().status(), 404);
    }
    let reply = d.request("GET", "/mcp").header("Accept", "text/event-stream").send();
    assert_eq!(reply.status(), 405, "{reply:?}");
    assert_eq!(reply.header("allow"), Some("POST"));
    for version in [None, Some("2025-11-25"), Some("2024-11-05")] {
        let mut asked = d.request("DELETE", "/mcp");
        if let Some(version) = version {
            asked = asked.header("MCP-Protocol-Version", version);
        }
        problem(&asked.send(), 400, "invalid_request");
    }
}

#[test]
fn head_opens_no_stream_and_no_session() {
    let (d, client) = with_client();
    let mut news = client.listen(None);
    let sessions = || d.home.rows("select count(*) from mcp_session");
    let before = sessions();
    let of_session = client.with_headers(client.caller.request("HEAD", "/mcp"));
    for asked in [of_session, d.request("HEAD", "/sse")] {
        let mut conn = Conn::open(d.addr).expect("a connection");
        conn.write(&asked.bytes()).expect("it is taken");
        let head = conn.head().expect("a head");
        let kind = head.header("content-type");
        assert_eq!((head.status, kind), (200, Some("text/event-stream")), "{head:?}");
        assert_eq!(head.header("content-length"), None, "{head:?}");
    }
    assert_eq!(sessions(), before);
    // The stream that was open goes on.
    new_task(&d);
    news.news("notifications/resources/list_changed");
}

#[test]
fn delete_ends_a_session() {
    let d = Daemon::start();
    let before = subscribers(&d);
    let client = Client::open(&d, "2025-11-25");
    let other = Client::open(&d, "2025-11-25");
    let task = new_task(&d);
    let (_, mut call) = client.begin("TaskWait", &wait_for(&task));
    let (id, mut lasting) = other.begin("TaskWait", &wait_for(&task));
    let mut news = client.listen(None);
    let primed = call.next();
    assert_eq!(client.delete().status(), 204);
    assert_eq!(call.rest(), [], "its calls end without an answer");
    assert!(news.rest().iter().all(|message| !message.is_answer()), "and its streams");
    eventually(SOON, || call_states(&d) == ["cancelled", "working"]);
    for reply in [
        client.post(&request(9, "ping", &json!({}))).send(),
        client.no_stream(None),
        client.no_stream(Some(primed.event_id())),
        client.delete(),
    ] {
        assert_eq!(reply.status(), 404, "{reply:?}");
    }
    super::finish(&d, &task);
    super::is_wait_answer(&lasting.answer().json, id);
    eventually(SOON, || subscribers(&d) <= before);
}

#[test]
fn call_acts_for_its_tokens_session_or_the_one_the_operator_names() {
    let d = Daemon::start();
    let mine = d.session("s-1");
    let peer = json!({ "display_name": "ada", "backend": "claude", "session_id": "s-1" });
    let registered = given(&Client::open(&mine, "2025-11-25").call("peer_register", &peer));
    let send = |caller: &Caller, named: Option<&str>| {
        let inbox = request(1, "tools/call", &tool("peer_inbox", &json!({})));
        let mut asked = post(caller, &inbox).header("Accept", BOTH);
        if let Some(named) = named {
            asked = asked.header("Svc-Session-Id", named);
        }
        asked.send()
    };
    for (caller, named) in [(&mine, None), (&mine, Some("s-1")), (&*d, Some("s-1"))] {
        given(&result(&send(caller, named)));
    }
    for (caller, named) in [(&d.session("s-2"), "s-1"), (&mine, "s-2"), (&mine, "operator")] {
        let reply = send(caller, Some(named));
        assert_eq!(reply.status(), 403, "{reply:?}");
        assert!(message(&reply)["error"]["code"].is_i64(), "{reply:?}");
        let legacy = Client::open(caller, "2025-06-18").post(&request(1, "ping", &json!({})));
        assert_eq!(legacy.header("Svc-Session-Id", named).send().status(), 403);
    }
    refused(&send(&d, Some(&"x".repeat(5000))), 400, -32602);
    assert!(registered["peer"]["peer_id"].is_string() || registered["peer_id"].is_string());
}

#[test]
fn session_row_has_the_clients_parameters() {
    let d = Daemon::start();
    let client = Client::open_with(&d.session("s-9"), "2025-06-18", &json!({ "roots": {} }));
    let row = d.home.rows(&format!(
        "select principal, transport, revision, client from mcp_session where session_id = '{}'",
        client.session
    ));
    assert_eq!(row[0][..3], ["session:s-9", "http", "2025-06-18"]);
    let name: serde_json::Value =
        serde_json::from_str(row[0][3].as_str().expect("JSON")).expect("JSON");
    assert_eq!(name["name"], "a test");
}

#[test]
fn idle_sessions_and_listeners_use_no_threads() {
    let d = Daemon::start();
    let status = || {
        let text = std::fs::read_to_string(format!("/proc/{}/status", d.pid())).expect("a process");
        let threads = text.lines().find_map(|line| line.strip_prefix("Threads:"));
        threads.expect("a count").trim().parse::<usize>().expect("a number")
    };
    let mut opened: Vec<(Client, Stream)> = Vec::new();
    let open = || {
        let client = Client::open(&d, "2025-11-25");
        let stream = client.listen(None);
        (client, stream)
    };
    opened.extend((0..20).map(|_| open()));
    let before = status();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..8).map(|_| scope.spawn(|| (0..125).map(|_| open()).collect::<Vec<_>>())).collect();
        for thread in threads {
            opened.extend(thread.join().expect("sessions"));
        }
    });
    // Threads that read rows and files serve whoever asks: their number depends on the requests at
    // one time, and not on the 1,000 sessions.
    let after = status();
    assert!(after <= before + 50, "{before} threads became {after}");
    for (client, _) in opened.iter().step_by(100) {
        client.ask("ping", &json!({}));
        given(&client.call("peer_list", &json!({})));
    }
    // All of them are notified, and none delays another.
    new_task(&d);
    for (_, stream) in opened.iter_mut().step_by(250) {
        stream.news("notifications/resources/list_changed");
    }
}

#[test]
fn stateless_methods_are_unknown_in_a_session() {
    let d = Daemon::start();
    let client = Client::open(&d, "2025-06-18");
    refused(&client.post(&request(1, "server/discover", &json!({}))).send(), 200, -32601);
}

#[test]
fn invalid_list_cursor_is_refused() {
    let (_d, client) = with_client();
    for list in ["tools/list", "prompts/list", "resources/templates/list"] {
        refused(&client.post(&request(1, list, &json!({ "cursor": "x" }))).send(), 200, -32602);
        client.ask(list, &json!({ "cursor": null }));
    }
}

/// A client without hooks attributes its calls by beginning a session by name, also over a restart.
#[test]
fn connection_acts_for_the_session_that_it_begins() {
    let mut d = Daemon::start();
    let (client, other) = (Client::open(&d, "2025-11-25"), Client::open(&d, "2025-06-18"));
    given(&client.call("start_session", &json!({ "session_id": "mine" })));
    given(&other.call("start_session", &json!({ "session_id": "theirs" })));
    let count = |client: &Client| {
        given(&client.call("increment_tool_count", &json!({ "tool_name": "Bash" })))["tool_count"]
            .clone()
    };
    assert_eq!((count(&client), count(&client), count(&other)), (json!(1), json!(2), json!(1)));
    d.kill_and_restart();
    let client = client.of(&d);
    assert_eq!(count(&client), json!(3));
    assert_eq!(d.get("/v1/sessions/mine").ok(200)["tool_calls"], 3);
}
