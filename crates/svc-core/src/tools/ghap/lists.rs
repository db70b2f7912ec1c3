//! Tools for one record with its history, and for lists of resolved records.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    GhapFilter, GhapId, NOT_BLANK, Timestamp,
    journal::{Domain, GhapStatus, Strategy, Tier, Verdict},
    quote,
};

use crate::{
    service::{Listed, Page, PageBounds, journal::GhapDetail},
    tools::{Call, Failure, Tool, ToolError},
};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new("get_ghap", GET, get).title("Look at a record").read_only(),
        Tool::new("list_ghap_entries", LIST, list).title("List records").read_only().heavy(),
    ]
}

const GET: &str = "Returns a record with its earlier versions and its notes.";

/// Which record.
#[derive(Deserialize, JsonSchema)]
struct GetInput {
    /// The record.
    #[schemars(regex(pattern = NOT_BLANK))]
    id: String,
}

async fn get(call: Call, input: GetInput) -> Result<GhapDetail, Failure> {
    Ok(call.services.journal.ghap(&call.caller, &input.id).await?)
}

const LIST: &str =
    "Lists resolved records, the latest first. get_ghap returns one with all its texts.";

/// Which records.
#[derive(Deserialize, JsonSchema)]
struct ListInput {
    /// How many at most.
    #[schemars(range(min = 1, max = 100), extend("default" = 20))]
    limit: Option<u32>,
    /// Only this domain.
    domain: Option<Domain>,
    /// Only with this verdict.
    outcome: Option<Verdict>,
    /// Only those that ended since this time (RFC 3339, or a date).
    #[schemars(regex(pattern = NOT_BLANK))]
    since: Option<String>,
    /// Only this project.
    project: Option<String>,
    /// The `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A record in a list.
#[derive(Serialize, JsonSchema)]
struct GhapRow {
    id: GhapId,
    domain: Domain,
    strategy: Strategy,
    /// The beginning of its goal.
    goal: String,
    outcome_status: GhapStatus,
    confidence_tier: Option<Tier>,
    iteration_count: i64,
    /// Confirmed records of other sessions that it has helped to.
    confirmed_again: i64,
    created_at: Timestamp,
    /// When it ended.
    captured_at: Option<Timestamp>,
}

impl Listed for GhapRow {
    const NAME: &'static str = "results";
}

async fn list(call: Call, input: ListInput) -> Result<Page<GhapRow>, Failure> {
    let since = input.since.as_deref().map(time_or_date).transpose()?;
    let filter = GhapFilter {
        domain: input.domain,
        status: input.outcome.map(Verdict::status),
        project: input.project,
        session_id: None,
        // Active records have no end, so the earliest time leaves them out.
        since: since.or(Some(Timestamp::from_millis(i64::MIN))),
    };
    let limit = input.limit.unwrap_or(20);
    let page = PageBounds::new(input.cursor.as_deref(), Some(limit)).for_model();
    let page = call.services.journal.ghaps(&call.caller, &filter, page).await?;
    Ok(page.map(|ghap| GhapRow {
        goal: quote::excerpt(&ghap.goal, 200),
        outcome_status: ghap.status,
        confidence_tier: ghap.tier(),
        captured_at: ghap.resolved_at(),
        id: ghap.id,
        domain: ghap.domain,
        strategy: ghap.strategy,
        iteration_count: ghap.iteration_count,
        confirmed_again: ghap.confirmed_again,
        created_at: ghap.created_at,
    }))
}

/// RFC 3339, or a date, which is its beginning in UTC.
fn time_or_date(text: &str) -> Result<Timestamp, ToolError> {
    let day = || Timestamp::parse(&format!("{text}T00:00:00Z"));
    Timestamp::parse(text).or_else(day).ok_or_else(|| {
        ToolError::invalid(
            "since",
            "since: must be an RFC 3339 time such as 2026-01-31T12:00:00Z, or a date",
        )
    })
}
