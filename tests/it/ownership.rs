//! Read and write access of an owner, a session of its project, one of another project, one with
//! `read_all`, and the operator, at every route, tool, resource, prompt and stream. Owned things
//! contain a secret word, which must not reach anyone without access.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::agents::with_config;
use crate::daemon::Daemon;
use crate::expect::{all_pages, done, each, page, peer, problem, put_records, register, text};
use crate::wire::{Caller, Reply, tool_call};

/// A word of every text of the owner's, and of nothing else.
const SECRET: &str = "zanzibar";

/// The callers, in the order of the columns below.
const NAMES: [&str; 5] = ["operator", "owner", "mate", "other", "read_all"];

struct World {
    d: Daemon,
    callers: [Caller; 5],
    /// The owner's participant, a message to it, an ended task, a record, a cluster.
    peer: String,
    message: String,
    task: String,
    ghap: String,
    cluster: String,
}

impl World {
    fn new() -> Self {
        let d =
            with_config("[agents.cat]\nbackend = 'exec'\ncommand = ['cat']\nallow_cwd = ['/']\n");
        let callers = [
            d.with_token(d.token.as_deref().expect("a token")),
            d.mint("maker", "/p", &[]),
            d.mint("mate", "/p", &[]),
            d.mint("other", "/q", &[]),
            d.mint("read_all", &Value::Null, &["read_all"]),
        ];
        let owner = &callers[1];
        let begin = json!({ "session_id": "maker", "cwd": "/elsewhere", "client": SECRET });
        ok(owner, "start_session", &begin);
        let body = json!({
            "display_name": "ann", "backend": "test", "path": format!("/p/{SECRET}"), "session_id": "maker",
            "metadata": { "about": SECRET },
        });
        let peer_id = text(&register(owner, &body), "peer_id");
        for (caller, name) in callers.iter().zip(NAMES).skip(2) {
            peer(caller, name);
        }
        let note = json!({ "text": SECRET });
        let message = text(&d.post(&format!("/v1/peers/{peer_id}/messages"), &note).ok(200), "id");
        let task = text(&owner.post("/v1/tasks", &json!({ "title": SECRET })).ok(201), "task_id");
        owner.post(&format!("/v1/tasks/{task}/events"), &done()).ok(200);
        let ghap = try_it(owner, "maker");
        ok(owner, "start_ghap", &attempt("an open attempt"));
        let memory = json!({ "content": format!("{SECRET} is an island"), "category": "fact" });
        ok(owner, "store_memory", &memory);
        let records: Vec<Value> = (0..25)
            .map(|n| {
                json!({
                    "goal": format!("The {SECRET} cache loses its tenant {n}"),
                    "hypothesis": "The tenant cache is shared", "action": "Clear the tenant cache",
                })
            })
            .collect();
        put_records(&d, &records);
        let clusters = ok(&callers[0], "get_clusters", &json!({ "axis": "full" }));
        let cluster = text(&clusters["clusters"][0], "cluster_id");
        Self { callers, peer: peer_id, message, task, ghap, cluster, d }
    }

    fn fresh_agent(&self, name: &str) -> String {
        let owner = self.d.mint("maker", "/p", &["agents"]);
        let input = json!({ "instance": "cat", "name": name, "cwd": "/", "description": SECRET });
        text(&owner.post("/v1/hosts", &input).ok(201), "id")
    }

    fn owner(&self) -> &Caller {
        &self.callers[1]
    }

    fn fresh_task(&self) -> String {
        text(&self.owner().post("/v1/tasks", &json!({ "title": SECRET })).ok(201), "task_id")
    }

    /// A record that an ended session of the owner's project left open.
    fn orphan(&self, session: &str) -> String {
        let gone = self.d.mint(session, "/p", &[]);
        let id = text(&ok(&gone, "start_ghap", &attempt("left open")), "id");
        ok(&gone, "end_session", &json!({}));
        id
    }
}

fn attempt(goal: &str) -> Value {
    json!({
        "domain": "debugging", "strategy": "read-the-error", "goal": format!("{SECRET} {goal}"),
        "hypothesis": format!("{SECRET} is far"), "action": "look", "prediction": "it is seen",
    })
}

/// An ended record.
fn try_it(caller: &Caller, session: &str) -> String {
    let id = text(&ok(caller, "start_ghap", &attempt(session)), "id");
    ok(caller, "resolve_ghap", &json!({ "status": "confirmed", "result": SECRET }));
    id
}

/// The result of a bare call of a tool.
fn result(caller: &Caller, tool: &str, arguments: &Value) -> Value {
    let call = tool_call(tool, arguments);
    let reply = caller.request("POST", "/mcp").header("Svc-Expose", "all").json(&call).send();
    assert_eq!(reply.status(), 200, "{tool} {arguments}: {reply:?}");
    let answer = reply.json();
    assert!(answer["error"].is_null(), "{tool} {arguments}: {answer}");
    answer["result"].clone()
}

#[track_caller]
fn ok(caller: &Caller, tool: &str, arguments: &Value) -> Value {
    let result = result(caller, tool, arguments);
    assert_ne!(result["isError"], true, "{tool} {arguments}: {result}");
    result["structuredContent"].clone()
}

/// The outcome of a call: the kind of its error, or whether the response has the secret.
fn outcome(caller: &Caller, tool: &str, arguments: &Value) -> String {
    let result = result(caller, tool, arguments);
    if result["isError"] == true {
        let error = &result["structuredContent"]["error"];
        assert!(!error.to_string().contains(SECRET), "{tool}: {error}");
        return text(error, "type");
    }
    let sees = result["structuredContent"].to_string().contains(SECRET);
    if sees { "sees" } else { "blind" }.to_owned()
}

