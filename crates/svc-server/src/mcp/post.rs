//! `POST /mcp`: one message, or a batch as in the revisions before 2025-06-18. How a body is read,
//! how a request is refused, and what becomes of messages that want no answer.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Request as HttpRequest, State},
    response::{IntoResponse as _, Response},
};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header, request::Parts};
use serde_json::{Value, value::RawValue};
use svc_core::service::process::RequestSender;
use svc_model::{Caller, limits};
use svc_store::McpTransport;
use svc_wire::mcp::{self, Revision};
use tracing::Instrument as _;

use super::{
    McpServer,
    call::{CallAnswer, CallReply, PendingAnswer, RecordedCall, RequestKey},
    introduction::{client_name, initialize_result, introduction},
    methods::MethodCall,
    request::{
        self, RequestContext, RequestOrigin, SESSION_ID, SessionSearch, request_origin, session_of,
    },
    rpc::{
        ClientBody, ClientMessage, ClientRequest, INVALID_REQUEST, PARSE_ERROR, RequestEra,
        RpcError, UnreadableMessage, error_message, parse_body, result_message,
    },
    server::{McpSession, RequestMeter, RequestOutcome},
    stream::{AnswerForms, CallLog, pending_response, whole_response},
    streams::listen,
};
use crate::web::{self, GivenRequestId, Problem};

static METHOD: HeaderName = HeaderName::from_static(mcp::METHOD);
static NAME: HeaderName = HeaderName::from_static(mcp::NAME);

pub(super) async fn post_message(
    State(server): State<McpServer>,
    Extension(caller): Extension<Caller>,
    request: HttpRequest,
) -> Result<Response, Problem> {
    let (parts, body) = parts_of(request);
    let posted = PostedMessages::new(&server, &caller, &parts);
    Ok(match posted.parse(body).await? {
        Err(UnreadableMessage { id, error }) => refusal(id.as_deref(), &error, posted.forms),
        Ok(ClientBody::Single(ClientMessage::Request(request))) => {
            posted.answer_request(request).await
        }
        Ok(ClientBody::Single(message)) => Box::pin(posted.accept_one_way(message)).await,
        Ok(ClientBody::Batch(batch)) => Box::pin(posted.answer_batch(batch)).await,
    })
}

/// What the messages of one request have in common.
#[derive(Clone, Copy)]
pub(super) struct PostedMessages<'a> {
    pub(super) server: &'a McpServer,
    pub(super) caller: &'a Caller,
    pub(super) headers: &'a HeaderMap,
    sender: RequestSender,
    pub(super) forms: AnswerForms,
}

impl<'a> PostedMessages<'a> {
    pub(super) fn new(server: &'a McpServer, caller: &'a Caller, parts: &'a Parts) -> Self {
        let headers = &parts.headers;
        let sender = parts.extensions.get().copied().unwrap_or_default();
        Self { server, caller, headers, sender, forms: AnswerForms::from_headers(headers) }
    }

    /// Reads and parses the body.
    pub(super) async fn parse(
        self,
        body: Body,
    ) -> Result<Result<ClientBody, UnreadableMessage>, Problem> {
        web::require_json(self.headers)?;
        let stall = self.server.services.tuning().body_stall;
        let body = web::read(body, limits::BODY_BYTES, stall).await?;
        Ok(web::parse_body(body, parse_messages).await)
    }

    async fn answer_request(self, request: ClientRequest) -> Response {
        let Self { server, headers, forms, .. } = self;
        let method = request.method.clone();
        let name = request::subject_name(headers, &method, &request.params);
        let mut meter = meter_of(server, &method, name.as_deref(), RequestEra::Bare);
        let span = tracing::debug_span!(
            "mcp",
            mcp.method = method,
            mcp.name = name.as_deref().unwrap_or_default(),
            mcp.era = tracing::field::Empty,
        );
        let id = request.id.clone();
        let response = self.respond(request, &mut meter).instrument(span).await;
        let mut response = response.unwrap_or_else(|error| {
            meter.count(&server.metrics, RequestOutcome::Error);
            refusal(Some(&id), &error, forms)
        });
        echo(&mut response, &METHOD, &method);
        if let Some(name) = &name {
            echo(&mut response, &NAME, name);
        }
        response
    }

