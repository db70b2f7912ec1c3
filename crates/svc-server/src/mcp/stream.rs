//! Responses: complete answers, pending answers, and streams of server-sent events.
//!
//! Each stream is a [`StreamSource`] in a [`StreamBody`].
//!
//! A client of a session reads three kinds of stream: that of a call on record, the standalone
//! stream of `GET /mcp`, and the one stream of a session of 2024-11-05. Each message of the log has
//! an id to resume from.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::OptionFuture, stream};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use svc_core::service::{self, log::StreamFollower};
use svc_model::{CallId, Caller, Event, Seq, StreamName, limits};
use svc_wire::{
    mcp::Revision,
    sse::{self, KEEP_ALIVE, MEDIA_TYPE as EVENTS},
};
use tokio::sync::{mpsc, watch};

use super::{
    McpServer,
    call::{CallAnswer, PendingAnswer, log_stream_of, token_ended},
    notices::{Notice, NoticeFilter, NoticeQueue, WatchedResources},
    server::{McpMetrics, McpSession, RequestMeter},
};
use crate::web::{Accept, EndsWithToken, StreamBody, StreamSource};

const JSON: &str = "application/json";

/// The forms of an answer that a client reads, by its `Accept` headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnswerForms {
    json: bool,
    /// Whether an answer that takes time may come as a stream of events.
    pub(crate) events: bool,
}

impl AnswerForms {
    /// Every client is served, whatever the headers say. Events go only to a client that names them
    /// or excludes JSON: one that accepts anything, such as `curl`, gets JSON however long the
    /// answer takes.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let accept = Accept::from_headers(headers);
        let [json, events] =
            [JSON, EVENTS].map(|form| accept.weight(form).map(|weight| weight > 0.0));
        if json == Some(true) || events == Some(true) {
            let json = json == Some(true);
            return Self { json, events: events == Some(true) && (accept.names(EVENTS) || !json) };
        }
        // A list with neither form counts as no list, except for the forms that it excludes.
        let json = json.is_none() || events.is_some();
        Self { json, events: !json }
    }
}

/// The body whose parts come from a source, after a first one.
pub(crate) fn stream_body<S: StreamSource>(
    server: &McpServer,
    first: Option<String>,
    source: S,
) -> StreamBody<S> {
    StreamBody::new(&server.stop, server.services.tuning().sse_keep_alive, first, source)
}

