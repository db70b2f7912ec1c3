//! Waking: an idle session of Claude Code gets its message at once, the sender of any message hears
//! when it arrives, and a daemon that was killed while everybody was idle comes back.

use std::fs;
use std::io::Write as _;
use std::iter;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::daemon::{
    Daemon, Home, PATIENT, Ran, Running, eventually, hook_payload, quickly, svc, until,
};
use crate::expect::{detail, peer_of, state};
use crate::hook::{Fate, behind_a_proxy, swallowing};

const SOON: Duration = Duration::from_secs(30);

fn event(session: &str, name: &str, more: &Value) -> Value {
    hook_payload(session, name, "/nowhere/p", more)
}

fn run_with(home: &Home, args: &[&str], variables: &[(&str, &str)], payload: &Value) -> Running {
    let mut command = home.command(args);
    command.envs([PATIENT]).envs(variables.iter().copied());
    Running::fed(command, payload.to_string().as_bytes())
}

#[track_caller]
fn hook(home: &Home, client: &str, payload: &Value) -> Value {
    let ran = run_with(home, &["hook", client], &[], payload).wait(SOON);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap_or_default()
}

/// The version that a real one tells its hooks.
const NEW: (&str, &str) = ("AI_AGENT", "claude-code_2-1-330_harness");

fn waiter(home: &Home, session: &str, begun_by: &str, variables: &[(&str, &str)]) -> Running {
    let variables: Vec<_> = [NEW].into_iter().chain(variables.iter().copied()).collect();
    run_with(home, &["hook", "wait"], &variables, &event(session, begun_by, &json!({})))
}

#[track_caller]
fn begin(d: &Daemon, client: &str, session: &str) -> String {
    hook(&d.home, client, &event(session, "SessionStart", &json!({ "source": "startup" })));
    inbox_of(d, session)
}

#[track_caller]
fn inbox_of(d: &Daemon, session: &str) -> String {
    inbox_of_peer(&peer_of(d, session).expect("a peer"))
}

fn inbox_of_peer(peer: &Value) -> String {
    format!("/v1/peers/{}/messages", peer["peer_id"].as_str().expect("an id"))
}

#[track_caller]
fn send(d: &Daemon, inbox: &str, text: &str) -> Value {
    d.post(inbox, &json!({ "text": text, "type": "query" })).ok(200)
}

#[track_caller]
fn woken(ran: &Ran, text: &str) {
    assert!(ran.code == Some(2) && ran.stderr.contains(text), "{ran:?}");
}

/// A session that was just opened is idle: its first prompt may come in an hour.
#[test]
fn a_session_is_woken_before_its_first_prompt() {
    let d = Daemon::start();
    let inbox = begin(&d, "claude", "s");
    let waiting = waiter(&d.home, "s", "SessionStart", &[]);
    // It wakes as soon as it waits, and only then is the sender promised so.
    let first = send(&d, &inbox, "is it green?");
    eventually(SOON, || send(&d, &inbox, "and now?")["delivery"] == "wakes");
    let ran = waiting.wait(SOON);
    woken(&ran, "is it green?");
    assert_eq!(
        ran.stderr.lines().next().map(|line| line.split(" (and ").next().unwrap_or_default()),
        Some("svc: operator asks")
    );
    // The turn that it begins shows the person the line, and the sender that the message arrived.
    let prompt = format!("<task-notification>\n{}\n</task-notification>", ran.stderr);
    let shown =
        hook(&d.home, "claude", &event("s", "UserPromptSubmit", &json!({ "prompt": prompt })));
    let line = shown["systemMessage"].as_str().expect("a line");
    assert!(line.starts_with("svc: operator asks: is it green?"), "{shown}");
    assert_eq!(state(&d, &first), "injected");
    // A prompt of the person's own shows nothing, once it has what came after the wake.
    eventually(SOON, || {
        let prompt = event("s", "UserPromptSubmit", &json!({ "prompt": "go on" }));
        hook(&d.home, "claude", &prompt) == Value::Null
    });
}

