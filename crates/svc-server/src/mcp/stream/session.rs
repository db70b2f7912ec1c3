//! Streams that a client of a session reads: that of a call on record, the standalone stream of
//! `GET /mcp`, and the one stream of a session of 2024-11-05. Each message of the log has an id to
//! come back with.

use std::sync::Arc;

use axum::response::Response;
use serde::{Deserialize, de::IgnoredAny};
use svc_core::service::{self, log::StreamFollower};
use svc_model::{CallId, Caller, Event, Seq, StreamName, limits};
use svc_wire::{
    mcp::Revision,
    sse::{self, KEEP_ALIVE},
};
use tokio::sync::watch;

use super::{
    super::{
        McpServer,
        notices::{Notice, NoticeFilter, NoticeQueue, WatchedResources},
        server::McpSession,
    },
    body::{McpResponseBody, MessageSource, event},
};

/// A reader of a call's stream.
pub(crate) struct CallLog {
    follow: StreamFollower,
    call: CallId,
    session: Arc<McpSession>,
    /// Asks the client to come back for the rest, now and not later.
    hang_ups: Option<watch::Receiver<u64>>,
}

/// The id of an event: the stream, and how far the client has read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogCursor<'a> {
    /// A call, or a session.
    pub(crate) stream: &'a str,
    /// A seq, or of a standalone stream a position of the log.
    pub(crate) after: i64,
}

impl<'a> LogCursor<'a> {
    pub(crate) fn parse(id: &'a str) -> Option<Self> {
        let (stream, after) = id.trim().rsplit_once('.')?;
        let after = after.parse().ok().filter(|after| *after >= 0)?;
        Some(Self { stream, after })
    }
}

/// Appends an event of the log.
pub(super) fn push_event(text: &mut String, stream: &str, event: &Event) {
    sse::push_message(text, format_args!("{stream}.{}", event.seq), "message", &event.data);
}

/// The first event of a stream, which gives the client an id before there is a message.
pub(super) fn priming_event(stream: &str, after: i64) -> String {
    format!("retry: {}\nid: {stream}.{after}\ndata: \n\n", limits::MCP_RETRY_MS)
}

/// Whether a client of this revision knows priming events. One of those before breaks at it.
pub(super) fn is_primed(revision: Revision) -> bool {
    revision >= Revision::V2025_11_25
}

/// Tells a message from an answer.
#[derive(Deserialize)]
struct MethodProbe {
    method: Option<IgnoredAny>,
}

impl CallLog {
    /// Reads a call's stream after `after`.
    pub(crate) async fn open(
        server: &McpServer,
        call: CallId,
        stream: StreamName,
        session: Arc<McpSession>,
        after: Seq,
    ) -> Result<Self, service::Error> {
        let follow = server.services.log.follow(stream, after).await?;
        let mut hang_ups = server.running.get(&call).map(|running| running.hang_ups);
        // Those of before were for the connections of before.
        hang_ups.iter_mut().for_each(watch::Receiver::mark_unchanged);
        Ok(Self { follow, call, session, hang_ups })
    }

    /// The response that follows it.
    pub(crate) fn response(self, server: &McpServer) -> Response {
        let primed = is_primed(self.session.revision());
        let first = primed.then(|| priming_event(self.call.as_str(), self.follow.cursor()));
        let closed = self.session.closed.clone();
        let source = CallLogSource { log: self, retry_given: primed };
        McpResponseBody::new(server, source).beginning_with(first).until(&closed).events()
    }

