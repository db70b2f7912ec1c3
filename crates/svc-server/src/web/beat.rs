//! One timer for all idle streams.
//!
//! A stream that is silent for long is given up by clients and proxies, so it sends a comment. A
//! timer for each of a thousand streams would be a thousand timers. One ticks for all, at half the
//! silence that is allowed, and at a tick each stream that has been silent for that half sends its
//! comment: after a half at the earliest and the whole at the latest, and from then on once in each
//! whole.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::ReusableBoxFuture;

/// Ticks for all streams until the last of its clones and pulses is gone. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Beat {
    ticks: watch::Receiver<Instant>,
    half: Duration,
}

/// The beat, as one stream hears it.
#[derive(Debug)]
pub struct Pulse {
    /// Waits for the next tick. Kept from one wait to the next: a stream that is busy does not
    /// register with the beat at each of its chunks.
    tick: ReusableBoxFuture<'static, (Option<Instant>, watch::Receiver<Instant>)>,
    half: Duration,
    /// When the stream sent something last.
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

    /// The beat for one stream, which has just sent something.
    pub fn pulse(&self) -> Pulse {
        let mut ticks = self.ticks.clone();
        ticks.mark_unchanged();
        Pulse {
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

impl Pulse {
    /// The stream has sent something.
    pub fn spoke(&mut self) {
        self.last = Instant::now();
    }

    /// Waits until it is time for a comment. Dropping the future loses nothing.
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
