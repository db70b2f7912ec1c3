//! `/v1/agents`, `/v1/hosts` and `/v1/requests`.

use axum::{
    Extension,
    extract::Path,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::{
    Page,
    agents::{AgentView, NewAgent, SendToAgent},
    process::RequestSender,
    prompts::{AnswerRequest, PromptOutcome},
};
use svc_model::{AgentFilter, Caller, InstanceStatus, InstanceView, PageQuery, RequestFilter};
use svc_store::RequestRow;
use svc_wire::host_protocol::{HistoryPage, HistoryQuery, SendAnswer, StopAgent, StopAnswer};

use super::{
    App, Problem,
    api::Api,
    body::{Json, MaybeJson, Query},
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_agents = Operation::new("Configured ways to run agents, by name")
        .query::<InstanceFilter>()
        .page_or_all();
    let on_agents = on_agents.answer::<Page<InstanceView>>(200, "The instances");
    let on_list = Operation::new("Agents, the latest first").query::<AgentFilter>();
    let on_list = on_list.page_of::<AgentView>("A page of agents");
    let on_start = Operation::new("Start an agent").body::<NewAgent>();
    let on_start = on_start.answer::<AgentView>(201, "Its program runs");
    let on_start =
        on_start.answer::<AgentView>(200, "Started before, with the same idempotency_key");
    let on_show = Operation::new("An agent, by its id or its session key");
    let on_show = on_show.answer::<AgentView>(200, "The agent");
    let on_send = Operation::new("Give an agent input").body::<SendToAgent>();
    let on_send = on_send.answer::<SendAnswer>(200, "Its host has it");
    let on_answer = Operation::new("Answer what an agent asks").body::<AnswerAgentBody>();
    let on_answer = on_answer.answer::<RequestRow>(200, "The first answer");
    let on_interrupt = Operation::new("End an agent's turn, not the agent");
    let on_interrupt = on_interrupt.answer::<AgentView>(200, "The agent was asked to");
    let on_stop = Operation::new("End an agent").optional_body::<StopAgent>();
    let on_stop = on_stop.answer::<StopAnswer>(200, "Its program is reaped");
    let on_history = Operation::new("What was said, also after the end").query::<HistoryQuery>();
    let on_history = on_history.answer::<HistoryPage>(200, "The entries, the oldest first");
    let on_requests = Operation::new("What agents ask, the latest first").query::<RequestFilter>();
    let on_requests = on_requests.page_of::<RequestRow>("A page of requests");
    let on_approve = Operation::new("Answer a request").body::<AnswerRequest>();
    let on_approve = on_approve.answer::<RequestRow>(200, "The first answer");
    let on_approve = on_approve
        .answer::<SentAnswer>(202, "The client has it, and has not shown yet that it has taken it");
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
struct InstanceFilter {
    /// Only instances with this status.
    status: Option<InstanceStatus>,
}

/// Instances by name: a page of them if one is asked for, else all.
async fn agents(
    app: App,
    _: Caller,
    Query(filter): Query<InstanceFilter>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<InstanceView>>, Problem> {
    let mut agents = app.services.agents.instances(false).await?;
    agents.retain(|view| filter.status.is_none_or(|status| view.status == status));
    Ok(Json(Page::part_or_all(agents, &page)?))
}

async fn list(
    app: App,
    caller: Caller,
    Query(filter): Query<AgentFilter>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<AgentView>>, Problem> {
    Ok(Json(app.services.agents.agents(&caller, &filter, &page).await?))
}

async fn start(
    app: App,
    caller: Caller,
    Json(input): Json<NewAgent>,
) -> Result<(StatusCode, Json<AgentView>), Problem> {
    let started = app.services.agents.start_agent(&caller, input).await?;
    let status = if started.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(started.agent)))
}

async fn show(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<AgentView>, Problem> {
    Ok(Json(app.services.agents.agent(&caller, &id).await?))
}

async fn send(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
    Json(input): Json<SendToAgent>,
) -> Result<Json<SendAnswer>, Problem> {
    Ok(Json(app.services.agents.send_to_agent(&caller, &id, input).await?))
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
    app: App,
    caller: Caller,
    Path(id): Path<String>,
    sender: Option<Extension<RequestSender>>,
    Json(body): Json<AnswerAgentBody>,
) -> Result<Response, Problem> {
    let sender = sender.map(|Extension(sender)| sender).unwrap_or_default();
    let AnswerAgentBody { request_id, option_id, text } = body;
    let answer = AnswerRequest { option_id, text, ..AnswerRequest::default() };
    let agents = &app.services.agents;
    Ok(answered(agents.answer_request(&caller, Some(&id), &request_id, answer, sender).await?))
}

/// An answer whose client has not shown yet that it has taken it.
#[derive(Serialize, JsonSchema)]
struct SentAnswer {
    state: &'static str,
    #[serde(flatten)]
    request: RequestRow,
}

fn answered(outcome: PromptOutcome) -> Response {
    match outcome {
        PromptOutcome::Taken(request) => Json(request).into_response(),
        PromptOutcome::Sent(request) => {
            (StatusCode::ACCEPTED, Json(SentAnswer { state: "sent", request })).into_response()
        }
    }
}

async fn interrupt(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<AgentView>, Problem> {
    Ok(Json(app.services.agents.interrupt_agent(&caller, &id).await?))
}

async fn stop(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
    MaybeJson(stop): MaybeJson<StopAgent>,
) -> Result<Json<StopAnswer>, Problem> {
    let stop = stop.unwrap_or_default();
    Ok(Json(app.services.agents.stop_agent(&caller, &id, &stop).await?))
}

async fn history(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<HistoryPage>, Problem> {
    Ok(Json(app.services.agents.agent_history(&caller, &id, &query).await?))
}

async fn requests(
    app: App,
    caller: Caller,
    Query(filter): Query<RequestFilter>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<RequestRow>>, Problem> {
    Ok(Json(app.services.agents.requests(&caller, &filter, &page).await?))
}

async fn approve(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
    sender: Option<Extension<RequestSender>>,
    Json(answer): Json<AnswerRequest>,
) -> Result<Response, Problem> {
    let sender = sender.map(|Extension(sender)| sender).unwrap_or_default();
    Ok(answered(app.services.agents.answer_request(&caller, None, &id, answer, sender).await?))
}
