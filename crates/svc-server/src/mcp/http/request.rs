//! What all paths need of a request: its body, its session, its era; how a request is refused; and
//! messages that want no answer: notifications, and answers to the server's own questions.

use std::sync::Arc;

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, request::Parts};
use serde_json::{Value, value::RawValue};
use svc_model::{Caller, limits};
use svc_store::McpTransport;
use svc_wire::mcp;

use super::super::{
    McpServer,
    call::RequestKey,
    era,
    origin::RequestOrigin,
    rpc::{
        ClientBody, ClientMessage, ClientRequest, INVALID_REQUEST, PARSE_ERROR, RpcError,
        SESSION_NOT_FOUND, UnreadableMessage, error_message, parse_body,
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
    whole_response(error_message(id, error), error.status, forms)
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

impl McpServer {
    /// The era of a request, and its session.
    pub(super) async fn request_origin(
        &self,
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
        let session = self.session_of(caller, headers).await?;
        Ok(session.map_or(RequestOrigin::Bare, RequestOrigin::Legacy))
    }

    /// The session that the headers name; an error if there is none of that id.
    pub(super) async fn session_of(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<McpSession>>, RpcError> {
        let Some(id) = headers.get(&SESSION_ID) else { return Ok(None) };
        let id = id.to_str().map_err(|_| no_session())?;
        let session = self.session(caller, id).await?;
        session
            .filter(|session| session.transport == McpTransport::Http)
            .map(Some)
            .ok_or_else(no_session)
    }
}

impl McpServer {
    /// Takes a message that wants no answer. It is no request.
    pub(super) async fn accept_one_way(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        forms: AnswerForms,
        message: ClientMessage,
    ) -> Response {
        let (method, params) = match &message {
            ClientMessage::Notification { method, params } => (Some(method.clone()), Some(params)),
            ClientMessage::Request(_) | ClientMessage::Response { .. } => (None, None),
        };
        let session = if era::names_modern_revision(headers, params) {
            if params.is_none() {
                let error = RpcError::new(INVALID_REQUEST, "nothing was asked that this answers");
                return refusal(None, &error.status(400), forms);
            }
            // It has no session, even if it names one.
            Ok(None)
        } else {
            match era::check_legacy_revision(headers) {
                Ok(_) => self.session_of(caller, headers).await,
                Err(error) => Err(error),
            }
        };
        match session {
            Ok(session) => self.handle_one_way(session.as_deref(), message),
            Err(error) => return refusal(None, &error, forms),
        }
        let mut response = StatusCode::ACCEPTED.into_response();
        if let Some(method) = method {
            echo(&mut response, &METHOD, &method);
        }
        response
    }

    /// Does what a message that wants no answer says. Without a session it says nothing.
    pub(super) fn handle_one_way(&self, session: Option<&McpSession>, message: ClientMessage) {
        let Some(session) = session else { return };
        match message {
            ClientMessage::Response { id, outcome } => {
                self.questions.answer(&session.id, &id, outcome);
            }
            ClientMessage::Notification { method, params }
                if method == "notifications/cancelled" =>
            {
                // One for a call that is over is harmless: clients send it for each.
                if let Some(id) = params.get("requestId") {
                    let why = params.get("reason").and_then(Value::as_str);
                    self.running.cancel(&RequestKey::new(&session.id, id), why);
                }
            }
            ClientMessage::Request(_) | ClientMessage::Notification { .. } => {}
        }
    }
}
