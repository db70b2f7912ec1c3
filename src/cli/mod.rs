//! The command line: the only code that prints.
//!
//! [`run`] parses, dispatches and turns errors into exit codes. Each command family has a file of
//! its own and talks to the daemon through [`svc_client`]; `serve` runs [`svc_server::daemon`] in
//! this process.
//!
//! Exit codes: 0 ok, 1 failure, 2 usage, 3 already running, 4 migrations pending.

mod agent;
mod agent_attach;
mod agent_away;
mod agent_list;
mod commands;
mod config;
mod context;
mod daemon;
mod database;
mod doctor;
mod events;
mod exit;
mod ghap;
mod hook;
mod install;
mod mcp;
mod mcp_config;
mod message;
mod naming;
mod open;
mod output;
mod peer;
mod people;
mod program;
mod project;
mod send;
mod serve;
mod service_unit;
mod session;
mod stdio;
mod task;
mod task_run;
mod terminal;
mod token;
mod tools;
mod top;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory as _;

use context::GlobalFlags;
use svc_sys::server_process;

pub use context::Context;
pub use exit::{ALREADY_RUNNING, ExitResult, MIGRATIONS_PENDING, UsageError};
pub use serve::ServeArgs;

/// All commands with their arguments, for manual pages and completion scripts.
pub fn command() -> clap::Command {
    commands::Cli::command()
}

pub fn run() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // Hooks come first, since a client waits for each. They have exit codes of their own.
    match arguments.next() {
        Some(first) if first == "hook" => {
            return hook::run_alone(arguments).unwrap_or_else(|line| parse(&line));
        }
        // The launcher through which the daemon starts child servers.
        Some(first) if first == server_process::LAUNCHER => {
            return server_process::launch_server(arguments);
        }
        Some(first) if first == "help" => return help(arguments),
        Some(first) if first == svc_sources::CONVERTER => return svc_sources::convert_page(),
        None => {
            return exit::code(commands::without_command(GlobalFlags::default()), false);
        }
        // Before the command line is set up, so that the processes of hosted agents stay small.
        Some(first) if first == "agent" => {
            if let Some(code) = svc_host::host::run_if_asked(arguments) {
                return code;
            }
        }
        Some(_) => {}
    }
    parse(&std::env::args_os().collect::<Vec<_>>())
}

/// `svc help COMMAND WORD` is `svc COMMAND WORD --help`, also where WORD is no subcommand.
fn help(words: impl Iterator<Item = OsString>) -> ExitCode {
    let line = [OsString::from("svc")].into_iter().chain(words).chain(["--help".into()]);
    parse(&line.collect::<Vec<_>>())
}

fn parse(line: &[OsString]) -> ExitCode {
    match commands::Cli::parse_line(line) {
        Ok(cli) => {
            let is_json = cli.is_json();
            exit::code(commands::dispatch(cli), is_json)
        }
        Err(error) => exit::usage(&error, commands::wants_json(line)),
    }
}
