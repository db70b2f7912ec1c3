//! `svc start`, `stop`, `restart`, `status`, `logs` and `health`: the daemon as a process.
//!
//! All of them use the socket in the data folder. `daemon.json` is for people. A pid alone proves
//! nothing, since the system reuses pids: only the kernel says who is at the other end of the
//! socket.

mod logs;
mod start;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use svc_client::{Client, ClientError, DaemonFile, DaemonTarget, Endpoint, Url};
use svc_server::daemon;
use svc_store::DatabaseLock;
use tokio::time::{Instant, sleep};

use super::output::{self, Screen};
use super::{Context, ExitResult};

pub(super) use logs::{LogsArgs, logs};
pub(super) use start::{
    agents_that_go_on, ensure_apart, restart, start, start_unattended, stop, stop_running,
};

/// Deadline for `/health`, which reads nothing but memory.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Poll interval for a daemon that starts or ends, as it sends no notice.
const POLL: Duration = Duration::from_millis(20);
/// How long the socket of a killed daemon may last: it accepts a connection and then breaks it.
const DYING: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(super) struct HealthAnswer {
    /// 200 when healthy, 503 while starting or draining, and while the database is away.
    pub(super) status: StatusCode,
    /// The body; empty if it does not parse.
    pub(super) document: HealthDocument,
    /// The process that responded, if the kernel says it: on the socket only.
    pub(super) pid: Option<i32>,
}

/// The part of the body of `/health` that needs no token.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct HealthDocument {
    status: String,
    reason: String,
    pub(super) server: String,
    pub(super) version: String,
    pub(super) boot_id: String,
    pub(super) pid: Option<i32>,
    pub(super) started_at: Option<String>,
}

#[expect(clippy::large_enum_variant, reason = "a command makes one or two")]
pub(super) enum DaemonProbe {
    /// Nobody listens on the socket, and nobody holds the database.
    Absent,
    Running(DaemonFile, HealthAnswer),
    /// A process listens on the socket or holds the database, and takes no requests.
    Unready {
        pid: Option<i32>,
        /// A sentence for the person.
        problem: String,
        /// It starts or ends: also a daemon from which another one took the database, until it
        /// begins anew.
        may_pass: bool,
    },
}

impl DaemonProbe {
    fn changing(pid: Option<i32>) -> Self {
        let process = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        let problem = format!(
            "svc{process} starts, ends, or works on the database, and takes no requests; see `svc logs`"
        );
        Self::Unready { pid, problem, may_pass: true }
    }

    fn silent(pid: Option<i32>, problem: String) -> Self {
        let problem = match pid {
            Some(pid) => format!(
                "process {pid} does not answer as the daemon ({problem}); see `svc logs`, and if it hangs, end it with \
                 `kill {pid}`"
            ),
            None => problem,
        };
        Self::Unready { pid, problem, may_pass: false }
    }
}

pub(super) async fn find_daemon(context: &Context) -> DaemonProbe {
    let paths = &context.paths;
    let holder = || daemon::live_file(paths).map(|file| file.pid);
    match probe(Endpoint::Socket(paths.socket.clone())).await {
        Ok(health) if health.document.server == "svc" => {
            let of_this_start = |file: &DaemonFile| file.boot_id == health.document.boot_id;
            let daemon = DaemonFile::read(&paths.daemon_json).filter(of_this_start);
            let mut daemon = daemon.unwrap_or_else(|| health.introduction(context));
            // Only the kernel knows which process is at the other end of the socket.
            daemon.pid = health.pid.unwrap_or(daemon.pid);
            DaemonProbe::Running(daemon, health)
        }
        Ok(health) if health.status == StatusCode::SERVICE_UNAVAILABLE => {
            DaemonProbe::changing(health.pid)
        }
        Ok(health) => DaemonProbe::silent(health.pid, format!("/health answers {}", health.status)),
        Err(ClientError::NotRunning { .. }) if DatabaseLock::is_held(&paths.lock) => {
            DaemonProbe::changing(holder())
        }
        Err(ClientError::NotRunning { .. }) => DaemonProbe::Absent,
        Err(error) => DaemonProbe::silent(holder(), error.to_string()),
    }
}

/// How long a daemon may take to start, to end, or to begin anew inside its process.
const SETTLING: Duration = Duration::from_secs(30);

