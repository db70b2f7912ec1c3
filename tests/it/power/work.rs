//! Work during a power cut, its acknowledgements, and checks that acknowledged work is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};

use super::{Round, WITHIN, files, run};
use crate::daemon::{Daemon, Home, Ran, svc};
use crate::expect::{all_pages, frame};
use crate::wire::{Caller, Conn};

/// Lines that one run prints.
const LINES: usize = 40;

/// Acknowledged work.
#[derive(Default)]
pub(super) struct Kept {
    /// Acknowledged lines of each task, with their ids.
    lines: BTreeMap<String, Vec<(String, u64)>>,
    /// Sessions of hooks that ended while no daemon was there.
    hooks: BTreeSet<String>,
    /// Titles of runs that ended.
    runs: BTreeSet<String>,
    /// The last event that was seen of each host.
    hosts: BTreeMap<String, u64>,
    pub(super) files: files::ChangedFiles,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: usize = self.lines.values().map(Vec::len).sum();
        let events: u64 = self.hosts.values().sum();
        let (hooks, runs) = (self.hooks.len(), self.runs.len());
        write!(f, "{lines} lines, {hooks} hooks, {runs} runs, {events} events of hosts, ")?;
        write!(f, "{} files", self.files.count)
    }
}

impl Kept {
    pub(super) fn new(files: files::ChangedFiles) -> Self {
        Self { files, ..Self::default() }
    }

    pub(super) fn add(&mut self, other: Self) {
        for (task, lines) in other.lines {
            self.lines.entry(task).or_default().extend(lines);
        }
        self.hooks.extend(other.hooks);
        self.runs.extend(other.runs);
        self.hosts.extend(other.hosts);
        self.files.add(other.files);
    }

    pub(super) fn is_of_every_kind(&self) -> bool {
        !self.lines.is_empty()
            && !self.hooks.is_empty()
            && !self.runs.is_empty()
            && !self.hosts.is_empty()
            && self.files.count > 0
    }
}

/// Appends lines to a task.
pub(super) fn append(round: &Round<'_>, caller: &Caller, task: &str) -> Kept {
    let mut kept = Vec::new();
    let path = format!("/v1/tasks/{task}/events");
    let mut next = 0;
    while round.goes_on() {
        let lines: Vec<String> =
            (next..next + 3).map(|n| format!("{n} {}", "~".repeat(90))).collect();
        next += 3;
        let events: Vec<Value> = lines.iter().map(|line| frame(line)).collect();
        let request = caller.request("POST", &path).json(&json!(events)).bytes();
        let answer = Conn::open(caller.addr).and_then(|mut conn| {
            conn.write(&request)?;
            conn.reply()
        });
        match answer {
            Ok(reply) if reply.status() == 200 => {
                let first = reply.json()["first_id"].as_u64().expect("a number");
                kept.extend(lines.into_iter().zip(first..));
            }
            _ => assert!(!round.goes_on(), "refused with the power on: {answer:?}"),
        }
        // The other workers write, too.
        thread::sleep(Duration::from_millis(10));
    }
    Kept { lines: BTreeMap::from([(task.to_owned(), kept)]), ..Kept::default() }
}

/// Runs hooks in the home without a daemon.
pub(super) fn hooks(round: &Round<'_>) -> Kept {
    let mut kept = Kept::default();
    for number in 0_u64.. {
        if !round.goes_on() {
            break;
        }
        let session = format!("hook-{}-{number}-", round.number);
        let event = json!({
            "session_id": session, "hook_event_name": "PreToolUse", "cwd": round.away.user(),
            "tool_name": "Bash", "tool_input": { "command": "ls" }, "tool_use_id": format!("t{number}"),
        });
        let ran = run(round.away, &["hook", "claude"], &event.to_string());
        if round.goes_on() {
            assert_eq!(ran.code, Some(0), "{ran:?}");
            kept.hooks.insert(session);
        }
    }
    kept
}

/// Runs programs as tasks.
pub(super) fn runs(round: &Round<'_>) -> Kept {
    let mut kept = Kept::default();
    let script = format!("i=0; while [ $i -lt {LINES} ]; do echo $i; i=$((i+1)); done");
    for number in 0_u64.. {
        if !round.goes_on() {
            break;
        }
        let title = format!("run-{}-{number}", round.number);
        let args = ["task", "run", "--title", &title, "--", "sh", "-c", &script];
        let ran = run(round.home, &args, "");
        if round.goes_on() {
            assert_eq!(ran.code, Some(0), "{ran:?}");
            kept.runs.insert(title);
        }
    }
    kept
}

