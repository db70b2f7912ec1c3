//! Opening and maintaining the database.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use svc_model::Timestamp;
use svc_sys::machine::{HostIdentity, ThisMachine};

#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The file. Created if it is missing.
    pub path: PathBuf,
    /// Maximum size of the file in bytes; writes beyond it fail like writes on a full disk.
    pub max_bytes: Option<u64>,
    /// Whether to apply pending migrations; if false, a pending migration is an error.
    pub migrate: bool,
    /// The machine that opens it.
    pub machine: ThisMachine,
}

impl OpenOptions {
    /// A file without a bound that is migrated if need be, for the machine that its folder is on
    /// this host.
    pub fn for_file(path: PathBuf) -> io::Result<Self> {
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        let machine = ThisMachine::open(folder, &HostIdentity::of_this(None))?;
        Ok(Self { path, max_bytes: None, migrate: true, machine })
    }
}

/// Result of one step of retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimOutcome {
    /// Number of events that the step removed.
    pub removed: u64,
    /// Whether more events may be due for removal.
    pub more: bool,
}

/// Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSize {
    pub database: u64,
    /// The write-ahead log.
    pub wal: u64,
    pub schema: i64,
}

/// How large the database was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeSample {
    pub at: Timestamp,
    /// Bytes of the pages in use.
    pub used: u64,
}

/// The program's migrations compared with those of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrations {
    /// Schema version of the database; 0 for a new file.
    pub current: i64,
    /// Schema version that this program writes.
    pub latest: i64,
    /// Version and description of each migration to apply, in order.
    pub pending: Vec<(i64, String)>,
}

/// Counters of the writer since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriterStats {
    pub commits: u64,
    /// Jobs in these commits.
    pub jobs: u64,
    pub failures: u64,
    /// Histogram of commit durations, disk sync included: a commit counts in the class of the
    /// smallest bound of [`COMMIT_SECONDS`] that it does not exceed; the last class has no bound.
    pub commit_times: [u64; COMMIT_SECONDS.len() + 1],
    /// Sum of all commit durations, in microseconds.
    pub commit_micros: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastBackup {
    /// Path of the copy.
    pub path: PathBuf,
    pub bytes: u64,
    /// When the copy was complete.
    pub at: Timestamp,
}

/// Upper bounds of the classes of `commit_times`, in seconds.
pub const COMMIT_SECONDS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0];
