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
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Ghap {
    /// Its id.
    pub id: GhapId,
    /// Whose it is.
    pub session_id: String,
    /// The project that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// How often hypothesis, action or prediction were changed, and once for the first.
    pub iteration_count: i64,
    /// Where it stands.
    pub status: GhapStatus,
    /// How it ended; `None` exactly while its status is active.
    #[serde(flatten)]
    pub end: Option<Box<GhapEnd>>,
    /// Confirmed records of other sessions that it has helped to.
    pub confirmed_again: i64,
    /// When it began.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
}

/// How a record ended.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct GhapEnd {
    /// What was seen. Imported records may lack it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// What was not expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub surprise: Option<String>,
    /// Why the prediction was wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_cause: Option<RootCause>,
    /// What is to be remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lesson: Option<Lesson>,
    /// How far it can be trusted.
    #[serde(rename = "confidence_tier")]
    pub tier: Tier,
    /// The outcome that the verdict rests on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome_id: Option<OutcomeId>,
    /// When it ended.
    #[serde(rename = "resolved_at")]
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
            status: GhapStatus::Active,
            end: None,
            confirmed_again: 0,
            created_at: at,
            updated_at: at,
        }
    }

    /// Applies a change, except its note, which is stored separately.
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

    /// Ends the record. The tier follows from the verdict, its evidence, and the hypothesis.
    pub fn resolve(&mut self, resolution: Resolution, at: Timestamp) {
        let cites_outcome = resolution.outcome_id.is_some();
        self.status = resolution.verdict.status();
        self.end = Some(Box::new(GhapEnd {
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

    pub fn result(&self) -> Option<&str> {
        self.end.as_ref()?.result.as_deref()
    }

    pub fn surprise(&self) -> Option<&str> {
        self.end.as_ref()?.surprise.as_deref()
    }

    pub fn root_cause(&self) -> Option<&RootCause> {
        self.end.as_ref()?.root_cause.as_ref()
    }

    pub fn lesson(&self) -> Option<&Lesson> {
        self.end.as_ref()?.lesson.as_ref()
    }

    pub fn tier(&self) -> Option<Tier> {
        self.end.as_ref().map(|end| end.tier)
    }

    pub fn resolved_at(&self) -> Option<Timestamp> {
        self.end.as_ref().map(|end| end.at)
    }
}

impl Resolution {
    /// The end of a record whose prediction will never be checked.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_serialises_flat_in_this_order() {
        let draft = GhapDraft {
            domain: Domain::Testing,
            strategy: Strategy::AskUser,
            goal: "g".to_owned(),
            hypothesis: "h".to_owned(),
            action: "a".to_owned(),
            prediction: "p".to_owned(),
            probability: Some(0.5),
        };
        let id = GhapId::from("ghap_1".to_owned());
        let mut ghap = Ghap::begin(id, "s".to_owned(), None, draft, Timestamp::from_millis(0));
        let active = concat!(
            r#"{"id":"ghap_1","session_id":"s","domain":"testing","strategy":"ask-user","goal":"g","#,
            r#""hypothesis":"h","action":"a","prediction":"p","probability":0.5,"iteration_count":1,"#,
            r#""status":"active","confirmed_again":0,"created_at":"1970-01-01T00:00:00.000Z","#,
            r#""updated_at":"1970-01-01T00:00:00.000Z"}"#,
        );
        assert_eq!(serde_json::to_string(&ghap).unwrap(), active);
        let resolution = Resolution {
            verdict: Verdict::Confirmed,
            result: "r".to_owned(),
            surprise: None,
            root_cause: None,
            lesson: None,
            outcome_id: Some("out_1".to_owned()),
        };
        ghap.resolve(resolution, Timestamp::from_millis(1));
        let resolved = concat!(
            r#"{"id":"ghap_1","session_id":"s","domain":"testing","strategy":"ask-user","goal":"g","#,
            r#""hypothesis":"h","action":"a","prediction":"p","probability":0.5,"iteration_count":1,"#,
            r#""status":"confirmed","result":"r","confidence_tier":"gold","outcome_id":"out_1","#,
            r#""resolved_at":"1970-01-01T00:00:00.001Z","confirmed_again":0,"#,
            r#""created_at":"1970-01-01T00:00:00.000Z","updated_at":"1970-01-01T00:00:00.001Z"}"#,
        );
        assert_eq!(serde_json::to_string(&ghap).unwrap(), resolved);
    }
}
