//! Claude Code's record of a conversation: `projects/<folder>/<session>.jsonl` in its folder, one
//! line of JSON for each entry. What it was sent is there when it is queued, and when it is read.
//!
//! A file counts if it is this user's and nobody else can write it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;
use svc_model::ProcessIdentity;

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
    let mut seen = vec![(false, false); marks.len()];
    // Entries of a version that does not say what it queued.
    let mut nameless = 0_i32;
    for line in BufReader::new(file.take(length - offset)).split(b'\n') {
        let line = line.ok()?;
        let line = String::from_utf8_lossy(&line);
        let entry: Value = serde_json::from_str(&line).unwrap_or_default();
        let operation = (entry["type"] == "queue-operation").then(|| entry["operation"].as_str());
        let is_queued = operation == Some(Some("enqueue"));
        if operation.is_some() && entry["content"].is_null() {
            nameless += if is_queued { 1 } else { -1 };
        }
        // What a model says of a text is no sign that the text came.
        if entry["type"] == "assistant" {
            continue;
        }
        for ((_, mark), seen) in marks.iter().zip(&mut seen) {
            if line.contains(mark.as_str()) {
                let which = if is_queued { &mut seen.1 } else { &mut seen.0 };
                *which = true;
            }
        }
    }
    let chosen = |is: &dyn Fn(&(bool, bool)) -> bool| {
        let found = marks.iter().zip(&seen).filter(|(_, seen)| is(seen));
        found.map(|((id, _), _)| id.clone()).collect()
    };
    let waits = nameless > 0;
    Some(Shown {
        read: chosen(&|seen| seen.0),
        waiting: chosen(&|seen| !seen.0 && (seen.1 || waits)),
    })
}

/// The session's file, if nobody else can write its folder. The session's id is compared with names,
/// and never becomes part of a path.
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
        for (entries, read, waiting) in [
            (vec![], vec![], vec![]),
            (vec![says], vec![], vec![]),
            (vec![queue("enqueue", Some("mark 1."))], vec![], vec![1]),
            (vec![queue("enqueue", Some("mark 1.")), user("mark 1.")], vec![1], vec![]),
            (vec![queue("enqueue", None)], vec![], vec![1, 2]),
            (vec![queue("enqueue", None), queue("dequeue", None)], vec![], vec![]),
            (vec![queue("enqueue", None), queue("remove", None), absorbed], vec![2], vec![]),
        ] {
            write(&entries);
            assert_eq!(shown(), Some(Shown { read, waiting }), "{entries:?}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(shown(), None, "others can write it");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(shown(), None, "it is another file by now");
    }
}
