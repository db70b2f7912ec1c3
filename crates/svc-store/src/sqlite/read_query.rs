//! Queries of readers, and where they read: the door through which all of them go, whatever the
//! engine.
//!
//! On SQLite, sqlx runs the query that it has checked, on a connection of a pool. On PostgreSQL the
//! same text is translated, and its rows are read like those of write jobs.

use std::sync::Arc;

#[cfg(feature = "postgres")]
use futures_util::StreamExt as _;
use futures_util::{TryStreamExt as _, future::BoxFuture, stream::BoxStream};
use rusqlite::types::FromSql;
use sqlx::{
    FromRow, Sqlite, SqliteConnection, SqlitePool,
    pool::PoolConnection,
    query::{Map, QueryScalar},
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{
    frame_readers::FrameReaders,
    row::{DirectRow, Parameter},
    row_readers::RowReaders,
};
#[cfg(feature = "postgres")]
use crate::postgres::{PgReaders, PgRow, read_column, read_row};
use crate::{Bus, StoreError, version::Version};

/// Connections of readers.
#[derive(Debug, Clone)]
pub(super) enum Readers {
    Sqlite(SqlitePool),
    #[cfg(feature = "postgres")]
    Postgres(PgReaders),
}

impl Readers {
    /// A connection for several queries.
    pub(super) async fn acquire(&self) -> Result<ReaderConnection, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(pool) => ReaderConnection::Sqlite(pool.acquire().await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => ReaderConnection::Postgres(readers.clone()),
        })
    }

    /// The connections to the file; `None` if the database is none.
    pub(super) fn file(&self) -> Option<&SqlitePool> {
        match self {
            Self::Sqlite(pool) => Some(pool),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => None,
        }
    }

    pub(super) fn is_away(&self) -> bool {
        match self {
            Self::Sqlite(_) => false,
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => readers.is_away(),
        }
    }

    /// Gives the bus what other connections commit. A file has none.
    pub(super) fn follow(&self, bus: &Arc<Bus>, version: &Arc<Version>) {
        match self {
            Self::Sqlite(_) => {}
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => readers.follow(bus, version),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => Box::pin(readers.close()).await,
        }
    }
}

/// Connections for queries of few rows by an index: on SQLite they are read on the caller's thread.
#[derive(Debug, Clone)]
pub(super) enum FewRowReaders {
    Sqlite(Arc<RowReaders>),
    #[cfg(feature = "postgres")]
    Postgres(PgReaders),
}

impl FewRowReaders {
    /// Empties the caches of connections that nobody uses.
    pub(super) fn release_memory(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(readers) => readers.release_memory(),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Ok(()),
        }
    }

    pub(super) fn close(&self) {
        match self {
            Self::Sqlite(readers) => readers.close(),
            // The pool is that of the other readers.
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {}
        }
    }

    /// The single value of a query that returns one row.
    pub(super) async fn value<T: FromSql>(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<T, StoreError> {
        match self {
            Self::Sqlite(readers) => readers.value(sql, values),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => Box::pin(readers.value(sql, values)).await,
        }
    }

    /// The row of a query that returns at most one.
    pub(super) async fn one<T: DirectRow>(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Option<T>, StoreError> {
        match self {
            Self::Sqlite(readers) => readers.one(sql, values),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => Box::pin(readers.one(sql, values)).await,
        }
    }

    pub(super) async fn all<T: DirectRow + Send>(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Vec<T>, StoreError> {
        match self {
            Self::Sqlite(readers) => readers.all(sql, values),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => Box::pin(readers.all(sql, values)).await,
        }
    }
}

/// Connections for the pages of a replay.
#[derive(Debug, Clone)]
pub(super) enum FrameSource {
    Sqlite(Arc<FrameReaders>),
    #[cfg(feature = "postgres")]
    Postgres(PgReaders),
}

impl FrameSource {
    /// Empties the caches of connections that nobody uses.
    pub(super) fn release_memory(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(readers) => readers.release_memory(),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Ok(()),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(readers) => readers.close().await,
            // The pool is that of the other readers.
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {}
        }
    }
}

/// For several queries: on SQLite one connection, since acquiring it costs as much as a query.
#[derive(Debug)]
pub(super) enum ReaderConnection {
    Sqlite(PoolConnection<Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(PgReaders),
}

/// Where a query reads.
pub(super) enum ReadSource<'a> {
    Pool(&'a SqlitePool),
    Connection(&'a mut SqliteConnection),
    #[cfg(feature = "postgres")]
    Postgres(&'a PgReaders),
}

impl<'a> From<&'a Readers> for ReadSource<'a> {
    fn from(readers: &'a Readers) -> Self {
        match readers {
            Readers::Sqlite(pool) => Self::Pool(pool),
            #[cfg(feature = "postgres")]
            Readers::Postgres(readers) => Self::Postgres(readers),
        }
    }
}

impl<'a> From<&'a mut ReaderConnection> for ReadSource<'a> {
    fn from(connection: &'a mut ReaderConnection) -> Self {
        match connection {
            ReaderConnection::Sqlite(connection) => Self::Connection(connection),
            #[cfg(feature = "postgres")]
            ReaderConnection::Postgres(readers) => Self::Postgres(readers),
        }
    }
}

/// A query that sqlx has checked, and how its result is read from another engine's row.
pub(super) trait CheckedQuery: Sized {
    type Output: Send + 'static;

    fn fetch<'e>(self, from: SqliteSource<'e>) -> BoxStream<'e, Result<Self::Output, sqlx::Error>>
    where
        Self: 'e;

    fn fetch_optional<'e>(
        self,
        from: SqliteSource<'e>,
    ) -> BoxFuture<'e, Result<Option<Self::Output>, sqlx::Error>>
    where
        Self: 'e;

    #[cfg(feature = "postgres")]
    fn read(row: &PgRow) -> Result<Self::Output, sqlx::Error>;
}

