//! `svc doctor` for `GET /v1/doctor`.

use std::{ffi::OsString, path::PathBuf, process::Stdio};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_sys::config::{Origin, StoreSettings};
use tokio::{io::AsyncReadExt as _, process::Command, sync::Mutex};

const DOCTOR_BYTES: u64 = 1024 * 1024;

/// Runs `svc doctor` as a process of its own, which checks this daemon from outside.
#[derive(Debug)]
pub struct Doctor {
    program: PathBuf,
    home: Option<PathBuf>,
    /// Variables for what flags of this daemon said of its database.
    store: Vec<(&'static str, OsString)>,
    /// One run at a time; concurrent requests wait.
    turn: Mutex<()>,
}

impl Doctor {
    /// `home` is the data folder, if it differs from the environment's.
    pub fn new(program: PathBuf, home: Option<PathBuf>, store: &StoreSettings) -> Self {
        Self { program, home, store: variables(store), turn: Mutex::new(()) }
    }

    /// Runs the checks. Fails if the program prints no report.
    pub(super) async fn run(&self) -> std::io::Result<DoctorReport> {
        let _turn = self.turn.lock().await;
        let mut child = Command::new(&self.program)
            .args(["doctor", "--json"])
            .envs(self.home.as_ref().map(|home| ("SVC_HOME", home)))
            .envs(self.store.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut answer = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(DOCTOR_BYTES).read_to_end(&mut answer).await?;
        }
        child.wait().await?;
        serde_json::from_slice(&answer).map_err(std::io::Error::from)
    }
}

fn variables(store: &StoreSettings) -> Vec<(&'static str, OsString)> {
    let of_flag =
        |origin: Origin, value: Option<OsString>| value.filter(|_| origin == Origin::Flag);
    // An address in a flag has no password.
    let url = store.url.value.as_ref().map(|url| url.shown().into());
    let file = store.password_file.value.clone().map(PathBuf::into_os_string);
    let schema = Some(store.schema.value.clone().into());
    let variables = [
        ("SVC_STORE_URL", of_flag(store.url.origin, url)),
        ("SVC_STORE_PASSWORD_FILE", of_flag(store.password_file.origin, file)),
        ("SVC_STORE_SCHEMA", of_flag(store.schema.origin, schema)),
    ];
    variables.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// What the checks found.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(super) struct DoctorReport {
    /// Whether none failed.
    ok: bool,
    /// One for each.
    checks: Vec<DoctorFinding>,
}

/// What one check found.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct DoctorFinding {
    /// What was looked at.
    check: String,
    /// `ok`, `warn` or `fail`.
    level: String,
    /// What was found.
    detail: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}
