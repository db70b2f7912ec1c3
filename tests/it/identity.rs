//! Who a client is: its process, as the Unix socket shows it. Nothing of one client passes for
//! another's.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, PATIENT, Running, eventually, hook_payload, svc, until};
use crate::expect::{self, page, problem, text};

const SOON: Duration = Duration::from_secs(20);

/// A coding agent that is none: a process of its own, which runs `svc stdio` and hooks as a client
/// does.
pub(crate) struct FakeClient {
    running: Running,
    stdin: Option<ChildStdin>,
    /// Each line is a command that it runs.
    control: File,
    folder: PathBuf,
    count: u32,
}

/// A hook that runs.
pub(crate) struct PendingHook {
    output: PathBuf,
    status: PathBuf,
}

impl PendingHook {
    pub(crate) fn is_over(&self) -> bool {
        self.status.exists()
    }

    /// What it printed, when it has ended well.
    #[track_caller]
    pub(crate) fn output(&self) -> String {
        let code = until(SOON, || fs::read_to_string(&self.status).ok());
        assert_eq!(code.trim(), "0");
        fs::read_to_string(&self.output).expect("what it printed")
    }
}

impl FakeClient {
    /// Starts it in this folder below the user's home, with `svc stdio` and these arguments.
    pub(crate) fn start(home: &Home, name: &str, project: &str, arguments: &str) -> Self {
        let cwd = home.user().join(project);
        // A project of its own, whatever repository the test's folder lies in.
        fs::create_dir_all(cwd.join(".git")).expect("a folder");
        let folder = home.user().join(format!("{name}.client"));
        fs::create_dir(&folder).expect("a folder");
        let program = folder.join(name);
        symlink("/bin/sh", &program).expect("a link");
        let control = folder.join("control");
        let made = Command::new("mkfifo").arg(&control).status().expect("mkfifo runs");
        assert!(made.success());
        let script = format!(
            "exec 3<&0; \"$SVC\" stdio {arguments} <&3 3<&- & exec 3<&-; \
             while read -r line; do eval \"$line\"; done <\"$FOLDER/control\""
        );
        let mut command = Command::new(&program);
        let svc = home.command(&[]);
        let variables = svc.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command
            .args(["-c", &script])
            .env_clear()
            .envs(variables)
            .env("SVC", svc.get_program())
            .env("FOLDER", &folder)
            .envs([PATIENT])
            .current_dir(cwd)
            .stdin(Stdio::piped());
        let mut running = Running::spawn(command);
        let stdin = Some(running.stdin());
        // Open in both directions it waits for nobody.
        let control = OpenOptions::new().read(true).write(true).open(&control);
        Self { running, stdin, control: control.expect("a pipe"), folder, count: 0 }
    }

