//! Macros for statements that sqlx checks at compile time, on SQLite, and what a statement's
//! outcome means. SQLite runs the statements of write jobs on the writer's thread, short reads on
//! the caller's, and other queries on a connection of a pool.
//!
//! `select_…` are the reads of a write job (`self.tx`), `read_…` those on the caller's thread and
//! `pool_…` those of a pool (`self.store`). A statement is one literal, or the columns of a
//! family's macro (such as `peers!`) and the rest; its arguments follow after a semicolon.

use std::{fmt::Display, sync::Arc};

use serde::de::DeserializeOwned;

use crate::{CopyError, EngineError, MigrateError, RestoreError, Result, StoreError};

/// A row struct, read from columns in the order of its fields. A field of an existing struct may
/// name a function that converts its column.
macro_rules! direct_row {
    (
        $(#[$note:meta])*
        $vis:vis struct $raw:ident { $($(#[$field_note:meta])* $field:ident: $kind:ty),+ $(,)? }
    ) => {
        $(#[$note])*
        $vis struct $raw {
            $($(#[$field_note])* $vis $field: $kind),+
        }
        $crate::statement::direct_row!($raw { $($field),+ });
    };
    ($raw:ty { $($field:ident $(: $convert:ident)?),+ $(,)? }) => {
        impl $crate::columns::DirectRow for $raw {
            fn read(columns: &mut impl $crate::columns::Columns) -> rusqlite::Result<Self> {
                Ok(Self { $($field: $($convert)?(columns.next(stringify!($field))?)),+ })
            }
        }
    };
}

macro_rules! bind {
    ($($argument:expr),*) => { &[$($crate::columns::parameter(&$argument)?),*] };
}

/// Runs a statement that changes rows; returns their number.
macro_rules! change {
    ($tx:expr, $sql:literal $(; $($argument:expr),+)?) => {{
        // sqlx checks the statement at compile time and never runs it.
        let _ = || sqlx::query!($sql $($(, $argument)+)?);
        $tx.direct.change($sql, $crate::statement::bind!($($($argument),+)?)).await?
    }};
}

/// Runs a method of the write connection with a query of a single column.
macro_rules! select_scalar {
    ($select:ident, $tx:expr, $sql:literal $(; $($argument:expr),+)?) => {{
        let checked = || sqlx::query_scalar!($sql $($(, $argument)+)?);
        $tx.direct.$select(checked, $sql, $crate::statement::bind!($($($argument),+)?)).await?
    }};
}

/// The single value of a query that returns one row.
macro_rules! select_value {
    ($($query:tt)+) => { $crate::statement::select_scalar!(value, $($query)+) };
}

/// The single value of a query that returns at most one row.
macro_rules! find_value {
    ($($query:tt)+) => { $crate::statement::select_scalar!(value_if_any, $($query)+) };
}

/// The single column of all rows of a query.
macro_rules! select_values {
    ($($query:tt)+) => { $crate::statement::select_scalar!(values, $($query)+) };
}

/// Runs a method of the write connection with a query of rows. `$columns` is the text before
/// `$tail`.
macro_rules! select_rows {
    (
        $select:ident, $columns:literal, $raw:ty, $tx:expr $(, $tail:literal)?
        $(; $($argument:expr),+)?
    ) => {{
        let _ = || sqlx::query_as!($raw, $columns $(+ $tail)? $($(, $argument)+)?);
        let sql = concat!($columns $(, $tail)?);
        $tx.direct.$select::<$raw>(sql, $crate::statement::bind!($($($argument),+)?)).await?
    }};
}

/// The row of a query that returns at most one.
macro_rules! select_one {
    ($($query:tt)+) => { $crate::statement::select_rows!(one, $($query)+) };
}

/// The row of a query that returns exactly one.
macro_rules! select_row {
    ($($query:tt)+) => { $crate::statement::select_rows!(row, $($query)+) };
}

macro_rules! select_all {
    ($($query:tt)+) => { $crate::statement::select_rows!(all, $($query)+) };
}

/// Runs `$select` with a query whose columns no other query has: declares a row type with these
/// fields.
macro_rules! select_fields {
    (
        $select:ident, $from:expr, { $($field:ident: $kind:ty),+ $(,)? }, $sql:literal
        $(; $($argument:expr),+)?
    ) => {{
        $crate::statement::direct_row! { struct Fields { $($field: $kind),+ } }
        $crate::statement::$select!($sql, Fields, $from $(; $($argument),+)?)
    }};
}

/// Runs a method of the connections for few rows, on the caller's thread.
macro_rules! read_rows {
    (
        $read:ident, $columns:literal, $raw:ty, $store:expr $(, $tail:literal)?
        $(; $($argument:expr),+)?
    ) => {{
        let _ = || sqlx::query_as!($raw, $columns $(+ $tail)? $($(, $argument)+)?);
        $store.yield_if_due().await;
        let sql = concat!($columns $(, $tail)?);
        $store.readers.$read::<$raw>(sql, $crate::statement::bind!($($($argument),+)?)).await?
    }};
}

/// The row of an indexed query that returns at most one.
macro_rules! read_one {
    ($($query:tt)+) => { $crate::statement::read_rows!(one, $($query)+) };
}

/// The rows of an indexed query. Only for few rows.
macro_rules! read_all {
    ($($query:tt)+) => { $crate::statement::read_rows!(all, $($query)+) };
}

/// The single value of an indexed query that returns one row, read on the caller's thread.
macro_rules! read_value {
    ($store:expr, $sql:literal $(; $($argument:expr),+)?) => {{
        let _ = || sqlx::query_scalar!($sql $($(, $argument)+)?);
        $store.yield_if_due().await;
        $store.readers.value($sql, $crate::statement::bind!($($($argument),+)?)).await?
    }};
}

/// Runs a method of `ReadQuery` with a query of rows. `$columns` is the text before `$tail`.
macro_rules! pool_query {
    (
        $fetch:ident from $source:ident, $columns:literal, $raw:ty, $from:expr
        $(, $tail:literal $(+ $more:literal)*)? $(; $($argument:expr),+)?
    ) => {{
        let _ = || sqlx::query_as!($raw, $columns $(+ $tail $(+ $more)*)? $($(, $argument)+)?);
        $crate::read_query::ReadQuery::<$raw>::rows(
            concat!($columns $(, $tail $(, $more)*)?),
            vec![$($($crate::columns::owned_parameter(&$argument)?),+)?],
        )
        .$fetch($from.$source())
    }};
}

/// The row of a query that returns at most one.
macro_rules! pool_one {
    ($($query:tt)+) => {
        $crate::statement::pool_query!(fetch_optional from source, $($query)+).await?
    };
}

/// The row of a query that returns exactly one.
macro_rules! pool_row {
    ($($query:tt)+) => {
        $crate::statement::pool_query!(fetch_one from source, $($query)+).await?
    };
}

macro_rules! pool_all {
    ($($query:tt)+) => {
        $crate::statement::pool_query!(fetch_all from source, $($query)+).await?
    };
}

/// The rows of a query, as they are read.
macro_rules! pool_stream {
    ($($query:tt)+) => {
        $crate::statement::pool_query!(fetch from source, $($query)+)
    };
}

/// The rows of a query for `read_page`.
macro_rules! pool_page {
    ($($query:tt)+) => {
        $crate::statement::pool_query!(fetch from page_source, $($query)+)
    };
}

/// Runs a method of `ReadQuery` with a query of a single column.
macro_rules! pool_scalar {
    ($fetch:ident, $from:expr, $sql:literal $(; $($argument:expr),+)?) => {
        $crate::read_query::ReadQuery::column(
            || sqlx::query_scalar!($sql $($(, $argument)+)?),
            $sql,
            vec![$($($crate::columns::owned_parameter(&$argument)?),+)?],
        )
        .$fetch($from.source())
        .await?
    };
}

/// The single value of a query that returns one row.
macro_rules! pool_value {
    ($($query:tt)+) => { $crate::statement::pool_scalar!(fetch_one, $($query)+) };
}

/// The single value of a query that returns at most one row.
macro_rules! pool_find_value {
    ($($query:tt)+) => { $crate::statement::pool_scalar!(fetch_optional, $($query)+) };
}

/// The single column of all rows of a query.
macro_rules! pool_values {
    ($($query:tt)+) => { $crate::statement::pool_scalar!(fetch_all, $($query)+) };
}

pub(super) use {
    bind, change, direct_row, find_value, pool_all, pool_find_value, pool_one, pool_page,
    pool_query, pool_row, pool_scalar, pool_stream, pool_value, pool_values, read_all, read_one,
    read_rows, read_value, select_all, select_fields, select_one, select_row, select_rows,
    select_scalar, select_value, select_values,
};

/// Converts the raw row, if there is one.
pub(super) fn row_of<Raw, Row: TryFrom<Raw>>(raw: Option<Raw>) -> Result<Option<Row>, Row::Error> {
    raw.map(Row::try_from).transpose()
}

pub(super) fn rows_of<Raw, Row: TryFrom<Raw>>(raw: Vec<Raw>) -> Result<Vec<Row>, Row::Error> {
    raw.into_iter().map(Row::try_from).collect()
}

/// A stored row, as errors of its columns name it.
#[derive(Clone, Copy)]
pub(super) struct StoredRow<'a> {
    pub(super) table: &'static str,
    pub(super) id: &'a str,
}

impl StoredRow<'_> {
    pub(super) fn bad(self, why: impl Into<String>) -> StoreError {
        StoreError::BadRow { table: self.table, id: self.id.to_owned(), why: why.into() }
    }

    pub(super) fn json<T: DeserializeOwned>(self, column: &str, text: &str) -> Result<T> {
        serde_json::from_str(text).map_err(|error| self.bad(format!("{column}: {error}")))
    }

    pub(super) fn number<T: TryFrom<i64, Error: Display>>(
        self,
        column: &str,
        number: i64,
    ) -> Result<T> {
        number.try_into().map_err(|error| self.bad(format!("{column}: {error}")))
    }
}

pub(super) fn changed(rows: u64, table: &'static str, id: &(impl Display + ?Sized)) -> Result<()> {
    if rows == 0 {
        return Err(StoreError::NothingChanged { table, id: id.to_string() });
    }
    Ok(())
}

/// Checks that a statement changed one row for each of `expected` ids.
pub(super) fn all_changed(rows: u64, expected: usize, table: &'static str) -> Result<()> {
    let rows = usize::try_from(rows).unwrap_or(usize::MAX);
    if rows != expected {
        let id = format!("for {} of {expected} ids", expected.saturating_sub(rows));
        return Err(StoreError::NothingChanged { table, id });
    }
    Ok(())
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let error = Arc::new(error);
        let known: EngineError = Arc::clone(&error) as _;
        match &*error {
            // SQLite has no server that could be away.
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut => Self::Unavailable(known),
            sqlx::Error::Database(reason) => {
                #[cfg(feature = "postgres")]
                if let Some(error) = crate::postgres::reported(&**reason, &known) {
                    return error;
                }
                error_for_code(reason.code().and_then(|code| code.parse().ok()), known)
            }
            _ => Self::Database(known),
        }
    }
}

impl From<sqlx::Error> for MigrateError {
    fn from(error: sqlx::Error) -> Self {
        StoreError::from(error).into()
    }
}

impl From<sqlx::Error> for RestoreError {
    fn from(error: sqlx::Error) -> Self {
        StoreError::from(error).into()
    }
}

impl From<sqlx::Error> for CopyError {
    fn from(error: sqlx::Error) -> Self {
        StoreError::from(error).into()
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let code = error.sqlite_error().map(|error| error.extended_code);
        error_for_code(code, Arc::new(error))
    }
}

/// Codes with which SQLite reports that the system refused space: `IOERR_WRITE`, `IOERR_FSYNC` and
/// `IOERR_SHMSIZE`.
const NO_SPACE_CODES: [i32; 3] = [778, 1034, 4874];

/// The primary result code (sqlite.org/rescode.html) is the low byte of the extended one.
fn error_for_code(extended: Option<i32>, error: EngineError) -> StoreError {
    match extended.map(|code| code & 0xff) {
        Some(10) if extended.is_none_or(|code| !NO_SPACE_CODES.contains(&code)) => {
            StoreError::Database(error)
        }
        Some(5 | 6) => StoreError::Busy(error),
        Some(8 | 14) => StoreError::ReadOnly(error),
        Some(11 | 26) => StoreError::Corrupt(error),
        Some(10 | 13) => StoreError::Full(error),
        _ => StoreError::Database(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_errors_of_the_disk_do_not_count_as_full() {
        let of = |code| error_for_code(Some(code), Arc::new(sqlx::Error::RowNotFound));
        // SQLITE_FULL, IOERR_WRITE, IOERR_SHMSIZE
        for code in [13, 778, 4874] {
            assert!(matches!(of(code), StoreError::Full(_)), "{code}");
        }
        // IOERR_READ, IOERR_SHORT_READ, IOERR_CORRUPTFS
        for code in [266, 522, 8458] {
            assert!(matches!(of(code), StoreError::Database(_)), "{code}");
        }
    }
}
