//! What is shown of sessions that a person started is what the person would see there.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, eventually, svc, until};
use crate::expect::{detail, page};
use crate::identity::{FakeClient, event, id_of, peer_of, prompt, start};
use crate::registry::{RegistryFile, started};

const SOON: Duration = Duration::from_secs(30);

fn event_in(d: &Daemon, folder: &str, session: &str, name: &str, more: &Value) -> Value {
    let mut payload = event(session, name, more);
    payload["cwd"] = json!(d.home.user().join(folder));
    payload
}

fn began(d: &Daemon, folder: &str, session: &str) -> Value {
    event_in(d, folder, session, "SessionStart", &json!({ "source": "startup" }))
}

fn status(d: &Daemon, session: &str) -> String {
    peer_of(d, session)["status"].as_str().expect("a status").to_owned()
}

/// As Codex runs all its terminals in one app-server.
#[test]
fn each_session_of_a_process_has_the_folder_of_its_own_hooks() {
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "codex", "api", "");
    fs::create_dir_all(d.home.user().join("web/.git")).expect("a folder");
    client.hook(&began(&d, "api", "s-api"));
    client.hook(&began(&d, "web", "s-web"));
    for (session, folder) in [("s-api", "api"), ("s-web", "web")] {
        let (peer, root) = (peer_of(&d, session), json!(d.home.user().join(folder)));
        assert_eq!(peer["display_name"], format!("claude-code@{folder}"), "{peer}");
        assert_eq!(peer["path"], root, "{peer}");
        // What a call in it writes is of its project, and so is what it reads.
        let attempt = json!({
            "domain": "debugging", "strategy": "read-the-error", "goal": format!("goal of {folder}"),
            "hypothesis": "h", "action": "a", "prediction": "p",
        });
        let id = client.begin("start_ghap", &attempt, &json!({ "threadId": session }));
        let answer = client.answer(id);
        assert!(answer["result"]["isError"].is_null(), "{answer}");
        let id = client.begin("get_session", &json!({}), &json!({ "threadId": session }));
        let known = client.answer(id)["result"]["structuredContent"].clone();
        assert_eq!((&known["session_id"], &known["project"]), (&json!(session), &root), "{known}");
    }
    let records = page(&d.get("/v1/ghap"), "ghap");
    let mut projects: Vec<_> =
        records.iter().map(|record| (record["goal"].clone(), record["project"].clone())).collect();
    projects.sort_by_key(|(goal, _)| goal.to_string());
    let root = |folder: &str| json!(d.home.user().join(folder));
    assert_eq!(
        projects,
        [(json!("goal of api"), root("api")), (json!("goal of web"), root("web"))],
        "each in its own project"
    );
    // Wherever its model goes afterwards, and whatever a model says: a session stays where it
    // began.
    client.hook(&event_in(&d, "web", "s-api", "UserPromptSubmit", &json!({ "prompt": "go on" })));
    client.hook(&event_in(&d, "web", "s-api", "SessionStart", &json!({ "source": "compact" })));
    let told = json!({ "client": "claude-code", "payload": event_in(&d, "web", "s-new", "SessionStart", &json!({})) });
    let id = client.begin("hook_event", &told, &json!({}));
    client.answer(id);
    for session in ["s-api", "s-new"] {
        let known = d.get(&format!("/v1/sessions/{session}")).ok(200);
        assert_eq!(known["project"], root("api"), "{known}");
    }
    // The next terminal opens, and its model is not told that it is one of those.
    let client_info = json!({ "name": "codex-mcp-client", "version": "0.169.0" });
    let hello =
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client_info });
    let id = client.send("initialize", &hello);
    let answer = client.answer(id);
    let told = answer["result"]["instructions"].as_str().expect("instructions").to_owned();
    assert!(!told.contains("claude-code@"), "{told}");
    // A thread of which no hook has told is none of the others.
    let id = client.begin("get_session", &json!({}), &json!({ "threadId": "s-untold" }));
    let known = client.answer(id)["result"]["structuredContent"].clone();
    assert_eq!(known["session_id"], "s-untold", "{known}");
}

