//! `svc install`, `svc install status`, `svc uninstall`: the entries of svc among the servers and
//! hooks of coding agents.
//!
//! The package `svc-install` knows the files and their entries. This module has the flags, the
//! translation of the daemon's settings, and the output.

mod change;
mod report;
mod status;

use std::path::Path;

use clap::{Args, Subcommand};
use svc_install::{ClientCommand, InstallScope, KnownClient};
use svc_model::{HARMLESS_TOOLS, SHORT_LIST, ToolExposure};
use svc_sys::config::Flags;

use super::{Context, program};

pub(super) use change::{install, uninstall};
pub(super) use status::inspected;

pub(super) const EXAMPLES: &str = "\
Examples:
  svc install                        all coding agents on this machine
  svc install claude-code --dry-run  what would change, as a diff; writes nothing
  svc install --project              this folder's project, without your paths and secrets
  svc install --allow-tools          with the clients' permission for svc's harmless tools
  svc install --scope agents         sessions may give work to agents that svc runs
  svc install status                 what is installed, and what is outdated

A second run changes nothing. Each file is copied to FILE.svc-backup before it is changed.
`svc uninstall` undoes everything.";

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(super) struct InstallArgs {
    #[command(subcommand)]
    pub(super) command: Option<InstallCommand>,
    /// The clients [default: those that are found]
    #[arg(value_name = "CLIENT")]
    pub(super) clients: Vec<KnownClient>,
    /// Change the files of the project in this folder, which a team shares, and not yours
    #[arg(long)]
    pub(super) project: bool,
    /// Give the sessions that you start a scope; repeatable: `agents`, `approve`, `read_all`,
    /// `exec`, `read`, or the scope of a server
    #[arg(long, value_name = "SCOPE", value_parser = scope)]
    pub(super) scope: Vec<String>,
    /// Print what would change as a diff, and write nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Do not start the daemon
    #[arg(long)]
    pub(super) no_start: bool,
    /// Leave the hooks as they are
    #[arg(long)]
    pub(super) no_hooks: bool,
    /// Leave the MCP servers as they are
    #[arg(long)]
    pub(super) no_mcp: bool,
    /// Mark these hooks as trusted in Codex, in place of a review there with /hooks
    #[arg(long)]
    pub(super) trust_hooks: bool,
    /// Let models call svc's harmless tools without asking you, so that a session that a message
    /// wakes does not wait for you
    #[arg(long)]
    pub(super) allow_tools: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub(super) enum InstallCommand {
    /// Show what is installed in which client, and what is outdated; exit code 1 if anything is
    #[command(after_help = "Example:\n  svc install status --json")]
    Status {
        /// The clients [default: all]
        #[arg(value_name = "CLIENT")]
        clients: Vec<KnownClient>,
    },
}

#[derive(Debug, Clone, Args)]
pub(super) struct UninstallArgs {
    /// The clients [default: all]
    #[arg(value_name = "CLIENT")]
    pub(super) clients: Vec<KnownClient>,
    /// Only the files of the project in this folder [default: all that `svc install` has changed]
    #[arg(long)]
    pub(super) project: bool,
    /// Print what would change as a diff, and write nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Do not stop the daemon when no client is left
    #[arg(long)]
    pub(super) no_stop: bool,
}

impl InstallArgs {
    pub(super) fn files(&self) -> InstallScope {
        if self.project { InstallScope::Project } else { InstallScope::User }
    }
}

/// Parses a scope of tokens. Earlier versions used this flag for the scope of files, hence the
/// error.
fn scope(text: &str) -> Result<String, String> {
    match text {
        "project" => Err("the files of this project: --project".to_owned()),
        "user" => Err("your own files: leave the flag out".to_owned()),
        text => svc_sys::config::scope(text),
    }
}

/// The command with which clients run this program and its data folder.
fn command(context: &Context) -> anyhow::Result<ClientCommand> {
    let path = program::own_name(&context.env)?;
    let default_home = context.env.os("HOME").map(|home| Path::new(home).join(".local/share/svc"));
    ClientCommand::new(&path, &context.paths.home, default_home.as_deref())
}

fn listed_tools(context: &Context) -> Vec<&'static str> {
    let config = context.config(&Flags::default());
    let shows_all = config.is_ok_and(|config| *config.sources_expose == Some(ToolExposure::All));
    if shows_all { HARMLESS_TOOLS.to_vec() } else { SHORT_LIST.to_vec() }
}

/// The clients that are named, or else those that `otherwise` accepts, in the order of all clients.
fn chosen(named: &[KnownClient], otherwise: impl Fn(KnownClient) -> bool) -> Vec<KnownClient> {
    let is_chosen = |client: KnownClient| {
        if named.is_empty() { otherwise(client) } else { named.contains(&client) }
    };
    KnownClient::all().iter().copied().filter(|client| is_chosen(*client)).collect()
}

fn names(clients: &[KnownClient]) -> String {
    clients.iter().map(|client| client.name()).collect::<Vec<_>>().join(", ")
}
