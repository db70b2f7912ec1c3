//! A full database: it says so, loses nothing that was acknowledged, goes on reading, and takes
//! writes again once there is room.

use serde_json::json;

use crate::daemon::{Daemon, Home};
use crate::expect::{all_pages, append, done, frame, new_task, page, problem, subscribe};
use crate::wire::Reply;

const SMALL: &str = "[store]\nmax_bytes = 2097152\n";
const LARGE: &str = "[store]\nmax_bytes = 67108864\n";

/// Appends until there is no room, and returns how many lines were acknowledged.
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
        assert_eq!(
            line.split(' ').next(),
            Some(n.to_string().as_str()),
            "in order"
        );
    }
    frames.len()
}

#[test]
fn a_full_database_refuses_writes_and_goes_on_reading() {
    let home = Home::new();
    home.write("config.toml", SMALL);
    let mut d = Daemon::with(|plan| plan.home(&home));
    let task = new_task(&d);
    let (acknowledged, refused) = fill(&d, &task);
    let problem_body = problem(&refused, 507, "storage_full");
    assert!(acknowledged > 5, "something went in before: {problem_body}");

    assert_eq!(lines(&d, &task), acknowledged);
    assert_eq!(page(&d.get("/v1/tasks"), "tasks").len(), 1);
    let replayed = d.follow(&subscribe(&task)).events(acknowledged + 1);
    assert_eq!(
        replayed.last().and_then(|event| event.id),
        Some(acknowledged as u64 + 1)
    );
    d.get("/v1/health").ok(200);
    d.get("/health").ok(200);
    // It is not one lucky refusal that leaves a half-open transaction behind.
    for _ in 0..3 {
        let path = format!("/v1/tasks/{task}/events");
        problem(
            &d.post(&path, &frame(&"y".repeat(100_000))),
            507,
            "storage_full",
        );
    }
    assert_eq!(lines(&d, &task), acknowledged);

    home.write("config.toml", LARGE);
    d.kill9();
    d.restart();
    assert_eq!(
        lines(&d, &task),
        acknowledged,
        "what was acknowledged outlives the crash"
    );
    let (first, _) = append(
        &d,
        &task,
        &json!([frame(&format!("{acknowledged} more")), done()]),
    );
    assert_eq!(
        first,
        acknowledged as u64 + 2,
        "and the ids go on where they were"
    );
    assert_eq!(lines(&d, &task), acknowledged + 1);
}

#[test]
fn a_daemon_starts_on_a_full_database_to_be_read() {
    let home = Home::new();
    home.write("config.toml", SMALL);
    let mut d = Daemon::with(|plan| plan.home(&home));
    let task = new_task(&d);
    let (acknowledged, _) = fill(&d, &task);
    d.stop();
    d.restart();
    assert_eq!(lines(&d, &task), acknowledged);
}
