//! The output of an agent is streamed while the agent produces it.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::{ask_host, dispatch, over_within, with_config};
use crate::daemon::{Daemon, Running, until};
use crate::expect::{events, text};
use crate::wire::{Caller, Sse};

const BOUND: Duration = Duration::from_mins(1);

/// A stand-in for Claude Code that writes the beginning of its answer, and the rest once the file
/// `go` exists.
const CONFIG: &str = r#"
[agents.speaker]
backend = "claude"
command = ["sh", "-c", '''
say() { printf '%s\n' "$1"; }
read init
say '{"type":"control_response","response":{"subtype":"success","request_id":"svc-initialize","response":{}}}'
read prompt
say '{"type":"stream_event","event":{"type":"message_start"}}'
say '{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"one\n"}}}'
say '{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"tw"}}}'
say '{"type":"stream_event","event":{"type":"content_block_delta","delta":{"type":"text_delta","text":"o"}}}'
until [ -e go ]; do sleep 0.05; done
say '{"type":"assistant","message":{"content":[{"type":"text","text":"one\ntwo three"}]}}'
say '{"type":"result","subtype":"success","is_error":false,"result":"one\ntwo three"}'
read more
''']
[agents.long]
backend = "claude"
command = ["sh", "-c", '''
read init
echo '{"type":"control_response","response":{"subtype":"success","request_id":"svc-initialize","response":{}}}'
read prompt
printf '{"type":"assistant","message":{"content":[{"type":"text","text":"'
head -c 1500000 /dev/zero | tr '\0' x
printf '"}]}}\n'
echo '{"type":"result","subtype":"success","is_error":false}'
read more
''']
[agents.line]
backend = "exec"
turn_end = "EOT"
command = ["sh", "-c", '''
read prompt
head -c 530000 /dev/zero | tr '\0' x
echo; echo EOT
read more
''']
"#;

fn start(d: &Daemon) -> Value {
    let body = json!({ "instance": "speaker", "cwd": d.home.user(), "prompt": "speak" });
    d.post("/v1/hosts", &body).ok(201)
}

fn go(d: &Daemon) {
    std::fs::write(d.home.user().join("go"), "").expect("a file");
}

/// The deltas of an entry until they contain `all`, and the entry's name.
#[track_caller]
fn heard(feed: &mut Sse, stream: &str, all: &str) -> (String, usize) {
    feed.set_timeout(BOUND);
    let (mut said, mut of, mut count) = (String::new(), String::new(), 0);
    while said != all {
        let event = feed.event();
        if event.kind != "delta" {
            continue;
        }
        assert_eq!(event.id, None, "{event:?}");
        assert_eq!(event.data["stream"], stream, "{event:?}");
        let delta = &event.data["data"];
        assert_eq!(delta["role"], "assistant", "{event:?}");
        assert!(of.is_empty() || of == text(delta, "of"), "{event:?}");
        of = text(delta, "of");
        said += &text(delta, "text");
        count += 1;
        assert!(all.starts_with(&said), "{said:?}");
    }
    (of, count)
}

#[test]
fn deltas_are_on_feeds_and_on_no_page() {
    let d = with_config(CONFIG);
    let agent = start(&d);
    let stream = format!("agent/{}", text(&agent, "id"));
    let mut early = d.follow(&format!("/v1/events?stream={stream}"));
    let (of, _) = heard(&mut early, &stream, "one\ntwo");
    // A later subscriber gets the whole text so far, on any feed, in one delta.
    for target in ["/v1/events?stream_prefix=agent/&after=latest", "/v1/events?kind=delta"] {
        let mut late = d.follow(target);
        assert_eq!(heard(&mut late, &stream, "one\ntwo"), (of.clone(), 1), "{target}");
    }
    let page = events(&d, &stream);
    assert!(page.iter().all(|event| event["kind"] != "delta"), "{page:?}");
    // The host streams it without a daemon, too.
    let socket = text(&agent, "socket_path");
    let status = ask_host(&socket, &json!({ "type": "host.status" }));
    assert_eq!(status["success"], true, "{status}");
    go(&d);
    loop {
        let event = early.event();
        assert_ne!(event.kind, "delta", "the entry has the rest: {event:?}");
        let entry = &event.data["data"]["chat_entry"];
        if entry["role"] == "assistant" {
            assert_eq!(entry["content"], "one\ntwo three");
            break;
        }
    }
}

