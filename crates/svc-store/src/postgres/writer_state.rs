//! What the writer tells of itself, and is told by who listens.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// Waits that are kept.
const KEPT: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct WriterState {
    /// A commit was not answered in time, and nobody knows its outcome yet.
    is_stalled: AtomicBool,
    /// Another connection has committed, so what the writer has in memory may be old.
    others: AtomicBool,
    /// How long the last commits waited for the lock of the writers, in microseconds.
    lock_waits: Mutex<VecDeque<u64>>,
}

impl WriterState {
    pub(super) fn set_stalled(&self, is_stalled: bool) {
        self.is_stalled.store(is_stalled, Relaxed);
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.is_stalled.load(Relaxed)
    }

    pub(super) fn set_others(&self) {
        self.others.store(true, Relaxed);
    }

    pub(super) fn take_others(&self) -> bool {
        self.others.load(Relaxed) && self.others.swap(false, Relaxed)
    }

    pub(super) fn waited(&self, micros: i64) {
        let mut waits = self.lock_waits.lock().unwrap_or_else(PoisonError::into_inner);
        if waits.len() == KEPT {
            waits.pop_front();
        }
        waits.push_back(micros.unsigned_abs());
    }

    /// Of a hundred waits, 99 were no longer.
    pub(super) fn lock_wait(&self) -> Duration {
        let waits = self.lock_waits.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut waits: Vec<u64> = waits.into();
        waits.sort_unstable();
        let most = (waits.len() * 99).div_ceil(100);
        Duration::from_micros(waits[..most].last().copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wait_in_a_hundred_does_not_count() {
        let state = WriterState::default();
        assert_eq!(state.lock_wait(), Duration::ZERO);
        for wait in 0..200 {
            state.waited(if wait % 100 == 0 { 9_000 } else { 7 });
        }
        assert_eq!(state.lock_wait(), Duration::from_micros(7));
        state.waited(9_000);
        assert_eq!(state.lock_wait(), Duration::from_millis(9));
    }
}
