//! `svc start`, which starts this program again as `svc serve` in a session of its own, `svc stop`
//! and `svc restart`.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use svc_client::DaemonFile;
use svc_model::agent::AGENT_MARK;
use svc_server::daemon;
use svc_sys::config::{Config, Flags, Origin};
use svc_sys::process_list::is_running;
use svc_sys::{bounded_file, private_file};
use tokio::time::{Instant, sleep};

use super::super::agent_away::living_hosts;
use super::super::serve::{NO_AUTH, arguments_of, input_of};
use super::super::{ALREADY_RUNNING, Context, ExitResult, ServeArgs, output};
use super::{DaemonProbe, POLL, find_daemon, find_settled_daemon};

/// Deadline for the first response of a new daemon. It creates or migrates the database first, with
/// a sync for each step: a disk that needs a second for a sync needs 15 s for a first start.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn start(context: &Context, args: &ServeArgs) -> ExitResult {
    let (daemon, is_new) = ensure(context, args).await?;
    report(context, &daemon, is_new)
}

/// Starts the daemon unless it runs, and waits until it responds. Prints nothing on standard
/// output. Returns the daemon, and whether this call started it.
async fn ensure(context: &Context, args: &ServeArgs) -> Result<(DaemonFile, bool)> {
    // A mistake in the configuration is reported here and not in the log.
    let config = context.config(&args.flags)?;
    match find_settled_daemon(context).await {
        DaemonProbe::Running(daemon, _) => return Ok((daemon, false)),
        DaemonProbe::Unready { problem, .. } => bail!("{problem}"),
        DaemonProbe::Absent => {}
    }
    let home = &context.paths.home;
    private_file::prepare_home(home)?;
    if config.no_auth.value {
        output::note(&format!("warning: {NO_AUTH}"));
    }
    let log = args.flags.log_file.as_deref().unwrap_or(&context.paths.log).to_path_buf();
    let mut daemon = StartingDaemon::spawn(context, &config, args, log)?;
    let ensured = daemon.wait(context).await;
    // Waits for the child process, else the daemon would remain a zombie if this process outlives
    // it.
    std::thread::spawn(move || daemon.child.wait());
    ensured
}

pub(crate) fn start_unattended(context: &Context) -> Result<Child> {
    let args = ServeArgs::default();
    let config = context.config(&args.flags)?;
    private_file::prepare_home(&context.paths.home)?;
    let log = context.paths.log.clone();
    Ok(StartingDaemon::spawn(context, &config, &args, log)?.child)
}

/// Starts the daemon through a process that ends, so that the daemon has no parent in the session.
///
/// Some clients kill all descendants of the processes that they started, and the daemon serves
/// other clients too. Returns the daemon, and whether this call started it.
pub(crate) async fn ensure_apart(context: &Context) -> Result<(DaemonFile, bool)> {
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let mut command = tokio::process::Command::new(&program);
    command.args(["start", "--json"]).stdin(Stdio::null()).kill_on_drop(true);
    if context.paths.explicit_home {
        command.env("SVC_HOME", &context.paths.home);
    }
    let ran =
        command.output().await.with_context(|| format!("cannot run {}", program.display()))?;
    if !ran.status.success() {
        bail!("{}", why(&String::from_utf8_lossy(&ran.stderr)));
    }
    let was_started = serde_json::from_slice::<Value>(&ran.stdout)
        .is_ok_and(|answer| answer.get("started") == Some(&json!(true)));
    let DaemonProbe::Running(daemon, _) = find_daemon(context).await else {
        bail!("the daemon started and ended again; see `svc logs`");
    };
    Ok((daemon, was_started))
}

/// Why `svc start --json` failed: the last line of its error output.
fn why(errors: &str) -> String {
    let last = errors.trim().lines().last().unwrap_or_default();
    let error: Value = serde_json::from_str(last).unwrap_or_default();
    error["detail"].as_str().unwrap_or(errors.trim()).to_owned()
}

