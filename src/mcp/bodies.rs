//! The streams that answers come in. Each is pulled by its connection, so a reader that does not read costs nothing but
//! its place, and nobody waits for it.

use std::{convert::Infallible, fmt::Write as _, sync::Arc};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, value::RawValue};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Mcp,
    calls::{Answer, Pending, lost},
    message::notification_text,
    notices::{Notice, Notices, Wants},
    session::Session,
};
use crate::{
    domain::{CallId, Caller, Event, Seq, limits, mcp::Revision, sse::KEEP_ALIVE},
    service::{self, log::Follow},
    telemetry,
    web::{self, Pulse},
};

/// What a client can read, by its `Accept` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accept {
    /// `application/json`.
    json: bool,
    /// `text/event-stream`.
    events: bool,
}

impl Accept {
    /// Reads the header (RFC 9110, 12.5.1). What is there cannot be wrong: every client is served.
    pub(super) fn of(headers: &http::HeaderMap) -> Self {
        let accept = web::Accept::of(headers);
        let accepts = |media_type| accept.weight(media_type).map(|weight| weight > 0.0);
        let json = accepts("application/json");
        let events = accepts("text/event-stream");
        if json == Some(true) || events == Some(true) {
            return Self { json: json == Some(true), events: events == Some(true) };
        }
        // A list without anything that we have is served as if it were not there, as far as it refuses nothing.
        Self { json: json.is_none() || events.is_some(), events: events.is_none() }
    }

    /// Whether an answer that takes time may come as a stream.
    pub(super) fn streams(self) -> bool {
        self.events
    }
}

