//! The first day of a new user: names, similar names, words for what waits, and errors that say
//! what to do.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, Running, svc, svc_with_input};
use crate::expect::{each, new_task, page, peer, register, text};
use crate::screens::{team, with};

const SOON: Duration = Duration::from_secs(20);

#[test]
fn names_are_whole_if_they_fit_and_usual_columns_hidden() {
    let d = Daemon::start();
    let names = ["claude-code@web-frontend", "codex@web-frontend", "gemini@web-frontend"];
    for name in names {
        let body = json!({ "display_name": name, "backend": "claude-code", "session_id": name, "path": "/a/long/path/of/a/project" });
        register(&d, &body);
    }
    d.post("/v1/peers/operator/heartbeat", &json!({})).ok(200);
    for columns in ["60", "80", "100"] {
        let ran = with(&d.home, &[("COLUMNS", columns)], &["peer", "list"]);
        for name in names.iter().chain(&["operator (you)"]) {
            assert!(ran.ok().contains(name), "{columns}: {ran:?}");
        }
        assert!(!ran.stdout.contains("CIRCLE"), "{columns}: {ran:?}");
    }
    assert!(svc(&d.home, &["peer", "list"]).stdout.contains("default"), "a program gets all");
}

#[test]
fn open_questions_are_marked_on_a_narrow_screen() {
    let d = Daemon::start();
    let none = svc(&d.home, &["message", "list", "--open"]);
    assert_eq!(none.ok(), "none matches; without its filters the list has all\n");
    let (_, _, asked) = team(&d);
    let ran = with(&d.home, &[("COLUMNS", "60")], &["message", "list"]);
    let row = ran.ok().lines().nth(1).expect("a row");
    assert!(row.contains(&asked[..14]) && row.contains(" open "), "{ran:?}");
    assert!(row.contains("ann") && row.contains("bob"), "{ran:?}");
    let piped = svc(&d.home, &["message", "list"]);
    assert!(piped.ok().contains("open") && !piped.stdout.contains("queued"), "{piped:?}");
    let raw = svc(&d.home, &["message", "list", "--json"]);
    assert!(raw.stdout.contains("queued"), "a program gets the state");
}

#[test]
fn narrow_screen_shows_sender_receiver_and_owner() {
    let d = Daemon::start();
    let session = "5f0c2d1e-9a6b-4a6b-8f4e-b43996ebb001";
    let member = |name: &str, session: &str| {
        let body = json!({ "display_name": name, "backend": "claude-code", "session_id": session });
        register(&d, &body);
    };
    member("claude-code@web", session);
    member("codex@api", "019b2d1e");
    let start = json!({ "session_id": session, "cwd": "/work" });
    let params = json!({ "name": "start_session", "arguments": start });
    d.post("/mcp", &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }))
        .ok(200);
    let args = ["message", "send", "claude-code@web", "--from", "codex@api"];
    svc(&d.home, &[&args[..], &["the orders API returns cents from now on"]].concat()).ok();
    for columns in ["60", "100"] {
        let shown = |args: &[&str]| with(&d.home, &[("COLUMNS", columns)], args);
        let list = shown(&["message", "list"]);
        for words in ["STATE", "claude-code", "codex@api", "the orders"] {
            assert!(list.ok().contains(words), "{columns}: {words}: {list:?}");
        }
        let inbox = shown(&["message", "inbox", "claude-code@web"]);
        assert!(inbox.ok().contains("codex@api"), "{columns}: {inbox:?}");
        assert!(!inbox.stdout.contains("peer_") && inbox.stdout.contains("the orders API"));
        let sessions = shown(&["session", "list"]);
        assert!(sessions.ok().contains("claude-code@web"), "{columns}: {sessions:?}");
        assert!(sessions.stdout.contains("5f0c2d1e"), "{columns}: {sessions:?}");
    }
}

