//! People: the operator's participant, the receivers of answers, and display names.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{Daemon, Running, hook_payload, svc, svc_with_input, until};
use crate::expect::{each, page, peer, problem, register, text};
use crate::shapes::{ack, peek, read};
use crate::wire::{Caller, tool_call};

const SOON: Duration = Duration::from_secs(20);

/// An agent's participant, registered with a token of its own.
fn agent(d: &Daemon, session: &str) -> String {
    let body = json!({ "display_name": session, "backend": "codex", "session_id": session });
    text(&register(&d.session(session), &body), "peer_id")
}

#[test]
fn answers_reach_only_the_operator() {
    let mut d = Daemon::start();
    let ann = agent(&d, "ann");
    assert_eq!(each(&page(&d.get("/v1/peers"), "peers"), "peer_id"), [ann.as_str()]);
    let to_ann = format!("/v1/peers/{ann}/messages");
    let question = d.post(&to_ann, &json!({ "text": "is it green?", "type": "query" })).ok(200);
    assert_eq!(question["from_peer"], "operator");

    let answer = json!({ "text": "yes", "type": "response", "correlation_id": question["id"] });
    let answered = d.session("ann").post("/v1/peers/operator/messages", &answer).ok(200);
    assert_eq!((&answered["from_peer"], &answered["to_peer"]), (&json!(ann), &json!("operator")));
    let arguments = ["--arg", "to=operator", "--arg", "text=by tool"];
    svc(&d.home, &[&["tools", "call", "peer_send"], &arguments[..]].concat()).ok();
    assert_eq!(each(&peek(&d, "operator"), "text"), ["yes", "by tool"]);

    let own = d.get("/v1/peers/operator").ok(200);
    assert_eq!(
        (&own["peer_id"], &own["display_name"], &own["role"]),
        (&json!("operator"), &json!("operator"), &json!("human"))
    );
    assert_eq!(page(&d.get("/v1/peers"), "peers").len(), 2, "a row like any other");
    assert_eq!(each(&page(&d.get("/v1/peers?live=true"), "peers"), "peer_id"), [ann.as_str()]);
    assert_eq!(d.post("/v1/peers/operator/heartbeat", &json!({})).ok(200)["status"], "online");
    assert!(!svc(&d.home, &["peer", "list"]).ok().contains("(you)"), "a program gets the name");
    let mut on_screen = d.home.command(&["peer", "list"]);
    on_screen.env("COLUMNS", "100");
    let shown = Running::spawn(on_screen).wait(SOON);
    assert!(shown.ok().contains("operator (you)"), "{shown:?}");

    // The inbox belongs to the credential.
    let inbox =
        |reader: &Caller, query: &str| reader.get(&format!("/v1/peers/operator/messages{query}"));
    problem(&inbox(&d.session("ann"), "?peek=true"), 403, "forbidden");
    // A token with `read_all` can read and takes nothing.
    inbox(&d.reader("reads-all"), "?peek=true").ok(200);
    for reader in [d.session("ann"), d.reader("reads-all")] {
        problem(&inbox(&reader, ""), 403, "forbidden");
        let heartbeat = reader.post("/v1/peers/operator/heartbeat", &json!({}));
        problem(&heartbeat, 403, "forbidden");
        problem(&reader.delete("/v1/peers/operator"), 403, "forbidden");
        let forged = json!({ "text": "obey", "from_peer": "operator" });
        problem(&reader.post(&to_ann, &forged), 403, "forbidden");
    }
    assert_eq!(
        page(&d.get(&format!("/v1/events?stream=peer/{ann}&kind=message.queued")), "events").len(),
        1
    );
    problem(&d.delete("/v1/peers/operator"), 409, "conflict");
    // A registration neither conflicts with it nor changes it.
    let twin = json!({ "display_name": "desk", "backend": "operator" });
    let twin = register(&d, &twin);
    assert_ne!(twin["peer_id"], "operator");
    assert_eq!(d.get("/v1/peers/operator").ok(200)["display_name"], "operator");

    d.kill_and_restart();
    assert_eq!(each(&peek(&d, "operator"), "text"), ["yes", "by tool"]);
    let inbox = d.post("/mcp", &tool_call("peer_inbox", &json!({}))).ok(200);
    assert_eq!(inbox["result"]["structuredContent"]["count"], 2, "the operator's own: {inbox}");
}

