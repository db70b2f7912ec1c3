//! The command line: the daemon in the background, commands as tasks, and exit codes.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agents::runs;
use crate::daemon::{
    Daemon, Home, PATIENT, Ran, Running, eventually, free_port, svc, svc_with_input, write_program,
};
use crate::expect::{
    all_pages, append, done, each, frame, new_task, page, peer, problem, text, with_task,
};
use crate::pages::commands;
use crate::stored::is_in_file;
use crate::wire::Caller;

const SOON: Duration = Duration::from_secs(20);

#[track_caller]
fn only_task(d: &Caller) -> Value {
    let mut tasks = page(&d.get("/v1/tasks"), "tasks");
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    tasks.remove(0)
}

/// The lines of a task's stdout or stderr, in order.
#[track_caller]
fn lines(d: &Caller, task: &str, kind: &str) -> Vec<String> {
    let target = format!("/v1/events?stream=task/{task}&kind=frame&limit=500");
    all_pages(d, &target, "events", "after")
        .iter()
        .filter(|event| event["data"]["kind"] == json!(kind))
        .map(|event| text(&event["data"], "line"))
        .collect()
}

#[track_caller]
fn caller(home: &Home) -> Caller {
    let url = text(&home.daemon_json().expect("a daemon runs"), "url");
    let addr = url.trim_start_matches("http://").parse().expect("a url with an address");
    Caller { addr, token: home.token() }
}

#[test]
fn daemon_runs_in_the_background_until_stopped() {
    let home = Home::new();
    let down = svc(&home, &["status", "--json"]);
    assert_eq!(down.code, Some(1), "{down:?}");
    let down: Value = serde_json::from_str(&down.stdout).unwrap();
    assert_eq!(down["running"], json!(false));
    svc(&home, &["stop"]).ok();

    let listen = format!("127.0.0.1:{}", free_port());
    svc(&home, &["start", "--listen", &listen]).ok();
    let d = caller(&home);
    d.get("/v1/health").ok(200);
    let status = svc(&home, &["status", "--json"]).json();
    assert_eq!(status["running"], json!(true));
    assert_eq!(status["url"], json!(format!("http://{listen}")));
    let pid = home.daemon_json().unwrap()["pid"].clone();
    assert_eq!(status["pid"], pid);
    assert!(status["version"].is_string(), "{status}");
    assert!(status["uptime_seconds"].is_number(), "{status}");
    assert_eq!(status["db"], home.shown_store());
    svc(&home, &["status"]).ok();

    let again = svc(&home, &["start", "--listen", &listen]);
    let said = format!("{}{}", again.ok(), again.stderr);
    assert!(said.contains("already"), "{again:?}");
    assert_eq!(home.daemon_json().unwrap()["pid"], pid, "the same one");

    let mode = fs::metadata(home.path("svc.log")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert!(!svc(&home, &["logs"]).ok().trim().is_empty());

    svc(&home, &["restart", "--listen", &listen]).ok();
    assert_ne!(home.daemon_json().unwrap()["pid"], pid, "another one");
    d.get("/v1/health").ok(200);

    svc(&home, &["stop"]).ok();
    assert!(!home.path("daemon.json").exists());
    assert!(d.request("GET", "/health").try_send().is_err(), "nobody is there");
    assert_eq!(svc(&home, &["status"]).code, Some(1));
    svc(&home, &["stop"]).ok();
}

#[test]
fn failed_start_prints_the_reason() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let home = Home::new();
    let ran = svc(&home, &["start", "--listen", &addr]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(&taken.local_addr().unwrap().port().to_string()), "{ran:?}");
    assert!(ran.stderr.contains("--listen"), "{ran:?}");
    // A program reads one document, which has the reason.
    let ran = svc(&home, &["start", "--listen", &addr, "--json"]);
    let document: Value = serde_json::from_str(&ran.stderr).expect("one document");
    assert!(text(&document, "detail").contains("is in use on 127.0.0.1"), "{ran:?}");
    assert_eq!(svc(&home, &["status"]).code, Some(1));
}

#[test]
fn four_concurrent_starts_leave_one_daemon() {
    let home = Home::new();
    let listen = format!("127.0.0.1:{}", free_port());
    let starts: Vec<_> =
        (0..4).map(|_| Running::spawn(home.command(&["start", "--listen", &listen]))).collect();
    for start in starts {
        start.wait(SOON).ok();
    }
    let status = svc(&home, &["status", "--json"]).json();
    assert_eq!(status["pid"], home.daemon_json().unwrap()["pid"]);
    let kinds = each(&page(&caller(&home).get("/v1/events?stream=daemon"), "events"), "kind");
    assert_eq!(kinds, ["daemon.started", "daemon.joined"]);
    svc(&home, &["stop"]).ok();
}

