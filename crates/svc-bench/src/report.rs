//! The report, for people and for programs.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::stats::Summary;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    /// The unit of `value`.
    pub(crate) unit: &'static str,
    /// svc: the median of the rounds.
    pub(crate) value: f64,
    /// Median latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    /// 99th percentile of the latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
    /// CPU time of the server for one unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_us: Option<f64>,
    /// The baseline, measured in the same rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) beside: Option<Beside>,
    /// svc divided by the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<Goal>,
    /// Whether the goal is met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) met: Option<bool>,
    /// A remark that the figure needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

/// The baseline of a figure.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Beside {
    pub(crate) name: String,
    /// Its figure, in the same unit.
    pub(crate) value: f64,
    /// Its median latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_us: Option<f64>,
    /// Its 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_us: Option<f64>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Goal {
    /// The field of the figure.
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
    /// A goal for the ratio, at least.
    pub(crate) const fn ratio(at_least: f64) -> Self {
        Self { of: Of::Ratio, at_least: Some(at_least), at_most: None }
    }

    /// A goal for the figure, at least.
    pub(crate) const fn at_least(value: f64) -> Self {
        Self { of: Of::Value, at_least: Some(value), at_most: None }
    }

    /// A goal for the figure, at most.
    pub(crate) const fn at_most(value: f64) -> Self {
        Self { of: Of::Value, at_least: None, at_most: Some(value) }
    }

    /// A goal for the median latency, at most, in microseconds.
    pub(crate) const fn p50_us(at_most: f64) -> Self {
        Self { of: Of::P50Us, at_least: None, at_most: Some(at_most) }
    }

    /// A goal for the 99th percentile, at most, in microseconds.
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
    /// A figure without a baseline.
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

    /// The summary of rounds.
    pub(crate) fn summed(name: impl Into<String>, unit: &'static str, summary: Summary) -> Self {
        Self {
            p50_us: summary.p50_us,
            p99_us: summary.p99_us,
            cpu_us: summary.cpu_us,
            ..Self::new(name, unit, summary.rate)
        }
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

    /// Adds a goal, if `is_goal`.
    pub(crate) fn goal_if(self, is_goal: bool, goal: Goal) -> Self {
        if is_goal { self.goal(goal) } else { self }
    }

    /// Adds a remark.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// The machine and the build of the figures.
#[derive(Debug, Serialize)]
pub(crate) struct BenchMachine {
    /// Processors that this process may use.
    pub(crate) cores: usize,
    pub(crate) os: &'static str,
    pub(crate) arch: &'static str,
    /// `release`, or `debug`, whose figures mean nothing.
    pub(crate) build: &'static str,
    /// Median time of one `fsync` of a small write in the folder of the databases: the lower bound
    /// of one durable append.
    pub(crate) fsync_us: f64,
    /// The versions of the peers, if peers were requested.
    pub(crate) peers: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Version of this program.
    pub(crate) version: &'static str,
    /// Whether sizes were small: then no figure means anything.
    pub(crate) quick: bool,
    pub(crate) machine: BenchMachine,
    pub(crate) results: Vec<Figure>,
}

/// A disk as fast as those that the goals were set for takes a fifth of this.
const SLOW_DISK_MICROS: f64 = 1000.0;
const SLOW_DISK: &str =
    "the disk is slow, now or always: beside what does not wait for it, durable appends look bad";

impl Report {
    /// One JSON document on one line.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// A table for people.
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
        // One figure of svc may have several baselines.
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

/// Writes a report to standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // A closed pipe, as in `svc-bench
        // head`, is no failure.
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

/// Three to four significant digits; more would be noise.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2} M", value / 1e6),
        value if value >= 1e4 => format!("{:.1} k", value / 1e3),
        value if value >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
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
        // A goal of a figure that was not measured is neither met nor missed.
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
}
