//! Codex' sessions that a person started: their states and prompts by the app-server that runs
//! them, and who counts as one.

use std::cell::RefCell;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agents::with_config;
use crate::daemon::{Daemon, Home, PATIENT, Running, eventually, svc, until};
use crate::expect::{detail, events, page, seconds_of};
use crate::identity::{event, id_of, peer_of, prompt, start};

const SOON: Duration = Duration::from_secs(30);
const THREAD: &str = "01a20d52-346b-7852-bcf7-dc42a786c0e6";
const OTHER: &str = "01a20d5e-8884-7b13-ba38-cb9a8444814c";

/// `codex_app_server.py`, with its socket where the client has it.
struct AppServer {
    running: Running,
    stdin: ChildStdin,
    /// What it has told of its connections, and nobody has looked for.
    told: RefCell<Vec<Value>>,
}

fn codex_home(home: &Home) -> PathBuf {
    home.user().join(".codex")
}

fn control_socket(codex: &Path) -> PathBuf {
    codex.join("app-server-control/app-server-control.sock")
}

fn private_folder(path: &Path) {
    fs::create_dir_all(path).expect("a folder");
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("its mode");
}

impl AppServer {
    fn start(d: &Daemon) -> Self {
        let codex = codex_home(&d.home);
        private_folder(&codex);
        let server = Self::at(&d.home, &codex, &control_socket(&codex).display().to_string());
        server.heard("listening");
        server
    }

    /// With an open request of the first thread.
    fn asking(d: &Daemon) -> (Self, Value) {
        let mut codex = Self::start(d);
        codex.begin_followed(THREAD);
        codex.ask(0, THREAD);
        (codex, asked(d, THREAD))
    }

    /// A process whose environment names a folder of Codex, and that listens elsewhere, or nowhere.
    fn at(home: &Home, codex: &Path, socket: &str) -> Self {
        let script = home.user().join("codex_app_server.py");
        fs::write(&script, include_str!("codex_app_server.py")).expect("can be written");
        let svc = home.command(&[]);
        let variables = svc.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let mut command = Command::new("python3");
        command
            .arg(script)
            .arg(svc.get_program())
            .arg(socket)
            .env_clear()
            .envs(variables)
            .env("CODEX_HOME", codex)
            .envs([PATIENT])
            .current_dir(home.user())
            .stdin(Stdio::piped());
        let mut running = Running::spawn(command);
        let stdin = running.stdin();
        Self { running, stdin, told: RefCell::default() }
    }

    /// The next line that has this member, or one that was passed over before.
    #[track_caller]
    fn heard(&self, name: &str) -> Value {
        let mut told = self.told.borrow_mut();
        if let Some(at) = told.iter().position(|line| line.get(name).is_some()) {
            return told.remove(at)[name].clone();
        }
        self.running.find(|line| {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let value = line.get(name).cloned();
            if value.is_none() {
                told.push(line);
            }
            value
        })
    }

    #[track_caller]
    fn order(&mut self, order: &Value) -> String {
        writeln!(self.stdin, "{order}").expect("it reads");
        self.heard("done").as_str().unwrap_or_default().to_owned()
    }

    /// A session begins, with its first prompt.
    #[track_caller]
    fn begin(&mut self, thread: &str) {
        self.order(&json!({ "status": [thread, { "type": "active", "activeFlags": [] }] }));
        self.order(&json!({ "hook": start(thread) }));
        self.order(&json!({ "hook": prompt(thread) }));
    }

    /// The same, until the daemon follows it.
    #[track_caller]
    fn begin_followed(&mut self, thread: &str) {
        self.begin(thread);
        assert_eq!(self.heard("resumed"), thread);
    }

    /// The next turn of the first thread begins with this prompt.
    #[track_caller]
    fn begin_turn(&mut self, prompt: &Value) {
        self.order(&json!({ "status": [THREAD, { "type": "active", "activeFlags": [] }] }));
        assert_eq!(self.heard("resumed"), THREAD);
        self.order(&json!({ "hook": prompt }));
    }

    /// A turn of the first thread ends.
    #[track_caller]
    fn end_turn(&mut self, d: &Daemon, status: &str) {
        let turn = json!({ "id": "t", "status": status, "error": null });
        let params = json!({ "threadId": THREAD, "turn": turn });
        self.order(&json!({ "status": [THREAD, { "type": "idle" }] }));
        self.order(&json!({ "tell": { "method": "turn/completed", "params": params } }));
        eventually(SOON, || status_of(d, THREAD) == "idle");
    }

