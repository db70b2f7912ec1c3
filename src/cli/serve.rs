//! `svc serve`: placeholder until the daemon is merged.

use std::process::ExitCode;

use crate::config::Config;

/// Runs the daemon in the foreground until a signal.
#[expect(clippy::needless_pass_by_value, reason = "the daemon will own it")]
pub fn run(config: Config) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this build has no daemon ({})", config.paths.home.display())
}
