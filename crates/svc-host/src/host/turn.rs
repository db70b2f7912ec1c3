//! Input that waits for an agent, and the turn that it is in.

use svc_model::agent::{TurnEnd, TurnOutcome};

use super::backend::TurnResult;

/// Input whose turn has not begun.
#[derive(Debug)]
pub(super) struct QueuedInput {
    pub(super) input: String,
    pub(super) message_id: String,
    pub(super) from: Option<String>,
}

/// The turn that is under way.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) message_id: Option<String>,
    /// The agent's last words.
    pub(super) last_text: Option<String>,
    /// The text of its last failure.
    pub(super) last_error: Option<String>,
    pub(super) interrupted: bool,
}

impl Turn {
    pub(super) const fn of(message_id: Option<String>) -> Self {
        Self { message_id, last_text: None, last_error: None, interrupted: false }
    }

    /// How it ended: what the vendor said of it, completed by what was seen.
    pub(super) fn finish(self, result: TurnResult) -> TurnEnd {
        let TurnResult { mut outcome, result, error } = result;
        if self.interrupted && outcome != TurnOutcome::Refused {
            outcome = TurnOutcome::Interrupted;
        }
        let error = error
            .or_else(|| (outcome != TurnOutcome::Completed).then_some(self.last_error).flatten());
        TurnEnd { message_id: self.message_id, outcome, result: result.or(self.last_text), error }
    }
}
