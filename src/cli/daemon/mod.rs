//! `svc start`, `stop`, `restart`, `status`, `logs` and `health`: the daemon as a process.
//!
//! All of them go by `daemon.json` and believe it only if the process it names answers `/health` under its own pid:
//! a pid alone may belong to anyone by now.

mod logs;
mod probe;
mod start;
mod status;
mod stop;

use std::process::ExitCode;

pub(super) use logs::{LogsArgs, logs};
pub(super) use probe::{Found, Health, find, probe};
pub(super) use start::{Ensured, ensure_apart, start, start_unattended};
pub(super) use status::{health, status};
pub(super) use stop::stop;

use super::{Context, ServeArgs};

/// Stops the daemon if it runs, and starts it with these flags.
pub(super) async fn restart(context: &Context, args: &ServeArgs) -> anyhow::Result<ExitCode> {
    // A flag that start would refuse must not cost the daemon that runs.
    context.config(&args.flags())?;
    stop::stop_running(context).await?;
    start(context, args).await
}