fn sees(reply: &Reply) -> bool {
    String::from_utf8_lossy(&reply.body).contains(SECRET)
}

/// A request, with a path that may be created anew for each caller.
type Row<'a> = (&'a str, Box<dyn Fn() -> (String, Option<Value>) + 'a>, [u16; 5]);

type Make<'a> = Box<dyn Fn() -> Value + 'a>;

/// A read, which can be repeated.
fn reads(route: &str, path: String, expected: [u16; 5]) -> Row<'_> {
    (route, Box::new(move || (path.clone(), None)), expected)
}

fn posts<'a>(
    route: &'a str,
    make: impl Fn() -> (String, Value) + 'a,
    expected: [u16; 5],
) -> Row<'a> {
    let make = move || {
        let (path, body) = make();
        (path, Some(body))
    };
    (route, Box::new(make), expected)
}

/// Routes whose access other tests check, and which.
const ELSEWHERE: [&str; 15] = [
    "POST /mcp",
    "GET /mcp",
    "DELETE /mcp",
    "GET /sse",
    "POST /sse",
    "POST /messages",
    // tests/it/identity.rs
    "POST /v1/process_tokens",
    // tests/it/auth.rs: it would end the operator's token here.
    "POST /v1/token/rotate",
    // tests/it/page.rs: files that everybody may read, and requests of a browser without a token or
    // with its cookie.
    "GET /",
    "GET /login",
    "GET /ui/{*view}",
    "GET /assets/{*file}",
    "POST /login",
    "DELETE /login",
    // A response to a challenge, before the caller is known.
    "POST /v1/daemon_proof",
];

