//! `svc hook` as clients run it: recorded payloads, accepted output, and failures of everything
//! around it.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agents::with_config;
use crate::daemon::{
    Daemon, Home, PATIENT, Ran, Running, eventually, hook_payload, svc, svc_with_input, until,
};
use crate::expect::{detail, each, peer_of, state};
use crate::identity::process_token;
use crate::wire::{Caller, tool_call};

const SOON: Duration = Duration::from_secs(20);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hooks")
}

#[track_caller]
fn hook_with(home: &Home, args: &[&str], input: &[u8], deadline_ms: u32) -> Ran {
    let mut command = home.command(args);
    command.env("SVC_HOOK_DEADLINE_MS", deadline_ms.to_string());
    Running::fed(command, input).wait(SOON)
}

fn claude(session: &str, event: &str, more: &Value) -> Value {
    hook_payload(session, event, "/nowhere/p", more)
}

fn using(id: &str) -> Value {
    json!({ "tool_name": "Bash", "tool_use_id": id, "tool_input": { "command": "ls" } })
}

fn calls(d: &Daemon, session: &str) -> i64 {
    let found = d.get(&format!("/v1/sessions/{session}"));
    if found.status() == 404 {
        0
    } else {
        found.ok(200)["tool_calls"].as_i64().expect("it is there")
    }
}

/// Replaces texts that differ from run to run.
fn masked(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            members.iter().map(|(key, value)| (key.clone(), masked(value))).collect()
        }
        Value::String(text) if text.contains("MESSAGE") => json!("<the message>"),
        other => other.clone(),
    }
}

/// Every recorded payload of a client, while a message waits: the output is recorded beside it.
/// `SVC_BLESS=1` records the present output; then read the difference.
#[test]
fn every_payload_of_every_client_has_its_answer() {
    let mut seen = 0;
    for (client, version) in [
        ("claude", "2.1.197"),
        ("claude", "2.1.329"),
        ("codex", "0.169.0"),
        ("gemini", "0.61.0"),
        ("opencode", "1.18.33"),
    ] {
        let folder = fixtures().join(client).join(version);
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .expect("payloads")
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| {
                name != "answers.json" && Path::new(name).extension().is_some_and(|it| it == "json")
            })
            .collect();
        names.sort();
        let read = |name: &str| -> Value {
            serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
        };
        let d = Daemon::start();
        let first = ["SessionStart-startup.json", "event-session.created.json"];
        let first = first.into_iter().find(|name| names.iter().any(|it| it == name)).unwrap();
        assert_eq!(d.home.hook(client, &read(first)["input"]).stdout, "", "nothing waits yet");
        let peers = d.get("/v1/peers").ok(200);
        let peer = peers["peers"][0]["peer_id"].as_str().unwrap().to_owned();
        let inbox = format!("/v1/peers/{peer}/messages");
        let mut answers = serde_json::Map::new();
        for name in &names {
            d.post(&inbox, &json!({ "text": "MESSAGE" })).ok(200);
            let ran = d.home.hook(client, &read(name)["input"]);
            assert_eq!(ran.stderr, "", "{name}");
            let printed: Value = match ran.stdout.as_str() {
                "" => Value::Null,
                text => serde_json::from_str(text).unwrap_or_else(|_| panic!("{name}: {text}")),
            };
            answers.insert(name.trim_end_matches(".json").to_owned(), masked(&printed));
            let waiting = d.get(&format!("{inbox}?peek=true")).ok(200);
            let ids: Vec<&Value> =
                waiting["messages"].as_array().unwrap().iter().map(|it| &it["id"]).collect();
            d.post(&format!("{inbox}/ack"), &json!({ "ids": ids })).ok(200);
            seen += 1;
        }
        let (answers, path) = (Value::from(answers), folder.join("answers.json"));
        if std::env::var_os("SVC_BLESS").is_some() {
            let text = serde_json::to_string_pretty(&answers).unwrap();
            std::fs::write(&path, format!("{text}\n")).unwrap();
        }
        assert_eq!(answers, read("answers.json"), "{client} {version}");
        // Plugins of opencode get events that belong to no session; svc's plugin forwards none of
        // them.
        let log = std::fs::read_to_string(d.home.path("hooks.log")).unwrap_or_default();
        let fine = |line: &str| client == "opencode" && line.contains("session_id: is missing");
        assert!(log.lines().all(fine), "{client}: {log}");
    }
    assert!(seen > 100, "only {seen} payloads");
}

