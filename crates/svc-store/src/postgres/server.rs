//! What a connection asks of the server itself.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use svc_model::{Clock as _, SystemClock};
use tokio::time::Instant;

use crate::{ServerReport, ServerSync};

/// The first half of the advisory lock of a daemon; the second is the schema.
const LOCK_OF_DAEMON: i32 = 1_937_138_532;

/// Takes the schema for a daemon, as long as the connection lives. Returns whether it was free.
pub(super) async fn try_take(keeper: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let take = sqlx::query_scalar(
        "select pg_try_advisory_lock($1, hashtext(split_part(current_setting('search_path'), ',', 1)))",
    );
    take.bind(LOCK_OF_DAEMON).fetch_one(keeper).await
}

/// The state of a server, without what a daemon knows of it.
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
        to_regclass('daemon') is not null";
    let (version, is_sync, has_standby, in_recovery, at, is_readable, has_daemons): (
        String,
        bool,
        bool,
        bool,
        i64,
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
        is_listening,
        is_readable,
        daemons,
        lock_wait,
    })
}