#[test]
fn every_route_applies_the_access_rule_to_every_caller() {
    let world = World::new();
    let World { d, peer, message, task, ghap, .. } = &world;
    let at = |path: &str| path.replace("{peer}", peer).replace("{task}", task);
    let token = || {
        let minted = d.post("/v1/tokens", &json!({ "session": "spare" })).ok(201);
        format!("/v1/tokens/{}", text(&minted, "token_id"))
    };
    let spare_peer = || {
        let mine = json!({ "display_name": "spare", "backend": "spare", "session_id": "maker" });
        format!("/v1/peers/{}", text(&register(world.owner(), &mine), "peer_id"))
    };
    let all = [200; 5];
    let of_project = [200, 200, 200, 404, 200];
    let own = [200, 200, 403, 403, 403];
    let own_read = [200, 200, 403, 403, 200];
    let operators = [200, 403, 403, 403, 403];
    // Things of the operator that `read_all` reads, too.
    let read_only = [200, 403, 403, 403, 200];
    // A caller with access learns that it does not exist.
    let of_none = [404, 403, 403, 403, 403];
    let read_of_none = [404, 403, 403, 403, 404];
    let agent = world.fresh_agent("main");
    let hosts = |rest: &str| format!("/v1/hosts/{agent}{rest}");
    let made = std::cell::Cell::new(0);
    let another = || {
        made.set(made.get() + 1);
        format!("/v1/hosts/{}/stop", world.fresh_agent(&format!("spare-{}", made.get())))
    };
    let steer = [200, 403, 403, 404, 403];
    let has_turn = std::cell::Cell::new(false);
    let rows: Vec<Row<'_>> = vec![
        reads("GET /v1/agents", "/v1/agents".into(), all),
        reads("GET /v1/hosts", "/v1/hosts".into(), all),
        reads("GET /v1/hosts/{id}", hosts(""), of_project),
        reads("GET /v1/hosts/{id}", "/v1/hosts/agent:cat:main".into(), of_project),
        reads("GET /v1/hosts/{id}/history", hosts("/history"), of_project),
        reads("GET /v1/requests", "/v1/requests?open=true".into(), all),
        reads("GET /v1/events", format!("/v1/events?stream=agent/{agent}"), of_project),
        posts(
            "POST /v1/hosts",
            || ("/v1/hosts".into(), json!({ "instance": "cat", "name": "builders", "cwd": "/" })),
            [201, 403, 403, 403, 403],
        ),
        posts("POST /v1/hosts/{id}/send", || (hosts("/send"), json!({ "input": "x" })), steer),
        posts(
            "POST /v1/hosts/{id}/answer",
            || (hosts("/answer"), json!({ "request_id": "req_none", "option_id": "a" })),
            [404, 403, 403, 404, 403],
        ),
        posts("POST /v1/hosts/{id}/stop", || (another(), json!({ "timeout": 5 })), steer),
        posts(
            "POST /v1/hosts/{id}/interrupt",
            || {
                // An agent without a turn cannot be interrupted. The first interrupt ends the
                // program of this one.
                if !has_turn.replace(true) {
                    world.d.post(&hosts("/send"), &json!({ "input": "x" })).ok(200);
                }
                (hosts("/interrupt"), json!({}))
            },
            steer,
        ),
        posts(
            "POST /v1/requests/{id}/answer",
            || ("/v1/requests/req_none/answer".into(), json!({ "option_id": "a" })),
            [404; 5],
        ),
        // tests/it/prompts.rs: a prompt that is held.
        posts(
            "POST /v1/prompts/{id}/hold",
            || ("/v1/prompts/req_none/hold".into(), json!({})),
            [404; 5],
        ),
        posts(
            "POST /v1/prompts/{id}/printed",
            || ("/v1/prompts/req_none/printed".into(), json!({})),
            [404; 5],
        ),
        // tests/it/handovers: a client's process.
        posts("POST /v1/handovers/hold", || ("/v1/handovers/hold".into(), json!({})), [403; 5]),
        posts(
            "POST /v1/handovers/{id}/report",
            || ("/v1/handovers/ho_none/report".into(), json!({ "state": "taken" })),
            [404; 5],
        ),
        posts(
            "POST /v1/send_message",
            || ("/v1/send_message".into(), json!({ "instance": "none", "prompt": "x" })),
            [422, 403, 403, 403, 403],
        ),
        reads("GET /health", "/health".into(), all),
        reads("GET /v1/health", "/v1/health".into(), all),
        reads("GET /v1/doctor", "/v1/doctor".into(), read_only),
        reads("GET /openapi.json", "/openapi.json".into(), all),
        reads("GET /metrics", "/metrics".into(), read_only),
        reads("GET /v1/tools", "/v1/tools".into(), all),
        reads("GET /v1/sources", "/v1/sources".into(), all),
        reads("GET /v1/sources/{name}", "/v1/sources/none".into(), [404; 5]),
        reads("GET /v1/sources/{name}/log", "/v1/sources/none/log".into(), read_of_none),
        reads("GET /v1/sources/{name}/changes", "/v1/sources/none/changes".into(), read_of_none),
        posts(
            "POST /v1/sources/{name}/approve",
            || ("/v1/sources/none/approve".into(), json!({ "digest": "x" })),
            of_none,
        ),
        posts("POST /v1/sources/reload", || ("/v1/sources/reload".into(), json!({})), operators),
        posts(
            "POST /v1/sources/{name}/reconnect",
            || ("/v1/sources/none/reconnect".into(), json!({})),
            of_none,
        ),
        posts(
            "POST /v1/sources/{name}/login",
            || ("/v1/sources/none/login".into(), json!({})),
            of_none,
        ),
        posts(
            "POST /v1/sources/{name}/login/wait",
            || ("/v1/sources/none/login/wait".into(), json!({})),
            of_none,
        ),
        posts(
            "POST /v1/sources/{name}/logout",
            || ("/v1/sources/none/logout".into(), json!({})),
            of_none,
        ),
        posts(
            "POST /v1/sources/{name}/enable",
            || ("/v1/sources/none/enable".into(), json!({})),
            of_none,
        ),
        posts(
            "POST /v1/sources/{name}/disable",
            || ("/v1/sources/none/disable".into(), json!({})),
            of_none,
        ),
        reads("GET /v1/peers", "/v1/peers".into(), all),
        reads("GET /v1/peers/{id}", at("/v1/peers/{peer}"), all),
        posts(
            "POST /v1/peers/register",
            || {
                (
                    "/v1/peers/register".into(),
                    json!({ "display_name": "x", "backend": "b", "session_id": "maker" }),
                )
            },
            own,
        ),
        posts(
            "POST /v1/peers/{id}/heartbeat",
            || (at("/v1/peers/{peer}/heartbeat"), json!({})),
            own,
        ),
        posts(
            "POST /v1/peers/{id}/messages",
            || (at("/v1/peers/{peer}/messages"), json!({ "text": "hello" })),
            all,
        ),
        reads("GET /v1/peers/{id}/messages", at("/v1/peers/{peer}/messages?peek=true"), own_read),
        posts(
            "POST /v1/peers/{id}/messages/ack",
            || (at("/v1/peers/{peer}/messages/ack"), json!({ "ids": [message] })),
            own,
        ),
        posts(
            "POST /v1/peers/broadcast",
            || ("/v1/peers/broadcast".into(), json!({ "text": "hello", "circle": "nobody" })),
            all,
        ),
        reads("GET /v1/messages", "/v1/messages".into(), read_only),
        reads(
            "GET /v1/messages/{id}",
            format!("/v1/messages/{message}"),
            [200, 200, 404, 404, 200],
        ),
        posts(
            "POST /v1/tasks",
            || ("/v1/tasks".into(), json!({ "from": peer })),
            [201, 201, 403, 403, 403],
        ),
        reads("GET /v1/tasks", "/v1/tasks".into(), all),
        reads("GET /v1/tasks/{id}", at("/v1/tasks/{task}"), of_project),
        posts(
            "POST /v1/tasks/{id}/events",
            || {
                let frame = json!({ "kind": "frame", "data": { "line": "x", "kind": "stdout" } });
                (format!("/v1/tasks/{}/events", world.fresh_task()), frame)
            },
            [200, 200, 403, 404, 403],
        ),
        posts(
            "POST /v1/tasks/{id}/events",
            || (format!("/v1/tasks/{}/events", world.fresh_task()), done()),
            [200, 200, 403, 404, 403],
        ),
        posts(
            "POST /v1/tasks/{id}/cancel",
            || (format!("/v1/tasks/{}/cancel", world.fresh_task()), json!({})),
            [200, 200, 403, 404, 403],
        ),
        reads("GET /v1/biam/subscribe", at("/v1/biam/subscribe?task_id={task}"), of_project),
        reads("GET /v1/events", at("/v1/events?stream=task/{task}"), of_project),
        reads("GET /v1/events", "/v1/events?stream=session/maker".into(), of_project),
        reads("GET /v1/events", at("/v1/events?stream=peer/{peer}"), [200, 200, 404, 404, 200]),
        reads("GET /v1/events", "/v1/events?stream=daemon".into(), [200, 404, 404, 404, 200]),
        reads("GET /v1/events", "/v1/events?stream=team".into(), all),
        reads("GET /v1/sessions", "/v1/sessions".into(), all),
        reads("GET /v1/sessions/{id}", "/v1/sessions/maker".into(), of_project),
        reads(
            "GET /v1/sessions/{id}/history",
            "/v1/sessions/agent:cat:main/history".into(),
            [200, 200, 200, 403, 200],
        ),
        posts(
            "POST /v1/sessions/{id}/wait",
            || ("/v1/sessions/maker/wait".into(), json!({ "waiter": "w", "seconds": 1 })),
            own,
        ),
        reads("GET /v1/ghap", "/v1/ghap".into(), all),
        reads("GET /v1/ghap/search", format!("/v1/ghap/search?q={SECRET}"), all),
        reads("GET /v1/ghap/calibration", "/v1/ghap/calibration".into(), all),
        reads("GET /v1/ghap/{id}", format!("/v1/ghap/{ghap}"), of_project),
        // A caller without the right to abandon a record does not learn whether it exists.
        posts(
            "POST /v1/ghap/{id}/abandon",
            || ("/v1/ghap/nothing/abandon".into(), json!({})),
            [404; 5],
        ),
        posts(
            "POST /v1/tokens",
            || ("/v1/tokens".into(), json!({ "session": "spare" })),
            [201, 403, 403, 403, 403],
        ),
        posts(
            "POST /v1/login_codes",
            || ("/v1/login_codes".into(), json!({})),
            [201, 403, 403, 403, 403],
        ),
        posts(
            "POST /v1/login_tickets",
            || ("/v1/login_tickets".into(), json!({})),
            [201, 403, 403, 403, 403],
        ),
        reads("GET /v1/tokens", "/v1/tokens".into(), read_only),
        reads("GET /v1/projects", "/v1/projects".into(), read_only),
        posts(
            "POST /v1/projects/move",
            || ("/v1/projects/move".into(), json!({ "folder": "/" })),
            operators,
        ),
        ("DELETE /v1/tokens/{id}", Box::new(|| (token(), None)), operators),
        ("DELETE /v1/peers/{id}", Box::new(|| (spare_peer(), None)), own),
    ];
    let mut known: BTreeSet<String> = ELSEWHERE.iter().map(|route| (*route).to_owned()).collect();
    let mut wrong = Vec::new();
    for (route, make, expected) in &rows {
        known.insert((*route).to_owned());
        let method = route.split(' ').next().expect("a method");
        let mut given = Vec::new();
        for caller in &world.callers {
            let (path, body) = make();
            let request = caller.request(method, &path);
            let reply = match body {
                Some(body) => request.json(&body).send(),
                None => request.send(),
            };
            if reply.status() >= 400 {
                assert!(!sees(&reply), "{route}: {reply:?}");
            }
            given.push(reply.status());
        }
        if given != expected {
            wrong.push(format!("{route}: {given:?} and not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let document = d.get("/openapi.json").ok(200);
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for method in operations.as_object().expect("operations").keys() {
            let route = format!("{} {path}", method.to_uppercase());
            assert!(known.contains(&route), "who may do {route} is not said here");
        }
    }
}

#[test]
fn lists_and_feeds_have_only_what_the_caller_may_read() {
    let world = World::new();
    world.fresh_agent("main");
    let peer = &world.peer;
    let of_project = [true, true, true, false, true];
    for (path, expected) in [
        ("/v1/peers?limit=500".to_owned(), of_project),
        (format!("/v1/peers/{peer}"), of_project),
        (format!("/v1/peers?path=/p/{SECRET}"), of_project),
        ("/v1/tasks?limit=500".to_owned(), of_project),
        ("/v1/hosts?limit=500".to_owned(), of_project),
        (format!("/v1/tasks?from={peer}"), of_project),
        ("/v1/sessions?limit=500".to_owned(), of_project),
        ("/v1/ghap?limit=500".to_owned(), of_project),
        ("/v1/ghap?project=/p".to_owned(), of_project),
        (format!("/v1/ghap/search?q={SECRET}"), of_project),
        ("/v1/events?limit=500".to_owned(), of_project),
        ("/v1/events?stream_prefix=task/&limit=500".to_owned(), of_project),
        ("/v1/events?stream_prefix=session/&limit=500".to_owned(), of_project),
        ("/v1/events?stream=team&limit=500".to_owned(), [false; 5]),
    ] {
        let given = world.callers.each_ref().map(|caller| {
            let reply = caller.get(&path);
            assert_eq!(reply.status(), 200, "{path}: {reply:?}");
            sees(&reply)
        });
        assert_eq!(given, expected, "{path}");
    }
    // Pages have their full size, and together they hold as much as the operator sees of them.
    let mine = all_pages(world.owner(), "/v1/ghap?limit=5", "ghap", "cursor");
    assert_eq!(mine.len(), 27, "25 of the project, one that is over and one that is not");
    assert_eq!(page(&world.owner().get("/v1/ghap?limit=5"), "ghap").len(), 5);
    assert!(all_pages(&world.callers[3], "/v1/ghap?limit=5", "ghap", "cursor").is_empty());
    // Everybody sees the list of participants, and no more of others.
    let shown = world.callers[3].get(&format!("/v1/peers/{peer}")).ok(200);
    let members: Vec<&str> =
        shown.as_object().expect("a peer").keys().map(String::as_str).collect();
    let presence = [
        "backend",
        "circle",
        "display_name",
        "evidence",
        "last_seen",
        "peer_id",
        "registered_at",
        "role",
        "since",
        "status",
    ];
    assert_eq!(members, presence);
}

#[test]
fn every_tool_applies_the_access_rule_to_every_caller() {
    let world = World::new();
    let World { peer, message, task, ghap, cluster, .. } = &world;
    let mem = || {
        let content = format!("{SECRET} {}", world.fresh_task());
        let memory = json!({ "content": content, "category": "fact" });
        text(&ok(world.owner(), "store_memory", &memory), "id")
    };
    let left = world.orphan("gone-1");
    let of_project = ["sees", "sees", "sees", "not_found", "sees"];
    let found = ["sees", "sees", "sees", "blind", "sees"];
    let enough = ["sees", "sees", "sees", "insufficient_data", "sees"];
    let own = ["blind", "blind", "forbidden", "forbidden", "forbidden"];
    let own_sees = ["sees", "sees", "forbidden", "forbidden", "forbidden"];
    let of_inbox = ["sees", "sees", "forbidden", "forbidden", "sees"];
    let all = ["blind"; 5];
    let in_session = json!({ "session_id": "maker" });
    let fixed = |value: Value| -> Make<'static> { Box::new(move || value.clone()) };
    let with = |more: Value| -> Make<'static> {
        let mut arguments = json!({ "session_id": "maker" });
        arguments.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        Box::new(move || arguments.clone())
    };
    let value = json!({
        "text": format!("The {SECRET} cache loses its tenant when the tenant cache is shared"), "cluster_id": cluster,
    });
    let rows: Vec<(&str, Make<'_>, [&str; 5])> = vec![
        ("TaskGet", fixed(json!({ "task_id": task })), of_project),
        ("TaskList", fixed(json!({})), found),
        ("TaskWait", fixed(json!({ "task_id": task, "timeout_s": 0 })), of_project),
        ("TaskNotify", fixed(json!({ "task_ids": [task], "timeout_s": 0 })), of_project),
        (
            "TaskCancel",
            Box::new(|| json!({ "task_id": world.fresh_task() })),
            ["sees", "sees", "forbidden", "not_found", "forbidden"],
        ),
        (
            "TaskReply",
            Box::new(|| json!({ "task_id": world.fresh_task(), "body": "x" })),
            ["blind", "blind", "forbidden", "not_found", "forbidden"],
        ),
        ("events_read", fixed(json!({ "stream": format!("task/{task}") })), of_project),
        ("events_read", fixed(json!({ "prefix": "task/" })), found),
        (
            "events_read",
            fixed(json!({ "stream": format!("peer/{peer}") })),
            ["blind", "blind", "not_found", "not_found", "blind"],
        ),
        ("sessions_list", fixed(json!({})), ["sees", "sees", "sees", "blind", "sees"]),
        (
            "sessions_history",
            fixed(json!({ "sessionKey": "agent:test:maker" })),
            ["sees", "sees", "blind", "forbidden", "sees"],
        ),
        (
            "session_status",
            fixed(json!({ "sessionKey": "agent:test:maker" })),
            ["blind", "blind", "blind", "forbidden", "blind"],
        ),
        (
            "sessions_send",
            fixed(json!({ "sessionKey": "agent:test:maker", "message": "x", "timeoutSeconds": 0 })),
            all,
        ),
        ("sessions_yield", fixed(json!({})), all),
        ("agents_list", fixed(json!({})), all),
        ("peer_list", fixed(json!({})), found),
        ("peer_register", with(json!({ "display_name": "x", "backend": "b" })), own),
        ("peer_heartbeat", fixed(json!({ "peer_id": peer })), own_sees),
        ("peer_send", fixed(json!({ "to": peer, "text": "hello" })), all),
        ("peer_inbox", fixed(json!({ "peer_id": peer, "peek": true })), of_inbox),
        ("peer_ack", fixed(json!({ "peer_id": peer, "ids": [message] })), own),
        ("peer_broadcast", fixed(json!({ "text": "hello", "circle": "nobody" })), all),
        ("start_session", fixed(in_session.clone()), own),
        (
            "end_session",
            fixed(json!({ "session_id": "gone-1" })),
            ["blind", "forbidden", "forbidden", "forbidden", "forbidden"],
        ),
        ("ping", fixed(json!({})), all),
        ("increment_tool_count", fixed(in_session.clone()), own),
        ("reset_tool_count", fixed(in_session.clone()), own),
        ("should_check_in", fixed(in_session.clone()), own),
        ("check_in", with(json!({ "frequency": 1 })), own_sees),
        ("get_session", fixed(in_session.clone()), own_sees),
        ("list_sessions", fixed(json!({})), found),
        (
            "start_ghap",
            Box::new(|| {
                let mut again = attempt("again");
                again["session_id"] = json!("maker");
                again
            }),
            ["active_ghap_exists", "active_ghap_exists", "forbidden", "forbidden", "forbidden"],
        ),
        ("update_ghap", with(json!({ "note": "x" })), own),
        (
            "resolve_ghap",
            with(json!({ "status": "falsified", "result": "x" })),
            ["validation_error", "validation_error", "forbidden", "forbidden", "forbidden"],
        ),
        ("get_active_ghap", fixed(in_session.clone()), own_sees),
        ("get_ghap", fixed(json!({ "id": ghap })), of_project),
        ("list_ghap_entries", fixed(json!({})), found),
        ("search_experiences", fixed(json!({ "query": SECRET })), found),
        ("ghap_calibration", fixed(json!({})), found),
        ("record_outcome", with(json!({ "command": "test", "verdict": "pass" })), own),
        ("get_orphaned_ghap", fixed(json!({})), ["sees", "sees", "sees", "blind", "blind"]),
        (
            "adopt_ghap",
            fixed(json!({ "id": left })),
            ["active_ghap_exists", "active_ghap_exists", "blind", "not_found", "not_found"],
        ),
        (
            "abandon_orphan",
            Box::new(
                || json!({ "id": world.orphan(&format!("gone-{}", world.fresh_task())), "reason": "x" }),
            ),
            ["blind", "blind", "blind", "not_found", "not_found"],
        ),
        ("store_memory", fixed(json!({ "content": "x", "category": "fact" })), all),
        (
            "store_memory",
            fixed(json!({ "content": "for all", "category": "fact", "global": true })),
            ["blind", "forbidden", "forbidden", "forbidden", "forbidden"],
        ),
        ("retrieve_memories", fixed(json!({ "query": SECRET })), found),
        ("list_memories", fixed(json!({})), found),
        (
            "delete_memory",
            Box::new(|| json!({ "memory_id": mem() })),
            ["blind", "blind", "forbidden", "not_found", "forbidden"],
        ),
        ("get_clusters", fixed(json!({ "axis": "full" })), enough),
        ("get_cluster_members", fixed(json!({ "cluster_id": cluster })), enough),
        (
            "validate_value",
            fixed(value.clone()),
            ["blind", "blind", "blind", "insufficient_data", "blind"],
        ),
        ("store_value", fixed(value), enough),
        ("list_values", fixed(json!({})), found),
        (
            "assemble_context",
            fixed(
                json!({ "query": format!("the {SECRET} cache loses its tenant"), "repeat": true }),
            ),
            found,
        ),
        ("premortem", fixed(json!({ "domain": "debugging" })), found),
        ("AgentList", fixed(json!({})), all),
        ("ToolSearch", fixed(json!({ "query": "task" })), all),
        ("ListMcpResources", fixed(json!({})), all),
        ("ReadMcpResource", fixed(json!({ "server": "none", "uri": "x:y" })), ["not_found"; 5]),
        ("ToolCall", fixed(json!({ "name": "ToolSearch", "arguments": { "query": "task" } })), all),
    ];
    // For the client's own events: tests/it/identity.rs and hook.rs.
    let mut known = BTreeSet::new();
    let mut wrong = Vec::new();
    for (tool, arguments, refusal) in [
        ("SendMessage", json!({ "prompt": "x", "agent": "none" }), "validation_error"),
        ("sessions_spawn", json!({ "task": "x", "agentId": "none" }), "validation_error"),
        ("RequestAnswer", json!({ "request_id": "req_none", "option_id": "a" }), "not_found"),
    ] {
        known.insert(tool);
        // A caller without the scope is told which scope it needs.
        let call = tool_call(tool, &arguments);
        for caller in &world.callers[1..] {
            let reply = caller.post("/mcp", &call).json();
            let error = &reply["result"]["structuredContent"]["error"];
            assert_eq!(error["type"], "forbidden", "{tool}: {reply}");
            let names =
                error["message"].as_str().is_some_and(|it| it.contains("needs the scope `"));
            assert!(names, "{tool}: {reply}");
        }
        assert_eq!(outcome(&world.callers[0], tool, &arguments), refusal);
    }
    for (tool, make, expected) in &rows {
        known.insert(*tool);
        let given = world.callers.each_ref().map(|caller| outcome(caller, tool, &make()));
        if given != *expected {
            wrong.push(format!("{tool} {}: {given:?} and not {expected:?}", make()));
        }
        // An adopted record cannot be adopted again.
        if ["ToolCall", "adopt_ghap"].contains(tool) {
            continue;
        }
        // The same rule holds for a tool that is called through another.
        let given = world.callers.each_ref().map(|caller| {
            outcome(caller, "ToolCall", &json!({ "name": tool, "arguments": make() }))
        });
        if given != *expected {
            wrong.push(format!("ToolCall {tool} {}: {given:?} and not {expected:?}", make()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for name in each(&all_pages(&world.d, "/v1/tools?limit=500", "tools", "cursor"), "name") {
        assert!(known.contains(name.as_str()), "who may call {name} is not said here");
    }
}

/// The outcome of an MCP request: `sees`, `blind` or `refused`.
fn mcp(caller: &Caller, method: &str, params: &Value) -> &'static str {
    let mut params = params.clone();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let request = caller
        .request("POST", "/mcp")
        .header("Accept", "application/json, text/event-stream")
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", method);
    let named = params["name"].as_str().or(params["uri"].as_str());
    let request = match named {
        Some(name) => request.header("Mcp-Name", name),
        None => request,
    };
    let reply = request.json(&call).send();
    let body = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(body.contains("\"jsonrpc\""), "{method}: {reply:?}");
    if body.contains("\"error\":{") {
        assert!(!sees(&reply), "{body}");
        return "refused";
    }
    if sees(&reply) { "sees" } else { "blind" }
}

/// Whether a caller may subscribe to a resource. If not, the response equals that of reading it, in
/// both eras.
#[track_caller]
fn subscribes(caller: &Caller, uri: &str) -> bool {
    let post = || {
        let accept = "application/json, text/event-stream";
        caller.request("POST", "/mcp").header("Accept", accept)
    };
    let open = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
    } });
    let opened = post().json(&open).send();
    let session = opened.header("mcp-session-id").expect("a session").to_owned();
    let [read, subscribed] = ["resources/read", "resources/subscribe"].map(|method| {
        let call = json!({ "jsonrpc": "2.0", "id": 2, "method": method, "params": { "uri": uri } });
        post().header("Mcp-Session-Id", &session).json(&call).send().json()
    });
    let inputs = json!({ "notifications": { "resourceSubscriptions": [uri] } });
    let listen = json!({ "jsonrpc": "2.0", "id": 3, "method": "subscriptions/listen", "params": {
        "notifications": inputs["notifications"],
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    } });
    let listen = post()
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", "subscriptions/listen")
        .json(&listen);
    let mut stream = listen.follow().expect("an answer").expect("a stream");
    let granted = stream.event().data["params"]["notifications"].clone();
    let is_granted = granted == inputs["notifications"];
    if subscribed["error"].is_null() {
        assert!(is_granted && subscribed["result"] == json!({}), "{subscribed} {granted}");
        return true;
    }
    assert_eq!(subscribed["error"], read["error"], "{subscribed}");
    assert_eq!(granted, json!({}));
    false
}

#[test]
fn resources_have_only_what_the_caller_may_read() {
    let world = World::new();
    let task = &world.task;
    let uri = format!("svc://stream/task/{task}");
    for (method, params, expected) in [
        ("resources/read", json!({ "uri": uri }), ["sees", "sees", "sees", "refused", "sees"]),
        (
            "resources/read",
            json!({ "uri": format!("svc://stream/peer/{}", world.peer) }),
            ["blind", "blind", "refused", "refused", "blind"],
        ),
    ] {
        let given = world.callers.each_ref().map(|caller| mcp(caller, method, &params));
        assert_eq!(given, expected, "{method} {params}");
    }
    // A caller without access does not learn by a subscription whether a stream exists.
    let gone = "svc://stream/task/task_unknown";
    for (uri, readers) in [(uri.as_str(), [true, true, true, false, true]), (gone, [false; 5])] {
        let given = world.callers.each_ref().map(|caller| subscribes(caller, uri));
        assert_eq!(given, readers, "{uri}");
    }
    // Lists have names of streams and ids but no texts.
    let names = |caller: &Caller| {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" },
        } });
        let post = || {
            let accept = "application/json, text/event-stream";
            caller.request("POST", "/mcp").header("Accept", accept)
        };
        let opened = post().json(&call).send();
        let session = opened.header("mcp-session-id").expect("a session").to_owned();
        let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "resources/list" });
        let reply = post().header("Mcp-Session-Id", &session).json(&call).send();
        String::from_utf8_lossy(&reply.body).contains(task.as_str())
    };
    let given = world.callers.each_ref().map(names);
    assert_eq!(given, [true, true, true, false, true]);
}

