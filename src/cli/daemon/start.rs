//! `svc start`: starts this program again as `svc serve`, in a session of its own.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use svc_client::{DaemonFile, Endpoint, Url};
use svc_model::agent::AGENT_MARK;
use svc_sys::bounded_file;
use svc_sys::config::Origin;
use svc_sys::private_file;
use tokio::time::{Instant, sleep};

use super::super::{ALREADY_RUNNING, Context, ServeArgs, output, serve::NO_AUTH};
use super::probe::{DaemonProbe, find_daemon, find_settled_daemon, no_socket, not_ready, probe};

/// Deadline for the first response of a new daemon. It creates or migrates the database first, with
/// a sync for each step: a disk that needs a second for a sync needs 15 s for a first start.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the new daemon is polled. It cannot notify a process that may have ended.
const POLL: Duration = Duration::from_millis(20);
/// Lines of the log that are shown after a failure.
const TAIL: usize = 20;

/// Starts the daemon in the background and waits until it responds. Exit code 0 if it runs already.
pub(in crate::cli) async fn start(context: &Context, args: &ServeArgs) -> anyhow::Result<ExitCode> {
    match ensure(context, args).await? {
        EnsuredDaemon::Started(daemon) => report(context, &daemon, true),
        EnsuredDaemon::AlreadyRunning(daemon) => report(context, &daemon, false),
    }
}

/// A daemon that responds.
#[derive(Debug)]
pub(in crate::cli) enum EnsuredDaemon {
    /// This call started it.
    Started(DaemonFile),
    /// It ran before, or a concurrent start won.
    AlreadyRunning(DaemonFile),
}

/// Starts the daemon unless it runs, and waits until it responds. Prints nothing on standard
/// output.
async fn ensure(context: &Context, args: &ServeArgs) -> anyhow::Result<EnsuredDaemon> {
    // A mistake in the configuration is reported here and not in the log.
    let config = context.config(&args.flags())?;
    match find_settled_daemon(context, PATIENCE).await {
        DaemonProbe::Running(daemon, _) => return Ok(EnsuredDaemon::AlreadyRunning(daemon)),
        DaemonProbe::NotReady(pid) => bail!("{}", not_ready(pid)),
        DaemonProbe::WithoutSocket(daemon) => bail!("{}", no_socket(&daemon)),
        DaemonProbe::Silent { pid: Some(pid), problem } => bail!(
            "a daemon (pid {pid}) seems to run but does not answer: {problem}; see `svc logs`, or end it with `kill {pid}`"
        ),
        DaemonProbe::Silent { pid: None, problem } => bail!("{problem}"),
        DaemonProbe::Absent => {}
    }
    let home = &context.paths.home;
    private_file::prepare_home(home)?;
    if config.no_auth.value {
        output::note(&format!("warning: {NO_AUTH}"));
    }
    let log = args.log_file.as_deref().unwrap_or(&context.paths.log).to_path_buf();
    let token = (config.token_file.origin <= Origin::Env).then(|| config.token_file.value.clone());
    let mut daemon = StartingDaemon::spawn(context, args, log, token)?;
    let ensured = daemon.wait(context, &config.listen).await;
    if let Ok(EnsuredDaemon::Started(daemon)) = &ensured
        && config.listen.origin == Origin::Default
        && !config
            .listen
            .iter()
            .any(|address| Url::from_listener(*address).to_string() == daemon.url)
        && !context.json
    {
        let default = config.listen.first().map(ToString::to_string).unwrap_or_default();
        output::note(&format!(
            "{default} is in use by another program, so the daemon took a free port; to keep one, choose it with --listen or in \
             config.toml"
        ));
    }
    // Waits for the child process, else the daemon would remain a zombie if this process outlives
    // it.
    std::thread::spawn(move || daemon.child.wait());
    ensured
}

/// Starts a daemon and does not wait for it.
pub(in crate::cli) fn start_unattended(context: &Context) -> anyhow::Result<Child> {
    let args = ServeArgs::default();
    let config = context.config(&args.flags())?;
    private_file::prepare_home(&context.paths.home)?;
    let token = (config.token_file.origin <= Origin::Env).then(|| config.token_file.value.clone());
    StartingDaemon::spawn(context, &args, context.paths.log.clone(), token)
        .map(|daemon| daemon.child)
}

/// Starts the daemon through a process that ends, so that the daemon has no parent in the session.
///
/// Some clients kill all descendants of the processes that they started, and the daemon serves
/// other clients too.
pub(in crate::cli) async fn ensure_apart(context: &Context) -> anyhow::Result<EnsuredDaemon> {
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
    Ok(if was_started {
        EnsuredDaemon::Started(daemon)
    } else {
        EnsuredDaemon::AlreadyRunning(daemon)
    })
}

