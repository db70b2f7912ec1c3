//! Records of attempts: GHAP stands for goal, hypothesis, action, prediction.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    tier::tier,
    vocabulary::{Domain, GhapStatus, RootCauseCategory, Strategy, Tier, Verdict},
};
use crate::{GhapId, OutcomeId, Timestamp, limits};

const TEXT_CHARS: usize = limits::GHAP_TEXT_CHARS;
const LONG_TEXT_CHARS: usize = limits::GHAP_LONG_TEXT_CHARS;

/// A record of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Ghap {
    /// Its id.
    pub id: GhapId,
    /// Whose it is.
    pub session_id: String,
    /// Root of the project that it is about.
    pub project: Option<String>,
    /// What it is about.
    pub domain: Domain,
    /// How it goes about it.
    pub strategy: Strategy,
    /// What is to be reached.
    pub goal: String,
    /// What is believed.
    pub hypothesis: String,
    /// What is done about it.
    pub action: String,
    /// What will be seen if the belief is right.
    pub prediction: String,
    /// How sure its maker is of the prediction, 0 to 1.
    pub probability: Option<f64>,
    /// How often hypothesis, action or prediction were changed, and once for the first.
    pub iteration_count: i64,
    /// Whether it is over, and how it ended.
    pub state: GhapState,
    /// Confirmed records of other sessions that it has helped to.
    pub confirmed_again: i64,
    /// When it began.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// Whether a record is over. What only an ended record has stands in here.
#[derive(Debug, Clone, PartialEq)]
pub enum GhapState {
    /// A session works on it.
    Active,
    /// It has ended.
    Resolved(Box<ResolvedGhap>),
}

/// How a record ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedGhap {
    /// The verdict.
    pub verdict: Verdict,
    /// What was seen. Imported records may lack it.
    pub result: Option<String>,
    /// What was not expected.
    pub surprise: Option<String>,
    /// Why the prediction was wrong.
    pub root_cause: Option<RootCause>,
    /// What is to be remembered.
    pub lesson: Option<Lesson>,
    /// How far the record can be trusted.
    pub tier: Tier,
    /// The outcome that the verdict rests on.
    pub outcome_id: Option<OutcomeId>,
    /// When it ended.
    pub at: Timestamp,
}

/// What a session says when it begins a record.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct GhapDraft {
    /// What it is about.
    pub domain: Domain,
    /// How you go about it.
    pub strategy: Strategy,
    /// What is to be reached.
    #[schemars(length(max = TEXT_CHARS), regex(pattern = r"\S"))]
    pub goal: String,
    /// What you believe, and why.
    #[schemars(length(max = TEXT_CHARS), regex(pattern = r"\S"))]
    pub hypothesis: String,
    /// What you do about it.
    #[schemars(length(max = TEXT_CHARS), regex(pattern = r"\S"))]
    pub action: String,
    /// What will be seen if the hypothesis is right.
    #[schemars(length(max = TEXT_CHARS), regex(pattern = r"\S"))]
    pub prediction: String,
    /// How sure you are of the prediction.
    #[schemars(range(min = 0, max = 1))]
    pub probability: Option<f64>,
}

/// A change of a record. A field that is `None` stays as it is.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct GhapChange {
    /// What it is about.
    pub domain: Option<Domain>,
    /// How you go about it now.
    pub strategy: Option<Strategy>,
    /// What is to be reached.
    #[schemars(length(max = TEXT_CHARS), regex(pattern = r"\S"))]
    pub goal: Option<String>,
    /// What you believe now.
    #[schemars(length(max = TEXT_CHARS), regex(pattern = r"\S"))]
    pub hypothesis: Option<String>,
    /// What you do about it now.
    #[schemars(length(max = TEXT_CHARS), regex(pattern = r"\S"))]
    pub action: Option<String>,
    /// What will be seen now if the hypothesis is right.
    #[schemars(length(max = TEXT_CHARS), regex(pattern = r"\S"))]
    pub prediction: Option<String>,
    /// How sure you are of the prediction.
    #[schemars(range(min = 0, max = 1))]
    pub probability: Option<f64>,
    /// Something to keep with it.
    #[schemars(length(max = LONG_TEXT_CHARS), regex(pattern = r"\S"))]
    pub note: Option<String>,
}

/// What a session says when it ends a record.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct Resolution {
    /// The verdict.
    #[serde(rename = "status")]
    pub verdict: Verdict,
    /// What was seen.
    #[schemars(length(max = LONG_TEXT_CHARS), regex(pattern = r"\S"))]
    pub result: String,
    /// What was not expected.
    #[schemars(length(max = LONG_TEXT_CHARS), regex(pattern = r"\S"))]
    pub surprise: Option<String>,
    /// Why the prediction was wrong.
    pub root_cause: Option<RootCause>,
    /// What is to be remembered.
    pub lesson: Option<Lesson>,
    /// The outcome that the verdict rests on, as `record_outcome` gave it.
    #[schemars(regex(pattern = r"\S"))]
    pub outcome_id: Option<String>,
}

