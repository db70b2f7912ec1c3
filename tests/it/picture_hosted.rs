//! The reported state of hosted agents and of their answers is what a person would see there.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::{dispatch, ended, kill, over, with_config};
use crate::daemon::{Daemon, Home, Running, eventually, hook_payload, svc, until};
use crate::expect::{events, text};
use crate::wire::Caller;

const SOON: Duration = Duration::from_secs(30);

/// Stand-ins for Claude Code. All but `mute` complete the handshake, and each reads one prompt.
const CONFIG: &str = r#"
[agents.slow]
backend = "claude"
start_timeout = "1s"
command = ["sh", "-c", '''HELLO; read prompt; sleep 2; echo '{"type":"result","subtype":"success","is_error":false,"result":"at last"}'; read more''']
[agents.mute]
backend = "claude"
start_timeout = "1s"
command = ["sh", "-c", "trap 'exit 0' TERM; cat > /dev/null"]
[agents.leaves]
backend = "claude"
command = ["sh", "-c", '''HELLO; read prompt; exit 0''']
[agents.polite]
backend = "claude"
command = ["sh", "-c", '''HELLO; trap 'exit 0' TERM; read prompt; while :; do sleep 0.05; done''']
[agents.stays]
backend = "claude"
command = ["sh", "-c", '''HELLO; while read prompt; do sleep 600; done''']
[agents.asks]
backend = "claude"
command = ["sh", "-c", '''HELLO; read prompt; echo '{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Write","input":{"file_path":"/etc/x"},"permission_suggestions":[]}}'; read answer; echo '{"type":"result","subtype":"success","is_error":false,"result":"so be it"}'; read more''']
[agents.fails]
backend = "claude"
command = ["sh", "-c", '''HELLO; while read prompt; do echo '{"type":"result","subtype":"error_during_execution","is_error":true,"result":"no credit"}'; done''']
[agents.recovers]
backend = "claude"
command = ["sh", "-c", '''HELLO; read prompt; echo '{"type":"result","subtype":"error_during_execution","is_error":true,"result":"no credit"}'; read prompt; sleep 600''']
[agents.limited]
backend = "claude"
failover_to = ["task"]
command = ["sh", "-c", '''HELLO; while read prompt; do
  until [ -e "$HOME/turn" ]; do sleep 0.05; done
  if [ -e "$HOME/over" ]; then
    echo '{"type":"result","subtype":"success","is_error":false,"result":"so be it"}'
  else
    echo '{"type":"rate_limit_event","rate_limit_info":{"status":"rejected"}}'
    echo '{"type":"assistant","error":"rate_limit","message":{"model":"<synthetic>","content":[{"type":"text","text":"no usage left"}]}}'
    echo '{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"no usage left"}'
  fi
done''']
[agents.retries]
backend = "claude"
command = ["sh", "-c", '''HELLO; while read prompt; do
  until [ -e "$HOME/turn" ]; do sleep 0.05; done
  echo '{"type":"system","subtype":"api_retry","attempt":1,"error":"rate_limit","error_status":429}'
  echo '{"type":"result","subtype":"error_during_execution","is_error":true,"result":"broken"}'
done''']
[agents.task]
backend = "exec"
command = ["sh", "-c", "read line; echo did $line"]
"#;

const HELLO: &str = r#"read init; echo '{"type":"control_response","response":{"subtype":"success","request_id":"svc-initialize","response":{}}}'"#;

fn world() -> Daemon {
    with_config(&CONFIG.replace("HELLO", HELLO))
}

#[track_caller]
fn start(d: &Daemon, instance: &str, prompt: Option<&str>) -> Value {
    let body = json!({ "instance": instance, "cwd": d.home.user(), "prompt": prompt });
    d.post("/v1/hosts", &body).ok(201)
}

/// The participant of an instance's agent `main`.
fn peer(d: &Daemon, instance: &str) -> Value {
    let peers = d.get("/v1/peers?limit=500").ok(200);
    let peers = peers["peers"].as_array().expect("a list");
    let key = format!("agent:{instance}:main");
    let found = peers.iter().find(|peer| peer["session_id"] == key);
    found.unwrap_or_else(|| panic!("{key}: {peers:?}")).clone()
}

