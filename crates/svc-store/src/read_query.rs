//! Queries of readers and the connections that run them: every read of either engine outside a
//! write job goes through this file. Pages of lists end by rows or by bytes, which bounds their
//! memory.
//!
//! On SQLite, sqlx runs the query that it has checked, on a connection of a pool. On PostgreSQL the
//! same text is translated, and its rows are read like those of write jobs.

use std::{pin::pin, sync::Arc};

use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream::BoxStream};
use rusqlite::types::{FromSql, ToSqlOutput, Value, ValueRef};
use serde::Serialize;
use sqlx::{
    Decode, Row as _, Sqlite, SqliteConnection, SqlitePool, TypeInfo as _, ValueRef as _,
    error::BoxDynError,
    pool::PoolConnection,
    query::{Query, QueryScalar},
    sqlite::{SqliteArguments, SqliteRow, SqliteValueRef},
};
use svc_model::json_bytes;

use crate::{
    Bus, PageSize, Result, RowPage, StoreTrouble,
    bus::Version,
    columns::{DirectRow, Parameter, RawRow, Single, column, read_row},
    sqlite::direct_connection::{FrameReaders, RowReaders},
};

#[cfg(feature = "postgres")]
use crate::postgres::{PgReaders, PgRow};
#[cfg(feature = "postgres")]
use futures_util::stream;

/// The connections that read. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Readers {
    Sqlite(FileReaders),
    #[cfg(feature = "postgres")]
    Postgres(PgReaders),
}

#[derive(Debug, Clone)]
pub(super) struct FileReaders {
    pub(super) pool: SqlitePool,
    /// For pages of lists: these connections read at most two rows ahead, and other reads do not
    /// wait behind a page.
    pub(super) pages: SqlitePool,
    /// For queries of few rows by an index, which are read on the caller's thread.
    pub(super) few_rows: Arc<RowReaders>,
    pub(super) frames: Arc<FrameReaders>,
}

