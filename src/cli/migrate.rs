//! `svc migrate`: migrates the database to this program's schema, or lists what is pending.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use svc_store::{MigrateError, Migrations, PostgresOptions, StoreError};
use svc_sys::config::{Flags, StoreUrl};
use svc_sys::private_file;
use tokio::runtime::Runtime;

use super::database_lock::lock_database;
use super::{Context, MIGRATIONS_PENDING, output};

/// Arguments of `svc migrate`.
#[derive(Debug, Clone, Args)]
pub struct MigrateArgs {
    /// Only list what is pending
    #[arg(long)]
    pub check: bool,
}

pub fn run(context: &Context, args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let path = &context.paths.db;
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
    let migrations = runtime.block_on(Migrations::apply_server(server))?;
    report(context, &migrations, "applied")?;
    Ok(ExitCode::SUCCESS)
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
