//! `svc hook`: what coding agents run at their events.
//!
//! A client waits for its hooks, shows their failures to people, and treats some exit codes as
//! commands. So a hook sends one request under one deadline, prints the client's own format or
//! nothing at all, and always exits with 0. `hooks.log` has the failures. `hooks.spool` has the
//! events that the daemon did not receive, and those whose answers were not printed; the session's
//! next hook reports the latter to the daemon. A hook that its client kills writes neither.

mod attempt;
mod delivery;
mod hold;
mod io;
mod wait;
mod waiting_client;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser};
use serde_json::json;
use svc_model::hook::{HookClient, HookFormat};
use svc_sys::telemetry;

use self::attempt::{HookAnswer, HookJob, attempt};
use self::io::{HookLog, print_line};
use super::context::{Context, GlobalFlags};
use super::output;

pub(super) const EXAMPLES: &str = "\
Examples:
  svc hook claude SessionStart < payload.json
  svc hook gemini --format spec < payload.json

`svc install` puts these into the clients' settings. Reads the client's payload on standard input, \
tells the daemon, and prints what the client accepts, or nothing. Always ends with exit code 0, \
within 80 ms at the start of a session, 300 ms at its end, and 150 ms otherwise; only a prompt that \
comes before the daemon is ready waits for it (hooks.cold_wait, 3 s; 30 s with --format spec). An \
event that the daemon could not be told is told when it is back. `svc hook wait` is for Claude Code's asyncRewake: \
it waits until a message comes, and ends with exit code 2 and the message on standard error. \
What went wrong stands in hooks.log in the data folder.";

#[derive(Debug, Args)]
pub(super) struct HookArgs {
    /// claude, codex, gemini or opencode; or wait
    client: String,
    /// The client's name of the event [default: the one in the payload]
    event: Option<String>,
    /// The shape of what is printed
    #[arg(long, value_enum, default_value_t = HookFormat::Client)]
    format: HookFormat,
    /// The event was reported before under this id: it counts once, and nothing is printed
    #[arg(long, value_name = "ID")]
    again: Option<String>,
}

// `svc hook` is parsed alone: a hook has no time to build the whole command tree.
#[derive(Debug, Parser)]
#[command(name = "svc hook", version)]
struct HookCommand {
    #[command(flatten)]
    global: GlobalFlags,
    #[command(flatten)]
    args: HookArgs,
}

/// Runs `svc hook` with these arguments. Returns the line of a call for the help, which the whole
/// command tree prints.
pub(super) fn run_alone(
    arguments: impl Iterator<Item = OsString>,
) -> Result<ExitCode, Vec<OsString>> {
    let started = Instant::now();
    let line: Vec<OsString> = ["svc".into(), "hook".into()].into_iter().chain(arguments).collect();
    match HookCommand::try_parse_from(&line[1..]) {
        Ok(HookCommand { global, args }) => Ok(run(global, args, started)),
        Err(error) if error.use_stderr() => {
            drop(error.print());
            HookLog::in_home(None).note("usage", &error.to_string());
            // Any other exit code would be a command to the client.
            Ok(ExitCode::SUCCESS)
        }
        Err(_) => Err(line),
    }
}

pub(super) fn run(global: GlobalFlags, args: HookArgs, started: Instant) -> ExitCode {
    let context = match Context::new(global) {
        Ok(context) => context,
        Err(error) => {
            output::note(&format!("svc hook: {}", telemetry::chain(&*error)));
            return ExitCode::SUCCESS;
        }
    };
    if args.client == "wait" {
        return wait::run(&context);
    }
    let log = HookLog::in_home(Some(&context.paths.home));
    let Some(client) = HookClient::parse(&args.client) else {
        let known = "known are claude, codex, gemini, opencode and wait";
        output::note(&format!("svc hook: there is no client {:?}; {known}", args.client));
        log.note("usage", &format!("there is no client {:?}", args.client));
        return ExitCode::SUCCESS;
    };
    let (home, format) = (context.paths.home.clone(), args.format);
    let job = HookJob { context, client, event_name: args.event, format, again: args.again };
    let HookAnswer { output, event, held } = match attempt(&job, &log, started) {
        Ok(answer) => answer,
        Err(failure) => {
            if format == HookFormat::Spec {
                let text = json!({ "type": "degraded", "reason": failure }).to_string();
                print_line(std::io::stdout(), &text).ok();
            }
            return ExitCode::SUCCESS;
        }
    };
    if let Some((id, payload)) = held {
        hold::hold(&job.context, &id, &payload, &log);
        return ExitCode::SUCCESS;
    }
    let problem = match output {
        Ok(None) => None,
        Ok(Some(text)) => print_line(std::io::stdout(), &text)
            .err()
            .map(|error| ("standard output", error.to_string())),
        Err(unexpected) => Some((client.as_str(), unexpected.to_string())),
    };
    if let Some((topic, problem)) = problem {
        log.note(topic, &problem);
        if let Some(event) = event {
            // If the daemon did answer, it hands the messages over again.
            delivery::keep_unprinted(&home, &event, &log);
        }
    }
    ExitCode::SUCCESS
}
