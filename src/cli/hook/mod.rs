//! `svc hook`: what coding agents run at their events.
//!
//! A client waits for its hooks, shows their failures to people, and takes some exit codes for orders. So: one request,
//! a deadline over everything, the client's own shape on standard output or nothing at all, and exit code 0 whatever
//! happens. What went wrong stands in `hooks.log`; what the daemon could not be told waits in `hooks.spool`; of which answers
//! nobody saw stands in `hooks.lost`, and the session's next hook tells it. A hook that its client kills notes nothing.

mod away;
mod input;
mod print;
mod report;
mod tell;
mod wait;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, Parser, ValueEnum};
use serde_json::{Value, json};

use super::context::Context;
use super::global_flags::GlobalFlags;
use super::process;
use crate::config::Env;
use crate::domain::hook::{HookClient, session_of};
use crate::domain::{Clock as _, HookId, Ids, SystemClock};

use self::report::Report;

pub(super) const EXAMPLES: &str = "\
Examples:
  svc hook claude SessionStart < payload.json
  svc hook gemini --format spec < payload.json

`svc install` puts these into the clients' settings. Reads the client's payload on standard input,
tells the daemon, and prints what the client accepts, or nothing. Always ends with exit code 0,
within 80 ms at the start of a session, 300 ms at its end, and 150 ms otherwise; an event that the
daemon could not be told is told when it is back. `svc hook wait` is for Claude Code's asyncRewake:
it waits until a message comes, and ends with exit code 2 and the message on standard error.
What went wrong stands in hooks.log in the data folder.";

#[derive(Debug, Args)]
pub(super) struct HookArgs {
    /// claude, codex, gemini or opencode; or wait
    client: String,
    /// The client's name of the event [default: the one in the payload]
    event: Option<String>,
    /// The shape of what is printed
    #[arg(long, value_enum, default_value_t = Format::Client)]
    format: Format,
    /// The event was told before under this id, perhaps in vain: it counts once, and nothing is printed
    #[arg(long, value_name = "ID")]
    again: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The client's own
    Client,
    /// {"type": …}, for scripts
    Spec,
}

/// The command alone: a hook has no time for the whole tree.
#[derive(Debug, Parser)]
#[command(name = "svc hook", after_help = EXAMPLES)]
struct Alone {
    #[command(flatten)]
    global: GlobalFlags,
    #[command(flatten)]
    args: HookArgs,
}

/// What a hook is there for.
#[derive(Debug)]
struct Job {
    context: Context,
    client: HookClient,
    event: Option<String>,
    format: Format,
    again: Option<String>,
}

/// How far it has come, for when time is up.
#[derive(Debug, Default)]
struct Progress {
    /// The client's name of the event.
    event: Option<String>,
    /// What happened, once it is known.
    happened: Option<Happened>,
    daemon: Daemon,
}

/// An event, for whoever hears of it later.
#[derive(Debug)]
struct Happened {
    session: String,
    id: String,
    /// What the daemon is to be told if it does not have it yet.
    late: Value,
}

/// What the daemon has of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Daemon {
    /// Perhaps it has it, and has answered or will.
    #[default]
    Unknown,
    /// It does not have it.
    Away,
    /// It does not want it.
    Refused,
}

impl Happened {
    /// Nobody sees what is said to it.
    fn is_unseen(&self, home: &Path, report: &Report) {
        away::note_lost(home, &self.session, &self.id, report);
        away::keep(home, &self.late, report);
    }
}

/// Runs `svc hook …` given the arguments that follow `hook`.
pub(super) fn run_alone(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let started = Instant::now();
    let arguments = std::iter::once(OsString::from("svc hook")).chain(arguments);
    match Alone::try_parse_from(arguments) {
        Ok(Alone { global, args }) => run(global, args, started),
        Err(error) => {
            // Help is help; anything else must not look like an order to the client.
            drop(error.print());
            if error.use_stderr() {
                Report::here().note("usage", &error.to_string());
            }
            ExitCode::SUCCESS
        }
    }
}

/// Runs `svc hook`.
pub(super) fn run(global: GlobalFlags, args: HookArgs, started: Instant) -> ExitCode {
    let context = match Context::new(global.home.as_deref(), global.url, global.json) {
        Ok(context) => context,
        Err(error) => {
            super::output::note(&format!("svc hook: {error:#}"));
            return ExitCode::SUCCESS;
        }
    };
    if args.client == "wait" {
        return wait::run(&context);
    }
    let report = Report::of(&context);
    let Some(client) = HookClient::parse(&args.client) else {
        let known = "known are claude, codex, gemini, opencode and wait";
        super::output::note(&format!("svc hook: there is no client {:?}; {known}", args.client));
        report.note("usage", &format!("there is no client {:?}", args.client));
        return ExitCode::SUCCESS;
    };
    let format = args.format;
    let home = context.paths.home.clone();
    let job = Job { context, client, event: args.event, format, again: args.again };
    match within_time(job, &report, started) {
        Ok(Answer { text: Some(text), happened }) => {
            if let Err(error) = print::whole(std::io::stdout(), &text) {
                report.note("standard output", &error.to_string());
                if let Some(happened) = happened {
                    happened.is_unseen(&home, &report);
                }
            }
        }
        Err(failed) if format == Format::Spec => {
            let text = json!({ "type": "degraded", "reason": failed.reason() }).to_string();
            print::whole(std::io::stdout(), &text).ok();
        }
        Ok(Answer { text: None, .. }) | Err(_) => {}
    }
    ExitCode::SUCCESS
}

