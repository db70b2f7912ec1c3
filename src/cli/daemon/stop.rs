//! `svc stop` and `svc restart`: end the daemon and wait for its end.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use svc_server::daemon;
use svc_sys::private_file;
use svc_sys::process_list::is_running;
use tokio::time::{Instant, sleep};

use super::super::living_hosts::living_hosts;
use super::super::{Context, ServeArgs, output};
use super::probe::{DaemonProbe, find_settled_daemon, not_ready};
use super::start::start;

/// Deadline after the first signal: the daemon drains for 10 s.
const FIRST_SIGNAL: Duration = Duration::from_secs(15);
/// Deadline after the second signal, which ends the drain.
const SECOND_SIGNAL: Duration = Duration::from_secs(5);
/// How often the process is polled: only a parent is told of its end.
const POLL: Duration = Duration::from_millis(20);

/// Arguments of `svc stop`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct StopArgs {
    /// Keep it stopped until `svc start`: no hook and no client starts it
    #[arg(long)]
    stay: bool,
}

/// Stops the daemon. Exit code 0 if none runs.
pub(in crate::cli) async fn stop(context: &Context, args: &StopArgs) -> anyhow::Result<ExitCode> {
    if args.stay {
        // Set before the daemon ends, so that a hook in between does not start it again.
        daemon::keep_stopped(&context.paths)?;
    }
    let stopped = stop_running(context).await?;
    let stays = daemon::stays_stopped(&context.paths);
    let agents = agents_that_go_on(context).await;
    if context.json {
        output::json(&json!({
            "running": false, "stopped": stopped.is_some(), "pid": stopped, "stay": stays,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&match stopped {
        Some(pid) => format!("svc stopped (pid {pid})"),
        None => "svc is not running".to_owned(),
    })?;
    if let Some(line) = agents {
        output::line(&line)?;
    }
    if stays {
        output::line(
            "it stays stopped until `svc start`: hooks only keep events, and clients have no tools of svc",
        )?;
    } else if stopped.is_some() {
        output::line(
            "the next prompt in a connected client starts it again; `svc stop --stay` keeps it stopped",
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A sentence about hosted agents that go on without the daemon, if there are any.
pub(in crate::cli) async fn agents_that_go_on(context: &Context) -> Option<String> {
    match living_hosts(context).await.len() {
        0 => None,
        1 => Some("1 agent keeps running without the daemon: `svc agent list` shows it, `svc agent stop` ends it".to_owned()),
        count => Some(format!(
            "{count} agents keep running without the daemon: `svc agent list` shows them, `svc agent stop` ends one"
        )),
    }
}

/// Stops the daemon if it runs, and starts it with these flags.
pub(in crate::cli) async fn restart(
    context: &Context,
    args: &ServeArgs,
) -> anyhow::Result<ExitCode> {
    // A bad flag is reported before the running daemon is stopped.
    context.config(&args.flags())?;
    stop_running(context).await?;
    start(context, args).await
}

/// Stops the daemon and returns its pid; `None` if none runs.
///
/// Fails without a signal if the process that holds the database does not respond as the daemon.
pub(in crate::cli) async fn stop_running(context: &Context) -> anyhow::Result<Option<i32>> {
    // In a folder that others can write, `daemon.json` could name any process.
    private_file::check_folder(&context.paths.home)?;
    let daemon = match find_settled_daemon(context, FIRST_SIGNAL).await {
        DaemonProbe::Absent => {
            // A waiter must not start a daemon that a person wants stopped.
            daemon::forget_killed(&context.paths);
            return Ok(None);
        }
        DaemonProbe::Running(daemon, _) | DaemonProbe::WithoutSocket(daemon) => daemon,
        DaemonProbe::NotReady(pid) => bail!("{}", not_ready(pid)),
        // It may be about to end.
        DaemonProbe::Silent { pid: Some(pid), problem } => {
            if gone(pid, Duration::from_secs(1)).await {
                return Ok(None);
            }
            bail!(
                "process {pid} does not answer as the daemon ({problem}), so it gets no signal; if it hangs, end it with \
                 `kill {pid}`"
            )
        }
        DaemonProbe::Silent { pid: None, problem } => bail!("{problem}"),
    };
    let pid = Pid::from_raw(daemon.pid).context("the daemon does not say which process it is")?;
    for (patience, next) in [(FIRST_SIGNAL, "asking again"), (SECOND_SIGNAL, "giving up")] {
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
    while u32::try_from(pid).is_ok_and(is_running) {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(POLL).await;
    }
    true
}
