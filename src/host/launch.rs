//! How the daemon starts a host.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::domain::agent::{HostSpec, HostStarted};

/// Longest wait for a host's first word. It says it as soon as the program runs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a host, which will be no child of this process, and tells what that came to. `svc` is the program to run.
///
/// The specification holds secrets; so it goes over a pipe.
pub(crate) async fn launch_host(svc: &Path, spec: &HostSpec) -> HostStarted {
    let failed = |error: String| HostStarted::Failed { error };
    match timeout(PATIENCE, start(svc, spec)).await {
        Ok(Ok(started)) => started,
        Ok(Err(error)) => failed(format!("cannot start a host: {error}")),
        Err(_) => failed(format!("the host said nothing for {} s", PATIENCE.as_secs())),
    }
}

async fn start(svc: &Path, spec: &HostSpec) -> io::Result<HostStarted> {
    let mut child = Command::new(svc)
        .args(["agent", "host"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let text = serde_json::to_vec(spec)?;
    let mut stdin = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    stdin.write_all(&text).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    Ok(serde_json::from_slice(&output.stdout)?)
}