impl Readers {
    pub(super) fn source(&self) -> ReadSource<'_> {
        match self {
            Self::Sqlite(file) => ReadSource::Pool(&file.pool),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => ReadSource::Postgres(readers),
        }
    }

    pub(super) fn page_source(&self) -> ReadSource<'_> {
        match self {
            Self::Sqlite(file) => ReadSource::Pool(&file.pages),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => ReadSource::Postgres(readers),
        }
    }

    /// A connection for several queries.
    pub(super) async fn acquire(&self) -> Result<ReaderConnection, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(file) => ReaderConnection::Sqlite(file.pool.acquire().await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => ReaderConnection::Postgres(readers.clone()),
        })
    }

    /// The connections to the file; `None` for a server.
    pub(super) fn file(&self) -> Option<&FileReaders> {
        match self {
            Self::Sqlite(file) => Some(file),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => None,
        }
    }

    pub(super) fn trouble(&self) -> Option<StoreTrouble> {
        match self {
            Self::Sqlite(_) => None,
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => readers.trouble(),
        }
    }

    pub(super) async fn released(&self) {
        match self {
            Self::Sqlite(_) => std::future::pending().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => readers.released().await,
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
            Self::Sqlite(file) => {
                file.pool.close().await;
                file.pages.close().await;
                file.frames.close().await;
                file.few_rows.close();
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => Box::pin(readers.close()).await,
        }
    }

    pub(super) async fn value<T: FromSql>(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<T> {
        let row = self.one::<Single<T>>(sql, values).await?;
        Ok(row.ok_or(sqlx::Error::RowNotFound)?.0)
    }

    pub(super) async fn one<T: DirectRow>(
        &self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Option<T>> {
        match self {
            Self::Sqlite(file) => file.few_rows.one(sql, values),
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
            Self::Sqlite(file) => file.few_rows.all(sql, values),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => Box::pin(readers.all(sql, values)).await,
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
    pub(super) fn source(&mut self) -> ReadSource<'_> {
        match self {
            Self::Sqlite(connection) => ReadSource::Connection(connection),
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => ReadSource::Postgres(readers),
        }
    }
}

pub(super) enum ReadSource<'a> {
    Pool(&'a SqlitePool),
    Connection(&'a mut SqliteConnection),
    #[cfg(feature = "postgres")]
    Postgres(&'a PgReaders),
}

/// A query whose text sqlx has checked at compile time, and the values of its parameters. The
/// program has the code that runs a query once: rows of SQLite and of PostgreSQL are read by
/// [`DirectRow`], as the rows of write jobs are.
pub(super) struct ReadQuery<T> {
    sql: &'static str,
    values: Vec<Parameter<'static>>,
    read: fn(&EngineRow) -> rusqlite::Result<T>,
}

enum EngineRow {
    Sqlite(SqliteRow),
    #[cfg(feature = "postgres")]
    Postgres(PgRow),
}

impl<T: DirectRow> ReadQuery<T> {
    pub(super) fn rows(sql: &'static str, values: Vec<Parameter<'static>>) -> Self {
        let read = |row: &EngineRow| match row {
            EngineRow::Sqlite(row) => read_row(row),
            #[cfg(feature = "postgres")]
            EngineRow::Postgres(row) => read_row(row),
        };
        Self { sql, values, read }
    }
}

impl<T: FromSql> ReadQuery<T> {
    /// A query of a single column, whose type is that of the checked query.
    pub(super) fn column<'q>(
        _checked: impl FnOnce() -> QueryScalar<'q, Sqlite, T, SqliteArguments>,
        sql: &'static str,
        values: Vec<Parameter<'static>>,
    ) -> Self {
        let read = |row: &EngineRow| match row {
            EngineRow::Sqlite(row) => column(row, 0),
            #[cfg(feature = "postgres")]
            EngineRow::Postgres(row) => column(row, 0),
        };
        Self { sql, values, read }
    }
}

impl<T: Send + 'static> ReadQuery<T> {
    pub(super) fn fetch(self, from: ReadSource<'_>) -> BoxStream<'_, Result<T, sqlx::Error>> {
        let Self { sql, values, read } = self;
        from.rows(sql, values).map(move |row| decoded(read(&row?))).boxed()
    }

    pub(super) async fn fetch_all(self, from: ReadSource<'_>) -> Result<Vec<T>, sqlx::Error> {
        let Self { sql, values, read } = self;
        let mut rows = from.all_rows(sql, values).await?;
        let mut all = Vec::new();
        while let Some(row) = rows.try_next().await? {
            all.push(decoded(read(&row))?);
        }
        Ok(all)
    }

    pub(super) async fn fetch_optional(
        self,
        from: ReadSource<'_>,
    ) -> Result<Option<T>, sqlx::Error> {
        let row = from.first_row(self.sql, self.values).await?;
        row.map(|row| decoded((self.read)(&row))).transpose()
    }

    pub(super) async fn fetch_one(self, from: ReadSource<'_>) -> Result<T, sqlx::Error> {
        self.fetch_optional(from).await?.ok_or(sqlx::Error::RowNotFound)
    }
}

fn decoded<T>(read: rusqlite::Result<T>) -> Result<T, sqlx::Error> {
    read.map_err(|error| sqlx::Error::Decode(error.into()))
}

impl<'e> ReadSource<'e> {
    fn rows(
        self,
        sql: &'static str,
        values: Vec<Parameter<'static>>,
    ) -> BoxStream<'e, Result<EngineRow, sqlx::Error>> {
        match self {
            Self::Pool(pool) => {
                sqlite_query(sql, values).fetch(pool).map_ok(EngineRow::Sqlite).boxed()
            }
            Self::Connection(connection) => {
                sqlite_query(sql, values).fetch(connection).map_ok(EngineRow::Sqlite).boxed()
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => {
                readers.rows(sql, values).map_ok(EngineRow::Postgres).boxed()
            }
        }
    }

    /// All rows of a query: a server sends them at once.
    async fn all_rows(
        self,
        sql: &'static str,
        values: Vec<Parameter<'static>>,
    ) -> Result<BoxStream<'e, Result<EngineRow, sqlx::Error>>, sqlx::Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => {
                let rows = readers.every(sql, &values).await?;
                Ok(stream::iter(rows).map(|row| Ok(EngineRow::Postgres(row))).boxed())
            }
            file => Ok(file.rows(sql, values)),
        }
    }

    async fn first_row(
        self,
        sql: &'static str,
        values: Vec<Parameter<'static>>,
    ) -> Result<Option<EngineRow>, sqlx::Error> {
        let query = |values| sqlite_query(sql, values);
        Ok(match self {
            Self::Pool(pool) => query(values).fetch_optional(pool).await?.map(EngineRow::Sqlite),
            Self::Connection(connection) => {
                query(values).fetch_optional(connection).await?.map(EngineRow::Sqlite)
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => readers.first(sql, &values).await?.map(EngineRow::Postgres),
        })
    }
}

fn sqlite_query(
    sql: &'static str,
    values: Vec<Parameter<'static>>,
) -> Query<'static, Sqlite, SqliteArguments> {
    values.into_iter().fold(sqlx::query(sql), |query, value| match value {
        ToSqlOutput::Owned(Value::Integer(number)) => query.bind(number),
        ToSqlOutput::Owned(Value::Real(number)) => query.bind(number),
        ToSqlOutput::Owned(Value::Text(text)) => query.bind(text),
        ToSqlOutput::Owned(Value::Blob(bytes)) => query.bind(bytes),
        // `owned_parameter` makes no others.
        _ => query.bind(None::<i64>),
    })
}

impl RawRow for SqliteRow {
    fn raw_value(&self, at: usize) -> Result<ValueRef<'_>, BoxDynError> {
        sqlite_value(self.try_get_raw(at)?)
    }
}

fn sqlite_value(value: SqliteValueRef<'_>) -> Result<ValueRef<'_>, BoxDynError> {
    if value.is_null() {
        return Ok(ValueRef::Null);
    }
    let kind = value.type_info().into_owned();
    Ok(match kind.name() {
        "INTEGER" => ValueRef::Integer(Decode::<Sqlite>::decode(value)?),
        "REAL" => ValueRef::Real(Decode::<Sqlite>::decode(value)?),
        "TEXT" => ValueRef::Text(<&str as Decode<Sqlite>>::decode(value)?.as_bytes()),
        "BLOB" => ValueRef::Blob(Decode::<Sqlite>::decode(value)?),
        kind => return Err(format!("a column of the type {kind}").into()),
    })
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
