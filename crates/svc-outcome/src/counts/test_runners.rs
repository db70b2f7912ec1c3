//! Tools that run tests.

use super::line::{after, before, has_extension, is_count, is_of_msbuild, is_problem};
use super::report::RunReport;

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
                before(counts, &["passed"]).unwrap_or(0),
                before(counts, &["failed"]).unwrap_or(0),
                before(counts, &["error", "errors"]).unwrap_or(0),
                before(counts, &["skipped"]).unwrap_or(0),
            );
        } else if let Some(name) = line.strip_prefix("FAILED ").filter(|name| is_of_pytest(name)) {
            failed += 1;
            report.first(name);
        } else if let Some(name) = line.strip_prefix("ERROR ").filter(|name| is_of_pytest(name)) {
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
        // `-qq` sums up nothing, but names those that failed.
        report.failed = Some(failed);
        report.errors = errors;
    }
    if report.first.is_none() {
        // `-v`, or the head over a traceback.
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

fn is_of_pytest(name: &str) -> bool {
    name.contains("::") || name.split(' ').next().is_some_and(|path| has_extension(path, "py"))
}

/// The counts of a line that sums up.
fn pytest_summary(line: &str) -> Option<&str> {
    const WORDS: &[&str] = &[
        "passed",
        "failed",
        "skipped",
        "error",
        "errors",
        "xfailed",
        "xpassed",
        "deselected",
        "warning",
        "warnings",
        "rerun",
        "reruns",
        "subtests",
    ];
    let inner = line.trim_matches('=').trim();
    let (counts, time) = inner.rsplit_once(" in ")?;
    let seconds = time.split_once('s')?.0;
    let is_time = !seconds.is_empty() && seconds.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let counted = counts == "no tests ran"
        || counts.split(", ").all(|count| {
            count.split_once(' ').is_some_and(|(number, what)| {
                number.parse::<u64>().is_ok()
                    && what.split(' ').next().is_some_and(|word| WORDS.contains(&word))
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
            && let Some(count) = before(rest, &["test", "tests"])
        {
            ran = Some(count);
        } else if let Some(count) = ran {
            if line.starts_with("NO TESTS RAN") {
                report.nothing = true;
                ran = None;
            } else if line.starts_with("OK") || line.starts_with("FAILED") {
                let of = |label| after(line, label).unwrap_or(0);
                let (failed, errors) = (
                    // "expected failures=1" is none.
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

/// `Tests:       1 failed, 1 skipped, 2 passed, 4 total`, also of Pest and Artisan (`… (3 assertions)`).
pub(super) fn jest(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut file = None;
    for line in lines {
        let line = line.trim_end();
        if let Some(rest) = line.trim_start().strip_prefix("Tests:")
            && (rest.trim_end().ends_with(" total") || rest.contains("assertions)"))
        {
            report.count(
                before(rest, &["passed"]).unwrap_or(0),
                before(rest, &["failed"]).unwrap_or(0),
                0,
                before(rest, &["skipped"]).unwrap_or(0) + before(rest, &["todo"]).unwrap_or(0),
            );
        } else if let Some(rest) = line.strip_prefix("Test Suites:") {
            if let Some(suites) = before(rest, &["failed"]) {
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
    if !report.shows_failure() {
        report.first = None;
    }
    report
}

/// ` Tests  1 failed | 2 passed | 1 skipped (4)`
pub(super) fn vitest(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    for line in lines {
        let trimmed = line.trim();
        if let Some(rest) = trimmed.strip_prefix("Tests  ").map(str::trim) {
            if rest == "no tests" {
                report.nothing = true;
            } else if rest.ends_with(')') && rest.starts_with(|c: char| c.is_ascii_digit()) {
                report.count(
                    before(rest, &["passed"]).unwrap_or(0),
                    before(rest, &["failed"]).unwrap_or(0),
                    0,
                    before(rest, &["skipped"]).unwrap_or(0) + before(rest, &["todo"]).unwrap_or(0),
                );
            }
        } else if let Some(rest) = trimmed.strip_prefix("Test Files  ") {
            if let Some(files) = before(rest, &["failed"]) {
                report.broken(&format!("{files} test file{} failed", plural(files)));
            }
        } else if let Some(rest) = trimmed.strip_prefix("Errors  ") {
            if let Some(errors) = before(rest, &["error", "errors"]) {
                report.broken(&format!("{errors} unhandled error{}", plural(errors)));
            }
        } else if let Some(name) = line.strip_prefix(" FAIL  ") {
            report.first(name);
        } else if trimmed.starts_with("No test files found") {
            report.nothing = true;
        }
    }
    report
}

/// `  2 passing (8ms)`, `  1 failing`, and below it `  1) suite`, `       name:`.
pub(super) fn mocha(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
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
    report
}

/// `  2 passed (2.1s)`, `  1 failed`, `    [chromium] › a.spec.ts:3:5 › name`.
pub(super) fn playwright(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
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
    if !report.shows_failure() {
        report.first = None;
    }
    report
}

/// The Test Anything Protocol and what node's own runner sums up: `# pass 1`, `ℹ fail 2`.
pub(super) fn tap(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
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
    if !summed {
        if !planned {
            return RunReport::default();
        }
        report.count(good, bad, 0, skipped);
    }
    if !report.shows_failure() {
        report.first = None;
    }
    report
}

/// `FAILED | 1 passed | 1 failed (22ms)`
pub(super) fn deno(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    for line in lines {
        if line.starts_with("ok | ") || line.starts_with("FAILED | ") {
            let of = |words: &[&str]| before(line, words).unwrap_or(0);
            report.count(of(&["passed"]), of(&["failed"]), 0, of(&["ignored"]));
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
    if !report.says_something() || (report.passed.is_none() && report.broken.is_none()) {
        report.first = None;
    }
    report
}

/// ` 2 pass`, ` 1 fail`, `Ran 3 tests across 1 file.`
pub(super) fn bun(lines: &[&str]) -> RunReport {
    if !lines.iter().any(|line| line.starts_with("Ran ") && line.contains(" across ")) {
        return RunReport::default();
    }
    let mut report = RunReport::default();
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
    report
}

/// `test result: FAILED. 1 passed; 1 failed; 1 ignored; …`, once for each target.
pub(super) fn cargo(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut first_error = None;
    for line in lines {
        if let Some(rest) = line.strip_prefix("test result: ") {
            let of = |words: &[&str]| before(rest, words).unwrap_or(0);
            report.count(of(&["passed"]), of(&["failed"]), 0, of(&["ignored"]));
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            report.first(name);
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            report.first(name);
        } else if let Some(rest) = line.strip_prefix("error: could not compile ") {
            report.broken(&format!(
                "could not compile {}",
                rest.split(" due to").next().unwrap_or(rest)
            ));
        } else if line.starts_with("error: test failed, to rerun")
            || line.starts_with("error: doctest failed")
        {
            report.broken("a target failed");
        } else if line.starts_with("error[E") || line.starts_with("error: ") {
            first_error.get_or_insert(*line);
        }
    }
    if report.broken.is_some()
        && let Some(error) = first_error
    {
        report.first(error);
    }
    report
}

/// `Summary [   0.177s] 4 tests run: 2 passed, 2 failed, 1 skipped`
pub(super) fn nextest(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut failing = None;
    for line in lines {
        let trimmed = line.trim_start();
        if trimmed.starts_with("Summary [")
            && let Some((_, counts)) = trimmed.split_once(" run: ")
        {
            let of = |words: &[&str]| before(counts, words).unwrap_or(0);
            let timed_out = counts.split(", ").filter(|count| count.ends_with(" timed out"));
            let timed_out: u64 =
                timed_out.filter_map(|count| count.split(' ').next()?.parse::<u64>().ok()).sum();
            let exec = counts.split(", ").filter(|count| count.ends_with(" exec failed"));
            let exec: u64 =
                exec.filter_map(|count| count.split(' ').next()?.parse::<u64>().ok()).sum();
            let failed = of(&["failed"]);
            report.count(of(&["passed"]), failed, timed_out + exec, of(&["skipped"]));
        } else if let Some((word, rest)) = trimmed.split_once(" [")
            && matches!(word, "FAIL" | "TIMEOUT" | "SIGSEGV" | "SIGABRT" | "ABORT" | "XFAIL")
        {
            let name = rest.split_once("] ").map_or(rest, |(_, name)| name).trim_start();
            let name = match name.strip_prefix('(').and_then(|name| name.split_once(") ")) {
                Some((_, name)) => name,
                None => name,
            };
            failing.get_or_insert(name);
        } else if line.starts_with("error: no tests to run") {
            report.nothing = true;
        }
    }
    if report.passed.is_none() {
        // It did not come to tests; what cargo says is why.
        let compiled = cargo(lines);
        return if compiled.broken.is_some() && compiled.passed.is_none() {
            compiled
        } else {
            report
        };
    }
    if report.shows_failure() {
        report.first(failing.unwrap_or_default());
    }
    report
}

/// `ok  pkg 0.1s`, `FAIL pkg [build failed]` with tabs, `--- FAIL: TestName (0.00s)`; tests that pass are named with `-v` only.
pub(super) fn go(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let (mut passed, mut failed, mut skipped) = (0_u64, 0_u64, 0_u64);
    let (mut good, mut bad) = (0_u64, 0_u64);
    let mut first_error = None;
    for line in lines {
        if line.starts_with("ok  \t") {
            if line.contains("[no tests to run]") {
                report.nothing = true;
            } else {
                good += 1;
            }
        } else if let Some(package) = line.strip_prefix("FAIL\t") {
            bad += 1;
            report.broken(&format!("FAIL {}", package.split('\t').next().unwrap_or(package)));
        } else if *line == "FAIL" {
            report.broken("FAIL");
        } else if let Some(name) = line.strip_prefix("--- FAIL: ") {
            failed += 1;
            report.first(name.split(" (").next().unwrap_or(name));
        } else if line.starts_with("--- PASS: ") {
            passed += 1;
        } else if line.starts_with("--- SKIP: ") {
            skipped += 1;
        } else if line.starts_with("?   \t") && line.ends_with("[no test files]") {
            report.nothing = true;
        } else if is_problem(line, ": ") && line.contains(".go:") && !line.starts_with(' ') {
            first_error.get_or_insert(*line);
        }
    }
    if good + bad + passed + failed == 0 && first_error.is_none() {
        return RunReport { nothing: report.nothing, ..RunReport::default() };
    }
    report.fine = good > 0 && bad + failed == 0;
    if passed + failed > 0 {
        report.count(passed, failed, 0, skipped);
        if passed == 0 {
            // Without `-v` nobody knows.
            report.passed = None;
        }
    }
    if bad > 0
        && let Some(error) = first_error
    {
        report.first(error);
    }
    report
}

/// `5 examples, 1 failure, 1 pending`, `rspec ./spec/cart_spec.rb:3 # Cart adds`
pub(super) fn rspec(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    for line in lines {
        if let (Some(examples), Some(failed)) =
            (before(line, &["example", "examples"]), before(line, &["failure", "failures"]))
            && line.starts_with(|c: char| c.is_ascii_digit())
        {
            let skipped = before(line, &["pending"]).unwrap_or(0);
            let errors = if line.contains("outside of examples") {
                before(line, &["error", "errors"]).unwrap_or(0)
            } else {
                0
            };
            report.count(examples.saturating_sub(failed + skipped), failed, errors, skipped);
        } else if let Some(name) =
            line.strip_prefix("rspec ").filter(|name| name.starts_with(['.', '\'']))
        {
            report.first(name);
        } else if line.starts_with("An error occurred while loading ") {
            report.first(line);
        }
    }
    if !report.shows_failure() {
        report.first = None;
    }
    report
}

/// `3 runs, 3 assertions, 1 failures, 0 errors, 0 skips`
pub(super) fn minitest(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut named = false;
    for line in lines {
        let trimmed = line.trim();
        if let (Some(runs), Some(_), Some(failed), Some(errors)) = (
            before(line, &["runs", "run", "tests", "test"]),
            before(line, &["assertions", "assertion"]),
            before(line, &["failures", "failure"]),
            before(line, &["errors", "error"]),
        ) && line.starts_with(|c: char| c.is_ascii_digit())
        {
            let skipped = before(line, &["skips", "skip"])
                .or_else(|| before(line, &["omissions"]))
                .unwrap_or(0);
            report.count(runs.saturating_sub(failed + errors + skipped), failed, errors, skipped);
        } else if named {
            report.first(trimmed.split(" [").next().unwrap_or(trimmed).trim_end_matches(':'));
            named = false;
        } else if let Some((number, what)) = trimmed.split_once(") ") {
            named =
                number.bytes().all(|b| b.is_ascii_digit()) && matches!(what, "Failure:" | "Error:");
        } else if trimmed == "Failure:" || trimmed == "Error:" {
            // As Rails prints them, while it goes.
            named = true;
        }
    }
    if !report.shows_failure() {
        report.first = None;
    }
    report
}

/// `Failed!  - Failed:     1, Passed:     2, Skipped:     0, Total: …` for each assembly, or
/// `Test summary: total: 3, failed: 1, succeeded: 2, skipped: 0, duration: 1.2s`.
pub(super) fn dotnet(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut vstest = RunReport::default();
    // The name stands in the line below the error.
    let mut named = false;
    for line in lines {
        let trimmed = line.trim();
        if let Some(rest) =
            trimmed.strip_prefix("Failed!  - ").or_else(|| trimmed.strip_prefix("Passed!  - "))
        {
            let of = |label| after(rest, label).unwrap_or(0);
            report.count(of("Passed:"), of("Failed:"), 0, of("Skipped:"));
        } else if let Some(rest) = trimmed.strip_prefix("Test summary: ") {
            let of = |label| after(rest, label).unwrap_or(0);
            report.count(of("succeeded:"), of("failed:"), 0, of("skipped:"));
        } else if trimmed.starts_with("Total tests:") {
            vstest.count(0, 0, 0, 0);
        } else if vstest.passed.is_some() && trimmed.starts_with("Passed:") {
            vstest.count(after(trimmed, "Passed:").unwrap_or(0), 0, 0, 0);
        } else if vstest.passed.is_some() && trimmed.starts_with("Failed:") {
            vstest.count(0, after(trimmed, "Failed:").unwrap_or(0), 0, 0);
        } else if vstest.passed.is_some() && trimmed.starts_with("Skipped:") {
            vstest.count(0, 0, 0, after(trimmed, "Skipped:").unwrap_or(0));
        } else if let Some(name) = line.strip_prefix("  Failed ") {
            report.first(name.split(" [").next().unwrap_or(name));
        } else if trimmed.contains("): error TESTERROR:") {
            named = true;
        } else if std::mem::take(&mut named) {
            report.first(trimmed.split(" (").next().unwrap_or(trimmed));
        } else if trimmed.starts_with("No test is available in")
            || trimmed.starts_with("No test matches")
        {
            report.nothing = true;
        } else if is_of_msbuild(trimmed) {
            report.first(trimmed);
            report.broken("build failed");
        } else if trimmed == "Build FAILED." {
            report.broken("build failed");
        }
    }
    if report.passed.is_none() && vstest.passed.is_some() {
        (report.passed, report.failed, report.skipped) =
            (vstest.passed, vstest.failed, vstest.skipped);
    }
    report
}

/// `[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 1` for each module, without the time that classes have.
pub(super) fn maven(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut classes = RunReport::default();
    let mut listed = false;
    for line in lines {
        let level =
            ["[INFO] ", "[ERROR] ", "[WARNING] "].iter().find_map(|level| line.strip_prefix(level));
        let text = level.unwrap_or(line).trim_end();
        if let Some(at) = text.find("Tests run:").filter(|&at| at < 40) {
            let text = &text[at..];
            let of = |label| after(text, label).unwrap_or(0);
            let (run, failed, errors, skipped) =
                (of("run:"), of("Failures:"), of("Errors:"), of("Skipped:"));
            let counts = if text.contains("Time elapsed") { &mut classes } else { &mut report };
            counts.count(run.saturating_sub(failed + errors + skipped), failed, errors, skipped);
            listed = false;
        } else if text.starts_with("Failures:") || text.starts_with("Errors:") {
            listed = level.is_some();
        } else if listed && text.starts_with("  ") {
            report.first(text);
        } else if text == "BUILD FAILURE" {
            report.broken("BUILD FAILURE");
        } else if text == "BUILD SUCCESS" {
            report.fine = true;
        } else if text.contains("COMPILATION ERROR") {
            report.broken("COMPILATION ERROR");
        } else if text.starts_with("No tests to run") || text.starts_with("Tests are skipped") {
            report.nothing = true;
        } else if level.is_some() && line.starts_with("[ERROR] /") && text.contains(".java:[") {
            report.first(text);
        }
    }
    if report.passed.is_none() {
        (report.passed, report.failed, report.skipped) =
            (classes.passed, classes.failed, classes.skipped);
        report.errors = classes.errors;
    }
    if report.nothing && report.passed.is_none() {
        report.fine = false;
    }
    report
}

/// `CartTest > total() FAILED`, `3 tests completed, 1 failed, 1 skipped`, `BUILD FAILED in 2s`
pub(super) fn gradle(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    for line in lines {
        if let Some(tests) = before(line, &["tests", "test"])
            && line.contains("completed, ")
            && line.starts_with(|c: char| c.is_ascii_digit())
        {
            let failed = before(line, &["failed"]).unwrap_or(0);
            let skipped = before(line, &["skipped"]).unwrap_or(0);
            report.count(tests.saturating_sub(failed + skipped), failed, 0, skipped);
        } else if let Some(name) = line.strip_suffix(" FAILED").filter(|name| name.contains(" > "))
        {
            // A task stands there as `> Task :test`.
            if !name.starts_with('>') {
                report.first(name);
            }
        } else if line.starts_with("BUILD FAILED") {
            report.broken("BUILD FAILED");
        } else if line.starts_with("BUILD SUCCESSFUL") {
            report.fine = true;
        } else if let Some(task) = line.strip_prefix("Execution failed for task ") {
            report.broken(&format!("task {} failed", task.trim_end_matches('.')));
        } else if line.starts_with("> Task ") && line.ends_with("est NO-SOURCE") {
            report.nothing = true;
        } else if is_problem(line, ": error: ") || line.starts_with("e: file://") {
            report.first(line);
        }
    }
    if report.nothing {
        report.fine = false;
    }
    report
}

/// `OK (3 tests, 3 assertions)`, `Tests: 3, Assertions: 3, Failures: 1.`
pub(super) fn phpunit(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    for line in lines {
        if line.starts_with("OK (")
            && let Some(tests) = before(line, &["test", "tests"])
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
    if !report.shows_failure() {
        report.first = None;
    }
    report
}

/// `50% tests passed, 1 tests failed out of 2`; the version 4 leaves out that none failed.
pub(super) fn ctest(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut listed = false;
    for line in lines {
        if let Some((_, rest)) = line.split_once("% tests passed") {
            let failed = before(rest, &["tests", "test"]).unwrap_or(0);
            let total = after(rest, "out of ").unwrap_or(0);
            report.count(total.saturating_sub(failed), failed, 0, 0);
        } else if line.starts_with("The following tests FAILED:") {
            listed = true;
        } else if listed {
            report.first(line.split_once("- ").map_or(*line, |(_, name)| name));
            listed = false;
        } else if line.starts_with("No tests were found!!!")
            || line.starts_with("No test configuration file found!")
        {
            report.nothing = true;
        } else if line.starts_with("Errors while running CTest") {
            report.broken("errors while running CTest");
        }
    }
    report
}

/// `Executed 3 tests, with 1 failure (0 unexpected) in 0.1 (0.1) seconds`, the last of which is of all, and
/// `Test run with 3 tests in 1 suite failed after 0.1 seconds with 1 issue.`
pub(super) fn swift(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut last = None;
    for line in lines {
        let trimmed = line.trim_start();
        if let Some(rest) = trimmed.strip_prefix("Executed ")
            && let (Some(tests), Some(failed)) =
                (before(rest, &["test", "tests"]), before(rest, &["failure", "failures"]))
        {
            last = Some((tests, failed, before(rest, &["skipped"]).unwrap_or(0)));
        } else if let Some((_, rest)) = trimmed.split_once("Test run with ")
            && let Some(tests) = before(rest, &["test", "tests"])
            && tests > 0
        {
            if rest.contains(" failed after ") {
                report
                    .broken(&format!("{} issues", before(rest, &["issue", "issues"]).unwrap_or(1)));
            } else {
                report.count(tests, 0, 0, 0);
            }
        } else if let Some((_, name)) = trimmed.split_once(": error: -[") {
            report.first(name.split(']').next().unwrap_or(name));
        } else if let Some((at, message)) = trimmed.split_once(": error: ")
            && at.contains(".swift:")
        {
            report.first(message);
        }
    }
    if let Some((tests, failed, skipped)) = last
        && (tests > 0 || report.passed.is_none())
    {
        report.count(tests.saturating_sub(failed + skipped), failed, 0, skipped);
    }
    if report.passed.is_none() && report.first.is_some() {
        report.broken("build failed");
    }
    report
}

/// `//shop:cart_test   PASSED in 0.3s`
pub(super) fn bazel(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    for line in lines {
        if line.starts_with("//") && line.contains(" PASSED in ") {
            report.count(1, 0, 0, 0);
        } else if line.starts_with("//")
            && [" FAILED in ", " TIMEOUT in ", " FAILED TO BUILD"]
                .iter()
                .any(|how| line.contains(how))
        {
            report.count(0, 1, 0, 0);
            report.first(line.split(' ').next().unwrap_or(line));
        } else if line.contains("Build did NOT complete successfully") {
            report.broken("build did not complete");
        } else if line.contains("Build completed successfully") {
            report.fine = true;
        } else if line.contains("No test targets were found") {
            report.nothing = true;
        }
    }
    report
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}
