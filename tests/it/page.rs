//! The page, as far as it needs no browser: its files, the sign-in of a browser, and the rights of
//! a cookie.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::daemon::{Daemon, Home, eventually, svc};
use crate::expect::{peer, problem, put_records, text};
use crate::wire::{Conn, Reply, Request};

/// A signed-in browser: its cookie's pair and attributes.
struct Browser<'a> {
    d: &'a Daemon,
    cookie: String,
    attributes: Vec<String>,
    token_id: String,
}

fn code(d: &Daemon) -> String {
    text(&d.post("/v1/login_codes", &json!({})).ok(201), "code")
}

fn give_back(d: &Daemon, code: &str) -> Reply {
    d.stranger().post("/login", &json!({ "code": code }))
}

impl<'a> Browser<'a> {
    fn sign_in(d: &'a Daemon) -> Self {
        let reply = give_back(d, &code(d));
        assert_eq!(reply.status(), 200, "{reply:?}");
        let cookie = reply.header("set-cookie").expect("a cookie");
        let mut parts = cookie.split("; ").map(str::to_owned);
        let cookie = parts.next().expect("a pair");
        Self { d, cookie, attributes: parts.collect(), token_id: text(&reply.json(), "token_id") }
    }

    fn bare(&self, method: &str, path: &str) -> Request {
        self.d.stranger().request(method, path).header("Cookie", &self.cookie)
    }

    /// A request as the page sends it.
    fn ask(&self, method: &str, path: &str) -> Request {
        self.bare(method, path).header("Svc-Page", "1")
    }
}

#[test]
fn code_signs_in_once_and_sets_an_http_only_cookie() {
    let d = Daemon::start();
    let browser = Browser::sign_in(&d);
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(browser.attributes.iter().any(|given| given == attribute), "{attribute}");
    }
    assert_eq!(browser.ask("GET", "/v1/peers").send().status(), 200);
    let said = browser.ask("POST", "/v1/tasks").json(&json!({ "title": "from the page" })).send();
    assert_eq!(said.status(), 201, "{said:?}");

    let spent = code(&d);
    assert_eq!(give_back(&d, &spent).status(), 200);
    for (code, why) in [(spent.as_str(), "used already"), ("0123", "not known"), ("", "not known")]
    {
        let refused = give_back(&d, code);
        problem(&refused, 403, "forbidden");
        assert!(refused.header("set-cookie").is_none(), "{refused:?}");
        let detail = text(&refused.json(), "detail");
        assert!(detail.contains(why) && detail.contains("svc open"), "{detail}");
    }
    problem(&d.stranger().post("/login", &json!({})), 422, "invalid_request");
}

#[test]
fn concurrent_uses_of_a_code_sign_in_once() {
    let d = Daemon::start();
    let code = code(&d);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let givers: Vec<_> =
            (0..8).map(|_| scope.spawn(|| give_back(&d, &code).status())).collect();
        givers.into_iter().map(|giver| giver.join().expect("no panic")).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 403)), "{statuses:?}");
}

/// A browser sends its cookie for any page. It counts only for requests of the page itself.
#[test]
fn cookie_is_valid_only_for_requests_of_the_page() {
    let d = Daemon::start();
    let browser = Browser::sign_in(&d);
    let own = format!("http://127.0.0.1:{}", d.port());
    let other_port = "http://127.0.0.1:3000".to_owned();
    let by_name = format!("http://localhost:{}", d.port());
    let (page, none) = (Some("1"), None::<&str>);
    for (method, page, site, origin, status) in [
        ("GET", page, none, none, 200),
        ("GET", none, Some("same-origin"), none, 200),
        ("GET", page, Some("same-origin"), Some(&*own), 200),
        ("POST", page, Some("same-origin"), Some(&*own), 201),
        ("POST", page, none, Some(&*own), 201),
        // A link, an image, a form, a script of another page.
        ("GET", none, none, none, 403),
        ("POST", none, none, none, 403),
        ("POST", none, none, Some(&*own), 403),
        ("GET", none, Some("none"), none, 403),
        ("GET", none, Some("same-site"), none, 403),
        ("POST", none, Some("cross-site"), Some("http://evil.example"), 403),
        ("GET", page, Some("cross-site"), none, 403),
        ("GET", page, Some("same-site"), none, 403),
        ("POST", page, Some("same-site"), Some(&*other_port), 403),
        // Another port and another name are other origins, also without `Sec-Fetch-Site`.
        ("POST", page, none, Some(&*other_port), 403),
        ("POST", page, none, Some(&*by_name), 403),
        ("POST", page, none, Some("null"), 403),
        ("GET", Some("0"), none, none, 403),
    ] {
        let path = if method == "GET" { "/v1/peers" } else { "/v1/tasks" };
        let mut request = browser.bare(method, path);
        if let Some(page) = page {
            request = request.header("Svc-Page", page);
        }
        if let Some(site) = site {
            request = request.header("Sec-Fetch-Site", site);
        }
        if let Some(origin) = origin {
            request = request.header("Origin", origin);
        }
        let reply = if method == "GET" { request.send() } else { request.json(&json!({})).send() };
        assert_eq!(reply.status(), status, "{method} {page:?} {site:?} {origin:?}: {reply:?}");
        let cors = reply.header("access-control-allow-origin");
        assert!(cors.is_none(), "{reply:?}");
    }
    let tasks = d.get("/v1/tasks").ok(200);
    assert_eq!(tasks["count"], 2, "what was refused has changed nothing: {tasks}");
}

