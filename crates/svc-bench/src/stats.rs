//! Slices of a measurement, and what becomes of them: medians, percentiles, ratios.
//!
//! What is compared is measured in turns (A, B, A, B, …): the machine's speed drifts by a third
//! from minute to minute, so a ratio means something only between neighbours. A ratio here is the
//! median of the rounds' ratios.

use std::time::{Duration, Instant};

/// When to count: what happens before `from` warms up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Counting begins.
    pub(crate) from: Instant,
    /// Counting ends.
    pub(crate) until: Instant,
}

impl Window {
    /// A window that begins after `warm` and lasts for `measure`.
    pub(crate) fn after(warm: Duration, measure: Duration) -> Self {
        let from = Instant::now() + warm;
        Self { from, until: from + measure }
    }

    /// How long it counts.
    pub(crate) fn length(self) -> Duration {
        self.until - self.from
    }
}

/// What one contender did in one round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slice {
    /// Things done within the window.
    pub(crate) count: u64,
    /// How long the window was.
    pub(crate) length: Duration,
    /// How long each took, in nanoseconds; at most four seconds. Empty where it was not measured.
    pub(crate) latencies: Vec<u32>,
    /// CPU time that the server spent in about that window, where the system tells.
    pub(crate) cpu: Option<Duration>,
}

impl Slice {
    /// Without latencies.
    pub(crate) fn counted(count: u64, length: Duration) -> Self {
        Self { count, length, ..Self::default() }
    }

    /// Counts one thing that took `elapsed`.
    pub(crate) fn add(&mut self, elapsed: Duration) {
        self.count += 1;
        self.latencies.push(u32::try_from(elapsed.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Adds what another producer did in the same window.
    pub(crate) fn join(&mut self, other: Self) {
        self.count += other.count;
        self.latencies.extend(other.latencies);
    }

    /// Things per second.
    pub(crate) fn rate(&self) -> f64 {
        float(self.count) / self.length.as_secs_f64().max(1e-9)
    }
}

/// The rounds of one contender, summed up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    /// Things per second: the median of the rounds.
    pub(crate) rate: f64,
    /// Median latency in microseconds: the median of the rounds.
    pub(crate) p50_us: Option<f64>,
    /// 99th percentile in microseconds: the median of the rounds.
    pub(crate) p99_us: Option<f64>,
    /// CPU microseconds of the server for each thing.
    pub(crate) cpu_us: Option<f64>,
}

impl Summary {
    /// Sums up. Each thing counts `weight` times: a request may carry many events.
    pub(crate) fn from_rounds(rounds: &[Slice], weight: u64) -> Self {
        let percentile = |share: f64| {
            let each: Vec<f64> =
                rounds.iter().filter_map(|slice| percentile(slice, share)).collect();
            (!each.is_empty()).then(|| median(each))
        };
        let cpu: Vec<f64> = rounds
            .iter()
            .filter(|slice| slice.count > 0)
            .filter_map(|slice| Some(slice.cpu?.as_secs_f64() * 1e6 / float(slice.count * weight)))
            .collect();
        Self {
            rate: median(rounds.iter().map(Slice::rate).collect()) * float(weight),
            p50_us: percentile(0.50),
            p99_us: percentile(0.99),
            cpu_us: (!cpu.is_empty()).then(|| median(cpu)),
        }
    }
}

/// The median of the rounds' ratios of rates.
pub(crate) fn ratio(ours: &[Slice], beside: &[Slice]) -> f64 {
    median(ours.iter().zip(beside).map(|(a, b)| a.rate() / b.rate().max(1e-9)).collect())
}

/// The middle one; the mean of the middle two. 0 of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.len() % 2, values.get(half)) {
        (_, None) => 0.0,
        (0, Some(upper)) => f64::midpoint(values[half - 1], *upper),
        (_, Some(middle)) => *middle,
    }
}

/// The latency, in microseconds, that `share` of a slice's things did not exceed.
pub(crate) fn percentile(slice: &Slice, share: f64) -> Option<f64> {
    let mut sorted = slice.latencies.clone();
    let rank = index(share, sorted.len())?;
    let (_, value, _) = sorted.select_nth_unstable(rank);
    Some(f64::from(*value) / 1e3)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a length is within it"
)]
fn index(share: f64, len: usize) -> Option<usize> {
    let last = len.checked_sub(1)?;
    Some(((share * float(last as u64)).round() as usize).min(last))
}

/// A count as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^52")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles_of_small_sets() {
        assert_eq!(median(vec![]).to_bits(), 0.0_f64.to_bits());
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        let mut slice = Slice::default();
        assert_eq!(percentile(&slice, 0.5), None);
        for micros in (1..=100).rev() {
            slice.add(Duration::from_micros(micros));
        }
        let p99 = percentile(&slice, 0.99).expect("there are latencies");
        assert!((p99 - 99.0).abs() < 1e-9, "{p99}");
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        let slice = |count| Slice::counted(count, Duration::from_secs(1));
        // The machine slowed down by half after the first round; the ratio does not see it.
        let ratio =
            ratio(&[slice(100), slice(50), slice(50)], &[slice(200), slice(100), slice(100)]);
        assert!((ratio - 0.5).abs() < 1e-9);
    }
}