    /// Starts it, and its hooks report this session.
    #[track_caller]
    pub(crate) fn begun(home: &Home, name: &str, project: &str, session: &str) -> Self {
        let mut client = Self::start(home, name, project, "");
        client.hook(&start(session));
        client
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// What a hook of this client prints.
    #[track_caller]
    pub(crate) fn hook(&mut self, payload: &Value) -> String {
        self.hook_as("claude", payload)
    }

    /// The same, as a client of this name calls it.
    #[track_caller]
    pub(crate) fn hook_as(&mut self, client: &str, payload: &Value) -> String {
        self.count += 1;
        let path = |name: &str| self.folder.join(format!("{}.{name}", self.count));
        fs::write(path("in"), payload.to_string()).expect("a file");
        let (input, output, status) = (path("in"), path("out"), path("status"));
        let (input, output, status) = (input.display(), output.display(), status.display());
        let line = format!(
            "\"$SVC\" hook {client} <'{input}' >'{output}' 2>&1; echo $? >'{status}.new'; mv '{status}.new' '{status}'"
        );
        writeln!(self.control, "{line}").expect("it reads");
        let code = until(SOON, || fs::read_to_string(path("status")).ok());
        assert_eq!(code.trim(), "0");
        fs::read_to_string(path("out")).expect("what it printed")
    }

    pub(crate) fn begin_hook(&mut self, payload: &Value) -> PendingHook {
        self.count += 1;
        let path = |name: &str| self.folder.join(format!("{}.{name}", self.count));
        fs::write(path("in"), payload.to_string()).expect("a file");
        let pending = PendingHook { output: path("out"), status: path("status") };
        let (input, output, status) =
            (path("in"), pending.output.display(), pending.status.display());
        let input = input.display();
        // Its parent is a shell below the client, as the client itself starts it.
        writeln!(
            self.control,
            "sh -c '\"$SVC\" hook claude <\"{input}\" >\"{output}\"; echo $? >\"{status}.new\"; mv \"{status}.new\" \"{status}\"' &"
        )
        .expect("it reads");
        pending
    }

    /// Runs a command of the shell, as a tool of the client would, and gives what it prints.
    #[track_caller]
    pub(crate) fn run(&mut self, command: &str) -> String {
        self.count += 1;
        let path = |name: &str| self.folder.join(format!("{}.{name}", self.count));
        let (output, status) = (path("out"), path("status"));
        let (shown, done) = (output.display(), status.display());
        writeln!(self.control, "{{ {command}; }} >'{shown}' 2>&1; touch '{done}'")
            .expect("it reads");
        eventually(SOON, || status.exists());
        fs::read_to_string(output).expect("what it printed")
    }

    /// Lets its process go on as another program, as by `exec`.
    pub(crate) fn become_program(&mut self, command: &str) {
        writeln!(self.control, "exec {command}").expect("it reads");
    }

    pub(crate) fn send(&mut self, method: &str, params: &Value) -> u32 {
        self.count += 1;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.count, "method": method, "params": params });
        let stdin = self.stdin.as_mut().expect("it is open");
        writeln!(stdin, "{request}").expect("it reads");
        self.count
    }

    pub(crate) fn begin(&mut self, name: &str, arguments: &Value, meta: &Value) -> u32 {
        let mut all = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        all.as_object_mut().expect("one").extend(meta.as_object().expect("one").clone());
        self.send("tools/call", &json!({ "name": name, "arguments": arguments, "_meta": all }))
    }

    #[track_caller]
    pub(crate) fn answer(&mut self, id: u32) -> Value {
        self.running.find(|line| {
            let message: Value = serde_json::from_str(line).expect("JSON");
            (message["id"] == id).then_some(message)
        })
    }

    /// The answer to a call of a tool.
    #[track_caller]
    pub(crate) fn call(&mut self, name: &str, arguments: &Value) -> Value {
        let id = self.begin(name, arguments, &json!({}));
        self.answer(id)
    }

    #[track_caller]
    pub(crate) fn ok(&mut self, name: &str, arguments: &Value) -> Value {
        let answer = self.call(name, arguments);
        assert!(answer["result"]["isError"].is_null(), "{name}: {answer}");
        answer["result"]["structuredContent"].clone()
    }

    #[track_caller]
    pub(crate) fn forbidden(&mut self, name: &str, arguments: &Value) {
        let answer = self.call(name, arguments);
        let error = &answer["result"]["structuredContent"]["error"];
        assert_eq!(error["type"], "forbidden", "{name} {arguments}: {answer}");
    }

    /// Ends the process as a crash would, and not what it started.
    pub(crate) fn kill(&mut self) {
        self.running.signal(Signal::KILL);
        eventually(SOON, || self.running.has_ended());
    }
}

pub(crate) fn event(session: &str, event: &str, more: &Value) -> Value {
    hook_payload(session, event, "/nowhere/p", more)
}

pub(crate) fn start(session: &str) -> Value {
    event(session, "SessionStart", &json!({ "source": "startup" }))
}

pub(crate) fn prompt(session: &str) -> Value {
    event(session, "UserPromptSubmit", &json!({ "prompt": "go on" }))
}

pub(crate) fn peer_of(d: &Daemon, session: &str) -> Value {
    expect::peer_of(d, session).expect("it is registered")
}

pub(crate) fn id_of(peer: &Value) -> &str {
    peer["peer_id"].as_str().expect("an id")
}

/// The session tokens of a client's process.
fn tokens_of(d: &Daemon, pid: u32) -> Vec<Value> {
    let tokens = d.get("/v1/tokens").ok(200)["tokens"].as_array().expect("a list").clone();
    tokens.into_iter().filter(|token| token["client_pid"] == pid).collect()
}

fn subjects_of(d: &Daemon, pid: u32) -> Vec<String> {
    let subject = |token: &Value| token["session"].as_str().expect("a subject").to_owned();
    let mut subjects: Vec<_> = tokens_of(d, pid).iter().map(subject).collect();
    subjects.sort();
    subjects.dedup();
    subjects
}