    #[track_caller]
    fn ask(&mut self, id: u32, thread: &str) {
        let status = json!({ "type": "active", "activeFlags": ["waitingOnApproval"] });
        self.order(&json!({ "status": [thread, status] }));
        self.tell_item("item/started", id, thread, "inProgress");
        self.order(&json!({ "ask": approval(id, thread) }));
    }

    /// Tells of the item that a request asks about.
    #[track_caller]
    fn tell_item(&mut self, method: &str, id: u32, thread: &str, status: &str) {
        let item =
            json!({ "type": "commandExecution", "id": format!("call_{id}"), "status": status });
        let params = json!({ "threadId": thread, "item": item });
        self.order(&json!({ "tell": { "method": method, "params": params } }));
    }

    /// The end of that item.
    #[track_caller]
    fn item_over(&mut self, id: u32, thread: &str, status: &str) {
        self.tell_item("item/completed", id, thread, status);
    }
}

/// As 0.169.0 asked it.
fn approval(id: u32, thread: &str) -> Value {
    json!({ "id": id, "method": "item/commandExecution/requestApproval", "params": {
        "kind": "command", "threadId": thread, "turnId": "01a20d52-4070-7a71-90c5-e38421caa762",
        "itemId": format!("call_{id}"), "environmentId": "local", "reason": "May I?",
        "command": "/bin/bash -lc 'touch made'", "cwd": "/nowhere/p",
        "commandActions": [{ "type": "unknown", "command": "touch made" }],
        "proposedExecpolicyAmendment": ["touch", "made"],
        "availableDecisions": ["accept",
            { "acceptWithExecpolicyAmendment": { "execpolicy_amendment": ["touch", "made"] } },
            "cancel"],
    } })
}

fn open(d: &Daemon) -> Vec<Value> {
    page(&d.get("/v1/requests?open=true"), "requests")
}

/// The open request of a session that can be answered.
#[track_caller]
fn asked(d: &Daemon, thread: &str) -> Value {
    let key = format!("agent:codex:{thread}");
    let is_its = |row: &Value| row["session_key"] == *key && row["options"][0].is_object();
    until(SOON, || open(d).into_iter().find(is_its))
}

fn answer_path(request: &Value) -> String {
    format!("/v1/requests/{}/answer", request["request_id"].as_str().expect("an id"))
}

/// How a request ended.
#[track_caller]
fn ended(d: &Daemon, request: &Value) -> Value {
    let find = || {
        let all = page(&d.get("/v1/requests"), "requests");
        let row = all.into_iter().find(|row| row["request_id"] == request["request_id"])?;
        row.get("answer").cloned()
    };
    until(SOON, find)
}

/// Answers a request with these members. On a busy machine the client takes the answer after the
/// call.
#[track_caller]
fn answer(d: &Daemon, request: &Value, answer: &Value) {
    let answered = d.post(&answer_path(request), answer);
    assert!([200, 202].contains(&answered.status()), "{answered:?}");
    let by_operator = json!({ "option_id": answer["option_id"], "by": "operator" });
    assert_eq!(ended(d, request), by_operator);
}

#[track_caller]
fn accept(d: &Daemon, request: &Value) {
    answer(d, request, &json!({ "option_id": "accept" }));
}

fn status_of(d: &Daemon, thread: &str) -> Value {
    peer_of(d, thread)["status"].clone()
}

