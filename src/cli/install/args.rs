//! The flags of `svc install` and `svc uninstall`.

use clap::{Args, Subcommand};
use svc_install::{InstallScope, KnownClient};

pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  svc install                        every coding agent that is found here
  svc install claude-code --dry-run  what would change, as a diff; writes nothing
  svc install --project              this folder's project, without paths and secrets of yours
  svc install --allow-tools          with the clients' permission for svc's harmless tools
  svc install --scope agents         sessions may also give work to agents that svc runs
  svc install status                 what is installed, and what is no longer right

Again is fine and changes nothing. Each file that is changed is first copied to FILE.svc-backup.
`svc uninstall` puts everything back.";

/// Arguments of `svc install`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(in crate::cli) struct InstallArgs {
    #[command(subcommand)]
    pub(super) command: Option<InstallCommand>,
    /// The clients [default: those that are found]
    #[arg(value_name = "CLIENT")]
    pub(super) clients: Vec<KnownClient>,
    /// The files of the project in this folder, for everybody who works on it, and not yours
    #[arg(long)]
    pub(super) project: bool,
    /// Let sessions that you start do more; repeatable: `agents`, `approve`, `read_all`, `exec`, `read`, or the scope of a server
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
    /// Tell Codex that you trust these hooks, instead of reviewing them there with /hooks
    #[arg(long)]
    pub(super) trust_hooks: bool,
    /// Let models call our harmless tools without asking you each time, so that a session that a message wakes goes on
    #[arg(long)]
    pub(super) allow_tools: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub(super) enum InstallCommand {
    /// What is installed in which client, and what is no longer right; exit code 1 if anything is not
    #[command(after_help = "Example:\n  svc install status --json")]
    Status {
        /// The clients [default: all]
        #[arg(value_name = "CLIENT")]
        clients: Vec<KnownClient>,
        /// Name all tools that ask you each time, and not only the first
        #[arg(long)]
        verbose: bool,
    },
}

/// Arguments of `svc uninstall`.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct UninstallArgs {
    /// The clients [default: all]
    #[arg(value_name = "CLIENT")]
    pub(super) clients: Vec<KnownClient>,
    /// Only the files of the project in this folder [default: all that `svc install` has changed]
    #[arg(long)]
    pub(super) project: bool,
    /// Print what would change as a diff, and write nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Do not stop the daemon if no client is left
    #[arg(long)]
    pub(super) no_stop: bool,
}

impl InstallArgs {
    /// Whose files are changed.
    pub(super) fn files(&self) -> InstallScope {
        if self.project { InstallScope::Project } else { InstallScope::User }
    }
}

/// A scope of tokens. Whose files are changed had this flag before.
fn scope(text: &str) -> Result<String, String> {
    match text {
        "project" => Err("the files of this project: --project".to_owned()),
        "user" => Err("your own files: leave the flag out".to_owned()),
        text => crate::config::scope(text),
    }
}