#[test]
fn a_client_speaks_as_itself_alone() {
    let d = Daemon::start();
    let mut a = FakeClient::begun(&d.home, "agent-a", "p", "s-a");
    let mut b = FakeClient::begun(&d.home, "agent-b", "p", "s-b");
    let (peer_a, peer_b) = (peer_of(&d, "s-a"), peer_of(&d, "s-b"));
    assert_eq!(peer_a["pid"], a.pid());

    let to_a = json!({ "to": id_of(&peer_a), "text": "hello" });
    let mut as_a = to_a.clone();
    as_a["from_peer"] = json!(id_of(&peer_a));
    b.forbidden("peer_send", &as_a);
    assert_eq!(b.ok("peer_send", &to_a)["from_peer"], peer_b["peer_id"]);
    for (tool, arguments) in [
        ("peer_inbox", json!({ "peer_id": id_of(&peer_a) })),
        ("peer_heartbeat", json!({ "peer_id": id_of(&peer_a), "status": "busy" })),
        ("get_session", json!({ "session_id": "s-a" })),
        ("end_session", json!({ "session_id": "s-a" })),
        ("start_session", json!({ "session_id": "s-a" })),
        (
            "peer_register",
            json!({ "display_name": "a", "backend": "claude-code", "session_id": "s-a" }),
        ),
    ] {
        b.forbidden(tool, &arguments);
    }
    // Hooks and connection of one client are one principal; the session is the one that its hooks
    // told of.
    assert_eq!(a.ok("get_session", &json!({}))["session_id"], "s-a");
    assert_eq!(a.ok("peer_inbox", &json!({}))["messages"][0]["from_peer"], peer_b["peer_id"]);
}

#[test]
fn a_model_is_told_its_name_although_its_client_connects_before_its_first_hook() {
    // Longer than any answer is waited for.
    let d = Daemon::with(|plan| plan.env("SVC_FIRST_HOOK_MS", "600000"));
    let mut claude = FakeClient::start(&d.home, "claude", "p", "");
    let client = json!({ "name": "claude-code", "version": "2.1.197" });
    let params =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
    let id = claude.send("initialize", &params);
    claude.hook(&start("s-claude"));
    let answer = claude.answer(id);
    let instructions = answer["result"]["instructions"].as_str().expect("instructions");
    let name = peer_of(&d, "s-claude")["display_name"].as_str().expect("a name").to_owned();
    assert!(instructions.starts_with(&format!("You are {name}, already registered")), "{answer}");

    // Who runs its first hook with its first prompt is not waited for.
    let mut codex = FakeClient::start(&d.home, "codex", "p", "");
    let client = json!({ "name": "codex-mcp-client", "version": "0.169.0" });
    let params =
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
    let id = codex.send("initialize", &params);
    let answer = codex.answer(id);
    let instructions = answer["result"]["instructions"].as_str().expect("instructions");
    assert!(instructions.starts_with("svc connects the coding agents"), "{answer}");
}

#[test]
fn announced_call_of_another_client_gives_no_session() {
    let d = Daemon::start();
    let mut a = FakeClient::begun(&d.home, "agent-a", "p", "s-a");
    let mut b = FakeClient::begun(&d.home, "agent-b", "p", "s-b");
    let peer_a = peer_of(&d, "s-a");
    d.post(&format!("/v1/peers/{}/messages", id_of(&peer_a)), &json!({ "text": "for a" })).ok(200);

    // The call that the other is about to make, by its id and by its tool and arguments.
    for id in ["toolu_1", "toolu_2"] {
        let using = json!({ "tool_name": "mcp__svc__peer_inbox", "tool_use_id": id, "tool_input": { "peek": true } });
        b.hook(&event("s-b", "PreToolUse", &using));
    }
    let meta = json!({ "claudecode/toolUseId": "toolu_1" });
    let id = a.begin("peer_inbox", &json!({ "peek": true }), &meta);
    let inbox = a.answer(id)["result"]["structuredContent"].clone();
    assert_eq!(inbox["messages"][0]["text"], "for a", "{inbox}");
    let id = b.begin("peer_inbox", &json!({ "peek": true }), &meta);
    assert_eq!(b.answer(id)["result"]["structuredContent"]["count"], 0);

    // Another's process.
    let claim = json!({ "display_name": "b", "backend": "claude-code", "pid": a.pid() });
    assert_eq!(b.ok("peer_register", &claim)["pid"], b.pid());
    assert_eq!(a.ok("get_session", &json!({}))["session_id"], "s-a");
    assert_eq!(b.ok("get_session", &json!({}))["session_id"], "s-b");
}