#[test]
fn a_prompt_of_codex_is_answered_beside_its_dialog() {
    let d = Daemon::start();
    let (mut codex, request) = AppServer::asking(&d);
    assert_eq!(request["agent_id"], Value::Null);
    assert_eq!(request["cwd"], "/nowhere/p");
    let input = &request["tool"]["input"];
    assert_eq!((&request["tool"]["name"], &input["reason"]), (&json!("shell"), &json!("May I?")));
    assert_eq!(input["command"], "/bin/bash -lc 'touch made'");
    let options: Vec<_> = request["options"].as_array().expect("options").iter().collect();
    let kinds: Vec<_> = options.iter().map(|option| &option["kind"]).collect();
    assert_eq!(kinds, ["allow_once", "allow_always", "deny"]);
    assert!(options.iter().all(|option| option["text"] == false), "it has no words");
    // Its participant waits for the same, though states of threads do not say what for.
    let waits_for_it = |d: &Daemon| {
        let waits = peer_of(d, THREAD)["waiting_for"].clone();
        (&waits["title"], &waits["tool"]) == (&request["title"], &json!("shell"))
    };
    eventually(SOON, || waits_for_it(&d));

    let path = answer_path(&request);
    let rule = json!({ "option_id": options[1]["option_id"] });
    let refused = d.post(&path, &rule);
    let why = refused.json()["detail"].to_string();
    assert!(refused.status() == 409 && why.contains("touch made"), "{why}");
    assert_eq!(d.post(&path, &json!({ "option_id": "decline", "text": "x" })).status(), 422);
    assert_eq!(d.post(&path, &json!({ "option_id": "cancel" })).status(), 422);

    accept(&d, &request);
    let answered = codex.heard("answered");
    assert_eq!(answered, json!({ "id": 0, "result": { "decision": "accept" } }));
    assert_eq!(open(&d), Vec::<Value>::new());
    assert_eq!(d.post(&path, &json!({ "option_id": "accept" })).status(), 409);

    // A rule, with a second word.
    codex.ask(1, THREAD);
    let request = asked(&d, THREAD);
    let rule = json!({ "option_id": rule["option_id"], "confirm": true });
    answer(&d, &request, &rule);
    let decision = &codex.heard("answered")["result"]["decision"];
    assert_eq!(*decision, approval(1, THREAD)["params"]["availableDecisions"][1]);
}

#[test]
fn a_denial_of_a_prompt_of_codex_counts_when_its_item_is_declined() {
    let d = Daemon::start();
    let (mut codex, request) = AppServer::asking(&d);
    let sent = d.post(&answer_path(&request), &json!({ "option_id": "decline" })).ok(202);
    assert_eq!(
        (&sent["state"], &sent["answering"]["option_id"]),
        (&json!("sent"), &json!("decline"))
    );
    assert_eq!(codex.heard("answered")["result"], json!({ "decision": "decline" }));
    codex.item_over(0, THREAD, "declined");
    assert_eq!(ended(&d, &request), json!({ "option_id": "decline", "by": "operator" }));

    // The person said yes at the same moment.
    codex.ask(1, THREAD);
    let request = asked(&d, THREAD);
    d.post(&answer_path(&request), &json!({ "option_id": "decline" })).ok(202);
    codex.item_over(1, THREAD, "completed");
    assert_eq!(ended(&d, &request), json!({ "by": "terminal" }));

    // And no, which shows after leave was given here.
    codex.ask(2, THREAD);
    let request = asked(&d, THREAD);
    accept(&d, &request);
    codex.item_over(2, THREAD, "declined");
    eventually(SOON, || ended(&d, &request) == json!({ "by": "terminal" }));
    let told = events(&d, "team");
    assert!(told.iter().any(|event| event["data"]["corrects"] == true), "{told:?}");
}

#[test]
fn the_person_at_the_terminal_of_codex_answers_first() {
    let d = Daemon::start();
    let (mut codex, request) = AppServer::asking(&d);
    codex.order(&json!({ "resolve": 0 }));
    assert_eq!(ended(&d, &request), json!({ "by": "terminal" }));
    assert_eq!(d.post(&answer_path(&request), &json!({ "option_id": "accept" })).status(), 409);
    // Esc, of which no hook tells.
    codex.ask(1, THREAD);
    let request = asked(&d, THREAD);
    codex.end_turn(&d, "interrupted");
    assert_eq!(ended(&d, &request), json!({ "by": "gone" }));
}

#[test]
fn two_threads_of_an_app_server_are_two_sessions() {
    let d = Daemon::start();
    let mut codex = AppServer::start(&d);
    codex.begin_followed(THREAD);
    codex.begin_followed(OTHER);
    codex.ask(0, THREAD);
    codex.ask(1, OTHER);
    let (first, second) = (asked(&d, THREAD), asked(&d, OTHER));
    accept(&d, &second);
    assert_eq!(codex.heard("answered")["id"], 1);
    assert_eq!(open(&d).len(), 1);
    codex.order(&json!({ "resolve": 0 }));
    assert_eq!(ended(&d, &first), json!({ "by": "terminal" }));
}