/// Another site must not sign a browser in.
#[test]
fn another_site_cannot_sign_a_browser_in() {
    let d = Daemon::start();
    for (name, value) in [
        ("Origin", "http://127.0.0.1:3000"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ] {
        let code = code(&d);
        let request = d.stranger().request("POST", "/login").header(name, value);
        let refused = request.json(&json!({ "code": code })).send();
        problem(&refused, 403, "forbidden");
        assert!(refused.header("set-cookie").is_none(), "{refused:?}");
        assert_eq!(give_back(&d, &code).status(), 200, "the code is not spent by that");
    }
    // A form sends no JSON.
    let form = d.stranger().request("POST", "/login");
    let form =
        form.header("Content-Type", "text/plain").body(json!({ "code": code(&d) }).to_string());
    problem(&form.send(), 415, "unsupported_media_type");
}

/// A cookie expires after hours; a credential that it created would outlast it.
#[test]
fn cookie_is_no_token_and_creates_none() {
    let d = Daemon::start();
    let browser = Browser::sign_in(&d);
    let secret = browser.cookie.split_once('=').expect("a pair").1;
    for token in [secret, &browser.cookie] {
        problem(&d.with_token(token).get("/v1/peers"), 401, "unauthorized");
    }
    // The token in the request counts, and a cookie does not cure a wrong one.
    let wrong = browser.ask("GET", "/v1/peers").header("Authorization", "Bearer wrong").send();
    problem(&wrong, 401, "unauthorized");
    for path in ["/v1/tokens", "/v1/token/rotate", "/v1/login_codes"] {
        let refused = browser.ask("POST", path).json(&json!({ "session": "mine" })).send();
        problem(&refused, 403, "forbidden");
    }
    assert_eq!(d.get("/v1/peers").status(), 200, "the token is the one that it was");
    // A session's token makes no code either.
    problem(&d.reader("agent").post("/v1/login_codes", &json!({})), 403, "forbidden");
    problem(&d.stranger().post("/v1/login_codes", &json!({})), 401, "unauthorized");
}

#[test]
fn sign_out_by_the_operator_ends_a_browsers_streams() {
    let mut d = Daemon::start();
    let home = d.home.clone();
    let (cookie, token_id) = {
        let browser = Browser::sign_in(&d);
        (browser.cookie.clone(), browser.token_id)
    };
    let listed = svc(&home, &["token", "list", "--json"]).json();
    let row =
        listed["tokens"].as_array().expect("rows").iter().find(|row| row["kind"] == "browser");
    let row = row.expect("the browser");
    assert_eq!(
        (&row["token_id"], &row["session"]),
        (&json!(token_id), &json!("operator")),
        "{row}"
    );
    assert!(row["expires_at"].is_string() && row["revoked_at"].is_null(), "{row}");
    let table = svc(&home, &["token", "list"]);
    assert!(table.ok().contains(&token_id) && table.ok().contains("browser"), "{}", table.ok());
    let secret = cookie.split_once('=').expect("a pair").1;
    assert!(!listed.to_string().contains(secret), "{listed}");

    // It is a row, which survives a restart.
    d.kill_and_restart();
    let ask = |path: &str| {
        let name = format!("svc_page_{}", d.port());
        let request = d.stranger().request("GET", path).header("Svc-Page", "1");
        request.header("Cookie", &format!("{name}={secret}"))
    };
    assert_eq!(ask("/v1/peers").send().status(), 200);
    let stream = ask("/v1/events?after=latest").header("Accept", "text/event-stream");
    let mut stream = stream.follow().expect("it opens").expect("it is granted");
    let revoked = svc(&home, &["token", "revoke", &token_id, "--json"]).json();
    assert!(revoked["revoked_at"].is_string(), "{revoked}");
    problem(&ask("/v1/peers").send(), 401, "unauthorized");
    // The next event is not sent: the stream ends.
    d.post("/v1/tasks", &json!({ "title": "later" })).ok(201);
    assert!(stream.rest().is_empty(), "it hears more");
}

#[test]
fn browser_can_sign_out_and_rotation_signs_all_out() {
    let d = Daemon::start();
    let (one, other) = (Browser::sign_in(&d), Browser::sign_in(&d));
    let out = one.ask("DELETE", "/login").send();
    assert_eq!(out.status(), 204, "{out:?}");
    assert!(out.header("set-cookie").is_some_and(|cookie| cookie.contains("Max-Age=0")), "{out:?}");
    problem(&one.ask("GET", "/v1/peers").send(), 401, "unauthorized");
    assert_eq!(other.ask("GET", "/v1/peers").send().status(), 200);
    problem(&other.bare("DELETE", "/login").send(), 403, "forbidden");

    let waiting = code(&d);
    let token = text(&d.post("/v1/token/rotate", &json!({})).ok(200), "token");
    problem(&other.ask("GET", "/v1/peers").send(), 401, "unauthorized");
    problem(&give_back(&d, &waiting), 403, "forbidden");
    assert_eq!(d.with_token(&token).get("/v1/peers").status(), 200);
}

#[test]
fn page_files_need_no_token_and_have_a_strict_policy() {
    let d = Daemon::start();
    for path in ["/", "/login", "/ui/tasks", "/ui/tasks/task_1", "/assets/style.css"] {
        let reply = d.stranger().get(path);
        assert_eq!(reply.status(), 200, "{path}: {reply:?}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
        ] {
            assert_eq!(reply.header(name), Some(value), "{path}");
        }
        let policy = reply.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert!(reply.header("set-cookie").is_none() && reply.header("etag").is_some(), "{path}");
        let token = d.home.token().expect("a token");
        assert!(!String::from_utf8_lossy(&reply.body).contains(&token), "{path}");
    }
    problem(&d.stranger().get("/assets/nothing.js"), 404, "not_found");
    problem(&d.stranger().get("/assets/../Cargo.toml"), 404, "not_found");
    problem(&d.stranger().get("/uix"), 401, "unauthorized");
    problem(&d.stranger().post("/", &json!({})), 401, "unauthorized");
    // Other hosts are refused, too.
    let request = d.stranger().request("GET", "/").without("Host").header("Host", "evil.example");
    assert_eq!(request.send().status(), 403);
}

fn unzipped(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = Command::new("gzip")
        .args(["-dc"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("gzip runs");
    let mut input = gzip.stdin.take().expect("an input");
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, &bytes));
    let mut plain = Vec::new();
    gzip.stdout.take().expect("an output").read_to_end(&mut plain).expect("it reads");
    writer.join().expect("no panic").expect("it takes all");
    assert!(gzip.wait().expect("it ends").success());
    plain
}

fn is_script(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "js")
}

