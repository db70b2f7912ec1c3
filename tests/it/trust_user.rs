//! The process at the other end of a connection: other users of this machine have no access through
//! what was made for this user's browsers and processes, whichever address they connect from and
//! whichever headers they send.
//!
//! Requests of another user are sent by `curl`, which only root can start as another user.

use std::fs;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, Running, eventually, free_port, svc, until};
use crate::expect::{problem, text};
use crate::identity::process_token;
use crate::wire::{Caller, Reply};

const SOON: Duration = Duration::from_secs(30);
/// `www-data` on many systems. It need not have a name.
const OTHER_USER: u32 = 33;

#[derive(Debug)]
struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    #[track_caller]
    fn is_refused(&self, reason: &str) {
        assert_eq!(self.status, 403, "{self:?}");
        let document: Value = serde_json::from_str(&self.body).expect("a problem");
        assert_eq!(document["code"], "forbidden", "{document}");
        let detail = document["detail"].as_str().expect("a detail");
        assert!(detail.contains(reason), "{detail}");
        assert!(!self.body.contains("set-cookie"), "{self:?}");
    }
}

/// Runs `curl` as this user or another.
#[track_caller]
fn curl(user: Option<u32>, arguments: &[&str]) -> Answer {
    let mut command = Command::new("curl");
    command
        .args(["-sS", "--noproxy", "*", "--max-time", "60", "-w", "\n%{http_code}"])
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir("/")
        .stdin(Stdio::null());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = command.output().expect("curl starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    let (body, status) = printed.rsplit_once('\n').unwrap_or_default();
    let errors = String::from_utf8_lossy(&output.stderr);
    let status = status.parse().unwrap_or_else(|_| panic!("{arguments:?}: {errors}"));
    Answer { status, body: body.to_owned() }
}

/// Whether `curl` exists and can run as another user. If not, a line says so.
#[expect(clippy::print_stdout, reason = "a part of a test that is skipped is said")]
fn has_another_user() -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: requests of another user (only root can send them)");
        return false;
    }
    let there = Command::new("curl").arg("--version").stdout(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        println!("skipped: requests of another user (no curl here)");
        return false;
    }
    true
}

/// An address of this machine that others can reach, if it has one.
#[expect(clippy::print_stdout, reason = "a part of a test that is skipped is said")]
fn network_address() -> Option<IpAddr> {
    // Nothing is sent: the socket gets its source address.
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    let address = socket.connect("198.51.100.1:9").and_then(|()| socket.local_addr()).ok();
    let address = address.map(|address| address.ip()).filter(|ip| !ip.is_loopback());
    if address.is_none() {
        println!("skipped: requests by an address of the network (this machine has none)");
    }
    address
}

fn code(d: &Daemon) -> String {
    text(&d.post("/v1/login_codes", &json!({})).ok(201), "code")
}

fn ticket(d: &Daemon) -> String {
    text(&d.post("/v1/login_tickets", &json!({})).ok(201), "ticket")
}

#[track_caller]
fn cookie_secret(d: &Daemon) -> String {
    let reply = d.stranger().post("/login", &json!({ "code": code(d) }));
    assert_eq!(reply.status(), 200, "{reply:?}");
    let pair = reply.header("set-cookie").expect("a cookie").split(';').next().expect("a pair");
    pair.split_once('=').expect("a value").1.to_owned()
}

fn page_host(d: &Daemon) -> String {
    let url = text(&svc(&d.home, &["open", "--json"]).json(), "url");
    let rest = url.strip_prefix("http://").expect("a URL");
    rest.split(':').next().expect("a host").to_owned()
}

