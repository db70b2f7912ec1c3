//! What one principal may hold at a time: kinds of things, their bounds, and what to say when one is reached.
//!
//! The operator has no budget: the machine is the operator's. What the daemon may hold for everybody together is in
//! [`limits`](super::limits).

use std::time::Duration;

/// A kind of thing that principals hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetKind {
    /// MCP sessions that are open.
    McpSessions,
    /// Resources that MCP sessions have subscribed to.
    Subscriptions,
    /// Streams of events that are being read.
    Streams,
    /// Calls of tools at work, those that wait too.
    Calls,
    /// Bytes of bodies that are being worked on, four for each that came.
    RequestBytes,
    /// Bytes of bodies in an hour.
    BytesPerHour,
    /// Peers.
    Peers,
    /// Sessions of coding agents that go on.
    Sessions,
    /// Tasks that are not over.
    Tasks,
    /// Bytes of the prompts and metadata of those tasks.
    TaskBytes,
    /// Messages sent that were not acknowledged.
    Messages,
    /// Bytes of the texts of those messages. A broadcast's text is none of them.
    MessageBytes,
    /// Bytes of the texts that wait in one inbox, whoever sent them.
    InboxBytes,
    /// GHAP records.
    Records,
    /// Memories.
    Memories,
    /// Answers to hooks that nobody saw, as the hooks report them. They are kept as long as the ids of hooks' events.
    LostReplies,
}

/// One bound for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetBounds([u64; BudgetKind::ALL.len()]);

const MIB: u64 = 1024 * 1024;

impl BudgetKind {
    /// All kinds, in the order of the documentation.
    pub const ALL: [Self; 16] = [
        Self::McpSessions,
        Self::Subscriptions,
        Self::Streams,
        Self::Calls,
        Self::RequestBytes,
        Self::BytesPerHour,
        Self::Peers,
        Self::Sessions,
        Self::Tasks,
        Self::TaskBytes,
        Self::Messages,
        Self::MessageBytes,
        Self::InboxBytes,
        Self::Records,
        Self::Memories,
        Self::LostReplies,
    ];

    /// The key of its bound in the configuration.
    pub const fn key(self) -> &'static str {
        match self {
            Self::McpSessions => "budget.mcp_sessions",
            Self::Subscriptions => "budget.subscriptions",
            Self::Streams => "budget.streams",
            Self::Calls => "budget.calls",
            Self::RequestBytes => "budget.request_bytes",
            Self::BytesPerHour => "budget.bytes_per_hour",
            Self::Peers => "budget.peers",
            Self::Sessions => "budget.sessions",
            Self::Tasks => "budget.tasks",
            Self::TaskBytes => "budget.task_bytes",
            Self::Messages => "budget.messages",
            Self::MessageBytes => "budget.message_bytes",
            Self::InboxBytes => "budget.inbox_bytes",
            Self::Records => "budget.records",
            Self::Memories => "budget.memories",
            Self::LostReplies => "budget.lost_replies",
        }
    }

    /// The bound unless the configuration says another: enough for a busy agent, and fifty of them fit one machine.
    pub const fn default_bound(self) -> u64 {
        match self {
            Self::McpSessions => 256,
            Self::Streams | Self::Calls | Self::Peers => 64,
            // A quarter of an inbox: nobody fills another's alone.
            Self::MessageBytes => 16 * MIB,
            Self::RequestBytes | Self::TaskBytes | Self::InboxBytes => 64 * MIB,
            Self::BytesPerHour => 1024 * MIB,
            Self::Subscriptions | Self::Sessions | Self::Tasks => 1000,
            Self::Messages | Self::Records | Self::Memories | Self::LostReplies => 10_000,
        }
    }

    /// What is held, in words.
    const fn unit(self) -> &'static str {
        match self {
            Self::McpSessions => "MCP sessions",
            Self::Subscriptions => "subscriptions to resources",
            Self::Streams => "open streams",
            Self::Calls => "calls of tools at work",
            Self::RequestBytes => "bytes for requests at work",
            Self::BytesPerHour => "bytes sent within an hour",
            Self::Peers => "peers",
            Self::Sessions => "sessions that go on",
            Self::Tasks => "tasks that are not over",
            Self::TaskBytes => "bytes of tasks that are not over",
            Self::Messages => "messages sent that were not acknowledged",
            Self::MessageBytes => "bytes of messages sent that were not acknowledged",
            Self::InboxBytes => "bytes of messages in this inbox",
            Self::Records => "GHAP records",
            Self::Memories => "memories",
            Self::LostReplies => "answers to hooks that nobody saw",
        }
    }

    /// What to do about it.
    const fn advice(self) -> &'static str {
        match self {
            Self::McpSessions => "end one with DELETE /mcp and its Mcp-Session-Id",
            Self::Subscriptions => "give some up with resources/unsubscribe, or end their session",
            Self::Streams => "close one",
            Self::Calls => "wait for one to end, or cancel it",
            Self::RequestBytes => "wait for the answers to earlier requests",
            Self::BytesPerHour => "send less, or wait",
            Self::Peers => "remove one with DELETE /v1/peers/{id} or `svc peer remove`",
            Self::Sessions => "end one with end_session",
            Self::Tasks | Self::TaskBytes => {
                "end one with a terminal event, TaskCancel or `svc task cancel`"
            }
            Self::Messages | Self::MessageBytes => {
                "the receivers free them with peer_ack or `svc message ack`"
            }
            Self::InboxBytes => "its owner frees them with peer_ack or `svc message ack`",
            Self::Records => "the operator raises the bound",
            Self::Memories => "remove some with delete_memory",
            Self::LostReplies => "they are forgotten after seven days",
        }
    }

    /// What a caller is told whose request would go beyond `bound`, while `used` is held.
    pub fn refusal(self, used: u64, bound: u64) -> String {
        let (key, unit, advice) = (self.key(), self.unit(), self.advice());
        format!("{key}: {used} of {bound} {unit} are taken; {advice}")
    }

    const fn index(self) -> usize {
        self as usize
    }
}