/// Codex calls no hook before the first prompt, but its app-server has the thread.
#[test]
fn a_thread_of_codex_is_known_and_woken_before_its_first_prompt() {
    let d = Daemon::start();
    let mut codex = AppServer::start(&d);
    let web = d.home.user().join("web");
    fs::create_dir_all(web.join(".git")).expect("a folder");
    // Of a process that no session has proved nothing is believed, so this counts with the next.
    codex.order(&json!({ "open": [OTHER, web] }));
    codex.begin_followed(THREAD);
    let known = || {
        let peers = page(&d.get("/v1/peers"), "peers");
        peers.into_iter().find(|peer| peer["session_id"] == OTHER)
    };
    let is_told = |peer: &Value| peer["evidence"] == "app-server";
    let peer = until(SOON, || known().filter(is_told));
    assert_eq!((&peer["path"], &peer["pid"]), (&json!(web), &peer_of(&d, THREAD)["pid"]));
    assert!(["idle", "online"].contains(&peer["status"].as_str().expect("a word")), "{peer}");
    let text = json!({ "text": "THE BRANCH IS FROZEN" });
    let sent = d.post(&format!("/v1/peers/{}/messages", id_of(&peer)), &text).ok(200);
    assert_eq!(sent["delivery"], "wakes");
    assert_eq!(codex.heard("queued")["threadId"], OTHER);
    // Its first prompt begins no other session.
    codex.begin(OTHER);
    eventually(SOON, || status_of(&d, OTHER) == "busy");
    assert_eq!(id_of(&peer_of(&d, OTHER)), id_of(&peer));
}

#[test]
fn a_prompt_of_codex_is_taken_up_again_after_the_daemon_was_killed() {
    let mut d = Daemon::start();
    let mut codex = AppServer::start(&d);
    codex.begin_followed(THREAD);
    codex.ask(0, THREAD);
    codex.ask(1, THREAD);
    let both = until(SOON, || Some(open(&d)).filter(|open| open.len() == 2));
    d.kill9();
    // One of them is answered while nobody listens.
    codex.order(&json!({ "resolve": 1 }));
    d.restart();
    assert_eq!(codex.heard("resumed"), THREAD);
    let request = asked(&d, THREAD);
    let first = both.iter().find(|row| row["request_id"] == request["request_id"]);
    assert!(first.is_some(), "it is the same row: {request}");
    accept(&d, &request);
    assert_eq!(codex.heard("answered")["id"], 0);
    codex.end_turn(&d, "completed");
    eventually(SOON, || open(&d).is_empty());

    // A connection that ends takes the options with it, and the next one brings them back.
    codex.ask(2, THREAD);
    assert_eq!(codex.heard("resumed"), THREAD);
    let request = asked(&d, THREAD);
    codex.order(&json!({ "hang_up": true }));
    assert_eq!(codex.heard("resumed"), THREAD);
    assert_eq!(asked(&d, THREAD)["request_id"], request["request_id"]);
    accept(&d, &request);

    // Its process ends.
    codex.ask(3, THREAD);
    let request = asked(&d, THREAD);
    codex.running.signal(Signal::KILL);
    assert_eq!(ended(&d, &request), json!({ "by": "gone" }));
}

#[test]
fn the_state_of_a_session_of_codex_is_that_of_its_thread() {
    let d = Daemon::start();
    let mut codex = AppServer::start(&d);
    codex.begin_followed(THREAD);
    assert_eq!(status_of(&d, THREAD), "busy");
    for (status, expected) in [
        (json!({ "type": "active", "activeFlags": ["waitingOnApproval"] }), "waiting"),
        (json!({ "type": "active", "activeFlags": [] }), "busy"),
        (json!({ "type": "active", "activeFlags": ["waitingOnUserInput"] }), "waiting"),
    ] {
        codex.order(&json!({ "status": [THREAD, status] }));
        eventually(SOON, || status_of(&d, THREAD) == expected);
    }
    // Esc, of which no hook tells.
    codex.end_turn(&d, "interrupted");
}

