//! The bodies of streams, of both adapters, and the keep-alive timer of idle ones.

use std::{convert::Infallible, pin::Pin, time::Duration};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures_util::{future::OptionFuture, stream};
use svc_core::service;
use svc_sys::telemetry;
use svc_wire::sse;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::{CancellationToken, ReusableBoxFuture, WaitForCancellationFutureOwned};

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
    timer: KeepAliveTimer,
    is_over: bool,
}

impl<S: StreamSource> StreamBody<S> {
    pub(crate) fn new(
        stop: &CancellationToken,
        keep_alive: &KeepAlive,
        first: Option<String>,
        source: S,
    ) -> Self {
        let (stop, timer) = (Box::pin(stop.clone().cancelled_owned()), keep_alive.timer());
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

/// The keep-alive timer of all idle streams. It stops when the last clone and the last stream's
/// timer are dropped.
///
/// Clients and proxies give up a stream that is silent for long, so it sends a comment. One timer
/// serves all streams, in place of a timer for each of a thousand. It ticks at half of the allowed
/// silence, and at a tick each stream that has been silent for that half sends its comment: the
/// first after a half to a whole of the allowed silence, and later ones once in each whole.
#[derive(Debug, Clone)]
pub struct KeepAlive {
    ticks: watch::Receiver<Instant>,
    half: Duration,
}

/// The timer for one stream.
#[derive(Debug)]
pub struct KeepAliveTimer {
    /// Waits for the next tick. Kept between two waits, so that a busy stream does not register
    /// with the timer at each of its chunks.
    tick: ReusableBoxFuture<'static, (Option<Instant>, watch::Receiver<Instant>)>,
    half: Duration,
    /// When the stream last sent something.
    last: Instant,
}

impl KeepAlive {
    /// A timer for streams that may be silent for `silence`.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn new(silence: Duration) -> Self {
        let half = (silence / 2).max(Duration::from_millis(1));
        let (sender, ticks) = watch::channel(Instant::now());
        tokio::spawn(async move {
            let mut interval = tokio::time::interval(half);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    tick = interval.tick() => drop(sender.send_replace(tick)),
                    () = sender.closed() => return,
                }
            }
        });
        Self { ticks, half }
    }

    /// The timer for one stream, which has just sent something.
    pub fn timer(&self) -> KeepAliveTimer {
        let mut ticks = self.ticks.clone();
        ticks.mark_unchanged();
        KeepAliveTimer {
            tick: ReusableBoxFuture::new(next_tick(ticks)),
            half: self.half,
            last: Instant::now(),
        }
    }
}

async fn next_tick(
    mut ticks: watch::Receiver<Instant>,
) -> (Option<Instant>, watch::Receiver<Instant>) {
    let tick = ticks.changed().await.is_ok().then(|| *ticks.borrow_and_update());
    (tick, ticks)
}

impl KeepAliveTimer {
    /// Restarts the timer: the stream has sent something.
    pub fn restart(&mut self) {
        self.last = Instant::now();
    }

    /// Waits until a comment is due. Cancel safe.
    pub async fn due(&mut self) {
        loop {
            let (tick, ticks) = self.tick.get_pin().await;
            self.tick.set(next_tick(ticks));
            let Some(tick) = tick else {
                // The runtime shuts down.
                return std::future::pending().await;
            };
            if tick.saturating_duration_since(self.last) >= self.half {
                return;
            }
        }
    }
}