#[test]
fn stop_never_signals_a_process_with_a_reused_pid() {
    only_if!(is_in_file());
    let home = Home::new();
    let mut command = std::process::Command::new("sleep");
    command.arg("600");
    let mut stranger = command.spawn().unwrap();
    let stale = json!({
        "pid": stranger.id(), "url": "http://127.0.0.1:9", "version": "0.1.0", "boot_id": "x",
        "started_at": "2020-01-01T00:00:00.000Z",
    });
    home.write("daemon.json", &stale.to_string());
    assert_eq!(svc(&home, &["status"]).code, Some(1));
    assert_eq!(svc(&home, &["stop"]).ok().trim(), "svc is not running");
    // Nor while a command other than a daemon holds the database.
    let lock = fs::File::create(home.path("svc.db.lock")).unwrap();
    lock.lock().unwrap();
    let pid = stranger.id().to_string();
    for command in [&["migrate"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let ran = svc(&home, command);
        assert_eq!(ran.code, Some(3), "{command:?}: {ran:?}");
        assert!(!ran.stderr.contains(&pid), "the stranger is not who has it: {ran:?}");
    }
    // A daemon from which another one took the database begins anew with its lock held.
    let started =
        [&["stop"][..], &["token", "rotate"]].map(|args| Running::spawn(home.command(args)));
    std::thread::sleep(Duration::from_millis(500));
    assert!(!home.path("token").exists(), "nothing is written before that is decided");
    drop(lock);
    let [stopped, rotated] = started.map(|running| running.wait(SOON));
    assert_eq!(stopped.ok().trim(), "svc is not running");
    assert_eq!(fs::read_to_string(home.path("token")).unwrap(), rotated.ok());
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger lives");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// A daemon was killed, and its pid belongs to another process. No daemon runs, so every start
/// starts one.
#[test]
fn killed_daemon_is_restarted_although_its_pid_was_reused() {
    let home = Home::new();
    let listen = format!("127.0.0.1:{}", free_port());
    home.write("config.toml", &format!("listen = [\"{listen}\"]\n"));
    let mut stranger = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "0" },
    }});
    let begin = json!({ "hook_event_name": "SessionStart", "session_id": "s", "source": "startup", "cwd": "/" });
    let starts: [(&[&str], String); 4] = [
        (&["start"], String::new()),
        (&["stdio"], format!("{initialize}\n")),
        (&["hook", "claude-code"], begin.to_string()),
        (&["restart"], String::new()),
    ];
    svc(&home, &["start"]).ok();
    for (command, input) in starts {
        let daemon = home.daemon_json().unwrap();
        let pid = daemon["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).unwrap();
        let process = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(process, Signal::KILL).unwrap();
        eventually(SOON, || svc(&home, &["status"]).code == Some(1));
        let mut stale = daemon.clone();
        stale["pid"] = json!(stranger.id());
        home.write("daemon.json", &stale.to_string());
        let status = svc(&home, &["status"]);
        assert_eq!((status.code, status.stderr.as_str()), (Some(1), ""), "{status:?}");
        let doctor = svc(&home, &["doctor"]);
        assert!(doctor.stdout.contains("not running"), "{doctor:?}");
        let words = format!("{}{}", doctor.stdout, doctor.stderr);
        assert!(!words.contains(&format!("kill {}", stranger.id())), "{doctor:?}");

        // A hook begins the start within its deadline.
        let mut program = home.command(command);
        program.envs([PATIENT]);
        let ran = Running::fed(program, input.as_bytes()).wait(SOON);
        assert_eq!(ran.code, Some(0), "{command:?}: {ran:?}");
        if command[0] == "stdio" {
            assert!(ran.stdout.contains("serverInfo"), "{ran:?}");
        }
        eventually(SOON, || svc(&home, &["status"]).code == Some(0));
        let started = svc(&home, &["status", "--json"]).json();
        assert_eq!(started["pid"], home.daemon_json().unwrap()["pid"], "{command:?}");
        assert_ne!(started["pid"], daemon["pid"], "{command:?}");
    }
    // The socket shows the daemon's process, whatever the file says.
    let mut wrong = home.daemon_json().unwrap();
    let pid = std::mem::replace(&mut wrong["pid"], json!(stranger.id()));
    home.write("daemon.json", &wrong.to_string());
    assert_eq!(svc(&home, &["status", "--json"]).json()["pid"], pid);
    assert_eq!(svc(&home, &["stop", "--json"]).json()["pid"], pid);
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger lives");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn run_records_a_task_and_exits_with_the_commands_code() {
    let table: [(&[&str], i32, &str); 5] = [
        (&["true"], 0, "done"),
        (&["false"], 1, "failed"),
        (&["sh", "-c", "exit 3"], 3, "failed"),
        (&["sh", "-c", "exit 127"], 127, "failed"),
        (&["sh", "-c", "kill -9 $$"], 137, "failed"),
    ];
    for (command, code, status) in table {
        let d = Daemon::start();
        let args = [&["task", "run", "--"], command].concat();
        let ran = svc(&d.home, &args);
        assert_eq!(ran.code, Some(code), "{command:?}: {ran:?}");
        let task = only_task(&d);
        assert_eq!(task["status"], json!(status), "{command:?}");
        if code == 137 {
            assert!(!task["signal"].is_null(), "{task}");
        } else {
            assert_eq!(task["exit_code"], json!(code), "{task}");
        }
        let kinds: Vec<_> =
            page(&d.get(&format!("/v1/events?stream=task/{}", text(&task, "task_id"))), "events")
                .iter()
                .map(|event| event["data"]["status"].clone())
                .collect();
        assert_eq!(kinds, [json!("pending"), json!("active"), json!(status)], "{command:?}");
    }
}

