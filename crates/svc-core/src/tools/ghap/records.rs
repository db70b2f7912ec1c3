//! Tools for the session's own record: start, update and end.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    GhapId, NOT_BLANK, Timestamp,
    journal::{Domain, Ghap, GhapChange, GhapDraft, Resolution, Strategy, Tier},
};

use crate::tools::{Call, Failure, Tool, sessions::acting_session};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new("start_ghap", START, start).title("Begin a record"),
        Tool::new("update_ghap", UPDATE, update).title("Change the active record"),
        Tool::new("resolve_ghap", RESOLVE, resolve).title("End the active record"),
        Tool::new("get_active_ghap", ACTIVE, get_active)
            .title("Look at the active record")
            .read_only(),
    ]
}

const START: &str = "\
Begins a GHAP record of what you are about to try, where you do not know the cause or it may not work.

The hypothesis can turn out wrong; the prediction is what will be seen if it is right. A session has one active record.";

/// What is about to be tried.
#[derive(Deserialize, JsonSchema)]
struct StartInput {
    #[serde(flatten)]
    draft: GhapDraft,
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

/// A record was written. Its texts are not repeated.
#[derive(Serialize, JsonSchema)]
pub(super) struct GhapWritten {
    ok: bool,
    id: GhapId,
    /// How far it can be trusted, once it is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence_tier: Option<Tier>,
    /// The session that left it open.
    #[serde(skip_serializing_if = "Option::is_none")]
    adopted_from: Option<String>,
}

impl GhapWritten {
    pub(super) fn from_ghap(ghap: Ghap) -> Self {
        Self { ok: true, confidence_tier: ghap.tier(), id: ghap.id, adopted_from: None }
    }

    pub(super) fn adopted(ghap: Ghap, from: String) -> Self {
        Self { adopted_from: Some(from), ..Self::from_ghap(ghap) }
    }
}

async fn start(call: Call, input: StartInput) -> Result<GhapWritten, Failure> {
    let acting = acting_session(&call, input.session_id.as_deref(), None).await?;
    let ghap = call.services.journal.start_ghap(&call.caller, acting, input.draft).await?;
    Ok(GhapWritten::from_ghap(ghap))
}

const UPDATE: &str = "\
Changes the active record: what you believe now, what you do about it, what you expect. What it said before is kept. Give \
only what changes; a note is added to the others.";

/// What changes.
#[derive(Deserialize, JsonSchema)]
struct UpdateInput {
    #[serde(flatten)]
    change: GhapChange,
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

/// A record was changed.
#[derive(Serialize, JsonSchema)]
struct GhapUpdated {
    success: bool,
    iteration_count: i64,
}

async fn update(call: Call, input: UpdateInput) -> Result<GhapUpdated, Failure> {
    let acting = acting_session(&call, input.session_id.as_deref(), None).await?;
    let ghap = call.services.journal.update_ghap(&call.caller, acting, input.change).await?;
    Ok(GhapUpdated { success: true, iteration_count: ghap.iteration_count })
}

const RESOLVE: &str = "\
Ends the active record: confirmed if what you predicted came, falsified (with surprise and root_cause) if it did not, else \
abandoned.";

/// How it ended.
#[derive(Deserialize, JsonSchema)]
struct ResolveInput {
    #[serde(flatten)]
    resolution: Resolution,
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

async fn resolve(call: Call, input: ResolveInput) -> Result<GhapWritten, Failure> {
    let acting = acting_session(&call, input.session_id.as_deref(), None).await?;
    let ghap = call.services.journal.resolve_ghap(&call.caller, acting, input.resolution).await?;
    Ok(GhapWritten::from_ghap(ghap))
}

const ACTIVE: &str = "Returns the active record of a session, or says that there is none.";

/// Whose record.
#[derive(Deserialize, JsonSchema)]
pub(super) struct SessionInput {
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    pub(super) session_id: Option<String>,
}

/// The active record. Without one, everything but `has_active` is null.
#[derive(Serialize, JsonSchema)]
struct ActiveGhap {
    has_active: bool,
    id: Option<GhapId>,
    domain: Option<Domain>,
    strategy: Option<Strategy>,
    goal: Option<String>,
    hypothesis: Option<String>,
    action: Option<String>,
    prediction: Option<String>,
    probability: Option<f64>,
    iteration_count: Option<i64>,
    created_at: Option<Timestamp>,
}

async fn get_active(call: Call, input: SessionInput) -> Result<ActiveGhap, Failure> {
    let acting = acting_session(&call, input.session_id.as_deref(), None).await?;
    let ghap = call.services.journal.active_ghap(&acting).await?;
    let ghap = ghap.as_ref();
    Ok(ActiveGhap {
        has_active: ghap.is_some(),
        id: ghap.map(|ghap| ghap.id.clone()),
        domain: ghap.map(|ghap| ghap.domain),
        strategy: ghap.map(|ghap| ghap.strategy),
        goal: ghap.map(|ghap| ghap.goal.clone()),
        hypothesis: ghap.map(|ghap| ghap.hypothesis.clone()),
        action: ghap.map(|ghap| ghap.action.clone()),
        prediction: ghap.map(|ghap| ghap.prediction.clone()),
        probability: ghap.and_then(|ghap| ghap.probability),
        iteration_count: ghap.map(|ghap| ghap.iteration_count),
        created_at: ghap.map(|ghap| ghap.created_at),
    })
}