#[test]
fn session_and_message_are_named_in_every_way() {
    let d = Daemon::start();
    let session = "8cc9c970-9a6b-4a6b-8f4e-b43996ebb001";
    let own = json!({ "display_name": "claude-code@web", "backend": "claude-code", "session_id": session });
    register(&d, &own);
    let start = json!({ "session_id": session, "cwd": "/work" });
    let params = json!({ "name": "start_session", "arguments": start });
    d.post("/mcp", &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }))
        .ok(200);
    let none = svc(&d.home, &["message", "show", "latest"]);
    assert!(none.code == Some(1) && none.stderr.contains("no messages"), "{none:?}");
    svc(&d.home, &["tell", "claude-code@web", "main is frozen"]).ok();
    for name in [session, "8cc9c970", "latest", "agent:claude:8cc9c970", "claude-code@web"] {
        let ran = svc(&d.home, &["session", "history", name]);
        assert!(ran.ok().contains("main is frozen"), "{name}: {ran:?}");
    }
    let latest = svc(&d.home, &["message", "show", "latest", "--json"]).json();
    assert_eq!(latest["text"], "main is frozen", "also if it is to another");
}

/// `svc agent list` shows it, so the other commands must not deny that it exists.
#[test]
fn commands_for_agents_name_those_for_attended_sessions() {
    let d = Daemon::start();
    register(&d, &json!({ "display_name": "codex@api", "backend": "codex", "session_id": "s-1" }));
    for args in [
        &["agent", "status", "codex@api"][..],
        &["agent", "history", "codex@api"],
        &["agent", "send", "codex@api", "hi"],
        &["agent", "stop", "codex@api"],
    ] {
        let ran = svc(&d.home, args);
        assert_eq!(ran.code, Some(1), "{args:?}: {ran:?}");
        for words in ["attended", "svc peer show", "svc session history", "svc tell"] {
            assert!(ran.stderr.contains(words), "{args:?}: {words}: {ran:?}");
        }
    }
}

#[test]
fn work_for_a_peer_that_takes_none_suggests_tell() {
    let d = Daemon::start();
    register(&d, &json!({ "display_name": "codex@api", "backend": "codex", "session_id": "s-1" }));
    for args in [&["send", "codex@api", "hi"][..], &["send", "--agent", "codex@api", "hi"]] {
        let ran = svc(&d.home, args);
        assert!(ran.code == Some(2) && ran.stderr.contains("svc tell"), "{args:?}: {ran:?}");
    }
    let nobody = svc(&d.home, &["send", "--agent", "nobody", "hi"]);
    assert!(nobody.code == Some(1) && !nobody.stderr.contains("svc tell"), "{nobody:?}");
}

#[test]
fn session_tree_shows_names_on_a_narrow_screen() {
    let d = Daemon::start();
    let session = "5f0c2d1e-9a6b-4a6b-8f4e-b43996ebb001";
    let peer = json!({ "display_name": "claude-code@web-2", "backend": "claude-code", "session_id": session });
    register(&d, &peer);
    for (columns, key) in [("60", "agent:claude:5f0c2d1e"), ("100", session)] {
        let ran = with(&d.home, &[("COLUMNS", columns)], &["session", "tree"]);
        assert!(ran.ok().contains("claude-code@web-2"), "{columns}: {ran:?}");
        assert!(ran.stdout.contains(key), "{columns}: {ran:?}");
    }
}

#[test]
fn bad_log_level_is_refused_and_missing_limits_are_shown() {
    let home = Home::new();
    let wrong = svc(&home, &["config", "show", "--log-level", "verbose"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("`verbose` is not a log level"), "{wrong:?}");
    for level in ["DEBUG", "off", "warn,svc=debug", "svc_server::http=trace"] {
        svc(&home, &["config", "show", "--log-level", level]).ok();
    }
    let shown = svc(&home, &["config", "show"]);
    let row = shown.ok().lines().find(|line| line.starts_with("sources.expose")).expect("a row");
    assert!(row.contains("(by the credential)"), "{row}");
}

#[test]
fn message_is_shown_with_names_and_states() {
    let d = Daemon::start();
    let (_, _, asked) = team(&d);
    let ran = with(&d.home, &[("COLUMNS", "60")], &["message", "show", &asked]);
    let shown = ran.ok();
    for words in ["type:", "query", "ann (peer_", "bob with a name", "queued"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(!shown.contains("{\""), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 60), "{shown}");
    let whole: String = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        whole.contains("with all of its tests and examples, work for you on that machine?"),
        "{shown}"
    );
}

