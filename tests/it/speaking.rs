//! Work from a terminal to its end: the receiver of `svc send`, where its end is reported, when a
//! message arrives, what goes on after an agent's end, and `latest`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::{ended, with_config};
use crate::daemon::{Daemon, Running, eventually, hook_payload, svc, until};
use crate::expect::{peer_of, register, text};
use crate::wire::{Caller, tool_call};

const BOUND: Duration = Duration::from_mins(1);

/// `talker` stands in for Claude Code: it says which conversation it continues, if any.
const CONFIG: &str = r#"
[agents.echo]
backend = "exec"
command = ["sh", "-c", "while read line; do echo got $line; done"]
[agents.held]
backend = "exec"
turn_end = "END"
command = ["sh", "-c", "while read line; do echo begun; read more; echo END; done"]
[agents.talker]
backend = "claude"
command = ["sh", "-c", '''
read init
echo '{"type":"control_response","response":{"subtype":"success","request_id":"svc-initialize","response":{}}}'
case "$*" in *"--resume s-of-old"*) said="went on" ;; *) said="began" ;; esac
while read -r prompt; do
  echo '{"type":"system","subtype":"init","session_id":"s-of-old"}'
  echo "{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"$said\",\"usage\":{}}"
done
''', "talker"]
"#;

fn home_start(d: &Daemon, instance: &str, name: &str) -> Value {
    let body = json!({ "instance": instance, "name": name, "cwd": d.home.user() });
    d.post("/v1/hosts", &body).ok(201)
}

/// The output of a hook of an attended session.
#[track_caller]
fn hook(d: &Daemon, session: &str, event: &str, more: &Value) -> String {
    let payload = hook_payload(session, event, &d.home.user().display().to_string(), more);
    d.home.hook("claude", &payload).stdout
}

fn peer(d: &Caller, session: &str) -> Value {
    until(BOUND, || peer_of(d, session))
}

/// Waits until the daemon shows a hosted agent in a state.
#[track_caller]
fn is_in(d: &Caller, key: &str, state: &str) {
    eventually(BOUND, || d.get(&format!("/v1/hosts/{key}")).ok(200)["state"] == state);
}

#[test]
fn send_reaches_a_living_hosted_agent() {
    let d = with_config(CONFIG);
    let started = home_start(&d, "echo", "worker");
    let own = peer(&d, "agent:echo:worker");
    is_in(&d, "agent:echo:worker", "idle");
    // By key, by name, by id, by the name that it was started with; and as `--agent`.
    let names = [
        text(&started, "session_key"),
        text(&own, "display_name"),
        text(&started, "id"),
        "worker".to_owned(),
    ];
    for (number, name) in names.iter().enumerate() {
        let prompt = format!("the work {number}");
        let ran = match number {
            0 => svc(&d.home, &["send", "--agent", name, &prompt]),
            _ => svc(&d.home, &["send", name, &prompt]),
        };
        assert!(ran.ok().contains(&format!("got {prompt}")), "{name}: {ran:?}");
    }
    let hosts = d.get("/v1/hosts").ok(200);
    assert_eq!(hosts["count"], 1, "none was started for it: {hosts}");
    let tasks = d.get("/v1/tasks").ok(200);
    assert!(tasks["tasks"].as_array().expect("a list").iter().all(|task| task["status"] == "done"));
    // The output of a session, by any path.
    let ran = svc(&d.home, &["send", "echo", "a new one"]);
    assert!(ran.ok().contains("got a new one"), "{ran:?}");
    let status = |name: &str| svc(&d.home, &["agent", "status", name, "--json"]).json();
    assert_eq!(status("worker")["id"], started["id"]);
    assert!(svc(&d.home, &["tell", "worker", "hi"]).ok().contains("echo:worker"));
    // An instance's own agent comes before one that was started with the instance's name.
    home_start(&d, "held", "echo");
    home_start(&d, "echo", "main");
    assert_eq!(status("echo")["session_key"], "agent:echo:main");
}

#[test]
fn agents_of_claude_code_are_asked_for_by_either_name() {
    let d = with_config(CONFIG);
    home_start(&d, "echo", "other");
    home_start(&d, "talker", "worker");
    for backend in ["claude", "claude-code"] {
        let hosts = d.get(&format!("/v1/hosts?backend={backend}")).ok(200);
        assert_eq!(hosts["count"], 1, "{backend}: {hosts}");
        assert_eq!(hosts["hosts"][0]["session_key"], "agent:talker:worker", "{backend}");
        let shown = svc(&d.home, &["agent", "list", "--backend", backend, "--json"]).json();
        assert_eq!(shown["count"], 1, "{backend}: {shown}");
    }
}

