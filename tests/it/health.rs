//! Health, the files of a running daemon, start and shutdown.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::json;

use crate::daemon::{Daemon, Home, Running, eventually, free_port, quickly, svc, until};
use crate::expect::{append, frame, instant, new_task, problem, subscribe, with_task};
use crate::stored::is_in_file;
use crate::wire::{Conn, Reply, Request, exchange};

fn mode(path: &Path) -> u32 {
    let meta = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    meta.permissions().mode() & 0o777
}

#[test]
fn health_needs_no_token_and_names_the_server() {
    let d = Daemon::start();
    for caller in [d.stranger(), d.with_token("wrong"), d.with_token(&d.home.token().unwrap())] {
        let health = caller.get("/health").ok(200);
        assert_eq!(health["status"], "healthy");
        assert_eq!(health["server"], "svc");
        assert_eq!(health["version"], json!(d.version));
        assert_eq!(health["pid"], json!(d.pid()));
        assert!(health["boot_id"].as_str().is_some_and(|id| !id.is_empty()), "{health}");
        instant(&health["started_at"]);
    }
    // A load balancer's probe uses HEAD.
    let head = d.stranger().request("HEAD", "/health").bytes();
    let mut conn = Conn::open(d.addr).unwrap();
    conn.write(&head).unwrap();
    assert_eq!(conn.head().unwrap().status, 200);
}

#[test]
fn detailed_health_needs_a_token() {
    let d = Daemon::start();
    problem(&d.stranger().get("/v1/health"), 401, "unauthorized");
    let health = d.get("/v1/health").ok(200);
    assert_eq!(health["status"], "ok");
    assert_eq!(health["version"], json!(d.version));
    for member in ["name", "version", "target", "profile"] {
        assert!(health["build"][member].is_string(), "build.{member} in {health}");
    }
    let store = &health["store"];
    assert_eq!(store["path"], d.home.shown_store());
    for member in ["size_bytes", "wal_bytes", "head", "schema_version"] {
        assert!(store[member].is_u64(), "store.{member} in {health}");
    }
    assert!(health["uptime_seconds"].is_number(), "{health}");

    let before = store["head"].as_u64().unwrap();
    let task = new_task(&d);
    append(&d, &task, &json!([frame("one"), frame("two")]));
    let after = d.get("/v1/health").ok(200)["store"]["head"].as_u64().unwrap();
    assert_eq!(after - before, 3, "the head counts what was appended");
}

#[test]
fn daemon_files_are_private_and_removed_at_exit() {
    let mut d = Daemon::start();
    new_task(&d);
    assert_eq!(mode(&d.home.dir()), 0o700);
    for file in d.home.store_files().iter().chain(&["svc.db.lock", "token", "daemon.json"]) {
        assert_eq!(mode(&d.home.path(file)), 0o600, "{file}");
    }
    let json = d.home.daemon_json().expect("daemon.json");
    assert_eq!(json["pid"], json!(d.pid()));
    assert_eq!(json["url"], json!(d.url()));
    assert_eq!(json["version"], json!(d.version));
    assert_eq!(json["boot_id"], d.get("/health").ok(200)["boot_id"]);
    instant(&json["started_at"]);

    let token = d.home.token().unwrap();
    assert_eq!(token.len(), 64, "32 bytes in hex");
    assert!(token.bytes().all(|byte| byte.is_ascii_hexdigit()));

    d.stop();
    assert!(!d.home.path("daemon.json").exists());
    assert_eq!(d.home.token(), Some(token), "the token stays for the next start");
}

#[test]
fn each_start_has_a_new_boot_id_and_the_same_token() {
    let mut d = Daemon::start();
    let boot = d.get("/health").ok(200)["boot_id"].clone();
    let token = d.home.token();
    d.restart();
    assert_ne!(d.get("/health").ok(200)["boot_id"], boot);
    assert_eq!(d.home.token(), token);
}

#[test]
fn daemon_starts_after_a_killed_one() {
    let (mut d, task) = with_task();
    d.kill9();
    assert!(d.home.path("daemon.json").exists(), "nobody could remove it");
    d.restart();
    assert_eq!(d.home.daemon_json().unwrap()["pid"], json!(d.pid()));
    d.get(&format!("/v1/tasks/{task}")).ok(200);
}

