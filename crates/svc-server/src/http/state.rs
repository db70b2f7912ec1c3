//! What handlers share: services, tools, metrics of requests, the process that runs `svc doctor`;
//! and the extractors for this state and for a request's caller.

use std::{
    convert::Infallible, ops::Deref, path::PathBuf, process::Stdio, sync::Arc, time::Duration,
};

use axum::extract::FromRequestParts;
use http::{Method, StatusCode, request::Parts as RequestHead};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::{service::Services, tools::Catalogue};
use svc_model::{Caller, Timestamp};
use svc_sources::SourceManager;
use tokio::{io::AsyncReadExt as _, process::Command, sync::Mutex};
use tokio_util::sync::CancellationToken;

use super::{Code, Problem};
use crate::web::KeepAlive;

pub(super) const PREFIX: &str = "svc";
const DOCTOR_BYTES: u64 = 1024 * 1024;

/// The state that handlers share. Each request clones it several times.
#[derive(Debug, Clone)]
pub struct App(Arc<AppState>);

#[derive(Debug)]
pub struct AppState {
    pub services: Services,
    pub tools: Arc<Catalogue>,
    /// Child MCP servers; `None` if there are none.
    pub sources: Option<SourceManager>,
    /// Runs `svc doctor`; `None` if the program does not exist.
    pub doctor: Option<Doctor>,
    pub metrics: Metrics,
    pub identity: Identity,
    /// Timer for the comments of idle streams.
    pub keep_alive: KeepAlive,
    pub stop: CancellationToken,
}

#[derive(Debug)]
pub struct Identity {
    /// Changes with each start.
    pub boot_id: String,
    pub pid: u32,
    pub started_at: Timestamp,
}

impl App {
    pub fn new(parts: AppState) -> Self {
        Self(Arc::new(parts))
    }
}

impl Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

impl FromRequestParts<App> for App {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut RequestHead, app: &App) -> Result<Self, Infallible> {
        Ok(app.clone())
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut RequestHead, _: &App) -> Result<Self, Problem> {
        // The edge adds the extension for every route that needs a token.
        let caller = head.extensions.get::<Self>().cloned();
        caller.ok_or_else(|| Problem::new(Code::Unauthorized, "a valid token is needed"))
    }
}

/// Metrics of requests, in the registry that other adapters share.
#[derive(Debug)]
pub struct Metrics {
    /// For registrations by others, before the first request.
    pub registry: Registry,
    requests: Family<HttpRequestLabels, Counter>,
    seconds: Family<HttpRouteLabels, Histogram, fn() -> Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpRequestLabels {
    method: &'static str,
    route: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpRouteLabels {
    route: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let requests = Family::default();
        let seconds = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register("http_requests", "Requests answered", requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "Time to the head of the answer",
            Unit::Seconds,
            seconds.clone(),
        );
        Self { registry, requests, seconds }
    }
}

fn histogram() -> Histogram {
    Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0])
}

impl Metrics {
    /// Counts a response. `route` is the pattern and not the path.
    pub(super) fn observe(
        &self,
        method: &Method,
        route: &'static str,
        status: StatusCode,
        elapsed: Duration,
    ) {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let status = status.as_u16();
        self.requests.get_or_create(&HttpRequestLabels { method, route, status }).inc();
        self.seconds.get_or_create(&HttpRouteLabels { route }).observe(elapsed.as_secs_f64());
    }
}

/// Runs `svc doctor` as a process of its own, which checks this daemon from outside.
#[derive(Debug)]
pub struct Doctor {
    program: PathBuf,
    home: Option<PathBuf>,
    /// One run at a time; concurrent requests wait.
    turn: Mutex<()>,
}

impl Doctor {
    /// `home` is the data folder, if it is not the one that the environment gives.
    pub fn new(program: PathBuf, home: Option<PathBuf>) -> Self {
        Self { program, home, turn: Mutex::new(()) }
    }

    /// Runs the checks. Fails if the program prints no report.
    pub(super) async fn run(&self) -> std::io::Result<DoctorReport> {
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
            stdout.take(DOCTOR_BYTES).read_to_end(&mut answer).await?;
        }
        child.wait().await?;
        serde_json::from_slice(&answer).map_err(std::io::Error::from)
    }
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
