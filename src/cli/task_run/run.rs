//! The command line of `svc task run`, and how its parts play together.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use clap::Args;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::super::{Context, UsageError, output};
use super::echo::Echo;
use super::notices::notify;
use crate::client::{Client, ClientError, Discovery};
use crate::runner::{
    self, Ended, EventSender, Frame, Header, Numbering, Outcome, OutputLines, Pipe, Progress,
    Signals, Spool, active, supervise, terminal, timestamp,
};

pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  svc task run -- cargo test
  svc task run --title nightly --agent ci -- make all

Its output is also printed here, and svc exits with the command's code (128 + the signal's number if one ended it, 127
if it cannot be started, in which case there is no task, or one that failed if it has an idempotency key and only the
start itself showed it). The command keeps running when the daemon goes away: its
output waits in a file under the data folder and is sent when the daemon is back. `svc task cancel` ends the command.
With --json the events are printed, one per line, and not the output. It has no terminal to read from.";

/// How long the daemon may be away at the end, unless `SVC_TASK_RUN_PATIENCE_SECONDS` says otherwise.
const PATIENCE: Duration = Duration::from_hours(1);
/// How long a daemon that is just starting is waited for.
const STARTING: Duration = Duration::from_secs(5);
/// How long the outputs of a command that has ended may stay open in silence: something in the background has them.
const LINGER: Duration = Duration::from_secs(2);
/// Lines between the pipes and the spool.
const QUEUE: usize = 256;
/// Bytes read from a pipe at once.
const BLOCK: usize = 64 * 1024;
/// Longest title made from a command line, in characters.
const TITLE: usize = 200;
/// The exit code for a command that cannot be started.
const CANNOT_START: u8 = 127;

/// Arguments of `svc task run`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct RunArgs {
    /// What people call it [default: the command]
    #[arg(long)]
    title: Option<String>,
    /// Who does it
    #[arg(long)]
    agent: Option<String>,
    /// Who asks for it; only the operator may choose
    #[arg(long)]
    from: Option<String>,
    /// Run nothing if a task was made under this key already, and exit as its command did (0 if it is not over)
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Do not say the task's id on standard error
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs a command as a task and gives its exit code.
pub(in crate::cli) async fn run(context: &Context, args: RunArgs) -> anyhow::Result<ExitCode> {
    let patience = patience(context, PATIENCE)?;
    let discovery = context.discovery()?;
    reachable(&discovery).await.context("the command was not started")?;
    let header = header(&args);
    let mut spool = Spool::create(&context.paths.spool, &header)?;
    let mut numbering = Numbering::new(header.run.clone());
    spool.append(&numbering.line("task", &active())?)?;
    let keyed = args.idempotency_key.is_some();
    if keyed {
        // Only one run of a key may start its command, so the task comes first.
        let path = context.env.os("PATH").unwrap_or_default();
        if let Err(error) = runner::find(&args.command[0], path) {
            return Ok(not_started(&args, &spool, &error));
        }
        let made = claim(&discovery, &header).await;
        if !matches!(made, Ok(None)) {
            std::fs::remove_file(spool.path()).ok();
        }
        if let Some(task) = made.context("the command was not started")? {
            return made_before(context, &task);
        }
    }
    // Taken before the command starts: from then on a signal is the command's.
    let mut signals = Signals::new()?;
    let (mut child, group) = match runner::spawn(&args.command) {
        Ok(spawned) => spawned,
        Err(error) if keyed => {
            spool.append(&numbering.line("terminal", &failed_to_start(&error))?)?;
            send_rest(discovery, header.create, &spool).await;
            return Ok(not_started(&args, &spool, &error));
        }
        Err(error) => return Ok(not_started(&args, &spool, &error)),
    };
    let quiet = CancellationToken::new();
    let echo = Arc::new(Echo::new(quiet.clone()));
    let (progress, progress_seen) =
        watch::channel(Progress { written: spool.written(), ..Progress::default() });
    let (task, task_seen) = watch::channel(None);
    let no_task = CancellationToken::new();
    let sender = EventSender {
        discovery: discovery.clone(),
        create: header.create,
        batches: spool.reader()?,
        patience,
        may_be_active: false,
        task,
        progress: progress_seen,
        notify,
    };
    let sending = spawn(send(sender, no_task.clone()));
    let announcing = spawn(announce(
        task_seen.clone(),
        (!args.quiet && !context.json).then_some(()),
        context.json.then(|| Arc::clone(&echo)),
    ));

    let (lines, queue) = mpsc::channel(QUEUE);
    let (ended, end_seen) = watch::channel(false);
    let readers =
        [
            child.stdout.take().map(|pipe| {
                spawn_reader(pipe, Pipe::Stdout, &lines, &echo, &end_seen, context.json)
            }),
            child.stderr.take().map(|pipe| {
                spawn_reader(pipe, Pipe::Stderr, &lines, &echo, &end_seen, context.json)
            }),
        ];
    drop(lines);
    let recording = spawn(record(
        queue,
        spool,
        numbering,
        progress.clone(),
        context.json.then(|| Arc::clone(&echo)),
    ));
    let work = command_and_output(&mut child, ended, readers);
    let cancelled = cancel_of(discovery, task_seen.clone());
    let (status, story) =
        supervise(group, &mut signals, &quiet, notify, work, cancelled, no_task.cancelled()).await;
    let ended = Ended::of(status.context("cannot tell how the command ended")?);
    let (mut spool, mut numbering) = recording.await?;
    let end = terminal(ended, story.cancelled);
    if let Err(error) = spool.append(&numbering.line("terminal", &end)?) {
        output::note(&format!(
            "svc: cannot write {}: {error}; the task's end is not recorded",
            spool.path().display()
        ));
    }
    progress
        .send_modify(|progress| (progress.written, progress.finished) = (spool.written(), true));
    let outcome = tokio::select! {
        outcome = sending => outcome?,
        () = abandon(&mut signals, &progress) => unreachable!("waits for ever"),
    };
    announcing.abort();
    conclude(&outcome, &spool, ended, context.json.then_some((&echo, &end))).await
}

