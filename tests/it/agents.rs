//! Agents: their starts, their records, what survives `kill -9`, and the work that is given to
//! them.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, eventually, hook_payload, quickly, svc, until};
use crate::expect::{dense, events, problem, text};
use crate::wire::{Caller, Reply, tool_call};

const BOUND: Duration = Duration::from_secs(20);

const CONFIG: &str = r#"
[agents.echo]
backend = "exec"
command = ["sh", "-c", "while read line; do echo got $line; done"]
[agents.hello]
backend = "exec"
command = ["sh", "-c", "read line; echo hello $line; echo aside >&2"]
tags = ["greeting"]
[agents.broken]
backend = "exec"
command = ["sh", "-c", "echo please log in >&2; exit 3"]
failover_to = ["hello"]
[agents.failing]
backend = "exec"
command = ["sh", "-c", "read line; echo begun; exit 3"]
failover_to = ["hello"]
[agents.slow]
backend = "exec"
command = ["sh", "-c", "read line; echo begun; sleep 600"]
max_concurrent = 1
[agents.rated]
backend = "exec"
command = ["sh", "-c", "read line; echo $line"]
rate = "1/h"
[agents.held]
backend = "exec"
command = ["sh", "-c", "while read line; do echo begun $line; sleep 600; done"]
turn_end = "END"
[agents.gone]
backend = "exec"
command = ["no-such-program"]
failover_to = ["missing", "hello"]
[agents.missing]
backend = "exec"
command = ["no-such-program"]
[agents.keyed]
backend = "exec"
command = ["sh"]
env = { KEY = "${NO_SUCH_VARIABLE}" }
[agents.off]
backend = "exec"
command = ["sh"]
enabled = false
[agents.wrong]
backend = "exec"
command = ["sh"]
rate = "often"
"#;

fn world() -> Daemon {
    with_config(CONFIG)
}

pub(crate) fn with_config(config: &str) -> Daemon {
    let home = Home::new();
    home.write("config.toml", config);
    Daemon::with(|plan| plan.home(&home))
}

/// Starts an agent in the test's folder.
#[track_caller]
pub(crate) fn start(d: &Daemon, instance: &str, name: &str) -> Value {
    let body = json!({ "instance": instance, "name": name, "cwd": d.home.user() });
    d.post("/v1/hosts", &body).ok(201)
}

pub(crate) fn agent(d: &Caller, id: &str) -> Value {
    d.get(&format!("/v1/hosts/{id}")).ok(200)
}

/// Waits until an agent has ended; returns its last document.
#[track_caller]
pub(crate) fn ended(d: &Caller, id: &str) -> Value {
    until(BOUND, || Some(agent(d, id)).filter(|agent| agent["ended_at"].is_string()))
}

/// A refusal that names the field.
#[track_caller]
fn invalid(reply: &Reply, field: &str) -> Value {
    let refusal = problem(reply, 422, "invalid_request");
    assert_eq!(refusal["field"], field, "{refusal}");
    refusal
}

/// The stream of an agent has the host's numbers without a gap.
#[track_caller]
pub(crate) fn is_dense(events: &[Value]) {
    for (event, number) in events.iter().zip(1_u64..) {
        assert_eq!(event["seq"], number, "{event}");
        assert_eq!(event["data"]["offset"], number, "{event}");
        assert_eq!(event["data"]["type"], event["kind"], "{event}");
    }
}

/// Sends a request to the host directly.
pub(crate) fn ask_host(socket: &str, request: &Value) -> Value {
    let mut stream = UnixStream::connect(socket).expect("the host listens");
    stream.write_all(format!("{request}\n").as_bytes()).expect("it reads");
    let mut line = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).expect("it answers") == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    serde_json::from_slice(&line).expect("JSON")
}

pub(crate) fn kill(pid: u64) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it can be killed");
}

pub(crate) fn runs(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Dispatches work to an agent, and returns the task's id at once.
#[track_caller]
pub(crate) fn dispatch(d: &Caller, body: Value) -> String {
    let mut body = body;
    body["opts"]["async"] = json!(true);
    text(&d.post("/v1/send_message", &body).ok(202), "task_id")
}

/// Waits for a task's end.
#[track_caller]
pub(crate) fn over(d: &Caller, task: &str) -> Value {
    over_within(BOUND, d, task)
}

#[track_caller]
pub(crate) fn over_within(bound: Duration, d: &Caller, task: &str) -> Value {
    until(bound, || {
        let task = d.get(&format!("/v1/tasks/{task}")).ok(200);
        task["closed_at"].is_string().then_some(task)
    })
}

/// Work that was accepted at the same moment counts, too.
#[test]
fn least_busy_instance_of_a_tag_gets_the_work() {
    let instance = |name: &str| {
        format!(
            "[agents.{name}]\nbackend = \"exec\"\ntags = [\"any\"]\nmax_concurrent = 1\n\
             command = [\"sh\", \"-c\", \"read line; sleep 600\"]\n"
        )
    };
    let d = with_config(&["a", "b", "c"].map(instance).concat());
    for round in 1..=2 {
        let tasks: Vec<String> = std::thread::scope(|scope| {
            let calls: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| dispatch(&d, json!({ "tag": "any", "prompt": "x" }))))
                .collect();
            calls.into_iter().map(|call| call.join().expect("it answers")).collect()
        });
        let taken: BTreeSet<String> = tasks
            .iter()
            .map(|task| text(&d.get(&format!("/v1/tasks/{task}")).ok(200), "agent"))
            .collect();
        assert_eq!(taken.into_iter().collect::<Vec<_>>(), ["a", "b", "c"], "round {round}");
    }
}

