//! The agent host without a daemon: its socket request by request, its stream, and the processes
//! that it started.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::daemon::{Home, eventually, quickly, svc_with_input, until};
use crate::shapes::instant;

/// The key that the daemon would send with an answer.
const KEY: &str = "5f2c9a7d0e1b4c6f8a3d2e5b7c9f0a1d";
const WITHIN: Duration = Duration::from_secs(20);
/// How long a host may be silent.
const SILENCE: Duration = Duration::from_secs(90);

/// A running host. Dropping it kills it.
pub(crate) struct Host {
    pub(crate) home: Home,
    id: String,
    pub(crate) pid: u32,
    agent_pid: u32,
    socket: PathBuf,
}

pub(crate) struct Client {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

/// Polls a host's status until it stops responding, and returns how long it responded.
fn answers_for(socket: &Path) -> Duration {
    let began = Instant::now();
    loop {
        let Ok(mut stream) = UnixStream::connect(socket) else { return began.elapsed() };
        stream.set_read_timeout(Some(SILENCE)).expect("can be set");
        let asked = stream.write_all(b"{\"type\":\"host.status\"}\n");
        let read = BufReader::new(stream).read_line(&mut String::new());
        if asked.is_err() || read.unwrap_or_default() == 0 {
            return began.elapsed();
        }
        assert!(began.elapsed() < Duration::from_mins(5), "it stays for ever");
        thread::sleep(Duration::from_millis(50));
    }
}

fn spec(home: &Home, id: &str, command: &[&str]) -> Value {
    fs::create_dir_all(home.dir()).expect("a folder");
    json!({
        "agent_id": id, "folder": home.path("agents"), "instance": "worker", "session_key": "agent:worker:main",
        "backend": "exec", "command": command, "cwd": home.user(), "linger_ms": 300_000, "answer_key": KEY,
    })
}

/// The host's first line.
fn launch(home: &Home, spec: &Value) -> Value {
    let ran = svc_with_input(home, &["agent", "host"], spec.to_string().as_bytes());
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

impl Host {
    fn start(command: &[&str]) -> Self {
        Self::with(command, &json!({}))
    }

    pub(crate) fn with(command: &[&str], more: &Value) -> Self {
        let home = Home::new();
        let mut document = spec(&home, "ag_one", command);
        for (name, value) in more.as_object().expect("an object") {
            document[name] = value.clone();
        }
        Self::with_document(home, &document)
    }

    fn with_document(home: Home, document: &Value) -> Self {
        let started = launch(&home, document);
        let pid = |name: &str| u32::try_from(started[name].as_u64().expect("a pid")).expect("fits");
        Self {
            id: document["agent_id"].as_str().expect("an id").to_owned(),
            pid: pid("host_pid"),
            agent_pid: pid("pid"),
            socket: PathBuf::from(started["socket_path"].as_str().expect("a path")),
            home,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    fn state(&self) -> Value {
        self.client().ok("host.status", &json!({}))["agent"].clone()
    }

    fn spool(&self) -> PathBuf {
        self.home.path(&format!("agents/{}.spool", self.id))
    }

    fn kill(&self) {
        let pid = Pid::from_raw(self.pid.cast_signed()).expect("a pid");
        kill_process(pid, Signal::KILL).expect("it runs");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let command = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains("host\0--detached") {
            self.kill();
        }
    }
}

impl Client {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the host answers");
        stream.set_read_timeout(Some(SILENCE)).expect("can be set");
        let lines = BufReader::new(stream.try_clone().expect("can be cloned"));
        Self { stream, lines }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the host reads");
    }

    /// The next line; `None` at the end.
    pub(crate) fn line(&mut self) -> Option<Value> {
        let mut line = Vec::new();
        let size = self.lines.read_until(b'\n', &mut line).expect("a line in time");
        (size > 0).then(|| serde_json::from_slice(&line).expect("JSON"))
    }

    fn ask(&mut self, kind: &str, payload: &Value) -> Value {
        self.write(
            format!("{}\n", json!({ "type": kind, "id": "7", "payload": payload })).as_bytes(),
        );
        let reply = self.line().expect("an answer");
        assert_eq!((&reply["type"], &reply["id"]), (&json!(kind), &json!("7")), "{reply}");
        reply
    }

    #[track_caller]
    pub(crate) fn ok(&mut self, kind: &str, payload: &Value) -> Value {
        let reply = self.ask(kind, payload);
        assert_eq!(reply["success"], true, "{reply}");
        reply["payload"].clone()
    }

    #[track_caller]
    fn refused(&mut self, kind: &str, payload: &Value) -> String {
        let reply = self.ask(kind, payload);
        assert!(reply["success"] == false && reply.get("payload").is_none(), "{reply}");
        reply["error"].as_str().expect("a text").to_owned()
    }

    /// Attaches, and reads events until one matches; returns all of them, checked to have no gap.
    pub(crate) fn events_until(
        &mut self,
        after: u64,
        mut fits: impl FnMut(&Value) -> bool,
    ) -> Vec<Value> {
        let attached = self.ok("host.attach", &json!({ "offset": after }));
        assert_eq!(attached["oldest_offset"], 1);
        let mut events = Vec::new();
        loop {
            let event = self.line().expect("the stream goes on");
            assert!(event.get("success").is_none(), "{event}");
            assert_eq!(event["offset"], after + 1 + events.len() as u64, "{event}");
            instant(&event["timestamp"]);
            let last = fits(&event);
            events.push(event);
            if last {
                return events;
            }
        }
    }

    fn all_events(&mut self) -> Vec<Value> {
        self.events_until(0, |event| event["type"] == "exit")
    }
}

fn is_state(state: &'static str) -> impl FnMut(&Value) -> bool {
    move |event| event["type"] == "state" && event["state"] == state
}

fn of_type<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

/// Whether a process lives whose command contains this word.
fn lives(word: &str) -> bool {
    fs::read_dir("/proc").expect("a list").flatten().any(|entry| {
        let is_process = entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        is_process && String::from_utf8_lossy(&command).contains(word)
    })
}

const ECHO: [&str; 3] = ["sh", "-c", "while read line; do echo \"got $line\"; done"];

#[test]
fn every_request_of_the_protocol_gets_a_response() {
    let host = Host::with(&ECHO, &json!({ "task": "t", "description": "d", "project": "p" }));
    let mut client = host.client();
    let pong = client.ok("host.ping", &json!({}));
    assert_eq!(pong["protocol_version"], "1.1");
    assert!(pong["uptime"].as_str().is_some_and(|uptime| uptime.ends_with('s')), "{pong}");
    assert!(
        pong["version"].is_string()
            && pong["started_at"].as_str().is_some_and(|at| at.ends_with('Z'))
    );
    client.ok("host.ping", &json!({ "protocol_version": "1.7" }));
    let wrong = client.refused("host.ping", &json!({ "protocol_version": "2.0" }));
    assert!(wrong.starts_with("unsupported protocol version: 2.0"), "{wrong}");
    let status = client.ok("host.status", &json!({}));
    assert_eq!(status["host"]["pid"], host.pid);
    assert_eq!(status["host"]["socket_path"], host.socket.display().to_string());
    let agent = &status["agent"];
    assert_eq!(client.ok("host.list", &json!({})), json!({ "agents": [agent] }));
    let expected = json!({
        "id": "ag_one", "project": "p", "state": "idle", "pid": host.agent_pid, "worktree": host.home.user(),
        "started_at": agent["started_at"], "task": "t", "description": "d", "backend": "exec", "instance": "worker",
        "session_key": "agent:worker:main",
    });
    assert_eq!(*agent, expected);
    let reply = client.ask("host.detach", &json!({}));
    assert!(reply["success"] == true && reply.get("payload").is_none(), "{reply}");
    // Its first events are shown once they are on the disk.
    eventually(Duration::from_secs(20), || {
        let beyond = client.refused("host.attach", &json!({ "offset": 4711 }));
        assert!(beyond.contains("4711"), "{beyond}");
        beyond.contains("which is 2")
    });
    for (kind, payload, error) in [
        ("host.attach", json!({ "offset": "1" }), "invalid attach payload: "),
        ("host.attach", json!([1]), "invalid attach payload: "),
        ("host.send", json!({}), "invalid send payload: "),
        ("host.stop", json!({ "timeout": "x" }), "invalid stop payload: "),
        ("host.history", json!({ "limit": -1 }), "invalid history payload: "),
        ("host.send", json!({ "input": "x", "mode": "steer" }), "not running a turn"),
        ("host.interrupt", json!({}), "not running a turn"),
        ("host.interrupt", json!({ "message_id": "msg_x" }), "not running a turn"),
        ("host.interrupt", json!({ "message_id": 7 }), "invalid interrupt payload: "),
        ("host.answer", json!({ "request_id": "req_x", "option_id": "a" }), "forbidden: "),
        ("host.answer", json!({ "request_id": "req_x", "key": &KEY[..31] }), "forbidden: "),
        ("host.answer", json!({ "request_id": "req_x", "key": 7 }), "invalid answer payload: "),
        ("host.answer", json!({ "request_id": "req_x", "key": KEY }), "no such request"),
        ("host.nope", json!({}), "unknown message type: host.nope"),
    ] {
        let refused = client.refused(kind, &payload);
        assert!(refused.starts_with(error), "{kind}: {refused}");
    }
    let send = json!({ "input": "one", "idempotency_key": "k" });
    let sent = client.ok("host.send", &send);
    assert_eq!(client.ok("host.send", &send), sent, "a repeat is not sent again");
    let conflict = client.refused("host.send", &json!({ "input": "two", "idempotency_key": "k" }));
    assert!(conflict.starts_with("conflict"), "{conflict}");
    let events = host.client().events_until(0, |event| event.get("turn").is_some());
    assert_eq!(of_type(&events, "input").len(), 1);
    let turn =
        json!({ "message_id": sent["message_id"], "outcome": "completed", "result": "got one" });
    assert_eq!(events.last().expect("some")["turn"], turn);
    let history = client.ok("host.history", &json!({}));
    assert_eq!((&history["agent_id"], &history["total"]), (&json!("ag_one"), &json!(2)));
    assert_eq!(history["offset"], events.len());
    let entries = history["entries"].as_array().expect("a list");
    let said: Vec<_> =
        entries.iter().map(|entry| (entry["role"].clone(), entry["content"].clone())).collect();
    assert_eq!(said, [(json!("user"), json!("one")), (json!("assistant"), json!("got one"))]);
    let last = client.ok("host.history", &json!({ "limit": 1 }));
    assert_eq!((&last["entries"][0], &last["total"]), (&entries[1], &json!(2)));
    let before = of_type(&events, "chat_entry")[1]["offset"].clone();
    assert_eq!(entries[1]["offset"], before);
    assert_eq!(client.ok("host.history", &json!({ "before": before }))["total"], 1);
    let stopped = client.ok("host.stop", &json!({ "reason": "enough", "timeout": 60 }));
    assert_eq!((&stopped["stopped"], &stopped["graceful"]), (&json!(true), &json!(true)));
    assert_eq!(stopped["final_state"], "done");
    // The agent is told by the end of its input and by a signal, and obeys whichever comes first.
    assert!(stopped["signal"] == 15 || stopped["exit_code"] == 0, "{stopped}");
    assert_eq!(client.refused("host.send", &json!({ "input": "x" })), "agent is not running");
    assert_eq!(client.refused("host.interrupt", &json!({})), "agent is not running");
    assert_eq!(client.ok("host.stop", &json!({}))["final_state"], "done");
    assert_eq!(client.ok("host.status", &json!({}))["agent"]["pid"], 0);
    let events = client.all_events();
    assert!(events.iter().any(|event| event["state"] == "stopping" && event["reason"] == "enough"));
}

#[test]
fn invalid_request_gets_an_error_and_keeps_the_connection() {
    let host = Host::start(&ECHO);
    let mut client = host.client();
    client.write(b"{\"type\":\n \"host.ping\"\n}{\"type\":\"host.list\"}\n");
    assert_eq!(client.line().expect("an answer")["type"], "host.ping");
    assert_eq!(client.line().expect("an answer")["type"], "host.list");
    for broken in
        ["{bad\n", "[\"host.ping\"]\n", "\"host.ping\"\n", "{\"type\":7}\n", "}}}}\n", "\u{1}\n"]
    {
        client.write(broken.as_bytes());
        let reply = client.line().expect("an answer");
        let error = reply["error"].as_str().unwrap_or_default();
        assert!(
            reply["success"] == false && error.starts_with("decode request: "),
            "{broken:?} {reply}"
        );
        client.ok("host.ping", &json!({}));
    }
    client.write(b"null {}\n");
    for _ in 0..2 {
        assert_eq!(client.line().expect("an answer")["error"], "unknown message type: ");
    }
    let large = json!({ "type": "host.send", "payload": { "input": "x".repeat(4 * 1024 * 1024) } });
    client.write(format!("{large}\n").as_bytes());
    let reply = client.line().expect("an answer");
    assert!(reply["error"].as_str().expect("a text").contains("larger than 4194304"), "{reply}");
    client.ok("host.ping", &json!({}));
}

#[test]
fn host_counts_attached_clients() {
    let host = Host::start(&ECHO);
    let mut asker = host.client();
    let attached =
        |asker: &mut Client| asker.ok("host.status", &json!({}))["host"]["attached"].clone();
    assert_eq!(attached(&mut asker), 0);
    let mut followers: Vec<Client> = (0..3).map(|_| host.client()).collect();
    for (number, follower) in followers.iter_mut().enumerate() {
        follower.ok("host.attach", &json!({}));
        assert_eq!(attached(&mut asker), number + 1);
    }
    // A second attach of the same client does not count again.
    followers[0].write(b"{\"type\":\"host.attach\",\"id\":\"again\"}\n");
    while followers[0].line().expect("goes on")["id"] != "again" {}
    assert_eq!(attached(&mut asker), 3);
    followers[0].write(b"{\"type\":\"host.detach\",\"id\":\"off\"}\n");
    while followers[0].line().expect("goes on")["id"] != "off" {}
    assert_eq!(attached(&mut asker), 2);
    // It has sent its last request, and reads on.
    followers[1].stream.shutdown(std::net::Shutdown::Write).expect("is open");
    host.client().ok("host.send", &json!({ "input": "one" }));
    while followers[1].line().expect("goes on").get("turn").is_none() {}
    assert_eq!(attached(&mut asker), 2);
    // A client that has disconnected is not counted, even if the agent writes nothing.
    drop(followers);
    eventually(WITHIN, || attached(&mut asker) == 0);
}

#[test]
fn host_socket_and_folder_are_private() {
    let host = Host::start(&ECHO);
    let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode() & 0o777;
    assert_eq!(mode(&host.socket), 0o600);
    assert_eq!(mode(host.socket.parent().expect("a folder")), 0o700);
    assert_eq!(mode(&host.spool()), 0o600);
}

#[test]
fn host_is_detached_and_leads_a_session() {
    let host = Host::start(&ECHO);
    let stat = fs::read_to_string(format!("/proc/{}/stat", host.pid)).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    assert_ne!(fields[1], std::process::id().to_string(), "{stat}");
    assert_eq!(fields[3], host.pid.to_string(), "{stat}");
}

#[test]
fn attach_at_any_moment_gets_each_event_once_and_in_order() {
    let script = "read go; for p in 1 2 3 4; do (i=0; while [ $i -lt 1500 ]; do echo \"$p $i\"; i=$((i+1)); done) & done; wait";
    let host = Host::with(&["sh", "-c", script], &json!({ "prompt": { "input": "go" } }));
    let watchers: Vec<_> = (0..60_u64)
        .map(|number| {
            let mut client = host.client();
            thread::spawn(move || {
                let end = client.ok("host.status", &json!({}));
                assert_eq!(end["agent"]["id"], "ag_one");
                let attached = client.ok("host.attach", &json!({ "offset": 0 }));
                let offset =
                    attached["stream_offset"].as_u64().expect("a number") * (number % 3) / 2;
                // The end of the program may be recorded already: one event is left.
                let last = attached["stream_offset"].as_u64().expect("a number");
                let offset = offset.min(last.saturating_sub(1));
                // A second attach replaces the first, whose events may still arrive.
                let mut other = client;
                other.write(b"{\"type\":\"host.detach\"}\n");
                while other.line().expect("goes on")["type"] != "host.detach" {}
                let events = other.events_until(offset, |event| event["type"] == "exit");
                offset + events.len() as u64
            })
        })
        .collect();
    let ends: Vec<u64> = watchers.into_iter().map(|it| it.join().expect("dense")).collect();
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    let events = host.client().all_events();
    assert_eq!(of_type(&events, "output").len(), 6000);
    let spooled = fs::read_to_string(host.spool()).expect("is there");
    let spooled: Vec<Value> =
        spooled.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(spooled, events, "what is shown is what is on the disk");
}

/// `SVC_AGENT_LINES` sets the number of lines: a million in a release build.
#[test]
fn all_lines_are_replayed_unchanged() {
    let count: u64 =
        std::env::var("SVC_AGENT_LINES").ok().and_then(|it| it.parse().ok()).unwrap_or(60_000);
    let script = format!("read go; seq 1 {count}");
    let host = Host::with(&["sh", "-c", &script], &json!({ "prompt": { "input": "go" } }));
    for round in 0..2 {
        let mut next = 1;
        let mut client = host.client();
        client.stream.set_read_timeout(Some(Duration::from_mins(5))).expect("can be set");
        client.write(b"{\"type\":\"host.attach\"}\n");
        assert_eq!(client.line().expect("an answer")["success"], true);
        for offset in 1_u64.. {
            let event = client.line().expect("the stream goes on");
            assert_eq!(event["offset"], offset, "{event}");
            if event["type"] == "output" {
                assert_eq!(event["data"], next.to_string(), "{event}");
                next += 1;
            }
            if event["type"] == "exit" {
                break;
            }
        }
        assert_eq!(next, count + 1, "round {round}");
    }
}

#[test]
fn stalled_client_delays_no_other_and_misses_nothing() {
    let script = "read go; i=0; line=$(printf '%01000d' 0); while [ $i -lt 8000 ]; do echo $line; i=$((i+1)); done";
    let host = Host::with(&["sh", "-c", script], &json!({ "prompt": { "input": "go" } }));
    let mut stalled = host.client();
    stalled.write(b"{\"type\":\"host.attach\"}\n");
    let events = host.client().all_events();
    assert_eq!(of_type(&events, "output").len(), 8000);
    assert_eq!(stalled.line().expect("an answer")["type"], "host.attach");
    for event in &events {
        assert_eq!(stalled.line().as_ref(), Some(event));
    }
    stalled.ok("host.ping", &json!({}));
}

#[test]
fn lines_are_stored_unchanged() {
    let script = "head -c 5000000 /dev/zero | tr '\\0' x; echo; printf 'caf\\351\\n'; printf '\\303\\251\\r\\n\\n'; echo oops >&2; sleep 0.3; printf 'no end'";
    let host = Host::start(&["sh", "-c", script]);
    let events = host.client().all_events();
    let lines = of_type(&events, "output");
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[0]["truncated"], true);
    assert_eq!(lines[0]["data"].as_str().expect("text").len(), 1024 * 1024);
    assert_eq!((&lines[1]["encoding"], &lines[1]["data"]), (&json!("base64"), &json!("Y2Fm6Q==")));
    assert_eq!((&lines[2]["data"], &lines[3]["data"]), (&json!("é\r"), &json!("")));
    assert_eq!(lines[4]["data"], "no end");
    assert_eq!(of_type(&events, "stderr")[0]["data"], "oops");
    assert!(lines[1..].iter().all(|line| line.get("truncated").is_none()));
}

#[test]
fn end_of_the_program_is_recorded() {
    for (script, state, code, signal) in [
        ("exit 0", "done", Some(0), None),
        ("echo why >&2; exit 3", "error", Some(3), None),
        ("kill -9 $$", "error", None, Some(9)),
    ] {
        let host = Host::start(&["sh", "-c", script]);
        let events = host.client().all_events();
        let exit = events.last().expect("some");
        assert_eq!(exit["final_state"], state, "{script}");
        assert_eq!(exit.get("exit_code"), code.map(Value::from).as_ref(), "{script}");
        assert_eq!(exit.get("signal"), signal.map(Value::from).as_ref(), "{script}");
        let agent = host.state();
        assert_eq!((&agent["state"], &agent["pid"]), (&json!(state), &json!(0)), "{script}");
        if code == Some(3) {
            assert!(agent["error"].as_str().is_some_and(|error| error.contains("why")), "{agent}");
        }
    }
}

#[test]
fn failed_program_start_has_a_reason() {
    let home = Home::new();
    let not_executable = home.user().join("plain");
    fs::write(&not_executable, "x").expect("writes");
    for (command, error) in [
        ("no-such-program-anywhere", "cannot start no-such-program-anywhere: No such file"),
        (not_executable.to_str().expect("text"), "Permission denied"),
    ] {
        let refused = launch(&home, &spec(&home, "ag_bad", &[command]));
        let text = refused["error"].as_str().expect("an error");
        assert!(text.contains(error), "{text}");
        let left: Vec<_> = fs::read_dir(home.path("agents")).expect("a folder").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
    let mut elsewhere = spec(&home, "ag_bad", &["true"]);
    elsewhere["cwd"] = json!("/no/such/folder");
    let refused = launch(&home, &elsewhere);
    assert!(refused["error"].as_str().expect("an error").contains("/no/such/folder"), "{refused}");
}

#[test]
fn silent_agent_fails_at_the_deadline() {
    let command = ["sh", "-c", "echo 'please log in' >&2; exec sleep 600.25"];
    // On a busy machine the program may have no time to speak.
    let speaks = [400, 4_000, 40_000].into_iter().any(|deadline| {
        let more = json!({ "backend": "claude", "start_timeout_ms": deadline });
        let host = Host::with(&command, &more);
        let events = host.client().all_events();
        assert_eq!(events.last().expect("some")["final_state"], "error");
        let error = host.state()["error"].as_str().expect("a text").to_owned();
        assert!(error.contains("start_timeout"), "{error}");
        error.contains("please log in")
    });
    assert!(speaks, "its error has what the program said");
}

#[test]
fn stop_returns_how_the_program_ended() {
    let deaf = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"];
    for (command, stop, graceful, code, signal) in [
        (["sh", "-c", "exec sleep 600.75"], json!({ "timeout": 60 }), true, None, Some(15)),
        (
            ["sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"],
            json!({ "timeout": 60 }),
            true,
            Some(7),
            None,
        ),
        (deaf, json!({ "timeout": 1 }), false, None, Some(9)),
        (deaf, json!({ "force": true }), false, None, Some(9)),
    ] {
        let host = Host::start(&command);
        if command[2].contains("trap") {
            host.client().events_until(0, |event| event["type"] == "output");
        }
        let stopped = host.client().ok("host.stop", &stop);
        assert_eq!(stopped["graceful"], graceful, "{stopped}");
        assert_eq!(stopped.get("exit_code"), code.map(Value::from).as_ref(), "{stopped}");
        assert_eq!(stopped.get("signal"), signal.map(Value::from).as_ref(), "{stopped}");
        assert_eq!(stopped["final_state"], "done");
        let events = host.client().all_events();
        assert!(events.iter().any(|event| event["state"] == "stopping"));
    }
}

#[test]
fn forced_stop_overtakes_a_waiting_one() {
    let deaf = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"];
    let host = Host::start(&deaf);
    let mut client = host.client();
    client.events_until(0, |event| event["type"] == "output");
    let slow = json!({ "type": "host.stop", "id": "slow", "payload": { "timeout": 3600 } });
    let fast = json!({ "type": "host.stop", "id": "fast", "payload": { "force": true } });
    client.write(format!("{slow}\n{fast}\n").as_bytes());
    let mut answered = Vec::new();
    while answered.len() < 2 {
        let line = client.line().expect("goes on");
        if line["type"] == "host.stop" {
            answered.push(line["id"].clone());
        }
    }
}

/// A process tree that leaves the program's process group and session, marked by a unique number.
fn stray_tree(number: &str) -> String {
    format!(
        "setsid sleep {number} & sh -c 'sleep {number}' & (setsid sh -c 'sleep {number} & wait' &) ; echo up; read x; wait"
    )
}

#[test]
fn killed_host_leaves_no_process() {
    for round in 0..5 {
        let number = format!("{}.{round}", 100_000 + std::process::id());
        let host = Host::start(&["sh", "-c", &stray_tree(&number)]);
        host.client().events_until(0, |event| event["type"] == "output");
        eventually(WITHIN, || lives(&number));
        host.kill();
        eventually(Duration::from_secs(5), || !lives(&number));
        let spooled = fs::read_to_string(host.spool()).expect("is there");
        let offsets: Vec<u64> = spooled
            .lines()
            .map(|line| {
                serde_json::from_str::<Value>(line).expect("whole")["offset"]
                    .as_u64()
                    .expect("a number")
            })
            .collect();
        assert!(offsets.iter().copied().eq(1..=offsets.len() as u64), "{offsets:?}");
    }
}

#[test]
fn killed_agent_or_reaper_is_recorded_and_leaves_no_process() {
    for kills_reaper in [false, true] {
        let number = format!("{}.5{}", 200_000 + std::process::id(), u8::from(kills_reaper));
        let host = Host::start(&["sh", "-c", &stray_tree(&number)]);
        host.client().events_until(0, |event| event["type"] == "output");
        let mut pid = host.agent_pid;
        if kills_reaper {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
            let fields = stat.rsplit(')').next().expect("fields");
            pid = fields.split_whitespace().nth(1).expect("a parent").parse().expect("a pid");
            assert_ne!(pid, host.pid);
        }
        kill_process(Pid::from_raw(pid.cast_signed()).expect("a pid"), Signal::KILL)
            .expect("it runs");
        let events = host.client().all_events();
        let exit = events.last().expect("some");
        assert_eq!((&exit["final_state"], &exit["signal"]), (&json!("error"), &json!(9)), "{exit}");
        eventually(Duration::from_secs(5), || !lives(&number));
    }
}

#[test]
fn second_host_of_an_agent_cannot_take_the_socket() {
    let home = Home::new();
    let document = spec(&home, "ag_one", &ECHO);
    let host = Host::with_document(home.clone(), &document);
    let refused = launch(&home, &document);
    assert!(refused["error"].as_str().is_some_and(|error| error.contains("spool")), "{refused}");
    assert_eq!(host.state()["state"], "idle");
}

#[test]
fn long_folder_path_still_has_a_socket() {
    let home = Home::new();
    let mut document = spec(&home, &format!("ag_{}", std::process::id()), &ECHO);
    let (folder, short) = (home.path(&"long".repeat(40)), home.path("short"));
    document["folder"] = json!(folder);
    let mut host = Host::with_document(home, &document);
    assert!(host.socket.starts_with(&folder), "{}", host.socket.display());
    let named = host.socket.display().to_string();
    std::os::unix::fs::symlink(&folder, &short).expect("a short path to it");
    host.socket = short.join(host.socket.file_name().expect("a name"));
    let status = host.client().ok("host.status", &json!({}));
    assert_eq!(status["host"]["socket_path"], named);
    // A huge timeout must not overflow.
    host.client().ok("host.stop", &json!({ "timeout": i64::MAX }));
}

#[test]
fn host_ends_after_its_agent_and_removes_its_socket() {
    let host = Host::with(&["true"], &json!({ "linger_ms": 200 }));
    eventually(WITHIN, || !host.socket.exists());
    eventually(WITHIN, || !Path::new(&format!("/proc/{}", host.pid)).exists());
    assert!(host.spool().exists(), "it is the daemon that removes the spool");
}

#[test]
fn only_named_variables_reach_the_agent() {
    let host = Host::with(&["env"], &json!({ "env": { "REVIEW": "1" } }));
    let events = host.client().all_events();
    let names: Vec<_> = of_type(&events, "output")
        .iter()
        .map(|event| {
            event["data"].as_str().expect("text").split('=').next().expect("a name").to_owned()
        })
        .collect();
    assert!(
        names.contains(&"REVIEW".to_owned()) && names.contains(&"PATH".to_owned()),
        "{names:?}"
    );
    assert!(!names.contains(&"SVC_HOME".to_owned()), "{names:?}");
}

#[test]
fn turns_are_sequential_and_their_last_line_is_kept() {
    let script =
        "while read line; do echo \"a $line\"; sleep 0.1; echo \"b $line\"; echo END; done";
    let host = Host::with(&["sh", "-c", script], &json!({ "turn_end": "END" }));
    let mut client = host.client();
    let sent: Vec<_> = (0..3)
        .map(|number| {
            client.ok("host.send", &json!({ "input": format!("{number}"), "from": "me" }))
        })
        .collect();
    let queued: Vec<_> =
        sent.iter().map(|answer| answer["queued"].as_bool().expect("a flag")).collect();
    assert_eq!(queued, [false, true, true]);
    let mut turns = 0;
    let events = host.client().events_until(0, |event| {
        turns += usize::from(event.get("turn").is_some());
        turns == 3
    });
    let ends: Vec<_> = events.iter().filter_map(|event| event.get("turn")).collect();
    for (number, end) in ends.iter().enumerate() {
        assert_eq!(end["result"], format!("a {number}\nb {number}"));
        assert_eq!(end["message_id"], sent[number]["message_id"]);
    }
    assert!(of_type(&events, "input").iter().all(|input| input["from"] == "me"));
}

/// A stand-in for Claude Code that asks once for permission.
const ASKING: &str = r#"read init
echo '{"type":"control_response","response":{"subtype":"success","request_id":"svc-initialize","response":{}}}'
read prompt
echo '{"type":"system","subtype":"init","session_id":"s-1"}'
echo '{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Write","input":{"file_path":"FILE"},"permission_suggestions":[]}}'
read answer
echo "$answer" >&2
case $answer in *'"behavior":"allow"'*) said=allowed ;; *) said=denied ;; esac
echo "{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"$said\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}"
read more"#;