/// Every file that the page's documents and modules name.
fn files(d: &Daemon) -> BTreeMap<String, Reply> {
    let mut known = BTreeMap::new();
    let mut open = vec!["/".to_owned(), "/login".to_owned()];
    while let Some(path) = open.pop() {
        if known.contains_key(&path) {
            continue;
        }
        let reply = d.stranger().get(&path);
        assert_eq!(reply.status(), 200, "{path}: {reply:?}");
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        for named in text.split(['"', '\'', '`']) {
            if named.starts_with("/assets/") && named.contains('.') {
                open.push(named.to_owned());
            } else if let Some(name) = named.strip_prefix("./").filter(|_| is_script(&path)) {
                open.push(format!("{folder}/{name}"));
            }
        }
        known.insert(path, reply);
    }
    known
}

#[test]
fn page_load_is_small_and_cached() {
    let d = Daemon::start();
    let mut wire = 0;
    let known = files(&d);
    assert!(known.len() > 3, "{:?}", known.keys());
    for (path, plain) in &known {
        let ask = |tag: Option<&str>| {
            let request = d.stranger().request("GET", path);
            let request = request.header("Accept-Encoding", "gzip, deflate, br");
            match tag {
                Some(tag) => request.header("If-None-Match", tag).send(),
                None => request.send(),
            }
        };
        let packed = ask(None);
        assert_eq!(packed.header("content-encoding"), Some("gzip"), "{path}");
        assert_eq!(packed.header("vary"), Some("Accept-Encoding"), "{path}");
        assert_eq!(unzipped(&packed.body), plain.body, "{path}");
        assert!(plain.header("content-encoding").is_none(), "{path}");
        wire += packed.body.len();
        let tag = packed.header("etag").expect("a tag");
        assert_ne!(Some(tag), plain.header("etag"), "{path}: other bytes, another tag");
        let again = ask(Some(tag));
        assert_eq!((again.status(), again.body.len()), (304, 0), "{path}: {again:?}");
        assert_eq!(ask(Some("\"other\"")).status(), 200, "{path}");
        let script = is_script(path);
        let kind = plain.header("content-type").expect("a type");
        assert_eq!(kind.starts_with("text/javascript"), script, "{path}: {kind}");
    }
    assert!(wire <= 250_000, "{wire} bytes on the wire");
    let length = known["/assets/style.css"].body.len().to_string();
    // A response to HEAD has a length and no body.
    let mut conn = Conn::open(d.addr).expect("a connection");
    let ask = d.stranger().request("HEAD", "/assets/style.css");
    conn.write(&ask.bytes()).expect("it is taken");
    let head = conn.head().expect("a head");
    assert_eq!((head.status, head.header("content-length")), (200, Some(&*length)));
}