#[test]
fn sigterm_ends_streams_cleanly_and_exits_zero() {
    quickly(Duration::from_secs(5), || {
        let (mut d, task) = with_task();
        let mut streams = vec![
            d.follow(&subscribe(&task)),
            d.follow(&subscribe(&task)),
            d.follow("/v1/events?after=latest"),
        ];
        // Nor do idle connections.
        let idle = Conn::open(d.addr).unwrap();
        let mut used = Conn::open(d.addr).unwrap();
        used.write(&d.request("GET", "/health").without("Connection").bytes()).unwrap();
        assert_eq!(used.reply().unwrap().status(), 200);
        let took = d.stop();
        for stream in &mut streams {
            stream.rest();
        }
        drop((idle, used));
        took
    });
}

#[test]
fn endless_request_does_not_block_shutdown() {
    let mut d = Daemon::start();
    let request = d.request("POST", "/v1/tasks").header("Content-Type", "application/json");
    let mut half = Conn::open(d.addr).unwrap();
    half.write(&request.header("Content-Length", "100").bytes()).unwrap();
    half.write(b"{").unwrap();
    let mut less = Conn::open(d.addr).unwrap();
    less.write(b"GET /v1/pe").unwrap();
    // By now the request has been read, and shutdown waits for it.
    d.get("/health").ok(200);
    d.stop();
    assert!(d.request("GET", "/health").try_send().is_err(), "nobody is there");
}

#[test]
fn second_signal_ends_the_drain() {
    // The first signal gives requests ten seconds.
    quickly(Duration::from_secs(8), || {
        let mut d = Daemon::start();
        let request = d.request("POST", "/v1/tasks").header("Content-Type", "application/json");
        let mut half = Conn::open(d.addr).unwrap();
        half.write(&request.header("Content-Length", "100").bytes()).unwrap();
        d.get("/health").ok(200);
        let asked = Instant::now();
        d.signal(Signal::INT);
        eventually(Duration::from_secs(5), || {
            d.request("GET", "/health").try_send().map_or(true, |reply| reply.status() == 503)
        });
        d.stop();
        asked.elapsed()
    });
}

#[test]
fn second_daemon_on_one_home_names_the_first_and_changes_nothing() {
    let d = Daemon::start();
    let files = ["daemon.json", "token", d.home.store_files().first().unwrap_or(&"svc.db.lock")];
    let state = |file: &str| {
        let modified = fs::metadata(d.home.path(file)).unwrap().modified().unwrap();
        (d.home.read(file), modified)
    };
    let before = files.map(state);

    let ran = svc(&d.home, &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains(&d.pid().to_string()), "{ran:?}");
    assert!(ran.stderr.contains(&d.url()), "{ran:?}");

    assert!(files.map(state) == before, "the first daemon's files are as they were");
    d.get("/v1/health").ok(200);
}

/// The daemon with the database is not ready yet when the others find it locked.
#[test]
fn concurrent_starts_name_the_one_that_won() {
    let home = Home::new();
    assert!((0..5).any(|_| losers_name_the_winner(&home)), "no start was in time");
}

/// They wait two seconds for its name, within which it may not be ready on a busy machine.
#[track_caller]
fn losers_name_the_winner(home: &Home) -> bool {
    let began = Instant::now();
    let mut racing: Vec<_> = (0..4)
        .map(|_| Running::spawn(home.command(&["serve", "--listen", "127.0.0.1:0"])))
        .collect();
    let daemon = until(Duration::from_secs(20), || home.daemon_json());
    let is_late = began.elapsed() > Duration::from_secs(2);
    let pid = u32::try_from(daemon["pid"].as_u64().expect("a pid")).expect("of a process");
    let winner = racing.iter().position(|it| it.pid() == pid).expect("is one of them");
    let winner = racing.remove(winner);
    let names = [pid.to_string(), daemon["url"].as_str().expect("a URL").to_owned()];
    let mut are_told = true;
    for loser in racing {
        let ran = loser.wait(Duration::from_secs(20));
        assert_eq!(ran.code, Some(3), "{ran:?}");
        let is_told = names.iter().all(|name| ran.stderr.contains(name));
        assert!(is_told || is_late, "{names:?} in {ran:?}");
        are_told &= is_told;
    }
    winner.signal(Signal::TERM);
    assert_eq!(winner.wait(Duration::from_secs(20)).code, Some(0));
    are_told
}

