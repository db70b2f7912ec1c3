//! Looks for the daemon of a data folder.

use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;
use svc_client::{Client, ClientError, DaemonFile, DaemonTarget, Endpoint, Url};
use svc_server::daemon;
use tokio::time::{Instant, sleep};

use super::super::Context;

/// How long `/health` may take: it reads nothing but memory.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often a daemon that starts or ends is looked for. It gives no notice.
const POLL: Duration = Duration::from_millis(20);

/// An answer of `/health`.
#[derive(Debug, Clone)]
pub(in crate::cli) struct HealthAnswer {
    /// Its HTTP status: 200 when healthy, 503 while starting or draining.
    pub(in crate::cli) status: StatusCode,
    /// The body; empty if it is no such document.
    pub(in crate::cli) document: HealthDocument,
    /// The process that answered, where the kernel says it: on the socket.
    pub(in crate::cli) pid: Option<i32>,
}

/// The part of the body that anyone may read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::cli) struct HealthDocument {
    pub(in crate::cli) server: String,
    pub(in crate::cli) version: String,
    pub(in crate::cli) boot_id: String,
    pub(in crate::cli) pid: Option<i32>,
    pub(in crate::cli) started_at: Option<String>,
}

/// The daemon of this data folder.
#[derive(Debug)]
pub(in crate::cli) enum DaemonProbe {
    /// There is none: nobody listens on the socket, and the process in `daemon.json` does not hold
    /// the database.
    Absent,
    /// It answers on its socket.
    Running(DaemonFile, HealthAnswer),
    /// It answers on its socket that it takes no requests: it starts or ends.
    NotReady(Option<i32>),
    /// A daemon of an earlier version holds the database and answers at its URL, under its own pid.
    /// It has no socket, so no command of this version sends it anything but `/health`.
    WithoutSocket(DaemonFile),
    /// A process is there that does not answer as it should.
    Silent {
        /// The process, if it is known.
        pid: Option<i32>,
        /// What it does instead.
        problem: String,
    },
}

/// Looks for the daemon of this data folder.
pub(in crate::cli) async fn find_daemon(context: &Context) -> DaemonProbe {
    let paths = &context.paths;
    match probe(Endpoint::Socket(paths.socket.clone())).await {
        Ok(health) if health.document.server == "svc" => {
            let of_this_start = |file: &DaemonFile| file.boot_id == health.document.boot_id;
            let daemon = DaemonFile::read(&paths.daemon_json).filter(of_this_start);
            let mut daemon = daemon.unwrap_or_else(|| health.introduction(context));
            // Who is at the other end of the socket is known by the kernel alone.
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

/// Looks for the daemon until it is neither starting nor ending, for `patience` at most.
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

/// What becomes of a `daemon.json` whose process holds the database, where nobody listens on the
/// socket.
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

/// Requests `/health`, without a token.
pub(in crate::cli) async fn probe(endpoint: Endpoint) -> Result<HealthAnswer, ClientError> {
    let shown = endpoint.to_string();
    let client = Client::new(DaemonTarget::without_token(endpoint));
    let reply = tokio::time::timeout(PATIENCE, client.exchange(Method::GET, "/health", None))
        .await
        .map_err(|_| ClientError::Timeout { url: shown, seconds: PATIENCE.as_secs() })??;
    let document = reply.json().unwrap_or_default();
    Ok(HealthAnswer { status: reply.status, document, pid: client.pid() })
}

impl HealthAnswer {
    /// Whether the daemon takes requests.
    pub(in crate::cli) fn is_healthy(&self) -> bool {
        self.status == StatusCode::OK
    }

    /// What `daemon.json` would say. It may have been removed, or be that of an earlier start.
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

/// What to say of a daemon that takes no requests.
pub(in crate::cli) fn not_ready(pid: Option<i32>) -> String {
    let process = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    format!("the daemon{process} starts or ends, and takes no requests; see `svc logs`")
}

/// What to say of a daemon that has no socket.
pub(in crate::cli) fn no_socket(daemon: &DaemonFile) -> String {
    format!(
        "the daemon (pid {}, version {}) is of an earlier version and has no socket, so no token is sent to it: `svc restart`",
        daemon.pid, daemon.version
    )
}
