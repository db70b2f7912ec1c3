//! Work for sessions that a person started and that hooks made known.

use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::{dispatch, over, with_config};
use crate::daemon::{Daemon, eventually, hook_payload, until};
use crate::expect::{self, problem, state, text};
use crate::identity::{FakeClient, prompt, start};
use crate::wire::Caller;

const BOUND: Duration = Duration::from_secs(20);

const CONFIG: &str = r#"
[agents.coder]
backend = "claude"
command = ["sh", "-c", "echo 'please log in' >&2; exit 1"]
[agents.other]
backend = "codex"
command = ["sh"]
"#;

/// What a hook of the session prints.
#[track_caller]
fn hook(d: &Daemon, session: &str, event: &str, more: &Value) -> String {
    hook_of(d, "claude", session, event, more)
}

/// What a hook of a client's session prints.
#[track_caller]
fn hook_of(d: &Daemon, client: &str, session: &str, event: &str, more: &Value) -> String {
    let payload = hook_payload(session, event, "/nowhere/p", more);
    d.home.hook(client, &payload).stdout
}

fn using() -> Value {
    json!({ "tool_name": "Bash", "tool_use_id": "t1", "tool_input": { "command": "ls" } })
}

fn peer_of(d: &Caller, session: &str) -> String {
    text(&expect::peer_of(d, session).expect("it is known"), "peer_id")
}

/// The question that a session has in its inbox.
fn question(d: &Caller, peer: &str) -> Value {
    until(BOUND, || {
        let inbox = d.get(&format!("/v1/peers/{peer}/messages?peek=true")).ok(200);
        inbox["messages"].as_array().expect("messages").last().cloned()
    })
}

#[test]
fn a_session_that_hooks_made_known_takes_work() {
    let d = with_config(CONFIG);
    let work = |instance: &str, prompt: &str| json!({ "instance": instance, "prompt": prompt, "opts": { "mode": "peer-only" } });
    let refusal = problem(&d.post("/v1/send_message", &work("coder", "x")), 503, "unavailable");
    assert!(text(&refusal, "detail").contains("no live peer"), "{refusal}");
    hook(&d, "s-1", "SessionStart", &json!({ "source": "startup" }));
    problem(&d.post("/v1/send_message", &work("other", "x")), 503, "unavailable");
    let peer = peer_of(&d, "s-1");

    let task = dispatch(&d, work("coder", "DO-THE-WORK"));
    let asked = question(&d, &peer);
    assert_eq!((&asked["type"], &asked["text"]), (&json!("query"), &json!("DO-THE-WORK")));
    let given = hook(&d, "s-1", "PreToolUse", &using());
    assert!(given.contains("DO-THE-WORK"), "{given}");
    let again = hook(&d, "s-1", "PostToolUse", &using());
    assert!(!again.contains("DO-THE-WORK"), "it is told once: {again}");
    eventually(BOUND, || d.get(&format!("/v1/tasks/{task}")).ok(200)["status"] == "active");
    let answer = json!({ "from_peer": peer, "type": "response", "correlation_id": text(&asked, "id"),
        "text": "it is done" });
    d.post("/v1/peers/operator/messages", &answer).ok(200);
    let done = over(&d, &task);
    assert_eq!(
        (&done["status"], &done["result"]),
        (&json!("done"), &json!("it is done")),
        "{done}"
    );
    let inbox = d.get("/v1/peers/operator/messages?peek=true").ok(200);
    assert_eq!(inbox["messages"], json!([]), "the answer was read in the task: {inbox}");

    // What it says last in the turn that begins with it answers, too.
    let task = dispatch(&d, work("coder", "ONCE-MORE"));
    question(&d, &peer);
    let given = hook(&d, "s-1", "Stop", &json!({ "last_assistant_message": "of before" }));
    assert!(given.contains("ONCE-MORE"), "{given}");
    hook(&d, "s-1", "PostToolUse", &using());
    let words = json!({ "last_assistant_message": "said at the end" });
    hook(&d, "s-1", "Stop", &words);
    let done = over(&d, &task);
    assert_eq!(
        (&done["status"], &done["result"]),
        (&json!("done"), &json!("said at the end")),
        "{done}"
    );

    // By its key; and what was not given yet is taken back.
    let task = dispatch(&d, work("agent:claude:s-1", "NOT-WANTED"));
    let asked = question(&d, &peer);
    assert_eq!(asked["text"], "NOT-WANTED");
    d.post(&format!("/v1/tasks/{task}/cancel"), &json!({})).ok(202);
    assert_eq!(over(&d, &task)["status"], "cancelled");
    let silent = hook(&d, "s-1", "PreToolUse", &using());
    assert!(!silent.contains("NOT-WANTED"), "{silent}");

    // A session that ends leaves no task open.
    let late = dispatch(&d, work("coder", "TOO-LATE"));
    question(&d, &peer);
    hook(&d, "s-1", "SessionEnd", &json!({ "reason": "exit" }));
    let failed = over(&d, &late);
    assert_eq!(failed["status"], "failed", "{failed}");
    assert!(text(&failed, "error").contains("before it took the prompt"), "{failed}");
    problem(&d.post("/v1/send_message", &work("coder", "x")), 503, "unavailable");
    let refused = d.post("/v1/send_message", &work("agent:claude:s-1", "x"));
    problem(&refused, 422, "invalid_request");

    // One that is preferred and not there is started.
    let prefer = json!({ "instance": "coder", "prompt": "x", "opts": { "mode": "peer-prefer" } });
    let task = over(&d, &dispatch(&d, prefer));
    assert!(text(&task, "error").contains("please log in"), "{task}");
}

