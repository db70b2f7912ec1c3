//! Opening the database, and keeping it in shape.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use svc_model::Timestamp;

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
    pub commits: u64,
    /// Jobs that shared them.
    pub jobs: u64,
    /// Commits that failed.
    pub failures: u64,
    /// How long commits took, with the wait for the disk: how many each of [`COMMIT_SECONDS`]
    /// bounds and no smaller one does, and last those beyond all.
    pub commit_times: [u64; COMMIT_SECONDS.len() + 1],
    /// All of that together, in microseconds.
    pub commit_micros: u64,
}

/// The last backup of a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastBackup {
    /// The copy.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// When it was whole.
    pub at: Timestamp,
}

/// Bounds of the classes of commits by their time, in seconds.
pub const COMMIT_SECONDS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0];
