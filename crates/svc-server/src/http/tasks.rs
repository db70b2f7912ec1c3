//! `/v1/tasks`, and the feed of one task.

use std::sync::Arc;

use axum::{
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use svc_core::service::log::StartAfter;
use svc_model::{
    Caller, Framing, NewTask, RunnerProcess, Seq, StreamName, Task, TaskChange, TaskEvent,
    TaskEventBody, TaskFilter, TaskReport, TaskStatus, limits,
};

use super::{
    App, Problem,
    api::{Api, Operation},
    events::{last_event_id, sse_response},
    request::{
        ItemRequest, Json, JsonBytes, JsonResult, ListRequest, Object, PageResult, Query,
        StatusResult, parse, parse_object, text_of,
    },
};
use crate::web;

pub(super) fn routes(api: Api) -> Api {
    let append_all = Operation::new("Append events to a task: one, or an array of up to 1,000");
    let append_all = append_all.body::<Events>();
    let stop = Operation::new("Ask for a task to be stopped").statuses(&[200, 202]);
    let follow = Operation::new("Follow a task: `task`, `frame` and `terminal` events")
        .header("Last-Event-ID", "The last id received: what is greater follows")
        .media(200, "text/event-stream")
        .media(204, "");
    api.post("/v1/tasks", Operation::new("Make a task").statuses(&[201, 200]), create)
        .list("/v1/tasks", "Tasks, the latest first", list)
        .get("/v1/tasks/{id}", "A task", show)
        .post("/v1/tasks/{id}/events", append_all, append)
        .post("/v1/tasks/{id}/cancel", stop, cancel)
        .get("/v1/biam/subscribe", follow, watch)
}

async fn create(app: App, caller: Caller, Json(input): Json<NewTask>) -> StatusResult<Task> {
    let created = app.services.tasks.create_task(&caller, input).await?;
    let status = if created.is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(created.task)))
}

async fn list(list: ListRequest<TaskFilter>) -> PageResult<Task> {
    Ok(Json(list.app.services.tasks.tasks(&list.caller, &list.filter, &list.page).await?))
}

async fn show(item: ItemRequest) -> JsonResult<Arc<Task>> {
    Ok(Json(item.app.services.tasks.task(&item.caller, &item.id).await?))
}

/// One event, or an array of at most 1,000.
// Only for the schema: `parse_events` parses the body, so that an error names the bad event.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "stands for the body in the description")]
enum Events {
    One(EventIn<()>),
    Many(Vec<EventIn<()>>),
}

/// An event; `data` depends on its kind.
#[derive(Deserialize, JsonSchema)]
#[schemars(bound = "", rename = "EventIn")]
struct EventIn<D> {
    kind: EventInKind,
    /// Of a `frame`: `{line, kind: "stdout"|"stderr", ts?}`. Of `task` and `terminal`:
    /// `{status, exit_code?, signal?, error?}`.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    data: D,
    /// The producer's own id, 1 to 128 bytes: a repeat is answered with the ids first given.
    id: Option<String>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum EventInKind {
    Frame,
    Task,
    Terminal,
}

#[derive(Serialize, JsonSchema)]
struct Appended {
    first_id: Seq,
    last_id: Seq,
}

async fn append(item: ItemRequest, JsonBytes(body): JsonBytes) -> JsonResult<Appended> {
    let events = web::parse_body(body, parse_events).await?;
    let ItemRequest { app, caller, id } = item;
    let appended = app.services.tasks.append_task_events(&caller, &id, events).await?;
    Ok(Json(Appended { first_id: appended.first, last_id: appended.last }))
}

async fn cancel(item: ItemRequest) -> StatusResult<Task> {
    let cancelled = item.app.services.tasks.cancel_task(&item.caller, &item.id).await?;
    let status = if cancelled.at_once { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(cancelled.task)))
}

#[derive(Deserialize, JsonSchema)]
struct Watch {
    /// The task. Blank or missing: 400.
    #[schemars(required)]
    task_id: Option<String>,
    /// As the header of that name, which wins.
    last_event_id: Option<String>,
}

async fn watch(
    app: App,
    caller: Caller,
    Query(query): Query<Watch>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let id = query.task_id.as_deref().map(str::trim).unwrap_or_default();
    if id.is_empty() {
        return Err(Problem::malformed("task_id: must name a task"));
    }
    let after = last_event_id(&headers, query.last_event_id.as_deref())?.unwrap_or(0);
    let task = app.services.tasks.task(&caller, id).await?;
    let (name, after_id) = (StreamName::new("task", &task.task_id), StartAfter::Cursor(after));
    let log = &app.services.log;
    let subscription = log.subscribe_stream(name.as_str(), after_id, Framing::Data, None).await?;
    if after > 0 && subscription.is_complete() {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(sse_response(&app, subscription, None, None))
}

#[derive(Deserialize)]
struct RawChange {
    status: TaskStatus,
    runner: Option<RunnerProcess>,
}

fn parse_events(body: &[u8]) -> Result<Vec<TaskEvent>, Problem> {
    let text = text_of(body)?;
    if !text.trim_ascii_start().starts_with('[') {
        return Ok(vec![parse_event(parse_object(text)?)?]);
    }
    let raw: Vec<Object<EventIn<&RawValue>>> = parse(text)?;
    if !(1..=limits::EVENTS_PER_REQUEST).contains(&raw.len()) {
        let (most, len) = (limits::EVENTS_PER_REQUEST, raw.len());
        let rule = format!("an array has from 1 to {most} events, not {len}");
        return Err(Problem::invalid("", rule));
    }
    let events = raw.into_iter().enumerate().map(|(index, Object(event))| {
        parse_event(event).map_err(|problem| problem.within(&format!("[{index}]")))
    });
    events.collect()
}

fn parse_event(raw: EventIn<&RawValue>) -> Result<TaskEvent, Problem> {
    let body = match raw.kind {
        EventInKind::Frame => TaskEventBody::Frame(parse_data(raw.data)?),
        EventInKind::Task => parse_change(raw.data, false)?,
        EventInKind::Terminal => parse_change(raw.data, true)?,
    };
    Ok(TaskEvent { producer_id: raw.id, body })
}

/// Parses a `task` or a `terminal` event: the two differ in the allowed statuses.
fn parse_change(data: &RawValue, terminal: bool) -> Result<TaskEventBody, Problem> {
    let RawChange { status, runner } = parse_data(data)?;
    if status.is_terminal() != terminal {
        let rule = if terminal {
            "must be done, failed, cancelled or expired in a `terminal` event"
        } else {
            "must be pending or active in a `task` event; a `terminal` event ends the task"
        };
        return Err(Problem::invalid("data.status", rule));
    }
    let report: TaskReport = parse_data(data)?;
    Ok(TaskEventBody::Change(TaskChange { report, runner, ..TaskChange::to(status, None) }))
}

fn parse_data<T: DeserializeOwned>(data: &RawValue) -> Result<T, Problem> {
    parse_object(data.get()).map_err(|problem: Problem| problem.within("data"))
}
