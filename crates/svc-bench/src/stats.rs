//! Slices of a measurement, and their statistics: medians, percentiles, ratios.
//!
//! Contenders are measured in turns (A, B, A, B, …): the machine's speed drifts by a third from
//! minute to minute, so only the ratio of neighbours means something. A ratio here is the median of
//! the rounds' ratios.

use std::time::{Duration, Instant};

/// The interval of a measurement; before `from` is the warm-up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

impl Window {
    /// A window that begins after `warm` and lasts for `measure`.
    pub(crate) fn after(warm: Duration, measure: Duration) -> Self {
        let from = Instant::now() + warm;
        Self { from, until: from + measure }
    }

    pub(crate) fn length(self) -> Duration {
        self.until - self.from
    }
}

/// The result of one contender in one round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slice {
    /// Operations within the window.
    pub(crate) count: u64,
    /// The length of the window.
    pub(crate) length: Duration,
    /// The latencies in nanoseconds, each at most four seconds. Empty if they were not measured.
    pub(crate) latencies: Vec<u32>,
    /// CPU time of the server in about that window, if the system reports it.
    pub(crate) cpu: Option<Duration>,
}

impl Slice {
    /// Without latencies.
    pub(crate) fn counted(count: u64, length: Duration) -> Self {
        Self { count, length, ..Self::default() }
    }

    /// Counts one operation.
    pub(crate) fn add(&mut self, elapsed: Duration) {
        self.count += 1;
        self.latencies.push(u32::try_from(elapsed.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Adds the result of another producer in the same window.
    pub(crate) fn join(&mut self, other: Self) {
        self.count += other.count;
        self.latencies.extend(other.latencies);
    }

    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        float(self.count) / self.length.as_secs_f64().max(1e-9)
    }
}

/// The rounds of one contender, summed up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    /// Operations per second: the median of the rounds.
    pub(crate) rate: f64,
    /// Median latency in microseconds: the median of the rounds.
    pub(crate) p50_us: Option<f64>,
    /// 99th percentile in microseconds: the median of the rounds.
    pub(crate) p99_us: Option<f64>,
    /// CPU microseconds of the server for each operation.
    pub(crate) cpu_us: Option<f64>,
}

impl Summary {
    /// Sums up. Each operation counts `weight` times: a request may carry many events.
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

/// The median; the mean of the middle two, and 0 without values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.len() % 2, values.get(half)) {
        (_, None) => 0.0,
        (0, Some(upper)) => f64::midpoint(values[half - 1], *upper),
        (_, Some(middle)) => *middle,
    }
}

/// The latency, in microseconds, that `share` of the operations did not exceed.
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

/// A count as a floating-point number.
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
    fn ratio_is_the_median_of_the_rounds() {
        let slice = |count| Slice::counted(count, Duration::from_secs(1));
        // The machine became half as fast after the first round; the ratio does not change.
        let ratio =
            ratio(&[slice(100), slice(50), slice(50)], &[slice(200), slice(100), slice(100)]);
        assert!((ratio - 0.5).abs() < 1e-9);
    }
}
