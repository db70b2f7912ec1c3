//! `/v1/agents`, `/v1/hosts` and `/v1/requests`; and `POST /v1/send_message`, which gives work to
//! an agent and streams its output, one JSON object a line.

use axum::{
    Extension,
    http::{HeaderValue, StatusCode},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use svc_core::service::{
    Error, Page,
    agents::{AgentView, NewAgent, NewDispatch, SendToAgent},
    log::StreamFollower,
    process::RequestSender,
};
use svc_model::{
    AgentFilter, Caller, Event, InstanceStatus, InstanceView, RequestFilter, StreamName, TaskId,
    hook::AnswerRequest,
};
use svc_store::{RequestRow, WorkMode};
use svc_wire::host_protocol::{HistoryPage, HistoryQuery, SendAnswer, StopAgent, StopAnswer};

use super::{
    App, Problem,
    api::{Api, Operation},
    request::{
        ItemRequest, Json, JsonResult, ListRequest, MaybeJson, PageResult, Query, StatusResult,
        json_lines,
    },
};
use crate::stream_body::{StreamBody, StreamSource};

pub(super) fn routes(api: Api) -> Api {
    let on_agents =
        Operation::new("Configured ways to run agents, by name").query::<InstanceFilter>();
    let on_agents = on_agents.page_of::<InstanceView>("A page of instances");
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
    let on_dispatch =
        Operation::new("Give work to an agent, and follow it").body::<SendMessageBody>();
    let on_dispatch =
        on_dispatch.answer_with(200, "Until the terminal event", "application/x-ndjson");
    let on_dispatch = on_dispatch.answer::<Dispatched>(202, "With opts.async: the task");
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
        .post("/v1/send_message", on_dispatch, send_message)
}

#[derive(Deserialize, JsonSchema)]
struct InstanceFilter {
    /// Only instances with this status.
    status: Option<InstanceStatus>,
}

async fn agents(list: ListRequest<InstanceFilter>) -> PageResult<InstanceView> {
    let status = list.filter.status;
    let mut agents = list.app.services.agents.instances(false).await?;
    agents.retain(|view| status.is_none_or(|status| view.status == status));
    Ok(Json(Page::part("agents", agents, &list.page)?))
}

async fn list(list: ListRequest<AgentFilter>) -> PageResult<AgentView> {
    Ok(Json(list.app.services.agents.agents(&list.caller, &list.filter, &list.page).await?))
}

async fn start(app: App, caller: Caller, Json(input): Json<NewAgent>) -> StatusResult<AgentView> {
    let started = app.services.agents.start_agent(&caller, input).await?;
    let status = if started.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(started.agent)))
}

async fn show(item: ItemRequest) -> JsonResult<AgentView> {
    Ok(Json(item.app.services.agents.agent(&item.caller, &item.id).await?))
}

async fn send(item: ItemRequest, Json(input): Json<SendToAgent>) -> JsonResult<SendAnswer> {
    Ok(Json(item.app.services.agents.send_to_agent(&item.caller, &item.id, input).await?))
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
    item: ItemRequest,
    sender: Option<Extension<RequestSender>>,
    Json(body): Json<AnswerAgentBody>,
) -> Result<Response, Problem> {
    let AnswerAgentBody { request_id, option_id, text } = body;
    let answer = AnswerRequest { option_id, text, ..AnswerRequest::default() };
    answer_request(&item.app, &item.caller, Some(&item.id), &request_id, answer, sender).await
}

/// An answer whose client has not shown yet that it has taken it.
#[derive(Serialize, JsonSchema)]
struct SentAnswer {
    state: &'static str,
    #[serde(flatten)]
    request: RequestRow,
}

async fn answer_request(
    app: &App,
    caller: &Caller,
    agent: Option<&str>,
    request: &str,
    answer: AnswerRequest,
    sender: Option<Extension<RequestSender>>,
) -> Result<Response, Problem> {
    let sender = sender.map(|Extension(sender)| sender).unwrap_or_default();
    let agents = &app.services.agents;
    let request = agents.answer_request(caller, agent, request, answer, sender).await?;
    if request.closed_at.is_some() {
        return Ok(Json(request).into_response());
    }
    Ok((StatusCode::ACCEPTED, Json(SentAnswer { state: "sent", request })).into_response())
}

async fn interrupt(item: ItemRequest) -> JsonResult<AgentView> {
    Ok(Json(item.app.services.agents.interrupt_agent(&item.caller, &item.id).await?))
}

async fn stop(item: ItemRequest, MaybeJson(stop): MaybeJson<StopAgent>) -> JsonResult<StopAnswer> {
    let ItemRequest { app, caller, id } = item;
    Ok(Json(app.services.agents.stop_agent(&caller, &id, &stop.unwrap_or_default()).await?))
}

async fn history(item: ItemRequest, Query(query): Query<HistoryQuery>) -> JsonResult<HistoryPage> {
    Ok(Json(item.app.services.agents.agent_history(&item.caller, &item.id, &query).await?))
}

async fn requests(list: ListRequest<RequestFilter>) -> PageResult<RequestRow> {
    Ok(Json(list.app.services.agents.requests(&list.caller, &list.filter, &list.page).await?))
}

async fn approve(
    item: ItemRequest,
    sender: Option<Extension<RequestSender>>,
    Json(answer): Json<AnswerRequest>,
) -> Result<Response, Problem> {
    answer_request(&item.app, &item.caller, None, &item.id, answer, sender).await
}

