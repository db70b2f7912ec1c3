//! The five bounds of one principal, which a person may configure. Bounds for all callers together
//! are in [`limits`](crate::limits).

/// A bound on one principal's use of the daemon. The operator, who owns the machine, has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetKind {
    /// Concurrent requests, including running calls of tools. A body counts as one more for each
    /// [`REQUEST_UNIT_BYTES`] of it.
    Requests,
    /// Open streams of events.
    Streams,
    /// Bytes of responses that the daemon holds until the reader takes them.
    UnreadBytes,
    /// Bytes that are stored within an hour: bodies as they were sent, and the text for each
    /// further copy of a broadcast.
    StoredBytesPerHour,
    /// Rows of the kinds that are bounded, over all tables.
    Rows,
}

/// Bytes of a body that count as one more request.
pub const REQUEST_UNIT_BYTES: u64 = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetBounds([u64; BudgetKind::ALL.len()]);

const MIB: u64 = 1024 * 1024;

impl BudgetKind {
    /// In the order of the documentation.
    pub const ALL: [Self; 5] =
        [Self::Requests, Self::Streams, Self::UnreadBytes, Self::StoredBytesPerHour, Self::Rows];

    /// The key in the configuration, the default, the unit, and what a caller can do to get below
    /// the bound again.
    const fn facts(self) -> (&'static str, u64, &'static str, &'static str) {
        match self {
            Self::Requests => (
                "budget.requests",
                256,
                "requests at once (each 64 KiB of a body and each call at work count as one more)",
                "wait for the answers to earlier requests, or cancel a call",
            ),
            Self::Streams => ("budget.streams", 64, "open streams", "close one"),
            Self::UnreadBytes => (
                "budget.unread_bytes",
                64 * MIB,
                "bytes of answers that were not read",
                "read the answers that wait on your connections, or close those",
            ),
            Self::StoredBytesPerHour => (
                "budget.stored_bytes_per_hour",
                1024 * MIB,
                "bytes stored within an hour",
                "wait, or send less: each copy of a broadcast counts",
            ),
            Self::Rows => (
                "budget.rows",
                20_000,
                "rows kept",
                "end tasks (TaskCancel, `svc task cancel`), sessions (end_session) and MCP sessions (DELETE /mcp), remove \
                 peers (DELETE /v1/peers/{id}), subscriptions (resources/unsubscribe) and memories (delete_memory); \
                 messages count until their receivers acknowledge them",
            ),
        }
    }

    /// The key of the bound in the configuration.
    pub const fn key(self) -> &'static str {
        self.facts().0
    }

    /// The default: enough for a busy agent, and fifty of them fit one machine.
    pub const fn default_bound(self) -> u64 {
        self.facts().1
    }

    /// The text of a refusal: the request would go beyond `bound`, while `used` is taken.
    pub fn refusal(self, used: u64, bound: u64) -> String {
        let (key, _, unit, advice) = self.facts();
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
    pub const fn bound(&self, kind: BudgetKind) -> u64 {
        self.0[kind.index()]
    }

    pub const fn set(&mut self, kind: BudgetKind, bound: u64) {
        self.0[kind.index()] = bound;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_place_a_key_and_words() {
        let mut bounds = BudgetBounds::default();
        for (index, kind) in BudgetKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index, "{kind:?}");
            assert_eq!(bounds.bound(kind), kind.default_bound());
            bounds.set(kind, index as u64);
            let refusal = kind.refusal(3, 4);
            assert!(refusal.starts_with("budget."), "{refusal}");
            assert!(refusal.contains("3 of 4 ") && refusal.contains("; "), "{refusal}");
        }
        for (index, kind) in BudgetKind::ALL.into_iter().enumerate() {
            assert_eq!(bounds.bound(kind), index as u64);
        }
    }
}
