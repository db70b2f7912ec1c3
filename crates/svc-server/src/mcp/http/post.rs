//! `POST /mcp`: one message, or a batch.

use axum::{
    Extension,
    body::Body,
    extract::{Request as HttpRequest, State},
    response::{IntoResponse as _, Response},
};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue};
use serde_json::value::RawValue;
use svc_model::Caller;
use svc_store::McpTransport;
use tracing::Instrument as _;

use super::{
    super::{
        McpServer,
        call::{CallAnswer, CallReply, PendingAnswer, RecordedCall},
        era,
        introduction::{client_name, introduction},
        metrics::{RequestEra, RequestMeter, RequestOutcome},
        origin::{RequestContext, RequestOrigin},
        rpc::{
            ClientBody, ClientMessage, ClientRequest, INVALID_REQUEST, RpcError, result_message,
        },
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
        let forms = AnswerForms::of(&headers);
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
        let mut meter = self.meter_of(&caller, &method, name.as_deref(), RequestEra::Bare);
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

    /// Begins to measure a request. The label has its name if the server knows it.
    pub(super) fn meter_of(
        &self,
        caller: &Caller,
        method: &str,
        name: Option<&str>,
        era: RequestEra,
    ) -> RequestMeter {
        let known = name.filter(|name| match method {
            "tools/call" => self.catalogue.find(caller, name).is_some(),
            "prompts/get" => self.prompts.borrow().iter().any(|prompt| prompt.is_called(name)),
            _ => false,
        });
        RequestMeter::start(method, known.unwrap_or_default(), era)
    }

    /// Finds the era of a request, and answers it.
    ///
    /// Rare paths, and those that wait, are boxed: a call that is answered at once does not carry room for them.
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
        if let Some(pending) = self.conversation_with_server(&context, &request)? {
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
        match self.call_tool(context, headers, request).await? {
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
