//! Macros for statements that sqlx checks at compile time, on SQLite, and what a statement's
//! outcome means.
//!
//! A query names where it reads: `self.tx.direct` is a write job, whose queries see the job's own
//! writes, `self.store.near()` a short read on the caller's thread, and `self.store.pool()` any
//! other read. It is one literal, or the columns of a family's macro (such as `peers!`) and the
//! rest; its arguments follow after a semicolon. [`Rows`](crate::readers::Rows) runs it.

use std::{fmt::Display, sync::Arc};

use crate::{CopyError, EngineError, MigrateError, RestoreError, Result, StoreError};

/// Reads a struct from columns in the order of its fields. A field may name a function that
/// converts its column.
macro_rules! direct_row {
    ($row:ident { $($field:ident $(: $convert:ident)?),+ $(,)? }) => {
        impl $crate::columns::DirectRow for $row {
            fn read(
                columns: &mut $crate::columns::Columns<'_>,
            ) -> Result<Self, $crate::columns::Fault> {
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

/// Runs a method of `Rows` with a query of rows: `one()` returns the row of a query that returns at
/// most one, `row()` of one that returns exactly one, `all()` all rows (with `near()`, only few),
/// `page(size, bytes)` a page of them. If there are two literals, the first is the text before the
/// second.
macro_rules! query {
    (
        $run:ident($($bound:expr),*), $columns:literal, $from:expr
        $(, $tail:literal $(+ $more:literal)*)? $(; $($argument:expr),+)?
    ) => {{
        let _ = || sqlx::query!($columns $(+ $tail $(+ $more)*)? $($(, $argument)+)?);
        let sql = concat!($columns $(, $tail $(, $more)*)?);
        $from.$run(sql, $crate::statement::bind!($($($argument),+)?) $(, $bound)*).await?
    }};
    (
        $run:ident($($bound:expr),*) $(as $row:ty)?, $from:expr, $sql:literal
        $(; $($argument:expr),+)?
    ) => {{
        let _ = || sqlx::query!($sql $($(, $argument)+)?);
        $from
            .$run$(::<$row>)?($sql, $crate::statement::bind!($($($argument),+)?) $(, $bound)*)
            .await?
    }};
}

/// [`query!`] with columns that no other query has: declares a row type with these fields.
macro_rules! fields {
    (
        $run:ident($($bound:expr),*), $from:expr, { $($field:ident: $kind:ty),+ $(,)? },
        $($query:tt)+
    ) => {{
        struct Fields { $($field: $kind),+ }
        $crate::statement::direct_row!(Fields { $($field),+ });
        $crate::statement::query!($run($($bound),*) as Fields, $from, $($query)+)
    }};
}

/// Runs a method of `Rows` with a query of a single column.
macro_rules! query_column {
    ($run:ident, $from:expr, $sql:literal $(; $($argument:expr),+)?) => {{
        let checked = || sqlx::query_scalar!($sql $($(, $argument)+)?);
        $from.$run(checked, $sql, $crate::statement::bind!($($($argument),+)?)).await?
    }};
}

/// The single value of a query that returns one row.
macro_rules! value {
    ($($query:tt)+) => { $crate::statement::query_column!(value, $($query)+) };
}

/// The single value of a query that returns at most one row.
macro_rules! find_value {
    ($($query:tt)+) => { $crate::statement::query_column!(find_value, $($query)+) };
}

/// The single column of all rows of a query.
macro_rules! column {
    ($($query:tt)+) => { $crate::statement::query_column!(column, $($query)+) };
}

pub(super) use {bind, change, column, direct_row, fields, find_value, query, query_column, value};

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
