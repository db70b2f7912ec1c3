//! A hosted agent with its own hooks, its `svc stdio` and its token is one participant. And its
//! processes are killed when no host is left to do it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent_storms::{Broom, bearers};
use crate::agents::{agent, ended, kill, runs};
use crate::daemon::{Daemon, Home, PATIENT, eventually, hook_payload, svc, until};
use crate::expect::text;
use crate::wire::Caller;

const BOUND: Duration = Duration::from_secs(20);

/// An agent that executes each line of input as a shell command, which runs in the environment of a
/// client.
pub(crate) struct Obedient {
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) host: u64,
    pub(crate) folder: PathBuf,
    count: u32,
}

/// A daemon with the instance `coder`.
pub(crate) fn world() -> Daemon {
    world_with("")
}

fn world_with(more: &str) -> Daemon {
    let home = Home::new();
    fs::create_dir_all(home.user().join("bin")).expect("a folder");
    for name in ["coder", "other"] {
        symlink("/bin/sh", home.user().join("bin").join(name)).expect("a link");
    }
    let program = home.user().join("bin/coder");
    let svc = env!("CARGO_BIN_EXE_svc");
    let (hook_deadline, deadline) = PATIENT;
    let config = format!(
        r#"
[agents.coder]
backend = "exec"
command = ["{}", "-c", "while read -r line; do case $line in RUN*) eval \"${{line#RUN}}\" ;; esac; echo END; done"]
turn_end = "END"
env = {{ SVC = "{svc}", SVC_HOME = "{}", {hook_deadline} = "{deadline}" }}
{more}
"#,
        program.display(),
        home.dir().display(),
    );
    home.write("config.toml", &config);
    Daemon::with(|plan| plan.home(&home))
}

impl Obedient {
    pub(crate) fn start(d: &Daemon, name: &str) -> Self {
        let folder = d.home.user().join(format!("{name}.files"));
        fs::create_dir_all(&folder).expect("a folder");
        let body = json!({ "instance": "coder", "name": name, "cwd": d.home.user() });
        let started = d.post("/v1/hosts", &body).ok(201);
        Self {
            key: text(&started, "session_key"),
            id: text(&started, "id"),
            host: started["host_pid"].as_u64().expect("a pid"),
            folder,
            count: 0,
        }
    }

    /// The output of a command with this input.
    #[track_caller]
    pub(crate) fn run(&mut self, d: &Caller, command: &str, input: &str) -> String {
        self.count += 1;
        let path = |end: &str| self.folder.join(format!("{}.{end}", self.count));
        fs::write(path("in"), input).expect("a file");
        let (from, to, done) = (path("in"), path("new"), path("out"));
        let line = format!(
            "RUN {command} <'{}' >'{}'; mv '{}' '{}'",
            from.display(),
            to.display(),
            to.display(),
            done.display()
        );
        d.post(&format!("/v1/hosts/{}/send", self.key), &json!({ "input": line })).ok(200);
        until(BOUND, || fs::read_to_string(&done).ok())
    }

    /// The output of its hook.
    #[track_caller]
    fn hook(&mut self, d: &Caller, event: &str, more: &Value) -> String {
        self.hook_of(d, "s-1", event, more)
    }

    #[track_caller]
    fn hook_of(&mut self, d: &Caller, session: &str, event: &str, more: &Value) -> String {
        let payload = hook_payload(session, event, "/nowhere/p", more);
        self.run(d, "\"$SVC\" hook claude", &payload.to_string())
    }

    /// The result of a tool that it calls through its `svc stdio`.
    #[track_caller]
    pub(crate) fn call(&mut self, d: &Caller, tool: &str, arguments: &Value) -> Value {
        let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "coder", "version": "1" } });
        let lines = [
            json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello }),
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
            json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call",
                "params": { "name": tool, "arguments": arguments } }),
        ];
        let input: String =
            lines.iter().flat_map(|line| [line.to_string(), "\n".to_owned()]).collect();
        // The input stays open until the response has come.
        let command = "{ cat; sleep 600.125 & echo $! >sleeper; wait; } | \"$SVC\" stdio | { while read -r line; do \
            echo \"$line\"; case $line in *'\"id\":2'*) kill $(cat sleeper); break;; esac; done; }";
        let printed = self.run(d, &format!("{{ {command}; }}"), &input);
        let answer = printed
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["id"] == 2);
        answer.unwrap_or_else(|| panic!("{tool}: {printed}"))["result"]["structuredContent"].clone()
    }
}

fn peers(d: &Caller) -> Vec<Value> {
    let all = d.get("/v1/peers").ok(200)["peers"].as_array().expect("a list").clone();
    all.into_iter().filter(|peer| peer["peer_id"] != "operator").collect()
}

fn subjects(d: &Caller) -> Vec<String> {
    let tokens = d.get("/v1/tokens?limit=500").ok(200);
    let mut all: Vec<String> =
        tokens["tokens"].as_array().expect("a list").iter().map(|it| text(it, "session")).collect();
    all.sort();
    all.dedup();
    all
}

