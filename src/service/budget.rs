//! Budgets of principals: what is held in this process is a level with a guard; what is stored is counted from its rows.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::Error;
use crate::{
    domain::{
        BudgetBounds, BudgetKind, Caller, HourlyAllowance, PeerId, Principal, RefusalPace,
        ReservedPace, Timestamp,
    },
    store::WriteTx,
};

/// The budgets. Cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::service) struct Budget {
    bounds: BudgetBounds,
    levels: Arc<Mutex<Levels>>,
}

#[derive(Debug, Default)]
struct Levels {
    held: HashMap<(Principal, BudgetKind), u64>,
    allowances: HashMap<Principal, HourlyAllowance>,
    paces: HashMap<Principal, RefusalPace>,
}

/// With more principals than this, those whose allowance is whole are forgotten.
const ALLOWANCES: usize = 10_000;

/// With more principals than this, those that were not refused lately are forgotten.
const PACES: usize = 1000;

/// A part of a budget that is taken until this is dropped.
#[derive(Debug)]
pub struct BudgetHold {
    budget: Budget,
    principal: Principal,
    kind: BudgetKind,
    amount: u64,
}

impl Drop for BudgetHold {
    fn drop(&mut self) {
        let mut levels = self.budget.lock();
        let key = (self.principal.clone(), self.kind);
        if let Some(held) = levels.held.get_mut(&key) {
            *held = held.saturating_sub(self.amount);
            if *held == 0 {
                levels.held.remove(&key);
            }
        }
    }
}

/// A request of one who was refused again and again, from its beginning to its answer. The next waits for it.
#[derive(Debug)]
pub struct RequestTurn {
    budget: Budget,
    principal: Principal,
    reserved: ReservedPace,
}

impl Drop for RequestTurn {
    fn drop(&mut self) {
        if let Some(pace) = self.budget.lock().paces.get_mut(&self.principal) {
            pace.give_back(self.reserved);
        }
    }
}

