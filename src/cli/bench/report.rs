//! What was measured, for people and for programs.

use serde::Serialize;

use super::stats::Summary;
use crate::cli::output;

/// One line of the report.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Entry {
    /// What was measured.
    pub(super) name: String,
    /// What `value` counts.
    pub(super) unit: &'static str,
    /// Ours: the median of the rounds.
    pub(super) value: f64,
    /// Median latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p50_us: Option<f64>,
    /// 99th percentile of the latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p99_us: Option<f64>,
    /// CPU time of the server for one unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_us: Option<f64>,
    /// What stands beside it, measured in the same rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) beside: Option<Beside>,
    /// Ours through the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
    /// What we want of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) goal: Option<Goal>,
    /// Whether it is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) met: Option<bool>,
    /// What has to be known to read the figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

/// What ours is compared with.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Beside {
    /// What it is.
    pub(super) name: String,
    /// Its figure, in the same unit.
    pub(super) value: f64,
    /// Its median latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p50_us: Option<f64>,
    /// Its 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p99_us: Option<f64>,
}

/// What we want of a figure.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Goal {
    /// Of which field of the entry.
    of: Of,
    /// It is to be at least this.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_least: Option<f64>,
    /// It is to be at most this.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most: Option<f64>,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Of {
    Ratio,
    Value,
    P99Us,
}

impl Goal {
    /// The ratio is to be at least this.
    pub(super) const fn ratio(at_least: f64) -> Self {
        Self { of: Of::Ratio, at_least: Some(at_least), at_most: None }
    }

    /// The figure is to be at least this.
    pub(super) const fn at_least(value: f64) -> Self {
        Self { of: Of::Value, at_least: Some(value), at_most: None }
    }

    /// The figure is to be at most this.
    pub(super) const fn at_most(value: f64) -> Self {
        Self { of: Of::Value, at_least: None, at_most: Some(value) }
    }

    /// The 99th percentile is to be at most this, in microseconds.
    pub(super) const fn p99_us(at_most: f64) -> Self {
        Self { of: Of::P99Us, at_least: None, at_most: Some(at_most) }
    }

    fn is_met(self, entry: &Entry) -> Option<bool> {
        let value = match self.of {
            Of::Ratio => entry.ratio?,
            Of::Value => entry.value,
            Of::P99Us => entry.p99_us?,
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
            Of::P99Us => format!("p99 {sign} {} ms", bound / 1e3),
        }
    }
}

impl Entry {
    /// A figure alone.
    pub(super) fn new(name: impl Into<String>, unit: &'static str, value: f64) -> Self {
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

    /// What rounds came to.
    pub(super) fn summed(name: impl Into<String>, unit: &'static str, summary: Summary) -> Self {
        Self {
            p50_us: summary.p50_us,
            p99_us: summary.p99_us,
            cpu_us: summary.cpu_us,
            ..Self::new(name, unit, summary.rate)
        }
    }

    /// Beside something else that was measured in the same rounds.
    pub(super) fn beside(mut self, name: impl Into<String>, other: Summary, ratio: f64) -> Self {
        self.beside = Some(Beside {
            name: name.into(),
            value: other.rate,
            p50_us: other.p50_us,
            p99_us: other.p99_us,
        });
        self.ratio = Some(ratio);
        self
    }

    /// Beside another figure, where a ratio would say nothing.
    pub(super) fn beside_value(mut self, name: impl Into<String>, value: f64) -> Self {
        self.beside = Some(Beside { name: name.into(), value, p50_us: None, p99_us: None });
        self
    }

    /// With a goal.
    pub(super) fn goal(mut self, goal: Goal) -> Self {
        self.met = goal.is_met(&self);
        self.goal = Some(goal);
        self
    }

    /// With a goal, where it is one.
    pub(super) fn goal_if(self, is_goal: bool, goal: Goal) -> Self {
        if is_goal { self.goal(goal) } else { self }
    }

    /// With a remark.
    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// The machine and the build that the figures are of.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    /// Processors that this process may use.
    pub(super) cores: usize,
    /// Operating system.
    pub(super) os: &'static str,
    /// Architecture.
    pub(super) arch: &'static str,
    /// `release`, or `debug`, whose figures say nothing.
    pub(super) build: &'static str,
    /// Median time of one `fsync` of a small write in the folder that the databases are in: below it no single
    /// durable append can be.
    pub(super) fsync_us: f64,
    /// What each peer is, where peers were asked for.
    pub(super) peers: Vec<String>,
}

/// Everything that a run measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Version of this program.
    pub(super) version: &'static str,
    /// Whether sizes were small: then no figure means anything.
    pub(super) quick: bool,
    /// Where it ran.
    pub(super) machine: Machine,
    /// The figures.
    pub(super) results: Vec<Entry>,
}