#[test]
fn invalid_input_never_fails_the_hook() {
    let d = Daemon::start();
    let huge = claude(
        "s",
        "PostToolUse",
        &json!({
            "tool_name": "Bash", "tool_response": { "stdout": "x".repeat(10 << 20) },
        }),
    );
    let mut not_text =
        claude("s", "UserPromptSubmit", &json!({ "prompt": "PROMPT" })).to_string().into_bytes();
    let place = not_text.windows(6).position(|it| it == b"PROMPT").unwrap();
    not_text[place] = 0xff;
    let inputs: [(&str, Vec<u8>); 9] = [
        ("empty", Vec::new()),
        ("blank", b" \n".to_vec()),
        ("garbage", b"\x00\x01{{{".to_vec()),
        ("a list", b"[1,2]".to_vec()),
        ("half", br#"{"session_id":"s","hook_ev"#.to_vec()),
        ("no session", br#"{"hook_event_name":"Stop"}"#.to_vec()),
        ("wrong types", br#"{"hook_event_name":7,"session_id":[]}"#.to_vec()),
        ("huge", huge.to_string().into_bytes()),
        ("not UTF-8", not_text),
    ];
    for (what, input) in inputs {
        let ran = hook_with(&d.home, &["hook", "claude"], &input, 60_000);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{what}: {ran:?}");
    }
    // Both events were understood.
    assert_eq!(peer_of(&d, "s").unwrap()["status"], "busy");
    for args in [
        &["hook"][..],
        &["hook", "nobody"],
        &["hook", "claude", "a", "b", "c"],
        &["hook", "--no-such"],
    ] {
        let ran = hook_with(&d.home, args, b"{}", 60_000);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{args:?}: {ran:?}");
        assert!(!ran.stderr.is_empty(), "{args:?} says what is wrong");
    }
    let mut closed = d.home.command(&["hook", "claude"]);
    closed.stdin(Stdio::null());
    assert_eq!(Running::spawn(closed).wait(SOON).code, Some(0));
    let log = String::from_utf8(d.home.read("hooks.log")).unwrap();
    assert!(log.contains("is empty") && log.contains("no JSON object"), "{log}");
    assert!(!log.contains("PROMPT") && !log.contains("xxxx"), "no payload in it: {log}");
    assert!(svc(&d.home, &["hook", "--help"]).ok().contains("asyncRewake"));
}

#[test]
fn endless_input_does_not_block_the_client() {
    let d = Daemon::start();
    // A complete payload needs no end of input.
    let mut command = d.home.command(&["hook", "claude"]);
    command.envs([PATIENT]).stdin(Stdio::piped());
    let mut running = Running::spawn(command);
    let mut stdin = running.stdin();
    stdin.write_all(claude("s", "PreToolUse", &using("t")).to_string().as_bytes()).unwrap();
    assert_eq!(running.wait(SOON).code, Some(0));
    assert_eq!(calls(&d, "s"), 1);
    drop(stdin);
    // An incomplete payload is waited for until the deadline.
    let mut command = d.home.command(&["hook", "claude"]);
    command.stdin(Stdio::piped());
    let mut running = Running::spawn(command);
    let mut stdin = running.stdin();
    stdin.write_all(b"{\"session_id\":").unwrap();
    assert_eq!(running.wait(SOON).code, Some(0));
    let log = String::from_utf8(d.home.read("hooks.log")).unwrap();
    assert!(log.contains("not done within 150ms"), "{log}");
}

/// Calls tools while the daemon does not respond, until three of them are in the spool: a hook on a
/// busy machine may reach its deadline before it has read its payload.
#[track_caller]
fn keep_three_calls(d: &Daemon) {
    let spool = d.home.path("hooks.spool");
    let mut numbers = 0..;
    eventually(SOON, || {
        let id = numbers.next().expect("there is no last one").to_string();
        let payload = claude("s", "PreToolUse", &using(&id)).to_string();
        let ran = hook_with(&d.home, &["hook", "claude"], payload.as_bytes(), 1_000);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
        std::fs::read_to_string(&spool).unwrap_or_default().lines().count() == 3
    });
}

/// A body of 128 KiB counts as three requests, and the session may have two at once.
#[test]
fn event_over_the_budget_of_its_session_is_told_later() {
    let d = Daemon::with(|plan| plan.env("SVC_BUDGET_REQUESTS", "2"));
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "startup" })));
    let mut used = using("t");
    used["tool_input"]["command"] = json!("x".repeat(128 << 10));
    let ran = d.home.hook("claude", &claude("s", "PreToolUse", &used));
    assert_eq!(ran.stdout, "", "{ran:?}");
    let log = String::from_utf8_lossy(&d.home.read("hooks.log")).into_owned();
    assert!(log.contains("budget.requests: "), "{log}");
    eventually(SOON, || calls(&d, "s") == 1);
}

/// The notes in it are read before the event is sent, and the deadline may come meanwhile.
#[test]
fn event_is_kept_however_long_the_spool_is() {
    let home = Home::new();
    let notes = "{\"id\":\"1\",\"unprinted\":\"another\"}\n".repeat(70_000);
    for file in ["hooks.spool", "hooks.spool.taken"] {
        home.write(file, &notes);
    }
    let payload = claude("s", "PreToolUse", &using("t")).to_string();
    // A hook on a busy machine may reach its deadline before it has read its payload.
    eventually(SOON, || {
        let ran = hook_with(&home, &["hook", "claude"], payload.as_bytes(), 150);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
        String::from_utf8_lossy(&home.read("hooks.spool")).contains("\"session_id\":\"s\"")
    });
}

/// A daemon that does not respond costs the deadline and no more, and still gets the event: once.
#[test]
fn hanging_daemon_costs_one_deadline_and_loses_nothing() {
    let d = Daemon::with(|plan| plan.env("SVC_MAINTENANCE_MS", "100"));
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "startup" })));
    d.signal(Signal::STOP);
    keep_three_calls(&d);
    d.signal(Signal::CONT);
    eventually(SOON, || {
        !d.home.path("hooks.spool").exists() && !d.home.path("hooks.spool.taken").exists()
    });
    eventually(SOON, || calls(&d, "s") == 3);
    d.home.hook("claude", &claude("s", "PreToolUse", &using("last")));
    assert_eq!(calls(&d, "s"), 4);
}

/// No daemon runs: many sessions begin at once, one daemon starts, and it gets all events.
#[test]
fn hook_starts_the_daemon_without_waiting() {
    let home = Home::new();
    let port = crate::daemon::free_port();
    home.write("config.toml", &format!("listen = [\"127.0.0.1:{port}\"]\n"));
    let running: Vec<Running> = (0..12)
        .map(|n| {
            let mut command = home.command(&["hook", "claude"]);
            // The new daemon drains the spool often.
            command.env("SVC_MAINTENANCE_MS", "100");
            command.envs([PATIENT]).stdin(Stdio::piped());
            let mut running = Running::spawn(command);
            let payload = claude(&format!("s{n}"), "SessionStart", &json!({ "source": "startup" }));
            running.stdin().write_all(payload.to_string().as_bytes()).unwrap();
            running
        })
        .collect();
    for hook in running {
        let ran = hook.wait(SOON);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
    }
    let daemon = until(SOON, || home.daemon_json());
    eventually(SOON, || {
        let ran = svc(&home, &["session", "list", "--json"]);
        ran.code == Some(0) && ran.json()["sessions"].as_array().unwrap().len() == 12
    });
    assert_eq!(home.daemon_json().unwrap()["pid"], daemon["pid"], "there is one, and it stays");
    // Others that were started may not have seen it yet, and one of them would follow it.
    eventually(SOON, || home.programs() <= 1);
    svc(&home, &["stop"]).ok();
    // Tool calls do not start a stopped daemon: a person may have stopped it on purpose.
    home.hook("claude", &claude("s0", "PreToolUse", &using("t")));
    assert!(home.daemon_json().is_none());
    assert!(home.path("hooks.spool").exists());
}

