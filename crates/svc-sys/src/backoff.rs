//! The wait before a retry.

use std::time::Duration;

/// The delay doubles with each failure, from the first to the longest.
///
/// Jitter of up to a quarter is added, so that the clients of a restarted daemon do not reconnect
/// at one instant.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// `first` and `longest` are without jitter.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// `failures`: number of failures before the last one; 0 for the first wait.
    pub fn wait(self, failures: u32) -> Duration {
        self.wait_at_least(failures, Duration::ZERO)
    }

    /// As [`Self::wait`], but at least `least`, which may exceed the longest delay.
    pub fn wait_at_least(self, failures: u32, least: Duration) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.min(20)).min(self.longest);
        let base = doubled.max(least);
        // If the system gives no random number, there is no jitter.
        let jitter = getrandom::u32().unwrap_or(0);
        base + base.mul_f64(f64::from(jitter) / f64::from(u32::MAX) / 4.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_are_never_below_the_least() {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        for (failures, least, expected) in [
            (0, 0, 50),
            (1, 0, 100),
            (5, 0, 1600),
            (6, 0, 2000),
            (u32::MAX, 0, 2000),
            (0, 60, 60),
            (0, 60_000, 60_000),
        ] {
            let expected = Duration::from_millis(expected);
            let waited = backoff.wait_at_least(failures, Duration::from_millis(least));
            assert!(
                expected <= waited && waited <= expected.mul_f64(1.25),
                "{failures} {least} {waited:?}"
            );
        }
    }
}
