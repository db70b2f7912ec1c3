//! Test runners of Python, Ruby, PHP and JavaScript.

use super::report::{RunReport, after, before, has_extension, is_count, number};

/// `== 2 failed, 1 passed, 1 error in 0.02s ==`, then or before it `FAILED path::name - why`.
pub(super) fn pytest(lines: &[&str], report: &mut RunReport) {
    let (mut failed, mut errors) = (0, 0);
    for line in lines {
        if let Some(counts) = pytest_summary(line) {
            if counts.starts_with("no tests ran") {
                report.nothing = true;
                continue;
            }
            let of = |words| number(counts, words);
            report.count(of("passed"), of("failed"), of("error errors"), of("skipped"));
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
}

fn is_pytest_name(name: &str) -> bool {
    name.contains("::") || name.split(' ').next().is_some_and(|path| has_extension(path, "py"))
}

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
pub(super) fn unittest(lines: &[&str], report: &mut RunReport) {
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
}

/// `5 examples, 1 failure, 1 pending`, `rspec ./spec/cart_spec.rb:3 # Cart adds`
pub(super) fn rspec(lines: &[&str], report: &mut RunReport) {
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
    report.drop_stray_name();
}

/// `3 runs, 3 assertions, 1 failures, 0 errors, 0 skips`
pub(super) fn minitest(lines: &[&str], report: &mut RunReport) {
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
            // Rails prints the failures during the run.
            named = true;
        }
    }
    report.drop_stray_name();
}

/// `OK (3 tests, 3 assertions)`, `Tests: 3, Assertions: 3, Failures: 1.`
pub(super) fn phpunit(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        if line.starts_with("OK (")
            && let Some(tests) = before(line, "test tests")
        {
            report.count(tests, 0, 0, 0);
        } else if line.starts_with("Tests: ") && line.contains("Assertions:") {
            let of = |label| after(line, label).unwrap_or(0);
            let (failed, errors) = (of("Failures:"), of("Errors:"));
            let skipped = of("Skipped:") + of("Incomplete:");
            let passed = of("Tests:").saturating_sub(failed + errors + skipped);
            report.count(passed, failed, errors, skipped);
        } else if let Some(name) = line.strip_prefix("1) ").filter(|name| name.contains("::")) {
            report.first(name);
        } else if line.starts_with("No tests executed!") {
            report.nothing = true;
        } else if line.starts_with("FAILURES!") || line.starts_with("ERRORS!") {
            report.broken("it says so");
        }
    }
    report.drop_stray_name();
}

/// `Tests: 1 failed, 1 skipped, 2 passed, 4 total`, also of Pest and Artisan (`… (3 assertions)`).
pub(super) fn jest(lines: &[&str], report: &mut RunReport) {
    let mut file = None;
    for line in lines {
        let line = line.trim_end();
        if let Some(rest) = line.trim_start().strip_prefix("Tests:")
            && (rest.trim_end().ends_with(" total") || rest.contains("assertions)"))
        {
            let of = |words| number(rest, words);
            report.count(of("passed"), of("failed"), 0, of("skipped") + of("todo"));
        } else if let Some(rest) = line.strip_prefix("Test Suites:") {
            if let Some(suites) = before(rest, "failed") {
                report.broken(&format!("{suites} test suite{} failed", plural(suites)));
            }
        } else if let Some(name) = line.strip_prefix("  ● ") {
            if name == "Test suite failed to run" {
                report.first(file.unwrap_or(name));
            } else if name.contains(" › ") || !name.starts_with("Console") {
                report.first(name);
            }
        } else if let Some(path) = line.strip_prefix("FAIL ") {
            file = Some(path);
        } else if line.starts_with("No tests found, exiting") {
            report.nothing = true;
        } else if line.starts_with("Jest: \"global\" coverage threshold") {
            report.broken(&line["Jest: ".len()..]);
        }
    }
    report.drop_stray_name();
}

/// ` Tests  1 failed | 2 passed | 1 skipped (4)`
pub(super) fn vitest(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        let trimmed = line.trim();
        if let Some(rest) = trimmed.strip_prefix("Tests  ").map(str::trim) {
            if rest == "no tests" {
                report.nothing = true;
            } else if rest.ends_with(')') && rest.starts_with(|c: char| c.is_ascii_digit()) {
                let of = |words| number(rest, words);
                report.count(of("passed"), of("failed"), 0, of("skipped") + of("todo"));
            }
        } else if let Some(rest) = trimmed.strip_prefix("Test Files  ") {
            if let Some(files) = before(rest, "failed") {
                report.broken(&format!("{files} test file{} failed", plural(files)));
            }
        } else if let Some(rest) = trimmed.strip_prefix("Errors  ") {
            if let Some(errors) = before(rest, "error errors") {
                report.broken(&format!("{errors} unhandled error{}", plural(errors)));
            }
        } else if let Some(name) = line.strip_prefix(" FAIL  ") {
            report.first(name);
        } else if trimmed.starts_with("No test files found") {
            report.nothing = true;
        }
    }
}

