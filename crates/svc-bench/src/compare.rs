//! `compare`: runs two builds of svc alternately, and decides for each line whether the second
//! build is worse.
//!
//! Each turn measures both programs; every other turn begins with the second one. A line's change
//! is the median of the turns' ratios, as the machine's speed drifts between turns but hardly
//! within one. Scenarios that run in process are measured by the `svc-bench` beside each of the two
//! programs, if it exists.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Context as _;
use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};

use super::{
    bench::{Bench, Settings, svc_program},
    report::{self, Figure},
    sandbox::Sandbox,
    scenario::Scenario,
};

/// The tolerance: by which share a line may be worse.
const TOLERANCE: f64 = 0.03;
/// The share of the turns that has to agree that the second is worse: otherwise the difference is
/// noise of the machine.
const AGREEMENT: f64 = 0.8;

/// Which programs to compare, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// The program that stands for how it was
    #[arg(value_name = "A")]
    first: PathBuf,
    /// The program that may be worse
    #[arg(value_name = "B")]
    second: PathBuf,
    /// Turns of each scenario [default: 7, with --quick 2]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=100))]
    turns: Option<u16>,
    /// Small sizes: shows that everything works, and nothing about speed
    #[arg(long)]
    quick: bool,
    /// Only this; repeatable
    #[arg(long, value_enum, value_name = "NAME")]
    only: Vec<Scenario>,
    /// Print JSON: one document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Comparison {
    version: &'static str,
    /// Whether sizes were small: then no line means anything.
    quick: bool,
    first: PathBuf,
    second: PathBuf,
    turns: u16,
    /// Scenarios that were left out, each with the reason.
    left_out: Vec<String>,
    lines: Vec<ComparedLine>,
}

/// One measure of one scenario.
#[derive(Debug, Serialize)]
struct ComparedLine {
    name: String,
    unit: String,
    /// Median of the turns.
    first: f64,
    second: f64,
    /// By which share the second is worse; below 0 it is better.
    worse_by: f64,
    verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    NotWorse,
    /// The median is worse, but the turns do not agree.
    Unclear,
    Worse,
}

/// The value of a figure in a run, also of another `svc-bench`.
#[derive(Debug, Clone, Deserialize)]
struct MeasuredFigure {
    name: String,
    unit: String,
    value: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    cpu_us: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct MeasuredReport {
    results: Vec<MeasuredFigure>,
}

impl From<Figure> for MeasuredFigure {
    fn from(figure: Figure) -> Self {
        Self {
            name: figure.name,
            unit: figure.unit.to_owned(),
            value: figure.value,
            p50_us: figure.p50_us,
            p99_us: figure.p99_us,
            cpu_us: figure.cpu_us,
        }
    }
}

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let sandbox = Sandbox::new(svc_program(Some(&args.first))?)?;
    let second = sandbox.sibling(svc_program(Some(&args.second))?, "second")?;
    let sandbox = sandbox.sibling(sandbox.svc().to_owned(), "first")?;
    let settings = || Settings { svc: None, quick: args.quick, large: false, mcp_peer: None };
    let mut benches = [Bench::within(sandbox, &settings())?, Bench::within(second, &settings())?];
    let turns = args.turns.unwrap_or(if args.quick { 2 } else { 7 });
    let mut lines = Vec::new();
    let mut left_out = Vec::new();
    for scenario in Scenario::value_variants().iter().copied().filter(|it| args.asks_for(*it)) {
        let mut rounds: [Vec<Vec<MeasuredFigure>>; 2] = Default::default();
        if scenario.is_in_process() {
            let mut programs = benches.iter().map(|bench| bench_beside(bench.sandbox.svc()));
            let (Some(first), Some(second)) =
                (programs.next().flatten(), programs.next().flatten())
            else {
                let why = "it is measured within svc-bench, and there is none beside each program";
                left_out.push(format!("{}: {why}", scenario.name()));
                continue;
            };
            for turn in 0..turns {
                for side in order(turn) {
                    let program = [&first, &second][side];
                    report::show_step(&format!(
                        "{}, turn {} of {turns}",
                        scenario.name(),
                        turn + 1
                    ));
                    rounds[side].push(run_other(program, scenario, args.quick)?);
                }
            }
        } else {
            for turn in 0..turns {
                for side in order(turn) {
                    let bench = &mut benches[side];
                    bench.rounds = 1;
                    scenario.run(bench)?;
                    let results = std::mem::take(&mut bench.results);
                    rounds[side].push(results.into_iter().map(MeasuredFigure::from).collect());
                    bench.clear()?;
                }
            }
        }
        lines.extend(compared(&rounds));
    }
    report::show_step("");
    let comparison = Comparison {
        version: env!("CARGO_PKG_VERSION"),
        quick: args.quick,
        first: args.first.clone(),
        second: args.second.clone(),
        turns,
        left_out,
        lines,
    };
    report::print(&if args.json {
        serde_json::to_string(&comparison)? + "\n"
    } else {
        comparison.table()
    })
}

