//! Opens a database: checks what the server must have, and migrates the schema.

use std::{str::FromStr as _, sync::Arc, time::Duration};

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection,
    migrate::Migrator, postgres::PgConnectOptions,
};
use svc_sys::config::ListenMode;
use tokio::time::{Instant, sleep, timeout};

use super::{
    connection::{is_lost, report, try_take},
    listener::{self, LockConnection},
    readers::PgReaders,
    write_connection::{PgWriter, WriterState},
};
use crate::{MigrateError, Migrations, PostgresOptions, ServerReport, boxed};

pub(super) static MIGRATOR: Migrator = sqlx::migrate!("../../migrations/postgres");
pub(super) const WRITER: &str = include_str!("writer.sql");

/// The oldest supported server, as `server_version_num`.
const OLDEST_SERVER: i32 = 140_000;
/// Prepared statements that a connection caches: enough for all of the program.
const STATEMENTS: usize = 512;
/// Connections that do not read: the writer's, and the listener's, which holds the schema.
const OWN: u32 = 2;
const PAUSE: Duration = Duration::from_millis(200);
/// How long an attempt waits for a server that accepts the connection and does not answer.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How long a start waits for the lock of a killed daemon, which the server keeps until it notices
/// the lost connection.
const PREDECESSOR: Duration = Duration::from_secs(5);

/// Advisory lock with which [`check_session`] tests that locks exclude other sessions.
const LOCK_OF_TRIAL: i32 = 1_937_138_534;

/// Checks the server, migrates the schema if asked, and connects.
pub(crate) async fn open(options: &PostgresOptions) -> Result<(PgWriter, PgReaders), MigrateError> {
    let (mut conn, connect) = reach(options).await?;
    check_server(&mut conn, options).await?;
    check_session(&mut conn, &connect).await?;
    // This connection holds the schema's lock until the daemon ends.
    let mut listener = listener::connect(&connect, ATTEMPT).await?;
    let lock_connection = sqlx::Acquire::acquire(&mut listener).await?;
    take_database(lock_connection, options).await?;
    migrate(&mut conn, options).await?;
    let daemon = begin_daemon(&mut conn).await?;
    conn.close().await?;
    let state = Arc::new(WriterState::default());
    let writer = PgWriter::connect(connect.clone(), daemon.clone(), Arc::clone(&state)).await?;
    let channel =
        (options.listen == ListenMode::Notify).then(|| listener::channel(&options.schema));
    let lock_connection = LockConnection { options: connect.clone(), channel, daemon };
    let readers = options.max_connections.saturating_sub(OWN).max(1);
    Ok((writer, PgReaders::new(connect, readers, (lock_connection, listener), state)))
}

/// Compares a server's schema with ours, without changing or creating anything.
#[boxed(?Send)]
pub async fn inspect_server(options: &PostgresOptions) -> Result<Migrations, MigrateError> {
    let (mut conn, _) = reach(options).await?;
    let migrations = inspect(&mut conn).await?;
    conn.close().await?;
    Ok(migrations)
}

/// Migrates a server's schema to ours, and creates it if it is missing. Refused while a daemon runs
/// on it.
#[boxed(?Send)]
pub async fn migrate_server(options: &PostgresOptions) -> Result<Migrations, MigrateError> {
    let (mut conn, _) = reach(options).await?;
    check_server(&mut conn, options).await?;
    take_database(&mut conn, options).await?;
    let migrations = inspect(&mut conn).await?;
    migrate(&mut conn, options).await?;
    conn.close().await?;
    Ok(migrations)
}

/// Opens a connection that holds the schema's lock as a daemon does, and migrates the schema if
/// asked.
pub(super) async fn open_alone(
    options: &PostgresOptions,
    migrates: bool,
) -> Result<PgConnection, MigrateError> {
    let (mut conn, _) = reach(options).await?;
    check_server(&mut conn, options).await?;
    take_database(&mut conn, options).await?;
    if migrates {
        migrate(&mut conn, options).await?;
    }
    Ok(conn)
}

/// Checks that a server meets the store's requirements, and reports its state.
///
/// # Errors
/// [`MigrateError::Refused`] if the server does not answer, or does not meet the store's
/// requirements.
#[boxed]
pub async fn look_at_server(options: &PostgresOptions) -> Result<ServerReport, MigrateError> {
    let (mut conn, connect) = reach(options).await?;
    check_server(&mut conn, options).await?;
    check_session(&mut conn, &connect).await?;
    let channel = listener::channel(&options.schema);
    let is_listening = listener::returns(&connect, &channel).await?;
    let report = report(&mut conn).await?;
    conn.close().await?;
    Ok(ServerReport { is_listening, ..report })
}

