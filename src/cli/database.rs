//! The database while no daemon uses it: its lock; `svc backup` and `svc restore`, which both check
//! the file; and `svc migrate`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _};
use std::path::{Display, Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use svc_model::{Clock as _, SystemClock};
use svc_server::daemon;
use svc_store::{
    CopyError, CopyReport, DatabaseLock, LockError, MigrateError, Migrations, PostgresOptions,
    StoreError,
};
use svc_sys::config::{ConfigError, Flags, Paths, StoreUrl};
use svc_sys::{private_file, telemetry};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use super::exit::{DatabaseInUse, MIGRATIONS_PENDING, UsageError};
use super::{Context, ExitResult, output};

/// Deadline for the daemon that holds the lock to identify itself; after it the error names a
/// process only.
const INTRODUCTION: Duration = Duration::from_secs(2);
/// Pause between two notes on the progress of a move.
const NOTE_PAUSE: Duration = Duration::from_secs(1);

/// Takes the lock of the data folder. If another process holds it, the error names that process and
/// ends with `advice`.
pub(super) fn lock_database(paths: &Paths, advice: Option<&str>) -> Result<DatabaseLock> {
    lock(&paths.lock, &paths.db, |db| {
        let mut text = match daemon::lock_holder(paths, INTRODUCTION) {
            Some(file) => {
                format!("a daemon already runs on {db}: pid {}, {}", file.pid, file.url)
            }
            None => format!("another svc process is at work on {db}"),
        };
        text.extend(advice.into_iter().flat_map(|advice| ["; ", advice]));
        text
    })
}

fn lock(path: &Path, db: &Path, held: impl FnOnce(Display<'_>) -> String) -> Result<DatabaseLock> {
    match DatabaseLock::acquire(path) {
        Err(LockError::Held) => Err(DatabaseInUse(held(db.display())).into()),
        lock => Ok(lock?),
    }
}

/// Copies the database into one file and checks the copy. The daemon may run meanwhile.
pub(super) fn backup(context: &Context, to: &Path) -> ExitResult {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    refuse_unknown_store(&context.paths)?;
    refuse_server(context)?;
    let from = &context.paths.db;
    private_file::check_folder(&context.paths.home)?;
    anyhow::ensure!(from.exists(), "there is no database at {}", from.display());
    // A dangling link also counts as an existing file.
    let is_taken = fs::symlink_metadata(to).is_ok();
    anyhow::ensure!(!is_taken, "{} exists already: name a new file", to.display());
    let copied = private_file::check_above_file(to)
        .map_err(anyhow::Error::from)
        .and_then(|()| Ok(block_on(svc_store::backup(from, to))??));
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    let bytes = fs::metadata(to)?.len();
    let path = fs::canonicalize(to)?;
    let last = svc_store::LastBackup { path, bytes, at: SystemClock.now() };
    // The backup is complete; a failure to record its time does not make it a failure.
    if let Err(error) = svc_store::note_backup(from, &last) {
        output::note(&format!("the time of this backup was not recorded: {error}"));
    }
    let line = format!("{} ({bytes} bytes, integrity ok)", to.display());
    context.print_line(&json!({ "path": to, "bytes": bytes, "integrity": "ok" }), &line)
}

/// Replaces the database by a backup and keeps the old database beside it. Refused while a daemon
/// runs.
pub(super) fn restore(context: &Context, from: &Path) -> ExitResult {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    refuse_server(context)?;
    let to = &context.paths.db;
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
    context.print(&json!({ "restored": from, "db": to, "previous": kept }), || {
        output::line(&format!("restored {} to {}", from.display(), to.display()))?;
        if let Some(kept) = &kept {
            output::line(&format!("the previous database is {}", kept.display()))?;
        }
        output::line("earlier session tokens are invalid; `svc mcp-config` mints new ones")
    })
}

/// Refuses to copy or replace a file that the daemon does not use. The running daemon says what it
/// uses, as its flags and its environment may differ from this command's.
fn refuse_server(context: &Context) -> Result<()> {
    let configured = context.config(&Flags::default()).ok().and_then(|config| {
        let url = config.store.url.value?;
        Some(format!("{}, schema {}", url.shown(), config.store.schema.value))
    });
    let of_daemon = daemon::live_file(&context.paths).and_then(|file| file.db);
    let of_daemon = of_daemon.filter(|db| db.parse::<StoreUrl>().is_ok());
    let Some(server) = of_daemon.or(configured) else { return Ok(()) };
    Err(UsageError(format!(
        "the rows are in {server}: `pg_dump` copies them and `pg_restore` brings them back, see \
         docs/guide/several-machines.md#back-up-and-restore"
    ))
    .into())
}

/// Refuses while a process has the lock and does not say which database it uses: a daemon that
/// waits for its server at its start has written no `daemon.json` yet.
fn refuse_unknown_store(paths: &Paths) -> Result<()> {
    let is_held = || DatabaseLock::is_held(&paths.lock);
    if is_held() && daemon::lock_holder(paths, INTRODUCTION).is_none() && is_held() {
        let db = paths.db.display();
        let text = format!(
            "another svc process is at work on {db}: try again when it has ended, or where it runs \
             if that is a container"
        );
        return Err(DatabaseInUse(text).into());
    }
    Ok(())
}

/// Copies the file before the check, so that the file which was checked is the file which is used.
fn prepare(from: &Path, mut source: File, to: &Path) -> Result<NamedTempFile> {
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
fn put_aside(db: &Path) -> Result<Option<PathBuf>> {
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

fn block_on<T>(work: impl Future<Output = T>) -> Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work))
}

#[derive(Debug, Clone, Args)]
pub(super) struct MigrateArgs {
    /// Only list what is pending
    #[arg(long)]
    check: bool,
    /// Move the history to this database of PostgreSQL, which is empty; with --from, to this file
    #[arg(long, value_name = "URL|FILE", conflicts_with = "check")]
    to: Option<String>,
    /// Move the history of this database of PostgreSQL
    #[arg(long, value_name = "URL", requires = "to")]
    from: Option<String>,
    /// Count what --to would move, and change nothing
    #[arg(long, requires = "to")]
    dry_run: bool,
}

pub(super) fn migrate(context: &Context, args: &MigrateArgs) -> ExitResult {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let path = &context.paths.db;
    if let Some(to) = &args.to {
        return move_history(context, args, to, &runtime);
    }
    let server = PostgresOptions::configured(&context.config(&Flags::default())?)?;
    let migrations = match (&server, args.check) {
        // A read needs no lock and changes nothing, so it works beside a daemon.
        (None, true) => runtime.block_on(Migrations::inspect_file(path))?,
        (Some(server), true) => runtime.block_on(svc_store::inspect_server(server))?,
        (None, false) => {
            private_file::prepare_home(&context.paths.home)?;
            let advice = "`svc stop` first (the daemon migrates when it starts)";
            let _lock = lock_database(&context.paths, Some(advice))?;
            let applied = runtime.block_on(Migrations::apply_file(path));
            applied.map_err(|error| with_advice(error.into()))?
        }
        (Some(server), false) => {
            runtime.block_on(svc_store::migrate_server(server)).map_err(|error| match error {
                MigrateError::InUse(holder) => DatabaseInUse(holder).into(),
                error => anyhow::Error::from(error),
            })?
        }
    };
    report_migrations(context, &migrations, if args.check { "pending" } else { "applied" })?;
    let is_pending = args.check && !migrations.pending.is_empty();
    Ok(if is_pending { MIGRATIONS_PENDING.into() } else { ExitCode::SUCCESS })
}

fn move_history(context: &Context, args: &MigrateArgs, to: &str, runtime: &Runtime) -> ExitResult {
    let (flag, url) = args.from.as_deref().map_or(("--to:", to), |from| ("--from:", from));
    let flags = Flags { store_url: Some(url.to_owned()), ..Flags::default() };
    let config = context.config(&flags).map_err(|error| match error.downcast() {
        // The configuration knows the address as that of `svc serve --store-url`.
        Ok(ConfigError::Invalid { source_name, problem, advice })
            if source_name == "--store-url:" =>
        {
            ConfigError::Invalid { source_name: flag.to_owned(), problem, advice }.into()
        }
        Ok(error) => error.into(),
        Err(error) => error,
    })?;
    let server = PostgresOptions::configured(&config)?;
    let server = server.with_context(|| format!("{url} is no address of a database"))?;
    // The copy needs the same schema on both sides: the one of this program.
    let server = PostgresOptions { migrate: true, ..server };
    let history = &context.paths.db;
    if args.from.is_none() {
        anyhow::ensure!(history.exists(), "there is no history at {}", history.display());
    }
    private_file::prepare_home(&context.paths.home)?;
    let (is_shown, mut last) = (!context.json && io::stderr().is_terminal(), Instant::now());
    let mut progress = |table: &str, rows: u64| {
        if is_shown && last.elapsed() >= NOTE_PAUSE {
            last = Instant::now();
            output::note(&format!("{table}: {rows} rows"));
        }
    };
    let moved = if args.from.is_some() {
        let file = std::path::absolute(to)?;
        let lock = lock_file(&file)?;
        let copy = svc_store::move_to_file(&server, &file, args.dry_run, &mut progress);
        let moved = runtime.block_on(copy);
        // After a refusal or a trial there is no database to lock.
        if !file.exists() {
            lock.remove().ok();
        }
        moved
    } else {
        let _lock = lock_database(&context.paths, Some("`svc stop` first"))?;
        let copy = svc_store::move_to_server(history, &server, args.dry_run, &mut progress);
        runtime.block_on(copy)
    };
    let moved = moved.map_err(|error| match error {
        CopyError::Migrate(MigrateError::InUse(holder)) => DatabaseInUse(holder).into(),
        error => anyhow::Error::from(error),
    })?;
    report_move(context, args, &server, to, &moved)?;
    Ok(ExitCode::SUCCESS)
}

/// The lock of a file that need not be the one of this data folder.
fn lock_file(file: &Path) -> Result<DatabaseLock> {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    lock(Path::new(&name), file, |file| format!("another svc process is at work on {file}"))
}

fn report_move(
    context: &Context,
    args: &MigrateArgs,
    server: &PostgresOptions,
    to: &str,
    moved: &CopyReport,
) -> Result<()> {
    let rows: u64 = moved.tables.iter().map(|(_, rows)| rows).sum();
    if context.json {
        let tables: serde_json::Map<_, _> =
            moved.tables.iter().map(|(table, rows)| (table.clone(), json!(rows))).collect();
        return output::json(&json!({
            "to": to, "dry_run": args.dry_run, "rows": rows, "tables": tables, "is_repeat": moved.is_repeat,
        }));
    }
    for (table, rows) in moved.tables.iter().filter(|(_, rows)| *rows > 0) {
        output::line(&format!("{rows:>12}  {table}"))?;
    }
    if args.dry_run {
        return output::line(&format!("{rows:>12}  rows would be moved"));
    }
    output::line(&if moved.is_repeat {
        "an earlier attempt had moved everything".to_owned()
    } else {
        format!("{rows:>12}  rows moved, and compared on both sides")
    })?;
    if args.from.is_some() {
        return output::line(&format!(
            "{to} has the history now: it is svc.db of a data folder whose config.toml names no store.url"
        ));
    }
    output::line("config.toml:")?;
    output::line("[store]")?;
    output::line(&format!("url = {:?}", server.url.shown()))?;
    if server.schema != "svc" {
        output::line(&format!("schema = {:?}", server.schema))?;
    }
    Ok(())
}

/// Adds the command that helps to an error, if there is one.
pub(super) fn with_advice(error: anyhow::Error) -> anyhow::Error {
    let advice = match error.downcast_ref() {
        Some(MigrateError::Store(StoreError::Corrupt(_))) => {
            "`svc restore` puts a backup in its place"
        }
        Some(MigrateError::Pending(_)) => "run `svc migrate`, or start without --no-migrate",
        _ => return error,
    };
    anyhow::anyhow!("{}; {advice}", telemetry::chain(&*error))
}

fn report_migrations(context: &Context, migrations: &Migrations, verb: &str) -> Result<()> {
    if context.json {
        let config = context.config(&Flags::default())?;
        let url = config.store.url.value.as_ref().map(StoreUrl::shown);
        let db = url.unwrap_or_else(|| context.paths.db.display().to_string());
        let steps: Vec<_> = migrations
            .pending
            .iter()
            .map(|(version, name)| json!({ "version": version, "description": name }))
            .collect();
        return output::json(&json!({
            "db": db, "from": migrations.current, "latest": migrations.latest, verb: steps,
        }));
    }
    if migrations.pending.is_empty() {
        return output::line(&format!("nothing to do: schema version {}", migrations.latest));
    }
    for (version, name) in &migrations.pending {
        output::line(&format!("{verb} {version:>4}  {name}"))?;
    }
    Ok(())
}