/// Says that the command cannot be started, and leaves nothing behind.
fn not_started(args: &RunArgs, spool: &Spool, error: &std::io::Error) -> ExitCode {
    std::fs::remove_file(spool.path()).ok();
    output::note(&format!("svc: cannot start {}: {error}", args.command[0].display()));
    ExitCode::from(CANNOT_START)
}

/// The end of a task whose command could not be started.
fn failed_to_start(error: &std::io::Error) -> Value {
    let error = format!("cannot start the command: {error}");
    json!({ "status": "failed", "exit_code": CANNOT_START, "error": error })
}

/// Sends a spool to which nothing more comes.
async fn send_rest(discovery: Discovery, create: Value, spool: &Spool) {
    let (task, _task_seen) = watch::channel(None);
    let written = spool.written();
    // The sending end stays in this scope: its being dropped would say that the run has crashed.
    let (_progress, progress) =
        watch::channel(Progress { written, finished: true, abandoned: false });
    let Ok(batches) = spool.reader() else { return };
    let (patience, may_be_active) = (STARTING, false);
    let sender =
        EventSender { discovery, create, batches, patience, may_be_active, task, progress, notify };
    if let Outcome::NoTask(problem) | Outcome::Refused { problem, .. } | Outcome::GaveUp(problem) =
        sender.run().await
    {
        output::note(&format!("svc: the end of the task is not recorded: {problem}"));
    }
}

/// Makes the task of a run that has a key; answers the one that was there already, if it is another run's.
async fn claim(discovery: &Discovery, header: &Header) -> anyhow::Result<Option<Value>> {
    let body = Some(Bytes::from(serde_json::to_vec(&header.create)?));
    let task = ask(discovery, Method::POST, "/v1/tasks", body, ClientError::is_transient).await?;
    // The answer to a first try may have been lost: the task is this run's all the same.
    let ours = task["metadata"] == header.create["metadata"];
    Ok((!ours).then_some(task))
}

/// Says what there is instead of a run of its own, with the exit code of the run that was.
fn made_before(context: &Context, task: &Value) -> anyhow::Result<ExitCode> {
    output::note(&format!(
        "svc: task {} was made under this idempotency key already and is {}; nothing was run",
        output::cell(task, "task_id"),
        output::cell(task, "status"),
    ));
    if context.json {
        output::ndjson(&json!({ "kind": "task", "data": task }))?;
    }
    Ok(ExitCode::from(runner::exit_code_of(task)))
}

