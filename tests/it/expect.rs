//! Checks of responses: their forms, and the ids of streams.

use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::daemon::Daemon;
pub(crate) use crate::shapes::{
    all_pages, append, done, each, escape, frame, instant, invalid, new_task, page, peer, problem,
    register, text,
};
use crate::wire::{Caller, Event};

/// A daemon with a task.
#[track_caller]
pub(crate) fn with_task() -> (Daemon, String) {
    let d = Daemon::start();
    let task = new_task(&d);
    (d, task)
}

/// The result of a bare call of a tool, whose text is its structured result.
#[track_caller]
pub(crate) fn result(d: &Caller, name: &str, arguments: &Value) -> Value {
    let result = d.tool(name, arguments);
    let text = result["content"][0]["text"].as_str().expect("a text");
    let text: Value = serde_json::from_str(text).expect("an object");
    assert_eq!(text, result["structuredContent"]);
    result
}

/// The same of a call that must succeed: its structured result.
#[track_caller]
pub(crate) fn call(d: &Caller, name: &str, arguments: &Value) -> Value {
    let result = result(d, name, arguments);
    assert!(result["isError"].is_null(), "{name}: {result}");
    result["structuredContent"].clone()
}

/// All events of a stream.
#[track_caller]
pub(crate) fn events(d: &Caller, stream: &str) -> Vec<Value> {
    all_pages(d, &format!("/v1/events?stream={stream}&limit=500"), "events", "after")
}

#[track_caller]
pub(crate) fn task_events(d: &Caller, task: &str) -> Vec<Value> {
    events(d, &format!("task/{task}"))
}

/// Events with ids from `first` on, without a gap.
#[track_caller]
pub(crate) fn dense(events: &[Event], first: u64) {
    let ids: Vec<_> = events.iter().map(|event| event.id).collect();
    let wanted: Vec<_> = (first..).take(events.len()).map(Some).collect();
    assert_eq!(ids, wanted);
}

/// The path of a task's stream.
pub(crate) fn subscribe(task: &str) -> String {
    format!("/v1/biam/subscribe?task_id={task}")
}

/// A message, with its states.
#[track_caller]
pub(crate) fn detail(d: &Caller, message: &Value) -> Value {
    d.get(&format!("/v1/messages/{}", text(message, "id"))).ok(200)
}

#[track_caller]
pub(crate) fn state(d: &Caller, message: &Value) -> String {
    text(&detail(d, message), "state")
}

pub(crate) fn peer_of(d: &Caller, session: &str) -> Option<Value> {
    let peers = d.get("/v1/peers").ok(200);
    peers["peers"].as_array()?.iter().find(|peer| peer["session_id"] == session).cloned()
}

/// Inserts ended records into a daemon's journal, with the given times. Members that a record does
/// not give are the same in all of them. Their texts are not in the search index.
#[track_caller]
pub(crate) fn put_records(d: &Daemon, records: &[Value]) {
    d.home.change(
        "insert into session (session_id, project, source, created_by, started_at, last_seen_at, ended_at)
        values ('old', '/p', 'startup', 'operator', 0, 0, 0) on conflict do nothing",
    );
    let row = |(number, record): (usize, &Value)| {
        let or = |name: &str, otherwise: &str| {
            let text = record[name].as_str().unwrap_or(otherwise);
            format!("'{}'", text.replace('\'', "''"))
        };
        let at = record["at"].as_str().map_or_else(|| json!("2026-01-31T12:00:00Z"), Value::from);
        let (at, status) = (seconds_of(&at) * 1000, or("status", "confirmed"));
        let tier = if status == "'abandoned'" { status.as_str() } else { "'silver'" };
        format!(
            "('ghap_{number:026}', 'old', '/p', 'debugging', 'read-the-error', {}, {}, {}, 'it is seen', {},
            {status}, {}, {tier}, {at}, {at}, {at})",
            or("goal", &format!("goal {number}")),
            or("hypothesis", "it is so"),
            or("action", "look"),
            record["probability"],
            or("result", "seen"),
        )
    };
    let rows: Vec<String> = records.iter().enumerate().map(row).collect();
    let added = d.home.change(&format!(
        "insert into ghap (ghap_id, session_id, project, domain, strategy, goal, hypothesis, action, prediction, probability,
            status, result, tier, created_at, updated_at, resolved_at) values {}",
        rows.join(", ")
    ));
    assert_eq!(added, records.len());
}

/// A time of an answer in seconds since 1970.
#[track_caller]
pub(crate) fn seconds_of(time: &Value) -> i64 {
    let time = time.as_str().expect("a time");
    OffsetDateTime::parse(time, &Rfc3339).expect("a time by RFC 3339").unix_timestamp()
}