/// Nobody knows whether a client that is gone had begun what its hook gave it.
#[test]
fn a_prompt_that_a_client_was_given_goes_to_nobody_else() {
    let other = "backend = \"claude\"\nfailover_to = [\"other\"]";
    let d = with_config(&CONFIG.replacen("backend = \"claude\"", other, 1));
    let mut client = FakeClient::start(&d.home, "claude", "web", "");
    client.hook(&start("s"));
    let work = json!({ "instance": "coder", "prompt": "ONCE", "opts": { "mode": "peer-prefer" } });
    let task = dispatch(&d, work);
    question(&d, &peer_of(&d, "s"));
    let given = client.hook(&prompt("s"));
    assert!(given.contains("ONCE"), "{given}");
    drop(client);
    let failed = over(&d, &task);
    assert_eq!(
        (&failed["status"], &failed["error"]),
        (&json!("failed"), &json!("outcome unknown")),
        "{failed}"
    );
    let open = d.get("/v1/messages?open=true").ok(200);
    assert_eq!(open["messages"], json!([]), "nobody waits for its answer: {open}");
}

#[test]
fn a_session_of_another_project_is_not_asked() {
    let d = with_config(CONFIG);
    hook(&d, "s-1", "SessionStart", &json!({ "source": "startup" }));
    let input = json!({ "session": "asker", "project": "/elsewhere", "scopes": ["agents"] });
    let asker = d.minted(&input);
    let work = |target: &str| json!({ "instance": target, "prompt": "x", "opts": { "mode": "peer-only" } });
    problem(&asker.post("/v1/send_message", &work("coder")), 503, "unavailable");
    problem(&asker.post("/v1/send_message", &work("agent:claude:s-1")), 422, "invalid_request");
}

/// A session that was never heard of before asks, and has the answer in its task and in the inbox
/// that it has from then on.
#[test]
fn whoever_asks_without_a_peer_gets_the_answer_of_a_turn() {
    let d = with_config(CONFIG);
    hook(&d, "s-1", "SessionStart", &json!({ "source": "startup" }));
    let peer = peer_of(&d, "s-1");
    let peers = d.get("/v1/peers").ok(200)["peers"].as_array().expect("a list").clone();
    let project = peers.iter().find(|it| it["session_id"] == "s-1").expect("it")["path"].clone();
    let input = json!({ "session": "stranger", "project": project, "scopes": ["agents"] });
    let stranger = d.minted(&input);
    let work =
        json!({ "instance": "coder", "prompt": "DO-THE-WORK", "opts": { "mode": "peer-only" } });
    let task = dispatch(&stranger, work);
    question(&d, &peer);
    let given = hook(&d, "s-1", "Stop", &json!({ "last_assistant_message": "of before" }));
    assert!(given.contains("DO-THE-WORK"), "{given}");
    hook(&d, "s-1", "Stop", &json!({ "last_assistant_message": "said at the end" }));
    let done = over(&d, &task);
    assert_eq!(
        (&done["status"], &done["result"]),
        (&json!("done"), &json!("said at the end")),
        "{done}"
    );
    let own = peer_of(&d, "stranger");
    assert_eq!(question(&stranger, &own)["text"], "said at the end");
}

