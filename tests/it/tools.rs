//! The tools that models call: listed for all and called by hand.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, svc, svc_with_input};
use crate::expect::{all_pages, done, each, invalid, new_task, page, problem, text, with_task};

const NAMES: [&str; 15] = [
    "TaskCancel",
    "TaskGet",
    "TaskList",
    "TaskNotify",
    "TaskReply",
    "TaskWait",
    "ToolSearch",
    "events_read",
    "peer_ack",
    "peer_broadcast",
    "peer_heartbeat",
    "peer_inbox",
    "peer_list",
    "peer_register",
    "peer_send",
];

#[test]
fn tool_list_has_everything_a_caller_needs() {
    let d = Daemon::start();
    let tools = page(&d.get("/v1/tools?limit=500"), "tools");
    let names = each(&tools, "name");
    for name in NAMES {
        assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
    }
    assert!(names.is_sorted(), "{names:?}");
    for tool in &tools {
        assert_eq!(tool["input_schema"]["type"], "object", "{tool}");
        assert_eq!(tool["input_schema"]["additionalProperties"], false, "{tool}");
        assert!(tool["description"].as_str().is_some_and(|it| it.len() < 2048), "{tool}");
        for member in ["title", "family"] {
            assert!(tool[member].is_string(), "{member} in {tool}");
        }
        assert!(tool["annotations"]["readOnlyHint"].is_boolean(), "{tool}");
    }
    // The description of a tool does not depend on the caller, as long as the caller may use it.
    let open = page(&d.session("s-1").get("/v1/tools?limit=500"), "tools");
    let closed: Vec<&str> = tools
        .iter()
        .filter(|tool| !open.contains(tool))
        .map(|tool| tool["name"].as_str().expect("a name"))
        .collect();
    assert_eq!(
        closed,
        ["RequestAnswer", "SendMessage", "sessions_spawn"],
        "those that need a scope"
    );
    assert!(open.iter().all(|tool| tools.contains(tool)));
    problem(&d.stranger().get("/v1/tools"), 401, "unauthorized");
    problem(&d.post("/v1/tools", &json!({})), 405, "method_not_allowed");
}

#[test]
fn tool_list_has_pages_and_families() {
    let d = Daemon::start();
    let whole = each(&page(&d.get("/v1/tools?limit=500"), "tools"), "name");
    assert_eq!(each(&all_pages(&d, "/v1/tools?limit=1", "tools", "cursor"), "name"), whole);
    let of = |family: &str| {
        each(
            &all_pages(&d, &format!("/v1/tools?limit=2&family={family}"), "tools", "cursor"),
            "name",
        )
    };
    let peers: Vec<&str> = NAMES.into_iter().filter(|name| name.starts_with("peer_")).collect();
    assert_eq!(of("peers"), peers);
    assert_eq!(of("events"), ["events_read"]);
    assert_eq!(of("nothing"), Vec::<String>::new());
    for limit in ["0", "501", "-1", "x"] {
        invalid(&d.get(&format!("/v1/tools?limit={limit}")), "limit");
    }
    for cursor in ["x", "00", "", "7b7d"] {
        invalid(&d.get(&format!("/v1/tools?cursor={cursor}")), "cursor");
    }
}

#[test]
fn tool_commands_work() {
    let d = Daemon::start();
    let list = svc(&d.home, &["tools", "list"]);
    let json = svc(&d.home, &["tools", "list", "--json"]).json();
    for name in NAMES {
        assert!(list.ok().lines().any(|line| line.starts_with(name)), "{name} in {list:?}");
        assert!(each(json["tools"].as_array().unwrap(), "name").iter().any(|it| it == name));
    }
    let tasks = svc(&d.home, &["tools", "list", "--family", "tasks", "--json"]).json();
    assert_eq!(tasks["count"], 6);
    let shown = svc(&d.home, &["tools", "show", "TaskWait"]);
    for word in ["task_id:", "timeout_s:", "maximum: 3600", "required:"] {
        assert!(shown.ok().contains(word), "{word} in {shown:?}");
    }
    let json = svc(&d.home, &["tools", "show", "TaskWait", "--json"]).json();
    assert_eq!(json["input_schema"]["required"], json!(["task_id"]));
    for args in [&["tools", "show", "no_such"][..], &["tools", "call", "no_such", "--arg", "a=b"]] {
        let ran = svc(&d.home, args);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("no_such") && ran.stderr.contains("svc tools list"), "{ran:?}");
    }
}