/// What is left to say, and the exit code.
async fn conclude(
    outcome: &Outcome,
    spool: &Spool,
    ended: Ended,
    json: Option<(&Arc<Echo>, &Value)>,
) -> anyhow::Result<ExitCode> {
    if let Some((echo, end)) = json {
        echo.write(
            Pipe::Stdout,
            format!("{}\n", json!({ "kind": "terminal", "data": end })).as_bytes(),
        )
        .await;
    }
    let path = spool.path().display();
    match outcome {
        Outcome::Complete | Outcome::Refused { keep: false, .. } => {
            std::fs::remove_file(spool.path()).ok();
        }
        Outcome::NoTask(problem) => {
            std::fs::remove_file(spool.path()).ok();
            anyhow::bail!("{problem}; the command was stopped");
        }
        Outcome::Refused { keep: true, .. } | Outcome::GaveUp(_) => {
            output::note(&format!(
                "svc: not everything reached the daemon; the rest is in {path}: `svc task resend {path}`"
            ));
        }
    }
    Ok(ExitCode::from(ended.exit_code()))
}

/// Sends, and lets the others know at once when that is over before its time.
async fn send(sender: EventSender, no_task: CancellationToken) -> Outcome {
    let outcome = sender.run().await;
    match &outcome {
        Outcome::NoTask(_) => no_task.cancel(),
        Outcome::Refused { problem, .. } => {
            output::note(&format!(
                "svc: the daemon takes no more of this task: {problem}; the command goes on"
            ));
        }
        Outcome::Complete | Outcome::GaveUp(_) => {}
    }
    outcome
}

/// A signal after the command has ended means: do not wait for the daemon.
async fn abandon(signals: &mut Signals, progress: &watch::Sender<Progress>) {
    loop {
        signals.next().await;
        progress.send_modify(|progress| progress.abandoned = true);
    }
}

async fn announce(
    mut task: watch::Receiver<Option<Value>>,
    note: Option<()>,
    json: Option<Arc<Echo>>,
) {
    let Ok(made) =
        task.wait_for(Option::is_some).await.map(|task| task.clone().unwrap_or_default())
    else {
        return;
    };
    if note.is_some() {
        output::note(&format!("svc: task {}", output::cell(&made, "task_id")));
    }
    if let Some(echo) = json {
        echo.write(
            Pipe::Stdout,
            format!("{}\n", json!({ "kind": "task", "data": made })).as_bytes(),
        )
        .await;
    }
}

/// Ends when someone asks for the task, once it is made, to stop.
async fn cancel_of(discovery: Discovery, mut task: watch::Receiver<Option<Value>>) {
    let made = task.wait_for(Option::is_some).await.map(|task| task.clone().unwrap_or_default());
    let Ok(made) = made else {
        return std::future::pending().await;
    };
    let id = output::cell(&made, "task_id");
    runner::requested(discovery, id).await;
}

async fn command_and_output(
    child: &mut Child,
    ended: watch::Sender<bool>,
    readers: [Option<JoinHandle<()>>; 2],
) -> std::io::Result<std::process::ExitStatus> {
    let status = child.wait().await;
    ended.send_replace(true);
    for reader in readers.into_iter().flatten() {
        reader.await.ok();
    }
    status
}

fn spawn_reader(
    pipe: impl AsyncRead + Unpin + Send + 'static,
    kind: Pipe,
    lines: &mpsc::Sender<Frame>,
    echo: &Arc<Echo>,
    ended: &watch::Receiver<bool>,
    json: bool,
) -> JoinHandle<()> {
    let echo = (!json).then(|| Arc::clone(echo));
    spawn(read(pipe, kind, lines.clone(), echo, ended.clone()))
}

/// Every task of a run is waited for, or has no more to do once the command and the sending are over.
fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(work)
}

/// Reads one output to its end, or until it is silent after the command has ended.
async fn read(
    mut pipe: impl AsyncRead + Unpin + Send,
    kind: Pipe,
    queue: mpsc::Sender<Frame>,
    echo: Option<Arc<Echo>>,
    mut ended: watch::Receiver<bool>,
) {
    let (mut splitter, mut lines, mut block) = (OutputLines::default(), Vec::new(), vec![0; BLOCK]);
    loop {
        let count = tokio::select! {
            biased;
            count = pipe.read(&mut block) => count.unwrap_or(0),
            () = silence(&mut ended) => 0,
        };
        if count == 0 {
            splitter.finish(&mut lines);
        } else {
            splitter.push(&block[..count], &mut lines);
        }
        let ts = timestamp();
        for line in lines.drain(..) {
            let frame = Frame { line, kind, ts: ts.clone() };
            queue.send(frame).await.ok();
        }
        if count == 0 {
            return;
        }
        if let Some(echo) = &echo {
            echo.write(kind, &block[..count]).await;
        }
    }
}

