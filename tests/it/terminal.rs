//! Text by others on a terminal: every command shows symbols, and `--json` has the daemon's text.

use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Ran, Running, eventually, svc};

/// A terminal would set its clipboard, change colours, reverse the line and print a line that
/// imitates svc.
const HOSTILE: &str = "a\u{1b}]52;c;eA==\u{7}\u{9b}31m\u{202e}b\u{2066}\u{200b}\u{7f}\u{feff}\r\nc\tx\u{2028}y\u{85}z\nerror: all is lost";

/// A character that a terminal interprets, or that is invisible.
fn is_obeyed(c: char) -> bool {
    (c.is_control() && !"\n\t".contains(c))
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[track_caller]
fn assert_shown(args: &[&str], ran: &Ran) {
    for (name, text) in [("stdout", &ran.stdout), ("stderr", &ran.stderr)] {
        assert!(!text.chars().any(is_obeyed), "{args:?}, {name}: {text:?}");
        let forged = text.lines().filter(|line| line.starts_with("error: all is lost"));
        assert_eq!(forged.count(), 0, "{args:?}, {name}: {text}");
    }
}

/// Runs a command with and without `--json`, and returns both outputs.
#[track_caller]
fn shown(d: &Daemon, args: &[&str]) -> (Ran, Value) {
    let plain = svc(&d.home, args);
    assert_shown(args, &plain);
    let with_json = [args, &["--json"]].concat();
    let ran = svc(&d.home, &with_json);
    assert_shown(&with_json, &ran);
    assert_eq!(ran.code, plain.code, "{args:?}");
    let last = ran.stdout.lines().last().unwrap_or_default();
    (plain, serde_json::from_str(last).unwrap_or_default())
}

fn call(d: &Daemon, name: &str, arguments: &Value) -> Value {
    d.tool(name, arguments)["structuredContent"].clone()
}

#[test]
fn every_command_sanitises_foreign_text() {
    let d = Daemon::start();
    let peer = json!({
        "display_name": HOSTILE, "backend": HOSTILE, "path": HOSTILE, "circle": HOSTILE, "session_id": HOSTILE,
        "metadata": { HOSTILE: HOSTILE },
    });
    let peer =
        d.post("/v1/peers/register", &peer).ok(200)["peer_id"].as_str().expect("an id").to_owned();
    let message = json!({ "text": HOSTILE, "correlation_id": "c\u{9b}\u{202e}" });
    let message = d.post(&format!("/v1/peers/{peer}/messages"), &message).ok(200);
    let message = message["id"].as_str().expect("an id").to_owned();
    let task = json!({ "title": HOSTILE, "agent": HOSTILE, "prompt": HOSTILE, "from": HOSTILE, "metadata": { "k": HOSTILE } });
    let task = d.post("/v1/tasks", &task).ok(201)["task_id"].as_str().expect("an id").to_owned();
    let frame = |kind: &str| json!({ "kind": "frame", "data": { "line": HOSTILE, "kind": kind } });
    let end = json!({ "kind": "terminal", "data": { "status": "failed", "error": HOSTILE } });
    let events = format!("/v1/tasks/{task}/events");
    d.post(&events, &json!([frame("stdout"), frame("stderr")])).ok(200);
    call(&d, "TaskReply", &json!({ "task_id": task, "kind": "answer", "body": HOSTILE }));
    d.post(&events, &end).ok(200);
    call(
        &d,
        "start_session",
        &json!({ "session_id": "s\u{9b}\u{202e}\nerror: all is lost", "cwd": HOSTILE }),
    );
    let record = json!({
        "domain": "debugging", "strategy": "read-the-error", "goal": HOSTILE, "hypothesis": HOSTILE, "action": HOSTILE,
        "prediction": HOSTILE,
    });
    let ghap = call(&d, "start_ghap", &record)["id"].as_str().expect("an id").to_owned();

    for (args, code) in [
        (&["peer", "list"][..], 0),
        (&["peer", "show", &peer], 0),
        (&["peer", "heartbeat", &peer], 0),
        (&["peer", "show", HOSTILE], 0),
        (&["message", "inbox", &peer], 0),
        (&["message", "show", &message], 0),
        (&["message", "send", &peer, HOSTILE], 0),
        (&["message", "show", HOSTILE], 1),
        (&["task", "list"], 0),
        (&["task", "show", &task], 0),
        (&["task", "wait", &task], 1),
        (&["task", "watch", &task], 1),
        (&["task", "show", HOSTILE], 1),
        (&["events", "list"], 0),
        (&["events", "list", "--stream", &format!("task/{task}")], 0),
        (&["events", "list", "--stream", HOSTILE], 1),
        (&["session", "list"], 0),
        (&["session", "show", "s\u{9b}\u{202e}\nerror: all is lost"], 0),
        (&["session", "show", HOSTILE], 1),
        (&["ghap", "list"], 0),
        (&["ghap", "show", &ghap], 0),
        (&["ghap", "search", "all is lost"], 0),
        (&["ghap", "show", HOSTILE], 1),
        (&["tools", "list"], 0),
        (&["tools", "show", HOSTILE], 1),
        (&["tools", "call", "TaskGet", "--arg", &format!("task_id={task}")], 0),
        (&["tools", "call", "peer_list"], 0),
        (&["tools", "call", "events_read", "--arg", &format!("stream=task/{task}")], 0),
        (&["tools", "call", "TaskGet", "--arg", &format!("task_id={HOSTILE}")], 1),
    ] {
        let (ran, _) = shown(&d, args);
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
    }

    // The output has a symbol for each, and JSON has the text itself.
    let symbols = "a␛]52;c;eA==␇\\u{9b}31m\\u{202e}b\\u{2066}\\u{200b}␡\\u{feff}␍";
    let (table, page) = shown(&d, &["task", "list"]);
    let cell = format!("{symbols}␊c␉x\\u{{2028}}y\\u{{85}}z␊error: all is lost");
    assert!(table.ok().contains(&cell), "{}", table.stdout);
    assert_eq!(table.stdout.lines().count(), 2, "{}", table.stdout);
    assert_eq!(page["tasks"][0]["title"], HOSTILE);
    let (watched, _) = shown(&d, &["task", "watch", &task]);
    let line = cell.replace('␉', "\t");
    assert_eq!(watched.stdout, format!("{line}\n"));
    assert!(watched.stderr.starts_with(&format!("{line}\n")), "{}", watched.stderr);
    let (_, one) = shown(&d, &["message", "show", &message]);
    assert_eq!(one["text"], HOSTILE);
    let (_, events) = shown(&d, &["events", "list", "--stream", &format!("task/{task}")]);
    assert_eq!(events["events"][1]["data"]["line"], HOSTILE);
}

#[test]
fn endless_lists_and_logs_are_sanitised() {
    let d = Daemon::start();
    let task = d.post("/v1/tasks", &json!({ "title": HOSTILE })).ok(201);
    let id = task["task_id"].as_str().expect("an id");
    for json in [false, true] {
        let stream = format!("task/{id}");
        let mut args = vec!["events", "tail", "--stream", &stream];
        args.extend(json.then_some("--json"));
        let running = Running::spawn(d.home.command(&args));
        let line = running.line().expect("a line");
        assert!(!line.chars().any(is_obeyed) && line.contains("52;c"), "{line:?}");
        if json {
            let event: Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!(event["data"]["title"], HOSTILE);
        }
    }
    d.home.write("svc.log", &format!("INFO {}\n", HOSTILE.replace('\n', " ")));
    let (logs, last) = shown(&d, &["logs"]);
    assert!(logs.ok().starts_with("INFO a␛]52;"), "{logs:?}");
    assert!(last["line"].as_str().is_some_and(|line| line.contains("all is lost")), "{last}");
}

#[test]
fn run_copies_the_bytes_of_its_command() {
    let d = Daemon::start();
    let command = ["task", "run", "--", "printf", "\\033[1mbold\\033[0m\\n"];
    assert_eq!(svc(&d.home, &command).ok(), "\u{1b}[1mbold\u{1b}[0m\n");
    let mut frames = Vec::new();
    eventually(Duration::from_secs(10), || {
        let page =
            svc(&d.home, &["events", "list", "--prefix", "task/", "--kind", "frame", "--json"]);
        assert!(!page.stdout.chars().any(is_obeyed), "{}", page.stdout);
        frames = page.json()["events"].as_array().expect("events").clone();
        !frames.is_empty()
    });
    assert_eq!(frames[0]["data"]["line"], "\u{1b}[1mbold\u{1b}[0m");
}