#[test]
fn invalid_tool_call_is_a_usage_error() {
    let d = Daemon::start();
    for args in [
        &["call"][..],
        &["call", "TaskWait", "--arg", "task_id"],
        &["call", "TaskWait", "--arg", "=x"],
        &["call", "TaskWait", "--args", "[]"],
        &["call", "TaskWait", "--args", "{"],
        &["call", "TaskWait", "--args", "-", "--arg", "task_id=@-"],
        &["call", "TaskWait", "--session", "a\nb"],
        &["show"],
        &[],
    ] {
        let ran = svc_with_input(&d.home, &[&["tools"], args].concat(), b"{}");
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
    }
}

/// A server that gives one response to any request, and the request.
fn fake(answer: String) -> (SocketAddr, thread::JoinHandle<(String, Value)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("it is bound");
    let served = thread::spawn(move || {
        let (stream, _) = listener.accept().expect("somebody comes");
        let mut wire = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = wire.read_line(&mut head).expect("a head");
            assert!(read > 0, "a whole head: {head}");
        }
        let head = head.to_lowercase();
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.expect("a length")];
        wire.read_exact(&mut body).expect("a whole body");
        wire.get_mut().write_all(answer.as_bytes()).expect("the client reads");
        (head, serde_json::from_slice(&body).expect("JSON"))
    });
    (addr, served)
}

fn http(status: &str, kind: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
}

#[test]
fn tool_call_is_one_request_and_accepts_any_response_form() {
    let home = Home::new();
    let result = r#"{"content":[{"type":"text","text":"{\"n\":1}"}],"structuredContent":{"n":1}}"#;
    let good = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
    let events = format!(
        ": hello\n\nid: 1\ndata: \n\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}}\n\n\
         event: message\ndata: {good}\n\n"
    );
    let failed = json!({ "jsonrpc": "2.0", "id": 1, "result": {
        "content": [{ "type": "text", "text": "{}" }], "isError": true,
        "structuredContent": { "error": {
            "type": "validation_error", "message": "mode: no", "field": "mode", "allowed": ["any", "all"],
        } },
    } });
    let refused = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no such tool"}}"#;
    let text = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"plain"}]}}"#;
    let problem = r#"{"code":"forbidden","detail":"not you"}"#;
    let json = "application/json";
    for (answer, code, stdout, stderr) in [
        (http("200 OK", json, &good), 0, "n: 1\n", &[][..]),
        (http("200 OK", "text/event-stream; charset=utf-8", &events), 0, "n: 1\n", &[]),
        (http("200 OK", json, text), 0, "plain\n", &[]),
        (
            http("200 OK", json, &failed.to_string()),
            1,
            "",
            &["mode: no", "field: mode", "allowed: any, all"],
        ),
        (http("200 OK", json, refused), 1, "", &["no such tool", "-32602"]),
        (http("404 Not Found", json, refused), 1, "", &["no such tool"]),
        (http("403 Forbidden", "application/problem+json", problem), 1, "", &["not you"]),
        (
            http("200 OK", "text/event-stream", ": nothing\n\n"),
            1,
            "",
            &["before the tool's answer"],
        ),
        (http("200 OK", json, "nonsense"), 1, "", &["not JSON"]),
    ] {
        let (addr, served) = fake(answer.clone());
        let url = format!("http://{addr}");
        let args = [
            "tools",
            "call",
            "TaskGet",
            "--args",
            "{\"task_id\":\"t\"}",
            "--session",
            "s-1",
            "--url",
            &url,
        ];
        let ran = svc(&home, &args);
        let (head, body) = served.join().unwrap();
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(code), stdout), "{answer}: {ran:?}");
        for part in stderr {
            assert!(ran.stderr.contains(part), "{part}: {ran:?}");
        }
        assert!(head.starts_with("post /mcp http/1.1\r\n"), "{head}");
        for header in [
            "content-type: application/json",
            "accept: application/json, text/event-stream",
            "mcp-method: tools/call",
            "mcp-name: taskget",
            "svc-session-id: s-1",
        ] {
            assert!(head.lines().any(|line| line == header), "{header} in {head}");
        }
        let params = json!({ "name": "TaskGet", "arguments": { "task_id": "t" } });
        let request =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        assert_eq!(body, request);
    }
}

