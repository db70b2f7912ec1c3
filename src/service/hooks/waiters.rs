//! Which process waits for the mail of which session.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use crate::domain::Principal;

/// The waiter of each principal for a session. The latest waits alone; ids are ordered by when a waiter began.
#[derive(Debug, Default)]
pub(super) struct MailWaiters(Mutex<WaiterTable>);

type WaiterTable = HashMap<(Principal, String), watch::Sender<String>>;

/// With more sessions than this, those for which nobody waits are forgotten. A waiter enters again with its next question.
const SESSIONS: usize = 10_000;

impl MailWaiters {
    fn lock(&self) -> MutexGuard<'_, WaiterTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes this the waiter of a session, and shows who is from now on; `None` if a later one waits already.
    pub(super) fn enter(
        &self,
        principal: &Principal,
        session: &str,
        waiter: &str,
    ) -> Option<watch::Receiver<String>> {
        let mut waiters = self.lock();
        if waiters.len() >= SESSIONS {
            waiters.retain(|_, latest| latest.receiver_count() > 0);
        }
        let latest = waiters.entry((principal.clone(), session.to_owned())).or_default();
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
        let enter = |session, waiter| waiters.enter(&Principal::Operator, session, waiter);
        let mut first = enter("s", "1").unwrap();
        assert!(!first.has_changed().unwrap());
        assert!(enter("s", "1").is_some(), "asks again");
        assert!(!first.has_changed().unwrap());
        let other = enter("t", "0").unwrap();
        let _second = enter("s", "2").unwrap();
        assert!(first.has_changed().unwrap() && !other.has_changed().unwrap());
        first.mark_unchanged();
        assert!(enter("s", "1").is_none());
        let other = Principal::Session("p".into());
        assert!(waiters.enter(&other, "s", "1").is_some(), "nobody retires another's waiter");
        assert!(!first.has_changed().unwrap());
    }
}
