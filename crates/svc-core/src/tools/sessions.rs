//! Tools for sessions and their counters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    GhapId, ListQuery, NOT_BLANK, SessionFilter, Timestamp, journal::Session, limits,
    quote::ModelText,
};

use super::{Call, Failure, Tool};
use crate::service::{
    Page, PageBounds,
    team::{ActingSession, NewSession, SessionDetail},
};

pub(super) fn tools() -> Vec<Tool> {
    [
        Tool::new("start_session", START, start).title("Begin a session"),
        Tool::new("end_session", END, end).title("End a session").idempotent(),
        Tool::new("ping", PING, ping).title("Is the daemon there").read_only(),
        Tool::new("increment_tool_count", COUNT, increment).title("Count a tool call"),
        Tool::new("should_check_in", SHOULD, should).title("Is a check-in due").read_only(),
        Tool::new("reset_tool_count", RESET, reset).title("Count from zero").idempotent(),
        Tool::new("check_in", CHECK_IN, check_in).title("Count, and check in if it is due"),
        Tool::new("get_session", GET, get).title("Look at a session").read_only().unlisted(),
        Tool::new("list_sessions", LIST, list).title("List sessions").read_only().unlisted(),
    ]
    .into_iter()
    .map(|tool| tool.family("sessions"))
    .collect()
}

/// The session that a call acts in: the named one, or the call's own.
pub(super) async fn acting_session(
    call: &Call,
    named: Option<&str>,
    agent_id: Option<&str>,
) -> Result<ActingSession, Failure> {
    Ok(call
        .services
        .team
        .acting_session(&call.caller, call.session.as_deref(), named, agent_id)
        .await?)
}

const START: &str = "\
Begins a session, or begins it again: after it the daemon knows which project you work in, and what you left open is yours \
again.

Clients' hooks do this by themselves; call it only where there are none. A session of another client is refused, also while \
that client is away. Calls that name no session and have none of their \
own mean the one that was started last.";

/// A session that has begun.
#[derive(Serialize, JsonSchema)]
struct StartSessionResult {
    session_id: String,
    started_at: Timestamp,
}

async fn start(call: Call, new: NewSession) -> Result<StartSessionResult, Failure> {
    let session =
        call.services.team.start_session(&call.caller, call.session.as_deref(), new).await?;
    Ok(StartSessionResult { session_id: session.session_id, started_at: session.started_at })
}

const END: &str = "\
Ends a session. A record that it leaves active is an orphan from then on, which another session of the same project can \
adopt; the session that begins again under the same id has it back.";

/// Which session ends.
#[derive(Deserialize, JsonSchema)]
struct EndSessionArguments {
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
    /// Why.
    #[schemars(regex(pattern = NOT_BLANK))]
    reason: Option<String>,
}

/// A session that is over.
#[derive(Serialize, JsonSchema)]
struct EndSessionResult {
    session_id: String,
    ended_at: Option<Timestamp>,
    /// The record that it left open.
    #[serde(skip_serializing_if = "Option::is_none")]
    orphaned_ghap: Option<GhapId>,
}

async fn end(call: Call, input: EndSessionArguments) -> Result<EndSessionResult, Failure> {
    let session = acting_session(&call, input.session_id.as_deref(), None).await?;
    let (session, orphaned_ghap) = call.services.team.end_session(session, input.reason).await?;
    Ok(EndSessionResult {
        session_id: session.session_id,
        ended_at: session.ended_at,
        orphaned_ghap,
    })
}

const PING: &str =
    "Answers when the daemon is there and the credential is good. Says nothing else.";

/// Nothing.
#[derive(Deserialize, JsonSchema)]
struct PingArguments {}

/// The daemon is there.
#[derive(Serialize, JsonSchema)]
struct PingResult {
    ok: bool,
}

async fn ping(_: Call, _: PingArguments) -> Result<PingResult, Failure> {
    Ok(PingResult { ok: true })
}

const COUNT: &str = "\
Counts a tool call of a session. Gives how many there were since the last check-in, update of the active record, or reset. \
check_in does this and the check in one step.";

/// A tool call.
#[derive(Deserialize, JsonSchema)]
struct IncrementToolCountArguments {
    /// The tool.
    #[schemars(regex(pattern = NOT_BLANK))]
    tool_name: Option<String>,
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
    /// The sub-agent that made the call, if any: its calls are counted separately.
    #[schemars(regex(pattern = NOT_BLANK))]
    agent_id: Option<String>,
}

