//! Streams that a client opens: `GET /mcp` of a session, and `subscriptions/listen` of a client
//! without one. `DELETE /mcp` ends a session.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use svc_core::service::Error;
use svc_model::Caller;
use svc_wire::mcp::meta;

use super::{
    McpServer,
    call::log_stream_of,
    methods::CallerResources,
    notices::{NoticeFilter, NoticeQueue},
    request::{
        ModernClient, SESSION_ID, check_legacy_revision, names_modern, no_session, session_of,
    },
    rpc::{ClientRequest, RpcError, notification_message},
    server::McpSession,
    stream::{
        CallLog, LogCursor, event, standalone_response, standalone_stream_of, stream_body,
        stream_head,
    },
};
use crate::web::{Code, EndsWithToken, Problem, StreamSource};

/// `GET /mcp`: the standalone stream of a session, or the rest of a call's stream.
pub(super) async fn open_stream(
    State(server): State<McpServer>,
    Extension(caller): Extension<Caller>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let (server, caller) = (&server, &caller);
    if !headers.contains_key(&SESSION_ID) {
        return Err(only_post());
    }
    let session = required_session(server, caller, &headers).await?;
    if method == Method::HEAD {
        // A stream that is opened ends the one before it.
        return Ok(stream_head());
    }
    // An unreadable header names no stream.
    let last = headers.get("last-event-id").map_or(Ok(""), HeaderValue::to_str);
    let last = last.unwrap_or(".").trim();
    let failed = |error: Error| Problem::from(error).into_response();
    let standalone = async |session, from| {
        standalone_response(server, caller, session, from).await.map_err(failed)
    };
    if last.is_empty() {
        return standalone(session, None).await;
    }
    let unknown = || {
        let text = "this session has no stream with that Last-Event-ID";
        Problem::new(Code::NotFound, text).into_response()
    };
    let LogCursor { stream, after } = LogCursor::parse(last).ok_or_else(unknown)?;
    if stream == standalone_stream_of(&session) {
        return standalone(session, Some(after)).await;
    }
    let row = server.services.mcp.call(caller, stream).await.map_err(failed)?;
    let row = row.filter(|row| row.session_id.as_ref() == Some(&session.id)).ok_or_else(unknown)?;
    let name = log_stream_of(&row.call_id, &session);
    let end = server.services.log.stream_end(&name).await.map_err(failed)?.ok_or_else(unknown)?;
    if after > end.head {
        return Err(unknown());
    }
    if end.closed && after == end.head {
        // The client has all of it, and would resume again after an empty stream.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let log = CallLog::open(server, row.call_id, session, after).await.map_err(failed)?;
    let id = RawValue::from_string(row.rpc_id);
    Ok(log.response(server, id.as_deref().unwrap_or(RawValue::NULL)))
}

pub(super) async fn close(
    State(server): State<McpServer>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<StatusCode, Response> {
    if !headers.contains_key(&SESSION_ID) && !names_modern(&headers, None) {
        let why = "Mcp-Session-Id: is missing; it names the session to end";
        return Err(Problem::malformed(why).into_response());
    }
    let session = required_session(&server, &caller, &headers).await?;
    let closed = server.sessions.close(&session).await;
    closed.map(|()| StatusCode::NO_CONTENT).map_err(|error| Problem::from(error).into_response())
}

async fn required_session(
    server: &McpServer,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Arc<McpSession>, Response> {
    if names_modern(headers, None) {
        return Err(only_post());
    }
    if let Err(error) = check_legacy_revision(headers) {
        return Err(Problem::malformed(error.message).into_response());
    }
    let problem = match session_of(server, caller, headers).await {
        Ok(Some(session)) => return Ok(session),
        Ok(None) => Problem::new(Code::NotFound, no_session().message),
        Err(error) if error.status == 404 => Problem::new(Code::NotFound, error.message),
        Err(_) => Problem::new(Code::Unavailable, "the daemon cannot serve this now"),
    };
    Err(problem.into_response())
}

/// The answer to a client without a session: a stateless revision has no other method, and a client
/// of an older one takes this answer to `GET` for a server without a standalone stream.
fn only_post() -> Response {
    let text =
        "without a session there is only POST: begin with initialize, and send its Mcp-Session-Id";
    let mut response = Problem::new(Code::MethodNotAllowed, text).into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}

#[derive(Serialize)]
struct Acknowledgement<'a> {
    #[serde(rename = "_meta")]
    meta: BTreeMap<&'static str, &'a RawValue>,
    /// Those that are granted.
    notifications: Map<String, Value>,
}

pub(super) async fn listen(
    server: &McpServer,
    caller: &Caller,
    client: &ModernClient,
    request: &ClientRequest,
) -> Result<Response, RpcError> {
    let Some(Value::Object(requested)) = request.params.get("notifications") else {
        return Err(RpcError::invalid_params("params.notifications: must be an object"));
    };
    let mut filter = NoticeFilter {
        tools: wants(requested, "toolsListChanged"),
        prompts: wants(requested, "promptsListChanged") && !server.prompts.is_empty(),
        resources: wants(requested, "resourcesListChanged"),
        ..NoticeFilter::default()
    };
    let mut uris = Vec::new();
    let resources = CallerResources { server, caller };
    for uri in texts(requested, "resourceSubscriptions")? {
        let Some(stream) = resources.stream_of(uri).await? else { continue };
        filter.watched.entry(stream.as_str().to_owned()).or_default().insert(uri.to_owned());
        uris.push(uri);
    }
    for id in texts(requested, "taskIds")? {
        let task = server.services.mcp.call(caller, id).await?.filter(|row| row.is_task);
        if let Some(row) = task.filter(|_| client.has_tasks()) {
            filter.tasks.push(row.call_id);
        }
    }
    let granted = [
        ("toolsListChanged", json!(true), filter.tools),
        ("promptsListChanged", json!(filter.prompts), filter.prompts),
        ("resourcesListChanged", json!(filter.resources), filter.resources),
        ("resourceSubscriptions", json!(uris), !uris.is_empty()),
        ("taskIds", json!(filter.tasks), !filter.tasks.is_empty()),
    ];
    let granted = granted.into_iter().filter(|(.., is_granted)| *is_granted);
    let notifications = granted.map(|(name, value, _)| (name.to_owned(), value)).collect();
    let notices = NoticeQueue::new(server, caller, filter, None).await?;
    let acknowledgement = Acknowledgement {
        meta: BTreeMap::from([(meta::SUBSCRIPTION_ID, &*request.id)]),
        notifications,
    };
    let method = "notifications/subscriptions/acknowledged";
    let acknowledgement = notification_message(method, &acknowledgement);
    let source = ListenSource { request: request.id.clone(), notices: Box::new(notices) };
    let first = Some(event(&acknowledgement));
    let mut response = stream_body(server, first, source).into_events();
    response.extensions_mut().insert(EndsWithToken::Endless);
    Ok(response)
}

fn wants(requested: &Map<String, Value>, name: &str) -> bool {
    requested.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn texts<'a>(requested: &'a Map<String, Value>, name: &str) -> Result<Vec<&'a str>, RpcError> {
    let wrong = || {
        RpcError::invalid_params(format!("params.notifications.{name}: must be a list of strings"))
    };
    match requested.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(texts)) => {
            texts.iter().map(|text| text.as_str().ok_or_else(wrong)).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// The notices of a listen request, which name the request. The stream ends without a result, which
/// would end the subscription: after a restart the client listens again.
struct ListenSource {
    request: Box<RawValue>,
    notices: Box<NoticeQueue>,
}

impl StreamSource for ListenSource {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let notice = self.notices.next().await?;
        Ok(Some(event(&notice.message(Some(&self.request))).into()))
    }
}