/// The daemon is killed repeatedly while a session works: every tool call is counted once.
#[test]
fn tool_calls_across_crashes_are_counted_exactly() {
    let mut d = Daemon::start();
    let mut told = 0;
    let mut tell = |d: &Daemon, count: usize| {
        let running: Vec<Running> = (0..count)
            .map(|_| {
                told += 1;
                let mut command = d.home.command(&["hook", "claude"]);
                command.envs([PATIENT]).stdin(Stdio::piped());
                let mut running = Running::spawn(command);
                let payload = claude("s", "PreToolUse", &using(&told.to_string()));
                running.stdin().write_all(payload.to_string().as_bytes()).unwrap();
                running
            })
            .collect();
        running
    };
    for _ in 0..4 {
        let mut running = tell(&d, 6);
        d.kill9();
        running.extend(tell(&d, 3));
        for hook in running {
            let ran = hook.wait(SOON);
            assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        }
        d.restart();
    }
    let left = || ["hooks.spool", "hooks.spool.taken"].map(|name| d.home.path(name).exists());
    eventually(SOON, || left() == [false, false] && calls(&d, "s") == 36);
}

/// A client that cannot report an event leaves it to `svc hook`: it counts once, and a message is
/// kept for the next event that can deliver it.
#[test]
fn repeated_event_counts_once_and_gets_no_output() {
    let mut d = Daemon::start();
    d.home.hook("claude", &claude("s", "SessionStart", &json!({})));
    let peer = peer_of(&d, "s").unwrap()["peer_id"].as_str().unwrap().to_owned();
    let message = d.post(&format!("/v1/peers/{peer}/messages"), &json!({ "text": "hi" })).ok(200);
    let again = |home: &Home, id: &str| {
        let args = ["hook", "claude", "--again", id];
        let payload = claude("s", "PreToolUse", &using(id)).to_string();
        let ran = hook_with(home, &args, payload.as_bytes(), 60_000);
        assert_eq!((ran.ok(), ran.stderr.as_str()), ("", ""));
    };
    for id in ["one", "two", "one"] {
        again(&d.home, id);
    }
    assert_eq!((calls(&d, "s"), state(&d, &message)), (2, "queued".to_owned()));
    d.stop();
    again(&d.home, "two");
    again(&d.home, "three");
    d.restart();
    eventually(SOON, || calls(&d, "s") == 3 && !d.home.path("hooks.spool.taken").exists());
    assert_eq!(calls(&d, "s"), 3);
}

#[test]
fn late_event_does_not_override_later_ones() {
    let mut d = Daemon::start();
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "startup" })));
    d.stop();
    d.home.hook("claude", &claude("s", "SessionEnd", &json!({ "reason": "other" })));
    let late = String::from_utf8(d.home.read("hooks.spool")).unwrap();
    d.restart();
    eventually(SOON, || d.get("/v1/sessions/s").ok(200)["end_reason"] == "other");
    assert_eq!(peer_of(&d, "s").unwrap()["status"], "offline");
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "resume" })));
    // The same payload with another id: as if it were late and from elsewhere.
    let mut event: Value = serde_json::from_str(&late).unwrap();
    event["id"] = json!("another");
    d.stop();
    d.home.write("hooks.spool", &format!("{event}\nnot a line\n"));
    d.restart();
    eventually(SOON, || {
        !d.home.path("hooks.spool").exists() && !d.home.path("hooks.spool.taken").exists()
    });
    assert!(d.get("/v1/sessions/s").ok(200)["end_reason"].is_null());
}

/// A session that begins, works and ends while the daemon is away is recorded as if the daemon had
/// been there.
#[test]
fn whole_session_can_be_reported_late() {
    let mut d = Daemon::start();
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "startup" })));
    d.stop();
    for session in ["s", "t"] {
        if session == "t" {
            // Not by its beginning, which would start a daemon.
            d.home.hook("claude", &claude(session, "Stop", &json!({})));
        }
        d.home.hook("claude", &claude(session, "PreToolUse", &using("one")));
        d.home.hook("claude", &claude(session, "PreToolUse", &using("two")));
        d.home.hook("claude", &claude(session, "SessionEnd", &json!({ "reason": "other" })));
    }
    let last = d.home.read("hooks.spool");
    let last = String::from_utf8(last).unwrap().lines().last().unwrap().to_owned();
    let at = serde_json::from_str::<Value>(&last).unwrap()["at"].clone();
    d.restart();
    for session in ["s", "t"] {
        let path = format!("/v1/sessions/{session}");
        eventually(SOON, || {
            d.get(&path).status() == 200 && !d.get(&path).ok(200)["ended_at"].is_null()
        });
        let known = d.get(&path).ok(200);
        assert_eq!(known["end_reason"], "other", "{known}");
        assert_eq!(calls(&d, session), 2, "{known}");
    }
    let t = d.get("/v1/sessions/t").ok(200);
    assert_eq!(t["ended_at"], at, "it ended when it did: {t}");
    assert_eq!(peer_of(&d, "s").unwrap()["status"], "offline");
    assert_eq!(peer_of(&d, "t").unwrap()["status"], "offline");
}