    /// Finds the era of a request, and answers it. Rare paths, and those that wait, are boxed, so
    /// that they do not enlarge the future of a call that is answered at once.
    async fn respond(
        self,
        request: ClientRequest,
        meter: &mut RequestMeter,
    ) -> Result<Response, RpcError> {
        let Self { server, caller, headers, forms, .. } = self;
        let origin = request_origin(server, caller, headers, &request).await;
        let is_initialize = request.method == "initialize";
        meter.era = match &origin {
            Ok(RequestOrigin::Bare) if is_initialize => RequestEra::Legacy,
            Ok(origin) => origin.era(),
            Err(_) => RequestEra::Unknown,
        };
        tracing::Span::current().record("mcp.era", meter.era.as_str());
        let origin = origin?;
        if is_initialize && origin.modern().is_none() {
            let response = Box::pin(self.initialize(&request)).await?;
            meter.count(&server.metrics, RequestOutcome::Result);
            return Ok(response);
        }
        if let (Some(client), "subscriptions/listen") = (origin.modern(), request.method.as_str()) {
            SessionSearch { server, caller, headers, origin: &origin }.named().await?;
            let response = Box::pin(listen(server, caller, client, &request)).await?;
            meter.count(&server.metrics, RequestOutcome::Result);
            return Ok(response);
        }
        let id = request.id.clone();
        match self.reply(origin, request, meter).await? {
            CallReply::Whole(answer) => {
                meter.count(&server.metrics, RequestOutcome::Result);
                Ok(whole_response(answer, 200, forms))
            }
            CallReply::Pending(pending) => {
                Ok(pending_response(server, id, pending, forms, Some(meter.clone())).await)
            }
            CallReply::Recorded(call) => Box::pin(self.recorded_response(id, call)).await,
        }
    }

    /// The reply to a request of any method but those that begin a session or a subscription.
    pub(super) async fn reply(
        self,
        origin: RequestOrigin,
        request: ClientRequest,
        meter: &mut RequestMeter,
    ) -> Result<CallReply, RpcError> {
        let Self { server, caller, headers, sender, .. } = self;
        let context = RequestContext::from_http(server, caller, headers, sender, origin).await?;
        if request.method == "tools/call" {
            return server.call_tool(context, headers, request, meter).await;
        }
        let method = MethodCall { server, context: &context, request: &request };
        if let Some(pending) = method.relayed()? {
            return Ok(CallReply::Pending(pending));
        }
        Box::pin(method.answer()).await.map(CallReply::Whole)
    }

    /// The response of a recorded call: its stream, or the answer at the end of it.
    async fn recorded_response(
        self,
        id: Box<RawValue>,
        call: RecordedCall,
    ) -> Result<Response, RpcError> {
        let Self { server, forms, .. } = self;
        let RecordedCall { id: call, session, is_repeatable } = call;
        let log = CallLog::open(server, call, session, 0).await?;
        if forms.events {
            return Ok(log.response(server, &id));
        }
        let rpc_id = id.clone();
        let answer = async move {
            let Some(message) = log.answer().await else {
                return CallAnswer::error(&rpc_id, &was_cancelled());
            };
            CallAnswer { message, status: 200, outcome: RequestOutcome::Result }
        };
        let pending = PendingAnswer {
            answer: answer.boxed(),
            messages: None,
            is_repeatable,
            ends_with_token: true,
        };
        // The call itself is counted when it ends.
        Ok(pending_response(server, id, pending, forms, None).await)
    }

    async fn initialize(self, request: &ClientRequest) -> Result<Response, RpcError> {
        let Self { server, caller, forms, .. } = self;
        let new = introduction(&request.params, McpTransport::Http)?;
        let revision = new.revision;
        let session = server.sessions.open(caller, new).await?;
        let client = client_name(&request.params);
        let result = initialize_result(server, caller, client, revision).await?;
        let answer = result_message(&request.id, &result);
        let mut response = whole_response(answer, 200, forms);
        if let Ok(id) = HeaderValue::from_str(session.id.as_str()) {
            response.headers_mut().insert(SESSION_ID.clone(), id);
        }
        Ok(response)
    }

    async fn answer_batch(self, batch: Vec<Result<ClientMessage, UnreadableMessage>>) -> Response {
        let Self { server, forms, .. } = self;
        let session = match self.session_of_batch().await {
            Ok(session) => session,
            Err(error) => return refusal(None, &error, forms),
        };
        let mut answers = Vec::new();
        for message in batch {
            match message {
                Err(UnreadableMessage { id, error }) => {
                    answers.push(error_message(id.as_deref(), &error));
                }
                Ok(ClientMessage::Request(request)) => {
                    let id = request.id.clone();
                    let origin = session.clone().map_or(RequestOrigin::Bare, RequestOrigin::Legacy);
                    let answer = Box::pin(self.answer_alone(origin, request)).await;
                    answers.push(answer.unwrap_or_else(|error| error_message(Some(&id), &error)));
                }
                Ok(message) => handle_one_way(server, session.as_deref(), message).await,
            }
        }
        if answers.is_empty() {
            return StatusCode::ACCEPTED.into_response();
        }
        whole_response(format!("[{}]", answers.join(",")), 200, forms)
    }

