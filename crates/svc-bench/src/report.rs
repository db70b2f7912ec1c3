//! Slices of a measurement, their statistics, and the report for people and programs.
//!
//! Contenders are measured alternately (A, B, A, B, …): the machine's speed drifts by a third from
//! minute to minute, so only the ratio of neighbouring measurements is meaningful. A ratio here is
//! the median of the rounds' ratios.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    /// The value of svc: the median of the rounds.
    pub(crate) value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    /// The server's CPU time per unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<Beside>,
    /// svc divided by the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<Goal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) met: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Beside {
    pub(crate) name: String,
    pub(crate) value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Goal {
    of: Of,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_least: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most: Option<f64>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Of {
    Ratio,
    Value,
    P50Us,
    P99Us,
}

impl Goal {
    pub(crate) const fn ratio(at_least: f64) -> Self {
        Self { of: Of::Ratio, at_least: Some(at_least), at_most: None }
    }

    pub(crate) const fn at_least(value: f64) -> Self {
        Self { of: Of::Value, at_least: Some(value), at_most: None }
    }

    pub(crate) const fn at_most(value: f64) -> Self {
        Self { of: Of::Value, at_least: None, at_most: Some(value) }
    }

    pub(crate) const fn p50_us(at_most: f64) -> Self {
        Self { of: Of::P50Us, at_least: None, at_most: Some(at_most) }
    }

    pub(crate) const fn p99_us(at_most: f64) -> Self {
        Self { of: Of::P99Us, at_least: None, at_most: Some(at_most) }
    }

    fn is_met(self, figure: &Figure) -> Option<bool> {
        let value = match self.of {
            Of::Ratio => figure.ratio?,
            Of::Value => figure.value,
            Of::P50Us => figure.p50_us?,
            Of::P99Us => figure.p99_us?,
        };
        Some(
            self.at_least.is_none_or(|bound| value >= bound)
                && self.at_most.is_none_or(|bound| value <= bound),
        )
    }

    fn text(self) -> String {
        let (sign, bound) = match (self.at_least, self.at_most) {
            (Some(bound), _) => ("≥", bound),
            (None, bound) => ("≤", bound.unwrap_or_default()),
        };
        match self.of {
            Of::Ratio => format!("{sign} {bound} ×"),
            Of::Value => format!("{sign} {}", number(bound)),
            Of::P50Us => format!("p50 {sign} {} ms", bound / 1e3),
            Of::P99Us => format!("p99 {sign} {} ms", bound / 1e3),
        }
    }
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self {
            name: name.into(),
            unit,
            value,
            p50_us: None,
            p99_us: None,
            cpu_us: None,
            beside: None,
            ratio: None,
            goal: None,
            met: None,
            note: None,
        }
    }

    pub(crate) fn summed(name: impl Into<String>, unit: &'static str, summary: Summary) -> Self {
        Self {
            p50_us: summary.p50_us,
            p99_us: summary.p99_us,
            cpu_us: summary.cpu_us,
            ..Self::new(name, unit, summary.rate)
        }
    }

    /// svc and a baseline that was measured in the same rounds. Each operation counts `weight`
    /// times.
    pub(crate) fn compared(
        name: impl Into<String>,
        unit: &'static str,
        weight: u64,
        ours: &[Slice],
        (beside, theirs): (&str, &[Slice]),
    ) -> Self {
        Self::summed(name, unit, Summary::from_rounds(ours, weight)).beside(
            beside,
            Summary::from_rounds(theirs, weight),
            ratio(ours, theirs),
        )
    }

    /// Adds a baseline that was measured in the same rounds.
    pub(crate) fn beside(mut self, name: impl Into<String>, other: Summary, ratio: f64) -> Self {
        self.beside = Some(Beside {
            name: name.into(),
            value: other.rate,
            p50_us: other.p50_us,
            p99_us: other.p99_us,
        });
        self.ratio = Some(ratio);
        self
    }

    /// Adds a baseline without a ratio.
    pub(crate) fn beside_value(mut self, name: impl Into<String>, value: f64) -> Self {
        self.beside = Some(Beside { name: name.into(), value, p50_us: None, p99_us: None });
        self
    }

    /// Adds a baseline and the ratio to it.
    pub(crate) fn over(self, name: impl Into<String>, value: f64) -> Self {
        let ratio = (value > 0.0).then(|| self.value / value);
        Self { ratio, ..self.beside_value(name, value) }
    }

    pub(crate) fn goal(mut self, goal: Goal) -> Self {
        self.met = goal.is_met(&self);
        self.goal = Some(goal);
        self
    }

    pub(crate) fn goal_if(self, is_goal: bool, goal: Goal) -> Self {
        self.goal_of(is_goal.then_some(goal))
    }

    pub(crate) fn goal_of(self, goal: Option<Goal>) -> Self {
        match goal {
            Some(goal) => self.goal(goal),
            None => self,
        }
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct BenchMachine {
    pub(crate) cores: usize,
    pub(crate) os: &'static str,
    pub(crate) arch: &'static str,
    /// `release`, or `debug`, whose figures are meaningless.
    pub(crate) build: &'static str,
    /// Median duration of one `fsync` of a small write in the folder of the databases, which is the
    /// lower bound of one durable append.
    pub(crate) fsync_us: f64,
    /// The versions of the peers, if peers were requested.
    pub(crate) peers: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    /// Whether sizes were small, so that no figure is meaningful.
    pub(crate) quick: bool,
    pub(crate) machine: BenchMachine,
    pub(crate) results: Vec<Figure>,
}

/// On a disk as fast as those for which the goals were set, an `fsync` takes a fifth of this.
const SLOW_DISK_MICROS: f64 = 1000.0;
const SLOW_DISK: &str =
    "the disk is slow, now or always: beside what does not wait for it, durable appends look bad";

impl Report {
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    pub(crate) fn table(&self) -> String {
        let machine = &self.machine;
        let mut lines = vec![format!(
            "svc-bench {} ({} build), {} cores, {}/{}, fsync {:.2} ms",
            self.version,
            machine.build,
            machine.cores,
            machine.os,
            machine.arch,
            machine.fsync_us / 1e3,
        )];
        lines.extend(machine.peers.iter().cloned());
        if machine.fsync_us > SLOW_DISK_MICROS {
            lines.push(SLOW_DISK.to_owned());
        }
        if self.quick {
            lines.push(
                "--quick: the sizes are too small for the figures to mean anything".to_owned(),
            );
        }
        lines.push(String::new());
        let mut rows: Vec<[String; 9]> = self.results.iter().map(row).collect();
        // A figure of svc may have several baselines, one per row.
        for number in (1..rows.len()).rev() {
            if self.results[number].name == self.results[number - 1].name {
                rows[number][..4].fill(String::new());
            }
        }
        rows.insert(0, HEADERS.map(str::to_owned));
        lines.extend(aligned(&rows));
        lines.extend(self.results.iter().filter_map(|figure| {
            let note = figure.note.as_ref()?;
            Some(format!("{}: {note}", figure.name))
        }));
        lines.join("\n") + "\n"
    }
}

pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // A closed pipe, as in `svc-bench | head`, is no failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

const HEADERS: [&str; 9] =
    ["WHAT", "OURS", "P50/P99", "CPU/UNIT", "BESIDE", "", "RATIO", "GOAL", ""];

/// Columns as wide as their widest cell.
pub(crate) fn aligned<const N: usize>(rows: &[[String; N]]) -> impl Iterator<Item = String> {
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    rows.iter().map(move |row| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    })
}

fn row(figure: &Figure) -> [String; 9] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let latency = |p50: Option<f64>, p99: Option<f64>| {
        Some(format!("{:.2}/{:.2} ms", p50? / 1e3, p99? / 1e3))
    };
    let verdict = match figure.met {
        Some(true) => "met",
        Some(false) => "MISS",
        None => "",
    };
    [
        figure.name.clone(),
        format!("{} {}", number(figure.value), figure.unit),
        or_dash(latency(figure.p50_us, figure.p99_us)),
        or_dash(figure.cpu_us.map(|us| format!("{us:.2} µs"))),
        or_dash(figure.beside.as_ref().map(|beside| beside.name.clone())),
        or_dash(figure.beside.as_ref().map(|beside| match latency(beside.p50_us, beside.p99_us) {
            Some(latency) => format!("{} ({latency})", number(beside.value)),
            None => number(beside.value),
        })),
        or_dash(figure.ratio.map(|ratio| format!("{ratio:.2}"))),
        or_dash(figure.goal.map(Goal::text)),
        verdict.to_owned(),
    ]
}

