//! `/v1/agents`, `/v1/hosts` and `/v1/requests`.

use axum::{
    extract::{Path, State},
    http::StatusCode,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::{
    Page,
    agents::{AgentView, AnswerRequest, HistoryView, NewAgent, RequestView, SendToAgent},
};
use svc_model::{Caller, InstanceStatus, InstanceView, agent::AgentState, limits};
use svc_store::AgentFilter;
use svc_wire::host_protocol::{HistoryQuery, StopAgent};

use super::{
    App, Problem,
    api::Api,
    body::{Json, MaybeJson, Query},
    list::List,
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_agents = Operation::new("Configured ways to run agents, by name").query::<ListAgents>();
    let on_agents = on_agents.answer::<Instances>(200, "The instances");
    let on_list = Operation::new("Agents, the latest first").query::<ListHosts>();
    let on_list = on_list.answer::<List<AgentView>>(200, "A page of agents");
    let on_start = Operation::new("Start an agent").body::<NewAgent>();
    let on_start = on_start.answer::<AgentView>(201, "Its program runs");
    let on_start =
        on_start.answer::<AgentView>(200, "Started before, with the same idempotency_key");
    let on_show = Operation::new("An agent, by its id or its session key");
    let on_show = on_show.answer::<AgentView>(200, "The agent");
    let on_send = Operation::new("Give an agent input").body::<SendToAgent>();
    let on_send = on_send.answer::<Sent>(200, "Its host has it");
    let on_answer = Operation::new("Answer what an agent asks").body::<AnswerAgentBody>();
    let on_answer = on_answer.answer::<RequestView>(200, "The first answer");
    let on_interrupt = Operation::new("End an agent's turn, not the agent");
    let on_interrupt = on_interrupt.answer::<AgentView>(200, "The agent was asked to");
    let on_stop = Operation::new("End an agent").optional_body::<StopBody>();
    let on_stop = on_stop.answer::<Stopped>(200, "Its program is reaped");
    let on_history =
        Operation::new("What was said, also after the end").query::<HistoryParameters>();
    let on_history = on_history.answer::<HistoryView>(200, "The entries, the oldest first");
    let on_requests = Operation::new("What agents ask, the latest first").query::<ListRequests>();
    let on_requests = on_requests.answer::<List<RequestView>>(200, "A page of requests");
    let on_approve = Operation::new("Answer a request").body::<AnswerRequest>();
    let on_approve = on_approve.answer::<RequestView>(200, "The first answer");
    api.get("/v1/agents", on_agents, agents)
        .list("/v1/hosts", on_list, list)
        .post("/v1/hosts", on_start, start)
        .get("/v1/hosts/{id}", on_show, show)
        .post("/v1/hosts/{id}/send", on_send, send)
        .post("/v1/hosts/{id}/answer", on_answer, answer)
        .post("/v1/hosts/{id}/interrupt", on_interrupt, interrupt)
        .post("/v1/hosts/{id}/stop", on_stop, stop)
        .get("/v1/hosts/{id}/history", on_history, history)
        .list("/v1/requests", on_requests, requests)
        .post("/v1/requests/{id}/answer", on_approve, approve)
}

#[derive(Deserialize, JsonSchema)]
struct ListAgents {
    /// Only instances with this status.
    status: Option<InstanceStatus>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// Rows of a page; without one and without a cursor the answer has all.
    #[schemars(extend("minimum" = 1, "maximum" = limits::PAGE_MAX))]
    limit: Option<u32>,
}

/// Configured ways to run agents.
#[derive(Serialize, JsonSchema)]
struct Instances {
    /// By name.
    agents: Vec<InstanceView>,
    /// How many of them are here.
    count: usize,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn agents(
    State(app): State<App>,
    _: Caller,
    Query(query): Query<ListAgents>,
) -> Result<Json<Instances>, Problem> {
    let mut agents = app.services.agents.instances(false).await?;
    agents.retain(|view| query.status.is_none_or(|status| view.status == status));
    let mut next_cursor = None;
    if query.cursor.is_some() || query.limit.is_some() {
        let page = Page::of_all(agents, query.cursor.as_deref(), query.limit)?;
        (agents, next_cursor) = (page.items, page.next_cursor);
    }
    Ok(Json(Instances { count: agents.len(), agents, next_cursor }))
}

#[derive(Deserialize, JsonSchema)]
struct ListHosts {
    state: Option<AgentState>,
    instance: Option<String>,
    backend: Option<String>,
    /// Root of a project, or the name of that folder.
    project: Option<String>,
    /// Only agents that have not ended.
    live: Option<bool>,
    /// 1 to 500, by default 50.
    #[schemars(extend("minimum" = 1, "maximum" = limits::PAGE_MAX, "default" = limits::PAGE_DEFAULT))]
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListHosts>,
) -> Result<Json<List<AgentView>>, Problem> {
    let filter = AgentFilter {
        state: query.state,
        instance: query.instance,
        backend: query.backend,
        project: query.project,
        live: query.live.unwrap_or(false),
    };
    let page =
        app.services.agents.agents(&caller, &filter, query.cursor.as_deref(), query.limit).await?;
    Ok(Json(page.into()))
}

async fn start(
    State(app): State<App>,
    caller: Caller,
    Json(input): Json<NewAgent>,
) -> Result<(StatusCode, Json<AgentView>), Problem> {
    let started = app.services.agents.start_agent(&caller, input).await?;
    let status = if started.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(started.agent)))
}