/// `  2 passing (8ms)`, `  1 failing`, and below it `  1) suite`, `       name:`.
pub(super) fn mocha(lines: &[&str], report: &mut RunReport) {
    let mut failing = false;
    let mut name: Option<String> = None;
    for line in lines {
        if let Some(passed) = is_count(line, "passing") {
            report.count(passed, 0, 0, 0);
        } else if let Some(failed) = is_count(line, "failing") {
            report.count(0, failed, 0, 0);
            failing = true;
        } else if let Some(skipped) = is_count(line, "pending") {
            report.count(0, 0, 0, skipped);
        } else if line.trim_start().starts_with("Exception during run: ") {
            report.broken(line.trim_start());
        } else if failing && report.first.is_none() {
            let trimmed = line.trim();
            if let Some(suite) = trimmed.strip_prefix("1) ") {
                name = Some(suite.to_owned());
            } else if let Some(name) = &mut name {
                name.push(' ');
                name.push_str(trimmed);
            }
            if let Some(name) = name.as_deref().and_then(|name| name.strip_suffix(':')) {
                report.first(name);
            }
        }
    }
}

/// `  2 passed (2.1s)`, `  1 failed`, `    [chromium] › a.spec.ts:3:5 › name`.
pub(super) fn playwright(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        if let Some(passed) = is_count(line, "passed") {
            report.count(passed, 0, 0, 0);
        } else if let Some(failed) = is_count(line, "failed") {
            report.count(0, failed, 0, 0);
        } else if let Some(skipped) = is_count(line, "skipped") {
            report.count(0, 0, 0, skipped);
        } else if let Some((_, name)) = line.trim_start().split_once("1) ") {
            report.first(name.trim_end_matches(['─', ' ']));
        } else if line.contains("No tests found") {
            report.nothing = true;
        }
    }
    report.drop_stray_name();
}

/// The Test Anything Protocol and what node's own runner sums up: `# pass 1`, `ℹ fail 2`.
pub(super) fn tap(lines: &[&str], report: &mut RunReport) {
    let (mut good, mut bad, mut skipped) = (0, 0, 0);
    let mut planned = false;
    let mut summed = false;
    for line in lines {
        if let Some((word, count)) = line
            .strip_prefix("# ")
            .or_else(|| line.strip_prefix("ℹ "))
            .and_then(|rest| rest.split_once(' '))
            .and_then(|(word, count)| Some((word, count.trim().parse::<u64>().ok()?)))
        {
            match word {
                "pass" => report.count(count, 0, 0, 0),
                "fail" | "cancelled" => report.count(0, count, 0, 0),
                "skipped" | "todo" => report.count(0, 0, 0, count),
                _ => {}
            }
            summed |= matches!(word, "pass" | "fail");
        } else if let Some(rest) = line.strip_prefix("1..") {
            planned |= rest.starts_with(|c: char| c.is_ascii_digit());
            report.nothing |= rest.trim() == "0";
        } else if let Some(name) = line.trim_start().strip_prefix("not ok ") {
            let todo = name.contains("# TODO") || name.contains("# SKIP");
            if !todo {
                report.first(name.split_once("- ").map_or(name, |(_, name)| name));
            }
            if line.starts_with('n') && !todo {
                bad += 1;
            }
        } else if let Some(name) = line.strip_prefix("ok ") {
            if name.contains("# SKIP") || name.contains("# skip") {
                skipped += 1;
            } else {
                good += 1;
            }
        } else if let Some(name) = line.trim_start().strip_prefix("✖ ")
            && name != "failing tests:"
        {
            report.first(name.rsplit_once(" (").map_or(name, |(name, _)| name));
        }
    }
    match (summed, planned) {
        (true, _) => {}
        (false, true) => report.count(good, bad, 0, skipped),
        (false, false) => *report = RunReport::default(),
    }
    report.drop_stray_name();
}

/// `FAILED | 1 passed | 1 failed (22ms)`
pub(super) fn deno(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        if line.starts_with("ok | ") || line.starts_with("FAILED | ") {
            let of = |words| number(line, words);
            report.count(of("passed"), of("failed"), 0, of("ignored"));
        } else if let Some((name, rest)) = line.split_once(" ... ") {
            if rest.starts_with("FAILED") {
                report.first(name);
            }
        } else if line.starts_with("error: Type checking failed") {
            report.broken("type checking failed");
        } else if line.starts_with("error: No test modules found") {
            report.nothing = true;
        }
    }
    if !report.is_informative() || (report.passed.is_none() && report.broken.is_none()) {
        report.first = None;
    }
}

/// ` 2 pass`, ` 1 fail`, `Ran 3 tests across 1 file.`
pub(super) fn bun(lines: &[&str], report: &mut RunReport) {
    if !lines.iter().any(|line| line.starts_with("Ran ") && line.contains(" across ")) {
        return;
    }
    for line in lines {
        if let Some(passed) = is_count(line, "pass") {
            report.count(passed, 0, 0, 0);
        } else if let Some(failed) = is_count(line, "fail") {
            report.count(0, failed, 0, 0);
        } else if let Some(skipped) = is_count(line, "skip").or_else(|| is_count(line, "todo")) {
            report.count(0, 0, 0, skipped);
        } else if let Some(errors) = is_count(line, "error").or_else(|| is_count(line, "errors")) {
            report.count(0, 0, errors, 0);
        } else if let Some(name) = line.strip_prefix("(fail) ").or_else(|| line.strip_prefix("✗ "))
        {
            report.first(name.rsplit_once(" [").map_or(name, |(name, _)| name));
        }
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}
