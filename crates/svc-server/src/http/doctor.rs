//! `svc doctor` as the page and the daemon's callers run it.

use std::{ffi::OsString, path::PathBuf, process::Stdio};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::Finding;
use svc_sys::config::{Origin, StoreSettings};
use tokio::{process::Command, sync::Mutex};

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
        let output = Command::new(&self.program)
            .args(["doctor", "--json"])
            .envs(self.home.as_ref().map(|home| ("SVC_HOME", home)))
            .envs(self.store.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        serde_json::from_slice(&output.stdout).map_err(std::io::Error::from)
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
    checks: Vec<Finding>,
}