impl CompareArgs {
    fn asks_for(&self, scenario: Scenario) -> bool {
        if self.only.is_empty() { !scenario.is_of_peers() } else { self.only.contains(&scenario) }
    }
}

fn order(turn: u16) -> [usize; 2] {
    if turn.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

fn bench_beside(svc: &Path) -> Option<PathBuf> {
    Some(svc.with_file_name("svc-bench")).filter(|program| program.is_file())
}

/// Runs the in-process scenarios of another `svc-bench`.
fn run_other(
    program: &Path,
    scenario: Scenario,
    quick: bool,
) -> anyhow::Result<Vec<MeasuredFigure>> {
    let mut command = Command::new(program);
    command.args(["--json", "--only", &scenario.name(), "--svc"]);
    command.arg(program.with_file_name("svc")).stdin(Stdio::null());
    if quick {
        command.arg("--quick");
    }
    let output = command.output().with_context(|| program.display().to_string())?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}: {}", program.display(), complaint.trim());
    let report: MeasuredReport = serde_json::from_slice(&output.stdout)?;
    Ok(report.results)
}

fn compared(rounds: &[Vec<Vec<MeasuredFigure>>; 2]) -> Vec<ComparedLine> {
    let mut lines: Vec<ComparedLine> = Vec::new();
    for figure in rounds[0].first().into_iter().flatten() {
        // A figure without a unit is a quality and not a speed.
        let is_seen = lines.iter().any(|line| line.name == figure.name);
        if figure.unit.is_empty() || is_seen {
            continue;
        }
        let rate = figure.unit.ends_with("/s");
        let unit = figure.unit.as_str();
        lines.extend(compare(rounds, &figure.name, "", unit, rate, |it| Some(it.value)));
        lines.extend(compare(rounds, &figure.name, " p50", "µs", false, |it| it.p50_us));
        lines.extend(compare(rounds, &figure.name, " p99", "µs", false, |it| it.p99_us));
        lines.extend(compare(rounds, &figure.name, " CPU", "µs", false, |it| it.cpu_us));
    }
    lines
}

/// One line, if every turn of both programs measured it.
fn compare(
    rounds: &[Vec<Vec<MeasuredFigure>>; 2],
    name: &str,
    of: &str,
    unit: &str,
    more_is_better: bool,
    measure: impl Fn(&MeasuredFigure) -> Option<f64>,
) -> Option<ComparedLine> {
    let values = |turns: &[Vec<MeasuredFigure>]| {
        let value = |turn: &Vec<MeasuredFigure>| {
            measure(turn.iter().find(|figure| figure.name == name)?).filter(|value| *value > 0.0)
        };
        turns.iter().map(value).collect::<Option<Vec<f64>>>()
    };
    let (first, second) = (values(&rounds[0])?, values(&rounds[1])?);
    let worse = |(a, b): (&f64, &f64)| if more_is_better { a / b } else { b / a } - 1.0;
    let each: Vec<f64> = first.iter().zip(&second).map(worse).collect();
    Some(ComparedLine {
        name: format!("{name}{of}"),
        unit: unit.to_owned(),
        verdict: Verdict::from_changes(&each),
        worse_by: report::median(each),
        first: report::median(first),
        second: report::median(second),
    })
}

impl Verdict {
    /// The verdict from the share by which the second was worse in each turn.
    fn from_changes(each: &[f64]) -> Self {
        if report::median(each.to_vec()) <= TOLERANCE {
            return Self::NotWorse;
        }
        let agreeing = each.iter().filter(|share| **share > 0.0).count();
        let share = report::float(agreeing as u64) / report::float(each.len() as u64);
        if share >= AGREEMENT { Self::Worse } else { Self::Unclear }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NotWorse => "",
            Self::Unclear => "unclear",
            Self::Worse => "WORSE",
        }
    }
}