#[test]
fn the_end_of_a_task_is_told_by_the_session_that_was_asked() {
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "codex", "api", "");
    fs::create_dir_all(d.home.user().join("web/.git")).expect("a folder");
    client.hook(&began(&d, "api", "s-api"));
    client.hook(&began(&d, "web", "s-web"));
    svc(&d.home, &["inbox"]).ok();
    let api = peer_of(&d, "s-api");
    let asked = id_of(&api);
    let body = json!({
        "instance": asked, "prompt": "go", "opts": { "async": true, "from_peer_id": "operator" },
    });
    let task = d.post("/v1/send_message", &body).ok(202)["task_id"].clone();
    let path = format!("/v1/tasks/{}", task.as_str().expect("an id"));
    let name = api["display_name"].as_str().expect("a name");
    let waits = format!("waits in the inbox of {name}, which is ");
    until(SOON, || {
        let reason = d.get(&path).ok(200)["reason"].clone();
        reason.as_str().filter(|reason| reason.starts_with(&waits)).map(str::to_owned)
    });
    d.post(&format!("{path}/cancel"), &json!({})).ok(202);
    let told = until(SOON, || {
        page(&d.get("/v1/peers/operator/messages?peek=true"), "messages").first().cloned()
    });
    assert_eq!(told["from_peer"], json!(asked), "{told}");
}

/// A message wakes none of these clients.
#[test]
fn work_for_an_idle_terminal_waits_for_somebody_to_type() {
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "codex", "web", "");
    client.hook_as("codex", &event("s", "SessionStart", &json!({ "source": "startup" })));
    client.hook_as("codex", &prompt("s"));
    client.hook_as("codex", &event("s", "Stop", &json!({ "last_assistant_message": "so" })));
    assert_eq!(status(&d, "s"), "idle");
    let peer = peer_of(&d, "s");
    let body = json!({ "instance": id_of(&peer), "prompt": "go", "opts": { "async": true } });
    let task = d.post("/v1/send_message", &body).ok(202)["task_id"].clone();
    let path = format!("/v1/tasks/{}", task.as_str().expect("an id"));
    let reason = until(SOON, || d.get(&path).ok(200)["reason"].as_str().map(str::to_owned));
    assert!(reason.ends_with("it reads the prompt when somebody types there"), "{reason}");
}

#[test]
fn who_shows_a_prompt_is_waiting_and_says_for_what() {
    let d = Daemon::start();
    let mut client = FakeClient::begun(&d.home, "claude", "web", "s");
    client.hook(&prompt("s"));
    assert_eq!(status(&d, "s"), "busy");
    let bash = json!({ "tool_name": "Bash", "tool_input": { "command": "touch made", "description": "x" } });
    let with_id = |id: &str| {
        let mut tool = bash.clone();
        tool["tool_use_id"] = json!(id);
        tool
    };
    client.hook(&event("s", "PreToolUse", &with_id("toolu_1")));
    client.hook(&event("s", "PermissionRequest", &bash));
    let peer = peer_of(&d, "s");
    assert_eq!(peer["status"], "waiting", "{peer}");
    let asked = &peer["waiting_for"];
    assert_eq!(
        (&asked["kind"], &asked["title"], &asked["tool"]),
        (&json!("permission"), &json!("touch made"), &json!("Bash")),
        "{peer}"
    );
    assert!(asked["since"].is_string() && peer["since"].is_string(), "{peer}");
    let shown = svc(&d.home, &["peer", "list"]);
    assert!(shown.ok().contains("permission, at its terminal: touch made"), "{shown:?}");
    let told = svc(&d.home, &["inbox"]).ok().to_owned();
    let name = peer["display_name"].as_str().expect("a name");
    let words = format!("{name} waits for permission, at its terminal: touch made");
    assert!(told.contains(&words) && !told.contains("your inbox is empty"), "{told}");
    let told = svc(&d.home, &["inbox", "--json"]).json();
    assert_eq!(told["waiting"][0]["waiting_for"], *asked, "{told}");
    let waiting = d.get("/v1/peers?status=waiting").ok(200);
    assert_eq!(waiting["peers"][0]["peer_id"], peer["peer_id"]);
    // A message is read with the tool's result.
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer));
    assert_eq!(d.post(&inbox, &json!({ "text": "hello" })).ok(200)["delivery"], "now");
    // Whoever is not of its project sees that it waits, and not for what.
    let stranger = d.session("stranger").get(&format!("/v1/peers/{}", id_of(&peer))).ok(200);
    assert_eq!((&stranger["status"], &stranger["waiting_for"]), (&json!("waiting"), &Value::Null));

    client.hook(&event("s", "PostToolUse", &with_id("toolu_1")));
    let peer = peer_of(&d, "s");
    assert_eq!((&peer["status"], &peer["waiting_for"]), (&json!("busy"), &Value::Null), "{peer}");
    assert!(svc(&d.home, &["inbox"]).ok().starts_with("your inbox is empty"));
    // A context that is cut down in the middle of a turn does not end it.
    client.hook(&event("s", "SessionStart", &json!({ "source": "compact" })));
    assert_eq!(status(&d, "s"), "busy");
    client.hook(&event("s", "Interrupt", &json!({})));
    assert_eq!(status(&d, "s"), "idle");
    // Nobody but a client's own hooks and records says that it waits.
    let beat = format!("/v1/peers/{}/heartbeat", id_of(&peer));
    assert_eq!(d.post(&beat, &json!({ "status": "waiting" })).status(), 422);
}