#[test]
fn instance_list_says_why_one_cannot_start() {
    let d = world();
    let all = d.get("/v1/agents").ok(200);
    let status = |name: &str| {
        let found =
            all["agents"].as_array().expect("agents").iter().find(|it| it["instance"] == name);
        found.unwrap_or_else(|| panic!("{name}: {all}")).clone()
    };
    for (name, expected, reason) in [
        ("echo", "callable", ""),
        ("missing", "binary-missing", "no-such-program"),
        ("keyed", "misconfigured", "NO_SUCH_VARIABLE"),
        ("off", "disabled", "enabled"),
        ("wrong", "misconfigured", "agents.wrong.rate"),
    ] {
        let view = status(name);
        assert_eq!(view["status"], expected, "{view}");
        assert_eq!(view["callable"], expected == "callable", "{view}");
        assert!(view["reason"].as_str().unwrap_or_default().contains(reason), "{view}");
    }
    let callable = d.get("/v1/agents?status=callable").ok(200);
    let is_callable = |it: &Value| it["callable"] == true;
    assert!(callable["agents"].as_array().expect("agents").iter().all(is_callable), "{callable}");
    let names: Vec<String> =
        all["agents"].as_array().expect("agents").iter().map(|it| text(it, "instance")).collect();
    assert!(names.is_sorted(), "{names:?}");
    // With a limit it is paged like any list.
    let (mut paged, mut next) = (Vec::new(), String::new());
    loop {
        let page = d.get(&format!("/v1/agents?limit=2{next}")).ok(200);
        let of_page = page["agents"].as_array().expect("agents");
        assert!(of_page.len() <= 2 && page["count"] == of_page.len(), "{page}");
        paged.extend(of_page.iter().map(|it| text(it, "instance")));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        next = format!("&cursor={cursor}");
    }
    assert_eq!(paged, names);
    for wrong in ["limit=0", "limit=501", "limit=x", "cursor=x"] {
        d.get(&format!("/v1/agents?{wrong}")).ok(422);
    }
    let checked = svc(&d.home, &["config", "check"]);
    assert_eq!(checked.code, Some(2), "{checked:?}");
    assert!(checked.stderr.contains("agents.wrong.rate"), "{checked:?}");
    let doctor = svc(&d.home, &["doctor"]);
    assert!(doctor.stdout.contains("agents.wrong.rate"), "{doctor:?}");
    for (name, word) in [("missing", "no-such-program"), ("off", "enabled"), ("nobody", "echo")] {
        let reply = d.post("/v1/hosts", &json!({ "instance": name, "cwd": "/" }));
        let refusal = invalid(&reply, "instance");
        assert!(refusal["detail"].as_str().expect("a detail").contains(word), "{refusal}");
    }
    for (body, field) in [
        (json!({ "instance": "echo", "cwd": "src" }), "cwd"),
        (json!({ "instance": "echo", "cwd": "/no/such/folder" }), "cwd"),
        (json!({ "instance": "echo", "cwd": "/", "name": "a/b" }), "name"),
        (json!({ "instance": "echo", "cwd": "/", "prompt": " " }), "prompt"),
        (json!({ "instance": "echo", "cwd": "/", "env": { "A=B": "x" } }), "env"),
        (json!({ "backend": "nothing", "cwd": "/" }), "backend"),
    ] {
        invalid(&d.post("/v1/hosts", &body), field);
    }
    for body in [json!({ "backend": "exec", "cwd": "/" }), json!({ "instance": "no", "cwd": "/" })]
    {
        let field = if body["backend"].is_null() { "instance" } else { "backend" };
        let choices = text(&invalid(&d.post("/v1/hosts", &body), field), "detail");
        assert!(choices.contains("echo") && choices.contains("hello"), "{choices}");
        for other in ["missing", "keyed", "wrong"] {
            assert!(!choices.contains(other), "{other} cannot be started: {choices}");
        }
    }
}