/// A number that occurs only in command lines of this test's processes.
fn lives(mark: &str) -> bool {
    !bearers(mark).is_empty()
}

#[test]
fn hosted_agent_its_hooks_and_its_stdio_are_one_participant() {
    let d = world();
    let mut coder = Obedient::start(&d, "main");
    coder.hook(&d, "SessionStart", &json!({ "source": "startup" }));
    assert_eq!(subjects(&d), ["agent:coder:main"], "one principal, whichever way it comes in");
    let session = d.get("/v1/sessions/s-1").ok(200);
    assert!(session["ended_at"].is_null(), "{session}");
    let known = peers(&d);
    assert_eq!(known.len(), 1, "{known:?}");
    let peer = text(&known[0], "peer_id");
    assert_eq!(known[0]["session_id"], "s-1");
    assert_eq!(known[0]["agent"], json!(coder.key), "{known:?}");

    // Every list shows one participant, without a terminal.
    coder.hook(
        &d,
        "PermissionRequest",
        &json!({ "tool_name": "Bash", "tool_input": { "command": "ls" } }),
    );
    let listed = svc(&d.home, &["agent", "list", "--json"]).json();
    let listed = listed["agents"].as_array().expect("a list").clone();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((&listed[0]["kind"], &listed[0]["key"]), (&json!("hosted"), &json!(coder.key)));
    let inbox = svc(&d.home, &["inbox"]).ok().to_owned();
    assert!(!inbox.contains("at its terminal"), "{inbox}");

    // Calls through its own server belong to the session of its hooks, and its messages come from
    // that session's participant.
    let sent = coder.call(&d, "peer_send", &json!({ "to": "operator", "text": "I am here" }));
    assert_eq!(sent["from_peer"], json!(peer), "{sent}");
    let told = d.get("/v1/peers/operator/messages").ok(200);
    assert_eq!(told["messages"].as_array().map(Vec::len), Some(1), "{told}");

    // Its key names that participant, and a message reaches it once: as a turn, and by no hook.
    let body = json!({ "text": "MESSAGE-OF-THE-OPERATOR" });
    let message = d.post("/v1/peers/agent%3Acoder%3Amain/messages", &body).ok(200);
    assert_eq!(message["to_peer"], json!(peer), "{message}");
    let using =
        json!({ "tool_name": "Bash", "tool_use_id": "t1", "tool_input": { "command": "ls" } });
    let first = coder.hook(&d, "PreToolUse", &using);
    assert!(!first.contains("MESSAGE-OF-THE-OPERATOR"), "it is a turn of its own: {first}");
    let second = coder.hook(&d, "PostToolUse", &using);
    assert!(!second.contains("MESSAGE-OF-THE-OPERATOR"), "{second}");

    // The log has them a moment after the host.
    let turns = || {
        let log = crate::expect::events(&d, &format!("agent/{}", coder.id));
        let of_message = |event: &&Value| {
            event["kind"] == "input"
                && event["data"].to_string().contains("MESSAGE-OF-THE-OPERATOR")
        };
        log.iter().filter(of_message).count()
    };
    assert_eq!(until(BOUND, || Some(turns()).filter(|count| *count > 0)), 1);

    // A second conversation of the same agent belongs to the same participant.
    coder.hook_of(&d, "s-2", "SessionStart", &json!({ "source": "clear" }));
    let known = peers(&d);
    assert_eq!((known.len(), &known[0]["peer_id"]), (1, &json!(peer)), "{known:?}");
    assert_eq!(known[0]["session_id"], "s-2");

    // The end of the agent ends all of that.
    d.post(&format!("/v1/hosts/{}/stop", coder.key), &json!({ "force": true })).ok(200);
    ended(&d, &coder.id);
    for session in ["s-1", "s-2"] {
        let session = d.get(&format!("/v1/sessions/{session}")).ok(200);
        assert_eq!(session["end_reason"], "its agent ended", "{session}");
    }
    assert_eq!(peers(&d)[0]["status"], "offline");
    let token = d.get("/v1/tokens?limit=500").ok(200);
    let token = token["tokens"].as_array().expect("a list");
    assert!(token.iter().all(|token| token["revoked_at"].is_string()), "{token:?}");
}