#[test]
fn a_session_goes_over_when_its_owner_is_gone() {
    let d = Daemon::start();
    let mut a = FakeClient::start(&d.home, "agent-a", "p", "");
    let mut b = FakeClient::start(&d.home, "agent-b", "p", "");
    let mut c = FakeClient::start(&d.home, "agent-c", "q", "");
    a.hook(&start("s-a"));
    let peer = peer_of(&d, "s-a");
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer));
    d.post(&inbox, &json!({ "text": "a secret word" })).ok(200);

    // While it lives nobody else is told anything, and nothing changes.
    let before = d.get("/v1/sessions/s-a").ok(200);
    let elsewhere = |payload: Value| {
        let mut payload = payload;
        payload["cwd"] = json!("/nowhere/q");
        payload
    };
    for payload in [prompt("s-a"), start("s-a"), event("s-a", "SessionEnd", &json!({}))] {
        assert_eq!(b.hook(&payload), "");
        assert!(!c.hook(&elsewhere(payload)).contains("a secret word"));
    }
    assert_eq!(d.get("/v1/sessions/s-a").ok(200), before);
    assert_eq!(d.get(&format!("{inbox}?peek=true")).ok(200)["messages"][0]["state"], "queued");

    a.kill();
    let printed = c.hook(&elsewhere(prompt("s-a")));
    assert!(!printed.contains("a secret word"), "it works in another project: {printed}");
    let printed = b.hook(&event("s-a", "SessionStart", &json!({ "source": "resume" })));
    assert!(printed.contains("a secret word"), "{printed}");
    assert_eq!(peer_of(&d, "s-a")["peer_id"], peer["peer_id"], "the peer goes on");
    let sent = b.ok("peer_send", &json!({ "to": "operator", "text": "x" }));
    assert_eq!(sent["from_peer"], peer["peer_id"], "and it is its new owner's own");
}

#[test]
fn a_session_is_continued_only_in_its_own_project() {
    let d = Daemon::start();
    let mut a = FakeClient::start(&d.home, "agent-a", "p", "");
    let mut b = FakeClient::start(&d.home, "agent-b", "p", "");
    let mut c = FakeClient::start(&d.home, "agent-c", "q", "");
    let in_p = |mut payload: Value| {
        payload["cwd"] = json!(d.home.user().join("p"));
        payload
    };
    let in_q = |mut payload: Value| {
        payload["cwd"] = json!(d.home.user().join("q"));
        payload
    };
    a.hook(&in_p(start("s-1")));
    a.hook(&in_q(start("s-2")));
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer_of(&d, "s-2")));
    d.post(&inbox, &json!({ "text": "a secret word" })).ok(200);
    a.kill();
    eventually(SOON, || d.get("/v1/sessions/s-2").ok(200)["ended_at"].is_string());
    let before = d.get("/v1/sessions/s-2").ok(200);
    // Its owner's process ran in that project, and another session of the owner did.
    let resumed = event("s-2", "SessionStart", &json!({ "source": "resume" }));
    assert!(!b.hook(&in_p(resumed.clone())).contains("a secret word"));
    assert_eq!(d.get("/v1/sessions/s-2").ok(200), before);
    let own = b.ok("get_session", &json!({}))["session_id"].clone();
    assert!(own.as_str().is_some_and(|id| id.starts_with("s-2@")), "{own}");
    assert!(c.hook(&in_q(resumed)).contains("a secret word"));
    assert_eq!(c.ok("get_session", &json!({}))["session_id"], "s-2");
}