#[test]
fn agent_survives_the_daemon_and_the_log_matches_its_host() {
    let mut d = world();
    let started = start(&d, "echo", "main");
    let (id, socket) = (text(&started, "id"), text(&started, "socket_path"));
    let host = started["host_pid"].as_u64().expect("a pid");
    problem(
        &d.post("/v1/hosts", &json!({ "instance": "echo", "name": "MAIN", "cwd": "/" })),
        409,
        "conflict",
    );
    d.post(&format!("/v1/hosts/{id}/send"), &json!({ "input": "one" })).ok(200);
    let restarts = std::env::var("SVC_AGENT_RESTARTS").ok().and_then(|it| it.parse().ok());
    for round in 0..restarts.unwrap_or(4) {
        d.kill9();
        let sent = ask_host(
            &socket,
            &json!({ "type": "host.send", "payload": { "input": format!("away {round}") } }),
        );
        assert_eq!(sent["success"], true, "{sent}");
        d.restart();
        let again =
            json!({ "input": format!("back {round}"), "idempotency_key": format!("{round}") });
        for _ in 0..2 {
            until(BOUND, || {
                let reply = d.post("/v1/hosts/agent:echo:main/send", &again);
                (reply.status() == 200).then_some(())
            });
        }
        let said = format!("got back {round}");
        eventually(BOUND, || {
            d.get(&format!("/v1/hosts/{id}/history")).ok(200).to_string().contains(&said)
        });
        assert_eq!(agent(&d, &id)["host_pid"], host, "one agent process");
    }
    let status = ask_host(&socket, &json!({ "type": "host.ping" }));
    assert_eq!(status["success"], true, "{status}");
    let spool = d.home.dir().join(format!("agents/{id}.spool"));
    let stopped = d.post(&format!("/v1/hosts/{id}/stop"), &json!({ "timeout": 5 })).ok(200);
    assert_eq!((&stopped["stopped"], &stopped["final_state"]), (&json!(true), &json!("done")));
    let done = ended(&d, &id);
    assert_eq!((&done["state"], &done["pid"]), (&json!("done"), &json!(0)), "{done}");
    let log = events(&d, &format!("agent/{id}"));
    is_dense(&log);
    let kinds: Vec<String> = log.iter().map(|event| text(event, "kind")).collect();
    assert_eq!(kinds.last().map(String::as_str), Some("exit"), "{kinds:?}");
    let inputs: Vec<&str> = log
        .iter()
        .filter(|event| event["kind"] == "input")
        .filter_map(|event| event["data"]["data"].as_str())
        .collect();
    let once: BTreeSet<&&str> = inputs.iter().collect();
    assert_eq!(once.len(), inputs.len(), "each input once: {inputs:?}");
    eventually(BOUND, || !spool.exists());
    let history = d.get(&format!("/v1/hosts/{id}/history?limit=1")).ok(200);
    assert_eq!(history["entries"].as_array().map(Vec::len), Some(1), "{history}");
    assert_eq!(history["total"], json!(2 * inputs.len()), "{history}");
    problem(&d.post(&format!("/v1/hosts/{id}/send"), &json!({ "input": "x" })), 409, "conflict");
    problem(&d.post(&format!("/v1/hosts/{id}/stop"), &json!({})), 409, "conflict");
    let team = events(&d, "team");
    for kind in ["agent.started", "agent.ended"] {
        let told = team.iter().filter(|event| event["kind"] == kind).count();
        assert_eq!(told, 1, "{kind}: {team:?}");
    }
    let second = start(&d, "echo", "main");
    assert_ne!(second["id"], json!(id), "a new incarnation of the same key");
    let found = d.get("/v1/hosts/agent:echo:main").ok(200);
    assert_eq!(found["id"], second["id"], "the key names the living one");
}

#[test]
fn each_kind_of_end_is_recorded() {
    let d = world();
    let pids = |started: &Value| {
        (started["host_pid"].as_u64().expect("a host"), started["pid"].as_u64().expect("a program"))
    };
    let mut lost = 0;
    quickly(Duration::from_secs(10), || {
        lost += 1;
        let started = start(&d, "echo", &format!("lost-{lost}"));
        let (host, program) = pids(&started);
        kill(host);
        let began = Instant::now();
        let end = ended(&d, &text(&started, "id"));
        assert_eq!(end["state"], "lost", "{end}");
        eventually(Duration::from_secs(5), || !runs(program));
        let took = began.elapsed();
        is_dense(&events(&d, &format!("agent/{}", text(&started, "id"))));
        took
    });

    let killed = start(&d, "echo", "killed");
    kill(pids(&killed).1);
    let end = ended(&d, &text(&killed, "id"));
    assert_eq!((&end["state"], &end["signal"]), (&json!("error"), &json!(9)), "{end}");

    let failed = start(&d, "broken", "failed");
    let end = ended(&d, &text(&failed, "id"));
    assert_eq!((&end["state"], &end["exit_code"]), (&json!("error"), &json!(3)), "{end}");

    let body = json!({ "instance": "hello", "prompt": "you", "cwd": d.home.user() });
    let done = d.post("/v1/hosts", &body).ok(201);
    let end = ended(&d, &text(&done, "id"));
    assert_eq!((&end["state"], &end["exit_code"]), (&json!("done"), &json!(0)), "{end}");

    let live = d.get("/v1/hosts?live=true").ok(200);
    assert_eq!(live["count"], 0, "{live}");
    let all = d.get("/v1/hosts?instance=echo").ok(200);
    assert_eq!(all["count"], lost + 1, "{all}");
    let wrong = json!({
        "instance": "echo", "args": ["x"], "cwd": "/", "idempotency_key": "k", "env": { "API_KEY": "hush-hush" },
    });
    let first = d.post("/v1/hosts", &wrong).ok(201);
    assert_eq!(d.post("/v1/hosts", &wrong).ok(200)["id"], first["id"]);
    let other = json!({ "instance": "echo", "name": "other", "cwd": "/", "idempotency_key": "k" });
    problem(&d.post("/v1/hosts", &other), 409, "conflict");
    // The input of an agent may be secret, and is not stored.
    let inputs = "select count(*), count(distinct request_fingerprint), max(length(request_fingerprint)) from agent where request_fingerprint is not null";
    assert_eq!(d.home.rows(inputs), [[1, 1, 64]], "a hash of the one that has a key");
}