/// Runs an agent in a host, and reads its events.
pub(super) fn host(round: &Round<'_>) -> Kept {
    let mut kept = Kept::default();
    if !round.goes_on() {
        return kept;
    }
    let id = format!("ag_power_{}", round.number);
    let script = "i=0; while :; do echo line $i; i=$((i+1)); sleep 0.01; done";
    let spec = json!({
        "agent_id": id, "folder": round.away.path("agents"), "instance": "worker",
        "session_key": "agent:worker:main", "backend": "exec", "command": ["sh", "-c", script],
        "cwd": round.away.user(), "linger_ms": 1_000, "answer_key": "5f2c9a7d0e1b4c6f8a3d2e5b7c9f0a1d",
    });
    let ran = run(round.away, &["agent", "host"], &spec.to_string());
    let started: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
    let Some(socket) = started["socket_path"].as_str() else {
        assert!(!round.goes_on(), "not started with the power on: {ran:?}");
        return kept;
    };
    let Ok(stream) = UnixStream::connect(socket) else { return kept };
    stream.set_read_timeout(Some(WITHIN)).expect("can be set");
    let attach = json!({ "type": "host.attach", "id": "1", "payload": { "offset": 0 } });
    if (&stream).write_all(format!("{attach}\n").as_bytes()).is_err() {
        return kept;
    }
    for line in BufReader::new(stream).lines() {
        let Ok(event) = line.map(|line| serde_json::from_str::<Value>(&line).unwrap_or_default())
        else {
            break;
        };
        if let Some(offset) = event["offset"].as_u64() {
            kept.hosts.insert(id.clone(), offset);
        }
        if !round.goes_on() {
            break;
        }
    }
    kept
}

/// Asserts that all acknowledged work of a round exists.
pub(super) fn check(d: &Daemon, away: &Home, round: u64, kept: &Kept) {
    check_hooks(away, kept);
    check_hosts(away, kept);
    check_runs(d, round, kept);
    files::check(away, &kept.files);
}

/// Asserts that the file has each line once, under the acknowledged id.
pub(super) fn check_lines(file: &Connection, kept: &Kept) {
    let sql = "
        select event.seq, event.data ->> '$.line'
        from event join stream on stream.id = event.stream_id
        where stream.name = ?1 and event.kind = 'frame'";
    let mut statement = file.prepare(sql).expect("the tables are there");
    for (task, lines) in &kept.lines {
        let rows = statement.query_map([format!("task/{task}")], |row| {
            Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get(1)?))
        });
        let stored: BTreeMap<u64, String> =
            rows.expect("the query runs").collect::<Result<_, _>>().expect("rows");
        for (line, id) in lines {
            assert_eq!(stored.get(id), Some(line), "{task}: it was acknowledged");
        }
        let once: BTreeSet<&String> = stored.values().collect();
        assert_eq!(once.len(), stored.len(), "{task}: each line is there once");
    }
}

fn check_hooks(away: &Home, kept: &Kept) {
    let spool = fs::read(away.path("hooks.spool")).unwrap_or_default();
    let spool = String::from_utf8_lossy(&spool);
    let events = spool.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let told: BTreeSet<String> = events.map(|event| event.to_string()).collect();
    for session in &kept.hooks {
        let is_there = told.iter().any(|event| event.contains(session.as_str()));
        assert!(is_there, "{session} was told, and is not in the spool");
    }
}

fn check_hosts(away: &Home, kept: &Kept) {
    for (id, seen) in &kept.hosts {
        let spool = away.read(&format!("agents/{id}.spool"));
        let spool = String::from_utf8_lossy(&spool);
        let events = spool.lines().map_while(|line| serde_json::from_str::<Value>(line).ok());
        let offsets: Vec<u64> = events.map_while(|event| event["offset"].as_u64()).collect();
        assert!(
            offsets.len() as u64 >= *seen,
            "{id}: event {seen} was seen, {} are there",
            offsets.len()
        );
        let wanted: Vec<u64> = (1..=offsets.len() as u64).collect();
        assert_eq!(offsets, wanted, "{id}");
    }
}

/// A run that ended is complete. The spool of another run can be sent, and has the output up to
/// some line.
fn check_runs(d: &Daemon, round: u64, kept: &Kept) {
    let spools = fs::read_dir(d.home.path("spool")).into_iter().flatten().flatten();
    let spools: Vec<_> = spools.map(|entry| entry.path()).collect();
    for spool in spools.iter().filter(|path| path.extension().is_some_and(|it| it == "ndjson")) {
        let path = spool.to_str().expect("UTF-8");
        let ran: Ran = svc(&d.home, &["task", "resend", "--new", path]);
        assert_eq!(ran.code, Some(0), "a spool can be sent: {ran:?}");
    }
    let mut whole = BTreeSet::new();
    for task in all_pages(d, "/v1/tasks?limit=500", "tasks", "cursor") {
        let title = task["title"].as_str().unwrap_or_default().to_owned();
        if !title.starts_with(&format!("run-{round}-")) {
            continue;
        }
        let id = task["task_id"].as_str().expect("an id");
        let target = format!("/v1/events?stream=task/{id}&kind=frame&limit=100");
        let frames = all_pages(d, &target, "events", "after");
        for (number, event) in frames.iter().enumerate() {
            assert_eq!(event["data"]["line"], json!(number.to_string()), "{title} in order, once");
        }
        if frames.len() == LINES {
            whole.insert(title);
        }
    }
    let missing: Vec<_> = kept.runs.difference(&whole).collect();
    assert!(missing.is_empty(), "they ended, and are not there whole: {missing:?}");
}
