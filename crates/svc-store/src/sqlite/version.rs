//! Numbers the states of the database, so that a cached read may be used while nothing has changed.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Counts commits twice: when one begins to be seen, and when it is sure to be. So an odd number
/// says that readers may see the one state or the other, and an even one stands for exactly one
/// state.
///
/// The writer is the only one that changes the file while we hold its lock. What a person does to
/// it with another program is seen after the next commit.
#[derive(Debug, Default)]
pub(super) struct Version(AtomicU64);

impl Version {
    /// From here on a commit may be seen.
    pub(super) fn begin(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    /// The commit is there, or it failed. Called before any caller gets its answer.
    pub(super) fn end(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    /// The number of the present state; `None` while a commit is under way.
    pub(super) fn settled(&self) -> Option<u64> {
        Some(self.0.load(SeqCst)).filter(|number| number.is_multiple_of(2))
    }
}
