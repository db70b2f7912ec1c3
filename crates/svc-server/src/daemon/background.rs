//! Background work: periodic sweeps of participants, tasks, hooks' spools and old rows; and the
//! shutdown by signals.

use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::future::{BoxFuture, OptionFuture};
use serde_json::{Map, Value};
use svc_core::{
    service::{Error, Services},
    tools::{Call, Catalogue, ErrorType, Failure, HOOK_EVENT},
};
use svc_model::{Caller, limits};
use svc_sys::{
    config::Config,
    spool::{HookSpool, SPOOLED_PROCESS, SPOOLED_UNPRINTED},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The daemon's tasks and the tokens that end them: the first signal drains, the second drops.
#[derive(Debug, Clone, Default)]
pub(super) struct Lifecycle {
    /// First signal: take no new requests, end the streams, finish the requests under way.
    pub(super) soft: CancellationToken,
    /// Second signal: drop the rest.
    hard: CancellationToken,
    /// Connections. The drain waits for them.
    pub(super) connections: TaskTracker,
    /// Background work. It ends before shutdown only after a fault.
    pub(super) background: TaskTracker,
}

impl Lifecycle {
    /// Handles SIGTERM, SIGINT and, unless this process was started with it ignored, SIGHUP.
    pub(super) fn listen_to_signals(&self) -> io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        let (soft, hard) = (self.soft.clone(), self.hard.clone());
        let listen = async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    Some(_) = OptionFuture::from(hangup.as_mut().map(Signal::recv)) => {}
                }
                if soft.is_cancelled() {
                    tracing::warn!("second signal: dropping requests under way");
                    hard.cancel();
                } else {
                    tracing::info!("signal: shutting down");
                    soft.cancel();
                }
            }
        };
        tokio::spawn(listen);
        Ok(())
    }

    /// Runs `work` until the drain. If `work` ends earlier or panics, the daemon shuts down:
    /// clients detect a stopped daemon, but not one that lacks a part.
    pub(super) fn run(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.supervise(name, Box::pin(work));
    }

    /// Takes all works as one type: what spawns and supervises them exists once in the program.
    fn supervise(&self, name: &'static str, work: BoxFuture<'static, ()>) {
        let soft = self.soft.clone();
        self.background.spawn(async move {
            let worker = tokio::spawn(work);
            let abort = worker.abort_handle();
            tokio::select! {
                () = soft.cancelled() => abort.abort(),
                _ = worker => {
                    if !soft.is_cancelled() {
                        tracing::error!(name, "a background task ended by itself");
                        soft.cancel();
                    }
                }
            }
        });
    }

    /// Waits for the connections to finish, until `timeout` or the second signal.
    pub(super) async fn drain(&self, timeout: Duration) {
        self.connections.close();
        tokio::select! {
            () = self.connections.wait() => {}
            () = self.hard.cancelled() => {}
            () = sleep(timeout) => {
                tracing::warn!(open = self.connections.len(), "connections did not end in time");
            }
        }
    }
}

/// Whether SIGHUP was ignored when this process started, as under `nohup` (known on Linux only).
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Bit 0 is signal 1.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

pub(super) fn start_sweeps(
    lifecycle: &Lifecycle,
    services: &Services,
    catalogue: &Arc<Catalogue>,
    config: &Config,
) {
    lifecycle.run("lease", renew_lease(services.clone()));
    lifecycle.run("machines", sweep_machines(services.clone()));
    lifecycle.run("peers", sweep_peers(services.clone()));
    lifecycle.run("client records", read_client_records(services.clone()));
    lifecycle.run("hand-overs", services.handovers.clone().run());
    lifecycle.run("agents", services.agents.clone().run());
    let registry = Arc::new(services.hooks.clone());
    lifecycle.run("app-servers", services.app_servers.clone().run(registry));
    let (tuning, often, seldom) = (services.tuning(), limits::PID_CHECK, limits::MCP_SWEEP);
    let sweep = |name, pause, work: Sweep, fault| {
        lifecycle.run(name, repeat(services.clone(), pause, work, fault));
    };
    let fault = "cannot end the deliveries to removed peers";
    sweep("stranded inboxes", tuning.maintenance, |it| it.team.sweep_stranded_inboxes(), fault);
    let pause = often.min(tuning.runner_grace);
    sweep("tasks", pause, |it| it.tasks.sweep_tasks(), "cannot sweep the tasks");
    let fault = "cannot sweep the processes of clients";
    sweep("processes", often, |it| it.access.sweep_processes(), fault);
    let fault = "cannot forget the secrets of old sessions";
    sweep("session secrets", seldom, |it| it.team.sweep_session_secrets(), fault);
    let fault = "cannot sweep the MCP sessions";
    sweep("mcp sessions", seldom, |it| it.mcp.sweep_mcp_sessions(), fault);
    let home = config.paths.home.clone();
    lifecycle.run("hooks", sweep_hooks(services.clone(), Arc::clone(catalogue), home));
    lifecycle.run("maintenance", maintain(services.clone()));
    lifecycle.run("memory", give_back_memory(services.clone()));
    let days = |days: u64| Duration::from_secs(days.saturating_mul(24 * 60 * 60));
    let messages = days(config.retention_messages_days.value);
    let tasks = days(config.retention_tasks_days.value);
    lifecycle.run("expiry", expire(services.clone(), messages, tasks));
}

