//! The stream of the log that a call on record is answered in. Each message has an id to come back with.

use std::sync::Arc;

use axum::response::Response;
use serde::{Deserialize, de::IgnoredAny};
use svc_core::service::{self, log::StreamFollower};
use svc_model::{CallId, Event, Seq, StreamName, limits};
use svc_wire::{mcp::Revision, sse};
use tokio::sync::watch;

use super::{
    super::{McpServer, session::McpSession},
    body::{McpResponseBody, MessageSource},
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
    /// Reads a `Last-Event-ID`.
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
        let running = server.running.get(&call);
        let hang_ups = running.map(|running| running.conversation.hang_ups.subscribe());
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