/// Somebody waits for the answer to a question, and a session that was just opened may have no
/// prompt for hours.
#[test]
fn a_question_that_waited_wakes_the_session_that_opens_and_news_does_not() {
    let d = Daemon::start();
    let inbox = begin(&d, "claude", "s");
    hook(&d.home, "claude", &event("s", "SessionEnd", &json!({ "reason": "exit" })));
    let news = json!({ "text": "main is frozen", "type": "notification" });
    let (asked, told) = (send(&d, &inbox, "is it green?"), d.post(&inbox, &news).ok(200));
    let resume = event("s", "SessionStart", &json!({ "source": "resume" }));
    let given = hook(&d.home, "claude", &resume);
    let given = given["hookSpecificOutput"]["additionalContext"].as_str().expect("context");
    assert!(given.contains("main is frozen"), "{given}");
    assert!(!given.contains("is it green?"), "it would stand there twice: {given}");
    assert_eq!([state(&d, &asked), state(&d, &told)], ["queued", "offered"]);

    let ran = waiter(&d.home, "s", "SessionStart", &[]).wait(SOON);
    woken(&ran, "is it green?");
    assert!(!ran.stderr.contains("main is frozen"), "{ran:?}");
    assert_eq!(state(&d, &asked), "offered", "no turn began");
    let prompt = json!({ "prompt": ran.stderr });
    hook(&d.home, "claude", &event("s", "UserPromptSubmit", &prompt));
    assert_eq!([state(&d, &asked), state(&d, &told)], ["injected", "injected"]);
    // Once: the turn has it.
    hook(&d.home, "claude", &event("s", "Stop", &json!({})));
    let waiting = waiter(&d.home, "s", "Stop", &[]);
    let woke_by = |words: &str| send(&d, &inbox, words);
    eventually(SOON, || woke_by("and now?")["delivery"] == "wakes");
    let ran = waiting.wait(SOON);
    woken(&ran, "and now?");
    assert!(!ran.stderr.contains("is it green?"), "{ran:?}");
}

/// A person sees all that woke the session, as far as it has room, and how many more there are.
#[test]
fn each_message_of_a_wake_has_its_line_on_the_screen() {
    let d = Daemon::start();
    let inbox = begin(&d, "claude", "s");
    let wake = |words: &[String]| {
        // A turn begins with one question.
        for (text, kind) in
            words.iter().zip(iter::once("query").chain(iter::repeat("notification")))
        {
            d.post(&inbox, &json!({ "text": text, "type": kind })).ok(200);
        }
        let ran = waiter(&d.home, "s", "Stop", &[]).wait(SOON);
        woken(&ran, &words[0]);
        let prompt = format!("<task-notification>\n{}\n</task-notification>", ran.stderr);
        let prompt = event("s", "UserPromptSubmit", &json!({ "prompt": prompt }));
        let shown = hook(&d.home, "claude", &prompt);
        hook(&d.home, "claude", &event("s", "Stop", &json!({})));
        (ran.stderr, shown)
    };
    let (text, shown) = wake(&["one?".into(), "two".into(), "three".into()]);
    assert!(text.starts_with("svc: operator asks (and 2 more)\n[Inter-session message]"), "{text}");
    let lines = ["asks: one?", "says: two", "says: three"].map(|it| format!("svc: operator {it}"));
    assert_eq!(shown["systemMessage"], lines.join("\n"));

    let many: Vec<String> = (0..12).map(|n| format!("text {n}")).collect();
    let shown = wake(&many).1["systemMessage"].as_str().expect("lines").to_owned();
    assert_eq!(shown.lines().count(), 8, "{shown}");
    assert!(shown.ends_with("svc: operator says: text 7 (and 4 more)"), "{shown}");

    // What has no room in the wake comes with the prompt that it begins.
    let long: Vec<String> = (0..4).map(|n| format!("long {n} {}", "x".repeat(2_500))).collect();
    let (text, shown) = wake(&long);
    assert!(text.contains("long 1 ") && !text.contains("long 3 "), "{text}");
    let context = shown["hookSpecificOutput"]["additionalContext"].as_str().expect("the rest");
    assert!(context.contains("long 3 ") && !context.contains("long 1 "), "{context}");
    let shown = shown["systemMessage"].as_str().expect("lines");
    assert_eq!(shown.lines().count(), 4, "{shown}");
    for (line, n) in shown.lines().zip(0..) {
        let verb = if n == 0 { "asks" } else { "says" };
        assert!(line.starts_with(&format!("svc: operator {verb}: long {n} x")), "{shown}");
    }
}

