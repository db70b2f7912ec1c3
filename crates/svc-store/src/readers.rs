//! Where statements read: the connections of readers, of either engine, and what all reads share.
//! Pages of lists end by rows or by bytes, which bounds their memory.
//!
//! On SQLite, the program runs the text that sqlx has checked. On PostgreSQL the same text is
//! translated, and its rows are read like those of SQLite.

use std::sync::Arc;

use rusqlite::types::FromSql;
use sqlx::{Sqlite, query::QueryScalar, sqlite::SqliteArguments};

use crate::{
    Bus, PageSize, Result, RowPage, StoreTrouble,
    bus::Version,
    columns::{DirectRow, EngineRow, Parameter, owned_parameters, read_row},
    sqlite::direct_connection::{ReadConnections, each},
};

#[cfg(feature = "postgres")]
use crate::postgres::PgReaders;

/// What a file has, which is known, and what the connections to a server answer.
macro_rules! by_engine {
    ($connections:expr, $kind:ident, $file:expr, $server:pat => $answer:expr) => {
        match $connections {
            $kind::Sqlite(_) => $file,
            #[cfg(feature = "postgres")]
            $kind::Postgres($server) => $answer,
        }
    };
}

pub(super) use by_engine;

/// The connections that read. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum Readers {
    Sqlite(FileReaders),
    #[cfg(feature = "postgres")]
    Postgres(PgReaders),
}

#[derive(Debug, Clone)]
pub(super) struct FileReaders {
    pub(super) rows: Arc<ReadConnections>,
    /// For replays, which read each page of the file once and so have small caches.
    pub(super) frames: Arc<ReadConnections>,
}

impl Readers {
    /// The connections to the file; `None` for a server.
    pub(super) fn file(&self) -> Option<&FileReaders> {
        match self {
            Self::Sqlite(file) => Some(file),
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => None,
        }
    }

    pub(super) fn trouble(&self) -> Option<StoreTrouble> {
        by_engine!(self, Self, None, readers => readers.trouble())
    }

    pub(super) async fn released(&self) {
        by_engine!(self, Self, std::future::pending::<()>().await, readers => readers.released().await);
    }

    /// Publishes commits of other connections on the bus. No other connection writes to a file.
    pub(super) fn follow(&self, bus: &Arc<Bus>, version: &Arc<Version>) {
        let _ = (bus, version);
        by_engine!(self, Self, (), readers => readers.follow(bus, version));
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(file) => {
                file.rows.close().await;
                file.frames.close().await;
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(readers) => Box::pin(readers.close()).await,
        }
    }
}

/// Runs queries, each of whose texts sqlx has checked. A write job sees its own writes.
pub(crate) trait Rows: Send {
    /// The rows of a query up to the first that does not fit any more, as `is_full` says.
    fn rows<T: DirectRow + Send + 'static>(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
        is_full: impl FnMut(&T) -> bool + Send + 'static,
    ) -> impl Future<Output = Result<RowPage<T>>> + Send;

    fn all<T: DirectRow + Send + 'static>(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<T>>> + Send {
        async move { Ok(self.rows(sql, values, |_| false).await?.rows) }
    }

    fn one<T: DirectRow + Send + 'static>(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Option<T>>> + Send {
        async move { Ok(self.all(sql, values).await?.into_iter().next()) }
    }

    fn row<T: DirectRow + Send + 'static>(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> impl Future<Output = Result<T>> + Send {
        async move { Ok(self.one(sql, values).await?.ok_or(sqlx::Error::RowNotFound)?) }
    }

    /// Reads rows until a page is full. The query's limit is [`PageSize::limit`], one row more than
    /// the page has. `bytes` is what a row counts.
    fn page<T: DirectRow + Send + 'static>(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
        size: PageSize,
        bytes: impl Fn(&T) -> usize + Send + 'static,
    ) -> impl Future<Output = Result<RowPage<T>>> + Send {
        self.rows(sql, values, size.is_full(bytes))
    }

    /// The single column of all rows of a query. `checked` only supplies the type; it never runs.
    fn column<'q, T: FromSql + Send + 'static>(
        &mut self,
        _checked: impl FnOnce() -> QueryScalar<'q, Sqlite, T, SqliteArguments> + Send,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Vec<T>>> + Send {
        async move {
            let rows: Vec<(T,)> = self.all(sql, values).await?;
            Ok(rows.into_iter().map(|(value,)| value).collect())
        }
    }

    /// The single value of a query that returns at most one row.
    fn find_value<'q, T: FromSql + Send + 'static>(
        &mut self,
        checked: impl FnOnce() -> QueryScalar<'q, Sqlite, T, SqliteArguments> + Send,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> impl Future<Output = Result<Option<T>>> + Send {
        async move { Ok(self.column(checked, sql, values).await?.into_iter().next()) }
    }

    /// The single value of a query that returns one row.
    fn value<'q, T: FromSql + Send + 'static>(
        &mut self,
        checked: impl FnOnce() -> QueryScalar<'q, Sqlite, T, SqliteArguments> + Send,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> impl Future<Output = Result<T>> + Send {
        async move {
            let value = self.find_value(checked, sql, values).await?;
            Ok(value.ok_or(sqlx::Error::RowNotFound)?)
        }
    }
}

