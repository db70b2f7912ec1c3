//! Output on a screen and for a program: widths, times, ids, colours, pages, errors.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, Ran, Running, eventually, svc};
use crate::expect::{new_task, peer, register, text};

const SOON: Duration = Duration::from_secs(20);

pub(crate) fn with(home: &Home, env: &[(&str, &str)], args: &[&str]) -> Ran {
    let mut command: Command = home.command(args);
    command.envs(env.iter().copied());
    Running::spawn(command).wait(SOON)
}

/// Two participants with a question between them, a task and a session.
pub(crate) fn team(d: &Daemon) -> (String, String, String) {
    let member = |name: &str, session: &str| {
        let body = json!({
            "display_name": name, "backend": "claude", "session_id": session,
            "path": "/a/very/long/way/down/to/the/folder/of/the/project/that/they/work/in",
        });
        text(&register(d, &body), "peer_id")
    };
    let (ann, bob) = (member("ann", "s-1"), member("bob with a name that goes on and on", "s-2"));
    let question = json!({
        "text": "does the build of the whole project, with all of its tests and examples, work for you on that machine?",
        "type": "query", "from_peer": ann,
    });
    let asked = text(&d.post(&format!("/v1/peers/{bob}/messages"), &question).ok(200), "id");
    new_task(d);
    let start = json!({ "session_id": "s-1", "cwd": "/work" });
    let params = json!({ "name": "start_session", "arguments": start });
    d.post("/mcp", &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }))
        .ok(200);
    (ann, bob, asked)
}

const LISTS: [&[&str]; 6] = [
    &["peer", "list"],
    &["message", "list"],
    &["task", "list"],
    &["session", "list"],
    &["events", "list"],
    &["tools", "list"],
];

#[test]
fn lists_fit_the_screen_and_a_pipe_gets_everything() {
    let d = Daemon::start();
    let (_, bob, asked) = team(&d);
    for args in LISTS {
        for columns in [100, 60, 40] {
            let ran = with(&d.home, &[("COLUMNS", &columns.to_string())], args);
            for line in ran.ok().lines() {
                assert!(line.chars().count() <= columns, "{args:?} at {columns}: {line}");
            }
            assert!(ran.stdout.lines().count() > 1, "{args:?}: {ran:?}");
            assert!(!ran.stdout.contains('\u{1b}'), "{args:?}: no colours into a pipe");
        }
        let whole = svc(&d.home, args);
        assert!(!whole.ok().contains('…') && !whole.stdout.contains(" ago"), "{args:?}: {whole:?}");
    }
    let screen = [("COLUMNS", "100")];
    let shown = with(&d.home, &screen, &["message", "list"]);
    assert!(shown.stdout.contains('…') && !shown.stdout.contains(&asked), "{shown:?}");
    assert!(shown.stdout.contains(&asked[..14]), "a short id: {shown:?}");
    assert!(svc(&d.home, &["message", "list"]).stdout.contains(&asked));
    assert!(svc(&d.home, &["peer", "list"]).stdout.contains(&bob));
    let narrow = [("COLUMNS", "40")];
    let full = with(&d.home, &narrow, &["message", "list", "--full"]);
    assert!(full.ok().contains(&asked) && !full.stdout.contains('…'), "{full:?}");
    assert!(full.stdout.contains("TYPE"), "all columns: {full:?}");
    let now = ["now", " s ago"];
    let relative = with(&d.home, &screen, &["peer", "list"]);
    assert!(now.iter().any(|word| relative.stdout.contains(word)), "{relative:?}");
    let exact = with(&d.home, &[("COLUMNS", "160")], &["peer", "list", "--utc"]);
    assert!(exact.stdout.contains("Z\n") && !exact.stdout.contains("ago"), "{exact:?}");
}

#[test]
fn long_texts_are_wrapped_at_the_screen() {
    let d = Daemon::start();
    team(&d);
    for args in [&["tools", "show", "peer_send"][..], &["session", "history", "ann"]] {
        let ran = with(&d.home, &[("COLUMNS", "80")], args);
        for line in ran.ok().lines() {
            assert!(line.chars().count() <= 80, "{args:?}: {line}");
        }
        assert!(ran.stdout.lines().count() >= 3, "{args:?}: {ran:?}");
    }
}

