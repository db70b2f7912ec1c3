//! Tools for GHAP records: goal, hypothesis, action, prediction and outcome of an attempt.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    GhapFilter, GhapId, NOT_BLANK, OutcomeId, Timestamp,
    journal::{
        Domain, Ghap, GhapChange, GhapDraft, GhapStatus, Lesson, OutcomeVerdict, Resolution,
        RootCause, Strategy, Tier, Verdict,
    },
    limits, quote,
};
use svc_store::{CalibrationRow, GhapPart, ItemVersion, SearchFilter};

use super::{
    Call, Failure, Tool, ToolError,
    sessions::{NoArguments, acting_session, in_session},
};
use crate::service::{
    Listed, Page, PageBounds,
    journal::{GhapDetail, NewOutcome},
    search::{ExperienceHit, ExperienceQuery},
    team::ActingSession,
};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        in_session("start_ghap", START, start).title("Begin a record"),
        in_session("update_ghap", UPDATE, update).title("Change the active record"),
        in_session("resolve_ghap", RESOLVE, resolve).title("End the active record"),
        in_session("get_active_ghap", ACTIVE, get_active)
            .title("Look at the active record")
            .read_only(),
        Tool::new("get_ghap", GET, get).title("Look at a record").read_only(),
        Tool::new("list_ghap_entries", LIST, list).title("List records").read_only().heavy(),
        in_session("get_orphaned_ghap", ORPHAN, get_orphan)
            .title("Look for a record left open")
            .read_only(),
        in_session("adopt_ghap", ADOPT, adopt).title("Take over a record left open"),
        in_session("abandon_orphan", ABANDON, abandon).title("End a record left open"),
        in_session("search_experiences", SEARCH, search)
            .title("Search what was tried")
            .read_only()
            .heavy(),
        Tool::new("record_outcome", OUTCOME, record_outcome).title("Record a result"),
        Tool::new("ghap_calibration", CALIBRATION, calibrate)
            .title("How true predictions came")
            .read_only()
            .heavy(),
    ]
}

const START: &str = "\
Begins a GHAP record of what you are about to try, where you do not know the cause or it may not work.

The hypothesis can turn out wrong; the prediction is what will be seen if it is right. A session has one active record.";

#[derive(Serialize, JsonSchema)]
struct GhapWritten {
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
    fn new(ghap: Ghap, adopted_from: Option<String>) -> Self {
        Self { ok: true, confidence_tier: ghap.tier(), id: ghap.id, adopted_from }
    }
}

async fn start(
    call: Call,
    acting: ActingSession,
    draft: GhapDraft,
) -> Result<GhapWritten, Failure> {
    let ghap = call.services.journal.start_ghap(&call.caller, acting, draft).await?;
    Ok(GhapWritten::new(ghap, None))
}

const UPDATE: &str = "\
Changes the active record: what you believe now, what you do about it, what you expect. What it said before is kept. Give \
only what changes; a note is added to the others.";

#[derive(Serialize, JsonSchema)]
struct GhapUpdated {
    success: bool,
    iteration_count: i64,
}

async fn update(
    call: Call,
    acting: ActingSession,
    change: GhapChange,
) -> Result<GhapUpdated, Failure> {
    let ghap = call.services.journal.update_ghap(&call.caller, acting, change).await?;
    Ok(GhapUpdated { success: true, iteration_count: ghap.iteration_count })
}

const RESOLVE: &str = "\
Ends the active record: confirmed if what you predicted came, falsified (with surprise and root_cause) if it did not, else \
abandoned.";

async fn resolve(
    call: Call,
    acting: ActingSession,
    resolution: Resolution,
) -> Result<GhapWritten, Failure> {
    let ghap = call.services.journal.resolve_ghap(&call.caller, acting, resolution).await?;
    Ok(GhapWritten::new(ghap, None))
}

const ACTIVE: &str = "Returns the active record of a session, or says that there is none.";

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