#[test]
fn dispatched_work_is_a_task_with_the_agents_output_as_frames() {
    let d = world();
    let body = json!({ "instance": "hello", "prompt": "you" });
    let reply = d.post("/v1/send_message", &body);
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"), "{reply:?}");
    let lines: Vec<Value> = String::from_utf8_lossy(&reply.body)
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).expect("an object a line"))
        .collect();
    let ids: Vec<u64> = lines.iter().filter_map(|line| line["id"].as_u64()).collect();
    assert!(ids.iter().copied().eq(1..=ids.len() as u64), "{lines:?}");
    let said = |pipe: &str| {
        let frames = lines.iter().filter(|it| it["kind"] == "frame" && it["pipe"] == pipe);
        frames.map(|it| text(it, "line")).collect::<Vec<_>>()
    };
    assert_eq!(said("stdout"), ["hello you"], "{lines:?}");
    assert_eq!(said("stderr"), ["aside"], "{lines:?}");
    let last = lines.last().expect("a terminal event");
    assert_eq!((&last["kind"], &last["status"]), (&json!("terminal"), &json!("done")), "{last}");
    assert_eq!(last["result"], "hello you", "{last}");
    let task = over(&d, &text(last, "task_id"));
    assert_eq!((&task["agent"], &task["exit_code"]), (&json!("hello"), &json!(0)), "{task}");
    eventually(BOUND, || d.get("/v1/hosts?live=true").ok(200)["count"] == 0);

    let by_tag = dispatch(&d, json!({ "tag": "GREETING", "prompt": "tag" }));
    assert_eq!(over(&d, &by_tag)["result"], "hello tag");

    // There was no output yet: the next instance tries, and the attempt is recorded.
    let failover = dispatch(&d, json!({ "instance": "broken", "prompt": "again" }));
    let task = over(&d, &failover);
    assert_eq!(
        (&task["status"], &task["result"]),
        (&json!("done"), &json!("hello again")),
        "{task}"
    );
    let attempts: Vec<Value> = events(&d, &format!("task/{failover}"))
        .into_iter()
        .filter(|event| event["kind"] == "task" && event["data"]["attempt"].is_number())
        .collect();
    assert_eq!(attempts.len(), 1, "{attempts:?}");
    let attempt = &attempts[0]["data"];
    assert_eq!((&attempt["attempt"], &attempt["instance"]), (&json!(1), &json!("broken")));
    assert!(text(attempt, "error").contains("exit code 3"), "{attempt}");

    // The same if the program is missing.
    let failover = dispatch(&d, json!({ "instance": "gone", "prompt": "anew" }));
    assert_eq!(over(&d, &failover)["result"], "hello anew");
    let attempts = events(&d, &format!("task/{failover}"));
    let attempts: Vec<&Value> = attempts
        .iter()
        .map(|event| &event["data"])
        .filter(|task| task["attempt"].is_number())
        .collect();
    let names: Vec<&Value> = attempts.iter().map(|task| &task["instance"]).collect();
    assert_eq!(names, ["gone", "missing"], "{attempts:?}");
    for attempt in attempts {
        assert!(text(attempt, "error").contains("no-such-program"), "{attempt}");
    }

    // The response, and its repetition, name the agent that wrote it.
    let input = json!({ "agent": "gone", "prompt": "you", "async": false, "idempotency_key": "f",
        "cwd": d.home.user() });
    for _ in 0..2 {
        let said = d.done("SendMessage", &input);
        assert_eq!(
            (&said["instance"], &said["backend"], &said["content"]),
            (&json!("hello"), &json!("exec"), &json!("hello you")),
            "{said}"
        );
    }

    // There was output: no other instance tries.
    let failed = over(&d, &dispatch(&d, json!({ "instance": "failing", "prompt": "x" })));
    assert_eq!(
        (&failed["status"], &failed["exit_code"]),
        (&json!("failed"), &json!(3)),
        "{failed}"
    );

    let keyed = |prompt: &str| {
        d.post(
            "/v1/send_message",
            &json!({ "instance": "hello", "prompt": prompt, "opts": { "async": true, "idempotency_key": "k" } }),
        )
    };
    let first = text(&keyed("a").ok(202), "task_id");
    assert_eq!(text(&keyed("a").ok(202), "task_id"), first);
    problem(&keyed("b"), 409, "conflict");

    for (body, field) in [
        (json!({ "instance": "nobody", "prompt": "x" }), "instance"),
        (json!({ "instance": "exec", "prompt": "x" }), "instance"),
        (json!({ "instance": "missing", "prompt": "x" }), "instance"),
        (json!({ "instance": "ag_none", "prompt": "x" }), "instance"),
        (json!({ "tag": "none", "prompt": "x" }), "tag"),
        (json!({ "prompt": "x" }), "instance"),
    ] {
        let refusal = invalid(&d.post("/v1/send_message", &body), field);
        let choice = if field == "tag" { "tags: greeting" } else { "hello" };
        assert!(text(&refusal, "detail").contains(choice), "it lists the choices: {refusal}");
    }
    invalid(&d.post("/v1/send_message", &json!({ "instance": "hello", "prompt": " " })), "prompt");
    let both = json!({ "session": "a", "session_id": "b" });
    let both = json!({ "instance": "hello", "prompt": "x", "opts": both });
    let refusal = invalid(&d.post("/v1/send_message", &both), "opts.session_id");
    assert!(text(&refusal, "detail").contains("give opts.session alone"), "{refusal}");
    let tmux = json!({ "instance": "hello", "prompt": "x", "opts": { "mode": "auto-tmux" } });
    invalid(&d.post("/v1/send_message", &tmux), "opts.mode");
    let peer = json!({ "instance": "echo", "prompt": "x", "opts": { "mode": "peer-only" } });
    problem(&d.post("/v1/send_message", &peer), 503, "unavailable");
    start(&d, "echo", "main");
    for target in ["echo", "agent:echo:main"] {
        let peer = json!({ "instance": target, "prompt": target, "opts": { "mode": "peer-only" } });
        let task = over(&d, &dispatch(&d, peer));
        assert_eq!(task["result"], format!("got {target}"), "{task}");
    }
    assert_eq!(agent(&d, "agent:echo:main")["ended_at"], Value::Null, "it lives on");
}

