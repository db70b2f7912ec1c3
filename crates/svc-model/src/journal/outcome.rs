//! Outcomes: results that a session observed.

use schemars::JsonSchema;
use serde::Serialize;
use svc_outcome::RunResult;

use super::vocabulary::OutcomeVerdict;
use crate::{OutcomeId, Timestamp};

/// Something that was seen to happen, such as a test run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Outcome {
    /// Its id, for a verdict to rest on.
    pub outcome_id: OutcomeId,
    /// Where it was seen.
    pub session_id: String,
    /// What was run.
    pub command: String,
    /// What came of it.
    pub verdict: OutcomeVerdict,
    /// What it said, in short.
    pub summary: String,
    /// When.
    pub at: Timestamp,
}

impl From<RunResult> for OutcomeVerdict {
    fn from(result: RunResult) -> Self {
        match result {
            RunResult::Pass => Self::Pass,
            RunResult::Fail => Self::Fail,
            RunResult::Unknown => Self::Unknown,
        }
    }
}
