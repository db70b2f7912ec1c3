//! A full database: it says so, loses no acknowledged event, serves reads, and takes writes again
//! once there is space.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::agents::with_config;
use crate::daemon::{Daemon, Home, eventually, svc};
use crate::expect::{all_pages, append, done, frame, new_task, page, problem, subscribe};
use crate::stored::is_in_file;
use crate::wire::Reply;

const SMALL: &str = "[store]\nmax_bytes = 2097152\n";
const LARGE: &str = "[store]\nmax_bytes = 67108864\n";

/// Appends until the disk is full, and returns how many lines were acknowledged.
#[track_caller]
fn fill(d: &Daemon, task: &str) -> (usize, Reply) {
    let filling = "x".repeat(20_000);
    let path = format!("/v1/tasks/{task}/events");
    for n in 0..1_000 {
        let reply = d.post(&path, &frame(&format!("{n} {filling}")));
        if reply.status() != 200 {
            return (n, reply);
        }
    }
    panic!("twenty megabytes went into two");
}

#[track_caller]
fn lines(d: &Daemon, task: &str) -> usize {
    let target = format!("/v1/events?stream=task/{task}&kind=frame&limit=100");
    let frames = all_pages(d, &target, "events", "after");
    for (n, event) in frames.iter().enumerate() {
        let line = event["data"]["line"].as_str().unwrap_or_default();
        assert_eq!(line.split(' ').next(), Some(n.to_string().as_str()), "in order");
    }
    frames.len()
}

/// A daemon with little room, and a task.
fn small() -> (Daemon, String) {
    let d = with_config(SMALL);
    let task = new_task(&d);
    (d, task)
}

#[test]
fn full_database_refuses_writes_and_serves_reads() {
    only_if!(is_in_file());
    let (mut d, task) = small();
    let (acknowledged, refused) = fill(&d, &task);
    let problem_body = problem(&refused, 507, "storage_full");
    assert!(acknowledged > 5, "something went in before: {problem_body}");

    assert_eq!(lines(&d, &task), acknowledged);
    assert_eq!(page(&d.get("/v1/tasks"), "tasks").len(), 1);
    let replayed = d.follow(&subscribe(&task)).events(acknowledged + 1);
    assert_eq!(replayed.last().and_then(|event| event.id), Some(acknowledged as u64 + 1));
    d.get("/v1/health").ok(200);
    d.get("/health").ok(200);
    // Several refusals in a row: none of them leaves an open transaction.
    for _ in 0..3 {
        let path = format!("/v1/tasks/{task}/events");
        problem(&d.post(&path, &frame(&"y".repeat(100_000))), 507, "storage_full");
    }
    assert_eq!(lines(&d, &task), acknowledged);

    d.home.write("config.toml", LARGE);
    d.kill_and_restart();
    assert_eq!(lines(&d, &task), acknowledged, "what was acknowledged outlives the crash");
    let (first, _) = append(&d, &task, &json!([frame(&format!("{acknowledged} more")), done()]));
    assert_eq!(first, acknowledged as u64 + 2, "and the ids go on where they were");
    assert_eq!(lines(&d, &task), acknowledged + 1);
}

#[test]
fn daemon_starts_on_a_full_database_and_serves_reads() {
    only_if!(is_in_file());
    let (mut d, task) = small();
    let (acknowledged, _) = fill(&d, &task);
    d.stop();
    d.restart();
    assert_eq!(lines(&d, &task), acknowledged);
}

