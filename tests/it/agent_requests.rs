//! Requests of agents, from the question to the answer: by HTTP, command and tool, once, and at the
//! deadline; and how an agent is shown after a restart.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::{agent, dispatch, ended, over, with_config};
use crate::daemon::{Daemon, Running, eventually, svc, until};
use crate::expect::{events, problem, text};
use crate::wire::Caller;

const BOUND: Duration = Duration::from_secs(20);

/// A stand-in for Claude Code that asks for permission at each prompt and repeats the answer that
/// it got.
pub(crate) const CONFIG: &str = r#"
[agents.asker]
backend = "claude"
command = ["sh", "-c", '''
read init
echo '{"type":"control_response","response":{"subtype":"success","request_id":"svc-initialize","response":{}}}'
n=0
while read -r prompt; do
  n=$((n+1))
  echo '{"type":"system","subtype":"init","session_id":"s-1"}'
  echo "{\"type\":\"control_request\",\"request_id\":\"r$n\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"Write\",\"input\":{\"file_path\":\"/etc/x\"},\"permission_suggestions\":[]}}"
  read -r answer
  case $answer in *'"behavior":"allow"'*) said=allowed ;; *) said=denied ;; esac
  echo "{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"$said $n\",\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}"
done
''']
[agents.hasty]
backend = "claude"
request_timeout = "1s"
command = ["sh", "-c", '''
read init
echo '{"type":"control_response","response":{"subtype":"success","request_id":"svc-initialize","response":{}}}'
read -r prompt
echo '{"type":"system","subtype":"init","session_id":"s-1"}'
echo '{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Write","input":{"file_path":"/etc/x"},"permission_suggestions":[]}}'
read -r answer
case $answer in *'"behavior":"allow"'*) said=allowed ;; *) said=denied ;; esac
echo "{\"type\":\"result\",\"subtype\":\"success\",\"is_error\":false,\"result\":\"$said\",\"usage\":{}}"
read more
''']
[agents.sly]
backend = "claude"
command = ["sh", "-c", '''
read init
echo '{"type":"control_response","response":{"subtype":"success","request_id":"svc-initialize","response":{}}}'
read -r prompt
echo '{"type":"system","subtype":"init","session_id":"s-1"}'
echo '{"type":"control_request","request_id":"r1","request":{"subtype":"can_use_tool","tool_name":"Write","input":{"file_path":"/etc/x"},"permission_suggestions":[]}}'
while ! [ -e "$HOME/command" ]; do sleep 0.05; done
sh "$HOME/command" >"$HOME/telling" 2>&1
mv "$HOME/telling" "$HOME/told"
read -r answer
''']
[agents.login]
backend = "claude"
command = ["sh", "-c", "echo 'Not logged in: please run /login' >&2; exit 1"]
[agents.silent]
backend = "claude"
start_timeout = "2s"
command = ["sh", "-c", "echo 'waiting for a key' >&2; exec sleep 600.375"]
[agents.brief]
backend = "codex"
command = ["true"]
[agents.echo]
backend = "exec"
command = ["sh", "-c", "while read line; do echo got $line; done"]
"#;

fn world() -> Daemon {
    with_config(CONFIG)
}

#[track_caller]
pub(crate) fn start(d: &Daemon, instance: &str, name: &str) -> String {
    let body = json!({ "instance": instance, "name": name, "cwd": d.home.user() });
    text(&d.post("/v1/hosts", &body).ok(201), "session_key")
}

pub(crate) fn send(d: &Caller, key: &str, input: &str) {
    d.post(&format!("/v1/hosts/{key}/send"), &json!({ "input": input })).ok(200);
}

fn open(d: &Caller) -> Vec<Value> {
    d.get("/v1/requests?open=true").ok(200)["requests"].as_array().expect("a list").clone()
}

/// The one open request, once its agent's state, which the host records after it, is known as well.
#[track_caller]
pub(crate) fn asked(d: &Caller) -> Value {
    until(BOUND, || {
        let request = open(d).pop()?;
        let agent = agent(d, &text(&request, "agent_id"));
        (agent["state"] == "requires_action").then_some(request)
    })
}

#[track_caller]
fn says(d: &Caller, key: &str, words: &str) {
    eventually(BOUND, || {
        d.get(&format!("/v1/hosts/{key}/history")).ok(200).to_string().contains(words)
    });
}

