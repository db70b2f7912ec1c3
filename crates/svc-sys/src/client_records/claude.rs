//! Claude Code's registry of its sessions: `sessions/<pid>.json` in its folder, one file for each
//! process, with the state of its session. Hooks miss some states: none is called when a person
//! says No at a dialog, or presses Esc.
//!
//! A file counts if it and its folder are this user's and nobody else can write them, and if it
//! names the process and the session in question.

use std::path::{Path, PathBuf};

use serde_json::Value;
use svc_model::{ClientRecord, ProcessIdentity, RecordedState, Timestamp, WaitingKind};

use super::record_file;
use crate::private_file;

pub(super) fn read(process: &ProcessIdentity, session_id: &str) -> Option<ClientRecord> {
    let folder = folder_of(process.pid)?.join("sessions");
    read_in(&folder, process, session_id)
}

pub(super) fn is_interactive(process: &ProcessIdentity, session_id: &str) -> bool {
    let Some(folder) = folder_of(process.pid) else { return false };
    let entry = entry_in(&folder.join("sessions"), process);
    entry.is_some_and(|entry| {
        is_entry_of(&entry, process, session_id) && entry["kind"] == "interactive"
    })
}

fn read_in(folder: &Path, process: &ProcessIdentity, session_id: &str) -> Option<ClientRecord> {
    parse(&entry_in(folder, process)?, process, session_id)
}

/// The file of a process, if only this user can write it.
fn entry_in(folder: &Path, process: &ProcessIdentity) -> Option<Value> {
    private_file::check_folder(folder).ok()?;
    let file = folder.join(format!("{}.json", process.pid));
    let text = private_file::read_settings(&file).ok()??;
    serde_json::from_str(&text).ok()
}

fn is_entry_of(record: &Value, process: &ProcessIdentity, session_id: &str) -> bool {
    let word = |name: &str| match &record[name] {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let started = process.started.split('@').next();
    record["pid"].as_u64() == Some(process.pid.into())
        && word("procStart").as_deref() == started
        && record["sessionId"] == session_id
}

fn parse(record: &Value, process: &ProcessIdentity, session_id: &str) -> Option<ClientRecord> {
    if !is_entry_of(record, process, session_id) {
        return None;
    }
    let asked = record["waitingFor"].as_str().unwrap_or_default();
    let state = match record["status"].as_str()? {
        "busy" => RecordedState::Busy,
        "idle" => RecordedState::Idle,
        "waiting" if asked.contains("permission") => {
            RecordedState::Waiting(WaitingKind::Permission)
        }
        "waiting" => RecordedState::Waiting(WaitingKind::Question),
        _ => return None,
    };
    let at = record["statusUpdatedAt"].as_i64()?;
    Some(ClientRecord { state, at: Timestamp::from_millis(at), failure: None })
}

fn folder_of(pid: u32) -> Option<PathBuf> {
    record_file::folder(pid, "CLAUDE_CONFIG_DIR")
        .or_else(|| Some(record_file::folder(pid, "HOME")?.join(".claude")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    fn process() -> ProcessIdentity {
        ProcessIdentity { pid: 28390, started: "879828@boot".to_owned() }
    }

    fn record(status: &str, waiting_for: Option<&str>) -> Value {
        json!({
            "pid": 28390, "sessionId": "s", "procStart": "879828", "version": "2.1.330", "kind": "interactive",
            "status": status, "waitingFor": waiting_for, "statusUpdatedAt": 1_795_520_209_280_u64,
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
            let read = parse(&record(status, waiting_for), &process(), "s");
            assert_eq!(read, Some(ClientRecord { state, at, failure: None }));
        }
        assert_eq!(parse(&record("of a later version", None), &process(), "s"), None);
        assert_eq!(parse(&record("idle", None), &process(), "another"), None);
        let another = ProcessIdentity { started: "879829@boot".to_owned(), ..process() };
        assert_eq!(parse(&record("idle", None), &another, "s"), None, "it had the same id");
    }

    #[test]
    fn record_that_others_can_write_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let file = folder.path().join("28390.json");
        assert_eq!(read_in(folder.path(), &process(), "s"), None, "there is none");
        fs::write(&file, record("busy", None).to_string()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(read_in(folder.path(), &process(), "s").is_some());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(read_in(folder.path(), &process(), "s"), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(read_in(folder.path(), &process(), "s"), None);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(&file, "{").unwrap();
        assert_eq!(read_in(folder.path(), &process(), "s"), None);
    }
}