/// Claude Code calls no hook when its person says No, or presses Esc.
#[test]
fn what_claude_has_on_record_corrects_what_its_hooks_told() {
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "claude", "web", "");
    let Some(mut registry) = RegistryFile::of_client(&d.home, &client, "s") else { return };
    let mut record = |state: &str, asks: Option<&str>| registry.write(state, asks);
    client.hook(&start("s"));
    client.hook(&prompt("s"));
    record("waiting", Some("permission prompt"));
    eventually(SOON, || status(&d, "s") == "waiting");
    assert_eq!(peer_of(&d, "s")["waiting_for"]["kind"], "permission");
    record("busy", None);
    eventually(SOON, || status(&d, "s") == "busy");
    record("waiting", Some("input needed"));
    eventually(SOON, || peer_of(&d, "s")["waiting_for"]["kind"] == "question");
    record("idle", None);
    eventually(SOON, || status(&d, "s") == "idle");

    // A question with which such a turn began is answered by nobody, and who asked is told so.
    client.hook(&prompt("s"));
    let ask = json!({ "text": "is it green?", "type": "query" });
    let sent = d.post(&format!("/v1/peers/{}/messages", id_of(&peer_of(&d, "s"))), &ask).ok(200);
    client.hook(&event("s", "Stop", &json!({ "last_assistant_message": "so" })));
    let tool = json!({ "tool_name": "Bash", "tool_input": { "command": "make" } });
    client.hook(&event("s", "PreToolUse", &tool));
    record("idle", None);
    let came_to = |sent: &Value| {
        let states = detail(&d, sent)["states"].as_array()?.clone();
        states.last()?["reason"].as_str().map(str::to_owned)
    };
    assert_eq!(until(SOON, || came_to(&sent)), "the turn was interrupted");

    // So it is when the turn is over before another hook shows that the session has the question.
    client.hook(&prompt("s"));
    let sent = d.post(&format!("/v1/peers/{}/messages", id_of(&peer_of(&d, "s"))), &ask).ok(200);
    client.hook(&event("s", "Stop", &json!({ "last_assistant_message": "so" })));
    record("idle", None);
    assert_eq!(until(SOON, || came_to(&sent)), "the turn was interrupted");
}