#[test]
fn hook_output_in_the_format_for_scripts() {
    let mut d = Daemon::start();
    let tell = |d: &Daemon, event: &str, more: &Value| {
        let payload = claude("s", event, more).to_string();
        let ran =
            hook_with(&d.home, &["hook", "claude", "--format", "spec"], payload.as_bytes(), 60_000);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        serde_json::from_str::<Value>(&ran.stdout).unwrap_or_default()
    };
    let started = tell(&d, "SessionStart", &json!({ "source": "startup" }));
    assert_eq!(started, json!({ "type": "session_started", "session_id": "s" }));
    let none = tell(&d, "UserPromptSubmit", &json!({ "prompt": "hello" }));
    assert_eq!(none, json!({ "type": "degraded", "reason": "no_context" }));
    let record = json!({
        "session_id": "s", "domain": "testing", "strategy": "ask-user", "goal": "g", "hypothesis": "h because of i",
        "action": "a", "prediction": "p",
    });
    d.done("start_ghap", &record);
    let mut reminders = Vec::new();
    for n in 0..10 {
        reminders.push(tell(&d, "PreToolUse", &using(&n.to_string())));
    }
    assert!(reminders[..9].iter().all(Value::is_null), "{reminders:?}");
    assert_eq!(reminders[9]["type"], "reminder");
    let again = tell(&d, "SessionStart", &json!({ "source": "resume" }));
    assert_eq!(again["type"], "orphan_detected");
    let peer = peer_of(&d, "s").unwrap()["peer_id"].as_str().unwrap().to_owned();
    d.post(&format!("/v1/peers/{peer}/messages"), &json!({ "text": "hi" })).ok(200);
    let rich = tell(&d, "UserPromptSubmit", &json!({ "prompt": "hello" }));
    assert_eq!((&rich["type"], rich["token_count"].is_u64()), (&json!("rich"), true), "{rich}");
    d.signal(Signal::STOP);
    let payload = claude("s", "UserPromptSubmit", &json!({ "prompt": "hello" })).to_string();
    let late = hook_with(&d.home, &["hook", "claude", "--format", "spec"], payload.as_bytes(), 300);
    d.signal(Signal::CONT);
    let late: Value = serde_json::from_str(&late.stdout).unwrap();
    assert_eq!(late, json!({ "type": "degraded", "reason": "server_timeout" }));
    d.stop();
    let gone = tell(&d, "PreToolUse", &using("t"));
    assert_eq!(gone, json!({ "type": "degraded", "reason": "request_failed" }));
}

/// Without a daemon a script gets a session id, under which the daemon later records the session.
#[test]
fn script_begins_a_session_before_the_daemon_is_up() {
    let home = Home::new();
    let begin = |payload: Value| {
        let input = payload.to_string();
        let args = ["hook", "claude", "--format", "spec"];
        let ran = hook_with(&home, &args, input.as_bytes(), 60_000);
        let started: Value = serde_json::from_str(ran.ok()).expect("JSON");
        assert_eq!(started["type"], "session_started", "{started}");
        started["session_id"].as_str().expect("an id").to_owned()
    };
    let named = claude("s", "SessionStart", &json!({ "source": "startup" }));
    assert_eq!(begin(named.clone()), "s");
    let mut unnamed = named;
    unnamed.as_object_mut().expect("an object").remove("session_id");
    let made = begin(unnamed);
    assert_eq!(made.len(), 36, "a UUID: {made}");
    eventually(SOON, || {
        let ran = svc(&home, &["session", "list", "--json"]);
        let sessions = if ran.code == Some(0) { ran.json()["sessions"].take() } else { json!([]) };
        let has =
            |id: &str| sessions.as_array().expect("a list").iter().any(|it| it["session_id"] == id);
        has("s") && has(&made)
    });
    svc(&home, &["stop"]).ok();
}

/// The first prompt after a cold start gets the same context as a later one.
#[test]
fn prompt_starts_the_daemon_and_waits_for_it() {
    let mut d = Daemon::start();
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "startup" })));
    let peer = peer_of(&d, "s").expect("a peer")["peer_id"].as_str().expect("an id").to_owned();
    d.post(&format!("/v1/peers/{peer}/messages"), &json!({ "text": "good morning" })).ok(200);
    d.stop();
    let said = d.home.hook("claude", &prompt("s", "hello")).context();
    assert!(said.contains("good morning"), "{said}");
    svc(&d.home, &["stop"]).ok();
    // A script gets the daemon's response, too, and not the one without a daemon.
    let input = prompt("s", "hello again").to_string();
    let args = ["hook", "claude", "--format", "spec"];
    let ran = hook_with(&d.home, &args, input.as_bytes(), 60_000);
    assert_eq!(ran.json(), json!({ "type": "degraded", "reason": "no_context" }));
    svc(&d.home, &["stop", "--stay"]).ok();
    let ran = hook_with(&d.home, &args, input.as_bytes(), 60_000);
    assert_eq!(ran.json(), json!({ "type": "degraded", "reason": "request_failed" }));
    assert!(d.home.daemon_json().is_none(), "it stays stopped");
}

#[test]
fn hook_settings_are_respected() {
    let d = with_config("[hooks]\ncheck_in = 3\nsub_agents = true\n");
    let record = json!({
        "session_id": "s", "domain": "testing", "strategy": "ask-user", "goal": "g", "hypothesis": "h because of i",
        "action": "a", "prediction": "p",
    });
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "startup" })));
    d.done("start_ghap", &record);
    for agent in ["", "beneath"] {
        let reminded: Vec<bool> = (0..7)
            .map(|n| {
                let mut call = using(&format!("{agent}{n}"));
                call["agent_id"] = json!(agent);
                !d.home.hook("claude", &claude("s", "PreToolUse", &call)).context().is_empty()
            })
            .collect();
        assert_eq!(reminded, [false, false, true, false, false, true, false], "{agent}");
    }
}

