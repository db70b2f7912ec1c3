//! `svc service`: the daemon as a user service that starts at log-in and after a failure.
//!
//! `unit` renders the files and calls systemd or launchd. A file without svc's marker is
//! never changed.

mod unit;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use serde_json::json;
use svc_sys::config::Flags;
use svc_sys::private_file;
use tokio::time::{Instant, sleep};

use super::daemon::{DaemonProbe, find_daemon};
use super::{Context, ExitResult, output};
use unit::{Present, ServiceState, Unit, run_all};

/// Deadline for the daemon's first response, the same as for `svc start`.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Subcommand)]
pub(super) enum ServiceCommand {
    /// Install the daemon as a user service: it starts at log-in, and again after a failure
    #[command(after_help = "Examples:\n  svc service install\n  svc service install --dry-run\n\n\
        Writes a unit for systemd, or a property list for launchd, for this program and this data folder, and has the \
        service enabled and started. Once more changes nothing. Flags of `svc serve` belong into config.toml. \
        Exit code 1 if the service manager cannot be reached; the file is there all the same.")]
    Install(ChangeArgs),
    /// Stop the service and remove what install wrote
    #[command(after_help = "Example:\n  svc service uninstall\n\n\
        The data folder stays. Fine if nothing is installed.")]
    Uninstall(ChangeArgs),
    /// Whether it is installed, up to date, and runs; exit code 0 if all of that, else 1
    #[command(after_help = "Example:\n  svc service status --json")]
    Status,
}

#[derive(Debug, Clone, Args)]
pub(super) struct ChangeArgs {
    /// Print what would be written and run, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(context: &Context, command: ServiceCommand) -> ExitResult {
    let unit = Unit::new(context)?;
    match command {
        ServiceCommand::Install(args) => install(context, &unit, args.dry_run).await,
        ServiceCommand::Uninstall(args) => uninstall(context, &unit, args.dry_run).await,
        ServiceCommand::Status => status(context, &unit).await,
    }
}

/// The process of the daemon of this data folder, whoever started it.
async fn daemon_pid(context: &Context) -> Option<i32> {
    match find_daemon(context).await {
        DaemonProbe::Running(daemon, _) => Some(daemon.pid),
        DaemonProbe::Unready { pid, .. } => pid,
        DaemonProbe::Absent => None,
    }
}

async fn install(context: &Context, unit: &Unit, dry_run: bool) -> ExitResult {
    // A mistake in the configuration is reported here and not in a log.
    context.config(&Flags::default())?;
    let present = unit.present()?;
    let change = match present {
        Present::Absent => "created",
        Present::Outdated => "replaced",
        Present::Current => "unchanged",
        Present::Foreign => {
            bail!("{} exists and was not written by svc; move it away first", unit.path.display())
        }
    };
    if dry_run {
        return would_install(context, unit, change);
    }
    // The daemon's log is the first file in the data folder.
    private_file::prepare_home(&context.paths.home)?;
    if present != Present::Current {
        unit.write()?;
    }

    let running = daemon_pid(context).await;
    let before = unit.state();
    // A daemon that the service did not start holds the database, so the service could not run
    // beside it.
    let background = running.filter(|_| !before.as_ref().is_ok_and(|before| before.active));
    let mut started = false;
    let done = before.and_then(|before| {
        started = !before.active && background.is_none();
        if present == Present::Current && before.enabled && !started {
            return Ok(before);
        }
        run_all(&unit.enable(started))?;
        unit.state()
    });
    let mut problem = done.as_ref().err().map(ToString::to_string);
    let mut state = done.ok();
    if started && state.is_some() {
        match wait(context, unit).await {
            Ok(after) => state = Some(after),
            Err(silent) => problem = Some(silent.to_string()),
        }
    }
    let stale = present == Present::Outdated && state.as_ref().is_some_and(|state| state.active);
    if context.json {
        output::json(&json!({
            "manager": unit.manager.as_str(), "path": unit.path, "unit": change,
            "enabled": state.as_ref().map(|state| state.enabled),
            "active": state.as_ref().map(|state| state.active),
            "background_pid": background, "restart_needed": stale, "problem": problem,
        }))?;
    } else {
        output::line(&format!("{} {change}", unit.path.display()))?;
        if let Some(state) = &state {
            let not = if state.enabled { "" } else { "not " };
            output::line(&format!("svc is {not}started at log-in, and {}", state.word))?;
        }
    }
    let later =
        unit.enable(true).iter().map(|words| words.join(" ")).collect::<Vec<_>>().join(" && ");
    if let Some(problem) = &problem {
        output::note(&format!(
            "{}; the file stays, and from a session that has a service manager `{later}` does the rest",
            output::visible(problem)
        ));
    }
    if let Some(pid) = background {
        output::note(&format!(
            "a daemon (pid {pid}) runs already, and not as this service: end it with `svc stop`, then `{later}`"
        ));
    }
    if stale {
        let restart = unit.restart();
        output::note(&format!("the service still runs as it was installed before; `{restart}`"));
    }
    Ok(if problem.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits until the daemon that the service started responds: a started process may still fail.
async fn wait(context: &Context, unit: &Unit) -> Result<ServiceState> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let state = unit.state()?;
        if let DaemonProbe::Running(daemon, health) = find_daemon(context).await
            && health.is_healthy()
            && state.pid.is_none_or(|pid| pid == daemon.pid)
        {
            return Ok(state);
        }
        if !state.active || Instant::now() >= deadline {
            bail!("the service is {} and does not answer; see `svc logs`", state.word);
        }
        sleep(POLL).await;
    }
}

