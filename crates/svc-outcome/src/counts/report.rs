//! What every reader uses: the report of an output, and numbers and words in a line.

use std::path::Path;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunReport {
    pub(crate) passed: Option<u64>,
    pub(crate) failed: Option<u64>,
    /// Tests without a result, if the tool counts them apart from failures.
    pub(crate) errors: u64,
    pub(crate) skipped: Option<u64>,
    pub(crate) problems: u64,
    pub(crate) warnings: u64,
    /// The name of the first failure, or the first problem.
    pub(crate) first: Option<String>,
    /// The tool reports a failure without a count.
    pub(crate) broken: Option<String>,
    /// The tool reports success without a count.
    pub(crate) fine: bool,
    /// The tool reports that there was nothing to run.
    pub(crate) nothing: bool,
    /// The tool reports that somebody stopped it.
    pub(crate) stopped: bool,
}

impl RunReport {
    pub(crate) fn shows_failure(&self) -> bool {
        self.failed.unwrap_or(0) + self.errors + self.problems > 0 || self.broken.is_some()
    }

    /// Something ran, and all of it succeeded.
    pub(crate) fn shows_success(&self) -> bool {
        !self.shows_failure() && (self.passed.unwrap_or(0) > 0 || self.fine)
    }

    pub(crate) fn shows_nothing(&self) -> bool {
        !self.shows_failure() && !self.shows_success() && (self.nothing || self.passed == Some(0))
    }

    pub(super) fn is_informative(&self) -> bool {
        *self != Self::default()
    }

    pub(super) fn count(&mut self, passed: u64, failed: u64, errors: u64, skipped: u64) {
        add(&mut self.passed, passed);
        add(&mut self.failed, failed);
        add(&mut self.skipped, skipped);
        self.errors = self.errors.saturating_add(errors);
    }

    pub(super) fn first(&mut self, name: &str) {
        if self.first.is_none() && !name.trim().is_empty() {
            self.first = Some(name.trim().to_owned());
        }
    }

    pub(super) fn broken(&mut self, why: &str) {
        if self.broken.is_none() {
            self.broken = Some(why.trim().to_owned());
        }
    }

    /// `rest` follows `error: could not compile `.
    pub(super) fn broken_compilation(&mut self, rest: &str) {
        let what = rest.split(" due to").next().unwrap_or(rest);
        self.broken(&format!("could not compile {what}"));
    }

    /// Keeps `first` only with a failure.
    pub(super) fn drop_stray_name(&mut self) {
        if !self.shows_failure() {
            self.first = None;
        }
    }

    /// Adds the report of another tool on the same output.
    pub(super) fn join(&mut self, other: Self) {
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

/// The number before one of `words`: 3 for `failed` in `3 failed, 42 passed`.
pub(super) fn before(line: &str, words: &str) -> Option<u64> {
    let mut number = None;
    for word in tokens(line) {
        if let (Some(number), true) = (number, words.split(' ').any(|it| it == word)) {
            return Some(number);
        }
        number = word.parse().ok();
    }
    None
}

/// Like [`before`], or 0 without a number.
pub(super) fn number(line: &str, words: &str) -> u64 {
    before(line, words).unwrap_or(0)
}

/// The number after `label`: 3 for `Failures:` in `Tests run: 5, Failures: 3`.
pub(super) fn after(line: &str, label: &str) -> Option<u64> {
    let rest = line.split_once(label)?.1.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn tokens(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '.')
        .filter(|word| !word.is_empty())
}

/// The number of a line `N WORD`, with at most a time in parentheses behind it.
pub(super) fn is_count(line: &str, word: &str) -> Option<u64> {
    let line = line.trim();
    let (number, rest) = line.split_once(' ')?;
    let number = number.parse().ok()?;
    let rest = rest.strip_prefix(word)?.trim_start();
    (rest.is_empty() || (rest.starts_with('(') && rest.ends_with(')'))).then_some(number)
}

/// Whether a line says that a shell or a tool could not start.
pub(super) fn did_not_start(line: &str) -> bool {
    const MESSAGES: &str = "command not found|No module named pytest|No module named tox|No module named nox|\
        Missing script:|missing script:|No rule to make target|could not find `Cargo.toml`|\
        error: no such command|error: unexpected argument|error: unrecognized subcommand|\
        error: no test target named|error: no bin target named|\
        error: package ID specification|go.mod file not found|\
        could not determine executable to run|does not contain recipe|No justfile found|\
        is not recognized as|Permission denied|No configuration file found|\
        Nothing to be done for|couldn't find an `eslint.config";
    MESSAGES.split('|').any(|message| line.contains(message))
        || (line.contains("No such file or directory")
            && (line.contains(": cd: ") || line.starts_with("cd: ")))
        || line.contains(": not found") && line.contains("sh: ")
}

/// Whether a line is a compiler's, such as `path:3:5: error: …`. `mark` separates location and
/// message.
pub(super) fn is_problem(line: &str, mark: &str) -> bool {
    line.find(mark).is_some_and(|at| {
        let location = &line[..at];
        location.contains(['.', '/'])
            && (location.ends_with(')') || location.ends_with(|c: char| c.is_ascii_digit()))
    })
}

pub(super) fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// Whether a line is an error of `MSBuild`: `Cart.cs(5,20): error CS1002: …`. Errors of `tsc` look
/// alike.
pub(super) fn is_msbuild_error(line: &str) -> bool {
    line.split_once("): error ").and_then(|(_, rest)| rest.split_once(':')).is_some_and(
        |(code, _)| {
            code.starts_with(|c: char| c.is_ascii_uppercase())
                && code.ends_with(|c: char| c.is_ascii_digit())
                && code.chars().all(|c| c.is_ascii_alphanumeric())
                && !code.starts_with("TS")
        },
    )
}