struct StartingDaemon {
    child: Child,
    log: PathBuf,
    /// Size of the log before the start, in bytes.
    log_start: u64,
}

impl StartingDaemon {
    fn spawn(context: &Context, config: &Config, args: &ServeArgs, log: PathBuf) -> Result<Self> {
        if context.env.os(AGENT_MARK).is_some() {
            bail!("a hosted agent cannot start the daemon: the daemon would end with the agent");
        }
        let errors = private_file::append(&log)
            .with_context(|| format!("cannot write to {}", log.display()))?;
        let log_start = errors.metadata()?.len();
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        // A relative path would mean another file in the data folder, where the daemon runs.
        let token = &config.token_file;
        let token_file = (token.origin <= Origin::Env).then(|| token.value.clone());
        let flags = Flags { token_file, ..args.flags.clone() };
        let mut command = Command::new(&program);
        command.args(["serve", "--detached", "--log-file"]).arg(&log).args(arguments_of(&flags));
        if context.paths.explicit_home {
            command.env("SVC_HOME", &context.paths.home);
        }
        let input = input_of(&flags);
        let mut child = command
            .current_dir(&context.paths.home)
            .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // If the write fails the daemon has ended, and its log has the reason.
            stdin.write_all(input.as_bytes()).ok();
        }
        Ok(Self { child, log, log_start })
    }

    async fn wait(&mut self, context: &Context) -> Result<(DaemonFile, bool)> {
        let deadline = Instant::now() + TIMEOUT;
        let mut ended: Option<ExitStatus> = None;
        loop {
            if ended.is_none() {
                ended = self.child.try_wait()?;
            }
            match ended {
                // A concurrent start won; its daemon is used once it responds.
                Some(status) if status.code() == Some(i32::from(ALREADY_RUNNING)) => {
                    if let DaemonProbe::Running(daemon, _) = find_daemon(context).await {
                        return Ok((daemon, false));
                    }
                }
                Some(status) => {
                    let log = self.log.display();
                    match self.last_words() {
                        Some(why) => {
                            bail!("the daemon did not start ({status}): {why}; its log is {log}")
                        }
                        None => bail!("the daemon did not start ({status}); its log is {log}"),
                    }
                }
                None => {
                    if let DaemonProbe::Running(daemon, health) = find_daemon(context).await
                        && health.is_healthy()
                        && daemon.pid.cast_unsigned() == self.child.id()
                    {
                        return Ok((daemon, true));
                    }
                }
            }
            if Instant::now() >= deadline {
                bail!(
                    "the daemon (pid {}) has not answered for {} s; it is still starting: see `svc status` and `svc logs`",
                    self.child.id(),
                    TIMEOUT.as_secs()
                );
            }
            sleep(POLL).await;
        }
    }

    /// The reason of the end: the last line of the log.
    fn last_words(&self) -> Option<String> {
        let text = log_since(&self.log, self.log_start).ok()?;
        let last = text.lines().rev().find(|line| !line.trim().is_empty())?.trim();
        Some(output::visible(last.strip_prefix("error: ").unwrap_or(last)))
    }
}

fn report(context: &Context, daemon: &DaemonFile, started: bool) -> ExitResult {
    let DaemonFile { pid, url, version, .. } = daemon;
    let verb = if started { "started" } else { "is already running" };
    let report = json!({
        "running": true, "started": started, "pid": pid, "url": url, "version": version,
    });
    context.print_line(&report, &format!("svc {version} {verb}: {url} (pid {pid})"))
}