/// How many tool calls there were.
#[derive(Serialize, JsonSchema)]
struct ToolCountResult {
    /// Since the last check-in, update or reset.
    tool_count: i64,
}

async fn increment(
    call: Call,
    input: IncrementToolCountArguments,
) -> Result<ToolCountResult, Failure> {
    let session =
        acting_session(&call, input.session_id.as_deref(), input.agent_id.as_deref()).await?;
    let tool_count = call.services.team.count_tool(&call.caller, session, input.tool_name).await?;
    Ok(ToolCountResult { tool_count })
}

const SHOULD: &str = "\
Whether so many tool calls were counted that it is time to look at the active record. Changes nothing; check_in counts, \
decides and resets in one step.";

/// How often.
#[derive(Deserialize, JsonSchema)]
struct ShouldCheckInArguments {
    /// Number of tool calls between check-ins.
    #[schemars(range(min = 1, max = limits::CHECK_IN_MAX), extend("default" = limits::CHECK_IN))]
    frequency: Option<i64>,
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

/// Whether it is time.
#[derive(Serialize, JsonSchema)]
struct ShouldCheckInResult {
    should_check_in: bool,
}

async fn should(call: Call, input: ShouldCheckInArguments) -> Result<ShouldCheckInResult, Failure> {
    let session = acting_session(&call, input.session_id.as_deref(), None).await?;
    let count = call.services.team.tool_count(session).await?;
    Ok(ShouldCheckInResult {
        should_check_in: count >= input.frequency.unwrap_or(limits::CHECK_IN),
    })
}

const RESET: &str = "Resets the count of a session's tool calls to zero.";

/// Whose.
#[derive(Deserialize, JsonSchema)]
struct SessionArguments {
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

async fn reset(call: Call, input: SessionArguments) -> Result<ToolCountResult, Failure> {
    let session = acting_session(&call, input.session_id.as_deref(), None).await?;
    call.services.team.reset_tool_count(&call.caller, session).await?;
    Ok(ToolCountResult { tool_count: 0 })
}

const CHECK_IN: &str = "\
Counts a tool call and tells whether it is time to look at the active record; if it is, the count starts again. One step, so \
of many calls at one moment exactly one is told.";

/// A tool call, and how often to check in.
#[derive(Deserialize, JsonSchema)]
struct CheckInArguments {
    /// The tool.
    #[schemars(regex(pattern = NOT_BLANK))]
    tool_name: Option<String>,
    /// Number of tool calls between check-ins.
    #[schemars(range(min = 1, max = limits::CHECK_IN_MAX), extend("default" = limits::CHECK_IN))]
    frequency: Option<i64>,
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
    /// The sub-agent that made the call, if any: its calls are counted separately.
    #[schemars(regex(pattern = NOT_BLANK))]
    agent_id: Option<String>,
}

/// What a check-in says.
#[derive(Serialize, JsonSchema)]
struct CheckInResult {
    /// Tool calls since the last one, this one included.
    tool_count: i64,
    /// Whether it is time.
    due: bool,
    /// What to think about, if there is an active record.
    #[serde(skip_serializing_if = "Option::is_none")]
    reminder: Option<ModelText>,
}

async fn check_in(call: Call, input: CheckInArguments) -> Result<CheckInResult, Failure> {
    let session =
        acting_session(&call, input.session_id.as_deref(), input.agent_id.as_deref()).await?;
    let frequency = input.frequency.unwrap_or(limits::CHECK_IN);
    let check_in =
        call.services.team.check_in(&call.caller, session, input.tool_name, frequency).await?;
    let reminder = check_in.active.as_ref().map(|ghap| ghap.reminder(check_in.tool_count));
    Ok(CheckInResult { tool_count: check_in.tool_count, due: check_in.due, reminder })
}

const GET: &str = "\
Gives a session: its project, when it began and was last heard of, how often it called which tool, and its active record.";

async fn get(call: Call, input: SessionArguments) -> Result<SessionDetail, Failure> {
    let session = acting_session(&call, input.session_id.as_deref(), None).await?;
    Ok(call.services.team.session_detail(&call.caller, &session.session_id).await?)
}

const LIST: &str = "Lists sessions, those heard of last first.";

async fn list(call: Call, input: ListQuery<SessionFilter>) -> Result<Page<Session>, Failure> {
    let page = PageBounds::from(&input.page).for_model();
    Ok(call.services.team.sessions(&call.caller, &input.filter, page).await?)
}
