//! Throttles what a server sends without being asked.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use svc_model::limits::{SOURCE_MESSAGES, SOURCE_REFETCH_PAUSE};
use tokio::time::{Instant, sleep_until};

/// Unsolicited bytes of a server in one second: notifications, requests, and invalid messages.
/// Beyond that its output is not read before the second ends, so that the server blocks.
const BYTES: usize = 16 * 1024 * 1024;
const WINDOW: Duration = Duration::from_secs(1);

/// Delays between two refetches of lists that go on changing: none after a quiet time, then this
/// one, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Counts unsolicited messages of one connection.
#[derive(Debug, Default)]
pub(super) struct MessageThrottle(Mutex<Option<PaceWindow>>);

/// The count of one second.
#[derive(Debug, Clone, Copy)]
struct PaceWindow {
    began: Instant,
    messages: u32,
    bytes: usize,
}

impl MessageThrottle {
    /// Counts a message, and waits for the next second if there were too many.
    pub(super) async fn spend(&self, bytes: usize) {
        if let Some(until) = self.count(bytes, Instant::now()) {
            sleep_until(until).await;
        }
    }

    /// Counts a message. Returns the end of the window if there were too many in it.
    fn count(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let present = window.filter(|window| now < window.began + WINDOW);
        let present = present.unwrap_or(PaceWindow { began: now, messages: 0, bytes: 0 });
        let PaceWindow { began, messages, bytes: before } = present;
        let present = PaceWindow { began, messages: messages + 1, bytes: before + bytes };
        *window = Some(present);
        (present.messages > SOURCE_MESSAGES || present.bytes > BYTES).then(|| began + WINDOW)
    }
}

/// When the lists of a server are fetched again: at once after a quiet time, then with a growing
/// delay while they go on changing.
#[derive(Debug)]
pub(super) struct RefetchBackoff {
    pause: Duration,
    /// When the lists were last fetched.
    fetched: Option<Instant>,
}

impl RefetchBackoff {
    pub(super) const fn new() -> Self {
        Self { pause: FIRST_PAUSE, fetched: None }
    }

    /// When to fetch after a change at `now`. Changes until then are covered.
    pub(super) fn due(&self, now: Instant) -> Instant {
        self.fetched.map_or(now, |fetched| now.max(fetched + self.pause))
    }

    /// Notes that the lists were fetched.
    pub(super) fn note(&mut self, now: Instant) {
        self.pause = match self.fetched {
            Some(fetched) if now < fetched + self.pause * 4 => {
                (self.pause * 2).min(SOURCE_REFETCH_PAUSE)
            }
            _ => FIRST_PAUSE,
        };
        self.fetched = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refetch_backs_off_while_lists_keep_changing() {
        let start = Instant::now();
        let mut pace = RefetchBackoff::new();
        assert_eq!(pace.due(start), start, "the first one at once");
        let (mut now, mut fetches) = (start, 0);
        while now < start + Duration::from_mins(2) {
            now = pace.due(now);
            pace.note(now);
            fetches += 1;
        }
        assert!(fetches < 25, "{fetches}");
        // A change after a quiet time is fetched at once.
        let later = now + Duration::from_mins(1);
        assert_eq!(pace.due(later), later);
        pace.note(later);
        assert_eq!(pace.due(later), later + FIRST_PAUSE);
    }

    #[test]
    fn flood_of_messages_waits_for_the_next_second() {
        let (pace, start) = (MessageThrottle::default(), Instant::now());
        for _ in 0..SOURCE_MESSAGES {
            assert_eq!(pace.count(10, start), None);
        }
        assert_eq!(pace.count(10, start), Some(start + WINDOW));
        assert_eq!(pace.count(10, start + WINDOW), None);
        assert_eq!(pace.count(BYTES, start + WINDOW), Some(start + WINDOW * 2));
    }
}