/// Words are taken by the options that pass them on.
#[test]
fn words_with_an_option_that_takes_none_are_refused() {
    let none = r#"\"permission_suggestions\":[]"#;
    let rule = r#"\"permission_suggestions\":[{\"type\":\"setMode\"}]"#;
    let d = with_config(&CONFIG.replacen(none, rule, 1));
    let key = start(&d, "asker", "main");
    send(&d, &key, "go");
    let request = asked(&d);
    let words: Vec<_> = request["options"]
        .as_array()
        .expect("options")
        .iter()
        .map(|option| (text(option, "option_id"), option["text"] == true))
        .collect();
    let expected = [("allow", false), ("allow_always", false), ("deny", true)];
    assert_eq!(words, expected.map(|(id, takes)| (id.to_owned(), takes)), "{request}");
    let path = format!("/v1/requests/{}/answer", text(&request, "request_id"));
    let worded = json!({ "option_id": "allow", "text": "why" });
    assert_eq!(problem(&d.post(&path, &worded), 422, "invalid_request")["field"], "text");
    let blank = json!({ "option_id": "deny", "text": " \n" });
    assert_eq!(problem(&d.post(&path, &blank), 422, "invalid_request")["field"], "text");
    svc(&d.home, &["answer", "latest", "allow_always"]).ok();
    says(&d, &key, "allowed 1");
}

/// An ACP agent that asks at its prompt, with options of each kind.
const ACP: &str = r#"
[agents.acp]
backend = "acp"
command = ["sh", "-c", '''
read init
echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{}}}'
read new
echo '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s-1"}}'
read prompt
echo '{"jsonrpc":"2.0","id":0,"method":"session/request_permission","params":{"toolCall":{"toolCallId":"c"},"options":[{"optionId":"no","name":"No","kind":"reject_once"},{"optionId":"blue","name":"Blue","kind":"colour"}]}}'
read answer
echo '{"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"it was refused"}}}}'
echo '{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}'
read more
''']
"#;

/// The Agent Client Protocol has no place for them: they would be dropped.
#[test]
fn words_to_an_agent_whose_protocol_takes_none_are_refused() {
    let d = with_config(ACP);
    let key = start(&d, "acp", "main");
    send(&d, &key, "go");
    let request = asked(&d);
    let path = format!("/v1/requests/{}/answer", text(&request, "request_id"));
    for option in ["no", "blue"] {
        let worded = json!({ "option_id": option, "text": "use make" });
        let refused = problem(&d.post(&path, &worded), 422, "invalid_request");
        assert_eq!(refused["field"], "text", "{option}: {request}");
    }
    d.post(&path, &json!({ "option_id": "no" })).ok(200);
    says(&d, &key, "it was refused");
}

#[test]
fn request_is_a_row_that_is_answered_once() {
    let d = world();
    let own = json!({ "display_name": "desk", "backend": "test", "path": "/" });
    let desk = text(&d.post("/v1/peers/register", &own).ok(200), "peer_id");
    let key = start(&d, "asker", "main");
    send(&d, &key, "go");
    let request = asked(&d);
    let id = text(&request, "request_id");
    assert_eq!(agent(&d, &key)["state"], "requires_action");
    assert_eq!(request["agent_id"], agent(&d, &key)["id"]);
    assert_eq!(
        (&request["kind"], &request["title"]),
        (&json!("permission"), &json!("Write: /etc/x")),
        "{request}"
    );
    let options: Vec<&str> = request["options"]
        .as_array()
        .expect("options")
        .iter()
        .filter_map(|option| option["option_id"].as_str())
        .collect();
    assert_eq!(options, ["allow", "deny"], "{request}");
    assert!(request["opened_at"].is_string() && request.get("closed_at").is_none(), "{request}");
    // A person at a terminal gets a message with the command that answers.
    let inbox = d.get(&format!("/v1/peers/{desk}/messages?peek=true")).ok(200);
    let told = inbox["messages"].to_string();
    assert!(told.contains("svc agent answer") && told.contains(&id), "{inbox}");
    let of_team = |kind: &str| {
        let team = events(&d, "team");
        team.iter()
            .filter(|event| event["kind"] == kind && event["data"]["request_id"] == *id)
            .count()
    };
    assert_eq!((of_team("request.opened"), of_team("request.closed")), (1, 0));

    let path = format!("/v1/requests/{id}/answer");
    let allow = json!({ "option_id": "allow" });
    let refusal = problem(&d.post(&path, &json!({ "option_id": "maybe" })), 422, "invalid_request");
    assert_eq!(refusal["field"], "option_id");
    problem(&d.post(&path, &json!({})), 422, "invalid_request");
    problem(&d.post("/v1/requests/req_none/answer", &allow), 404, "not_found");
    let project = text(&agent(&d, &key), "project");
    problem(&d.session("stranger").post(&path, &allow), 404, "not_found");
    problem(&d.mint("reader", &project, &[]).post(&path, &allow), 403, "forbidden");
    let itself = d.mint(&key, &project, &["approve", "agents"]);
    problem(&itself.post(&path, &allow), 403, "forbidden");
    let steered = format!("/v1/hosts/{key}/answer");
    let input = json!({ "request_id": id, "option_id": "allow" });
    problem(&itself.post(&steered, &input), 403, "forbidden");
    let agents_alone = d.mint("starter", &project, &["agents"]);
    problem(&agents_alone.post(&path, &allow), 403, "forbidden");

    let approver = Arc::new(d.mint("approver", &project, &["approve"]));
    assert_eq!(open(&approver).len(), 1, "who may read the agent sees what it asks");
    let answers: Vec<u16> = (0..6)
        .map(|number| {
            let (approver, path) = (Arc::clone(&approver), path.clone());
            let option = if number % 2 == 0 { "allow" } else { "deny" };
            thread::spawn(move || approver.post(&path, &json!({ "option_id": option })).status())
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|it| it.join().expect("it answers"))
        .collect();
    assert_eq!(answers.iter().filter(|status| **status == 200).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|status| **status == 409).count(), 5, "{answers:?}");
    problem(&d.post(&path, &allow), 409, "conflict");
    assert!(open(&d).is_empty());
    let all = d.get("/v1/requests").ok(200);
    let closed = &all["requests"][0];
    assert!(closed["closed_at"].is_string(), "{closed}");
    assert_eq!(closed["answer"]["by"], "session:approver", "{closed}");
    let said = if closed["answer"]["option_id"] == "allow" { "allowed 1" } else { "denied 1" };
    says(&d, &key, said);
    assert_eq!((of_team("request.opened"), of_team("request.closed")), (1, 1));
}

