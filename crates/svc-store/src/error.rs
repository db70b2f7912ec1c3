//! Failures of the database, by outcome.

use std::{error::Error, sync::Arc};

/// The engine's error. Shared, because all jobs of a failed commit get the same answer.
pub type EngineError = Arc<dyn Error + Send + Sync>;

/// What a method of the store returns.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process held the lock longer than `BUSY_TIMEOUT`.
    #[error("the database is locked by another process")]
    Busy(#[source] EngineError),
    /// The server of the database does not answer. Nothing was written.
    #[error("the database does not answer")]
    Unavailable(#[source] EngineError),
    /// Another daemon has taken the database since. Nothing was written.
    #[error("another daemon has taken the database")]
    Fenced(#[source] EngineError),
    /// The server of the database refuses writes. Nothing was written.
    #[error("the server of the database takes no writes")]
    ServerReadOnly(#[source] EngineError),
    /// The connection was lost after a commit was sent and before it was answered. Whether the
    /// commit took place is unknown.
    #[error("the database did not answer whether the write took place")]
    OutcomeUnknown(#[source] EngineError),
    /// The disk or the configured maximum size is exhausted.
    #[error("the database is full")]
    Full(#[source] EngineError),
    #[error(
        "the database cannot be written: look at the permissions of its folder, and whether the disk is read-only"
    )]
    ReadOnly(#[source] EngineError),
    #[error("the file is damaged, or no database")]
    Corrupt(#[source] EngineError),
    /// A file of the database is a symbolic link or has a second hard link: another daemon could
    /// have it open under the other name.
    #[error("{0}")]
    Linked(String),
    /// The engine's integrity check of a whole file found faults.
    #[error("{file} fails the check of its integrity: {findings}")]
    IntegrityCheckFailed {
        file: String,
        /// The engine's own text.
        findings: String,
    },
    /// A stored row violates an invariant of the program.
    #[error("bad row in {table}, {id}: {why}")]
    BadRow { table: &'static str, id: String, why: String },
    /// A write should have changed a row and changed none, because the row does not exist. The job
    /// is rolled back.
    #[error("nothing was changed: there is no row {id} in {table}")]
    NothingChanged { table: &'static str, id: String },
    #[error("no such stream")]
    NoStream,
    /// The stream is closed: no event may follow its last one.
    #[error("the stream is closed")]
    StreamClosed,
    /// The daemon is shutting down and accepts no writes.
    #[error("the writer has stopped")]
    Stopped,
    /// A write job panicked. All its changes were rolled back.
    #[error("a write job panicked")]
    Panicked,
    #[error("database error")]
    Database(#[source] EngineError),
}

impl StoreError {
    /// Whether the store logs the state of the server once, and not each commit.
    pub(crate) const fn is_of_absence(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_)
                | Self::OutcomeUnknown(_)
                | Self::Fenced(_)
                | Self::ServerReadOnly(_)
        )
    }
}

/// Why a daemon's server takes no writes at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreTrouble {
    /// It does not answer.
    Away,
    /// Another daemon has taken the database.
    Fenced,
    /// It refuses writes.
    ReadOnly,
}

impl StoreTrouble {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Away => "away",
            Self::Fenced => "fenced",
            Self::ReadOnly => "read_only",
        }
    }
}

/// Why a database cannot be brought to the schema of this program.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error(
        "the database has schema version {found}, this svc knows up to version {known}: use the newer svc, \
         or restore a backup from before the upgrade"
    )]
    Newer {
        found: i64,
        /// Latest version of this program.
        known: i64,
    },
    /// Written by a release whose schema this one does not upgrade.
    #[error(
        "the database has schema version {found}, this svc upgrades version {oldest} and later: \
         upgrade it with an earlier svc first"
    )]
    Older {
        found: i64,
        /// The oldest version that this program upgrades.
        oldest: i64,
    },
    /// A migration failed, or an applied migration differs from ours.
    #[error("cannot migrate the database")]
    Failed(#[source] EngineError),
    /// The server does not meet the store's requirements, or cannot be used as configured.
    #[error("{0}")]
    Refused(String),
    /// Another daemon, or a move, holds the server's schema.
    #[error("{0}")]
    InUse(String),
    /// Migrations are pending, and the caller asked not to apply them.
    #[error("{0} migrations are pending")]
    Pending(usize),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a file cannot be restored as the database.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("it is not a database of svc")]
    NoSvcSchema,
    /// The schema differs from ours; the text names the difference.
    #[error("it was changed by another program: {0}")]
    Foreign(String),
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a history was not moved to another database.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("{place} has data already, in the table {table}: a history moves to an empty database")]
    HasData { place: String, table: String },
    #[error("a move of this history to {0} was begun or has ended: repeat that command")]
    Elsewhere(String),
    #[error("{0} was written to after it was moved: what came later is there alone")]
    ChangedSince(String),
    #[error(
        "a text in the column {column} of {table} has the character U+0000, which PostgreSQL does not keep"
    )]
    Nul { table: String, column: String },
    #[error("the two databases are not of one schema: {0}")]
    Schema(String),
    /// The copy was rolled back.
    #[error("the rows of {table} are not the same on both sides: nothing was moved")]
    Differs { table: String },
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    #[error(transparent)]
    Store(#[from] StoreError),
}
