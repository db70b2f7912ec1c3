//! `/v1/agents`, `/v1/hosts` and `/v1/requests`; the requests that hooks and plugins keep open; and
//! `POST /v1/send_message`, which gives work to an agent and streams its output, one JSON object a
//! line.

use std::convert::Infallible;

use axum::{
    Extension,
    body::Body,
    http::{HeaderValue, StatusCode},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use svc_core::service::{
    Error, Page,
    agents::{AgentView, NewAgent, NewDispatch, SendToAgent},
    handovers::{PluginHold, PluginReport},
    log::StreamFollower,
    process::RequestSender,
    prompts::{HeldPrompt, HeldPromptState, OPEN_PROMPT_INTERVAL},
};
use svc_model::{
    AgentFilter, Caller, Event, InstanceStatus, InstanceView, MessageId, RequestFilter, StreamName,
    TaskId, hook::AnswerRequest,
};
use svc_store::{RequestRow, WorkMode};
use svc_wire::host_protocol::{HistoryPage, HistoryQuery, SendAnswer, StopAgent, StopAnswer};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    App, Problem,
    api::{Api, Operation},
    request::{
        ItemRequest, Json, JsonResult, ListRequest, MaybeJson, PageResult, Query, StatusResult,
        json_lines,
    },
};
use crate::web::{StreamBody, StreamSource};

pub(super) fn routes(api: Api) -> Api {
    let dispatch = Operation::new("Give work to an agent, and follow it")
        .media(200, "application/x-ndjson")
        .answer::<Dispatched>(202);
    let lines = |summary| Operation::new(summary).media(200, "application/x-ndjson");
    let hold = lines("Hold a prompt of one's own session, for its hook");
    let texts = lines("Be given texts for the sessions of one's own process, for a plugin");
    let reported = "Report the result of a text that a plugin was given";
    api.get("/v1/agents", "Configured ways to run agents, by name", agents)
        .list("/v1/hosts", "Agents, the latest first", list)
        .post("/v1/hosts", Operation::new("Start an agent").statuses(&[201, 200]), start)
        .get("/v1/hosts/{id}", "An agent, by its id or its session key", show)
        .post("/v1/hosts/{id}/send", "Give an agent input", send)
        .post("/v1/hosts/{id}/answer", answered("Answer what an agent asks"), answer)
        .post("/v1/hosts/{id}/interrupt", "End an agent's turn, not the agent", interrupt)
        .post("/v1/hosts/{id}/stop", "End an agent", stop)
        .get("/v1/hosts/{id}/history", "What was said, also after the end", history)
        .list("/v1/requests", "What agents ask, the latest first", requests)
        .post("/v1/requests/{id}/answer", answered("Answer a request"), approve)
        .post("/v1/prompts/{id}/hold", hold, hold_prompt)
        .post(
            "/v1/prompts/{id}/printed",
            "Say that the answer to a held prompt is printed",
            printed,
        )
        .post("/v1/handovers/hold", texts, hold_texts)
        .post("/v1/handovers/{id}/report", reported, report)
        .post("/v1/send_message", dispatch, send_message)
}

/// 202: the client has the answer, and has not shown yet that it has taken it.
fn answered(summary: &'static str) -> Operation {
    Operation::new(summary).statuses(&[200, 202])
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
) -> StatusResult<AnsweredRequest> {
    let AnswerAgentBody { request_id, option_id, text } = body;
    let answer = AnswerRequest { option_id, text, ..AnswerRequest::default() };
    answer_request(&item.app, &item.caller, Some(&item.id), &request_id, answer, sender).await
}

/// A request that is answered.
#[derive(Serialize, JsonSchema)]
struct AnsweredRequest {
    /// `sent` if the client has not shown yet that it has taken the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
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
) -> StatusResult<AnsweredRequest> {
    let sender = sender.map(|Extension(sender)| sender).unwrap_or_default();
    let agents = &app.services.agents;
    let request = agents.answer_request(caller, agent, request, answer, sender).await?;
    let (status, state) = match request.closed_at {
        Some(_) => (StatusCode::OK, None),
        None => (StatusCode::ACCEPTED, Some("sent")),
    };
    Ok((status, Json(AnsweredRequest { state, request })))
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
) -> StatusResult<AnsweredRequest> {
    answer_request(&item.app, &item.caller, None, &item.id, answer, sender).await
}

