//! Connections of readers: a pool, and how long a read waits for one of them.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use sqlx::{
    PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::{
    connection::{TakePgRow, each, report, translated},
    listener::{LockConnection, LockConnectionState, NotificationTargets},
    write_connection::WriterState,
};
use crate::{
    Bus, Result, ServerReport, ServerSync, StoreSize, StoreTrouble, bus::Version,
    columns::Parameter,
};

/// How long a read waits for a free connection, or for the server to answer.
const ACQUIRE: Duration = Duration::from_secs(4);
/// How long reads wait for a connection after the server stopped answering. Replacing a lost
/// connection takes less.
const AWAY: Duration = Duration::from_secs(2);
/// How long a read waits for a connection after [`AWAY`].
const ATTEMPT: Duration = Duration::from_millis(200);

/// A pool of connections that read. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct PgReaders {
    pool: PgPool,
    holder: Arc<Holder>,
    writer: Arc<WriterState>,
}

/// Keeps the task that holds the schema's lock for this daemon. The task ends with the last clone
/// of the readers.
#[derive(Debug, Default)]
struct Holder {
    /// `None` once [`PgReaders::follow`] has started it.
    lock_connection: Mutex<Option<(LockConnection, PgListener)>>,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
    lock_state: Arc<LockConnectionState>,
}

impl PgReaders {
    pub(super) fn new(
        options: PgConnectOptions,
        connections: u32,
        lock_connection: (LockConnection, PgListener),
        writer: Arc<WriterState>,
    ) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE)
            .connect_lazy_with(options);
        let holder =
            Holder { lock_connection: Mutex::new(Some(lock_connection)), ..Holder::default() };
        Self { pool, holder: Arc::new(holder), writer }
    }

    /// Publishes commits of other connections on the bus from now on. Only the first call counts.
    pub(crate) fn follow(&self, bus: &Arc<Bus>, version: &Arc<Version>) {
        let lock_connection =
            self.holder.lock_connection.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((lock_connection, listener)) = lock_connection else { return };
        let (bus, version) = (Arc::clone(bus), Arc::clone(version));
        version.set_notified(false);
        let (lock_state, writer) = (Arc::clone(&self.holder.lock_state), Arc::clone(&self.writer));
        let targets = NotificationTargets { bus, version, lock_state, writer };
        let task = tokio::spawn(lock_connection.run(listener, self.pool.clone(), targets));
        *self.holder.task.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(AbortOnDropHandle::new(task));
    }

    /// Why the server took no writes when it was last asked, at most some seconds ago.
    pub(crate) fn trouble(&self) -> Option<StoreTrouble> {
        if self.writer.is_fenced() {
            Some(StoreTrouble::Fenced)
        } else if self.holder.lock_state.away().is_some() {
            Some(StoreTrouble::Away)
        } else {
            self.writer.is_read_only().then_some(StoreTrouble::ReadOnly)
        }
    }

    /// Waits until this daemon is fenced and no other daemon holds the schema.
    pub(crate) async fn released(&self) {
        self.writer.released.cancelled().await;
    }

    /// A connection of the pool. While the server is away, a read waits only briefly: concurrent
    /// reads were seen to wait one after another, so that their waits added up.
    async fn acquire(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        let Some(away) = self.holder.lock_state.away() else { return self.pool.acquire().await };
        let bound = AWAY.saturating_sub(away).max(ATTEMPT);
        timeout(bound, self.pool.acquire()).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
        drop(self.holder.task.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(crate) async fn report(&self) -> Result<ServerReport> {
        let server = report(&mut *self.acquire().await?).await?;
        let is_listening = self.holder.lock_state.is_listening.load(Relaxed);
        let sync = if self.writer.is_stalled() { ServerSync::Stalled } else { server.sync };
        Ok(ServerReport { is_listening, sync, lock_wait: self.writer.lock_wait(), ..server })
    }

    /// Bytes of our tables and their indexes, and the schema's version.
    pub(crate) async fn size(&self) -> Result<StoreSize> {
        let mut connection = self.acquire().await?;
        let bytes: i64 = sqlx::query_scalar(
            "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c
            join pg_namespace n on n.oid = c.relnamespace
            where n.nspname = current_schema() and c.relkind = 'r'",
        )
        .fetch_one(&mut *connection)
        .await?;
        let schema = sqlx::query_scalar("select max(version) from _sqlx_migrations");
        let schema: i64 = schema.fetch_one(&mut *connection).await?;
        Ok(StoreSize { database: u64::try_from(bytes).unwrap_or(0), wal: 0, schema })
    }

    /// Passes the rows of a query to `take` as they arrive, until it wants no more.
    pub(crate) async fn each(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
        take: TakePgRow<'_>,
    ) -> Result<()> {
        let mut connection = self.acquire().await?;
        each(&mut connection, translated(sql), values, take).await
    }
}