#[test]
fn command_that_cannot_start_creates_no_task() {
    let d = Daemon::start();
    for missing in ["/no/such/program", "no-such-program-anywhere", "/etc/passwd"] {
        let ran = svc(&d.home, &["task", "run", "--", missing]);
        assert!(matches!(ran.code, Some(126 | 127)), "{missing}: {ran:?}");
        if missing != "/etc/passwd" {
            assert_eq!(ran.code, Some(127), "{missing}: {ran:?}");
        }
        assert!(ran.stderr.contains(missing), "{ran:?}");
    }
    assert!(page(&d.get("/v1/tasks"), "tasks").is_empty());
}

#[test]
fn idempotency_key_runs_a_command_once() {
    let d = Daemon::start();
    let ran = d.home.path("ran");
    let script = format!("echo once >> {}; exit 3", ran.display());
    let run = |more: &[&str]| {
        let all = ["task", "run", "--idempotency-key", "k"].iter().chain(more).copied();
        let all: Vec<_> = all.chain(["--", "sh", "-c", &script]).collect();
        svc(&d.home, &all)
    };
    assert_eq!(run(&[]).code, Some(3));
    let again = run(&[]);
    assert_eq!(again.code, Some(3), "as the run that was: {again:?}");
    assert!(again.stderr.contains("nothing was run"), "{again:?}");
    let task = only_task(&d);
    assert!(again.stderr.contains(&text(&task, "task_id")), "{again:?}");
    let told: Value = serde_json::from_str(&run(&["--json"]).stdout).expect("one line of JSON");
    let id = text(&task, "task_id");
    assert_eq!(told, json!({ "task_id": id, "exit_code": 3, "leftover": null }));
    assert_eq!(fs::read_to_string(&ran).expect("it ran"), "once\n");

    // A pending or active task with the key is not run, whoever created it.
    d.post("/v1/tasks", &json!({ "title": "false", "idempotency_key": "k-2" })).ok(201);
    let pending = svc(&d.home, &["task", "run", "--idempotency-key", "k-2", "--", "false"]);
    assert_eq!(pending.code, Some(0), "{pending:?}");
    assert!(pending.stderr.contains("pending"), "{pending:?}");
    let other = svc(&d.home, &["task", "run", "--idempotency-key", "k-2", "--", "true"]);
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.stderr.contains("stands for another task"), "{other:?}");
}

#[test]
fn command_with_a_key_that_cannot_start_leaves_no_open_task() {
    let d = Daemon::start();
    let run = |key: &str, program: &str| {
        svc(&d.home, &["task", "run", "--idempotency-key", key, "--", program])
    };
    assert_eq!(run("k", "no-such-program-anywhere").code, Some(127));
    assert!(page(&d.get("/v1/tasks"), "tasks").is_empty());

    // The file exists and is executable, but it cannot be run.
    let script = d.home.path("script");
    write_program(&script, "#!/no/such/interpreter\n");
    let script = script.to_str().expect("is UTF-8");
    for _ in 0..2 {
        assert_eq!(run("k", script).code, Some(127));
        let task = only_task(&d);
        assert_eq!((&task["status"], &task["exit_code"]), (&json!("failed"), &json!(127)));
        assert!(text(&task, "error").contains("cannot start"), "{task}");
    }
}

#[test]
fn each_output_line_is_a_frame_in_order() {
    let d = Daemon::start();
    let script = "printf 'a\\n\\nb\\n'; printf 'e1\\ne2' >&2; printf 'tab\\there\\r\\nlast'";
    svc(&d.home, &["task", "run", "--", "sh", "-c", script]).ok();
    let task = text(&only_task(&d), "task_id");
    let out = lines(&d, &task, "stdout");
    assert_eq!(out.len(), 5, "{out:?}");
    assert_eq!(out[..3], ["a", "", "b"]);
    assert_eq!(out[3].trim_end_matches('\r'), "tab\there");
    assert_eq!(out[4], "last", "also without a newline at its end");
    assert_eq!(lines(&d, &task, "stderr"), ["e1", "e2"]);
}

