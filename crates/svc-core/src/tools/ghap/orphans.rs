//! Tools for orphaned records.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{GhapId, NOT_BLANK, Timestamp, limits};

use super::records::{GhapWritten, SessionInput};
use crate::tools::{Call, Failure, Tool, sessions::acting_session};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new("get_orphaned_ghap", ORPHAN, get_orphan)
            .title("Look for a record left open")
            .read_only(),
        Tool::new("adopt_ghap", ADOPT, adopt).title("Take over a record left open"),
        Tool::new("abandon_orphan", ABANDON, abandon).title("End a record left open"),
    ]
}

const ORPHAN: &str = "\
Looks for a record that another session of this project left open: a session that is over, or was not heard of for half an \
hour. adopt_ghap takes it over, abandon_orphan ends it.";

/// A record that was left open.
#[derive(Default, Serialize, JsonSchema)]
struct OrphanOutput {
    has_orphan: bool,
    /// The record.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<GhapId>,
    /// The session that left it.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hypothesis: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prediction: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Timestamp>,
    /// How many there are besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<usize>,
}

async fn get_orphan(call: Call, input: SessionInput) -> Result<OrphanOutput, Failure> {
    let acting = acting_session(&call, input.session_id.as_deref(), None).await?;
    let orphans = call.services.journal.orphans(&call.caller, &acting).await?;
    let more = orphans.len().checked_sub(1);
    let orphan = orphans.into_iter().next();
    let Some(ghap) = orphan else { return Ok(OrphanOutput::default()) };
    Ok(OrphanOutput {
        has_orphan: true,
        id: Some(ghap.id),
        session_id: Some(ghap.session_id),
        goal: Some(ghap.goal),
        hypothesis: Some(ghap.hypothesis),
        action: Some(ghap.action),
        prediction: Some(ghap.prediction),
        created_at: Some(ghap.created_at),
        more,
    })
}

const ADOPT: &str = "\
Takes over a record that another session of this project left open: it is your active record from then on, with its id and \
its history.";

/// Which record.
#[derive(Deserialize, JsonSchema)]
struct AdoptInput {
    /// The record; by default the one changed last.
    #[schemars(regex(pattern = NOT_BLANK))]
    id: Option<String>,
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

async fn adopt(call: Call, input: AdoptInput) -> Result<GhapWritten, Failure> {
    let acting = acting_session(&call, input.session_id.as_deref(), None).await?;
    let (ghap, from) =
        call.services.journal.adopt_ghap(&call.caller, acting, input.id.as_deref()).await?;
    Ok(GhapWritten::adopted(ghap, from))
}

const ABANDON: &str =
    "Ends a record that another session of this project left open, without a verdict.";

/// Which record, and why.
#[derive(Deserialize, JsonSchema)]
struct AbandonInput {
    /// Why there will be no result.
    #[schemars(length(max = limits::GHAP_LONG_TEXT_CHARS), regex(pattern = NOT_BLANK))]
    reason: String,
    /// The record; by default the one changed last.
    #[schemars(regex(pattern = NOT_BLANK))]
    id: Option<String>,
    /// Session id; selects the project.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

async fn abandon(call: Call, input: AbandonInput) -> Result<GhapWritten, Failure> {
    let acting = acting_session(&call, input.session_id.as_deref(), None).await?;
    let id = input.id.as_deref();
    Ok(GhapWritten::from_ghap(
        call.services.journal.abandon_orphan(&call.caller, acting, id, input.reason).await?,
    ))
}