/// A stream of what `next` makes of a state, chunk by chunk and to `None`.
fn event_stream<S, F, Fut>(state: S, mut next: F) -> Response
where
    S: Send + 'static,
    F: FnMut(S) -> Fut + Send + 'static,
    Fut: Future<Output = Option<(Bytes, S)>> + Send + 'static,
{
    let chunks = stream::unfold(state, move |state| {
        let next = next(state);
        async move {
            let (chunk, state) = next.await?;
            Some((Ok::<_, Infallible>(chunk), state))
        }
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// One message as an event without an id.
fn plain_event(text: &str) -> String {
    format!("event: message\ndata: {text}\n\n")
}

/// A whole answer: JSON, or one event where the client reads nothing else.
pub(super) fn whole(answer: String, status: u16, accept: Accept) -> Response {
    if accept.json {
        return json(answer, status);
    }
    let mut response =
        event_stream(Some(plain_event(&answer)), |text: Option<String>| async move {
            text.map(|text| (Bytes::from(text), None))
        });
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    response
}

pub(super) fn json(text: String, status: u16) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer at once if it comes at once; else a stream that it comes in, with what is said on the way. `done` is told
/// how it went.
pub(super) async fn pending<D>(
    mcp: &Mcp,
    id: Box<RawValue>,
    mut pending: Pending,
    accept: Accept,
    done: D,
) -> Response
where
    D: FnOnce(&Answer) + Send + 'static,
{
    let mut said = None;
    tokio::select! {
        biased;
        Some(message) = next_message(pending.messages.as_mut()), if accept.streams() => said = Some(message),
        answer = &mut pending.answer => {
            // What was said just before is not to be lost.
            let rest = pending.messages.as_mut().and_then(|messages| messages.try_recv().ok());
            match rest.filter(|_| accept.streams()) {
                None => {
                    done(&answer);
                    return whole(answer.text, answer.status, accept);
                }
                Some(message) => {
                    said = Some(message);
                    pending.answer = Box::pin(std::future::ready(answer));
                }
            }
        }
        () = tokio::time::sleep(limits::MCP_PATIENCE) => {}
    }
    let open = Open {
        id,
        said,
        pending: Some(pending),
        done: Some(done),
        pulse: mcp.beat.pulse(),
        stop: mcp.stop.clone(),
        begun: false,
        events: accept.streams(),
    };
    if accept.streams() {
        return event_stream(open, Open::next);
    }
    // JSON may begin with white space, which tells a client and what is between that somebody is at work.
    let mut response = event_stream(open, Open::next);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn next_message(messages: Option<&mut mpsc::UnboundedReceiver<String>>) -> Option<String> {
    match messages {
        Some(messages) => match messages.recv().await {
            Some(message) => Some(message),
            // The tool is done talking; its answer is on its way.
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// A response whose answer is not there yet.
struct Open<D> {
    /// JSON-RPC id of the request.
    id: Box<RawValue>,
    said: Option<String>,
    pending: Option<Pending>,
    done: Option<D>,
    pulse: Pulse,
    stop: CancellationToken,
    begun: bool,
    events: bool,
}

impl<D: FnOnce(&Answer) + Send + 'static> Open<D> {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        if !self.begun {
            self.begun = true;
            if let Some(said) = self.said.take() {
                return Some((plain_event(&said).into(), self));
            }
            return Some((
                if self.events {
                    Bytes::from_static(b": at work\n\n")
                } else {
                    Bytes::from_static(b"\n")
                },
                self,
            ));
        }
        let pending = self.pending.as_mut()?;
        let text = tokio::select! {
            biased;
            Some(message) = next_message(pending.messages.as_mut()) => if self.events { plain_event(&message) } else { "\n".to_owned() },
            answer = &mut pending.answer => {
                let mut text = String::new();
                if let Some(messages) = pending.messages.as_mut().filter(|_| self.events) {
                    while let Ok(message) = messages.try_recv() {
                        text.push_str(&plain_event(&message));
                    }
                }
                if let Some(done) = self.done.take() {
                    done(&answer);
                }
                self.pending = None;
                if self.events { text.push_str(&plain_event(&answer.text)) } else { text.push_str(&answer.text) }
                text
            }
            () = self.stop.cancelled() => {
                // Nobody can come back for the rest of this one, and half an answer would be none.
                let answer = lost(&self.id);
                if let Some(done) = self.done.take() {
                    done(&answer);
                }
                self.pending = None;
                if self.events { plain_event(&answer.text) } else { answer.text }
            }
            () = self.pulse.due() => if self.events { KEEP_ALIVE.to_owned() } else { "\n".to_owned() },
        };
        self.pulse.spoke();
        Some((text.into(), self))
    }
}

/// A call's stream of the log, as a legacy client reads it: every message has an id to come back with.
pub(super) struct CallStream {
    pub(super) follow: Follow,
    pub(super) call: CallId,
    pub(super) session: Arc<Session>,
    /// Asks the client to come back for the rest, now and not later.
    pub(super) hung_up: Option<watch::Receiver<u64>>,
}

impl CallStream {
    /// The response that follows it.
    pub(super) fn response(self, mcp: &Mcp) -> Response {
        let state = CallBody {
            primed: self.session.revision() >= Revision::V2025_11_25,
            retry_said: false,
            begun: false,
            pulse: mcp.beat.pulse(),
            stop: mcp.stop.clone(),
            stream: self,
        };
        event_stream(state, CallBody::next)
    }

    /// The answer, which the stream ends with, for a client that reads nothing but JSON. None if it was cancelled.
    pub(super) async fn answer(mut self) -> Option<String> {
        let mut last = None;
        while let Ok(Some(events)) = self.follow.next().await {
            if let Some(event) = events.last() {
                last = Some(event.data.to_string());
            }
        }
        // What was said on the way is no answer.
        last.filter(|last| {
            serde_json::from_str::<Value>(last).is_ok_and(|message| message.get("method").is_none())
        })
    }
}

struct CallBody {
    stream: CallStream,
    primed: bool,
    retry_said: bool,
    begun: bool,
    pulse: Pulse,
    stop: CancellationToken,
}

impl CallBody {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let retry = limits::MCP_RETRY_MS;
        if !self.begun {
            self.begun = true;
            if self.primed {
                self.retry_said = true;
                let (call, cursor) = (&self.stream.call, self.stream.follow.cursor());
                return Some((
                    format!("retry: {retry}\nid: {call}.{cursor}\ndata: \n\n").into(),
                    self,
                ));
            }
        }
        let text = tokio::select! {
            biased;
            () = self.stop.cancelled() => return None,
            () = self.stream.session.closed.cancelled() => return None,
            next = self.stream.follow.next() => match next {
                Ok(Some(events)) => {
                    let mut text = String::new();
                    for event in &events {
                        if !std::mem::replace(&mut self.retry_said, true) {
                            text.push_str("retry: ");
                            text.push_str(&retry.to_string());
                            text.push('\n');
                        }
                        push_event(&mut text, self.stream.call.as_str(), event);
                    }
                    text
                }
                Ok(None) => return None,
                Err(error) => {
                    tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                    return None;
                }
            },
            () = hung_up(self.stream.hung_up.as_mut()) => return None,
            () = self.pulse.due() => KEEP_ALIVE.to_owned(),
        };
        self.pulse.spoke();
        Some((text.into(), self))
    }
}

async fn hung_up(wishes: Option<&mut watch::Receiver<u64>>) {
    match wishes {
        Some(wishes) => {
            if wishes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        None => std::future::pending().await,
    }
}

fn push_event(text: &mut String, stream: &str, event: &Event) {
    let (seq, data) = (event.seq, &event.data);
    write!(
        text,
        "id: {stream}.{seq}
event: message
data: {data}

"
    )
    .expect("writing to a string does not fail");
}

/// The standalone stream of a legacy session. The id of what it says is a position of the log, so that resuming is a
/// look into the log.
pub(super) async fn standalone(
    mcp: &Mcp,
    caller: &Caller,
    session: Arc<Session>,
    from: Option<i64>,
) -> Result<Response, service::Error> {
    let mut number = 0;
    session.streams.send_modify(|count| {
        *count += 1;
        number = *count;
    });
    let mut subscriptions = session.subscriptions.subscribe();
    subscriptions.mark_unchanged();
    let wants = Wants {
        tools: true,
        prompts: true,
        resources: true,
        uris: uris(mcp, &session).await?,
        tasks: Vec::new(),
    };
    let mut notices = Notices::new(mcp, caller, wants, from).await?;
    if session.tools().is_some_and(|seen| seen != mcp.catalogue.fingerprint()) {
        // It has changed while the client was away, by a restart perhaps.
        notices.push(Notice::Tools);
    }
    let place = match from {
        Some(place) => place,
        None => mcp.services.log.log_head().await?,
    };
    let primed = session.revision() >= Revision::V2025_11_25;
    let body = Standalone {
        first: Some(if primed {
            let stream = standalone_of(&session);
            format!("retry: {}\nid: {stream}.{place}\ndata: \n\n", limits::MCP_RETRY_MS)
        } else {
            ": listening\n\n".to_owned()
        }),
        mcp: mcp.clone(),
        superseded: session.streams.subscribe(),
        number,
        subscriptions,
        notices: Box::new(notices),
        pulse: mcp.beat.pulse(),
        session,
    };
    Ok(event_stream(body, Standalone::next))
}

/// What the ids of a session's standalone stream begin with. No call has it, and no other session.
pub(super) fn standalone_of(session: &Session) -> &str {
    session.id.as_str()
}

async fn uris(
    mcp: &Mcp,
    session: &Session,
) -> Result<std::collections::BTreeMap<String, std::collections::BTreeSet<String>>, service::Error>
{
    let mut uris = std::collections::BTreeMap::new();
    for (uri, stream) in mcp.services.mcp.resource_subscriptions(&session.id).await? {
        uris.entry(stream).or_insert_with(std::collections::BTreeSet::new).insert(uri);
    }
    Ok(uris)
}

struct Standalone {
    first: Option<String>,
    mcp: Mcp,
    session: Arc<Session>,
    superseded: watch::Receiver<u64>,
    number: u64,
    subscriptions: watch::Receiver<u64>,
    notices: Box<Notices>,
    pulse: Pulse,
}

impl Standalone {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        if let Some(first) = self.first.take() {
            return Some((first.into(), self));
        }
        let number = self.number;
        let text = loop {
            tokio::select! {
                biased;
                () = self.mcp.stop.cancelled() => return None,
                () = self.session.closed.cancelled() => return None,
                // A message goes to one stream: the latest, as the others may be half dead.
                () = superseded(&mut self.superseded, number) => return None,
                Ok(()) = self.subscriptions.changed() => {
                    let renewed = async {
                        let uris = uris(&self.mcp, &self.session).await?;
                        self.notices.subscribe_to(uris).await
                    };
                    if let Err(error) = Box::pin(renewed).await {
                        tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                        return None;
                    }
                }
                notice = self.notices.next() => match notice {
                    Ok(notice) => {
                        let (method, params) = notice.parts();
                        let id = match notice {
                            Notice::Updated { position: Some(position), .. } => {
                                format!("id: {}.{position}\n", standalone_of(&self.session))
                            }
                            _ => String::new(),
                        };
                        break format!("{id}{}", plain_event(&notification_text(method, &params)));
                    }
                    Err(error) => {
                        tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                        return None;
                    }
                },
                () = self.pulse.due() => {
                    self.mcp.touch(&self.session);
                    break KEEP_ALIVE.to_owned();
                }
            }
        };
        self.pulse.spoke();
        Some((text.into(), self))
    }
}

async fn superseded(latest: &mut watch::Receiver<u64>, number: u64) {
    // The session holds the sender, and we hold the session.
    drop(latest.wait_for(|latest| *latest != number).await);
}

/// The stream of `subscriptions/listen`.
pub(super) struct Listen {
    pub(super) acknowledged: Option<String>,
    pub(super) notices: Box<Notices>,
    /// JSON-RPC id of the request, which every notification names.
    pub(super) subscription: Value,
}

impl Listen {
    /// The response that it comes in.
    pub(super) fn response(self, mcp: &Mcp) -> Response {
        let pulse = mcp.beat.pulse();
        event_stream((self, pulse, mcp.stop.clone()), |(listen, pulse, stop)| {
            listen.next(pulse, stop)
        })
    }

    async fn next(
        mut self,
        mut pulse: Pulse,
        stop: CancellationToken,
    ) -> Option<(Bytes, (Self, Pulse, CancellationToken))> {
        if let Some(first) = self.acknowledged.take() {
            return Some((Bytes::from(plain_event(&first)), (self, pulse, stop)));
        }
        let text = tokio::select! {
            biased;
            // Without a result, which would end the subscription: the client comes back after a restart.
            () = stop.cancelled() => return None,
            notice = self.notices.next() => match notice {
                Ok(notice) => {
                    let (method, mut params) = notice.parts();
                    let key = crate::domain::mcp::meta::SUBSCRIPTION_ID;
                    params["_meta"] = serde_json::json!({ key: self.subscription });
                    plain_event(&notification_text(method, &params))
                }
                Err(error) => {
                    tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                    return None;
                }
            },
            () = pulse.due() => KEEP_ALIVE.to_owned(),
        };
        pulse.spoke();
        Some((text.into(), (self, pulse, stop)))
    }
}

/// The one stream of a session of 2024-11-05: where to send to, and then every message of its stream of the log.
pub(super) fn session_stream(
    mcp: &Mcp,
    session: Arc<Session>,
    follow: Follow,
    notices: Notices,
    endpoint: Option<String>,
) -> Response {
    let body = SessionBody {
        first: endpoint.map(|path| format!("event: endpoint\ndata: {path}\n\n")),
        subscriptions: session.subscriptions.subscribe(),
        mcp: mcp.clone(),
        follow,
        notices: Box::new(notices),
        pulse: mcp.beat.pulse(),
        session,
    };
    event_stream(body, SessionBody::next)
}

struct SessionBody {
    first: Option<String>,
    mcp: Mcp,
    session: Arc<Session>,
    follow: Follow,
    subscriptions: watch::Receiver<u64>,
    notices: Box<Notices>,
    pulse: Pulse,
}

impl SessionBody {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        if let Some(first) = self.first.take() {
            return Some((first.into(), self));
        }
        let text = loop {
            tokio::select! {
                biased;
                () = self.mcp.stop.cancelled() => return None,
                () = self.session.closed.cancelled() => return None,
                next = self.follow.next() => match next {
                    Ok(Some(events)) => {
                        let mut text = String::new();
                        for event in &events {
                            push_event(&mut text, self.session.id.as_str(), event);
                        }
                        break text;
                    }
                    Ok(None) => return None,
                    Err(error) => {
                        tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                        return None;
                    }
                },
                Ok(()) = self.subscriptions.changed() => {
                    let renewed = async {
                        let uris = uris(&self.mcp, &self.session).await?;
                        self.notices.subscribe_to(uris).await
                    };
                    if let Err(error) = Box::pin(renewed).await {
                        tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                        return None;
                    }
                }
                notice = self.notices.next() => match notice {
                    Ok(notice) => {
                        let (method, params) = notice.parts();
                        break plain_event(&notification_text(method, &params));
                    }
                    Err(error) => {
                        tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                        return None;
                    }
                },
                () = self.pulse.due() => {
                    self.mcp.touch(&self.session);
                    break KEEP_ALIVE.to_owned();
                }
            }
        };
        self.pulse.spoke();
        Some((text.into(), self))
    }
}

/// The stream's place that a client names: which stream, and what it has of it.
pub(super) fn place(id: &str) -> Option<(&str, Seq)> {
    let (stream, place) = id.trim().rsplit_once('.')?;
    let place = place.parse().ok().filter(|place: &Seq| *place >= 0)?;
    Some((stream, place))
}
