//! Access: tokens, hosts, origins, and secrets that must never be written.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::with_config;
use crate::daemon::{Daemon, eventually, svc};
use crate::expect::{append, each, frame, instant, new_task, page, peer, problem, text};
use crate::wire::{Caller, Conn, exchange, tool_call};

#[test]
fn only_the_right_token_is_accepted() {
    let d = Daemon::start();
    let token = d.home.token().unwrap();
    let (short, long) = (&token[..63], format!("{token}0"));
    let upper = token.to_uppercase();
    let table = [
        (format!("Bearer {token}"), 200),
        (format!("bearer {token}"), 200),
        (format!("BEARER {token}"), 200),
        (format!("Bearer {token} "), 200),
        (format!("Basic {token}"), 401),
        ("Basic dXNlcjpwYXNz".to_owned(), 401),
        (format!("Bearer {short}"), 401),
        (format!("Bearer {long}"), 401),
        (format!("Bearer {}", "0".repeat(64)), 401),
        ("Bearer ${SVC_SESSION_TOKEN}".to_owned(), 401),
        ("Bearer".to_owned(), 401),
        ("Bearer ".to_owned(), 401),
        (token.clone(), 401),
        (format!("Bearer{token}"), 401),
        (format!("Bearer {token}, Bearer {token}"), 401),
        (format!("Bearer \"{token}\""), 401),
        (String::new(), 401),
    ];
    for (value, status) in table {
        let request = d.stranger().request("GET", "/v1/peers").header("Authorization", &value);
        let reply = request.send();
        assert_eq!(reply.status(), status, "{value:?}: {reply:?}");
        if status == 401 {
            problem(&reply, 401, "unauthorized");
            let asked = reply.header("www-authenticate").unwrap_or_default();
            assert!(asked.starts_with("Bearer"), "{reply:?}");
            assert!(!format!("{reply:?}").contains(&*d.home.dir().to_string_lossy()), "{reply:?}");
            let says = reply.json()["detail"].to_string();
            assert_eq!(says.contains("SVC_SESSION_TOKEN"), value.contains("SVC_"), "{says}");
        }
    }
    if upper != token {
        assert_eq!(d.with_token(&upper).get("/v1/peers").status(), 401, "case matters");
    }
    problem(&d.stranger().get("/v1/peers"), 401, "unauthorized");
}

#[test]
fn every_route_checks_the_token_first() {
    let d = Daemon::start();
    let table = [
        ("GET", "/v1/health"),
        ("GET", "/v1/peers"),
        ("PATCH", "/v1/peers"),
        ("POST", "/v1/peers/register"),
        ("GET", "/v1/peers/unknown"),
        ("GET", "/v1/peers/unknown/messages"),
        ("POST", "/v1/tasks"),
        ("GET", "/v1/tasks?limit=abc"),
        ("GET", "/v1/biam/subscribe"),
        ("GET", "/v1/biam/subscribe?task_id=unknown"),
        ("GET", "/v1/events"),
        ("GET", "/v1/tokens"),
        ("POST", "/v1/token/rotate"),
        ("GET", "/no/such/path"),
        ("GET", "/v1/"),
    ];
    for (method, path) in table {
        let reply = d.stranger().request(method, path).send();
        problem(&reply, 401, "unauthorized");
        assert!(reply.header("allow").is_none(), "{method} {path} gives the methods away");
    }
    problem(&d.get("/no/such/path"), 404, "not_found");
    problem(&d.get("/v1/nothing"), 404, "not_found");
}

#[test]
fn only_allowed_hosts_are_served() {
    let d = Daemon::start();
    let port = d.port();
    let good = [
        format!("127.0.0.1:{port}"),
        "127.0.0.1".to_owned(),
        "localhost".to_owned(),
        format!("localhost:{port}"),
        format!("LocalHost:{port}"),
        format!("[::1]:{port}"),
        "[::1]".to_owned(),
    ];
    let bad = [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        "127.0.0.1.evil.example".to_owned(),
        "localhost.evil.example".to_owned(),
        format!("evil.example@127.0.0.1:{port}"),
        "192.0.2.1".to_owned(),
        format!("0.0.0.0:{port}"),
    ];
    for path in ["/health", "/v1/peers"] {
        for host in &good {
            let reply = d.request("GET", path).without("Host").header("Host", host).send();
            assert_eq!(reply.status(), 200, "{host}: {reply:?}");
        }
        for host in &bad {
            let reply = d.request("GET", path).without("Host").header("Host", host).send();
            assert_eq!(reply.status(), 403, "{host}: {reply:?}");
            problem(&reply, 403, "forbidden");
        }
        // No honest client sends a request without a `Host`, or with two.
        let none = d.request("GET", path).without("Host").send();
        assert!(matches!(none.status(), 400 | 403), "{none:?}");
        let old = format!("GET {path} HTTP/1.0\r\n\r\n");
        let old = exchange(d.addr, old.as_bytes()).unwrap();
        assert!(matches!(old.status(), 400 | 403), "{old:?}");
        let two = d.request("GET", path).header("Host", "evil.example").send();
        assert!(matches!(two.status(), 400 | 403), "{two:?}");
    }
}

