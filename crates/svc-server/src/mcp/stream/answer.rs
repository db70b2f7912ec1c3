//! An answer that is not there yet, with the messages on the way to it.

use axum::response::Response;
use futures_util::FutureExt as _;
use serde_json::value::RawValue;
use svc_core::service;
use svc_model::limits;
use svc_wire::sse::KEEP_ALIVE;
use tokio::sync::mpsc;

use super::{
    super::{
        McpServer,
        call::{CallAnswer, PendingAnswer},
    },
    body::{AnswerForms, McpResponseBody, MessageSource, event, whole_response},
};

/// JSON may begin with white space, which tells the client, and proxies before it, that the call goes on.
const JSON_KEEP_ALIVE: &str = "\n";

/// The answer at once if it comes at once, else a stream that it comes in. `done` gets it in either case, unless the
/// client goes away before.
pub(crate) async fn pending_response<D>(
    server: &McpServer,
    id: Box<RawValue>,
    mut pending: PendingAnswer,
    forms: AnswerForms,
    done: D,
) -> Response
where
    D: FnOnce(&CallAnswer) + Send + 'static,
{
    let mut first = None;
    tokio::select! {
        biased;
        Some(message) = next_message(pending.messages.as_mut()), if forms.events() => first = Some(message),
        answer = &mut pending.answer => {
            // A message from just before the answer must not be lost.
            let message = pending.messages.as_mut().and_then(|messages| messages.try_recv().ok());
            first = message.filter(|_| forms.events());
            if first.is_none() {
                done(&answer);
                return whole_response(answer.message, answer.status, forms);
            }
            pending.answer = Box::pin(std::future::ready(answer));
        }
        () = tokio::time::sleep(limits::MCP_PATIENCE) => {}
    }
    let (events, is_repeatable) = (forms.events(), pending.is_repeatable);
    let pending = Some(pending);
    let source = AnswerSource { id, pending, done: Some(done), events, is_repeatable };
    let body = McpResponseBody::new(server, source);
    if !events {
        return body.beginning_with(Some(JSON_KEEP_ALIVE.to_owned())).json();
    }
    let first = first.map_or_else(|| ": at work\n\n".to_owned(), |message| event(&message));
    body.beginning_with(Some(first)).events()
}

async fn next_message(messages: Option<&mut mpsc::UnboundedReceiver<String>>) -> Option<String> {
    let message = match messages {
        Some(messages) => messages.recv().await,
        None => None,
    };
    if message.is_none() {
        // Nothing comes any more but the answer.
        std::future::pending::<()>().await;
    }
    message
}

struct AnswerSource<D> {
    /// JSON-RPC id of the request.
    id: Box<RawValue>,
    /// `None` once the answer was given.
    pending: Option<PendingAnswer>,
    done: Option<D>,
    /// As events, else as one JSON text.
    events: bool,
    /// Whether the request may be made again.
    is_repeatable: bool,
}

impl<D: FnOnce(&CallAnswer) + Send + 'static> AnswerSource<D> {
    /// The last part of the body: the messages that are left, and the answer.
    fn finish(&mut self, answer: CallAnswer) -> String {
        if let Some(done) = self.done.take() {
            done(&answer);
        }
        let pending = self.pending.take();
        if !self.events {
            return answer.message;
        }
        let mut text = String::new();
        if let Some(mut messages) = pending.and_then(|pending| pending.messages) {
            while let Ok(message) = messages.try_recv() {
                text.push_str(&event(&message));
            }
        }
        text.push_str(&event(&answer.message));
        text
    }
}

impl<D: FnOnce(&CallAnswer) + Send + 'static> MessageSource for AnswerSource<D> {
    async fn next(&mut self) -> Result<Option<String>, service::Error> {
        let Some(pending) = &mut self.pending else { return Ok(None) };
        let answer = tokio::select! {
            biased;
            Some(message) = next_message(pending.messages.as_mut()) => {
                let part = if self.events { event(&message) } else { JSON_KEEP_ALIVE.to_owned() };
                return Ok(Some(part));
            }
            answer = &mut pending.answer => answer,
        };
        Ok(Some(self.finish(answer)))
    }

    fn last_words(&mut self) -> Option<String> {
        // Nobody can come back for the rest of this one, and half an answer would be none.
        let answer = (&mut self.pending.as_mut()?.answer).now_or_never();
        let answer = answer.unwrap_or_else(|| CallAnswer::lost(&self.id, self.is_repeatable));
        Some(self.finish(answer))
    }

    fn keep_alive(&mut self) -> &'static str {
        if self.events { KEEP_ALIVE } else { JSON_KEEP_ALIVE }
    }
}