/// A person who asks a session has what its turn said last, as a session has that asks one.
#[test]
fn the_last_words_of_a_turn_answer_what_a_person_asked() {
    let d = with_config(CONFIG);
    hook(&d, "s-1", "SessionStart", &json!({ "source": "startup" }));
    let peer = peer_of(&d, "s-1");
    let ask = |words: &str| {
        let asked = d.post(
            &format!("/v1/peers/{peer}/messages"),
            &json!({ "text": words, "type": "query" }),
        );
        asked.ok(200)
    };
    let said = |words: &str| {
        hook(&d, "s-1", "Stop", &json!({ "last_assistant_message": words }));
    };
    let asked = ask("is the branch ready?");
    let given = hook(&d, "s-1", "Stop", &json!({ "last_assistant_message": "of before" }));
    assert!(given.contains("is the branch ready?"), "{given}");
    hook(&d, "s-1", "PostToolUse", &using());
    said("Yes: all 12 tests pass.");
    let answers = || {
        let inbox = d.get("/v1/peers/operator/messages?peek=true").ok(200);
        inbox["messages"].as_array().expect("messages").clone()
    };
    let answer = answers().pop().expect("an answer");
    assert_eq!(
        (&answer["text"], &answer["type"], &answer["correlation_id"], &answer["from_peer"]),
        (&json!("Yes: all 12 tests pass."), &json!("response"), &asked["id"], &json!(peer))
    );
    assert_eq!(state(&d, &asked), "acked");

    // An answer by a call is the answer, and one turn answers once.
    let asked = ask("and now?");
    hook(&d, "s-1", "PreToolUse", &using());
    hook(&d, "s-1", "PostToolUse", &using());
    let body = json!({ "from_peer": peer, "type": "response", "correlation_id": asked["id"], "text": "by a call" });
    d.post("/v1/peers/operator/messages", &body).ok(200);
    said("I have answered.");
    said("I have answered, I said.");
    let texts: Vec<Value> = answers().iter().map(|it| it["text"].clone()).collect();
    assert_eq!(texts, ["Yes: all 12 tests pass.", "by a call"]);
}

/// The last words of a turn go to one asker: the next question begins the turn after it.
#[test]
fn a_turn_begins_with_one_question_and_the_next_one_waits_for_its_end() {
    let d = with_config(CONFIG);
    hook(&d, "s-1", "SessionStart", &json!({ "source": "startup" }));
    hook(&d, "s-2", "SessionStart", &json!({ "source": "startup" }));
    let (peer, other) = (peer_of(&d, "s-1"), peer_of(&d, "s-2"));
    let inbox = format!("/v1/peers/{peer}/messages");
    hook(&d, "s-1", "UserPromptSubmit", &json!({ "prompt": "begin" }));
    let own = d.post(&inbox, &json!({ "text": "which salary?", "type": "query" })).ok(200);
    let body = json!({ "text": "which port?", "type": "query", "from_peer": other });
    let others = d.post(&inbox, &body).ok(200);
    let stop = |words: &str, again: bool| {
        let more = json!({ "last_assistant_message": words, "stop_hook_active": again });
        hook(&d, "s-1", "Stop", &more)
    };
    let given = stop("of the person's turn", false);
    assert!(given.contains("which salary?") && !given.contains("which port?"), "{given}");
    stop("SALARY", true);
    let given = hook(&d, "s-1", "UserPromptSubmit", &json!({ "prompt": "go on" }));
    assert!(given.contains("which port?"), "{given}");
    stop("of the person's next turn", false);
    let answer = |to: &str| -> Vec<Value> {
        let inbox = d.get(&format!("/v1/peers/{to}/messages?peek=true")).ok(200);
        let messages = inbox["messages"].as_array().expect("messages").clone();
        messages.into_iter().filter(|it| it["type"] == "response").collect()
    };
    let [response] = answer("operator").try_into().expect("one");
    assert_eq!((&response["text"], &response["correlation_id"]), (&json!("SALARY"), &own["id"]));
    assert_eq!(answer(&other), [] as [Value; 0], "{others}");
}