#[test]
fn refused_append_among_many_stores_nothing() {
    only_if!(is_in_file());
    let (mut d, task) = small();
    let path = format!("/v1/tasks/{task}/events");
    let filling = "x".repeat(5_000);
    let told: Vec<(String, Option<u64>)> = thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let (d, path, filling) = (&d, &path, &filling);
                scope.spawn(move || {
                    let mut told = Vec::new();
                    for n in 0..80 {
                        let name = format!("{writer}-{n}");
                        let reply = d.post(path, &frame(&format!("{name} {filling}")));
                        match reply.status() {
                            200 => told.push((name, reply.json()["first_id"].as_u64())),
                            507 => told.push((name, None)),
                            _ => panic!("{reply:?}"),
                        }
                    }
                    told
                })
            })
            .collect();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    d.kill_and_restart();
    let target = format!("/v1/events?stream=task/{task}&kind=frame&limit=100");
    let stored: BTreeMap<String, u64> = all_pages(&d, &target, "events", "after")
        .iter()
        .map(|event| {
            let line = event["data"]["line"].as_str().unwrap_or_default();
            let name = line.split(' ').next().unwrap_or_default().to_owned();
            (name, event["seq"].as_u64().unwrap())
        })
        .collect();
    let promised: BTreeMap<String, u64> =
        told.iter().filter_map(|(name, id)| Some((name.clone(), (*id)?))).collect();
    assert_eq!(stored, promised, "what was acknowledged, and nothing else");
    assert!(told.iter().any(|(_, id)| id.is_none()), "it was full in the end");
    let seqs: Vec<_> = page(&d.get(&format!("/v1/events?stream=task/{task}&limit=500")), "events")
        .iter()
        .map(|event| event["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "refusals leave no hole");
}

#[test]
fn retention_removes_the_oldest_and_reports_a_gap() {
    let home = Home::new();
    home.write("config.toml", "[retention]\nmax_bytes = 300000\n");
    let d = Daemon::with(|plan| plan.home(&home).env("SVC_MAINTENANCE_MS", "100"));
    let task = new_task(&d);
    let path = format!("/v1/tasks/{task}/events");
    let line = "x".repeat(1000);
    for _ in 0..10 {
        let batch: Vec<_> = (0..100).map(|_| frame(&line)).collect();
        d.post(&path, &json!(batch)).ok(200);
    }
    // The task's first event is gone, its last one stays, and a reader from the start gets a gap.
    eventually(Duration::from_secs(20), || {
        let page = d.get(&format!("/v1/events?stream=task/{task}&limit=1")).ok(200);
        page["events"][0]["seq"].as_i64().is_some_and(|seq| seq > 1)
    });
    let mut feed = d.follow(&format!("/v1/biam/subscribe?task_id={task}"));
    let first = feed.event();
    assert_eq!((first.kind.as_str(), first.id), ("gap", None));
    assert_eq!(first.data["reason"], json!("pruned"));
    let oldest = first.data["oldest"].as_u64().expect("a number");
    assert!(feed.event().id >= Some(oldest));
    assert_eq!(d.get(&format!("/v1/tasks/{task}")).ok(200)["last_id"], json!(1001));
}

#[test]
fn events_are_kept_for_a_year() {
    let mut d = Daemon::with(|plan| plan.env("SVC_MAINTENANCE_MS", "100"));
    let task = new_task(&d);
    append(&d, &task, &json!([frame("1"), frame("2"), frame("3"), done()]));
    d.stop();
    // The task's beginning and its first line, and what was before them.
    for (days, seq) in [(364, 3), (2, 2)] {
        let age = days * 86_400_000_i64;
        d.home.change(&format!(
            "update event set at = at - {age} where position <=
            (select position from event join stream on stream.id = stream_id
            where name = 'task/{task}' and seq = {seq})"
        ));
    }
    d.restart();
    let first = || {
        let page = d.get(&format!("/v1/events?stream=task/{task}&limit=1")).ok(200);
        page["events"][0]["seq"].as_i64()
    };
    eventually(Duration::from_secs(20), || first() == Some(3));
}

/// The measurements are rows, so that they outlive the daemon.
#[test]
fn forecast_says_when_the_database_is_full() {
    only_if!(is_in_file());
    let home = Home::new();
    home.write("config.toml", "[store]\nmax_bytes = 8388608\n");
    let mut d = Daemon::with(|plan| plan.home(&home).env("SVC_MAINTENANCE_MS", "100"));
    let samples = || home.value("select count(*) from store_size");
    eventually(Duration::from_secs(20), || samples() == 1);
    let store = d.get("/v1/health").ok(200)["store"].clone();
    assert!(store["free_bytes"].as_u64() > Some(0), "{store}");
    assert_eq!(store["growth"], json!(null), "of less than a day nothing is said");

    d.stop();
    let older = "update store_size set at = at - 86400000, used_bytes = 0";
    assert_eq!(home.change(older), 1);
    d.restart();
    let growth = d.get("/v1/health").ok(200)["store"]["growth"].clone();
    assert!(growth["bytes_per_day"].as_u64() > Some(100_000), "{growth}");
    assert_eq!(growth["reaches"]["bound"], json!("store.max_bytes"));
    let day = growth["reaches"]["at"].as_str().unwrap()[..10].to_owned();
    let ran = svc(&home, &["doctor", "--json"]);
    let found: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let checks = found["checks"].as_array().unwrap();
    let space = checks.iter().find(|check| check["check"] == "disk space").unwrap();
    assert_ne!(space["level"], json!("ok"), "it is full within 30 days: {space}");
    let detail = space["detail"].as_str().unwrap();
    let said = "free; the database grows by 1 MiB a day, and has reached store.max_bytes on ";
    assert!(detail.contains(&format!("{said}{day}")), "{detail}");
}

#[test]
fn file_that_is_no_database_is_named_and_left_unchanged() {
    only_if!(is_in_file());
    let home = Home::new();
    let garbage = "this was never a database ".repeat(400);
    home.write("svc.db", &garbage);
    for command in [&["serve", "--listen", "127.0.0.1:0"][..], &["migrate"]] {
        let ran = svc(&home, command);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("svc.db") || ran.stderr.contains("database"), "{ran:?}");
        assert!(ran.stderr.contains("svc restore"), "it says what to do: {ran:?}");
    }
    let copy = home.user().join("copy.db");
    let backup = svc(&home, &["backup", copy.to_str().expect("UTF-8")]);
    let (code, named) = (backup.code, backup.stderr.contains("svc.db"));
    assert!(code == Some(1) && named && !copy.exists(), "it names what is damaged: {backup:?}");
    let doctor = svc(&home, &["doctor"]);
    assert_eq!(doctor.code, Some(1), "the daemon does not start: {doctor:?}");
    assert!(doctor.stdout.contains("svc restore"), "it says what to do: {doctor:?}");
    assert_eq!(home.read("svc.db"), garbage.as_bytes());
}
