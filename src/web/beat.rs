//! One clock for all idle streams.
//!
//! A stream that says nothing for long is given up by clients and proxies, so it says a comment. A timer for each of
//! a thousand streams would be a thousand timers: one ticks for all, at half the silence that is allowed, and a stream
//! that was silent since the last tick says its comment at the next.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, MissedTickBehavior},
};

/// Ticks for all streams, as long as there is one of it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Beat(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ticks: watch::Receiver<Instant>,
    task: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One stream's view of the beat.
#[derive(Debug)]
pub struct Pulse {
    ticks: watch::Receiver<Instant>,
    half: Duration,
    last: Instant,
}

impl Beat {
    /// A beat for streams that may be silent for `silence`.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn new(silence: Duration) -> Self {
        let half = (silence / 2).max(Duration::from_millis(1));
        let (sender, ticks) = watch::channel(Instant::now());
        let task = tokio::spawn(async move {
            let mut interval = tokio::time::interval(half);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let now = interval.tick().await;
                sender.send_replace(now);
            }
        });
        Self(Arc::new(Inner { ticks, task: task.abort_handle() }))
    }

    /// The beat for one stream, which has just said something.
    pub fn pulse(&self, silence: Duration) -> Pulse {
        let mut ticks = self.0.ticks.clone();
        ticks.mark_unchanged();
        Pulse { ticks, half: silence / 2, last: Instant::now() }
    }
}

impl Pulse {
    /// The stream has said something.
    pub fn spoke(&mut self) {
        self.last = Instant::now();
    }

    /// Waits until it is time for a comment.
    pub async fn due(&mut self) {
        loop {
            if self.ticks.changed().await.is_err() {
                // The beat is gone with the daemon.
                std::future::pending::<()>().await;
            }
            if self.last.elapsed() >= self.half {
                return;
            }
        }
    }
}
