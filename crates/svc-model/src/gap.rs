//! Why a reader misses events.

use serde::{Deserialize, Serialize};

/// Why the log does not have what a reader asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapReason {
    /// Retention removed it.
    Pruned,
    /// The cursor is from a later life of this database, as after a backup was restored. Everything
    /// follows from the start.
    Ahead,
}

impl GapReason {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pruned => "pruned",
            Self::Ahead => "ahead",
        }
    }
}
