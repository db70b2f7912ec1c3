//! The command line of `svc task run`, and its exit code.

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde_json::{Map, Value, json};
use svc_host::runner::{
    Run, RunReport, RunnerChild, SendOutcome, Signals, SpoolHeader, TaskDocument,
};
use svc_sys::server_process::find_program;

use super::super::{Context, UsageError, exit, output};
use super::claim::{STARTING, check_reachable, claim};
use super::printer::{PrintMode, RunPrinter};

pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  svc task run -- cargo test
  svc task run --title nightly --agent ci -- make all

Its output is also printed here, and svc exits with the command's code (128 + the signal's number if one ended it, 127 \
if it cannot be started, in which case there is no task, or one that failed if it has an idempotency key and only the \
start itself showed it).

The command keeps running when the daemon goes away: its output waits in a file under the data folder and is sent when \
the daemon is back. `svc task cancel` ends the command.

With --json the events are printed, one per line, and not the output. It has no terminal to read from.";

/// How long to retry at the end while the daemon is away, unless `SVC_TASK_RUN_PATIENCE_SECONDS`
/// says otherwise.
const PATIENCE: Duration = Duration::from_hours(1);
/// Longest title made from a command line, in characters.
const TITLE: usize = 200;
/// The exit code for a command that cannot be started.
const CANNOT_START: u8 = 127;

/// Arguments of `svc task run`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct RunArgs {
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
    /// Do not print the task's id on standard error
    #[arg(short, long)]
    quiet: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs a command as a task and returns its exit code.
pub(in crate::cli) async fn run(context: &Context, args: RunArgs) -> anyhow::Result<ExitCode> {
    let patience = patience(context, PATIENCE)?;
    let discovery = context.discovery()?;
    check_reachable(&discovery).await.context("the command was not started")?;
    let header = header(&args);
    let printer = Arc::new(RunPrinter::new(print_mode(context, &args)));
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
    // Installed before the command starts: from then on signals are forwarded to the command.
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
    conclude(run.attend(child, signals, patience).await?)
}

fn print_mode(context: &Context, args: &RunArgs) -> PrintMode {
    match (context.json, args.quiet) {
        (true, _) => PrintMode::Json,
        (false, true) => PrintMode::Quiet,
        (false, false) => PrintMode::Announced,
    }
}

/// Reports that the command cannot be started.
fn not_started(context: &Context, args: &RunArgs, error: &io::Error) -> ExitCode {
    let text = format!("cannot start {}: {error}", args.command[0].display());
    exit::note_failure(&text, context.json);
    ExitCode::from(CANNOT_START)
}

/// Reports that the daemon did not take the end of a task whose command could not be started.
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
fn report_existing_run(context: &Context, task: &TaskDocument) -> anyhow::Result<ExitCode> {
    output::note(&format!(
        "svc: task {} already has this idempotency key and is {}; nothing was run",
        task.id(),
        task.status(),
    ));
    if context.json {
        output::ndjson(&json!({ "kind": "task", "data": task.0 }))?;
    }
    Ok(ExitCode::from(task.exit_code()))
}

/// Reports what did not reach the daemon, and returns the exit code.
fn conclude(report: RunReport) -> anyhow::Result<ExitCode> {
    if let SendOutcome::NoTask(problem) = report.outcome {
        anyhow::bail!("{problem}; the command was stopped");
    }
    if let Some(path) = report.leftover {
        let path = path.display();
        output::note(&format!(
            "svc: not everything reached the daemon; the rest is in {path}: `svc task resend {path}`"
        ));
    }
    Ok(ExitCode::from(report.exit.shell_code()))
}

fn header(args: &RunArgs) -> SpoolHeader {
    let run = format!("run_{}", &svc_model::new_secret()[..24]);
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
        // Identifies the task as this run's and not an earlier run's.
        create["metadata"] = json!({ "run": run });
    }
    SpoolHeader { version: SpoolHeader::VERSION, run, create }
}

/// How long the daemon may be away, from `SVC_TASK_RUN_PATIENCE_SECONDS`.
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
