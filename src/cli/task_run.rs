//! `svc task run -- CMD…` and `svc task resend`: the command line of [`svc_host::runner`], and the
//! output of both.
//!
//! Once started, the command continues if the daemon goes away or refuses; without a daemon it is
//! never started. Its bytes are printed unchanged: the command is the person's own, and without svc
//! it would write them to the same terminal.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use clap::Args;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use svc_client::{Client, ClientError, Discovery};
use svc_host::runner::{
    EventSender, LeftoverSpool, Run, RunNotice, RunObserver, RunReport, RunnerChild, SendOutcome,
    Signals, SpoolHeader, TaskDocument,
};
use svc_model::FrameKind;
use svc_sys::server_process::find_program;
use tokio::io::{AsyncWrite, AsyncWriteExt as _, Stderr, Stdout};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Context, ExitResult, UsageError, exit, output};

pub(super) const EXAMPLES: &str = "\
Examples:
  svc task run -- cargo test
  svc task run --title nightly --agent ci -- make all

Its output is also printed here, and svc exits with the command's code (128 + the signal's number if one ended it, 127 \
if it cannot be started, in which case there is no task, or one that failed if it has an idempotency key and only the \
start itself showed it).

The command keeps running when the daemon goes away: its output waits in a file under the data folder and is sent when \
the daemon is back. If the daemon is away at the command's end, svc waits for 60 s, or for as many seconds as \
SVC_TASK_RUN_PATIENCE_SECONDS says, or until Ctrl-C; then it prints the command that sends the rest later. \
`svc task cancel` ends the command.

With --json one document at the end has the task's id and the exit code, and the output is not printed. The command \
has no terminal to read from.";

/// How long to retry at the end while the daemon is away, unless `SVC_TASK_RUN_PATIENCE_SECONDS`
/// says otherwise. A person or a script waits for the command's exit code.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Longest title from a command line, in characters.
const TITLE: usize = 200;
const CANNOT_START: u8 = 127;

