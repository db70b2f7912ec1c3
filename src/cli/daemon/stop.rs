//! `svc stop`: ask the daemon to end, and wait until it has.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::super::{Context, output};
use super::{Found, find};
use crate::client::process_exists;

/// How long a polite end may take: the daemon itself drains for 10 s.
const POLITE: Duration = Duration::from_secs(15);
/// How long the end may take after the second signal, which drops everything.
const FIRM: Duration = Duration::from_secs(5);
/// A process that is not our child gives no notice of its end.
const POLL: Duration = Duration::from_millis(20);

/// Stops the daemon. Exit code 0 if none runs.
pub(in crate::cli) async fn stop(context: &Context) -> anyhow::Result<ExitCode> {
    let stopped = stop_running(context).await?;
    if context.json {
        output::json(&json!({ "running": false, "stopped": stopped.is_some(), "pid": stopped }))?;
    } else {
        match stopped {
            Some(pid) => output::line(&format!("svc stopped (pid {pid})"))?,
            None => output::line("svc is not running")?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Stops the daemon and gives its pid; `None` if none runs.
///
/// Fails, without a signal to anyone, if the process in `daemon.json` does not answer as the daemon.
pub(super) async fn stop_running(context: &Context) -> anyhow::Result<Option<i32>> {
    let daemon = match find(context).await {
        Found::Nothing => return Ok(None),
        Found::Running(daemon, _) => daemon,
        // It may have been on its way out.
        Found::Silent(daemon, problem) => {
            if gone(daemon.pid, Duration::from_secs(1)).await {
                return Ok(None);
            }
            bail!(
                "process {pid}, which {file} names, does not answer as the daemon ({problem}), so it gets no signal; \
                 if it is a daemon that hangs, end it with `kill {pid}`, else remove the file",
                pid = daemon.pid,
                file = context.paths.daemon_json.display()
            )
        }
    };
    let pid = Pid::from_raw(daemon.pid).context("daemon.json names no process")?;
    for (patience, next) in [(POLITE, "asking again"), (FIRM, "giving up")] {
        match kill_process(pid, Signal::TERM) {
            Ok(()) => {}
            Err(rustix::io::Errno::SRCH) => return Ok(Some(daemon.pid)),
            Err(error) => bail!(
                "cannot signal the daemon (pid {}): {error}; stop it as the user who runs it",
                daemon.pid
            ),
        }
        if gone(daemon.pid, patience).await {
            return Ok(Some(daemon.pid));
        }
        output::note(&format!(
            "the daemon (pid {}) is still there after {} s, {next}",
            daemon.pid,
            patience.as_secs()
        ));
    }
    bail!(
        "the daemon does not end; see `svc logs`, or end it with `kill -9 {}`: nothing acknowledged is lost",
        daemon.pid
    )
}

async fn gone(pid: i32, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while process_exists(pid) {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(POLL).await;
    }
    true
}