fn asking(file: &str, more: Value) -> Host {
    let script = ASKING.replace("FILE", file);
    let mut document = more;
    document["backend"] = json!("claude");
    document["prompt"] = json!({ "input": "go" });
    Host::with(&["sh", "-c", &script], &document)
}

#[test]
fn host_request_waits_and_is_answered_once() {
    let host = asking("/etc/x", json!({}));
    let events = host.client().events_until(0, is_state("requires_action"));
    let request = of_type(&events, "request")[0].clone();
    assert_eq!(
        (&request["kind"], &request["title"]),
        (&json!("permission"), &json!("Write: /etc/x"))
    );
    let id = &request["request_id"];
    assert!(id.as_str().is_some_and(|id| id.starts_with("req_")), "{request}");
    let mut client = host.client();
    let mut answer = json!({ "request_id": id, "option_id": "allow", "by": "operator" });
    for key in [json!(null), json!(""), json!("x"), json!(&KEY[1..])] {
        answer["key"] = key;
        let refused = client.refused("host.answer", &answer);
        assert!(refused.starts_with("forbidden: "), "{refused}");
    }
    let wrong = json!({ "request_id": id, "option_id": "maybe", "key": KEY });
    let wrong = client.refused("host.answer", &wrong);
    assert!(wrong.contains("allow"), "{wrong}");
    answer["key"] = json!(KEY);
    client.ok("host.answer", &answer);
    assert_eq!(client.refused("host.answer", &answer), "already answered");
    let events = host.client().events_until(0, |event| event.get("turn").is_some());
    let answer = of_type(&events, "answer")[0];
    assert_eq!((&answer["by"], &answer["option_id"]), (&json!("operator"), &json!("allow")));
    assert_eq!(events.last().expect("some")["turn"]["result"], "allowed");
    assert_eq!(host.state()["session_id"], "s-1");
    let usage = of_type(&events, "usage")[0];
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(3), &json!(4)));
}

