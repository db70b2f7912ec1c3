//! What lives on a machine is ended by nobody else: a copy of a database on another machine, as a
//! second home or from a backup, kills, revokes and loses nothing.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, Plan, eventually, svc, until};
use crate::expect::{new_task, problem, register, text};
use crate::identity::process_token;
use crate::stored::is_in_file;

/// A lease and two rounds of sweeps.
const AWAY_WITHIN: Duration = Duration::from_secs(40);
const SWEPT_WITHIN: Duration = Duration::from_secs(20);

fn quick(plan: Plan) -> Plan {
    plan.env("SVC_PEER_TIMEOUT_MS", "300").env("SVC_RUNNER_GRACE_MS", "300")
}

fn status(home: &Home) -> Value {
    let ran = svc(home, &["status", "--json"]);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn kinds(d: &Daemon) -> Vec<String> {
    let page = d.get("/v1/events?stream=daemon").ok(200);
    let events = page["events"].as_array().unwrap_or_else(|| panic!("{page}"));
    events.iter().map(|event| text(event, "kind")).collect()
}

/// A process that stands for a client and a runner.
fn process() -> Child {
    Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().expect("a process")
}

fn end(mut process: Child) {
    process.kill().expect("our own child can be killed");
    process.wait().expect("our own child can be waited for");
}

/// A participant and a running task in this process.
fn live_in(d: &Daemon, process: &Child, name: &str) -> (String, String) {
    let peer = json!({ "display_name": name, "backend": "test", "path": format!("/{name}"), "pid": process.id() });
    let peer = text(&register(d, &peer), "peer_id");
    let task = new_task(d);
    let active = json!({ "status": "active", "runner": { "pid": process.id() } });
    let active = json!({ "kind": "task", "data": active });
    d.post(&format!("/v1/tasks/{task}/events"), &active).ok(200);
    (peer, task)
}

/// A stopped daemon with a participant, a task, a token and an agent, and the process of the first
/// two. The token is of a process that is gone; the agent's host runs on.
struct LeftBehind {
    home: Home,
    process: Mutex<Option<Child>>,
    peer: String,
    task: String,
    agent: String,
}

impl LeftBehind {
    fn new() -> Self {
        let home = Home::new();
        home.write(
            "config.toml",
            "[agents.cat]\nbackend = 'exec'\ncommand = ['cat']\nallow_cwd = ['/']\n[daemon]\nname = 'first'\n",
        );
        let mut d = Daemon::with(|plan| quick(plan).home(&home));
        let process = process();
        let (peer, task) = live_in(&d, &process, "one");
        process_token(&home);
        let agent = d.post("/v1/hosts", &json!({ "instance": "cat", "cwd": "/" })).ok(201);
        let agent = text(&agent, "id");
        let host = || d.get(&format!("/v1/hosts/{agent}")).ok(200)["host_pid"].is_number();
        eventually(SWEPT_WITHIN, host);
        d.stop();
        let gone = "update token set client_pid = 4194305 where client_pid is not null";
        assert_eq!(home.change(gone), 1);
        Self { home, process: Mutex::new(Some(process)), peer, task, agent }
    }

    fn end(&self) {
        end(self.process.lock().expect("no panic").take().expect("it runs"));
    }

    /// What has become of its things.
    fn seen_by(&self, d: &Daemon) -> (Value, Value, bool, Value) {
        let task = d.get(&format!("/v1/tasks/{}", self.task)).ok(200);
        let peer = d.get(&format!("/v1/peers/{}", self.peer)).ok(200);
        let agent = d.get(&format!("/v1/hosts/{}", self.agent)).ok(200);
        (task, peer, revoked_in(&d.home), agent)
    }
}

/// Whether the token of the process that is gone is revoked.
fn revoked_in(home: &Home) -> bool {
    let sql = "select count(*) from token where client_pid = 4194305 and revoked_at is not null";
    home.value(sql) == 1
}

/// The status of the agent's participant.
fn status_of_agent(d: &Daemon) -> Value {
    let peers = d.get("/v1/peers").ok(200);
    let all = peers["peers"].as_array().unwrap_or_else(|| panic!("{peers}"));
    let own = all.iter().find(|peer| peer["agent"] == json!("agent:cat:main"));
    own.unwrap_or_else(|| panic!("{peers}"))["status"].clone()
}

/// Waits until the daemon has ended what was in an ended process of its own machine, which proves
/// that its sweeps look at processes.
fn sweep_own(d: &Daemon, name: &str) {
    let process = process();
    let (peer, task) = live_in(d, &process, name);
    end(process);
    eventually(SWEPT_WITHIN, || {
        d.get(&format!("/v1/tasks/{task}")).ok(200)["status"] == json!("failed")
            && d.get(&format!("/v1/peers/{peer}")).ok(200)["status"] == json!("offline")
    });
}

fn ends_nothing(left: &LeftBehind, bring: impl FnOnce(&Home, &Home)) {
    let home = Home::new();
    home.write(
        "config.toml",
        "[agents.cat]\nbackend = 'exec'\ncommand = ['cat']\nallow_cwd = ['/']\n[daemon]\nname = 'second'\n",
    );
    bring(&left.home, &home);
    // A restore itself revokes all tokens; whoever opens the file revokes none.
    let revoked_before = revoked_in(&home);
    let mut d = Daemon::with(|plan| quick(plan).home(&home));
    sweep_own(&d, "two");
    // Its process ends, and nobody of this machine judges that.
    left.end();
    sweep_own(&d, "three");
    eventually(AWAY_WITHIN, || {
        let (task, peer, ..) = left.seen_by(&d);
        peer["status"] == json!("unreachable")
            && status_of_agent(&d) == json!("unreachable")
            && task["reason"]
                .as_str()
                .is_some_and(|it| it.starts_with("machine first is away since "))
    });
    let (task, _, revoked, agent) = left.seen_by(&d);
    assert_eq!(task["status"], json!("active"), "{task}");
    assert_eq!(revoked, revoked_before, "its token stays");
    assert_eq!(agent["ended_at"], json!(null), "{agent}");
    assert_ne!(agent["state"], json!("lost"), "{agent}");

    // After the time that was given, all that it held is over.
    d.restart_with(|plan| plan.env("SVC_TEAM_AWAY", "1s"));
    eventually(AWAY_WITHIN, || {
        let (task, _, revoked, agent) = left.seen_by(&d);
        task["status"] == json!("failed") && revoked && agent["state"] == json!("lost")
    });
    let (task, _, _, agent) = left.seen_by(&d);
    assert_eq!(task["error"], json!("machine first is away"));
    assert_eq!(agent["error"], json!("machine first is away"), "{agent}");
    d.stop();

    // The first home has its own file, and its machine's daemon ends what is gone there.
    let d = Daemon::with(|plan| quick(plan).home(&left.home));
    eventually(SWEPT_WITHIN, || {
        let (task, peer, revoked, _) = left.seen_by(&d);
        let why = task["error"].as_str().unwrap_or_default();
        why.contains("is gone") && peer["status"] == json!("offline") && revoked
    });
    let agent = left.seen_by(&d).3;
    assert_eq!(agent["ended_at"], json!(null), "its host runs: {agent}");
    d.post(&format!("/v1/hosts/{}/stop", left.agent), &json!({ "force": true })).ok(200);
}

#[test]
fn two_homes_on_one_file_end_nothing_of_each_other() {
    only_if!(is_in_file());
    ends_nothing(&LeftBehind::new(), |from, to| {
        fs::copy(from.path("svc.db"), to.path("svc.db")).expect("copies");
    });
}

#[test]
fn a_backup_that_is_restored_on_another_machine_ends_nothing() {
    only_if!(is_in_file());
    ends_nothing(&LeftBehind::new(), |from, to| {
        let copy = to.user().join("copy.db");
        let copy = copy.to_str().expect("UTF-8");
        svc(from, &["backup", copy]).ok();
        svc(to, &["restore", copy]).ok();
    });
}

#[test]
fn status_shows_the_machine_and_a_lease_that_is_renewed() {
    let mut d = Daemon::with(|plan| plan.flag("--daemon-name").flag("box"));
    let first = status(&d.home);
    assert_eq!(first["machine"]["name"], json!("box"), "{first}");
    let machine = text(&first["machine"], "machine_id");
    let daemon = text(&first, "daemon_id");
    let is_own = |row: &Value| {
        row["daemon_id"] == json!(daemon)
            && row["machine"] == json!(machine)
            && row["name"] == json!("box")
            && row["is_self"] == json!(true)
            && row["agents"] == json!(0)
            && row["version"] == first["version"]
    };
    let daemons = first["daemons"].as_array().expect("a list").clone();
    assert!(daemons.len() == 1 && is_own(&daemons[0]), "{first}");
    assert!(svc(&d.home, &["status"]).ok().contains("box"));
    let lease = text(&daemons[0], "lease_until");
    until(SWEPT_WITHIN, || {
        let now = text(&status(&d.home)["daemons"][0], "lease_until");
        (now > lease).then_some(())
    });
    assert_eq!(kinds(&d), ["daemon.started", "daemon.joined"]);

    // A daemon that is killed is lost; one that ends leaves no row.
    d.kill_and_restart();
    let second = status(&d.home);
    assert_eq!(text(&second["machine"], "machine_id"), machine);
    assert_ne!(text(&second, "daemon_id"), daemon);
    assert_eq!(second["daemons"].as_array().map(Vec::len), Some(1), "{second}");
    let told = kinds(&d);
    assert_eq!(told[2..], ["daemon.started", "daemon.lost", "daemon.joined"], "{told:?}");
    d.restart();
    assert!(!kinds(&d)[5..].contains(&"daemon.lost".to_owned()));
}

#[test]
fn the_character_u0000_is_refused_on_every_route_and_tool() {
    let d = Daemon::start();
    let nul = "a\u{0}b";
    let mut refused = vec![
        d.post("/v1/peers/register", &json!({ "display_name": nul, "backend": "x" })),
        d.post("/v1/tasks", &json!({ "title": "t", "metadata": { nul: 1 } })),
        d.get("/v1/peers?circle=a%00b"),
        d.get("/v1/tasks/a%00b"),
    ];
    let task = new_task(&d);
    let frame = json!({ "kind": "frame", "data": { "line": nul, "kind": "stdout" } });
    refused.push(d.post(&format!("/v1/tasks/{task}/events"), &frame));
    let fields = ["display_name", "metadata.a\0b", "circle", "", "data.line"];
    for (reply, field) in refused.into_iter().zip(fields) {
        let told = problem(&reply, 422, "invalid_request");
        assert_eq!(told["field"].as_str().unwrap_or_default(), field, "{told}");
        assert!(
            reply.ok(422)["detail"].as_str().is_some_and(|it| it.contains("U+0000")),
            "{reply:?}"
        );
    }
    // Six characters that only look like it.
    let title = json!({ "title": "a\\u0000b" });
    let made = d.post("/v1/tasks", &title).ok(201);
    assert_eq!(made["title"], title["title"]);
    let call = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "store_memory", "arguments": { "content": nul, "category": "fact" } },
    });
    let reply = d
        .request("POST", "/mcp")
        .header("Accept", "application/json, text/event-stream")
        .json(&call)
        .send();
    assert_eq!(reply.status(), 422, "{reply:?}");
    assert_eq!(reply.json()["id"], json!(7));
    let error = &reply.json()["error"];
    assert_eq!(error["data"]["field"], json!("params.arguments.content"), "{error}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("U+0000") && message.contains("arguments.content"), "{error}");

    // What a program prints is kept, with another character in its place.
    let ran = svc(&d.home, &["task", "run", "--", "printf", "a\\000b"]);
    let shown = ran.ok();
    let task = d.get("/v1/tasks?limit=1").ok(200)["tasks"][0].clone();
    let page =
        d.get(&format!("/v1/events?stream=task/{}&kind=frame", text(&task, "task_id"))).ok(200);
    assert!(page.to_string().contains("a\u{fffd}b"), "{page} {shown}");
}

#[test]
fn a_folder_that_another_host_used_is_this_machine_again() {
    let mut d = Daemon::start();
    let machine = |d: &Daemon| text(&status(&d.home)["machine"], "machine_id");
    let (first, file) = (machine(&d), d.home.path("machines"));
    d.stop();
    // As a second host would find it: the line of this one is another's.
    let own = fs::read_to_string(&file).expect("reads");
    let key = own.split(' ').next().expect("a key").to_owned();
    fs::write(&file, own.replace(&key, "0123")).expect("writes");
    d.restart();
    let second = machine(&d);
    assert_ne!(second, first);
    d.stop();
    let both = fs::read_to_string(&file).expect("reads");
    assert!(both.contains(&first) && both.contains(&second), "{both}");
    fs::write(&file, both.replace(&key, "4567").replace("0123", &key)).expect("writes");
    d.restart();
    assert_eq!(machine(&d), first);
}
