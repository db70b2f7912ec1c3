//! Enums of the journal, with the same spelling in rows and on the wire.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An enum whose variants are words, with the same spelling in rows and on the wire.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $case:literal { $($(#[$of:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = $case)]
        pub enum $name {
            $($(#[$of])* $variant),+
        }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
        }

        impl $crate::quote::SafeForModels for $name {}

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                // serde defines the spelling.
                self.serialize(f)
            }
        }
    };
}
pub(crate) use words;

words! {
    /// How a session began.
    SessionSource, "snake_case" {
        /// Afresh.
        Startup,
        /// From where it was.
        Resume,
        /// Again from the beginning, as the person asked.
        Clear,
        /// With its memory cut down.
        Compact,
        /// As a branch of another.
        Fork,
    }
}

words! {
    /// What an attempt is about.
    Domain, "kebab-case" {
        /// Finding a fault.
        Debugging,
        /// Changing form and not behaviour.
        Refactoring,
        /// Something new.
        Feature,
        /// Tests.
        Testing,
        /// Settings and surroundings.
        Configuration,
        /// Text for people.
        Documentation,
        /// Speed and size.
        Performance,
        /// Who may do what.
        Security,
        /// Systems that meet.
        Integration,
    }
}

words! {
    /// How an attempt goes about it.
    Strategy, "kebab-case" {
        /// Ruling out one cause after the other.
        SystematicElimination,
        /// Trying.
        TrialAndError,
        /// Reading first.
        ResearchFirst,
        /// Halving the problem.
        DivideAndConquer,
        /// Asking why, until nothing is left to ask.
        RootCauseAnalysis,
        /// As somebody did before.
        CopyFromSimilar,
        /// Looking whether what is taken for granted holds.
        CheckAssumptions,
        /// Reading what the error says.
        ReadTheError,
        /// Asking a person.
        AskUser,
    }
}

words! {
    /// Where a record stands.
    GhapStatus, "snake_case" {
        /// Somebody is at it.
        Active,
        /// What was predicted came.
        Confirmed,
        /// It did not.
        Falsified,
        /// Nobody knows.
        Abandoned,
    }
}

words! {
    /// How a record may end.
    Verdict, "snake_case" {
        /// What was predicted came.
        Confirmed,
        /// It did not.
        Falsified,
        /// Nobody knows.
        Abandoned,
    }
}

words! {
    /// Why a prediction was wrong.
    RootCauseCategory, "kebab-case" {
        /// Something was taken for granted.
        WrongAssumption,
        /// Something was not known.
        MissingKnowledge,
        /// Something was not seen.
        Oversight,
        /// The surroundings were not as they should be.
        EnvironmentIssue,
        /// What was seen pointed elsewhere.
        MisleadingSymptom,
        /// Half of it was done.
        IncompleteFix,
        /// It was the wrong place.
        WrongScope,
        /// Tests got in each other's way.
        TestIsolation,
        /// It came too early or too late.
        TimingIssue,
    }
}

words! {
    /// How far a record can be trusted.
    Tier, "snake_case" {
        /// The verdict rests on an outcome that was recorded.
        Gold,
        /// The verdict is its maker's word.
        Silver,
        /// The hypothesis was too vague to be wrong.
        Bronze,
        /// There is no verdict.
        Abandoned,
    }
}

words! {
    /// What came of something that was seen to happen.
    OutcomeVerdict, "snake_case" {
        /// It went well.
        Pass,
        /// It went badly.
        Fail,
        /// It cannot be told.
        Unknown,
    }
}

impl Verdict {
    /// The state that it leaves a record in.
    pub const fn status(self) -> GhapStatus {
        match self {
            Self::Confirmed => GhapStatus::Confirmed,
            Self::Falsified => GhapStatus::Falsified,
            Self::Abandoned => GhapStatus::Abandoned,
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