#[test]
fn colours_follow_flag_and_environment() {
    let d = Daemon::start();
    team(&d);
    let has_colours = |env: &[(&str, &str)], args: &[&str]| {
        with(&d.home, env, &[&["peer", "list"], args].concat()).ok().contains("\u{1b}[")
    };
    assert!(!has_colours(&[], &[]), "a pipe");
    assert!(has_colours(&[], &["--color", "always"]));
    assert!(has_colours(&[("NO_COLOR", "1")], &["--color", "always"]), "the flag wins");
    assert!(!has_colours(&[], &["--color", "never"]));
    assert_eq!(svc(&d.home, &["peer", "list", "--color", "sometimes"]).code, Some(2));
}

#[test]
fn next_page_hint_is_a_valid_command() {
    let d = Daemon::start();
    let tasks = [new_task(&d), new_task(&d), new_task(&d)];
    let peers = ["ann", "bob", "eve"].map(|name| {
        let body = json!({ "display_name": name, "backend": "test", "session_id": name });
        text(&register(&d, &body), "peer_id")
    });
    let listed = |first: &[&str]| {
        let mut words: Vec<String> = first.iter().map(|word| (*word).to_owned()).collect();
        let mut seen = Vec::new();
        loop {
            let args: Vec<&str> = words.iter().map(String::as_str).collect();
            let ran = svc(&d.home, &args);
            let row = ran.ok().lines().nth(1).expect("a row").to_owned();
            seen.push(row.split_whitespace().next().expect("an id").to_owned());
            let Some(next) = ran.stderr.trim().strip_prefix("next page: svc ") else {
                assert_eq!(ran.stderr, "");
                return seen;
            };
            words = next.split(' ').map(str::to_owned).collect();
        }
    };
    let seen = listed(&["task", "list", "--status", "pending", "--limit", "1"]);
    assert_eq!(seen, tasks.iter().rev().cloned().collect::<Vec<_>>());
    assert_eq!(listed(&["peer", "list", "--limit", "1"]), peers);
}

#[test]
fn empty_list_says_what_to_do_next() {
    let d = Daemon::start();
    for (args, advice) in [
        (&["peer", "list"][..], "svc install"),
        (&["task", "list"], "svc task run"),
        (&["message", "list"], "svc tell"),
        (&["session", "list"], "svc install"),
        (&["ghap", "list"], "start_ghap"),
    ] {
        let ran = svc(&d.home, args);
        assert!(ran.ok().contains(advice), "{args:?}: {ran:?}");
    }
}

#[test]
fn list_that_a_filter_emptied_says_so() {
    let d = Daemon::start();
    team(&d);
    for args in [
        &["peer", "list", "--status", "waiting"][..],
        &["agent", "list", "--backend", "codex"],
        &["agent", "list", "--hosted"],
        &["task", "list", "--agent", "nobody"],
        &["session", "list", "--client", "gemini"],
        &["ghap", "list", "--status", "falsified"],
    ] {
        let ran = svc(&d.home, args);
        assert!(ran.ok().starts_with("none matches"), "{args:?}: {ran:?}");
    }
}

#[test]
fn message_list_has_names_and_filters_open_questions() {
    let d = Daemon::start();
    let (ann, bob, asked) = team(&d);
    let open = |args: &[&str]| {
        let page = svc(&d.home, &[&["message", "list", "--json"], args].concat()).json();
        page["messages"].as_array().expect("messages").clone()
    };
    let [entry] = &open(&["--open"])[..] else { panic!("one question") };
    assert_eq!((&entry["id"], &entry["answered"]), (&json!(asked), &json!(false)));
    assert_eq!(entry["from_name"], "ann");
    let table = svc(&d.home, &["message", "list"]);
    assert!(table.ok().contains("bob with a name"), "{table:?}");
    // Another's message with that correlation id is no answer.
    let answer = |from: &str, to: &str| {
        let body = json!({ "text": "yes", "type": "response", "from_peer": from, "correlation_id": asked });
        d.post(&format!("/v1/peers/{to}/messages"), &body).ok(200)
    };
    answer(&ann, &bob);
    assert_eq!(open(&["--open"]).len(), 1);
    answer(&bob, &ann);
    assert!(open(&["--open"]).is_empty());
    assert_eq!(open(&[]).len(), 3);
    assert_eq!(open(&["--type", "query"])[0]["answered"], true);
    assert_eq!(open(&["--peer", "ann"]).len(), 3, "by name");
    assert_eq!(svc(&d.home, &["message", "list", "--peer", "nobody"]).code, Some(1));
    assert_eq!(open(&["--limit", "2"])[1]["from_name"], "ann", "the latest first");
}