impl Comparison {
    fn table(&self) -> String {
        let mut text = format!(
            "A {}\nB {}\n{} turns each; B is worse where its median is by more than {} %, and {} % of the turns agree\n",
            self.first.display(),
            self.second.display(),
            self.turns,
            TOLERANCE * 100.0,
            AGREEMENT * 100.0,
        );
        if self.quick {
            text.push_str("--quick: the sizes are too small for the lines to mean anything\n");
        }
        text.push('\n');
        let mut rows = vec![["WHAT", "A", "B", "UNIT", "CHANGE", ""].map(str::to_owned)];
        rows.extend(self.lines.iter().map(|line| {
            let change = format!("{:+.1} %", line.worse_by * -100.0);
            let (first, second) = (report::number(line.first), report::number(line.second));
            let verdict = line.verdict.text().to_owned();
            [line.name.clone(), first, second, line.unit.clone(), change, verdict]
        }));
        for row in report::aligned(&rows) {
            text.push_str(&row);
            text.push('\n');
        }
        for why in &self.left_out {
            writeln!(text, "left out: {why}").expect("writing to a string does not fail");
        }
        let count = |verdict| self.lines.iter().filter(|line| line.verdict == verdict).count();
        let (worse, unclear) = (count(Verdict::Worse), count(Verdict::Unclear));
        let lines = self.lines.len();
        writeln!(text, "\nOf {lines} lines {worse} are worse and {unclear} unclear.")
            .expect("writing to a string does not fail");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(values: &[f64], unit: &str) -> Vec<Vec<MeasuredFigure>> {
        let figure = |value: &f64| MeasuredFigure {
            name: "x".to_owned(),
            unit: unit.to_owned(),
            value: *value,
            p50_us: None,
            p99_us: Some(1e4 / value),
            cpu_us: None,
        };
        values.iter().map(|value| vec![figure(value)]).collect()
    }

    #[test]
    fn line_is_worse_only_if_median_and_turns_agree() {
        for (each, verdict) in [
            ([0.0, 0.0, 0.0, 0.0, 0.0], Verdict::NotWorse),
            ([0.03, 0.03, 0.03, 0.03, 0.03], Verdict::NotWorse),
            ([0.04, 0.05, 0.04, 0.05, 0.04], Verdict::Worse),
            ([-0.01, 0.05, 0.04, 0.05, 0.04], Verdict::Worse),
            ([-0.2, 0.05, 0.04, 0.05, -0.1], Verdict::Unclear),
            ([-0.2, 0.5, -0.2, 0.5, -0.2], Verdict::NotWorse),
        ] {
            assert_eq!(Verdict::from_changes(&each), verdict, "{each:?}");
        }
    }

    #[test]
    fn ratio_is_taken_within_a_turn_and_in_the_direction_of_the_unit() {
        // The machine became half as fast after the first turn, for both.
        let rounds =
            [turns(&[100.0, 50.0, 50.0], "events/s"), turns(&[90.0, 45.0, 45.0], "events/s")];
        let lines = compared(&rounds);
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["x", "x p99"]);
        assert!(lines.iter().all(|line| line.verdict == Verdict::Worse), "{lines:?}");
        assert!(lines.iter().all(|line| (line.worse_by - 1.0 / 9.0).abs() < 1e-9), "{lines:?}");
        // For bytes and times, less is better.
        let rounds = [turns(&[100.0; 3], "MiB"), turns(&[90.0; 3], "MiB")];
        let lines = compared(&rounds);
        assert_eq!(lines[0].verdict, Verdict::NotWorse);
        assert!((lines[0].worse_by + 0.1).abs() < 1e-9, "{lines:?}");
        assert_eq!(lines[1].verdict, Verdict::Worse, "the same runs, by their latency");
    }

    #[test]
    fn figure_missing_from_a_turn_is_left_out() {
        let mut rounds = [turns(&[100.0, 50.0], "ms"), turns(&[100.0, 50.0], "ms")];
        rounds[1][1].clear();
        assert!(compared(&rounds).is_empty());
        // The quality of a search is not compared.
        assert!(compared(&[turns(&[0.9], ""), turns(&[0.1], "")]).is_empty());
    }
}
