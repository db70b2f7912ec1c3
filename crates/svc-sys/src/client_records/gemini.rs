//! Gemini CLI's record of a conversation: `tmp/<project>/chats/session-<time>-<beginning of the
//! id>.jsonl` in its folder, one line of JSON for each entry. The first line has the id of the
//! session. An entry shows that a person ended a turn.
//!
//! A file counts if it is this user's and nobody else can write it, and if it names the session in
//! question.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use svc_model::{ClientRecord, ProcessIdentity, RecordedState, Timestamp, limits};

use super::record_file;

/// Entry after a person has ended a turn, by Esc or by No at a dialog.
const CANCELLED: &str = "Request cancelled.";
/// The conversation is written again within this time; no person types a prompt as quickly.
const COPY: Duration = Duration::from_millis(500);

/// The end of the last turn by the person; `None` without one.
pub(super) fn read(process: &ProcessIdentity, session_id: &str) -> Option<ClientRecord> {
    let home = record_file::folder(process.pid, "GEMINI_CLI_HOME")
        .or_else(|| record_file::folder(process.pid, "HOME"))?;
    read_in(&home.join(".gemini/tmp"), session_id)
}

fn read_in(folder: &Path, session_id: &str) -> Option<ClientRecord> {
    let file = files(folder, session_id).find_map(|path| open(&path, session_id))?;
    parse(&record_file::tail_of(file)?)
}

/// Files whose names have the beginning of the id.
fn files(folder: &Path, session_id: &str) -> impl Iterator<Item = PathBuf> {
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

fn open(path: &Path, session_id: &str) -> Option<File> {
    let file = record_file::open(path)?;
    let mut first = String::new();
    BufReader::new(&file).take(limits::RECORD_TAIL_BYTES).read_line(&mut first).ok()?;
    let first: Value = serde_json::from_str(&first).ok()?;
    (first["sessionId"] == session_id).then_some(file)
}

/// An end by the person after the last prompt. The first line may be incomplete.
fn parse(tail: &str) -> Option<ClientRecord> {
    let (mut ended, mut copied_at) = (None, None);
    for line in tail.lines().filter(|line| line.contains(r#""type":"#)) {
        let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
        match entry["type"].as_str() {
            Some("info") if entry["content"] == CANCELLED => {
                ended = entry["timestamp"].as_str().and_then(Timestamp::parse);
            }
            Some("user") if is_prompt(&entry["content"]) => {
                let at = entry["timestamp"].as_str().and_then(Timestamp::parse);
                let is_copy = at.zip(copied_at).is_some_and(|(at, copied)| at.since(copied) < COPY);
                if !is_copy {
                    ended = None;
                }
            }
            Some("user") if is_beginning(&entry["content"]) => {
                copied_at = entry["timestamp"].as_str().and_then(Timestamp::parse);
            }
            _ => {}
        }
    }
    ended.map(|at| ClientRecord { state: RecordedState::Idle, at, asks: None, failure: None })
}

/// Entries of the person are also results of tools, and the beginning of the conversation.
fn is_prompt(content: &Value) -> bool {
    first_text(content).is_some() && !is_beginning(content)
}

/// The beginning of the conversation. All of it is written again after an end at a dialog.
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

    const FIRST: &str = r#"{"sessionId":"5e984bb8-0000","projectHash":"x","kind":"main"}"#;
    const PROMPT: &str = r#"{"id":"a","timestamp":"2026-11-26T18:16:03.386Z","type":"user","content":[{"text":"hello"}]}"#;
    const ENDED: &str = r#"{"id":"b","timestamp":"2026-11-26T18:16:07.532Z","type":"info","content":"Request cancelled."}"#;
    const RESULT: &str = r#"{"id":"c","timestamp":"2026-11-26T18:16:07.856Z","type":"user","content":[{"functionResponse":{"id":"d"}}]}"#;

    const AGAIN: &str = r#"{"id":"e","timestamp":"2026-11-26T18:16:07.533Z","type":"user","content":[{"text":"<session_context>\\n"},{"text":"hello"}]}"#;

    const COPY_OF_PROMPT: &str = r#"{"id":"f","timestamp":"2026-11-26T18:16:07.534Z","type":"user","content":[{"text":"hello"}]}"#;
    const NEXT_PROMPT: &str = r#"{"id":"g","timestamp":"2026-11-26T18:16:08.734Z","type":"user","content":[{"text":"go on"}]}"#;

    #[test]
    fn interrupted_turn_is_over_until_the_next_prompt() {
        let at = Timestamp::parse("2026-11-26T18:16:07.532Z").unwrap();
        let over =
            || Some(ClientRecord { state: RecordedState::Idle, at, asks: None, failure: None });
        for (lines, expected) in [
            (vec![FIRST, PROMPT], None),
            (vec![FIRST, PROMPT, ENDED], over()),
            (vec![FIRST, PROMPT, ENDED, RESULT], over()),
            (vec![FIRST, PROMPT, ENDED, AGAIN], over()),
            (vec![FIRST, PROMPT, ENDED, AGAIN, COPY_OF_PROMPT], over()),
            (vec![FIRST, PROMPT, ENDED, AGAIN, COPY_OF_PROMPT, NEXT_PROMPT], None),
            (vec![FIRST, PROMPT, ENDED, RESULT, PROMPT], None),
            (vec![&PROMPT[20..], ENDED], over()),
            (vec![r#"{"type":"info","content":"Request cancelled."}"#], None),
        ] {
            assert_eq!(parse(&lines.join("\n")), expected, "{lines:?}");
        }
    }

    #[test]
    fn foreign_or_writable_record_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let chats = folder.path().join("api/chats");
        fs::create_dir_all(&chats).unwrap();
        let file = chats.join("session-2026-11-26T18-16-5e984bb8.jsonl");
        assert_eq!(read_in(folder.path(), "5e984bb8-0000"), None, "there is none");
        fs::write(&file, [FIRST, PROMPT, ENDED].join("\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_in(folder.path(), "5e984bb8-0000").is_some());
        assert_eq!(read_in(folder.path(), "5e984bb8-1111"), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(read_in(folder.path(), "5e984bb8-0000"), None);
    }
}