#[test]
fn host_denies_an_unanswered_request_at_the_deadline() {
    let host = asking("/etc/x", json!({ "request_timeout_ms": 300 }));
    let events = host.client().events_until(0, |event| event.get("turn").is_some());
    assert_eq!(of_type(&events, "answer")[0]["by"], "timeout");
    assert_eq!(events.last().expect("some")["turn"]["result"], "denied");
}

#[test]
fn permission_setting_answers_requests() {
    for (permission, file, by, said) in [
        ("deny", "a", "policy", "denied"),
        ("accept_edits", "a", "policy", "allowed"),
        ("accept_edits", "../a", "timeout", "denied"),
        ("accept_edits", "/etc/a", "timeout", "denied"),
    ] {
        let host = asking(file, json!({ "permission": permission, "request_timeout_ms": 300 }));
        let events = host.client().events_until(0, |event| event.get("turn").is_some());
        assert_eq!(of_type(&events, "answer")[0]["by"], by, "{permission} {file}");
        assert_eq!(events.last().expect("some")["turn"]["result"], said, "{permission} {file}");
    }
}

#[test]
fn host_memory_is_bounded() {
    let host = Host::start(&ECHO);
    host.client().ok("host.ping", &json!({}));
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid)).expect("it runs");
    let number = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).expect("a line");
        line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
    };
    assert!(number("Threads:") <= 3, "{status}");
    // Pages of the program are shared, but for those that the loader changes, which are many in a
    // build without optimisation. Anonymous pages are the host's own.
    let maps = fs::read_to_string(format!("/proc/{}/smaps", host.pid)).expect("it runs");
    let mut is_of_file = false;
    let mut own = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Anonymous:") if !is_of_file => {
                own += words.next().and_then(|size| size.parse::<u64>().ok()).expect("a size");
            }
            Some(word) if !word.ends_with(':') => is_of_file = line.contains('/'),
            _ => {}
        }
    }
    assert!((1..=2 * 1024).contains(&own), "{own} KiB of its own: {status}");
}

