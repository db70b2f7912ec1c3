//! Numbers the states of the database: a cached read is valid while the number is unchanged.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Counts each commit twice: before it can become visible, and after it is visible. An odd number
/// means that readers may see the former or the new state; an even number stands for exactly one
/// state.
///
/// While we hold the lock, only the writer changes the file. A change by another program is seen
/// after the next commit.
#[derive(Debug, Default)]
pub(super) struct Version(AtomicU64);

impl Version {
    /// From here on the commit may be visible.
    pub(super) fn begin(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    /// The commit is visible, or it failed. Called before any caller is answered.
    pub(super) fn end(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    pub(super) fn settled(&self) -> Option<u64> {
        Some(self.0.load(SeqCst)).filter(|number| number.is_multiple_of(2))
    }
}
