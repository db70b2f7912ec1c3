//! Claude Code's registry of its sessions: `sessions/<pid>.json` in its folder, one file for each
//! process, with the state of its session. Hooks miss some states: none is called when a person
//! says No at a dialog, or presses Esc.
//!
//! A file counts if it and its folder are this user's and nobody else can write them, and if it
//! names the process and the session in question. The same holds of what a link on the way leads
//! to, and of the link's folder.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use svc_model::hook::one_line;
use svc_model::{ClientRecord, ProcessIdentity, RecordedState, Timestamp, WaitingKind};

use super::{record_fault::RecordFault, record_file};
use crate::private_file;

/// How often a file is read that is no whole entry, and the pause in between.
const READS: u32 = 3;
const WRITING: Duration = Duration::from_millis(4);
/// Largest file of the registry, in bytes. A real one has about a thousand.
const MOST_BYTES: u64 = 64 * 1024;
/// Characters of what a dialog waits for.
const ASKS_CHARS: usize = 200;

/// A session in Claude Code's registry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaudeSession {
    pid: u32,
    session_id: String,
    proc_start: Value,
    /// `interactive` where a person is at its terminal.
    #[serde(default)]
    pub kind: Option<String>,
    /// As the client gives it: three numbers.
    #[serde(default)]
    pub version: Option<String>,
    /// `idle`, `busy` or `waiting`, or a word of a later version.
    #[serde(default)]
    pub status: Option<String>,
    /// What a person is asked, in words.
    #[serde(default)]
    pub waiting_for: Option<String>,
    /// Since when it has its status, in milliseconds.
    #[serde(default)]
    pub status_updated_at: Option<i64>,
    /// Where it takes messages. Who listens there is to be checked.
    #[serde(default, rename = "messagingSocketPath")]
    pub inbox: Option<PathBuf>,
}

impl ClaudeSession {
    /// The entry of a session that runs in this process; `None` if there is none that counts.
    pub fn read(process: &ProcessIdentity, session_id: &str) -> Option<Self> {
        Self::look(process, session_id).ok().flatten()
    }

    /// The same; an error if a file is there that does not count.
    pub(super) fn look(
        process: &ProcessIdentity,
        session_id: &str,
    ) -> Result<Option<Self>, RecordFault> {
        match folder_of(process.pid) {
            Some(folder) => Self::look_in(&folder.join("sessions"), process, session_id),
            None => Ok(None),
        }
    }

    fn look_in(
        folder: &Path,
        process: &ProcessIdentity,
        session_id: &str,
    ) -> Result<Option<Self>, RecordFault> {
        let file = folder.join(format!("{}.json", process.pid));
        for _ in 0..READS {
            let text = match private_file::read_own(&file, MOST_BYTES) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(RecordFault::Untrusted(error.to_string())),
            };
            if let Ok(entry) = serde_json::from_str::<Self>(&text) {
                return Ok(entry.is_of(process, session_id).then_some(entry));
            }
            // Its client may be writing it.
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

    /// Its state and since when; `None` of a later version's word.
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

pub(super) fn folder_of(pid: u32) -> Option<PathBuf> {
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
}
