//! How statements run on a connection of PostgreSQL, what its failures mean, and what a connection
//! asks of the server itself.

use std::{
    collections::HashMap,
    sync::{LazyLock, PoisonError, RwLock},
    time::Duration,
};

use futures_util::{Stream, TryStreamExt as _};
use sqlx::{
    Connection as _, Either, Executor as _, PgConnection, SqlSafeStr as _, Statement as _,
    error::DatabaseError,
    postgres::{PgArguments, PgDatabaseError, PgRow},
};
use svc_model::{Clock as _, SystemClock};
use tokio::time::Instant;

use super::{row::arguments, translate::translate};
use crate::{EngineError, Result, ServerReport, ServerSync, StoreError, columns::Parameter};

/// Takes a row, and tells whether the next one is wanted.
pub(crate) type TakePgRow<'a> = &'a mut (dyn FnMut(&PgRow) -> Result<bool> + Send);

/// PostgreSQL's text of a statement. Each text is made once and kept: the program has a fixed
/// number of statements.
pub(super) fn translated(sql: &'static str) -> &'static str {
    static TEXTS: LazyLock<RwLock<HashMap<&'static str, &'static str>>> =
        LazyLock::new(RwLock::default);
    let known = TEXTS.read().unwrap_or_else(PoisonError::into_inner).get(sql).copied();
    known.unwrap_or_else(|| {
        let mut texts = TEXTS.write().unwrap_or_else(PoisonError::into_inner);
        texts.entry(sql).or_insert_with(|| Box::leak(translate(sql).into_boxed_str()))
    })
}

fn rows<'a>(
    conn: &'a mut PgConnection,
    sql: &'static str,
    values: &'a [Parameter<'_>],
) -> impl Stream<Item = Result<PgRow, sqlx::Error>> + Send + 'a {
    let run = async move {
        let arguments = prepared(conn, sql, values).await?;
        Ok::<_, sqlx::Error>(conn.fetch(sqlx::query_with(sql, arguments)))
    };
    futures_util::stream::once(run).try_flatten()
}

async fn prepared(
    conn: &mut PgConnection,
    sql: &'static str,
    values: &[Parameter<'_>],
) -> Result<PgArguments, sqlx::Error> {
    let statement = conn.prepare(sql.into_sql_str()).await?;
    let types = match statement.parameters() {
        Some(Either::Left(types)) => types,
        _ => &[],
    };
    arguments(values, types)
}

pub(super) async fn change(
    conn: &mut PgConnection,
    sql: &'static str,
    values: &[Parameter<'_>],
) -> Result<u64, sqlx::Error> {
    let arguments = prepared(conn, sql, values).await?;
    Ok(conn.execute(sqlx::query_with(sql, arguments)).await?.rows_affected())
}

/// Passes the rows of a query to `take` as they arrive, until it wants no more.
pub(super) async fn each(
    conn: &mut PgConnection,
    sql: &'static str,
    values: &[Parameter<'_>],
    take: TakePgRow<'_>,
) -> Result<()> {
    let mut rows = std::pin::pin!(rows(conn, sql, values));
    while let Some(row) = rows.try_next().await? {
        if !take(&row)? {
            break;
        }
    }
    Ok(())
}

/// A failure that PostgreSQL itself reported (postgresql.org/docs/current/errcodes-appendix.html).
/// `None` if another engine reported it.
pub(crate) fn reported(reason: &dyn DatabaseError, error: &EngineError) -> Option<StoreError> {
    let code = reason.try_downcast_ref::<PgDatabaseError>()?.code();
    let error = EngineError::clone(error);
    Some(match code {
        // The disk is full, or a quota is used up.
        "53100" => StoreError::Full(error),
        "25006" => StoreError::ServerReadOnly(error),
        "42501" => StoreError::ReadOnly(error),
        // Our own: the daemon's row does not have the number before this group's, or is gone.
        "SV001" | "SV003" => StoreError::Fenced(error),
        "XX001" | "XX002" => StoreError::Corrupt(error),
        _ if is_passing(code) => StoreError::Unavailable(error),
        _ => StoreError::Database(error),
    })
}

/// Whether a later attempt may succeed. Nothing was written.
fn is_passing(code: &str) -> bool {
    // Classes: connection (08), resources (53), the operator's intervention (57P), conflicts that a
    // retry may avoid (40). Codes: a lock timeout, an idle transaction that was ended, a cancelled
    // statement, and our own: a group that arrived after a group of another daemon.
    code.starts_with("08")
        || code.starts_with("53")
        || code.starts_with("57P")
        || code.starts_with("40")
        || matches!(code, "55P03" | "25P03" | "57014" | "SV002")
}

/// Whether the connection was lost, so that what the server did is unknown.
pub(super) fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(reason) => {
            reason.try_downcast_ref::<PgDatabaseError>().is_some_and(|reason| {
                let code = reason.code();
                code.starts_with("08") || code.starts_with("57P") || code == "25P03"
            })
        }
        _ => true,
    }
}

/// First key of a daemon's advisory lock; the second is the hash of the schema's name.
const LOCK_OF_DAEMON: i32 = 1_937_138_532;

/// Takes the schema's lock for a daemon, until the connection ends. Returns false if another daemon
/// holds it.
pub(super) async fn try_take(lock_connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let take = sqlx::query_scalar(
        "select pg_try_advisory_lock($1, hashtext(split_part(current_setting('search_path'), ',', 1)))",
    );
    take.bind(LOCK_OF_DAEMON).fetch_one(lock_connection).await
}

/// State of a server, as the server reports it. A running daemon adds what it knows itself.
pub(super) async fn report(conn: &mut PgConnection) -> Result<ServerReport, sqlx::Error> {
    let began = Instant::now();
    conn.ping().await?;
    let round_trip = began.elapsed();
    let look = "select current_setting('server_version'),
        current_setting('synchronous_standby_names') <> '',
        exists (select 1 from pg_stat_replication),
        pg_is_in_recovery(),
        (extract(epoch from clock_timestamp()) * 1000)::bigint,
        inet_server_addr() is not null
            and not coalesce((select ssl from pg_stat_ssl where pid = pg_backend_pid()), false)
            and not inet_server_addr() <<= inet '127.0.0.0/8' and inet_server_addr() <> inet '::1',
        to_regclass('daemon') is not null,
        current_setting('full_page_writes') = 'on'";
    let (version, is_sync, has_standby, in_recovery, at, is_readable, has_daemons, full_pages): (
        String,
        bool,
        bool,
        bool,
        i64,
        bool,
        bool,
        bool,
    ) = sqlx::query_as(look).fetch_one(&mut *conn).await?;
    let daemons = if has_daemons {
        let versions =
            "select distinct version from daemon where lease_until > $1 order by version";
        sqlx::query_scalar(versions).bind(at).fetch_all(conn).await?
    } else {
        Vec::new()
    };
    let sync = match (is_sync, has_standby) {
        (true, _) => ServerSync::Sync,
        (false, true) => ServerSync::Async,
        (false, false) => ServerSync::None,
    };
    let skew_ms = at.saturating_sub(SystemClock.now().as_millis());
    let (is_listening, lock_wait) = (false, Duration::ZERO);
    Ok(ServerReport {
        version,
        round_trip,
        sync,
        skew_ms,
        in_recovery,
        writes_full_pages: full_pages,
        is_listening,
        is_readable,
        daemons,
        lock_wait,
    })
}