#[test]
fn late_event_belongs_to_the_process_that_reported_it() {
    let home = Home::new();
    let cwd = home.user().join("p");
    let told = |payload: Value| {
        let mut payload = payload;
        payload["cwd"] = json!(cwd);
        payload
    };
    let using =
        json!({ "tool_name": "Bash", "tool_use_id": "t1", "tool_input": { "command": "ls" } });
    let mut a = FakeClient::start(&home, "agent-a", "p", "");
    let mut b = FakeClient::start(&home, "agent-b", "p", "");
    let mut c = FakeClient::start(&home, "agent-c", "q", "");
    for (client, session) in [(&mut a, "s-a"), (&mut b, "s-b")] {
        assert_eq!(client.hook(&told(event(session, "PostToolUse", &using))), "");
    }
    a.kill();
    let d = Daemon::with(|plan| plan.home(&home));
    eventually(SOON, || d.get("/v1/sessions/s-b").status() == 200);
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer_of(&d, "s-a")));
    d.post(&inbox, &json!({ "text": "a secret word" })).ok(200);
    assert_eq!(b.ok("get_session", &json!({}))["session_id"], "s-b", "it lives, and has its own");
    b.forbidden("get_session", &json!({ "session_id": "s-a" }));
    let mut elsewhere = prompt("s-a");
    elsewhere["cwd"] = json!(home.user().join("q"));
    assert_eq!(c.hook(&elsewhere), "", "of another project");
    let printed = b.hook(&told(prompt("s-a")));
    assert!(printed.contains("a secret word"), "the process that told of it is gone: {printed}");
}

/// In one project a session is one, and the second process is not shown.
#[test]
fn doctor_names_a_session_that_another_process_has() {
    let d = Daemon::start();
    let _first = FakeClient::begun(&d.home, "agent-a", "p", "s-1");
    let refused = || {
        let looked = svc(&d.home, &["doctor", "--json"]).stdout;
        looked.contains("a hook was refused in the last hour: session \\\"s-1\\\"")
    };
    assert!(!refused());
    let _second = FakeClient::begun(&d.home, "agent-b", "p", "s-1");
    assert!(refused());
}

#[test]
fn sessions_of_two_projects_with_one_id_are_two() {
    let d = Daemon::start();
    let mut first = FakeClient::start(&d.home, "agent-a", "p", "");
    let mut second = FakeClient::start(&d.home, "agent-b", "q", "");
    let elsewhere = |mut payload: Value| {
        payload["cwd"] = json!("/nowhere/q");
        payload
    };
    first.hook(&start("s-1"));
    for _ in 0..2 {
        second.hook(&elsewhere(start("s-1")));
    }
    let peers = page(&d.get("/v1/peers"), "peers");
    let sessions: Vec<_> = peers.iter().filter_map(|peer| peer["session_id"].as_str()).collect();
    assert_eq!(sessions.len(), 2, "{peers:?}");
    let kept_apart = sessions.iter().find(|id| id.starts_with("s-1@")).expect("the second one's");
    let peer = peer_of(&d, kept_apart);
    assert_eq!(peer["pid"], json!(second.pid()));
    assert_eq!(peer_of(&d, "s-1")["pid"], json!(first.pid()));
    // The client knows no other id than its own.
    for arguments in [json!({}), json!({ "session_id": "s-1" })] {
        assert_eq!(second.ok("get_session", &arguments)["session_id"], **kept_apart);
        assert_eq!(first.ok("get_session", &arguments)["session_id"], "s-1");
    }
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer));
    d.post(&inbox, &json!({ "text": "a word for the second" })).ok(200);
    assert!(!first.hook(&prompt("s-1")).contains("a word for the second"));
    assert!(second.hook(&elsewhere(prompt("s-1"))).contains("a word for the second"));
    // Nobody begins a session under the id of another process.
    let mut third = FakeClient::start(&d.home, "agent-c", "q", "");
    third.hook(&elsewhere(start(&kept_apart.replacen("s-1", "s-2", 1))));
    let peers = page(&d.get("/v1/peers"), "peers");
    assert_eq!(peers.iter().filter(|peer| peer["session_id"].is_string()).count(), 2, "{peers:?}");
    // It goes on where it was, although the first one's id is free now.
    first.kill();
    second.hook(&elsewhere(prompt("s-1")));
    assert_eq!(second.ok("get_session", &json!({}))["session_id"], **kept_apart);
}

#[test]
fn hooks_of_a_client_share_one_token() {
    let d = Daemon::start();
    let mut a = FakeClient::start(&d.home, "agent-a", "p", "");
    for session in ["s-1", "s-2"] {
        a.hook(&start(session));
        a.hook(&prompt(session));
    }
    a.ok("peer_list", &json!({}));
    let tokens = tokens_of(&d, a.pid());
    assert!(tokens.len() <= 2, "one of the hooks, one of the connection: {tokens:?}");
    assert_eq!(subjects_of(&d, a.pid()).len(), 1, "{tokens:?}");
    let cwd = d.home.user().join("p").canonicalize().expect("it is there");
    assert_eq!(tokens[0]["cwd"], json!(cwd));
    assert_eq!(tokens[0]["project"], json!(cwd));
}