/// Why a prediction was wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RootCause {
    /// In a word.
    pub category: RootCauseCategory,
    /// In a sentence.
    #[schemars(length(min = 1, max = 2000), regex(pattern = r"\S"))]
    pub description: String,
}

/// What is to be remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lesson {
    /// What worked in the end.
    #[schemars(length(min = 1, max = 2000), regex(pattern = r"\S"))]
    pub what_worked: String,
    /// What holds beyond this case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2000))]
    pub takeaway: Option<String>,
}

/// What a record said before it was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Iteration {
    /// Which.
    pub iteration: i64,
    /// What was believed.
    pub hypothesis: String,
    /// What was done about it.
    pub action: String,
    /// What was predicted.
    pub prediction: String,
    /// When it was changed.
    pub at: Timestamp,
}

impl Ghap {
    /// An active record, as it begins.
    pub fn begin(
        id: GhapId,
        session_id: String,
        project: Option<String>,
        draft: GhapDraft,
        at: Timestamp,
    ) -> Self {
        Self {
            id,
            session_id,
            project,
            domain: draft.domain,
            strategy: draft.strategy,
            goal: draft.goal,
            hypothesis: draft.hypothesis,
            action: draft.action,
            prediction: draft.prediction,
            probability: draft.probability,
            iteration_count: 1,
            state: GhapState::Active,
            confirmed_again: 0,
            created_at: at,
            updated_at: at,
        }
    }

    /// Takes over what a change says; a note is no part of the record itself.
    pub fn apply(&mut self, change: GhapChange) {
        self.domain = change.domain.unwrap_or(self.domain);
        self.strategy = change.strategy.unwrap_or(self.strategy);
        for (text, new) in [
            (&mut self.goal, change.goal),
            (&mut self.hypothesis, change.hypothesis),
            (&mut self.action, change.action),
            (&mut self.prediction, change.prediction),
        ] {
            if let Some(new) = new {
                *text = new;
            }
        }
        self.probability = change.probability.or(self.probability);
    }

    /// Ends the record. Its tier follows from the verdict, from what that rests on, and from the hypothesis.
    pub fn resolve(&mut self, resolution: Resolution, at: Timestamp) {
        let cites_outcome = resolution.outcome_id.is_some();
        self.state = GhapState::Resolved(Box::new(ResolvedGhap {
            verdict: resolution.verdict,
            result: Some(resolution.result),
            surprise: resolution.surprise,
            root_cause: resolution.root_cause,
            lesson: resolution.lesson,
            tier: tier(resolution.verdict, cites_outcome, &self.goal, &self.hypothesis),
            outcome_id: resolution.outcome_id.map(OutcomeId::from),
            at,
        }));
        self.updated_at = at;
    }

    /// The state in a word.
    pub fn status(&self) -> GhapStatus {
        self.resolved().map_or(GhapStatus::Active, |resolved| resolved.verdict.status())
    }

    /// How it ended; `None` for an active record.
    pub fn resolved(&self) -> Option<&ResolvedGhap> {
        match &self.state {
            GhapState::Active => None,
            GhapState::Resolved(resolved) => Some(resolved),
        }
    }

    /// What was seen.
    pub fn result(&self) -> Option<&str> {
        self.resolved()?.result.as_deref()
    }

    /// What was not expected.
    pub fn surprise(&self) -> Option<&str> {
        self.resolved()?.surprise.as_deref()
    }

    /// Why the prediction was wrong.
    pub fn root_cause(&self) -> Option<&RootCause> {
        self.resolved()?.root_cause.as_ref()
    }

    /// What is to be remembered.
    pub fn lesson(&self) -> Option<&Lesson> {
        self.resolved()?.lesson.as_ref()
    }

    /// How far it can be trusted.
    pub fn tier(&self) -> Option<Tier> {
        self.resolved().map(|resolved| resolved.tier)
    }

    /// When it ended.
    pub fn resolved_at(&self) -> Option<Timestamp> {
        self.resolved().map(|resolved| resolved.at)
    }
}

impl GhapState {
    /// How the record ended; `None` for an active one.
    pub fn into_resolved(self) -> Option<ResolvedGhap> {
        match self {
            Self::Active => None,
            Self::Resolved(resolved) => Some(*resolved),
        }
    }
}

impl Resolution {
    /// The end of a record of which nobody will know whether it was right.
    pub fn abandoned(reason: String) -> Self {
        Self {
            verdict: Verdict::Abandoned,
            result: reason,
            surprise: None,
            root_cause: None,
            lesson: None,
            outcome_id: None,
        }
    }
}
