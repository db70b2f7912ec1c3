//! What the writer remembers of the counters of tool calls.

use std::collections::HashMap;

use svc_model::Timestamp;

/// What the writer knows of counters that it wrote lately. Any other job may change them, and then it knows nothing.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Calls since the last reset, by session and agent.
    pub(super) since: HashMap<(String, String), i64>,
    /// When sessions were last noted as heard of.
    pub(super) seen: HashMap<String, Timestamp>,
}

impl Tally {
    pub(super) fn forget(&mut self) {
        self.since.clear();
        self.seen.clear();
    }

    /// How much it knows.
    pub(super) fn len(&self) -> usize {
        self.since.len()
    }
}