#[test]
fn session_that_answered_is_on_record_by_its_key() {
    let d = world();
    let key = start(&d, "asker", "main");
    let other = start(&d, "echo", "main");
    send(&d, &key, "go");
    let id = text(&asked(&d), "request_id");
    let approver = d.mint(&other, &text(&agent(&d, &other), "project"), &["approve"]);
    let path = format!("/v1/requests/{id}/answer");
    let answered = approver.post(&path, &json!({ "option_id": "deny" })).ok(200);
    assert_eq!(answered["answer"], json!({ "option_id": "deny", "by": other }));
}

#[test]
fn request_can_be_answered_by_command_by_tool_and_after_a_restart() {
    let mut d = world();
    let key = start(&d, "asker", "main");
    let project = text(&agent(&d, &key), "project");
    send(&d, &key, "one");
    let first = text(&asked(&d), "request_id");
    // The row and the question survive the daemon.
    d.kill_and_restart();
    assert_eq!(text(&asked(&d), "request_id"), first);
    let answered = || svc(&d.home, &["agent", "answer", &key, &first, "deny"]);
    answered().ok();
    assert_eq!(answered().code, Some(1), "{:?}", answered());
    says(&d, &key, "denied 1");

    send(&d, &key, "two");
    let second = text(&asked(&d), "request_id");
    let arguments = json!({ "request_id": second, "option_id": "allow" });
    // A caller without the scope is told which scope it needs.
    let refused = d.mint("r", &project, &[]).tool("RequestAnswer", &arguments);
    let error = &refused["structuredContent"]["error"];
    assert_eq!(error["type"], "forbidden", "{refused}");
    assert!(error["message"].as_str().is_some_and(|it| it.contains("`approve`")), "{refused}");
    assert_eq!(open(&d).len(), 1);
    let own = d.mint(&key, &project, &["approve"]).tool("RequestAnswer", &arguments);
    assert_eq!(own["structuredContent"]["error"]["type"], "forbidden", "{own}");
    let approver = d.mint("a", &project, &["approve"]);
    let given = approver.tool("RequestAnswer", &arguments);
    assert!(given["isError"].is_null(), "{given}");
    let again = approver.tool("RequestAnswer", &arguments);
    assert_eq!(again["structuredContent"]["error"]["type"], "conflict", "{again}");
    says(&d, &key, "allowed 2");

    // The end of the agent closes its open request.
    send(&d, &key, "three");
    let third = text(&asked(&d), "request_id");
    d.post(&format!("/v1/hosts/{key}/stop"), &json!({ "force": true })).ok(200);
    ended(&d, &key);
    assert!(open(&d).is_empty());
    let late = d.post(&format!("/v1/requests/{third}/answer"), &json!({ "option_id": "allow" }));
    problem(&late, 409, "conflict");
}

