//! What a connection asks of the server itself.

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

/// The state of a server.
pub(super) async fn report(conn: &mut PgConnection) -> Result<ServerReport, sqlx::Error> {
    let began = Instant::now();
    conn.ping().await?;
    let round_trip = began.elapsed();
    let look = "select current_setting('server_version'),
        current_setting('synchronous_standby_names') <> '',
        exists (select 1 from pg_stat_replication),
        pg_is_in_recovery(),
        (extract(epoch from clock_timestamp()) * 1000)::bigint";
    let (version, is_sync, has_standby, in_recovery, at): (String, bool, bool, bool, i64) =
        sqlx::query_as(look).fetch_one(conn).await?;
    let sync = match (is_sync, has_standby) {
        (true, _) => ServerSync::Sync,
        (false, true) => ServerSync::Async,
        (false, false) => ServerSync::None,
    };
    let skew_ms = at.saturating_sub(SystemClock.now().as_millis());
    Ok(ServerReport { version, round_trip, sync, skew_ms, in_recovery })
}
