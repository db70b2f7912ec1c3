//! A name is not an identity: the name that a caller chooses for itself, its session or its agent
//! gives no access to things of others, and takes nothing from later callers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, eventually};
use crate::expect::{problem, text};
use crate::identity::{FakeClient, bare, event, id_of, peer_of, prompt, start};
use crate::wire::Caller;

const SOON: Duration = Duration::from_secs(20);

/// A daemon with the instance `cat`.
fn with_agents() -> Daemon {
    let home = Home::new();
    home.write("config.toml", "[agents.cat]\nbackend = 'exec'\ncommand = ['cat']\n");
    Daemon::with(|plan| plan.home(&home))
}

/// The error of a call that fails.
#[track_caller]
fn error_of(client: &mut FakeClient, tool: &str, arguments: &Value) -> Value {
    let answer = client.call(tool, arguments);
    let error = answer["result"]["structuredContent"]["error"].clone();
    assert!(error.is_object(), "{tool} {arguments}: {answer}");
    error
}

#[track_caller]
fn not_yours(client: &mut FakeClient, tool: &str, arguments: &Value) {
    let error = error_of(client, tool, arguments);
    assert_eq!(error["type"], "forbidden", "{tool} {arguments}: {error}");
    assert_eq!(error["field"], "session_id", "{tool} {arguments}: {error}");
}

fn resume(session: &str) -> Value {
    event(session, "SessionStart", &json!({ "source": "resume" }))
}

/// The arguments of `hook_event`, as a model would call it.
fn told(payload: &Value, secret: Option<&str>) -> Value {
    let mut arguments = json!({ "client": "claude-code", "payload": payload });
    if let Some(secret) = secret {
        arguments["secret"] = json!(secret);
    }
    arguments
}

/// The only file with the secret of a session.
fn secret_file(home: &Home) -> PathBuf {
    let files = fs::read_dir(home.path("sessions")).expect("the folder");
    let files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    file.clone()
}

fn attempt(goal: &str) -> Value {
    json!({
        "domain": "debugging", "strategy": "read-the-error", "goal": goal, "hypothesis": "h",
        "action": "a", "prediction": "p",
    })
}

/// Keys of the sessions that the list marks as the caller's own.
fn own_keys(listed: &Value) -> Vec<String> {
    let all = listed["sessions"].as_array().expect("a list").iter();
    all.filter(|session| session["isYou"] == true).map(|session| text(session, "key")).collect()
}

#[test]
fn daemon_assigned_ids_cannot_be_claimed() {
    let d = with_agents();
    let mut x = FakeClient::start(&d.home, "agent-x", "q", "");
    let stranger = d.session("stranger");
    d.session("worker-7");
    for id in [
        "agent:cat:main",
        "AGENT:cat:main",
        " agent:cat:main",
        "\u{200b}agent:cat:main",
        "ａｇｅｎｔ：cat：main",
        "\u{430}gent:cat:main",
        "mcp_1",
        "MCP_1",
        "own:worker-7",
        "worker-7",
    ] {
        let named = json!({ "session_id": id });
        let peer = json!({ "display_name": "x", "backend": "exec", "session_id": id });
        for tool in ["start_session", "end_session", "get_session", "get_active_ghap", "check_in"] {
            not_yours(&mut x, tool, &named);
        }
        not_yours(&mut x, "ToolCall", &json!({ "name": "start_session", "arguments": named }));
        not_yours(&mut x, "peer_register", &peer);
        not_yours(&mut x, "hook_event", &told(&start(id), None));
        let told = told(&start(id), Some(&"0".repeat(64)));
        not_yours(&mut x, "hook_event", &told);
        assert_eq!(x.hook(&start(id)), "", "{id:?}");
        problem(&stranger.post("/v1/peers/register", &peer), 403, "forbidden");
        if id.is_ascii() {
            let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": { "name": "ping", "arguments": {} } });
            let request = stranger.request("POST", "/mcp").header("Svc-Session-Id", id).json(&body);
            assert_eq!(request.send().status(), 403, "{id:?}");
        }
        if id != "worker-7" {
            let started = bare(&d, "start_session", &named);
            assert_eq!(started["error"]["type"], "forbidden", "the operator, too: {started}");
            problem(&d.post("/v1/peers/register", &peer), 403, "forbidden");
        }
    }
    assert_eq!(d.get("/v1/peers").ok(200)["peers"], json!([]));
    assert_eq!(d.get("/v1/sessions").ok(200)["count"], 0);

    // Names are free for the callers that the daemon grants them to.
    let input = json!({ "instance": "cat", "cwd": d.home.user(), "prompt": "a secret word" });
    let agent = d.post("/v1/hosts", &input).ok(201);
    assert_eq!(agent["session_key"], "agent:cat:main");
    x.ok("start_session", &json!({ "session_id": "s-x" }));
    x.ok("peer_register", &json!({ "display_name": "x", "backend": "test" }));
    let own = own_keys(&x.ok("sessions_list", &json!({})));
    assert_eq!(own, ["agent:test:s-x"]);
    let history = x.call("sessions_history", &json!({ "sessionKey": "agent:cat:main" }));
    assert!(!history.to_string().contains("secret"), "{history}");
    not_yours(&mut x, "end_session", &json!({ "session_id": "agent:cat:main" }));
}