#[test]
fn only_allowed_origins_are_served() {
    let d = Daemon::start();
    let own = format!("http://127.0.0.1:{}", d.port());
    let good = [own.as_str(), "http://localhost:3000", "https://localhost", "http://[::1]:8080"];
    let bad = [
        "http://evil.example",
        "https://evil.example:6334",
        "null",
        "http://127.0.0.1.evil.example",
        "http://localhost.evil.example",
        "http://evil.example#127.0.0.1",
        "http://localhost@evil.example",
        "file://",
        "localhost",
    ];
    for origin in good {
        let reply = d.request("GET", "/v1/peers").header("Origin", origin).send();
        assert_eq!(reply.status(), 200, "{origin}: {reply:?}");
        let cors = reply.header("access-control-allow-origin");
        assert_eq!(cors, None, "no CORS unless it is configured");
    }
    for origin in bad {
        for path in ["/health", "/v1/peers"] {
            let reply = d.request("GET", path).header("Origin", origin).send();
            assert_eq!(reply.status(), 403, "{origin}: {reply:?}");
            problem(&reply, 403, "forbidden");
        }
    }
    let preflight = d
        .stranger()
        .request("OPTIONS", "/v1/tasks")
        .header("Origin", "http://evil.example")
        .header("Access-Control-Request-Method", "POST");
    problem(&preflight.send(), 403, "forbidden");
}

#[test]
fn hosts_and_origins_can_be_allowed_by_name() {
    let d = Daemon::with(|plan| {
        plan.flag("--allowed-host")
            .flag("team.example")
            .flag("--allowed-origin")
            .flag("https://board.example")
    });
    let host = |host| d.request("GET", "/v1/peers").without("Host").header("Host", host).send();
    host("team.example").ok(200);
    host("team.example:8443").ok(200);
    problem(&host("team.example.evil.example"), 403, "forbidden");
    let origin = |origin| d.request("GET", "/v1/peers").header("Origin", origin).send();
    origin("https://board.example").ok(200);
    problem(&origin("http://board.example"), 403, "forbidden");
    problem(&origin("https://board.example:8443"), 403, "forbidden");
}

#[test]
fn other_sites_are_refused_before_their_body_is_read() {
    let d = Daemon::start();
    for (name, value) in [("Host", "evil.example"), ("Origin", "http://evil.example")] {
        let request = d.request("POST", "/v1/tasks");
        let request = if name == "Host" { request.without("Host") } else { request };
        let request = request
            .header(name, value)
            .header("Content-Type", "application/json")
            .header("Content-Length", "100000");
        let mut conn = Conn::open(d.addr).unwrap();
        conn.write(&request.bytes()).unwrap();
        let reply = conn.reply().expect("an answer although no body was sent");
        problem(&reply, 403, "forbidden");
    }
}