#[test]
fn flood_of_lines_is_complete_and_invalid_utf8_is_harmless() {
    let d = Daemon::start();
    let script = "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; \
                  printf 'bad \\377\\376 bytes\\n'; head -c 300000 /dev/zero | tr '\\0' x; echo";
    svc(&d.home, &["task", "run", "--", "sh", "-c", script]).ok();
    let out = lines(&d, &text(&only_task(&d), "task_id"), "stdout");
    let wanted: Vec<_> = (0..5_000).map(|n| format!("line {n}")).collect();
    assert_eq!(out[..5_000], wanted);
    assert!(out[5_000].starts_with("bad ") && out[5_000].ends_with(" bytes"), "{:?}", out[5_000]);
    assert_eq!(out[5_001..].concat().matches('x').count(), 300_000, "a long line loses nothing");
}

#[test]
fn command_continues_while_the_daemon_is_killed_and_loses_nothing() {
    let mut d = Daemon::start();
    let script = "i=0; while [ $i -lt 150 ]; do echo line $i; i=$((i+1)); sleep 0.01; done; exit 5";
    let running = Running::spawn(d.home.command(&["task", "run", "--", "sh", "-c", script]));
    for _ in 0..2 {
        let frames = || page(&d.get("/v1/events?kind=frame&limit=500"), "events").len();
        let seen = frames();
        eventually(SOON, || frames() > seen + 20);
        d.kill_and_restart();
    }
    let ran = running.wait(SOON);
    assert_eq!(ran.code, Some(5), "{ran:?}");
    let task = only_task(&d);
    assert_eq!(task["status"], "failed");
    assert_eq!(task["exit_code"], 5);
    let wanted: Vec<_> = (0..150).map(|n| format!("line {n}")).collect();
    assert_eq!(lines(&d, &text(&task, "task_id"), "stdout"), wanted);
}

#[test]
fn end_of_a_command_is_sent_when_the_daemon_is_back() {
    let mut d = Daemon::start();
    let (gate, end) = (d.home.user().join("gate"), d.home.user().join("end"));
    let script = format!(
        "echo before; until [ -e {} ]; do sleep 0.02; done; echo after; : > {}",
        gate.display(),
        end.display()
    );
    let running = Running::spawn(d.home.command(&["task", "run", "--", "sh", "-c", &script]));
    eventually(SOON, || page(&d.get("/v1/events?kind=frame"), "events").len() == 1);
    d.kill9();
    fs::write(&gate, "").unwrap();
    eventually(SOON, || end.exists());
    d.restart();
    running.wait(SOON).ok();
    let task = only_task(&d);
    assert_eq!(task["status"], "done");
    assert_eq!(lines(&d, &text(&task, "task_id"), "stdout"), ["before", "after"]);
}

/// Without the notice a command that has ended looks like one that hangs.
#[test]
fn run_says_that_it_waits_for_the_daemon() {
    let mut d = Daemon::start();
    let gate = d.home.user().join("gate");
    let script = format!("echo up; until [ -e {} ]; do sleep 0.02; done; exit 3", gate.display());
    let running = Running::spawn(d.home.command(&["task", "run", "--", "sh", "-c", &script]));
    eventually(SOON, || page(&d.get("/v1/events?kind=frame"), "events").len() == 1);
    d.kill9();
    fs::write(&gate, "").unwrap();
    let told = "the command ended with exit code 3; svc waits for the daemon for up to 60 s";
    eventually(SOON, || running.said().contains(told));
    running.signal(Signal::INT);
    let ran = running.wait(SOON);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("`svc task resend "), "{ran:?}");
}