/// The session that an MCP connection belongs to, from the client's hooks and its calls.
#[test]
fn connection_is_linked_to_its_session_by_hook_events() {
    let mut d = Daemon::start();
    // As `svc stdio` below the client of these hooks.
    let token = process_token(&d.home);
    let open = |d: &Daemon| {
        let hello = json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } },
        });
        let opened = d.with_token(&token).post("/mcp", &hello);
        opened.header("mcp-session-id").expect("a session").to_owned()
    };
    let whose = |d: &Daemon, connection: &str, more: &Value| {
        let mut params = json!({ "name": "get_session", "arguments": {} });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let request = d.with_token(&token).request("POST", "/mcp");
        let reply = request.header("mcp-session-id", connection).json(&body).send().ok(200);
        reply["result"]["structuredContent"]["session_id"].as_str().unwrap_or("none").to_owned()
    };
    // Claude Code: by the id of the tool use.
    let connection = open(&d);
    let about =
        json!({ "tool_name": "mcp__svc__get_session", "tool_use_id": "toolu_1", "tool_input": {} });
    d.home.hook("claude", &claude("conversation", "PreToolUse", &about));
    let meta = json!({ "_meta": { "claudecode/toolUseId": "toolu_1" } });
    assert_eq!(whose(&d, &connection, &meta), "conversation");
    assert_eq!(whose(&d, &connection, &json!({})), "conversation", "the latest of this client");
    // Codex sends the session itself; its row comes with its hook.
    d.home.hook("codex", &claude("thread", "SessionStart", &json!({})));
    let other = open(&d);
    assert_eq!(whose(&d, &other, &json!({ "_meta": { "threadId": "thread" } })), "thread");
    // Gemini: by the call itself.
    let third = open(&d);
    let about = json!({ "tool_name": "mcp_svc_get_session", "tool_input": {} });
    d.home.hook("gemini", &claude("chat", "BeforeTool", &about));
    assert_eq!(whose(&d, &third, &json!({})), "chat");
    eventually(SOON, || {
        // A background task writes it.
        let linked = "select count(*) from mcp_session where client_session is not null";
        d.home.value(linked) == 3
    });
    d.kill_and_restart();
    assert_eq!(whose(&d, &third, &json!({})), "chat", "also after a crash");
    assert_eq!(whose(&d, &connection, &json!({})), "chat", "what names none means the latest");
}

/// Gemini sends no session with a tool call; hooks and `svc stdio` have the same client's process.
#[test]
fn connection_is_linked_to_its_session_by_the_clients_process() {
    let d = Daemon::start();
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } },
    });
    let open = |caller: &Caller| {
        caller.post("/mcp", &hello).header("mcp-session-id").expect("a session").to_owned()
    };
    let whose = |caller: &Caller, connection: &str| {
        let body = tool_call("get_session", &json!({}));
        let process = std::process::id().to_string();
        let request = caller.request("POST", "/mcp").header("mcp-session-id", connection);
        let reply = request.header("svc-client-process", &process).json(&body).send().ok(200);
        reply["result"]["structuredContent"]["session_id"].as_str().unwrap_or("none").to_owned()
    };
    // This process runs the hooks, like a client.
    let client = d.with_token(&process_token(&d.home));
    let (connection, operators) = (open(&client), open(&d));
    assert_eq!(whose(&client, &connection), "none");
    d.home.hook("gemini", &claude("chat", "SessionStart", &json!({})));
    assert_eq!(whose(&client, &connection), "chat");
    assert_eq!(whose(&d, &operators), "none", "whoever names the process is not the client");
    // The same process continues with another conversation.
    d.home.hook("gemini", &claude("chat", "SessionEnd", &json!({})));
    d.home.hook("gemini", &claude("next", "SessionStart", &json!({})));
    assert_eq!(whose(&client, &connection), "next");
    d.home.hook("gemini", &claude("next", "SessionEnd", &json!({})));
    assert_eq!(whose(&client, &connection), "none");
}

fn waiter(home: &Home, session: &str) -> Running {
    let mut command = home.command(&["hook", "wait"]);
    command.stdin(Stdio::piped());
    let mut running = Running::spawn(command);
    let payload = claude(session, "Stop", &json!({ "stop_hook_active": false }));
    running.stdin().write_all(payload.to_string().as_bytes()).expect("it is there");
    running
}

#[test]
fn message_wakes_an_idle_session_through_the_latest_waiter_only() {
    let mut d = Daemon::start();
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "startup" })));
    let peer = peer_of(&d, "s").unwrap()["peer_id"].as_str().unwrap().to_owned();
    let inbox = format!("/v1/peers/{peer}/messages");
    // The newer waiter replaces the older, also across a restart. On a busy machine the order of
    // the two is unknown.
    let (mut one, mut other) = (waiter(&d.home, "s"), waiter(&d.home, "s"));
    eventually(SOON, || one.has_ended() || other.has_ended());
    let (older, newer) = if one.has_ended() { (one, other) } else { (other, one) };
    let ran = older.wait(SOON);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    d.kill_and_restart();
    let message = d.post(&inbox, &json!({ "text": "wake up" })).ok(200);
    let ran = newer.wait(SOON);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.stderr.contains("wake up") && ran.stderr.contains("[Inter-session message]"),
        "{ran:?}"
    );
    assert_eq!(state(&d, &message), "offered");
    let next = d.home.hook("claude", &claude("s", "UserPromptSubmit", &json!({ "prompt": "x" })));
    assert_eq!(next.context(), "", "it was given once");
    assert_eq!(state(&d, &message), "injected");
    // A message that waits already wakes the session when its turn ends; an ended session is not
    // woken.
    d.home.hook("claude", &claude("s", "Stop", &json!({ "stop_hook_active": false })));
    let waiting = d.post(&inbox, &json!({ "text": "still here" })).ok(200);
    assert_eq!(waiter(&d.home, "s").wait(SOON).code, Some(2));
    assert_eq!(state(&d, &waiting), "offered");
    let last = waiter(&d.home, "s");
    d.home.hook("claude", &claude("s", "SessionEnd", &json!({ "reason": "other" })));
    d.post(&inbox, &json!({ "text": "too late" })).ok(200);
    assert_eq!(last.wait(SOON).code, Some(0));
}