/// The log after byte `start`, or all of the log if it was rotated meanwhile.
fn log_since(path: &Path, start: u64) -> std::io::Result<String> {
    let mut file = bounded_file::open_regular(path)?;
    if file.metadata()?.len() >= start {
        file.seek(SeekFrom::Start(start))?;
    }
    let mut bytes = Vec::new();
    file.take(1024 * 1024).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Deadline after the first signal: the daemon drains for 10 s.
const FIRST_SIGNAL: Duration = Duration::from_secs(15);
/// Deadline after the second signal, which ends the drain.
const SECOND_SIGNAL: Duration = Duration::from_secs(5);

pub(crate) async fn stop(context: &Context, stay: bool) -> ExitResult {
    if stay {
        // Set before the daemon ends, so that a concurrent hook does not start it again.
        daemon::keep_stopped(&context.paths)?;
    }
    let stopped = stop_running(context).await?;
    let stays = daemon::stays_stopped(&context.paths);
    let agents = agents_that_go_on(context).await;
    let document =
        json!({ "running": false, "stopped": stopped.is_some(), "pid": stopped, "stay": stays });
    context.print(&document, || {
        output::line(&match stopped {
            Some(pid) => format!("svc stopped (pid {pid})"),
            None => "svc is not running".to_owned(),
        })?;
        agents.iter().try_for_each(|line| output::line(line))?;
        match stopped {
            _ if stays => output::line(
                "it stays stopped until `svc start`: hooks only keep events, and clients have no tools of svc",
            ),
            Some(_) => output::line(
                "the next prompt in a connected client starts it again; `svc stop --stay` keeps it stopped",
            ),
            None => Ok(()),
        }
    })
}

/// A sentence about hosted agents that go on without the daemon, if there are any.
pub(crate) async fn agents_that_go_on(context: &Context) -> Option<String> {
    let count = living_hosts(context).await.len();
    (count > 0).then(|| {
        format!("agents go on without the daemon ({count}): `svc agent list` shows them, `svc agent stop` ends one")
    })
}

pub(crate) async fn restart(context: &Context, args: &ServeArgs) -> ExitResult {
    // A bad flag is reported before the running daemon is stopped.
    context.config(&args.flags)?;
    stop_running(context).await?;
    start(context, args).await
}

/// Stops the daemon and returns its pid; `None` if none runs.
///
/// Fails without a signal if the process that holds the database does not respond as the daemon.
pub(crate) async fn stop_running(context: &Context) -> Result<Option<i32>> {
    // In a folder that others can write, `daemon.json` could name any process.
    private_file::check_folder(&context.paths.home)?;
    let daemon = match find_settled_daemon(context).await {
        DaemonProbe::Absent => {
            // A waiter must not start a daemon that a person wants stopped.
            daemon::forget_killed(&context.paths);
            return Ok(None);
        }
        DaemonProbe::Running(daemon, _) => daemon,
        DaemonProbe::Unready { pid: Some(pid), .. } if gone(pid, Duration::from_secs(1)).await => {
            return Ok(None);
        }
        DaemonProbe::Unready { problem, .. } => bail!("{problem}"),
    };
    let pid = Pid::from_raw(daemon.pid).context("the daemon does not say which process it is")?;
    for (max_wait, next) in [(FIRST_SIGNAL, "asking again"), (SECOND_SIGNAL, "giving up")] {
        match kill_process(pid, Signal::TERM) {
            Ok(()) => {}
            Err(rustix::io::Errno::SRCH) => return Ok(Some(daemon.pid)),
            Err(error) => bail!(
                "cannot signal the daemon (pid {}): {error}; stop it as the user who runs it",
                daemon.pid
            ),
        }
        if gone(daemon.pid, max_wait).await {
            return Ok(Some(daemon.pid));
        }
        let (pid, seconds) = (daemon.pid, max_wait.as_secs());
        output::note(&format!("the daemon (pid {pid}) is still there after {seconds} s, {next}"));
    }
    bail!(
        "the daemon does not end; see `svc logs`, or end it with `kill -9 {}`: nothing acknowledged is lost",
        daemon.pid
    )
}

async fn gone(pid: i32, max_wait: Duration) -> bool {
    let deadline = Instant::now() + max_wait;
    while u32::try_from(pid).is_ok_and(is_running) {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(POLL).await;
    }
    true
}
