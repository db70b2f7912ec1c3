//! The journal: sessions of clients, what they observed, and records of their attempts (`record`).

use schemars::JsonSchema;
use serde::Serialize;
use svc_outcome::RunResult;

use crate::{OutcomeId, Timestamp, words::words};

mod record;

pub use record::{
    Ghap, GhapChange, GhapDraft, GhapEnd, Iteration, Lesson, Resolution, RootCause, is_vague, tier,
};

words! {
    /// How a session began.
    pub enum SessionSource {
        /// Afresh.
        Startup = "startup",
        /// From where it was.
        Resume = "resume",
        /// Again from the beginning, as the person asked.
        Clear = "clear",
        /// With its memory cut down.
        Compact = "compact",
        /// As a branch of another.
        Fork = "fork",
    }

    /// What an attempt is about.
    pub enum Domain {
        /// Finding a fault.
        Debugging = "debugging",
        /// Changing form and not behaviour.
        Refactoring = "refactoring",
        /// Something new.
        Feature = "feature",
        /// Tests.
        Testing = "testing",
        /// Settings and surroundings.
        Configuration = "configuration",
        /// Text for people.
        Documentation = "documentation",
        /// Speed and size.
        Performance = "performance",
        /// Who may do what.
        Security = "security",
        /// Systems that meet.
        Integration = "integration",
    }

    /// How an attempt goes about it.
    pub enum Strategy {
        /// Ruling out one cause after the other.
        SystematicElimination = "systematic-elimination",
        /// Trying.
        TrialAndError = "trial-and-error",
        /// Reading first.
        ResearchFirst = "research-first",
        /// Halving the problem.
        DivideAndConquer = "divide-and-conquer",
        /// Asking why, until nothing is left to ask.
        RootCauseAnalysis = "root-cause-analysis",
        /// As somebody did before.
        CopyFromSimilar = "copy-from-similar",
        /// Looking whether what is taken for granted holds.
        CheckAssumptions = "check-assumptions",
        /// Reading what the error says.
        ReadTheError = "read-the-error",
        /// Asking a person.
        AskUser = "ask-user",
    }

    /// Where a record stands.
    pub enum GhapStatus {
        /// Somebody is at it.
        Active = "active",
        /// What was predicted came.
        Confirmed = "confirmed",
        /// It did not.
        Falsified = "falsified",
        /// Nobody knows.
        Abandoned = "abandoned",
    }

    /// How a record may end.
    pub enum Verdict {
        /// What was predicted came.
        Confirmed = "confirmed",
        /// It did not.
        Falsified = "falsified",
        /// Nobody knows.
        Abandoned = "abandoned",
    }

    /// Why a prediction was wrong.
    pub enum RootCauseCategory {
        /// Something was taken for granted.
        WrongAssumption = "wrong-assumption",
        /// Something was not known.
        MissingKnowledge = "missing-knowledge",
        /// Something was not seen.
        Oversight = "oversight",
        /// The surroundings were not as they should be.
        EnvironmentIssue = "environment-issue",
        /// What was seen pointed elsewhere.
        MisleadingSymptom = "misleading-symptom",
        /// Half of it was done.
        IncompleteFix = "incomplete-fix",
        /// It was the wrong place.
        WrongScope = "wrong-scope",
        /// Tests got in each other's way.
        TestIsolation = "test-isolation",
        /// It came too early or too late.
        TimingIssue = "timing-issue",
    }

    /// How far a record can be trusted.
    pub enum Tier {
        /// The verdict rests on an outcome that was recorded.
        Gold = "gold",
        /// The verdict is its maker's word.
        Silver = "silver",
        /// The hypothesis was too vague to be wrong.
        Bronze = "bronze",
        /// There is no verdict.
        Abandoned = "abandoned",
    }

    /// Result of something that was seen to happen.
    pub enum OutcomeVerdict {
        /// It went well.
        Pass = "pass",
        /// It went badly.
        Fail = "fail",
        /// It cannot be told.
        Unknown = "unknown",
    }
}

impl Verdict {
    /// The state of a record that ends so.
    pub const fn status(self) -> GhapStatus {
        match self {
            Self::Confirmed => GhapStatus::Confirmed,
            Self::Falsified => GhapStatus::Falsified,
            Self::Abandoned => GhapStatus::Abandoned,
        }
    }
}

/// A client's session.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Session {
    /// The client's own id.
    pub session_id: String,
    /// The project that it works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Which program it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// How it last began.
    pub source: SessionSource,
    /// When it first began.
    pub started_at: Timestamp,
    /// When it was last heard of.
    pub last_seen_at: Timestamp,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<String>,
    /// Tool calls, those of sub-agents left out.
    pub tool_calls: i64,
    /// Tool calls since the last check-in, update of the record, or reset.
    pub tool_count: i64,
}

/// How often a tool was called in a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ToolUse {
    /// The tool.
    pub tool_name: String,
    /// The sub-agent that called it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// How often.
    pub count: i64,
    /// When last.
    pub last_at: Timestamp,
}

/// Something that was seen to happen, such as a test run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Outcome {
    /// Its id, for a verdict to rest on.
    pub outcome_id: OutcomeId,
    /// Where it was seen.
    pub session_id: String,
    /// What was run.
    pub command: String,
    /// Result of the command.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_have_the_same_spelling_in_rows_and_on_the_wire() {
        assert_eq!(Strategy::ReadTheError.to_string(), "read-the-error");
        assert_eq!(RootCauseCategory::TimingIssue.to_string(), "timing-issue");
        assert_eq!(SessionSource::Startup.to_string(), "startup");
        assert_eq!(
            (Domain::ALL.len(), Strategy::ALL.len(), RootCauseCategory::ALL.len()),
            (9, 9, 9)
        );
    }
}