#[test]
fn rotation_replaces_the_operator_token_at_once() {
    let d = Daemon::start();
    let old = d.home.token().unwrap();
    let session = d.session("s-1");
    let new = text(&d.post("/v1/token/rotate", &json!({})).ok(200), "token");
    assert_ne!(new, old);
    assert_eq!(d.home.token().as_deref(), Some(new.as_str()), "the file has the new one");
    let mode = fs::metadata(d.home.path("token")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    problem(&d.with_token(&old).get("/v1/peers"), 401, "unauthorized");
    d.with_token(&new).get("/v1/peers").ok(200);
    session.get("/v1/peers").ok(200);
}

#[test]
fn session_tokens_survive_a_restart_and_end_when_revoked() {
    let mut d = Daemon::start();
    let request = json!({ "session": "s-1", "scopes": ["exec"], "ttl_seconds": 600 });
    let minted = d.post("/v1/tokens", &request).ok(201);
    assert_eq!(minted["session"], "s-1");
    assert_eq!(minted["scopes"], json!(["exec"]));
    instant(&minted["expires_at"]);
    let (id, token) = (text(&minted, "token_id"), text(&minted, "token"));
    let other = d.session("s-2");

    d.with_token(&token).get("/v1/peers").ok(200);
    d.kill_and_restart();
    d.with_token(&token).get("/v1/peers").ok(200);

    let listed = page(&d.get("/v1/tokens"), "tokens");
    let row = listed.iter().find(|row| row["token_id"] == json!(id)).expect("it is listed");
    assert_eq!(row["session"], "s-1");
    instant(&row["created_at"]);
    instant(&row["last_used_at"]);
    assert!(row.get("token").is_none(), "a token is shown once: {row}");
    assert!(!listed.iter().any(|row| row.to_string().contains(&token)));

    let revoked = d.delete(&format!("/v1/tokens/{id}")).ok(200);
    assert_eq!(revoked["token_id"], json!(id));
    instant(&revoked["revoked_at"]);
    problem(&d.with_token(&token).get("/v1/peers"), 401, "unauthorized");
    other.get("/v1/peers").ok(200);
    d.restart();
    problem(&d.with_token(&token).get("/v1/peers"), 401, "unauthorized");
    problem(&d.delete("/v1/tokens/tok_unknown"), 404, "not_found");
}

/// A scope that nothing requires is a mistake; entries of servers may require scopes of their own.
#[test]
fn token_gets_only_scopes_that_something_requires() {
    let d = with_config("[sources.board]\ncommand = \"no-such-program\"\nscope = \"deploy\"\n");
    let mint =
        |scopes: &[&str]| d.post("/v1/tokens", &json!({ "session": "s-1", "scopes": scopes }));
    for scopes in [&["agents", "approve"][..], &["exec", "read", "read_all"], &["deploy"], &[]] {
        assert_eq!(mint(scopes).ok(201)["scopes"], json!(scopes));
    }
    for scopes in [&["agnets"][..], &["exec", ""], &["deploy", "Exec"], &["*"]] {
        let refusal = problem(&mint(scopes), 422, "invalid_request");
        assert_eq!(refusal["field"], "scopes", "{refusal}");
        assert!(refusal.to_string().contains("deploy"), "{refusal}");
    }
    let ran = svc(&d.home, &["mcp-config", "--session", "s-2", "--scope", "agnets"]);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("agnets") && ran.stderr.contains("agents"), "{ran:?}");
}

/// The end of a session ends its tokens, whoever reports it.
#[test]
fn session_tokens_end_with_their_session() {
    let mut d = Daemon::start();
    let call = |caller: &Caller, name: &str, arguments: &Value| {
        let body = tool_call(name, arguments);
        let answer = caller.post("/mcp", &body).ok(200);
        assert_ne!(answer["result"]["isError"], true, "{answer}");
    };
    let hook = |event: &str| json!({ "client": "claude-code", "payload": { "session_id": "s-3", "hook_event_name": event, "cwd": "/tmp" } });
    let bystander = d.session("s-0");
    let tokens = ["s-1", "s-2", "s-3"].map(|session| d.session(session));
    for token in &tokens {
        call(token, "start_session", &json!({}));
    }
    call(&d, "hook_event", &hook("SessionStart"));
    call(&tokens[0], "end_session", &json!({}));
    call(&d, "end_session", &json!({ "session_id": "s-2" }));
    call(&d, "hook_event", &hook("SessionEnd"));
    for token in &tokens {
        problem(&token.get("/v1/peers"), 401, "unauthorized");
    }
    let again = |d: &Daemon, caller: &Caller| {
        d.with_token(caller.token.as_deref().expect("a token")).get("/v1/peers")
    };
    d.kill_and_restart();
    for token in &tokens {
        problem(&again(&d, token), 401, "unauthorized");
    }
    again(&d, &bystander).ok(200);
    d.session("s-1").get("/v1/peers").ok(200);
}

