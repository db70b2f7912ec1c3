//! Test runners of Python, Ruby and PHP.

use super::report::{RunReport, after, before, has_extension, number};

/// `== 2 failed, 1 passed, 1 error in 0.02s ==`, then or before it `FAILED path::name - why`.
pub(super) fn pytest(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let (mut failed, mut errors) = (0, 0);
    for line in lines {
        if let Some(counts) = pytest_summary(line) {
            if counts.starts_with("no tests ran") {
                report.nothing = true;
                continue;
            }
            report.count(
                number(counts, "passed"),
                number(counts, "failed"),
                number(counts, "error errors"),
                number(counts, "skipped"),
            );
        } else if let Some(name) = line.strip_prefix("FAILED ").filter(|name| is_pytest_name(name))
        {
            failed += 1;
            report.first(name);
        } else if let Some(name) = line.strip_prefix("ERROR ").filter(|name| is_pytest_name(name)) {
            errors += 1;
            report.first(name);
        } else if line.starts_with("!!!") && line.contains("KeyboardInterrupt") {
            report.stopped = true;
        } else if line.starts_with("pytest: error: ") || line.starts_with("ERROR: usage: ") {
            report.nothing = true;
        } else if line.starts_with("INTERNALERROR>") {
            report.broken("internal error");
        } else if line.starts_with("FAIL Required test coverage") {
            report.broken(&line["FAIL ".len()..]);
        }
    }
    if report.passed.is_none() && failed + errors > 0 {
        // `-qq` has no summary, but names the failures.
        report.failed = Some(failed);
        report.errors = errors;
    }
    if report.first.is_none() {
        // From `-v`, or from the head of a traceback.
        let verbose = lines.iter().find_map(|line| {
            let (name, rest) = line.split_once(' ')?;
            let bad = rest.starts_with("FAILED") || rest.starts_with("ERROR");
            (name.contains("::") && bad).then_some(name)
        });
        let head = || {
            lines.iter().find_map(|line| {
                let name = line.strip_prefix("____")?.trim_matches('_').trim();
                (line.ends_with("____") || line.ends_with(" _")).then_some(name)
            })
        };
        if report.failed.unwrap_or(0) + report.errors > 0
            && let Some(name) = verbose.or_else(head)
        {
            report.first(name);
        }
    }
    report
}

fn is_pytest_name(name: &str) -> bool {
    name.contains("::") || name.split(' ').next().is_some_and(|path| has_extension(path, "py"))
}

/// The counts of a summary line.
fn pytest_summary(line: &str) -> Option<&str> {
    const WORDS: &str = "passed failed skipped error errors xfailed xpassed deselected \
                         warning warnings rerun reruns subtests";
    let inner = line.trim_matches('=').trim();
    let (counts, time) = inner.rsplit_once(" in ")?;
    let seconds = time.split_once('s')?.0;
    let is_time = !seconds.is_empty() && seconds.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let counted = counts == "no tests ran"
        || counts.split(", ").all(|count| {
            count.split_once(' ').is_some_and(|(number, what)| {
                number.parse::<u64>().is_ok()
                    && what
                        .split(' ')
                        .next()
                        .is_some_and(|word| WORDS.split(' ').any(|it| it == word))
            })
        });
    (is_time && counted).then_some(counts)
}

