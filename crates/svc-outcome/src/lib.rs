//! The outcome of the tests, builds and checks that clients run in their shells.
//!
//! `shell` splits a command line and says what the status of the line means for each command,
//! `runner` finds the test or build program in it among its wrappers, `tools` knows these programs,
//! `counts` reads their output by the patterns in `formats`, and [`judge`] gives the verdict. All
//! of it takes time linear in its input.

mod counts;
mod formats;
mod runner;
mod shell;
#[cfg(test)]
mod tests;
mod tools;

use counts::RunReport;
use runner::{foremost, runners_in};
use shell::is_one_of;
use tools::{NamedRunner, Runner};

pub use tools::RunKind;

const MAX_SUMMARY_BYTES: usize = 300;

/// Maximum runners of one command for which the output is read.
const MAX_RUNNERS: usize = 8;

/// A shell command that a client has run, as it reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolRun {
    pub command: String,
    /// Standard output and standard error, possibly cut in the middle.
    pub output: String,
    /// The status of the whole command, if the client reports it.
    pub exit_code: Option<i32>,
    /// Whether the client reports a failure; `None` if it reports neither.
    pub failed: Option<bool>,
    pub interrupted: bool,
    pub timed_out: bool,
    /// Whether the client reports that it cut the output.
    pub truncated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunResult {
    Pass,
    Fail,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunVerdict {
    pub verdict: RunResult,
    pub kind: RunKind,
    /// Such as `pytest`, `cargo test`, `npm test`.
    pub runner: &'static str,
    pub passed: Option<u64>,
    /// Tests that failed or ended in an error; errors of a build or a check.
    pub failed: Option<u64>,
    pub skipped: Option<u64>,
    /// One line with the counts and the first failure, of at most 300 bytes.
    pub summary: String,
}

/// What the exit status of a command line says about its runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Succeeded,
    /// The runner failed, with this status if it is known.
    Failed(Option<i32>),
    /// The command failed, perhaps in another part.
    Elsewhere,
    Unknown,
}

/// The verdict on a run; `None` if it is neither tests nor a build nor a check.
///
/// A failure in the output counts, whatever the status, which may be that of `tee` or of `|| true`.
/// A success in the output counts unless the runner itself failed, and is unknown if another part
/// of the command failed.
pub fn judge(run: &ToolRun) -> Option<RunVerdict> {
    let all = runners_in(&run.command);
    let best = foremost(&all)?;
    let mut read: Vec<(&NamedRunner, RunReport)> = Vec::new();
    for found in &all {
        if read.len() < MAX_RUNNERS && read.iter().all(|(other, _)| other.runner != found.runner) {
            read.push((found, counts::read(found.runner.name, &run.output)));
        }
    }
    let failing = read.iter().find(|(_, report)| report.shows_failure());
    let main = || read.iter().find(|(found, _)| found.runner == best.runner);
    let chosen = failing.or_else(main).or_else(|| read.first());
    let (found, report) = chosen?;
    let (verdict, why) = weigh(run, found, report);
    let failures = report.failed.unwrap_or(0).saturating_add(report.errors);
    let failed = match found.runner.kind {
        RunKind::Test => (report.failed.is_some() || report.errors > 0).then_some(failures),
        _ => (report.problems > 0).then_some(report.problems),
    };
    Some(RunVerdict {
        verdict,
        kind: found.runner.kind,
        runner: found.runner.name,
        passed: report.passed,
        failed,
        skipped: report.skipped,
        summary: summary(found.runner, verdict, report, why),
    })
}

