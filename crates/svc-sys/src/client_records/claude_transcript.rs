//! Claude Code's record of a conversation: `projects/<folder>/<session>.jsonl` in its folder, one
//! line of JSON for each entry. What it was sent is there when it is queued, and when it is read.
//!
//! A file counts if it is this user's and nobody else can write it.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;
use svc_model::{ProcessIdentity, Timestamp, limits};

use super::claude::folder_of;
use super::record_file;
use crate::private_file;

/// Bytes of entries that are looked through.
const MOST_BYTES: u64 = 256 << 20;

/// What a conversation has of texts that were sent to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown<T> {
    /// The model has read these.
    pub read: Vec<T>,
    /// These wait in the client's queue.
    pub waiting: Vec<T>,
    /// The client has taken these from its queue, and their prompt is not on record. It is written
    /// after its hooks are done.
    pub begun: Vec<T>,
}

/// The end of a session's record, in words that [`shown_since`] understands. `None` if there is no
/// such record yet, or none that counts.
pub fn end_of(process: &ProcessIdentity, session: &str) -> Option<String> {
    let path = file_of(&folder_of(process.pid)?.join("projects"), session)?;
    let end = record_file::open(&path)?.metadata().ok()?.len();
    Some(format!("{end}:{}", path.to_str()?))
}

/// The beginning of a session's record, as [`end_of`] gives its end.
pub fn beginning_of(process: &ProcessIdentity, session: &str) -> Option<String> {
    let path = file_of(&folder_of(process.pid)?.join("projects"), session)?;
    Some(format!("0:{}", path.to_str()?))
}

/// What a record has since `end` of the texts with these marks. `None` if it cannot be read as a
/// whole.
pub fn shown_since<T: Clone>(end: &str, marks: &[(T, String)]) -> Option<Shown<T>> {
    let (offset, path) = end.split_once(':')?;
    let mut file = record_file::open(Path::new(path))?;
    let (offset, length) = (offset.parse().ok()?, file.metadata().ok()?.len());
    if length < offset || length - offset > MOST_BYTES {
        return None;
    }
    file.seek(SeekFrom::Start(offset)).ok()?;
    let mut read = vec![false; marks.len()];
    let (mut was_queued, mut was_taken) = (vec![false; marks.len()], false);
    // What is queued since `end`, the first one first. Some versions write no text into the entries
    // of their queue.
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
            // The prompt follows when its hooks are done.
            Some(Some("dequeue")) => continue,
            // What a model says of a text is no sign that the text came.
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
        let id = id.clone();
        match (is_read, waits(mark), was_queued) {
            (true, ..) => shown.read.push(id),
            (false, true, _) => shown.waiting.push(id),
            (false, false, was_queued) if was_queued || was_taken => shown.begun.push(id),
            (false, false, _) => {}
        }
    }
    Some(shown)
}

/// Takes out of a queue what leaves it: the text that is named, else the first. Returns whether
/// that is one whose text is not known.
fn leave(queue: &mut VecDeque<Option<String>>, content: Option<&str>) -> bool {
    let named = content.and_then(|text| queue.iter().position(|it| it.as_deref() == Some(text)));
    queue.remove(named.unwrap_or_default()).is_some_and(|text| text.is_none())
}

/// The end of the limit that the last refusal in the session's transcript names.
pub(super) fn limit_end(
    process: &ProcessIdentity,
    session_id: &str,
    now: Timestamp,
) -> Option<Timestamp> {
    limit_end_in(&folder_of(process.pid)?.join("projects"), session_id, now)
}

fn limit_end_in(projects: &Path, session_id: &str, now: Timestamp) -> Option<Timestamp> {
    let transcript = file_of(projects, session_id)?;
    let tail = record_file::tail_of(record_file::open(&transcript)?)?;
    let refusal = tail.lines().rev().find(|line| line.contains(r#""rate_limit_info""#))?;
    let entry: Value = serde_json::from_str(refusal).ok()?;
    let info = &entry["apiErrorParams"]["rate_limit_info"];
    let resets = info["resetsAt"].as_i64().filter(|_| entry["isApiErrorMessage"] == true)?;
    let end = Timestamp::from_millis(resets.checked_mul(1000)?);
    (now < end && end <= now.plus(limits::LIMIT_LASTS)).then_some(end)
}

/// The session's file, if nobody else can write its folder. The session's id is compared with
/// names, and never becomes part of a path.
pub(super) fn file_of(projects: &Path, session: &str) -> Option<PathBuf> {
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
