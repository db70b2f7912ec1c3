//! Claude Code's registry of its sessions, as that writes it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon::Home;
use crate::identity::FakeClient;

pub(crate) struct RegistryFile {
    pub(crate) folder: PathBuf,
    pub(crate) entry: Value,
}

impl RegistryFile {
    /// That of a client with this session; `None` where the system does not show when a process
    /// started.
    pub(crate) fn of_client(home: &Home, client: &FakeClient, session: &str) -> Option<Self> {
        let pid = client.pid();
        let folder = home.user().join(".claude/sessions");
        fs::create_dir_all(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("its mode");
        let entry = json!({
            "pid": pid, "sessionId": session, "procStart": started(pid)?, "kind": "interactive",
        });
        Some(Self { folder, entry })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(format!("{}.json", self.entry["pid"]))
    }

    /// Writes the state of the session, from now on.
    pub(crate) fn write(&mut self, state: &str, asks: Option<&str>) {
        let path = self.path();
        self.write_to(&path, state, asks);
    }

    /// Writes that a state holds since a time, in milliseconds.
    pub(crate) fn write_since(&mut self, since: i64, state: &str, asks: Option<&str>) {
        self.entry["status"] = json!(state);
        self.entry["waitingFor"] = json!(asks);
        self.entry["statusUpdatedAt"] = json!(since);
        self.store(&self.path());
    }

    /// As [`Self::write`], into a file of another name.
    pub(crate) fn write_to(&mut self, path: &Path, state: &str, asks: Option<&str>) {
        let new = self.folder.join("new");
        fs::write(&new, "").expect("a file");
        let now = fs::metadata(&new).and_then(|meta| meta.modified()).expect("a time");
        let now = now.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
        self.entry["status"] = json!(state);
        self.entry["waitingFor"] = json!(asks);
        self.entry["statusUpdatedAt"] = json!(u64::try_from(now).expect("a time"));
        self.store(path);
    }

    fn store(&self, path: &Path) {
        let new = self.folder.join("new");
        fs::write(&new, self.entry.to_string()).expect("a file");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("its mode");
        fs::rename(&new, path).expect("it moves");
    }
}

/// When a process started, in the system's own count.
pub(crate) fn started(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19).map(str::to_owned)
}
