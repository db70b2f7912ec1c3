//! Which process waits for the mail of which session.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

/// The waiter of each session. The latest waits alone; ids are ordered by when a waiter began.
#[derive(Debug, Default)]
pub(super) struct MailWaiters(Mutex<HashMap<String, watch::Sender<String>>>);

/// With more sessions than this, those for which nobody waits are forgotten. A waiter enters again with its next question.
const SESSIONS: usize = 10_000;

impl MailWaiters {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes this the waiter of a session, and shows who is from now on; `None` if a later one waits already.
    pub(super) fn enter(&self, session: &str, waiter: &str) -> Option<watch::Receiver<String>> {
        let mut waiters = self.lock();
        if waiters.len() >= SESSIONS {
            waiters.retain(|_, latest| latest.receiver_count() > 0);
        }
        let latest = waiters.entry(session.to_owned()).or_default();
        if latest.borrow().as_str() > waiter {
            return None;
        }
        latest.send_if_modified(|latest| {
            let is_new = latest != waiter;
            waiter.clone_into(latest);
            is_new
        });
        Some(latest.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_waiter_waits_alone() {
        let waiters = MailWaiters::default();
        let mut first = waiters.enter("s", "1").unwrap();
        assert!(!first.has_changed().unwrap());
        assert!(waiters.enter("s", "1").is_some(), "asks again");
        assert!(!first.has_changed().unwrap());
        let other = waiters.enter("t", "0").unwrap();
        let _second = waiters.enter("s", "2").unwrap();
        assert!(first.has_changed().unwrap() && !other.has_changed().unwrap());
        first.mark_unchanged();
        assert!(waiters.enter("s", "1").is_none());
    }
}
