//! Records of attempts: goal, hypothesis, action, prediction, and what came of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Call, Failure, Tool, ToolError, schema::NOT_BLANK, sessions::acting_session};
use crate::{
    domain::{
        GhapId, OutcomeId, Timestamp,
        journal::{
            Domain, Ghap, GhapStatus, Iteration, Lesson, OutcomeVerdict, RootCause, Strategy, Tier,
            Verdict,
        },
        limits, quote,
    },
    service::journal::{GhapChange, NewGhap, NewOutcome, Resolution},
    store::{GhapFilter, GhapPart, SearchFilter, SeenItem},
};

pub(super) fn tools() -> Vec<Tool> {
    [
        Tool::new("start_ghap", START, start).title("Begin a record"),
        Tool::new("update_ghap", UPDATE, update).title("Change the active record"),
        Tool::new("resolve_ghap", RESOLVE, resolve).title("End the active record"),
        Tool::new("get_active_ghap", ACTIVE, get_active)
            .title("Look at the active record")
            .read_only(),
        Tool::new("get_ghap", GET, get).title("Look at a record").read_only(),
        Tool::new("list_ghap_entries", LIST, list).title("List records").read_only(),
        Tool::new("get_orphaned_ghap", ORPHAN, get_orphan)
            .title("Look for a record left open")
            .read_only(),
        Tool::new("adopt_ghap", ADOPT, adopt).title("Take over a record left open"),
        Tool::new("abandon_orphan", ABANDON, abandon).title("End a record left open"),
        Tool::new("search_experiences", SEARCH, search).title("Search what was tried").read_only(),
        Tool::new("record_outcome", OUTCOME, record_outcome).title("Record what came of something"),
        Tool::new("ghap_calibration", CALIBRATION, calibrate)
            .title("How true predictions came")
            .read_only(),
    ]
    .into_iter()
    .map(|tool| tool.family("ghap"))
    .collect()
}

const MOST: usize = limits::GHAP_TEXT_CHARS;
const MOST_LONG: usize = limits::GHAP_LONG_TEXT_CHARS;

const START: &str = "\
Begins a GHAP record of what you are about to try: goal, hypothesis, action, prediction. Worth it when you debug something \
whose cause you do not know, or try something that may not work; not for what is routine.

The hypothesis says what you believe and why, so that it can turn out wrong. The prediction says what will be seen if it is \
right. A session has one active record at a time.";

/// What is about to be tried.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Start {
    /// What it is about.
    domain: Domain,
    /// How you go about it.
    strategy: Strategy,
    /// What is to be reached.
    #[schemars(length(max = MOST), regex(pattern = NOT_BLANK))]
    goal: String,
    /// What you believe, and why.
    #[schemars(length(max = MOST), regex(pattern = NOT_BLANK))]
    hypothesis: String,
    /// What you do about it.
    #[schemars(length(max = MOST), regex(pattern = NOT_BLANK))]
    action: String,
    /// What will be seen if the hypothesis is right.
    #[schemars(length(max = MOST), regex(pattern = NOT_BLANK))]
    prediction: String,
    /// How sure you are of the prediction.
    #[schemars(range(min = 0, max = 1))]
    probability: Option<f64>,
    /// The session; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

/// A record was written. Its texts are not repeated.
#[derive(Serialize, JsonSchema)]
struct Written {
    ok: bool,
    id: GhapId,
    /// How far it can be trusted, once it is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence_tier: Option<Tier>,
    /// The session that left it open.
    #[serde(skip_serializing_if = "Option::is_none")]
    adopted_from: Option<String>,
}

impl Written {
    fn of(ghap: Ghap) -> Self {
        Self { ok: true, id: ghap.id, confidence_tier: ghap.confidence_tier, adopted_from: None }
    }
}