#[test]
fn unconfirmed_messages_are_repeated_when_a_session_resumes() {
    let d = Daemon::start();
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "startup" })));
    let peer = peer_of(&d, "s").unwrap()["peer_id"].as_str().unwrap().to_owned();
    let inbox = format!("/v1/peers/{peer}/messages");
    let one = d.post(&inbox, &json!({ "text": "the first" })).ok(200);
    let given = d.home.hook("claude", &claude("s", "PostToolUse", &using("1")));
    assert!(given.context().contains("the first"));
    // Its client was killed before the model saw it.
    let given = d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "resume" })));
    assert!(given.context().contains("the first"), "{given:?}");
    d.home.hook("claude", &claude("s", "Stop", &json!({})));
    assert_eq!(state(&d, &one), "injected");
    let given = d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "resume" })));
    assert_eq!(given.context(), "");
    // A sub-agent gets no message, and confirms none.
    let two = d.post(&inbox, &json!({ "text": "the second" })).ok(200);
    let mut beneath = using("2");
    beneath["agent_id"] = json!("a");
    let given = d.home.hook("claude", &claude("s", "PreToolUse", &beneath));
    assert_eq!((given.context(), state(&d, &two)), (String::new(), "queued".to_owned()));
}

/// Messages beyond a client's limit wait for the next event, in order.
#[test]
fn many_messages_arrive_in_parts_and_in_order() {
    let d = Daemon::start();
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "startup" })));
    let peer = peer_of(&d, "s").unwrap()["peer_id"].as_str().unwrap().to_owned();
    let inbox = format!("/v1/peers/{peer}/messages");
    for n in 0..12 {
        let text = format!(
            "number-{n}. {}",
            "\u{2028}\u{1f600}\"\\\n\u{1}".repeat(if n == 3 { 4000 } else { 200 })
        );
        d.post(&inbox, &json!({ "text": text })).ok(200);
    }
    let mut found = Vec::new();
    for n in 0..20 {
        let given =
            d.home.hook("claude", &claude("s", "PostToolUse", &using(&n.to_string()))).context();
        assert!(given.chars().count() <= 10_000, "{}", given.chars().count());
        for part in given.split("number-").skip(1) {
            found.push(part.split('.').next().unwrap().parse::<u32>().unwrap());
        }
        if given.is_empty() {
            break;
        }
    }
    assert_eq!(found, (0..12).collect::<Vec<_>>());
    let names: BTreeSet<_> =
        ["hooks.spool", "hooks.log"].into_iter().filter(|it| d.home.path(it).exists()).collect();
    assert!(names.is_empty(), "{names:?}");
}

/// An empty home, no `PATH`, and a folder of another user.
#[test]
fn hook_works_in_an_empty_home() {
    let home = Home::new();
    let mut command = home.command(&["hook", "claude"]);
    command.env_remove("PATH").current_dir("/").stdin(Stdio::piped());
    command.envs([PATIENT]);
    let mut running = Running::spawn(command);
    let payload = claude("s", "SessionStart", &json!({ "source": "startup" }));
    running.stdin().write_all(payload.to_string().as_bytes()).expect("it reads");
    let ran = running.wait(SOON);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "", ""), "{ran:?}");
    // The daemon was started nevertheless.
    until(SOON, || home.daemon_json());
    let ran = svc_with_input(
        &home,
        &["hook", "gemini"],
        claude("s", "AfterTool", &using("1")).to_string().as_bytes(),
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
}

/// The fate of a daemon's first responses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They are never delivered.
    Held,
    /// The connection breaks.
    Cut,
}

/// A daemon that can also be reached through [`swallowing`].
pub(crate) fn behind_a_proxy() -> Daemon {
    Daemon::with(|plan| plan.flag("--allowed-host").flag("127.0.0.1"))
}

/// An address at which the daemon gets all requests, and its first `count` responses are lost.
pub(crate) fn swallowing(d: &Daemon, count: usize, fate: Fate) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (port, left) = (d.port(), Arc::new(Mutex::new((count, Vec::new()))));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let left = Arc::clone(&left);
            thread::spawn(move || pass(client, port, &left, fate));
        }
    });
    url
}

fn pass(mut client: TcpStream, port: u16, left: &Mutex<(usize, Vec<TcpStream>)>, fate: Fate) {
    let Ok(mut daemon) = TcpStream::connect(("127.0.0.1", port)) else { return };
    let (mut from, mut to) = (
        client.try_clone().expect("a second handle"),
        daemon.try_clone().expect("a second handle"),
    );
    thread::spawn(move || std::io::copy(&mut from, &mut to));
    let mut chunk = vec![0; 64 * 1024];
    // The daemon's proof comes first, and is no response.
    let mut is_proven = false;
    while let Ok(size) = daemon.read(&mut chunk) {
        let mut left = left.lock().expect("nobody panics");
        if std::mem::replace(&mut is_proven, true) && size > 0 && left.0 > 0 {
            left.0 -= 1;
            match fate {
                Fate::Held => left.1.push(client),
                Fate::Cut => drop(client.shutdown(Shutdown::Both)),
            }
            return;
        }
        drop(left);
        if size == 0 || client.write_all(&chunk[..size]).is_err() {
            drop(client.shutdown(Shutdown::Both));
            return;
        }
    }
}