#[test]
fn send_to_an_attended_session_prints_its_reply() {
    let d = with_config(CONFIG);
    hook(&d, "s-1", "SessionStart", &json!({ "source": "startup" }));
    let own = peer(&d, "s-1");
    let inbox = format!("/v1/peers/{}/messages?peek=true", text(&own, "peer_id"));
    for (round, name) in
        [text(&own, "display_name"), "agent:claude:s-1".to_owned()].iter().enumerate()
    {
        let (prompt, words) = (format!("the work {round}"), format!("all is done {round}"));
        let sending = Running::spawn(d.home.command(&["send", name, &prompt]));
        eventually(BOUND, || {
            let waiting = d.get(&inbox).ok(200);
            waiting["messages"].as_array().expect("a list").iter().any(|it| it["text"] == *prompt)
        });
        let given = hook(&d, "s-1", "Stop", &json!({ "last_assistant_message": "of before" }));
        assert!(given.contains(&prompt), "{given}");
        hook(&d, "s-1", "Stop", &json!({ "last_assistant_message": words }));
        let ran = sending.wait(BOUND);
        assert!(ran.ok().contains(&words), "{ran:?}");
    }
}

#[test]
fn work_goes_to_who_is_called_so_before_who_was_started_as_that() {
    let d = with_config(CONFIG);
    home_start(&d, "echo", "worker");
    is_in(&d, "agent:echo:worker", "idle");
    hook(&d, "s-1", "SessionStart", &json!({ "source": "startup" }));
    let own = text(&peer(&d, "s-1"), "peer_id");
    register(
        &d,
        &json!({ "display_name": "worker", "backend": "claude-code", "session_id": "s-1" }),
    );
    let sent = |prompt: &str| {
        svc(&d.home, &["send", "--async", "worker", prompt]).ok();
        let inbox = format!("/v1/peers/{own}/messages?peek=true");
        eventually(BOUND, || {
            let waiting = d.get(&inbox).ok(200);
            waiting["messages"].as_array().expect("a list").iter().any(|it| it["text"] == *prompt)
        });
    };
    sent("while it lives");
    svc(&d.home, &["agent", "stop", "agent:echo:worker"]).ok();
    ended(&d, "agent:echo:worker");
    sent("after its end");
}

#[test]
fn end_of_unawaited_work_is_in_the_inbox_once() {
    let d = with_config(CONFIG);
    let task = svc(&d.home, &["send", "--async", "echo", "this later"]).ok().trim().to_owned();
    assert!(task.starts_with("task_"), "{task}");
    let inbox = until(BOUND, || {
        let inbox = svc(&d.home, &["inbox"]).ok().to_owned();
        inbox.contains("got this later").then_some(inbox)
    });
    assert!(inbox.contains(&task), "it says which work: {inbox}");
    assert_eq!(inbox.matches("got this later").count(), 1, "{inbox}");
    // A person who waited has the reply already.
    svc(&d.home, &["send", "echo", "this now"]).ok();
    let inbox = svc(&d.home, &["inbox"]).ok().to_owned();
    assert!(!inbox.contains("this now"), "{inbox}");
    svc(&d.home, &["inbox", "--ack"]).ok();
    assert!(svc(&d.home, &["inbox"]).ok().contains("your inbox is empty"));
}

#[test]
fn ended_agent_can_continue_its_conversation() {
    let d = with_config(CONFIG);
    let start = |more: &[&str]| {
        let args = [&["agent", "start", "--prompt", "go", "--json"][..], more].concat();
        svc(&d.home, &args)
    };
    let said = |id: &str, words: &str| {
        eventually(BOUND, || {
            let history = d.get(&format!("/v1/hosts/{id}/history")).ok(200);
            history["entries"].to_string().contains(words)
        });
    };
    let first = start(&["talker"]).json();
    let id = text(&first, "id");
    said(&id, "began");
    let early = start(&["--resume", &id]);
    assert!(early.code != Some(0) && early.stderr.contains("lives"), "{early:?}");
    svc(&d.home, &["agent", "stop", &id]).ok();
    ended(&d, &id);
    // By its id and by its key, and in its folder.
    for named in [id.as_str(), "agent:talker:main"] {
        let resumed = start(&["--resume", named]).json();
        let later = text(&resumed, "id");
        assert_ne!(later, id, "{resumed}");
        assert_eq!(resumed["worktree"], first["worktree"], "{resumed}");
        said(&later, "went on");
        svc(&d.home, &["agent", "stop", &later]).ok();
        ended(&d, &later);
    }
    let unknown = start(&["--resume", "agent:talker:nobody"]);
    assert!(unknown.code != Some(0) && !unknown.stderr.is_empty(), "{unknown:?}");
}