#[test]
fn open_prints_a_link_that_signs_in() {
    let d = Daemon::start();
    let opened = svc(&d.home, &["open", "--json"]).json();
    let keys: Vec<&String> = opened.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["url"], "{opened}");
    let url = text(&opened, "url");
    let (start, code) = url.split_once("/login#").expect("a link to sign in");
    assert!(start.ends_with(&format!(".localhost:{}", d.port())), "{url}");
    assert_eq!(give_back(&d, code).status(), 200);

    let printed = svc(&d.home, &["open", "--no-browser"]);
    let line = printed.ok().trim();
    assert!(line.starts_with(&format!("{start}/login#")), "{line}");
    let log = d.stderr();
    for secret in [code, line.rsplit_once('#').expect("a code").1] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn open_without_a_daemon_gives_advice() {
    let home = Home::new();
    for args in [&["open"][..], &["open", "--json"]] {
        let ran = svc(&home, args);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(format!("{ran:?}").contains("svc start"), "{ran:?}");
    }
}

#[test]
fn no_auth_page_needs_no_sign_in() {
    let d = Daemon::with(|plan| plan.flag("--no-auth"));
    assert_eq!(d.stranger().get("/").status(), 200);
    let own = d.stranger().request("GET", "/v1/peers").header("Sec-Fetch-Site", "same-origin");
    assert_eq!(own.send().status(), 200);
    let foreign = d.stranger().request("GET", "/v1/peers").header("Sec-Fetch-Site", "cross-site");
    problem(&foreign.send(), 403, "forbidden");
}

/// An open page keeps the operator present.
#[test]
fn open_page_keeps_the_operator_online() {
    let d = Daemon::start();
    let status = || d.get("/v1/peers/operator").json()["status"].clone();
    let listens = |request: Request| {
        let request = request.header("Accept", "text/event-stream");
        request.follow().expect("an answer").expect("a stream")
    };
    // A script that follows the log is no person who reads it.
    let script = listens(d.request("GET", "/v1/events?after=latest"));
    assert_ne!(status(), "online");
    let browser = Browser::sign_in(&d);
    let stream = listens(browser.ask("GET", "/v1/events?after=latest"));
    eventually(Duration::from_secs(20), || status() == "online");
    drop((script, stream));
}

