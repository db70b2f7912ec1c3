//! Tools for sessions and their counters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
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
    vec![
        Tool::new("start_session", START, start).title("Begin a session"),
        in_session("end_session", END, end).title("End a session").idempotent(),
        Tool::new("ping", PING, ping).title("Is the daemon there").read_only(),
        Tool::new("increment_tool_count", COUNT, increment).title("Count a tool call"),
        in_session("should_check_in", SHOULD, should).title("Is a check-in due").read_only(),
        in_session("reset_tool_count", RESET, reset).title("Count from zero").idempotent(),
        Tool::new("check_in", CHECK_IN, check_in).title("Count, and check in if it is due"),
        in_session("get_session", GET, get).title("Look at a session").read_only().unlisted(),
        Tool::new("list_sessions", LIST, list).title("List sessions").read_only().unlisted(),
    ]
}

/// Arguments of a tool that acts in a session.
#[derive(Deserialize, JsonSchema)]
struct InSession<A> {
    #[serde(flatten)]
    input: A,
    /// Session id; your own by default. Selects the project.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct NoArguments {}

/// A tool that acts in the session that its argument `session_id` names, or in the call's own. See
/// [`Tool::new`].
pub(super) fn in_session<A, R, F, Fut>(
    name: &'static str,
    description: &'static str,
    run: F,
) -> Tool
where
    A: DeserializeOwned + JsonSchema + Send + 'static,
    R: Serialize + JsonSchema,
    F: Fn(Call, ActingSession, A) -> Fut + Copy + Send + Sync + 'static,
    Fut: Future<Output = Result<R, Failure>> + Send + 'static,
{
    Tool::new(name, description, move |call: Call, arguments: InSession<A>| async move {
        let acting = acting_session(&call, arguments.session_id.as_deref(), None).await?;
        run(call, acting, arguments.input).await
    })
}

/// The session that a call acts in: the named one, or the call's own.
pub(super) async fn acting_session(
    call: &Call,
    named: Option<&str>,
    agent_id: Option<&str>,
) -> Result<ActingSession, Failure> {
    let (team, own) = (&call.services.team, call.session.as_deref());
    Ok(team.acting_session(&call.caller, own, named, agent_id).await?)
}

const START: &str = "\
Begins a session, or begins it again: after it the daemon knows which project you work in, and what you left open is yours \
again.

Clients' hooks do this by themselves; call it only where there are none. A session of another client is refused, also while \
that client is away. Calls that name no session and have none of their \
own mean the one that was started last.";

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

#[derive(Deserialize, JsonSchema)]
struct EndSessionArguments {
    /// Why.
    #[schemars(regex(pattern = NOT_BLANK))]
    reason: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct EndSessionResult {
    session_id: String,
    ended_at: Option<Timestamp>,
    /// The record that it left open.
    #[serde(skip_serializing_if = "Option::is_none")]
    orphaned_ghap: Option<GhapId>,
}

async fn end(
    call: Call,
    acting: ActingSession,
    input: EndSessionArguments,
) -> Result<EndSessionResult, Failure> {
    let (session, orphaned_ghap) = call.services.team.end_session(acting, input.reason).await?;
    Ok(EndSessionResult {
        session_id: session.session_id,
        ended_at: session.ended_at,
        orphaned_ghap,
    })
}

const PING: &str =
    "Answers when the daemon is there and the credential is good. Says nothing else.";

#[derive(Serialize, JsonSchema)]
struct PingResult {
    ok: bool,
}

async fn ping(_: Call, _: NoArguments) -> Result<PingResult, Failure> {
    Ok(PingResult { ok: true })
}

const COUNT: &str = "\
Counts a tool call of a session. Gives how many there were since the last check-in, update of the active record, or reset. \
check_in does this and the check in one step.";

#[derive(Deserialize, JsonSchema)]
struct CountedCall {
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

#[derive(Serialize, JsonSchema)]
struct ToolCountResult {
    /// Since the last check-in, update or reset.
    tool_count: i64,
}

async fn increment(call: Call, counted: CountedCall) -> Result<ToolCountResult, Failure> {
    let CountedCall { tool_name, session_id, agent_id } = counted;
    let acting = acting_session(&call, session_id.as_deref(), agent_id.as_deref()).await?;
    let count = call.services.team.count_tool(&call.caller, acting, tool_name, None).await?;
    Ok(ToolCountResult { tool_count: count.since })
}

const SHOULD: &str = "\
Whether so many tool calls were counted that it is time to look at the active record. Changes nothing; check_in counts, \
decides and resets in one step.";

#[derive(Deserialize, JsonSchema)]
struct ShouldCheckInArguments {
    /// Number of tool calls between check-ins.
    #[schemars(range(min = 1, max = limits::CHECK_IN_MAX), extend("default" = limits::CHECK_IN))]
    frequency: Option<i64>,
}

#[derive(Serialize, JsonSchema)]
struct ShouldCheckInResult {
    should_check_in: bool,
}

async fn should(
    call: Call,
    acting: ActingSession,
    input: ShouldCheckInArguments,
) -> Result<ShouldCheckInResult, Failure> {
    let count = call.services.team.tool_count(acting).await?;
    Ok(ShouldCheckInResult {
        should_check_in: count >= input.frequency.unwrap_or(limits::CHECK_IN),
    })
}

const RESET: &str = "Resets the count of a session's tool calls to zero.";

async fn reset(
    call: Call,
    acting: ActingSession,
    _: NoArguments,
) -> Result<ToolCountResult, Failure> {
    call.services.team.reset_tool_count(&call.caller, acting).await?;
    Ok(ToolCountResult { tool_count: 0 })
}

const CHECK_IN: &str = "\
Counts a tool call and tells whether it is time to look at the active record; if it is, the count starts again. One step, so \
of many calls at one moment exactly one is told.";

#[derive(Deserialize, JsonSchema)]
struct CheckInArguments {
    #[serde(flatten)]
    counted: CountedCall,
    #[serde(flatten)]
    due: ShouldCheckInArguments,
}

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
    let CountedCall { tool_name, session_id, agent_id } = input.counted;
    let acting = acting_session(&call, session_id.as_deref(), agent_id.as_deref()).await?;
    let frequency = input.due.frequency.unwrap_or(limits::CHECK_IN);
    let team = &call.services.team;
    let count = team.count_tool(&call.caller, acting, tool_name, Some(frequency)).await?;
    let reminder = count.active.as_ref().map(|ghap| ghap.reminder(count.since));
    Ok(CheckInResult { tool_count: count.since, due: count.due, reminder })
}

const GET: &str = "\
Gives a session: its project, when it began and was last heard of, how often it called which tool, and its active record.";

async fn get(call: Call, acting: ActingSession, _: NoArguments) -> Result<SessionDetail, Failure> {
    Ok(call.services.team.session_detail(&call.caller, &acting.session_id).await?)
}

const LIST: &str = "Lists sessions, those heard of last first.";

async fn list(call: Call, input: ListQuery<SessionFilter>) -> Result<Page<Session>, Failure> {
    let page = PageBounds::from(&input.page).for_model();
    Ok(call.services.team.sessions(&call.caller, &input.filter, page).await?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{ErrorType, tests::World};

    #[tokio::test]
    async fn each_session_and_sub_agent_has_its_own_count() {
        let world = World::open().await;
        let (one, two) = (world.operator(Some("one")), world.operator(Some("two")));
        for _ in 0..3 {
            world.call(&one, "increment_tool_count", json!({ "tool_name": "Bash" })).await;
        }
        let counted = world.call(&two, "increment_tool_count", json!({})).await;
        assert_eq!(counted["tool_count"], 1);
        let beneath = json!({ "tool_name": "Bash", "agent_id": "a1" });
        assert_eq!(world.call(&one, "increment_tool_count", beneath).await["tool_count"], 1);
        let due = async |frequency: i64| {
            world.call(&one, "should_check_in", json!({ "frequency": frequency })).await["should_check_in"].clone()
        };
        assert_eq!((due(3).await, due(4).await), (json!(true), json!(false)));
        assert_eq!(world.call(&one, "reset_tool_count", json!({})).await["tool_count"], 0);
        assert_eq!(due(1).await, json!(false));
        let found = world.call(&one, "get_session", json!({})).await;
        assert_eq!((&found["tool_calls"], &found["tool_count"]), (&json!(3), &json!(0)));
        assert_eq!(found["tools"][0]["count"], 3);
        assert_eq!(found["tools"][1]["agent_id"], "a1");
        let list = world.call(&one, "list_sessions", json!({ "open": true })).await;
        assert_eq!(list["count"], 2);
    }

    #[tokio::test]
    async fn sessions_of_a_client_are_listed_by_either_of_its_names() {
        let world = World::open().await;
        let call = world.operator(None);
        for (session, client) in [("a", "claude"), ("b", "claude-code"), ("c", "codex")] {
            let start = json!({ "session_id": session, "client": client });
            world.call(&call, "start_session", start).await;
        }
        for (client, count) in [("claude", 2), ("claude-code", 2), ("codex", 1), ("gemini", 0)] {
            let listed = world.call(&call, "list_sessions", json!({ "client": client })).await;
            assert_eq!(listed["count"], count, "{client}: {listed}");
        }
    }

    #[tokio::test]
    async fn ping_succeeds_for_every_caller_and_changes_nothing() {
        let world = World::open().await;
        let session = world.session("s");
        for call in [world.operator(None), session] {
            assert_eq!(world.call(&call, "ping", json!({})).await, json!({ "ok": true }));
        }
        let listed = world.call(&world.operator(None), "list_sessions", json!({})).await;
        assert_eq!(listed["count"], 0, "{listed}");
    }

    #[tokio::test]
    async fn of_concurrent_check_ins_one_in_ten_is_due() {
        let world = World::open().await;
        let call = world.operator(Some("s"));
        let calls = (0..50).map(|_| world.call(&call, "check_in", json!({ "tool_name": "Read" })));
        let said = futures_util::future::join_all(calls).await;
        assert_eq!(said.iter().filter(|said| said["due"] == true).count(), 5);
        assert!(
            said.iter().all(|said| said["reminder"].is_null()),
            "there is nothing to be reminded of"
        );
        assert_eq!(world.call(&call, "get_session", json!({})).await["tool_calls"], 50);
    }

    #[tokio::test]
    async fn a_check_in_shows_the_record_once() {
        let world = World::open().await;
        let call = world.operator(Some("s"));
        let start = json!({
            "domain": "testing", "strategy": "ask-user", "goal": "say \"no\" to\nnewlines",
            "hypothesis": "the quote is not escaped in the template", "action": "escape", "prediction": "it parses",
        });
        world.call(&call, "start_ghap", start).await;
        let mut reminders = Vec::new();
        for _ in 0..10 {
            let said = world.call(&call, "check_in", json!({ "frequency": 10 })).await;
            reminders.extend(said["reminder"].as_str().map(str::to_owned));
        }
        assert_eq!(reminders.len(), 1);
        assert!(reminders[0].contains("Goal: say \"no\" to newlines\n"), "{reminders:?}");
        // An update of the record counts as a check-in.
        for _ in 0..9 {
            world.call(&call, "check_in", json!({})).await;
        }
        world.call(&call, "update_ghap", json!({ "note": "n" })).await;
        assert_eq!(world.call(&call, "check_in", json!({})).await["tool_count"], 1);
    }

    #[tokio::test]
    async fn history_of_a_session_without_a_peer_is_empty_for_its_readers_alone() {
        let (world, bare) = World::with_operator().await;
        let id = world.call(&bare, "start_session", json!({})).await["session_id"].clone();
        let key = format!("agent:mcp:{}", id.as_str().unwrap());
        for named in [id.clone(), json!(key)] {
            let history =
                world.call(&bare, "sessions_history", json!({ "sessionKey": named })).await;
            assert_eq!(history["sessionKey"], key, "{history}");
            assert_eq!((&history["messages"], &history["hasMore"]), (&json!([]), &json!(false)));
        }
        let unknown = json!({ "sessionKey": "nobody" });
        world.refuse(&bare, "sessions_history", unknown, ErrorType::NotFound).await;
        let other = world.session("other");
        world.call(&other, "start_session", json!({})).await;
        let current = json!({ "sessionKey": "current" });
        let history = world.call(&other, "sessions_history", current).await;
        assert_eq!(history["sessionKey"], "agent:mcp:other");
        let invisible = json!({ "sessionKey": id });
        world.refuse(&other, "sessions_history", invisible, ErrorType::Forbidden).await;
    }

    #[tokio::test]
    async fn the_default_session_of_a_call() {
        let world = World::open().await;
        let bare = world.operator(None);
        let count = async || {
            world.call(&bare, "increment_tool_count", json!({})).await["tool_count"].clone()
        };
        assert_eq!(count().await, 1);
        assert_eq!(world.call(&bare, "get_session", json!({})).await["session_id"], "default");
        let started = world.call(&bare, "start_session", json!({})).await;
        assert_eq!(started["session_id"].as_str().unwrap().len(), 36);
        assert_eq!(count().await, 1, "the one that was started last");
        let named = json!({ "session_id": "default" });
        assert_eq!(world.call(&bare, "increment_tool_count", named.clone()).await["tool_count"], 2);
        let token = world.session("mine");
        world.call(&token, "increment_tool_count", json!({})).await;
        assert_eq!(world.call(&token, "get_session", json!({})).await["session_id"], "mine");
        world.refuse(&token, "get_session", named, ErrorType::Forbidden).await;
        let odd = json!({ "session_id": "with a \"quote\", ünd so" });
        world.call(&bare, "start_session", odd.clone()).await;
        assert_eq!(
            world.call(&bare, "get_session", json!({})).await["session_id"],
            odd["session_id"]
        );
    }
}
