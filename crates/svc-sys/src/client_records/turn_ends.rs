//! The records of Codex and Gemini CLI, one line of JSON per entry. Only the end of a turn is read
//! from them: no hook runs when a turn of Codex fails, or when a person ends a turn of Gemini CLI.
//!
//! A file counts if it belongs to this user and nobody else can write it. A file of Gemini CLI must
//! also name the session in question.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use svc_model::hook::one_line;
use svc_model::{ClientRecord, ProcessIdentity, RecordedState, Timestamp, limits};

use crate::private_file::{open_source, tail_of};
use crate::process_list::variable;

fn turn_end(at: Timestamp, failure: Option<String>) -> ClientRecord {
    ClientRecord { state: RecordedState::Idle, at, asks: None, failure }
}

// Codex: `sessions/<year>/<month>/<day>/rollout-<time>-<thread id>.jsonl` in its folder.

/// Rollouts are in folders named by the local day on which the thread began, so the days before and
/// after in UTC are searched too.
const DAY: Duration = Duration::from_hours(24);

/// The end of the last turn, with its failure; `None` if the turn is not over or the record does
/// not say.
pub(super) fn read_codex(process: &ProcessIdentity, thread: &str) -> Option<ClientRecord> {
    codex_record_in(&codex_home(process.pid)?.join("sessions"), thread)
}

/// Path of the socket of the app-server that all Codex terminals of a user share; `None` if it is
/// unknown. The caller checks whether a process listens there.
pub fn codex_control_socket(process: &ProcessIdentity) -> Option<PathBuf> {
    let home = codex_home(process.pid).filter(|home| home.is_absolute())?;
    Some(home.join("app-server-control/app-server-control.sock"))
}

fn codex_home(pid: u32) -> Option<PathBuf> {
    let folder = |name| variable(pid, name).map(PathBuf::from);
    folder("CODEX_HOME").or_else(|| Some(folder("HOME")?.join(".codex")))
}

fn codex_record_in(sessions: &Path, thread: &str) -> Option<ClientRecord> {
    let path = codex_file(sessions, thread)?;
    parse_codex(&tail_of(open_source(&path)?, limits::RECORD_TAIL_BYTES)?)
}