#[track_caller]
fn signal(pid: &Value, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid.as_u64().expect("a pid")).expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("it can be signalled");
}

/// Reports an event of a client's session, and returns the hook's output.
#[track_caller]
fn hook(caller: &Caller, client: &str, event: &str, more: &Value) -> String {
    let payload = hook_payload("s", event, "/nowhere/p", more);
    let arguments = json!({ "client": client, "payload": payload });
    caller.done("hook_event", &arguments).to_string()
}

/// A session with a participant, which gets answers.
#[track_caller]
fn asker(d: &Daemon) -> Caller {
    let asker = d.mint("s-1", d.home.user(), &[]);
    asker.post("/v1/peers/register", &json!({ "display_name": "ann", "backend": "codex" })).ok(200);
    asker
}

#[track_caller]
fn inbox(caller: &Caller) -> Vec<String> {
    let inbox = caller.done("peer_inbox", &json!({ "peek": true }));
    inbox["messages"].as_array().expect("messages").iter().map(|it| text(it, "text")).collect()
}

#[track_caller]
fn message(d: &Daemon, id: &str) -> Value {
    d.get(&format!("/v1/messages/{id}")).ok(200)
}

#[track_caller]
fn peer_of(d: &Daemon, name: &str) -> String {
    let found = || {
        let peers = d.get("/v1/peers?limit=500").ok(200);
        let peers = peers["peers"].as_array().expect("a list").clone();
        peers.into_iter().find(|peer| peer["session_id"] == name || peer["display_name"] == name)
    };
    text(&until(SOON, found), "peer_id")
}

#[test]
fn agent_status_follows_its_host_during_silence() {
    let home = Home::new();
    home.write("config.toml", &CONFIG.replace("HELLO", HELLO));
    let d = Daemon::with(|plan| plan.home(&home).env("SVC_PEER_TIMEOUT_MS", "300"));
    start(&d, "task", None);
    start(&d, "stays", Some("go"));
    start(&d, "asks", Some("go"));
    eventually(SOON, || peer(&d, "stays")["status"] == "busy");
    eventually(SOON, || peer(&d, "asks")["status"] == "waiting");
    let asked = peer(&d, "asks")["waiting_for"].clone();
    assert_eq!((&asked["kind"], &asked["title"]), (&json!("permission"), &json!("Write: /etc/x")));
    // A participant without a host goes offline meanwhile.
    let silent = json!({ "display_name": "silent", "backend": "codex", "path": "/p" });
    let silent = text(&d.post("/v1/peers/register", &silent).ok(200), "peer_id");
    eventually(SOON, || d.get(&format!("/v1/peers/{silent}")).ok(200)["status"] == "offline");
    // A host that a busy machine held up is unreachable for a moment.
    eventually(SOON, || {
        let states = ["task", "stays", "asks"].map(|name| text(&peer(&d, name), "status"));
        states == ["idle", "busy", "waiting"]
    });
    // Each message is a turn of its own, and waits for the one under way.
    for (name, delivery) in [("stays", "next_turn"), ("asks", "next_turn"), ("task", "wakes")] {
        let inbox = format!("/v1/peers/{}/messages", text(&peer(&d, name), "peer_id"));
        let sent = d.post(&inbox, &json!({ "text": "hello" })).ok(200);
        assert_eq!(sent["delivery"], delivery, "{name}: {sent}");
    }
}

#[test]
fn message_to_a_blocked_agent_says_how_to_permit() {
    let d = world();
    start(&d, "asks", Some("go"));
    eventually(SOON, || peer(&d, "asks")["status"] == "waiting");
    let key = "agent:asks:main";
    let answer = format!("svc agent answer {key} latest OPTION");
    let told = svc(&d.home, &["tell", key, "hello"]);
    assert!(told.ok().contains(&format!("; it needs your answer first: {answer}")), "{told:?}");
    let asked = svc(&d.home, &["ask", key, "are you there?", "--timeout", "0"]);
    assert!(asked.stderr.contains(&answer), "{asked:?}");
    let task = dispatch(&d, json!({ "instance": key, "prompt": "go" }));
    let reason = until(SOON, || {
        let task = d.get(&format!("/v1/tasks/{task}")).ok(200);
        task["reason"].as_str().map(str::to_owned)
    });
    assert!(
        reason.ends_with(&format!("present turn, which needs your answer: {answer}")),
        "{reason}"
    );
}