#[test]
fn a_session_of_codex_at_its_usage_limit_waits_for_the_end_of_that() {
    let d = Daemon::start();
    let mut codex = AppServer::start(&d);
    codex.begin_followed(THREAD);
    eventually(SOON, || peer_of(&d, THREAD)["evidence"] == "app-server");
    let since = seconds_of(&peer_of(&d, THREAD)["since"]);
    let end = since + 3600;
    let limits = json!({ "rateLimits": { "primary": { "usedPercent": 100, "resetsAt": end } } });
    let error = json!({ "message": "try again later", "codexErrorInfo": "usageLimitExceeded" });
    let refused = json!({ "error": error, "willRetry": false, "threadId": THREAD, "turnId": "t" });
    codex.order(&json!({ "tell": { "method": "error", "params": refused } }));
    eventually(SOON, || status_of(&d, THREAD) == "waiting");
    let began = peer_of(&d, THREAD)["waiting_for"].clone();
    assert_eq!((&began["kind"], &began["until"]), (&json!("limit"), &Value::Null));
    // Its end is told later, and the failure of the turn once more.
    codex.order(
        &json!({ "tell_all": { "method": "account/rateLimits/updated", "params": limits } }),
    );
    codex.order(&json!({ "status": [THREAD, { "type": "systemError" }] }));
    let turn = json!({ "id": "t", "status": "failed", "error": error });
    let failed = json!({ "threadId": THREAD, "turn": turn });
    codex.order(&json!({ "tell": { "method": "turn/completed", "params": failed } }));
    eventually(SOON, || !peer_of(&d, THREAD)["waiting_for"]["until"].is_null());
    let known = peer_of(&d, THREAD)["waiting_for"].clone();
    assert_eq!((seconds_of(&known["until"]), &known["since"]), (end, &began["since"]));
    // That is one limit.
    let events = page(&d.get("/v1/events?stream=team&kind=limit"), "events");
    let told: Vec<_> = events.iter().map(|event| &event["data"]).collect();
    let [first, second] = &told[..] else { panic!("{told:?}") };
    assert_eq!((first["corrects"].is_null(), &second["corrects"]), (true, &json!(true)));
    assert_eq!((&first["since"], &second["until"]), (&second["since"], &known["until"]));
    // The next turn is not refused.
    codex.order(&json!({ "status": [THREAD, { "type": "active", "activeFlags": [] }] }));
    eventually(SOON, || status_of(&d, THREAD) == "busy");
}

/// Sends a message to an idle session, and gives it with what the app-server was given.
#[track_caller]
fn woken(d: &Daemon, codex: &AppServer, text: &str) -> (Value, Value) {
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer_of(d, THREAD)));
    // A message that is sent before the connection is there waits for the next turn.
    let sent = until(SOON, || {
        let sent = d.post(&inbox, &json!({ "text": text, "type": "notification" })).ok(200);
        (sent["delivery"] == "wakes").then_some(sent)
    });
    // On a busy machine an earlier one may come by the queue as well, and not by a hook in time.
    loop {
        let queued = codex.heard("queued");
        if queued["input"][0]["text"].to_string().contains(text) {
            return (sent, queued);
        }
    }
}

/// The last state of a message, with its way.
fn state_of(d: &Daemon, message: &Value) -> (Value, Value) {
    let detail = detail(d, message);
    let states = detail["states"].as_array().expect("states").clone();
    let via = states.iter().find_map(|it| it.get("via")).cloned().unwrap_or_default();
    (states.last().expect("a state")["state"].clone(), via)
}

#[test]
fn an_idle_codex_is_woken_by_its_queue() {
    let mut d = Daemon::start();
    let mut codex = AppServer::start(&d);
    codex.begin_followed(THREAD);
    codex.end_turn(&d, "completed");
    let (sent, queued) = woken(&d, &codex, "is it green?");
    assert_eq!(queued["threadId"], THREAD);
    assert_eq!(state_of(&d, &sent), (json!("offered"), json!("app-server")));
    // The prompt's hook shows that the model has it.
    codex.order(&json!({ "take": THREAD }));
    let text = queued["input"][0]["text"].clone();
    codex.begin_turn(&event(THREAD, "UserPromptSubmit", &json!({ "prompt": text })));
    eventually(SOON, || state_of(&d, &sent).0 == "injected");

    // After the person's Esc the queue waits for the person.
    codex.end_turn(&d, "interrupted");
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer_of(&d, THREAD)));
    let note = d.post(&inbox, &json!({ "text": "for later", "type": "notification" })).ok(200);
    assert_eq!(note["delivery"], "next_turn");
    codex.begin_turn(&prompt(THREAD));
    eventually(SOON, || state_of(&d, &note).0 != "queued");
    if state_of(&d, &note).1 == "app-server" {
        // The hook's reply was late, and the queue has it.
        codex.order(&json!({ "take": THREAD }));
    }
    codex.end_turn(&d, "completed");

    // A daemon that was killed asks the client what became of the next one: it is given once.
    let (sent, _) = woken(&d, &codex, "is it red?");
    d.kill9();
    codex.order(&json!({ "take": THREAD }));
    d.restart();
    eventually(SOON, || state_of(&d, &sent).0 == "injected");
    assert_eq!(state_of(&d, &sent).1, "app-server");
    let told = codex.told.borrow();
    assert!(!told.iter().any(|line| line.get("queued").is_some()), "{told:?}");
}