/// Polls the daemon until it is neither starting nor ending, for [`SETTLING`] at most.
pub(super) async fn find_settled_daemon(context: &Context) -> DaemonProbe {
    let deadline = Instant::now() + SETTLING;
    loop {
        let probe = find_daemon(context).await;
        if !matches!(probe, DaemonProbe::Unready { may_pass: true, .. })
            || Instant::now() >= deadline
        {
            return probe;
        }
        sleep(POLL).await;
    }
}

/// Requests `/health` without a token.
pub(super) async fn probe(endpoint: Endpoint) -> Result<HealthAnswer, ClientError> {
    let end = Instant::now() + DYING;
    let is_socket = matches!(endpoint, Endpoint::Socket(_));
    loop {
        match probe_once(endpoint.clone()).await {
            Err(ClientError::Connection { .. }) if is_socket && Instant::now() < end => {
                sleep(POLL).await;
            }
            answer => return answer,
        }
    }
}

async fn probe_once(endpoint: Endpoint) -> Result<HealthAnswer, ClientError> {
    let shown = endpoint.to_string();
    let client = Client::new(DaemonTarget::without_token(endpoint));
    let reply = tokio::time::timeout(TIMEOUT, client.exchange(Method::GET, "/health", None))
        .await
        .map_err(|_| ClientError::Timeout { url: shown, seconds: TIMEOUT.as_secs() })??;
    let document = reply.json().unwrap_or_default();
    Ok(HealthAnswer { status: reply.status, document, pid: client.pid() })
}

impl HealthAnswer {
    pub(super) fn is_healthy(&self) -> bool {
        self.status == StatusCode::OK
    }

    /// Whether another daemon has taken the database from this one.
    pub(super) fn is_fenced(&self) -> bool {
        self.document.reason == "fenced"
    }

    /// What is wrong if the daemon runs without its database.
    pub(super) fn trouble(&self) -> Option<&'static str> {
        if self.document.status != "degraded" {
            return None;
        }
        Some(match self.document.reason.as_str() {
            "fenced" => {
                "another daemon has taken the database; this one takes no writes, and starts anew \
                 by itself as soon as no other runs on it"
            }
            "read_only" => {
                "the server of the database takes no writes; the daemon tries again by itself"
            }
            _ => "the server of the database does not answer; the daemon tries again by itself",
        })
    }

    /// The content of `daemon.json` from the response: the file may be missing, or be that of an
    /// earlier start.
    fn introduction(&self, context: &Context) -> DaemonFile {
        let document = &self.document;
        DaemonFile {
            pid: document.pid.or(self.pid).unwrap_or_default(),
            url: Endpoint::Socket(context.paths.socket.clone()).to_string(),
            version: document.version.clone(),
            boot_id: document.boot_id.clone(),
            started_at: document.started_at.clone().unwrap_or_default(),
            db: None,
        }
    }
}

