//! The writer's connection, whatever engine it speaks to.

use rusqlite::types::FromSql;
use sqlx::{Sqlite, query::QueryScalar, sqlite::SqliteArguments};
use svc_model::{Timestamp, limits};

use super::{
    direct_connection::{DirectConnection, JobIsolation, UncommittedEvent},
    row::{DirectRow, Parameter},
};
use crate::StoreError;
#[cfg(feature = "postgres")]
use crate::postgres::PgWriter;

/// Subtransactions of one transaction, beyond which PostgreSQL becomes slow: it keeps 64 in memory.
#[cfg(feature = "postgres")]
const SAVEPOINTS: usize = 32;

#[derive(Debug)]
pub(super) enum WriteConnection {
    Sqlite(DirectConnection),
    #[cfg(feature = "postgres")]
    Postgres(Box<PgWriter>),
}

/// Calls a method of the engine's connection: `$sqlite` of SQLite's, which waits for the disk
/// alone, and `$postgres` of PostgreSQL's, which waits for a server: a future of its own on the
/// heap, since it would make the futures of all write jobs some kilobytes larger.
macro_rules! engine {
    ($connection:expr, $name:ident => $sqlite:expr, await $postgres:expr) => {
        engine!($connection, $name => $sqlite, Box::pin($postgres).await)
    };
    ($connection:expr, $name:ident => $sqlite:expr, $postgres:expr) => {
        match $connection {
            WriteConnection::Sqlite($name) => $sqlite,
            #[cfg(feature = "postgres")]
            WriteConnection::Postgres($name) => $postgres,
        }
    };
}

impl WriteConnection {
    /// How many jobs with statements of their own a commit may have.
    pub(super) fn run_limit(&self) -> usize {
        engine!(self, _connection => limits::RUNS_PER_COMMIT, SAVEPOINTS)
    }

    /// Whether commits wait for a server, and not for a disk alone.
    pub(super) fn is_of_server(&self) -> bool {
        engine!(self, _connection => false, true)
    }

    /// Whether the server did not take the last attempt to connect.
    pub(super) fn is_away(&self) -> bool {
        engine!(self, connection => { let _ = connection; false }, connection.is_away())
    }

    pub(super) async fn close(self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(connection) => {
                let closed = tokio::task::spawn_blocking(move || connection.close()).await;
                closed.map_err(|_| StoreError::Panicked).flatten()
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => Box::pin(connection.close()).await,
        }
    }

    /// Connects, if the connection was lost, before the first statement of a group.
    pub(super) async fn ready(&mut self) -> Result<(), StoreError> {
        engine!(self, connection => { let _ = connection; Ok(()) }, await connection.ready())
    }

    /// Whether what the caller has in memory may differ from the tables. Asked once: the caller
    /// then reads the tables again.
    pub(super) fn take_stale(&mut self) -> bool {
        engine!(self, connection => { let _ = connection; false }, connection.take_stale())
    }

    pub(super) async fn begin(&mut self) -> Result<(), StoreError> {
        engine!(self, connection => connection.begin(), await connection.begin())
    }

    pub(super) async fn commit(&mut self) -> Result<(), StoreError> {
        engine!(self, connection => connection.commit(), await connection.commit())
    }

    pub(super) async fn rollback(&mut self) -> Result<(), StoreError> {
        engine!(self, connection => connection.rollback(), await connection.rollback())
    }

    /// Marks the following statements as those of one job.
    pub(super) fn begin_job(&mut self, isolation: JobIsolation) {
        engine!(self, connection => connection.begin_job(isolation), connection.begin_job(isolation));
    }

    /// Ends a job: keeps its writes or rolls them back.
    pub(super) async fn end_job(
        &mut self,
        isolation: JobIsolation,
        keep: bool,
    ) -> Result<(), StoreError> {
        engine!(
            self,
            connection => connection.end_job(isolation, keep),
            await connection.end_job(isolation, keep)
        )
    }

    /// Runs statements of SQLite without parameters and results.
    #[cfg(test)]
    pub(super) fn execute(&mut self, statements: &str) -> Result<(), StoreError> {
        engine!(self, connection => connection.execute(statements), {
            let _ = connection;
            panic!("no file: {statements}")
        })
    }

    /// Runs a statement that changes rows; returns their number.
    pub(super) async fn change(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<u64, StoreError> {
        engine!(self, connection => connection.change(sql, values), await connection.change(sql, values))
    }

    /// The single value of a query that returns one row. `checked` only supplies the type; it never
    /// runs.
    pub(super) async fn value<'q, T: FromSql>(
        &mut self,
        checked: impl FnOnce() -> QueryScalar<'q, Sqlite, T, SqliteArguments>,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<T, StoreError> {
        let value = self.value_if_any(checked, sql, values).await?;
        Ok(value.ok_or(sqlx::Error::RowNotFound)?)
    }

    /// The single value of a query that returns at most one row.
    pub(super) async fn value_if_any<'q, T: FromSql>(
        &mut self,
        _checked: impl FnOnce() -> QueryScalar<'q, Sqlite, T, SqliteArguments>,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Option<T>, StoreError> {
        engine!(
            self,
            connection => connection.value_if_any(sql, values),
            await connection.value_if_any(sql, values)
        )
    }

    /// The single column of all rows of a query.
    pub(super) async fn values<'q, T: FromSql + Send>(
        &mut self,
        _checked: impl FnOnce() -> QueryScalar<'q, Sqlite, T, SqliteArguments>,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Vec<T>, StoreError> {
        engine!(self, connection => connection.values(sql, values), await connection.values(sql, values))
    }

    /// The row of a query that returns at most one.
    pub(super) async fn one<T: DirectRow>(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Option<T>, StoreError> {
        engine!(self, connection => connection.one(sql, values), await connection.one(sql, values))
    }

    /// The row of a query that returns exactly one.
    pub(super) async fn row<T: DirectRow>(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<T, StoreError> {
        Ok(self.one(sql, values).await?.ok_or(sqlx::Error::RowNotFound)?)
    }

    pub(super) async fn all<T: DirectRow + Send>(
        &mut self,
        sql: &'static str,
        values: &[Parameter<'_>],
    ) -> Result<Vec<T>, StoreError> {
        engine!(self, connection => connection.all(sql, values), await connection.all(sql, values))
    }

    /// Writes events within the current commit, in order, and returns the position of the last.
    pub(super) async fn insert(
        &mut self,
        now: Timestamp,
        events: &[UncommittedEvent],
    ) -> Result<i64, StoreError> {
        engine!(self, connection => connection.insert(now, events), await connection.insert(now, events))
    }

    /// Like [`Self::insert`], in a commit of its own.
    pub(super) async fn insert_alone(
        &mut self,
        now: Timestamp,
        events: &[UncommittedEvent],
    ) -> Result<i64, StoreError> {
        engine!(
            self,
            connection => connection.insert_alone(now, events),
            await connection.insert_alone(now, events)
        )
    }
}
