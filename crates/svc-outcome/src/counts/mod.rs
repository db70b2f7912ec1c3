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

/// Reads the lines of an output into an empty report.
type Reader = fn(&[&str], &mut RunReport);

/// The readers, each with the names of its runners, and whether it is tried for an unknown tool.
static READERS: [(&[&str], Reader, bool); 30] = [
    (&["pytest"], scripts::pytest, true),
    (&["unittest"], scripts::unittest, true),
    (&["jest"], scripts::jest, true),
    (&["vitest"], scripts::vitest, true),
    (&["mocha"], scripts::mocha, true),
    (&["playwright"], scripts::playwright, false),
    (&["node --test"], scripts::tap, true),
    (&["deno test"], scripts::deno, true),
    (&["bun test"], scripts::bun, true),
    (&["cargo test"], compiled::cargo, true),
    (&["nextest"], compiled::nextest, true),
    (&["go test"], compiled::go, true),
    (&["rspec"], scripts::rspec, true),
    (&["minitest", "rake test"], scripts::minitest, true),
    (&["dotnet test"], compiled::dotnet, true),
    (&["mvn"], compiled::maven, true),
    (&["gradle"], compiled::gradle, true),
    (&["phpunit"], scripts::phpunit, true),
    (&["ctest"], compiled::ctest, true),
    (&["swift test"], compiled::swift, true),
    (&["bazel test", "bazel build"], compiled::bazel, false),
    (&["cargo build", "cargo check", "cargo clippy", "cargo fmt"], checks::rustc, false),
    (&["tsc"], checks::tsc, true),
    (&["eslint"], checks::eslint, true),
    (&["ruff"], checks::ruff, true),
    (&["mypy"], checks::mypy, true),
    (&["pyright"], checks::pyright, true),
    (&["go build", "go vet"], checks::go, false),
    (&["dotnet build"], checks::dotnet, false),
    (&["swift build", "cmake"], checks::cc, false),
];

pub(crate) fn read(runner: &str, text: &str) -> RunReport {
    let ends = ends_of(text);
    let text =
        if ends.contains('\u{1b}') { Cow::Owned(strip_str(&ends).to_string()) } else { ends };
    let lines: Vec<&str> = text.split(['\n', '\r']).collect();
    let known = READERS.iter().find(|(names, ..)| names.contains(&runner));
    let mut report = match (known, runner) {
        (Some((_, reader, _)), _) => report_of(*reader, &lines),
        (None, "make" | "just" | "script") => all_or_compiler(&lines),
        (None, _) => all(&lines),
    };
    if !report.is_informative() && lines.iter().any(|line| report::did_not_start(line)) {
        report.nothing = true;
    }
    report
}

fn report_of(reader: Reader, lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    reader(lines, &mut report);
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
    let tried = READERS.iter().filter(|(.., is_tried)| *is_tried).map(|(_, reader, _)| *reader);
    let mut report = RunReport::default();
    for reader in tried.chain([checks::wrapper as Reader]) {
        report.join(report_of(reader, lines));
    }
    report
}

/// Like [`all`]; if that finds no counts, also reads problems of a compiler.
fn all_or_compiler(lines: &[&str]) -> RunReport {
    let report = all(lines);
    if report.passed.is_some() || report.problems > 0 {
        return report;
    }
    let mut compiled = report_of(checks::cc, lines);
    compiled.join(report);
    compiled
}