async fn start(call: Call, input: Start) -> Result<Written, Failure> {
    let place = acting_session(&call, input.session_id.as_deref(), None).await?;
    let new = NewGhap {
        domain: input.domain,
        strategy: input.strategy,
        goal: input.goal,
        hypothesis: input.hypothesis,
        action: input.action,
        prediction: input.prediction,
        probability: input.probability,
    };
    Ok(Written::of(call.services.journal.start_ghap(&call.caller, place, new).await?))
}

const UPDATE: &str = "\
Changes the active record: what you believe now, what you do about it, what you expect. What it said before is kept. Give \
only what changes; a note is added to the others.";

/// What changes.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Update {
    /// What it is about.
    domain: Option<Domain>,
    /// How you go about it now.
    strategy: Option<Strategy>,
    /// What is to be reached.
    #[schemars(length(max = MOST), regex(pattern = NOT_BLANK))]
    goal: Option<String>,
    /// What you believe now.
    #[schemars(length(max = MOST), regex(pattern = NOT_BLANK))]
    hypothesis: Option<String>,
    /// What you do about it now.
    #[schemars(length(max = MOST), regex(pattern = NOT_BLANK))]
    action: Option<String>,
    /// What will be seen now if the hypothesis is right.
    #[schemars(length(max = MOST), regex(pattern = NOT_BLANK))]
    prediction: Option<String>,
    /// How sure you are of the prediction.
    #[schemars(range(min = 0, max = 1))]
    probability: Option<f64>,
    /// Something to keep with it.
    #[schemars(length(max = MOST_LONG), regex(pattern = NOT_BLANK))]
    note: Option<String>,
    /// The session; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

/// A record was changed.
#[derive(Serialize, JsonSchema)]
struct Updated {
    success: bool,
    iteration_count: i64,
}

async fn update(call: Call, input: Update) -> Result<Updated, Failure> {
    let place = acting_session(&call, input.session_id.as_deref(), None).await?;
    let change = GhapChange {
        domain: input.domain,
        strategy: input.strategy,
        goal: input.goal,
        hypothesis: input.hypothesis,
        action: input.action,
        prediction: input.prediction,
        probability: input.probability,
        note: input.note,
    };
    let ghap = call.services.journal.update_ghap(place, change).await?;
    Ok(Updated { success: true, iteration_count: ghap.iteration_count })
}

const RESOLVE: &str = "\
Ends the active record: confirmed if what you predicted came, falsified if it did not, abandoned if nobody will know.

Falsified wants surprise (what was not expected) and root_cause (why the prediction was wrong). A lesson is what the next \
one should know. Cite outcome_id if a recorded test run or build shows it: such a record counts most.";

/// How it ended.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Resolve {
    /// The verdict.
    status: Verdict,
    /// What was seen.
    #[schemars(length(max = MOST_LONG), regex(pattern = NOT_BLANK))]
    result: String,
    /// What was not expected.
    #[schemars(length(max = MOST_LONG), regex(pattern = NOT_BLANK))]
    surprise: Option<String>,
    /// Why the prediction was wrong.
    root_cause: Option<RootCause>,
    /// What is to be remembered.
    lesson: Option<Lesson>,
    /// The outcome that the verdict rests on, as `record_outcome` gave it.
    #[schemars(regex(pattern = NOT_BLANK))]
    outcome_id: Option<String>,
    /// The session; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

async fn resolve(call: Call, input: Resolve) -> Result<Written, Failure> {
    let place = acting_session(&call, input.session_id.as_deref(), None).await?;
    let end = Resolution {
        verdict: input.status,
        result: input.result,
        surprise: input.surprise,
        root_cause: input.root_cause,
        lesson: input.lesson,
        outcome_id: input.outcome_id,
    };
    Ok(Written::of(call.services.journal.resolve_ghap(place, end).await?))
}

const ACTIVE: &str = "Gives the active record of a session, or says that there is none.";

/// Whose.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Whose {
    /// The session; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