/// The best that its client gives, and what is left where that tells nothing.
#[test]
fn a_status_says_what_it_rests_on() {
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "claude", "web", "");
    let Some(mut registry) = RegistryFile::of_client(&d.home, &client, "s") else { return };
    let evidence = || peer_of(&d, "s")["evidence"].as_str().expect("a word").to_owned();
    client.hook(&start("s"));
    client.hook(&prompt("s"));
    assert_eq!((status(&d, "s"), evidence()), ("busy".to_owned(), "hook".to_owned()));
    registry.write("busy", None);
    eventually(SOON, || evidence() == "registry");
    client.hook(&event("s", "Stop", &json!({ "last_assistant_message": "so" })));
    let peer = peer_of(&d, "s");
    assert_eq!((&peer["status"], &peer["evidence"]), (&json!("idle"), &json!("registry")));
    registry.write("idle", None);
    let sessions = client.ok("sessions_list", &json!({}));
    assert_eq!(sessions["sessions"][0]["evidence"], "registry", "{sessions}");
    let listed = svc(&d.home, &["agent", "list", "--json"]).json();
    assert_eq!(listed["agents"][0]["evidence"], "registry", "{listed}");
    let told = page(&d.get("/v1/events?stream=team&kind=peer.status&limit=500"), "events");
    let told: Vec<_> = told.iter().map(|event| &event["data"]["evidence"]).collect();
    assert!(told.contains(&&json!("hook")) && told.contains(&&json!("registry")), "{told:?}");

    // A later version writes something else.
    registry.write("thinking", None);
    eventually(SOON, || evidence() == "hook");
    let doctor = svc(&d.home, &["doctor"]);
    let words = "warn  sessions: the record of claude-code@p: it has another format";
    assert!(doctor.stdout.contains(words), "{doctor:?}");
    registry.write("idle", None);
    eventually(SOON, || evidence() == "registry");
    assert!(!svc(&d.home, &["doctor"]).stdout.contains("the record of"));
    fs::remove_file(registry.path()).expect("it is there");
    eventually(SOON, || evidence() == "hook");
    // A registry that does not follow is none.
    registry.write("idle", None);
    eventually(SOON, || evidence() == "registry");
    client.hook(&prompt("s"));
    eventually(SOON, || evidence() == "hook");
    assert_eq!(status(&d, "s"), "busy");
    client.hook(&event("s", "SessionEnd", &json!({ "reason": "exit" })));
    assert_eq!(status(&d, "s"), "offline");
}

/// Whoever can write a file says nothing about a session that is not its own.
#[test]
fn a_forged_record_changes_nothing() {
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "claude", "web", "");
    let Some(mut forged) = RegistryFile::of_client(&d.home, &client, "s") else { return };
    client.hook(&start("s"));
    client.hook(&prompt("s"));
    let mut other = FakeClient::begun(&d.home, "other", "api", "s-other");
    other.hook(&prompt("s-other"));
    let mut good = RegistryFile::of_client(&d.home, &other, "s-other").expect("as above");
    let (path, entry) = (forged.path(), forged.entry.clone());
    // When another record has been read that is later, this one has been, too.
    let mut is_read = |state: &str| {
        good.write(state, (state == "waiting").then_some("permission prompt"));
        eventually(SOON, || status(&d, "s-other") == state);
        let peer = peer_of(&d, "s");
        assert_eq!((&peer["status"], &peer["evidence"]), (&json!("busy"), &json!("hook")));
    };
    let pid = other.pid();
    for (member, value, state) in [
        ("pid", json!(pid), "waiting"),
        ("procStart", json!("1"), "busy"),
        ("sessionId", json!("s-other"), "waiting"),
    ] {
        forged.entry[member] = value;
        forged.write_to(&path, "idle", None);
        is_read(state);
        forged.entry.clone_from(&entry);
    }
    // A link to a place where others can write.
    fs::remove_file(&path).expect("it is there");
    let elsewhere = d.home.user().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder");
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o777)).expect("its mode");
    forged.write_to(&elsewhere.join("entry"), "idle", None);
    std::os::unix::fs::symlink(elsewhere.join("entry"), &path).expect("a link");
    is_read("busy");
    // A file that others can write.
    fs::remove_file(&path).expect("it is there");
    forged.write("idle", None);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).expect("its mode");
    is_read("waiting");
    // In a folder that others can write no file counts.
    let others_write = fs::Permissions::from_mode(0o777);
    fs::set_permissions(&forged.folder, others_write).expect("its mode");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    eventually(SOON, || peer_of(&d, "s-other")["evidence"] == "hook");
    assert_eq!(status(&d, "s"), "busy");
}

