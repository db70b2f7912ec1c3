//! Queries of readers and the connections that run them: every read of either engine outside a
//! write job goes through this file. Pages of lists end by rows or by bytes, which bounds their
//! memory.
//!
//! On SQLite, sqlx runs the query that it has checked, on a connection of a pool. On PostgreSQL the
//! same text is translated, and its rows are read like those of write jobs.

use std::{pin::pin, sync::Arc};

use futures_util::{Stream, TryStreamExt as _, future::BoxFuture, stream::BoxStream};
use rusqlite::types::FromSql;
use serde::Serialize;
use sqlx::{
    FromRow, Sqlite, SqliteConnection, SqlitePool,
    pool::PoolConnection,
    query::{Map, QueryScalar},
    sqlite::{SqliteArguments, SqliteRow},
};
use svc_model::json_bytes;

use crate::{
    Bus, PageSize, Result, RowPage,
    bus::Version,
    columns::{DirectRow, Parameter},
    sqlite::row_readers::{FrameReaders, RowReaders},
};

#[cfg(feature = "postgres")]
use crate::postgres::{PgReaders, PgRow, read_column, read_row};
#[cfg(feature = "postgres")]
use futures_util::StreamExt as _;

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

    /// The connections to the file; `None` for a server.
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

    /// Publishes commits of other connections on the bus. No other connection writes to a file.
    pub(super) fn follow(&self, bus: &Arc<Bus>, version: &Arc<Version>) {
        match self {
            Self::Sqlite(_) => {
                let _ = (bus, version);
            }
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
    pub(super) fn release_memory(&self) -> Result<()> {
        match self {
            Self::Sqlite(readers) => readers.release_memory(),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Ok(()),
        }
    }

    pub(super) fn close(&self) {
        match self {
            Self::Sqlite(readers) => readers.close(),
            // The pool belongs to the other readers.
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => {}
        }
    }

    pub(super) async fn value<T: FromSql>(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<T> {
        match self {
            Self::Sqlite(readers) => readers.value(sql, values),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => Box::pin(readers.value(sql, values)).await,
        }
    }

    pub(super) async fn one<T: DirectRow>(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Option<T>> {
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
    ) -> Result<Vec<T>> {
        match self {
            Self::Sqlite(readers) => readers.all(sql, values),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => Box::pin(readers.all(sql, values)).await,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) enum FrameSource {
    Sqlite(Arc<FrameReaders>),
    #[cfg(feature = "postgres")]
    Postgres(PgReaders),
}

impl FrameSource {
    pub(super) fn release_memory(&self) -> Result<()> {
        match self {
            Self::Sqlite(readers) => readers.release_memory(),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Ok(()),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(readers) => readers.close().await,
            // The pool belongs to the other readers.
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

impl ReaderConnection {
    pub(super) fn source(&mut self) -> &mut Self {
        self
    }
}

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

pub(super) enum SqliteSource<'a> {
    Pool(&'a SqlitePool),
    Connection(&'a mut SqliteConnection),
}

/// sqlx's two query types have the same methods and no common trait.
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

pub(super) struct ReadQuery<Q, B> {
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

/// Reads rows of a query until a page is full. The query's limit is [`PageSize::limit`], one row
/// more than the page has.
///
/// `shown` returns the part of a row whose JSON counts towards the bytes.
pub(super) async fn read_page<Raw, Row, Shown: Serialize>(
    rows: impl Stream<Item = Result<Raw, sqlx::Error>> + Send,
    size: PageSize,
    row: impl Fn(Raw) -> Result<Row>,
    shown: impl Fn(&Row) -> &Shown,
) -> Result<RowPage<Row>> {
    let mut rows = pin!(rows);
    let mut page = RowPage { rows: Vec::new(), more: false };
    let mut total = 0_usize;
    while let Some(raw) = rows.try_next().await? {
        let next = row(raw)?;
        total = total.saturating_add(json_bytes(shown(&next)));
        let is_full = page.rows.len() >= size.rows as usize || total > size.bytes;
        if is_full && !page.rows.is_empty() {
            page.more = true;
            break;
        }
        page.rows.push(next);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn page_of(lengths: &[usize], size: PageSize) -> (Vec<usize>, bool, usize) {
        let read = std::sync::atomic::AtomicUsize::new(0);
        let rows = lengths.iter().map(|length| {
            read.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok("x".repeat(*length))
        });
        let page = read_page(stream::iter(rows), size, Ok, |row: &String| row).await.unwrap();
        let lengths = page.rows.iter().map(String::len).collect();
        (lengths, page.more, read.load(std::sync::atomic::Ordering::Relaxed))
    }

    #[tokio::test]
    async fn a_page_ends_at_its_bounds_and_reads_at_most_one_row_more() {
        let size = PageSize { rows: 3, bytes: 100 };
        assert_eq!(page_of(&[], size).await, (vec![], false, 0));
        assert_eq!(page_of(&[1, 1, 1], size).await, (vec![1, 1, 1], false, 3));
        assert_eq!(page_of(&[1, 1, 1, 1, 1], size).await, (vec![1, 1, 1], true, 4));
        // Two quotation marks each.
        assert_eq!(page_of(&[48, 48, 1], size).await, (vec![48, 48], true, 3));
        assert_eq!(page_of(&[48, 49, 1], size).await, (vec![48], true, 2));
        // A row that exceeds the bound has a page of its own, at the beginning and in the middle.
        assert_eq!(page_of(&[500, 1], size).await, (vec![500], true, 2));
        assert_eq!(page_of(&[1, 500], size).await, (vec![1], true, 2));
        assert_eq!(page_of(&[500], size).await, (vec![500], false, 1));
    }
}