fn connect_options(options: &PostgresOptions) -> Result<Vec<PgConnectOptions>, MigrateError> {
    let schema = &options.schema;
    let is_name = schema.len() <= 40
        && schema.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && schema.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if !is_name {
        return Err(MigrateError::Refused(format!(
            "store.schema: {schema:?} is no name of lower-case letters, digits and _"
        )));
    }
    // Set on each connection, because the role may have other settings.
    let settings = [
        ("search_path", format!("{schema},pg_catalog")),
        ("lock_timeout", "5s".to_owned()),
        ("idle_in_transaction_session_timeout", "3s".to_owned()),
        ("default_transaction_isolation", "read committed".to_owned()),
        ("synchronous_commit", "on".to_owned()),
        ("jit", "off".to_owned()),
        ("client_min_messages", "warning".to_owned()),
    ];
    let of_host = |url: &String| {
        let parsed = PgConnectOptions::from_str(url);
        // The error's own text may contain parts of the address.
        let parsed = parsed.map_err(|_| {
            MigrateError::Refused(format!(
                "store.url: {} is no address of a database",
                options.url.shown()
            ))
        })?;
        // sqlx would look up the name of an IPv6 address with its brackets.
        let host = parsed.get_host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let parsed = parsed.host(&host);
        let parsed = match &options.password {
            Some(password) => parsed.password(password.reveal()),
            None => parsed,
        };
        Ok(parsed
            .application_name("svc")
            .statement_cache_capacity(STATEMENTS)
            .options(settings.clone())
            // Logging a statement costs more than many statements do.
            .disable_statement_logging())
    };
    options.url.of_each_host().iter().map(of_host).collect()
}

/// Connects, and waits for the server if need be. Of several hosts, the daemon uses the first that
/// accepts writes, until it ends.
async fn reach(
    options: &PostgresOptions,
) -> Result<(PgConnection, PgConnectOptions), MigrateError> {
    let hosts = connect_options(options)?;
    let until = Instant::now() + options.connect_timeout;
    loop {
        let mut error = None;
        for host in &hosts {
            let connected = async {
                let mut conn = host.connect().await?;
                let standby = "select pg_is_in_recovery()";
                let is_standby =
                    hosts.len() > 1 && sqlx::query_scalar(standby).fetch_one(&mut conn).await?;
                Ok((!is_standby).then_some(conn))
            };
            match timeout(ATTEMPT, connected).await {
                Ok(Ok(Some(conn))) => return Ok((conn, host.clone())),
                Ok(Ok(None)) => {}
                Ok(Err(failed)) => error = Some(failed),
                Err(_) => error = Some(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
            }
        }
        let is_late = Instant::now() + PAUSE >= until;
        let Some(error) = error else {
            if is_late {
                return Err(refused("none of the hosts of store.url takes writes"));
            }
            sleep(PAUSE).await;
            continue;
        };
        if hosts.len() == 1 && !is_lost(&error) || is_late {
            return Err(MigrateError::Refused(format!(
                "cannot connect to {}: {}",
                options.url.shown(),
                plain(&error)
            )));
        }
        sleep(PAUSE).await;
    }
}

/// Short text of an error, without parts of the address.
fn plain(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(reason) => reason.message().to_owned(),
        sqlx::Error::Io(reason) => reason.to_string(),
        sqlx::Error::Tls(reason) => reason.to_string(),
        _ => "the connection was not made".to_owned(),
    }
}

fn refused(why: impl Into<String>) -> MigrateError {
    MigrateError::Refused(why.into())
}

/// Checks that the server meets the store's requirements.
async fn check_server(
    conn: &mut PgConnection,
    options: &PostgresOptions,
) -> Result<(), MigrateError> {
    let look = "select current_setting('server_version_num')::integer, version(),
        pg_is_in_recovery(), current_setting('fsync'), current_setting('server_encoding'),
        current_setting('full_page_writes')";
    let row = sqlx::query_as(look).fetch_one(&mut *conn).await?;
    let (number, version, in_recovery, fsync, encoding, full_page_writes): (
        i32,
        String,
        bool,
        String,
        String,
        String,
    ) = row;
    if !version.starts_with("PostgreSQL ") {
        return Err(refused(format!("the server is no PostgreSQL: {version}")));
    }
    if number < OLDEST_SERVER {
        return Err(refused(format!("the server is too old, svc needs PostgreSQL 14: {version}")));
    }
    if in_recovery {
        return Err(refused("the server is in recovery: it is a standby, or has not started yet"));
    }
    if fsync != "on" {
        return Err(refused(
            "the server runs with fsync = off: what it acknowledges is not on its disk",
        ));
    }
    if full_page_writes != "on" {
        tracing::warn!(
            "the server runs with full_page_writes = off: unless its file system never writes half \
             a page, a power cut may damage what it acknowledged"
        );
    }
    if encoding != "UTF8" {
        return Err(refused(format!("the database has the encoding {encoding}, svc needs UTF8")));
    }
    let may = "select current_setting('transaction_read_only') = 'off',
        case when to_regnamespace($1) is null
            then has_database_privilege(current_database(), 'create')
            else has_schema_privilege($1, 'create') end";
    let may = sqlx::query_as(may).bind(&options.schema).fetch_one(conn).await;
    let (may_write, may_create): (bool, bool) = may?;
    if !may_write {
        return Err(refused("the role only reads (default_transaction_read_only)"));
    }
    if !may_create {
        let schema = &options.schema;
        return Err(refused(format!("the role may not create tables in the schema {schema}")));
    }
    Ok(())
}