/// A hook with another URL of the daemon.
#[track_caller]
fn hook_by(d: &Daemon, url: &str, payload: &Value, deadline_ms: u32) -> Ran {
    let mut command = d.home.command(&["hook", "claude"]);
    command.env("SVC_URL", url).env("SVC_TOKEN", d.home.token().expect("a token"));
    command.env("SVC_HOOK_DEADLINE_MS", deadline_ms.to_string());
    let ran = Running::fed(command, payload.to_string().as_bytes()).wait(SOON);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    ran
}

fn prompt(session: &str, text: &str) -> Value {
    claude(session, "UserPromptSubmit", &json!({ "prompt": text }))
}

/// A session with a participant, and a function that sends to it.
fn begin(d: &Daemon, session: &str) -> (String, impl Fn(&str) -> Value + use<>) {
    d.home.hook("claude", &claude(session, "SessionStart", &json!({ "source": "startup" })));
    let peer = peer_of(d, session).expect("a peer")["peer_id"].as_str().expect("an id").to_owned();
    let (caller, inbox) =
        (d.with_token(&d.home.token().expect("a token")), format!("/v1/peers/{peer}/messages"));
    (inbox.clone(), move |text: &str| caller.post(&inbox, &json!({ "text": text })).ok(200))
}

fn states(d: &Daemon, message: &Value) -> Vec<String> {
    each(detail(d, message)["states"].as_array().expect("states"), "state")
}

/// The next hook of the session prints the message, and only the hook after that confirms it.
#[track_caller]
fn assert_delivered_again(d: &Daemon, session: &str, message: &Value, text: &str) {
    assert_eq!(states(d, message), ["accepted", "queued", "offered"]);
    let given = d.home.hook("claude", &claude(session, "PostToolUse", &using("next")));
    assert!(given.context().contains(text), "{given:?}");
    assert_eq!(state(d, message), "offered");
    let given = d.home.hook("claude", &prompt(session, "go on"));
    assert_eq!((given.context(), state(d, message)), (String::new(), "injected".to_owned()));
}

#[test]
fn message_in_a_late_response_is_repeated() {
    let d = behind_a_proxy();
    for (session, fate, deadline) in [("held", Fate::Held, 10_000), ("cut", Fate::Cut, 60_000)] {
        let (inbox, send) = begin(&d, session);
        let message = send("precious");
        let ran = hook_by(&d, &swallowing(&d, 1, fate), &prompt(session, "hello"), deadline);
        assert_eq!(ran.stdout, "", "{session}");
        eventually(SOON, || state(&d, &message) == "offered");
        // Events of another session confirm nothing.
        d.home.hook("claude", &prompt("another", "hello"));
        assert_delivered_again(&d, session, &message, "precious");
        // The note of the lost response stays for a while, and must not affect what was printed.
        let later = send("the second");
        assert!(d.home.hook("claude", &prompt(session, "x")).context().contains("the second"));
        d.home.hook("claude", &claude(session, "Stop", &json!({})));
        assert_eq!(
            (state(&d, &message), state(&d, &later)),
            ("injected".into(), "injected".into())
        );
        let ids = json!({ "ids": [message["id"], later["id"]] });
        d.post(&format!("{inbox}/ack"), &ids).ok(200);
        let all = ["accepted", "queued", "offered", "injected", "acked"];
        assert_eq!(
            (states(&d, &message), states(&d, &later)),
            (all.map(String::from).to_vec(), all.map(String::from).to_vec())
        );
    }
}

/// A stopped daemon gets the events afterwards, in any order: the message is printed all the same.
#[test]
fn message_survives_a_stopped_daemon() {
    for maintenance in ["20", "60000"] {
        let d = Daemon::with(|plan| plan.env("SVC_MAINTENANCE_MS", maintenance));
        let (_, send) = begin(&d, "s");
        let message = send("precious");
        d.signal(Signal::STOP);
        keep_three_calls(&d);
        d.signal(Signal::CONT);
        let given = d.home.hook("claude", &prompt("s", "hello")).context();
        assert!(given.contains("precious"), "{maintenance}: {given}");
        d.home.hook("claude", &claude("s", "Stop", &json!({})));
        assert_eq!(state(&d, &message), "injected");
        // The note is kept until the daemon has it, and no longer.
        if maintenance == "20" {
            eventually(SOON, || !d.home.path("hooks.spool").exists());
            eventually(SOON, || calls(&d, "s") == 3);
        }
    }
}

/// A daemon that was killed after it had responded, with the response lost.
#[test]
fn message_in_a_lost_response_survives_the_daemon() {
    let mut d = behind_a_proxy();
    let (_, send) = begin(&d, "s");
    let message = send("precious");
    hook_by(&d, &swallowing(&d, 1, Fate::Cut), &prompt("s", "hello"), 60_000);
    assert_eq!(state(&d, &message), "offered");
    d.kill_and_restart();
    eventually(SOON, || !d.home.path("hooks.spool").exists());
    assert_delivered_again(&d, "s", &message, "precious");
}

#[test]
fn read_by_another_does_not_confirm_a_hook_delivery() {
    let d = Daemon::with(|plan| plan.env("SVC_LEASE_MS", "2000"));
    let (inbox, send) = begin(&d, "s");
    let message = send("precious");
    assert_eq!(d.get(&inbox).ok(200)["count"], 1);
    for n in 0..3 {
        // These events never print anything.
        let event = json!({ "notification_type": "idle_prompt", "message": n.to_string() });
        d.home.hook("claude", &claude("s", "Notification", &event));
        assert_eq!(state(&d, &message), "offered");
    }
    // It was never acknowledged, so a hook prints it when the lease has expired.
    let mut given = String::new();
    eventually(SOON, || {
        assert_eq!(state(&d, &message), "offered");
        given = d.home.hook("claude", &claude("s", "PostToolUse", &using("1"))).context();
        !given.is_empty()
    });
    assert!(given.contains("precious"), "{given}");
    d.home.hook("claude", &prompt("s", "go on"));
    assert_eq!(state(&d, &message), "injected");
    // Messages that a reader took are acknowledged as usual. On a busy machine its lease may end
    // before the hook begins.
    let other = until(SOON, || {
        let other = send("for the reader");
        assert_eq!(d.get(&inbox).ok(200)["count"], 1);
        let given = d.home.hook("claude", &prompt("s", "go on"));
        assert_eq!(state(&d, &other), "offered");
        d.post(&format!("{inbox}/ack"), &json!({ "ids": [other["id"]] })).ok(200);
        given.context().is_empty().then_some(other)
    });
    assert_eq!(states(&d, &other), ["accepted", "queued", "offered", "injected", "acked"]);
}