/// Work for an agent.
#[derive(Deserialize, JsonSchema)]
struct SendMessageBody {
    /// An instance, a backend with one instance, or the name, key or id of a participant who is
    /// here.
    instance: Option<String>,
    /// The instructions.
    prompt: String,
    /// Any callable instance with this tag.
    tag: Option<String>,
    /// How.
    #[serde(default)]
    opts: SendMessageOptions,
}

/// How work is given.
#[derive(Default, Deserialize, JsonSchema)]
struct SendMessageOptions {
    /// Answer at once with the task.
    #[serde(default, rename = "async")]
    is_async: bool,
    /// Which agents may take it.
    mode: Option<WorkMode>,
    /// An ended conversation to go on with.
    session: Option<String>,
    /// The same.
    session_id: Option<String>,
    /// The vendor's model.
    model: Option<String>,
    /// Where a new agent works.
    cwd: Option<String>,
    /// Where a new agent works if neither `cwd` nor its instance says so.
    default_cwd: Option<String>,
    /// As the member `tag` beside `opts`.
    tag: Option<String>,
    /// Who asks, which only the operator may choose.
    from_peer_id: Option<String>,
    /// A repeat with the same key is answered with the task first made.
    idempotency_key: Option<String>,
    /// Whether the task is cancelled when the client goes away.
    #[serde(default)]
    cancel_on_disconnect: bool,
}

/// Work that was given.
#[derive(Serialize, JsonSchema)]
struct Dispatched {
    /// The task.
    task_id: TaskId,
    /// Who gets it.
    instance: String,
    /// The kind of agent.
    backend: String,
}

async fn send_message(
    app: App,
    caller: Caller,
    Json(body): Json<SendMessageBody>,
) -> Result<Response, Problem> {
    let SendMessageBody { instance, prompt, tag, opts } = body;
    let dispatch = NewDispatch {
        agent: instance,
        tag: tag.or(opts.tag),
        prompt,
        mode: opts.mode,
        session: opts.session.or(opts.session_id),
        model: opts.model,
        cwd: opts.cwd,
        default_cwd: opts.default_cwd,
        from_peer_id: opts.from_peer_id,
        idempotency_key: opts.idempotency_key,
        ..NewDispatch::default()
    };
    let dispatched = app.services.agents.dispatch(&caller, dispatch).await.map_err(named_here)?;
    let task_id = dispatched.task.task_id;
    if opts.is_async {
        let (instance, backend) = (dispatched.instance, dispatched.backend);
        let body = Json(Dispatched { task_id, instance, backend });
        return Ok((StatusCode::ACCEPTED, body).into_response());
    }
    let follower = app.services.log.follow(StreamName::new("task", &task_id), 0).await?;
    let new_guard =
        || CancelGuard { app: app.clone(), caller: caller.clone(), task: Some(task_id) };
    let feed = LineFeed { follower, guard: opts.cancel_on_disconnect.then(new_guard) };
    let body = StreamBody::new(&app.stop, &app.keep_alive, None, feed);
    let mut response = json_lines(body.into_body());
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// A refusal with the member names of this body.
fn named_here(error: Error) -> Error {
    let Error::Invalid { field, why } = error else { return error };
    let field = match field.as_str() {
        "agent" => "instance".to_owned(),
        "prompt" | "tag" => field,
        _ => format!("opts.{field}"),
    };
    Error::Invalid { field, why }
}

/// The events of a task as lines.
struct LineFeed {
    follower: StreamFollower,
    guard: Option<CancelGuard>,
}

impl StreamSource for LineFeed {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(events) = self.follower.next().await? else { return Ok(None) };
        if let Some(guard) = &mut self.guard
            && events.iter().any(|event| &*event.kind == "terminal")
        {
            guard.task = None;
        }
        Ok(Some(events.iter().map(line_of).collect::<String>().into()))
    }

    /// An empty line is no object.
    fn keep_alive(&mut self) -> &'static str {
        "\n"
    }
}

/// An event as one line: its data, with its owner, its number and its kind.
fn line_of(event: &Event) -> String {
    let data: Map<String, Value> = serde_json::from_str(&event.data).unwrap_or_default();
    let task = event.stream.as_str().trim_start_matches("task/");
    let mut line = Map::new();
    line.insert("task_id".to_owned(), task.into());
    line.insert("id".to_owned(), event.seq.into());
    line.insert("kind".to_owned(), (&*event.kind).into());
    for (name, value) in data {
        // A frame's own `kind` is the pipe that it came from.
        let name = if name == "kind" { "pipe".to_owned() } else { name };
        line.entry(name).or_insert(value);
    }
    format!("{}\n", Value::Object(line))
}

/// Cancels a task when it is dropped before the end.
struct CancelGuard {
    app: App,
    caller: Caller,
    task: Option<TaskId>,
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        // Shutdown ends the connection, too, and must not cancel the task.
        if self.app.stop.is_cancelled() {
            return;
        }
        let (app, caller) = (self.app.clone(), self.caller.clone());
        tokio::spawn(async move {
            if let Err(error) = app.services.tasks.cancel_task(&caller, task.as_str()).await {
                tracing::debug!(%task, %error, "a task of a client that went away goes on");
            }
        });
    }
}