/// Three or four significant digits; more would be noise.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2} M", value / 1e6),
        value if value >= 1e4 => format!("{:.1} k", value / 1e3),
        value if value >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
}

/// The interval of a measurement. The time before `from` is the warm-up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

impl Window {
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
    pub(crate) count: u64,
    pub(crate) length: Duration,
    /// Latencies in nanoseconds, capped at four seconds. Empty if they were not measured.
    pub(crate) latencies: Vec<u32>,
    /// The server's CPU time during roughly this window, if the system reports it.
    pub(crate) cpu: Option<Duration>,
}

impl Slice {
    pub(crate) fn counted(count: u64, length: Duration) -> Self {
        Self { count, length, ..Self::default() }
    }

    pub(crate) fn add(&mut self, elapsed: Duration) {
        self.count += 1;
        self.latencies.push(u32::try_from(elapsed.as_nanos()).unwrap_or(u32::MAX));
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.count += other.count;
        self.latencies.extend(other.latencies);
    }

    pub(crate) fn rate(&self) -> f64 {
        float(self.count) / self.length.as_secs_f64().max(1e-9)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Summary {
    /// Operations per second: the median of the rounds.
    pub(crate) rate: f64,
    /// Median latency in microseconds: the median of the rounds.
    pub(crate) p50_us: Option<f64>,
    /// 99th percentile in microseconds: the median of the rounds.
    pub(crate) p99_us: Option<f64>,
    /// The server's CPU time per operation, in microseconds.
    pub(crate) cpu_us: Option<f64>,
}

impl Summary {
    /// Summarises rounds. Each operation counts `weight` times, as a request may carry several
    /// events.
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

/// The median; of an even number of values the mean of the middle two; 0 without values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match (values.len() % 2, values.get(half)) {
        (_, None) => 0.0,
        (0, Some(upper)) => f64::midpoint(values[half - 1], *upper),
        (_, Some(middle)) => *middle,
    }
}

/// Median and 99th percentile, in milliseconds.
pub(crate) fn p50_p99(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    (at(50).as_secs_f64() * 1e3, at(99).as_secs_f64() * 1e3)
}

/// The latency in microseconds that `share` of the operations do not exceed.
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

#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^52")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Shows a step; it replaces the line that was shown before.
pub(crate) fn show_step(step: &str) {
    let mut stderr = io::stderr().lock();
    if stderr.is_terminal() {
        // A failure to print is ignored.
        write!(stderr, "\r\x1b[K{step}").and_then(|()| stderr.flush()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_goal_is_reported() {
        let figure = Figure::new("rss", "MB", 15.1).goal(Goal::at_most(15.0));
        assert_eq!(figure.met, Some(false));
        assert_eq!(row(&figure)[8], "MISS");
        let figure = Figure::new("rss", "MB", 15.0).goal(Goal::at_most(15.0));
        assert_eq!(figure.met, Some(true));
        // The goal of a figure that was not measured is neither met nor missed.
        assert_eq!(Figure::new("x", "MB", 1.0).goal(Goal::ratio(1.0)).met, None);
    }

    #[test]
    fn numbers_have_few_significant_digits() {
        for (value, text) in
            [(0.5, "0.50"), (123.4, "123"), (12_345.0, "12.3 k"), (1_234_567.0, "1.23 M")]
        {
            assert_eq!(number(value), text);
        }
    }

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
