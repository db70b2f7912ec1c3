//! `svc backup` and `svc restore`: the database as one file, checked in both directions.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use svc_model::{Clock as _, SystemClock};
use svc_sys::{config::Flags, private_file};
use tempfile::NamedTempFile;

use super::database_lock::lock_database;
use super::exit::UsageError;
use super::{Context, output};

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

/// Copies the database into one file and checks the copy. The daemon may run meanwhile.
pub fn backup(context: &Context, args: &BackupArgs) -> anyhow::Result<ExitCode> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    refuse_server(context)?;
    let (from, to) = (&context.paths.db, &args.path);
    private_file::check_folder(&context.paths.home)?;
    anyhow::ensure!(from.exists(), "there is no database at {}", from.display());
    // A dangling link counts as taken, too.
    let is_taken = fs::symlink_metadata(to).is_ok();
    anyhow::ensure!(!is_taken, "{} exists already: name a new file", to.display());
    let copied = private_file::check_above_file(to)
        .map_err(anyhow::Error::from)
        .and_then(|()| Ok(block_on(svc_store::backup(from, to))??));
    copied.with_context(|| format!("cannot write {}", to.display()))?;
    let bytes = fs::metadata(to)?.len();
    let path = fs::canonicalize(to)?;
    let last = svc_store::LastBackup { path, bytes, at: SystemClock.now() };
    // The backup is complete; a failure to record its time does not make it a failure.
    if let Err(error) = svc_store::note_backup(from, &last) {
        output::note(&format!("the time of this backup was not recorded: {error}"));
    }
    if context.json {
        output::json(&json!({ "path": to, "bytes": bytes, "integrity": "ok" }))?;
    } else {
        output::line(&format!("{} ({bytes} bytes, integrity ok)", to.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Replaces the database by a backup and keeps the old database beside it. Refused while a daemon
/// runs.
pub fn restore(context: &Context, args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    refuse_server(context)?;
    let (from, to) = (&args.path, &context.paths.db);
    let source =
        private_file::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    private_file::prepare_home(&context.paths.home)?;
    let is_link = fs::symlink_metadata(to).is_ok_and(|meta| meta.is_symlink());
    anyhow::ensure!(!is_link, "{} is a symbolic link: remove it first", to.display());
    let _lock = lock_database(&context.paths, Some("`svc stop` first"))?;
    let prepared = prepare(from, source, to)
        .with_context(|| format!("{} was not restored, and nothing was changed", from.display()))?;
    let kept = put_aside(to)?;
    private_file::persist_new(prepared, to)?;
    if context.json {
        output::json(&json!({ "restored": from, "db": to, "previous": kept }))?;
    } else {
        output::line(&format!("restored {} to {}", from.display(), to.display()))?;
        if let Some(kept) = kept {
            output::line(&format!("the previous database is {}", kept.display()))?;
        }
        output::line("earlier session tokens are invalid; `svc mcp-config` mints new ones")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses to copy or replace a file that the daemon does not use.
fn refuse_server(context: &Context) -> anyhow::Result<()> {
    let Ok(config) = context.config(&Flags::default()) else { return Ok(()) };
    let Some(url) = config.store.url.value else { return Ok(()) };
    Err(UsageError(format!(
        "the rows are in {}, schema {}: `pg_dump` copies them and `pg_restore` brings them back, see \
         docs/guide/operating.md",
        url.shown(),
        config.store.schema.value
    ))
    .into())
}

/// Copies the file before the check, so that the file which was checked is the file which is used.
fn prepare(from: &Path, mut source: File, to: &Path) -> anyhow::Result<NamedTempFile> {
    private_file::check_source(from, &source.metadata()?)?;
    private_file::check_above_file(from)?;
    let mut copy = private_file::temporary_beside(to)?;
    io::copy(&mut source, copy.as_file_mut())?;
    block_on(svc_store::prepare_restore(copy.path(), SystemClock.now()))??;
    copy.as_file().sync_all()?;
    Ok(copy)
}

/// Renames the database and its side files, which find each other by name. A write-ahead log
/// without its database is renamed, too: the engine would replay it into the next file of that
/// name.
fn put_aside(db: &Path) -> anyhow::Result<Option<PathBuf>> {
    let was_there = db.exists();
    let with = |suffix: &str| {
        let mut name: OsString = db.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let stamp = SystemClock.now().as_millis();
    for part in ["-wal", "-shm", "-journal", ""] {
        let (old, new) = (with(part), with(&format!(".before-{stamp}{part}")));
        if old.exists() {
            fs::rename(old, new)?;
        }
    }
    Ok(was_there.then(|| with(&format!(".before-{stamp}"))))
}

fn block_on<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work))
}