impl Default for BudgetBounds {
    fn default() -> Self {
        Self(BudgetKind::ALL.map(BudgetKind::default_bound))
    }
}

impl BudgetBounds {
    /// The bound of a kind.
    pub const fn of(&self, kind: BudgetKind) -> u64 {
        self.0[kind.index()]
    }

    /// Sets the bound of a kind.
    pub const fn set(&mut self, kind: BudgetKind, bound: u64) {
        self.0[kind.index()] = bound;
    }
}

/// Bytes that a principal may send: as many as its bound at once, and as many again in each hour.
#[derive(Debug, Clone, Copy)]
pub struct HourlyAllowance {
    /// Below 0 after a body that was longer than what was left.
    left: i64,
    /// Unix milliseconds.
    at: i64,
}

impl HourlyAllowance {
    /// Nothing was sent yet.
    pub fn new(bound: u64, now_millis: i64) -> Self {
        Self { left: i64::try_from(bound).unwrap_or(i64::MAX), at: now_millis }
    }

    /// What may be sent now.
    pub fn left(&mut self, bound: u64, now_millis: i64) -> i64 {
        const HOUR_MILLIS: i128 = 3_600_000;
        let bound = i64::try_from(bound).unwrap_or(i64::MAX);
        let passed = i128::from(now_millis.saturating_sub(self.at).max(0));
        let grown = i128::from(bound) * passed / HOUR_MILLIS;
        // Time that has earned no byte yet is not forgotten.
        if grown > 0 || now_millis < self.at {
            self.at = now_millis;
            let left = i128::from(self.left) + grown;
            self.left = i64::try_from(left.min(i128::from(bound))).unwrap_or(bound);
        }
        self.left
    }

    /// Counts what was sent.
    pub fn spend(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

/// When one who was refused again and again is listened to next. It may ask on at once a few times, and then at a pace:
/// to refuse takes time, too, which is its neighbours'.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RefusalPace {
    /// The time at which all refusals so far are paid for, in Unix milliseconds.
    refusals_paid_at: i64,
    /// The same of the bytes that were read for nothing.
    bytes_paid_at: i64,
}

/// What a request takes of its sender's pace while it is answered, so that of several requests of one moment each waits
/// for those before it. In milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReservedPace {
    refusal: i64,
    bytes: i64,
}

impl RefusalPace {
    /// Between two refusals, in milliseconds.
    const SPACING: i64 = 20;
    /// Refusals that come at once.
    const AT_ONCE: i64 = 25;
    /// The longest wait, in milliseconds.
    const LONGEST: i64 = 1000;
    /// What was read and refused counts for a millisecond with so many bytes: to read them takes a part of that.
    const BYTES_PER_MILLISECOND: u64 = 8 * 1024;

    /// Counts a refusal.
    pub fn refuse(&mut self, now: i64) {
        self.add_refusal(now);
    }

    /// Counts what was read for nothing, in bytes.
    pub fn read_for_nothing(&mut self, now: i64, bytes: u64) {
        self.add_bytes(now, bytes);
    }

    /// How long a request that comes now, with a body of so many bytes, waits; and what it takes until its answer is known.
    pub fn reserve(&mut self, now: i64, bytes: u64) -> (Duration, ReservedPace) {
        let wait = self.wait(now);
        if self.is_over(now) {
            return (wait, ReservedPace::default());
        }
        let refusal = self.add_refusal(now);
        let bytes = self.add_bytes(now, bytes);
        (wait, ReservedPace { refusal, bytes })
    }

    /// Gives back what a request took. If it was refused, that has been counted.
    pub const fn give_back(&mut self, reserved: ReservedPace) {
        self.refusals_paid_at -= reserved.refusal;
        self.bytes_paid_at -= reserved.bytes;
    }

