//! `svc migrate`: placeholder until the daemon is merged.

use std::process::ExitCode;

use clap::Args;

use super::Context;

/// Arguments of `svc migrate`.
#[derive(Debug, Clone, Args)]
pub struct MigrateArgs {
    /// Only list what is pending
    #[arg(long)]
    pub check: bool,
}

/// Applies or lists pending migrations.
pub fn run(context: &Context, args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!(
        "this build has no store ({}, check: {})",
        context.paths.db.display(),
        args.check
    )
}
