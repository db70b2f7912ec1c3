//! Connection settings. SQLite does not store them, so each connection sets them.

use std::{ffi::OsString, path::Path, str::FromStr as _};

use sqlx::{
    ConnectOptions as _,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use svc_model::limits;
use svc_sys::private_file;

use crate::StoreError;

/// Suffixes of a database's files.
const FILES: [&str; 4] = ["", "-wal", "-shm", "-journal"];

/// Frees the pages that a connection has cached.
pub(super) const SHRINK: &str = "pragma shrink_memory";

/// Rejects links, which SQLite would follow.
pub(super) fn check_names(path: &Path) -> Result<(), StoreError> {
    for end in FILES {
        let mut name = OsString::from(path);
        name.push(end);
        private_file::check_one_name(Path::new(&name))
            .map_err(|untrusted| StoreError::Linked(untrusted.to_string()))?;
    }
    Ok(())
}

fn options(path: &Path) -> Result<SqliteConnectOptions, StoreError> {
    check_names(path)?;
    Ok(SqliteConnectOptions::from_str("sqlite:")?
        .filename(path)
        .foreign_keys(true)
        .busy_timeout(limits::BUSY_TIMEOUT)
        .pragma("temp_store", "memory")
        // Logging each statement costs more than the statement.
        .disable_statement_logging())
}

pub(super) fn writer_options(path: &Path) -> Result<SqliteConnectOptions, StoreError> {
    Ok(options(path)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("journal_size_limit", limits::WAL_BYTES.to_string()))
}

pub(super) fn reader_options(path: &Path) -> Result<SqliteConnectOptions, StoreError> {
    Ok(options(path)?.read_only(true).row_buffer_size(1024))
}

/// For a file from an untrusted place. `trusted_schema = off` keeps its schema from calling unsafe
/// functions, and the rollback journal mode leaves no file beside it.
pub(super) fn restore_options(path: &Path) -> Result<SqliteConnectOptions, StoreError> {
    Ok(options(path)?
        .journal_mode(SqliteJournalMode::Delete)
        .synchronous(SqliteSynchronous::Full)
        .pragma("trusted_schema", "off")
        .pragma("cell_size_check", "on")
        .pragma("mmap_size", "0"))
}