/// A revoked credential ends open streams, too.
#[test]
fn stream_ends_with_the_token_that_opened_it() {
    let d = Daemon::start();
    let old = d.home.token().unwrap();
    let input = |session: &str| json!({ "session": session, "scopes": ["read_all"] });
    let minted = d.post("/v1/tokens", &input("s-1")).ok(201);
    let mut brief = input("s-2");
    // Long enough to open a stream on a machine that stalls.
    brief["ttl_seconds"] = json!(30);
    let short = d.post("/v1/tokens", &brief).ok(201);
    let short = d.with_token(&text(&short, "token"));
    let gone = d.with_token(&text(&minted, "token"));
    let mut streams: Vec<_> = [&gone, &d.with_token(&old), &short]
        .into_iter()
        .map(|caller| caller.follow("/v1/events?stream_prefix=task/&after=latest"))
        .collect();
    let mut kept = d.reader("s-3").follow("/v1/events?stream_prefix=task/&after=latest");
    // The first item of a stream may come before its first event.
    let first = new_task(&d);
    for stream in streams.iter_mut().chain([&mut kept]) {
        assert_eq!(stream.event().data["stream"], json!(format!("task/{first}")));
    }
    let request = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "start_session", "arguments": {} },
    });
    gone.post("/mcp", &request).ok(200);
    // The call that ends its own session still gets its response, also as a stream.
    let mut request = request;
    request["params"]["name"] = json!("end_session");
    let end = gone.request("POST", "/mcp").header("Accept", "text/event-stream").json(&request);
    let end = end.send();
    assert!(String::from_utf8_lossy(&end.body).contains("ended_at"), "{end:?}");
    eventually(Duration::from_mins(1), || short.get("/v1/peers").status() == 401);
    let new = text(&d.post("/v1/token/rotate", &json!({})).ok(200), "token");
    let second = new_task(&d.with_token(&new));
    assert_eq!(kept.event().data["stream"], json!(format!("task/{second}")));
    for mut stream in streams {
        assert_eq!(stream.rest().len(), 0, "nothing more, and the end");
    }
}

#[test]
fn session_tokens_expire_at_their_time() {
    let d = Daemon::start();
    let minted = d.post("/v1/tokens", &json!({ "session": "s-1", "ttl_seconds": 1 })).ok(201);
    let caller = d.with_token(&text(&minted, "token"));
    eventually(Duration::from_secs(10), || caller.get("/v1/peers").status() == 401);
    let lasting = d.session("s-1");
    peer(&d, "s-1");
    lasting.get("/v1/peers").ok(200);
    let stream = lasting.try_follow("/v1/events?stream=team", None).unwrap();
    assert!(stream.is_ok(), "a token that lasts may follow");
}

#[test]
fn only_the_operator_manages_tokens() {
    let d = Daemon::start();
    let session = d.session("s-1");
    let id = each(&page(&d.get("/v1/tokens"), "tokens"), "token_id").remove(0);
    let id = format!("/v1/tokens/{id}");
    let table = [
        ("GET", "/v1/tokens"),
        ("POST", "/v1/tokens"),
        ("DELETE", id.as_str()),
        ("POST", "/v1/token/rotate"),
    ];
    for (method, path) in table {
        let reply = session.request(method, path).json(&json!({ "session": "s-1" })).send();
        problem(&reply, 403, "forbidden");
    }
    session.get("/v1/peers").ok(200);
}

#[test]
fn no_secret_reaches_the_database_or_the_log() {
    let mut d = Daemon::with(|plan| plan.env("SVC_LOG_LEVEL", "trace"));
    let (message, line, prompt) = ("whispered-message", "whispered-line", "whispered-prompt");
    let operator = d.home.token().unwrap();
    let minted = d.post("/v1/tokens", &json!({ "session": "s-1" })).ok(201);
    let session = text(&minted, "token");
    let id = peer(&d, "s-1");
    d.post(&format!("/v1/peers/{id}/messages"), &json!({ "text": message })).ok(200);
    d.with_token(&session).get(&format!("/v1/peers/{id}/messages")).ok(200);
    d.post("/v1/tasks", &json!({ "prompt": prompt })).ok(201);
    let task = new_task(&d);
    append(&d, &task, &json!([frame(line)]));
    // Invalid requests are where payloads slip into logs.
    let broken = format!("{{\"text\": \"{message}\"");
    let request = d.request("POST", &format!("/v1/peers/{id}/messages"));
    request.header("Content-Type", "application/json").body(broken).send();
    d.post("/v1/tasks", &json!({ "prompt": [prompt] }));
    problem(&d.with_token("wrong-but-secret").get("/v1/peers"), 401, "unauthorized");
    d.get(&format!("/v1/peers?token={operator}"));
    let log = d.stderr();
    assert!(!log.is_empty(), "a daemon at level trace says something");
    for secret in [&operator, &session, "wrong-but-secret", message, line, prompt] {
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
    }

    let in_files = |needle: &str| {
        d.home.store_files().iter().chain(&["daemon.json"]).any(|file| {
            let bytes = fs::read(d.home.path(file)).unwrap_or_default();
            bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
        })
    };
    if d.home.store().is_none() {
        assert!(in_files(line), "the search finds what is there");
    }
    assert!(!in_files(&operator));
    assert!(!in_files(&session));
    d.stop();
}