    /// The session of a batch; an error if its revision has no batches.
    async fn session_of_batch(self) -> Result<Option<Arc<McpSession>>, RpcError> {
        let Self { server, caller, headers, .. } = self;
        let none = || RpcError::new(INVALID_REQUEST, "this revision has no batches").status(400);
        if request::names_modern(headers, None) {
            return Err(none());
        }
        let version = request::check_legacy_revision(headers)?;
        let session = session_of(server, caller, headers).await?;
        let revision = session.as_ref().map(|session| session.client().revision).or(version);
        let has_batches = revision.is_none_or(|revision| revision < Revision::V2025_06_18);
        if has_batches { Ok(session) } else { Err(none()) }
    }

    /// Answers a request with one message and none before it.
    async fn answer_alone(
        self,
        origin: RequestOrigin,
        request: ClientRequest,
    ) -> Result<String, RpcError> {
        // Requests of a batch are not counted.
        let mut meter = RequestMeter::start("tools/call", "", RequestEra::Legacy);
        match self.reply(origin, request, &mut meter).await? {
            CallReply::Whole(answer) => Ok(answer),
            CallReply::Pending(pending) => Ok(pending.answer.await.message),
            CallReply::Recorded(RecordedCall { id, session, .. }) => {
                let log = CallLog::open(self.server, id, session, 0).await?;
                log.answer().await.ok_or_else(was_cancelled)
            }
        }
    }

    /// Handles a notification or a response.
    async fn accept_one_way(self, message: ClientMessage) -> Response {
        let Self { server, caller, headers, forms, .. } = self;
        let (method, params) = match &message {
            ClientMessage::Notification { method, params } => (Some(method.clone()), Some(params)),
            ClientMessage::Request(_) | ClientMessage::Response { .. } => (None, None),
        };
        let session = if request::names_modern(headers, params) {
            if params.is_none() {
                let error = RpcError::new(INVALID_REQUEST, "nothing was asked that this answers");
                return refusal(None, &error.status(400), forms);
            }
            // A modern message has no session, even if it names one.
            Ok(None)
        } else {
            match request::check_legacy_revision(headers) {
                Ok(_) => session_of(server, caller, headers).await,
                Err(error) => Err(error),
            }
        };
        match session {
            Ok(session) => handle_one_way(server, session.as_deref(), message).await,
            Err(error) => return refusal(None, &error, forms),
        }
        let mut response = StatusCode::ACCEPTED.into_response();
        if let Some(method) = method {
            echo(&mut response, &METHOD, &method);
        }
        response
    }
}

fn was_cancelled() -> RpcError {
    RpcError::new(INVALID_REQUEST, "the call was cancelled")
}

/// A request's head and body. A request id that the daemon made is removed: it is for the daemon's
/// log only.
pub(super) fn parts_of(request: Request<Body>) -> (Parts, Body) {
    let (mut parts, body) = request.into_parts();
    if parts.extensions.get::<GivenRequestId>().is_none() {
        parts.headers.remove("x-request-id");
    }
    (parts, body)
}

fn parse_messages(body: &[u8]) -> Result<ClientBody, UnreadableMessage> {
    let Ok(text) = std::str::from_utf8(body) else {
        let error = RpcError::new(PARSE_ERROR, "the body is not UTF-8").status(400);
        return Err(UnreadableMessage { id: None, error });
    };
    if web::is_too_heavy(text) {
        return Err(UnreadableMessage { id: None, error: RpcError::too_large(web::TOO_HEAVY) });
    }
    parse_body(text)
}

pub(super) fn refusal(id: Option<&RawValue>, error: &RpcError, forms: AnswerForms) -> Response {
    let mut response = whole_response(error_message(id, error), error.status, forms);
    if let 429 | 503 = error.status {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Repeats a request's header on its response.
fn echo(response: &mut Response, name: &HeaderName, value: &str) {
    let value = mcp::encode_value(value);
    // Clients limit the length of a response's head, and no name of the daemon's own is longer.
    let is_short = value.len() <= limits::SHORT_TEXT_BYTES;
    if let Some(value) = HeaderValue::from_str(&value).ok().filter(|_| is_short) {
        response.headers_mut().insert(name.clone(), value);
    }
}

/// Starts to measure a request. The call of a tool sets the tool's name.
pub(super) fn meter_of(
    server: &McpServer,
    method: &str,
    name: Option<&str>,
    era: RequestEra,
) -> RequestMeter {
    let is_prompt = |name: &&str| server.prompts.iter().any(|it| it.is_called(name));
    let known = name.filter(|name| method == "prompts/get" && is_prompt(name));
    RequestMeter::start(method, known.unwrap_or_default(), era)
}

/// Handles a notification, or an answer to a question of the daemon's. Without a session it has no
/// effect.
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
            // Clients send this for calls that have ended, too; then it has no effect.
            if let Some(id) = params.get("requestId") {
                // A recorded call is registered when its recording ends.
                drop(session.recording.lock().await);
                let why = params.get("reason").and_then(Value::as_str);
                server.running.cancel(&RequestKey::new(&session.id, id), why);
            }
        }
        ClientMessage::Request(_) | ClientMessage::Notification { .. } => {}
    }
}