    fn add_refusal(&mut self, now: i64) -> i64 {
        let latest = now + Self::AT_ONCE * Self::SPACING + Self::LONGEST;
        later(&mut self.refusals_paid_at, now, Self::SPACING, latest)
    }

    fn add_bytes(&mut self, now: i64, bytes: u64) -> i64 {
        let time = i64::try_from(bytes / Self::BYTES_PER_MILLISECOND).unwrap_or(i64::MAX);
        later(&mut self.bytes_paid_at, now, time.min(Self::LONGEST), now + Self::LONGEST)
    }

    /// How long its next request waits.
    fn wait(self, now: i64) -> Duration {
        let of_refusals = self.refusals_paid_at - now - Self::AT_ONCE * Self::SPACING;
        let wait = of_refusals.max(self.bytes_paid_at - now);
        Duration::from_millis(wait.clamp(0, Self::LONGEST).unsigned_abs())
    }

    /// Whether all is paid for.
    pub const fn is_over(self, now: i64) -> bool {
        self.refusals_paid_at <= now && self.bytes_paid_at <= now
    }
}

/// Moves a time of payment by so much, up to the latest, and says by how much it was moved.
fn later(paid_at: &mut i64, now: i64, time: i64, latest: i64) -> i64 {
    let before = (*paid_at).max(now);
    *paid_at = before.saturating_add(time).min(latest.max(before));
    *paid_at - before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_place_a_key_and_words() {
        let mut bounds = BudgetBounds::default();
        for (index, kind) in BudgetKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index, "{kind:?}");
            assert_eq!(bounds.of(kind), kind.default_bound());
            bounds.set(kind, index as u64);
            let refusal = kind.refusal(3, 4);
            assert!(refusal.starts_with("budget."), "{refusal}");
            assert!(refusal.contains("3 of 4 ") && refusal.contains("; "), "{refusal}");
        }
        for (index, kind) in BudgetKind::ALL.into_iter().enumerate() {
            assert_eq!(bounds.of(kind), index as u64);
        }
    }

    #[test]
    fn an_allowance_comes_back_within_the_hour_and_never_grows_beyond_its_bound() {
        let mut allowance = HourlyAllowance::new(3600, 0);
        allowance.spend(3700);
        assert_eq!(allowance.left(3600, 0), -100, "the last body may be longer");
        assert_eq!(allowance.left(3600, 100_000), 0);
        assert_eq!(allowance.left(3600, 100_500), 0, "half a byte");
        assert_eq!(allowance.left(3600, 101_000), 1);
        assert_eq!(allowance.left(3600, 50_000), 1, "the clock was set back");
        assert_eq!(allowance.left(3600, 100_000_000), 3600);
    }

    #[test]
    fn who_is_refused_again_and_again_is_heard_at_a_pace() {
        let (mut pace, mut now) = (RefusalPace::default(), 1_000_000);
        for _ in 0..RefusalPace::AT_ONCE {
            assert_eq!(pace.wait(now), Duration::ZERO);
            pace.refuse(now);
        }
        let mut refused = 0;
        let end = now + 10_000;
        while now < end {
            now += i64::try_from(pace.wait(now).as_millis()).unwrap();
            pace.refuse(now);
            refused += 1;
        }
        assert_eq!(refused, 10_000 / RefusalPace::SPACING + 1);
        // Large ones are heard more seldom.
        let (mut of_large, mut now_of_large, mut refused) = (RefusalPace::default(), now, 0);
        while now_of_large < now + 10_000 {
            now_of_large += i64::try_from(of_large.wait(now_of_large).as_millis()).unwrap();
            of_large.refuse(now_of_large);
            of_large.read_for_nothing(now_of_large, 2_400_000);
            refused += 1;
        }
        assert!((30..40).contains(&refused), "{refused}");
        // Of those that come at one moment, each waits for those before it, and not for one whose answer was no refusal.
        let mut pace = RefusalPace::default();
        assert_eq!(pace.reserve(now, 2_400_000), (Duration::ZERO, ReservedPace::default()));
        pace.refuse(now);
        pace.read_for_nothing(now, 800 * 1024);
        let (wait, first) = pace.reserve(now, 400 * 1024);
        assert_eq!(wait, Duration::from_millis(100));
        let (wait, second) = pace.reserve(now, 400 * 1024);
        assert_eq!(wait, Duration::from_millis(150));
        pace.give_back(second);
        pace.give_back(first);
        assert_eq!(pace.wait(now), Duration::from_millis(100));
        // Many at one time make the wait no longer than it may be.
        for _ in 0..10_000 {
            pace.refuse(now);
        }
        assert_eq!(pace.wait(now), Duration::from_secs(1));
        assert!(!pace.is_over(now));
        now += 1000;
        assert_eq!(pace.wait(now), Duration::ZERO);
        assert!(pace.is_over(now + 500));
        // A clock that goes back makes nobody wait for long.
        assert_eq!(pace.wait(0), Duration::from_secs(1));
    }
}
