//! Login to a server at a URL: once for all callers, and no secret of it is ever shown.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::toy_http::{ToyEra, ToyHttp};
use super::{SOON, body, call, failed, in_state, said, source, ten_calls_succeed, with_servers};
use crate::daemon::{Daemon, Home, Running, free_port, svc, svc_with_input, until};
use crate::wire::Caller;

fn guarded() -> ToyHttp {
    let server = ToyHttp::start(ToyEra::Modern);
    server.issuer().is_wanted = true;
    server
}

/// Requests a URL and follows its redirects, as a browser does.
fn browse(url: &str) -> String {
    let (addr, target) = split(url);
    let reply = Caller { addr, token: None }.request("GET", &target).send();
    assert_eq!(reply.status(), 302, "{reply:?}");
    reply.header("location").expect("a redirect").to_owned()
}

fn split(url: &str) -> (SocketAddr, String) {
    let rest = url.strip_prefix("http://").expect("is http");
    let (host, path) = rest.split_once('/').expect("a path");
    let addr = host.replace("localhost", "127.0.0.1");
    (addr.parse().expect("an address"), format!("/{path}"))
}

fn begin(home: &Home, args: &[&str]) -> (Running, String) {
    let mut command = home.command(&["mcp", "login"]);
    command.args(args).stdin(Stdio::null());
    let started = Running::spawn(command);
    let url = until(SOON, || started.line().filter(|line| line.starts_with("http")));
    (started, url)
}

/// Logs in as a person does.
fn log_in(home: &Home, name: &str) {
    let (started, url) = begin(home, &[name, "--no-browser"]);
    let (addr, target) = split(&browse(&url));
    assert_eq!(Caller { addr, token: None }.request("GET", &target).send().status(), 200);
    started.wait(SOON).ok();
}

#[test]
fn one_login_serves_ten_callers_with_one_renewal() {
    let home = Home::new();
    let server = guarded();
    let d = with_servers(&home, &json!({ "web": { "type": "http", "url": server.url() } }));
    let shown = in_state(&d, "web", "needs_auth");
    assert_eq!(shown["next_action"], "svc mcp login web", "{shown}");
    // A redirect that belongs to no login has no effect.
    let port = free_port();
    let (started, url) = begin(&home, &["web", "--no-browser", "--port", &port.to_string()]);
    let back = browse(&url);
    assert!(back.starts_with(&format!("http://localhost:{port}/callback?")), "{back}");
    let (addr, target) = split(&back);
    let browser = Caller { addr, token: None };
    let stranger = browser.request("GET", "/callback?code=code-1&state=other").send();
    assert_eq!(stranger.status(), 400, "{stranger:?}");
    assert_eq!(browser.request("GET", "/callback?error=denied&state=").send().status(), 400);
    browser.request("GET", &target).send();
    started.wait(SOON).ok();
    in_state(&d, "web", "connected");
    assert_eq!(server.issuer().asked, "tools");
    assert_eq!(said(&call(&d, "web__echo", &json!({ "value": "in" }))), "in");
    // The token has expired for the server: one renewal, and each call succeeds.
    server.issuer().access = "another".to_owned();
    ten_calls_succeed(&d);
    assert_eq!(server.issuer().refreshes, 1);
    // It survives a restart, and a network failure at the wrong moment does not end it.
    let (mut d, refresh) = (d, server.issuer().refresh.clone());
    server.issuer().access = "yet another".to_owned();
    server.issuer().is_gone = true;
    d.restart();
    in_state(&d, "web", "backing_off");
    assert_eq!(server.issuer().refresh, refresh);
    server.issuer().is_gone = false;
    in_state(&d, "web", "connected");
    assert_eq!(server.issuer().refreshes, 2);
    // A login that cannot be renewed ends, once.
    {
        let mut issuer = server.issuer();
        issuer.access = "a third".to_owned();
        issuer.refresh = "gone".to_owned();
    }
    failed(&call(&d, "web__echo", &json!({ "value": "x" })));
    let shown = in_state(&d, "web", "needs_auth");
    assert!(shown["reason"].as_str().is_some_and(|why| why.contains("invalid_grant")), "{shown}");
    // The server names its metadata in a challenge only, and no request has met one since.
    server.issuer().asked.clear();
    log_in(&home, "web");
    assert_eq!(server.issuer().asked, "tools");
    in_state(&d, "web", "connected");
    let told = svc(&home, &["mcp", "logout", "web"]);
    assert!(told.ok().contains("revoked"), "{told:?}");
    in_state(&d, "web", "needs_auth");
    assert_eq!(server.issuer().revoked.len(), 2);
    assert_no_secret_is_shown(
        &home,
        &d,
        &["access-secret", "refresh-secret", "secret-of-issuer", "code-1"],
    );
}