#[test]
fn an_identity_outlasts_the_daemon_and_its_tokens() {
    let mut d = Daemon::start();
    let mut a = FakeClient::start(&d.home, "agent-a", "p", "");
    a.ok("peer_register", &json!({ "display_name": "a", "backend": "test" }));
    let subjects = subjects_of(&d, a.pid());
    assert_eq!(subjects.len(), 1);
    d.kill_and_restart();
    assert_eq!(a.ok("peer_heartbeat", &json!({}))["display_name"], "a");
    assert_eq!(tokens_of(&d, a.pid()).len(), 1, "the token is still good");

    // No session of a process ends the token by which the others speak.
    for session in [&*subjects[0], "s-1", "s-2"] {
        a.ok("start_session", &json!({ "session_id": session }));
        a.ok("end_session", &json!({ "session_id": session }));
    }
    assert!(tokens_of(&d, a.pid()).iter().all(|token| token["revoked_at"].is_null()));
    assert_eq!(a.ok("peer_heartbeat", &json!({}))["display_name"], "a");
    assert_eq!(tokens_of(&d, a.pid()).len(), 1);
    assert_eq!(subjects_of(&d, a.pid()), subjects);

    // It ends with the process.
    a.kill();
    let pid = a.pid();
    eventually(SOON, || tokens_of(&d, pid).iter().all(|token| token["revoked_at"].is_string()));
}

#[test]
fn revoked_process_token_is_not_minted_again() {
    let d = Daemon::start();
    let mut a = FakeClient::begun(&d.home, "agent-a", "p", "s-a");
    a.ok("peer_list", &json!({}));
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer_of(&d, "s-a")));
    d.post(&inbox, &json!({ "text": "hello" })).ok(200);
    for token in tokens_of(&d, a.pid()) {
        let id = token["token_id"].as_str().expect("an id");
        d.delete(&format!("/v1/tokens/{id}")).ok(200);
    }
    let refused = a.call("peer_list", &json!({}));
    assert!(refused["error"].is_object() || refused["result"]["isError"] == true, "{refused}");
    assert!(refused.to_string().contains("restart the client"), "{refused}");
    assert_eq!(a.hook(&prompt("s-a")), "", "nor do its hooks");
    assert!(tokens_of(&d, a.pid()).iter().all(|token| token["revoked_at"].is_string()));
}

#[test]
fn a_person_says_that_it_is_one() {
    let d = Daemon::start();
    let mut person = FakeClient::start(&d.home, "person", "p", "--operator");
    let _a = FakeClient::begun(&d.home, "agent-a", "p", "s-a");
    let peer = peer_of(&d, "s-a");
    let message = json!({ "to": "operator", "from_peer": id_of(&peer), "text": "as you" });
    assert_eq!(person.ok("peer_send", &message)["from_peer"], peer["peer_id"]);
    assert!(tokens_of(&d, person.pid()).is_empty());
}

#[test]
fn only_the_operators_bare_calls_mean_what_the_operator_started() {
    let d = Daemon::start();
    let session = d.session("s-1");
    let mut a = FakeClient::start(&d.home, "agent-a", "p", "");
    bare(&d, "start_session", &json!({ "session_id": "mine" }));
    bare(&session, "start_session", &json!({}));
    a.ok("start_session", &json!({ "session_id": "theirs" }));
    assert_eq!(bare(&d, "get_session", &json!({}))["session_id"], "mine");
    assert_eq!(bare(&session, "get_session", &json!({}))["session_id"], "s-1");
    assert_eq!(a.ok("get_session", &json!({}))["session_id"], "theirs");
    // A token that a person minted is for one session; a process names its own.
    let other = bare(&session, "start_session", &json!({ "session_id": "another" }));
    assert_eq!(other["error"]["type"], "forbidden", "{other}");
}

/// The structured answer to a bare call of a tool with this token.
pub(crate) fn bare(caller: &crate::wire::Caller, name: &str, arguments: &Value) -> Value {
    caller.tool(name, arguments)["structuredContent"].clone()
}