/// The response to `HEAD` where `GET` opens a stream: it has the same headers, and opens none.
pub(crate) fn stream_head() -> Response {
    // Without a length, as that of a stream.
    let mut response =
        Response::new(Body::from_stream(stream::empty::<Result<Bytes, Infallible>>()));
    sse::announce(response.headers_mut());
    response
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

/// White space before JSON: it shows clients and proxies that the connection is alive.
const JSON_KEEP_ALIVE: &str = "\n";

/// The whole answer if it is ready soon, else a stream that ends with the answer. `meter` counts
/// the answer in both cases, unless the client disconnects before.
pub(crate) async fn pending_response(
    server: &McpServer,
    id: Box<RawValue>,
    mut pending: PendingAnswer,
    forms: AnswerForms,
    meter: Option<RequestMeter>,
) -> Response {
    let mut first = None;
    let next = pending.messages.as_mut().map(mpsc::UnboundedReceiver::recv);
    tokio::select! {
        biased;
        Some(Some(message)) = OptionFuture::from(next), if forms.events => first = Some(message),
        answer = &mut pending.answer => {
            // A message from just before the answer must not be lost.
            let message = pending.messages.as_mut().and_then(|messages| messages.try_recv().ok());
            first = message.filter(|_| forms.events);
            if first.is_none() {
                if let Some(meter) = meter {
                    meter.count(&server.metrics, answer.outcome);
                }
                return whole_response(answer.message, answer.status, forms);
            }
            pending.answer = Box::pin(std::future::ready(answer));
        }
        () = tokio::time::sleep(limits::MCP_HEAD_DELAY) => {}
    }
    let (events, is_repeatable) = (forms.events, pending.is_repeatable);
    let ends_with_token = pending.ends_with_token.then(|| id.clone());
    let pending = Some(pending);
    let meter = meter.map(|meter| (meter, server.metrics.clone()));
    let source = AnswerSource { id, pending, meter, events, is_repeatable };
    if !events {
        let body = stream_body(server, Some(JSON_KEEP_ALIVE.to_owned()), source).into_body();
        return ([(header::CONTENT_TYPE, HeaderValue::from_static(JSON))], body).into_response();
    }
    let first = first.map_or_else(|| ": at work\n\n".to_owned(), |message| event(&message));
    let response = stream_body(server, Some(first), source).into_events();
    match ends_with_token {
        Some(id) => ending_with_token(response, &id),
        None => response,
    }
}

/// Lets the stream of a call end with its caller's token, and then with an error as the answer to
/// the request.
fn ending_with_token(mut response: Response, id: &RawValue) -> Response {
    let last = event(&token_ended(id)).into();
    response.extensions_mut().insert(EndsWithToken::Answer(Some(last)));
    response
}

struct AnswerSource {
    id: Box<RawValue>,
    /// `None` once the answer was given.
    pending: Option<PendingAnswer>,
    meter: Option<(RequestMeter, McpMetrics)>,
    /// Whether the response is a stream of events; otherwise it is one JSON text.
    events: bool,
    /// Whether the client may send the request again.
    is_repeatable: bool,
}

impl AnswerSource {
    /// The last part of the body: the messages that are left, and the answer.
    fn finish(&mut self, answer: CallAnswer) -> String {
        if let Some((meter, metrics)) = self.meter.take() {
            meter.count(&metrics, answer.outcome);
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

impl StreamSource for AnswerSource {
    async fn next(&mut self) -> Result<Option<Bytes>, service::Error> {
        let Some(pending) = &mut self.pending else { return Ok(None) };
        let next = pending.messages.as_mut().map(mpsc::UnboundedReceiver::recv);
        let answer = tokio::select! {
            biased;
            Some(Some(message)) = OptionFuture::from(next) => {
                let keep_alive = || JSON_KEEP_ALIVE.to_owned();
                return Ok(Some(if self.events { event(&message) } else { keep_alive() }.into()));
            }
            answer = &mut pending.answer => answer,
        };
        Ok(Some(self.finish(answer).into()))
    }

    fn last_words(&mut self) -> Option<Bytes> {
        // No client can resume this stream, and half an answer is useless.
        let answer = (&mut self.pending.as_mut()?.answer).now_or_never();
        let answer = answer.unwrap_or_else(|| CallAnswer::lost(&self.id, self.is_repeatable));
        Some(self.finish(answer).into())
    }

    fn keep_alive(&mut self) -> &'static str {
        if self.events { KEEP_ALIVE } else { JSON_KEEP_ALIVE }
    }
}

pub(crate) struct CallLog {
    follow: StreamFollower,
    call: CallId,
    session: Arc<McpSession>,
    /// Requests of the tool to close the connection, so that the client resumes.
    close_requests: Option<watch::Receiver<u64>>,
    /// Whether the client has got the delay before it resumes.
    retry_given: bool,
}

/// The id of an event: the stream, and how far the client has read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogCursor<'a> {
    /// The id of a call, or of a session.
    pub(crate) stream: &'a str,
    /// A `seq`; for a standalone stream, a position of the log.
    pub(crate) after: i64,
}

impl<'a> LogCursor<'a> {
    pub(crate) fn parse(id: &'a str) -> Option<Self> {
        let (stream, after) = id.trim().rsplit_once('.')?;
        let after = after.parse().ok().filter(|after| *after >= 0)?;
        Some(Self { stream, after })
    }
}

fn push_event(text: &mut String, stream: &str, event: &Event) {
    sse::push_message(text, format_args!("{stream}.{}", event.seq), "message", &event.data);
}

/// The first event of a stream, which gives the client an id before there is a message.
fn priming_event(stream: &str, after: i64) -> String {
    format!("retry: {}\nid: {stream}.{after}\ndata: \n\n", limits::MCP_RETRY_MS)
}

/// Whether clients know priming events. One client of an earlier revision breaks at them.
fn is_primed(revision: Revision) -> bool {
    revision >= Revision::V2025_11_25
}

/// Distinguishes a message, which has a method, from an answer.
#[derive(Deserialize)]
struct MethodProbe {
    method: Option<IgnoredAny>,
}

impl CallLog {
    pub(crate) async fn open(
        server: &McpServer,
        call: CallId,
        session: Arc<McpSession>,
        after: Seq,
    ) -> Result<Self, service::Error> {
        let stream = log_stream_of(&call, &session);
        let follow = server.services.log.follow(stream, after).await?;
        let mut close_requests = server.running.get(&call).map(|running| running.close_requests);
        // Requests before this connection were for earlier connections.
        close_requests.iter_mut().for_each(watch::Receiver::mark_unchanged);
        let retry_given = is_primed(session.client().revision);
        Ok(Self { follow, call, session, close_requests, retry_given })
    }

    /// The stream of the call that has this JSON-RPC id.
    pub(crate) fn response(self, server: &McpServer, id: &RawValue) -> Response {
        let is_primed = self.retry_given;
        let first = is_primed.then(|| priming_event(self.call.as_str(), self.follow.cursor()));
        let closed = self.session.closed.clone();
        let body = stream_body(server, first, self).until_closed(closed);
        // Only a slow call is on record, and no such call ends its own session.
        ending_with_token(body.into_events(), id)
    }

    /// The answer at the end of the stream; `None` if the call was cancelled.
    pub(crate) async fn answer(mut self) -> Option<String> {
        let mut last = None;
        while let Ok(Some(mut events)) = self.follow.next().await {
            last = events.pop().map(|event| event.data).or(last);
        }
        let last = last?;
        let probe: MethodProbe = serde_json::from_str(&last).ok()?;
        probe.method.is_none().then(|| last.to_string())
    }
}

impl StreamSource for CallLog {
    async fn next(&mut self) -> Result<Option<Bytes>, service::Error> {
        let close_request = self.close_requests.as_mut().map(watch::Receiver::changed);
        let events = tokio::select! {
            biased;
            events = self.follow.next() => events?,
            Some(Ok(())) = OptionFuture::from(close_request) => None,
        };
        let Some(events) = events else { return Ok(None) };
        let mut text = String::new();
        for event in &events {
            if !std::mem::replace(&mut self.retry_given, true) {
                text = format!("retry: {}\n", limits::MCP_RETRY_MS);
            }
            push_event(&mut text, self.call.as_str(), event);
        }
        Ok(Some(text.into()))
    }
}

/// The notices of a session, which may change its subscriptions at any time.
struct McpSessionNotices {
    server: McpServer,
    session: Arc<McpSession>,
    queue: Box<NoticeQueue>,
    subscriptions: watch::Receiver<Option<i64>>,
    /// The subscriptions have changed since they were last read.
    due: bool,
    /// The position of the log before the first new subscription.
    since: Option<i64>,
}

impl McpSessionNotices {
    async fn new(
        server: &McpServer,
        caller: &Caller,
        session: &Arc<McpSession>,
        from: Option<i64>,
    ) -> Result<Self, service::Error> {
        let subscriptions = session.subscriptions.subscribe();
        let _ = session.take_unread_subscriptions();
        let watched = watched_resources(server, session).await?;
        // The list may have changed while the client was away, perhaps as the daemon was restarted.
        let (tools, prompts, resources) = (true, true, true);
        let (known, tasks) = (Some(Arc::clone(session)), Vec::new());
        let filter = NoticeFilter { tools, session: known, prompts, resources, watched, tasks };
        let queue = Box::new(NoticeQueue::new(server, caller, filter, from).await?);
        let (server, session) = (server.clone(), Arc::clone(session));
        Ok(Self { server, session, queue, subscriptions, due: false, since: None })
    }

    async fn next(&mut self) -> Result<Notice, service::Error> {
        loop {
            if self.due {
                let watched = Box::pin(watched_resources(&self.server, &self.session)).await?;
                Box::pin(self.queue.watch(watched, self.since)).await?;
                (self.due, self.since) = (false, None);
            }
            tokio::select! {
                biased;
                Ok(()) = self.subscriptions.changed() => {
                    self.due = true;
                    let since = self.session.take_unread_subscriptions();
                    self.since = self.since.into_iter().chain(since).min();
                }
                notice = self.queue.next() => return notice,
            }
        }
    }

    fn keep_alive(&self) -> &'static str {
        self.server.sessions.touch(&self.session);
        KEEP_ALIVE
    }
}

async fn watched_resources(
    server: &McpServer,
    session: &McpSession,
) -> Result<WatchedResources, service::Error> {
    let mut watched = WatchedResources::new();
    for (uri, stream) in server.services.mcp.resource_subscriptions(&session.id).await? {
        watched.entry(stream).or_default().insert(uri);
    }
    Ok(watched)
}

/// The stream's name in the event ids of a session's standalone stream, unique among calls and
/// sessions.
pub(crate) fn standalone_stream_of(session: &McpSession) -> &str {
    session.id.as_str()
}

/// The ids of a session's standalone stream are positions of the log, so resuming is a query.
pub(crate) async fn standalone_response(
    server: &McpServer,
    caller: &Caller,
    session: Arc<McpSession>,
    from: Option<i64>,
) -> Result<Response, service::Error> {
    let mut number = 0;
    session.streams.send_modify(|count| {
        *count += 1;
        number = *count;
    });
    // Read first: what follows until the notices begin is told twice, and not missed.
    let head = server.services.log.log_head().await?;
    let notices = McpSessionNotices::new(server, caller, &session, from).await?;
    // A client may know more than a log that was restored.
    let position = from.map_or(head, |from| from.min(head));
    let first = if is_primed(session.client().revision) {
        priming_event(standalone_stream_of(&session), position)
    } else {
        ": listening\n\n".to_owned()
    };
    let source = StandaloneSource { latest: session.streams.subscribe(), number, notices };
    let closed = session.closed.clone();
    Ok(stream_body(server, Some(first), source).until_closed(closed).into_events())
}

struct StandaloneSource {
    /// Number of the session's latest standalone stream.
    latest: watch::Receiver<u64>,
    number: u64,
    notices: McpSessionNotices,
}

impl StreamSource for StandaloneSource {
    async fn next(&mut self) -> Result<Option<Bytes>, service::Error> {
        let number = self.number;
        let notice = tokio::select! {
            biased;
            // A message goes to the latest stream only, since the connections of earlier ones
            // may be dead. The session holds the sender, so the wait does not fail.
            _ = self.latest.wait_for(|latest| *latest != number) => return Ok(None),
            notice = self.notices.next() => notice?,
        };
        let mut text = event(&notice.message(None));
        if let Notice::ResourceUpdated { position: Some(position), .. } = notice {
            let stream = standalone_stream_of(&self.notices.session);
            text.insert_str(0, &format!("id: {stream}.{position}\n"));
        }
        Ok(Some(text.into()))
    }

    fn keep_alive(&mut self) -> &'static str {
        self.notices.keep_alive()
    }
}

