//! Claude Code's records. Its registry of sessions, `sessions/<pid>.json` in its folder, has a file
//! for each process with the state of its session. Its transcript of a conversation,
//! `projects/<folder>/<session>.jsonl`, has one line of JSON per entry; a text that was sent to the
//! client appears when it is queued and again when it is read.
//!
//! A file counts if it belongs to this user and nobody else can write it. The registry's folder
//! must fulfil this too, and its file must name the process and the session in question. The same
//! holds for the target of a link on the path, and for the link's folder.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use svc_model::hook::one_line;
use svc_model::{ClientRecord, ProcessIdentity, RecordedState, Timestamp, WaitingKind, limits};

use crate::private_file::{self, if_there};
use crate::process_list::variable;

/// Attempts to read a file that does not parse, and the delay between them.
const READS: u32 = 3;
const WRITING: Duration = Duration::from_millis(4);
/// Largest file of the registry, in bytes. Real files have about a thousand.
const REGISTRY_BYTES: u64 = 64 * 1024;
/// Longest text of a dialog that is kept, in characters.
const ASKS_CHARS: usize = 200;

/// Why an existing record does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// Others could have written the file, or it cannot be read.
    #[error("{0}")]
    Untrusted(String),
    /// The file does not have the format of a known version.
    #[error("it has another format")]
    Form,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaudeSession {
    pid: u32,
    session_id: String,
    proc_start: Value,
    /// `interactive` in a terminal, and since 2.1.329 also with `-p`.
    pub kind: Option<String>,
    /// How the session was started: `cli` in a terminal, `sdk-cli` to print its answers (`-p`).
    /// 2.1.197 does not say it.
    entrypoint: Option<String>,
    /// As the client writes it: three numbers.
    pub version: Option<String>,
    /// `idle`, `busy` or `waiting`, or a word of a later version.
    pub status: Option<String>,
    pub waiting_for: Option<String>,
    /// When the status began, in Unix milliseconds.
    pub status_updated_at: Option<i64>,
    /// Socket for messages. The caller checks which process listens there.
    #[serde(rename = "messagingSocketPath")]
    pub inbox: Option<PathBuf>,
}

impl ClaudeSession {
    /// The entry of a session in this process; `None` if it is missing or does not count.
    pub fn read(process: &ProcessIdentity, session_id: &str) -> Option<Self> {
        Self::look(process, session_id).ok().flatten()
    }

    /// As [`Self::read`], but fails if the file exists and does not count.
    pub(super) fn look(
        process: &ProcessIdentity,
        session_id: &str,
    ) -> Result<Option<Self>, RecordFault> {
        let Some(folder) = folder_of(process.pid) else { return Ok(None) };
        Self::look_in(&folder.join("sessions"), process, session_id)
    }

    fn look_in(
        folder: &Path,
        process: &ProcessIdentity,
        session_id: &str,
    ) -> Result<Option<Self>, RecordFault> {
        let file = folder.join(format!("{}.json", process.pid));
        for _ in 0..READS {
            let text = if_there(private_file::read_own(&file, REGISTRY_BYTES))
                .map_err(|error| RecordFault::Untrusted(error.to_string()))?;
            let Some(text) = text else { return Ok(None) };
            if let Ok(entry) = serde_json::from_str::<Self>(&text) {
                return Ok(entry.is_of(process, session_id).then_some(entry));
            }
            // The client may be writing the file.
            std::thread::sleep(WRITING);
        }
        Err(RecordFault::Form)
    }

    fn is_of(&self, process: &ProcessIdentity, session_id: &str) -> bool {
        let started = match &self.proc_start {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return false,
        };
        self.pid == process.pid
            && process.started.split('@').next() == Some(started.as_str())
            && self.session_id == session_id
    }

    pub fn is_interactive(&self) -> bool {
        self.kind.as_deref() == Some("interactive")
    }

