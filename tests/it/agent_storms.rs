//! Agents under failures at bad moments: `kill -9` of the daemon, the host, the agent or all of
//! them, reused pids, stale sockets, concurrent claims of a name.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::agents::{
    agent, ask_host, dispatch, ended, is_dense, kill, over_within, runs, start, with_config,
};
use crate::daemon::{Daemon, Home, eventually, quickly, until};
use crate::expect::{events, problem, text};
use crate::wire::Caller;

const BOUND: Duration = Duration::from_secs(20);

const ECHO: &str = r#"
[agents.echo]
backend = "exec"
command = ["sh", "-c", "while read line; do echo got $line; done"]
"#;

fn chance(below: u64) -> u64 {
    getrandom::u64().expect("chance") % below
}

fn rounds(default: u64) -> u64 {
    std::env::var("SVC_CRASH_ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(default)
}

fn live(d: &Caller) -> Vec<Value> {
    let page = d.get("/v1/hosts?live=true&limit=500").ok(200);
    page["hosts"].as_array().expect("hosts").clone()
}

/// Processes whose command line contains this word.
pub(crate) fn bearers(word: &str) -> Vec<u64> {
    let entries = fs::read_dir("/proc").expect("Linux").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u64>().ok());
    pids.filter(|pid| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|it| it == word.as_bytes())
    })
    .collect()
}

/// Kills the processes that a failed test would leave behind.
pub(crate) struct Broom(pub(crate) String);

impl Drop for Broom {
    fn drop(&mut self) {
        for pid in bearers(&self.0) {
            signal(pid, Signal::KILL);
        }
    }
}

/// The process may have ended by itself meanwhile.
fn signal(pid: u64, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _gone = kill_process(pid, signal);
    }
}

/// Whichever process is killed, and whenever: each prompt has one end, runs at most once, and
/// leaves no process.
#[test]
fn kill_nine_of_any_process_leaves_each_prompt_one_end() {
    let home = Home::new();
    let ran = home.user().join("ran");
    let mark = format!("{}.625", 400_000 + std::process::id());
    let _broom = Broom(mark.clone());
    let script = format!(
        "read line; echo $line >> {}; (setsid sleep {mark} >&- 2>&- &); echo did $line; sleep 0.03; echo end",
        ran.display()
    );
    home.write(
        "config.toml",
        &format!(
            "[agents.worker]\nbackend = \"exec\"\ncommand = [\"sh\", \"-c\", {script:?}]\nmax_concurrent = 4\n"
        ),
    );
    let mut d = Daemon::with(|plan| plan.home(&home));
    let mut tasks = Vec::new();
    for round in 0..rounds(50) {
        for n in 0..2 {
            let prompt = format!("p-{round}-{n}");
            tasks.push((dispatch(&d, json!({ "instance": "worker", "prompt": prompt })), prompt));
        }
        let moment = Instant::now() + Duration::from_millis(chance(120));
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        let victim = chance(4);
        let agents = if victim == 0 { Vec::new() } else { live(&d) };
        let pids = |name: &str| {
            let of = |agent: &Value| agent[name].as_u64().filter(|pid| *pid > 0);
            agents.iter().filter_map(of).collect::<Vec<_>>()
        };
        let kills = |pids: Vec<u64>| pids.into_iter().for_each(|pid| signal(pid, Signal::KILL));
        match victim {
            0 => d.kill9(),
            1 => kills(pids("host_pid")),
            2 => kills(pids("pid")),
            _ => {
                d.kill9();
                kills(pids("host_pid"));
                kills(pids("pid"));
            }
        }
        if matches!(victim, 0 | 3) {
            d.restart();
        }
    }
    let mut ends = BTreeSet::new();
    for (task, prompt) in &tasks {
        let end = over_within(Duration::from_mins(3), &d, task);
        let status = text(&end, "status");
        match &*status {
            "done" => assert!(text(&end, "result").contains(&format!("did {prompt}")), "{end}"),
            "failed" => assert!(end["error"].is_string() || end["signal"].is_string(), "{end}"),
            other => panic!("{other}: {end}"),
        }
        ends.insert(status);
        let log = events(&d, &format!("task/{task}"));
        assert_eq!(log.iter().filter(|event| event["kind"] == "terminal").count(), 1, "{log:?}");
    }
    assert!(ends.contains("done"), "{ends:?}");
    let ran = fs::read_to_string(&ran).unwrap_or_default();
    let once: BTreeSet<&str> = ran.lines().collect();
    assert_eq!(once.len(), ran.lines().count(), "no prompt ran twice: {ran}");
    eventually(BOUND, || live(&d).is_empty());
    eventually(Duration::from_secs(5), || bearers(&mark).is_empty());
    let mut before: Option<String> = None;
    loop {
        let cursor = before.as_deref().map_or(String::new(), |it| format!("&cursor={it}"));
        let page = d.get(&format!("/v1/hosts?limit=200{cursor}")).ok(200);
        for host in page["hosts"].as_array().expect("hosts") {
            assert!(["done", "error", "lost"].contains(&&*text(host, "state")), "{host}");
            let log = events(&d, &format!("agent/{}", text(host, "id")));
            is_dense(&log);
            let exits = log.iter().filter(|event| event["kind"] == "exit").count();
            assert_eq!(exits, 1, "{host}");
            let inputs = log.iter().filter(|event| event["kind"] == "input").count();
            assert!(inputs <= 1, "{host}");
        }
        match page["next_cursor"].as_str() {
            Some(next) => before = Some(next.to_owned()),
            None => break,
        }
    }
    eventually(BOUND, || {
        let left = fs::read_dir(home.path("agents")).into_iter().flatten().flatten();
        left.filter(|it| it.path().extension().is_some_and(|end| end == "spool")).count() == 0
    });
}