#[test]
fn an_error_under_json_is_json() {
    let home = Home::new();
    let d = Daemon::start();
    let ann = peer(&d, "s-1");
    let problem = |home: &Home, args: &[&str], code: i32| -> Value {
        let ran = svc(home, &[args, &["--json"]].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{args:?}: results alone");
        assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {ran:?}");
        let problem: Value = serde_json::from_str(&ran.stderr).expect("JSON");
        for member in ["type", "title", "detail", "code"] {
            assert!(problem[member].is_string(), "{args:?}: {member} in {problem}");
        }
        assert!(problem["retryable"].is_boolean() && problem["error"] == problem["detail"]);
        problem
    };
    assert_eq!(problem(&home, &["peer", "list"], 1)["code"], "unavailable");
    let unknown = problem(&d.home, &["peer", "show", "peer_unknown"], 1);
    assert_eq!((&unknown["code"], &unknown["status"]), (&json!("not_found"), &json!(404)));
    assert!(unknown["request_id"].is_string(), "{unknown}");
    let said = d.get("/v1/peers/peer_unknown").json();
    for member in ["type", "title", "retryable"] {
        assert_eq!(unknown[member], said[member], "as REST says it");
    }
    assert_eq!(problem(&d.home, &["peer", "list", "--no-such-flag"], 2)["code"], "usage");
    assert_eq!(problem(&d.home, &["events", "list", "--after", "x"], 2)["code"], "usage");
    let refused = problem(&d.home, &["peer", "heartbeat", &ann, "--status", "asleep"], 2);
    assert_eq!((&refused["status"], &refused["field"]), (&json!(422), &json!("status")));
}

#[test]
fn a_refused_value_is_a_usage_error() {
    let d = Daemon::start();
    let ann = peer(&d, "s-1");
    for args in [
        &["peer", "list", "--status", "asleep"][..],
        &["peer", "heartbeat", &ann, "--status", "asleep"],
        &["task", "list", "--limit", "0"],
        &["token", "list", "--limit", "0"],
        &["task", "list", "--cursor", "nonsense"],
        &["task", "list", "--since", "yesterday"],
        &["message", "list", "--type", "shout"],
        &["message", "send", &ann, " "],
        &["ghap", "list", "--status", "lost"],
        &["events", "list", "--limit", "501"],
    ] {
        let ran = svc(&d.home, args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.stderr.starts_with("error: "), "{args:?}: {ran:?}");
    }
}

/// Unlike a value that is never right, it may be there tomorrow.
#[test]
fn an_unknown_thing_is_no_usage_error() {
    let d = Daemon::start();
    for args in [
        &["peer", "show", "nobody"][..],
        &["task", "show", "task_nothing"],
        &["message", "show", "msg_nothing"],
        &["message", "send", "nobody", "hi"],
        &["session", "history", "nobody"],
        &["session", "send", "nobody", "hi", "--timeout", "0"],
        &["ghap", "show", "ghap_nothing"],
        &["events", "list", "--stream", "nothing"],
        &["tools", "show", "nothing"],
        &["agent", "stop", "nobody"],
        &["agent", "start", "nothing"],
        &["send", "--agent", "nobody", "hi"],
        &["mcp", "get", "nothing"],
        &["mcp", "remove", "nothing"],
        &["mcp", "login", "nothing", "--no-browser"],
        &["mcp", "logout", "nothing"],
        &["mcp", "approve", "/there/is/none.json"],
        &["mcp", "secret", "unset", "nothing", "KEY"],
        &["token", "revoke", "nothing"],
        &["project", "move", "/there/is/none"],
        &["mcp-config", "--session", "s", "--cwd", "/there/is/none"],
    ] {
        let ran = svc(&d.home, args);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{args:?}: {ran:?}");
        assert!(ran.stderr.starts_with("error: "), "{args:?}: {ran:?}");
        assert!(!ran.stderr.contains("/v1/"), "no route for a person: {args:?}: {ran:?}");
    }
}

#[test]
fn help_exists_for_argument_words() {
    let home = Home::new();
    // What a parent process waits for.
    let serve = svc(&home, &["help", "serve"]);
    let words: Vec<&str> = serve.ok().split_whitespace().collect();
    assert!(words.join(" ").contains("{running, pid, url, version, busy?}"), "{serve:?}");
    for (args, begins) in [
        (&["help", "hook", "wait"][..], "svc hook"),
        (&["hook", "wait", "--help"], "svc hook"),
        (&["help", "hook", "claude"], "svc hook"),
        (&["help", "task", "show", "task_x"], "svc task show"),
        (&["help", "install", "status"], "svc install status"),
        (&["help", "peer", "list"], "svc peer list"),
    ] {
        let ran = svc(&home, args);
        let usage = ran.ok().lines().find(|line| line.starts_with("Usage: ")).expect("usage");
        assert!(usage.contains(begins), "{args:?}: {ran:?}");
    }
    assert_eq!(svc(&home, &["hook", "--help"]).ok(), svc(&home, &["help", "hook"]).ok());
    for args in [&["help", "nothing"][..], &["help", "peer", "nothing"], &["help", "stop", "now"]] {
        assert_eq!(svc(&home, args).code, Some(2), "{args:?}");
    }
}

#[test]
fn feed_names_actors() {
    let d = Daemon::start();
    let running = Running::spawn(d.home.command(&["events", "tail"]));
    let (_, bob, asked) = team(&d);
    let mut lines = Vec::new();
    eventually(SOON, || {
        lines.extend(running.line());
        lines.iter().any(|line: &String| line.contains("message.queued"))
    });
    let find = |word: &str| lines.iter().find(|line| line.contains(word)).expect(word);
    assert!(find("peer.registered").contains(" team #"), "{lines:?}");
    let question = find("message.queued");
    assert!(question.contains("from peer ann, ") && question.contains("to peer bob with a name"));
    assert!(question.contains(&format!("peer/{bob}")) && question.contains(&asked), "{question}");
    assert!(!lines.iter().any(|line| line.contains("{\"")), "no JSON: {lines:?}");
}

#[test]
fn log_is_readable_and_unchanged_with_json() {
    let home = Home::new();
    let line = r#"{"timestamp":"2026-01-02T03:04:05.678Z","level":"WARN","fields":{"message":"full","bytes":7},"target":"svc"}"#;
    home.write("svc.log", &format!("{line}\n"));
    assert_eq!(svc(&home, &["logs"]).ok(), "2026-01-02T03:04:05.678Z  WARN   full  bytes=7\n");
    assert_eq!(svc(&home, &["logs", "--json"]).ok(), format!("{line}\n"));
    home.write("svc.log", "no entry\n");
    assert_eq!(svc(&home, &["logs", "--json"]).json(), json!({ "line": "no entry" }));
}

#[test]
fn status_is_a_sentence() {
    let d = Daemon::start();
    let ran = svc(&d.home, &["status"]);
    let first = ran.ok().lines().next().expect("a line");
    assert!(first.starts_with("svc 0.") && first.contains(" runs, started "), "{ran:?}");
    assert!(first.contains(&format!("(process {})", d.pid())), "{ran:?}");
    assert!(ran.stdout.contains(&d.url()), "{ran:?}");
    let none = svc(&Home::new(), &["status"]);
    assert!(none.stdout.contains("`svc start`") && none.code == Some(1), "{none:?}");
}

#[test]
fn dry_run_begins_with_a_summary() {
    let home = Home::new();
    let ran = svc(&home, &["install", "claude-code", "--dry-run"]);
    let mut lines = ran.ok().lines();
    let first = lines.next().expect("a line");
    let count: usize =
        first.split(' ').find_map(|word| word.parse().ok()).expect("a number of files");
    assert!(first.starts_with("would change ") && first.contains("nothing is written"), "{first}");
    let files: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    assert_eq!(files.len(), count, "{files:?}");
    let changes = lines.filter(|line| line.starts_with("+++ ")).count();
    assert_eq!(changes, count, "and then the changes: {ran:?}");
}