/// Lines of a task, and whether the next frame continues each line.
fn frames(d: &Caller, task: &str) -> Vec<(String, bool)> {
    let page = d.get(&format!("/v1/events?stream=task/{task}&kind=frame")).ok(200);
    let frames = page["events"].as_array().expect("events").iter();
    frames.map(|it| (text(&it["data"], "line"), it["data"]["partial"] == true)).collect()
}

#[test]
fn task_frames_have_the_agents_text_as_it_streams_and_once() {
    let mut d = with_config(CONFIG);
    let input =
        json!({ "instance": "speaker", "prompt": "speak", "opts": { "cwd": d.home.user() } });
    let task = dispatch(&d, input);
    let begun = [("one".to_owned(), false), ("two".to_owned(), true)];
    until(BOUND, || (frames(&d, &task) == begun).then_some(()));
    d.kill_and_restart();
    go(&d);
    let shown = over_within(BOUND, &d, &task);
    assert_eq!((&shown["status"], &shown["result"]), (&json!("done"), &json!("one\ntwo three")));
    let [one, two] = begun;
    assert_eq!(frames(&d, &task), [one, two, (" three".to_owned(), false)]);
    // A terminal shows whole lines.
    let ran = crate::daemon::svc(&d.home, &["task", "watch", &task]);
    assert!(ran.stdout.ends_with("one\ntwo three\n"), "{ran:?}");
}

#[test]
fn truncated_text_is_marked() {
    let d = with_config(CONFIG);
    let input = json!({ "agent": "long", "prompt": "x", "async": false, "cwd": d.home.user() });
    let said = d.done("SendMessage", &input);
    assert_eq!((&said["status"], &said["truncated"]), (&json!("done"), &json!(true)));
    let content = text(&said, "content");
    assert!(content.len() > 1024 * 1024 && content.ends_with("are in the stream]"));
}

/// The line that ends the turn is none of it.
#[test]
fn answer_of_one_long_line_is_whole() {
    let d = with_config(CONFIG);
    let input = json!({ "agent": "line", "prompt": "x", "async": false, "cwd": d.home.user() });
    let said = d.done("SendMessage", &input);
    assert_eq!((&said["status"], &said["truncated"]), (&json!("done"), &Value::Null));
    let content = text(&said, "content");
    let others = content.trim_start_matches('x');
    assert_eq!((content.len(), others), (530_000, ""));
    let task = d.get(&format!("/v1/tasks/{}", text(&said, "task_id"))).ok(200);
    assert!(text(&task, "result").ends_with("xxxx"), "the end of the text");
    let frames = frames(&d, &text(&said, "task_id"));
    assert!(frames.iter().all(|(line, _)| line != "EOT"), "it is no word of the agent");
}

#[test]
fn history_entries_have_offsets_for_paging_back() {
    let d = with_config(CONFIG);
    let agent = start(&d);
    go(&d);
    let id = text(&agent, "id");
    let entries = |more: &str| {
        let history = d.get(&format!("/v1/hosts/{id}/history?limit=1{more}")).ok(200);
        history["entries"].as_array().expect("entries").clone()
    };
    until(BOUND, || (entries("").first()?["role"] == "assistant").then_some(()));
    // From its host, and then from the log.
    for round in 0..2 {
        let last = entries("");
        let offset = last[0]["offset"].as_u64().expect("an offset");
        let index = usize::try_from(offset - 1).expect("a size");
        // The host has it a moment before the log does.
        let event = until(BOUND, || events(&d, &format!("agent/{id}")).get(index).cloned());
        assert_eq!(event["kind"], "chat_entry", "round {round}: {event}");
        let before = entries(&format!("&before={offset}"));
        assert_eq!((before.len(), &before[0]["role"]), (1, &json!("user")), "{before:?}");
        assert!(before[0]["offset"].as_u64() < Some(offset), "{before:?}");
        d.post(&format!("/v1/hosts/{id}/stop"), &json!({ "force": true }));
        crate::agents::ended(&d, &id);
    }
}

#[test]
fn attach_shows_text_before_the_entry_is_finished() {
    let d = with_config(CONFIG);
    let agent = start(&d);
    let mut command = d.home.command(&["agent", "attach", &text(&agent, "id")]);
    command.stdin(Stdio::piped());
    let mut attached = Running::spawn(command);
    let typed = attached.stdin();
    let line = until(BOUND, || {
        let line = attached.line().expect("it goes on");
        line.starts_with("assistant").then_some(line)
    });
    assert_eq!(line, "assistant: one");
    go(&d);
    assert_eq!(attached.line().as_deref(), Some("two three"));
    drop(typed);
    let ran = attached.wait(BOUND);
    assert_eq!(ran.stdout.matches("one").count(), 1, "{ran:?}");
}
