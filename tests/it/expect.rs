//! Checks of responses: their forms, and the ids of streams.

use std::time::Duration;

use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::daemon::Daemon;
pub(crate) use crate::shapes::{
    all_pages, append, done, each, escape, frame, instant, invalid, new_task, page, peer, problem,
    register, text,
};
use crate::wire::Event;

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

/// Inserts ended records into a daemon's journal, with the given times. Members that a record does
/// not give are the same in all of them. Their texts are not in the search index.
#[track_caller]
pub(crate) fn put_records(d: &Daemon, records: &[Value]) {
    let file = rusqlite::Connection::open(d.home.path("svc.db")).expect("the database");
    file.busy_timeout(Duration::from_secs(30)).expect("waits for the daemon");
    file.execute_batch(
        "insert or ignore into session (session_id, project, source, created_by, started_at, last_seen_at, ended_at)
        values ('old', '/p', 'startup', 'operator', 0, 0, 0)",
    )
    .expect("a session");
    let added = file.execute(
        "insert into ghap (ghap_id, session_id, project, domain, strategy, goal, hypothesis, action, prediction, probability,
            status, result, tier, created_at, updated_at, resolved_at)
        select printf('ghap_%026d', key), 'old', '/p', 'debugging', 'read-the-error',
            coalesce(value ->> 'goal', 'goal ' || key), coalesce(value ->> 'hypothesis', 'it is so'),
            coalesce(value ->> 'action', 'look'), 'it is seen', value ->> 'probability',
            coalesce(value ->> 'status', 'confirmed'), coalesce(value ->> 'result', 'seen'),
            iif(value ->> 'status' = 'abandoned', 'abandoned', 'silver'), at, at, at
        from (select key, value, unixepoch(coalesce(value ->> 'at', '2026-01-31T12:00:00Z')) * 1000 as at from json_each(?))",
        [Value::from(records).to_string()],
    );
    assert_eq!(added.expect("the records"), records.len());
}

/// A time of an answer in seconds since 1970.
#[track_caller]
pub(crate) fn seconds_of(time: &Value) -> i64 {
    let time = time.as_str().expect("a time");
    OffsetDateTime::parse(time, &Rfc3339).expect("a time by RFC 3339").unix_timestamp()
}
