//! `GET /mcp` and `DELETE /mcp`: the streams of a session, and its end.

use std::sync::Arc;

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use svc_core::service::Error;
use svc_model::Caller;

use super::{
    super::{
        McpServer,
        call::log_stream_of,
        era,
        session::McpSession,
        stream::{CallLog, LogCursor, standalone_response, standalone_stream_of},
    },
    request::{SESSION_ID, no_session},
};
use crate::web::{Code, Problem};

/// `GET /mcp`: the standalone stream of a session, or the rest of a call's.
pub(super) async fn open_stream(
    State(server): State<McpServer>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    match stream_of(&server, &caller, &headers).await {
        Ok(response) | Err(response) => response,
    }
}

async fn stream_of(
    server: &McpServer,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Response, Response> {
    if !headers.contains_key(&SESSION_ID) {
        return Err(only_post());
    }
    let session = required_session(server, caller, headers).await?;
    // A header that cannot be read names no stream.
    let last = headers.get("last-event-id").map_or(Ok(""), HeaderValue::to_str);
    let last = last.unwrap_or(".").trim();
    let failed = |error: Error| Problem::from(error).into_response();
    if last.is_empty() {
        return standalone_response(server, caller, session, None).await.map_err(failed);
    }
    let unknown = || {
        let text = "this session has no stream with that Last-Event-ID";
        Problem::new(Code::NotFound, text).into_response()
    };
    let LogCursor { stream, after } = LogCursor::parse(last).ok_or_else(unknown)?;
    if stream == standalone_stream_of(&session) {
        return standalone_response(server, caller, session, Some(after)).await.map_err(failed);
    }
    let row = server.services.mcp.call(caller, stream).await.map_err(failed)?;
    let row = row.filter(|row| row.session_id.as_ref() == Some(&session.id)).ok_or_else(unknown)?;
    let name = log_stream_of(&row.call_id, &session);
    let end = server.services.log.stream_end(&name).await.map_err(failed)?.ok_or_else(unknown)?;
    if after > end.head {
        return Err(unknown());
    }
    if end.closed && after == end.head {
        // The client has it all, and would only come back for more.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let log = CallLog::open(server, row.call_id, name, session, after).await.map_err(failed)?;
    Ok(log.response(server))
}

/// `DELETE /mcp`: ends a session.
pub(super) async fn close(
    State(server): State<McpServer>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    if !headers.contains_key(&SESSION_ID) && !era::names_modern_revision(&headers, None) {
        return Problem::malformed("Mcp-Session-Id: is missing; it names the session to end")
            .into_response();
    }
    let session = match required_session(&server, &caller, &headers).await {
        Ok(session) => session,
        Err(problem) => return problem,
    };
    match server.close_session(&session).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => Problem::from(error).into_response(),
    }
}

/// The session of a request that makes no sense without one.
async fn required_session(
    server: &McpServer,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Arc<McpSession>, Response> {
    if era::names_modern_revision(headers, None) {
        return Err(only_post());
    }
    if let Err(error) = era::check_legacy_revision(headers) {
        return Err(Problem::malformed(error.message).into_response());
    }
    let problem = match server.session_of(caller, headers).await {
        Ok(Some(session)) => return Ok(session),
        Ok(None) => Problem::new(Code::NotFound, no_session().message),
        Err(error) if error.status == 404 => Problem::new(Code::NotFound, error.message),
        Err(_) => Problem::new(Code::Unavailable, "the daemon cannot serve this now"),
    };
    Err(problem.into_response())
}

/// To a client without a session: a stateless revision has no other method, and a client of an older one takes this answer to
/// `GET` for a server without a standalone stream.
fn only_post() -> Response {
    let text =
        "without a session there is only POST: begin with initialize, and send its Mcp-Session-Id";
    let mut response = Problem::new(Code::MethodNotAllowed, text).into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}