/// The waiter ended with the message that began the turn. The next one begins with the turn, which
/// may end without a hook, and takes nothing in it: the turn's own hooks hand messages over.
#[test]
fn a_session_is_woken_again_after_a_turn_that_a_message_began_and_that_failed() {
    let d = Daemon::start();
    let inbox = begin(&d, "claude", "s");
    let woken_turn = |begun_by: &str, text: &str| {
        let ran = waiter(&d.home, "s", begun_by, &[]).wait(SOON);
        woken(&ran, text);
        let prompt = json!({ "prompt": format!("<task-notification>\n{}", ran.stderr) });
        hook(&d.home, "claude", &event("s", "UserPromptSubmit", &prompt));
    };
    let fail = || {
        let failure = json!({ "error": "server_error" });
        hook(&d.home, "claude", &event("s", "StopFailure", &failure));
    };
    send(&d, &inbox, "is it green?");
    woken_turn("SessionStart", "is it green?");
    fail();
    assert_eq!(send(&d, &inbox, "is it red?")["delivery"], "next_turn", "nobody waits for it");

    woken_turn("StopFailure", "is it red?");
    let waiting = waiter(&d.home, "s", "UserPromptSubmit", &[]);
    assert_eq!(send(&d, &inbox, "which one?")["delivery"], "now");
    let tool = json!({ "tool_name": "Bash", "tool_input": { "command": "ls" } });
    let given = hook(&d.home, "claude", &event("s", "PreToolUse", &tool));
    assert!(given.to_string().contains("which one?"), "{given}");
    assert_eq!(send(&d, &inbox, "and now?")["delivery"], "now");
    fail();
    woken(&waiting.wait(SOON), "and now?");
}

/// When a turn ends, the waiter of its beginning may live beside that of its end.
#[test]
fn a_second_waiter_does_not_join_a_question_to_the_turn_of_another() {
    let d = Daemon::start();
    let inbox = begin(&d, "claude", "s");
    send(&d, &inbox, "is it green?");
    let ran = waiter(&d.home, "s", "SessionStart", &[]).wait(SOON);
    woken(&ran, "is it green?");
    let second = send(&d, &inbox, "is it red?");
    let waiting = waiter(&d.home, "s", "Stop", &[]);
    let prompt = json!({ "prompt": format!("<task-notification>\n{}", ran.stderr) });
    hook(&d.home, "claude", &event("s", "UserPromptSubmit", &prompt));
    assert_eq!(state(&d, &second), "queued");
    let stop = json!({ "last_assistant_message": "green", "stop_hook_active": true });
    hook(&d.home, "claude", &event("s", "Stop", &stop));
    woken(&waiting.wait(SOON), "is it red?");
}

