//! The tool that searches past records.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    GhapId, NOT_BLANK, Timestamp,
    journal::{Domain, Ghap, GhapStatus, Lesson, RootCause, Strategy, Tier, Verdict},
    limits,
};
use svc_store::{GhapPart, ItemVersion, SearchFilter};

use crate::{
    service::search::ExperienceQuery,
    tools::{Call, Failure, Tool, sessions::acting_session},
};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new("search_experiences", SEARCH, search)
            .title("Search what was tried")
            .read_only()
            .heavy(),
    ]
}

const SEARCH: &str = "\
Searches what was tried before, here and in other projects, by symptom, error text or name. Look here before you debug.";

/// What is looked for.
#[derive(Deserialize, JsonSchema)]
struct ExperienceSearchInput {
    /// Any text: a question, an error, code.
    #[schemars(length(max = limits::SEARCH_QUERY_CHARS))]
    query: String,
    /// Only this domain.
    domain: Option<Domain>,
    /// Only with this verdict.
    outcome: Option<Verdict>,
    /// Only records with this field.
    #[schemars(extend("default" = "full"))]
    axis: Option<SearchAxis>,
    /// How many at most.
    #[schemars(range(min = 1, max = 50), extend("default" = 10))]
    limit: Option<u32>,
    /// Session id; your own by default. Records of its project come first.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

/// What a search is after.
#[derive(Clone, Copy, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SearchAxis {
    /// All that a record says.
    #[default]
    Full,
    /// How it was gone about, which every record says.
    Strategy,
    /// What was unexpected.
    Surprise,
    /// Why a prediction was wrong.
    RootCause,
}

impl SearchAxis {
    fn part(self) -> Option<GhapPart> {
        match self {
            Self::Full | Self::Strategy => None,
            Self::Surprise => Some(GhapPart::Surprise),
            Self::RootCause => Some(GhapPart::RootCause),
        }
    }
}

/// Records that were found.
#[derive(Serialize, JsonSchema)]
struct Experiences {
    results: Vec<Experience>,
    count: usize,
}

/// A record that was found.
#[derive(Serialize, JsonSchema)]
struct Experience {
    id: GhapId,
    /// The same.
    ghap_id: GhapId,
    /// What was searched for.
    axis: SearchAxis,
    session_id: String,
    /// The project that it is about.
    project: Option<String>,
    domain: Domain,
    strategy: Strategy,
    goal: String,
    hypothesis: String,
    action: String,
    prediction: String,
    /// How sure its maker was of the prediction.
    probability: Option<f64>,
    iteration_count: i64,
    outcome_status: GhapStatus,
    /// What happened.
    outcome_result: Option<String>,
    /// What was unexpected.
    surprise: Option<String>,
    /// Why the prediction was wrong.
    root_cause: Option<RootCause>,
    /// What to remember.
    lesson: Option<Lesson>,
    /// How far it can be trusted.
    confidence_tier: Option<Tier>,
    /// How often others found it to be so.
    confirmed_again: i64,
    created_at: Timestamp,
    /// When it ended.
    captured_at: Option<Timestamp>,
    /// How well it fits; comparable within one answer.
    score: f64,
}

impl Experience {
    fn new(ghap: Ghap, axis: SearchAxis, score: f64) -> Self {
        let outcome_status = ghap.status;
        let resolved = ghap.end;
        let (confidence_tier, captured_at) =
            resolved.as_ref().map(|resolved| (resolved.tier, resolved.at)).unzip();
        let (outcome_result, surprise, root_cause, lesson) = resolved
            .map_or((None, None, None, None), |resolved| {
                (resolved.result, resolved.surprise, resolved.root_cause, resolved.lesson)
            });
        Self {
            ghap_id: ghap.id.clone(),
            id: ghap.id,
            axis,
            session_id: ghap.session_id,
            project: ghap.project,
            domain: ghap.domain,
            strategy: ghap.strategy,
            goal: ghap.goal,
            hypothesis: ghap.hypothesis,
            action: ghap.action,
            prediction: ghap.prediction,
            probability: ghap.probability,
            iteration_count: ghap.iteration_count,
            outcome_status,
            outcome_result,
            surprise,
            root_cause,
            lesson,
            confidence_tier,
            confirmed_again: ghap.confirmed_again,
            created_at: ghap.created_at,
            captured_at,
            score,
        }
    }
}

async fn search(call: Call, input: ExperienceSearchInput) -> Result<Experiences, Failure> {
    if input.query.trim().is_empty() {
        return Ok(Experiences { results: Vec::new(), count: 0 });
    }
    let axis = input.axis.unwrap_or_default();
    let acting = acting_session(&call, input.session_id.as_deref(), None).await?;
    let project = call.services.team.project_of(&acting).await?;
    let hits = call
        .services
        .search
        .search_ghaps(
            &call.caller,
            &ExperienceQuery {
                prompt: &input.query,
                project: project.as_deref(),
                filter: SearchFilter {
                    domain: input.domain,
                    status: input.outcome.map(Verdict::status),
                    part: axis.part(),
                },
                limit: input.limit.unwrap_or(10) as usize,
                only_relevant: false,
                with_open: false,
            },
        )
        .await?;
    let given = hits.iter().map(|hit| ItemVersion::from(&hit.ghap)).collect();
    call.services.search.note_found(&call.caller, &acting.session_id, given).await;
    let results: Vec<Experience> =
        hits.into_iter().map(|hit| Experience::new(hit.ghap, axis, hit.score)).collect();
    Ok(Experiences { count: results.len(), results })
}