/// Closing a terminal ends the daemon like SIGTERM, unless it was started to outlive the terminal.
#[test]
fn sighup_ends_cleanly_except_under_nohup() {
    for (trap, survives) in [("", false), ("trap '' HUP; ", true)] {
        let home = Home::new();
        let serve = format!("{trap}exec {} serve --listen 127.0.0.1:0", env!("CARGO_BIN_EXE_svc"));
        let like = home.command(&[]);
        let env = like.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let mut shell = Command::new("sh");
        shell.args(["-c", &serve]).env_clear().envs(env).current_dir(home.user());
        let running = Running::spawn(shell);
        assert!(running.line().is_some_and(|line| line.contains("ready")));
        running.signal(Signal::HUP);
        if survives {
            svc(&home, &["health"]).ok();
            running.signal(Signal::TERM);
        }
        let ran = running.wait(Duration::from_secs(20));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(!home.path("daemon.json").exists(), "a clean end: {ran:?}");
    }
}

#[test]
fn busy_port_error_names_port_and_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let home = Home::new();
    let ran = svc(&home, &["serve", "--listen", &addr.to_string()]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(&addr.port().to_string()), "{ran:?}");
    assert!(ran.stderr.contains("--listen"), "{ran:?}");
    assert!(!home.path("daemon.json").exists(), "nobody is there, so nobody says so");
}

#[test]
fn daemon_listens_on_every_given_address() {
    let other = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let d = Daemon::with(|plan| plan.flag("--listen").flag(&other.to_string()));
    d.get("/v1/health").ok(200);
    let request = format!("GET /health HTTP/1.1\r\nHost: {other}\r\nConnection: close\r\n\r\n");
    assert_eq!(exchange(other, request.as_bytes()).unwrap().status(), 200);
}

#[test]
fn no_auth_is_refused_beyond_loopback() {
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let home = Home::new();
        let ran = svc(&home, &["serve", "--no-auth", "--listen", listen]);
        assert!(matches!(ran.code, Some(1 | 2)), "{listen}: {ran:?}");
        assert!(ran.stderr.contains("loopback"), "{listen}: {ran:?}");
        assert!(!home.path("daemon.json").exists(), "{listen}");
    }
    let home = Home::new();
    let mixed = ["serve", "--no-auth", "--listen", "127.0.0.1:0", "--listen", "0.0.0.0:0"];
    let ran = svc(&home, &mixed);
    assert!(matches!(ran.code, Some(1 | 2)), "one open address is enough: {ran:?}");
}

#[test]
fn no_auth_on_loopback_makes_the_users_programs_operator() {
    let d = Daemon::with(|plan| plan.flag("--no-auth"));
    d.stranger().get("/v1/peers").ok(200);
    d.stranger().get("/v1/tokens").ok(200);
    d.with_token("whatever").get("/v1/tokens").ok(200);
    // Other sites are refused all the same.
    let evil = d.stranger().request("GET", "/v1/peers").header("Origin", "http://evil.example");
    problem(&evil.send(), 403, "forbidden");
    // A page of another site can send a GET without `Origin`, but its browser marks the request.
    for path in ["/v1/peers", "/metrics", "/mcp", "/sse", "/no/such/path"] {
        for site in ["cross-site", "same-site"] {
            for method in ["GET", "POST"] {
                let asked = d.stranger().request(method, path).header("Sec-Fetch-Site", site);
                problem(&asked.send(), 403, "forbidden");
            }
        }
    }
    for site in ["same-origin", "none"] {
        d.stranger().request("GET", "/v1/peers").header("Sec-Fetch-Site", site).send().ok(200);
    }
    d.stranger().request("GET", "/health").header("Sec-Fetch-Site", "cross-site").send().ok(200);
    // With tokens the token decides.
    let guarded = Daemon::start();
    guarded.request("GET", "/v1/peers").header("Sec-Fetch-Site", "cross-site").send().ok(200);
}

#[test]
fn no_auth_is_announced_at_start() {
    for (flags, warned) in [(&["--no-auth"][..], true), (&[], false)] {
        let home = Home::new();
        let start = [&["start", "--listen", "127.0.0.1:0"], flags].concat();
        let ran = svc(&home, &start);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let log = fs::read_to_string(home.path("svc.log")).unwrap();
        svc(&home, &["stop"]);
        for said in [ran.stderr.as_str(), log.as_str()] {
            assert_eq!(said.contains("every program of your user"), warned, "{flags:?}: {said}");
        }
    }
}

fn is_unavailable(reply: &Reply) -> bool {
    problem(reply, 503, "unavailable").is_object()
}

