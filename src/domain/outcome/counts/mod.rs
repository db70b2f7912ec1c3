//! What the output of a runner says: how many passed, failed and were skipped, and what failed first.
//!
//! Each tool has a line of its own that sums up; only such a line counts, as the output of what is tested may say anything.
//! Where it is not known which tool writes (`npm test`, `make check`) all of them are tried, so their lines have to be told
//! apart by themselves.

mod checks;
mod line;
mod tests;

use std::borrow::Cow;

/// What is looked at of an output, in bytes from its head and from its tail. What fails first stands near the head, what
/// sums up near the tail.
const HEAD: usize = 256 * 1024;
const TAIL: usize = 1024 * 1024;

/// What an output says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) passed: Option<u64>,
    pub(super) failed: Option<u64>,
    /// Tests that could not be run to their end, as far as the tool counts them apart from failures.
    pub(super) errors: u64,
    pub(super) skipped: Option<u64>,
    /// What compilers and linters found.
    pub(super) problems: u64,
    pub(super) warnings: u64,
    /// The first that failed, by name, or the first problem.
    pub(super) first: Option<String>,
    /// It says that it failed, without a count.
    pub(super) broken: Option<String>,
    /// It says that all is well, without a count.
    pub(super) fine: bool,
    /// It says that there was nothing to run.
    pub(super) nothing: bool,
    /// It says that somebody stopped it.
    pub(super) stopped: bool,
}

impl Report {
    /// Whether it says that something failed.
    pub(super) fn shows_failure(&self) -> bool {
        self.failed.unwrap_or(0) + self.errors + self.problems > 0 || self.broken.is_some()
    }

    /// Whether it says that all that was run went well, and that something was.
    pub(super) fn shows_success(&self) -> bool {
        !self.shows_failure() && (self.passed.unwrap_or(0) > 0 || self.fine)
    }

    /// Whether it says that nothing was run.
    pub(super) fn shows_nothing(&self) -> bool {
        !self.shows_failure() && !self.shows_success() && (self.nothing || self.passed == Some(0))
    }

    fn says_something(&self) -> bool {
        *self != Self::default()
    }

    fn count(&mut self, passed: u64, failed: u64, errors: u64, skipped: u64) {
        add(&mut self.passed, passed);
        add(&mut self.failed, failed);
        add(&mut self.skipped, skipped);
        self.errors = self.errors.saturating_add(errors);
    }

    fn first(&mut self, name: &str) {
        if self.first.is_none() && !name.trim().is_empty() {
            self.first = Some(name.trim().to_owned());
        }
    }

    fn broken(&mut self, why: &str) {
        if self.broken.is_none() {
            self.broken = Some(why.trim().to_owned());
        }
    }

    /// Takes in what another tool said in the same output.
    fn join(&mut self, other: Self) {
        for (own, others) in [
            (&mut self.passed, other.passed),
            (&mut self.failed, other.failed),
            (&mut self.skipped, other.skipped),
        ] {
            if let Some(count) = others {
                add(own, count);
            }
        }
        self.errors = self.errors.saturating_add(other.errors);
        // Two readers may see the same problem.
        self.problems = self.problems.max(other.problems);
        self.warnings = self.warnings.max(other.warnings);
        self.first = self.first.take().or(other.first);
        self.broken = self.broken.take().or(other.broken);
        self.fine |= other.fine;
        self.nothing |= other.nothing;
        self.stopped |= other.stopped;
    }
}

fn add(sum: &mut Option<u64>, count: u64) {
    *sum = Some(sum.unwrap_or(0).saturating_add(count));
}

/// A reader of one tool's lines.
type Reader = fn(&[&str]) -> Report;

/// What `text`, the output of `runner`, says.
pub(super) fn read(runner: &str, text: &str) -> Report {
    let ends = ends_of(text);
    let text = plain(&ends);
    let lines: Vec<&str> = text.split(['\n', '\r']).collect();
    let reader: Reader = match runner {
        "pytest" => tests::pytest,
        "unittest" => tests::unittest,
        "jest" => tests::jest,
        "vitest" => tests::vitest,
        "mocha" => tests::mocha,
        "playwright" => tests::playwright,
        "node --test" | "tap" => tests::tap,
        "deno test" => tests::deno,
        "bun test" => tests::bun,
        "cargo test" => tests::cargo,
        "nextest" => tests::nextest,
        "go test" => tests::go,
        "rspec" => tests::rspec,
        "minitest" | "rake test" => tests::minitest,
        "dotnet test" => tests::dotnet,
        "mvn" => tests::maven,
        "gradle" => tests::gradle,
        "phpunit" => tests::phpunit_or_pest,
        "ctest" => tests::ctest,
        "swift test" => tests::swift,
        "bazel test" | "bazel build" => tests::bazel,
        "cargo build" | "cargo check" | "cargo clippy" | "cargo fmt" => checks::rustc,
        "tsc" | "deno check" => checks::tsc,
        "eslint" => checks::eslint,
        "ruff" => checks::ruff,
        "mypy" => checks::mypy,
        "pyright" => checks::pyright,
        "go build" | "go vet" => checks::go,
        "dotnet build" => checks::dotnet,
        "swift build" | "cmake" | "ninja" => checks::cc,
        "make" | "just" | "script" | "meson" => all_or_compiler,
        _ => all,
    };
    let mut report = reader(&lines);
    if !report.says_something() && lines.iter().any(|line| line::did_not_start(line)) {
        report.nothing = true;
    }
    report
}

/// Whether `text` says that a client, or we, left out something in its middle.
pub(super) fn is_cut(text: &str) -> bool {
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

/// `text` without the sequences that colour it (ECMA-48 control sequences and operating system commands).
fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split('\u{1b}');
    out.extend(parts.next());
    for part in parts {
        let rest = if let Some(sequence) = part.strip_prefix('[') {
            let end = sequence.find(|c: char| !(' '..='?').contains(&c));
            end.map_or("", |end| {
                let last = sequence[end..].chars().next().map_or(0, char::len_utf8);
                &sequence[end + last..]
            })
        } else if let Some(command) = part.strip_prefix(']') {
            // Ends with BEL, or with ESC \ of which the ESC ended this part.
            command.split_once('\u{7}').map_or("", |(_, rest)| rest)
        } else {
            part.get(1..).unwrap_or("")
        };
        out.push_str(rest);
    }
    Cow::Owned(out)
}

/// The output of something that runs one tool or several.
fn all(lines: &[&str]) -> Report {
    const ALL: [Reader; 25] = [
        tests::pytest,
        tests::unittest,
        tests::jest,
        tests::vitest,
        tests::mocha,
        tests::tap,
        tests::deno,
        tests::bun,
        tests::cargo,
        tests::nextest,
        tests::go,
        tests::rspec,
        tests::minitest,
        tests::dotnet,
        tests::maven,
        tests::gradle,
        tests::phpunit,
        tests::ctest,
        tests::swift,
        checks::tsc,
        checks::eslint,
        checks::ruff,
        checks::mypy,
        checks::pyright,
        checks::wrapper,
    ];
    let mut report = Report::default();
    for reader in ALL {
        report.join(reader(lines));
    }
    report
}

/// The same where a compiler may have come first.
fn all_or_compiler(lines: &[&str]) -> Report {
    let report = all(lines);
    if report.passed.is_some() || report.problems > 0 {
        return report;
    }
    let mut compiled = checks::cc(lines);
    compiled.join(report);
    compiled
}