#[test]
fn nobody_waits_in_the_operators_session() {
    let d = Daemon::start();
    let mut a = FakeClient::start(&d.home, "agent-a", "p", "");
    for session in ["default", "operator", "Default", "d\u{435}fault"] {
        a.hook(&start(session));
        a.hook(&prompt(session));
        a.forbidden("start_session", &json!({ "session_id": session }));
        let peer = json!({ "display_name": "a", "backend": "claude-code", "session_id": session });
        a.forbidden("peer_register", &peer);
        let input = json!({ "session": session });
        problem(&d.post("/v1/tokens", &input), 403, "forbidden");
    }
    // A name that the call carries is not taken for the agent's session either.
    let meta = json!({ "threadId": "default" });
    let id = a.begin("increment_tool_count", &json!({}), &meta);
    a.answer(id);
    assert_eq!(d.get("/v1/peers").ok(200)["peers"], json!([]));

    let attempt = json!({
        "domain": "debugging", "strategy": "read-the-error", "goal": "the operator's goal",
        "hypothesis": "h", "action": "a", "prediction": "p",
    });
    bare(&d, "start_ghap", &attempt);
    assert_eq!(bare(&d, "increment_tool_count", &json!({}))["tool_count"], 1);
    assert_eq!(bare(&d, "get_session", &json!({}))["session_id"], "default");
    a.hook(&start("s-a"));
    for (tool, arguments) in [
        ("get_session", json!({ "session_id": "default" })),
        ("get_active_ghap", json!({ "session_id": "default" })),
    ] {
        a.forbidden(tool, &arguments);
    }
    assert!(!a.ok("get_active_ghap", &json!({})).to_string().contains("operator's goal"));
}

