//! The five bounds of a principal.
//!
//! What this process holds for a principal (requests, streams, unread bytes) is a level with a
//! guard. Stored bytes are a rate per hour. Rows are counted in the database, so a restart changes
//! nothing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use svc_model::{BudgetBounds, BudgetKind, Caller, Principal, Timestamp};
use svc_store::WriteTx;
use tokio::sync::Notify;

use super::{Error, Result};

/// The bounds of all principals, and what they have taken. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    bounds: BudgetBounds,
    taken: Arc<Mutex<BudgetLevels>>,
}

#[derive(Debug, Default)]
struct BudgetLevels {
    held: HashMap<(Principal, BudgetKind), u64>,
    /// Unix nanoseconds at which the charge for the principal's stored bytes has decayed to zero.
    stored_until: HashMap<Principal, i128>,
    /// Notifies the futures that wait until a hold of this principal and kind is dropped.
    waiting: HashMap<(Principal, BudgetKind), Arc<Notify>>,
    /// Rows that a principal may store before they are counted again. Deleted rows do not raise it,
    /// so it is never too large.
    rows_before_count: HashMap<Principal, u64>,
}

/// Above this number of principals, expired rates and cached row counts are evicted.
const PRINCIPALS: usize = 10_000;

/// Rows stored by a principal after which its rows are counted again.
const ROWS_BETWEEN_COUNTS: u64 = 1000;

const HOUR_NANOS: i128 = 3_600_000_000_000;

/// A part of a principal's budget, returned on drop.
#[derive(Debug)]
pub struct BudgetHold {
    budget: Budget,
    principal: Principal,
    kind: BudgetKind,
    amount: u64,
}

impl Drop for BudgetHold {
    fn drop(&mut self) {
        let mut taken = self.budget.lock();
        let key = (self.principal.clone(), self.kind);
        if let Some(held) = taken.held.get_mut(&key) {
            *held = held.saturating_sub(self.amount);
            if *held == 0 {
                taken.held.remove(&key);
            }
        }
        let freed = taken.waiting.remove(&key);
        drop(taken);
        if let Some(freed) = freed {
            freed.notify_waiters();
        }
    }
}