/// Codex goes on at the end of a turn as often as its hook says so: with one question at a time.
#[test]
fn a_question_that_was_held_back_begins_the_turn_after() {
    let d = with_config(CONFIG);
    hook_of(&d, "claude", "s-2", "SessionStart", &json!({ "source": "startup" }));
    let other = peer_of(&d, "s-2");
    let hook = |event: &str, more: &Value| hook_of(&d, "codex", "s-1", event, more);
    hook("SessionStart", &json!({ "source": "startup" }));
    let peer = peer_of(&d, "s-1");
    let inbox = format!("/v1/peers/{peer}/messages");
    let ask = |words: &str| d.post(&inbox, &json!({ "text": words, "type": "query" })).ok(200);
    hook("UserPromptSubmit", &json!({ "prompt": "begin" }));
    let (first, second) = (ask("the first?"), ask("the second?"));
    let stop = |words: &str, again: bool| {
        let more = json!({ "last_assistant_message": words, "stop_hook_active": again });
        hook("Stop", &more)
    };
    let given = stop("of the person's turn", false);
    assert!(given.contains("the first?") && !given.contains("the second?"), "{given}");
    let body = json!({ "text": "of another", "type": "notification", "from_peer": other });
    d.post(&inbox, &body).ok(200);
    let third = ask("asked meanwhile?");
    let given = stop("ONE", true);
    assert!(given.contains("the second?") && !given.contains("meanwhile"), "{given}");
    assert!(given.contains("of another"), "{given}");
    let given = stop("TWO", true);
    assert!(given.contains("meanwhile") && !given.contains("of another"), "{given}");
    assert!(!stop("THREE", true).contains("Inter-session"), "nothing waits");
    let inbox = d.get("/v1/peers/operator/messages?peek=true").ok(200);
    let answers: Vec<_> = inbox["messages"].as_array().expect("messages").iter().collect();
    let answers: Vec<_> = answers.iter().map(|it| (&it["text"], &it["correlation_id"])).collect();
    let answered = [("ONE", &first), ("TWO", &second), ("THREE", &third)];
    let answered = answered.map(|(words, question)| (json!(words), question["id"].clone()));
    let answered: Vec<_> = answered.iter().map(|(words, id)| (words, id)).collect();
    assert_eq!(answers, answered);
}

/// So two agents that answer each other come to an end. The operator has no such bound, and does
/// not wait behind the messages of an agent that has reached it.
#[test]
fn an_agent_begins_twenty_turns_of_a_session_in_an_hour() {
    let d = with_config(CONFIG);
    hook_of(&d, "claude", "s-2", "SessionStart", &json!({ "source": "startup" }));
    let other = peer_of(&d, "s-2");
    hook_of(&d, "codex", "s-1", "SessionStart", &json!({ "source": "startup" }));
    let inbox = format!("/v1/peers/{}/messages", peer_of(&d, "s-1"));
    hook_of(&d, "codex", "s-1", "UserPromptSubmit", &json!({ "prompt": "the person's" }));
    let send = |text: &str, from: &str| {
        let body = json!({ "text": text, "type": "notification", "from_peer": from });
        d.post(&inbox, &body).ok(200);
    };
    let stop = || {
        let more = json!({ "last_assistant_message": "words", "stop_hook_active": true });
        hook_of(&d, "codex", "s-1", "Stop", &more)
    };
    for number in 1..=20 {
        let text = format!("number {number} of another");
        send(&text, &other);
        assert!(stop().contains(&text));
    }
    for number in 0..25 {
        send(&format!("one more of another: {number}"), &other);
    }
    assert!(!stop().contains("of another"));
    send("of the person", "operator");
    let given = stop();
    assert!(given.contains("of the person") && !given.contains("of another"), "{given}");
    let given = hook_of(&d, "codex", "s-1", "UserPromptSubmit", &json!({ "prompt": "go on" }));
    assert!(given.contains("one more of another"), "{given}");
}

/// No hook is called when a person presses Esc. The prompt that the person gives then shows that
/// the turn is over.
#[test]
fn a_prompt_after_an_interrupted_turn_tells_who_had_asked() {
    let d = with_config(CONFIG);
    hook(&d, "s-1", "SessionStart", &json!({ "source": "startup" }));
    let peer = peer_of(&d, "s-1");
    let inbox = format!("/v1/peers/{peer}/messages");
    let asked = d.post(&inbox, &json!({ "text": "is it nine?", "type": "query" })).ok(200);
    hook(&d, "s-1", "Stop", &json!({ "last_assistant_message": "of before" }));
    hook(&d, "s-1", "PostToolUse", &using());
    hook(&d, "s-1", "UserPromptSubmit", &json!({ "prompt": "do this instead" }));
    let inbox = d.get("/v1/peers/operator/messages?peek=true").ok(200);
    let told = inbox["messages"][0].clone();
    assert_eq!(told["correlation_id"], asked["id"], "{told}");
    assert!(text(&told, "text").contains("interrupted"), "{told}");
    hook(&d, "s-1", "Stop", &json!({ "last_assistant_message": "this is done" }));
    let inbox = d.get("/v1/peers/operator/messages?peek=true").ok(200);
    assert_eq!(inbox["messages"].as_array().map(Vec::len), Some(1), "{inbox}");
}