/// The page asks at its start whether it is signed in.
#[test]
fn unsigned_browser_gets_401() {
    let d = Daemon::start();
    let request = d.stranger().request("GET", "/v1/health").header("Svc-Page", "1");
    problem(&request.send(), 401, "unauthorized");
    let request = d.stranger().request("GET", "/v1/health").header("Svc-Page", "1");
    let stale = request.header("Cookie", &format!("svc_page_{}=0000", d.port())).send();
    problem(&stale, 401, "unauthorized");
    assert!(text(&stale.json(), "detail").contains("svc open"), "{stale:?}");
}

#[test]
fn operator_lists_all_messages_with_truncated_texts() {
    let d = Daemon::start();
    let (ann, bob) = (peer(&d, "ann"), peer(&d, "bob"));
    let long = "\u{e9}".repeat(5000);
    for (from, to, text) in [(&ann, &bob, "on\u{1}e"), (&bob, &ann, &*long)] {
        let body = json!({ "text": text, "from_peer": from });
        d.post(&format!("/v1/peers/{to}/messages"), &body).ok(200);
    }
    d.post(&format!("/v1/peers/{bob}/messages"), &json!({ "text": "four" })).ok(200);
    let list = |filter: &str| {
        let page = d.get(&format!("/v1/messages?{filter}")).ok(200);
        let texts = page["messages"].as_array().expect("a list").iter();
        texts
            .map(|message| text(message, "text").chars().take(5).collect())
            .collect::<Vec<String>>()
    };
    let begins = "\u{e9}".repeat(5);
    assert_eq!(list("limit=2"), ["four", &begins], "the latest first");
    let all = crate::expect::all_pages(&d, "/v1/messages?limit=1", "messages", "cursor");
    assert_eq!((all.len(), list("").len()), (3, 3));
    assert!(list("").contains(&"on\u{1}e".to_owned()), "{:?}", list(""));
    assert!(!list(&format!("peer={ann}")).contains(&"four".to_owned()));
    assert_eq!(list("peer=operator"), ["four"]);
    assert_eq!(list("state=acked"), Vec::<String>::new());
    let page = d.get(&format!("/v1/messages?peer={ann}&limit=500")).ok(200);
    let rows = page["messages"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["bytes"] == 10_000).expect("the long one");
    assert_eq!(text(row, "text").chars().count(), 4000);
    let whole = d.get(&format!("/v1/messages/{}", text(row, "id"))).ok(200);
    assert_eq!(text(&whole, "text"), long);
    problem(&d.get("/v1/messages?state=banana"), 422, "invalid_request");
}

#[test]
fn calibration_counts_verdicts_by_probability_and_by_week() {
    let d = Daemon::start();
    let record = |probability: Option<f64>, status: &str, at: &str| json!({ "probability": probability, "status": status, "at": at });
    // A Sunday and the Monday after it.
    let (sunday, monday) = ("2026-03-01T23:00:00Z", "2026-03-02T01:00:00Z");
    let records = [
        record(Some(0.9), "confirmed", sunday),
        record(Some(0.95), "falsified", monday),
        record(Some(1.0), "confirmed", monday),
        record(Some(0.05), "falsified", monday),
        record(None, "confirmed", monday),
        record(Some(0.5), "abandoned", monday),
    ];
    put_records(&d, &records);
    let counted = d.get("/v1/ghap/calibration").ok(200);
    let bins = counted["bins"].as_array().expect("bins");
    let numbers: Vec<_> =
        bins.iter().map(|bin| (&bin["from"], &bin["records"], &bin["confirmed"])).collect();
    assert_eq!(numbers, [(&json!(0.0), &json!(1), &json!(0)), (&json!(0.9), &json!(3), &json!(2))]);
    let mean = bins[1]["mean"].as_f64().expect("a number");
    assert!((mean - 0.95).abs() < 1e-9, "{mean}");
    let expected = json!([
        { "week": "2026-02-23T00:00:00.000Z", "records": 1, "confirmed": 1 },
        { "week": "2026-03-02T00:00:00.000Z", "records": 4, "confirmed": 2 },
    ]);
    assert_eq!(counted["weeks"], expected);
    assert_eq!(
        d.get("/v1/ghap/calibration?domain=refactoring").ok(200),
        json!({ "bins": [], "weeks": [] })
    );
    assert_eq!(
        d.session("stranger").get("/v1/ghap/calibration").ok(200),
        json!({ "bins": [], "weeks": [] })
    );
}