/// The waiter of a client that was killed may live on for a moment, and would take what nobody
/// reads.
#[test]
fn the_waiter_of_a_killed_client_takes_nothing() {
    let d = Daemon::start();
    let svc = d.home.command(&[]);
    let mut client = Command::new("python3");
    client.args(["-c", KEPT_CLIENT]).arg(svc.get_program());
    let variables = svc.get_envs().filter_map(|(name, value)| Some((name, value?)));
    client.env_clear().envs(variables).envs([NEW, PATIENT]).stdin(Stdio::piped());
    let mut client = Running::spawn(client);
    let start = event("k", "SessionStart", &json!({ "source": "startup" }));
    let stop = event("k", "Stop", &json!({}));
    client.stdin().write_all(format!("{start}\n{stop}\n").as_bytes()).expect("it reads");
    let peer = until(SOON, || peer_of(&d, "k"));
    assert_eq!(client.line().as_deref(), Some("connected"));
    client.signal(Signal::KILL);
    eventually(SOON, || client.has_ended());
    let message = send(&d, &inbox_of_peer(&peer), "is it green?");
    assert_eq!(message["delivery"], "when_back");
    // It ends when the waiter does, which holds its output.
    client.wait(SOON);
    let told = detail(&d, &message);
    assert_eq!(told["state"], "queued", "{told}");
    let resume = event("k", "SessionStart", &json!({ "source": "resume" }));
    hook(&d.home, "claude", &resume);
    let prompt = event("k", "UserPromptSubmit", &json!({ "prompt": "go on" }));
    let given = hook(&d.home, "claude", &prompt);
    let given = given["hookSpecificOutput"]["additionalContext"].as_str().expect("context");
    assert!(given.contains("is it green?"), "{given}");
}

/// A client that runs a waiter, and says when that is connected.
const KEPT_CLIENT: &str = "\
import glob, os, subprocess, sys
svc = sys.argv[-1]
start, stop = sys.stdin.read().splitlines()
subprocess.run([svc, 'hook', 'claude'], input=start, text=True)
waiter = subprocess.Popen([svc, 'hook', 'wait'], stdin=subprocess.PIPE, text=True)
waiter.stdin.write(stop)
waiter.stdin.close()
def is_socket(fd):
    try:
        return os.readlink(fd).startswith('socket:')
    except OSError:
        return False
while not any(map(is_socket, glob.glob(f'/proc/{waiter.pid}/fd/*'))):
    pass
print('connected', flush=True)
waiter.wait()
";

/// Any of its requests may have been answered, not just the last.
#[test]
fn what_a_waiter_missed_before_its_client_ended_is_free_again() {
    let d = behind_a_proxy();
    let inbox = begin(&d, "claude", "s");
    let message = send(&d, &inbox, "is it green?");
    let svc = d.home.command(&[]);
    let mut client = Command::new("python3");
    client.args(["-c", LEAVING_CLIENT]).arg(svc.get_program());
    let variables = svc.get_envs().filter_map(|(name, value)| Some((name, value?)));
    client.env_clear().envs(variables).envs([NEW]).stdin(Stdio::piped());
    client.env("SVC_URL", swallowing(&d, usize::MAX, Fate::Cut));
    client.env("SVC_TOKEN", d.home.token().expect("a token"));
    let mut client = Running::spawn(client);
    client.stdin().write_all(event("s", "Stop", &json!({})).to_string().as_bytes()).expect("reads");
    // Every answer with the message is lost, and the waiter asks again after a while.
    eventually(SOON, || state(&d, &message) == "offered");
    client.signal(Signal::KILL);
    // It ends when the waiter does, which holds its output.
    client.wait(SOON);
    let prompt = event("s", "UserPromptSubmit", &json!({ "prompt": "go on" }));
    let given = hook(&d.home, "claude", &prompt);
    let given = given["hookSpecificOutput"]["additionalContext"].as_str().unwrap_or_default();
    assert!(given.contains("is it green?"), "{given}");
}

/// A client that runs a waiter, with standard input as its payload.
const LEAVING_CLIENT: &str = "\
import subprocess, sys
stop = sys.stdin.read()
waiter = subprocess.Popen([sys.argv[-1], 'hook', 'wait'], stdin=subprocess.PIPE, text=True)
waiter.stdin.write(stop)
waiter.stdin.close()
waiter.wait()
";

