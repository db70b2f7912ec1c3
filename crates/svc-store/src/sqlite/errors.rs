//! Maps SQLite's result codes to [`StoreError`].

use std::sync::Arc;

use crate::{EngineError, StoreError};

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

/// Checks that a statement changed one row for each of `expected` ids.
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

/// Checks that a statement changed its row.
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