/// The answer to a request on the socket: its head and its body.
fn over_socket(home: &Home, method: &str, path: &str, headers: &str, body: &str) -> (u16, Value) {
    let mut stream = UnixStream::connect(home.path("svc.sock")).expect("the daemon listens");
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
    .expect("is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_default())
}

/// A token for this process, as `svc stdio` gets one for its client.
#[track_caller]
pub(crate) fn process_token(home: &Home) -> String {
    let input = json!({ "client_pid": std::process::id() }).to_string();
    let (status, traded) = over_socket(home, "POST", "/v1/process_tokens", "", &input);
    assert_eq!(status, 201, "{traded}");
    traded["token"].as_str().expect("a token").to_owned()
}

#[test]
fn a_process_is_who_the_socket_says() {
    let d = Daemon::start();
    let own = std::process::id();
    let stranger = FakeClient::start(&d.home, "agent-a", "p", "");
    let trade =
        |body: Value| over_socket(&d.home, "POST", "/v1/process_tokens", "", &body.to_string());
    let (status, traded) = trade(json!({ "client_pid": own, "client": "A test" }));
    assert_eq!(status, 201, "{traded}");
    let subject = traded["session"].as_str().expect("a subject");
    assert!(subject.starts_with(&format!("a-test-{own}-")), "{subject}");
    let token = traded["token"].as_str().expect("a token");
    let (_, again) = trade(json!({ "client_pid": own }));
    assert_eq!(again["session"], traded["session"], "one subject for one process");
    for other in [stranger.pid(), d.pid(), 1, u32::MAX] {
        assert_eq!(trade(json!({ "client_pid": other })).0, 403, "{other} did not start this");
    }
    let registered = json!({ "display_name": "t", "backend": "test" });
    let peer = d.with_token(token).post("/v1/peers/register", &registered).ok(200);

    // The same without a token, as hooks come.
    let path = format!("/v1/peers/{}/heartbeat", id_of(&peer));
    let beat = |headers: &str| over_socket(&d.home, "POST", &path, headers, "{}").0;
    assert_eq!(beat(&format!("Svc-Process: {own}\r\n")), 200);
    assert_eq!(beat(&format!("Svc-Process: {}\r\n", stranger.pid())), 403);
    assert_eq!(beat("Svc-Process: me\r\n"), 400);
    assert_eq!(beat(""), 401, "nobody is the operator by being here");
    assert_eq!(tokens_of(&d, own).len(), 2, "no row for what shows itself");

    // Over TCP nobody sees a process.
    let request = |caller: &crate::wire::Caller| {
        let request = caller.request("POST", &path).header("Svc-Process", &own.to_string());
        request.json(&json!({})).send().status()
    };
    assert_eq!(request(&d.stranger()), 401);
    assert_eq!(d.post("/v1/process_tokens", &json!({})).status(), 403);
    assert_eq!(d.stranger().post("/v1/process_tokens", &json!({})).status(), 401);
}

/// What the daemon calls the peer of a session, and how it is.
fn name_and_status(d: &Daemon, session: &str) -> (String, String) {
    let peer = peer_of(d, session);
    (text(&peer, "display_name"), text(&peer, "status"))
}

#[test]
fn a_session_whose_process_is_gone_is_offline_and_its_name_is_free() {
    let d = Daemon::with(|plan| plan.env("SVC_PEER_TIMEOUT_MS", "2000"));
    let status = |session: &str| name_and_status(&d, session).1;
    let name = |session: &str| name_and_status(&d, session).0;
    let mut first = FakeClient::begun(&d.home, "first", "web", "s-1");
    let mut second = FakeClient::begun(&d.home, "second", "web", "s-2");
    assert_ne!(name("s-1"), name("s-2"));
    // One conversation follows the other in the same process.
    let of_second = name("s-2");
    second.hook(&event("s-2", "SessionEnd", &json!({ "reason": "clear" })));
    second.hook(&start("s-3"));
    assert_eq!(name("s-3"), of_second);

    let mut team = d.follow("/v1/events?stream=team&after=latest");
    let gone = peer_of(&d, "s-1");
    first.kill();
    let told = loop {
        let event = team.event();
        let is_end = event.data["data"]["status"] == "offline";
        if is_end && event.data["data"]["peer_id"] == gone["peer_id"] {
            break event;
        }
    };
    assert_eq!(told.data["data"]["reason"], "its process is gone");
    assert_eq!(status("s-1"), "offline");
    assert_eq!(peer_of(&d, "s-1").get("pid"), None, "its number may be another's by now");
    assert_ne!(status("s-3"), "offline", "its process lives");

    // The living have the short names, and none is kept for the dead.
    let mut third = FakeClient::begun(&d.home, "third", "web", "s-4");
    let [of_first, of_fourth] = [name("s-1"), name("s-4")];
    assert_eq!(of_first, of_fourth);
    assert_ne!(name("s-3"), of_fourth);
    let to_it = d.get(&format!("/v1/peers/{of_fourth}")).ok(200);
    assert_eq!(to_it["session_id"], "s-4", "of two of one name the living one is meant");
    // It comes back in another process, where another has its name by now.
    third.hook(&start("s-1"));
    assert_eq!(peer_of(&d, "s-1")["peer_id"], gone["peer_id"]);
    let names = [name("s-1"), name("s-3"), name("s-4")];
    assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
    assert_ne!(status("s-1"), "offline", "its process lives");
    assert_eq!(peer_of(&d, "s-1")["pid"], json!(third.pid()));
    third.kill();
    eventually(SOON, || status("s-1") == "offline" && status("s-4") == "offline");
}

/// Nobody was there to end it, so the sweep does, and what it left is offered as ever.
#[test]
fn the_journals_session_of_a_killed_client_is_over_and_its_record_is_offered() {
    let d = Daemon::with(|plan| plan.env("SVC_PEER_TIMEOUT_MS", "2000"));
    let open = |session: &str| {
        let sessions = page(&d.get("/v1/sessions?open=true"), "sessions");
        sessions.iter().any(|each| each["session_id"] == *session)
    };
    let mut first = FakeClient::begun(&d.home, "first", "web", "s-1");
    let mut second = FakeClient::begun(&d.home, "second", "web", "s-2");
    let ghap = json!({
        "session_id": "s-1", "domain": "debugging", "strategy": "read-the-error", "goal": "Left half done",
        "hypothesis": "It is", "action": "Look", "prediction": "It is seen",
    });
    let started = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "start_ghap", "arguments": ghap } });
    let started = d.post("/mcp", &started).ok(200);
    assert_ne!(started["result"]["isError"], true, "{started}");
    assert!(open("s-1") && open("s-2"));
    first.kill();
    eventually(SOON, || !open("s-1"));
    assert!(open("s-2"), "its process lives");
    let ended = d.get("/v1/sessions/s-1").ok(200);
    assert_eq!(ended["end_reason"], "its process is gone", "{ended}");
    let orphans = page(&d.get("/v1/events?stream=session/s-1&kind=session.ended"), "events");
    assert_eq!(orphans.len(), 1, "{orphans:?}");
    assert!(orphans[0]["data"]["orphan"].is_string(), "{orphans:?}");
    // Who comes back begins it again.
    second.hook(&start("s-1"));
    assert!(open("s-1"));
    second.kill();
    eventually(SOON, || !open("s-1") && !open("s-2"));
}