/// It tells the daemon itself: the session's next hook may be hours away.
#[test]
fn what_a_waiter_could_not_print_is_free_at_once() {
    let d = Daemon::start();
    let inbox = begin(&d, "claude", "s");
    let message = send(&d, &inbox, "is it green?");
    let svc = d.home.command(&["hook", "wait"]);
    let mut deaf = Command::new("sh");
    let variables = svc.get_envs().filter_map(|(name, value)| Some((name, value?)));
    deaf.args(["-c", "exec \"$0\" \"$@\" 2>&-"]).arg(svc.get_program()).args(svc.get_args());
    deaf.env_clear().envs(variables).envs([NEW, PATIENT]).stdin(Stdio::piped());
    let mut deaf = Running::spawn(deaf);
    let stop = event("s", "Stop", &json!({})).to_string();
    deaf.stdin().write_all(stop.as_bytes()).expect("it reads");
    deaf.wait(SOON);
    let peer = message["to_peer"].as_str().expect("an id");
    let unseen = format!("/v1/events?stream=peer/{peer}&kind=message.unseen");
    assert_eq!(d.get(&unseen).ok(200)["count"], 1);
    assert!(!d.home.path("hooks.spool").exists(), "nothing is left to tell");
    woken(&waiter(&d.home, "s", "Stop", &[]).wait(SOON), "is it green?");
}

/// Nothing in the line moves the cursor, ends the line or turns its direction.
#[test]
fn the_line_that_a_person_sees_is_one_line_of_text() {
    let d = Daemon::start();
    let inbox = begin(&d, "claude", "s");
    let name = "x\u{1b}[2J\u{202e}\ny";
    let evil = json!({ "display_name": name, "backend": "codex", "session_id": "evil" });
    let evil = d.post("/v1/peers/register", &evil).ok(200);
    let text = "a\u{1b}]52;c;eA==\u{7}\r\nb\u{9b}31m\u{2028}c ".repeat(40);
    let message = json!({ "text": text, "from_peer": evil["peer_id"], "type": "response" });
    d.post(&inbox, &message).ok(200);
    let ran = waiter(&d.home, "s", "Stop", &[]).wait(SOON);
    woken(&ran, "svc: x[2J y answered\n");
    let shown =
        hook(&d.home, "claude", &event("s", "UserPromptSubmit", &json!({ "prompt": ran.stderr })));
    let line = shown["systemMessage"].as_str().expect("a line");
    assert!(line.starts_with("svc: x[2J y answered: a]52;c;eA== b"), "{line:?}");
    let is_plain = |c: char| !c.is_control() && !"\u{202e}\u{2028}".contains(c);
    assert!(line.chars().count() < 250 && line.chars().all(is_plain), "{line:?}");
    assert!(ran.stderr.chars().all(|c| c == '\n' || is_plain(c)), "{ran:?}");
}

/// Such a session ends only when all its hooks have, so its person has to say that it is to be
/// woken; and a version that would keep the message for a prompt that may never come is not given
/// any.
#[test]
fn a_session_that_a_program_runs_is_woken_if_the_setting_says_so() {
    let d = Daemon::start();
    let inbox = begin(&d, "claude", "s");
    let headless = ("CLAUDE_CODE_ENTRYPOINT", "sdk-cli");
    let always = ("SVC_HOOKS_WAKE", "always");
    let message = send(&d, &inbox, "is it green?");
    let ends = |variables: &[(&str, &str)]| {
        let ran = waiter(&d.home, "s", "Stop", variables).wait(SOON);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{variables:?}");
        assert_eq!(state(&d, &message), "queued", "{variables:?}");
    };
    ends(&[headless]);
    ends(&[("SVC_HOOKS_WAKE", "never")]);
    ends(&[headless, always, ("AI_AGENT", "claude-code_2-1-100_harness")]);
    d.home.write("config.toml", "[hooks]\nwake = \"never\"\n");
    ends(&[]);
    // This test was started without `--input-format stream-json`, so as its client it takes no
    // prompts.
    ends(&[headless, always]);
    let svc = d.home.command(&[]);
    let mut client = Command::new("python3");
    client.args(["-c", CLIENT, "--input-format", "stream-json"]).arg(svc.get_program());
    let variables = svc.get_envs().filter_map(|(name, value)| Some((name, value?)));
    client.env_clear().envs(variables).envs([NEW, PATIENT, headless, always]).stdin(Stdio::piped());
    let mut client = Running::spawn(client);
    let start = event("p", "SessionStart", &json!({ "source": "startup" }));
    let stop = event("p", "Stop", &json!({}));
    client.stdin().write_all(format!("{start}\n{stop}\n").as_bytes()).expect("it reads");
    let peer = until(SOON, || peer_of(&d, "p"));
    send(&d, &inbox_of_peer(&peer), "is it red?");
    woken(&client.wait(SOON), "is it red?");
}