/// A disk as fast as those that the goals were set for takes a fifth of this.
const SLOW_DISK_MICROS: f64 = 1000.0;

impl Report {
    /// Prints the report.
    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            return output::json(self);
        }
        let machine = &self.machine;
        output::line(&format!(
            "svc {} ({} build), {} cores, {}/{}, fsync {:.2} ms",
            self.version,
            machine.build,
            machine.cores,
            machine.os,
            machine.arch,
            machine.fsync_us / 1e3,
        ))?;
        for peer in &machine.peers {
            output::line(peer)?;
        }
        if machine.fsync_us > SLOW_DISK_MICROS {
            output::line(
                "the disk is slow, now or always: beside what does not wait for it, durable appends look bad",
            )?;
        }
        if self.quick {
            output::line("--quick: the sizes are too small for the figures to mean anything")?;
        }
        output::line("")?;
        let mut rows: Vec<Vec<String>> = self.results.iter().map(row).collect();
        // One figure of ours may stand beside several.
        for number in (1..rows.len()).rev() {
            if self.results[number].name == self.results[number - 1].name {
                rows[number][..4].fill(String::new());
            }
        }
        let headers = ["WHAT", "OURS", "P50/P99", "CPU/UNIT", "BESIDE", "", "RATIO", "GOAL", ""];
        output::table(&headers, &rows, "nothing was measured")?;
        for entry in &self.results {
            if let Some(note) = &entry.note {
                output::line(&format!("{}: {note}", entry.name))?;
            }
        }
        Ok(())
    }
}

fn row(entry: &Entry) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let latency = |p50: Option<f64>, p99: Option<f64>| {
        Some(format!("{:.2}/{:.2} ms", p50? / 1e3, p99? / 1e3))
    };
    let verdict = match entry.met {
        Some(true) => "met",
        Some(false) => "MISS",
        None => "",
    };
    vec![
        entry.name.clone(),
        format!("{} {}", number(entry.value), entry.unit),
        or_dash(latency(entry.p50_us, entry.p99_us)),
        or_dash(entry.cpu_us.map(|us| format!("{us:.2} µs"))),
        or_dash(entry.beside.as_ref().map(|beside| beside.name.clone())),
        or_dash(entry.beside.as_ref().map(|beside| match latency(beside.p50_us, beside.p99_us) {
            Some(latency) => format!("{} ({latency})", number(beside.value)),
            None => number(beside.value),
        })),
        or_dash(entry.ratio.map(|ratio| format!("{ratio:.2}"))),
        or_dash(entry.goal.map(Goal::text)),
        verdict.to_owned(),
    ]
}

/// Three digits and a half are as many as mean anything.
fn number(value: f64) -> String {
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
    fn a_miss_is_a_miss() {
        let entry = Entry::new("rss", "MB", 15.1).goal(Goal::at_most(15.0));
        assert_eq!(entry.met, Some(false));
        assert_eq!(row(&entry).last().map(String::as_str), Some("MISS"));
        let entry = Entry::new("rss", "MB", 15.0).goal(Goal::at_most(15.0));
        assert_eq!(entry.met, Some(true));
        // A goal of a figure that was not measured is neither.
        assert_eq!(Entry::new("x", "MB", 1.0).goal(Goal::ratio(1.0)).met, None);
    }

    #[test]
    fn numbers_for_people() {
        for (value, text) in
            [(0.5, "0.50"), (123.4, "123"), (12_345.0, "12.3 k"), (1_234_567.0, "1.23 M")]
        {
            assert_eq!(number(value), text);
        }
    }
}
