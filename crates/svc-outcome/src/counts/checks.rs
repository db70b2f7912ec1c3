//! Compilers, linters and wrappers of other tools.

use super::report::{
    RunReport, after, before, did_not_start, is_msbuild_error, is_problem, number,
};

/// `error[E0308]: mismatched types`, then ` --> src/lib.rs:12:22`; `warning: … generated 2
/// warnings`.
pub(super) fn rustc(lines: &[&str], report: &mut RunReport) {
    let mut message = None;
    for line in lines {
        if let Some(rest) = line.strip_prefix("error: could not compile ") {
            report.broken_compilation(rest);
        } else if is_rustc_error(line) {
            report.problems += 1;
            message.get_or_insert(*line);
        } else if let Some(location) = line.trim_start().strip_prefix("--> ") {
            if let Some(message) = message {
                report.first(&format!("{location}: {message}"));
            }
        } else if let Some((_, count)) = line.split_once(" generated ") {
            report.warnings += number(count, "warning warnings");
        } else if line.starts_with("Diff in ") {
            // rustfmt
            report.problems += 1;
            report.first(line);
        } else if line.trim_start().starts_with("Finished `") {
            report.fine = true;
        }
    }
    if report.problems > 0 && lines.iter().any(|line| did_not_start(line)) {
        *report = RunReport { nothing: true, ..RunReport::default() };
        return;
    }
    report.first(message.unwrap_or_default());
}

/// Whether a line is an error of the compiler, and not of cargo about tests.
fn is_rustc_error(line: &str) -> bool {
    let from_cargo =
        ["aborting due", "test failed", "test run failed", "doctest failed", "command `"];
    line.starts_with("error[")
        || line.strip_prefix("error: ").is_some_and(|rest| {
            !from_cargo.iter().any(|text| rest.starts_with(text)) && !rest.contains(" failed:")
        })
}

/// `a.ts(1,7): error TS2322: …`, in colours `a.ts:1:7 - error TS2322: …`.
pub(super) fn tsc(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        if line.contains(" error TS")
            || line.starts_with("error TS")
            || (line.starts_with("TS") && line.contains(" [ERROR]: "))
        {
            report.problems += 1;
            report.first(line);
        }
    }
}

/// `✖ 2 problems (2 errors, 0 warnings)`
pub(super) fn eslint(lines: &[&str], report: &mut RunReport) {
    let mut file = "";
    for line in lines {
        if let Some(rest) = line.strip_prefix("✖ ")
            && line.contains(" problem")
            && let Some(errors) = before(rest, "error errors")
        {
            report.problems += errors;
            report.warnings += number(rest, "warning warnings");
            report.fine |= errors == 0;
        } else if line.starts_with(['/', '.']) || line.get(1..3) == Some(":\\") {
            file = line;
        } else if !file.is_empty()
            && let Some((location, message)) = line.trim_start().split_once(" error ")
        {
            report.first(&format!("{file}:{}: {}", location.trim(), message.trim()));
        }
    }
    if report.problems == 0 {
        report.first = None;
    }
}

/// `Found 2 errors.`, `All checks passed!`, `1 file would be reformatted`
pub(super) fn ruff(lines: &[&str], report: &mut RunReport) {
    let mut rule = None;
    for line in lines {
        if let Some(errors) =
            after(line, "Found ").filter(|_| line.starts_with("Found ") && line.contains(" error"))
        {
            if line.contains(" error.") || line.contains(" errors.") || line.contains(" fixed,") {
                report.problems += before(line, "remaining").unwrap_or(errors);
            }
        } else if line.starts_with("All checks passed!") || line.ends_with(" already formatted") {
            report.fine = true;
        } else if let Some(count) = line.strip_suffix(" would be reformatted") {
            report.problems += number(count, "file files");
        } else if let Some(path) = line.strip_prefix("Would reformat: ") {
            report.first(path);
        } else if let Some(location) = line.trim_start().strip_prefix("--> ") {
            if let Some(rule) = rule {
                report.first(&format!("{location}: {rule}"));
            }
        } else if line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            rule = Some(line);
        }
    }
    if report.problems > 0 {
        report.fine = false;
    } else {
        report.first = None;
    }
}

/// `Found 2 errors in 1 file (checked 1 source file)`, `Success: no issues found in 1 source file`
pub(super) fn mypy(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        if line.starts_with("Found ") && line.contains(" in ") && line.contains(" file") {
            report.problems += number(line, "error errors");
        } else if line.starts_with("Success: no issues found") {
            report.fine = true;
        } else if is_problem(line, ": error: ") && line.contains(".py") {
            report.first(line);
        }
    }
    if report.problems == 0 {
        report.first = None;
    }
}

/// `2 errors, 1 warning, 0 informations`
pub(super) fn pyright(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        if line.contains("error")
            && line.contains("warning")
            && line.starts_with(|c: char| c.is_ascii_digit())
        {
            let errors = number(line, "error errors");
            report.problems += errors;
            report.warnings += number(line, "warning warnings");
            report.fine |= errors == 0;
        } else if is_problem(line, " - error: ") {
            report.first(line.trim_start());
        }
    }
}

/// `./cart.go:3:2: undefined: x`
pub(super) fn go(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        if line.contains(".go:") && is_problem(line, ": ") && !line.starts_with(char::is_whitespace)
        {
            report.problems += 1;
            report.first(line);
        }
    }
}

/// `Build FAILED.`, `    2 Error(s)`
pub(super) fn dotnet(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        let trimmed = line.trim();
        if trimmed == "Build FAILED." || trimmed.starts_with("Build failed with ") {
            report.broken("build failed");
        } else if trimmed == "Build succeeded." || trimmed.starts_with("Build succeeded ") {
            report.fine = true;
        } else if let Some(errors) = trimmed.strip_suffix(" Error(s)") {
            report.problems += errors.parse::<u64>().unwrap_or(0);
        } else if is_msbuild_error(trimmed) {
            report.first(trimmed);
        }
    }
}

/// `cart.c:3:5: error: …`, of compilers of C and the like.
pub(super) fn cc(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        if is_problem(line, ": error: ") || is_problem(line, ": fatal error: ") {
            report.problems += 1;
            report.first(line);
        } else if line.starts_with("ninja: build stopped") {
            report.broken(line);
        }
    }
}

/// Failure of a tool as reported by make, just, npm and the like, tox, nox.
pub(super) fn wrapper(lines: &[&str], report: &mut RunReport) {
    for line in lines {
        let trimmed = line.trim();
        let failed = (trimmed.starts_with("make") && trimmed.contains("]: *** [")
            || trimmed.starts_with("make: *** ["))
            || (trimmed.starts_with("error: Recipe `") && trimmed.contains("` failed"))
            || trimmed.starts_with("npm ERR! Test failed")
            || (trimmed.starts_with("npm error Lifecycle script") && trimmed.contains("failed"))
            || trimmed.starts_with("ELIFECYCLE")
            || trimmed.starts_with("error Command failed with exit code")
            || (trimmed.starts_with("error: script \"") && trimmed.contains("exited with code"))
            || (trimmed.starts_with("nox > Session ") && trimmed.contains(" failed"))
            || trimmed.starts_with("evaluation failed :(")
            || trimmed.starts_with("ninja: build stopped")
            || trimmed.contains("FAIL code ") && trimmed.contains("cmd[");
        if failed && !trimmed.contains("No rule to make target") {
            report.broken(trimmed);
        }
        if trimmed.starts_with("congratulations :)") {
            report.fine = true;
        }
    }
}