async fn get_active(
    call: Call,
    acting: ActingSession,
    _: NoArguments,
) -> Result<ActiveGhap, Failure> {
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

const GET: &str = "Returns a record with its earlier versions and its notes.";

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
        // Active records have no end, so any lower bound leaves them out; the earliest time does
        // only that.
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

const ORPHAN: &str = "\
Looks for a record that another session of this project left open: a session that is over, or was not heard of for half an \
hour. adopt_ghap takes it over, abandon_orphan ends it.";

#[derive(Serialize, JsonSchema)]
struct OrphanOutput {
    has_orphan: bool,
    /// The record, and the session that left it.
    #[serde(flatten)]
    ghap: Option<Ghap>,
    /// How many there are besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<usize>,
}

async fn get_orphan(
    call: Call,
    acting: ActingSession,
    _: NoArguments,
) -> Result<OrphanOutput, Failure> {
    let orphans = call.services.journal.orphans(&call.caller, &acting).await?;
    let more = orphans.len().checked_sub(1);
    Ok(OrphanOutput { has_orphan: more.is_some(), ghap: orphans.into_iter().next(), more })
}

const ADOPT: &str = "\
Takes over a record that another session of this project left open: it is your active record from then on, with its id and \
its history.";

#[derive(Deserialize, JsonSchema)]
struct AdoptInput {
    /// The record; by default the one changed last.
    #[schemars(regex(pattern = NOT_BLANK))]
    id: Option<String>,
}

async fn adopt(
    call: Call,
    acting: ActingSession,
    input: AdoptInput,
) -> Result<GhapWritten, Failure> {
    let (ghap, from) =
        call.services.journal.adopt_ghap(&call.caller, acting, input.id.as_deref()).await?;
    Ok(GhapWritten::new(ghap, Some(from)))
}

const ABANDON: &str =
    "Ends a record that another session of this project left open, without a verdict.";

#[derive(Deserialize, JsonSchema)]
struct AbandonInput {
    /// Why there will be no result.
    #[schemars(length(max = limits::GHAP_LONG_TEXT_CHARS), regex(pattern = NOT_BLANK))]
    reason: String,
    /// The record; by default the one changed last.
    #[schemars(regex(pattern = NOT_BLANK))]
    id: Option<String>,
}

async fn abandon(
    call: Call,
    acting: ActingSession,
    input: AbandonInput,
) -> Result<GhapWritten, Failure> {
    let (journal, id) = (&call.services.journal, input.id.as_deref());
    let ghap = journal.abandon_orphan(&call.caller, acting, id, input.reason).await?;
    Ok(GhapWritten::new(ghap, None))
}

const SEARCH: &str = "\
Searches what was tried before, here and in other projects, by symptom, error text or name. Look here before you debug.";

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

impl Listed for Experience {
    const NAME: &'static str = "results";
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

async fn search(
    call: Call,
    acting: ActingSession,
    input: ExperienceSearchInput,
) -> Result<Page<Experience>, Failure> {
    let axis = input.axis.unwrap_or_default();
    let project = call.services.team.project_of(&acting).await?;
    let query = ExperienceQuery {
        prompt: &input.query,
        project: project.as_deref(),
        filter: SearchFilter {
            domain: input.domain,
            status: input.outcome.map(Verdict::status),
            part: axis.part(),
        },
        limit: input.limit.unwrap_or(10) as usize,
        ..ExperienceQuery::default()
    };
    let hits = call.services.search.search_ghaps(&call.caller, &query).await?;
    let mut given: Vec<_> = hits.iter().map(|hit| ItemVersion::from(&hit.ghap)).collect();
    let experience = |hit: ExperienceHit| Experience::new(hit.ghap, axis, hit.score);
    let page = Page::best(hits.into_iter().map(experience));
    given.truncate(page.items.len());
    call.services.search.note_found(&call.caller, &acting.session_id, given).await;
    Ok(page)
}

const OUTCOME: &str = "\
Records the result of a test run, a build or the like, for a verdict to rest on: pass its outcome_id to resolve_ghap. Clients' \
hooks do this by themselves where they see test output.";

#[derive(Deserialize, JsonSchema)]
struct OutcomeInput {
    #[serde(flatten)]
    new: NewOutcome,
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
    /// The sub-agent that saw it, if any.
    #[schemars(regex(pattern = NOT_BLANK))]
    agent_id: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct OutcomeRecorded {
    outcome_id: OutcomeId,
    verdict: OutcomeVerdict,
}

async fn record_outcome(call: Call, input: OutcomeInput) -> Result<OutcomeRecorded, Failure> {
    let OutcomeInput { new, session_id, agent_id } = input;
    let acting = acting_session(&call, session_id.as_deref(), agent_id.as_deref()).await?;
    let outcome = call.services.journal.record_outcome(&call.caller, acting, new).await?;
    Ok(OutcomeRecorded { outcome_id: outcome.outcome_id, verdict: outcome.verdict })
}

const CALIBRATION: &str = "\
How often predictions came true, by client and domain: the share of records that were confirmed, and for those that stated a \
probability the Brier score (mean squared error; 0 is perfect, 0.25 is what always saying one half earns).";

#[derive(Deserialize, JsonSchema)]
struct CalibrationInput {
    /// Only this project.
    project: Option<String>,
    /// Only this client.
    client: Option<String>,
    /// Only this domain.
    domain: Option<Domain>,
}

async fn calibrate(call: Call, input: CalibrationInput) -> Result<Page<CalibrationRow>, Failure> {
    let (project, client) = (input.project.as_deref(), input.client.as_deref());
    let journal = &call.services.journal;
    Ok(Page::last(journal.calibration(&call.caller, project, client, input.domain).await?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Call, ErrorType, tests::World};

    fn attempt(goal: &str) -> Value {
        json!({
            "domain": "debugging", "strategy": "read-the-error", "goal": goal,
            "hypothesis": "the cache key lacks the tenant, so tenants see each other",
            "action": "add the tenant to the key", "prediction": "the two tenants' test passes",
        })
    }

    #[tokio::test]
    async fn a_record_is_started_updated_and_resolved() {
        let (world, call) = World::with_session().await;
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
        world.refuse_field(&call, "resolve_ghap", bare, "surprise").await;
        let half =
            json!({ "status": "falsified", "result": "still red", "surprise": "green alone" });
        world.refuse_field(&call, "resolve_ghap", half, "root_cause").await;
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
    async fn resolved_records_are_found_by_their_symptoms() {
        let (world, call) = World::with_session().await;
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

    /// A journal whose records are all about one subject still returns them.
    #[tokio::test]
    async fn a_small_journal_returns_records_of_its_only_subject() {
        let world = World::open().await;
        for n in 0..6 {
            let call = world.begin(&format!("s{n}"), "/nowhere/p").await;
            let goal = "repair the websocket heartbeat that drops after a minute behind the proxy";
            world.call(&call, "start_ghap", attempt(goal)).await;
            let end = json!({ "status": "confirmed", "result": "green" });
            world.call(&call, "resolve_ghap", end).await;
        }
        let call = world.begin("reader", "/nowhere/p").await;
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
    async fn the_tier_depends_on_the_evidence_of_the_verdict() {
        let (world, call) = World::with_session().await;
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
    async fn orphans_belong_to_ended_sessions_of_the_same_project() {
        let world = World::open().await;
        let one = world.begin("one", "/nowhere/p").await;
        let id = world.call(&one, "start_ghap", attempt("left")).await["id"].clone();
        let two = world.begin("two", "/nowhere/p").await;
        let far = world.begin("far", "/nowhere/q").await;
        let orphan = async |call: &Call| world.call(call, "get_orphaned_ghap", json!({})).await;
        assert_eq!(orphan(&two).await, json!({ "has_orphan": false }), "its session is at work");
        world.call(&one, "end_session", json!({ "reason": "logout" })).await;
        let found = orphan(&two).await;
        assert_eq!((&found["id"], &found["session_id"]), (&id, &json!("one")));
        assert_eq!(orphan(&far).await["has_orphan"], false);
        world.refuse(&far, "adopt_ghap", json!({ "id": id }), ErrorType::NotFound).await;

        // The session that resumes owns its record again.
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
        let three = world.begin("three", "/nowhere/p/").await;
        let ended = world.call(&three, "abandon_orphan", json!({ "reason": "nobody knows" })).await;
        assert_eq!((&ended["id"], &ended["confidence_tier"]), (&id, &json!("abandoned")));
        let found = world.call(&three, "get_ghap", json!({ "id": id })).await;
        assert_eq!((&found["session_id"], &found["status"]), (&json!("two"), &json!("abandoned")));
    }

    #[tokio::test]
    async fn of_concurrent_starts_of_a_record_one_succeeds() {
        let (world, call) = World::with_session().await;
        let starts =
            (0..20).map(|n| world.try_call(&call, "start_ghap", attempt(&format!("goal {n}"))));
        let outcomes = futures_util::future::join_all(starts).await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
        let refused = outcomes.into_iter().filter_map(Result::err);
        assert!(refused.map(|error| error.kind).all(|kind| kind == ErrorType::ActiveGhapExists));
    }

    #[tokio::test]
    async fn calibration_compares_predictions_with_verdicts() {
        let world = World::open().await;
        let call = world.operator(Some("s"));
        let start = json!({ "cwd": "/nowhere/p", "client": "claude-code" });
        world.call(&call, "start_session", start).await;
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
        for client in ["claude-code", "claude"] {
            let found = world.call(&call, "ghap_calibration", json!({ "client": client })).await;
            let row = &found["results"][0];
            assert_eq!((&row["records"], &row["with_probability"]), (&json!(3), &json!(2)));
            assert_eq!(row["brier"], json!(0.125));
            assert!((row["hit_rate"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-9);
        }
    }
}