async fn silence(ended: &mut watch::Receiver<bool>) {
    ended.wait_for(|ended| *ended).await.ok();
    sleep(LINGER).await;
}

/// Writes lines to the spool, as many at once as there are.
async fn record(
    mut queue: mpsc::Receiver<Frame>,
    mut spool: Spool,
    mut numbering: Numbering,
    progress: watch::Sender<Progress>,
    json: Option<Arc<Echo>>,
) -> (Spool, Numbering) {
    let mut frames = Vec::with_capacity(QUEUE);
    let mut full = false;
    while queue.recv_many(&mut frames, QUEUE).await > 0 {
        let mut text = Vec::new();
        for frame in &frames {
            text.extend(numbering.line("frame", frame).unwrap_or_default());
        }
        match spool.append(&text) {
            Ok(()) => progress.send_modify(|progress| progress.written = spool.written()),
            Err(error) if !full => {
                full = true;
                let path = spool.path().display();
                output::note(&format!(
                    "svc: cannot write {path}: {error}; output is lost to the task, the command goes on"
                ));
            }
            Err(_) => {}
        }
        if let Some(echo) = &json {
            for frame in &frames {
                echo.write(
                    Pipe::Stdout,
                    format!("{}\n", json!({ "kind": "frame", "data": frame })).as_bytes(),
                )
                .await;
            }
        }
        frames.clear();
    }
    (spool, numbering)
}

/// Whether a task could be made now: better said before the command has done anything.
async fn reachable(discovery: &Discovery) -> anyhow::Result<()> {
    let starting = |error: &ClientError| error.status() == Some(StatusCode::SERVICE_UNAVAILABLE);
    ask(discovery, Method::GET, "/v1/tasks?limit=1", None, starting).await.map(drop)
}

/// Asks again, for as long as a daemon may take to start, when it fails in a way of which `passes` says that it does.
async fn ask(
    discovery: &Discovery,
    method: Method,
    path: &str,
    body: Option<Bytes>,
    passes: fn(&ClientError) -> bool,
) -> anyhow::Result<Value> {
    let deadline = Instant::now() + STARTING;
    loop {
        let client = Client::new(discovery.target()?);
        match client.request(method.clone(), path, body.clone()).await {
            Ok(reply) => return Ok(reply.json()?),
            Err(error) if passes(&error) && Instant::now() < deadline => {
                sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn header(args: &RunArgs) -> Header {
    let run = format!("run_{}", &crate::service::new_secret()[..24]);
    let line: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let title = args.title.clone().unwrap_or_else(|| line.join(" ").chars().take(TITLE).collect());
    let fields = [
        ("title", Some(title).filter(|title| !title.trim().is_empty())),
        ("agent", args.agent.clone()),
        ("from", args.from.clone()),
        ("idempotency_key", Some(args.idempotency_key.clone().unwrap_or_else(|| run.clone()))),
    ];
    let create: Map<String, Value> = fields
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), Value::String(value?))))
        .collect();
    let mut create = Value::Object(create);
    if args.idempotency_key.is_some() {
        // By this a run knows its own task from that of an earlier one.
        create["metadata"] = json!({ "run": run });
    }
    Header { version: 1, run, create }
}

/// The time that the daemon may be away, from `SVC_TASK_RUN_PATIENCE_SECONDS`.
///
/// `default` if that is not set.
pub(super) fn patience(context: &Context, default: Duration) -> anyhow::Result<Duration> {
    const NAME: &str = "SVC_TASK_RUN_PATIENCE_SECONDS";
    match context.env.text(NAME)? {
        None => Ok(default),
        Some(text) => match text.trim().parse() {
            Ok(seconds) => Ok(Duration::from_secs(seconds)),
            Err(_) => Err(UsageError(format!("{NAME}={text}: not a number of seconds")).into()),
        },
    }
}