/// The active record. Without one, everything but `has_active` is null.
#[derive(Serialize, JsonSchema)]
struct Active {
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

async fn get_active(call: Call, input: Whose) -> Result<Active, Failure> {
    let place = acting_session(&call, input.session_id.as_deref(), None).await?;
    let ghap = call.services.journal.active_ghap(&place).await?;
    let ghap = ghap.as_ref();
    Ok(Active {
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

const GET: &str = "Gives a record with what it said before each change, and its notes.";

/// Which record.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Get {
    /// The record.
    #[schemars(regex(pattern = NOT_BLANK))]
    id: String,
}

/// A record with its history.
#[derive(Serialize, JsonSchema)]
struct Found {
    #[serde(flatten)]
    ghap: Ghap,
    /// What it said before each change.
    history: Vec<Iteration>,
    notes: Vec<String>,
}

async fn get(call: Call, input: Get) -> Result<Found, Failure> {
    let detail = call.services.journal.ghap(&input.id).await?;
    Ok(Found { ghap: detail.ghap, history: detail.history, notes: detail.notes })
}

const LIST: &str =
    "Lists records that are over, the latest made first. get_ghap gives one with all its texts.";

/// Which records.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// How many at most.
    #[schemars(range(min = 1, max = 100), extend("default" = 20))]
    limit: Option<u32>,
    /// Only of this domain.
    domain: Option<Domain>,
    /// Only with this verdict.
    outcome: Option<Verdict>,
    /// Only those that ended at this time or later: RFC 3339, or a date.
    #[schemars(regex(pattern = NOT_BLANK))]
    since: Option<String>,
    /// Only of this project.
    project: Option<String>,
    /// Where the last page ended.
    cursor: Option<String>,
}

/// A record in a list.
#[derive(Serialize, JsonSchema)]
struct Entry {
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

/// A page of records.
#[derive(Serialize, JsonSchema)]
struct Entries {
    results: Vec<Entry>,
    count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn list(call: Call, input: List) -> Result<Entries, Failure> {
    let since = input.since.as_deref().map(instant).transpose()?;
    let filter = GhapFilter {
        domain: input.domain,
        status: input.outcome.map(Verdict::status),
        project: input.project,
        session_id: None,
        // What is active has not ended, so the beginning of time leaves it out.
        since: since.or(Some(Timestamp::from_millis(i64::MIN))),
    };
    let limit = input.limit.unwrap_or(20);
    let (ghaps, next_cursor) =
        call.services.journal.ghaps(&filter, input.cursor.as_deref(), Some(limit)).await?;
    let results: Vec<Entry> = ghaps
        .into_iter()
        .map(|ghap| Entry {
            goal: quote::excerpt(&ghap.goal, 200),
            id: ghap.id,
            domain: ghap.domain,
            strategy: ghap.strategy,
            outcome_status: ghap.status,
            confidence_tier: ghap.confidence_tier,
            iteration_count: ghap.iteration_count,
            confirmed_again: ghap.confirmed_again,
            created_at: ghap.created_at,
            captured_at: ghap.resolved_at,
        })
        .collect();
    Ok(Entries { count: results.len(), results, next_cursor })
}

/// RFC 3339, or a date, which is its beginning in UTC.
fn instant(text: &str) -> Result<Timestamp, ToolError> {
    let day = || Timestamp::parse(&format!("{text}T00:00:00Z"));
    Timestamp::parse(text).or_else(day).ok_or_else(|| {
        ToolError::invalid(
            "since",
            "since: must be an RFC 3339 time such as 2026-01-31T12:00:00Z, or a date",
        )
    })
}

const ORPHAN: &str = "\
Looks for a record that another session of this project left open: a session that is over, or was not heard of for half an \
hour. adopt_ghap takes it over, abandon_orphan ends it.";

/// A record that was left open.
#[derive(Serialize, JsonSchema)]
struct Orphan {
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

async fn get_orphan(call: Call, input: Whose) -> Result<Orphan, Failure> {
    let place = acting_session(&call, input.session_id.as_deref(), None).await?;
    let orphans = call.services.journal.orphans(&place).await?;
    let more = orphans.len().checked_sub(1);
    let orphan = orphans.into_iter().next();
    let has_orphan = orphan.is_some();
    let Some(ghap) = orphan else {
        return Ok(Orphan {
            has_orphan,
            id: None,
            session_id: None,
            goal: None,
            hypothesis: None,
            action: None,
            prediction: None,
            created_at: None,
            more: None,
        });
    };
    Ok(Orphan {
        has_orphan,
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
#[serde(deny_unknown_fields)]
struct Adopt {
    /// The record; the one that was changed last by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    id: Option<String>,
    /// The session that takes it; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

async fn adopt(call: Call, input: Adopt) -> Result<Written, Failure> {
    let place = acting_session(&call, input.session_id.as_deref(), None).await?;
    let (ghap, from) =
        call.services.journal.adopt_ghap(&call.caller, place, input.id.as_deref()).await?;
    Ok(Written { adopted_from: Some(from), ..Written::of(ghap) })
}

const ABANDON: &str =
    "Ends a record that another session of this project left open, without a verdict.";

/// Which record, and why.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Abandon {
    /// Why nobody will know.
    #[schemars(length(max = MOST_LONG), regex(pattern = NOT_BLANK))]
    reason: String,
    /// The record; the one that was changed last by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    id: Option<String>,
    /// Your session; it tells the project.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

async fn abandon(call: Call, input: Abandon) -> Result<Written, Failure> {
    let place = acting_session(&call, input.session_id.as_deref(), None).await?;
    let id = input.id.as_deref();
    Ok(Written::of(call.services.journal.abandon_orphan(place, id, input.reason).await?))
}

const SEARCH: &str = "\
Searches what was tried before, in this project and others: by symptom, goal, error text, names in the code. Gives whole \
records, the best first, with what did not work among them. Look here before you debug something a second time.";

/// What is looked for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Search {
    /// What you would tell somebody who might have seen it: any text, errors and code too.
    #[schemars(length(max = limits::SEARCH_QUERY_CHARS))]
    query: String,
    /// Only of this domain.
    domain: Option<Domain>,
    /// Only with this verdict.
    outcome: Option<Verdict>,
    /// `surprise`, `root_cause`: only records that tell of one.
    #[schemars(extend("default" = "full"))]
    axis: Option<SearchAxis>,
    /// How many at most.
    #[schemars(range(min = 1, max = 50), extend("default" = 10))]
    limit: Option<u32>,
    /// The session that asks; your own by default. Records of its project come first.
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
    /// What was not expected.
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
    /// Root of the project that it is about.
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
    /// What was seen.
    outcome_result: Option<String>,
    /// What was not expected.
    surprise: Option<String>,
    /// Why the prediction was wrong.
    root_cause: Option<RootCause>,
    /// What is to be remembered.
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
            outcome_status: ghap.status,
            outcome_result: ghap.result,
            surprise: ghap.surprise,
            root_cause: ghap.root_cause,
            lesson: ghap.lesson,
            confidence_tier: ghap.confidence_tier,
            confirmed_again: ghap.confirmed_again,
            created_at: ghap.created_at,
            captured_at: ghap.resolved_at,
            score,
        }
    }
}

async fn search(call: Call, input: Search) -> Result<Experiences, Failure> {
    if input.query.trim().is_empty() {
        return Ok(Experiences { results: Vec::new(), count: 0 });
    }
    let axis = input.axis.unwrap_or_default();
    let place = acting_session(&call, input.session_id.as_deref(), None).await?;
    let project = call.services.team.project_of(&place).await?;
    let found = call
        .services
        .search
        .search_ghaps(&crate::service::search::ExperienceQuery {
            prompt: &input.query,
            project: project.as_deref(),
            filter: SearchFilter {
                domain: input.domain,
                status: input.outcome.map(Verdict::status),
                part: axis.part(),
            },
            limit: input.limit.unwrap_or(10) as usize,
            only_relevant: false,
        })
        .await?;
    let given = found.iter().map(|hit| SeenItem::from(&hit.ghap)).collect();
    call.services.search.note_found(&place.session_id, given).await;
    let results: Vec<Experience> =
        found.into_iter().map(|hit| Experience::new(hit.ghap, axis, hit.score)).collect();
    Ok(Experiences { count: results.len(), results })
}

const OUTCOME: &str = "\
Records what came of a test run, a build or the like, for a verdict to rest on: pass its outcome_id to resolve_ghap. Clients' \
hooks do this by themselves where they see test output.";

/// What was seen.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RecordOutcome {
    /// What was run.
    #[schemars(length(max = MOST_LONG), regex(pattern = NOT_BLANK))]
    command: String,
    /// What came of it.
    verdict: OutcomeVerdict,
    /// What it said, in short; only the beginning is kept.
    summary: Option<String>,
    /// The client's id of the tool call: once more with the same changes nothing.
    #[schemars(regex(pattern = NOT_BLANK))]
    tool_use_id: Option<String>,
    /// The session; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
    /// The sub-agent that saw it, if it was one.
    #[schemars(regex(pattern = NOT_BLANK))]
    agent_id: Option<String>,
}

/// An outcome was recorded.
#[derive(Serialize, JsonSchema)]
struct Recorded {
    outcome_id: OutcomeId,
    verdict: OutcomeVerdict,
}

async fn record_outcome(call: Call, input: RecordOutcome) -> Result<Recorded, Failure> {
    let place =
        acting_session(&call, input.session_id.as_deref(), input.agent_id.as_deref()).await?;
    let new = NewOutcome {
        command: input.command,
        verdict: input.verdict,
        summary: input.summary.unwrap_or_default(),
        tool_use_id: input.tool_use_id,
    };
    let outcome = call.services.journal.record_outcome(&call.caller, place, new).await?;
    Ok(Recorded { outcome_id: outcome.outcome_id, verdict: outcome.verdict })
}

const CALIBRATION: &str = "\
How true predictions came, by client and domain: the share of records that were confirmed, and for those that stated a \
probability the Brier score (mean squared error; 0 is perfect, 0.25 is what always saying one half earns).";

/// Of which records.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Calibrate {
    /// Only of this project.
    project: Option<String>,
    /// Only of this client.
    client: Option<String>,
    /// Only of this domain.
    domain: Option<Domain>,
}

/// How true predictions came.
#[derive(Serialize, JsonSchema)]
struct Calibration {
    results: Vec<Calibrated>,
    count: usize,
}

/// Of one client in one domain.
#[derive(Serialize, JsonSchema)]
struct Calibrated {
    client: Option<String>,
    domain: Domain,
    /// Records with a verdict.
    records: i64,
    /// The share of those that were confirmed.
    hit_rate: f64,
    /// Those of them that stated a probability.
    with_probability: i64,
    /// Mean squared error of those.
    brier: Option<f64>,
}

async fn calibrate(call: Call, input: Calibrate) -> Result<Calibration, Failure> {
    let (project, client) = (input.project.as_deref(), input.client.as_deref());
    let rows = call.services.journal.calibration(project, client, input.domain).await?;
    let results: Vec<Calibrated> = rows
        .into_iter()
        .map(|row| Calibrated {
            client: row.client,
            domain: row.domain,
            records: row.records,
            hit_rate: row.hit_rate,
            with_probability: row.with_probability,
            brier: row.brier,
        })
        .collect();
    Ok(Calibration { count: results.len(), results })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::World;
    use crate::tools::{Call, ErrorType};

    fn attempt(goal: &str) -> Value {
        json!({
            "domain": "debugging", "strategy": "read-the-error", "goal": goal,
            "hypothesis": "the cache key lacks the tenant, so tenants see each other",
            "action": "add the tenant to the key", "prediction": "the two tenants' test passes",
        })
    }

    async fn begin(world: &World, session: &str, cwd: &str) -> Call {
        let call = world.operator(Some(session));
        world.call(&call, "start_session", json!({ "cwd": cwd })).await;
        call
    }

    #[tokio::test]
    async fn a_record_from_its_beginning_to_its_end() {
        let world = World::open().await;
        let call = begin(&world, "s1", "/nowhere/p").await;
        assert_eq!(world.call(&call, "get_active_ghap", json!({})).await["has_active"], false);
        let id = world.call(&call, "start_ghap", attempt("fix it")).await["id"].clone();
        let error =
            world.refuse(&call, "start_ghap", attempt("more"), ErrorType::ActiveGhapExists).await;
        assert!(error.message.contains(id.as_str().unwrap()), "{error:?}");

        let nothing =
            json!({ "hypothesis": "the cache key lacks the tenant, so tenants see each other" });
        world.refuse(&call, "update_ghap", nothing, ErrorType::ValidationError).await;
        let updated = world.call(&call, "update_ghap", json!({ "note": "saw it once" })).await;
        assert_eq!(updated, json!({ "success": true, "iteration_count": 1 }));
        let change =
            json!({ "hypothesis": "the key is fine, but the cache is shared between tests" });
        assert_eq!(world.call(&call, "update_ghap", change).await["iteration_count"], 2);

        let bare = json!({ "status": "falsified", "result": "still red" });
        let error = world.refuse(&call, "resolve_ghap", bare, ErrorType::ValidationError).await;
        assert_eq!(error.field.as_deref(), Some("surprise"));
        let half =
            json!({ "status": "falsified", "result": "still red", "surprise": "green alone" });
        let error = world.refuse(&call, "resolve_ghap", half, ErrorType::ValidationError).await;
        assert_eq!(error.field.as_deref(), Some("root_cause"));
        let whole = json!({
            "status": "falsified", "result": "still red", "surprise": "green alone",
            "root_cause": { "category": "test-isolation", "description": "one cache for all tests" },
            "lesson": { "what_worked": "a cache for each test" },
        });
        let resolved = world.call(&call, "resolve_ghap", whole).await;
        assert_eq!(resolved["confidence_tier"], "silver");
        assert!(resolved.to_string().len() < 500, "what was said is not repeated");
        world
            .refuse(
                &call,
                "resolve_ghap",
                json!({ "status": "abandoned", "result": "x" }),
                ErrorType::NotFound,
            )
            .await;

        let found = world.call(&call, "get_ghap", json!({ "id": id })).await;
        assert_eq!(found["history"][0]["iteration"], 1);
        assert_eq!(found["notes"], json!(["saw it once"]));
        assert_eq!(found["root_cause"]["category"], "test-isolation");
        let list = world.call(&call, "list_ghap_entries", json!({ "outcome": "falsified" })).await;
        assert_eq!(list["results"][0]["id"], id);
        assert!(list["results"][0].to_string().len() <= 500);
        for (since, count) in [("1960-01-01", 1), ("2999-01-01T00:00:00+02:00", 0)] {
            let list = world.call(&call, "list_ghap_entries", json!({ "since": since })).await;
            assert_eq!(list["count"], count, "{since}");
        }
        let wrong = json!({ "since": "yesterday" });
        world.refuse(&call, "list_ghap_entries", wrong, ErrorType::ValidationError).await;
    }

    #[tokio::test]
    async fn what_was_tried_is_found_by_what_it_was_like() {
        let world = World::open().await;
        let call = begin(&world, "s1", "/nowhere/p").await;
        world
            .call(&call, "start_ghap", attempt("tenants see each other's rows in the report"))
            .await;
        let find = async |query: &str| {
            world.call(&call, "search_experiences", json!({ "query": query })).await["count"]
                .clone()
        };
        assert_eq!(find("tenant cache").await, 0, "it is not over yet");
        let end = json!({ "status": "confirmed", "result": "green" });
        world.call(&call, "resolve_ghap", end).await;
        assert_eq!(find("why do tenants share a cache?").await, 1);
        assert_eq!(find(" ").await, 0);
        for odd in ["\"", "a:b -c (d) OR *", "NEAR(x y)", "C++ foo-bar", "\u{0}"] {
            find(odd).await;
        }
        let other = json!({ "query": "tenants cache", "outcome": "falsified" });
        assert_eq!(world.call(&call, "search_experiences", other).await["count"], 0);
        for (axis, count) in [("full", 1), ("strategy", 1), ("surprise", 0), ("root_cause", 0)] {
            let query = json!({ "query": "tenants cache", "axis": axis });
            let found = world.call(&call, "search_experiences", query).await;
            assert_eq!(found["count"], count, "{axis}");
            if count == 1 {
                let one = &found["results"][0];
                assert_eq!((&one["axis"], &one["id"]), (&json!(axis), &one["ghap_id"]), "{one}");
                let (status, result) = (&one["outcome_status"], &one["outcome_result"]);
                assert_eq!((status, result), (&json!("confirmed"), &json!("green")), "{one}");
                for absent in ["surprise", "root_cause", "lesson"] {
                    assert!(one.get(absent).is_some_and(Value::is_null), "{absent} in {one}");
                }
            }
        }
    }

    /// Where all there is is about one thing, that is no reason to be silent about it.
    #[tokio::test]
    async fn a_small_journal_brings_up_what_it_is_about() {
        let world = World::open().await;
        for n in 0..6 {
            let call = begin(&world, &format!("s{n}"), "/nowhere/p").await;
            let goal = "repair the websocket heartbeat that drops after a minute behind the proxy";
            world.call(&call, "start_ghap", attempt(goal)).await;
            let end = json!({ "status": "confirmed", "result": "green" });
            world.call(&call, "resolve_ghap", end).await;
        }
        let call = begin(&world, "reader", "/nowhere/p").await;
        let prompt = "the websocket heartbeat drops after a minute behind the proxy, repair it";
        let event = json!({
            "client": "claude-code",
            "payload": { "hook_event_name": "UserPromptSubmit", "session_id": "reader", "cwd": "/nowhere/p", "prompt": prompt },
        });
        let answer = world.call(&call, "hook_event", event).await;
        let context = answer["hookSpecificOutput"]["additionalContext"].as_str();
        assert!(context.is_some_and(|text| text.contains("websocket heartbeat")), "{answer}");
    }

    #[tokio::test]
    async fn tiers_by_what_the_verdict_rests_on() {
        let world = World::open().await;
        let call = begin(&world, "s1", "/nowhere/p").await;
        let outcome = json!({ "command": "cargo test", "verdict": "pass", "tool_use_id": "t1" });
        let outcome = world.call(&call, "record_outcome", outcome).await["outcome_id"].clone();
        let again = json!({ "command": "cargo test", "verdict": "fail", "tool_use_id": "t1" });
        assert_eq!(world.call(&call, "record_outcome", again).await["outcome_id"], outcome);
        for (hypothesis, end, tier) in [
            ("the clock is mocked and never moves", json!({ "outcome_id": outcome }), "gold"),
            ("the clock is mocked and never moves", json!({}), "silver"),
            ("something is wrong", json!({}), "bronze"),
        ] {
            let mut start = attempt("make it green");
            start["hypothesis"] = json!(hypothesis);
            world.call(&call, "start_ghap", start).await;
            let mut resolve = json!({ "status": "confirmed", "result": "green" });
            resolve.as_object_mut().unwrap().extend(end.as_object().unwrap().clone());
            assert_eq!(world.call(&call, "resolve_ghap", resolve).await["confidence_tier"], tier);
        }
        world.call(&call, "start_ghap", attempt("x")).await;
        let other = json!({ "status": "confirmed", "result": "green", "outcome_id": "out_none" });
        world.refuse(&call, "resolve_ghap", other, ErrorType::NotFound).await;
        let end = json!({ "status": "abandoned", "result": "no time" });
        assert_eq!(world.call(&call, "resolve_ghap", end).await["confidence_tier"], "abandoned");
    }

    #[tokio::test]
    async fn orphans_are_of_sessions_that_are_over_and_of_the_same_project() {
        let world = World::open().await;
        let one = begin(&world, "one", "/nowhere/p").await;
        let id = world.call(&one, "start_ghap", attempt("left")).await["id"].clone();
        let two = begin(&world, "two", "/nowhere/p").await;
        let far = begin(&world, "far", "/nowhere/q").await;
        let orphan = async |call: &Call| world.call(call, "get_orphaned_ghap", json!({})).await;
        assert_eq!(orphan(&two).await, json!({ "has_orphan": false }), "its session is at work");
        world.call(&one, "end_session", json!({ "reason": "logout" })).await;
        let found = orphan(&two).await;
        assert_eq!((&found["id"], &found["session_id"]), (&id, &json!("one")));
        assert_eq!(orphan(&far).await["has_orphan"], false);
        world.refuse(&far, "adopt_ghap", json!({ "id": id }), ErrorType::NotFound).await;

        // The session that comes back has it again.
        world.call(&one, "start_session", json!({ "source": "resume" })).await;
        assert_eq!(orphan(&two).await["has_orphan"], false);
        assert_eq!(world.call(&one, "get_active_ghap", json!({})).await["id"], id);
        world.call(&one, "end_session", json!({})).await;

        world.call(&two, "start_ghap", attempt("own")).await;
        world.refuse(&two, "adopt_ghap", json!({}), ErrorType::ActiveGhapExists).await;
        world.call(&two, "resolve_ghap", json!({ "status": "abandoned", "result": "x" })).await;
        let adopted = world.call(&two, "adopt_ghap", json!({})).await;
        assert_eq!((&adopted["id"], &adopted["adopted_from"]), (&id, &json!("one")));
        assert_eq!(world.call(&two, "get_active_ghap", json!({})).await["id"], id);
        world.refuse(&two, "abandon_orphan", json!({ "reason": "x" }), ErrorType::NotFound).await;

        world.call(&two, "end_session", json!({})).await;
        let three = begin(&world, "three", "/nowhere/p/").await;
        let ended = world.call(&three, "abandon_orphan", json!({ "reason": "nobody knows" })).await;
        assert_eq!((&ended["id"], &ended["confidence_tier"]), (&id, &json!("abandoned")));
        let found = world.call(&three, "get_ghap", json!({ "id": id })).await;
        assert_eq!((&found["session_id"], &found["status"]), (&json!("two"), &json!("abandoned")));
    }

    #[tokio::test]
    async fn of_many_beginnings_at_one_moment_one_wins() {
        let world = World::open().await;
        let call = begin(&world, "s", "/nowhere/p").await;
        let starts =
            (0..20).map(|n| world.try_call(&call, "start_ghap", attempt(&format!("goal {n}"))));
        let outcomes = futures_util::future::join_all(starts).await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        let refused = outcomes.into_iter().filter_map(Result::err);
        assert!(refused.map(|error| error.kind).all(|kind| kind == ErrorType::ActiveGhapExists));
    }

    #[tokio::test]
    async fn predictions_are_held_against_what_came() {
        let world = World::open().await;
        let call = world.operator(Some("s"));
        world.call(&call, "start_session", json!({ "cwd": "/nowhere/p", "client": "codex" })).await;
        for (probability, status) in
            [(json!(1.0), "confirmed"), (json!(0.5), "falsified"), (Value::Null, "confirmed")]
        {
            let mut start = attempt("x");
            start["probability"] = probability;
            world.call(&call, "start_ghap", start).await;
            let end = json!({
                "status": status, "result": "seen", "surprise": "it was not so",
                "root_cause": { "category": "oversight", "description": "not read" },
            });
            world.call(&call, "resolve_ghap", end).await;
        }
        let found = world.call(&call, "ghap_calibration", json!({ "client": "codex" })).await;
        let row = &found["results"][0];
        assert_eq!((&row["records"], &row["with_probability"]), (&json!(3), &json!(2)));
        assert_eq!(row["brier"], json!(0.125));
        assert!((row["hit_rate"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-9);
    }
}
