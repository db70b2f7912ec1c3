//! The five bounds of one principal, and what a refusal says.
//!
//! The operator has no bounds: the machine is the operator's. Bounds that hold for everybody
//! together are in [`limits`](super::limits).

/// A bound on what one principal takes of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetKind {
    /// Requests that are answered at one time, calls of tools at work among them. A body counts one
    /// more for each [`REQUEST_UNIT_BYTES`] that it has.
    Requests,
    /// Streams of events that are open.
    Streams,
    /// Bytes of answers that the daemon holds and the reader has not taken.
    UnreadBytes,
    /// Bytes that are stored within an hour: bodies as they were sent, and the text again for each
    /// further copy of a broadcast.
    StoredBytesPerHour,
    /// Rows that are kept.
    Rows,
}

/// Bytes of a body that count as one request more.
pub const REQUEST_UNIT_BYTES: u64 = 64 * 1024;

/// One bound of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetBounds([u64; BudgetKind::ALL.len()]);

const MIB: u64 = 1024 * 1024;

impl BudgetKind {
    /// All kinds, in the order of the documentation.
    pub const ALL: [Self; 5] =
        [Self::Requests, Self::Streams, Self::UnreadBytes, Self::StoredBytesPerHour, Self::Rows];

    /// The key of the bound in the configuration.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Requests => "budget.requests",
            Self::Streams => "budget.streams",
            Self::UnreadBytes => "budget.unread_bytes",
            Self::StoredBytesPerHour => "budget.stored_bytes_per_hour",
            Self::Rows => "budget.rows",
        }
    }

    /// The bound unless the configuration sets another: enough for a busy agent, and fifty of them
    /// fit one machine.
    pub const fn default_bound(self) -> u64 {
        match self {
            Self::Requests => 256,
            Self::Streams => 64,
            Self::UnreadBytes => 64 * MIB,
            Self::StoredBytesPerHour => 1024 * MIB,
            Self::Rows => 20_000,
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Requests => {
                "requests at once (each 64 KiB of a body and each call at work count as one more)"
            }
            Self::Streams => "open streams",
            Self::UnreadBytes => "bytes of answers that were not read",
            Self::StoredBytesPerHour => "bytes stored within an hour",
            Self::Rows => "rows kept",
        }
    }

    /// What the caller does to have room again.
    const fn advice(self) -> &'static str {
        match self {
            Self::Requests => "wait for the answers to earlier requests, or cancel a call",
            Self::Streams => "close one",
            Self::UnreadBytes => "read the answers that wait on your connections, or close those",
            Self::StoredBytesPerHour => "wait, or send less: each copy of a broadcast counts",
            Self::Rows => {
                "end tasks (TaskCancel, `svc task cancel`), sessions (end_session) and MCP sessions (DELETE /mcp), remove \
                 peers (DELETE /v1/peers/{id}), subscriptions (resources/unsubscribe) and memories (delete_memory); \
                 messages count until their receivers acknowledge them"
            }
        }
    }

    /// The text of a refusal: the request would go beyond `bound`, while `used` is taken.
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
    pub const fn bound(&self, kind: BudgetKind) -> u64 {
        self.0[kind.index()]
    }

    /// Sets the bound of a kind.
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
