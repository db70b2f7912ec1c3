//! Codex' record of a thread: `sessions/<year>/<month>/<day>/rollout-<time>-<id of the
//! thread>.jsonl` in its folder, one line of JSON for each entry. An entry says how a turn ended:
//! no hook is called when one fails.
//!
//! A file counts if it is this user's and nobody else can write it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::record_file;
use svc_model::hook::one_line;
use svc_model::{ClientRecord, ProcessIdentity, RecordedState, Timestamp};

/// A day folder is named by the local time at which the thread began.
const DAY: Duration = Duration::from_hours(24);

/// The end of the last turn, and its failure; `None` if it is not over, or that is unknown.
pub(super) fn read(process: &ProcessIdentity, thread: &str) -> Option<ClientRecord> {
    read_in(&home(process.pid)?.join("sessions"), thread)
}

/// The socket of the app-server that its terminals share.
pub(super) fn control_socket(process: &ProcessIdentity) -> Option<PathBuf> {
    let home = home(process.pid).filter(|home| home.is_absolute())?;
    Some(home.join("app-server-control/app-server-control.sock"))
}

fn home(pid: u32) -> Option<PathBuf> {
    record_file::folder(pid, "CODEX_HOME")
        .or_else(|| Some(record_file::folder(pid, "HOME")?.join(".codex")))
}

fn read_in(sessions: &Path, thread: &str) -> Option<ClientRecord> {
    let path = file_of(sessions, thread)?;
    parse(&record_file::tail_of(record_file::open(&path)?)?)
}

/// The thread's file. The id is compared with names and never becomes part of a path.
fn file_of(sessions: &Path, thread: &str) -> Option<PathBuf> {
    let began = began(thread)?;
    let end = format!("-{thread}.jsonl");
    [began, began.minus(DAY), began.plus(DAY)].into_iter().find_map(|at| {
        let day = at.to_string().get(..10)?.replace('-', "/");
        let mut files = fs::read_dir(sessions.join(day)).ok()?.flatten();
        let is_its =
            |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.ends_with(&end));
        files.find(|file| is_its(&file.file_name())).map(|file| file.path())
    })
}

/// The id of a thread is a UUID of version 7, which has its time.
fn began(thread: &str) -> Option<Timestamp> {
    let (high, low) = (thread.get(..8)?, thread.get(9..13)?);
    let millis = i64::from_str_radix(&format!("{high}{low}"), 16).ok()?;
    Some(Timestamp::from_millis(millis))
}

