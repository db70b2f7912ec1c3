//! `POST /v1/send_message`: gives work to an agent and streams its output, one JSON object a line.

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use svc_core::service::{
    Error,
    agents::{NewDispatch, WantedMode},
    log::StreamFollower,
};
use svc_model::{Caller, Event, StreamName, TaskId};

use super::{App, Problem, api::Api, body::Json, openapi::Operation};

pub(super) fn routes(api: Api) -> Api {
    let on_send = Operation::new("Give work to an agent, and follow it").body::<SendMessageBody>();
    let on_send = on_send.answer_with(200, "Until the terminal event", "application/x-ndjson");
    let on_send = on_send.answer::<Dispatched>(202, "With opts.async: the task");
    api.post("/v1/send_message", on_send, send_message)
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
    mode: Option<WantedMode>,
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
    let feed = LineFeed {
        follower,
        pulse: app.beat.pulse(),
        stop: Box::pin(app.stop.clone().cancelled_owned()),
        guard: opts.cancel_on_disconnect.then(|| CancelGuard { app, caller, task: Some(task_id) }),
    };
    let lines = stream::unfold(feed, |mut feed| async move {
        let lines = feed.next().await?;
        Some((Ok::<_, std::convert::Infallible>(lines), feed))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
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
    pulse: crate::web::KeepAliveTimer,
    stop: std::pin::Pin<Box<tokio_util::sync::WaitForCancellationFutureOwned>>,
    guard: Option<CancelGuard>,
}

impl LineFeed {
    async fn next(&mut self) -> Option<String> {
        let events = tokio::select! {
            events = self.follower.next() => events,
            () = &mut self.stop => return None,
            () = self.pulse.due() => Ok(Some(Vec::new())),
        };
        self.pulse.spoke();
        let events = events.ok().flatten()?;
        if events.is_empty() {
            // An empty line is no object; it keeps the connection alive.
            return Some("\n".to_owned());
        }
        if let Some(guard) = &mut self.guard
            && events.iter().any(|event| &*event.kind == "terminal")
        {
            guard.task = None;
        }
        Some(events.iter().map(line_of).collect())
    }
}

/// An event as one line: its data, with its owner, its number and its kind.
fn line_of(event: &Event) -> String {
    let data: Map<String, Value> = serde_json::from_str(&event.data).unwrap_or_default();
    let task = event.stream.as_str().trim_start_matches("task/");
    let mut line = Map::new();
    line.insert("task_id".to_owned(), json!(task));
    line.insert("id".to_owned(), json!(event.seq));
    line.insert("kind".to_owned(), json!(&*event.kind));
    for (name, value) in data {
        // A frame's own `kind` is the pipe that it came from.
        let name = if name == "kind" { "pipe".to_owned() } else { name };
        line.entry(name).or_insert(value);
    }
    let mut line = Value::Object(line).to_string();
    line.push('\n');
    line
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