/// An MCP client that resumes its stream tries only twice, so an attempt must wait while the daemon
/// starts.
#[test]
fn mcp_request_waits_for_a_starting_daemon() {
    only_if!(is_in_file());
    let mut d = Daemon::start();
    let caller = d.with_token(&d.home.token().unwrap());
    d.kill9();
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    // A start waits for a lock for five seconds, and a request for a start for ten, which a busy
    // machine may take: then it is attempted anew.
    let waits = (0..5).any(|_| {
        // The first write of a start waits for another lock on the file.
        let file = Connection::open(d.home.path("svc.db")).unwrap();
        file.execute_batch("begin immediate").unwrap();
        let began = Instant::now();
        let (waits, has_started) = thread::scope(|scope| {
            let starting = scope.spawn(|| d.restart());
            eventually(Duration::from_secs(5), || {
                starting.is_finished() || caller.request("GET", "/health").try_send().is_ok()
            });
            let waiting = scope.spawn(|| caller.request("POST", "/mcp").json(&ping).try_send());
            thread::sleep(Duration::from_millis(300));
            let refused = caller.request("GET", "/v1/peers").try_send();
            let waits = !waiting.is_finished();
            file.execute_batch("commit").unwrap();
            let answer = waiting.join().unwrap();
            let is_so = waits
                && refused.is_ok_and(|reply| is_unavailable(&reply))
                && answer.is_ok_and(|reply| {
                    reply.status() == 200 && reply.json()["result"] == json!({})
                });
            (is_so, starting.join().is_ok())
        });
        assert!(waits || began.elapsed() > Duration::from_secs(4), "a request did not wait");
        if has_started && !waits {
            d.kill9();
        }
        waits && has_started
    });
    assert!(waits, "no attempt was in time");
}

/// While a request is under way, requests on other open connections get a 503.
#[test]
fn open_connection_gets_503_during_shutdown() {
    // A drain lasts for ten seconds, and a busy machine may take longer.
    let is_so = (0..5).any(|_| {
        let mut d = Daemon::start();
        let began = Instant::now();
        let refuses = refuses_while_it_drains(&d);
        let took = began.elapsed();
        assert!(refuses.is_ok() || took > Duration::from_secs(9), "{took:?}: {refuses:?}");
        d.stop();
        refuses.is_ok()
    });
    assert!(is_so, "no attempt was in time");
}

/// An error if a connection was cut.
#[track_caller]
fn refuses_while_it_drains(d: &Daemon) -> io::Result<()> {
    let caller = d.with_token(&d.home.token().expect("a token"));
    let open = |request: Request| {
        let mut conn = Conn::open(caller.addr).expect("a connection");
        conn.write(&request.without("Connection").bytes()).expect("it writes");
        conn
    };
    let mut idle = open(caller.request("GET", "/health"));
    idle.reply().expect("a reply").ok(200);
    // Half a body keeps its request under way.
    let body = json!({ "title": "the last one" });
    let whole = caller.request("POST", "/v1/tasks").json(&body).bytes();
    let (first, rest) = whole.split_at(whole.len() - 4);
    let mut half = Conn::open(caller.addr).expect("a connection");
    half.write(first).expect("it writes");
    caller.get("/v1/health").ok(200);
    d.signal(Signal::TERM);
    let health = caller.request("GET", "/health").without("Connection").bytes();
    let refusal = until(Duration::from_secs(30), || {
        let reply = idle.write(&health).and_then(|()| idle.reply());
        match reply {
            Ok(reply) if reply.status() == 200 => None,
            reply => Some(reply),
        }
    })?;
    problem(&refusal, 503, "unavailable");
    assert_eq!(refusal.header("retry-after"), Some("1"));
    assert_eq!(refusal.header("connection"), Some("close"));
    assert!(idle.write(&health).and_then(|()| idle.reply()).is_err(), "and then it is closed");
    half.write(rest)?;
    assert_eq!(half.reply()?.ok(201)["title"], "the last one");
    Ok(())
}

#[test]
fn doctor_report_needs_the_operator() {
    let d = Daemon::start();
    let found = d.get("/v1/doctor").ok(200);
    let by_hand = svc(&d.home, &["doctor", "--json"]);
    let by_hand: serde_json::Value = serde_json::from_str(by_hand.ok()).expect("JSON");
    let checks = |found: &serde_json::Value| -> Vec<(serde_json::Value, serde_json::Value)> {
        let checks = found["checks"].as_array().expect("checks");
        checks.iter().map(|check| (check["check"].clone(), check["level"].clone())).collect()
    };
    assert_eq!(checks(&found), checks(&by_hand), "{found}");
    assert_eq!(found["ok"], by_hand["ok"]);
    assert!(checks(&found).iter().any(|(check, _)| check == "configuration"), "{found}");
}