#[test]
fn cookie_is_invalid_for_other_users_by_any_address_or_header() {
    let lan = network_address();
    let lan_port = free_port();
    let d = Daemon::with(|plan| {
        let plan = plan.flag("--allowed-host").flag("svc.example");
        match lan {
            Some(ip) => plan.flag("--listen").flag(&format!("{ip}:{lan_port}")),
            None => plan,
        }
    });
    let secret = cookie_secret(&d);
    only_if!(has_another_user());
    let loopback = d.url();
    let mut ways: Vec<Vec<String>> = vec![
        vec![format!("{loopback}/v1/tokens")],
        vec!["--interface".into(), "127.0.0.9".into(), format!("{loopback}/v1/tokens")],
        // A proxy's name gives no access.
        vec!["-H".into(), "Host: svc.example".into(), format!("{loopback}/v1/tokens")],
    ];
    if let Some(ip) = lan {
        let (ip, at_lan) = (ip.to_string(), format!("http://{ip}:{lan_port}/v1/tokens"));
        ways.push(vec!["--interface".into(), ip.clone(), format!("{loopback}/v1/tokens")]);
        ways.push(vec![at_lan.clone()]);
        ways.push(vec!["-H".into(), "Host: svc.example".into(), at_lan]);
    }
    let ask = |user, way: &[String]| {
        let url = way.last().expect("a URL");
        let is_named = way.iter().any(|word| word.contains("svc.example"));
        let port = url.trim_end_matches("/v1/tokens").rsplit_once(':').expect("a port").1;
        let port = if is_named { "80" } else { port };
        let cookie = format!("Cookie: svc_page_{port}={secret}");
        let mut arguments = vec!["-H", "Svc-Page: 1", "-H", &cookie];
        arguments.extend(way.iter().map(String::as_str));
        curl(user, &arguments)
    };
    for way in &ways {
        ask(Some(OTHER_USER), way).is_refused("another user of this machine");
        assert_eq!(ask(None, way).status, 200, "{way:?}: the user's own program");
    }
}

#[test]
fn sign_in_by_another_user_is_refused_and_consumes_nothing() {
    let d = Daemon::start();
    let (code, ticket) = (code(&d), ticket(&d));
    let url = format!("{}/login", d.url());
    let give = |user, body: &Value| {
        let body = body.to_string();
        curl(user, &["-X", "POST", "-H", "Content-Type: application/json", "-d", &body, &url])
    };
    let (by_code, by_ticket) = (json!({ "code": code }), json!({ "ticket": ticket }));
    if has_another_user() {
        for body in [&by_code, &by_ticket] {
            give(Some(OTHER_USER), body).is_refused("another user of this machine");
        }
        // The response does not tell a wrong key from a valid one.
        give(Some(OTHER_USER), &json!({ "ticket": "0" })).is_refused("another user");
    }
    for body in [&by_code, &by_ticket] {
        assert_eq!(d.stranger().post("/login", body).status(), 200, "{body}");
        problem(&d.stranger().post("/login", body), 403, "forbidden");
    }
    for (body, status) in [
        (json!({ "code": ticket }), 403),
        (json!({ "ticket": code }), 403),
        (json!({ "code": code, "ticket": ticket }), 422),
        (json!({}), 422),
    ] {
        assert_eq!(d.stranger().post("/login", &body).status(), status, "{body}");
    }
    problem(&d.reader("agent").post("/v1/login_tickets", &json!({})), 403, "forbidden");
}

#[test]
fn configured_proxy_forwards_cookies_and_codes_but_no_tickets() {
    only_if!(has_another_user());
    let user = OTHER_USER.to_string();
    let d = Daemon::with(|plan| plan.flag("--proxy-user").flag(&user));
    let (code, ticket) = (code(&d), ticket(&d));
    let url = format!("{}/login", d.url());
    let give = |body: &Value| {
        let body = body.to_string();
        let json = "Content-Type: application/json";
        curl(Some(OTHER_USER), &["-X", "POST", "-H", json, "-d", &body, &url])
    };
    assert_eq!(give(&json!({ "code": code })).status, 200);
    give(&json!({ "ticket": ticket })).is_refused("a ticket is for a browser");
    assert_eq!(d.stranger().post("/login", &json!({ "ticket": ticket })).status(), 200);
    let cookie = format!("Cookie: svc_page_{}={}", d.port(), cookie_secret(&d));
    let peers = format!("{}/v1/peers", d.url());
    let ask = |user| curl(Some(user), &["-H", "Svc-Page: 1", "-H", &cookie, &peers]);
    assert_eq!(ask(OTHER_USER).status, 200);
    ask(OTHER_USER + 1).is_refused("another user of this machine");
}

