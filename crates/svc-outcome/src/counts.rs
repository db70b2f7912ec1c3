//! What the output of a runner says: how many passed, failed and were skipped, and the first
//! failure. `formats` has the patterns of each runner.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use anstream::adapter::strip_str;
use regex_automata::meta::Regex;
use regex_automata::util::captures::Captures;

use super::formats::{KNOWN_ONLY, RULES, Says, WRAPPERS};

/// Bytes that are read at the head and the tail of an output. The first failure is near the head,
/// the summary near the tail.
const HEAD: usize = 128 * 1024;
const TAIL: usize = 256 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the output")]
pub(super) struct RunReport {
    pub(super) passed: Option<u64>,
    pub(super) failed: Option<u64>,
    /// Tests without a result, if the tool counts them apart from failures.
    pub(super) errors: u64,
    pub(super) skipped: Option<u64>,
    pub(super) problems: u64,
    pub(super) warnings: u64,
    /// The name of the first failure, or the first problem.
    pub(super) first: Option<String>,
    /// The tool reports a failure without a count.
    pub(super) broken: Option<String>,
    /// The counts are of pytest's marks of progress, and the first marks may be missing.
    marked: bool,
    fine: bool,
    nothing: bool,
    pub(super) stopped: bool,
}

pub(super) fn read(runner: &str, text: &str) -> RunReport {
    // Some patterns span lines: a line end of two characters is one line end.
    let ends = ends_of(text).replace("\r\n", "\n").replace('\r', "\n");
    let text = strip_str(&ends).to_string();
    let mut report = RunReport::default();
    let has = |names: &str, name: &str| names.split('|').any(|it| it == name);
    let mut at = 0;
    for rules in RULES.chunk_by(|(one, ..), (other, ..)| one == other) {
        let runners = rules[0].0;
        let is_tried = has(WRAPPERS, runner) && !KNOWN_ONLY.contains(runners);
        if has(runners, runner) || is_tried || (runners.is_empty() && has(WRAPPERS, runner)) {
            report.join(RunReport::of_rules(at..at + rules.len(), &text));
        }
        at += rules.len();
    }
    if report == RunReport::default() && text.lines().any(did_not_start) {
        report.nothing = true;
    }
    report
}

/// Whether a client, or the bound above, left out the middle of `text`.
pub(super) fn is_cut(text: &str) -> bool {
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

/// The pattern of a rule, compiled when it is first used.
fn pattern(at: usize) -> &'static Regex {
    static COMPILED: [OnceLock<Regex>; RULES.len()] = [const { OnceLock::new() }; RULES.len()];
    COMPILED[at].get_or_init(|| {
        // Word boundaries of ASCII: at `✓` those of Unicode leave the fast engine.
        let text = RULES[at].2.replace(r"\b", r"(?-u:\b)");
        Regex::new(&format!("(?m){text}")).expect("the pattern is well formed")
    })
}

impl RunReport {
    fn of_rules(rules: Range<usize>, text: &str) -> Self {
        let mut report = Self::default();
        for at in rules {
            let says = RULES[at].1;
            let is_told_once =
                matches!(says, Says::First | Says::Broken | Says::Fine | Says::Marks);
            let most = if is_told_once { 1 } else { usize::MAX };
            for found in pattern(at).captures_iter(text).take(most) {
                report.note(says, &text_of(&found, text));
            }
        }
        if !report.shows_failure() {
            report.first = None;
        }
        report
    }

    fn note(&mut self, says: Says, text: &str) {
        match says {
            Says::Tests => self.count_tests(text),
            Says::Marks if self.passed.is_none() => {
                let count = |mark| text.bytes().filter(|byte| *byte == mark).count() as u64;
                (self.passed, self.failed) = (Some(count(b'.')), Some(count(b'F')));
                (self.skipped, self.errors) = (Some(count(b's')), count(b'E'));
                self.marked = true;
            }
            Says::Marks => {}
            Says::Passed => add(&mut self.passed, 1),
            Says::Failed => add(&mut self.failed, 1),
            Says::Skipped => add(&mut self.skipped, 1),
            Says::Problems => {
                for (word, count) in numbers(text) {
                    if matches!(word, "warning" | "warnings") {
                        self.warnings = self.warnings.saturating_add(count);
                    } else {
                        self.problems = self.problems.saturating_add(count);
                    }
                }
                self.fine |= self.problems == 0;
            }
            Says::Problem => {
                self.problems += 1;
                self.first.get_or_insert_with(|| text.to_owned());
            }
            Says::First => drop(self.first.get_or_insert_with(|| text.to_owned())),
            Says::Broken => drop(self.broken.get_or_insert_with(|| text.to_owned())),
            Says::Fine => self.fine = true,
            Says::Nothing => (self.nothing, self.fine) = (true, false),
            Says::Stopped => self.stopped = true,
        }
    }

