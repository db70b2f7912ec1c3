//! The number of the database's state.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// Numbers the states of the database: a cached read is valid while the number is unchanged. Counts
/// each commit twice: before it can become visible, and after it is visible. An odd number
/// means that readers may see the former or the new state; an even number stands for exactly one
/// state.
///
/// While we hold the lock of a file, only the writer changes it, and a change by another program is
/// seen after the next commit. Of a server we are told by its notifications.
#[derive(Debug, Default)]
pub(crate) struct Version {
    number: AtomicU64,
    /// Another connection may commit, and nobody tells us.
    is_untold: AtomicBool,
}

impl Version {
    /// From here on the commit may be visible.
    pub(crate) fn begin(&self) {
        self.number.fetch_add(1, SeqCst);
    }

    /// The commit is visible, or it failed. Called before any caller is answered.
    pub(crate) fn end(&self) {
        self.number.fetch_add(1, SeqCst);
    }

    pub(crate) fn settled(&self) -> Option<u64> {
        if self.is_untold.load(Relaxed) {
            return None;
        }
        Some(self.number.load(SeqCst)).filter(|number| number.is_multiple_of(2))
    }
}

#[cfg(feature = "postgres")]
impl Version {
    /// Another connection has committed.
    pub(crate) fn count_other(&self) {
        self.number.fetch_add(2, SeqCst);
    }

    /// Whether commits of other connections are counted, now and since the last call.
    pub(crate) fn set_told(&self, is_told: bool) {
        self.is_untold.store(!is_told, Relaxed);
    }
}