#[test]
fn agent_with_a_silent_host_is_unreachable() {
    let d = world();
    let agent = start(&d, "task", None);
    eventually(SOON, || peer(&d, "task")["status"] == "idle");
    signal(&agent["host_pid"], rustix::process::Signal::STOP);
    eventually(SOON, || peer(&d, "task")["status"] == "unreachable");
    let shown = d.get("/v1/hosts?state=unreachable").ok(200);
    assert_eq!((&shown["count"], &shown["hosts"][0]["id"]), (&json!(1), &agent["id"]), "{shown}");
    assert_eq!(d.get("/v1/hosts?state=idle").ok(200)["count"], 0);
    signal(&agent["host_pid"], rustix::process::Signal::CONT);
    eventually(SOON, || peer(&d, "task")["status"] == "idle");
    assert_eq!(d.get("/v1/hosts?state=idle").ok(200)["count"], 1);
}

#[test]
fn work_for_an_instance_starts_an_agent_beside_the_living_one_of_that_name() {
    let d = world();
    start(&d, "task", None);
    for (name, word, agents) in [("task", "this", 2), ("agent:task:main", "that", 2)] {
        let sent = svc(&d.home, &["send", name, word]);
        assert_eq!(sent.ok(), format!("did {word}\n"), "{name}: {sent:?}");
        assert_eq!(d.get("/v1/hosts").ok(200)["count"], agents, "{name}");
    }
}

#[test]
fn slow_first_output_is_no_failed_start() {
    let d = world();
    let task = dispatch(&d, json!({ "instance": "slow", "prompt": "go" }));
    let task = over(&d, &task);
    assert_eq!((&task["status"], &task["result"]), (&json!("done"), &json!("at last")), "{task}");
}

/// The error of a failed turn does not describe the next one.
#[test]
fn error_of_a_turn_is_cleared_by_the_next() {
    let d = world();
    let id = text(&start(&d, "recovers", Some("go")), "id");
    let shown = || d.get(&format!("/v1/hosts/{id}")).ok(200);
    let state = |shown: &Value| (text(shown, "state"), shown["error"].as_str().map(str::to_owned));
    let failed = ("idle".to_owned(), Some("no credit".to_owned()));
    eventually(SOON, || state(&shown()) == failed);
    d.post(&format!("/v1/hosts/{id}/send"), &json!({ "input": "again" })).ok(200);
    eventually(SOON, || shown()["state"] == "running");
    assert_eq!(state(&shown()), ("running".to_owned(), None));
}

/// Each turn at a usage limit would be refused, and what it was given would be lost.
#[test]
fn mail_at_a_usage_limit_waits_for_a_turn_that_is_not_refused() {
    let d = world();
    let touch = |name: &str| fs::write(d.home.user().join(name), "").expect("it can be written");
    let id = text(&start(&d, "limited", Some("one")), "id");
    let send =
        |input: &str| d.post(&format!("/v1/hosts/{id}/send"), &json!({ "input": input })).ok(200);
    let two = send("two");
    assert_eq!(two["queued"], true);
    touch("turn");
    eventually(SOON, || peer(&d, "limited")["waiting_for"]["kind"] == "limit");
    // The limit shows before the turn ends, and a send in that turn would be queued.
    eventually(SOON, || outcomes(&d, &id).len() == 1);
    let told = svc(&d.home, &["tell", "agent:limited:main", "three"]);
    assert!(told.ok().contains("when its usage limit is over"), "{told:?}");
    // Work for the instance does not go to this agent, which would lose the work.
    let work = json!({ "instance": "limited", "prompt": "x", "opts": { "mode": "peer-only" } });
    let refusal = d.post("/v1/send_message", &work).ok(503);
    assert!(text(&refusal, "detail").contains("no live peer"), "{refusal}");
    touch("over");
    // The input that is sent now begins a turn, and the input that waits follows.
    let four = send("four");
    assert_eq!(four["queued"], false, "{four}");
    eventually(SOON, || outcomes(&d, &id).len() == 4);
    assert_eq!(outcomes(&d, &id), ["refused", "completed", "completed", "completed"]);
    let events = events(&d, &format!("agent/{id}"));
    let turns = events.iter().map(|event| &event["data"]["turn"]["message_id"]);
    let begun: Vec<_> = turns.filter(|message| message.is_string()).collect();
    assert_eq!(begun[1..3], [&four["message_id"], &two["message_id"]], "{begun:?}");
}

