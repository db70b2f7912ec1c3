//! The daemon and an installation: starts the daemon for the clients, checks it with a request of a
//! client, and stops it after the last uninstallation.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use svc_install::{ClientCommand, InstallRecord, InstallScope};
use svc_server::daemon::stays_stopped;
use svc_wire::json_rpc::JsonRpcWriter;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::cli::Context;
use crate::cli::daemon::{
    DaemonProbe, EnsuredDaemon, agents_that_go_on, ensure_apart, find_daemon, stop_running,
};

/// Deadline for the response of `svc stdio`.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts the daemon unless it runs or `no_start` is set. Returns sentences that say whether
/// clients reach it.
pub(super) async fn daemon_note(
    context: &Context,
    command: &ClientCommand,
    no_start: bool,
) -> Vec<String> {
    let mut notes = Vec::new();
    if matches!(find_daemon(context).await, DaemonProbe::Absent) {
        if stays_stopped(&context.paths) {
            return vec![
                "the daemon stays stopped (`svc stop --stay`): `svc start` starts it".to_owned(),
            ];
        }
        if no_start {
            return vec![
                "the daemon does not run: `svc start` or a client's next session starts it"
                    .to_owned(),
            ];
        }
        match ensure_apart(context).await {
            Ok(EnsuredDaemon::Started(daemon)) => {
                notes.push(format!("started the daemon: {} (pid {})", daemon.url, daemon.pid));
            }
            Ok(EnsuredDaemon::AlreadyRunning(_)) => {}
            Err(error) => {
                return vec![format!("the daemon does not start: {error:#}; see `svc doctor`")];
            }
        }
    }
    notes.push(match timeout(PATIENCE, introduce(command)).await {
        Ok(Ok(())) => "the daemon runs, and `svc stdio` reaches it".to_owned(),
        Ok(Err(error)) => {
            format!("`svc stdio` does not reach the daemon: {error:#}; see `svc doctor`")
        }
        Err(_) => "`svc stdio` does not reach the daemon in time; see `svc doctor`".to_owned(),
    });
    notes
}

/// Stops the daemon after an uninstallation if no client is left and `no_stop` is not set. Returns
/// sentences that say what stays.
pub(super) async fn after_uninstall(context: &Context, no_stop: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let is_left =
        InstallRecord::read(&context.paths.home).is_ok_and(|record| !record.files.is_empty());
    if !is_left && !no_stop {
        match stop_running(context).await {
            Ok(Some(pid)) => {
                notes.push(format!(
                    "no client is left, so the daemon was stopped (pid {pid}); the next prompt in a session that \
                     is still open starts it again"
                ));
                notes.extend(agents_that_go_on(context).await);
            }
            Ok(None) => {}
            Err(error) => notes.push(format!("the daemon was not stopped: {error:#}")),
        }
    }
    let home = &context.paths.home;
    if home.exists() {
        notes.push(format!(
            "the data stay in {}, and the configuration in {}; remove them if you do not need them",
            home.display(),
            context.paths.config_file.display()
        ));
    }
    notes
}

/// Sends `initialize` to `svc stdio`, as a client does.
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
    let hello = JsonRpcWriter::new().id(&1).method("initialize").params(&json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": { "name": "svc-install", "version": env!("CARGO_PKG_VERSION") },
    }));
    input.write_all(format!("{}\n", hello.into_text()).as_bytes()).await?;
    let line = BufReader::new(output).lines().next_line().await?.unwrap_or_default();
    let answer: Value = serde_json::from_str(&line)?;
    anyhow::ensure!(answer.pointer("/result/serverInfo/name") == Some(&json!("svc")), "{answer}");
    // `svc stdio` and its session end with the input.
    drop(input);
    child.wait().await?;
    Ok(())
}
