//! How much of the log is kept.

use std::time::Duration;

/// How much of the log to keep. Without either bound nothing is removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Older events are removed.
    pub max_age: Option<Duration>,
    /// Above this size of the rows, in bytes, the oldest events are removed.
    pub max_bytes: Option<u64>,
}