impl Budget {
    pub(in crate::service) fn new(bounds: BudgetBounds) -> Self {
        Self { bounds, levels: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Levels> {
        self.levels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a part of the caller's budget; `None` for the operator, who has none.
    pub(in crate::service) fn hold(
        &self,
        caller: &Caller,
        kind: BudgetKind,
        amount: u64,
    ) -> Result<Option<BudgetHold>, Error> {
        self.take(caller, kind, amount, self.bounds.of(kind))
    }

    /// The same beyond the bound, for what began before this process did.
    pub(in crate::service) fn hold_anyway(
        &self,
        caller: &Caller,
        kind: BudgetKind,
        amount: u64,
    ) -> Option<BudgetHold> {
        self.take(caller, kind, amount, u64::MAX).ok().flatten()
    }

    fn take(
        &self,
        caller: &Caller,
        kind: BudgetKind,
        amount: u64,
        bound: u64,
    ) -> Result<Option<BudgetHold>, Error> {
        if caller.is_operator() {
            return Ok(None);
        }
        let principal = caller.principal();
        {
            // Under one lock, or two requests of one moment would both find room for one.
            let mut levels = self.lock();
            let key = (principal.clone(), kind);
            let level = levels.held.get(&key).copied().unwrap_or(0);
            let taken = level.saturating_add(amount);
            if taken > bound {
                return Err(Error::LimitReached(kind.refusal(level, bound)));
            }
            levels.held.insert(key, taken);
        }
        Ok(Some(BudgetHold { budget: self.clone(), principal, kind, amount }))
    }

    /// Whether the caller may send anything now.
    pub(in crate::service) fn check_allowance(
        &self,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), Error> {
        let (kind, now) = (BudgetKind::BytesPerHour, now.as_millis());
        let bound = self.bounds.of(kind);
        let mut levels = self.lock();
        let Some(allowance) = levels.allowances.get_mut(&caller.principal()) else {
            return Ok(());
        };
        if allowance.left(bound, now) > 0 {
            return Ok(());
        }
        Err(Error::LimitReached(kind.refusal(bound, bound)))
    }

    /// Counts what the caller has sent.
    pub(in crate::service) fn spend(&self, caller: &Caller, bytes: u64, now: Timestamp) {
        if caller.is_operator() {
            return;
        }
        let (bound, now) = (self.bounds.of(BudgetKind::BytesPerHour), now.as_millis());
        let whole = i64::try_from(bound).unwrap_or(i64::MAX);
        let mut levels = self.lock();
        if levels.allowances.len() >= ALLOWANCES {
            levels.allowances.retain(|_, allowance| allowance.left(bound, now) < whole);
        }
        let fresh = HourlyAllowance::new(bound, now);
        let allowance = levels.allowances.entry(caller.principal()).or_insert(fresh);
        allowance.left(bound, now);
        allowance.spend(bytes);
    }

    /// Counts that something of the caller's was refused, for its size or because its budget is full.
    pub(in crate::service) fn count_refusal(&self, caller: &Caller, now: Timestamp) {
        self.change_pace(caller, now, RefusalPace::refuse);
    }

    /// Counts the bytes of a request of the caller's that was read and refused.
    pub(in crate::service) fn count_read_for_nothing(
        &self,
        caller: &Caller,
        bytes: u64,
        now: Timestamp,
    ) {
        self.change_pace(caller, now, |pace, now| pace.read_for_nothing(now, bytes));
    }

    fn change_pace(
        &self,
        caller: &Caller,
        now: Timestamp,
        change: impl FnOnce(&mut RefusalPace, i64),
    ) {
        if caller.is_operator() {
            return;
        }
        let (mut levels, now) = (self.lock(), now.as_millis());
        if levels.paces.len() >= PACES {
            levels.paces.retain(|_, pace| !pace.is_over(now));
        }
        change(levels.paces.entry(caller.principal()).or_default(), now);
    }

    /// How long a request of the caller's, with a body of so many bytes, waits before it is looked at; `None` for one that
    /// was not refused lately. The turn is kept until the answer is known.
    pub(in crate::service) fn take_turn(
        &self,
        caller: &Caller,
        bytes: u64,
        now: Timestamp,
    ) -> Option<(Duration, RequestTurn)> {
        let mut levels = self.lock();
        if levels.paces.is_empty() || caller.is_operator() {
            return None;
        }
        let principal = caller.principal();
        let (wait, reserved) = levels.paces.get_mut(&principal)?.reserve(now.as_millis(), bytes);
        Some((wait, RequestTurn { budget: self.clone(), principal, reserved }))
    }

    /// Checks that the caller may store `more` of a kind that is counted from rows.
    pub(in crate::service) async fn check(
        &self,
        tx: &mut WriteTx,
        caller: &Caller,
        kind: BudgetKind,
        more: u64,
    ) -> Result<(), Error> {
        if caller.is_operator() {
            return Ok(());
        }
        let (used, bound) =
            (tx.budget_used(kind, &caller.principal()).await?, self.bounds.of(kind));
        if used.saturating_add(more) > bound {
            self.count_refusal(caller, tx.now());
            return Err(Error::LimitReached(kind.refusal(used, bound)));
        }
        Ok(())
    }

    /// How many bytes of text this caller may fill an inbox to. Agents leave a quarter of it to the operator, who is bound as
    /// the inbox is its receiver's.
    pub(in crate::service) fn inbox_bound(&self, caller: &Caller) -> u64 {
        let bound = self.bounds.of(BudgetKind::InboxBytes);
        if caller.is_operator() { bound } else { bound - bound / 4 }
    }

    /// Checks that an inbox has room for so many bytes of the caller's text.
    pub(in crate::service) async fn check_inbox(
        &self,
        tx: &mut WriteTx,
        caller: &Caller,
        to: &PeerId,
        bytes: u64,
    ) -> Result<(), Error> {
        let kind = BudgetKind::InboxBytes;
        let (used, bound) = (tx.inbox_bytes(to).await?, self.inbox_bound(caller));
        if used.saturating_add(bytes) > bound {
            self.count_refusal(caller, tx.now());
            return Err(Error::LimitReached(kind.refusal(used, bound)));
        }
        Ok(())
    }

    /// What all principals hold in this process, by kind.
    pub(in crate::service) fn levels(&self) -> Vec<(BudgetKind, u64)> {
        let levels = self.lock();
        let live = [BudgetKind::Streams, BudgetKind::Calls, BudgetKind::RequestBytes];
        let total = |kind: BudgetKind| {
            levels.held.iter().filter(|((_, of), _)| *of == kind).map(|(_, held)| *held).sum()
        };
        live.into_iter().map(|kind| (kind, total(kind))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::TokenId;

    fn agent(key: &str) -> Caller {
        agent_with(key, "token")
    }

    fn agent_with(key: &str, token: &str) -> Caller {
        Caller::Session {
            key: Arc::from(key),
            token: TokenId::from(token.to_owned()),
            scopes: Arc::from([]),
            project: None,
            process: None,
            folder: None,
        }
    }

    #[test]
    fn a_hold_is_taken_until_it_is_dropped_and_is_nobody_elses() {
        let mut bounds = BudgetBounds::default();
        bounds.set(BudgetKind::Streams, 2);
        let budget = Budget::new(bounds);
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
        let recovered: Vec<_> =
            (0..3).map(|_| budget.hold_anyway(&greedy, BudgetKind::Streams, 1)).collect();
        assert_eq!(budget.levels()[0], (BudgetKind::Streams, 3));
        drop(recovered);
    }

    #[test]
    fn requests_of_one_moment_share_one_bound() {
        let mut bounds = BudgetBounds::default();
        bounds.set(BudgetKind::Streams, 5);
        let budget = Budget::new(bounds);
        let caller = agent("greedy");
        for _ in 0..200 {
            let taken = std::thread::scope(|scope| {
                let take = || budget.hold(&caller, BudgetKind::Streams, 1);
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
    fn agents_leave_a_quarter_of_an_inbox_to_the_operator() {
        let mut bounds = BudgetBounds::default();
        bounds.set(BudgetKind::InboxBytes, 1000);
        let budget = Budget::new(bounds);
        assert_eq!(budget.inbox_bound(&agent("greedy")), 750);
        assert_eq!(budget.inbox_bound(&Caller::Operator), 1000);
        let bounds = BudgetBounds::default();
        let one_sender = bounds.of(BudgetKind::MessageBytes);
        assert!(
            one_sender * 3 <= bounds.of(BudgetKind::InboxBytes) - one_sender,
            "nobody fills it alone"
        );
    }

    #[test]
    fn who_has_sent_too_much_waits_and_others_do_not() {
        let mut bounds = BudgetBounds::default();
        bounds.set(BudgetKind::BytesPerHour, 3600);
        let budget = Budget::new(bounds);
        let (greedy, other) = (agent("greedy"), agent("other"));
        let now = Timestamp::from_millis(1_000_000);
        budget.check_allowance(&greedy, now).unwrap();
        budget.spend(&greedy, 4000, now);
        let refusal = budget.check_allowance(&greedy, now).unwrap_err().to_string();
        assert!(refusal.starts_with("budget.bytes_per_hour: "), "{refusal}");
        budget.check_allowance(&other, now).unwrap();
        budget.spend(&Caller::Operator, 1 << 40, now);
        budget.check_allowance(&Caller::Operator, now).unwrap();
        let later = now.plus(Duration::from_secs(401));
        budget.check_allowance(&greedy, later).unwrap();
        // Another token of the same session is the same principal.
        let again = agent_with("greedy", "another");
        budget.spend(&again, 4000, later);
        budget.check_allowance(&agent("greedy"), later).unwrap_err();
    }
}