/// The hook of the refusal does not say until when, and the transcript does.
#[test]
fn a_session_at_its_usage_limit_waits_for_the_end_of_that() {
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "claude", "web", "");
    let Some(mut registry) = RegistryFile::of_client(&d.home, &client, "s") else { return };
    client.hook(&start("s"));
    client.hook(&prompt("s"));
    let refused = event(
        "s",
        "StopFailure",
        &json!({ "error": "rate_limit", "last_assistant_message": "You've hit your limit" }),
    );
    client.hook(&refused);
    let peer = peer_of(&d, "s");
    let waits = &peer["waiting_for"];
    assert_eq!((&peer["status"], &waits["kind"]), (&json!("waiting"), &json!("limit")), "{peer}");
    assert_eq!((&waits["title"], &waits["until"]), (&json!("You've hit your limit"), &Value::Null));
    let told = svc(&d.home, &["inbox"]);
    assert!(told.ok().contains("waits for the end of its usage limit ("), "{told:?}");
    let sent = d.post(&format!("/v1/peers/{}/messages", id_of(&peer)), &json!({ "text": "x" }));
    assert_eq!(sent.ok(200)["delivery"], "next_turn");

    // Its transcript has the end a moment later.
    let project = d.home.user().join(".claude/projects/-web");
    fs::create_dir_all(&project).expect("a folder");
    fs::set_permissions(&project, fs::Permissions::from_mode(0o700)).expect("its mode");
    let ends = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs() + 3600;
    let info = json!({ "status": "rejected", "resetsAt": ends, "rateLimitType": "five_hour" });
    let line = json!({
        "type": "assistant", "error": "rate_limit", "isApiErrorMessage": true,
        "apiError": "usage_limit_reached", "apiErrorParams": { "rate_limit_info": info },
    });
    let new = project.join("new");
    fs::write(&new, line.to_string()).expect("a file");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("its mode");
    fs::rename(&new, project.join("s.jsonl")).expect("it moves");
    let until =
        until(SOON, || peer_of(&d, "s")["waiting_for"]["until"].as_str().map(str::to_owned));
    // The registry says that its turn is over.
    registry.write("idle", None);
    let shown = svc(&d.home, &["peer", "list"]);
    let words = format!("the end of its usage limit at {} UTC", until[..16].replace('T', " "));
    assert!(shown.ok().contains(&words), "{shown:?}");
    let told = page(&d.get("/v1/events?stream=team&kind=limit&limit=500"), "events");
    assert_eq!(told.len(), 2, "that there is one, and its end: {told:?}");
    assert_eq!(told[1]["data"]["until"], json!(until));
    // Somebody types there, and the vendor takes it.
    client.hook(&prompt("s"));
    assert_eq!(status(&d, "s"), "busy");
    let tool = json!({ "tool_name": "Bash", "tool_input": {}, "tool_use_id": "toolu_1" });
    let given = client.hook(&event("s", "PostToolUse", &tool));
    assert!(given.contains('x'), "{given}");

    // Whoever asks again while the limit lasts hears of its end at once.
    client.hook(&prompt("s"));
    client.hook(&refused);
    assert_eq!(peer_of(&d, "s")["waiting_for"]["until"], json!(until));
}

/// Everybody on the machine can tell it what to do.
#[test]
fn doctor_warns_of_an_opencode_that_listens_without_a_password() {
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "opencode", "web", "");
    let created = json!({ "type": "session.created", "properties": { "sessionID": "ses_1" } });
    client.hook_as("opencode", &json!({ "hook": "event", "event": created }));
    let words = "takes commands at 127.0.0.1:";
    let pid = client.pid();
    if fs::read_to_string(format!("/proc/{pid}/environ")).is_err() {
        return;
    }
    let doctor = svc(&d.home, &["doctor"]);
    assert!(!doctor.stdout.contains(words), "{doctor:?}");
    // The client's process goes on as a program that listens.
    let port = d.home.user().join("port");
    client.become_program(&format!(
        "python3 -c 'import os, socket, time; s = socket.create_server((\"127.0.0.1\", 0)); \
         open(\"{0}.new\", \"w\").write(str(s.getsockname()[1])); os.rename(\"{0}.new\", \"{0}\"); time.sleep(600)'",
        port.display()
    ));
    let port = until(SOON, || fs::read_to_string(&port).ok());
    let doctor = svc(&d.home, &["doctor"]);
    assert!(doctor.stdout.contains(&format!("{words}{port} without a password")), "{doctor:?}");
}

