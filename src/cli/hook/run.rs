//! Runs a hook, prints its answer, and ends with exit code 0.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use clap::{CommandFactory as _, Parser as _};
use serde_json::json;
use svc_model::hook::HookClient;

use super::args::{HookArgs, HookCommand, PrintFormat, WaitHelp};
use super::attempt::{HookAnswer, HookJob, attempt};
use super::hook_log::HookLog;
use super::offline;
use super::{hold, print, wait};
use crate::cli::context::Context;
use crate::cli::global_flags::GlobalFlags;
use crate::cli::output;

/// Runs `svc hook …` given the arguments that follow `hook`.
pub(in crate::cli) fn run_alone(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let started = Instant::now();
    let arguments: Vec<OsString> = arguments.collect();
    if arguments.len() == 2
        && arguments[0] == "wait"
        && (arguments[1] == "--help" || arguments[1] == "-h")
    {
        return print_wait_help();
    }
    let arguments = std::iter::once(OsString::from("svc hook")).chain(arguments);
    match HookCommand::try_parse_from(arguments) {
        Ok(HookCommand { global, args }) => run(global, args, started),
        Err(error) => {
            // Help is printed as for any command; any other exit code would be an order to the
            // client.
            drop(error.print());
            if error.use_stderr() {
                HookLog::in_default_home().note("usage", &error.to_string());
            }
            ExitCode::SUCCESS
        }
    }
}

/// Prints what `svc hook wait` does.
pub(in crate::cli) fn print_wait_help() -> ExitCode {
    // A closed output is no failure, and a hook never fails.
    WaitHelp::command().print_long_help().ok();
    ExitCode::SUCCESS
}

/// Runs `svc hook`.
pub(in crate::cli) fn run(global: GlobalFlags, args: HookArgs, started: Instant) -> ExitCode {
    let context = match Context::new(global) {
        Ok(context) => context,
        Err(error) => {
            output::note(&format!("svc hook: {error:#}"));
            return ExitCode::SUCCESS;
        }
    };
    if args.client == "wait" {
        return wait::run(&context);
    }
    let log = HookLog::new(&context);
    let Some(client) = HookClient::parse(&args.client) else {
        let known = "known are claude, codex, gemini, opencode and wait";
        output::note(&format!("svc hook: there is no client {:?}; {known}", args.client));
        log.note("usage", &format!("there is no client {:?}", args.client));
        return ExitCode::SUCCESS;
    };
    let format = args.format;
    let home = context.paths.home.clone();
    let context_of_hold = context.clone();
    let job = HookJob { context, client, event_name: args.event, format, again: args.again };
    match attempt(job, &log, started) {
        Ok(HookAnswer { held: Some(held), .. }) => {
            hold::hold(&context_of_hold, &held.id, &held.payload, &log);
        }
        Ok(HookAnswer { output: Ok(Some(text)), event, .. }) => {
            if let Err(error) = print::print_line(std::io::stdout(), &text) {
                log.note("standard output", &error.to_string());
                if let Some(event) = event {
                    offline::keep_unprinted(&home, &event, &log);
                }
            }
        }
        Ok(HookAnswer { output: Err(unexpected), event, .. }) => {
            log.note(client.as_str(), &unexpected.to_string());
            if let Some(event) = event {
                // If it was the daemon's all the same, what it handed over comes again.
                offline::keep_unprinted(&home, &event, &log);
            }
        }
        Err(failure) if format == PrintFormat::Spec => {
            let text = json!({ "type": "degraded", "reason": failure.reason() }).to_string();
            print::print_line(std::io::stdout(), &text).ok();
        }
        Ok(HookAnswer { output: Ok(None), .. }) | Err(_) => {}
    }
    ExitCode::SUCCESS
}
