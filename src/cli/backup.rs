//! `svc backup` and `svc restore`: placeholder until the daemon is merged.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::Context;

/// Arguments of `svc backup`.
#[derive(Debug, Clone, Args)]
pub struct BackupArgs {
    /// The file to write; it must not exist
    pub path: PathBuf,
}

/// Arguments of `svc restore`.
#[derive(Debug, Clone, Args)]
pub struct RestoreArgs {
    /// The backup to restore
    pub path: PathBuf,
}

/// Copies the database.
pub fn backup(context: &Context, args: &BackupArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!(
        "this build has no store ({} to {})",
        context.paths.db.display(),
        args.path.display()
    )
}

/// Replaces the database by a backup.
pub fn restore(context: &Context, args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!(
        "this build has no store ({} to {})",
        args.path.display(),
        context.paths.db.display()
    )
}
