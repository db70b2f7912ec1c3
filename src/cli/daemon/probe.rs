//! Finds the daemon of a data folder.

use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use svc_client::{Client, ClientError, DaemonFile, DaemonTarget, Endpoint, Url};
use svc_server::daemon;
use tokio::time::{Instant, sleep};

use super::super::Context;

/// Deadline for `/health`, which reads nothing but memory.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often a daemon that starts or ends is polled: it sends no notice.
const POLL: Duration = Duration::from_millis(20);
/// How long a daemon that was killed may have its socket: it accepts a connection and breaks it.
const DYING: Duration = Duration::from_secs(1);

/// A response of `/health`.
#[derive(Debug, Clone)]
pub(in crate::cli) struct HealthAnswer {
    /// 200 when healthy, 503 while starting or draining.
    pub(in crate::cli) status: StatusCode,
    /// The body; empty if it does not parse.
    pub(in crate::cli) document: HealthDocument,
    /// The process that responded, if the kernel says it: on the socket only.
    pub(in crate::cli) pid: Option<i32>,
}

/// The part of the body that needs no token.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::cli) struct HealthDocument {
    pub(in crate::cli) server: String,
    pub(in crate::cli) version: String,
    pub(in crate::cli) boot_id: String,
    pub(in crate::cli) pid: Option<i32>,
    pub(in crate::cli) started_at: Option<String>,
}

/// The state of this data folder's daemon.
#[derive(Debug)]
pub(in crate::cli) enum DaemonProbe {
    /// Nobody listens on the socket, and the process in `daemon.json` does not hold the database.
    Absent,
    /// It is ready.
    Running(DaemonFile, HealthAnswer),
    /// It responds on its socket but takes no requests: it starts or ends.
    NotReady(Option<i32>),
    /// A daemon of an earlier version holds the database and responds at its URL with its own pid.
    /// It has no socket, so a command of this version sends it nothing but `/health`.
    WithoutSocket(DaemonFile),
    /// A process exists that does not respond as a daemon.
    Silent {
        /// The process, if it is known.
        pid: Option<i32>,
        /// What is wrong with the response.
        problem: String,
    },
}

pub(in crate::cli) async fn find_daemon(context: &Context) -> DaemonProbe {
    let paths = &context.paths;
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
            DaemonProbe::NotReady(health.pid)
        }
        Ok(health) => DaemonProbe::Silent {
            pid: health.pid,
            problem: format!("/health answers {}", health.status),
        },
        Err(ClientError::NotRunning { .. }) => match daemon::live_file(paths) {
            Some(file) => without_socket(file).await,
            None => DaemonProbe::Absent,
        },
        Err(error) => {
            let pid = daemon::live_file(paths).map(|file| file.pid);
            DaemonProbe::Silent { pid, problem: error.to_string() }
        }
    }
}

/// Polls the daemon until it is neither starting nor ending, for `patience` at most.
pub(in crate::cli) async fn find_settled_daemon(
    context: &Context,
    patience: Duration,
) -> DaemonProbe {
    let deadline = Instant::now() + patience;
    loop {
        let probe = find_daemon(context).await;
        if !matches!(probe, DaemonProbe::NotReady(_)) || Instant::now() >= deadline {
            return probe;
        }
        sleep(POLL).await;
    }
}

/// Handles a `daemon.json` when nobody listens on the socket: its process may hold the database.
async fn without_socket(file: DaemonFile) -> DaemonProbe {
    let answer = match Url::parse(&file.url) {
        Ok(url) => probe(Endpoint::Tcp(url)).await,
        Err(error) => Err(error),
    };
    let silent = |problem| DaemonProbe::Silent { pid: Some(file.pid), problem };
    match answer {
        Ok(health) if health.document.server == "svc" && health.document.pid == Some(file.pid) => {
            DaemonProbe::WithoutSocket(file)
        }
        Ok(_) => silent("something else answers there".to_owned()),
        Err(error) => silent(error.to_string()),
    }
}

/// Requests `/health` without a token.
pub(in crate::cli) async fn probe(endpoint: Endpoint) -> Result<HealthAnswer, ClientError> {
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
    let reply = tokio::time::timeout(PATIENCE, client.exchange(Method::GET, "/health", None))
        .await
        .map_err(|_| ClientError::Timeout { url: shown, seconds: PATIENCE.as_secs() })??;
    let document = reply.json().unwrap_or_default();
    Ok(HealthAnswer { status: reply.status, document, pid: client.pid() })
}

impl HealthAnswer {
    pub(in crate::cli) fn is_healthy(&self) -> bool {
        self.status == StatusCode::OK
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
        }
    }
}

/// The message for a daemon that takes no requests.
pub(in crate::cli) fn not_ready(pid: Option<i32>) -> String {
    let process = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    format!("the daemon{process} starts or ends, and takes no requests; see `svc logs`")
}

/// The message for a daemon that has no socket.
pub(in crate::cli) fn no_socket(daemon: &DaemonFile) -> String {
    format!(
        "the daemon (pid {}, version {}) is of an earlier version and has no socket, so no token is sent to it: `svc restart`",
        daemon.pid, daemon.version
    )
}