/// The stream of a session of 2024-11-05: the address to POST to, then the session's messages.
pub(crate) async fn sse_session_response(
    server: &McpServer,
    caller: &Caller,
    session: Arc<McpSession>,
    after: Seq,
) -> Result<Response, service::Error> {
    let follow = server.services.log.follow(StreamName::new("mcp", &session.id), after).await?;
    let notices = McpSessionNotices::new(server, caller, &session, None).await?;
    let first = sse::message("endpoint", &format!("/messages?session_id={}", session.id));
    let (source, closed) = (SseStreamSource { follow, notices }, session.closed.clone());
    Ok(stream_body(server, Some(first), source).until_closed(closed).into_events())
}

struct SseStreamSource {
    follow: StreamFollower,
    notices: McpSessionNotices,
}

impl StreamSource for SseStreamSource {
    async fn next(&mut self) -> Result<Option<Bytes>, service::Error> {
        tokio::select! {
            biased;
            events = self.follow.next() => {
                let Some(events) = events? else { return Ok(None) };
                let mut text = String::new();
                for event in &events {
                    push_event(&mut text, self.notices.session.id.as_str(), event);
                }
                Ok(Some(text.into()))
            }
            notice = self.notices.next() => Ok(Some(event(&notice?.message(None)).into())),
        }
    }

    fn keep_alive(&mut self) -> &'static str {
        self.notices.keep_alive()
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