#[test]
fn earlier_registration_does_not_take_anothers_place() {
    let d = Daemon::start();
    let [first, second] = ["s-1", "s-2"].map(|key| d.mint(key, "/p", &[]));
    let body = json!({ "display_name": "x", "backend": "tool", "path": "/p" });
    let squat = text(&register(&first, &body), "peer_id");
    let early = json!({ "text": "for the first" });
    d.post(&format!("/v1/peers/{squat}/messages"), &early).ok(200);
    let real = text(&register(&d, &body), "peer_id");
    assert_ne!(real, squat);
    d.post(&format!("/v1/peers/{real}/messages"), &json!({ "text": "for the operator" })).ok(200);
    for target in
        [format!("/v1/peers/{real}/messages"), format!("/v1/peers/{real}/messages?peek=true")]
    {
        problem(&first.get(&target), 403, "forbidden");
    }
    problem(&first.post(&format!("/v1/peers/{real}/heartbeat"), &json!({})), 403, "forbidden");
    problem(&first.delete(&format!("/v1/peers/{real}")), 403, "forbidden");
    // Each has its own again, with its own inbox, and a third has neither.
    assert_eq!(text(&register(&first, &body), "peer_id"), squat);
    assert_eq!(text(&register(&d, &body), "peer_id"), real);
    problem(&second.post("/v1/peers/register", &body), 409, "conflict");
    let texts = |caller: &Caller, id: &str| {
        each(&page(&caller.get(&format!("/v1/peers/{id}/messages")), "messages"), "text")
    };
    assert_eq!(texts(&first, &squat), ["for the first"]);
    assert_eq!(texts(&d, &real), ["for the operator"]);
}

