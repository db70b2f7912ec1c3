//! What all paths need of a request: its body, its session, its era; how a request is refused; and
//! messages that want no answer: notifications, and answers to the server's own questions.

use std::sync::Arc;

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Request, header, request::Parts};
use serde_json::{Value, value::RawValue};
use svc_core::service::process::RequestSender;
use svc_model::{Caller, limits};
use svc_store::McpTransport;
use svc_wire::mcp;

use super::super::{
    McpServer,
    call::RequestKey,
    era,
    metrics::{RequestEra, RequestMeter},
    origin::RequestOrigin,
    rpc::{
        ClientBody, ClientMessage, ClientRequest, PARSE_ERROR, RpcError, SESSION_NOT_FOUND,
        UnreadableMessage, error_message, parse_body,
    },
    server::McpSession,
    stream::{AnswerForms, whole_response},
};
use crate::web::{self, Code, GivenRequestId, Problem};

pub(super) static METHOD: HeaderName = HeaderName::from_static(mcp::METHOD);
pub(super) static NAME: HeaderName = HeaderName::from_static(mcp::NAME);
pub(super) static SESSION_ID: HeaderName = HeaderName::from_static(mcp::SESSION_ID);

/// A request's head and body. Of its ids those are left that the client has given: the daemon's own
/// are for its log.
pub(super) fn parts_of(request: Request<Body>) -> (Parts, Body) {
    let (mut parts, body) = request.into_parts();
    if parts.extensions.get::<GivenRequestId>().is_none() {
        parts.headers.remove("x-request-id");
    }
    (parts, body)
}

/// Who sent a request.
pub(super) fn sender_of(extensions: &Extensions) -> RequestSender {
    extensions.get().copied().unwrap_or_default()
}

/// Reads a body of JSON.
pub(super) async fn read_body(
    server: &McpServer,
    headers: &HeaderMap,
    body: Body,
) -> Result<Bytes, Problem> {
    if !web::is_json(headers) {
        return Err(Problem::new(
            Code::UnsupportedMediaType,
            "the body must be JSON: Content-Type: application/json",
        ));
    }
    web::read(body, limits::BODY_BYTES, server.services.tuning().body_stall).await
}

/// Reads the messages of a body.
pub(super) fn parse_messages(body: &[u8]) -> Result<ClientBody, UnreadableMessage> {
    let Ok(text) = std::str::from_utf8(body) else {
        let error = RpcError::new(PARSE_ERROR, "the body is not UTF-8").status(400);
        return Err(UnreadableMessage { id: None, error });
    };
    if web::is_too_heavy(text) {
        return Err(UnreadableMessage { id: None, error: RpcError::too_large(web::TOO_HEAVY) });
    }
    parse_body(text)
}

/// The answer with an error.
pub(super) fn refusal(id: Option<&RawValue>, error: &RpcError, forms: AnswerForms) -> Response {
    let mut response = whole_response(error_message(id, error), error.status, forms);
    if let 429 | 503 = error.status {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

pub(super) fn no_session() -> RpcError {
    // 404 and not 400: it makes a client begin anew.
    RpcError::new(SESSION_NOT_FOUND, "there is no such session: begin with initialize").status(404)
}

/// Repeats a request's header on its response.
pub(super) fn echo(response: &mut Response, name: &HeaderName, value: &str) {
    let value = mcp::encode_value(value);
    // Clients bound the head of a response, and a longer value is no name of ours.
    let is_short = value.len() <= limits::SHORT_TEXT_BYTES;
    if let Some(value) = HeaderValue::from_str(&value).ok().filter(|_| is_short) {
        response.headers_mut().insert(name.clone(), value);
    }
}

/// The era of a request, and its session.
pub(super) async fn request_origin(
    server: &McpServer,
    caller: &Caller,
    headers: &HeaderMap,
    request: &ClientRequest,
) -> Result<RequestOrigin, RpcError> {
    if let Some(client) = era::modern_client(headers, &request.method, &request.params)? {
        era::check_standard_headers(headers, request)?;
        return Ok(RequestOrigin::Modern(client));
    }
    era::check_legacy_revision(headers)?;
    if request.method == "initialize" {
        return Ok(RequestOrigin::Bare);
    }
    let session = session_of(server, caller, headers).await?;
    Ok(session.map_or(RequestOrigin::Bare, RequestOrigin::Legacy))
}

/// The session that the headers name; an error if there is none of that id.
pub(super) async fn session_of(
    server: &McpServer,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Option<Arc<McpSession>>, RpcError> {
    let Some(id) = headers.get(&SESSION_ID) else { return Ok(None) };
    let id = id.to_str().map_err(|_| no_session())?;
    let session = server.sessions.find(caller, id).await?;
    session
        .filter(|session| session.transport == McpTransport::Http)
        .map(Some)
        .ok_or_else(no_session)
}

/// Begins to measure a request. The label has its name if the server knows it; a tool is looked
/// up by its call.
pub(super) fn meter_of(
    server: &McpServer,
    method: &str,
    name: Option<&str>,
    era: RequestEra,
) -> RequestMeter {
    let known = name.filter(|name| match method {
        "prompts/get" => server.prompts.borrow().iter().any(|prompt| prompt.is_called(name)),
        _ => false,
    });
    RequestMeter::start(method, known.unwrap_or_default(), era)
}

/// Does what a message that wants no answer says. Without a session it says nothing.
pub(super) async fn handle_one_way(
    server: &McpServer,
    session: Option<&McpSession>,
    message: ClientMessage,
) {
    let Some(session) = session else { return };
    match message {
        ClientMessage::Response { id, outcome } => {
            server.questions.answer(&session.id, &id, outcome);
        }
        ClientMessage::Notification { method, params } if method == "notifications/cancelled" => {
            // One for a call that is over is harmless: clients send it for each.
            if let Some(id) = params.get("requestId") {
                // A call that is on record is not registered until its recording ends.
                drop(session.recording.lock().await);
                let why = params.get("reason").and_then(Value::as_str);
                server.running.cancel(&RequestKey::new(&session.id, id), why);
            }
        }
        ClientMessage::Request(_) | ClientMessage::Notification { .. } => {}
    }
}