/// Whatever token it shows.
#[test]
fn a_command_of_an_agent_does_not_answer_its_requests() {
    let d = world();
    let key = start(&d, "sly", "main");
    send(&d, &key, "go");
    let path = format!("/v1/requests/{}/answer", text(&asked(&d), "request_id"));
    let (url, token) = (d.url(), d.home.token().expect("a token"));
    let command = format!(
        "curl -s -X POST -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' \
         -d '{{\"option_id\":\"allow\"}}' '{url}{path}'"
    );
    let (partial, whole) = (d.home.user().join("partial"), d.home.user().join("command"));
    fs::write(&partial, command).expect("can be written");
    fs::rename(partial, whole).expect("can be renamed");
    let told = until(BOUND, || fs::read_to_string(d.home.user().join("told")).ok());
    assert!(told.contains("forbidden"), "{told}");
    assert_eq!(open(&d).len(), 1);
}

#[test]
fn unanswered_request_is_denied_at_the_deadline_and_recorded() {
    let d = world();
    let key = start(&d, "hasty", "main");
    send(&d, &key, "go");
    // It may be closed before anybody looks.
    let requests = || d.get("/v1/requests").ok(200);
    let id = until(BOUND, || requests()["requests"][0]["request_id"].as_str().map(str::to_owned));
    eventually(BOUND, || open(&d).is_empty());
    let all = requests();
    assert_eq!(all["requests"][0]["request_id"], json!(id));
    assert_eq!(
        all["requests"][0]["answer"],
        json!({ "option_id": "deny", "by": "timeout" }),
        "{all}"
    );
    says(&d, &key, "denied");
    let stream = format!("agent/{}", text(&agent(&d, &key), "id"));
    let on_record = events(&d, &stream);
    let answers: Vec<&Value> = on_record.iter().filter(|event| event["kind"] == "answer").collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0]["data"]["by"], "timeout");
}

#[test]
fn failed_start_says_what_to_do() {
    let d = world();
    for (instance, word) in [
        ("login", "Not logged in: please run /login"),
        ("silent", "start_timeout"),
        ("brief", "exit"),
    ] {
        let fails = || ended(&d, &start(&d, instance, "main"));
        let says = |end: &Value| end["error"].to_string().contains("waiting for a key");
        let mut end = fails();
        // On a busy machine the program may have had no time to speak.
        for _ in 0..4 {
            if instance == "silent" && !says(&end) {
                end = fails();
            }
        }
        let error = end["error"].as_str().unwrap_or_default();
        if instance == "brief" {
            // A program that exits with 0 and no output has not failed.
            assert_eq!(end["exit_code"], 0, "{end}");
        } else {
            assert_eq!(end["state"], "error", "{end}");
            assert!(error.contains(word), "{instance}: {end}");
        }
        if instance == "silent" {
            assert!(says(&end), "{end}");
        }
        let log = events(&d, &format!("agent/{}", text(&end, "id")));
        assert_eq!(log.last().expect("some")["kind"], "exit", "it is on record");
        // Work for it fails with the same reason.
        let body = json!({ "instance": instance, "prompt": "x", "opts": {} });
        let task = over(&d, &dispatch(&d, body));
        if instance != "brief" {
            assert_eq!(task["status"], "failed", "{task}");
            assert!(text(&task, "error").contains(word), "{instance}: {task}");
        }
    }
}

#[test]
fn attach_continues_across_a_restart() {
    let mut d = world();
    let key = start(&d, "echo", "main");
    let mut command = d.home.command(&["agent", "attach", &key]);
    command.stdin(Stdio::piped());
    let mut attached = Running::spawn(command);
    let mut typed = attached.stdin();
    let mut said = Vec::new();
    let mut hears = |words: &str| {
        while said.last().map(String::as_str) != Some(words) {
            said.push(attached.line().expect("it goes on"));
        }
    };
    writeln!(typed, "one").expect("it reads");
    hears("got one");
    d.kill_and_restart();
    writeln!(typed, "two").expect("it reads");
    hears("got two");
    drop(typed);
    let ran = attached.wait(BOUND);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("detached"), "{ran:?}");
    for words in ["got one", "got two"] {
        let times = ran.stdout.lines().filter(|line| *line == words).count();
        assert_eq!(times, 1, "{words}: {ran:?}");
    }
    assert!(agent(&d, &key)["ended_at"].is_null(), "it lives on");
}