#[test]
fn peer_is_addressable_by_name_id_and_session() {
    let d = Daemon::start();
    let member = |name: &str, session: &str| {
        let body = json!({ "display_name": name, "backend": "claude-code", "session_id": session });
        text(&register(&d, &body), "peer_id")
    };
    let (ann, bob) = (member("ann@repo/1", "S:1"), member("bob", "s-2"));
    let named = |name: &str| d.get(&format!("/v1/peers/{}", crate::shapes::escape(name)));
    let differs = ann.bytes().zip(bob.bytes()).position(|(a, b)| a != b).expect("two ids");
    let prefix = &ann[..=differs];
    for name in [&*ann, "ann@repo/1", prefix, &prefix["peer_".len()..], "agent:claude:S:1"] {
        assert_eq!(named(name).json()["peer_id"], json!(ann), "{name}: {:?}", named(name));
    }
    for name in ["agent:claude-code:s:1", "AGENT:claude:s%3A1"] {
        assert_eq!(named(name).json()["peer_id"], json!(ann), "{name}: {:?}", named(name));
    }
    for name in ["Bob", "peer_", "peer_zzzz", "zzzz", "agent:codex:s-2", "agent:claude:s", "bo"] {
        problem(&named(name), 404, "not_found");
    }
    // A name is valid wherever an id is.
    let sent = d.post("/v1/peers/bob/messages", &json!({ "text": "a", "from_peer": "ann@repo/1" }));
    let sent = sent.ok(200);
    assert_eq!((&sent["from_peer"], &sent["to_peer"]), (&json!(ann), &json!(bob)));
    assert_eq!(d.post("/v1/peers/bob/heartbeat", &json!({})).ok(200)["peer_id"], json!(bob));
    assert_eq!(each(&peek(&d, "bob"), "text"), ["a"]);
    let acked = d.post("/v1/peers/bob/messages/ack", &json!({ "ids": [sent["id"]] })).ok(200);
    assert_eq!(acked["count"], 1);
    for (tool, arguments) in [
        ("peer_send", json!({ "to": "agent:claude:s-2", "text": "b", "from_peer": "ann@repo/1" })),
        ("peer_inbox", json!({ "peer_id": "bob" })),
        ("peer_heartbeat", json!({ "peer_id": "bob" })),
    ] {
        let answer = d.post("/mcp", &tool_call(tool, &arguments)).ok(200);
        assert_ne!(answer["result"]["isError"], json!(true), "{tool}: {answer}");
    }
    assert_eq!(svc(&d.home, &["peer", "show", "bob", "--json"]).json()["peer_id"], json!(bob));
    assert_eq!(d.delete("/v1/peers/bob").ok(200)["peer_id"], json!(bob));
}