#[test]
fn two_agents_and_a_nested_client_are_three_participants() {
    let d = world();
    let (mut first, mut second) = (Obedient::start(&d, "a"), Obedient::start(&d, "b"));
    first.hook_of(&d, "s-a", "SessionStart", &json!({ "source": "startup" }));
    second.hook_of(&d, "s-b", "SessionStart", &json!({ "source": "startup" }));
    // An agent cannot report events of another's session.
    let refused = second.hook_of(&d, "s-a", "UserPromptSubmit", &json!({ "prompt": "x" }));
    assert_eq!(refused.trim(), "", "{refused}");
    assert_eq!(subjects(&d), ["agent:coder:a", "agent:coder:b"]);
    // A client that an agent starts is another participant.
    let other = d.home.user().join("bin/other");
    let payload =
        json!({ "session_id": "s-c", "hook_event_name": "SessionStart", "source": "startup" });
    first.run(
        &d,
        &format!("'{}' -c '\"$SVC\" hook claude; :'", other.display()),
        &payload.to_string(),
    );
    let all = subjects(&d);
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(!all[2].starts_with("agent:"), "{all:?}");
    let known = peers(&d);
    assert_eq!(known.len(), 3, "{known:?}");
    let of = |session: &str| {
        let found = known.iter().find(|peer| peer["session_id"] == session);
        text(found.unwrap_or_else(|| panic!("{session}: {known:?}")), "peer_id")
    };
    let message = d.post("/v1/peers/agent%3Acoder%3Aa/messages", &json!({ "text": "x" })).ok(200);
    assert_eq!(message["to_peer"], json!(of("s-a")));
    assert_ne!(of("s-c"), of("s-a"));
    // A caller whose token was revoked has no other access.
    let tokens = d.get("/v1/tokens?limit=500").ok(200);
    for token in tokens["tokens"].as_array().expect("a list") {
        if token["session"] == "agent:coder:b" {
            d.delete(&format!("/v1/tokens/{}", text(token, "token_id"))).ok(200);
        }
    }
    let event = json!({ "source": "startup" });
    second.hook_of(&d, "s-d", "SessionStart", &event);
    assert_eq!(d.get("/v1/sessions/s-d").status(), 404);
}

#[test]
fn stdio_of_an_agent_has_the_agents_scopes() {
    let d = world_with("may_spawn = true");
    let mut coder = Obedient::start(&d, "main");
    coder.call(&d, "peer_list", &json!({}));
    let tokens = d.get("/v1/tokens?limit=500").ok(200);
    let tokens = tokens["tokens"].as_array().expect("a list");
    assert_eq!(tokens.len(), 2, "{tokens:?}");
    assert!(tokens.iter().all(|token| token["scopes"] == json!(["agents"])), "{tokens:?}");
}

#[test]
fn hosted_agent_starts_no_daemon() {
    let mut d = world();
    let mut coder = Obedient::start(&d, "main");
    let socket = agent(&d, &coder.id)["socket_path"].as_str().expect("a path").to_owned();
    let pid = d.pid();
    d.kill9();
    let (said, home) = (coder.folder.join("said"), d.home.dir());
    let line = format!("RUN \"$SVC\" start >'{}.new' 2>&1; mv '{0}.new' '{0}'", said.display());
    let asked = json!({ "type": "host.send", "payload": { "input": line } });
    assert_eq!(crate::agents::ask_host(&socket, &asked)["success"], true);
    let said = until(BOUND, || fs::read_to_string(&said).ok());
    assert!(said.contains("cannot start the daemon"), "{said}");
    let file: Value = fs::read_to_string(home.join("daemon.json"))
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    assert!(file["pid"].is_null() || file["pid"] == pid, "{file}");
    d.restart();
    coder.hook(&d, "SessionStart", &json!({ "source": "startup" }));
    assert_eq!(subjects(&d), ["agent:coder:main"], "also after a restart");
}

fn parent(pid: u64) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields = stat.rsplit(')').next().expect("fields");
    fields.split_whitespace().nth(1).expect("a parent").parse().expect("a pid")
}

/// Host and reaper are killed together, so neither cleans up: the daemon does, at once or after its
/// restart.
#[test]
fn daemon_kills_processes_left_by_host_and_reaper() {
    for daemon_dies_too in [false, true] {
        let mut d = world();
        let mut coder = Obedient::start(&d, "main");
        let number = format!("{}.75{}", 300_000 + std::process::id(), u8::from(daemon_dies_too));
        let _broom = Broom(number.clone());
        let tree = format!(
            "setsid sleep {number} & (setsid sh -c 'sleep {number} & wait' &) ; sleep {number} & true"
        );
        coder.run(&d, &format!("{{ {tree}; }}"), "");
        eventually(BOUND, || lives(&number));
        let program = agent(&d, &coder.id)["pid"].as_u64().expect("a pid");
        let reaper = parent(program);
        assert_ne!(reaper, coder.host);
        if daemon_dies_too {
            d.kill9();
        }
        // While both are stopped, neither acts between the two kills.
        let stop = |pid: u64| {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::STOP)
                .expect("it runs");
        };
        stop(reaper);
        kill(coder.host);
        kill(reaper);
        if daemon_dies_too {
            assert!(lives(&number), "nobody is there to end them");
            d.restart();
        }
        let end = ended(&d, &coder.id);
        assert_eq!(end["state"], "lost", "{end}");
        assert!(!runs(program) && !lives(&number), "they are gone before anybody hears of the end");
    }
}
