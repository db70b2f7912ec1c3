//! What can go wrong with the database, by outcome.

use std::{error::Error, sync::Arc};

/// What the engine reported. Shared, because all jobs of a commit that failed get the same answer.
pub type EngineError = Arc<dyn Error + Send + Sync>;

/// Failure of the store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process held the lock longer than we wait.
    #[error("the database is locked by another process")]
    Busy(#[source] EngineError),
    /// No room: on the disk, or below the configured bound.
    #[error("the database is full")]
    Full(#[source] EngineError),
    /// The file or its folder cannot be written.
    #[error(
        "the database cannot be written: look at the permissions of its folder, and whether the disk is read-only"
    )]
    ReadOnly(#[source] EngineError),
    /// The file is damaged.
    #[error("the file is damaged, or no database")]
    Corrupt(#[source] EngineError),
    /// A file of the database is a link, or has a second name: another daemon could have it open
    /// there.
    #[error("{0}")]
    Linked(String),
    /// The engine's check of a whole file found faults.
    #[error("{file} fails the check of its integrity: {findings}")]
    Unsound {
        file: String,
        /// The faults, as the engine words them.
        findings: String,
    },
    /// A stored row breaks a rule that the program keeps.
    #[error("bad row in {table}, {id}: {why}")]
    BadRow {
        table: &'static str,
        /// Key of the row.
        id: String,
        /// The rule that it breaks.
        why: String,
    },
    /// A write should have changed a row and changed none, because the row is gone. The job is
    /// undone.
    #[error("nothing was changed: there is no row {id} in {table}")]
    NothingChanged {
        table: &'static str,
        /// Key of the row.
        id: String,
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
    Database(#[source] EngineError),
}

/// Why a database cannot be brought to the schema of this program.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// Written by a later release.
    #[error(
        "the database has schema version {found}, this svc knows up to version {known}: use the newer svc, \
         or restore a backup from before the upgrade"
    )]
    Newer {
        /// Version of the database.
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
        /// Version of the database.
        found: i64,
        /// Oldest version that is upgraded.
        oldest: i64,
    },
    /// A migration did not apply, or an applied one is not the one we know.
    #[error("cannot migrate the database")]
    Failed(#[source] EngineError),
    /// There is something to apply, and the caller did not want it applied.
    #[error("{0} migrations are pending")]
    Pending(usize),
    /// The database could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a file cannot be the database.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// It has no schema of svc.
    #[error("it is not a database of svc")]
    NotOurs,
    /// It is not as svc makes it; the text says in what.
    #[error("it was changed by another program: {0}")]
    Foreign(String),
    /// Its version is not one that this program knows.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// It cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}
