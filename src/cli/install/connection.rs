//! Whether what was installed works now: `svc stdio` is started as a client would start it.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use svc_install::{ClientCommand, InstallScope};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::cli::Context;
use crate::cli::daemon::{DaemonProbe, find_daemon};

/// How long `svc stdio` may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A sentence that says whether `svc stdio` reaches the daemon, if one runs.
pub(super) async fn connection(context: &Context, command: &ClientCommand) -> String {
    if matches!(find_daemon(context).await, DaemonProbe::Absent) {
        // `svc stdio` would start one, and the person may want other flags.
        return "the daemon does not run: `svc start` (a client's first session starts it, too)"
            .to_owned();
    }
    match timeout(PATIENCE, introduce(command)).await {
        Ok(Ok(())) => "the daemon runs, and `svc stdio` reaches it".to_owned(),
        Ok(Err(error)) => {
            format!("`svc stdio` does not reach the daemon: {error:#}; see `svc doctor`")
        }
        Err(_) => "`svc stdio` does not reach the daemon in time; see `svc doctor`".to_owned(),
    }
}

/// Sends `initialize` to the process that clients start.
async fn introduce(command: &ClientCommand) -> anyhow::Result<()> {
    let mut child = Command::new(command.path())
        .args(command.arguments(InstallScope::User, &["stdio"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (Some(mut input), Some(output)) = (input, output) else { anyhow::bail!("it has no input") };
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": { "name": "svc-install", "version": env!("CARGO_PKG_VERSION") },
    }});
    input.write_all(format!("{hello}\n").as_bytes()).await?;
    let line = BufReader::new(output).lines().next_line().await?.unwrap_or_default();
    let answer: Value = serde_json::from_str(&line)?;
    anyhow::ensure!(answer.pointer("/result/serverInfo/name") == Some(&json!("svc")), "{answer}");
    // It ends with its input, and its session with it.
    drop(input);
    child.wait().await?;
    Ok(())
}