#[test]
fn task_with_an_unparsable_owner_is_not_the_operators() {
    let mut d = world();
    let body = json!({ "instance": "slow", "prompt": "x" });
    let (first, second) = (dispatch(&d, body.clone()), dispatch(&d, body));
    let task = |d: &Daemon, id: &str| d.get(&format!("/v1/tasks/{id}")).ok(200);
    eventually(BOUND, || task(&d, &second)["reason"].is_string());
    d.kill9();
    let orphan = format!("update task set created_by = 'root' where task_id = '{second}'");
    assert_eq!(d.home.change(&orphan), 1);
    d.restart();
    let end = over(&d, &second);
    assert_eq!(end["status"], "failed", "{end}");
    assert!(text(&end, "error").contains("owner of this task is unknown"), "{end}");
    d.post(&format!("/v1/tasks/{first}/cancel"), &json!({})).ok(202);
    over(&d, &first);
}

#[test]
fn work_beyond_the_bound_queues_and_can_be_cancelled() {
    let d = world();
    let [first, second, third] =
        [1, 2, 3].map(|n| dispatch(&d, json!({ "instance": "slow", "prompt": format!("{n}") })));
    let task = |id: &str| d.get(&format!("/v1/tasks/{id}")).ok(200);
    eventually(BOUND, || task(&first)["status"] == "active");
    for waiting in [&second, &third] {
        let waits = until(BOUND, || Some(task(waiting)).filter(|it| it["reason"].is_string()));
        assert_eq!(waits["status"], "pending", "{waits}");
        assert!(text(&waits, "reason").contains("max_concurrent"), "{waits}");
    }
    let body = json!({ "instance": "slow", "cwd": d.home.user() });
    problem(&d.post("/v1/hosts", &body), 429, "limit_reached");
    let cancelled = d.post(&format!("/v1/tasks/{second}/cancel"), &json!({})).ok(200);
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    eventually(BOUND, || {
        let log = events(&d, &format!("task/{first}"));
        log.iter().any(|event| event["data"]["line"] == "begun")
    });
    let working = d.get("/v1/hosts?live=true").ok(200)["hosts"][0].clone();
    d.post(&format!("/v1/tasks/{first}/cancel"), &json!({})).ok(202);
    let end = over(&d, &first);
    assert_eq!(end["status"], "cancelled", "{end}");
    assert!(!runs(working["pid"].as_u64().expect("a pid")), "its process group is gone");
    eventually(BOUND, || task(&third)["status"] == "active");
    d.post(&format!("/v1/tasks/{third}/cancel"), &json!({})).ok(202);
    assert_eq!(over(&d, &third)["status"], "cancelled");

    assert_eq!(
        over(&d, &dispatch(&d, json!({ "instance": "rated", "prompt": "a" })))["result"],
        "a"
    );
    let rated = dispatch(&d, json!({ "instance": "rated", "prompt": "b" }));
    let waits = until(BOUND, || Some(task(&rated)).filter(|it| it["reason"].is_string()));
    assert!(text(&waits, "reason").contains("rate"), "{waits}");
}

/// Whoever gave work hears of its end, also if no agent began it.
#[test]
fn cancellation_of_queued_work_is_told() {
    let d = world();
    let asker = d.mint("s-1", d.home.user(), &["agents"]);
    let [first, second] = ["1", "2"].map(|prompt| {
        let input = json!({ "agent": "slow", "prompt": prompt });
        text(&asker.done("SendMessage", &input), "task_id")
    });
    let cancelled = d.post(&format!("/v1/tasks/{second}/cancel"), &json!({})).ok(200);
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    let inbox = asker.done("peer_inbox", &json!({}));
    let told = text(&inbox["messages"][0], "text");
    assert_eq!(told, format!("Task {second} for slow was cancelled."), "{inbox}");
    d.post(&format!("/v1/tasks/{first}/cancel"), &json!({}));
    over(&d, &first);
}

