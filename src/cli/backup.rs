//! `svc backup` and `svc restore`: the whole database as one file, checked both ways.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::database_lock::lock_database;
use super::{Context, output};
use crate::private_file;
use crate::{
    domain::{Clock as _, SystemClock},
    store::{self, Migrations},
};

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

/// Copies the database into one file, while the daemon may be at work, and checks the copy.
pub fn backup(context: &Context, args: &BackupArgs) -> anyhow::Result<ExitCode> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let (from, to) = (&context.paths.db, &args.path);
    anyhow::ensure!(from.exists(), "there is no database at {}", from.display());
    anyhow::ensure!(!to.exists(), "{} exists already: name a new file", to.display());
    let copied = block_on(store::backup(from, to))?;
    if let Err(error) = copied {
        // Half a backup is worse than none.
        fs::remove_file(to).ok();
        return Err(error).with_context(|| format!("cannot write {}", to.display()));
    }
    let bytes = fs::metadata(to)?.len();
    if context.json {
        output::json(&json!({ "path": to, "bytes": bytes, "integrity": "ok" }))?;
    } else {
        output::line(&format!("{} ({bytes} bytes, integrity ok)", to.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts a backup in the place of the database, which is kept beside it. Refused while a daemon runs.
pub fn restore(context: &Context, args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let (from, to) = (&args.path, &context.paths.db);
    anyhow::ensure!(from.is_file(), "there is no file {}", from.display());
    private_file::prepare_home(&context.paths.home)?;
    let _lock = match lock_database(&context.paths, Some("`svc stop` first"))? {
        Ok(lock) => lock,
        Err(code) => return Ok(code),
    };
    let mut beside = to.as_os_str().to_owned();
    beside.push(".restoring");
    let beside = PathBuf::from(beside);
    let prepared = prepare(from, &beside);
    if prepared.is_err() {
        fs::remove_file(&beside).ok();
    }
    prepared.with_context(|| format!("{} was not restored, nothing is changed", from.display()))?;
    let kept = put_aside(to)?;
    fs::rename(&beside, to)?;
    if let Some(folder) = to.parent() {
        File::open(folder)?.sync_all()?;
    }
    if context.json {
        output::json(&json!({ "restored": from, "db": to, "previous": kept }))?;
    } else {
        output::line(&format!("restored {} to {}", from.display(), to.display()))?;
        if let Some(kept) = kept {
            output::line(&format!("the database before is {}", kept.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies first and checks the copy: what was checked is what is used.
fn prepare(from: &Path, copy: &Path) -> anyhow::Result<()> {
    fs::copy(from, copy)?;
    File::open(copy)?.sync_all()?;
    let migrations = block_on(async {
        store::check_integrity(copy).await?;
        Migrations::inspect_file(copy).await
    })??;
    anyhow::ensure!(migrations.current > 0, "it is not a database of svc");
    Ok(())
}

/// Renames the database and what belongs to it; they find each other by name.
fn put_aside(db: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !db.exists() {
        return Ok(None);
    }
    let with = |suffix: &str| {
        let mut name: OsString = db.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let stamp = SystemClock.now().as_millis();
    for part in ["-wal", "-shm", ""] {
        let (old, new) = (with(part), with(&format!(".before-{stamp}{part}")));
        if old.exists() {
            fs::rename(old, new)?;
        }
    }
    Ok(Some(with(&format!(".before-{stamp}"))))
}

fn block_on<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work))
}