/// A client that a program runs, which reads prompts from its standard input. It runs its hooks by
/// a shell.
const CLIENT: &str = "\
import subprocess, sys
for words, payload in zip(('hook claude', 'hook wait'), sys.stdin.read().splitlines()):
    line = \"exec '\" + sys.argv[-1] + \"' \" + words
    ran = subprocess.run(['sh', '-c', line], input=payload, text=True)
sys.exit(ran.returncode)
";

/// The sender hears at once what it may expect.
#[test]
fn the_sender_is_told_when_a_message_arrives() {
    let d = Daemon::start();
    let tool = |to: &str| {
        let arguments = json!({ "to": to, "text": "x" });
        let result = d.tool("peer_send", &arguments);
        result["structuredContent"]["delivery"].clone()
    };
    let command = |to: &str| svc(&d.home, &["message", "send", to, "x"]);
    let expect = |inbox: &str, delivery: &str| {
        let id = inbox.split('/').nth(3).expect("an id");
        assert_eq!(send(&d, inbox, "x")["delivery"], delivery, "REST");
        assert_eq!(tool(id), delivery, "the tool");
        let ran = command(id);
        assert!(
            ran.ok().lines().any(|line| line.starts_with("delivery:") && line.ends_with(delivery)),
            "{ran:?}"
        );
    };
    for (client, prompt, stop) in [
        ("codex", "UserPromptSubmit", "Stop"),
        ("gemini", "BeforeAgent", "AfterAgent"),
        ("claude", "UserPromptSubmit", "Stop"),
    ] {
        let inbox = begin(&d, client, client);
        expect(&inbox, "next_turn");
        hook(&d.home, client, &event(client, prompt, &json!({ "prompt": "x" })));
        expect(&inbox, "now");
        // What the end of its turn gives it, it goes on with. With nothing to give it is idle, and
        // Claude Code at its second end, which takes nothing.
        hook(&d.home, client, &event(client, stop, &json!({})));
        expect(&inbox, "now");
        let stops =
            || hook(&d.home, client, &event(client, stop, &json!({ "stop_hook_active": true })));
        stops();
        if client != "claude" {
            expect(&inbox, "now");
            stops();
            stops();
        }
        expect(&inbox, "next_turn");
        hook(&d.home, client, &event(client, "SessionEnd", &json!({ "reason": "exit" })));
        expect(&inbox, "when_back");
    }
    let created = json!({ "hook": "event", "cwd": "/nowhere/p",
        "event": { "type": "session.created", "properties": { "sessionID": "o" } } });
    hook(&d.home, "opencode", &created);
    expect(&inbox_of(&d, "o"), "next_turn");
    let script = json!({ "display_name": "a", "backend": "script", "session_id": "script" });
    d.post("/v1/peers/register", &script).ok(200);
    expect(&inbox_of(&d, "script"), "next_turn");
}