#[test]
fn later_minted_key_belongs_to_its_holder_only() {
    let d = Daemon::start();
    let mut x = FakeClient::start(&d.home, "agent-x", "q", "");
    let named = json!({ "session_id": "worker-7" });
    x.ok("start_session", &named);
    x.ok("peer_register", &json!({ "display_name": "x", "backend": "test" }));
    let of_x = x.ok("start_ghap", &attempt("of x"));
    let memory = json!({ "content": "of x: the cellar is damp", "category": "context" });
    x.ok("store_memory", &memory);

    let held = d.session("worker-7");
    let session = text(&bare(&held, "start_session", &json!({})), "session_id");
    assert_ne!(session, "worker-7");
    bare(&held, "start_ghap", &attempt("of the worker"));
    let by_id = bare(&held, "get_ghap", &json!({ "id": of_x["id"] }));
    assert_eq!(by_id["error"]["type"], "not_found", "{by_id}");
    for (tool, arguments) in [
        ("list_ghap_entries", json!({})),
        ("search_experiences", json!({ "query": "of x" })),
        ("list_memories", json!({})),
        ("retrieve_memories", json!({ "query": "the cellar is damp" })),
    ] {
        let read = bare(&held, tool, &arguments);
        assert!(
            read.get("error").is_none() && !read.to_string().contains("of x"),
            "{tool}: {read}"
        );
    }
    let read = held.get("/v1/ghap").ok(200);
    assert!(!read.to_string().contains("of x"), "{read}");
    let peer = json!({ "display_name": "w", "backend": "test" });
    let peer = bare(&held, "peer_register", &peer);
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer));
    d.post(&inbox, &json!({ "text": "for the worker" })).ok(200);

    for tool in ["get_session", "get_active_ghap", "end_session", "start_session"] {
        not_yours(&mut x, tool, &json!({ "session_id": session }));
    }
    assert!(!x.call("peer_inbox", &json!({})).to_string().contains("for the worker"));
    assert!(!x.call("get_active_ghap", &json!({})).to_string().contains("of the worker"));
    assert_eq!(own_keys(&x.ok("sessions_list", &json!({}))), ["agent:test:worker-7"]);
    let own = own_keys(&bare(&held, "sessions_list", &json!({})));
    assert_eq!(own, [format!("agent:test:{session}")]);

    // Its own session ends, and not the token of that name.
    x.ok("end_session", &named);
    assert_eq!(bare(&held, "get_session", &json!({}))["session_id"], session);
    let refused = bare(&held, "get_session", &named);
    assert_eq!(refused["error"]["type"], "forbidden", "{refused}");
    let inbox = bare(&held, "peer_inbox", &json!({}));
    assert_eq!(inbox["messages"][0]["text"], "for the worker", "{inbox}");
    bare(&held, "end_session", &json!({}));
    assert_eq!(held.get("/v1/sessions").status(), 401, "with its own session a minted token ends");
}