#[test]
fn only_the_operator_registers_people() {
    let d = Daemon::start();
    let session = d.session("s-1");
    let body = |name: &str, role: &str| json!({ "display_name": name, "backend": "x", "session_id": "s-1", "role": role });
    problem(&session.post("/v1/peers/register", &body("ann", "human")), 403, "forbidden");
    for name in [
        "operator",
        "OPERATOR",
        "o p e r a t o r",
        "oper\u{430}tor",
        "ope\u{200b}rator",
        "Human",
        "svc",
        "the operator",
        "svc operator",
        "Operator (you)",
        "operator@host",
        "the user",
        "svc daemon",
        "you",
        "op3rator",
        "opera\u{442}o\u{27e}",
        "Person at the terminal",
    ] {
        problem(&session.post("/v1/peers/register", &body(name, "agent")), 403, "forbidden");
    }
    let turned = body("\u{202e}rotarepo", "agent");
    problem(&session.post("/v1/peers/register", &turned), 422, "invalid_request");
    let with_backend =
        |backend: &str| json!({ "display_name": "ann", "backend": backend, "session_id": "s-1" });
    for backend in ["operator", "Human", "oper\u{430}tor", "svc"] {
        let reply = session.post("/v1/peers/register", &with_backend(backend));
        problem(&reply, 403, "forbidden");
    }
    for backend in ["code x", "codex\nsourceChannel", "co\u{200b}dex"] {
        let reply = session.post("/v1/peers/register", &with_backend(backend));
        problem(&reply, 422, "invalid_request");
    }
    let ann = text(&register(&session, &body("ann", "orchestrator")), "peer_id");
    // An update cannot do it either.
    problem(&session.post("/v1/peers/register", &body("ann", "human")), 403, "forbidden");
    assert_eq!(d.get(&format!("/v1/peers/{ann}")).ok(200)["role"], "orchestrator");
    let person = json!({ "display_name": "operator", "backend": "desk", "role": "human" });
    assert_eq!(register(&d, &person)["role"], "human");
}

