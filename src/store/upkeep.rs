//! Opening the database, and keeping it in shape.

use std::path::PathBuf;

/// How to open a database.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The file. Made if it is missing.
    pub path: PathBuf,
    /// Bound of the file's size in bytes; writes beyond it fail as on a full disk.
    pub max_bytes: Option<u64>,
    /// Whether to apply pending migrations; if not, they are an error.
    pub migrate: bool,
}

/// What one step of retention did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimOutcome {
    /// Events that it removed.
    pub removed: u64,
    /// Whether there may be more to remove.
    pub more: bool,
}

/// Sizes of the files, in bytes, and the schema's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSize {
    /// The database.
    pub database: u64,
    /// The write-ahead log.
    pub wal: u64,
    /// Schema version.
    pub schema: i64,
}

/// The migrations of this program against those of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrations {
    /// Version of the database; 0 for a new file.
    pub current: i64,
    /// Version that this program writes.
    pub latest: i64,
    /// What is still to be applied, in order: version and description.
    pub pending: Vec<(i64, String)>,
}

/// What the writer has done since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Commits.
    pub commits: u64,
    /// Jobs that shared them.
    pub jobs: u64,
    /// Commits that failed.
    pub failures: u64,
}