#[test]
fn session_id_in_another_case_is_refused() {
    let d = Daemon::start();
    let mut a = FakeClient::start(&d.home, "agent-a", "p", "");
    let mut b = FakeClient::start(&d.home, "agent-b", "q", "");
    a.hook(&start("s-ab"));
    peer_of(&d, "s-ab");
    not_yours(&mut b, "start_session", &json!({ "session_id": "S-AB", "client": "claude-code" }));
    let claim = json!({ "display_name": "x", "backend": "claude-code", "session_id": "S-aB" });
    not_yours(&mut b, "peer_register", &claim);
    a.kill();
    eventually(SOON, || d.get("/v1/sessions/s-ab").ok(200)["ended_at"].is_string());
    not_yours(&mut b, "start_session", &json!({ "session_id": "S-AB", "client": "claude-code" }));
}

#[test]
fn agent_of_another_project_inherits_nothing() {
    let d = with_agents();
    let folder = |name: &str| {
        let folder = d.home.user().join(name);
        fs::create_dir_all(folder.join(".git")).expect("can be made");
        folder
    };
    let (p, q) = (folder("p"), folder("q"));
    let input = |name: Option<&str>, cwd: &PathBuf| {
        let mut input = json!({ "instance": "cat", "cwd": cwd });
        if let Some(name) = name {
            input["name"] = json!(name);
        }
        input
    };
    let end = |agent: &Value| {
        let id = text(agent, "id");
        d.post(&format!("/v1/hosts/{id}/stop"), &json!({ "force": true })).ok(200);
        eventually(SOON, || d.get(&format!("/v1/hosts/{id}")).ok(200)["ended_at"].is_string());
    };
    let named = d.post("/v1/hosts", &input(Some("own"), &p)).ok(201);
    let first = d.post("/v1/hosts", &input(None, &p)).ok(201);
    assert_eq!(text(&first, "session_key"), "agent:cat:main");
    end(&named);
    end(&first);
    let refused = d.post("/v1/hosts", &input(Some("own"), &q));
    problem(&refused, 409, "conflict");
    let other = d.post("/v1/hosts", &input(None, &q)).ok(201);
    assert_eq!(text(&other, "session_key"), "agent:cat:main-2");
    // In its own project an agent continues where its predecessor ended.
    let again = d.post("/v1/hosts", &input(Some("own"), &p)).ok(201);
    assert_eq!(text(&again, "session_key"), "agent:cat:own");
    end(&again);
    end(&other);
}

