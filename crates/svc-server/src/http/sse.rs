//! A subscription as a response body.

use std::{convert::Infallible, pin::Pin};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use svc_core::service::log::{Subscription, SubscriptionChunk};
use svc_model::limits;
use svc_sys::telemetry;
use svc_wire::sse;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{App, Problem, presence::PagePresence};
use crate::web::KeepAliveTimer;

/// The response that follows `subscription` until it ends, the client disconnects, or the daemon
/// shuts down. `from` is the cursor at which it begins, if the client does not know it: the first
/// line sets it, so that a connection that breaks before the first event resumes there.
pub(super) fn response(
    app: &App,
    subscription: Subscription,
    from: Option<i64>,
    presence: Option<PagePresence>,
) -> Response {
    let feed = SseFeed {
        from,
        subscription,
        stop: Box::pin(app.stop.clone().cancelled_owned()),
        pulse: app.beat.pulse(),
        begun: false,
        _presence: presence,
    };
    // Pulled by the connection: nothing is read for a client that takes nothing.
    let chunks = stream::unfold(feed, |mut feed| async move {
        let chunk = feed.next().await?;
        Some((Ok::<_, Infallible>(chunk), feed))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    sse::announce(response.headers_mut());
    response
}

/// The client's cursor: its header, else its query; an empty one counts as absent.
pub(super) fn last_event_id(
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Option<u64>, Problem> {
    let header = headers
        .get("last-event-id")
        .map(|value| value.to_str().map_err(|_| malformed()))
        .transpose()?;
    let given = |text: &&str| !text.trim().is_empty();
    let Some(text) = header.filter(given).or(query.filter(given)) else {
        return Ok(None);
    };
    parse_cursor(text).map(Some).ok_or_else(malformed)
}

/// A seq or position: digits only, where a parser of numbers would accept a sign, too.
pub(super) fn parse_cursor(text: &str) -> Option<u64> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn malformed() -> Problem {
    Problem::malformed("Last-Event-ID must be a number, as the last `id:` that was received")
}

struct SseFeed {
    from: Option<i64>,
    subscription: Subscription,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    pulse: KeepAliveTimer,
    begun: bool,
    /// For a page: the operator is present while it listens.
    _presence: Option<PagePresence>,
}

impl SseFeed {
    async fn next(&mut self) -> Option<Bytes> {
        let chunk = self.chunk().await;
        self.pulse.spoke();
        chunk
    }

    async fn chunk(&mut self) -> Option<Bytes> {
        if !self.begun {
            self.begun = true;
            let retry = limits::SSE_RETRY_MS;
            // An `id` without `data` sets the client's cursor and is no event (WHATWG HTML, 9.2.6).
            let from = self.from.map(|id| format!("id: {id}\n\n")).unwrap_or_default();
            return Some(Bytes::from(format!("retry: {retry}\n\n{from}")));
        }
        tokio::select! {
            biased;
            () = &mut self.stop => None,
            next = self.subscription.next() => match next {
                Ok(Some(SubscriptionChunk::Frames(frames))) => Some(frames),
                Ok(Some(SubscriptionChunk::Gap(gap))) => Some(sse::notice("gap", &gap).into()),
                Ok(None) => None,
                Err(error) => {
                    // The client resumes with its last id, and gets the error if it persists.
                    tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                    None
                }
            },
            () = self.pulse.due() => Some(Bytes::from_static(sse::KEEP_ALIVE.as_bytes())),
        }
    }
}