#[test]
fn mistyped_name_lists_similar_ones() {
    let d = Daemon::start();
    for name in ["codex@mono", "gemini@mono"] {
        let body = json!({ "display_name": name, "backend": "codex", "session_id": name });
        register(&d, &body);
    }
    for (args, words) in [
        (&["tell", "codex", "hi"][..], "did you mean codex@mono?"),
        (&["tell", "CODEX@mono", "hi"], "did you mean codex@mono?"),
        (&["ask", "gemni@mono", "hi", "--timeout", "0"], "did you mean gemini@mono?"),
        (&["message", "send", "mono", "hi"], "did you mean codex@mono or gemini@mono?"),
        (&["tell", "nobody", "hi"], "`svc agent list` shows who is here"),
        (&["reply", "latest", "yes"], "no question to you is open; `svc tell NAME …`"),
    ] {
        let ran = svc(&d.home, args);
        assert!(ran.code == Some(1) && ran.stderr.contains(words), "{args:?}: {ran:?}");
        let json = svc(&d.home, &[args, &["--json"]].concat());
        let problem: Value = serde_json::from_str(&json.stderr).expect("JSON");
        assert_eq!(problem["code"], "not_found", "{args:?}: {problem}");
    }
    // One candidate a line, with its name.
    let ran = svc(&d.home, &["peer", "show", "peer_"]);
    assert_eq!(ran.code, Some(1), "no digit of it: {ran:?}");
    let mut ids = each(&page(&d.get("/v1/peers"), "peers"), "peer_id");
    ids.retain(|id| id.starts_with("peer_"));
    assert_eq!(ids.len(), 2, "{ids:?}");
    let common = ids[0].bytes().zip(ids[1].bytes()).take_while(|(a, b)| a == b).count();
    let ran = svc(&d.home, &["peer", "show", &ids[0][..common]]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for id in &ids {
        let is_candidate =
            |line: &str| line.trim().starts_with(id.as_str()) && line.contains("online");
        let line = ran.stderr.lines().find(|line| is_candidate(line)).expect("a line of its own");
        assert!(line.contains("@mono"), "{line}");
    }
}

#[test]
fn message_shows_when_it_is_read_and_wait_shows_why_it_ended() {
    let d = Daemon::start();
    let ann = peer(&d, "s-1");
    let name = text(&d.get(&format!("/v1/peers/{ann}")).ok(200), "display_name");
    let told = svc(&d.home, &["tell", &name, "hi"]);
    assert!(told.ok().contains("which is online: it reads the message "), "{told:?}");
    let away = json!({ "status": "offline" });
    d.post(&format!("/v1/peers/{ann}/heartbeat"), &away).ok(200);
    let told = svc(&d.home, &["tell", &name, "hi"]);
    assert!(
        told.ok().contains("which is offline: it gets the message when it is back"),
        "{told:?}"
    );
    let asked = svc(&d.home, &["ask", &name, "hi?", "--timeout", "1"]);
    assert_eq!((asked.code, &*asked.stdout), (Some(1), ""), "{asked:?}");
    let waits = asked.stderr.lines().next().expect("what it waits for, in a pipe, too");
    assert!(waits.contains("waiting for the answer to msg_"), "{asked:?}");
    let why = asked.stderr.lines().last().expect("why it ended");
    assert!(why.contains("is offline") && why.contains("stays open"), "{asked:?}");
}

#[test]
fn full_inbox_is_named_in_the_error() {
    let d = Daemon::with(|plan| plan.env("SVC_INBOX_MAX", "1"));
    let ann = peer(&d, "s-1");
    let name = text(&d.get(&format!("/v1/peers/{ann}")).ok(200), "display_name");
    svc(&d.home, &["tell", &name, "first"]).ok();
    let full = svc(&d.home, &["tell", &name, "second"]);
    assert_eq!(full.code, Some(1), "{full:?}");
    assert!(full.stderr.contains(&format!("the inbox of {name:?} holds 1 ")), "{full:?}");
    assert!(
        full.stderr.contains("svc message ack") && !full.stderr.contains("try again"),
        "{full:?}"
    );
    // A broadcast without receivers is refused.
    let cast = svc(&d.home, &["message", "broadcast", "to all"]);
    assert_eq!(cast.code, Some(1), "{cast:?}");
    assert!(cast.stderr.contains("every inbox that it was for holds 1 messages"), "{cast:?}");
    let bob = peer(&d, "s-2");
    let cast = svc(&d.home, &["message", "broadcast", "to all"]);
    let said = format!(
        "delivered to 1: 1 now, 0 when they are back; not taken by 1, whose inbox is full: {name}"
    );
    assert_eq!(cast.ok().trim(), said);
    d.delete(&format!("/v1/peers/{bob}")).ok(200);
    peer(&d, "s-3");
    let cast = svc(&d.home, &["message", "broadcast", "to all", "--json"]).json();
    assert_eq!(cast["refused_by"], json!([ann]));
}

#[test]
fn options_without_a_command_print_the_help() {
    let home = Home::new();
    let payload = br#"{"hook_event_name":"Stop","session_id":"s-1"}"#;
    for (args, input) in [(&[][..], &b""[..]), (&["--json"], b""), (&["--utc", "--json"], payload)]
    {
        let help = svc_with_input(&home, args, input);
        assert!(help.ok().contains("Usage: svc [OPTIONS] [COMMAND]"), "{args:?} {help:?}");
    }
}

#[test]
fn help_into_a_closed_pipe_exits_zero() {
    let home = Home::new();
    let program = env!("CARGO_BIN_EXE_svc");
    for args in ["", "help task show task_x"] {
        // The reader has closed the pipe before the first write.
        let script = format!("({program} {args} </dev/null; echo $? >\"$CODE\") | true");
        let code = home.path("code");
        std::fs::create_dir_all(home.dir()).expect("a folder");
        for _ in 0..8 {
            let mut again = Command::new("bash");
            // In any other language bash may have something to say.
            again.args(["-c", &script]).env_clear().env("CODE", &code).env("HOME", home.user());
            again.env("PATH", std::env::var_os("PATH").unwrap_or_default());
            let ran = Running::spawn(again).wait(SOON);
            assert_eq!(ran.stderr, "", "{args}: {ran:?}");
            assert_eq!(String::from_utf8_lossy(&home.read("code")).trim(), "0", "{args}");
        }
    }
}

#[test]
fn latest_task_and_session_by_name_are_shown() {
    let d = Daemon::start();
    let none = svc(&d.home, &["task", "show", "latest"]);
    assert!(none.code == Some(1) && none.stderr.contains("svc task run"), "{none:?}");
    new_task(&d);
    let last = new_task(&d);
    assert_eq!(svc(&d.home, &["task", "show", "latest", "--json"]).json()["task_id"], json!(last));
    team(&d);
    let shown = svc(&d.home, &["session", "show", "ann", "--json"]).json();
    assert_eq!(shown["session_id"], "s-1");
    let eve = json!({ "display_name": "eve", "backend": "claude", "session_id": "s-9" });
    register(&d, &eve);
    let silent = svc(&d.home, &["session", "history", "eve"]);
    assert!(silent.ok().contains("nothing was said"), "{silent:?}");
    let sent = svc(&d.home, &["session", "send", "ann", "main is frozen", "--notify"]);
    assert_eq!(sent.code, Some(0), "{sent:?}");
    assert!(sent.stderr.contains("has the message") && !sent.stderr.contains("answer"), "{sent:?}");
    for args in [
        &["session", "show", "nobody"][..],
        &["session", "history", "nobody"],
        &["session", "send", "nobody", "hi"],
    ] {
        let ran = svc(&d.home, args);
        assert!(
            ran.code == Some(1) && ran.stderr.contains("svc session list"),
            "{args:?}: {ran:?}"
        );
        assert!(!ran.stderr.contains("sessions_list"), "{args:?}: {ran:?}");
    }
}

#[test]
fn expired_and_revoked_tokens_are_shown_on_demand() {
    let d = Daemon::start();
    d.session("s-good");
    d.session("s-gone");
    let tokens = |args: &[&str]| {
        let page = svc(&d.home, &[&["token", "list", "--json"], args].concat()).json();
        each(page["tokens"].as_array().expect("rows"), "session")
    };
    let all = svc(&d.home, &["token", "list", "--json"]).json();
    let gone =
        all["tokens"].as_array().expect("rows").iter().find(|row| row["session"] == "s-gone");
    svc(&d.home, &["token", "revoke", &text(gone.expect("it is there"), "token_id")]).ok();
    assert_eq!(tokens(&[]), ["s-good"]);
    assert_eq!(tokens(&["--limit", "1"]), ["s-good"], "what is passed over makes no page empty");
    assert_eq!(tokens(&["--all"]).len(), 2);
}
