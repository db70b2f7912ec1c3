//! The form of a record on the wire: all that it says on one level.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

use super::{
    record::{Ghap, Lesson, RootCause},
    vocabulary::{Domain, GhapStatus, Strategy, Tier},
};
use crate::{GhapId, OutcomeId, Timestamp};

/// A record of an attempt.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Ghap")]
struct GhapWire<'a> {
    /// Its id.
    id: &'a GhapId,
    /// Whose it is.
    session_id: &'a str,
    /// Root of the project that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    project: Option<&'a str>,
    /// What it is about.
    domain: Domain,
    /// How it goes about it.
    strategy: Strategy,
    /// What is to be reached.
    goal: &'a str,
    /// What is believed.
    hypothesis: &'a str,
    /// What is done about it.
    action: &'a str,
    /// What will be seen if the belief is right.
    prediction: &'a str,
    /// How sure its maker is of the prediction, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    probability: Option<f64>,
    /// How often hypothesis, action or prediction were changed, and once for the first.
    iteration_count: i64,
    /// Where it stands.
    status: GhapStatus,
    /// What was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a str>,
    /// What was not expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    surprise: Option<&'a str>,
    /// Why the prediction was wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    root_cause: Option<&'a RootCause>,
    /// What is to be remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    lesson: Option<&'a Lesson>,
    /// How far it can be trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence_tier: Option<Tier>,
    /// The outcome that the verdict rests on.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome_id: Option<&'a OutcomeId>,
    /// Confirmed records of other sessions that it has helped to.
    confirmed_again: i64,
    /// When it began.
    created_at: Timestamp,
    /// When it was last changed.
    updated_at: Timestamp,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved_at: Option<Timestamp>,
}

impl<'a> From<&'a Ghap> for GhapWire<'a> {
    fn from(ghap: &'a Ghap) -> Self {
        let resolved = ghap.resolved();
        Self {
            id: &ghap.id,
            session_id: &ghap.session_id,
            project: ghap.project.as_deref(),
            domain: ghap.domain,
            strategy: ghap.strategy,
            goal: &ghap.goal,
            hypothesis: &ghap.hypothesis,
            action: &ghap.action,
            prediction: &ghap.prediction,
            probability: ghap.probability,
            iteration_count: ghap.iteration_count,
            status: ghap.status(),
            result: ghap.result(),
            surprise: ghap.surprise(),
            root_cause: ghap.root_cause(),
            lesson: ghap.lesson(),
            confidence_tier: ghap.tier(),
            outcome_id: resolved.and_then(|resolved| resolved.outcome_id.as_ref()),
            confirmed_again: ghap.confirmed_again,
            created_at: ghap.created_at,
            updated_at: ghap.updated_at,
            resolved_at: ghap.resolved_at(),
        }
    }
}

impl Serialize for Ghap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        GhapWire::from(self).serialize(serializer)
    }
}

impl JsonSchema for Ghap {
    fn schema_name() -> Cow<'static, str> {
        GhapWire::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        GhapWire::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        GhapWire::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{GhapDraft, Resolution, Verdict};

    #[test]
    fn a_record_is_written_on_one_level_in_this_order() {
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
            r#""confirmed_again":0,"created_at":"1970-01-01T00:00:00.000Z","#,
            r#""updated_at":"1970-01-01T00:00:00.001Z","resolved_at":"1970-01-01T00:00:00.001Z"}"#,
        );
        assert_eq!(serde_json::to_string(&ghap).unwrap(), resolved);
    }
}
