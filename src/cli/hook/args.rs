//! The arguments of `svc hook`.

use clap::{Args, Parser, ValueEnum};

use crate::cli::global_flags::GlobalFlags;

pub(in crate::cli) const EXAMPLES: &str = "\
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

/// Arguments of `svc hook`.
#[derive(Debug, Args)]
pub(in crate::cli) struct HookArgs {
    /// claude, codex, gemini or opencode; or wait
    pub(super) client: String,
    /// The client's name of the event [default: the one in the payload]
    pub(super) event: Option<String>,
    /// The shape of what is printed
    #[arg(long, value_enum, default_value_t = PrintFormat::Client)]
    pub(super) format: PrintFormat,
    /// The event was reported before under this id: it counts once, and nothing is printed
    #[arg(long, value_name = "ID")]
    pub(super) again: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PrintFormat {
    /// The client's own
    Client,
    /// {"type": …}, for scripts
    Spec,
}

/// `svc hook wait`, for its help: it is parsed as `svc hook` with a client called `wait`.
#[derive(Debug, Parser)]
#[command(
    name = "svc hook wait",
    about = "Wait until a message comes for the session, and wake its client with it",
    after_help = "\
Example:
  svc hook wait < payload.json

`svc install` puts this into the settings of Claude Code, which runs it when a session goes idle \
(asyncRewake). \
Reads the client's payload on standard input. As soon as a message comes, it ends with exit code 2 \
and the message on standard error, which wakes the session; with exit code 0 when there is nothing \
more to wait for."
)]
pub(super) struct WaitHelp {
    #[command(flatten)]
    pub(super) global: GlobalFlags,
}

// `svc hook` is parsed alone: a hook has no time to build the whole command tree.
#[derive(Debug, Parser)]
#[command(
    name = "svc hook",
    about = "Pass on an event of a coding agent: reads it on standard input, prints what the client takes",
    after_help = EXAMPLES
)]
pub(super) struct HookCommand {
    #[command(flatten)]
    pub(super) global: GlobalFlags,
    #[command(flatten)]
    pub(super) args: HookArgs,
}