#[test]
fn only_owner_runner_and_operator_can_end_a_task() {
    let d = Daemon::start();
    let [maker, runner, mate] = ["maker", "runner", "mate"].map(|key| d.mint(key, "/p", &[]));
    let runs = peer(&runner, "runner");
    let task = |caller: &Caller, agent: &str| {
        text(&caller.post("/v1/tasks", &json!({ "agent": agent })).ok(201), "task_id")
    };
    for owner in [&maker, &*d] {
        let id = task(owner, &runs);
        let events = format!("/v1/tasks/{id}/events");
        problem(&mate.post(&events, &done()), 403, "forbidden");
        problem(&mate.post(&format!("/v1/tasks/{id}/cancel"), &json!({})), 403, "forbidden");
        assert_eq!(runner.get(&format!("/v1/tasks/{id}")).status(), 200);
        runner.post(&events, &done()).ok(200);
    }
    // The runner reads the task's log, too, by name and in a feed, also from another project; a
    // session that does not run it does not.
    let far = d.mint("far", "/q", &[]);
    let stranger = d.mint("stranger", "/r", &[]);
    let far_peer = peer(&far, "far");
    for owner in [&maker, &*d] {
        let id = task(owner, &far_peer);
        far.post(&format!("/v1/tasks/{id}/events"), &done()).ok(200);
        for selector in ["stream", "stream_prefix"] {
            let events = format!("/v1/events?{selector}=task/{id}");
            assert_eq!(far.get(&events).ok(200)["count"], 2, "{selector}");
            assert_eq!(owner.get(&events).ok(200)["count"], 2, "{selector}");
        }
        problem(&stranger.get(&format!("/v1/events?stream=task/{id}")), 404, "not_found");
        let feed = stranger.get(&format!("/v1/events?stream_prefix=task/{id}")).ok(200);
        assert_eq!(feed["count"], 0);
    }
    // A name is no proof: a caller with the agent's name runs nothing.
    let named = task(&maker, "mate");
    problem(&mate.post(&format!("/v1/tasks/{named}/events"), &done()), 403, "forbidden");
    maker.post(&format!("/v1/tasks/{named}/events"), &done()).ok(200);
    // `from` must be the caller's own participant.
    let from = json!({ "from": runs });
    problem(&maker.post("/v1/tasks", &from), 403, "forbidden");
    assert_eq!(runner.post("/v1/tasks", &from).ok(201)["from"], json!(runs));
}