/// Waiters are all that runs of us when everybody is idle.
#[test]
fn a_daemon_that_was_killed_comes_back_once_and_one_that_was_stopped_does_not() {
    let mut d = Daemon::start();
    // As an installed daemon has it; the port is not another test's.
    d.home.write("config.toml", &format!("listen = [\"127.0.0.1:{}\"]\n", d.port()));
    let inboxes = ["a", "b", "c"].map(|session| begin(&d, "claude", session));
    let waiters = ["a", "b", "c"].map(|session| waiter(&d.home, session, "Stop", &[]));
    let first = d.pid();
    d.kill9();
    let pid = || d.home.daemon_json()?["pid"].as_u64();
    let second = until(SOON, || {
        let answer = svc(&d.home, &["status", "--json"]);
        let running = answer.code == Some(0) && pid().is_some_and(|pid| pid != u64::from(first));
        running.then(pid).flatten()
    });
    for (inbox, waiting) in inboxes.iter().zip(waiters) {
        send(&d, inbox, "still there?");
        woken(&waiting.wait(SOON), "still there?");
    }
    assert_eq!(pid(), Some(second), "one daemon");
    let starts = String::from_utf8_lossy(&d.home.read("svc.log")).matches("already runs").count();
    assert_eq!(starts, 0, "nobody else tried");
    // Who was stopped leaves no file behind, which is what a waiter looks at.
    svc(&d.home, &["stop"]).ok();
    assert_eq!(d.home.daemon_json(), None);
    // Neither does one that was killed, when somebody stops it.
    svc(&d.home, &["start"]).ok();
    let third = pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    kill_process(third.expect("a process"), Signal::KILL).expect("it is ours");
    eventually(SOON, || svc(&d.home, &["status"]).code == Some(1));
    assert!(d.home.daemon_json().is_some(), "it had no time to remove it");
    svc(&d.home, &["stop"]).ok();
    assert_eq!(d.home.daemon_json(), None);
}

#[test]
fn who_waits_holds_up_no_stop() {
    // Connections that do not end get ten.
    quickly(Duration::from_secs(8), || {
        let mut d = Daemon::start();
        begin(&d, "claude", "a");
        let caller = d.with_token(&d.home.token().expect("a token"));
        let waiting = std::thread::spawn(move || {
            let wait = json!({ "waiter": "hook_2" });
            caller.post("/v1/sessions/a/wait", &wait).ok(200)
        });
        // An earlier waiter is sent away as soon as the later one is there.
        eventually(SOON, || {
            let earlier = json!({ "waiter": "hook_1", "seconds": 1 });
            d.post("/v1/sessions/a/wait", &earlier).ok(200)["state"] == "retired"
        });
        let took = d.stop();
        assert_eq!(waiting.join().expect("an answer")["state"], "nothing");
        took
    });
}

/// The plugin of opencode, as its own runtime runs it: there a request that is aborted tells of its
/// close and of no error.
#[test]
fn a_prompt_in_opencode_goes_on_if_the_daemon_does_not_answer() {
    const HTTP: &str = r#"
import http from "node:http"
export const request = ({ signal, ...options }, answered) => {
  const sent = http.request(options, answered).on("error", () => {})
  signal?.addEventListener("abort", () => sent.destroy())
  const on = sent.on.bind(sent)
  sent.on = (name, heard) => (name === "error" ? sent : on(name, heard))
  return sent
}
"#;
    const RUN: &str = r#"
import { once } from "node:events"
import net from "node:net"
import { SvcPlugin } from "./plugin.mjs"
await once(net.createServer(() => {}).listen("svc.sock"), "listening")
const plugin = await SvcPlugin({ directory: "/" })
const message = { parts: [], message: { id: "msg_1" } }
await plugin["chat.message"]({ sessionID: "ses_1" }, message)
console.log("the prompt goes on")
process.exit(0)
"#;
    if Command::new("node").arg("--version").output().is_err() {
        eprintln!("not run: node is not there");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let settings = json!({ "home": folder.path() }).to_string();
    let plugin = include_str!("../../crates/svc-install/src/opencode_plugin.js")
        .replace("@SETTINGS@", &settings)
        .replace("\"node:http\"", "\"./http.mjs\"");
    for (name, text) in [("plugin.mjs", plugin.as_str()), ("http.mjs", HTTP), ("run.mjs", RUN)] {
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let mut node = Command::new("node");
    node.arg("run.mjs").current_dir(folder.path()).stdin(Stdio::null());
    let ran = Running::spawn(node).wait(SOON);
    assert_eq!((ran.code, ran.stdout.trim()), (Some(0), "the prompt goes on"), "{ran:?}");
}