/// The message does not wait as long as the call would have, which is an hour. A repeat of the call
/// that waits on another connection keeps its wait when the first connection is cut.
#[test]
fn answer_of_a_call_that_was_cut_comes_as_a_message() {
    let mut d = world();
    let asker = d.mint("s-1", d.home.user(), &["agents"]);
    let work = json!({ "agent": "slow", "prompt": "go", "async": false, "idempotency_key": "one" });
    let begin = || begin_call(&asker, "SendMessage", &work);
    let first = begin();
    eventually(BOUND, || until_when(&d) != 0);
    let earlier = until_when(&d);
    let second = begin();
    eventually(BOUND, || until_when(&d) != earlier);
    let later = until_when(&d);
    drop(second);
    // The first call still waits, until the end of its own wait.
    eventually(BOUND, || until_when(&d) == earlier);
    assert_ne!(later, earlier);
    drop(first);
    eventually(BOUND, || until_when(&d) == 0);
    let third = begin();
    eventually(BOUND, || until_when(&d) != 0);
    d.kill9();
    d.restart();
    eventually(BOUND, || until_when(&d) == 0);
    drop(third);
    let task = text(&d.get("/v1/tasks").ok(200)["tasks"][0], "task_id");
    d.post(&format!("/v1/tasks/{task}/cancel"), &json!({}));
    over(&d, &task);
    let inbox = asker.done("peer_inbox", &json!({ "peek": true }));
    assert!(inbox.to_string().contains(&task), "{inbox}");
}

/// The end of the work is the first thing that the next daemon learns of the agent.
#[test]
fn answer_that_came_while_the_daemon_was_away_comes_as_a_message() {
    let home = Home::new();
    let (gate, end) = (home.user().join("gate"), home.user().join("end"));
    let program = format!(
        "read line; while ! test -e {}; do sleep 0.05; done; echo the answer; touch {}",
        gate.display(),
        end.display()
    );
    let command = json!(["sh", "-c", program]);
    home.write(
        "config.toml",
        &format!("[agents.gated]\nbackend = \"exec\"\ncommand = {command}\n"),
    );
    let mut d = Daemon::with(|plan| plan.home(&home));
    let asker = d.mint("s-1", d.home.user(), &["agents"]);
    let work = json!({ "agent": "gated", "prompt": "go", "async": false });
    let call = begin_call(&asker, "SendMessage", &work);
    let taken = "select count(*) from assignment where taken_at is not null and waits_until > 0";
    eventually(BOUND, || d.home.value(taken) == 1);
    d.kill9();
    std::fs::write(&gate, "").expect("a gate");
    eventually(BOUND, || end.exists());
    d.restart();
    eventually(BOUND, || {
        let inbox = asker.done("peer_inbox", &json!({ "peek": true }));
        inbox.to_string().contains("the answer")
    });
    drop(call);
}

/// Two agents were started with one name, and a person's session is called so.
#[test]
fn a_session_gets_the_work_for_a_name_with_which_several_agents_were_started() {
    let d = world();
    for instance in ["echo", "held"] {
        start(&d, instance, "ann");
    }
    let work = json!({ "instance": "ann", "prompt": "go" });
    problem(&d.post("/v1/send_message", &work), 422, "invalid_request");
    let begun = hook_payload("s-1", "SessionStart", "/nowhere/p", &json!({ "source": "startup" }));
    d.home.hook("claude", &begun);
    let named = json!({ "display_name": "ann", "backend": "claude-code", "session_id": "s-1" });
    d.post("/v1/peers/register", &named).ok(200);
    let task = dispatch(&d, work);
    let given = format!(
        "select count(*) from assignment where task_id = '{task}' and target_session = 'agent:claude:s-1'"
    );
    eventually(BOUND, || d.home.value(&given) == 1);
}

#[test]
fn waiting_for_an_agent_whose_work_waits_is_refused() {
    let d = world();
    let [asker, worker] = ["a", "b"].map(|name| {
        start(&d, "held", name);
        d.mint(&format!("agent:held:{name}"), d.home.user(), &["agents"])
    });
    let work = |to: &str| json!({ "agent": to, "prompt": "go", "async": false });
    let call = begin_call(&asker, "SendMessage", &work("agent:held:b"));
    let given = "select count(*) from assignment
        where target_session = 'agent:held:b' and waits_until is not null and ended_at is null";
    eventually(BOUND, || d.home.value(given) == 1);
    let refused = worker.tool("SendMessage", &work("agent:held:a"));
    assert_eq!(refused["structuredContent"]["error"]["reason"], "wait_cycle", "{refused}");
    drop(call);
}

/// Begins a call of a tool, which is cut off when the connection is dropped.
pub(crate) fn begin_call(caller: &Caller, tool: &str, arguments: &Value) -> TcpStream {
    let call = tool_call(tool, arguments).to_string();
    let token = caller.token.as_deref().expect("a token");
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{call}",
        call.len()
    );
    let mut stream = TcpStream::connect(caller.addr).expect("a connection");
    stream.write_all(request.as_bytes()).expect("it is taken");
    stream
}

/// The end of the wait for open work; 0 if no call waits.
fn until_when(d: &Daemon) -> Value {
    d.home.value("select coalesce(max(waits_until), 0) from assignment where ended_at is null")
}