/// The verdict, and a reason besides the counts.
fn weigh(run: &ToolRun, found: &NamedRunner, report: &RunReport) -> (RunResult, Option<String>) {
    use RunResult::{Fail, Pass, Unknown};
    let says = |why: &str| Some(why.to_owned());
    let status = status(run, found);
    if run.interrupted || report.stopped {
        return (Unknown, says("interrupted"));
    }
    if run.timed_out || (found.timed && run.exit_code == Some(124)) {
        return (Unknown, says("timed out"));
    }
    if report.shows_failure() {
        return (Fail, None);
    }
    if report.shows_nothing() {
        let nothing =
            if found.runner.kind == RunKind::Test { "0 tests" } else { "nothing was run" };
        return (Unknown, says(nothing));
    }
    let silent = !report.shows_success();
    match status {
        Status::Succeeded if silent => (Pass, says("exit status 0")),
        // Statuses of shells: cannot run, cannot find, and the signals INT, KILL and TERM.
        Status::Failed(Some(code @ (126 | 127 | 130 | 137 | 143))) => {
            (Unknown, Some(format!("exit status {code}")))
        }
        // Without a summary this status alone tells that no test was selected.
        Status::Failed(Some(5)) if found.runner.name == "pytest" && report.passed.is_none() => {
            (Unknown, says("0 tests"))
        }
        Status::Failed(Some(code)) => (Fail, Some(format!("exit status {code}"))),
        Status::Failed(None) => (Fail, says("it failed")),
        Status::Elsewhere => (Unknown, says("the command failed")),
        Status::Unknown if silent => (Unknown, says("no result in the output")),
        Status::Unknown
            if !has_one_summary(found.runner.name)
                && (found.picked || run.truncated || counts::is_cut(&run.output)) =>
        {
            (Unknown, says("some of the output is missing"))
        }
        Status::Succeeded | Status::Unknown => (Pass, None),
    }
}

fn status(run: &ToolRun, found: &NamedRunner) -> Status {
    match run.exit_code.map_or(run.failed, |code| Some(code != 0)) {
        Some(false) if found.owns_success => Status::Succeeded,
        Some(true) if found.owns_failure => Status::Failed(run.exit_code),
        Some(true) => Status::Elsewhere,
        _ => Status::Unknown,
    }
}

/// Whether the last line of the tool has all counts, so that cut output cannot hide a failure.
fn has_one_summary(runner: &str) -> bool {
    const NAMES: &str =
        "pytest unittest jest vitest mocha playwright nextest rspec phpunit gradle mvn ruff mypy";
    is_one_of(runner, NAMES) || matches!(runner, "node --test" | "bun test")
}

fn summary(runner: Runner, verdict: RunResult, report: &RunReport, why: Option<String>) -> String {
    let Runner { name, kind } = runner;
    let mut parts = Vec::new();
    let mut count = |count: Option<u64>, one: &str, many: &str| {
        if let Some(count) = count.filter(|&count| count > 0) {
            parts.push(format!("{count} {}", if count == 1 { one } else { many }));
        }
    };
    count(report.failed, "failed", "failed");
    let errors = report.errors.saturating_add(report.problems);
    count(Some(errors), "error", "errors");
    count(report.passed, "passed", "passed");
    count(report.skipped, "skipped", "skipped");
    count(Some(report.warnings), "warning", "warnings");
    let failures = report.failed.unwrap_or(0).saturating_add(errors);
    parts.extend(report.broken.clone().filter(|_| failures == 0));
    parts.extend(why);
    if parts.is_empty() {
        parts.push(if kind == RunKind::Test { "passed" } else { "no errors" }.to_owned());
    }
    let said = parts.join(", ");
    let said = said.strip_prefix(name).map_or(said.as_str(), |rest| rest.trim_start_matches(": "));
    let mut text = format!("{name}: {said}");
    if let Some(first) = report.first.as_deref().filter(|_| verdict == RunResult::Fail) {
        text.push_str("; first: ");
        text.push_str(first);
    }
    one_line(&text)
}

fn one_line(text: &str) -> String {
    // A bound on the work, which leaves room for blanks.
    let text = &text[..text.floor_char_boundary(16 * MAX_SUMMARY_BYTES)];
    let words =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    if line.len() <= MAX_SUMMARY_BYTES {
        return line;
    }
    let end = line.floor_char_boundary(MAX_SUMMARY_BYTES - '…'.len_utf8());
    format!("{}…", &line[..end])
}