/// Searches for secrets wherever something is stored or shown.
fn assert_no_secret_is_shown(home: &Home, d: &Daemon, secrets: &[&str]) {
    let mut all = vec![
        ("stderr".to_owned(), d.stderr()),
        ("list".to_owned(), d.get("/v1/sources").ok(200).to_string()),
        ("events".to_owned(), body(&d.get("/v1/events?stream=team&limit=500"))),
        ("calls".to_owned(), body(&d.get("/v1/events?stream=source/web&limit=500"))),
        ("table".to_owned(), svc(home, &["mcp", "list"]).ok().to_owned()),
        ("doctor".to_owned(), format!("{:?}", svc(home, &["doctor"]))),
    ];
    all.extend(files(&home.dir()));
    for (place, text) in all {
        for secret in secrets {
            assert!(!text.contains(secret), "{secret} is in {place}");
        }
    }
}

fn files(folder: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if let Ok(bytes) = std::fs::read(&path) {
            all.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    all
}

#[test]
fn wider_scope_request_keeps_granted_scopes() {
    let home = Home::new();
    let server = guarded();
    server.issuer().needs = Some("write".to_owned());
    let d = with_servers(&home, &json!({ "web": { "type": "http", "url": server.url() } }));
    in_state(&d, "web", "needs_auth");
    log_in(&home, "web");
    in_state(&d, "web", "connected");
    let error = failed(&call(&d, "web__echo", &json!({ "value": "x" })));
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains("more than the login")),
        "{error}"
    );
    in_state(&d, "web", "needs_auth");
    log_in(&home, "web");
    assert_eq!(server.issuer().asked, "tools write");
    in_state(&d, "web", "connected");
    assert_eq!(said(&call(&d, "web__echo", &json!({ "value": "x" }))), "x");
}

#[test]
fn wrong_issuer_gets_no_login() {
    let home = Home::new();
    let server = guarded();
    let d = with_servers(&home, &json!({ "web": { "type": "http", "url": server.url() } }));
    in_state(&d, "web", "needs_auth");
    let lies: [(&str, Value, &str); 5] = [
        ("resource", json!("http://127.0.0.1:1/mcp"), "another resource"),
        ("issuer", json!("http://127.0.0.1:1"), "of the issuer"),
        ("code_challenge_methods_supported", json!(["plain"]), "S256"),
        ("token_endpoint", json!("http://example.com/token"), "only https"),
        ("authorization_servers", json!(["http://example.com"]), "only https"),
    ];
    for (name, lie, problem) in lies {
        server.issuer().lies = [(name, lie)].into();
        let told = d.post("/v1/sources/web/login", &json!({})).ok(409).to_string();
        assert!(told.contains(problem), "{name}: {told}");
    }
    server.issuer().lies.clear();
    // A response in the name of another issuer, or of none, gets no code.
    let redirect = |change: &dyn Fn(&str) -> String| {
        let begun = d.post("/v1/sources/web/login", &json!({})).ok(200);
        let back = browse(begun["authorization_url"].as_str().expect("an address"));
        let pasted = json!({ "redirect": change(&back) });
        d.post("/v1/sources/web/login/wait", &pasted).ok(200)
    };
    let without = |back: &str| back.split("&iss=").next().unwrap_or_default().to_owned();
    for (told, problem) in [
        (redirect(&|back| format!("{}&iss=http%3A%2F%2Fother", without(back))), "another issuer"),
        (redirect(&|back| without(back)), "does not name"),
        (redirect(&|back| back.replace("state=", "state=x")), "another login"),
    ] {
        assert_eq!(told["state"], "failed", "{told}");
        assert!(told["reason"].as_str().is_some_and(|why| why.contains(problem)), "{told}");
    }
    let told = redirect(&str::to_owned);
    assert_eq!(told["state"], "done", "{told}");
    in_state(&d, "web", "connected");
    // Only the operator logs in.
    let session = d.session("one");
    assert_eq!(session.post("/v1/sources/web/login", &json!({})).status(), 403);
    assert_eq!(session.post("/v1/sources/web/logout", &json!({})).status(), 403);
    d.post("/v1/sources/nobody/login", &json!({})).ok(404);
}