pub(super) async fn status(context: &Context) -> ExitResult {
    let discovery = context.discovery()?;
    let target = discovery.target()?;
    let found = match discovery.fixed() {
        Some(url) => match probe(target.endpoint.clone()).await {
            Ok(health) if health.document.server == "svc" => {
                let daemon = DaemonFile { url: url.to_string(), ..health.introduction(context) };
                DaemonProbe::Running(daemon, health)
            }
            Ok(_) => DaemonProbe::silent(None, format!("the program at {url} is not svc")),
            Err(error) => DaemonProbe::silent(None, error.to_string()),
        },
        None => find_daemon(context).await,
    };
    let (mut report, trouble) = match found {
        DaemonProbe::Running(daemon, health) => {
            let trouble = health.trouble().map(str::to_owned);
            let mut report = describe(target, daemon.url, &health).await;
            // Without its database the daemon does not answer which it is.
            if let Some(db) = daemon.db {
                report.entry("db").or_insert_with(|| json!(db));
            }
            (report, trouble)
        }
        DaemonProbe::Unready { problem, .. } => (Map::new(), Some(problem)),
        DaemonProbe::Absent => (Map::new(), None),
    };
    let running = !report.is_empty();
    report.insert("running".to_owned(), json!(running));
    if context.json {
        output::json(&report)?;
    } else if running {
        output::block(&words(&context.screen, &Value::Object(report)))?;
    } else {
        output::line("svc is not running; `svc start` starts it")?;
    }
    if let Some(trouble) = trouble {
        output::note(&trouble);
    }
    Ok(if running { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn words(screen: &Screen, report: &Value) -> String {
    let cell = |key| output::visible(&output::cell(report, key));
    let number = |key| report.get(key).and_then(Value::as_u64);
    let mut text = format!("svc {} runs", cell("version"));
    if let Some(seconds) = number("uptime_seconds") {
        let started = screen.now.minus(Duration::from_secs(seconds));
        let since =
            if screen.utc { started.to_string() } else { output::relative(started, screen.now) };
        text.extend([", started ", &since]);
    }
    if let Some(pid) = number("pid") {
        text.extend([" (process ", &pid.to_string(), ")"]);
    }
    text.extend(["\n  address:  ", &cell("url"), "\n"]);
    if report.get("db").is_some() {
        text.extend(["  database: ", &cell("db")]);
        if let Some(events) = number("tail") {
            let unit = if events == 1 { " event" } else { " events" };
            text.extend([", ", &events.to_string(), unit]);
        }
        text.push('\n');
    }
    if let Some(name) = report.pointer("/machine/name").and_then(Value::as_str) {
        text.extend(["  machine:  ", &output::visible(name), "\n"]);
    }
    text
}

pub(super) async fn health(context: &Context) -> ExitResult {
    let target = context.discovery()?.target()?;
    let result = probe(target.endpoint.clone()).await;
    let healthy = result.as_ref().is_ok_and(HealthAnswer::is_healthy);
    let text = match &result {
        Ok(health) if healthy => {
            format!("healthy: svc {} at {}", health.document.version, target.endpoint)
        }
        Ok(health) => match health.trouble() {
            Some(trouble) => format!("not healthy: {trouble}"),
            None => format!("not healthy: {} answered {}", target.endpoint, health.status),
        },
        Err(error) => error.to_string(),
    };
    if context.json {
        output::json(
            &json!({ "healthy": healthy, "url": target.endpoint.to_string(), "detail": text }),
        )?;
    } else if healthy {
        output::line(&text)?;
    } else {
        output::note(&text);
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The document of `/health`, with the members of `/v1/health` if there is a token.
async fn describe(target: DaemonTarget, url: String, health: &HealthAnswer) -> Map<String, Value> {
    let document = &health.document;
    let mut report = Map::new();
    let mut add = |name: &str, value: Value| drop(report.insert(name.to_owned(), value));
    add("url", json!(url));
    add("version", json!(document.version));
    add("pid", json!(document.pid));
    add("started_at", json!(document.started_at));
    if let Ok(more) = Client::new(target).get::<Value>("/v1/health").await {
        let store = &more["store"];
        let path = &store["path"];
        add("db", path.clone());
        add("tail", store["head"].clone());
        report.extend(members(&more, &["uptime_seconds", "machine", "daemon_id", "daemons"]));
        let mut shown = members(
            store,
            &[
                "engine",
                "server_version",
                "in_recovery",
                "sync",
                "listen",
                "round_trip_ms",
                "lock_wait_ms_p99",
            ],
        );
        if store["engine"] == "postgres" {
            shown.insert("host".to_owned(), path.clone());
        }
        report.insert("store".to_owned(), shown.into());
    }
    report.retain(|_, value| !value.is_null());
    report
}

/// Those of the members that are there.
fn members(document: &Value, names: &[&str]) -> Map<String, Value> {
    let known = names.iter().filter_map(|name| Some((*name, document.get(*name)?)));
    known.map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

/// The URL that was given, or the one that the running daemon wrote to `daemon.json`.
pub(super) async fn daemon_url(context: &Context) -> Result<String> {
    if let Some(url) = context.discovery()?.fixed() {
        return Ok(url.to_string());
    }
    match find_daemon(context).await {
        DaemonProbe::Running(daemon, _) if Url::parse(&daemon.url).is_ok() => Ok(daemon.url),
        DaemonProbe::Running(..) => bail!(
            "{} does not say at which URL the daemon listens: name it with --url, or `svc restart`",
            context.paths.daemon_json.display()
        ),
        DaemonProbe::Unready { problem, .. } => bail!("{problem}"),
        DaemonProbe::Absent => {
            let url = context.paths.socket.display().to_string();
            Err(ClientError::NotRunning { url }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_without_its_database_is_in_trouble() {
        let of = |document: Value| HealthAnswer {
            status: StatusCode::SERVICE_UNAVAILABLE,
            document: serde_json::from_value(document).expect("a document"),
            pid: None,
        };
        let trouble = of(json!({ "status": "degraded", "server": "svc" })).trouble();
        assert!(trouble.is_some_and(|text| text.contains("the database does not answer")));
        assert_eq!(of(json!({ "server": "svc" })).trouble(), None);
    }
}