#[test]
fn proxy_user_must_exist() {
    let home = Home::new();
    let args = ["serve", "--listen", "127.0.0.1:0", "--proxy-user", "no-such-user-of-svc"];
    let ran = svc(&home, &args);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("no-such-user-of-svc") && ran.stderr.contains("proxy_user"),
        "{ran:?}"
    );
    let d = Daemon::with(|plan| plan.env("SVC_PROXY_USER", "root,33"));
    d.get("/v1/peers").ok(200);
}

#[test]
fn no_auth_makes_only_this_users_programs_operator() {
    only_if!(has_another_user());
    let user = OTHER_USER.to_string();
    // A proxy forwards requests of others, so it is not the operator either.
    for flags in [&[][..], &["--proxy-user", &user]] {
        let d = Daemon::with(|plan| {
            flags.iter().fold(plan.flag("--no-auth"), |plan, flag| plan.flag(flag))
        });
        let at = |path: &str| format!("{}{path}", d.url());
        assert_eq!(curl(None, &[&at("/v1/tokens")]).status, 200);
        curl(Some(OTHER_USER), &[&at("/v1/tokens")]).is_refused("no_auth");
        let wrong = ["-H", "Authorization: Bearer wrong", &at("/v1/tokens")];
        curl(Some(OTHER_USER), &wrong).is_refused("no_auth");
        curl(Some(OTHER_USER), &["-d", "{}", &at("/v1/tasks")]).is_refused("no_auth");
        if let Some(ip) = network_address() {
            let ip = ip.to_string();
            let from = ["--interface", &ip, &at("/v1/tokens")];
            curl(Some(OTHER_USER), &from).is_refused("no_auth");
            assert_eq!(curl(None, &from).status, 200);
        }
        assert_eq!(curl(Some(OTHER_USER), &[&at("/health")]).status, 200);
        assert_eq!(curl(Some(OTHER_USER), &[&at("/")]).status, 200);
        // A token is a credential of its own.
        let minted = text(&d.post("/v1/tokens", &json!({ "session": "s" })).ok(201), "token");
        let bearer = format!("Authorization: Bearer {minted}");
        assert_eq!(curl(Some(OTHER_USER), &["-H", &bearer, &at("/v1/peers")]).status, 200);
    }
}

#[test]
fn process_token_is_invalid_for_other_users() {
    let d = Daemon::start();
    let token = process_token(&d.home);
    d.with_token(&token).get("/v1/peers").ok(200);
    if has_another_user() {
        let bearer = format!("Authorization: Bearer {token}");
        let url = format!("{}/v1/peers", d.url());
        let ask = |user| curl(user, &["-H", &bearer, &url]);
        ask(Some(OTHER_USER)).is_refused("another user of this machine");
        assert_eq!(ask(None).status, 200);
    }
}

/// A page on another port of the same host sets a cookie with the daemon's cookie name for a longer
/// path, which comes first.
#[test]
fn cookie_set_by_another_port_does_not_hide_a_sign_in() {
    let d = Daemon::start();
    let (name, secret) = (format!("svc_page_{}", d.port()), cookie_secret(&d));
    let wrong = "0".repeat(64);
    let ask = |cookies: &str| {
        let request = d.stranger().request("GET", "/v1/peers").header("Svc-Page", "1");
        request.header("Cookie", cookies).send()
    };
    for cookies in [
        format!("{name}={wrong}; {name}={secret}"),
        format!("{name}={secret}; {name}={wrong}"),
        format!("{name}=; {name}=\"x\"; {name}={wrong}; other=1; {name}={secret}"),
    ] {
        assert_eq!(ask(&cookies).status(), 200, "{cookies}");
    }
    problem(&ask(&format!("{name}={wrong}; {name}={wrong}")), 401, "unauthorized");
}

