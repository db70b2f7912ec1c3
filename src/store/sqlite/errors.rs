//! What SQLite's result codes mean for a caller.

use std::sync::Arc;

use crate::store::{EngineError, StoreError};

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code)
            .and_then(|code| code.parse::<i32>().ok());
        of_code(code, Arc::new(error))
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let code = error.sqlite_error().map(|error| error.extended_code);
        of_code(code, Arc::new(error))
    }
}

/// By the primary result code (sqlite.org/rescode.html): the low byte of the extended one.
fn of_code(extended: Option<i32>, error: EngineError) -> StoreError {
    match extended.map(|code| code & 0xff) {
        Some(5 | 6) => StoreError::Busy(error),
        Some(8 | 14) => StoreError::ReadOnly(error),
        Some(11 | 26) => StoreError::Corrupt(error),
        Some(10 | 13) => StoreError::Full(error),
        _ => StoreError::Database(error),
    }
}

/// Checks that a statement changed the row of every one of `expected` ids.
pub(super) fn all_changed(
    rows: u64,
    expected: usize,
    table: &'static str,
) -> Result<(), StoreError> {
    let rows = usize::try_from(rows).unwrap_or(usize::MAX);
    if rows != expected {
        let id = format!("for {} of {expected} ids", expected.saturating_sub(rows));
        return Err(StoreError::NothingChanged { table, id });
    }
    Ok(())
}

/// Checks that a statement changed the row that it is about.
pub(super) fn changed(rows: u64, table: &'static str, id: &str) -> Result<(), StoreError> {
    if rows == 0 {
        return Err(StoreError::NothingChanged { table, id: id.to_owned() });
    }
    Ok(())
}