/// Its plugin tells of it while the turn goes on.
#[test]
fn opencode_waits_for_the_end_of_a_limit_within_its_turn() {
    const SESSION: &str = "ses_1";
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "opencode", "web", "");
    let mut tell = |kind: &str, properties: Value| {
        let mut properties = properties;
        properties["sessionID"] = json!(SESSION);
        let event = json!({ "type": kind, "properties": properties });
        client.hook_as("opencode", &json!({ "hook": "event", "event": event }));
    };
    let retry = json!({
        "type": "retry", "attempt": 1, "message": "Rate limit reached", "next": 4_102_444_800_000_i64,
    });
    tell("session.created", json!({}));
    tell("session.status", json!({ "status": retry }));
    let peer = peer_of(&d, SESSION);
    let waits = &peer["waiting_for"];
    assert_eq!((&peer["status"], &peer["evidence"]), (&json!("waiting"), &json!("plugin")));
    assert_eq!(waits["until"], "2100-01-01T00:00:00.000Z", "{peer}");
    tell("session.status", json!({ "status": { "type": "busy" } }));
    assert_eq!(status(&d, SESSION), "busy");
}

/// Gemini CLI calls none either. An entry of its conversation says that its person ended the turn.
#[test]
fn a_turn_of_gemini_that_its_person_ended_is_over() {
    const SESSION: &str = "5e984bb8-0000";
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "gemini", "web", "");
    if started(client.pid()).is_none() {
        return;
    }
    let tool = json!({ "tool_name": "run_shell_command", "tool_input": { "command": "make" } });
    client.hook_as("gemini", &event(SESSION, "SessionStart", &json!({ "source": "startup" })));
    client.hook_as("gemini", &event(SESSION, "BeforeAgent", &json!({ "prompt": "build it" })));
    client.hook_as("gemini", &event(SESSION, "BeforeTool", &tool));
    assert_eq!(status(&d, SESSION), "busy");
    let chats = d.home.user().join(".gemini/tmp/web/chats");
    fs::create_dir_all(&chats).expect("a folder");
    let at = d.get("/v1/peers").ok(200)["as_of"].clone();
    let ended = json!({ "timestamp": at, "type": "info", "content": "Request cancelled." });
    let new = chats.join("new");
    fs::write(&new, format!("{}\n{ended}\n", json!({ "sessionId": SESSION }))).expect("a file");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).expect("its mode");
    fs::rename(&new, chats.join("session-2026-11-26T18-16-5e984bb8.jsonl")).expect("it moves");
    eventually(SOON, || status(&d, SESSION) == "idle");
}

