//! The output of each command as snapshots: its help, its errors, and its results for people and as
//! JSON.
//!
//! A missing or changed snapshot fails. `INSTA_UPDATE=always cargo test --test it outputs` writes
//! them again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::daemon::{Daemon, Home, Ran, svc};
use crate::expect::{new_task, peer};
use crate::pages::commands;
use crate::stored::is_in_file;

/// The prefixes of snapshots' names, one for each test.
const GROUPS: [&str; 7] = ["help", "usage", "no_daemon", "answer", "set_up", "work", "files"];

struct Snapshots {
    group: &'static str,
    made: BTreeSet<String>,
}

impl Snapshots {
    fn new(group: &'static str) -> Self {
        assert!(GROUPS.contains(&group), "{group}");
        Self { group, made: BTreeSet::new() }
    }

    #[track_caller]
    fn check(&mut self, name: &str, text: &str) {
        let name = format!("{}_{name}", self.group);
        insta::assert_snapshot!(name.clone(), text);
        assert!(self.made.insert(name.clone()), "{name} twice");
    }

    /// Asserts that no snapshot is left of a removed case.
    fn finish(self) {
        let mine = stored().into_iter().filter(|name| group_of(name) == Some(self.group));
        let orphans: Vec<_> = mine.filter(|name| !self.made.contains(name)).collect();
        assert!(orphans.is_empty(), "no test makes these snapshots any more: {orphans:?}");
    }
}

/// The names of all stored snapshots.
fn stored() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/snapshots");
    let files = fs::read_dir(folder).expect("snapshots");
    let name = |file: fs::DirEntry| file.file_name().into_string().expect("UTF-8");
    let files = files.map(|file| name(file.expect("an entry")));
    // Insta's proposals for a snapshot that differs.
    let files = files.filter(|file| Path::new(file).extension().is_none_or(|end| end != "new"));
    let name = |file: String| {
        let name = file.strip_prefix("it__outputs__").and_then(|name| name.strip_suffix(".snap"));
        name.unwrap_or_else(|| panic!("{file} is no snapshot of these tests")).to_owned()
    };
    files.map(name).collect()
}

fn group_of(name: &str) -> Option<&'static str> {
    let begins = |group: &&str| name.strip_prefix(*group).is_some_and(|rest| rest.starts_with('_'));
    GROUPS.into_iter().find(begins)
}

#[test]
fn every_snapshot_belongs_to_a_test() {
    let strays: Vec<_> = stored().into_iter().filter(|name| group_of(name).is_none()).collect();
    assert!(strays.is_empty(), "no test makes these snapshots: {strays:?}");
}

/// Exit code and both outputs of a command, without what differs from run to run.
fn shown(home: &Home, args: &[&str]) -> String {
    let ran: Ran = svc(home, args);
    let text = format!(
        "$ svc {}\nexit code: {}\n--- stdout\n{}--- stderr\n{}",
        args.join(" "),
        ran.code.map_or_else(|| "none".to_owned(), |code| code.to_string()),
        pretty(&ran.stdout),
        ran.stderr,
    );
    redacted(home, &text)
}

/// A JSON document on several lines; other text unchanged.
fn pretty(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) if value.is_object() => format!("{value:#}\n"),
        _ => text.to_owned(),
    }
}