#[test]
fn secrets_can_be_set_without_a_daemon_and_apply_at_once() {
    let home = Home::new();
    let server = ToyHttp::start(ToyEra::Legacy);
    *server.toy.wants.lock().expect("a lock") = Some(("x-key".to_owned(), "hush-two".to_owned()));
    let add = ["mcp", "add", "web", "-t", "http", "-H", "X-Key: ${WEB_KEY}", &server.url()];
    svc(&home, &add).ok();
    svc_with_input(&home, &["mcp", "secret", "set", "web", "WEB_KEY"], b"hush-one\n").ok();
    let listed = svc(&home, &["mcp", "secret", "list", "web"]);
    assert!(listed.ok().contains("\nWEB_KEY"), "{listed:?}");
    let d = Daemon::with(|plan| plan.home(&home));
    in_state(&d, "web", "needs_auth");
    svc_with_input(&home, &["mcp", "secret", "set", "web", "WEB_KEY"], b"hush-two").ok();
    in_state(&d, "web", "connected");
    svc(&home, &["mcp", "secret", "unset", "web", "WEB_KEY"]).ok();
    let shown = in_state(&d, "web", "misconfigured");
    assert!(shown["reason"].as_str().is_some_and(|why| why.contains("WEB_KEY")), "{shown}");
    for bad in [["set", "web", "NO-NAME"], ["set", "a__b", "KEY"]] {
        let mut args = vec!["mcp", "secret"];
        args.extend(bad);
        assert_eq!(svc_with_input(&home, &args, b"x").code, Some(2), "{bad:?}");
    }
    assert_eq!(svc(&home, &["mcp", "secret", "unset", "web", "WEB_KEY"]).code, Some(1));
    // Like every empty list.
    let none = svc(&home, &["mcp", "secret", "list", "web"]);
    assert!(none.ok().contains("svc mcp secret set"), "{none:?}");
    assert_eq!(none.stderr, "");
    assert_no_secret_is_shown(&home, &d, &["hush-"]);
    assert_eq!(source(&d, "web")["state"], "misconfigured");
}

#[test]
fn project_server_gets_no_secret_of_its_namesake() {
    let home = Home::new();
    let (mine, theirs) = (ToyHttp::start(ToyEra::Legacy), ToyHttp::start(ToyEra::Legacy));
    for (server, key) in [(&mine, "hush-mine"), (&theirs, "hush-theirs")] {
        *server.toy.wants.lock().expect("a lock") = Some(("x-key".to_owned(), key.to_owned()));
    }
    // Before there is an entry, as earlier versions stored it: it is bound to the person's own
    // entry.
    svc_with_input(&home, &["mcp", "secret", "set", "web", "WEB_KEY"], b"hush-mine").ok();
    let project = home.project();
    let servers = json!({
        "web": { "type": "http", "url": theirs.url(), "headers": { "X-Key": "${WEB_KEY}" } },
        "tool": { "command": "echo", "args": ["${TOOL_KEY}"] },
    });
    let file = super::project_file(&project, &servers);
    svc_with_input(&home, &["mcp", "secret", "set", "tool", "TOOL_KEY"], b"hush-tool").ok();
    let approved = svc(&home, &["mcp", "approve", &file.display().to_string()]);
    approved.ok();
    let d = Daemon::with(|plan| plan.home(&home));
    let inside = super::of_project(&d, "s-1", &project.display().to_string());
    for name in ["web", "tool"] {
        let shown = in_state(&inside, name, "misconfigured");
        let reason = shown["reason"].as_str().unwrap_or_default().to_owned();
        assert!(reason.contains("is not set"), "{reason}");
        assert!(reason.contains("kept for another address or file"), "{reason}");
        let next = shown["next_action"].as_str().unwrap_or_default();
        assert!(next.contains(&format!("svc mcp secret set {name}")), "{shown}");
    }
    let add = ["mcp", "add", "web", "-t", "http", "-H", "X-Key: ${WEB_KEY}", &mine.url()];
    svc(&home, &add).ok();
    in_state(&d, "web", "connected");
    // It is bound to that address now, and the project's is still another.
    in_state(&inside, "web", "misconfigured");
    // In the project's folder the name means the project's entry.
    let mut command = home.command(&["mcp", "secret", "set", "web", "WEB_KEY"]);
    command.current_dir(&project).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::null()).spawn().expect("runs");
    let mut input = child.stdin.take().expect("a pipe");
    std::io::Write::write_all(&mut input, b"hush-theirs").expect("is read");
    drop(input);
    assert!(child.wait().expect("ends").success());
    in_state(&inside, "web", "connected");
    in_state(&d, "web", "connected");
    // The person's own server moves: secrets for the old address are not sent to the new one.
    svc(&home, &["mcp", "remove", "web"]).ok();
    let url = format!("http://127.0.0.1:{}/mcp", free_port());
    svc(&home, &["mcp", "add", "web", "-t", "http", "-H", "X-Key: ${WEB_KEY}", &url]).ok();
    let shown = in_state(&d, "web", "misconfigured");
    assert!(shown["reason"].as_str().is_some_and(|why| why.contains("is not set")), "{shown}");
    assert_no_secret_is_shown(&home, &d, &["hush-"]);
}