/// `Ran 3 tests in 0.001s`, then `OK (skipped=1)` or `FAILED (failures=1, errors=1)`.
pub(super) fn unittest(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut ran = None;
    for line in lines {
        if let Some(rest) = line.strip_prefix("Ran ")
            && rest.contains(" in ")
            && let Some(count) = before(rest, "test tests")
        {
            ran = Some(count);
        } else if let Some(count) = ran {
            if line.starts_with("NO TESTS RAN") {
                report.nothing = true;
                ran = None;
            } else if line.starts_with("OK") || line.starts_with("FAILED") {
                let of = |label| after(line, label).unwrap_or(0);
                let (failed, errors) = (
                    // Not "expected failures=1".
                    line.replace("expected failures=", "")
                        .split_once("failures=")
                        .map_or(0, |_| of("(failures=")),
                    of("errors="),
                );
                let failed = failed + of("unexpected successes=");
                let skipped = of("skipped=");
                let other = failed + errors + skipped + of("expected failures=");
                report.count(count.saturating_sub(other), failed, errors, skipped);
                if line.starts_with("FAILED") && failed + errors == 0 {
                    report.broken("FAILED");
                }
                ran = None;
            }
        } else if let Some(name) =
            line.strip_prefix("FAIL: ").or_else(|| line.strip_prefix("ERROR: "))
            && name.contains('(')
        {
            report.first(name);
        }
    }
    report
}

/// `5 examples, 1 failure, 1 pending`, `rspec ./spec/cart_spec.rb:3 # Cart adds`
pub(super) fn rspec(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    for line in lines {
        if let (Some(examples), Some(failed)) =
            (before(line, "example examples"), before(line, "failure failures"))
            && line.starts_with(|c: char| c.is_ascii_digit())
        {
            let skipped = number(line, "pending");
            let errors =
                if line.contains("outside of examples") { number(line, "error errors") } else { 0 };
            report.count(examples.saturating_sub(failed + skipped), failed, errors, skipped);
        } else if let Some(name) =
            line.strip_prefix("rspec ").filter(|name| name.starts_with(['.', '\'']))
        {
            report.first(name);
        } else if line.starts_with("An error occurred while loading ") {
            report.first(line);
        }
    }
    report.without_stray_name()
}

/// `3 runs, 3 assertions, 1 failures, 0 errors, 0 skips`
pub(super) fn minitest(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut named = false;
    for line in lines {
        let trimmed = line.trim();
        if let (Some(runs), Some(_), Some(failed), Some(errors)) = (
            before(line, "runs run tests test"),
            before(line, "assertions assertion"),
            before(line, "failures failure"),
            before(line, "errors error"),
        ) && line.starts_with(|c: char| c.is_ascii_digit())
        {
            let skipped =
                before(line, "skips skip").or_else(|| before(line, "omissions")).unwrap_or(0);
            report.count(runs.saturating_sub(failed + errors + skipped), failed, errors, skipped);
        } else if named {
            report.first(trimmed.split(" [").next().unwrap_or(trimmed).trim_end_matches(':'));
            named = false;
        } else if let Some((number, what)) = trimmed.split_once(") ") {
            named =
                number.bytes().all(|b| b.is_ascii_digit()) && matches!(what, "Failure:" | "Error:");
        } else if trimmed == "Failure:" || trimmed == "Error:" {
            // Rails prints them during the run.
            named = true;
        }
    }
    report.without_stray_name()
}

/// `OK (3 tests, 3 assertions)`, `Tests: 3, Assertions: 3, Failures: 1.`
pub(super) fn phpunit(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    for line in lines {
        if line.starts_with("OK (")
            && let Some(tests) = before(line, "test tests")
        {
            report.count(tests, 0, 0, 0);
        } else if line.starts_with("Tests: ") && line.contains("Assertions:") {
            let of = |label| after(line, label).unwrap_or(0);
            let (failed, errors) = (of("Failures:"), of("Errors:"));
            let skipped = of("Skipped:") + of("Incomplete:");
            report.count(
                of("Tests:").saturating_sub(failed + errors + skipped),
                failed,
                errors,
                skipped,
            );
        } else if let Some(name) = line.strip_prefix("1) ").filter(|name| name.contains("::")) {
            report.first(name);
        } else if line.starts_with("No tests executed!") {
            report.nothing = true;
        } else if line.starts_with("FAILURES!") || line.starts_with("ERRORS!") {
            report.broken("it says so");
        }
    }
    report.without_stray_name()
}
