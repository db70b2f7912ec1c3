//! Requests to the daemon before the command starts.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::Value;
use svc_client::{Client, ClientError, Discovery};
use svc_host::runner::{SpoolHeader, TaskDocument};
use tokio::time::{Instant, sleep};

/// How long to wait for a daemon that is starting.
pub(super) const STARTING: Duration = Duration::from_secs(5);
/// Delay between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether a task could be created now: a failure should come before the command has done anything.
pub(super) async fn check_reachable(discovery: &Discovery) -> anyhow::Result<()> {
    let is_starting = |error: &ClientError| error.status() == Some(StatusCode::SERVICE_UNAVAILABLE);
    request(discovery, Method::GET, "/v1/tasks?limit=1", None, is_starting).await.map(drop)
}

/// Creates the task of a run with a key. Returns the existing task if it belongs to another run.
pub(super) async fn claim(
    discovery: &Discovery,
    header: &SpoolHeader,
) -> anyhow::Result<Option<TaskDocument>> {
    let body = Bytes::from(serde_json::to_vec(&header.create)?);
    let is_transient = ClientError::is_transient;
    let task = request(discovery, Method::POST, "/v1/tasks", Some(body), is_transient).await?;
    // If the response to a first attempt was lost, the existing task belongs to this run.
    let is_ours = task["metadata"] == header.create["metadata"];
    Ok((!is_ours).then_some(TaskDocument(task)))
}

/// Retries after a failure that `may_pass`, for as long as a daemon may take to start.
async fn request(
    discovery: &Discovery,
    method: Method,
    path: &str,
    body: Option<Bytes>,
    may_pass: fn(&ClientError) -> bool,
) -> anyhow::Result<Value> {
    let deadline = Instant::now() + STARTING;
    loop {
        let client = Client::new(discovery.target()?);
        match client.request(method.clone(), path, body.clone()).await {
            Ok(reply) => return Ok(reply.json()?),
            Err(error) if may_pass(&error) && Instant::now() < deadline => sleep(PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    }
}
