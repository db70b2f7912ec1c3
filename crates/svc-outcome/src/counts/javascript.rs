//! Test runners of JavaScript.

use super::report::{RunReport, before, is_count, number};

/// `Tests: 1 failed, 1 skipped, 2 passed, 4 total`, also of Pest and Artisan (`… (3 assertions)`).
pub(super) fn jest(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
    let mut file = None;
    for line in lines {
        let line = line.trim_end();
        if let Some(rest) = line.trim_start().strip_prefix("Tests:")
            && (rest.trim_end().ends_with(" total") || rest.contains("assertions)"))
        {
            report.count(
                number(rest, "passed"),
                number(rest, "failed"),
                0,
                number(rest, "skipped") + number(rest, "todo"),
            );
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
    report.without_stray_name()
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
                    number(rest, "passed"),
                    number(rest, "failed"),
                    0,
                    number(rest, "skipped") + number(rest, "todo"),
                );
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
    report.without_stray_name()
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
    report.without_stray_name()
}

/// `FAILED | 1 passed | 1 failed (22ms)`
pub(super) fn deno(lines: &[&str]) -> RunReport {
    let mut report = RunReport::default();
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

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}
