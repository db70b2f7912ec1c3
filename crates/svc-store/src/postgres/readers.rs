//! Connections that read.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use rusqlite::types::FromSql;
use sqlx::{
    Connection as _, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions, PgRow},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{
    connection::{all, first, rows, translated, unreadable},
    row::column,
    server::{report, try_take},
};
use crate::{
    ServerReport, StoreError, StoreSize,
    sqlite::row::{DirectRow, Parameter},
};

/// How long a read waits for a connection: one that is free, or a server that answers.
const ACQUIRE: Duration = Duration::from_secs(4);
/// Between two looks at the connection that holds the database.
const KEPT: Duration = Duration::from_secs(1);
/// Rows that are read ahead of who takes them.
const AHEAD: usize = 16;

/// A pool of connections that read. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct PgReaders {
    pool: PgPool,
    keeper: Arc<Keeper>,
}

/// The task that holds the database for this daemon. Ends with the last of its readers.
#[derive(Debug, Default)]
struct Keeper {
    task: Mutex<Option<AbortOnDropHandle<()>>>,
    /// The server does not answer it.
    is_away: Arc<AtomicBool>,
}

impl PgReaders {
    pub(super) fn new(options: PgConnectOptions, connections: u32) -> Self {
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE)
            .connect_lazy_with(options);
        Self { pool, keeper: Arc::default() }
    }

    /// Keeps a connection that holds the database for this daemon, and makes a new one when it is
    /// lost.
    pub(super) fn keep(&self, keeper: PgConnection) {
        let options = self.pool.connect_options();
        let task = tokio::spawn(keep(keeper, options, Arc::clone(&self.keeper.is_away)));
        *self.keeper.task.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(AbortOnDropHandle::new(task));
    }

    /// Whether the server did not answer when it was last asked, some seconds ago at most.
    pub(crate) fn is_away(&self) -> bool {
        self.keeper.is_away.load(Relaxed)
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
        drop(self.keeper.task.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// The state of the server.
    pub(crate) async fn report(&self) -> Result<ServerReport, StoreError> {
        Ok(report(&mut *self.pool.acquire().await?).await?)
    }

    /// Bytes of our tables and their indexes, and the schema's version.
    pub(crate) async fn size(&self) -> Result<StoreSize, StoreError> {
        let mut connection = self.pool.acquire().await?;
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

    /// The rows of a query, as they are read.
    pub(crate) fn rows(
        &self,
        sql: &'static str,
        values: Vec<Parameter<'static>>,
    ) -> BoxStream<'static, Result<PgRow, sqlx::Error>> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let pool = self.pool.clone();
        // A stream cannot own the connection that it borrows.
        tokio::spawn(async move {
            let read = async {
                let mut connection = pool.acquire().await?;
                let mut rows = std::pin::pin!(rows(&mut connection, translated(sql), &values));
                while let Some(row) = rows.try_next().await? {
                    if sender.send(Ok(row)).await.is_err() {
                        break;
                    }
                }
                Ok::<_, sqlx::Error>(())
            };
            if let Err(error) = read.await {
                sender.send(Err(error)).await.ok();
            }
        });
        let next = async |mut receiver: mpsc::Receiver<_>| {
            receiver.recv().await.map(|row| (row, receiver))
        };
        futures_util::stream::unfold(receiver, next).boxed()
    }

    /// The first row of a query, if it has one.
    pub(crate) async fn first(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Option<PgRow>, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        first(&mut connection, translated(sql), values).await
    }

    pub(crate) async fn every(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        rows(&mut connection, translated(sql), values).try_collect().await
    }

    /// The single value of a query that returns one row.
    pub(crate) async fn value<T: FromSql>(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<T, StoreError> {
        let row = self.first(sql, values).await?.ok_or(sqlx::Error::RowNotFound)?;
        Ok(column(&row, 0).map_err(unreadable)?)
    }

    pub(crate) async fn one<T: DirectRow>(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Option<T>, StoreError> {
        let row = self.first(sql, values).await?;
        Ok(row.map(|row| super::row::read_row(&row)).transpose().map_err(unreadable)?)
    }

    pub(crate) async fn all<T: DirectRow>(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Vec<T>, StoreError> {
        let mut connection = self.pool.acquire().await?;
        Ok(all(&mut connection, translated(sql), values).await?)
    }
}

async fn keep(mut keeper: PgConnection, options: Arc<PgConnectOptions>, is_away: Arc<AtomicBool>) {
    loop {
        tokio::time::sleep(KEPT).await;
        if matches!(timeout(ACQUIRE, keeper.ping()).await, Ok(Ok(()))) {
            continue;
        }
        is_away.store(true, Relaxed);
        tracing::warn!("the connection to the database was lost");
        keeper = loop {
            tokio::time::sleep(KEPT).await;
            let fresh = timeout(ACQUIRE, PgConnection::connect_with(&options)).await;
            let Ok(Ok(mut fresh)) = fresh else { continue };
            // Else the server has not noticed yet that the former connection is gone, or another
            // daemon was started: the writer is told by its next group.
            if let Ok(true) = try_take(&mut fresh).await {
                break fresh;
            }
        };
        is_away.store(false, Relaxed);
        tracing::info!("connected to the database again");
    }
}
