//! Which process waits for which session's mail.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use svc_model::{Principal, Timestamp};
use tokio::sync::watch;

/// Waiters for the mail of sessions. For each session, a principal has one waiter: the latest. Ids
/// of waiters are ordered by their start.
#[derive(Debug, Default)]
pub(super) struct MailWaiters(Mutex<WaiterTable>);

type WaiterTable = HashMap<(Principal, String), SessionWaiter>;

/// The latest waiter of a session.
#[derive(Debug, Default)]
struct SessionWaiter {
    latest: watch::Sender<String>,
    /// When a message last woke the session.
    woken: Option<Timestamp>,
}

/// Above this number of sessions, sessions without a waiter are removed. A waiter enters again with
/// its next request.
const SESSIONS: usize = 10_000;
/// How long a woken session counts as one that takes messages, until its client reports the turn.
const WAKING: Duration = Duration::from_secs(10);

impl MailWaiters {
    fn lock(&self) -> MutexGuard<'_, WaiterTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `waiter` the waiter of a session. The receiver shows the session's latest waiter from
    /// now on; `None` if a later one waits already.
    pub(super) fn enter(
        &self,
        principal: &Principal,
        session: &str,
        waiter: &str,
    ) -> Option<watch::Receiver<String>> {
        let mut waiters = self.lock();
        if waiters.len() >= SESSIONS {
            waiters.retain(|_, entry| entry.latest.receiver_count() > 0);
        }
        let entry = waiters.entry((principal.clone(), session.to_owned())).or_default();
        if entry.latest.borrow().as_str() > waiter {
            return None;
        }
        entry.latest.send_if_modified(|latest| {
            let is_new = latest != waiter;
            waiter.clone_into(latest);
            is_new
        });
        Some(entry.latest.subscribe())
    }

    /// Notes that the session's waiter got a message, which wakes the session.
    pub(super) fn note_woken(&self, principal: &Principal, session: &str, at: Timestamp) {
        if let Some(entry) = self.lock().get_mut(&(principal.clone(), session.to_owned())) {
            entry.woken = Some(at);
        }
    }

    /// Whether a message wakes the session, or has just woken it. If the session became idle after
    /// the wake, the woken turn has ended, so that wake does not count.
    pub(super) fn wake(
        &self,
        principal: &Principal,
        session: &str,
        (now, idle_since): (Timestamp, Option<Timestamp>),
    ) -> bool {
        let waiters = self.lock();
        let Some(entry) = waiters.get(&(principal.clone(), session.to_owned())) else {
            return false;
        };
        let is_waking = entry.woken.is_some_and(|woken| {
            now.since(woken) < WAKING && idle_since.is_none_or(|since| since <= woken)
        });
        is_waking || entry.latest.receiver_count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_waiter_of_a_session_replaces_the_earlier_one() {
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

    #[test]
    fn a_message_wakes_a_session_that_has_a_waiter() {
        let waiters = MailWaiters::default();
        let (own, other) = (Principal::Operator, Principal::Session("p".into()));
        let now = Timestamp::from_millis(1_800_000_000_000);
        let idle_since = Some(now.minus(Duration::from_hours(1)));
        let wake = |principal, session| waiters.wake(principal, session, (now, idle_since));
        assert!(!wake(&own, "s"));
        let waits = waiters.enter(&own, "s", "1").unwrap();
        assert!(wake(&own, "s") && !wake(&other, "s") && !wake(&own, "t"));
        waiters.note_woken(&own, "s", now);
        drop(waits);
        assert!(wake(&own, "s"), "its turn is about to begin");
        assert!(!waiters.wake(&own, "s", (now.plus(WAKING), idle_since)));
        // The session's turn began and failed.
        let later = now.plus(Duration::from_millis(20));
        assert!(waiters.wake(&own, "s", (later, None)));
        assert!(!waiters.wake(&own, "s", (later, Some(later))));
    }
}
