//! The command line of `svc task run`, and how its parts play together.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use http::StatusCode;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::super::{Context, UsageError, output};
use super::cancel;
use super::child::{self, Ended};
use super::echo::Echo;
use super::event::{Frame, Numbering, Pipe, active, terminal, timestamp};
use super::lines::Splitter;
use super::sender::{Outcome, Progress, Sender};
use super::spool::{Header, Spool};
use super::supervise::{Signals, supervise};
use crate::client::{Client, Discovery};

pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  svc task run -- cargo test
  svc task run --title nightly --agent ci -- make all

Its output is also printed here, and svc exits with the command's code (128 + the signal's number if one ended it, 127
if it cannot be started, in which case there is no task). The command keeps running when the daemon goes away: its
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
    /// Run nothing if a task was made under this key already
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
    let header = header(&args)?;
    let mut spool = Spool::create(&context.paths.spool, &header)?;
    let mut numbering = Numbering::new(header.run.clone());
    spool.append(&numbering.line("task", &active())?)?;
    // Taken before the command starts: from then on a signal is the command's.
    let mut signals = Signals::new()?;
    let (mut child, group) = match child::spawn(&args.command) {
        Ok(spawned) => spawned,
        Err(error) => {
            std::fs::remove_file(spool.path()).ok();
            output::note(&format!("svc: cannot start {}: {error}", args.command[0].display()));
            return Ok(ExitCode::from(CANNOT_START));
        }
    };
    let quiet = CancellationToken::new();
    let echo = Arc::new(Echo::new(quiet.clone()));
    let (progress, progress_seen) =
        watch::channel(Progress { written: spool.written(), ..Progress::default() });
    let (task, task_seen) = watch::channel(None);
    let no_task = CancellationToken::new();
    let sender = Sender {
        discovery: discovery.clone(),
        create: header.create,
        batches: spool.reader()?,
        patience,
        may_be_active: false,
        task,
        progress: progress_seen,
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
        supervise(group, &mut signals, &quiet, work, cancelled, no_task.cancelled()).await;
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
async fn send(sender: Sender, no_task: CancellationToken) -> Outcome {
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
    cancel::requested(discovery, id).await;
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
#[expect(clippy::disallowed_methods, reason = "a run has no lifecycle: it ends with its command")]
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
    let (mut splitter, mut lines, mut block) = (Splitter::default(), Vec::new(), vec![0; BLOCK]);
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
    let deadline = Instant::now() + STARTING;
    loop {
        let client = Client::new(discovery.target()?);
        match client.get::<Value>("/v1/tasks?limit=1").await {
            Ok(_) => return Ok(()),
            Err(error)
                if error.status() == Some(StatusCode::SERVICE_UNAVAILABLE)
                    && Instant::now() < deadline =>
            {
                sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn header(args: &RunArgs) -> anyhow::Result<Header> {
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
    Ok(Header { version: 1, run, create: Value::Object(create) })
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