fn would_install(context: &Context, unit: &Unit, change: &str) -> ExitResult {
    let commands: Vec<_> = unit.enable(true).iter().map(|words| words.join(" ")).collect();
    let document = json!({
        "manager": unit.manager.as_str(), "path": unit.path, "unit": change,
        "text": unit.text, "commands": commands,
    });
    context.print(&document, || {
        output::exact(unit.text.as_bytes())?;
        let (path, commands) = (unit.path.display(), commands.join("; "));
        output::note(&format!("this would be {path} ({change}), then: {commands}"));
        Ok(())
    })
}

async fn uninstall(context: &Context, unit: &Unit, dry_run: bool) -> ExitResult {
    let present = unit.present()?;
    if present == Present::Foreign {
        bail!("{} was not written by svc, so it stays", unit.path.display());
    }
    let mut commands = unit.disable();
    commands.extend(unit.forget());
    let commands: Vec<_> = commands.iter().map(|words| words.join(" ")).collect();
    if present == Present::Absent || dry_run {
        let commands = if present == Present::Absent { Vec::new() } else { commands };
        let document = json!({
            "manager": unit.manager.as_str(), "path": unit.path, "unit": present.as_str(),
            "removed": false, "commands": commands,
        });
        return context.print(&document, || {
            if present == Present::Absent {
                return output::line("nothing is installed");
            }
            output::line(&format!("would remove {}", unit.path.display()))?;
            output::line(&format!("would run: {}", commands.join("; ")))
        });
    }

    let reached = unit.state();
    let problem = match reached {
        Ok(state) => {
            // launchd refuses to unload a service that is not loaded.
            if state.enabled || state.active {
                run_all(&unit.disable()).context("the service stays as it is")?;
            }
            None
        }
        Err(refused) => Some(refused.to_string()),
    };
    remove_link(&unit.path);
    std::fs::remove_file(&unit.path)
        .with_context(|| format!("cannot remove {}", unit.path.display()))?;
    if problem.is_none() {
        run_all(&unit.forget())?;
    }
    let running = daemon_pid(context).await;
    if context.json {
        output::json(&json!({
            "manager": unit.manager.as_str(), "path": unit.path, "unit": "absent",
            "removed": true, "daemon_pid": running, "problem": problem,
        }))?;
    } else {
        output::line(&format!("{} removed", unit.path.display()))?;
    }
    if let Some(problem) = problem {
        let problem = output::visible(&problem);
        output::note(&format!("{problem}; it forgets the service when it restarts"));
    }
    if let Some(pid) = running {
        output::note(&format!("a daemon (pid {pid}) still runs; `svc stop` ends it"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes the link by which systemd starts the unit, as `systemctl disable` does where systemd is
/// reachable.
fn remove_link(unit: &Path) {
    let (Some(folder), Some(name)) = (unit.parent(), unit.file_name()) else {
        return;
    };
    let link = folder.join("default.target.wants").join(name);
    if std::fs::read_link(&link).is_ok_and(|target| target == unit) {
        std::fs::remove_file(link).ok();
    }
}

async fn status(context: &Context, unit: &Unit) -> ExitResult {
    let present = unit.present()?;
    let state = unit.state();
    let running = daemon_pid(context).await;
    let problem = state.as_ref().err().map(ToString::to_string);
    let state = state.ok();
    let active = state.as_ref().is_some_and(|state| state.active);
    let pid = state.as_ref().and_then(|state| state.pid);
    if context.json {
        output::json(&json!({
            "manager": unit.manager.as_str(), "path": unit.path, "unit": present.as_str(),
            "enabled": state.as_ref().map(|state| state.enabled),
            "active": state.as_ref().map(|state| state.active),
            "state": state.as_ref().map(|state| &state.word),
            "pid": pid, "daemon_pid": running, "problem": problem,
        }))?;
    } else {
        let unknown = || "unknown".to_owned();
        let enabled = |state: &ServiceState| if state.enabled { "yes" } else { "no" }.to_owned();
        let enabled = state.as_ref().map_or_else(unknown, enabled);
        let mut fields = vec![
            ("unit", format!("{} ({})", unit.path.display(), present.as_str())),
            ("enabled", enabled),
            ("state", state.as_ref().map_or_else(unknown, |state| state.word.clone())),
        ];
        fields.extend(pid.map(|pid| ("pid", pid.to_string())));
        output::fields(&fields)?;
    }
    if let Some(problem) = problem {
        output::note(&output::visible(&problem));
    }
    if present == Present::Outdated {
        output::note(
            "it was installed for another program or data folder, or by another version; `svc service install` renews it",
        );
    }
    if let Some(daemon) = running.filter(|_| !active || pid != running) {
        output::note(&format!("a daemon (pid {daemon}) runs, and not as this service"));
    }
    let well = present == Present::Current && active;
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