    /// The answer, which the stream ends with; `None` if the call was cancelled.
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

struct CallLogSource {
    log: CallLog,
    /// The client knows when to come back.
    retry_given: bool,
}

impl MessageSource for CallLogSource {
    async fn next(&mut self) -> Result<Option<String>, service::Error> {
        let events = tokio::select! {
            biased;
            events = self.log.follow.next() => events?,
            () = hung_up(self.log.hang_ups.as_mut()) => None,
        };
        let Some(events) = events else { return Ok(None) };
        let mut text = String::new();
        for event in &events {
            if !std::mem::replace(&mut self.retry_given, true) {
                text = format!("retry: {}\n", limits::MCP_RETRY_MS);
            }
            push_event(&mut text, self.log.call.as_str(), event);
        }
        Ok(Some(text))
    }
}

async fn hung_up(hang_ups: Option<&mut watch::Receiver<u64>>) {
    let is_wanted = match hang_ups {
        Some(hang_ups) => hang_ups.changed().await.is_ok(),
        None => false,
    };
    if !is_wanted {
        std::future::pending::<()>().await;
    }
}

/// The notices of a session, which may change its subscriptions at any time.
struct SessionNotices {
    server: McpServer,
    session: Arc<McpSession>,
    queue: Box<NoticeQueue>,
    subscriptions: watch::Receiver<Option<i64>>,
    /// The subscriptions have changed since they were last read.
    due: bool,
    /// The position of the log before the first of the subscriptions that are new.
    since: Option<i64>,
}

impl SessionNotices {
    async fn new(
        server: &McpServer,
        caller: &Caller,
        session: &Arc<McpSession>,
        from: Option<i64>,
    ) -> Result<Self, service::Error> {
        let subscriptions = session.subscriptions.subscribe();
        let _ = session.take_unread_subscriptions();
        let watched = watched_resources(server, session).await?;
        let filter = NoticeFilter {
            tools: true,
            prompts: true,
            resources: true,
            watched,
            tasks: Vec::new(),
        };
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

/// What the ids of a session's standalone stream begin with. No call has it, and no other session.
pub(crate) fn standalone_stream_of(session: &McpSession) -> &str {
    session.id.as_str()
}

/// The standalone stream of a session. The id of an event is a position of the log, so coming back
/// is a query.
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
    let mut notices = SessionNotices::new(server, caller, &session, from).await?;
    if session.tools().is_some_and(|tools| tools != server.catalogue.fingerprint(server.exposure)) {
        // The list has changed while the client was away, perhaps by a restart.
        notices.queue.push(Notice::ToolsChanged);
    }
    let position = match from {
        Some(position) => position,
        None => server.services.log.log_head().await?,
    };
    let first = if is_primed(session.revision()) {
        priming_event(standalone_stream_of(&session), position)
    } else {
        ": listening\n\n".to_owned()
    };
    let source = StandaloneSource { latest: session.streams.subscribe(), number, notices };
    let body = McpResponseBody::new(server, source).beginning_with(Some(first));
    Ok(body.until(&session.closed).events())
}

struct StandaloneSource {
    /// Number of the session's latest standalone stream.
    latest: watch::Receiver<u64>,
    number: u64,
    notices: SessionNotices,
}

impl MessageSource for StandaloneSource {
    async fn next(&mut self) -> Result<Option<String>, service::Error> {
        let number = self.number;
        let notice = tokio::select! {
            biased;
            // A message goes to one stream: the latest, as the others may be half dead. The session
            // holds the sender.
            _ = self.latest.wait_for(|latest| *latest != number) => return Ok(None),
            notice = self.notices.next() => notice?,
        };
        let mut text = event(&notice.message(None));
        if let Notice::ResourceUpdated { position: Some(position), .. } = notice {
            let stream = standalone_stream_of(&self.notices.session);
            text.insert_str(0, &format!("id: {stream}.{position}\n"));
        }
        Ok(Some(text))
    }

    fn keep_alive(&mut self) -> &'static str {
        self.notices.keep_alive()
    }
}

/// The one stream of a session of 2024-11-05: the address to send to, and then every message of its
/// stream of the log.
pub(crate) async fn sse_session_response(
    server: &McpServer,
    caller: &Caller,
    session: Arc<McpSession>,
    after: Seq,
) -> Result<Response, service::Error> {
    let follow = server.services.log.follow(StreamName::new("mcp", &session.id), after).await?;
    let notices = SessionNotices::new(server, caller, &session, None).await?;
    let first = sse::message("endpoint", &format!("/messages?session_id={}", session.id));
    let source = SseSessionSource { follow, notices };
    let body = McpResponseBody::new(server, source).beginning_with(Some(first));
    Ok(body.until(&session.closed).events())
}

struct SseSessionSource {
    follow: StreamFollower,
    notices: SessionNotices,
}

impl MessageSource for SseSessionSource {
    async fn next(&mut self) -> Result<Option<String>, service::Error> {
        tokio::select! {
            biased;
            events = self.follow.next() => {
                let Some(events) = events? else { return Ok(None) };
                let mut text = String::new();
                for event in &events {
                    push_event(&mut text, self.notices.session.id.as_str(), event);
                }
                Ok(Some(text))
            }
            notice = self.notices.next() => Ok(Some(event(&notice?.message(None)))),
        }
    }

    fn keep_alive(&mut self) -> &'static str {
        self.notices.keep_alive()
    }
}
