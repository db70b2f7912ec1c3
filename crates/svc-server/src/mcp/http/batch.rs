//! JSON-RPC batches, as in the revisions before 2025-06-18: one message after the other, and the answers in one array.

use std::sync::Arc;

use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode};
use svc_core::service;
use svc_model::Caller;
use svc_wire::mcp::Revision;

use super::{
    super::{
        McpServer,
        call::{CallReply, RecordedCall},
        era,
        origin::{RequestContext, RequestOrigin},
        rpc::{
            ClientMessage, ClientRequest, INVALID_REQUEST, RpcError, UnreadableMessage,
            error_message,
        },
        session::McpSession,
        stream::{AnswerForms, CallLog, whole_response},
    },
    request::refusal,
};

impl McpServer {
    /// Answers a batch.
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
        if request.method != "tools/call" {
            return self.answer(&context, &request).await;
        }
        match self.call_tool(context, headers, request).await? {
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