#[test]
fn call_cannot_take_over_an_absent_session() {
    let d = Daemon::start();
    let mut a = FakeClient::begun(&d.home, "agent-a", "p", "s-a");
    let mut b = FakeClient::begun(&d.home, "agent-b", "p", "s-b");
    let peer = peer_of(&d, "s-a");
    a.ok("start_ghap", &attempt("of a"));
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer));
    d.post(&inbox, &json!({ "text": "a secret word" })).ok(200);
    a.kill();
    eventually(SOON, || d.get("/v1/sessions/s-a").ok(200)["ended_at"].is_string());
    let before = d.get("/v1/sessions/s-a").ok(200);
    let listed = b.ok("list_sessions", &json!({}));
    assert!(listed.to_string().contains("s-a"), "a colleague's session is no secret: {listed}");

    let named = json!({ "session_id": "s-a" });
    for tool in ["start_session", "get_session", "get_active_ghap", "end_session", "check_in"] {
        not_yours(&mut b, tool, &named);
    }
    let claim = json!({ "display_name": "a", "backend": "claude-code", "session_id": "s-a" });
    not_yours(&mut b, "peer_register", &claim);
    let zeros = "0".repeat(64);
    for secret in [None, Some("s-a"), Some(&*zeros)] {
        for payload in [resume("s-a"), prompt("s-a"), event("s-a", "SessionEnd", &json!({}))] {
            not_yours(&mut b, "hook_event", &told(&payload, secret));
        }
    }
    let as_a = json!({ "to": "operator", "text": "x", "from_peer": id_of(&peer) });
    b.forbidden("peer_send", &as_a);
    b.forbidden("peer_inbox", &json!({ "peer_id": id_of(&peer) }));
    let history = b.call("sessions_history", &json!({ "sessionKey": "agent:claude:s-a" }));
    assert!(!history.to_string().contains("secret"), "{history}");
    assert_eq!(own_keys(&b.ok("sessions_list", &json!({}))), ["agent:claude:s-b"]);
    assert_eq!(d.get("/v1/sessions/s-a").ok(200), before);
    assert_eq!(d.get(&format!("{inbox}?peek=true")).ok(200)["messages"][0]["state"], "queued");

    // Its own client comes back, and has all its things.
    let mut back = FakeClient::start(&d.home, "agent-back", "p", "");
    let printed = back.hook(&resume("s-a"));
    assert!(printed.contains("a secret word"), "{printed}");
    assert_eq!(peer_of(&d, "s-a")["peer_id"], peer["peer_id"]);
    assert_eq!(back.ok("get_session", &json!({}))["session_id"], "s-a");
    let sent = back.ok("peer_send", &json!({ "to": "operator", "text": "x" }));
    assert_eq!(sent["from_peer"], peer["peer_id"]);
    not_yours(&mut b, "start_session", &named);
}

#[test]
fn session_is_taken_over_only_with_its_secret() {
    let d = Daemon::start();
    // A tool call counts as made in the folder of its process, so the hooks name that one.
    let resume = |session: &str| {
        let mut payload = resume(session);
        payload["cwd"] = json!(d.home.user().join("p"));
        payload
    };
    let mut a = FakeClient::start(&d.home, "agent-a", "p", "");
    a.hook(&resume("s-a"));
    let file = secret_file(&d.home);
    let mode = |path: &PathBuf| fs::metadata(path).expect("it is there").permissions().mode();
    assert_eq!(mode(&file) & 0o777, 0o600);
    assert_eq!(mode(&d.home.path("sessions")) & 0o777, 0o700);
    let secret = fs::read_to_string(&file).expect("a secret");
    assert_eq!(secret.len(), 64);
    for file in d.home.store_files() {
        let bytes = d.home.read(file);
        assert!(!String::from_utf8_lossy(&bytes).contains(&secret), "the database has its hash");
    }

    // While the earlier process lives.
    let mut b = FakeClient::start(&d.home, "agent-b", "p", "");
    let error = error_of(&mut b, "hook_event", &told(&resume("s-a"), Some(&secret)));
    assert_eq!(error["type"], "conflict", "{error}");
    assert_eq!(b.hook(&resume("s-a")), "");
    assert_eq!(a.ok("get_session", &json!({}))["session_id"], "s-a");

    a.kill();
    eventually(SOON, || d.get("/v1/sessions/s-a").ok(200)["ended_at"].is_string());
    // In another project.
    let mut c = FakeClient::start(&d.home, "agent-c", "q", "");
    let mut elsewhere = resume("s-a");
    elsewhere["cwd"] = json!("/nowhere/q");
    not_yours(&mut c, "hook_event", &told(&resume("s-a"), Some(&secret)));
    assert_eq!(c.hook(&elsewhere), "");
    assert_ne!(c.ok("get_session", &json!({}))["session_id"], "s-a");
    // Without the file.
    let aside = d.home.path("aside");
    fs::rename(&file, &aside).expect("it moves");
    assert_eq!(b.hook(&resume("s-a")), "");
    not_yours(&mut b, "start_session", &json!({ "session_id": "s-a" }));
    assert!(!file.exists(), "a refused event makes none");
    fs::rename(&aside, &file).expect("it moves back");
    b.hook(&resume("s-a"));
    assert_eq!(b.ok("get_session", &json!({}))["session_id"], "s-a");
    assert_eq!(fs::read_to_string(&file).expect("a secret"), secret);

    // The present holder is resumed, also by another daemon.
    b.kill();
    let mut again = FakeClient::start(&d.home, "agent-again", "p", "");
    eventually(SOON, || d.get("/v1/sessions/s-a").ok(200)["ended_at"].is_string());
    again.hook(&resume("s-a"));
    assert_eq!(again.ok("get_session", &json!({}))["session_id"], "s-a");
}