/// Logs an error; returns true on success.
fn report<T>(outcome: Result<T, Error>, what: &'static str) -> bool {
    outcome.map_err(|error| error.report(what)).is_ok()
}

async fn renew_lease(services: Services) {
    loop {
        sleep(limits::DAEMON_RENEWAL).await;
        report(services.machines.renew().await, "cannot renew the lease of this daemon");
    }
}

async fn sweep_machines(services: Services) {
    loop {
        sleep(limits::PID_CHECK).await;
        report(services.machines.sweep().await, "cannot look at what other machines hold");
    }
}

async fn sweep_peers(services: Services) {
    loop {
        let pause = services.team.sweep_peers().await.unwrap_or_else(|error| {
            error.report("cannot sweep the peers");
            limits::PID_CHECK
        });
        sleep(pause).await;
    }
}

async fn read_client_records(services: Services) {
    loop {
        let are_well = [
            report(
                services.team.read_client_records().await,
                "cannot read what clients have on record",
            ),
            report(
                services.team.sweep_limits().await,
                "cannot look at the usage limits of sessions",
            ),
            report(services.prompts.sweep().await, "cannot look at the prompts of sessions"),
            report(
                services.team.end_silent_turns().await,
                "cannot end the turns whose end no hook has reported",
            ),
        ];
        let has_failed = are_well.contains(&false);
        sleep(if has_failed { limits::PID_CHECK } else { limits::RECORDS_POLL }).await;
    }
}

type Sweep = fn(&Services) -> BoxFuture<'_, Result<(), Error>>;

/// Sweeps now, and again after each pause.
async fn repeat(services: Services, pause: Duration, sweep: Sweep, fault: &'static str) {
    loop {
        report(sweep(&services).await, fault);
        sleep(pause).await;
    }
}

/// Periodic, because a hook that misses its deadline spools its event although the daemon runs.
async fn sweep_hooks(services: Services, catalogue: Arc<Catalogue>, home: PathBuf) {
    let maintenance = services.tuning().maintenance;
    let mut forgotten: Option<Instant> = None;
    loop {
        let mut pause = limits::RECORDS_POLL.min(maintenance);
        match drain_spool(&services, &catalogue, &home).await {
            Ok(0) => {}
            Ok(events) => tracing::info!(events, "took in the events of the hooks' spool"),
            // The database server is unreachable; the store logs that.
            Err(error) if error.kind() == ErrorKind::NotConnected => {}
            Err(error) => {
                tracing::error!(%error, "cannot drain the hooks' spool");
                pause = maintenance;
            }
        }
        if forgotten.is_none_or(|at| at.elapsed() >= maintenance) {
            report(services.hooks.sweep_hooks().await, "cannot forget old events of hooks");
            forgotten = Some(Instant::now());
        }
        sleep(pause).await;
    }
}

/// Expires messages that were not delivered and tasks that were not started in time.
async fn expire(services: Services, messages: Duration, tasks: Duration) {
    loop {
        report(
            services.team.expire_messages(messages).await,
            "cannot end the deliveries of old messages",
        );
        report(services.tasks.expire_tasks(tasks).await, "cannot end old tasks");
        sleep(limits::EXPIRY_POLL).await;
    }
}

async fn maintain(services: Services) {
    let tuning = services.tuning();
    loop {
        sleep(tuning.maintenance).await;
        report(services.log.measure_size().await, "cannot measure the size of the database");
        report(services.log.apply_retention(tuning.retention).await, "cannot apply the retention");
        report(services.log.merge_indexes().await, "cannot merge the indexes");
        report(services.log.checkpoint().await, "cannot checkpoint");
    }
}

/// After a quiet period, empties caches and returns free pages of the heap to the system.
async fn give_back_memory(services: Services) {
    let (mut seen, mut given_back) = (0, 0);
    loop {
        sleep(services.tuning().quiet).await;
        let writes = services.log.writes();
        let is_quiet = writes.saturating_sub(seen) <= limits::QUIET_WRITES;
        seen = writes;
        if !is_quiet || writes == given_back {
            continue;
        }
        report(services.log.release_memory().await, "cannot empty the caches of the database");
        svc_heap::give_back();
        // `release_memory` runs as a write job, which is counted, too.
        (seen, given_back) = (services.log.writes(), services.log.writes());
    }
}

