//! `POST /mcp`: one message, or a batch as in the revisions before 2025-06-18.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Request as HttpRequest, State},
    response::{IntoResponse as _, Response},
};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::value::RawValue;
use svc_core::service;
use svc_model::Caller;
use svc_store::McpTransport;
use svc_wire::mcp::Revision;
use tracing::Instrument as _;

use super::{
    super::{
        McpServer,
        call::{CallAnswer, CallReply, PendingAnswer, RecordedCall},
        era::{self, client_name, introduction},
        metrics::{RequestEra, RequestMeter, RequestOutcome},
        origin::{RequestContext, RequestOrigin},
        rpc::{
            ClientBody, ClientMessage, ClientRequest, INVALID_REQUEST, RpcError, UnreadableMessage,
            error_message, result_message,
        },
        server::McpSession,
        stream::{AnswerForms, CallLog, pending_response, whole_response},
    },
    request::{METHOD, NAME, SESSION_ID, echo, parse_messages, parts_of, read_body, refusal},
};
use crate::web;

pub(super) async fn post_message(
    State(server): State<McpServer>,
    Extension(caller): Extension<Caller>,
    request: HttpRequest,
) -> Response {
    let (parts, body) = parts_of(request);
    server.post(caller, parts.headers, body).await
}

impl McpServer {
    /// Answers a POST of one message, or of a batch.
    pub(super) async fn post(&self, caller: Caller, headers: HeaderMap, body: Body) -> Response {
        let body = match read_body(self, &headers, body).await {
            Ok(body) => body,
            Err(problem) => return problem.into_response(),
        };
        let forms = AnswerForms::from_headers(&headers);
        match web::parse_body(body, parse_messages).await {
            Err(unreadable) => refusal(unreadable.id.as_deref(), &unreadable.error, forms),
            Ok(ClientBody::Single(ClientMessage::Request(request))) => {
                self.answer_request(caller, headers, forms, request).await
            }
            Ok(ClientBody::Single(message)) => {
                Box::pin(self.accept_one_way(&caller, &headers, forms, message)).await
            }
            Ok(ClientBody::Batch(batch)) => {
                Box::pin(self.answer_batch(caller, headers, forms, batch)).await
            }
        }
    }

    async fn answer_request(
        &self,
        caller: Caller,
        headers: HeaderMap,
        forms: AnswerForms,
        request: ClientRequest,
    ) -> Response {
        let method = request.method.clone();
        let name = era::subject_name(&headers, &method, &request.params);
        let mut meter = self.meter_of(&method, name.as_deref(), RequestEra::Bare);
        let span = tracing::debug_span!(
            "mcp",
            mcp.method = method,
            mcp.name = name.as_deref().unwrap_or_default(),
            mcp.era = tracing::field::Empty,
        );
        let id = request.id.clone();
        let response =
            self.respond(&caller, &headers, forms, request, &mut meter).instrument(span).await;
        let mut response = response.unwrap_or_else(|error| {
            meter.count(&self.metrics, RequestOutcome::Error);
            refusal(Some(&id), &error, forms)
        });
        echo(&mut response, &METHOD, &method);
        if let Some(name) = &name {
            echo(&mut response, &NAME, name);
        }
        response
    }

    /// Begins to measure a request. The label has its name if the server knows it; a tool is looked
    /// up by its call.
    pub(super) fn meter_of(
        &self,
        method: &str,
        name: Option<&str>,
        era: RequestEra,
    ) -> RequestMeter {
        let known = name.filter(|name| match method {
            "prompts/get" => self.prompts.borrow().iter().any(|prompt| prompt.is_called(name)),
            _ => false,
        });
        RequestMeter::start(method, known.unwrap_or_default(), era)
    }

    /// Finds the era of a request, and answers it.
    ///
    /// Rare paths, and those that wait, are boxed: a call that is answered at once does not carry
    /// room for them.
    async fn respond(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        forms: AnswerForms,
        request: ClientRequest,
        meter: &mut RequestMeter,
    ) -> Result<Response, RpcError> {
        let origin = self.request_origin(caller, headers, &request).await;
        let is_initialize = request.method == "initialize";
        meter.era = match &origin {
            Ok(RequestOrigin::Bare) if is_initialize => RequestEra::Legacy,
            Ok(origin) => origin.era(),
            Err(_) => RequestEra::Unknown,
        };
        tracing::Span::current().record("mcp.era", meter.era.as_str());
        let origin = origin?;
        if is_initialize && origin.modern().is_none() {
            let response = Box::pin(self.initialize(caller, &request, forms)).await?;
            meter.count(&self.metrics, RequestOutcome::Result);
            return Ok(response);
        }
        let acting_session = self.named_session(caller, headers, &origin).await?;
        if let (Some(client), "subscriptions/listen") = (origin.modern(), request.method.as_str()) {
            let response = Box::pin(self.listen(caller, client, &request)).await?;
            meter.count(&self.metrics, RequestOutcome::Result);
            return Ok(response);
        }
        let exposure = self.exposure(caller, headers)?;
        let context =
            RequestContext::from_http((caller, headers), origin, acting_session, exposure);
        if let Some(pending) = self.relayed(&context, &request)? {
            let (server, meter) = (self.clone(), meter.clone());
            let done = move |answer: &CallAnswer| meter.count(&server.metrics, answer.outcome);
            return Ok(Box::pin(pending_response(self, request.id, pending, forms, done)).await);
        }
        if request.method != "tools/call" {
            let answer = Box::pin(self.answer(&context, &request)).await?;
            meter.count(&self.metrics, RequestOutcome::Result);
            return Ok(whole_response(answer, 200, forms));
        }
        let id = request.id.clone();
        match self.call_tool(context, headers, request, meter).await? {
            CallReply::Pending(pending) => {
                let (server, meter) = (self.clone(), meter.clone());
                let done = move |answer: &CallAnswer| meter.count(&server.metrics, answer.outcome);
                Ok(pending_response(self, id, pending, forms, done).await)
            }
            CallReply::Recorded(call) => Box::pin(self.recorded_response(id, call, forms)).await,
        }
    }