/// Its mode without prompts has the name of that in which Claude Code keeps texts for its person.
#[test]
fn a_text_that_codex_lost_is_given_again_in_every_mode() {
    let d = Daemon::start();
    let mut codex = AppServer::start(&d);
    codex.begin_followed(THREAD);
    codex.end_turn(&d, "completed");
    let mode = json!({ "prompt": "go on", "permission_mode": "bypassPermissions" });
    codex.begin_turn(&event(THREAD, "UserPromptSubmit", &mode));
    codex.end_turn(&d, "completed");
    let (sent, first) = woken(&d, &codex, "mind the gap");
    codex.order(&json!({ "forget": THREAD }));
    let second = codex.heard("queued");
    assert_eq!(second["input"], first["input"]);
    let text = first["input"][0]["text"].clone();
    codex.order(&json!({ "take": THREAD }));
    codex.begin_turn(&event(THREAD, "UserPromptSubmit", &json!({ "prompt": text })));
    eventually(SOON, || state_of(&d, &sent).0 == "injected");
}

#[test]
fn a_turn_of_codex_takes_a_message_and_else_its_queue_does() {
    let d = Daemon::start();
    let mut codex = AppServer::start(&d);
    codex.begin_followed(THREAD);
    // That the daemon has heard of the turn is seen by the end of what was before.
    let waits = json!({ "type": "active", "activeFlags": ["waitingOnUserInput"] });
    codex.order(&json!({ "status": [THREAD, waits] }));
    eventually(SOON, || status_of(&d, THREAD) == "waiting");
    let turn = json!({ "threadId": THREAD, "turn": { "id": "t", "status": "inProgress" } });
    codex.order(&json!({ "tell": { "method": "turn/started", "params": turn } }));
    codex.order(&json!({ "status": [THREAD, { "type": "active", "activeFlags": [] }] }));
    eventually(SOON, || status_of(&d, THREAD) == "busy");
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer_of(&d, THREAD)));
    let send = |text: &str| {
        let sent = d.post(&inbox, &json!({ "text": text, "type": "notification" })).ok(200);
        assert_eq!(sent["delivery"], "now");
        sent
    };
    codex.order(&json!({ "steers": "t" }));
    let sent = send("mind the gap");
    let steered = codex.heard("steered");
    assert_eq!(steered["expectedTurnId"], "t");
    let text = steered["input"][0]["text"].clone();
    assert!(text.to_string().contains("mind the gap"), "{steered}");
    assert_eq!(state_of(&d, &sent), (json!("offered"), json!("app-server")));
    codex.order(&json!({ "hook": event(THREAD, "UserPromptSubmit", &json!({ "prompt": text })) }));
    eventually(SOON, || state_of(&d, &sent).0 == "injected");

    // The turn takes no more.
    codex.order(&json!({ "steers": null }));
    send("and the step");
    let queued = codex.heard("queued");
    assert!(queued["input"][0]["text"].to_string().contains("and the step"), "{queued}");
}

#[test]
fn prompts_of_codex_are_watched_or_left_alone_as_configured() {
    for (word, rows) in [("watch", 1), ("off", 0)] {
        let d = with_config(&format!("[approvals]\nattended = \"{word}\"\n"));
        let mut codex = AppServer::start(&d);
        codex.begin_followed(THREAD);
        codex.ask(0, THREAD);
        eventually(SOON, || status_of(&d, THREAD) == "waiting");
        if rows == 1 {
            eventually(SOON, || !open(&d).is_empty());
        }
        let requests = open(&d);
        assert_eq!(requests.len(), rows, "{word}");
        assert!(requests.iter().all(|request| request["options"] == json!([])));
    }
}