/// The caller chooses a folder; the token decides the project.
#[test]
fn session_cannot_choose_its_project() {
    let d = Daemon::start();
    let [spy, victim] =
        [("spy", "/q"), ("victim", "/p")].map(|(key, project)| d.mint(key, project, &[]));
    ok(&spy, "start_session", &json!({ "cwd": "/p", "client": "test" }));
    assert_eq!(ok(&spy, "get_session", &json!({}))["project"], "/q");
    ok(&spy, "start_ghap", &attempt("planted"));
    ok(&spy, "store_memory", &json!({ "content": "planted", "category": "fact" }));
    ok(&spy, "end_session", &json!({}));
    assert_eq!(ok(&victim, "get_orphaned_ghap", &json!({}))["has_orphan"], false);
    assert_eq!(ok(&victim, "list_memories", &json!({}))["total"], 0);
    assert!(page(&victim.get("/v1/ghap"), "ghap").is_empty());
    assert!(page(&victim.get("/v1/sessions?project=/p"), "sessions").is_empty());
}

/// A thing without a project belongs to its maker alone, whatever others claim.
#[test]
fn sessions_without_a_project_share_nothing() {
    let d = Daemon::start();
    let [one, two] = ["one", "two"].map(|key| d.session(key));
    let memory = json!({ "content": "the same words", "category": "fact" });
    let [first, second] = [&one, &two].map(|caller| ok(caller, "store_memory", &memory));
    assert_eq!((&first["status"], &second["status"]), (&json!("stored"), &json!("stored")));
    assert_ne!(first["id"], second["id"]);
    for caller in [&one, &two] {
        assert_eq!(ok(caller, "list_memories", &json!({}))["total"], 1);
    }
    ok(&one, "start_ghap", &attempt("left"));
    ok(&one, "end_session", &json!({}));
    assert_eq!(ok(&two, "get_orphaned_ghap", &json!({}))["has_orphan"], false);
    // A global memory of the operator is visible to both.
    let global = json!({ "content": "for all", "category": "fact", "global": true });
    let id = ok(&d, "store_memory", &global)["id"].clone();
    assert_eq!(ok(&two, "list_memories", &json!({}))["total"], 2);
    assert_eq!(outcome(&two, "delete_memory", &json!({ "memory_id": id })), "forbidden");
}