#[test]
fn prompt_queued_in_an_agent_can_be_cancelled() {
    let d = world();
    let started = start(&d, "held", "main");
    let id = text(&started, "id");
    let peer = |prompt: &str| json!({ "instance": "agent:held:main", "prompt": prompt, "opts": { "mode": "peer-only" } });
    let first = dispatch(&d, peer("first"));
    let task = |id: &str| d.get(&format!("/v1/tasks/{id}")).ok(200);
    eventually(BOUND, || task(&first)["status"] == "active");
    let second = dispatch(&d, peer("second"));
    let third = dispatch(&d, peer("third"));
    // The host has both: a queue of two behind the turn under way.
    let sent = format!(
        "select count(*) from assignment
        where state in ('sent', 'running') and task_id in ('{second}', '{third}')"
    );
    eventually(BOUND, || d.home.value(&sent) == 2);
    d.post(&format!("/v1/tasks/{second}/cancel"), &json!({})).ok(202);
    assert_eq!(over(&d, &second)["status"], "cancelled");
    assert_eq!(task(&first)["status"], "active", "another's turn goes on");
    d.post(&format!("/v1/tasks/{first}/cancel"), &json!({})).ok(202);
    assert_eq!(over(&d, &first)["status"], "cancelled");
    let log = events(&d, &format!("agent/{id}"));
    let begun: Vec<&str> = log
        .iter()
        .filter(|event| event["kind"] == "input")
        .filter_map(|event| event["data"]["data"].as_str())
        .collect();
    assert!(begun.contains(&"first") && !begun.contains(&"second"), "{begun:?}");
}

#[test]
fn stream_of_dispatched_work_ends_with_its_token() {
    let d = with_config(
        "[agents.slow]\nbackend = \"exec\"\n\
         command = [\"sh\", \"-c\", \"read line; echo begun; sleep 600\"]\n",
    );
    let input = json!({ "session": "asker", "project": d.home.user(), "scopes": ["agents"] });
    let minted = d.post("/v1/tokens", &input).ok(201);
    let asker = d.with_token(&text(&minted, "token"));
    let request = asker.request("POST", "/v1/send_message");
    let request = request.json(&json!({ "instance": "slow", "prompt": "x" }));
    let (reply, task) = std::thread::scope(|scope| {
        let lines = scope.spawn(|| request.send());
        let task = until(BOUND, || {
            let tasks = d.get("/v1/tasks").ok(200);
            tasks["tasks"][0]["task_id"].as_str().map(str::to_owned)
        });
        until(BOUND, || {
            let begun = |event: &Value| event["data"]["line"] == "begun";
            events(&d, &format!("task/{task}")).iter().any(begun).then_some(())
        });
        d.delete(&format!("/v1/tokens/{}", text(&minted, "token_id"))).ok(200);
        (lines.join().expect("it ends"), task)
    });
    let lines = String::from_utf8_lossy(&reply.body);
    assert!(!lines.contains("\"terminal\""), "{lines}");
    let task = d.get(&format!("/v1/tasks/{task}")).ok(200);
    assert!(task["closed_at"].is_null(), "the work goes on: {task}");
}

#[test]
fn end_of_work_is_sent_to_the_asker() {
    let d = world();
    let input = json!({ "session": "asker", "project": d.home.user(), "scopes": ["agents"] });
    let asker = d.minted(&input);
    let own = json!({ "display_name": "asker", "backend": "test", "session_id": "asker" });
    let peer = text(&asker.post("/v1/peers/register", &own).ok(200), "peer_id");
    let task = dispatch(&asker, json!({ "instance": "hello", "prompt": "you" }));
    assert_eq!(over(&asker, &task)["status"], "done");
    // The terminal event and the message are one commit.
    let inbox = asker.get(&format!("/v1/peers/{peer}/messages?peek=true")).ok(200);
    let told = inbox["messages"].as_array().expect("messages");
    assert_eq!(told.len(), 1, "{inbox}");
    assert_eq!(told[0]["type"], "notification", "{inbox}");
    let words = text(&told[0], "text");
    assert!(words.contains(&task) && words.contains("hello you"), "{words}");

    let plain = d.session("plain");
    let body = json!({ "instance": "hello", "prompt": "x" });
    problem(&plain.post("/v1/send_message", &body), 403, "forbidden");
    problem(
        &plain.post("/v1/hosts", &json!({ "instance": "hello", "cwd": "/" })),
        403,
        "forbidden",
    );
    let started = start(&d, "echo", "main");
    let id = text(&started, "id");
    problem(&plain.get(&format!("/v1/hosts/{id}")), 404, "not_found");
    let own = d.session("agent:echo:main");
    assert_eq!(agent(&own, &id)["id"], json!(id), "a token for its key acts as that agent");
}

