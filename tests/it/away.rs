//! Hosted agents while no daemon runs: commands find their hosts by the sockets.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::agents::{ended, with_config};
use crate::daemon::{Daemon, eventually, svc};
use crate::expect::text;

const BOUND: Duration = Duration::from_mins(1);

const CONFIG: &str = r#"
[agents.echo]
backend = "exec"
command = ["sh", "-c", "while read line; do echo got $line; done"]
"#;

/// Starts two agents, in folders of two projects, and returns their documents.
fn world() -> (Daemon, [Value; 2]) {
    let d = with_config(CONFIG);
    let started = ["main", "web"].map(|name| {
        let cwd = d.home.user().join(name);
        std::fs::create_dir_all(cwd.join(".git")).expect("a folder");
        d.post("/v1/hosts", &json!({ "instance": "echo", "name": name, "cwd": cwd })).ok(201)
    });
    (d, started)
}

/// The keys in the output of `svc agent list` with these arguments.
#[track_caller]
fn listed(d: &Daemon, more: &[&str]) -> Vec<String> {
    let args: Vec<&str> = ["agent", "list", "--json"].iter().chain(more).copied().collect();
    let page = svc(&d.home, &args).json();
    let agents = page["agents"].as_array().expect("a list");
    assert_eq!(page["count"], agents.len());
    let mut keys: Vec<String> = agents.iter().map(|agent| text(agent, "key")).collect();
    keys.sort();
    keys
}

fn signal(agent: &Value, signal: Signal) {
    let pid = agent["host_pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    kill_process(Pid::from_raw(pid.expect("a pid")).expect("a pid"), signal).expect("it runs");
}

#[test]
fn hosts_can_be_listed_prompted_and_stopped_without_a_daemon() {
    let (mut d, [main, web]) = world();
    let named = ["agent:echo:main", "agent:echo:web"];
    let folder = d.home.user().join("web");
    let by_project = |d: &Daemon| {
        assert_eq!(listed(d, &["--project", "web"]), named[1..]);
        assert_eq!(listed(d, &["--project", &folder.to_string_lossy()]), named[1..]);
        assert_eq!(listed(d, &["--project", "eb", "--hosted"]), [""; 0]);
    };
    by_project(&d);
    d.kill9();
    let run = |args: &[&str]| svc(&d.home, args);
    assert_eq!(listed(&d, &[]), named);
    let told = run(&["stop"]);
    assert!(told.ok().contains("agents go on without the daemon (2)"), "{told:?}");
    by_project(&d);
    assert_eq!(listed(&d, &["--state", "running"]), [""; 0]);
    let shown = run(&["agent", "list"]);
    assert!(shown.ok().contains(named[0]) && shown.stderr.contains("no daemon runs"), "{shown:?}");
    let status = run(&["agent", "status", named[1], "--json"]).json();
    assert_eq!((&status["id"], &status["host_pid"]), (&web["id"], &web["host_pid"]));
    assert_eq!(status["socket_path"], web["socket_path"]);
    assert_eq!(run(&["agent", "status", "web", "--json"]).json()["id"], web["id"]);

    let sent = run(&["agent", "send", "echo", "hi", "--json"]).json();
    assert_eq!(sent["queued"], false, "{sent}");
    eventually(BOUND, || run(&["agent", "history", "echo"]).ok().contains("assistant: got hi"));
    let last = run(&["agent", "history", "echo", "--limit", "1", "--json"]).json();
    assert_eq!((&last["total"], &last["entries"][0]["content"]), (&json!(2), &json!("got hi")));

    let stopped = run(&["agent", "stop", "latest"]);
    assert!(stopped.ok().contains("latest has ended"), "{stopped:?}");
    assert_eq!(listed(&d, &[]), named[..1]);
    let unknown = run(&["agent", "send", "nobody", "hi"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("\"nobody\""), "{unknown:?}");
    // Its host is still there and says so.
    let late = run(&["agent", "send", "echo:web", "hi"]);
    let is_told = ["not running", "no living host"].iter().any(|it| late.stderr.contains(it));
    assert!(late.code == Some(1) && is_told, "{late:?}");
    // A command that needs a daemon says so.
    let started = run(&["agent", "start", "echo", "--name", "third"]);
    assert!(started.code == Some(1) && started.stderr.contains("svc start"), "{started:?}");

    d.restart();
    ended(&d, &text(&web, "id"));
    // The daemon has to take over first what the host has done meanwhile.
    let history = format!("/v1/hosts/{}/history", text(&main, "id"));
    eventually(BOUND, || d.get(&history).ok(200)["entries"][1]["content"] == "got hi");
}

#[test]
fn silent_host_is_unreachable_and_delays_no_other() {
    let (mut d, [main, web]) = world();
    d.kill9();
    signal(&web, Signal::STOP);
    let page = svc(&d.home, &["agent", "list", "--json"]).json();
    let agents = page["agents"].as_array().expect("a list");
    let of = |id: &Value| agents.iter().find(|agent| agent["id"] == *id).expect("it is listed");
    assert_eq!(of(&main["id"])["status"], "idle", "{page}");
    let wedged = of(&web["id"]);
    assert_eq!(
        (&wedged["status"], &wedged["state"]),
        (&json!("unreachable"), &json!("unreachable"))
    );
    assert!(text(wedged, "error").contains("does not answer"), "{wedged}");
    let told = svc(&d.home, &["agent", "send", &text(&web, "id"), "hi"]);
    assert!(told.code == Some(1) && told.stderr.contains("is unreachable"), "{told:?}");
    signal(&web, Signal::CONT);
    assert_eq!(listed(&d, &["--state", "idle"]).len(), 2);
    // Nobody listens on the socket of a killed host.
    signal(&web, Signal::KILL);
    eventually(BOUND, || listed(&d, &[]) == ["agent:echo:main"]);
    d.restart();
}

#[test]
fn without_daemon_and_hosts_the_error_names_the_daemon() {
    let home = crate::daemon::Home::new();
    for args in [
        &["agent", "list"][..],
        &["agent", "list", "--instances"],
        &["agent", "status", "a"],
        &["agent", "send", "a", "b"],
        &["agent", "stop", "latest"],
        &["agent", "history", "a"],
        &["agent", "attach", "a"],
    ] {
        let ran = svc(&home, args);
        assert_eq!(ran.code, Some(1), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains("svc start"), "{args:?}: {ran:?}");
    }
}