async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<AgentView>, Problem> {
    Ok(Json(app.services.agents.agent(&caller, &id).await?))
}

/// Input that a host has.
#[derive(Serialize, JsonSchema)]
struct Sent {
    /// The input's id.
    message_id: String,
    /// Whether it waits for a turn that is under way.
    queued: bool,
}

async fn send(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Json(input): Json<SendToAgent>,
) -> Result<Json<Sent>, Problem> {
    let sent = app.services.agents.send_to_agent(&caller, &id, input).await?;
    Ok(Json(Sent { message_id: sent.message_id, queued: sent.queued }))
}

/// An answer to an agent.
#[derive(Deserialize, JsonSchema)]
struct AnswerAgentBody {
    /// The request.
    request_id: String,
    /// The option that is chosen.
    option_id: Option<String>,
    /// The answer to a question, in words.
    text: Option<String>,
}

async fn answer(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Json(body): Json<AnswerAgentBody>,
) -> Result<Json<RequestView>, Problem> {
    let AnswerAgentBody { request_id, option_id, text } = body;
    let answer = AnswerRequest { option_id, text };
    Ok(Json(app.services.agents.answer_request(&caller, Some(&id), &request_id, answer).await?))
}

async fn interrupt(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<AgentView>, Problem> {
    Ok(Json(app.services.agents.interrupt_agent(&caller, &id).await?))
}

/// How an agent is to be ended.
#[derive(Default, Deserialize, JsonSchema)]
struct StopBody {
    /// Kill it at once.
    #[serde(default)]
    force: bool,
    /// Seconds until it is killed: from 0 to 3600, by default 30.
    #[serde(default)]
    timeout: i64,
    /// Why.
    reason: Option<String>,
}

/// How an agent was ended.
#[derive(Serialize, JsonSchema)]
struct Stopped {
    /// Whether its program has ended.
    stopped: bool,
    /// Its exit code.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// The number of the signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    /// Whether it ended without SIGKILL.
    graceful: bool,
    /// How long that took, such as `1.204s`.
    duration: String,
    /// The agent's state from now on.
    final_state: AgentState,
}

async fn stop(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    MaybeJson(body): MaybeJson<StopBody>,
) -> Result<Json<Stopped>, Problem> {
    let StopBody { force, timeout, reason } = body.unwrap_or_default();
    let stop = StopAgent { force, timeout, reason };
    let stopped = app.services.agents.stop_agent(&caller, &id, &stop).await?;
    Ok(Json(Stopped {
        stopped: stopped.stopped,
        exit_code: stopped.exit_code,
        signal: stopped.signal,
        graceful: stopped.graceful,
        duration: stopped.duration,
        final_state: stopped.final_state,
    }))
}

#[derive(Deserialize, JsonSchema)]
struct HistoryParameters {
    /// How many of the last entries; 0, the default: all.
    limit: Option<u64>,
    /// Only entries of events before this offset.
    before: Option<u64>,
    /// Whether calls of tools and their results are entries too; by default they are.
    include_tools: Option<bool>,
}

async fn history(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<HistoryParameters>,
) -> Result<Json<HistoryView>, Problem> {
    let query = HistoryQuery {
        limit: query.limit.unwrap_or(0),
        before: query.before,
        include_tools: query.include_tools,
    };
    Ok(Json(app.services.agents.agent_history(&caller, &id, &query).await?))
}

#[derive(Deserialize, JsonSchema)]
struct ListRequests {
    /// Only those that wait for an answer.
    open: Option<bool>,
    /// 1 to 500, by default 50.
    #[schemars(extend("minimum" = 1, "maximum" = limits::PAGE_MAX, "default" = limits::PAGE_DEFAULT))]
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn requests(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListRequests>,
) -> Result<Json<List<RequestView>>, Problem> {
    let open = query.open.unwrap_or(false);
    let page =
        app.services.agents.requests(&caller, open, query.cursor.as_deref(), query.limit).await?;
    Ok(Json(page.into()))
}

async fn approve(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Json(answer): Json<AnswerRequest>,
) -> Result<Json<RequestView>, Problem> {
    Ok(Json(app.services.agents.answer_request(&caller, None, &id, answer).await?))
}
