//! What can go wrong with the database, by outcome.

use std::sync::Arc;

/// Failure of the store. Cloned, because all jobs of a commit that failed get the same answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process held the lock longer than we wait.
    #[error("the database is locked by another process")]
    Busy(#[source] Arc<sqlx::Error>),
    /// No room: on the disk, or below the configured bound.
    #[error("the database is full")]
    Full(#[source] Arc<sqlx::Error>),
    /// The file or its folder cannot be written.
    #[error(
        "the database cannot be written: look at the permissions of its folder, and whether the disk is read-only"
    )]
    ReadOnly(#[source] Arc<sqlx::Error>),
    /// The file is damaged.
    #[error("the file is damaged, or no database: `svc restore` puts a backup in its place")]
    Corrupt(#[source] Arc<sqlx::Error>),
    /// A stored row breaks a rule that the program keeps.
    #[error("bad row in {table}, {id}: {why}")]
    BadRow {
        /// The table.
        table: &'static str,
        /// Key of the row.
        id: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is no stream of that name.
    #[error("no such stream")]
    NoStream,
    /// The stream is closed: nothing may follow its last event.
    #[error("the stream is closed")]
    StreamClosed,
    /// The daemon is going down and takes no more writes.
    #[error("the writer has stopped")]
    Stopped,
    /// A write job panicked. Nothing of it was kept.
    #[error("a write job panicked")]
    Panicked,
    /// Anything else.
    #[error("database error")]
    Database(#[source] Arc<sqlx::Error>),
}

impl StoreError {
    /// Whether writing cannot work until somebody does something about the machine.
    pub const fn is_fatal(&self) -> bool {
        matches!(self, Self::Full(_) | Self::ReadOnly(_) | Self::Corrupt(_))
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        // Primary result codes (sqlite.org/rescode.html); the low byte of the extended code.
        let code = error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code)
            .and_then(|code| code.parse::<i32>().ok())
            .map(|code| code & 0xff);
        let error = Arc::new(error);
        match code {
            Some(5 | 6) => Self::Busy(error),
            Some(8 | 14) => Self::ReadOnly(error),
            Some(11 | 26) => Self::Corrupt(error),
            Some(10 | 13) => Self::Full(error),
            _ => Self::Database(error),
        }
    }
}