#[test]
fn kill_nine_of_the_daemon_repeats_no_prompt_and_leaves_none_open() {
    let rounds: u64 =
        std::env::var("SVC_AGENT_ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(4);
    let home = Home::new();
    let ran = home.user().join("ran");
    let script = format!("read line; echo $line >> {}; echo did $line", ran.display());
    let config = format!(
        "[agents.worker]\nbackend = \"exec\"\ncommand = [\"sh\", \"-c\", {script:?}]\nmax_concurrent = 3\n"
    );
    home.write("config.toml", &config);
    let mut d = Daemon::with(|plan| plan.home(&home));
    let mut tasks = Vec::new();
    for round in 0..rounds {
        for n in 0..4 {
            let prompt = format!("p-{round}-{n}");
            tasks.push((dispatch(&d, json!({ "instance": "worker", "prompt": prompt })), prompt));
        }
        let moment = getrandom::u64().expect("chance") % 120;
        let until = Instant::now() + Duration::from_millis(moment);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        d.kill_and_restart();
    }
    for (task, prompt) in &tasks {
        let end = wait_for_late_end(&d, task, 2 * rounds);
        assert_eq!(end["status"], "done", "{end}");
        assert_eq!(end["result"], format!("did {prompt}"), "{end}");
        let log = events(&d, &format!("task/{task}"));
        assert_eq!(log.iter().filter(|event| event["kind"] == "terminal").count(), 1, "{log:?}");
        let words = log.iter().filter(|event| event["data"]["line"] == format!("did {prompt}"));
        assert_eq!(words.count(), 1, "{log:?}");
    }
    let mut lines: Vec<String> = read(&ran).lines().map(str::to_owned).collect();
    lines.sort();
    let mut prompts: Vec<String> = tasks.iter().map(|(_, prompt)| prompt.clone()).collect();
    prompts.sort();
    assert_eq!(lines, prompts, "each ran once");
    eventually(BOUND, || d.get("/v1/hosts?live=true").ok(200)["count"] == 0);
    for host in d.get("/v1/hosts?limit=500").ok(200)["hosts"].as_array().expect("hosts") {
        let log = events(&d, &format!("agent/{}", text(host, "id")));
        is_dense(&log);
        let exits = log.iter().filter(|event| event["kind"] == "exit").count();
        assert_eq!(exits, 1, "{host}");
    }
}

/// Agents whose launch a killed daemon did not finish are given up after a while, and retried after
/// those that wait, which takes up to `behind` seconds.
fn wait_for_late_end(d: &Caller, task: &str, behind: u64) -> Value {
    over_within(Duration::from_secs(120 + behind), d, task)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn many_watchers_get_each_line_of_many_writers_once() {
    let config = r#"
[agents.many]
backend = "exec"
command = ["sh", "-c", "read go; for p in 1 2 3 4; do (for n in $(seq 1 300); do echo $p-$n; done) & done; wait"]
"#;
    let d = with_config(config);
    let started = start(&d, "many", "main");
    let id = text(&started, "id");
    let path = format!("/v1/events?stream=agent/{id}");
    let mut early: Vec<_> = (0..30).map(|_| d.follow(&path)).collect();
    d.post(&format!("/v1/hosts/{id}/send"), &json!({ "input": "go" })).ok(200);
    let mut late: Vec<_> = (0..30).map(|_| d.follow(&path)).collect();
    ended(&d, &id);
    let log = events(&d, &format!("agent/{id}"));
    is_dense(&log);
    let said = log.iter().filter(|event| event["kind"] == "output").count();
    assert_eq!(said, 1200);
    for watcher in early.iter_mut().chain(&mut late) {
        let seen = watcher.events(log.len());
        dense(&seen, 1);
    }
}

#[test]
fn watch_leaves_out_the_line_that_ends_a_turn() {
    let d = with_config(
        "[agents.echo]\nbackend = 'exec'\nturn_end = 'END'\n\
         command = ['sh', '-c', 'while read line; do echo got $line; echo END; done']\n",
    );
    let run = |args: &[&str]| svc(&d.home, args);
    let id = text(&run(&["agent", "start", "echo", "--cwd", "/", "--json"]).json(), "id");
    run(&["agent", "send", "echo", "hi"]).ok();
    let stream = format!("agent/{id}");
    let listed = ["events", "list", "--stream", &stream, "--json"];
    eventually(BOUND, || run(&listed).ok().contains("ends_turn"));
    run(&["agent", "stop", &id]).ok();
    let watched = run(&["agent", "watch", &id]);
    assert!(watched.stdout.contains("got hi") && !watched.stdout.contains("END"), "{watched:?}");
}

#[test]
fn commands_start_list_send_and_stop() {
    let d = world();
    let run = |args: &[&str]| svc(&d.home, args);
    let started = run(&["agent", "start", "echo", "--cwd", "/", "--json"]).json();
    let id = text(&started, "id");
    assert!(run(&["agent", "list"]).ok().contains("agent:echo:main"));
    assert!(run(&["agent", "list", "--instances"]).ok().contains("no-such-program"));
    run(&["agent", "send", "echo", "hi"]).ok();
    eventually(BOUND, || run(&["agent", "history", "echo"]).ok().contains("got hi"));
    assert_eq!(run(&["agent", "status", &id[..14], "--json"]).json()["id"], started["id"]);
    run(&["agent", "stop", "agent:echo:main"]).ok();
    assert!(run(&["agent", "watch", &id]).ok().contains("got hi"));
    let nowhere = run(&["agent", "start", "echo", "--name", "far", "--cwd", "/no/such/folder"]);
    assert!(nowhere.stderr.contains("no folder /no/such/folder"), "{nowhere:?}");
    assert!(!nowhere.stderr.contains("svc restart"), "config.toml does not matter: {nowhere:?}");
    let sent = run(&["send", "--agent", "hello", "you"]);
    assert!(sent.ok().contains("hello you"), "{sent:?}");
    let late = run(&["agent", "send", &id, "x"]);
    assert_eq!(late.code, Some(1), "{late:?}");
    assert_eq!(run(&["agent", "status", "nobody"]).code, Some(1));
}