#[test]
fn message_that_a_hook_could_not_print_is_repeated() {
    let d = Daemon::start();
    let (_, send) = begin(&d, "s");
    for closed in [true, false] {
        let message = send("precious");
        let mut command = d.home.command(&["hook", "claude"]);
        if closed {
            let mut shell = Command::new("sh");
            shell.args(["-c", "exec \"$0\" hook claude >&-"]).arg(command.get_program());
            shell.env_clear().current_dir(d.home.user());
            shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command = shell;
        } else {
            // Dropping the other end closes the pipe.
            command.stdout(std::io::pipe().expect("a pipe").1);
        }
        command.envs([PATIENT]).stdin(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(prompt("s", "hello").to_string().as_bytes()).expect("it reads");
        drop(stdin);
        assert_eq!(child.wait().expect("it ends").code(), Some(0), "closed: {closed}");
        assert_delivered_again(&d, "s", &message, "precious");
    }
    let log = String::from_utf8(d.home.read("hooks.log")).unwrap();
    assert_eq!(log.matches("standard output").count(), 2, "{log}");
}

/// Context for a prompt, and the reminder of the record, are repeated after a lost response, too.
#[test]
fn context_and_reminders_of_a_lost_response_are_repeated() {
    let d = behind_a_proxy();
    let record = json!({
        "session_id": "before", "domain": "debugging", "strategy": "read-the-error", "goal": "repair websocket heartbeat drops",
        "hypothesis": "the websocket heartbeat drops as the proxy is impatient", "action": "a", "prediction": "p",
    });
    // In the project that the hooks run in.
    d.done("start_session", &json!({ "session_id": "before", "cwd": "/nowhere/p" }));
    d.done("start_ghap", &record);
    let end = json!({
        "session_id": "before", "status": "confirmed", "result": "r", "lesson": { "what_worked": "ping every 20 s" },
    });
    d.done("resolve_ghap", &end);
    drop(begin(&d, "s"));
    let asked = prompt("s", "websocket heartbeat drops");
    let way = swallowing(&d, 2, Fate::Cut);
    assert_eq!(hook_by(&d, &way, &asked, 60_000).stdout, "");
    assert!(d.home.hook("claude", &asked).context().contains("ping every 20 s"));
    assert_eq!(d.home.hook("claude", &asked).context(), "", "once");

    let mut open = record;
    open["session_id"] = json!("s");
    d.done("start_ghap", &open);
    let call = |n: u32| claude("s", "PreToolUse", &using(&n.to_string()));
    for n in 0..9 {
        assert_eq!(d.home.hook("claude", &call(n)).stdout, "");
    }
    assert_eq!(hook_by(&d, &way, &call(9), 60_000).stdout, "");
    assert!(d.home.hook("claude", &call(10)).context().contains("repair websocket heartbeat"));
    assert_eq!(d.home.hook("claude", &call(11)).stdout, "", "once");
}

/// A waiter whose response was lost asks again, and gets the same message.
#[test]
fn waiter_with_a_lost_response_still_wakes() {
    let d = behind_a_proxy();
    let (_, send) = begin(&d, "s");
    let message = send("precious");
    let mut command = d.home.command(&["hook", "wait"]);
    command.env("SVC_URL", swallowing(&d, 1, Fate::Cut)).stdin(Stdio::piped());
    command.env("SVC_TOKEN", d.home.token().expect("a token"));
    let mut running = Running::spawn(command);
    let stop = claude("s", "Stop", &json!({ "stop_hook_active": false }));
    running.stdin().write_all(stop.to_string().as_bytes()).expect("it reads");
    let ran = running.wait(SOON);
    assert!(ran.code == Some(2) && ran.stderr.contains("precious"), "{ran:?}");
    assert_eq!(state(&d, &message), "offered");
    let next = d.home.hook("claude", &prompt("s", "x"));
    assert_eq!((next.context(), state(&d, &message)), (String::new(), "injected".to_owned()));
}

/// Versions of Claude Code before 2.1.139 drop the arguments of a hook in exec form. The client must
/// not read the exit code as a decision: 2 would block the person's prompt.
#[test]
fn svc_without_arguments_prints_help_and_exits_with_0() {
    let home = Home::new();
    let payload = claude("s", "UserPromptSubmit", &json!({})).to_string();
    for input in [&*payload, "", "hello"] {
        let ran = svc_with_input(&home, &[], input.as_bytes());
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{input:?}");
        assert!(ran.stdout.contains("Usage: svc"), "{input:?}: {ran:?}");
    }
}

/// A version without `asyncRewake` waits for the waiter, for up to a day.
#[test]
fn waiter_exits_at_once_for_clients_that_would_wait() {
    let d = Daemon::start();
    d.home.hook("claude", &claude("s", "SessionStart", &json!({ "source": "startup" })));
    let transcript = d.home.path("transcript.jsonl");
    for version in ["2.0.0", "2.0.60", "2.1.50"] {
        let record = json!({ "type": "user", "version": version });
        std::fs::write(&transcript, format!("{record}\n")).expect("writes");
        let payload = claude("s", "Stop", &json!({ "transcript_path": transcript }));
        let ran = hook_with(&d.home, &["hook", "wait"], payload.to_string().as_bytes(), 60_000);
        assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (Some(0), "", ""), "{version}");
    }
}