/// The thread's file. The id is compared with file names and never becomes part of a path.
fn codex_file(sessions: &Path, thread: &str) -> Option<PathBuf> {
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

/// When a thread began: its id is a UUID of version 7, which contains the time.
fn began(thread: &str) -> Option<Timestamp> {
    let (high, low) = (thread.get(..8)?, thread.get(9..13)?);
    let millis = i64::from_str_radix(&format!("{high}{low}"), 16).ok()?;
    Some(Timestamp::from_millis(millis))
}

fn time_of(entry: &Value) -> Option<Timestamp> {
    entry["timestamp"].as_str().and_then(Timestamp::parse)
}

/// The end of a turn after the last start of one. The first line of `tail` may be incomplete.
fn parse_codex(tail: &str) -> Option<ClientRecord> {
    let mut ended = None;
    for line in tail.lines().filter(|line| line.contains(r#""type":"event_msg""#)) {
        let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
        let error = &entry["payload"]["error"];
        let failure = match entry["payload"]["type"].as_str() {
            Some("task_complete") if error.is_object() => {
                Some(reason(error["message"].as_str().unwrap_or_default()))
            }
            Some("task_complete" | "turn_aborted") => None,
            Some("task_started") => {
                ended = None;
                continue;
            }
            _ => continue,
        };
        ended = time_of(&entry).map(|at| turn_end(at, failure));
    }
    ended
}

/// The failure as one line: the message of the vendor's error, which Codex may store as JSON.
fn reason(message: &str) -> String {
    let inner = serde_json::from_str::<Value>(message).ok();
    let inner = inner.as_ref().and_then(|inner| inner["error"]["message"].as_str());
    match one_line(inner.unwrap_or(message)) {
        reason if reason.is_empty() => "the turn failed".to_owned(),
        reason => reason,
    }
}

// Gemini CLI: `tmp/<project>/chats/session-<time>-<first 8 characters of the id>.jsonl` in its
// folder. The first line has the id of the session.

/// Text of the entry that Gemini CLI writes after a person ended a turn by Esc or by No at a
/// dialog.
const CANCELLED: &str = "Request cancelled.";
/// After No at a dialog the client writes the whole conversation again, within this time. A prompt
/// that is written so soon is a copy, as no person types so fast.
const COPY: Duration = Duration::from_millis(500);

/// When a person ended the last turn; `None` if no person did.
pub(super) fn read_gemini(process: &ProcessIdentity, session_id: &str) -> Option<ClientRecord> {
    let home =
        variable(process.pid, "GEMINI_CLI_HOME").or_else(|| variable(process.pid, "HOME"))?;
    gemini_record_in(&Path::new(&home).join(".gemini/tmp"), session_id)
}

fn gemini_record_in(folder: &Path, session_id: &str) -> Option<ClientRecord> {
    let file = gemini_files(folder, session_id).find_map(|path| open_gemini(&path, session_id))?;
    parse_gemini(&tail_of(file, limits::RECORD_TAIL_BYTES)?)
}

/// Files whose names contain the first 8 characters of the id.
fn gemini_files(folder: &Path, session_id: &str) -> impl Iterator<Item = PathBuf> {
    let beginning: String = session_id.chars().take(8).collect();
    let end = format!("-{beginning}.jsonl");
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    entries(folder).flat_map(move |project| entries(&project.path().join("chats"))).filter_map(
        move |file| {
            let name = file.file_name();
            name.to_str().is_some_and(|name| name.ends_with(&end)).then(|| file.path())
        },
    )
}

fn open_gemini(path: &Path, session_id: &str) -> Option<File> {
    let file = open_source(path)?;
    let mut first = String::new();
    BufReader::new(&file).take(limits::RECORD_TAIL_BYTES).read_line(&mut first).ok()?;
    let first: Value = serde_json::from_str(&first).ok()?;
    (first["sessionId"] == session_id).then_some(file)
}

/// When a person ended a turn after the last prompt. The first line of `tail` may be incomplete.
fn parse_gemini(tail: &str) -> Option<ClientRecord> {
    let (mut ended, mut copied_at) = (None, None);
    for line in tail.lines().filter(|line| line.contains(r#""type":"#)) {
        let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
        match entry["type"].as_str() {
            Some("info") if entry["content"] == CANCELLED => ended = time_of(&entry),
            Some("user") if is_prompt(&entry["content"]) => {
                let at = time_of(&entry);
                let is_copy = at.zip(copied_at).is_some_and(|(at, copied)| at.since(copied) < COPY);
                if !is_copy {
                    ended = None;
                }
            }
            Some("user") if is_beginning(&entry["content"]) => copied_at = time_of(&entry),
            _ => {}
        }
    }
    ended.map(|at| turn_end(at, None))
}

/// User entries are prompts, results of tools, or the beginning of the conversation.
fn is_prompt(content: &Value) -> bool {
    first_text(content).is_some() && !is_beginning(content)
}

/// Whether this is the first entry of a conversation. The client writes the whole conversation
/// again after No at a dialog.
fn is_beginning(content: &Value) -> bool {
    first_text(content).is_some_and(|text| text.starts_with("<session_context>"))
}

fn first_text(content: &Value) -> Option<&str> {
    content.as_str().or_else(|| content[0]["text"].as_str())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "compared with what a read gives")]
    fn over(at: &str, failure: Option<&str>) -> Option<ClientRecord> {
        Some(turn_end(Timestamp::parse(at).unwrap(), failure.map(str::to_owned)))
    }

    const CODEX_END: &str = "2026-11-26T23:02:48.411Z";
    const THREAD: &str = "01a21a18-80eb-7a33-bee1-3121f6c570d0";
    const STARTED: &str = r#"{"timestamp":"2026-11-26T23:02:42.145Z","ordinal":21,"type":"event_msg","payload":{"type":"task_started","turn_id":"01a2"}}"#;
    const SAID: &str = r#"{"timestamp":"2026-11-26T23:02:48.300Z","ordinal":25,"type":"event_msg","payload":{"type":"item_completed","thread_id":"01a2"}}"#;
    const FAILED: &str = r#"{"timestamp":"2026-11-26T23:02:48.411Z","ordinal":31,"type":"event_msg","payload":{"type":"task_complete","turn_id":"01a2","last_agent_message":"so","error":{"message":"{\"error\": {\"type\": \"invalid_request_error\", \"message\": \"scripted\\nfailure\", \"code\": null}}","codex_error_info":"other"},"duration_ms":6268}}"#;
    const DONE: &str = r#"{"timestamp":"2026-11-26T23:02:48.411Z","ordinal":31,"type":"event_msg","payload":{"type":"task_complete","turn_id":"01a2","last_agent_message":"so","duration_ms":6268}}"#;
    const ABORTED: &str = r#"{"timestamp":"2026-11-26T23:02:48.411Z","ordinal":31,"type":"event_msg","payload":{"type":"turn_aborted","turn_id":"01a2","reason":"interrupted"}}"#;
    const TOLD: &str = r#"{"timestamp":"2026-11-26T23:02:49.000Z","type":"response_item","payload":{"type":"message","content":[{"text":"{\"type\":\"event_msg\",\"payload\":{\"type\":\"task_started\"}}"}]}}"#;

    #[test]
    fn turn_is_over_until_the_next_and_has_its_failure() {
        for (lines, expected) in [
            (vec![STARTED, SAID], None),
            (vec![STARTED, SAID, FAILED], over(CODEX_END, Some("scripted failure"))),
            (vec![STARTED, SAID, DONE], over(CODEX_END, None)),
            (vec![STARTED, ABORTED], over(CODEX_END, None)),
            (vec![STARTED, FAILED, STARTED], None),
            (vec![STARTED, DONE, TOLD], over(CODEX_END, None)),
            (vec![&STARTED[20..], FAILED], over(CODEX_END, Some("scripted failure"))),
        ] {
            assert_eq!(parse_codex(&lines.join("\n")), expected, "{lines:?}");
        }
        assert_eq!(reason("stream\ndisconnected"), "stream disconnected");
        assert_eq!(reason(" "), "the turn failed");
    }

    #[test]
    fn record_of_a_thread_is_found_by_the_day_in_its_id() {
        let sessions = tempfile::tempdir().unwrap();
        // The local day may differ from the day in UTC.
        for day in ["2026/11/25", "2026/11/26", "2026/11/27"] {
            let folder = sessions.path().join(day);
            fs::create_dir_all(&folder).unwrap();
            let file = folder.join(format!("rollout-2026-11-26T23-02-23-{THREAD}.jsonl"));
            assert_eq!(codex_record_in(sessions.path(), THREAD), None, "there is none");
            fs::write(&file, [STARTED, DONE].join("\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
            assert_eq!(codex_record_in(sessions.path(), THREAD), over(CODEX_END, None), "{day}");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
            assert_eq!(codex_record_in(sessions.path(), THREAD), None, "others can write it");
            fs::remove_file(&file).unwrap();
        }
        for thread in ["", "s", "../../etc/passwd", "ö1a21a18-80eb-7a33", "-1a21a18-80eb-7a33"] {
            assert_eq!(codex_record_in(sessions.path(), thread), None, "{thread}");
        }
    }

    const GEMINI_END: &str = "2026-11-26T18:16:07.532Z";
    const FIRST: &str = r#"{"sessionId":"5e984bb8-0000","projectHash":"x","kind":"main"}"#;
    const PROMPT: &str = r#"{"id":"a","timestamp":"2026-11-26T18:16:03.386Z","type":"user","content":[{"text":"hello"}]}"#;
    const ENDED: &str = r#"{"id":"b","timestamp":"2026-11-26T18:16:07.532Z","type":"info","content":"Request cancelled."}"#;
    const RESULT: &str = r#"{"id":"c","timestamp":"2026-11-26T18:16:07.856Z","type":"user","content":[{"functionResponse":{"id":"d"}}]}"#;
    const AGAIN: &str = r#"{"id":"e","timestamp":"2026-11-26T18:16:07.533Z","type":"user","content":[{"text":"<session_context>\\n"},{"text":"hello"}]}"#;
    const COPY_OF_PROMPT: &str = r#"{"id":"f","timestamp":"2026-11-26T18:16:07.534Z","type":"user","content":[{"text":"hello"}]}"#;
    const NEXT_PROMPT: &str = r#"{"id":"g","timestamp":"2026-11-26T18:16:08.734Z","type":"user","content":[{"text":"go on"}]}"#;

    #[test]
    fn interrupted_turn_is_over_until_the_next_prompt() {
        for (lines, expected) in [
            (vec![FIRST, PROMPT], None),
            (vec![FIRST, PROMPT, ENDED], over(GEMINI_END, None)),
            (vec![FIRST, PROMPT, ENDED, RESULT], over(GEMINI_END, None)),
            (vec![FIRST, PROMPT, ENDED, AGAIN], over(GEMINI_END, None)),
            (vec![FIRST, PROMPT, ENDED, AGAIN, COPY_OF_PROMPT], over(GEMINI_END, None)),
            (vec![FIRST, PROMPT, ENDED, AGAIN, COPY_OF_PROMPT, NEXT_PROMPT], None),
            (vec![FIRST, PROMPT, ENDED, RESULT, PROMPT], None),
            (vec![&PROMPT[20..], ENDED], over(GEMINI_END, None)),
            (vec![r#"{"type":"info","content":"Request cancelled."}"#], None),
        ] {
            assert_eq!(parse_gemini(&lines.join("\n")), expected, "{lines:?}");
        }
    }

    #[test]
    fn foreign_or_writable_record_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let chats = folder.path().join("api/chats");
        fs::create_dir_all(&chats).unwrap();
        let file = chats.join("session-2026-11-26T18-16-5e984bb8.jsonl");
        assert_eq!(gemini_record_in(folder.path(), "5e984bb8-0000"), None, "there is none");
        fs::write(&file, [FIRST, PROMPT, ENDED].join("\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(gemini_record_in(folder.path(), "5e984bb8-0000").is_some());
        assert_eq!(gemini_record_in(folder.path(), "5e984bb8-1111"), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(gemini_record_in(folder.path(), "5e984bb8-0000"), None);
    }
}
