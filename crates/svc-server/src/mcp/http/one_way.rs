//! Messages that want no answer: notifications, and answers to the server's own questions.

use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use svc_model::Caller;

use super::{
    super::{
        McpServer, era,
        rpc::{ClientMessage, INVALID_REQUEST, RpcError},
        running::RequestKey,
        session::McpSession,
        stream::AnswerForms,
    },
    request::{METHOD, echo, refusal},
};

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