#[test]
fn run_prints_one_document_under_json() {
    let d = Daemon::start();
    let ran = svc(&d.home, &["task", "run", "--json", "--", "sh", "-c", "echo one; exit 3"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let told: Value = serde_json::from_str(&ran.stdout).expect("one document");
    let task = text(&only_task(&d), "task_id");
    assert_eq!(told, json!({ "task_id": task, "exit_code": 3, "leftover": null }));
    assert_eq!(lines(&d, &task, "stdout"), ["one"]);
}

#[test]
fn cancel_kills_the_command_and_its_children() {
    let d = Daemon::start();
    let mark = d.home.user().join("child-pid");
    let script = format!("sleep 600 & echo $! > {}; echo up; wait", mark.display());
    let running = Running::spawn(d.home.command(&["task", "run", "--", "sh", "-c", &script]));
    eventually(SOON, || page(&d.get("/v1/events?kind=frame"), "events").len() == 1);
    let id = text(&only_task(&d), "task_id");
    svc(&d.home, &["task", "cancel", &id]).ok();
    let ran = running.wait(SOON);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert_eq!(only_task(&d)["status"], "cancelled");
    let child: u64 = fs::read_to_string(mark).unwrap().trim().parse().unwrap();
    eventually(SOON, || !runs(child));
}

#[test]
fn signal_to_the_runner_ends_the_command_and_the_task() {
    let d = Daemon::start();
    let script = "echo up; sleep 600";
    let running = Running::spawn(d.home.command(&["task", "run", "--", "sh", "-c", script]));
    eventually(SOON, || page(&d.get("/v1/events?kind=frame"), "events").len() == 1);
    running.signal(Signal::TERM);
    let ran = running.wait(SOON);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    let status = text(&only_task(&d), "status");
    assert!(matches!(status.as_str(), "cancelled" | "failed"), "{status}");
}

#[test]
fn task_watch_continues_across_a_restart() {
    let (mut d, task) = with_task();
    append(&d, &task, &json!([frame("one"), frame("two")]));
    let watch = Running::spawn(d.home.command(&["task", "watch", &task]));
    let mut seen = Vec::new();
    let mut see = |until: &str| {
        while seen.last().is_none_or(|line: &String| line != until) {
            let line = watch.line().expect("the watch goes on");
            if ["one", "two", "three", "four", "five"].contains(&line.as_str()) {
                seen.push(line);
            }
        }
    };
    see("two");
    append(&d, &task, &frame("three"));
    see("three");
    d.kill_and_restart();
    append(&d, &task, &frame("four"));
    see("four");
    d.restart();
    append(&d, &task, &json!([frame("five"), done()]));
    see("five");
    assert_eq!(seen, ["one", "two", "three", "four", "five"], "each once and in order");
    watch.wait(SOON).ok();
    let ran = svc(&d.home, &["task", "watch", "task_unknown"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn events_tail_continues_across_a_restart() {
    let (mut d, task) = with_task();
    let stream = format!("task/{task}");
    let args = ["events", "tail", "--json", "--stream", &stream, "--after", "1"];
    let tail = Running::spawn(d.home.command(&args));
    for (n, crash) in [(2, true), (3, false), (4, true)] {
        append(&d, &task, &frame(&format!("line {n}")));
        let item: Value = serde_json::from_str(&tail.line().expect("the tail goes on")).unwrap();
        assert_eq!(item["seq"], json!(n), "{item}");
        assert_eq!(item["data"]["line"], json!(format!("line {n}")));
        if crash {
            d.kill9();
        }
        d.restart();
    }
    tail.signal(Signal::INT);
    let ran = tail.wait(SOON);
    assert_eq!(ran.stdout.lines().count(), 3, "{ran:?}");

    let prefix = Running::spawn(d.home.command(&["events", "tail", "--json", "--prefix", "task/"]));
    let first: Value = serde_json::from_str(&prefix.line().expect("from the beginning")).unwrap();
    assert_eq!((&first["stream"], &first["seq"]), (&json!(stream), &json!(1)));
    let unknown = svc(&d.home, &["events", "tail", "--stream", "task/unknown"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
}

#[test]
fn task_list_and_task_show_work() {
    let d = Daemon::start();
    svc(&d.home, &["task", "run", "--title", "a title", "--", "echo", "hello"]).ok();
    let task = only_task(&d);
    assert_eq!(task["title"], "a title");
    let id = text(&task, "task_id");
    assert!(svc(&d.home, &["task", "list"]).ok().contains(&id));
    let listed = svc(&d.home, &["task", "list", "--json"]).json();
    assert_eq!(listed["tasks"][0]["task_id"], json!(id));
    assert_eq!(svc(&d.home, &["task", "show", &id, "--json"]).json(), task);
    let other = new_task(&d);
    let differs = id.bytes().zip(other.bytes()).position(|(a, b)| a != b).expect("two ids");
    assert_eq!(svc(&d.home, &["task", "show", &id[..=differs], "--json"]).json(), task);
    assert_eq!(
        svc(&d.home, &["task", "watch", &id[..=differs]]).code,
        svc(&d.home, &["task", "watch", &id]).code
    );
    let several = svc(&d.home, &["task", "show", &id[..differs]]);
    let (at, over) = (several.stderr.find(&other), several.stderr.find(&id));
    assert!(several.code == Some(1) && at < over && at.is_some(), "the living first: {several:?}");
    let unknown = svc(&d.home, &["task", "show", "task_unknown"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    let over = svc(&d.home, &["task", "cancel", &id]);
    assert_eq!(over.code, Some(1), "{over:?}");
}

#[test]
fn peer_and_message_commands_work() {
    let d = Daemon::start();
    let json = |args: &[&str]| svc(&d.home, &[args, &["--json"]].concat()).json();
    let registered = json(&[
        "peer",
        "register",
        "--display-name",
        "ann",
        "--backend",
        "claude",
        "--session-id",
        "s-1",
    ]);
    let ann = text(&registered, "peer_id");
    assert_eq!(registered["display_name"], "ann");
    let bob = peer(&d, "s-2");
    let listed = json(&["peer", "list"]);
    assert_eq!(listed["count"], 2);
    assert!(svc(&d.home, &["peer", "list"]).ok().contains("ann"));
    assert_eq!(json(&["peer", "show", &ann])["peer_id"], json!(ann));
    assert_eq!(json(&["peer", "heartbeat", &ann, "--status", "busy"])["status"], "busy");

    json(&["peer", "heartbeat", "ann", "--status", "offline"]);
    assert_eq!(json(&["peer", "list"])["count"], 1, "the living");
    assert_eq!(json(&["peer", "list", "--all"])["count"], 2);
    assert_eq!(json(&["peer", "list", "--status", "offline"])["peers"][0]["peer_id"], json!(ann));
    let cast = svc(&d.home, &["message", "broadcast", "x", "--from", &bob]);
    assert_eq!(cast.ok(), "delivered to 1: 0 now, 1 when they are back\n");
    let sent = json(&["message", "send", &bob, "hello \"bob\""]);
    assert_eq!(sent["text"], "hello \"bob\"");
    let id = text(&sent, "id");
    let piped = svc_with_input(&d.home, &["message", "send", &bob, "-"], b"two\nlines");
    piped.ok();
    let peeked = json(&["message", "inbox", &bob]);
    let messages = peeked["messages"].as_array().unwrap();
    assert_eq!(each(messages, "text"), ["hello \"bob\"", "two\nlines"]);
    assert_eq!(each(messages, "state"), ["queued", "queued"], "looking takes nothing");
    assert_eq!(json(&["message", "inbox", &bob, "--take"])["messages"][0]["state"], "offered");
    assert_eq!(json(&["message", "inbox", &bob, "--take"])["count"], 0, "on lease");
    assert_eq!(json(&["message", "ack", &bob, &id])["acked"], json!([id]));
    assert_eq!(json(&["message", "show", &id])["state"], "acked");
    assert_eq!(json(&["message", "broadcast", "all of you"])["delivered_to"], 2);

    assert_eq!(json(&["peer", "remove", &ann])["peer_id"], json!(ann));
    let gone = svc(&d.home, &["peer", "show", &ann]);
    assert_eq!(gone.code, Some(1), "{gone:?}");
    assert!(!gone.stderr.trim().is_empty() && gone.stdout.is_empty(), "{gone:?}");
}

#[test]
fn commands_without_a_daemon_say_how_to_start_one() {
    let home = Home::new();
    for args in [
        &["peer", "list"][..],
        &["task", "list"],
        &["task", "run", "--", "true"],
        &["message", "inbox", "peer_x"],
    ] {
        let ran = svc(&home, args);
        assert_eq!(ran.code, Some(1), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains("svc start"), "{args:?}: {ran:?}");
    }
}

#[test]
fn a_blank_name_is_a_usage_error() {
    let d = Daemon::start();
    for args in [
        ["task", "show", ""],
        ["task", "wait", ""],
        ["session", "show", ""],
        ["message", "show", ""],
        ["ghap", "show", ""],
        ["peer", "remove", ""],
        ["token", "revoke", ""],
        ["agent", "status", ""],
    ] {
        let ran = svc(&d.home, &args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains("an id or a name is blank"), "{args:?}: {ran:?}");
    }
}

#[test]
fn the_operator_token_is_shown_made_and_rotated() {
    let d = Daemon::start();
    let old = d.home.token().unwrap();
    assert_eq!(svc(&d.home, &["token", "show"]).ok().trim(), old);
    svc(&d.home, &["token", "rotate"]).ok();
    let new = d.home.token().unwrap();
    assert_ne!(new, old);
    problem(&d.with_token(&old).get("/v1/peers"), 401, "unauthorized");
    d.with_token(&new).get("/v1/peers").ok(200);
    svc(&d.home, &["peer", "list"]).ok();

    let path = d.home.user().join("made-token");
    let at = path.to_str().unwrap();
    svc(&d.home, &["token", "init", at]).ok();
    let made = fs::read_to_string(&path).unwrap();
    assert_eq!(made.trim().len(), 64, "{made}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let again = svc(&d.home, &["token", "init", at]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), made, "what exists stays");
    let nowhere = svc(&d.home, &["token", "init", "/nodir/x"]);
    assert_eq!(nowhere.code, Some(1), "{nowhere:?}");
    assert!(nowhere.stderr.contains("cannot create /nodir/x"), "{nowhere:?}");

    // A refused caller is told where the token should be.
    d.home.write("token", &"0123456789abcdef".repeat(4));
    let refused = svc(&d.home, &["peer", "list"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains(d.home.path("token").to_str().unwrap()), "{refused:?}");
}

#[test]
fn a_token_from_standard_input_becomes_the_operators() {
    let d = Daemon::start();
    let take = |home: &Home, token: &str| {
        svc_with_input(home, &["token", "init", "-"], format!("{token}\n").as_bytes())
    };
    let old = d.home.token().unwrap();
    take(&d.home, &old).ok();
    let other = "0123456789abcdef".repeat(4);
    let refused = take(&d.home, &other);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("a daemon runs with another token"), "{refused:?}");
    assert_eq!(d.home.token().unwrap(), old);

    let home = Home::new();
    for weak in ["", "short", "two words of a text that is long enough"] {
        assert_eq!(take(&home, weak).code, Some(1), "{weak}");
        assert_eq!(home.token(), None, "{weak}");
    }
    for token in [&old, &other] {
        take(&home, token).ok();
        assert_eq!(home.token().as_ref(), Some(token));
    }
    assert_eq!(fs::metadata(home.path("token")).unwrap().permissions().mode() & 0o777, 0o600);
    let d = Daemon::with(|plan| plan.home(&home));
    d.with_token(&other).get("/v1/peers").ok(200);
}

#[test]
fn each_setting_is_shown_with_its_origin() {
    let home = Home::new();
    home.write("config.toml", "log_level = \"warn\"\nlog_format = \"json\"\n");
    let run = |env: &[(&str, &str)], args: &[&str]| {
        let mut command = home.command(&[&["config", "show", "--json"], args].concat());
        command.envs(env.iter().copied());
        Running::spawn(command).wait(SOON).json()
    };
    let setting = |shown: &Value, key: &str| {
        let rows = shown["settings"].as_array().unwrap_or_else(|| panic!("settings in {shown}"));
        let row = rows.iter().find(|row| row["key"] == json!(key));
        let row = row.unwrap_or_else(|| panic!("{key} in {shown}"));
        (row["value"].clone(), text(row, "origin"))
    };
    let env = [("SVC_LOG_LEVEL", "debug")];
    let table = [
        (run(&[], &[]), json!("warn"), "file"),
        (run(&env, &[]), json!("debug"), "env"),
        (run(&env, &["--log-level", "error"]), json!("error"), "flag"),
    ];
    for (shown, value, origin) in table {
        let (is, from) = setting(&shown, "log_level");
        assert_eq!(is, value);
        assert!(from.starts_with(origin), "{from} for {origin}");
        assert_eq!(setting(&shown, "log_format").0, "json");
        assert_eq!(setting(&shown, "listen"), (json!(["127.0.0.1:6334"]), "default".to_owned()));
    }
    home.write("config.toml", "log_levle = \"warn\"\n");
    let ran = svc(&home, &["config", "show"]);
    assert!(matches!(ran.code, Some(1 | 2)), "{ran:?}");
    assert!(ran.stderr.contains("log_levle"), "a misspelt key is named: {ran:?}");
}

#[test]
fn every_command_has_help_with_an_example() {
    let home = Home::new();
    let mut count = 0;
    for path in commands().keys() {
        let mut args: Vec<&str> = path.split(' ').filter(|word| !word.is_empty()).collect();
        args.push("--help");
        let ran = svc(&home, &args);
        let help = ran.ok();
        assert!(help.contains("Example"), "{path:?} has no example:\n{help}");
        count += 1;
    }
    assert!(count > 30, "only {count} commands were found");
    assert!(!home.dir().exists(), "asking for help leaves nothing behind");
}

#[test]
fn unknown_command_is_a_usage_error() {
    let home = Home::new();
    for args in [
        &["--no-such-flag"][..],
        &["no-such-command"],
        &["peer", "list", "--no-such-flag"],
        &["task", "run"],
        &["task", "watch"],
        &["serve", "--listen"],
        &["serve", "--listen", "nonsense"],
        &["peer", "list", "--url", "nonsense"],
        &["send", "--mode", "nonsense", "reviewer", "hi"],
        &["events", "tail", "--stream", "a", "--prefix", "b"],
    ] {
        let ran = svc(&home, args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(!ran.stderr.trim().is_empty() && ran.stdout.is_empty(), "{args:?}: {ran:?}");
        assert!(!ran.stderr.contains("opts."), "{args:?}: {ran:?}");
    }
    let version = svc(&home, &["--version"]);
    assert!(version.ok().starts_with("svc "), "{version:?}");
}

#[test]
fn help_and_version_are_json_with_the_flag() {
    let home = Home::new();
    let version = svc(&home, &["--version", "--json"]).json();
    assert_eq!(version, json!({ "version": env!("CARGO_PKG_VERSION") }));
    for (args, words) in [
        (&["--json"][..], "Usage: svc"),
        (&["help", "--json"], "Usage: svc"),
        (&["help", "peer", "list", "--json"], "svc peer list"),
        (&["--json", "peer", "list", "--help"], "svc peer list"),
    ] {
        let help = svc(&home, args).json();
        assert!(text(&help, "help").contains(words), "{args:?}: {help}");
    }
    let unknown = svc(&home, &["help", "nothing", "--json"]);
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
}

#[test]
fn claude_is_claude_code_where_a_client_is_named() {
    let d = Daemon::start();
    let listed = |client: &str| svc(&d.home, &["session", "list", "--client", client, "--json"]);
    for (session, client) in [("s-1", "claude-code"), ("s-2", "claude")] {
        let start = json!({ "session_id": session, "cwd": "/work", "client": client });
        d.done("start_session", &start);
    }
    for client in ["claude-code", "claude"] {
        assert_eq!(listed(client).json()["count"], 2, "{client}");
    }
    assert_eq!(listed("codex").json()["count"], 0);
}

#[test]
fn tool_that_is_listed_to_nobody_takes_arguments() {
    let d = Daemon::start();
    let call = ["tools", "call", "list_sessions", "--arg", "limit=1", "--json"];
    assert!(svc(&d.home, &call).json()["sessions"].is_array());
    let unknown = svc(&d.home, &["tools", "call", "no_such_tool", "--arg", "limit=1"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
}

#[test]
fn cursor_beyond_the_end_is_not_called_a_restored_log() {
    let (d, task) = with_task();
    append(&d, &task, &done());
    let watched = svc(&d.home, &["task", "watch", &task, "--after", "999"]);
    assert!(watched.stderr.contains("there is no event 999"), "{watched:?}");
}

#[test]
fn errors_of_files_and_programs_are_readable() {
    let d = Daemon::start();
    for more in [&[] as &[&str], &["--idempotency-key", "k"]] {
        let args = [&["task", "run"][..], more, &["--", "/no/such/program"]].concat();
        let ran = svc(&d.home, &args);
        assert!(ran.stderr.contains("No such file or directory"), "{args:?}: {ran:?}");
    }
    let home = Home::new();
    home.write("config.toml", "log_level =\n");
    let ran = svc(&home, &["mcp", "add", "n", "--", "true"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("config.toml"), "{ran:?}");
    assert!(ran.stderr.lines().count() > 2 && !ran.stderr.contains('␊'), "{ran:?}");
}

#[test]
fn every_shell_has_completions() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let ran = svc(&home, &["completions", shell]);
        assert!(ran.ok().contains("task"), "{shell}");
    }
    assert_eq!(svc(&home, &["completions", "cobol"]).code, Some(2));
}

#[test]
fn output_into_a_closed_pipe_exits_cleanly() {
    let d = Daemon::start();
    for n in 0..50 {
        peer(&d, &format!("s-{n}"));
    }
    let script = format!("{} peer list --limit 500 | head -n 1", env!("CARGO_BIN_EXE_svc"));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("HOME", d.home.user()).env("SVC_HOME", d.home.dir());
    let ran: Ran = Running::spawn(command).wait(SOON);
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
}

#[test]
fn silent_command_is_shown_as_active() {
    let d = Daemon::start();
    let running = Running::spawn(d.home.command(&["task", "run", "--", "sleep", "0.3"]));
    eventually(SOON, || page(&d.get("/v1/tasks"), "tasks").len() == 1);
    eventually(SOON, || only_task(&d)["status"] != "pending");
    running.wait(SOON).ok();
    assert_eq!(only_task(&d)["status"], "done");
}

/// A flag that a command ignores would make it act on another daemon than the one that was named.
#[test]
fn commands_about_this_machine_refuse_a_url() {
    let mut d = Daemon::start();
    for command in ["serve", "start", "stop", "restart", "doctor"] {
        let ran = svc(&d.home, &[command, "--url", "http://127.0.0.1:1"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{command}: {ran:?}");
        assert!(ran.stderr.contains("--url") && ran.stderr.contains("--home"), "{ran:?}");
    }
    svc(&d.home, &["status"]).ok();
    d.stop();
}

#[test]
fn readiness_is_json_with_the_flag() {
    let home = Home::new();
    let serve = ["serve", "--json", "--listen", "127.0.0.1:0"];
    let daemon = Running::spawn(home.command(&serve));
    let line = daemon.line().expect("it gets ready");
    let told: Value = serde_json::from_str(&line).expect("a line of JSON");
    assert_eq!(told["running"], true);
    assert_eq!(told["pid"], daemon.pid());
    assert_eq!(Some(&told["url"]), home.daemon_json().as_ref().map(|file| &file["url"]));
    svc(&home, &["stop"]).ok();
    assert_eq!(daemon.wait(SOON).code, Some(0));
}

/// An exit with a code of its own has a problem document, too.
#[test]
fn every_error_is_json_with_the_flag() {
    let d = Daemon::start();
    for (args, code, problem) in [
        (&["migrate", "--json"][..], 3, "already_running"),
        (&["serve", "--json"], 3, "already_running"),
        (&["task", "run", "--json", "--", "/there/is/none"], 127, "failed"),
    ] {
        let ran = svc(&d.home, args);
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        let last = ran.stderr.lines().last().unwrap_or_default();
        let told: Value = serde_json::from_str(last).expect("a line of JSON");
        assert_eq!(told["code"], problem, "{args:?}: {told}");
    }
}