#[test]
fn full_disk_blocks_the_agent_and_loses_nothing() {
    // The limit of a file's size stands for the disk: the spool cannot grow beyond it.
    let home = Home::new();
    let script = "read go; i=0; line=$(printf '%01000d' 0); while [ $i -lt 3000 ]; do echo $line; i=$((i+1)); done";
    let document = spec(&home, "ag_one", &["sh", "-c", script]);
    let program = env!("CARGO_BIN_EXE_svc");
    let command = format!("trap '' XFSZ; ulimit -f 1000; exec {program} agent host");
    let mut child = std::process::Command::new("sh")
        .args(["-c", &command])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sh exists");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(document.to_string().as_bytes()).expect("reads");
    drop(stdin);
    let output = child.wait_with_output().expect("our child");
    let started: Value = serde_json::from_slice(&output.stdout).expect("a line");
    let host = Host {
        id: "ag_one".to_owned(),
        pid: u32::try_from(started["host_pid"].as_u64().expect("a pid")).expect("fits"),
        agent_pid: 0,
        socket: PathBuf::from(started["socket_path"].as_str().expect("a path")),
        home,
    };
    host.client().ok("host.send", &json!({ "input": "go" }));
    let error = until(WITHIN, || host.state()["error"].as_str().map(str::to_owned));
    assert!(error.contains("cannot be written"), "{error}");
    let attached = host.client().ok("host.attach", &json!({}));
    let shown = attached["stream_offset"].as_u64().expect("a number");
    let whole = fs::read(host.spool()).expect("is there");
    let lines = whole.split_inclusive(|byte| *byte == b'\n').count() as u64;
    assert!(lines >= shown && shown < 3000, "{lines} {shown}");
    let stopped = host.client().ok("host.stop", &json!({ "force": true }));
    assert_eq!(stopped["final_state"], "done", "it can be stopped all the same");
}

#[test]
fn frequent_requests_do_not_keep_a_host_alive() {
    // Each request extends its life by four seconds, up to six in all.
    quickly(Duration::from_secs(25), || {
        let host = Host::with(&["true"], &json!({ "linger_ms": 4000 }));
        let stayed = answers_for(&host.socket);
        eventually(WITHIN, || !Path::new(&format!("/proc/{}", host.pid)).exists());
        stayed
    });
}
