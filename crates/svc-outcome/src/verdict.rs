//! What came of a run: the event and the output together.

use serde::Serialize;

use super::counts::{self, RunReport};
use super::runner::{NamedRunner, RunKind, Runner, foremost, runners_in};

/// The longest summary, in bytes.
pub const MAX_SUMMARY_BYTES: usize = 300;

/// How many tools of one command are looked for in its output.
const MAX_RUNNERS: usize = 8;

/// How many lines from the end a printed status is looked for.
const STATUS_LINES: usize = 50;

/// What a client tells of a shell command that it has run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolRun {
    /// The command, as it was given to the shell.
    pub command: String,
    /// Standard output and standard error as the client gives them, which may have been cut in the middle.
    pub output: String,
    /// The status that the whole command ended with, where the client tells.
    pub exit_code: Option<i32>,
    /// Whether the client says that the command failed or succeeded; nothing, where it does not.
    pub failed: Option<bool>,
    /// Somebody stopped it.
    pub interrupted: bool,
    /// It took longer than it may.
    pub timed_out: bool,
    /// The client says that it left out some of the output.
    pub truncated: bool,
}

/// How a run went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunResult {
    /// It succeeded.
    Pass,
    /// It failed.
    Fail,
    /// Neither can be told.
    Unknown,
}

/// What came of a test run, a build or a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunVerdict {
    /// How it went.
    pub verdict: RunResult,
    /// What was run for.
    pub kind: RunKind,
    /// The tool, as [`super::Runner::name`] has it.
    pub runner: &'static str,
    /// How many tests passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed: Option<u64>,
    /// How many tests failed or ended in an error; for a build or a check, how many errors there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<u64>,
    /// How many tests were skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<u64>,
    /// One line with the counts and the first that failed, of at most [`MAX_SUMMARY_BYTES`].
    pub summary: String,
}

/// What the status of a command says of the runner in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Succeeded,
    /// With this status, where it is told.
    Failed(Option<i32>),
    /// The command failed, and it may have been for something else in it.
    Elsewhere,
    Untold,
}

/// What came of `run`, or nothing if it was neither tests nor a build nor a check.
///
/// A failure that the output shows is one, whatever the status: it may be that of `tee`, or of `|| true`. A success that it
/// shows is one unless the runner itself ended with a failure, and cannot be told if something else in the command did.
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

/// The verdict, and what there is to say of it beside the counts.
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
        // What shells say of a command that they cannot run or find, and of the signals INT, KILL and TERM.
        Status::Failed(Some(code @ (126 | 127 | 130 | 137 | 143))) => {
            (Unknown, Some(format!("exit status {code}")))
        }
        Status::Failed(Some(code)) => (Fail, Some(format!("exit status {code}"))),
        Status::Failed(None) => (Fail, says("it failed")),
        Status::Elsewhere => (Unknown, says("the command failed")),
        Status::Untold if silent => (Unknown, says("no result in the output")),
        Status::Untold
            if !sums_up_once(found.runner.name)
                && (found.picked || run.truncated || counts::is_cut(&run.output)) =>
        {
            (Unknown, says("some of the output is missing"))
        }
        Status::Succeeded | Status::Untold => (Pass, None),
    }
}

fn status(run: &ToolRun, found: &NamedRunner) -> Status {
    let echoed = found.echoed.as_deref().and_then(|before| echoed_status(&run.output, before));
    if let Some(code) = echoed {
        return if code == 0 { Status::Succeeded } else { Status::Failed(Some(code)) };
    }
    match run.exit_code.map_or(run.failed, |code| Some(code != 0)) {
        Some(false) if found.its.success => Status::Succeeded,
        Some(true) if found.its.failure => Status::Failed(run.exit_code),
        Some(true) => Status::Elsewhere,
        _ => Status::Untold,
    }
}

/// The status that `echo "…$?"` printed, after the text `before`.
fn echoed_status(output: &str, before: &str) -> Option<i32> {
    output.lines().rev().take(STATUS_LINES).find_map(|line| {
        let rest = line.trim().strip_prefix(before)?.trim_start();
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    })
}

/// Whether one line of the tool's, its last, has all counts, so that a success in it is one however much is missing.
fn sums_up_once(runner: &str) -> bool {
    matches!(
        runner,
        "pytest"
            | "unittest"
            | "jest"
            | "vitest"
            | "mocha"
            | "playwright"
            | "nextest"
            | "rspec"
            | "minitest"
            | "phpunit"
            | "ctest"
            | "gradle"
            | "mvn"
            | "node --test"
            | "deno test"
            | "bun test"
            | "ruff"
            | "mypy"
            | "pyright"
    )
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

/// `text` as one line of at most [`MAX_SUMMARY_BYTES`].
fn one_line(text: &str) -> String {
    // No more is looked at than could be kept, were it all blanks but a few.
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
