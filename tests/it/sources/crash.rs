//! Secrets of servers after a crash.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::toy_http::{ToyEra, ToyHttp};
use super::{SOON, body, call, entry, in_state, said};
use crate::daemon::{Daemon, Home, free_port, svc, until};

/// All files below a folder, with their bytes: the database, its write-ahead log, spools, and
/// leftovers of a crash.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if let Ok(bytes) = fs::read(&path) {
            all.push((path.display().to_string(), bytes));
        }
    }
    all
}

#[track_caller]
fn assert_file_has_no_secret(of: &str, bytes: &[u8], secrets: &[&str]) {
    for secret in secrets {
        let is_told = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!is_told, "{secret} is in {of}: {}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn crash_leaves_no_secret_in_files() {
    let home = Home::new();
    let secrets = ["s3cr3t-of-\"env\"", "s3cr3t-of-header"];
    let with_secret = |words: &[&str]| {
        let mut entry = entry(&home, words);
        entry["env"] = json!({ "TOKEN": "${TEST_TOKEN}" });
        entry
    };
    let web = ToyHttp::start(ToyEra::Legacy);
    let headers = json!({ "Authorization": "Bearer ${TEST_HEADER}" });
    let away = format!("http://127.0.0.1:{}/mcp", free_port());
    let servers = json!({
        "keeps": with_secret(&[]), "spills": with_secret(&["spill"]), "hangs": with_secret(&["hang"]),
        "web": { "type": "http", "url": web.url(), "headers": headers },
        "away": { "type": "http", "url": away, "headers": headers },
    });
    let mut d = Daemon::with(|plan| {
        plan.home(&home)
            .servers(&servers)
            .env("TEST_TOKEN", secrets[0])
            .env("TEST_HEADER", secrets[1])
    });
    in_state(&d, "keeps", "connected");
    let limits = fs::read_to_string(format!("/proc/{}/limits", d.pid())).expect("is running");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    // The server has the secret.
    assert!(said(&call(&d, "keeps__env", &json!({}))).contains("s3cr3t-of-"));
    // A line longer than one read: the secret is cut by the boundary.
    for before in [73_700, 73_722, 81_914] {
        call(&d, "keeps__say", &json!({ "value": "x".repeat(before) }));
    }
    call(&d, "keeps__say", &json!({ "value": "the last" }));
    let log = |d: &Daemon, name: &str| {
        d.get(&format!("/v1/sources/{name}/log")).ok(200)["log"].as_str().unwrap_or("").to_owned()
    };
    until(SOON, || log(&d, "keeps").contains("the last").then_some(()));
    until(SOON, || log(&d, "spills").contains("crash ").then_some(()));
    // It is killed in the middle of a response, and again with its daemon.
    let said_file = home.user().join("called");
    call(&d, "keeps__die", &json!({ "value": said_file.display().to_string() }));
    let mut heads = String::new();
    for signal in [Signal::KILL, Signal::ABORT] {
        in_state(&d, "keeps", "connected");
        heads += &d.stderr();
        if signal == Signal::KILL {
            d.kill9();
        } else {
            let pid = Pid::from_raw(i32::try_from(d.pid()).expect("fits")).expect("is one");
            kill_process(pid, signal).expect("it runs");
            d.kill9();
        }
        // As the crash left it, before any cleanup.
        for (file, bytes) in files(home.dir().as_path()) {
            assert_file_has_no_secret(&file, &bytes, &secrets);
        }
        d.restart();
    }
    in_state(&d, "keeps", "connected");
    until(SOON, || log(&d, "spills").contains("crash ").then_some(()));
    for name in ["keeps", "spills", "hangs", "web", "away"] {
        for target in [format!("/v1/sources/{name}"), format!("/v1/sources/{name}/log")] {
            assert_file_has_no_secret(&target, body(&d.get(&target)).as_bytes(), &secrets);
        }
    }
    for target in ["/v1/sources", "/v1/events?limit=500", "/v1/tools?limit=500", "/metrics"] {
        assert_file_has_no_secret(target, body(&d.get(target)).as_bytes(), &secrets);
    }
    for args in [&["mcp", "list", "--json"][..], &["mcp", "list"], &["doctor"]] {
        let told = format!("{:?}", svc(&home, args));
        assert_file_has_no_secret(&args.join(" "), told.as_bytes(), &secrets);
    }
    assert_file_has_no_secret("stderr", (heads + &d.stderr()).as_bytes(), &secrets);
    d.stop();
    for (file, bytes) in files(home.dir().as_path()) {
        assert_file_has_no_secret(&file, &bytes, &secrets);
    }
}