/// Checks that two connections are two sessions, and that a lock of one excludes the other: behind
/// a transaction pooler they are not.
async fn check_session(
    conn: &mut PgConnection,
    connect: &PgConnectOptions,
) -> Result<(), MigrateError> {
    let set = "select set_config('svc.trial', 'kept', false)";
    sqlx::query(set).execute(&mut *conn).await?;
    let mut other = connect.connect().await?;
    let mut holder = other.begin().await?;
    let lock = sqlx::query("select pg_advisory_xact_lock($1, 0)").bind(LOCK_OF_TRIAL);
    lock.execute(&mut *holder).await?;
    let kept = "select coalesce(current_setting('svc.trial', true), '') = 'kept'";
    let is_session: bool = sqlx::query_scalar(kept).fetch_one(&mut *conn).await?;
    if !is_session {
        return Err(refused(
            "a pooler of transactions stands before the server: give svc the address of the server itself",
        ));
    }
    let taken = sqlx::query_scalar("select pg_try_advisory_xact_lock($1, 0)").bind(LOCK_OF_TRIAL);
    let is_taken_twice: bool = taken.fetch_one(conn).await?;
    if is_taken_twice {
        return Err(refused("advisory locks of the server exclude nobody"));
    }
    holder.rollback().await?;
    Ok(other.close().await?)
}

/// Takes the schema's lock for this daemon. Fails if another daemon holds it longer than
/// [`PREDECESSOR`].
async fn take_database(
    lock_connection: &mut PgConnection,
    options: &PostgresOptions,
) -> Result<(), MigrateError> {
    let until = Instant::now() + PREDECESSOR;
    while !try_take(lock_connection).await? {
        if Instant::now() >= until {
            let which = living_daemon(lock_connection).await;
            return Err(MigrateError::InUse(format!(
                "another daemon runs on {}{which}: stop it first",
                options.place()
            )));
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Describes the daemon that holds the schema, for an error's text; empty if its row cannot be
/// read.
async fn living_daemon(lock_connection: &mut PgConnection) -> String {
    let sql = "select m.name, d.pid from daemon d join machine m on m.machine_id = d.machine_id \
        order by d.lease_until desc limit 1";
    let row: Result<Option<(String, i64)>, _> =
        sqlx::query_as(sql).fetch_optional(lock_connection).await;
    let row = row.ok().flatten();
    row.map_or_else(String::new, |(machine, pid)| format!(", process {pid} on {machine}"))
}

/// Migrates the schema to our version; a newer schema is an error.
pub(super) async fn migrate(
    conn: &mut PgConnection,
    options: &PostgresOptions,
) -> Result<(), MigrateError> {
    let migrations = inspect(conn).await?;
    if !options.migrate && !migrations.pending.is_empty() {
        return Err(MigrateError::Pending(migrations.pending.len()));
    }
    if !migrations.pending.is_empty() {
        // `connect_options` has checked that the schema's name needs no quoting.
        let create = format!("create schema if not exists {}", options.schema);
        conn.execute(AssertSqlSafe(create)).await?;
        let ran = MIGRATOR.run(&mut *conn).await;
        ran.map_err(|error| MigrateError::Failed(Arc::new(error)))?;
    }
    let mut whole = conn.begin().await?;
    whole.execute(sqlx::raw_sql(WRITER)).await?;
    Ok(whole.commit().await?)
}

pub(super) async fn inspect(conn: &mut PgConnection) -> Result<Migrations, MigrateError> {
    let known = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null");
    let is_ours: bool = known.fetch_one(&mut *conn).await?;
    let current: Option<i64> = if is_ours {
        let version = sqlx::query_scalar("select max(version) from _sqlx_migrations");
        version.fetch_one(conn).await?
    } else {
        None
    };
    let current = current.unwrap_or(0);
    let latest = MIGRATOR.iter().map(|step| step.version).max().unwrap_or(0);
    if current > latest {
        return Err(MigrateError::Newer { found: current, known: latest });
    }
    let pending = MIGRATOR
        .iter()
        .filter(|step| step.version > current)
        .map(|step| (step.version, step.description.to_string()))
        .collect();
    Ok(Migrations { current, latest, pending })
}

/// Registers this daemon as the only one that may write; returns its id.
async fn begin_daemon(conn: &mut PgConnection) -> Result<String, MigrateError> {
    let mut whole = conn.begin().await?;
    whole.execute("select svc_lock()").await?;
    whole.execute("delete from svc_group").await?;
    let insert = "insert into svc_group (daemon_id, number) values (gen_random_uuid()::text, 0)
        returning daemon_id";
    let daemon = sqlx::query_scalar(insert).fetch_one(&mut *whole).await?;
    whole.commit().await?;
    Ok(daemon)
}