/// The rows of a query that were read, until one does not fit any more.
pub(crate) struct CollectedRows<T, F> {
    pub(crate) page: RowPage<T>,
    is_full: F,
}

impl<T: DirectRow, F: FnMut(&T) -> bool> CollectedRows<T, F> {
    pub(crate) fn new(is_full: F) -> Self {
        Self { page: RowPage { rows: Vec::new(), more: false }, is_full }
    }

    /// Returns whether the next row is wanted.
    pub(crate) fn take(&mut self, row: &dyn EngineRow) -> Result<bool> {
        let next = read_row(row)?;
        self.page.more = (self.is_full)(&next);
        if !self.page.more {
            self.page.rows.push(next);
        }
        Ok(!self.page.more)
    }
}

/// Reads by the connections of readers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadSource<'a> {
    pub(super) readers: &'a Readers,
    /// On SQLite, few rows by an index are read on the caller's thread: a switch of threads takes
    /// longer.
    pub(super) is_near: bool,
}

impl Rows for ReadSource<'_> {
    async fn rows<T: DirectRow + Send + 'static>(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
        is_full: impl FnMut(&T) -> bool + Send + 'static,
    ) -> Result<RowPage<T>> {
        let mut rows = CollectedRows::new(is_full);
        match self.readers {
            Readers::Sqlite(file) if self.is_near => {
                // Such a read never waits, and would not yield to other tasks.
                tokio::task::coop::consume_budget().await;
                file.rows.read_here(|conn| each(conn, sql, values, &mut |row| rows.take(row)))?;
                Ok(rows.page)
            }
            Readers::Sqlite(file) => {
                let values = owned_parameters(values)?;
                let read = file.rows.read(move |conn| {
                    each(conn, sql, &values, &mut |row| rows.take(row))?;
                    Ok(rows.page)
                });
                read.await
            }
            #[cfg(feature = "postgres")]
            Readers::Postgres(readers) => {
                let mut take = |row: &sqlx::postgres::PgRow| rows.take(row);
                Box::pin(readers.each(sql, values, &mut take)).await?;
                Ok(rows.page)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(lengths: &[usize], size: PageSize) -> (Vec<usize>, bool) {
        let mut is_full = size.is_full(|length: &usize| length + 2);
        let taken: Vec<usize> =
            lengths.iter().copied().take_while(|length| !is_full(length)).collect();
        let more = taken.len() < lengths.len();
        (taken, more)
    }

    #[test]
    fn a_page_ends_at_its_bounds() {
        let size = PageSize { rows: 3, bytes: 100 };
        assert_eq!(page_of(&[], size), (vec![], false));
        assert_eq!(page_of(&[1, 1, 1], size), (vec![1, 1, 1], false));
        assert_eq!(page_of(&[1, 1, 1, 1, 1], size), (vec![1, 1, 1], true));
        assert_eq!(page_of(&[48, 48, 1], size), (vec![48, 48], true));
        assert_eq!(page_of(&[48, 49, 1], size), (vec![48], true));
        // A row that exceeds the bound has a page of its own, at the beginning and in the middle.
        assert_eq!(page_of(&[500, 1], size), (vec![500], true));
        assert_eq!(page_of(&[1, 500], size), (vec![1], true));
        assert_eq!(page_of(&[500], size), (vec![500], false));
    }
}
