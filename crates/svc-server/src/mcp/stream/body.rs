//! The body of a response that is a stream, and the answer that is not there yet.
//!
//! A body is pulled by its connection, so a reader that does not read costs its cursor and nothing
//! else, and nobody waits for it.

use std::convert::Infallible;

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::value::RawValue;
use svc_core::service;
use svc_model::limits;
use svc_sys::telemetry;
use svc_wire::sse::{self, KEEP_ALIVE, MEDIA_TYPE as EVENTS};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::{
    McpServer,
    call::{CallAnswer, PendingAnswer},
};
use crate::web::{Accept, KeepAliveTimer};

const JSON: &str = "application/json";

/// The forms of an answer that a client reads, by its `Accept` headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnswerForms {
    json: bool,
    events: bool,
}

impl AnswerForms {
    /// Every client is served, whatever the headers say. Events come only to who names them, or
    /// excludes JSON: what takes anything, as `curl` does, gets JSON however long the answer takes.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let accept = Accept::from_headers(headers);
        let [json, events] =
            [JSON, EVENTS].map(|form| accept.weight(form).map(|weight| weight > 0.0));
        if json == Some(true) || events == Some(true) {
            let json = json == Some(true);
            return Self { json, events: events == Some(true) && (accept.names(EVENTS) || !json) };
        }
        // A list with neither form counts as no list, but for the forms that it excludes.
        let json = json.is_none() || events.is_some();
        Self { json, events: !json }
    }

    /// Whether an answer that takes time may come as a stream of events.
    pub(crate) fn events(self) -> bool {
        self.events
    }
}

/// Where a stream's messages come from.
pub(crate) trait MessageSource: Send + 'static {
    /// Waits for the next part of the body; `None` at the end. Dropping the future must lose
    /// nothing.
    fn next(&mut self) -> impl Future<Output = Result<Option<String>, service::Error>> + Send;

    /// The last part of the body, as the server stops.
    fn last_words(&mut self) -> Option<String> {
        None
    }

    /// The sign of life of a stream that was silent for long.
    fn keep_alive(&mut self) -> &'static str {
        KEEP_ALIVE
    }
}

/// A body that gives the parts of its source.
pub(crate) struct McpResponseBody<S> {
    source: S,
    /// Comes before anything of the source.
    first: Option<String>,
    /// The end of what the stream belongs to.
    closed: CancellationToken,
    stop: CancellationToken,
    pulse: KeepAliveTimer,
    is_over: bool,
}

impl<S: MessageSource> McpResponseBody<S> {
    pub(crate) fn new(server: &McpServer, source: S) -> Self {
        Self {
            source,
            first: None,
            closed: CancellationToken::new(),
            stop: server.stop.clone(),
            pulse: server.pulse(),
            is_over: false,
        }
    }

    pub(crate) fn beginning_with(self, first: Option<String>) -> Self {
        Self { first, ..self }
    }

    /// Ends with what the stream belongs to.
    pub(crate) fn until(self, closed: &CancellationToken) -> Self {
        Self { closed: closed.clone(), ..self }
    }

    pub(crate) fn events(self) -> Response {
        let mut response = self.response();
        sse::announce(response.headers_mut());
        response
    }

    /// The response of one JSON text in parts.
    pub(crate) fn json(self) -> Response {
        let mut response = self.response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        response
    }

    fn response(self) -> Response {
        let parts = stream::unfold(self, |mut body| async move {
            let part = body.next().await?;
            Some((Ok::<_, Infallible>(part), body))
        });
        Response::new(Body::from_stream(parts))
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first.into());
        }
        if self.is_over {
            return None;
        }
        let part = tokio::select! {
            biased;
            () = self.stop.cancelled() => {
                self.is_over = true;
                self.source.last_words()?.into()
            }
            () = self.closed.cancelled() => return None,
            next = self.source.next() => match next {
                Ok(part) => part?.into(),
                Err(error) => {
                    // The client comes back with its last id, and finds out then whether it is
                    // still so.
                    tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                    return None;
                }
            },
            () = self.pulse.due() => Bytes::from_static(self.source.keep_alive().as_bytes()),
        };
        self.pulse.spoke();
        Some(part)
    }
}

/// One message as an event without an id.
pub(crate) fn event(message: &str) -> String {
    sse::message("message", message)
}

/// A whole answer: JSON, or one event where the client reads nothing else.
pub(crate) fn whole_response(answer: String, status: u16, forms: AnswerForms) -> Response {
    let text = if forms.json { answer } else { event(&answer) };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let headers = response.headers_mut();
    if forms.json {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
    } else {
        sse::announce(headers);
    }
    response
}

/// JSON may begin with white space, which tells the client, and proxies before it, that the call
/// goes on.
const JSON_KEEP_ALIVE: &str = "\n";

/// The answer at once if it comes at once, else a stream that it comes in. `done` gets it in either
/// case, unless the client goes away before.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_is_served_in_a_form_that_it_does_not_exclude() {
        for (accept, json, events) in [
            (None, true, false),
            (Some("*/*"), true, false),
            (Some("text/*, application/json"), true, true),
            (Some("application/json"), true, false),
            (Some("text/event-stream"), false, true),
            (Some("application/json, text/event-stream"), true, true),
            (Some("application/json, text/event-stream;q=0"), true, false),
            (Some("application/json;q=0, */*"), false, true),
            (Some("text/html"), true, false),
            (Some("application/json;q=0"), false, true),
            (Some("text/event-stream;q=0"), true, false),
            (Some("*/*;q=0"), true, false),
        ] {
            let headers: HeaderMap = accept
                .map(|accept| (header::ACCEPT, accept.parse().unwrap()))
                .into_iter()
                .collect();
            assert_eq!(
                AnswerForms::from_headers(&headers),
                AnswerForms { json, events },
                "{accept:?}"
            );
        }
    }
}