/// How the turns of an agent ended.
fn outcomes(d: &Daemon, agent: &str) -> Vec<Value> {
    let events = events(d, &format!("agent/{agent}"));
    let ended = events.into_iter().map(|event| event["data"]["turn"]["outcome"].clone());
    ended.filter(|outcome| !outcome.is_null()).collect()
}

/// Nobody says when such a limit ends, so the next input shows whether it has.
#[test]
fn turn_that_fails_otherwise_ends_a_limit_without_an_end() {
    let d = world();
    let id = text(&start(&d, "retries", Some("one")), "id");
    let two = d.post(&format!("/v1/hosts/{id}/send"), &json!({ "input": "two" })).ok(200);
    assert_eq!(two["queued"], true);
    fs::write(d.home.user().join("turn"), "").expect("it can be written");
    eventually(SOON, || outcomes(&d, &id).len() == 2);
    assert_eq!(outcomes(&d, &id), ["failed", "failed"]);
}

/// What the client says of a refusal is no word of the agent.
#[test]
fn work_that_a_usage_limit_refuses_goes_to_the_next_instance() {
    let d = world();
    fs::write(d.home.user().join("turn"), "").expect("it can be written");
    let task = over(&d, &dispatch(&d, json!({ "instance": "limited", "prompt": "go" })));
    assert_eq!((&task["status"], &task["result"]), (&json!("done"), &json!("did go")), "{task}");
}

#[test]
fn task_fails_if_its_agent_ends_before_the_reply() {
    let d = world();
    let mute = over(&d, &dispatch(&d, json!({ "instance": "mute", "prompt": "go" })));
    assert_eq!(mute["status"], "failed", "{mute}");
    assert!(text(&mute, "error").contains("start_timeout"), "{mute}");

    let leaves = over(&d, &dispatch(&d, json!({ "instance": "leaves", "prompt": "go" })));
    assert_eq!(leaves["status"], "failed", "{leaves}");
    assert!(text(&leaves, "error").contains("before it answered"), "{leaves}");

    // Exit code 0 of a program that was asked to end is no answer.
    let task = dispatch(&d, json!({ "instance": "polite", "prompt": "go" }));
    let agent = until(SOON, || {
        let live = d.get("/v1/hosts?live=true&instance=polite").ok(200);
        live["hosts"].as_array()?.iter().find(|agent| agent["state"] == "running").cloned()
    });
    let id = text(&agent, "id");
    d.post(&format!("/v1/hosts/{id}/stop"), &json!({})).ok(200);
    let polite = over(&d, &task);
    assert_eq!(polite["status"], "failed", "{polite}");
}

#[test]
fn question_to_a_killed_agent_is_not_acknowledged() {
    let d = world();
    let agent = d.post("/v1/hosts", &json!({ "instance": "stays", "cwd": d.home.user() })).ok(201);
    let asker = asker(&d);
    let to = peer_of(&d, "agent:stays:main");
    let ask = json!({ "to": to, "text": "is it green?", "type": "query" });
    let sent = text(&asker.done("peer_send", &ask), "id");
    eventually(SOON, || message(&d, &sent)["state"] == "injected");
    let id = text(&agent, "id");
    kill(d.get(&format!("/v1/hosts/{id}")).ok(200)["pid"].as_u64().expect("a program"));
    ended(&d, &id);
    let question = message(&d, &sent);
    assert_eq!(question["state"], "injected", "{question}");
    let states = question["states"].as_array().expect("states");
    assert!(states.last().expect("one")["reason"].is_string(), "{question}");
    let told = inbox(&asker);
    assert!(told.len() == 1 && told[0].starts_with("No answer to "), "{told:?}");
    // It is in no inbox, and no answer is expected.
    let waiting = d.get(&format!("/v1/peers/{to}/messages?peek=true")).ok(200);
    assert_eq!(waiting["messages"], json!([]), "{waiting}");
}

