//! `/v1/doctor`: what `svc doctor` finds, for those who have no terminal at hand.

use std::{path::PathBuf, process::Stdio, time::Duration};

use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncReadExt as _, process::Command, sync::Mutex, time::timeout};

use super::{App, Code, Problem, api::Api, body::Json, openapi::Operation};
use crate::domain::Caller;

/// A check that has not ended within this time is given up.
const WITHIN: Duration = Duration::from_secs(30);
/// Longest answer, in bytes.
const ANSWER_BYTES: u64 = 1024 * 1024;

pub(super) fn routes(api: Api) -> Api {
    let on_doctor = Operation::new("What is wrong with this installation (operator)");
    api.get("/v1/doctor", on_doctor.answer::<DoctorReport>(200, "What each check found"), examine)
}

/// Runs `svc doctor`. It looks from outside, also at this daemon, so it is a process of its own.
#[derive(Debug)]
pub struct Doctor {
    program: PathBuf,
    home: Option<PathBuf>,
    /// One runs at a time: who asks meanwhile waits.
    turn: Mutex<()>,
}

impl Doctor {
    /// By this program, for this data folder, if it is not the one that the environment says.
    pub fn new(program: PathBuf, home: Option<PathBuf>) -> Self {
        Self { program, home, turn: Mutex::new(()) }
    }

    async fn run(&self) -> std::io::Result<DoctorReport> {
        let _turn = self.turn.lock().await;
        let mut child = Command::new(&self.program)
            .args(["doctor", "--json"])
            .envs(self.home.as_ref().map(|home| ("SVC_HOME", home)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut answer = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(ANSWER_BYTES).read_to_end(&mut answer).await?;
        }
        child.wait().await?;
        serde_json::from_slice(&answer).map_err(std::io::Error::from)
    }
}

/// What the checks found.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct DoctorReport {
    /// Whether none failed.
    ok: bool,
    /// One for each.
    checks: Vec<DoctorFinding>,
}

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

async fn examine(State(app): State<App>, caller: Caller) -> Result<Json<DoctorReport>, Problem> {
    if !caller.is_operator() {
        return Err(Problem::new(Code::Forbidden, "the installation is the operator's"));
    }
    let doctor = app.doctor.as_ref();
    let doctor = doctor.ok_or_else(|| Problem::new(Code::NotFound, "there is no svc doctor"))?;
    let failed = |error: &dyn std::fmt::Display| {
        Problem::new(Code::Unavailable, format!("svc doctor gave no answer: {error}"))
    };
    match timeout(WITHIN, doctor.run()).await {
        Ok(findings) => findings.map(Json).map_err(|error| failed(&error)),
        Err(late) => Err(failed(&late)),
    }
}