#[test]
fn producer_cannot_forge_a_reply() {
    let (d, task) = with_task();
    let path = format!("/v1/tasks/{task}/events");
    let forged =
        json!({ "kind": "reply", "data": { "kind": "result", "body": "x", "from": "peer_x" } });
    invalid(&d.post(&path, &forged), "kind");
    invalid(&d.post(&path, &json!([forged])), "kind");
    d.post(&path, &done()).ok(200);
    let kinds = each(&page(&d.get(&format!("/v1/events?stream=task/{task}")), "events"), "kind");
    assert_eq!(kinds, ["task", "terminal"]);
}

/// Tools called over `/mcp` by bare calls: one request, one response, no session.
mod called {
    use std::time::Duration;

    use rustix::process::Signal;

    use super::*;
    use crate::daemon::{Running, eventually};
    use crate::expect::{append, detail, frame, peer, state, subscribe};
    use crate::wire::Caller;

    const SOON: Duration = Duration::from_secs(20);

    fn request(name: &str, arguments: &Value) -> Value {
        json!({
            "jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": { "name": name, "arguments": arguments },
        })
    }

    /// The result of a call; asserts that its text is the same object.
    #[track_caller]
    fn result(caller: &Caller, session: Option<&str>, name: &str, arguments: &Value) -> Value {
        let mut post = caller.request("POST", "/mcp");
        if let Some(session) = session {
            post = post.header("Svc-Session-Id", session);
        }
        let answer = post.json(&request(name, arguments)).send().ok(200);
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)), "{answer}");
        let result = answer["result"].clone();
        let content = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        let content: Value = serde_json::from_str(content).expect("the text is JSON");
        assert!(content.is_object() && content == result["structuredContent"], "{answer}");
        result
    }

    #[track_caller]
    fn call_as(caller: &Caller, session: Option<&str>, name: &str, arguments: &Value) -> Value {
        let result = result(caller, session, name, arguments);
        assert_ne!(result["isError"], true, "{name} {arguments}: {result}");
        result["structuredContent"].clone()
    }

    #[track_caller]
    fn call(caller: &Caller, name: &str, arguments: &Value) -> Value {
        call_as(caller, None, name, arguments)
    }

    /// A failure of this type; returns the error.
    #[track_caller]
    fn refuse(caller: &Caller, name: &str, arguments: &Value, kind: &str) -> Value {
        let result = result(caller, None, name, arguments);
        assert_eq!(result["isError"], true, "{name} {arguments}: {result}");
        let error = result["structuredContent"]["error"].clone();
        assert_eq!(error["type"], kind, "{error}");
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{error}");
        error
    }

    #[test]
    fn peer_tools_match_the_rest_routes() {
        let mut d = Daemon::start();
        let ann = json!({ "display_name": "ann", "backend": "claude-code" });
        // The operator names the session by header; a token has its own.
        let ann = text(&call_as(&d, Some("s-ann"), "peer_register", &ann), "peer_id");
        let bob = d.session("s-bob");
        let register = json!({ "display_name": "bob", "backend": "codex" });
        let bob_id = text(&call(&bob, "peer_register", &register), "peer_id");
        assert_eq!(
            each(&page(&d.get("/v1/peers"), "peers"), "peer_id"),
            [ann.clone(), bob_id.clone()]
        );
        let message = json!({ "to": "bob", "text": "ready?", "type": "query" });
        let sent = call_as(&d, Some("s-ann"), "peer_send", &message);
        assert_eq!(
            (text(&sent, "from_peer"), text(&sent, "to_peer")),
            (ann.clone(), bob_id.clone())
        );
        assert_eq!(detail(&d, &sent)["text"], "ready?");
        d.kill_and_restart();
        let inbox = call(&bob, "peer_inbox", &json!({}));
        assert_eq!(inbox["messages"][0]["id"], sent["id"]);
        call(&bob, "peer_ack", &json!({ "ids": [sent["id"]] }));
        assert_eq!(state(&d, &sent), "acked");
        refuse(&bob, "peer_inbox", &json!({ "peer_id": ann }), "forbidden");
        refuse(
            &bob,
            "peer_send",
            &json!({ "to": "ann", "text": "a", "from_peer": ann }),
            "forbidden",
        );
        let error = refuse(&d.session("s-new"), "peer_inbox", &json!({}), "conflict");
        assert!(error["message"].as_str().unwrap().contains("peer_register"), "{error}");
    }

    #[test]
    fn argument_errors_have_one_form() {
        let d = Daemon::start();
        for (name, arguments, field) in [
            ("TaskGet", json!({}), "task_id"),
            ("TaskGet", json!({ "task_id": " " }), "task_id"),
            ("TaskGet", json!({ "task_id": "t", "frames": 501 }), "frames"),
            ("TaskNotify", json!({ "task_ids": [] }), "task_ids"),
            ("TaskNotify", json!({ "task_ids": ["a"], "mode": "some" }), "mode"),
            ("peer_list", json!({ "stats": "online" }), "stats"),
            ("events_read", json!({ "stream": "team", "prefix": "t" }), "prefix"),
        ] {
            let error = refuse(&d, name, &arguments, "validation_error");
            assert_eq!(error["field"], field, "{error}");
        }
        let error = refuse(&d, "peer_list", &json!({ "status": "here" }), "validation_error");
        assert_eq!(
            error["allowed"],
            json!(["online", "busy", "waiting", "idle", "unreachable", "offline"])
        );
        let reply = d.post("/mcp", &request("no_such_tool", &json!({})));
        assert_eq!(reply.json()["error"]["code"], -32602, "{reply:?}");
    }

    #[test]
    fn task_wait_returns_when_the_task_ends() {
        let d = Daemon::start();
        let (one, two) = (new_task(&d), new_task(&d));
        let late = call(&d, "TaskWait", &json!({ "task_id": one, "timeout_s": 0 }));
        assert_eq!(
            (&late["timed_out"], &late["task"]["status"]),
            (&json!(true), &json!("pending"))
        );
        thread::scope(|scope| {
            let wait =
                scope.spawn(|| call(&d, "TaskWait", &json!({ "task_id": one, "frames": 5 })));
            let any = scope.spawn(|| call(&d, "TaskNotify", &json!({ "task_ids": [one, two] })));
            append(&d, &one, &frame("a line"));
            append(&d, &one, &done());
            let waited = wait.join().unwrap();
            assert_eq!(
                (&waited["timed_out"], &waited["task"]["status"]),
                (&json!(false), &json!("done"))
            );
            assert_eq!(waited["frames"][0]["line"], "a line");
            let any = any.join().unwrap();
            assert_eq!(
                (&any["finished"][0]["task_id"], &any["pending_ids"]),
                (&json!(one), &json!([two]))
            );
        });
        refuse(&d, "TaskNotify", &json!({ "task_ids": [two, "task_x"] }), "not_found");
        assert_eq!(call(&d, "TaskCancel", &json!({ "task_id": two }))["at_once"], true);
        refuse(&d, "TaskCancel", &json!({ "task_id": two }), "conflict");
    }

    #[test]
    fn reply_is_an_event_and_does_not_end_the_task() {
        let d = Daemon::start();
        let ann = peer(&d, "s-ann");
        // The task is hers, so she may write to it.
        let made = d.post("/v1/tasks", &json!({ "agent": ann })).ok(201);
        let task = text(&made, "task_id");
        let mut watch = d.follow(&subscribe(&task));
        watch.events(1);
        let arguments = json!({ "task_id": task, "body": "half\nof it", "kind": "result" });
        let said = call(&d.session("s-ann"), "TaskReply", &arguments);
        assert_eq!(said["event_id"], 2);
        let event = watch.event();
        assert_eq!((event.kind.as_str(), event.id), ("reply", Some(2)));
        assert_eq!((&event.data["from"], &event.data["kind"]), (&json!(ann), &json!("result")));
        append(&d, &task, &frame("output"));
        append(&d, &task, &done());
        assert_eq!(watch.rest().last().unwrap().kind, "terminal");
        refuse(&d, "TaskReply", &arguments, "conflict");
        let watched = svc(&d.home, &["task", "watch", &task]);
        assert_eq!(watched.ok(), "output\n");
        assert!(watched.stderr.contains("half\n  of it"), "{watched:?}");
    }

    #[test]
    fn log_tool_pages_through_the_log() {
        let d = Daemon::start();
        let first = call(&d, "events_read", &json!({ "stream": "daemon" }));
        assert_eq!(first["events"][0]["kind"], "daemon.started");
        let start = call(&d, "events_read", &json!({ "limit": 500 }))["next_after"].clone();
        peer(&d, "noise");
        let task = new_task(&d);
        let page = call(&d, "events_read", &json!({ "prefix": "task/", "after": start }));
        assert_eq!(page["events"][0]["stream"], json!(format!("task/{task}")));
        let next = json!({ "prefix": "task/", "after": page["next_after"] });
        assert_eq!(call(&d, "events_read", &next)["count"], 0);
        refuse(&d, "events_read", &json!({ "stream": "none" }), "not_found");
    }

    /// The number of items in a page also depends on their sizes: an agent has to read them.
    #[test]
    fn page_of_large_events_is_short_and_has_a_cursor() {
        let (d, task) = with_task();
        let stream = format!("task/{task}");
        let add = |n: usize, size: usize| {
            let line = format!("{n} {}", "x".repeat(size));
            d.post(&format!("/v1/tasks/{task}/events"), &frame(&line)).ok(200);
        };
        let many = 40;
        (0..many).for_each(|n| add(n, 60_000));
        // An event larger than a page comes alone.
        (many..many + 2).for_each(|n| add(n, 600_000));
        let (mut seen, mut after, mut pages) = (0, json!(0), 0);
        loop {
            let arguments =
                json!({ "stream": stream, "kind": "frame", "after": after, "limit": 500 });
            let page = call(&d, "events_read", &arguments);
            let events = page["events"].as_array().expect("a list");
            if events.is_empty() {
                break;
            }
            assert!(events.len() == 1 || page.to_string().len() < 140_000, "{}", events.len());
            for event in events {
                let line = event["data"]["line"].as_str().unwrap();
                assert_eq!(line.split(' ').next(), Some(&*seen.to_string()), "in order, each once");
                seen += 1;
            }
            (after, pages) = (page["next_after"].clone(), pages + 1);
        }
        assert_eq!((seen, pages), (many + 2, many / 2 + 2));
        // Over HTTP a page may be larger, but is bounded, too.
        (many + 2..many + 12).for_each(|n| add(n, 900_000));
        let first = d.get(&format!("/v1/events?stream={stream}&kind=frame&limit=500"));
        assert!(first.body.len() < 5 * 1024 * 1024, "{}", first.body.len());
        let all =
            all_pages(&d, "/v1/events?stream_prefix=task/&kind=frame&limit=500", "events", "after");
        assert_eq!(all.len(), many + 12);
    }

    #[test]
    fn tool_search_matches_the_purpose() {
        let d = Daemon::start();
        let found = call(&d, "ToolSearch", &json!({ "query": "How do I wait for several tasks?" }));
        assert_eq!(found["tools"][0]["name"], "TaskNotify");
        let one = json!({ "query": "Events_Read", "limit": 1, "detail": "name" });
        assert_eq!(call(&d, "ToolSearch", &one)["tools"], json!([{ "name": "events_read" }]));
        let sourced = json!({ "query": "task", "type": "source" });
        assert_eq!(call(&d, "ToolSearch", &sourced)["tools"], json!([]));
        let of = |kind: &str| {
            let arguments = json!({ "query": "task", "limit": 50, "type": kind, "detail": "name" });
            call(&d, "ToolSearch", &arguments)["count"].clone()
        };
        assert!(of("core").as_u64() > Some(3));
        assert_eq!((of("any"), of("source")), (of("core"), json!(0)));
    }

    #[test]
    fn tools_can_be_called_from_the_command_line() {
        let d = Daemon::start();
        let register = [
            "tools",
            "call",
            "peer_register",
            "--session",
            "s-1",
            "--arg",
            "display_name=ann",
            "--arg",
            "backend=shell",
            "--arg",
            "metadata={\"k\":\"v\"}",
            "--json",
        ];
        let peer = svc(&d.home, &register).json();
        assert_eq!((&peer["session_id"], &peer["metadata"]["k"]), (&json!("s-1"), &json!("v")));
        std::fs::write(d.home.user().join("note.txt"), "from a file").unwrap();
        let send = ["tools", "call", "peer_send", "--arg", "to=ann", "--arg", "text=@note.txt"];
        assert!(svc(&d.home, &send).ok().contains("text: from a file\n"));
        let send = ["tools", "call", "peer_send", "--arg", "to=ann", "--arg", "text=@-"];
        svc_with_input(&d.home, &send, b"from a pipe").ok();
        let inbox = ["tools", "call", "peer_inbox", "--session", "s-1", "--args", "-", "--json"];
        let inbox = svc_with_input(&d.home, &inbox, b"{\"peek\": true}").json();
        assert_eq!(
            each(inbox["messages"].as_array().unwrap(), "text"),
            ["from a file", "from a pipe"]
        );

        let bad = svc(&d.home, &["tools", "call", "peer_list", "--arg", "status=here"]);
        assert_eq!((bad.code, bad.stdout.as_str()), (Some(1), ""), "{bad:?}");
        for part in ["status", "online, busy, waiting, idle, unreachable, offline"] {
            assert!(bad.stderr.contains(part), "{bad:?}");
        }
        let unknown = svc(&d.home, &["tools", "call", "no_such_tool"]);
        assert_eq!(unknown.code, Some(1), "{unknown:?}");
        assert!(unknown.stderr.contains("no_such_tool"), "{unknown:?}");
    }

    #[test]
    fn waiting_tool_call_has_no_command_timeout_and_can_be_interrupted() {
        let (d, task) = with_task();
        let id = format!("task_id={task}");
        let wait = ["tools", "call", "TaskWait", "--arg", &id, "--json"];
        let (first, second) =
            (Running::spawn(d.home.command(&wait)), Running::spawn(d.home.command(&wait)));
        second.signal(Signal::INT);
        second.wait(SOON);
        append(&d, &task, &done());
        assert_eq!(first.wait(SOON).json()["task"]["status"], "done");
        eventually(SOON, || d.get("/v1/health").status() == 200);
    }
}