    fn count_tests(&mut self, text: &str) {
        let (mut passed, mut failed, mut errors, mut skipped) = (None, 0_u64, 0_u64, 0_u64);
        let (mut total, mut other) = (0_u64, 0_u64);
        for (word, count) in numbers(text) {
            let sum = match word.to_ascii_lowercase().as_str() {
                "passed" | "pass" | "passing" | "succeeded" => passed.get_or_insert(0),
                "failed"
                | "fail"
                | "failing"
                | "failure"
                | "failures"
                | "cancelled"
                | "unexpected successes" => &mut failed,
                "error" | "errors" | "timed" | "exec" => &mut errors,
                "skipped" | "skip" | "ignored" | "pending" | "todo" | "incomplete" => &mut skipped,
                "test" | "tests" | "run" | "example" | "examples" | "total" => &mut total,
                "expected failures" => &mut other,
                _ => continue,
            };
            *sum = sum.saturating_add(count);
        }
        let rest = [failed, errors, skipped, other].into_iter().fold(total, u64::saturating_sub);
        add(&mut self.passed, passed.unwrap_or(rest));
        add(&mut self.failed, failed);
        add(&mut self.skipped, skipped);
        self.errors = self.errors.saturating_add(errors);
    }

    /// Adds the report of another format on the same output.
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
        // Two formats may have the same problem.
        self.problems = self.problems.max(other.problems);
        self.warnings = self.warnings.max(other.warnings);
        self.first = self.first.take().or(other.first);
        self.broken = self.broken.take().or(other.broken);
        self.marked |= other.marked;
        self.fine |= other.fine;
        self.nothing |= other.nothing;
        self.stopped |= other.stopped;
    }

    pub(super) fn shows_failure(&self) -> bool {
        self.failed.unwrap_or(0) > 0
            || self.errors > 0
            || self.problems > 0
            || self.broken.is_some()
    }

    /// Something ran, and all of it succeeded.
    pub(super) fn shows_success(&self) -> bool {
        !self.shows_failure() && !self.marked && (self.passed.unwrap_or(0) > 0 || self.fine)
    }

    pub(super) fn shows_nothing(&self) -> bool {
        !self.shows_failure() && !self.shows_success() && (self.nothing || self.passed == Some(0))
    }
}

fn add(sum: &mut Option<u64>, count: u64) {
    *sum = Some(sum.unwrap_or(0).saturating_add(count));
}

/// The groups of a match, else all of it: the place `at`, a `line` there, and `what` is said.
fn text_of(found: &Captures, text: &str) -> String {
    let named = |name| found.get_group_by_name(name).map(|span| &text[span]);
    let group = found.get_group(1).or(found.get_match().map(|whole| whole.span()));
    let plain = group.map_or("", |span| text[span].trim());
    let (what, at) = (named("what").unwrap_or(plain).trim(), named("at").map(str::trim));
    match (at, named("line")) {
        (Some(at), Some(line)) => format!("{at}:{line}: {what}"),
        (Some(at), None) => format!("{at}: {what}"),
        (None, _) => what.to_owned(),
    }
}

/// The numbers in a text, each with the word after it (`3 failed`), or with the label before it
/// (`Failures: 3`).
fn numbers(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.split([',', ';', '|', '(', ')', '\n']).flat_map(|part| {
        let is_gap = |c: char| !c.is_alphanumeric() && c != '_' && c != '.';
        let words: Vec<&str> = part.split(is_gap).filter(|word| !word.is_empty()).collect();
        let last = part.trim_end_matches(['.', ' ']).rsplit_once([':', '=', ' ']);
        let labelled = last.and_then(|(label, count)| {
            let label = label.trim_matches([':', '=', ' ']);
            let is_whole = matches!(label, "expected failures" | "unexpected successes");
            let word = label.rsplit([' ', ':']).next().filter(|_| !is_whole);
            Some((word.unwrap_or(label), count.parse().ok()?))
        });
        let pairs = words.windows(2).filter_map(|pair| Some((pair[1], pair[0].parse().ok()?)));
        pairs.chain(labelled).collect::<Vec<_>>()
    })
}

/// Whether a line says that a shell or a tool could not start.
fn did_not_start(line: &str) -> bool {
    const MESSAGES: &str = "command not found|No module named pytest|No module named tox|\
        Missing script:|missing script:|No rule to make target|could not find `Cargo.toml`|\
        error: no such command|error: unexpected argument|error: unrecognized subcommand|\
        error: no test target named|error: no bin target named|\
        error: package ID specification|go.mod file not found|\
        could not determine executable to run|is not recognized as|Permission denied|\
        Nothing to be done for|couldn't find an `eslint.config";
    MESSAGES.split('|').any(|message| line.contains(message))
        || (line.contains("No such file or directory")
            && (line.contains(": cd: ") || line.starts_with("cd: ")))
        || line.contains(": not found") && line.contains("sh: ")
}