    /// The response of a call on record: its stream, or the answer at the end of it.
    async fn recorded_response(
        &self,
        id: Box<RawValue>,
        call: RecordedCall,
        forms: AnswerForms,
    ) -> Result<Response, RpcError> {
        let RecordedCall { id: call, stream, session, is_repeatable } = call;
        let log = CallLog::open(self, call, stream, session, 0).await?;
        if forms.events() {
            return Ok(log.response(self));
        }
        let rpc_id = id.clone();
        let answer = async move {
            let Some(message) = log.answer().await else {
                let error = RpcError::new(INVALID_REQUEST, "the call was cancelled");
                return CallAnswer::error(&rpc_id, &error);
            };
            CallAnswer { message, status: 200, outcome: RequestOutcome::Result }
        };
        let pending = PendingAnswer { answer: answer.boxed(), messages: None, is_repeatable };
        // The call itself is counted when it ends.
        Ok(pending_response(self, id, pending, forms, |_| {}).await)
    }

    async fn initialize(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        forms: AnswerForms,
    ) -> Result<Response, RpcError> {
        let new = introduction(&request.params, McpTransport::Http)?;
        let revision = new.revision;
        let session = self.open_session(caller, new).await?;
        let client = client_name(&request.params);
        let result = self.initialize_result(revision, caller, client).await?;
        let answer = result_message(&request.id, &result);
        let mut response = whole_response(answer, 200, forms);
        if let Ok(id) = HeaderValue::from_str(session.id.as_str()) {
            response.headers_mut().insert(SESSION_ID.clone(), id);
        }
        Ok(response)
    }
}

impl McpServer {
    pub(super) async fn answer_batch(
        &self,
        caller: Caller,
        headers: HeaderMap,
        forms: AnswerForms,
        batch: Vec<Result<ClientMessage, UnreadableMessage>>,
    ) -> Response {
        let session = match self.session_of_batch(&caller, &headers).await {
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
                    let answer = Box::pin(self.answer_alone(&caller, &headers, origin, request));
                    let answer = answer.await;
                    answers.push(answer.unwrap_or_else(|error| error_message(Some(&id), &error)));
                }
                Ok(message) => self.handle_one_way(session.as_deref(), message),
            }
        }
        if answers.is_empty() {
            return StatusCode::ACCEPTED.into_response();
        }
        whole_response(format!("[{}]", answers.join(",")), 200, forms)
    }

    /// The session of a batch; an error if its revision has no batches.
    async fn session_of_batch(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<McpSession>>, RpcError> {
        let none = || RpcError::new(INVALID_REQUEST, "this revision has no batches").status(400);
        if era::names_modern_revision(headers, None) {
            return Err(none());
        }
        let version = era::check_legacy_revision(headers)?;
        let session = self.session_of(caller, headers).await?;
        let revision = session.as_ref().map(|session| session.revision()).or(version);
        let has_batches = revision.is_none_or(|revision| revision < Revision::V2025_06_18);
        if has_batches { Ok(session) } else { Err(none()) }
    }

    /// Answers a request with one message and none on the way.
    async fn answer_alone(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        origin: RequestOrigin,
        request: ClientRequest,
    ) -> Result<String, RpcError> {
        let acting_session = self.named_session(caller, headers, &origin).await?;
        let exposure = self.exposure(caller, headers)?;
        let context =
            RequestContext::from_http((caller, headers), origin, acting_session, exposure);
        if let Some(pending) = self.relayed(&context, &request)? {
            return Ok(pending.answer.await.message);
        }
        if request.method != "tools/call" {
            return self.answer(&context, &request).await;
        }
        // Requests of a batch are not counted.
        let mut meter = RequestMeter::start("tools/call", "", RequestEra::Legacy);
        match self.call_tool(context, headers, request, &mut meter).await? {
            CallReply::Pending(pending) => Ok(pending.answer.await.message),
            CallReply::Recorded(call) => self
                .recorded_answer(call)
                .await?
                .ok_or_else(|| RpcError::new(INVALID_REQUEST, "the call was cancelled")),
        }
    }

    /// The answer of a call on record; `None` if it was cancelled.
    async fn recorded_answer(&self, call: RecordedCall) -> Result<Option<String>, service::Error> {
        let RecordedCall { id, stream, session, .. } = call;
        let log = CallLog::open(self, id, stream, session, 0).await?;
        Ok(log.answer().await)
    }
}
