//! What SQLite's result codes mean for a caller.

use std::sync::Arc;

use crate::{EngineError, StoreError};

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

/// What SQLite says where the system may refuse it room: `IOERR_WRITE`, `IOERR_FSYNC` and
/// `IOERR_SHMSIZE`.
const NO_ROOM: [i32; 3] = [778, 1034, 4874];

/// By the primary result code (sqlite.org/rescode.html): the low byte of the extended one.
fn of_code(extended: Option<i32>, error: EngineError) -> StoreError {
    match extended.map(|code| code & 0xff) {
        Some(10) if extended.is_none_or(|code| !NO_ROOM.contains(&code)) => {
            StoreError::Database(error)
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_cannot_be_read_is_not_a_full_one() {
        let of = |code| of_code(Some(code), Arc::new(sqlx::Error::RowNotFound));
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
