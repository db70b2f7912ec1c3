//! Background work: periodic sweeps of participants, tasks, hooks' spools and old rows; and the
//! shutdown by signals.

use std::{
    io::{self, ErrorKind},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use futures_util::future::{BoxFuture, OptionFuture};
use serde_json::{Map, Value};
use svc_core::{
    service::{Error, Services},
    tools::{Call, Catalogue, ErrorType, Failure, HOOK_EVENT},
};
use svc_model::{Caller, Timestamp, limits};
use svc_sys::{
    config::Config,
    spool::{HookSpool, SPOOLED_PROCESS, SPOOLED_UNPRINTED},
};
use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::spawn_blocking,
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
    /// Ends this run of the daemon at a signal.
    pub(super) fn follow(&self, StopSignals(mut count): StopSignals) {
        let (soft, hard) = (self.soft.clone(), self.hard.clone());
        tokio::spawn(async move {
            // The sender stays as long as the process.
            count.wait_for(|sent| *sent > 0).await.ok();
            tracing::info!("signal: shutting down");
            soft.cancel();
            count.wait_for(|sent| *sent > 1).await.ok();
            tracing::warn!("second signal: dropping requests under way");
            hard.cancel();
        });
    }

    /// Runs `work` until the drain. If `work` ends earlier or panics, the daemon shuts down:
    /// clients detect a stopped daemon, but not one that lacks a part.
    pub(super) fn run(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
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

/// Counts the signals that ask this process to stop, over all runs of the daemon: one that comes
/// between two runs ends the next.
#[derive(Debug, Clone)]
pub struct StopSignals(watch::Receiver<u32>);

impl StopSignals {
    /// Handles SIGTERM, SIGINT and, unless this process was started with it ignored, SIGHUP, on a
    /// thread that stays until the process ends.
    pub fn listen() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let context = runtime.enter();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        drop(context);
        let (sender, receiver) = watch::channel(0);
        let listen = async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                    Some(_) = OptionFuture::from(hangup.as_mut().map(Signal::recv)) => {}
                }
                sender.send_modify(|sent| *sent += 1);
            }
        };
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || runtime.block_on(listen))?;
        Ok(Self(receiver))
    }

    /// Whether a signal has come.
    pub(super) fn has_come(&self) -> bool {
        *self.0.borrow() > 0
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
    lifecycle.run("peers", sweep_peers(services.clone()));
    lifecycle.run("client records", read_client_records(services.clone()));
    lifecycle.run("hand-overs", services.handovers.clone().run());
    lifecycle.run("agents", services.agents.clone().run());
    lifecycle.run("app-servers", services.app_servers.clone().run(services.hooks.clone()));
    let (tuning, often, seldom) = (services.tuning(), limits::PID_CHECK, limits::MCP_SWEEP);
    let sweep = |name, pause, work: Sweep, fault| {
        lifecycle.run(name, repeat(services.clone(), pause, work, fault));
    };
    let fault = "cannot renew the lease of this daemon";
    sweep("lease", limits::DAEMON_RENEWAL, |it| it.machines.renew(), fault);
    let fault = "cannot look at what other machines hold";
    sweep("machines", often, |it| it.machines.sweep(), fault);
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

/// Time after the start in which no event of the spool is dropped.
const REFUSED_AT_START: Duration = Duration::from_hours(2);

/// Periodic, because a hook that misses its deadline spools its event although the daemon runs.
async fn sweep_hooks(services: Services, catalogue: Arc<Catalogue>, home: PathBuf) {
    let maintenance = services.tuning().maintenance;
    let spool = HookSpool::in_home(&home);
    let mut forgotten: Option<Instant> = None;
    let began = Instant::now();
    loop {
        let mut pause = limits::RECORDS_POLL.min(maintenance);
        let record = |line| record_line(&services, &catalogue, line);
        // An old event may have been spooled while the daemon was away, and so be tried for the
        // first time. The limits that refuse it are by the hour.
        let is_late = began.elapsed() > REFUSED_AT_START;
        let oldest = is_late.then(|| services.now().minus(limits::HOOK_IDS_KEPT));
        match drain_spool(&spool, oldest, record).await {
            Ok(DrainedEvents { recorded, left }) => {
                if recorded > 0 {
                    tracing::info!(events = recorded, "took in the events of the hooks' spool");
                }
                if left > 0 {
                    tracing::warn!(events = left, "events of the hooks' spool are refused for now");
                    pause = maintenance;
                }
            }
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

/// How a drain of the spool ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct DrainedEvents {
    recorded: usize,
    /// Events that the next drain tries again.
    left: usize,
}

/// Records every event of `hooks.spool`, where hooks store events while the daemon is away.
/// `record` returns whether a line counts as an event. A line that is refused for now stays in the
/// spool unless its event is before `oldest`, and the others do not wait for it.
async fn drain_spool<R>(
    spool: &HookSpool,
    oldest: Option<Timestamp>,
    record: impl Fn(String) -> R,
) -> io::Result<DrainedEvents>
where
    R: Future<Output = Result<bool, Undrained>>,
{
    let mut drained = DrainedEvents::default();
    loop {
        // Lines that a killed daemon had taken come first, then those that were appended since.
        let lines = blocking(spool, HookSpool::take).await?;
        if lines.is_empty() {
            return Ok(drained);
        }
        let mut left = Vec::new();
        for line in lines {
            match record(line.clone()).await {
                Ok(is_event) => drained.recorded += usize::from(is_event),
                // The disk may be full, so the spool is kept. Events that are recorded already are
                // recognised when they are sent again.
                Err(Undrained::Stop(error)) => return Err(error),
                // Its id is forgotten, so a copy that did arrive would no longer be recognised.
                Err(Undrained::Later(reason))
                    if oldest.is_some_and(|oldest| is_before(&line, oldest)) =>
                {
                    tracing::warn!(
                        reason,
                        "an old event in the hooks' spool is refused and dropped"
                    );
                }
                Err(Undrained::Later(reason)) => {
                    tracing::debug!(reason, "an event in the hooks' spool is refused for now");
                    left.push(line);
                }
            }
        }
        drained.left = left.len();
        blocking(spool, move |spool| spool.end_take(&left)).await?;
        // Those that are left would come again at once.
        if drained.left > 0 {
            return Ok(drained);
        }
    }
}

/// Whether a line tells a time before `oldest`.
fn is_before(line: &str, oldest: Timestamp) -> bool {
    let time = |line: Value| Timestamp::parse(line["at"].as_str()?);
    serde_json::from_str(line).ok().and_then(time).is_some_and(|at| at < oldest)
}

/// Runs work on the spool, which may wait for the lock of a hook.
async fn blocking<T: Send + 'static>(
    spool: &HookSpool,
    work: impl FnOnce(&HookSpool) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let spool = spool.clone();
    spawn_blocking(move || work(&spool)).await.map_err(io::Error::other)?
}

/// Records the event of a line; `false` if there is none that counts, or if it is refused for good.
async fn record_line(
    services: &Services,
    catalogue: &Catalogue,
    line: String,
) -> Result<bool, Undrained> {
    let Some(tool) = catalogue.find(&Caller::Operator, HOOK_EVENT) else {
        return Err(Undrained::stop(ErrorKind::Other, "there is no tool for the events of hooks"));
    };
    let Ok(Value::Object(mut arguments)) = serde_json::from_str(&line) else {
        tracing::warn!("an event in the hooks' spool cannot be read");
        return Ok(false);
    };
    return_unprinted(services, &mut arguments).await?;
    if !arguments.contains_key("client") {
        return Ok(false);
    }
    let Some(caller) = caller_of_line(services, &mut arguments).await? else {
        tracing::warn!("an event in the hooks' spool has no known caller");
        return Ok(false);
    };
    match tool.call(Call::alone(services.clone(), caller), arguments).await {
        Ok(_) => Ok(true),
        Err(Failure::Tool(error)) if error.kind == ErrorType::Unavailable => {
            Err(match error.reason {
                Some("limit_reached") => Undrained::Later(error.message),
                Some("store_unavailable" | "fenced") => {
                    Undrained::stop(ErrorKind::NotConnected, error.message)
                }
                _ => Undrained::stop(ErrorKind::Other, error.message),
            })
        }
        Err(_) => {
            tracing::warn!("an event in the hooks' spool is refused");
            Ok(false)
        }
    }
}

/// The caller for an event: the client's process that the line names, which may have ended. `None`
/// if that process may not report events. A line without a process comes from a system that has no
/// list of processes, and counts as the operator's.
async fn caller_of_line(
    services: &Services,
    arguments: &mut Map<String, Value>,
) -> Result<Option<Caller>, Undrained> {
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

/// Why a line stays in the spool.
#[derive(Debug)]
enum Undrained {
    /// This line is refused now, and may pass later; the others are tried.
    Later(String),
    /// No line can be recorded now.
    Stop(io::Error),
}

impl Undrained {
    fn stop(kind: ErrorKind, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Stop(io::Error::new(kind, error))
    }
}

/// Fails if another attempt at a line may do better. Any other error is the line's own, and the
/// line is dropped.
fn not_drained(error: Error) -> Result<(), Undrained> {
    Err(match error {
        Error::StoreUnavailable(_) | Error::OutcomeUnknown { .. } => {
            Undrained::stop(ErrorKind::NotConnected, error)
        }
        Error::Unavailable(_) | Error::StorageFull(_) => Undrained::stop(ErrorKind::Other, error),
        Error::LimitReached(_) | Error::NotNow(_) => Undrained::Later(error.to_string()),
        _ => {
            error.report("skipped a part of an event in the hooks' spool");
            return Ok(());
        }
    })
}

/// Puts messages back into the inbox that a hook got in the response to its event and did not
/// print.
async fn return_unprinted(
    services: &Services,
    arguments: &mut Map<String, Value>,
) -> Result<(), Undrained> {
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
    use std::sync::Mutex;

    use svc_store::StoreError;

    use super::*;

    /// A signal between two runs of the daemon has no run that handles it at once.
    #[tokio::test]
    async fn signal_before_a_run_ends_that_run_and_the_second_drops_the_rest() {
        let (sender, receiver) = watch::channel(0);
        let signals = StopSignals(receiver);
        assert!(!signals.has_come());
        sender.send_modify(|sent| *sent += 1);
        let lifecycle = Lifecycle::default();
        lifecycle.follow(signals.clone());
        lifecycle.soft.cancelled().await;
        assert!(signals.has_come() && !lifecycle.hard.is_cancelled());
        sender.send_modify(|sent| *sent += 1);
        lifecycle.hard.cancelled().await;

        let both = Lifecycle::default();
        both.follow(signals);
        both.hard.cancelled().await;
        assert!(both.soft.is_cancelled());
    }

    #[test]
    fn a_fault_of_one_line_of_the_spool_does_not_hold_up_the_others() {
        let bad = |table| StoreError::BadRow { table, id: "s".to_owned(), why: "x".to_owned() };
        not_drained(Error::Internal(bad("peer"))).expect("is the line's own");
        not_drained(Error::Internal(StoreError::Panicked)).expect("is the line's own");
        not_drained(Error::Conflict("two".to_owned())).expect("is the line's own");
        for error in [Error::NotNow("later".to_owned()), Error::LimitReached("many".to_owned())] {
            let left = not_drained(error).expect_err("comes again");
            assert!(matches!(left, Undrained::Later(_)), "{left:?}");
        }
        let stopped = not_drained(Error::Unavailable(StoreError::Stopped)).expect_err("stops");
        let Undrained::Stop(error) = stopped else { panic!("{stopped:?}") };
        assert_eq!(error.kind(), ErrorKind::Other);
    }

    #[tokio::test]
    async fn refused_line_of_the_spool_is_tried_again_and_no_other_waits_for_it() {
        let home = tempfile::tempdir().expect("a folder");
        let spool = HookSpool::in_home(home.path());
        let (old, late) =
            (r#"{"at":"1970-01-01T00:00:01Z","n":"full"}"#, Some(Timestamp::from_millis(2000)));
        spool.append_all(&["1", "full", old, "2", "note"]).expect("are appended");
        let recorded = Mutex::new(Vec::new());
        let of_line = |line: String| match line.as_str() {
            line if line.contains("full") => {
                not_drained(Error::LimitReached("many".to_owned())).map(|()| false)
            }
            "away" => not_drained(Error::Unavailable(StoreError::Stopped)).map(|()| false),
            _ => {
                let is_event = line != "note";
                recorded.lock().expect("no test panicked").push(line);
                Ok(is_event)
            }
        };
        let record = |line| std::future::ready(of_line(line));
        let drained = drain_spool(&spool, None, &record).await.expect("is drained");
        assert_eq!(drained, DrainedEvents { recorded: 2, left: 2 });
        // An event that is refused and too old is dropped.
        let drained = drain_spool(&spool, late, &record).await.expect("is drained");
        assert_eq!(drained, DrainedEvents { recorded: 0, left: 1 });
        spool.append_all(&["3", "away", "4"]).expect("are appended");
        let stopped =
            drain_spool(&spool, late, &record).await.expect_err("nothing can be recorded");
        assert_eq!(stopped.kind(), ErrorKind::Other);
        assert_eq!(*recorded.lock().expect("no test panicked"), ["1", "2", "note", "3"]);
        // None is lost.
        assert_eq!(spool.take().expect("is read"), ["full", "3", "away", "4"]);
        let drained =
            drain_spool(&spool, late, |_| std::future::ready(Ok(true))).await.expect("is drained");
        assert_eq!(drained, DrainedEvents { recorded: 4, left: 0 });
        assert_eq!(spool.take().expect("is read"), Vec::<String>::new());
    }
}