#[test]
fn page_host_is_in_no_unauthenticated_response() {
    let mut d = Daemon::start();
    let host = page_host(&d);
    let name = host.strip_prefix("svc-").and_then(|rest| rest.strip_suffix(".localhost"));
    let name = name.unwrap_or_else(|| panic!("{host}")).to_owned();
    let is_random = |c: char| c.is_ascii_digit() || c.is_ascii_lowercase();
    assert!(name.len() >= 8 && name.chars().all(is_random), "{name}");
    let mode = fs::metadata(d.home.path("page_name")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let get = |d: &Daemon, host: &str, path: &str| {
        d.stranger().request("GET", path).without("Host").header("Host", host).send()
    };
    let named = |host: &str| format!("{host}:{}", d.port());
    for good in [named(&host), named(&host.to_uppercase()), named("localhost"), host.clone()] {
        assert_eq!(get(&d, &good, "/").status(), 200, "{good}");
    }
    for bad in ["svc-00000000.localhost", "x.localhost", &format!("x.{host}"), "svc.localhost"] {
        problem(&get(&d, &named(bad), "/"), 403, "forbidden");
    }
    // A browser there is the page itself.
    let origin = format!("http://{}", named(&host));
    let request = d.stranger().request("POST", "/login").without("Host");
    let request = request.header("Host", &named(&host)).header("Origin", &origin);
    let reply = request.header("Sec-Fetch-Site", "same-origin").json(&json!({ "code": code(&d) }));
    let reply = reply.send();
    assert_eq!(reply.status(), 200, "{reply:?}");
    let cookie = reply.header("set-cookie").expect("a cookie");
    assert!(!cookie.to_ascii_lowercase().contains("domain="), "for that name alone: {cookie}");
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }

    let told = |reply: &Reply| {
        let headers = format!("{reply:?}");
        headers.contains(&name) || String::from_utf8_lossy(&reply.body).contains(&name)
    };
    for host in ["localhost", "127.0.0.1", "evil.example", "x.localhost"] {
        for path in [
            "/",
            "/login",
            "/assets/login.js",
            "/assets/app.js",
            "/health",
            "/v1/health",
            "/.well-known/oauth-protected-resource",
            "/openapi.json",
            "/mcp",
            "/no/such/path",
        ] {
            assert!(!told(&get(&d, &named(host), path)), "{host} {path}");
        }
        let request = d.stranger().request("POST", "/login").without("Host");
        let refused = request.header("Host", &named(host)).json(&json!({ "code": "0" })).send();
        assert!(!told(&refused), "{host}: {refused:?}");
    }
    d.restart();
    assert_eq!(page_host(&d), host, "a data folder keeps its name");
    assert_ne!(page_host(&Daemon::start()), host, "another has another");
}

#[test]
fn open_prints_links_for_each_kind_of_browser() {
    let d = Daemon::start();
    let link = |args: &[&str]| text(&svc(&d.home, args).json(), "url");
    let named = link(&["open", "--json"]);
    assert!(named.starts_with(&format!("http://{}:{}/login#", page_host(&d), d.port())), "{named}");
    let plain = link(&["open", "--plain", "--json"]);
    let code = plain.strip_prefix(&format!("{}/login#", d.url())).expect("by the address");
    assert_eq!(d.stranger().post("/login", &json!({ "code": code })).status(), 200);
    // A URL on the command line is used unchanged.
    let given = link(&["--url", &d.url(), "open", "--json"]);
    assert!(given.starts_with(&format!("{}/login#", d.url())), "{given}");
}