impl Budget {
    pub(super) fn new(bounds: BudgetBounds) -> Self {
        Self { bounds, taken: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BudgetLevels> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hold(
        &self,
        caller: &Caller,
        kind: BudgetKind,
        amount: u64,
    ) -> Result<Option<BudgetHold>> {
        if caller.is_operator() {
            return Ok(None);
        }
        let (principal, bound) = (caller.principal(), self.bounds.bound(kind));
        {
            // Check and increment are under one lock, or concurrent requests could exceed the
            // bound.
            let mut taken = self.lock();
            let key = (principal.clone(), kind);
            let level = taken.held.get(&key).copied().unwrap_or(0);
            let next = level.saturating_add(amount);
            if next > bound {
                return Err(Error::LimitReached(kind.refusal(level, bound)));
            }
            taken.held.insert(key, next);
        }
        Ok(Some(BudgetHold { budget: self.clone(), principal, kind, amount }))
    }

    /// As [`Self::hold`], but waits for capacity, of which the bound must have enough.
    pub(super) async fn hold_when_free(
        &self,
        caller: &Caller,
        kind: BudgetKind,
        amount: u64,
    ) -> Option<BudgetHold> {
        loop {
            let key = (caller.principal(), kind);
            // Under the lock and before the attempt: a hold that is dropped later notifies this
            // future.
            let freed = Arc::clone(self.lock().waiting.entry(key).or_default()).notified_owned();
            match self.hold(caller, kind, amount) {
                Ok(hold) => return hold,
                Err(_) => freed.await,
            }
        }
    }

    /// Charges bytes that are about to be stored, all of them or none. The charge decays evenly
    /// within an hour.
    pub(super) fn take_stored(&self, caller: &Caller, bytes: u64, now: Timestamp) -> Result<()> {
        if caller.is_operator() || bytes == 0 {
            return Ok(());
        }
        let kind = BudgetKind::StoredBytesPerHour;
        let bound = i128::from(self.bounds.bound(kind).max(1));
        let now = i128::from(now.as_millis()) * 1_000_000;
        let mut taken = self.lock();
        if taken.stored_until.len() >= PRINCIPALS {
            taken.stored_until.retain(|_, until| *until > now);
        }
        let principal = caller.principal();
        // If the clock was set back, the charge is at most one hour's worth.
        let until = taken.stored_until.get(&principal).copied().unwrap_or(now);
        let until = until.clamp(now, now + HOUR_NANOS);
        let next = until + i128::from(bytes) * HOUR_NANOS / bound;
        if next > now + HOUR_NANOS {
            let used = (until - now) * bound / HOUR_NANOS;
            let used = u64::try_from(used).unwrap_or(u64::MAX);
            taken.stored_until.insert(principal, until);
            return Err(Error::LimitReached(kind.refusal(used, self.bounds.bound(kind))));
        }
        taken.stored_until.insert(principal, next);
        Ok(())
    }

    /// Checks that the caller may store `more` rows.
    pub(super) async fn check_rows(
        &self,
        tx: &mut WriteTx,
        caller: &Caller,
        more: u64,
    ) -> Result<()> {
        if caller.is_operator() || more == 0 {
            return Ok(());
        }
        let principal = caller.principal();
        if let Some(room) = self.lock().rows_before_count.get_mut(&principal)
            && let Some(left) = room.checked_sub(more)
        {
            *room = left;
            return Ok(());
        }
        let kind = BudgetKind::Rows;
        let bound = self.bounds.bound(kind);
        let used = tx.upkeep().rows_kept(&principal, bound).await?;
        let Some(room) = bound.checked_sub(used.saturating_add(more)) else {
            return Err(Error::LimitReached(kind.refusal(used, bound)));
        };
        let mut taken = self.lock();
        if taken.rows_before_count.len() >= PRINCIPALS {
            taken.rows_before_count.clear();
        }
        taken.rows_before_count.insert(principal, room.min(ROWS_BETWEEN_COUNTS));
        Ok(())
    }

    /// How many rows may be stored of what a caller's hooks report without its request. Half of the
    /// bound is left for what the caller asks for.
    pub(super) async fn room_for_reported(&self, tx: &mut WriteTx, caller: &Caller) -> Result<u64> {
        if caller.is_operator() {
            return Ok(u64::MAX);
        }
        let principal = caller.principal();
        let most = self.bounds.bound(BudgetKind::Rows) / 2;
        let used = tx.upkeep().rows_kept(&principal, most).await?;
        self.note_uncharged(caller);
        Ok(most.saturating_sub(used))
    }

    /// Notes that rows of this caller are stored which were not charged: all are counted before the
    /// next ones.
    pub(super) fn note_uncharged(&self, caller: &Caller) {
        self.lock().rows_before_count.remove(&caller.principal());
    }

    pub(super) fn levels(&self) -> Vec<(BudgetKind, u64)> {
        let taken = self.lock();
        let live = [BudgetKind::Requests, BudgetKind::Streams, BudgetKind::UnreadBytes];
        let total = |kind: BudgetKind| {
            taken.held.iter().filter(|((_, of), _)| *of == kind).map(|(_, held)| *held).sum()
        };
        live.into_iter().map(|kind| (kind, total(kind))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicU32, Ordering},
        task::{Context, Poll, Wake, Waker},
        time::Duration,
    };

    use svc_model::TokenId;

    use super::*;
    use crate::service::testing::session;

    fn agent(key: &str) -> Caller {
        session(key, &[])
    }

    fn budget_with(kind: BudgetKind, bound: u64) -> Budget {
        let mut bounds = BudgetBounds::default();
        bounds.set(kind, bound);
        Budget::new(bounds)
    }

    #[test]
    fn a_hold_counts_until_dropped_and_for_its_principal_only() {
        let budget = budget_with(BudgetKind::Streams, 2);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let take = |caller: &Caller| budget.hold(caller, BudgetKind::Streams, 1);
        let (first, second) = (take(&greedy).unwrap(), take(&greedy).unwrap());
        let refusal = take(&greedy).unwrap_err().to_string();
        assert_eq!(refusal, "budget.streams: 2 of 2 open streams are taken; close one");
        take(&other).unwrap();
        for _ in 0..10 {
            assert!(take(&Caller::Operator).unwrap().is_none());
        }
        drop(first);
        let third = take(&greedy).unwrap();
        take(&greedy).unwrap_err();
        drop((second, third));
        assert!(budget.lock().held.is_empty(), "nothing is left behind");
    }

    #[test]
    fn who_waits_is_woken_when_a_hold_of_the_same_principal_is_dropped() {
        let budget = budget_with(BudgetKind::UnreadBytes, 3);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let take = |caller, amount| budget.hold(caller, BudgetKind::UnreadBytes, amount).unwrap();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        let (one, two, theirs) = (take(&greedy, 1), take(&greedy, 2), take(&other, 3));
        let mut waits = pin!(budget.hold_when_free(&greedy, BudgetKind::UnreadBytes, 2));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        drop(theirs);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "the capacity of another is none for it");
        drop(one);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "at once, without a timer");
        assert!(waits.as_mut().poll(&mut cx).is_pending(), "one is free, two are needed");
        drop(two);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
        let Poll::Ready(hold) = waits.as_mut().poll(&mut cx) else { panic!("there is room") };
        drop(hold);
        let taken = budget.lock();
        assert!(taken.held.is_empty() && taken.waiting.is_empty(), "nothing is left behind");
    }

    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn concurrent_holds_do_not_exceed_the_bound() {
        let budget = budget_with(BudgetKind::Requests, 5);
        let caller = agent("greedy");
        for _ in 0..200 {
            let taken = std::thread::scope(|scope| {
                let take = || budget.hold(&caller, BudgetKind::Requests, 1);
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
                threads
                    .into_iter()
                    .filter_map(|thread| thread.join().unwrap().ok())
                    .collect::<Vec<_>>()
            });
            assert_eq!(taken.len(), 5);
        }
    }