/// Records every event of `hooks.spool`, where hooks store events while the daemon is away, and
/// returns their number. An event that does not parse or is refused is skipped: a retry would fail
/// in the same way.
async fn drain_spool(services: &Services, catalogue: &Catalogue, home: &Path) -> io::Result<usize> {
    let Some(tool) = catalogue.find(&Caller::Operator, HOOK_EVENT) else { return Ok(0) };
    let spool = HookSpool::in_home(home);
    let mut count = 0;
    loop {
        // Lines that a killed daemon had taken come first, then those that were appended since.
        let lines = spool.take()?;
        if lines.is_empty() {
            return Ok(count);
        }
        for line in &lines {
            let Ok(Value::Object(mut arguments)) = serde_json::from_str(line) else {
                tracing::warn!("an event in the hooks' spool cannot be read");
                continue;
            };
            return_unprinted(services, &mut arguments).await?;
            if !arguments.contains_key("client") {
                continue;
            }
            let Some(caller) = caller_of_line(services, &mut arguments).await? else {
                tracing::warn!("an event in the hooks' spool has no known caller");
                continue;
            };
            let call = Call::alone(services.clone(), caller);
            match tool.call(call, arguments).await {
                Ok(_) => count += 1,
                // The disk may be full, so the spool is kept. Events that are recorded already are
                // recognised when they are sent again.
                Err(Failure::Tool(error)) if error.kind == ErrorType::Unavailable => {
                    let is_away = error.reason == Some("store_unavailable");
                    let kind = if is_away { ErrorKind::NotConnected } else { ErrorKind::Other };
                    return Err(io::Error::new(kind, error.message));
                }
                Err(_) => tracing::warn!("an event in the hooks' spool is refused"),
            }
        }
        spool.remove_taken()?;
    }
}

/// The caller for an event: the client's process that the line names, which may have ended. `None`
/// if that process may not report events. A line without a process comes from a system that has no
/// list of processes, and counts as the operator's.
async fn caller_of_line(
    services: &Services,
    arguments: &mut Map<String, Value>,
) -> io::Result<Option<Caller>> {
    let process = match arguments.remove(SPOOLED_PROCESS) {
        None | Some(Value::Null) => return Ok(Some(Caller::Operator)),
        Some(process) => serde_json::from_value(process).ok(),
    };
    let Some(process) = process else { return Ok(None) };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let client = arguments.get("client").and_then(text).unwrap_or_default();
    let cwd = arguments.get("payload").and_then(|payload| payload.get("cwd")).and_then(text);
    match services.access.caller_of_report(process, &client, cwd).await {
        Ok(caller) => Ok(Some(caller)),
        Err(Error::Forbidden(_)) => Ok(None),
        Err(error) => not_drained(error).map(|()| None),
    }
}

/// Whether lines stay in the spool after an error of one of them: fails if another attempt may do
/// better. Any other error is the line's own, and must not hold up all that come after it.
fn not_drained(error: Error) -> io::Result<()> {
    let kind = match &error {
        Error::StoreUnavailable(_) | Error::OutcomeUnknown { .. } => Some(ErrorKind::NotConnected),
        Error::Unavailable(_)
        | Error::StorageFull(_)
        | Error::LimitReached(_)
        | Error::NotNow(_) => Some(ErrorKind::Other),
        _ => None,
    };
    if let Some(kind) = kind {
        return Err(io::Error::new(kind, error));
    }
    error.report("skipped a part of an event in the hooks' spool");
    Ok(())
}

/// Puts messages back into the inbox that a hook got in the response to its event and did not
/// print.
async fn return_unprinted(
    services: &Services,
    arguments: &mut Map<String, Value>,
) -> io::Result<()> {
    let session = arguments.remove(SPOOLED_UNPRINTED);
    let (Some(Value::String(session)), Some(Value::String(id))) = (session, arguments.get("id"))
    else {
        return Ok(());
    };
    let process = arguments.get(SPOOLED_PROCESS).cloned();
    let process = process.and_then(|process| serde_json::from_value(process).ok());
    let taken_back = services.hooks.take_back_unprinted(&session, process, id.clone());
    taken_back.await.or_else(not_drained)
}

#[cfg(test)]
mod tests {
    use svc_store::StoreError;

    use super::*;

    #[test]
    fn a_fault_of_one_line_of_the_spool_does_not_hold_up_the_others() {
        let bad = |table| StoreError::BadRow { table, id: "s".to_owned(), why: "x".to_owned() };
        not_drained(Error::Internal(bad("peer"))).expect("is the line's own");
        not_drained(Error::Internal(StoreError::Panicked)).expect("is the line's own");
        not_drained(Error::Conflict("two".to_owned())).expect("is the line's own");
        for error in [
            Error::Unavailable(StoreError::Stopped),
            Error::NotNow("later".to_owned()),
            Error::LimitReached("many".to_owned()),
        ] {
            assert_eq!(not_drained(error).expect_err("comes again").kind(), ErrorKind::Other);
        }
    }
}