    /// Whether the session shows its person a dialog when it asks for permission.
    pub(super) fn shows_dialogs(&self) -> bool {
        let is_of_program = self.entrypoint.as_deref().is_some_and(|it| it.starts_with("sdk-"));
        self.is_interactive() && !is_of_program
    }

    /// The state and when it began; `None` for a status of a later version.
    pub fn record(&self) -> Option<ClientRecord> {
        let asked = self.waiting_for.as_deref().unwrap_or_default();
        let state = match self.status.as_deref()? {
            "busy" => RecordedState::Busy,
            "idle" => RecordedState::Idle,
            "waiting" if asked.contains("permission") => {
                RecordedState::Waiting(WaitingKind::Permission)
            }
            "waiting" => RecordedState::Waiting(WaitingKind::Question),
            _ => return None,
        };
        let at = Timestamp::from_millis(self.status_updated_at?);
        let asks = (!asked.is_empty()).then(|| one_line(asked).chars().take(ASKS_CHARS).collect());
        Some(ClientRecord { state, at, asks, failure: None })
    }
}

fn folder_of(pid: u32) -> Option<PathBuf> {
    let folder = |name| variable(pid, name).map(PathBuf::from);
    folder("CLAUDE_CONFIG_DIR").or_else(|| Some(folder("HOME")?.join(".claude")))
}

/// Longest part of a transcript that is searched, in bytes.
const TRANSCRIPT_BYTES: u64 = 256 << 20;

/// Texts that were sent to a conversation, grouped by their state in the transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown<T> {
    pub read: Vec<T>,
    /// Still in the client's queue.
    pub waiting: Vec<T>,
    /// Removed from the client's queue, but the prompt is not on record yet: the client writes it
    /// after its hooks.
    pub begun: Vec<T>,
}

/// The current end of a session's transcript, as [`shown_since`] takes it. `None` if the transcript
/// is missing or does not count.
pub fn end_of(process: &ProcessIdentity, session: &str) -> Option<String> {
    let path = transcript_of(process, session)?;
    let end = private_file::open_source(&path)?.metadata().ok()?.len();
    Some(format!("{end}:{}", path.to_str()?))
}

/// The beginning of a session's transcript, in the same form as [`end_of`].
pub fn beginning_of(process: &ProcessIdentity, session: &str) -> Option<String> {
    Some(format!("0:{}", transcript_of(process, session)?.to_str()?))
}

fn transcript_of(process: &ProcessIdentity, session: &str) -> Option<PathBuf> {
    file_of(&folder_of(process.pid)?.join("projects"), session)
}

/// The states of the texts with these marks, from the transcript since `end`. `None` if that part
/// is too long or cannot be read.
pub fn shown_since<T: Clone>(end: &str, marks: &[(T, String)]) -> Option<Shown<T>> {
    let (offset, path) = end.split_once(':')?;
    let mut file = private_file::open_source(Path::new(path))?;
    let (offset, length) = (offset.parse().ok()?, file.metadata().ok()?.len());
    if length < offset || length - offset > TRANSCRIPT_BYTES {
        return None;
    }
    file.seek(SeekFrom::Start(offset)).ok()?;
    let mut read = vec![false; marks.len()];
    let (mut was_queued, mut was_taken) = (vec![false; marks.len()], false);
    // Texts that were queued since `end`, the oldest first. Some versions write no text into their
    // queue entries.
    let mut queue: VecDeque<Option<String>> = VecDeque::new();
    for line in BufReader::new(file.take(length - offset)).split(b'\n') {
        let line = line.ok()?;
        let line = String::from_utf8_lossy(&line);
        let entry: Value = serde_json::from_str(&line).unwrap_or_default();
        let operation = (entry["type"] == "queue-operation").then(|| entry["operation"].as_str());
        let content = entry["content"].as_str();
        match operation {
            Some(Some("enqueue")) => queue.push_back(content.map(str::to_owned)),
            Some(_) => was_taken |= leave(&mut queue, content),
            None => {}
        }
        let seen = match operation {
            Some(Some("enqueue")) => &mut was_queued,
            // The client records the prompt after its hooks.
            Some(Some("dequeue")) => continue,
            // A model may quote a text without having received it as a message.
            None if entry["type"] == "assistant" => continue,
            _ => &mut read,
        };
        for ((_, mark), seen) in marks.iter().zip(seen) {
            *seen |= line.contains(mark.as_str());
        }
    }
    let waits = |mark: &str| {
        queue.iter().any(|text| text.as_deref().is_none_or(|text| text.contains(mark)))
    };
    let mut shown = Shown { read: Vec::new(), waiting: Vec::new(), begun: Vec::new() };
    for (((id, mark), is_read), was_queued) in marks.iter().zip(read).zip(was_queued) {
        if is_read {
            shown.read.push(id.clone());
        } else if waits(mark) {
            shown.waiting.push(id.clone());
        } else if was_queued || was_taken {
            shown.begun.push(id.clone());
        }
    }
    Some(shown)
}