/// It went wrong, and the report says how.
#[derive(Debug)]
enum Failed {
    /// There was no answer before the deadline.
    Late,
    /// There was none at all.
    Otherwise,
}

impl Failed {
    /// In a word, for scripts.
    fn reason(&self) -> &'static str {
        match self {
            Self::Late => "server_timeout",
            Self::Otherwise => "request_failed",
        }
    }
}

/// What the daemon says to an event.
#[derive(Debug)]
struct Answer {
    /// What is to be printed, if anything is.
    text: Option<String>,
    happened: Option<Happened>,
}

/// The answer, if there is one in time.
fn within_time(job: Job, report: &Report, started: Instant) -> Result<Answer, Failed> {
    let progress = Progress { event: job.event.clone(), ..Progress::default() };
    let progress = Arc::new(Mutex::new(progress));
    let (home, known, env) =
        (job.context.paths.home.clone(), Arc::clone(&progress), job.context.env.clone());
    let label = job.client.as_str();
    let (sender, done) = mpsc::channel();
    let worker = Arc::clone(&progress);
    std::thread::spawn(move || sender.send(work(&job, &worker)).ok());
    let mut failed = Failed::Otherwise;
    let outcome = loop {
        let event = lock(&known).event.clone();
        let deadline = deadline(&env, event.as_deref());
        let left = deadline.saturating_sub(started.elapsed());
        // The event may become known on the way, and its deadline be another.
        let step = left.min(Duration::from_millis(20));
        match done.recv_timeout(step) {
            Ok(outcome) => break outcome,
            Err(RecvTimeoutError::Timeout) if left > step => {}
            Err(RecvTimeoutError::Timeout) => {
                failed = Failed::Late;
                break Err(format!("not done within {deadline:?}"));
            }
            Err(RecvTimeoutError::Disconnected) => break Err("it panicked".to_owned()),
        }
    };
    let mut progress = lock(&progress);
    let happened = progress.happened.take();
    match outcome {
        Ok(text) => Ok(Answer { text, happened }),
        Err(problem) => {
            // The daemon may have it, and even have answered by now: a repeat counts once.
            match (happened, progress.daemon) {
                (Some(happened), Daemon::Unknown) => happened.is_unseen(&home, report),
                (Some(happened), Daemon::Away) => away::keep(&home, &happened.late, report),
                (None, _) | (_, Daemon::Refused) => {}
            }
            report.note(&format!("{label} {}", progress.event.as_deref().unwrap_or("?")), &problem);
            Err(failed)
        }
    }
}

fn work(job: &Job, progress: &Mutex<Progress>) -> Result<Option<String>, String> {
    let payload = input::read()?;
    let named = payload.get("hook_event_name").or_else(|| payload.get("hook"));
    let event = named.and_then(Value::as_str).map(str::to_owned).or_else(|| job.event.clone());
    let now = SystemClock.now();
    let id = job.again.clone().unwrap_or_else(|| HookId::new(&Ids::random(), now).to_string());
    let mut arguments = json!({ "client": job.client, "id": id, "payload": payload });
    for (name, value) in [
        ("event", job.event.clone().map(Value::from)),
        ("format", (job.format == Format::Spec).then(|| json!("spec"))),
        ("tmux_pane", text_of(&job.context.env, "TMUX_PANE").map(Value::from)),
        ("pid", process::client().map(Value::from)),
    ] {
        if let Some(value) = value {
            arguments[name] = value;
        }
    }
    let mut late = arguments.clone();
    late["at"] = json!(now);
    let session = session_of(job.client, &arguments["payload"]).unwrap_or_default();
    if job.again.is_some() {
        // Whoever is told now does not hear what there is to say.
        arguments.clone_from(&late);
    }
    let lost = away::lost(&job.context.paths.home, &session);
    if !lost.is_empty() {
        arguments["lost"] = json!(lost);
    }
    {
        let mut progress = lock(progress);
        progress.happened = Some(Happened { session, id, late });
        progress.event.clone_from(&event);
    }
    match tell::tell(&job.context, &arguments) {
        Ok(text) => Ok(text),
        // It has it, and does not want it: once more would change nothing.
        Err(tell::Failure::Refused(problem)) => {
            lock(progress).daemon = Daemon::Refused;
            Err(problem)
        }
        Err(tell::Failure::Away(problem)) => {
            lock(progress).daemon = Daemon::Away;
            let begins = ["SessionStart", "UserPromptSubmit", "BeforeAgent", "chat.message"];
            if event.as_deref().is_some_and(|event| begins.contains(&event)) {
                away::start_daemon(&job.context)
                    .map_err(|error| format!("{problem}; {error:#}"))?;
            }
            Err(problem)
        }
        Err(tell::Failure::Lost(problem)) => Err(problem),
    }
}

fn lock(progress: &Mutex<Progress>) -> std::sync::MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text_of<'a>(env: &'a Env, name: &str) -> Option<&'a str> {
    env.text(name).ok().flatten()
}

/// How long a hook may take, from its start. `SVC_HOOK_DEADLINE_MS` is for slow machines.
fn deadline(env: &Env, event: Option<&str>) -> Duration {
    if let Some(given) = text_of(env, "SVC_HOOK_DEADLINE_MS").and_then(|text| text.parse().ok()) {
        return Duration::from_millis(given);
    }
    Duration::from_millis(match event {
        Some("SessionStart" | "session.created") => 80,
        Some("SessionEnd" | "session.deleted") => 300,
        _ => 150,
    })
}