#[test]
fn redirect_url_can_be_pasted() {
    let home = Home::new();
    let server = guarded();
    let d = with_servers(&home, &json!({ "web": { "type": "http", "url": server.url() } }));
    in_state(&d, "web", "needs_auth");
    let begun = d.post("/v1/sources/web/login", &json!({})).ok(200);
    let waiting = d.post("/v1/sources/web/login/wait", &json!({ "wait_ms": 1 })).ok(200);
    assert_eq!(waiting["state"], "waiting");
    let back = browse(begun["authorization_url"].as_str().expect("an address"));
    let told = d.post("/v1/sources/web/login/wait", &json!({ "redirect": back })).ok(200);
    assert_eq!(told["state"], "done", "{told}");
    in_state(&d, "web", "connected");
}

#[test]
fn short_lived_token_is_renewed_once_for_all_callers() {
    let home = Home::new();
    let server = guarded();
    server.issuer().lasts = 30;
    let d = with_servers(&home, &json!({ "web": { "type": "http", "url": server.url() } }));
    in_state(&d, "web", "needs_auth");
    log_in(&home, "web");
    in_state(&d, "web", "connected");
    let begin = std::sync::Arc::new(std::sync::Barrier::new(10));
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let caller = d.with_token(&home.token().expect("a token"));
            let begin = std::sync::Arc::clone(&begin);
            std::thread::spawn(move || {
                begin.wait();
                said(&call(&caller, "web__echo", &json!({ "value": "x" })))
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.join().expect("answers"), "x");
    }
    // On a busy machine one renewal may happen meanwhile.
    let refreshes = server.issuer().refreshes;
    assert!(refreshes <= 1, "{refreshes} renewals of a token that is good for 30 s");
}

#[test]
fn calls_that_wait_for_a_failed_renewal_were_not_made() {
    let home = Home::new();
    let server = guarded();
    server.issuer().lasts = 1;
    let d = with_servers(&home, &json!({ "web": { "type": "http", "url": server.url() } }));
    in_state(&d, "web", "needs_auth");
    log_in(&home, "web");
    in_state(&d, "web", "connected");
    // While this is held, the issuer answers no renewal.
    let mut issuer = server.issuer();
    issuer.refresh = "gone".to_owned();
    let since = Instant::now();
    until(SOON, || (since.elapsed() > Duration::from_secs(1)).then_some(()));
    let begin = std::sync::Arc::new(std::sync::Barrier::new(11));
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let caller = d.with_token(&home.token().expect("a token"));
            let begin = std::sync::Arc::clone(&begin);
            std::thread::spawn(move || {
                begin.wait();
                failed(&call(&caller, "web__echo", &json!({ "value": "x" })))
            })
        })
        .collect();
    begin.wait();
    // The daemon takes the requests of clients meanwhile.
    for _ in 0..20 {
        d.get("/health").ok(200);
    }
    assert_eq!(issuer.refusals, 0, "the calls began before the renewal failed");
    drop(issuer);
    for call in calls {
        let error = call.join().expect("answers");
        assert_eq!(error["type"], "unavailable", "{error}");
        assert_eq!(error["allowed"]["outcome"], Value::Null, "no call reached the server: {error}");
    }
    assert_eq!(server.toy.echoed.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert!(server.issuer().refusals > 0, "a renewal failed");
    in_state(&d, "web", "needs_auth");
    let error = failed(&call(&d, "web__echo", &json!({ "value": "x" })));
    assert_eq!(error["retryable"], false, "{error}");
}

/// Another origin gets no token, whatever the issuer's metadata say.
#[test]
fn tokens_are_revoked_only_at_their_issuer() {
    let home = Home::new();
    let (server, elsewhere) = (guarded(), guarded());
    let revoke = format!("http://{}/revoke", elsewhere.addr);
    server.issuer().lies.insert("revocation_endpoint", json!(revoke));
    let d = with_servers(&home, &json!({ "web": { "type": "http", "url": server.url() } }));
    in_state(&d, "web", "needs_auth");
    log_in(&home, "web");
    in_state(&d, "web", "connected");
    let told = svc(&home, &["mcp", "logout", "web"]);
    assert!(told.ok().contains("its tokens are deleted here"), "{told:?}");
    assert_eq!(elsewhere.issuer().revoked, Vec::<String>::new());
    in_state(&d, "web", "needs_auth");
}