/// Why `svc start --json` failed: the last line of its error output.
fn why(errors: &str) -> String {
    let last = errors.trim().lines().last().unwrap_or_default();
    let error: Option<Value> = serde_json::from_str(last).ok();
    let detail = error.as_ref().and_then(|error| error["detail"].as_str());
    detail.unwrap_or(errors.trim()).to_owned()
}

/// A daemon that was started and may not respond yet.
struct StartingDaemon {
    child: Child,
    log: PathBuf,
    /// Size of the log before the start, in bytes.
    log_start: u64,
}

impl StartingDaemon {
    fn spawn(
        context: &Context,
        args: &ServeArgs,
        log: PathBuf,
        token: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        if context.env.os(AGENT_MARK).is_some() {
            bail!("a hosted agent cannot start the daemon: the daemon would end with the agent");
        }
        let errors = private_file::append(&log)
            .with_context(|| format!("cannot write to {}", log.display()))?;
        let log_start = errors.metadata()?.len();
        let program = std::env::current_exe().context("cannot tell where this program is")?;
        // A relative path would mean another file in the data folder, where the daemon runs.
        let args = ServeArgs { token_file: token, ..args.clone() };
        let mut command = Command::new(&program);
        command
            .arg("serve")
            .arg("--detached")
            .arg("--log-file")
            .arg(&log)
            .args(args.to_arguments());
        if context.paths.explicit_home {
            command.env("SVC_HOME", &context.paths.home);
        }
        let input = args.to_input();
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

    async fn wait(
        &mut self,
        context: &Context,
        addresses: &[SocketAddr],
    ) -> anyhow::Result<EnsuredDaemon> {
        let deadline = Instant::now() + PATIENCE;
        let mut ended: Option<ExitStatus> = None;
        loop {
            if ended.is_none() {
                ended = self.child.try_wait()?;
            }
            match ended {
                // A concurrent start won; its daemon is used once it responds.
                Some(status) if status.code() == Some(i32::from(ALREADY_RUNNING)) => {
                    if let DaemonProbe::Running(daemon, _) = find_daemon(context).await {
                        return Ok(EnsuredDaemon::AlreadyRunning(daemon));
                    }
                }
                Some(status) => {
                    if !context.json {
                        self.show_log();
                    }
                    if let Some(other) = other_daemon(addresses).await {
                        bail!("{other}");
                    }
                    let log = self.log.display();
                    match self.last_words().filter(|_| context.json) {
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
                        return Ok(EnsuredDaemon::Started(daemon));
                    }
                }
            }
            if Instant::now() >= deadline {
                if !context.json {
                    self.show_log();
                }
                bail!(
                    "the daemon (pid {}) has not answered for {} s; it is still starting: see `svc status` and `svc logs`",
                    self.child.id(),
                    PATIENCE.as_secs()
                );
            }
            sleep(POLL).await;
        }
    }

    /// The reason of the end from the log. With `--json` only the last line: the output is one
    /// document.
    fn last_words(&self) -> Option<String> {
        let text = log_since(&self.log, self.log_start).ok()?;
        let last = text.lines().rev().find(|line| !line.trim().is_empty())?.trim();
        Some(output::visible(last.strip_prefix("error: ").unwrap_or(last)))
    }

    fn show_log(&self) {
        let text = log_since(&self.log, self.log_start).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(TAIL)..] {
            output::note(&format!("  {}", output::visible(line)));
        }
    }
}

/// The daemon of another data folder that listens on a wanted address, if there is one.
async fn other_daemon(addresses: &[SocketAddr]) -> Option<String> {
    for address in addresses.iter().filter(|address| address.port() != 0) {
        let url = Url::from_listener(*address);
        let Ok(health) = probe(Endpoint::Tcp(url.clone())).await else { continue };
        if health.document.server == "svc" {
            let who = health.document.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            return Some(format!(
                "the svc of another data folder{who} is at {url}: stop it (`svc --home DIR stop`), or choose another \
                 address with --listen or in config.toml"
            ));
        }
    }
    None
}

fn report(context: &Context, daemon: &DaemonFile, started: bool) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(&json!({
            "running": true,
            "started": started,
            "pid": daemon.pid,
            "url": daemon.url,
            "version": daemon.version,
        }))?;
    } else {
        let verb = if started { "started" } else { "is already running" };
        output::line(&format!(
            "svc {} {verb}: {} (pid {})",
            daemon.version, daemon.url, daemon.pid
        ))?;
    }
    Ok(ExitCode::SUCCESS)
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
