//! Looks for the daemon of a data folder.

use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;

use super::super::Context;
use crate::client::{Client, ClientError, DaemonFile, Target, TokenSource, Url};

/// How long `/health` may take: it reads nothing but memory.
const PATIENCE: Duration = Duration::from_secs(3);

/// An answer of `/health`.
#[derive(Debug, Clone)]
pub(in crate::cli) struct HealthAnswer {
    /// Its HTTP status: 200 when healthy, 503 while starting or draining.
    pub(in crate::cli) status: StatusCode,
    /// The body; empty if it is no such document.
    pub(in crate::cli) document: HealthDocument,
}

/// The part of the body that anyone may read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::cli) struct HealthDocument {
    pub(in crate::cli) server: String,
    pub(in crate::cli) version: String,
    pub(in crate::cli) pid: Option<i32>,
    pub(in crate::cli) started_at: Option<String>,
}

/// The daemon of this data folder.
#[derive(Debug)]
pub(in crate::cli) enum DaemonProbe {
    /// There is none.
    Absent,
    /// It answers under its own pid.
    Running(DaemonFile, HealthAnswer),
    /// The process exists, but nothing at its URL answers as it should.
    Silent(DaemonFile, String),
}

/// Looks for the daemon of this data folder.
pub(in crate::cli) async fn find_daemon(context: &Context) -> DaemonProbe {
    let Some(daemon) = DaemonFile::read_live(&context.paths.daemon_json) else {
        return DaemonProbe::Absent;
    };
    let url = match Url::parse(&daemon.url) {
        Ok(url) => url,
        Err(error) => return DaemonProbe::Silent(daemon, error.to_string()),
    };
    match probe(url).await {
        Ok(health)
            if health.document.server == "svc" && health.document.pid == Some(daemon.pid) =>
        {
            DaemonProbe::Running(daemon, health)
        }
        Ok(_) => DaemonProbe::Silent(daemon, "something else answers there".to_owned()),
        Err(error) => DaemonProbe::Silent(daemon, error.to_string()),
    }
}

/// Requests `/health` without a token: who answers there is not known yet.
pub(in crate::cli) async fn probe(url: Url) -> Result<HealthAnswer, ClientError> {
    let shown = url.to_string();
    let target = Target { url, token: None, token_source: TokenSource::Withheld, daemon: None };
    let client = Client::new(target);
    let reply = tokio::time::timeout(PATIENCE, client.exchange(Method::GET, "/health", None))
        .await
        .map_err(|_| ClientError::Timeout { url: shown, seconds: PATIENCE.as_secs() })??;
    Ok(HealthAnswer { status: reply.status, document: reply.json().unwrap_or_default() })
}

impl HealthAnswer {
    /// Whether the daemon takes requests.
    pub(in crate::cli) fn is_healthy(&self) -> bool {
        self.status == StatusCode::OK
    }
}