/// A program that opens links and records its arguments.
fn fake_opener(folder: &Path) -> std::ffi::OsString {
    let program = folder.join("xdg-open");
    let script = "#!/bin/sh\nprintf '%s\\n' \"$@\" >\"$0.new\"\nmv \"$0.new\" \"$0.args\"\n";
    fs::write(&program, script).expect("a file");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
    let mut path = folder.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

#[test]
fn browser_opener_gets_no_reusable_secret() {
    let d = Daemon::with(|plan| plan.flag("--log-level").flag("trace"));
    let folder = d.home.user().to_owned();
    let mut command = d.home.command(&["open"]);
    command.env("PATH", fake_opener(&folder)).env("DISPLAY", ":0");
    let ran = Running::spawn(command).wait(SOON);
    let printed = ran.ok().trim().to_owned();
    let code = printed.split_once("/login#").expect("a code").1;
    let opened = until(SOON, || fs::read_to_string(folder.join("xdg-open.args")).ok());
    let opened = opened.trim();
    assert!(!opened.contains(code), "{opened}");
    let start = format!("http://{}:{}/login?ticket=", page_host(&d), d.port());
    let ticket = opened.strip_prefix(&start).unwrap_or_else(|| panic!("{opened}"));
    if has_another_user() {
        for key in ["ticket", "code"] {
            let body = json!({ key: ticket }).to_string();
            let url = format!("{}/login", d.url());
            let json = "Content-Type: application/json";
            let args = ["-X", "POST", "-H", json, "-d", &body, &url];
            curl(Some(OTHER_USER), &args).is_refused("another user of this machine");
        }
    }
    // The browser requests the page by that address, and its script trades the ticket.
    assert_eq!(d.stranger().get(&format!("/login?ticket={ticket}")).status(), 200);
    assert_eq!(d.stranger().post("/login", &json!({ "ticket": ticket })).status(), 200);
    problem(&d.stranger().post("/login", &json!({ "ticket": ticket })), 403, "forbidden");
    eventually(SOON, || d.stderr().contains("/login"));
    assert!(!d.stderr().contains(ticket) && !d.stderr().contains(code), "a key is in the log");

    // Over SSH or without a desktop no browser is opened.
    for (name, value) in [("SSH_CONNECTION", "1"), ("DISPLAY", "")] {
        fs::remove_file(folder.join("xdg-open.args")).ok();
        let mut command = d.home.command(&["open"]);
        command.env("PATH", fake_opener(&folder)).env("DISPLAY", ":0").env(name, value);
        Running::spawn(command).wait(SOON).ok();
        assert!(!folder.join("xdg-open.args").exists(), "{name}");
    }
}

#[test]
fn busy_default_port_does_not_prevent_the_start() {
    // Held by this test, unless another program listens there already.
    let _held = TcpListener::bind("127.0.0.1:6334");
    let home = Home::new();
    let mut command = home.command(&["serve"]);
    command.stdin(Stdio::null());
    let daemon = Running::spawn(command);
    let line = daemon.line().expect("a readiness line");
    let url = line.split(" ready at ").nth(1).expect("a URL").split(' ').next().expect("a URL");
    assert!(!url.ends_with(":6334") && url.starts_with("http://127.0.0.1:"), "{line}");
    assert!(line.contains("127.0.0.1:6334 is in use by another program"), "{line}");
    assert_eq!(home.daemon_json().expect("daemon.json")["url"], url);
    let status = svc(&home, &["status", "--json"]).json();
    assert_eq!((&status["running"], &status["url"]), (&json!(true), &json!(url)));
    svc(&home, &["stop"]).ok();

    let started = svc(&home, &["start"]);
    assert!(started.ok().contains("http://127.0.0.1:"), "{started:?}");
    svc(&home, &["stop"]).ok();
}

#[test]
fn busy_requested_port_is_an_error() {
    let held = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = held.local_addr().expect("an address").to_string();
    let refused = |home: &Home, args: &[&str], variable: bool| {
        let mut command = home.command(args);
        if variable {
            command.env("SVC_LISTEN", &address);
        }
        let ran = Running::spawn(command).wait(SOON * 2);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let port = address.rsplit_once(':').expect("a port").1;
        assert!(ran.stderr.contains(port) && ran.stderr.contains("--listen"), "{ran:?}");
        assert!(home.daemon_json().is_none());
    };
    refused(&Home::new(), &["serve", "--listen", &address], false);
    refused(&Home::new(), &["serve"], true);
    let home = Home::new();
    home.write("config.toml", &format!("listen = [\"{address}\"]\n"));
    for path in [home.dir(), home.path("config.toml")] {
        let mode = if path.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
    }
    refused(&home, &["serve"], false);
}

/// For a listener on all addresses, each address of this machine is a valid `Host`, and no name is.
#[test]
fn wildcard_listener_accepts_only_hosts_of_this_machine() {
    let Some(ip) = network_address() else { return };
    let port = free_port();
    let d = Daemon::with(|plan| plan.flag("--listen").flag(&format!("0.0.0.0:{port}")));
    let ask = |host: &str| {
        d.stranger().request("GET", "/health").without("Host").header("Host", host).send()
    };
    for host in [format!("{ip}:{port}"), ip.to_string(), format!("127.0.0.1:{port}")] {
        assert_eq!(ask(&host).status(), 200, "{host}");
    }
    for host in ["evil.example".to_owned(), format!("{ip}.evil.example"), "x.localhost".into()] {
        problem(&ask(&host), 403, "forbidden");
    }
}

/// A port alone means all addresses, of both families if the machine has both; commands find the
/// daemon by any of them.
#[test]
fn port_without_address_listens_on_all_addresses() {
    let port = free_port();
    let d = Daemon::with(|plan| plan.flag("--listen").flag(&format!(":{port}")));
    let address = format!("127.0.0.1:{port}");
    let here = Caller { addr: address.parse().expect("an address"), token: d.token.clone() };
    here.get("/v1/health").ok(200);
    // It proves itself at the address that the client named, though the listener reports that as
    // one of IPv6.
    let question = json!({ "token": "0".repeat(16), "nonce": "5e".repeat(32) });
    problem(&here.stranger().post("/v1/daemon_proof", &question), 404, "not_found");
    if let Some(ip) = network_address() {
        let there = Caller { addr: (ip, port).into(), token: None };
        assert_eq!(there.get("/health").status(), 200);
    }
}

/// A document of `--mcp-config` may hold secrets. The daemon runs for long, and every user can read
/// its arguments.
#[test]
fn background_daemon_has_no_secret_in_its_arguments() {
    let home = Home::new();
    let server = |secret: &str| {
        let url = "http://127.0.0.1:9/mcp";
        json!({ "mcpServers": { secret: { "type": "http", "url": url, "headers": { "X-Key": format!("hush-{secret}") } } } })
    };
    let (one, two) = (format!("{:#}", server("one")), server("two").to_string());
    let args = ["start", "--listen", "127.0.0.1:0", "--mcp-config", &one, "--mcp-config", &two];
    svc(&home, &args).ok();
    let pid = home.daemon_json().expect("daemon.json")["pid"].clone();
    let words = fs::read(format!("/proc/{pid}/cmdline")).expect("its arguments");
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    assert!(words.contains("serve") && !words.contains("hush"), "{words}");
    let listed = svc(&home, &["mcp", "list", "--json"]).json().to_string();
    assert!(listed.contains("\"one\"") && listed.contains("\"two\""), "both count: {listed}");
    svc(&home, &["stop"]).ok();
}