#[derive(Debug, Clone, Args)]
pub(super) struct RunArgs {
    /// A title for people [default: the command]
    #[arg(long)]
    title: Option<String>,
    /// Who does it
    #[arg(long)]
    agent: Option<String>,
    /// On whose behalf; only the operator may choose
    #[arg(long)]
    from: Option<String>,
    /// If a task has this key already, run nothing and exit as its command did (0 while it runs)
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(super) async fn run(context: &Context, args: RunArgs) -> ExitResult {
    let max_wait = max_wait(context, TIMEOUT)?;
    let discovery = context.discovery()?;
    check_reachable(&discovery).await.context("the command was not started")?;
    let header = header(&args);
    let printer = Arc::new(RunPrinter::new(!context.json));
    let run = Run::prepare(&context.paths.spool, &header, discovery.clone(), printer)?;
    let has_key = args.idempotency_key.is_some();
    if has_key {
        let path = context.env.os("PATH").unwrap_or_default();
        if let Err(error) = find_program(&args.command[0], path) {
            run.discard();
            return Ok(not_started(context, &args, &error));
        }
        // Only one run with a key may start its command, so the task is created first.
        match claim(&discovery, &header).await {
            Ok(None) => {}
            Ok(Some(task)) => {
                run.discard();
                return report_existing_run(context, &task);
            }
            Err(error) => {
                run.discard();
                return Err(error.context("the command was not started"));
            }
        }
    }
    // Installed before the command starts, as signals are forwarded to the command from then on.
    let signals = Signals::new()?;
    let child = match RunnerChild::spawn(&args.command) {
        Ok(child) => child,
        Err(error) if has_key => {
            let outcome = run.record_failed_start(&error, CANNOT_START, STARTING).await?;
            note_unrecorded(&outcome);
            return Ok(not_started(context, &args, &error));
        }
        Err(error) => {
            run.discard();
            return Ok(not_started(context, &args, &error));
        }
    };
    conclude(context, run.attend(child, signals, max_wait).await?)
}

fn not_started(context: &Context, args: &RunArgs, error: &io::Error) -> ExitCode {
    let text = format!("cannot start {}: {error}", args.command[0].display());
    exit::note_failure(&text, context.json);
    ExitCode::from(CANNOT_START)
}

fn note_unrecorded(outcome: &SendOutcome) {
    if let SendOutcome::NoTask(problem)
    | SendOutcome::TaskClosed(problem)
    | SendOutcome::Refused(problem)
    | SendOutcome::GaveUp(problem) = outcome
    {
        output::note(&format!("svc: the end of the task is not recorded: {problem}"));
    }
}

/// Reports the existing task of the key, with the exit code of its run.
fn report_existing_run(context: &Context, task: &TaskDocument) -> ExitResult {
    output::note(&format!(
        "svc: task {} already has this idempotency key and is {}; nothing was run",
        task.id(),
        task.status(),
    ));
    let code = task.exit_code();
    if context.json {
        output::json(&json!({ "task_id": task.id(), "exit_code": code, "leftover": null }))?;
    }
    Ok(ExitCode::from(code))
}

fn conclude(context: &Context, report: RunReport) -> ExitResult {
    if let SendOutcome::NoTask(problem) = report.outcome {
        bail!("{problem}; the command was stopped");
    }
    let code = report.exit.shell_code();
    if context.json {
        let task = report.task.as_ref().map(TaskDocument::id);
        let leftover = report.leftover.as_ref().map(|path| path.display().to_string());
        let document = json!({ "task_id": task, "exit_code": code, "leftover": leftover });
        output::json(&document)?;
    }
    if let Some(path) = report.leftover {
        let path = path.display();
        output::note(&format!(
            "svc: not everything reached the daemon; the rest is in {path}: `svc task resend {path}`"
        ));
    }
    Ok(ExitCode::from(code))
}

fn header(args: &RunArgs) -> SpoolHeader {
    let run = format!("run_{}", &svc_model::new_secret()[..24]);
    let line: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let title = args.title.clone().unwrap_or_else(|| line.join(" ").chars().take(TITLE).collect());
    let mut create = json!({
        "title": Some(title).filter(|title| !title.trim().is_empty()), "agent": args.agent,
        "from": args.from, "idempotency_key": args.idempotency_key.as_ref().unwrap_or(&run),
    });
    if args.idempotency_key.is_some() {
        // Distinguishes this run's task from an earlier run's.
        create["metadata"] = json!({ "run": run });
    }
    SpoolHeader { version: SpoolHeader::VERSION, run, create }
}

/// How long the daemon may be away, from `SVC_TASK_RUN_PATIENCE_SECONDS`.
///
/// `default` if that is not set.
pub(super) fn max_wait(context: &Context, default: Duration) -> Result<Duration> {
    const NAME: &str = "SVC_TASK_RUN_PATIENCE_SECONDS";
    match context.env.text(NAME)? {
        None => Ok(default),
        Some(text) => match text.trim().parse() {
            Ok(seconds) => Ok(Duration::from_secs(seconds)),
            Err(_) => Err(UsageError(format!("{NAME}={text}: not a number of seconds")).into()),
        },
    }
}

/// How long to wait for a daemon that is starting.
const STARTING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// Whether a task could be created now: a failure should come before the command has done anything.
async fn check_reachable(discovery: &Discovery) -> Result<()> {
    let is_starting = |error: &ClientError| error.status() == Some(StatusCode::SERVICE_UNAVAILABLE);
    ask_daemon(discovery, Method::GET, "/v1/tasks?limit=1", None, is_starting).await.map(drop)
}

/// Creates the task of a run with a key. Returns the existing task if it belongs to another run.
async fn claim(discovery: &Discovery, header: &SpoolHeader) -> Result<Option<TaskDocument>> {
    let body = Bytes::from(serde_json::to_vec(&header.create)?);
    let is_transient = ClientError::is_transient;
    let task = ask_daemon(discovery, Method::POST, "/v1/tasks", Some(body), is_transient).await?;
    // If the response to the first attempt was lost, the existing task belongs to this run.
    let is_ours = task["metadata"] == header.create["metadata"];
    Ok((!is_ours).then_some(TaskDocument(task)))
}

/// Retries after a failure that `may_pass`, for as long as a daemon may take to start.
async fn ask_daemon(
    discovery: &Discovery,
    method: Method,
    path: &str,
    body: Option<Bytes>,
    may_pass: fn(&ClientError) -> bool,
) -> Result<Value> {
    let deadline = Instant::now() + STARTING;
    loop {
        let client = Client::new(discovery.target()?);
        match client.request(method.clone(), path, body.clone()).await {
            Ok(reply) => return Ok(reply.json()?),
            Err(error) if may_pass(&error) && Instant::now() < deadline => sleep(PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Prints a run. After an output was closed it is not written to again.
#[derive(Debug)]
struct RunPrinter {
    /// Else one document is printed at the end.
    shows_output: bool,
    stdout: Mutex<Option<Stdout>>,
    stderr: Mutex<Option<Stderr>>,
    muted: CancellationToken,
}

impl RunPrinter {
    fn new(shows_output: bool) -> Self {
        Self {
            shows_output,
            stdout: Mutex::new(Some(tokio::io::stdout())),
            stderr: Mutex::new(Some(tokio::io::stderr())),
            muted: CancellationToken::new(),
        }
    }

    /// Writes the bytes unchanged, and waits until they are written.
    async fn copy<W>(&self, output: &Mutex<Option<W>>, bytes: &[u8])
    where
        W: AsyncWrite + Unpin + Send,
    {
        let mut output = output.lock().await;
        let Some(writer) = &mut *output else { return };
        let work = async {
            writer.write_all(bytes).await?;
            writer.flush().await
        };
        let written = tokio::select! {
            written = work => written.is_ok(),
            () = self.muted.cancelled() => false,
        };
        if !written {
            *output = None;
        }
    }
}

impl RunObserver for RunPrinter {
    async fn output(&self, pipe: FrameKind, bytes: &[u8]) {
        match pipe {
            _ if !self.shows_output => {}
            FrameKind::Stdout => self.copy(&self.stdout, bytes).await,
            FrameKind::Stderr => self.copy(&self.stderr, bytes).await,
        }
    }

    fn task_made(&self, task: &TaskDocument) {
        if self.shows_output {
            output::note(&format!("svc: task {}", task.id()));
        }
    }

    fn mute(&self) {
        self.muted.cancel();
    }

    fn notice(&self, notice: RunNotice) {
        output::note(&format!("svc: {}", sentence(notice)));
    }
}

fn sentence(notice: RunNotice) -> String {
    match notice {
        RunNotice::DaemonAway { problem } => {
            let problem = problem.unwrap_or_else(|| "the daemon is away".to_owned());
            format!("{problem}; the output is kept until the daemon accepts it")
        }
        RunNotice::WaitsAtEnd { exit, max_wait } => format!(
            "the command {exit}; svc waits for the daemon for up to {} s, Ctrl-C leaves the rest in its file",
            max_wait.as_secs()
        ),
        RunNotice::DaemonBack => "the daemon is back".to_owned(),
        RunNotice::TaskRefused { problem } => {
            format!(
                "the daemon accepts no more output of this task: {problem}; the command keeps running"
            )
        }
        RunNotice::SpoolFailed { problem } => {
            format!("{problem}; the task misses output, but the command keeps running")
        }
        RunNotice::EndNotRecorded { problem } => {
            format!("{problem}; the task's end is not recorded")
        }
        RunNotice::NeedsTerminal => {
            "the command waits for the terminal, which a task does not have; \
             give it its input by a pipe, or </dev/null"
                .to_owned()
        }
    }
}

/// How long to retry while the daemon is away: a person waits, and the file stays.
const RESEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a spool file that a run left behind, and removes it.
///
/// With `new` the run becomes a new task. A repetition finds the same task again.
pub(super) async fn resend(context: &Context, file: &Path, new: bool) -> ExitResult {
    let LeftoverSpool { mut header, reader, written, lock: _lock } = LeftoverSpool::open(file)?;
    if new {
        header.create["idempotency_key"] = json!(format!("{}-new", header.run));
    }
    let (discovery, max_wait) = (context.discovery()?, max_wait(context, RESEND_TIMEOUT)?);
    let sender = EventSender {
        discovery,
        create: header.create,
        reader,
        max_wait,
        accept_begun: true,
        observer: Arc::new(RunPrinter::new(true)),
    };
    let (outcome, task) = sender.run_to_end(written).await;
    match outcome {
        SendOutcome::Complete => {}
        SendOutcome::TaskClosed(problem) => bail!(
            "{problem}; `svc task resend --new {}` records the whole run as a new task",
            file.display()
        ),
        SendOutcome::NoTask(problem) | SendOutcome::Refused(problem) => {
            bail!("{problem}; {} is left as it is", file.display())
        }
        SendOutcome::GaveUp(problem) => {
            bail!("{problem}; {} is left as it is, try again later", file.display())
        }
    }
    std::fs::remove_file(file)?;
    let id = task.as_ref().map(TaskDocument::id).unwrap_or_default();
    let line = format!("task {id} has all lines; removed {}", file.display());
    context.print_line(&json!({ "task_id": id, "removed": file }), &line)
}