    #[test]
    fn stored_bytes_decay_within_an_hour_and_bind_one_principal() {
        let budget = budget_with(BudgetKind::StoredBytesPerHour, 3600);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let begin = Timestamp::from_millis(1_000_000_000);
        budget.take_stored(&greedy, 3000, begin).unwrap();
        let refusal = budget.take_stored(&greedy, 601, begin).unwrap_err().to_string();
        assert!(refusal.starts_with("budget.stored_bytes_per_hour: 3000 of 3600 "), "{refusal}");
        budget.take_stored(&greedy, 600, begin).unwrap();
        budget.take_stored(&greedy, 1, begin).unwrap_err();
        budget.take_stored(&other, 3600, begin).unwrap();
        budget.take_stored(&Caller::Operator, 1 << 40, begin).unwrap();
        // Another token of the same session is the same principal.
        let mut another = agent("greedy");
        if let Caller::Session { token, .. } = &mut another {
            *token = TokenId::from("another".to_owned());
        }
        budget.take_stored(&another, 1, begin).unwrap_err();
        let later = begin.plus(Duration::from_secs(100));
        budget.take_stored(&greedy, 101, later).unwrap_err();
        budget.take_stored(&greedy, 100, later).unwrap();
        // A request above the whole budget is never granted. Idle time earns at most one budget.
        let rested = begin.plus(Duration::from_hours(100));
        budget.take_stored(&greedy, 3601, rested).unwrap_err();
        budget.take_stored(&greedy, 3600, rested).unwrap();
        // The clock was set back.
        budget.take_stored(&greedy, 1, begin).unwrap_err();
        budget.take_stored(&greedy, 3600, begin.plus(Duration::from_hours(1))).unwrap();
    }
}