/// Where a query of SQLite reads.
pub(super) enum SqliteSource<'a> {
    Pool(&'a SqlitePool),
    Connection(&'a mut SqliteConnection),
}

/// The two queries of sqlx have the same methods, and no trait for them.
macro_rules! fetch_from_sqlite {
    () => {
        type Output = T;

        fn fetch<'e>(self, from: SqliteSource<'e>) -> BoxStream<'e, Result<T, sqlx::Error>>
        where
            Self: 'e,
        {
            match from {
                SqliteSource::Pool(pool) => self.fetch(pool),
                SqliteSource::Connection(connection) => self.fetch(connection),
            }
        }

        fn fetch_optional<'e>(
            self,
            from: SqliteSource<'e>,
        ) -> BoxFuture<'e, Result<Option<T>, sqlx::Error>>
        where
            Self: 'e,
        {
            match from {
                SqliteSource::Pool(pool) => Box::pin(self.fetch_optional(pool)),
                SqliteSource::Connection(connection) => Box::pin(self.fetch_optional(connection)),
            }
        }
    };
}

impl<F, T> CheckedQuery for Map<'_, Sqlite, F, SqliteArguments>
where
    F: FnMut(SqliteRow) -> Result<T, sqlx::Error> + Send,
    T: DirectRow + Send + Unpin + 'static,
{
    fetch_from_sqlite!();

    #[cfg(feature = "postgres")]
    fn read(row: &PgRow) -> Result<T, sqlx::Error> {
        read_row(row)
    }
}

impl<T> CheckedQuery for QueryScalar<'_, Sqlite, T, SqliteArguments>
where
    T: FromSql + Send + Unpin + 'static,
    (T,): for<'r> FromRow<'r, SqliteRow>,
{
    fetch_from_sqlite!();

    #[cfg(feature = "postgres")]
    fn read(row: &PgRow) -> Result<T, sqlx::Error> {
        read_column(row)
    }
}

/// A query of readers.
pub(super) struct ReadQuery<Q, B> {
    /// What SQLite runs.
    checked: Q,
    /// The same text, and its values, for an engine that sqlx has not checked.
    #[cfg(feature = "postgres")]
    sql: &'static str,
    #[cfg(feature = "postgres")]
    bind: B,
    #[cfg(not(feature = "postgres"))]
    bind: std::marker::PhantomData<B>,
}

impl<Q, B> ReadQuery<Q, B>
where
    Q: CheckedQuery,
    B: FnOnce() -> Result<Vec<Parameter<'static>>, sqlx::Error>,
{
    #[cfg(feature = "postgres")]
    pub(super) fn new(checked: Q, sql: &'static str, bind: B) -> Self {
        Self { checked, sql, bind }
    }

    #[cfg(not(feature = "postgres"))]
    pub(super) fn new(checked: Q, _sql: &'static str, _bind: B) -> Self {
        Self { checked, bind: std::marker::PhantomData }
    }

    /// The rows, as they are read.
    pub(super) fn fetch<'e>(
        self,
        from: impl Into<ReadSource<'e>>,
    ) -> BoxStream<'e, Result<Q::Output, sqlx::Error>>
    where
        Q: 'e,
    {
        match from.into() {
            ReadSource::Pool(pool) => self.checked.fetch(SqliteSource::Pool(pool)),
            ReadSource::Connection(connection) => {
                self.checked.fetch(SqliteSource::Connection(connection))
            }
            #[cfg(feature = "postgres")]
            ReadSource::Postgres(readers) => match (self.bind)() {
                Ok(values) => {
                    let rows = readers.rows(self.sql, values);
                    rows.map(|row| row.and_then(|row| Q::read(&row))).boxed()
                }
                Err(error) => futures_util::stream::once(async { Err(error) }).boxed(),
            },
        }
    }

    pub(super) fn fetch_all<'e>(
        self,
        from: impl Into<ReadSource<'e>>,
    ) -> BoxFuture<'e, Result<Vec<Q::Output>, sqlx::Error>>
    where
        Q: 'e,
    {
        match from.into() {
            #[cfg(feature = "postgres")]
            ReadSource::Postgres(readers) => {
                let (sql, values) = (self.sql, (self.bind)());
                Box::pin(async move {
                    let rows = readers.every(sql, &values?).await?;
                    rows.iter().map(Q::read).collect()
                })
            }
            from => Box::pin(self.fetch(from).try_collect()),
        }
    }

    pub(super) fn fetch_optional<'e>(
        self,
        from: impl Into<ReadSource<'e>>,
    ) -> BoxFuture<'e, Result<Option<Q::Output>, sqlx::Error>>
    where
        Q: 'e,
    {
        match from.into() {
            ReadSource::Pool(pool) => self.checked.fetch_optional(SqliteSource::Pool(pool)),
            ReadSource::Connection(connection) => {
                self.checked.fetch_optional(SqliteSource::Connection(connection))
            }
            #[cfg(feature = "postgres")]
            ReadSource::Postgres(readers) => {
                let (sql, values) = (self.sql, (self.bind)());
                Box::pin(async move {
                    let row = readers.first(sql, &values?).await?;
                    row.map(|row| Q::read(&row)).transpose()
                })
            }
        }
    }

    pub(super) fn fetch_one<'e>(
        self,
        from: impl Into<ReadSource<'e>>,
    ) -> BoxFuture<'e, Result<Q::Output, sqlx::Error>>
    where
        Q: 'e,
    {
        let row = self.fetch_optional(from);
        Box::pin(async move { row.await?.ok_or(sqlx::Error::RowNotFound) })
    }
}