// Hooks hold a prompt of their session, and plugins receive texts for the sessions of their
// process, by requests that stay open. Both responses are lines of JSON, sent one at a time.

/// What a hold is told.
trait Hold: Send + 'static {
    /// The next line, and whether it is the last.
    fn next_line(&mut self) -> impl Future<Output = (Value, bool)> + Send;
}

fn state(word: &str) -> Value {
    json!({ "state": word })
}

/// `open` at once, then the lines of the hold, until the last one or the daemon's stop.
fn hold_response(stop: CancellationToken, hold: impl Hold) -> Response {
    let lines = stream::unfold((hold, true, false), move |(mut hold, is_first, is_over)| {
        let stop = stop.clone();
        async move {
            if is_over {
                return None;
            }
            let (line, is_last) = if is_first {
                (state("open"), false)
            } else {
                stop.run_until_cancelled(hold.next_line()).await?
            };
            Some((Ok::<_, Infallible>(format!("{line}\n")), (hold, false, is_last)))
        }
    });
    json_lines(Body::from_stream(lines))
}

async fn hold_prompt(item: ItemRequest) -> Result<Response, Problem> {
    let prompt = item.app.services.prompts.hold(&item.caller, &item.id).await?;
    Ok(hold_response(item.app.stop.clone(), prompt))
}

impl Hold for HeldPrompt {
    async fn next_line(&mut self) -> (Value, bool) {
        match self.next().await {
            HeldPromptState::Open => (state("open"), false),
            // The hook prints the answer while this connection is open.
            HeldPromptState::Answered(answer) => {
                (json!({ "state": "answer", "answer": answer }), false)
            }
            HeldPromptState::Printed | HeldPromptState::Over => (state("over"), true),
        }
    }
}

/// What was reported is noted.
#[derive(Serialize, JsonSchema)]
struct Noted {
    /// The request, or the hand-over.
    id: String,
}

async fn printed(item: ItemRequest) -> JsonResult<Noted> {
    item.app.services.prompts.printed(&item.caller, &item.id).await?;
    Ok(Json(Noted { id: item.id }))
}

async fn hold_texts(app: App, caller: Caller) -> Result<Response, Problem> {
    Ok(hold_response(app.stop.clone(), app.services.handovers.hold(&caller)?))
}

impl Hold for PluginHold {
    async fn next_line(&mut self) -> (Value, bool) {
        match timeout(OPEN_PROMPT_INTERVAL, self.next()).await {
            Ok(Some(word)) => (json!(word), false),
            Ok(None) => (state("over"), true),
            Err(_) => (state("open"), false),
        }
    }
}

/// What a plugin says of a hand-over.
#[derive(Deserialize, JsonSchema)]
struct HandoverReport {
    /// Result of the hand-over, or the answer to where the messages are.
    state: ReportedState,
    /// Of `shows`: the messages that are in the session.
    #[serde(default)]
    messages: Vec<MessageId>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ReportedState {
    Taken,
    Refused,
    Unknown,
    Shows,
    Unreadable,
}

async fn report(item: ItemRequest, Json(input): Json<HandoverReport>) -> JsonResult<Noted> {
    let report = match input.state {
        ReportedState::Taken => PluginReport::Taken,
        ReportedState::Refused => PluginReport::Refused,
        ReportedState::Unknown => PluginReport::Unknown,
        ReportedState::Shows => PluginReport::Shows(input.messages),
        ReportedState::Unreadable => PluginReport::Unreadable,
    };
    item.app.services.handovers.report(&item.caller, &item.id, report)?;
    Ok(Json(Noted { id: item.id }))
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
    /// Another name of `session`.
    #[schemars(skip)]
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

impl SendMessageOptions {
    fn take_session(&mut self) -> Result<Option<String>, Problem> {
        match (self.session.take(), self.session_id.take()) {
            (Some(_), Some(_)) => Err(Problem::invalid(
                "opts.session_id",
                "is another name of opts.session: give opts.session alone",
            )),
            (session, session_id) => Ok(session.or(session_id)),
        }
    }
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
    let SendMessageBody { instance, prompt, tag, mut opts } = body;
    let session = opts.take_session()?;
    let dispatch = NewDispatch {
        agent: instance,
        tag: tag.or(opts.tag),
        prompt,
        mode: opts.mode,
        session,
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
    let body = StreamBody::new(&app.stop, app.services.tuning().sse_keep_alive, None, feed);
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