#[test]
fn living_peer_wins_a_name_and_two_are_ambiguous() {
    let d = Daemon::start();
    let member = |session: &str, backend: &str| {
        let body = json!({
            "display_name": "reviewer", "backend": backend, "session_id": session, "path": "/repo/app",
        });
        text(&register(&d, &body), "peer_id")
    };
    let (dead, ann, bob) =
        (member("s-1", "codex"), member("s-2", "gemini"), member("s-3", "codex"));
    let status = |id: &str, status: &str| {
        d.post(&format!("/v1/peers/{id}/heartbeat"), &json!({ "status": status })).ok(200);
    };
    status(&dead, "offline");
    let refused = problem(&d.get("/v1/peers/reviewer"), 422, "invalid_request");
    let detail = text(&refused, "detail");
    let at = |part: &str| detail.find(part).unwrap_or_else(|| panic!("{part} in {detail}"));
    assert!(at(&ann) < at(&dead) && at(&bob) < at(&dead), "the living first: {detail}");
    assert!(at("(reviewer, online, gemini in /repo/app since 20") > at(&ann), "{detail}");
    let send = json!({ "to": "reviewer", "text": "a" });
    let answer = d.post("/mcp", &tool_call("peer_send", &send)).ok(200);
    let error = &answer["result"]["structuredContent"]["error"];
    assert_eq!((&error["type"], &error["field"]), (&json!("validation_error"), &json!("to")));
    let allowed = error["allowed"].as_array().expect("the choices");
    assert_eq!(allowed.len(), 3, "{error}");
    assert_eq!(allowed[2], json!(dead));
    let ran = svc(&d.home, &["peer", "show", "reviewer"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(&ann) && ran.stderr.contains("gemini"), "{ran:?}");

    status(&bob, "offline");
    assert_eq!(d.get("/v1/peers/reviewer").ok(200)["peer_id"], json!(ann), "the only living one");
    status(&ann, "offline");
    problem(&d.get("/v1/peers/reviewer"), 422, "invalid_request");
}

#[test]
fn name_of_several_that_are_gone_lists_the_latest_first() {
    let d = Daemon::start();
    let member = |name: &str, session: &str| {
        let body = json!({
            "display_name": name, "backend": "codex", "session_id": session, "path": "/repo/app",
        });
        let id = text(&register(&d, &body), "peer_id");
        let offline = json!({ "status": "offline" });
        d.post(&format!("/v1/peers/{id}/heartbeat"), &offline).ok(200);
        id
    };
    let gone: Vec<String> = (0..10).map(|n| member("codex@app", &format!("s-{n}"))).collect();
    let detail = text(&problem(&d.get("/v1/peers/codex@app"), 422, "invalid_request"), "detail");
    assert!(detail.contains(&gone[9]) && !detail.contains(&gone[0]), "{detail}");
    let ran = svc(&d.home, &["tell", "codex@app", "hi"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = ran.stderr;
    assert!(told.find(&gone[9]) < told.find(&gone[8]) && !told.contains(&gone[1]), "{told}");
    assert!(told.contains(" since 20") && told.ends_with("and 2 more\n"), "{told}");
}

#[test]
fn name_gives_no_access_to_messages_or_hidden_sessions() {
    let d = Daemon::start();
    let ann = peer(&d, "s-1");
    let prefix = &ann[.."peer_".len() + 12];
    let eve = |name: &str| json!({ "display_name": name, "backend": "codex", "session_id": "eve" });
    let token = d.session("eve");
    for name in [&*ann, prefix, "agent:x:s-1"] {
        register(&token, &eve(name));
        let sent = d.post(&format!("/v1/peers/{prefix}/messages"), &json!({ "text": "a" })).ok(200);
        assert_eq!(sent["to_peer"], json!(ann), "{name}");
    }
    // A token learns nothing of the key of a session that it may not see.
    let backend = text(&d.get(&format!("/v1/peers/{ann}")).ok(200), "backend");
    let key = format!("/v1/peers/agent%3A{backend}%3As-1");
    assert_eq!(d.get(&key).ok(200)["peer_id"], json!(ann));
    let unseen = text(&problem(&token.get(&key), 404, "not_found"), "detail");
    let unknown = format!("/v1/peers/agent%3A{backend}%3As-9");
    let unknown = text(&problem(&token.get(&unknown), 404, "not_found"), "detail");
    assert_eq!(unseen.replace("s-1", "s-9"), unknown);
}

/// Asks in a process of its own, and waits until the question is in the inbox; returns both.
fn asks(d: &Daemon, peer: &str, question: &str, more: &[&str]) -> (Running, Value) {
    let running = Running::spawn(d.home.command(&[&["ask", peer, question], more].concat()));
    let asked =
        until(SOON, || peek(d, peer).into_iter().find(|message| message["text"] == question));
    assert_eq!((&asked["type"], &asked["from_peer"]), (&json!("query"), &json!("operator")));
    (running, asked)
}

/// Sends an answer of the session `session` to the operator.
fn answers(d: &Daemon, session: &str, question: &Value, answer: &str) {
    let body = json!({ "text": answer, "type": "response", "correlation_id": question["id"] });
    d.session(session).post("/v1/peers/operator/messages", &body).ok(200);
}

#[test]
fn ask_prints_only_the_answer_to_its_question() {
    let mut d = Daemon::start();
    let ann = agent(&d, "ann");
    let bob = agent(&d, "bob");
    let (running, asked) = asks(&d, "ann", "is it green?", &[]);
    // Neither other messages nor an answer to another question, or of another, ends the wait.
    d.session("bob").post("/v1/peers/operator/messages", &json!({ "text": "hello" })).ok(200);
    answers(&d, "ann", &json!({ "id": "msg_other" }), "to something else");
    answers(&d, "bob", &asked, "no, says bob");
    answers(&d, "ann", &asked, "yes\nall of it");
    let ran = running.wait(SOON);
    assert_eq!((ran.code, &*ran.stdout), (Some(0), "yes\nall of it\n"), "{ran:?}");
    let others = ["hello", "to something else", "no, says bob"];
    assert_eq!(each(&peek(&d, "operator"), "text"), others);
    assert_eq!(peek(&d, &ann).len(), 0, "answering acknowledges");

    // The daemon is killed and restarted, with the answer given in between or later.
    let (running, asked) = asks(&d, "bob", "and now?", &["--json"]);
    d.kill_and_restart();
    answers(&d, "bob", &asked, "now, too");
    let answer = running.wait(SOON).json();
    assert_eq!((&answer["text"], &answer["from_peer"]), (&json!("now, too"), &json!(bob)));

    // A participant that is gone cannot answer.
    let (running, _) = asks(&d, "bob", "still there?", &[]);
    d.delete(&format!("/v1/peers/{bob}")).ok(200);
    let ran = running.wait(SOON);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("undeliverable"), "{ran:?}");
    assert_eq!(svc(&d.home, &["ask", "nobody", "?"]).code, Some(1));
}

#[test]
fn answer_without_a_waiter_is_in_the_inbox() {
    let d = Daemon::start();
    agent(&d, "ann");
    let (running, asked) = asks(&d, "ann", "is it green?", &[]);
    running.signal(Signal::INT);
    let ran = running.wait(SOON);
    assert_eq!((ran.code, &*ran.stdout), (Some(130), ""), "{ran:?}");
    assert!(ran.stderr.contains("svc inbox"), "{ran:?}");
    let ran = svc(&d.home, &["ask", "ann", "and later?", "--timeout", "0"]);
    assert_eq!(ran.code, Some(1), "no answer is printed: {ran:?}");
    let (told, ran) = (ran.stderr, svc(&d.home, &["ask", "ann", "and this?", "--timeout", "1"]));
    assert!(told.contains("asked ann, which is ") && told.contains("`svc inbox`"), "{told}");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("svc inbox"), "{ran:?}");
    assert_eq!(
        each(&peek(&d, "ann"), "text"),
        ["is it green?", "and later?", "and this?"],
        "all stay open"
    );
    assert!(svc(&d.home, &["inbox"]).ok().contains("your inbox is empty"));

    answers(&d, "ann", &asked, "yes");
    for _ in 0..2 {
        let inbox = svc(&d.home, &["inbox"]);
        let shown = inbox.ok();
        assert!(shown.contains("ann answers") && shown.contains("yes"), "{shown}");
    }
    let json = |args: &[&str]| svc(&d.home, &[args, &["--json"]].concat()).json();
    assert_eq!(json(&["inbox", "--take"])["messages"][0]["state"], "offered");
    assert_eq!(json(&["inbox", "--take"])["count"], 0, "on lease");
    assert_eq!(json(&["inbox"])["count"], 1);
    assert_eq!(json(&["inbox", "--ack"])["count"], 1);
    assert_eq!(json(&["inbox"])["count"], 0);
}

#[test]
fn operator_can_tell_and_answer() {
    let d = Daemon::start();
    let ann = agent(&d, "ann");
    let told = svc_with_input(&d.home, &["tell", "ann", "-"], b"main is\nfrozen\n");
    assert!(told.ok().contains("ann, which is online"), "{told:?}");
    let messages = read(&d, &ann);
    assert_eq!(each(&messages, "text"), ["main is\nfrozen"]);
    assert_eq!(
        (&messages[0]["type"], &messages[0]["from_peer"]),
        (&json!("notification"), &json!("operator"))
    );
    ack(&d, &ann, &[messages[0]["id"].as_str().unwrap()]);

    let none = svc(&d.home, &["reply", "latest", "to nothing"]);
    assert_eq!(none.code, Some(1), "{none:?}");
    let ask = |question: &str| {
        let body = json!({ "text": question, "type": "query" });
        text(&d.session("ann").post("/v1/peers/operator/messages", &body).ok(200), "id")
    };
    let (first, second) = (ask("which\u{1b}[31m branch?"), ask("and when?"));
    let inbox = svc(&d.home, &["inbox"]);
    let shown = inbox.ok();
    assert!(shown.contains("ann asks") && shown.contains(&first), "{shown}");
    assert!(shown.contains("which␛[31m branch?"), "{shown}");

    svc(&d.home, &["reply", "latest", "now"]).ok();
    let unique = first.bytes().zip(second.bytes()).position(|(a, b)| a != b).expect("two ids");
    svc(&d.home, &["reply", &first[..=unique], "main"]).ok();
    let answered = read(&d, &ann);
    assert_eq!(each(&answered, "text"), ["now", "main"]);
    assert_eq!(each(&answered, "correlation_id"), [second, first.clone()]);
    assert_eq!(each(&answered, "type"), ["response", "response"]);
    assert_eq!(peek(&d, "operator").len(), 0, "answered is acknowledged");
    let foreign = svc(&d.home, &["reply", answered[0]["id"].as_str().unwrap(), "?"]);
    assert_eq!(foreign.code, Some(1), "a message to somebody else: {foreign:?}");
    let missing = svc(&d.home, &["answer", "latest"]);
    assert_eq!(missing.code, Some(2), "no option: {missing:?}");
    assert!(missing.stderr.contains("say which option"), "{missing:?}");
    let missing = svc(&d.home, &["answer"]);
    assert!(missing.code == Some(2) && missing.stderr.contains("<OPTION>"), "{missing:?}");
    assert_eq!(
        svc(&d.home, &["message", "show", &first[..=unique], "--json"]).json()["id"],
        json!(first)
    );
    let several = svc(&d.home, &["message", "show", &first[..8]]);
    assert!(several.code == Some(1) && several.stderr.contains("names"), "{several:?}");
}

#[test]
fn latest_means_the_last_open_question() {
    let d = Daemon::start();
    let ann = agent(&d, "ann");
    let say = |kind: &str, words: &str| {
        let body = json!({ "text": words, "type": kind });
        text(&d.session("ann").post("/v1/peers/operator/messages", &body).ok(200), "id")
    };
    let (first, second) = (say("query", "Which\ncolour?"), say("query", &"long ".repeat(40)));
    say("notification", "build 12 is green");
    svc(&d.home, &["ask", "ann", "my own question", "--timeout", "0"]);

    svc(&d.home, &["reply", "latest", "short"]).ok();
    svc(&d.home, &["reply", "latest", "blue"]).ok();
    let had = read(&d, &ann);
    assert_eq!(each(&had, "text"), ["my own question", "short", "blue"]);
    assert_eq!(each(&had[1..], "correlation_id"), [second, first]);

    for _ in 0..2 {
        let none = svc(&d.home, &["reply", "latest", "hi"]);
        assert_eq!((none.code, &*none.stdout), (Some(1), ""), "{none:?}");
        assert!(none.stderr.contains("no question to you is open; `svc tell NAME …`"), "{none:?}");
    }
    assert_eq!(read(&d, &ann).len(), 0, "nothing was sent");
}

#[test]
fn open_question_stays_in_the_inbox_until_answered() {
    let d = Daemon::start();
    agent(&d, "ann");
    for (kind, words) in [("notification", "fyi"), ("query", "Shall I merge?")] {
        let body = json!({ "text": words, "type": kind });
        d.session("ann").post("/v1/peers/operator/messages", &body).ok(200);
    }
    for _ in 0..2 {
        let ran = svc(&d.home, &["inbox", "--ack"]);
        assert!(ran.ok().contains("Shall I merge?"), "{ran:?}");
        assert!(ran.stderr.contains("1 open question stays in the inbox"), "{ran:?}");
    }
    assert_eq!(each(&peek(&d, "operator"), "text"), ["Shall I merge?"]);
    svc(&d.home, &["reply", "latest", "yes"]).ok();
    assert!(svc(&d.home, &["inbox"]).ok().contains("your inbox is empty"));
}

#[test]
fn question_has_the_same_state_on_screen_and_in_a_pipe() {
    let d = Daemon::start();
    agent(&d, "ann");
    svc(&d.home, &["ask", "ann", "which?", "--timeout", "0"]);
    let piped = svc(&d.home, &["message", "list"]);
    assert!(piped.ok().split_whitespace().any(|word| word == "open"), "{piped:?}");
    let raw = svc(&d.home, &["message", "list", "--json"]).json();
    assert_eq!(raw["messages"][0]["state"], "queued");
    assert_eq!(raw["messages"][0]["open"], true, "as the table says: {raw}");
    svc(&d.home, &["tell", "ann", "fyi"]).ok();
    let raw = svc(&d.home, &["message", "list", "--json"]).json();
    assert_eq!(
        (&raw["messages"][0]["open"], &raw["messages"][1]["open"]),
        (&json!(false), &json!(true))
    );
}

#[test]
fn removal_is_confirmed_and_message_errors_suggest_no_peers() {
    let d = Daemon::start();
    let ann = agent(&d, "ann");
    svc(&d.home, &["inbox"]).ok();
    let ran = svc(&d.home, &["message", "ack", "operator", "nope"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("message") && !ran.stderr.contains("did you mean"), "{ran:?}");
    let ran = svc(&d.home, &["message", "ack", "opertor", "nope"]);
    assert!(ran.stderr.contains("did you mean operator?"), "{ran:?}");
    let ran = svc(&d.home, &["peer", "remove", "ann"]);
    assert_eq!(ran.ok(), format!("removed ann ({ann})\n"));
    let ran = svc(&d.home, &["events", "tail", "--after", "x"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("not a number and not `latest`"), "{ran:?}");
}

/// Reports an event of a Claude Code session in the project of these tests.
fn session_event(d: &Daemon, session: &str, event: &str, more: &Value) -> String {
    let payload = hook_payload(session, event, "/nowhere/web", more);
    let arguments = json!({ "client": "claude-code", "event": event, "payload": payload });
    d.post("/mcp", &tool_call("hook_event", &arguments)).ok(200);
    let peers = page(&d.get("/v1/peers"), "peers");
    let own = peers.iter().find(|peer| peer["session_id"] == session).expect("its peer");
    text(own, "display_name")
}

#[test]
fn names_belong_to_living_peers_and_messages_to_sessions() {
    let d = Daemon::start();
    let begins =
        |session: &str| session_event(&d, session, "SessionStart", &json!({ "source": "startup" }));
    let ends =
        |session: &str| session_event(&d, session, "SessionEnd", &json!({ "reason": "exit" }));
    for session in ["s-1", "s-2", "s-3"] {
        assert_eq!(begins(session), "claude-code@web", "{session}");
        assert_eq!(ends(session), "claude-code@web");
    }
    // A living session keeps its name; the name of one that has ended becomes free, whoever wrote
    // to it.
    assert_eq!(begins("s-4"), "claude-code@web");
    assert_eq!(begins("s-5"), "claude-code@web-2");
    svc(&d.home, &["tell", "claude-code@web", "for the fourth"]).ok();
    ends("s-4");
    assert_eq!(begins("s-6"), "claude-code@web");
    svc(&d.home, &["tell", "claude-code@web", "for the sixth"]).ok();
    assert_eq!(peek(&d, "agent:claude:s-4").len(), 1);
    assert_eq!(peek(&d, "agent:claude:s-6").len(), 1);
    svc(&d.home, &["tell", "agent:claude:s-4", "still for the fourth"]).ok();

    // A resumed session gets the shortest free name, and only its own messages.
    let resumed = session_event(&d, "s-4", "SessionStart", &json!({ "source": "resume" }));
    assert_eq!(resumed, "claude-code@web-3");
    assert_eq!(peek(&d, "agent:claude:s-4").len(), 2);
    for session in ["s-1", "s-5"] {
        assert_eq!(peek(&d, &format!("agent:claude:{session}")).len(), 0, "{session}");
    }
}

#[test]
fn message_without_a_receiver_fails_with_one_error() {
    let d = crate::agents::with_config("[agents.echo]\nbackend = \"exec\"\ncommand = [\"cat\"]\n");
    let body = json!({ "instance": "echo", "cwd": d.home.user() });
    let key = text(&d.post("/v1/hosts", &body).ok(201), "session_key");
    d.post(&format!("/v1/hosts/{key}/stop"), &json!({ "force": true })).ok(200);
    crate::agents::ended(&d, &key);
    for command in [&["tell", &*key, "hello"][..], &["ask", &key, "hello?"]] {
        let ran = svc(&d.home, command);
        assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{ran:?}");
        assert!(ran.stderr.contains("its agent has ended"), "{ran:?}");
        assert!(!ran.stderr.contains("svc inbox"), "{ran:?}");
        assert_eq!(svc(&d.home, &[command, &["--json"]].concat()).code, Some(1));
    }
}

#[test]
fn asker_is_present_while_it_waits() {
    let d = Daemon::start();
    agent(&d, "ann");
    let (running, _) = asks(&d, "ann", "is it green?", &[]);
    assert_eq!(d.get("/v1/peers/operator").ok(200)["status"], "online");
    // The wait itself keeps the operator present, and not only its beginning.
    d.post("/v1/peers/operator/heartbeat", &json!({ "status": "offline" })).ok(200);
    crate::daemon::eventually(SOON, || d.get("/v1/peers/operator").ok(200)["status"] == "online");
    running.signal(Signal::INT);
    let ran = running.wait(SOON);
    assert_eq!(ran.code, Some(130), "{ran:?}");
}
