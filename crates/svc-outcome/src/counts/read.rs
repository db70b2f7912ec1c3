//! Which reader an output is given to.

use std::borrow::Cow;

use anstream::adapter::strip_str;

use super::{checks, line, report::RunReport, test_runners};

/// What is looked at of an output, in bytes from its head and from its tail. What fails first stands near the head, what
/// sums up near the tail.
const HEAD: usize = 256 * 1024;
const TAIL: usize = 1024 * 1024;

/// A reader of one tool's lines.
type Reader = fn(&[&str]) -> RunReport;

/// What `text`, the output of `runner`, says.
pub(crate) fn read(runner: &str, text: &str) -> RunReport {
    let ends = ends_of(text);
    let text = plain(&ends);
    let lines: Vec<&str> = text.split(['\n', '\r']).collect();
    let reader: Reader = match runner {
        "pytest" => test_runners::pytest,
        "unittest" => test_runners::unittest,
        "jest" => test_runners::jest,
        "vitest" => test_runners::vitest,
        "mocha" => test_runners::mocha,
        "playwright" => test_runners::playwright,
        "node --test" => test_runners::tap,
        "deno test" => test_runners::deno,
        "bun test" => test_runners::bun,
        "cargo test" => test_runners::cargo,
        "nextest" => test_runners::nextest,
        "go test" => test_runners::go,
        "rspec" => test_runners::rspec,
        "minitest" | "rake test" => test_runners::minitest,
        "dotnet test" => test_runners::dotnet,
        "mvn" => test_runners::maven,
        "gradle" => test_runners::gradle,
        "phpunit" => test_runners::phpunit,
        "ctest" => test_runners::ctest,
        "swift test" => test_runners::swift,
        "bazel test" | "bazel build" => test_runners::bazel,
        "cargo build" | "cargo check" | "cargo clippy" | "cargo fmt" => checks::rustc,
        "tsc" => checks::tsc,
        "eslint" => checks::eslint,
        "ruff" => checks::ruff,
        "mypy" => checks::mypy,
        "pyright" => checks::pyright,
        "go build" | "go vet" => checks::go,
        "dotnet build" => checks::dotnet,
        "swift build" | "cmake" => checks::cc,
        "make" | "just" | "script" => all_or_compiler,
        _ => all,
    };
    let mut report = reader(&lines);
    if !report.says_something() && lines.iter().any(|line| line::did_not_start(line)) {
        report.nothing = true;
    }
    report
}

/// Whether `text` says that a client, or we, left out something in its middle.
pub(crate) fn is_cut(text: &str) -> bool {
    let of_client = text.lines().any(|line| {
        let marked = line.contains("truncated") || line.contains("omitted");
        let units = ["characters", "chars", "tokens", "lines", "bytes", "output"];
        marked
            && (line.contains("...") || line.contains('…') || line.contains('['))
            && units.iter().any(|unit| line.contains(unit))
    });
    of_client || text.len() > HEAD + TAIL
}

/// `text` if it is short, or else its head and its tail.
fn ends_of(text: &str) -> Cow<'_, str> {
    if text.len() <= HEAD + TAIL {
        return Cow::Borrowed(text);
    }
    let head = &text[..text.floor_char_boundary(HEAD)];
    let tail = &text[text.ceil_char_boundary(text.len() - TAIL)..];
    Cow::Owned(format!("{head}\n{tail}"))
}

/// `text` without escape sequences.
fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return Cow::Borrowed(text);
    }
    Cow::Owned(strip_str(text).to_string())
}

/// The output of something that runs one tool or several.
fn all(lines: &[&str]) -> RunReport {
    const ALL: [Reader; 25] = [
        test_runners::pytest,
        test_runners::unittest,
        test_runners::jest,
        test_runners::vitest,
        test_runners::mocha,
        test_runners::tap,
        test_runners::deno,
        test_runners::bun,
        test_runners::cargo,
        test_runners::nextest,
        test_runners::go,
        test_runners::rspec,
        test_runners::minitest,
        test_runners::dotnet,
        test_runners::maven,
        test_runners::gradle,
        test_runners::phpunit,
        test_runners::ctest,
        test_runners::swift,
        checks::tsc,
        checks::eslint,
        checks::ruff,
        checks::mypy,
        checks::pyright,
        checks::wrapper,
    ];
    let mut report = RunReport::default();
    for reader in ALL {
        report.join(reader(lines));
    }
    report
}

/// The same where a compiler may have come first.
fn all_or_compiler(lines: &[&str]) -> RunReport {
    let report = all(lines);
    if report.passed.is_some() || report.problems > 0 {
        return report;
    }
    let mut compiled = checks::cc(lines);
    compiled.join(report);
    compiled
}