#[test]
fn attach_shows_who_answered_and_what() {
    let d = world();
    let key = start(&d, "asker", "main");
    let mut command = d.home.command(&["agent", "attach", &key]);
    command.stdin(Stdio::piped());
    let mut attached = Running::spawn(command);
    let mut typed = attached.stdin();
    for (number, (option, name)) in [("allow", "Allow"), ("deny", "Deny")].into_iter().enumerate() {
        writeln!(typed, "go").expect("it reads");
        let request = asked(&d);
        let options = request["options"].as_array().expect("options");
        let offered = options.iter().find(|it| it["option_id"] == option).expect("it is offered");
        assert!(text(offered, "name").starts_with(name), "{offered}");
        svc(&d.home, &["agent", "answer", &key, "latest", option]).ok();
        let said = if option == "allow" { "allowed" } else { "denied" };
        let words = format!("{said} {}", number + 1);
        says(&d, &key, &words);
        while !attached.line().expect("it goes on").contains(&words) {}
    }
    drop(typed);
    let ran = attached.wait(BOUND);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for words in
        ["it asks: Write: /etc/x", "answered by operator: Allow", "answered by operator: Deny"]
    {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
}

#[test]
fn request_is_shown_and_answerable_in_every_view_for_people() {
    let d = world();
    svc(&d.home, &["inbox"]).ok();
    let key = start(&d, "asker", "main");
    send(&d, &key, "go");
    let request = asked(&d);
    let id = text(&request, "request_id");
    assert_eq!(request["session_key"], json!(key));
    let agents_peer = text(&d.get(&format!("/v1/peers/{key}")).ok(200), "peer_id");
    assert_eq!(request["peer_id"], json!(agents_peer), "{request}");
    let peers = svc(&d.home, &["peer", "list"]).ok().to_owned();
    assert!(
        peers.contains("WAITS FOR") && peers.contains("your permission: Write: /etc/x"),
        "{peers}"
    );
    let status = svc(&d.home, &["agent", "status", &key]).ok().to_owned();
    for words in ["it asks: Write: /etc/x", &*id, "  allow: ", "  deny: ", "svc agent answer"] {
        assert!(status.contains(words), "{words}: {status}");
    }
    let status = svc(&d.home, &["agent", "status", &key, "--json"]).json();
    assert_eq!(status["requests"][0]["request_id"], json!(id), "{status}");
    let inbox = svc(&d.home, &["inbox"]).ok().to_owned();
    assert!(inbox.contains("  May I? Write: /etc/x"), "what is asked comes first: {inbox}");
    assert!(!inbox.contains("needs permission"), "it is told once: {inbox}");
    svc(&d.home, &["inbox", "--ack"]).ok();
    let inbox = svc(&d.home, &["inbox"]).ok().to_owned();
    let open = format!("{key} needs permission: Write: /etc/x");
    let answer = format!("svc answer {id} OPTION (allow, deny)");
    assert!(inbox.contains(&open) && inbox.contains(&answer), "it is still open: {inbox}");

    let reply = svc(&d.home, &["reply", "latest", "allow"]);
    assert_eq!(reply.code, Some(1), "{reply:?}");
    assert!(reply.stderr.contains("`svc answer` what needs permission"), "{reply:?}");

    let beginning = &id[..id.len() - 3];
    svc(&d.home, &["agent", "answer", &key, beginning, "deny"]).ok();
    says(&d, &key, "denied 1");
    let inbox = svc(&d.home, &["inbox"]).ok().to_owned();
    assert!(inbox.contains("your inbox is empty"), "an answered request needs nobody: {inbox}");
    let peers = svc(&d.home, &["peer", "list"]).ok().to_owned();
    assert!(!peers.contains("your permission"), "{peers}");

    send(&d, &key, "more");
    asked(&d);
    svc(&d.home, &["agent", "answer", &key, "latest", "allow"]).ok();
    says(&d, &key, "allowed 2");
    let none = svc(&d.home, &["agent", "answer", &key, "latest", "allow"]);
    assert_eq!(none.code, Some(1), "nothing is open: {none:?}");

    // The end of the agent closes its open requests.
    send(&d, &key, "last");
    asked(&d);
    assert!(svc(&d.home, &["inbox"]).ok().contains("May I?"));
    d.post(&format!("/v1/hosts/{key}/stop"), &json!({ "force": true })).ok(200);
    ended(&d, &key);
    assert!(!svc(&d.home, &["inbox"]).ok().contains("May I?"));
    let second = start(&d, "asker", "second");
    let list = svc(&d.home, &["agent", "list", "--all"]).ok().to_owned();
    let at = |words: &str| list.find(words).unwrap_or_else(|| panic!("{words}: {list}"));
    assert!(at(&second) < at(&key), "the living first: {list}");
}
