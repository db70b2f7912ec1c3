//! Test runners of compiled languages and of build systems.

use super::report::{RunReport, after, before, is_msbuild_error, is_problem, number};

/// `test result: FAILED. 1 passed; 1 failed; 1 ignored; …`, once for each target.
pub(super) fn cargo(lines: &[&str], report: &mut RunReport) {
    let mut first_error = None;
    for line in lines {
        if let Some(rest) = line.strip_prefix("test result: ") {
            let of = |words| number(rest, words);
            report.count(of("passed"), of("failed"), 0, of("ignored"));
        } else if let Some(name) =
            line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            report.first(name);
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            report.first(name);
        } else if let Some(rest) = line.strip_prefix("error: could not compile ") {
            report.broken_compilation(rest);
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
}

/// `Summary [   0.177s] 4 tests run: 2 passed, 2 failed, 1 skipped`
pub(super) fn nextest(lines: &[&str], report: &mut RunReport) {
    let mut failing = None;
    for line in lines {
        let trimmed = line.trim_start();
        if trimmed.starts_with("Summary [")
            && let Some((_, counts)) = trimmed.split_once(" run: ")
        {
            let of = |words| number(counts, words);
            let without_result = counts
                .split(", ")
                .filter(|count| count.ends_with(" timed out") || count.ends_with(" exec failed"));
            let errors =
                without_result.filter_map(|count| count.split(' ').next()?.parse::<u64>().ok());
            report.count(of("passed"), of("failed"), errors.sum(), of("skipped"));
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
        // No tests ran; cargo reports why.
        let mut compiled = RunReport::default();
        cargo(lines, &mut compiled);
        if compiled.broken.is_some() && compiled.passed.is_none() {
            *report = compiled;
        }
    } else if report.shows_failure() {
        report.first(failing.unwrap_or_default());
    }
}

/// `ok pkg 0.1s`, `FAIL pkg [build failed]` with tabs, `--- FAIL: TestName (0.00s)`; only `-v`
/// names tests that pass.
pub(super) fn go(lines: &[&str], report: &mut RunReport) {
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
        *report = RunReport { nothing: report.nothing, ..RunReport::default() };
        return;
    }
    report.fine = good > 0 && bad + failed == 0;
    if passed + failed > 0 {
        report.count(passed, failed, 0, skipped);
        if passed == 0 {
            // Only `-v` shows how many tests passed.
            report.passed = None;
        }
    }
    if bad > 0
        && let Some(error) = first_error
    {
        report.first(error);
    }
}

/// `Failed!  - Failed:     1, Passed:     2, Skipped:     0, Total: …` for each assembly, or
/// `Test summary: total: 3, failed: 1, succeeded: 2, skipped: 0, duration: 1.2s`.
pub(super) fn dotnet(lines: &[&str], report: &mut RunReport) {
    let mut vstest = RunReport::default();
    // The name is in the line below the error.
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
        } else if is_msbuild_error(trimmed) {
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
}

/// `[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 1` for each module; lines of classes
/// have a time.
pub(super) fn maven(lines: &[&str], report: &mut RunReport) {
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
            let counts = if text.contains("Time elapsed") { &mut classes } else { &mut *report };
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
}

/// `CartTest > total() FAILED`, `3 tests completed, 1 failed, 1 skipped`, `BUILD FAILED in 2s`
pub(super) fn gradle(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        if let Some(tests) = before(line, "tests test")
            && line.contains("completed, ")
            && line.starts_with(|c: char| c.is_ascii_digit())
        {
            let failed = number(line, "failed");
            let skipped = number(line, "skipped");
            report.count(tests.saturating_sub(failed + skipped), failed, 0, skipped);
        } else if let Some(name) = line.strip_suffix(" FAILED").filter(|name| name.contains(" > "))
        {
            // A line such as `> Task :test FAILED` names a task, not a test.
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
}

/// `50% tests passed, 1 tests failed out of 2`; version 4 omits a count of 0.
pub(super) fn ctest(lines: &[&str], report: &mut RunReport) {
    let mut listed = false;
    for line in lines {
        if let Some((_, rest)) = line.split_once("% tests passed") {
            let failed = number(rest, "tests test");
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
}

/// `Executed 3 tests, with 1 failure (0 unexpected) in 0.1 (0.1) seconds`, the last one of all, and
/// `Test run with 3 tests in 1 suite failed after 0.1 seconds with 1 issue.`
pub(super) fn swift(lines: &[&str], report: &mut RunReport) {
    let mut last = None;
    for line in lines {
        let trimmed = line.trim_start();
        if let Some(rest) = trimmed.strip_prefix("Executed ")
            && let (Some(tests), Some(failed)) =
                (before(rest, "test tests"), before(rest, "failure failures"))
        {
            last = Some((tests, failed, number(rest, "skipped")));
        } else if let Some((_, rest)) = trimmed.split_once("Test run with ")
            && let Some(tests) = before(rest, "test tests")
            && tests > 0
        {
            if rest.contains(" failed after ") {
                report.broken(&format!("{} issues", before(rest, "issue issues").unwrap_or(1)));
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
}

/// `//shop:cart_test   PASSED in 0.3s`
pub(super) fn bazel(lines: &[&str], report: &mut RunReport) {
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
}