#[test]
fn agent_process_survives_fifty_daemon_restarts() {
    let mut d = with_config(ECHO);
    let started = start(&d, "echo", "main");
    let (id, host, pid) =
        (text(&started, "id"), started["host_pid"].clone(), started["pid"].clone());
    let socket = text(&started, "socket_path");
    let mut sent = 0;
    for round in 0..50 {
        d.kill9();
        if round % 10 == 0 {
            let input = json!({ "type": "host.send", "payload": { "input": format!("n{sent}") } });
            assert_eq!(ask_host(&socket, &input)["success"], true);
            sent += 1;
        }
        d.restart();
        let now = agent(&d, &id);
        assert_eq!((&now["host_pid"], &now["pid"]), (&host, &pid), "{now}");
    }
    let said = format!("got n{}", sent - 1);
    eventually(BOUND, || {
        d.get(&format!("/v1/hosts/{id}/history")).ok(200).to_string().contains(&said)
    });
    d.post(&format!("/v1/hosts/{id}/stop"), &json!({ "force": true })).ok(200);
    ended(&d, &id);
    let log = events(&d, &format!("agent/{id}"));
    is_dense(&log);
    assert_eq!(log.iter().filter(|event| event["kind"] == "input").count(), sent);
    let told = events(&d, "team");
    assert_eq!(told.iter().filter(|event| event["kind"] == "agent.started").count(), 1);
}

#[test]
fn concurrent_starts_with_one_name_start_one_agent() {
    let d = Arc::new(with_config(ECHO));
    let body = json!({ "instance": "echo", "name": "One", "cwd": d.home.user() });
    let inputs: Vec<_> = (0..8)
        .map(|_| {
            let (d, body) = (Arc::clone(&d), body.clone());
            thread::spawn(move || d.post("/v1/hosts", &body))
        })
        .collect();
    let replies: Vec<_> = inputs.into_iter().map(|it| it.join().expect("it answers")).collect();
    let made = replies.iter().filter(|reply| reply.status() == 201).count();
    assert_eq!(made, 1, "{replies:?}");
    for reply in replies.iter().filter(|reply| reply.status() != 201) {
        problem(reply, 409, "conflict");
    }
    let agents = live(&d);
    assert_eq!(agents.len(), 1, "{agents:?}");
    assert_eq!(agents[0]["session_key"], "agent:echo:one");
}

/// The pid in the row belongs to another process now.
#[test]
fn reused_pid_of_a_dead_host_is_not_killed() {
    let mut d = with_config(ECHO);
    let started = start(&d, "echo", "main");
    let id = text(&started, "id");
    let (host, program) =
        (started["host_pid"].as_u64().expect("a pid"), started["pid"].as_u64().expect("a pid"));
    d.kill9();
    kill(host);
    eventually(BOUND, || !runs(host) && !runs(program));
    let mut other = Command::new("sleep").arg("600.875").spawn().expect("it starts");
    let pid = other.id();
    let reused = format!("update agent set host_pid = {pid}, pid = {pid} where agent_id = '{id}'");
    assert_eq!(d.home.change(&reused), 1);
    d.restart();
    let end = ended(&d, &id);
    assert_eq!(end["state"], "lost", "{end}");
    assert!(other.try_wait().expect("our child").is_none(), "it is not signalled");
    other.kill().expect("our child");
    other.wait().expect("our child");
    start(&d, "echo", "main");
}

/// Sockets in the folder that are stale, respond with nonsense, or never respond; and a stopped
/// host. None of them delays the daemon or the other agents.
#[test]
fn stale_or_hanging_sockets_delay_nothing() {
    let mut d = with_config(ECHO);
    let (good, still) = (start(&d, "echo", "good"), start(&d, "echo", "still"));
    let (good_id, still_id) = (text(&good, "id"), text(&still, "id"));
    let still_host = still["host_pid"].as_u64().expect("a pid");
    d.kill9();
    signal(still_host, Signal::STOP);
    let folder = d.home.path("agents");
    let wedged = UnixListener::bind(folder.join("ag_wedged.sock")).expect("a socket");
    let foreign = UnixListener::bind(folder.join("ag_foreign.sock")).expect("a socket");
    drop(UnixListener::bind(folder.join("ag_dead.sock")).expect("a socket"));
    fs::write(folder.join("ag_plain.sock"), "not a socket").expect("a file");
    let send = json!({ "input": "hi", "idempotency_key": "k" });
    let mut starts = 0;
    quickly(Duration::from_secs(30), || {
        if starts > 0 {
            d.kill9();
        }
        starts += 1;
        let began = Instant::now();
        d.restart();
        until(BOUND, || {
            let reply = d.post(&format!("/v1/hosts/{good_id}/send"), &send);
            (reply.status() == 200).then_some(())
        });
        began.elapsed()
    });
    eventually(BOUND, || {
        d.get(&format!("/v1/hosts/{good_id}/history")).ok(200).to_string().contains("got hi")
    });
    // What belongs to no agent of this database is left alone, and the stopped host does not count
    // as dead.
    for name in ["ag_wedged.sock", "ag_foreign.sock", "ag_dead.sock", "ag_plain.sock"] {
        assert!(folder.join(name).exists(), "{name}");
    }
    let waiting = agent(&d, &still_id);
    assert!(waiting["ended_at"].is_null(), "{waiting}");
    signal(still_host, Signal::CONT);
    until(BOUND, || {
        let reply = d.post(&format!("/v1/hosts/{still_id}/send"), &send);
        (reply.status() == 200).then_some(())
    });
    drop((wedged, foreign));
}
