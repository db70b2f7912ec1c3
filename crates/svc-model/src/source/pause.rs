//! When a server that ended is started again.

use std::time::Duration;

/// Starts of a server that has never worked, before nothing more is tried.
pub const STARTS_BEFORE_FAILED: u32 = 6;

const LONGEST: Duration = Duration::from_mins(1);

/// The pause after so many failures in a row: 1 s, doubling to a minute.
pub fn restart_pause(failures: u32) -> Duration {
    let seconds = 1_u64 << failures.saturating_sub(1).min(6);
    Duration::from_secs(seconds).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_to_a_minute() {
        let pauses: Vec<u64> = (1..=8).map(|n| restart_pause(n).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(restart_pause(u32::MAX).as_secs(), 60);
    }
}