/// Removes one text from the queue: the one that the entry names, else the oldest. Returns whether
/// the content of the removed text is unknown.
fn leave(queue: &mut VecDeque<Option<String>>, content: Option<&str>) -> bool {
    let named = content.and_then(|text| queue.iter().position(|it| it.as_deref() == Some(text)));
    queue.remove(named.unwrap_or_default()).is_some_and(|text| text.is_none())
}

pub(super) fn limit_end(
    process: &ProcessIdentity,
    session_id: &str,
    now: Timestamp,
) -> Option<Timestamp> {
    limit_end_in(&folder_of(process.pid)?.join("projects"), session_id, now)
}

fn limit_end_in(projects: &Path, session_id: &str, now: Timestamp) -> Option<Timestamp> {
    let transcript = file_of(projects, session_id)?;
    let tail =
        private_file::tail_of(private_file::open_source(&transcript)?, limits::RECORD_TAIL_BYTES)?;
    let refusal = tail.lines().rev().find(|line| line.contains(r#""rate_limit_info""#))?;
    let entry: Value = serde_json::from_str(refusal).ok()?;
    let info = &entry["apiErrorParams"]["rate_limit_info"];
    let resets = info["resetsAt"].as_i64().filter(|_| entry["isApiErrorMessage"] == true)?;
    let end = Timestamp::from_millis(resets.checked_mul(1000)?);
    (now < end && end <= now.plus(limits::LIMIT_LASTS)).then_some(end)
}

/// The session's transcript, if nobody else can write its folder. The session's id is compared with
/// file names and never becomes part of a path.
fn file_of(projects: &Path, session: &str) -> Option<PathBuf> {
    let name = format!("{session}.jsonl");
    let is_it = |entry: &fs::DirEntry| entry.file_name().to_str() == Some(&name);
    fs::read_dir(projects).ok()?.flatten().find_map(|folder| {
        private_file::check_folder(&folder.path()).ok()?;
        let mut files = fs::read_dir(folder.path()).ok()?.flatten();
        files.find(is_it).map(|file| file.path())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    fn process() -> ProcessIdentity {
        ProcessIdentity { pid: 28390, started: "879828@boot".to_owned() }
    }

    fn entry(status: &str, waiting_for: Option<&str>) -> Value {
        json!({
            "pid": 28390, "sessionId": "s", "procStart": "879828", "version": "2.1.330", "kind": "interactive",
            "messagingSocketPath": "/tmp/cc-socks/28390.sock", "status": status, "waitingFor": waiting_for, "statusUpdatedAt": 1_795_520_209_280_u64,
        })
    }

    #[test]
    fn record_has_the_state_of_a_session() {
        for (status, waiting_for, state) in [
            ("busy", None, RecordedState::Busy),
            ("idle", None, RecordedState::Idle),
            ("waiting", Some("permission prompt"), RecordedState::Waiting(WaitingKind::Permission)),
            ("waiting", Some("input needed"), RecordedState::Waiting(WaitingKind::Question)),
        ] {
            let at = Timestamp::from_millis(1_795_520_209_280);
            let read =
                parse(&entry(status, waiting_for), &process(), "s").and_then(|it| it.record());
            let asks = waiting_for.map(str::to_owned);
            assert_eq!(read, Some(ClientRecord { state, at, asks, failure: None }));
        }
        let later = parse(&entry("of a later version", None), &process(), "s").expect("an entry");
        assert_eq!((later.record(), later.is_interactive()), (None, true));
        assert_eq!(later.inbox, Some(PathBuf::from("/tmp/cc-socks/28390.sock")));
        assert!(later.shows_dialogs(), "an earlier version has no entrypoint");
        for (entrypoint, shows_dialogs) in [("cli", true), ("sdk-cli", false)] {
            let mut entry = entry("busy", None);
            entry["entrypoint"] = json!(entrypoint);
            let printing = parse(&entry, &process(), "s").expect("an entry");
            assert_eq!(printing.shows_dialogs(), shows_dialogs, "{entrypoint}");
        }
        assert_eq!(parse(&entry("idle", None), &process(), "another"), None);
        let another = ProcessIdentity { started: "879829@boot".to_owned(), ..process() };
        assert_eq!(parse(&entry("idle", None), &another, "s"), None, "it had the same id");
    }

    fn parse(entry: &Value, process: &ProcessIdentity, session: &str) -> Option<ClaudeSession> {
        let entry: ClaudeSession = serde_json::from_value(entry.clone()).ok()?;
        entry.is_of(process, session).then_some(entry)
    }

    #[test]
    fn record_that_others_can_write_or_that_has_another_form_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let is = |mode| fs::Permissions::from_mode(mode);
        fs::set_permissions(folder.path(), is(0o700)).unwrap();
        let file = folder.path().join("28390.json");
        let look = || ClaudeSession::look_in(folder.path(), &process(), "s");
        let is_untrusted = || matches!(look(), Err(RecordFault::Untrusted(_)));
        assert_eq!(look(), Ok(None), "there is none");
        fs::write(&file, entry("busy", None).to_string()).unwrap();
        fs::set_permissions(&file, is(0o600)).unwrap();
        assert!(look().unwrap().is_some());
        fs::set_permissions(&file, is(0o622)).unwrap();
        assert!(is_untrusted());
        fs::set_permissions(&file, is(0o600)).unwrap();
        fs::set_permissions(folder.path(), is(0o777)).unwrap();
        assert!(is_untrusted());
        fs::set_permissions(folder.path(), is(0o700)).unwrap();
        fs::write(&file, " ".repeat(64 * 1024) + &entry("busy", None).to_string()).unwrap();
        assert!(look().is_err(), "it is too long");
        for text in ["{".to_owned(), json!({ "pid": 28390, "sessionId": "s" }).to_string()] {
            fs::write(&file, &text).unwrap();
            assert_eq!(look(), Err(RecordFault::Form), "{text}");
        }
    }

    #[test]
    fn texts_that_were_queued_and_read_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.jsonl");
        let before =
            json!({ "type": "user", "message": { "content": "mark 1." } }).to_string() + "\n";
        let write = |entries: &[Value]| {
            let lines: Vec<_> = entries.iter().map(|entry| format!("{entry}\n")).collect();
            fs::write(&path, before.clone() + &lines.concat()).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let end = format!("{}:{}", before.len(), path.display());
        let marks = [(1, "mark 1.".to_owned()), (2, "mark 2.".to_owned())];
        let shown = || shown_since(&end, &marks);
        let queue = |operation: &str, content: Option<&str>| {
            let entry = json!({ "type": "queue-operation", "operation": operation });
            let mut entry = entry.as_object().cloned().unwrap();
            entry.extend(content.map(|text| ("content".to_owned(), json!(text))));
            Value::Object(entry)
        };
        let user = |text: &str| json!({ "type": "user", "message": { "content": text } });
        let absorbed =
            json!({ "type": "attachment", "origin": { "kind": "peer", "body": "mark 2." } });
        let says = json!({ "type": "assistant", "message": { "content": "I saw mark 1." } });
        let named = || queue("enqueue", Some("mark 1."));
        let (nameless, taken) = (|| queue("enqueue", None), || queue("dequeue", None));
        let both = || vec![named(), queue("enqueue", Some("mark 2."))];
        let and = |mut entries: Vec<Value>, more: Value| {
            entries.push(more);
            entries
        };
        for (entries, read, waiting, begun) in [
            (vec![], vec![], vec![], vec![]),
            (vec![says], vec![], vec![], vec![]),
            (vec![named()], vec![], vec![1], vec![]),
            (vec![named(), user("mark 1.")], vec![1], vec![], vec![]),
            (vec![named(), taken()], vec![], vec![], vec![1]),
            (vec![named(), taken(), user("mark 1.")], vec![1], vec![], vec![]),
            (and(both(), taken()), vec![], vec![2], vec![1]),
            (and(both(), queue("remove", Some("mark 2."))), vec![2], vec![1], vec![]),
            (and(both(), queue("dequeue", Some("mark 2."))), vec![], vec![1], vec![2]),
            (vec![taken(), named()], vec![], vec![1], vec![]),
            (vec![nameless()], vec![], vec![1, 2], vec![]),
            (vec![nameless(), taken()], vec![], vec![], vec![1, 2]),
            (vec![nameless(), queue("remove", None), absorbed], vec![2], vec![], vec![1]),
        ] {
            write(&entries);
            assert_eq!(shown(), Some(Shown { read, waiting, begun }), "{entries:?}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(shown(), None, "others can write it");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(shown(), None, "it is another file by now");
    }

    #[test]
    fn the_last_refusal_of_a_transcript_says_when_the_limit_ends() {
        const AT: i64 = 1_795_519_683;
        let now = Timestamp::from_millis((AT - 600) * 1000);
        let line = |resets: i64| {
            let info =
                json!({ "status": "rejected", "resetsAt": resets, "rateLimitType": "five_hour" });
            json!({
                "type": "assistant", "error": "rate_limit", "isApiErrorMessage": true,
                "apiErrorStatus": 429, "apiError": "usage_limit_reached",
                "apiErrorParams": { "rate_limit_info": info },
            })
        };
        let quoted = json!({ "type": "user", "message": { "content": line(AT + 60).to_string() } });
        let folder = tempfile::tempdir().unwrap();
        let is = |mode| fs::Permissions::from_mode(mode);
        let project = folder.path().join("-home-user-work");
        fs::create_dir(&project).unwrap();
        fs::set_permissions(&project, is(0o700)).unwrap();
        let file = project.join("s-1.jsonl");
        assert_eq!(limit_end_in(folder.path(), "s-1", now), None, "there is none");
        for (lines, expected) in [
            (vec![line(AT)], Some(AT)),
            (vec![line(AT - 60), line(AT), quoted], Some(AT)),
            (vec![line(AT - 600)], None),
            (vec![line(AT + 100 * 24 * 3600)], None),
            (vec![line(i64::MAX)], None),
        ] {
            let text: Vec<_> = lines.iter().map(Value::to_string).collect();
            fs::write(&file, text.join("\n")).unwrap();
            fs::set_permissions(&file, is(0o600)).unwrap();
            let expected = expected.map(|at| Timestamp::from_millis(at * 1000));
            assert_eq!(limit_end_in(folder.path(), "s-1", now), expected, "{text:?}");
        }
        fs::write(&file, line(AT).to_string()).unwrap();
        for session in ["", "../s-1", "-home-user-work/s-1", "s-2"] {
            assert_eq!(limit_end_in(folder.path(), session, now), None, "{session}");
        }
        fs::set_permissions(&file, is(0o666)).unwrap();
        assert_eq!(limit_end_in(folder.path(), "s-1", now), None, "others can write it");
    }
}
