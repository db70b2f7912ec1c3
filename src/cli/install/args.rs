//! The flags of `svc install` and `svc uninstall`.

use clap::{Args, Subcommand};
use svc_install::{InstallScope, KnownClient};

pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  svc install                        every coding agent that is found here
  svc install claude-code --dry-run  what would change, as a diff; writes nothing
  svc install --scope project        this folder's project, without paths and secrets of yours
  svc install --allow-tools          with the clients' permission for svc's harmless tools
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
    /// Whose configuration
    #[arg(long, default_value = "user")]
    pub(super) scope: InstallScope,
    /// Print what would change as a diff, and write nothing
    #[arg(long)]
    pub(super) dry_run: bool,
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
    /// Whose configuration [default: all that `svc install` has changed]
    #[arg(long)]
    pub(super) scope: Option<InstallScope>,
    /// Print what would change as a diff, and write nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}
