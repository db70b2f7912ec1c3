//! The bodies of streams, of both adapters, and the timer of their comments.

use std::{convert::Infallible, pin::Pin, time::Duration};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::{future::OptionFuture, stream};
use svc_core::service;
use svc_sys::telemetry;
use svc_wire::sse;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// What a stream consists of.
pub(crate) trait StreamSource: Send + 'static {
    /// Waits for the next part; `None` at the end. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, service::Error>> + Send;

    /// The last part when the daemon stops.
    fn last_words(&mut self) -> Option<Bytes> {
        None
    }

    /// Sent when the stream was silent for long.
    fn keep_alive(&mut self) -> &'static str {
        sse::KEEP_ALIVE
    }
}

/// The body of a stream: ends it, keeps it alive and reports its errors. A connection pulls its
/// parts, so a reader that does not read costs only its cursor, and nobody waits for it.
pub(crate) struct StreamBody<S> {
    source: S,
    /// Sent before the source's parts.
    first: Option<String>,
    /// Cancelled when the session that the stream belongs to is closed.
    closed: Option<CancellationToken>,
    /// Kept between two parts, so that a busy stream does not register with it for each.
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    timer: SilenceTimer,
    is_over: bool,
}

impl<S: StreamSource> StreamBody<S> {
    /// `silence` is how long the stream may be silent before it sends a comment.
    pub(crate) fn new(
        stop: &CancellationToken,
        silence: Duration,
        first: Option<String>,
        source: S,
    ) -> Self {
        let (stop, timer) = (Box::pin(stop.clone().cancelled_owned()), SilenceTimer::new(silence));
        Self { source, first, closed: None, stop, timer, is_over: false }
    }

    /// Ends with a session.
    pub(crate) fn until_closed(self, closed: CancellationToken) -> Self {
        Self { closed: Some(closed), ..self }
    }

    pub(crate) fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(self, |mut body| async move {
            let part = body.next().await?;
            Some((Ok::<_, Infallible>(part), body))
        }))
    }

    /// The response whose parts are server-sent events.
    pub(crate) fn into_events(self) -> Response {
        let mut response = Response::new(self.into_body());
        sse::announce(response.headers_mut());
        response
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first.into());
        }
        if self.is_over {
            return None;
        }
        let closed = self.closed.as_ref().map(CancellationToken::cancelled);
        let part = tokio::select! {
            biased;
            () = &mut self.stop => {
                self.is_over = true;
                self.source.last_words()?
            }
            Some(()) = OptionFuture::from(closed) => return None,
            next = self.source.next() => match next {
                Ok(part) => part?,
                Err(error) => {
                    // The client resumes with its last id, and gets the error if it persists.
                    tracing::error!(error = telemetry::chain(&error), "a stream broke off");
                    return None;
                }
            },
            () = self.timer.due() => Bytes::from_static(self.source.keep_alive().as_bytes()),
        };
        self.timer.restart();
        Some(part)
    }
}

/// Tells when a stream has been silent for so long that its client or a proxy may give it up.
pub(crate) struct SilenceTimer {
    silence: Duration,
    /// When the stream last sent something.
    last: Instant,
    /// Follows `last` only when it expires, so that a busy stream does not reset it for each part.
    sleep: Pin<Box<Sleep>>,
}

impl SilenceTimer {
    pub(crate) fn new(silence: Duration) -> Self {
        Self { silence, last: Instant::now(), sleep: Box::pin(sleep(silence)) }
    }

    /// Restarts the timer: the stream has sent something.
    pub(crate) fn restart(&mut self) {
        self.last = Instant::now();
    }

    /// Waits until a comment is due. Cancel safe.
    pub(crate) async fn due(&mut self) {
        loop {
            self.sleep.as_mut().await;
            let due = self.last + self.silence;
            if due <= Instant::now() {
                return;
            }
            self.sleep.as_mut().reset(due);
        }
    }
}