#[test]
fn codex_thread_of_another_process_is_forbidden() {
    let d = Daemon::start();
    let mut a = FakeClient::start(&d.home, "agent-a", "p", "");
    let mut b = FakeClient::start(&d.home, "agent-b", "p", "");
    // One process holds several sessions.
    for session in ["s-1", "s-2"] {
        a.hook(&start(session));
    }
    b.hook(&start("s-b"));
    for thread in ["s-1", "s-2"] {
        let id = a.begin("get_session", &json!({}), &json!({ "threadId": thread }));
        let answer = a.answer(id);
        assert_eq!(answer["result"]["structuredContent"]["session_id"], thread, "{answer}");
    }
    for thread in ["s-1", "s-2", "agent:cat:main"] {
        let id = b.begin("get_session", &json!({}), &json!({ "threadId": thread }));
        let answer = b.answer(id);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("is none of this client's process"), "{answer}");
    }
    // The end of one session is not that of another, nor of the token.
    a.hook(&event("s-2", "SessionEnd", &json!({})));
    let id = a.begin("get_session", &json!({}), &json!({ "threadId": "s-1" }));
    assert_eq!(a.answer(id)["result"]["structuredContent"]["session_id"], "s-1");
}

fn spawner(d: &Daemon) -> Caller {
    let input = json!({ "session": "spawner", "project": d.home.user(), "scopes": ["agents"] });
    d.minted(&input)
}

#[test]
fn names_that_imitate_the_operator_are_refused() {
    let d = with_agents();
    let (spawner, session) = (spawner(&d), d.session("s-1"));
    let reserved = [
        "operator",
        "operators",
        "boss",
        "the person",
        "Person at the terminal",
        "Op3rator-2",
        "\u{43e}perator",
        "my real user",
        "svc",
        "latest",
    ];
    for name in reserved {
        let peer = json!({ "display_name": name, "backend": "test" });
        problem(&session.post("/v1/peers/register", &peer), 403, "forbidden");
        let refused = bare(&session, "peer_register", &peer);
        assert_eq!(refused["error"]["field"], "display_name", "{refused}");
        problem(&d.post("/v1/tokens", &json!({ "session": name })), 403, "forbidden");
        let label = json!({ "task": "x", "agentId": "cat", "label": name });
        let refused = bare(&spawner, "sessions_spawn", &label);
        assert_eq!(refused["error"]["type"], "forbidden", "{refused}");
        assert_eq!(refused["error"]["field"], "label", "{refused}");
    }
    for name in ["operator", "operators", "boss", "the-person", "user-2", "svc", "latest"] {
        let input = json!({ "instance": "cat", "name": name, "cwd": d.home.user() });
        problem(&d.post("/v1/hosts", &input), 403, "forbidden");
    }
    for name in ["user-service", "design-system", "k8s-operator", "claude-code@operator"] {
        let peer = json!({ "display_name": name, "backend": "test" });
        assert_eq!(session.post("/v1/peers/register", &peer).ok(200)["display_name"], name);
    }
    for name in ["user-service", "design-system", "k8s-operator"] {
        d.post("/v1/tokens", &json!({ "session": name })).ok(201);
        let input = json!({ "instance": "cat", "name": name, "cwd": d.home.user() });
        d.post("/v1/hosts", &input).ok(201);
    }
}