#[test]
fn latest_names_the_newest_wherever_an_id_is_accepted() {
    let d = with_config(CONFIG);
    let call = |tool: &str, arguments: Value| {
        let params = json!({ "name": tool, "arguments": arguments });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        d.post("/mcp", &body).ok(200)["result"]["structuredContent"].clone()
    };
    let attempt = |goal: &str| {
        json!({ "domain": "debugging", "strategy": "read-the-error", "goal": goal, "hypothesis": "h",
            "action": "a", "prediction": "p", "session_id": goal })
    };
    let one = json!({ "display_name": "ann", "backend": "codex", "session_id": "s-ann" });
    let ann = text(&d.post("/v1/peers/register", &one).ok(200), "peer_id");
    for name in ["first", "second"] {
        home_start(&d, "echo", name);
        d.post("/v1/tasks", &json!({ "title": name })).ok(201);
        let letter = json!({ "text": name, "from_peer": ann });
        d.post("/v1/peers/operator/messages", &letter).ok(200);
        call("start_session", json!({ "session_id": name, "cwd": d.home.user() }));
        call("start_ghap", attempt(name));
    }
    let of = |path: &str| d.get(path).ok(200);
    assert_eq!(of("/v1/tasks/latest")["title"], "second");
    assert_eq!(of("/v1/messages/latest")["text"], "second");
    assert_eq!(of("/v1/sessions/latest")["session_id"], "second");
    assert_eq!(of("/v1/ghap/latest")["goal"], "second");
    assert_eq!(of("/v1/hosts/latest")["session_key"], "agent:echo:second");
    assert_eq!(of("/v1/hosts/latest/history")["total"], 0);
    d.post("/v1/hosts/latest/send", &json!({ "input": "hi" })).ok(200);
    eventually(BOUND, || of("/v1/hosts/agent:echo:second/history")["total"] == 2);
    assert_eq!(d.post("/v1/tasks/latest/cancel", &json!({})).ok(200)["title"], "second");
    assert_eq!(d.post("/v1/hosts/latest/stop", &json!({})).ok(200)["stopped"], true);
    ended(&d, "agent:echo:second");
}

#[test]
fn send_reports_when_its_message_arrives() {
    let d = with_config(CONFIG);
    home_start(&d, "echo", "main");
    let held = home_start(&d, "held", "main");
    let input = json!({ "session": "asker", "project": held["project"] });
    let asker = d.minted(&input);
    let send = |to: &str, mode: &str| {
        let arguments =
            json!({ "sessionKey": to, "message": "hello", "timeoutSeconds": 0, "mode": mode });
        let body = tool_call("sessions_send", &arguments);
        let sent = asker.post("/mcp", &body).ok(200)["result"]["structuredContent"].clone();
        assert!(
            sent["delivery"]["state"].is_string() && sent["delivery"]["at"].is_string(),
            "{sent}"
        );
        sent["delivery"]["when"].clone()
    };
    is_in(&d, "agent:echo:main", "idle");
    assert_eq!(send("agent:echo:main", "notify"), "wakes");
    d.post("/v1/hosts/agent:held:main/send", &json!({ "input": "go" })).ok(200);
    is_in(&d, "agent:held:main", "running");
    assert_eq!(send("agent:held:main", "followup"), "next_turn", "each is a turn of its own");

    hook(&d, "s-1", "SessionStart", &json!({ "source": "startup" }));
    let attended = "agent:claude:s-1";
    peer(&d, "s-1");
    assert_eq!(send(attended, "notify"), "next_turn", "nothing wakes it");
    hook(&d, "s-1", "UserPromptSubmit", &json!({ "prompt": "go on" }));
    assert_eq!(send(attended, "notify"), "now");
    hook(&d, "s-1", "Stop", &json!({}));
}