#[test]
fn a_command_of_codex_does_not_answer_its_prompts() {
    let d = Daemon::start();
    let (mut codex, request) = AppServer::asking(&d);
    let (url, path) = (d.url(), answer_path(&request));
    let token = d.home.token().expect("a token");
    let told = codex.order(&json!({ "run": format!(
        "curl -s -X POST -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' \
         -d '{{\"option_id\":\"accept\"}}' '{url}{path}'"
    ) }));
    assert!(told.contains("forbidden"), "{told}");
    assert_eq!(open(&d).len(), 1);
}

/// The daemon has looked at the process that the hooks of a session came from, and connects to
/// nothing: the real one is connected to, and the other is told nothing.
#[test]
fn a_socket_counts_if_the_process_of_the_hooks_listens_and_nobody_else_could() {
    let d = Daemon::start();
    let codex = codex_home(&d.home);
    private_folder(&codex);
    let socket = control_socket(&codex);
    let place = d.home.user().join("elsewhere");
    private_folder(&place);
    let there = place.join("socket");
    let mut server = AppServer::at(&d.home, &codex, &there.display().to_string());
    server.heard("listening");
    private_folder(socket.parent().expect("its folder"));

    // The environment of the process names a socket on which another process listens.
    let mut other = AppServer::at(&d.home, &codex, &socket.display().to_string());
    other.heard("listening");
    server.begin(THREAD);
    nothing_comes(&d, &mut server, &mut other);
    fs::remove_file(&socket).expect("it is there");

    // The control socket is a link, as with Codex. Others could write one of the folders.
    symlink(&there, &socket).expect("a link");
    let modes = |folder: &Path, mode| {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    for folder in [socket.parent().expect("its folder"), &place] {
        modes(folder, 0o777);
        nothing_comes(&d, &mut server, &mut other);
        assert!(told_by_doctor(&d).contains(&format!("{} can be written", folder.display())));
        modes(folder, 0o700);
    }
    modes(&there, 0o666);
    nothing_comes(&d, &mut server, &mut other);
    assert!(told_by_doctor(&d).contains(&format!("{} can be written", there.display())));
    modes(&there, 0o600);
    assert_eq!(told_by_doctor(&d), "");
    server.order(&json!({ "hook": prompt(THREAD) }));
    assert_eq!(server.heard("resumed"), THREAD);
    server.ask(0, THREAD);
    asked(&d, THREAD);

    // A process with a session of its own does not speak for those of others.
    let folder = d.home.user().join("second");
    private_folder(&folder);
    let mut second =
        AppServer::at(&d.home, &folder, &control_socket(&folder).display().to_string());
    second.heard("listening");
    second.order(&json!({ "status": [THREAD, { "type": "idle" }] }));
    second.begin_followed(OTHER);
    second.ask(7, THREAD);
    second.ask(8, OTHER);
    asked(&d, OTHER);
    let rows = open(&d);
    let key = format!("agent:codex:{THREAD}");
    assert_eq!(rows.iter().filter(|row| row["session_key"] == *key).count(), 1, "{rows:?}");
    assert_eq!(status_of(&d, THREAD), "waiting");
}

/// What `svc doctor` says of sockets that are not used.
fn told_by_doctor(d: &Daemon) -> String {
    let said = svc(&d.home, &["doctor"]).stdout;
    said.lines().filter(|line| line.contains("its socket is not used")).collect()
}

/// Neither process is connected to after a hook of the first. That the daemon has tried is seen by
/// its next connection to a third, which it does take.
#[track_caller]
fn nothing_comes(d: &Daemon, server: &mut AppServer, other: &mut AppServer) {
    server.order(&json!({ "hook": prompt(THREAD) }));
    let folder = d.home.user().join("witness");
    private_folder(&folder);
    let mut witness =
        AppServer::at(&d.home, &folder, &control_socket(&folder).display().to_string());
    witness.heard("listening");
    let thread = format!("witness-{}", witness.running.pid());
    witness.begin_followed(&thread);
    for process in [server, other] {
        process.order(&json!({ "resolve": "nothing" }));
        let told = process.told.borrow();
        assert!(!told.iter().any(|line| line.get("connected").is_some()), "{told:?}");
    }
}
