//! `svc migrate`: migrates the database to this program's schema, lists what is pending, or moves the
//! history to another database.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use svc_store::{
    CopyError, CopyReport, DatabaseLock, LockError, MigrateError, Migrations, PostgresOptions,
    StoreError,
};
use svc_sys::config::{Flags, StoreUrl};
use svc_sys::private_file;
use tokio::runtime::Runtime;

use super::database_lock::{DatabaseInUse, lock_database};
use super::{Context, MIGRATIONS_PENDING, output};

/// Arguments of `svc migrate`.
#[derive(Debug, Clone, Args)]
pub struct MigrateArgs {
    /// Only list what is pending
    #[arg(long)]
    pub check: bool,
    /// Move the history to this database of PostgreSQL, which is empty; with --from, to this file
    #[arg(long, value_name = "URL|FILE", conflicts_with = "check")]
    pub to: Option<String>,
    /// Move the history of this database of PostgreSQL
    #[arg(long, value_name = "URL", requires = "to")]
    pub from: Option<String>,
    /// Count what --to would move, and change nothing
    #[arg(long, requires = "to")]
    pub dry_run: bool,
}

pub fn run(context: &Context, args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let path = &context.paths.db;
    if let Some(to) = &args.to {
        return move_history(context, args, to, &runtime);
    }
    let server = PostgresOptions::configured(&context.config(&Flags::default())?)?;
    if let Some(server) = server {
        return migrate_server(context, args, &server, &runtime);
    }
    if args.check {
        // A read needs no lock and changes nothing, so it works beside a daemon.
        let migrations = runtime.block_on(Migrations::inspect_file(path))?;
        report(context, &migrations, "pending")?;
        let pending = !migrations.pending.is_empty();
        return Ok(if pending { MIGRATIONS_PENDING.into() } else { ExitCode::SUCCESS });
    }
    private_file::prepare_home(&context.paths.home)?;
    let advice = "`svc stop` first (the daemon migrates when it starts)";
    let _lock = lock_database(&context.paths, Some(advice))?;
    let migrations = runtime
        .block_on(Migrations::apply_file(path))
        .map_err(|error| with_advice(error.into()))?;
    report(context, &migrations, "applied")?;
    Ok(ExitCode::SUCCESS)
}

fn migrate_server(
    context: &Context,
    args: &MigrateArgs,
    server: &PostgresOptions,
    runtime: &Runtime,
) -> anyhow::Result<ExitCode> {
    if args.check {
        let migrations = runtime.block_on(Migrations::inspect_server(server))?;
        report(context, &migrations, "pending")?;
        let pending = !migrations.pending.is_empty();
        return Ok(if pending { MIGRATIONS_PENDING.into() } else { ExitCode::SUCCESS });
    }
    let migrations =
        runtime.block_on(Migrations::apply_server(server)).map_err(|error| match error {
            MigrateError::InUse(holder) => DatabaseInUse(holder).into(),
            error => anyhow::Error::from(error),
        })?;
    report(context, &migrations, "applied")?;
    Ok(ExitCode::SUCCESS)
}

/// `--to`, with or without `--from`.
fn move_history(
    context: &Context,
    args: &MigrateArgs,
    to: &str,
    runtime: &Runtime,
) -> anyhow::Result<ExitCode> {
    let url = args.from.as_deref().unwrap_or(to);
    let flags = Flags { store_url: Some(url.to_owned()), ..Flags::default() };
    let server = PostgresOptions::configured(&context.config(&flags)?)?;
    let server = server.with_context(|| format!("{url} is no address of a database"))?;
    // The schema that both sides have is this program's.
    let server = PostgresOptions { migrate: true, ..server };
    private_file::prepare_home(&context.paths.home)?;
    let mut shown = Progress::new(context);
    let mut progress = |table: &str, rows: u64| shown.note(table, rows);
    let moved = if args.from.is_some() {
        let file = std::path::absolute(to)?;
        let _lock = lock_file(&file)?;
        runtime.block_on(CopyReport::to_file(&server, &file, args.dry_run, &mut progress))
    } else {
        let _lock = lock_database(&context.paths, Some("`svc stop` first"))?;
        let file = &context.paths.db;
        anyhow::ensure!(file.exists(), "there is no history at {}", file.display());
        runtime.block_on(CopyReport::to_server(file, &server, args.dry_run, &mut progress))
    };
    shown.end();
    let moved = moved.map_err(|error| match error {
        CopyError::Migrate(MigrateError::InUse(holder)) => DatabaseInUse(holder).into(),
        error => anyhow::Error::from(error),
    })?;
    report_move(context, args, &server, to, &moved)?;
    Ok(ExitCode::SUCCESS)
}

/// The lock of a file that may be another than that of this data folder.
fn lock_file(file: &Path) -> anyhow::Result<DatabaseLock> {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    match DatabaseLock::acquire(&PathBuf::from(name)) {
        Err(LockError::Held) => {
            let text = format!("another svc process is at work on {}", file.display());
            Err(DatabaseInUse(text).into())
        }
        lock => Ok(lock?),
    }
}

/// What is copied, on the terminal.
struct Progress {
    is_shown: bool,
    last: Instant,
}

impl Progress {
    /// Between two notes.
    const PAUSE: Duration = Duration::from_secs(1);

    fn new(context: &Context) -> Self {
        Self { is_shown: !context.json && io::stderr().is_terminal(), last: Instant::now() }
    }

    fn note(&mut self, table: &str, rows: u64) {
        if self.is_shown && self.last.elapsed() >= Self::PAUSE {
            self.last = Instant::now();
            output::note(&format!("{table}: {rows} rows"));
        }
    }

    fn end(&mut self) {
        self.is_shown = false;
    }
}

fn report_move(
    context: &Context,
    args: &MigrateArgs,
    server: &PostgresOptions,
    to: &str,
    moved: &CopyReport,
) -> anyhow::Result<()> {
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
    anyhow::anyhow!("{error:#}; {advice}")
}

fn report(context: &Context, migrations: &Migrations, verb: &str) -> anyhow::Result<()> {
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
