//! What the output of a runner says: how many passed, failed and were skipped, and the first
//! failure.
//!
//! Each tool has a summary line of its own. Only such a line counts, as tested code may print
//! anything. For an unknown tool (`npm test`, `make check`) all readers are tried, so the lines of
//! one tool must not look like those of another.

mod checks;
mod compiled;
mod report;
mod scripts;

use std::borrow::Cow;

use anstream::adapter::strip_str;

pub(super) use report::RunReport;

/// Bytes that are read at the head and the tail of an output. The first failure is near the head,
/// the summary near the tail.
const HEAD: usize = 256 * 1024;
const TAIL: usize = 1024 * 1024;

type Reader = fn(&[&str]) -> RunReport;

pub(crate) fn read(runner: &str, text: &str) -> RunReport {
    let ends = ends_of(text);
    let text =
        if ends.contains('\u{1b}') { Cow::Owned(strip_str(&ends).to_string()) } else { ends };
    let lines: Vec<&str> = text.split(['\n', '\r']).collect();
    let reader: Reader = match runner {
        "pytest" => scripts::pytest,
        "unittest" => scripts::unittest,
        "jest" => scripts::jest,
        "vitest" => scripts::vitest,
        "mocha" => scripts::mocha,
        "playwright" => scripts::playwright,
        "node --test" => scripts::tap,
        "deno test" => scripts::deno,
        "bun test" => scripts::bun,
        "cargo test" => compiled::cargo,
        "nextest" => compiled::nextest,
        "go test" => compiled::go,
        "rspec" => scripts::rspec,
        "minitest" | "rake test" => scripts::minitest,
        "dotnet test" => compiled::dotnet,
        "mvn" => compiled::maven,
        "gradle" => compiled::gradle,
        "phpunit" => scripts::phpunit,
        "ctest" => compiled::ctest,
        "swift test" => compiled::swift,
        "bazel test" | "bazel build" => compiled::bazel,
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
    if !report.is_informative() && lines.iter().any(|line| report::did_not_start(line)) {
        report.nothing = true;
    }
    report
}

/// Whether a client, or the bound above, left out the middle of `text`.
pub(crate) fn is_cut(text: &str) -> bool {
    let by_client = text.lines().any(|line| {
        let marked = line.contains("truncated") || line.contains("omitted");
        let units = ["characters", "chars", "tokens", "lines", "bytes", "output"];
        marked
            && (line.contains("...") || line.contains('…') || line.contains('['))
            && units.iter().any(|unit| line.contains(unit))
    });
    by_client || text.len() > HEAD + TAIL
}

fn ends_of(text: &str) -> Cow<'_, str> {
    if text.len() <= HEAD + TAIL {
        return Cow::Borrowed(text);
    }
    let head = &text[..text.floor_char_boundary(HEAD)];
    let tail = &text[text.ceil_char_boundary(text.len() - TAIL)..];
    Cow::Owned(format!("{head}\n{tail}"))
}

/// Reads the output of an unknown tool, or of several tools.
fn all(lines: &[&str]) -> RunReport {
    const ALL: [Reader; 25] = [
        scripts::pytest,
        scripts::unittest,
        scripts::jest,
        scripts::vitest,
        scripts::mocha,
        scripts::tap,
        scripts::deno,
        scripts::bun,
        compiled::cargo,
        compiled::nextest,
        compiled::go,
        scripts::rspec,
        scripts::minitest,
        compiled::dotnet,
        compiled::maven,
        compiled::gradle,
        scripts::phpunit,
        compiled::ctest,
        compiled::swift,
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

/// Like [`all`]; if that finds no counts, also reads problems of a compiler.
fn all_or_compiler(lines: &[&str]) -> RunReport {
    let report = all(lines);
    if report.passed.is_some() || report.problems > 0 {
        return report;
    }
    let mut compiled = checks::cc(lines);
    compiled.join(report);
    compiled
}