/// Codex calls none when a turn fails. An entry in the record of the thread says so, and why.
#[test]
fn a_turn_of_codex_that_failed_is_over_and_who_asked_is_told() {
    const SESSION: &str = "01a21a18-80eb-7a33-bee1-3121f6c570d0";
    let d = Daemon::start();
    let mut client = FakeClient::start(&d.home, "codex", "web", "");
    if started(client.pid()).is_none() {
        return;
    }
    client.hook_as("codex", &event(SESSION, "SessionStart", &json!({ "source": "startup" })));
    client.hook_as("codex", &event(SESSION, "UserPromptSubmit", &json!({ "prompt": "build it" })));
    let ask = json!({ "text": "is it green?", "type": "query" });
    let inbox = format!("/v1/peers/{}/messages", id_of(&peer_of(&d, SESSION)));
    let sent = d.post(&inbox, &ask).ok(200);
    // The turn goes on with the question, and no hook follows.
    client.hook_as("codex", &event(SESSION, "Stop", &json!({ "last_assistant_message": "so" })));
    assert_eq!(status(&d, SESSION), "busy");
    let day = d.home.user().join(".codex/sessions/2026/11/26");
    fs::create_dir_all(&day).expect("a folder");
    let at = d.get("/v1/peers").ok(200)["as_of"].clone();
    let entry =
        |payload: Value| json!({ "timestamp": at, "type": "event_msg", "payload": payload });
    let error = json!({ "message": json!({ "error": { "message": "no credit" } }).to_string() });
    let lines = [
        entry(json!({ "type": "task_started" })),
        entry(json!({ "type": "task_complete", "last_agent_message": "so", "error": error })),
    ];
    let new = day.join("new");
    fs::write(&new, lines.map(|line| line.to_string()).join("\n")).expect("a file");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).expect("its mode");
    let name = format!("rollout-2026-11-26T23-02-23-{SESSION}.jsonl");
    fs::rename(&new, day.join(name)).expect("it moves");
    eventually(SOON, || status(&d, SESSION) == "idle");
    let question = detail(&d, &sent);
    let states = question["states"].as_array().expect("states");
    assert_eq!(question["state"], "injected", "{question}");
    assert_eq!(states.last().expect("one")["reason"], "no credit", "{question}");
    let told = page(&d.get("/v1/peers/operator/messages?peek=true"), "messages");
    assert_eq!(told[0]["correlation_id"], sent["id"], "{told:?}");
}

/// A hook that missed its deadline leaves its event in the spool, and the daemon runs.
#[test]
fn a_spooled_event_is_taken_in_while_the_daemon_runs() {
    let d = Daemon::start();
    let payload = event("s-late", "SessionStart", &json!({ "source": "startup" }));
    let at = d.get("/v1/peers").ok(200)["as_of"].clone();
    let line = json!({ "client": "claude-code", "id": "late-1", "at": at, "payload": payload });
    let spool = d.home.path("hooks.spool");
    let mut options = fs::OpenOptions::new();
    let mut file = options.create(true).append(true).open(&spool).expect("a file");
    file.set_permissions(fs::Permissions::from_mode(0o600)).expect("its mode");
    writeln!(file, "{line}").expect("it is written");
    drop(file);
    let known = until(SOON, || {
        let peers = d.get("/v1/peers").ok(200)["peers"].as_array().expect("a list").clone();
        peers.into_iter().find(|peer| peer["session_id"] == "s-late")
    });
    assert_eq!(known["status"], "online");
}

#[test]
fn short_name_goes_to_the_living_session() {
    let d = Daemon::start();
    let name = |session: &str| peer_of(&d, session)["display_name"].clone();
    let mut client = FakeClient::start(&d.home, "claude", "web", "");
    client.hook(&began(&d, "web", "s-1"));
    let id = peer_of(&d, "s-1")["peer_id"].clone();
    // Somebody wrote to it.
    d.post(&format!("/v1/peers/{}/messages", id.as_str().expect("one")), &json!({ "text": "x" }))
        .ok(200);
    client.hook(&event("s-1", "SessionEnd", &json!({ "reason": "exit" })));
    let mut second = FakeClient::start(&d.home, "again", "web", "");
    second.hook(&began(&d, "web", "s-2"));
    assert_eq!(name("s-2"), "claude-code@web");
    client.hook(&began(&d, "web", "s-3"));
    assert_eq!(name("s-3"), "claude-code@web-2");
    // Who comes back has what is free, and keeps it as long as it lives.
    client.hook(&event("s-1", "UserPromptSubmit", &json!({ "prompt": "go on" })));
    assert_eq!(name("s-1"), "claude-code@web-3");
    second.hook(&event("s-2", "SessionEnd", &json!({ "reason": "exit" })));
    client.hook(&began(&d, "web", "s-3"));
    assert_eq!(name("s-3"), "claude-code@web-2");
    let peers = d.get("/v1/peers").ok(200).to_string();
    assert!(!peers.contains('~'), "{peers}");
}