#[test]
fn question_of_a_failed_turn_is_not_acknowledged() {
    let d = world();
    start(&d, "fails", None);
    let asker = asker(&d);
    let to = peer_of(&d, "agent:fails:main");
    let ask = json!({ "to": to, "text": "is it green?", "type": "query" });
    let sent = text(&asker.done("peer_send", &ask), "id");
    let told = until(SOON, || inbox(&asker).pop());
    assert!(told.starts_with("No answer to ") && told.contains("no credit"), "{told}");
    let question = message(&d, &sent);
    assert_eq!(question["state"], "injected", "{question}");
    let states = question["states"].as_array().expect("states");
    let reason = states.last().expect("one")["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("no credit"), "{question}");
    // The next one is a turn of its own.
    let again = text(&asker.done("peer_send", &ask), "id");
    eventually(SOON, || inbox(&asker).len() == 2);
    assert_eq!(message(&d, &again)["state"], "injected");
}

/// The end of a turn that a person began answers no question; that of a turn which began with the
/// question does, whoever asked.
#[test]
fn only_the_turn_that_a_question_began_answers_it() {
    for (client, prompt, stop, words) in [
        ("claude-code", "UserPromptSubmit", "Stop", "last_assistant_message"),
        ("gemini", "BeforeAgent", "AfterAgent", "prompt_response"),
    ] {
        let d = Daemon::start();
        let asker = asker(&d);
        hook(&d, client, "SessionStart", &json!({ "source": "startup" }));
        let to = peer_of(&d, "s");
        let ask = |text: &str| {
            asker.done("peer_send", &json!({ "to": to, "text": text, "type": "query" }))
        };
        let first = text(&ask("is it green?"), "id");
        let given = hook(&d, client, prompt, &json!({ "prompt": "tidy up" }));
        assert!(given.contains("is it green?") && given.contains("; only this"), "{given}");
        // The first stop confirms that the model has it, and ends the person's turn.
        hook(&d, client, stop, &json!({ words: "tidied" }));
        assert_eq!(message(&d, &first)["state"], "injected", "{client}");
        assert!(inbox(&asker).is_empty(), "{client}: {:?}", inbox(&asker));

        // A stop that delivers a message begins a turn of its own.
        hook(&d, client, prompt, &json!({ "prompt": "go on" }));
        let second = text(&ask("and now?"), "id");
        let given = hook(&d, client, stop, &json!({ words: "done" }));
        assert!(given.contains("and now?") && given.contains("last words"), "{client}: {given}");
        assert!(inbox(&asker).is_empty(), "{client}: {:?}", inbox(&asker));
        hook(&d, client, stop, &json!({ words: "it is green" }));
        assert_eq!(message(&d, &second)["state"], "acked", "{client}");
        assert_eq!(inbox(&asker), ["it is green"], "{client}");
        assert_eq!(message(&d, &first)["state"], "injected", "{client}");

        // A turn whose end was not reported ends with the person's next prompt.
        hook(&d, client, prompt, &json!({ "prompt": "once more" }));
        let third = text(&ask("and then?"), "id");
        let given = hook(&d, client, stop, &json!({ words: "so" }));
        assert!(given.contains("and then?"), "{client}: {given}");
        hook(&d, client, prompt, &json!({ "prompt": "something else" }));
        hook(&d, client, stop, &json!({ words: "something" }));
        assert_eq!(message(&d, &third)["state"], "injected", "{client}");
        assert_eq!(inbox(&asker).len(), 1, "{client}: {:?}", inbox(&asker));

        // An explicit answer is valid at any time.
        let answer =
            json!({ "text": "yes", "type": "response", "correlation_id": first, "from_peer": to });
        let from = message(&d, &first)["from_peer"].as_str().expect("a peer").to_owned();
        d.post(&format!("/v1/peers/{from}/messages"), &answer).ok(200);
        assert_eq!(message(&d, &first)["state"], "acked", "{client}");
    }
}

/// A question that begins a turn of an attended session: the end of its present turn delivers it.
#[track_caller]
fn begin_turn(d: &Daemon, asker: &Caller, client: &str, (prompt, stop): (&str, &str)) -> String {
    let to = peer_of(d, "s");
    hook(d, client, prompt, &json!({ "prompt": "go on" }));
    let ask = json!({ "to": to, "text": "is it green?", "type": "query" });
    let question = text(&asker.done("peer_send", &ask), "id");
    let given =
        hook(d, client, stop, &json!({ "last_assistant_message": "so", "prompt_response": "so" }));
    assert!(given.contains("is it green?") && given.contains("last words"), "{client}: {given}");
    question
}

/// Asserts that a question failed for this reason: the asker gets it once, and the question does
/// not stay open.
#[track_caller]
fn came_to_nothing(d: &Daemon, asker: &Caller, question: &str, why: &str) {
    eventually(SOON, || !inbox(asker).is_empty());
    assert_eq!(inbox(asker), [format!("No answer to {question}: {why}")]);
    let shown = message(d, question);
    assert_eq!(shown["state"], "injected", "{shown}");
    let states = shown["states"].as_array().expect("states");
    assert_eq!(states.last().expect("one")["reason"], why, "{shown}");
    let waiting = d.get(&format!("/v1/peers/{}/messages?peek=true", peer_of(d, "s"))).ok(200);
    assert_eq!(waiting["messages"], json!([]), "{waiting}");
    let listed = d.get("/v1/messages").ok(200);
    let listed = listed["messages"].as_array().expect("messages");
    let listed = listed.iter().find(|message| message["id"] == question).expect("is listed");
    assert_eq!((&listed["open"], &listed["answered"]), (&json!(false), &json!(false)), "{listed}");
}

#[test]
fn question_of_a_failed_attended_turn_is_not_acknowledged() {
    for (client, at, end, why) in [
        (
            "claude-code",
            ("UserPromptSubmit", "Stop"),
            json!({ "hook_event_name": "StopFailure", "error": "rate_limit", "last_assistant_message": "no credit" }),
            "no credit",
        ),
        (
            "codex",
            ("UserPromptSubmit", "Stop"),
            json!({ "hook_event_name": "Interrupt" }),
            "the turn was interrupted",
        ),
    ] {
        let d = Daemon::start();
        let asker = asker(&d);
        hook(&d, client, "SessionStart", &json!({ "source": "startup" }));
        let question = begin_turn(&d, &asker, client, at);
        hook(&d, client, "x", &end);
        came_to_nothing(&d, &asker, &question, why);
        // Later text answers nothing, and the next question is independent.
        let (prompt, stop) = at;
        hook(&d, client, prompt, &json!({ "prompt": "go on" }));
        hook(&d, client, stop, &json!({ "last_assistant_message": "it is green" }));
        assert_eq!(message(&d, &question)["state"], "injected", "{client}");
        let next = begin_turn(&d, &asker, client, at);
        hook(&d, client, stop, &json!({ "last_assistant_message": "it is red" }));
        assert_eq!(message(&d, &next)["state"], "acked", "{client}");
    }
}

/// At the end of a turn Gemini CLI reports all text since its person's prompt, also if the turn
/// failed.
#[test]
fn answer_excludes_earlier_text_for_the_person() {
    let d = Daemon::start();
    let asker = asker(&d);
    hook(&d, "gemini", "SessionStart", &json!({ "source": "startup" }));
    let turn = |told: &str| {
        let question = begin_turn(&d, &asker, "gemini", ("BeforeAgent", "AfterAgent"));
        // The continuation comes as a prompt.
        let prompt = format!("messageId {question}.\n> is it green?");
        hook(&d, "gemini", "BeforeAgent", &json!({ "prompt": prompt }));
        let end = json!({ "prompt_response": told, "stop_hook_active": true });
        hook(&d, "gemini", "AfterAgent", &end);
        question
    };
    turn("so\nit is green");
    assert_eq!(inbox(&asker), ["it is green"]);
    let failed = turn("so");
    let nothing = format!("No answer to {failed}: the turn ended without text.");
    assert_eq!(inbox(&asker), ["it is green".to_owned(), nothing]);
}

/// A session that ends in the middle of a turn answers nothing, and neither does one whose turn
/// ended without a hook, as its client's transcript shows.
#[test]
fn question_to_an_ended_attended_session_is_not_acknowledged() {
    let d = Daemon::start();
    let asker = asker(&d);
    hook(&d, "claude-code", "SessionStart", &json!({ "source": "startup" }));
    let question = begin_turn(&d, &asker, "claude-code", ("UserPromptSubmit", "Stop"));
    hook(&d, "claude-code", "PostToolUse", &json!({ "tool_name": "Read", "tool_input": {} }));
    hook(&d, "claude-code", "SessionEnd", &json!({ "reason": "exit" }));
    let why = "the session ended during the turn, and its outcome is unknown";
    came_to_nothing(&d, &asker, &question, why);
}

#[test]
fn failed_question_prints_no_answer() {
    let d = Daemon::start();
    hook(&d, "claude-code", "SessionStart", &json!({ "source": "startup" }));
    hook(&d, "claude-code", "UserPromptSubmit", &json!({ "prompt": "go on" }));
    let to = peer_of(&d, "s");
    let asking = Running::spawn(d.home.command(&["ask", &to, "is it green?"]));
    let waiting = format!("/v1/peers/{to}/messages?peek=true");
    eventually(SOON, || d.get(&waiting).ok(200)["messages"] != json!([]));
    let given = hook(&d, "claude-code", "Stop", &json!({ "last_assistant_message": "so" }));
    assert!(given.contains("is it green?"), "{given}");
    let failure = json!({ "hook_event_name": "StopFailure", "error": "x", "last_assistant_message": "no credit" });
    hook(&d, "claude-code", "x", &failure);
    let ran = asking.wait(SOON);
    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{ran:?}");
    assert!(
        ran.stderr.contains("No answer to msg_") && ran.stderr.contains("no credit"),
        "{ran:?}"
    );
}

#[test]
fn waiting_call_fails_with_the_attended_turn() {
    let d = Daemon::start();
    let asker = d.mint("s-1", d.home.user(), &["agents"]);
    hook(&d, "claude-code", "SessionStart", &json!({ "source": "startup", "cwd": d.home.user() }));
    hook(&d, "claude-code", "UserPromptSubmit", &json!({ "prompt": "go on" }));
    for (tool, arguments) in [
        (
            "sessions_send",
            json!({ "sessionKey": "agent:claude:s", "message": "is it green?", "timeoutSeconds": 60 }),
        ),
        (
            "SendMessage",
            json!({ "agent": "agent:claude:s", "prompt": "is it green?", "async": false }),
        ),
    ] {
        let waits = {
            let asker = asker.clone();
            std::thread::spawn(move || asker.tool(tool, &arguments)["structuredContent"].clone())
        };
        let stop = json!({ "last_assistant_message": "so" });
        eventually(SOON, || hook(&d, "claude-code", "Stop", &stop).contains("is it green?"));
        hook(&d, "claude-code", "StopFailure", &json!({ "last_assistant_message": "no credit" }));
        let answer = waits.join().expect("an answer");
        let status = if tool == "SendMessage" { "failed" } else { "error" };
        assert_eq!(answer["status"], status, "{answer}");
        assert!(answer.to_string().contains("no credit"), "{answer}");
        assert!(
            inbox(&asker).is_empty(),
            "{tool}: it was told by the answer alone: {:?}",
            inbox(&asker)
        );
    }
}

#[test]
fn answer_returned_by_a_call_is_not_sent_again() {
    let d = world();
    let asker = d.mint("s-1", d.home.user(), &["agents"]);
    let input = |is_async: bool| json!({ "agent": "task", "prompt": "this", "async": is_async });
    let said = asker.done("SendMessage", &input(false));
    assert_eq!((&said["status"], &said["content"]), (&json!("done"), &json!("did this")), "{said}");
    assert!(inbox(&asker).is_empty(), "{:?}", inbox(&asker));
    let later = asker.done("SendMessage", &input(true));
    let told = until(SOON, || Some(inbox(&asker)).filter(|told| !told.is_empty()));
    assert!(told.len() == 1 && told[0].contains(&text(&later, "task_id")), "{told:?}");
}