#[derive(Debug, Deserialize)]
struct RolloutEntry {
    timestamp: String,
    payload: EventPayload,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum EventPayload {
    TaskStarted,
    TaskComplete {
        #[serde(default)]
        error: Option<TurnError>,
    },
    TurnAborted,
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
struct TurnError {
    #[serde(default)]
    message: String,
}

/// The end after the last start of a turn. The first line may be incomplete.
fn parse(tail: &str) -> Option<ClientRecord> {
    let mut ended = None;
    for line in tail.lines().filter(|line| line.contains(r#""type":"event_msg""#)) {
        let Ok(entry) = serde_json::from_str::<RolloutEntry>(line) else { continue };
        let failure = match entry.payload {
            EventPayload::Other => continue,
            EventPayload::TaskStarted => {
                ended = None;
                continue;
            }
            EventPayload::TaskComplete { error } => error.map(|error| reason(&error.message)),
            EventPayload::TurnAborted => None,
        };
        ended = Timestamp::parse(&entry.timestamp).map(|at| ClientRecord {
            state: RecordedState::Idle,
            at,
            asks: None,
            failure,
        });
    }
    ended
}

/// The failure on one line: the message of the vendor's error, which Codex may keep as JSON.
fn reason(message: &str) -> String {
    let inner = serde_json::from_str::<Value>(message).ok();
    let inner = inner.as_ref().and_then(|inner| inner["error"]["message"].as_str());
    match one_line(inner.unwrap_or(message)) {
        reason if reason.is_empty() => "the turn failed".to_owned(),
        reason => reason,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const THREAD: &str = "01a21a18-80eb-7a33-bee1-3121f6c570d0";
    const STARTED: &str = r#"{"timestamp":"2026-11-26T23:02:42.145Z","ordinal":21,"type":"event_msg","payload":{"type":"task_started","turn_id":"01a2"}}"#;
    const SAID: &str = r#"{"timestamp":"2026-11-26T23:02:48.300Z","ordinal":25,"type":"event_msg","payload":{"type":"item_completed","thread_id":"01a2"}}"#;
    const FAILED: &str = r#"{"timestamp":"2026-11-26T23:02:48.411Z","ordinal":31,"type":"event_msg","payload":{"type":"task_complete","turn_id":"01a2","last_agent_message":"so","error":{"message":"{\"error\": {\"type\": \"invalid_request_error\", \"message\": \"scripted\\nfailure\", \"code\": null}}","codex_error_info":"other"},"duration_ms":6268}}"#;
    const DONE: &str = r#"{"timestamp":"2026-11-26T23:02:48.411Z","ordinal":31,"type":"event_msg","payload":{"type":"task_complete","turn_id":"01a2","last_agent_message":"so","duration_ms":6268}}"#;
    const ABORTED: &str = r#"{"timestamp":"2026-11-26T23:02:48.411Z","ordinal":31,"type":"event_msg","payload":{"type":"turn_aborted","turn_id":"01a2","reason":"interrupted"}}"#;
    const TOLD: &str = r#"{"timestamp":"2026-11-26T23:02:49.000Z","type":"response_item","payload":{"type":"message","content":[{"text":"{\"type\":\"event_msg\",\"payload\":{\"type\":\"task_started\"}}"}]}}"#;

    #[expect(clippy::unnecessary_wraps, reason = "compared with what a read gives")]
    fn over(failure: Option<&str>) -> Option<ClientRecord> {
        let at = Timestamp::parse("2026-11-26T23:02:48.411Z").unwrap();
        Some(ClientRecord {
            state: RecordedState::Idle,
            at,
            asks: None,
            failure: failure.map(str::to_owned),
        })
    }

    #[test]
    fn turn_is_over_until_the_next_and_has_its_failure() {
        for (lines, expected) in [
            (vec![STARTED, SAID], None),
            (vec![STARTED, SAID, FAILED], over(Some("scripted failure"))),
            (vec![STARTED, SAID, DONE], over(None)),
            (vec![STARTED, ABORTED], over(None)),
            (vec![STARTED, FAILED, STARTED], None),
            (vec![STARTED, DONE, TOLD], over(None)),
            (vec![&STARTED[20..], FAILED], over(Some("scripted failure"))),
        ] {
            assert_eq!(parse(&lines.join("\n")), expected, "{lines:?}");
        }
        assert_eq!(reason("stream\ndisconnected"), "stream disconnected");
        assert_eq!(reason(" "), "the turn failed");
    }

    #[test]
    fn record_of_a_thread_is_found_by_the_day_in_its_id() {
        let sessions = tempfile::tempdir().unwrap();
        // The local day may be another.
        for day in ["2026/11/25", "2026/11/26", "2026/11/27"] {
            let folder = sessions.path().join(day);
            fs::create_dir_all(&folder).unwrap();
            let file = folder.join(format!("rollout-2026-11-26T23-02-23-{THREAD}.jsonl"));
            assert_eq!(read_in(sessions.path(), THREAD), None, "there is none");
            fs::write(&file, [STARTED, DONE].join("\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
            assert_eq!(read_in(sessions.path(), THREAD), over(None), "{day}");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
            assert_eq!(read_in(sessions.path(), THREAD), None, "others can write it");
            fs::remove_file(&file).unwrap();
        }
        for thread in ["", "s", "../../etc/passwd", "ö1a21a18-80eb-7a33", "-1a21a18-80eb-7a33"] {
            assert_eq!(read_in(sessions.path(), thread), None, "{thread}");
        }
    }
}
