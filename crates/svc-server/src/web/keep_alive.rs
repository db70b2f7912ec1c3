//! The keep-alive timer of all idle streams.
//!
//! Clients and proxies give up a stream that is silent for long, so it sends a comment. One timer
//! serves all streams, in place of a timer for each of a thousand. It ticks at half of the allowed
//! silence, and at a tick each stream that has been silent for that half sends its comment: the
//! first after a half to a whole of the allowed silence, and later ones once in each whole.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::ReusableBoxFuture;

/// The timer of all streams. It stops when its last clone and pulse are dropped. Cheap to clone.
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
    pub fn pulse(&self) -> KeepAliveTimer {
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
    /// Notes that the stream has sent something.
    pub fn spoke(&mut self) {
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