/// Replaces paths, ids, times, versions, ports and process numbers by placeholders.
fn redacted(home: &Home, text: &str) -> String {
    let text = text
        .replace(env!("CARGO_BIN_EXE_svc"), "<svc>")
        .replace(&home.dir().display().to_string(), "<data>")
        .replace(&home.user().display().to_string(), "<home>")
        .replace(env!("CARGO_PKG_VERSION"), "<version>");
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(c) = rest.chars().next() {
        if let Some((name, length)) = variable(&out, rest) {
            out.push_str(name);
            rest = &rest[length..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    without_request_ids(&out)
}

/// Removes request ids from errors under `--json`.
fn without_request_ids(text: &str) -> String {
    const MEMBER: &str = "\"request_id\":\"";
    let mut parts = text.split(MEMBER);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find('"').unwrap_or_default();
        out.extend([MEMBER, "<request-id>", &part[end..]]);
    }
    out
}

/// The name and length of a text at the beginning of `rest` that differs from run to run.
fn variable(before: &str, rest: &str) -> Option<(&'static str, usize)> {
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if before.ends_with("127.0.0.1:") && digits > 0 {
        return Some(("<port>", digits));
    }
    let is_number = [
        "\"pid\": ",
        "\"pid\":",
        "pid ",
        "pid: ",
        "process ",
        "\"bytes\": ",
        "schema version ",
        "\"from\": ",
        "\"latest\": ",
    ];
    let is_size = [" MiB free", " KiB\n", " KiB\"", " bytes, integrity"];
    if digits > 0
        && (is_number.iter().any(|label| before.ends_with(label))
            || !before.ends_with(|c: char| c.is_ascii_digit())
                && is_size.iter().any(|unit| rest[digits..].starts_with(unit)))
    {
        return Some(("<number>", digits));
    }
    // 2025-01-02T03:04:05.678Z
    let shape = rest.as_bytes().get(..24)?;
    let is_time = shape.iter().enumerate().all(|(index, byte)| match index {
        4 | 7 => *byte == b'-',
        10 => *byte == b'T',
        13 | 16 => *byte == b':',
        19 => *byte == b'.',
        23 => *byte == b'Z',
        _ => byte.is_ascii_digit(),
    });
    if is_time {
        return Some(("<time>", 24));
    }
    // An id has 26 letters and digits after its prefix.
    let length = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
    let is_boot_id = before.ends_with("\"boot_id\":\"") || before.ends_with("\"boot_id\": \"");
    if length >= 20 && (before.ends_with('_') || is_boot_id) {
        return Some(("<id>", length));
    }
    let is_secret = length == 64 && rest.bytes().take(64).all(|byte| byte.is_ascii_hexdigit());
    let is_shown = before.ends_with("--- stdout\n") || before.ends_with("\"token\": \"");
    (is_secret && is_shown).then_some(("<token>", 64))
}

#[test]
fn help() {
    let home = Home::new();
    let mut snapshots = Snapshots::new("help");
    for path in commands().keys() {
        let mut args: Vec<&str> = path.split(' ').filter(|word| !word.is_empty()).collect();
        args.push("--help");
        let ran = svc(&home, &args);
        let name = if path.is_empty() { "svc".to_owned() } else { path.replace(' ', "_") };
        snapshots.check(&name, &redacted(&home, ran.ok()));
    }
    assert!(snapshots.made.len() > 30, "only {:?} were found", snapshots.made);
    snapshots.finish();
}

#[test]
fn usage_errors() {
    let home = Home::new();
    let cases: [(&str, &[&str]); 10] = [
        ("flag", &["--no-such-flag"]),
        ("command", &["no-such-command"]),
        ("flag_of_a_command", &["peer", "list", "--no-such-flag"]),
        ("missing_argument", &["task", "watch"]),
        ("missing_value", &["serve", "--listen"]),
        ("wrong_value", &["serve", "--listen", "nonsense"]),
        ("conflict", &["events", "tail", "--stream", "a", "--prefix", "b"]),
        ("install_nothing", &["install", "codex", "--no-hooks", "--no-mcp"]),
        ("install_unknown_client", &["install", "emacs"]),
        ("completions_unknown_shell", &["completions", "cobol"]),
    ];
    let mut snapshots = Snapshots::new("usage");
    for (name, args) in cases {
        snapshots.check(name, &shown(&home, args));
    }
    snapshots.finish();
}

#[test]
fn without_a_daemon() {
    only_if!(is_in_file());
    let home = Home::new();
    let cases: [(&str, &[&str]); 13] = [
        ("status", &["status"]),
        ("status_json", &["status", "--json"]),
        ("stop", &["stop"]),
        ("peer_list", &["peer", "list"]),
        ("message_inbox", &["message", "inbox", "peer_x"]),
        ("task_list", &["task", "list"]),
        ("session_list", &["session", "list"]),
        ("ghap_list", &["ghap", "list"]),
        ("tools_list", &["tools", "list"]),
        ("token_show", &["token", "show"]),
        ("mcp_config", &["mcp-config", "--session", "s"]),
        ("backup", &["backup", "copy.db"]),
        ("config_check", &["config", "check", "missing.toml"]),
    ];
    let mut snapshots = Snapshots::new("no_daemon");
    for (name, args) in cases {
        snapshots.check(name, &shown(&home, args));
    }
    snapshots.finish();
}

#[test]
fn answers() {
    let d = Daemon::start();
    let home = &d.home;
    let ann = peer(&d, "s-1");
    let task = new_task(&d);
    let cases: [(&str, &[&str]); 19] = [
        ("peer_show", &["peer", "show", &ann]),
        ("peer_unknown", &["peer", "show", "peer_unknown"]),
        ("peer_wrong_status", &["peer", "heartbeat", &ann, "--status", "asleep"]),
        ("message_inbox_empty", &["message", "inbox", &ann]),
        ("message_send", &["message", "send", &ann, "the build is green"]),
        ("message_peek", &["message", "inbox", &ann]),
        ("message_unknown", &["message", "show", "msg_unknown"]),
        ("message_broadcast", &["message", "broadcast", "all of you"]),
        ("task_show", &["task", "show", &task]),
        ("task_list", &["task", "list"]),
        ("task_unknown", &["task", "show", "task_unknown"]),
        ("session_list_empty", &["session", "list"]),
        ("session_unknown", &["session", "show", "nobody"]),
        ("ghap_list_empty", &["ghap", "list"]),
        ("ghap_search_empty", &["ghap", "search", "a cache"]),
        ("ghap_unknown", &["ghap", "show", "ghap_unknown"]),
        ("tools_show", &["tools", "show", "peer_send"]),
        ("tools_unknown", &["tools", "show", "nothing"]),
        ("tools_call_refused", &["tools", "call", "peer_list", "--arg", "status=asleep"]),
    ];
    let mut snapshots = Snapshots::new("answer");
    for (name, args) in cases {
        snapshots.check(name, &shown(home, args));
        let json = [args, &["--json"]].concat();
        snapshots.check(&format!("{name}_json"), &shown(home, &json));
    }
    snapshots.finish();
}

/// Removes the padding of a table whose width depends on the paths in it, which differ from run to
/// run.
fn narrow(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let words: Vec<_> =
            line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        out.push_str(&words.join("  "));
        out.push('\n');
    }
    out
}

#[test]
fn setting_up() {
    only_if!(is_in_file());
    let home = Home::new();
    let mut snapshots = Snapshots::new("set_up");
    snapshots.check("config_show", &narrow(&shown(&home, &["config", "show"])));
    // Without the migrations after the baseline: a new migration changes no snapshot.
    let is_kept = |line: &&str| !line.starts_with("applied") || line.ends_with("baseline");
    let migrated = shown(&home, &["migrate"]);
    let kept: Vec<_> = migrated.lines().filter(is_kept).collect();
    snapshots.check("migrate", &kept.join("\n"));
    let cases: [(&str, &[&str]); 12] = [
        ("config_show_json", &["config", "show", "--json"]),
        ("migrate_again", &["migrate"]),
        ("migrate_again_json", &["migrate", "--json"]),
        ("doctor", &["doctor"]),
        ("doctor_json", &["doctor", "--json"]),
        ("install_dry_run", &["install", "claude-code", "--dry-run"]),
        ("install_dry_run_codex", &["install", "codex", "--dry-run"]),
        ("install_dry_run_gemini", &["install", "gemini", "--dry-run"]),
        ("alone", &[]),
        ("uninstall_nothing", &["uninstall", "claude-code"]),
        ("token_init", &["token", "init", "token-of-mine"]),
        ("token_init_again", &["token", "init", "token-of-mine"]),
    ];
    for (name, args) in cases {
        snapshots.check(name, &shown(&home, args));
    }
    snapshots.finish();
}

/// A day's work: tasks, sessions, records, and their log.
#[test]
fn working() {
    let d = Daemon::start();
    let home = &d.home;
    let mut snapshots = Snapshots::new("work");
    let command = ["task", "run", "--title", "greet", "--", "sh", "-c", "echo one; exit 3"];
    snapshots.check("task_run", &shown(home, &command));
    let tasks = svc(home, &["task", "list", "--json"]).json();
    let ended = tasks["tasks"][0]["task_id"].as_str().expect("a task").to_owned();
    let pending = new_task(&d);
    let ann = peer(&d, "s-1");
    let start = ["tools", "call", "start_session", "--arg", "session_id=s-1", "--arg", "cwd=/work"];
    svc(home, &start).ok();
    let record = [
        "session_id=s-1",
        "domain=testing",
        "strategy=ask-user",
        "goal=A green build",
        "hypothesis=The cache is stale",
        "action=Empty it",
        "prediction=The tests pass",
    ];
    let record: Vec<&str> = record.iter().flat_map(|arg| ["--arg", *arg]).collect();
    let begun = [&["tools", "call", "start_ghap"], record.as_slice(), &["--json"]].concat();
    let begun = svc(home, &begun).json();
    let ghap = begun["id"].as_str().expect("a record").to_owned();

    let cases: [(&str, &[&str]); 16] = [
        ("task_watch", &["task", "watch", &ended]),
        ("task_watch_json", &["task", "watch", &ended, "--json"]),
        ("task_watch_unknown", &["task", "watch", "task_unknown"]),
        ("task_wait", &["task", "wait", &ended]),
        ("task_cancel_ended", &["task", "cancel", &ended]),
        ("task_cancel_pending", &["task", "cancel", &pending]),
        ("task_cancel_unknown_json", &["task", "cancel", "task_unknown", "--json"]),
        ("task_list", &["task", "list"]),
        ("peer_list", &["peer", "list"]),
        ("session_list", &["session", "list"]),
        ("session_list_json", &["session", "list", "--json"]),
        ("session_show", &["session", "show", "s-1"]),
        ("ghap_list", &["ghap", "list"]),
        ("ghap_show", &["ghap", "show", &ghap]),
        ("ghap_show_json", &["ghap", "show", &ghap, "--json"]),
        ("peer_remove", &["peer", "remove", &ann]),
    ];
    for (name, args) in cases {
        snapshots.check(name, &shown(home, args));
    }
    let stream = format!("task/{ended}");
    for (name, args) in [
        (
            "events_list",
            ["events", "list", "--stream", stream.as_str(), "--kind", "frame"].as_slice(),
        ),
        ("events_list_more", &["events", "list", "--limit", "1"]),
        ("events_list_json", &["events", "list", "--limit", "1", "--json"]),
        ("events_list_unknown", &["events", "list", "--stream", "nothing"]),
        ("events_tail_unknown", &["events", "tail", "--stream", "nothing"]),
    ] {
        snapshots.check(name, &shown(home, args));
    }
    snapshots.finish();
}

/// The database and the token of a running daemon.
#[test]
fn files_of_a_running_daemon() {
    only_if!(is_in_file());
    let d = Daemon::start();
    let mut snapshots = Snapshots::new("files");
    let cases: [(&str, &[&str]); 9] = [
        ("doctor", &["doctor"]),
        ("backup", &["backup", "copy.db"]),
        ("backup_again", &["backup", "copy.db"]),
        ("backup_json", &["backup", "another.db", "--json"]),
        ("restore_refused", &["restore", "copy.db"]),
        ("migrate_refused", &["migrate"]),
        ("token_show", &["token", "show"]),
        ("token_rotate", &["token", "rotate"]),
        ("token_rotate_json", &["token", "rotate", "--json"]),
    ];
    for (name, args) in cases {
        snapshots.check(name, &shown(&d.home, args));
    }
    snapshots.finish();
}
