//! What the output of each runner looks like: patterns, and what a match of each says.
//!
//! Only lines that the runner itself prints count, as tested code may print anything. Where a
//! pattern has groups, they are the text of the match. The first name and the first reason in the
//! order of the rules are shown.

use super::counts::Says::{
    self, Broken, Failed, Fine, First, Nothing, Passed, Problem, Problems, Skipped, Stopped, Tests,
};

pub(super) struct Format {
    /// The runners that print this, separated by `|`.
    pub(super) runners: &'static str,
    /// Whether it is looked for in the output of an unknown tool (`npm test`, `make check`).
    pub(super) is_tried: bool,
    pub(super) rules: &'static [(Says, &'static str)],
}

/// The runners whose output may be that of any tool.
pub(super) const WRAPPERS: &str = "make|script|npm test|npm run|pnpm test|pnpm run|yarn test|\
    yarn run|bun run|tox";

const RUST_ERROR: &str = r"^(error(?:\[E\d+\])?: .*)\n +-->";
const NOT_COMPILED: &str = r"^error: (could not compile .*?)(?: due to .*)?$";
const MSBUILD_ERROR: &str = r"^ *(\S.*\(\d+,\d+\): error [A-Z]+\d+: .*)$";
const GO_ERROR: &str = r"^\S+\.go:\d+(?::\d+)?: .*$";

pub(super) const FORMATS: [Format; 25] = [
    Format {
        runners: "pytest",
        is_tried: true,
        rules: &[
            // `== 2 failed, 1 passed, 1 error in 0.02s ==`; with `-q` without the marks
            (
                Tests,
                r"^=* ?((?:\d+ (?:passed|failed|skipped|errors?|xfailed|xpassed|deselected|warnings?|reruns?|subtests passed)(?:, )?)+) in [\d.]+s\b",
            ),
            (Nothing, r"^=* ?no tests ran in |^pytest: error: |^ERROR: usage: "),
            (Stopped, r"^!!!.*KeyboardInterrupt"),
            (First, r"^(?:FAILED|ERROR) (\S+(?:::|\.py\b).*)$"),
            (First, r"^(\S+::\S+) (?:FAILED|ERROR)\b"),
            (First, r"^____+ (.*?) _+$"),
            // `-qq` has no summary, but names the failures.
            (Broken, r"^(FAILED|ERROR) \S+(?:::|\.py\b)"),
            (Broken, r"^FAIL (Required test coverage.*)$"),
            (Broken, r"^INTERNALERROR>"),
        ],
    },
    Format {
        runners: "unittest",
        is_tried: true,
        rules: &[
            (Tests, r"^Ran \d+ tests? in .*\n+(?:OK|FAILED)\b.*$"),
            (Nothing, r"^NO TESTS RAN"),
            (First, r"^(?:FAIL|ERROR): (.*\(.*)$"),
        ],
    },
    Format {
        runners: "jest",
        is_tried: true,
        rules: &[
            (Tests, r"^Tests: +.* total$"),
            (Nothing, r"^No tests found, exiting"),
            (First, r"^  ● (.* › .*)$"),
            (First, r"^FAIL (\S+)"),
            (Broken, r"^Test Suites: \d+ failed"),
            (Broken, r#"^Jest: ("global" coverage threshold.*)$"#),
        ],
    },
    Format {
        runners: "vitest",
        is_tried: true,
        rules: &[
            (Tests, r"^ *Tests  \d.*\)$"),
            (Nothing, r"^ *Tests  no tests|^No test files found"),
            (First, r"^ FAIL  (.*)$"),
            (Broken, r"^ *Test Files  \d+ failed"),
            (Broken, r"^ *Errors  \d+ errors?"),
        ],
    },
    Format {
        runners: "mocha",
        is_tried: true,
        rules: &[
            (Tests, r"^ +\d+ (?:passing|failing|pending)\b.*$"),
            // The name of the suite and that of the test, on two lines.
            (First, r"failing\n+ +1\) ((?:.*\n)*?.*):$"),
            (Broken, r"^ *(Exception during run: .*)$"),
        ],
    },
    Format {
        runners: "playwright",
        is_tried: false,
        rules: &[
            (Tests, r"^ +\d+ (?:passed|failed|skipped)\b.*$"),
            (Nothing, r"No tests found"),
            (First, r"^ +1\) (.*?)[ ─]*$"),
        ],
    },
    Format {
        runners: "node --test",
        is_tried: true,
        rules: &[
            (Tests, r"^[#ℹ] (?:pass|fail|cancelled|skipped|todo) \d+$"),
            (First, r"^ *not ok \d+ - ([^#\n]+)$"),
            (First, r"^ *✖ (.+?) \([\d.]+ms\)$"),
        ],
    },
    Format {
        runners: "bun test",
        is_tried: true,
        rules: &[
            (Tests, r"(?:^ \d+ (?:pass|skip|todo|fail|errors?)\n)+(?:.*\n)?Ran \d+ tests? across"),
            (First, r"^(?:\(fail\)|✗) (.+?)(?: \[.*\])?$"),
        ],
    },
    Format {
        runners: "cargo test",
        is_tried: true,
        rules: &[
            // Once for each target.
            (Tests, r"^test result: .*$"),
            (First, r"^test (.*) \.\.\. FAILED$"),
            (First, r"^---- (.*) stdout ----$"),
            (First, RUST_ERROR),
            (Broken, NOT_COMPILED),
            (Broken, r"^error: ((?:test|doctest) failed)"),
        ],
    },
    Format {
        runners: "nextest",
        is_tried: true,
        rules: &[
            (Tests, r"^ *Summary \[.*$"),
            (Nothing, r"^error: no tests to run"),
            (First, r"^ *(?:FAIL|TIMEOUT|ABORT|SIG\w+) \[[^\]]*\] +(?:\([^)]*\) )?(.*)$"),
            (First, RUST_ERROR),
            (Broken, NOT_COMPILED),
        ],
    },
    Format {
        runners: "go test",
        is_tried: true,
        rules: &[
            // Only `-v` names tests that pass.
            (Passed, r"^--- PASS: "),
            (Failed, r"^--- FAIL: "),
            (Skipped, r"^--- SKIP: "),
            (First, r"^--- FAIL: (\S+)"),
            (First, GO_ERROR),
            (Broken, r"^FAIL\t[^\t\n]+"),
            (Nothing, r"^ok  \t.*\[no tests to run\]$|^\?   \t.*\[no test files\]$"),
            (Fine, r"^ok  \t\S+\t[^\[\n]*$"),
        ],
    },
    Format {
        runners: "rspec",
        is_tried: true,
        rules: &[
            (Tests, r"^\d+ examples?, \d+ failures?.*$"),
            (First, r"^rspec (['.].*)$"),
            (First, r"^An error occurred while loading .*$"),
        ],
    },
    Format {
        runners: "dotnet test",
        is_tried: true,
        rules: &[
            (Tests, r"^(?:Failed|Passed)!  - .*$"),
            (Tests, r"^Test summary: .*$"),
            (Tests, r"^Total tests: \d+\n(?: +(?:Passed|Failed|Skipped): \d+\n?)+"),
            (Nothing, r"^ *(?:No test is available in|No test matches)"),
            (First, r"^  Failed (\S+)"),
            (First, r"\): error TESTERROR: *\n +(\S+)"),
            (First, MSBUILD_ERROR),
            (Broken, r"\(\d+,\d+\): (error [A-Z]+\d+): "),
            (Broken, r"^Build FAILED\."),
        ],
    },
    Format {
        runners: "mvn",
        is_tried: true,
        rules: &[
            // Once for each module; lines of classes have a time.
            (Tests, r"^(?:\[\w+\] )?Tests run: \d+, Failures: \d+, Errors: \d+, Skipped: \d+$"),
            (First, r"^\[ERROR\]   (\S.*)$"),
            (First, r"^\[ERROR\] (.*:\[\d+,\d+\] .*)$"),
            (Broken, r"COMPILATION ERROR"),
            (Broken, r"BUILD FAILURE"),
            (Fine, r"BUILD SUCCESS$"),
            (Nothing, r"No tests to run"),
        ],
    },
    Format {
        runners: "gradle",
        is_tried: true,
        rules: &[
            (Tests, r"^\d+ tests? completed, .*$"),
            (First, r"^([^>\n].* > .*) FAILED$"),
            (First, r"^(\S+:\d+: error: .*|e: file://.*)$"),
            (Broken, r"^Execution failed for task '.*'"),
            (Broken, r"^BUILD FAILED"),
            (Fine, r"^BUILD SUCCESSFUL"),
            (Nothing, r"^> Task .*est NO-SOURCE$"),
        ],
    },
    Format {
        runners: "phpunit",
        is_tried: true,
        rules: &[
            (Tests, r"^OK \(\d+ tests?, .*$"),
            (Tests, r"^Tests: \d+, Assertions: .*$"),
            (Nothing, r"^No tests executed!"),
            (First, r"^1\) (.*::.*)$"),
            (Broken, r"^(?:FAILURES|ERRORS)!"),
        ],
    },
    Format {
        runners: "cargo build|cargo check|cargo clippy|cargo fmt",
        is_tried: false,
        rules: &[
            (Problem, r"^(?<what>error(?:\[E\d+\])?: .*)\n +--> (?<at>.*)$"),
            (Problem, r"^Diff in .*$"),
            (Problems, r" generated (\d+ warnings?)"),
            (Broken, NOT_COMPILED),
            (Fine, r"^ *Finished `"),
        ],
    },
    Format { runners: "tsc", is_tried: true, rules: &[(Problem, r"^.*\berror TS\d+: .*$")] },
    Format {
        runners: "eslint",
        is_tried: true,
        rules: &[
            (Problems, r"^✖ \d+ problems? \((.*)\)$"),
            (
                First,
                r"^(?<at>[/.].*|[A-Z]:\\.*)\n(?:  .*\n)*?  (?<line>\d+:\d+) +error +(?<what>.*)$",
            ),
        ],
    },
    Format {
        runners: "ruff",
        is_tried: true,
        rules: &[
            (Problems, r"^Found (\d+ errors?)\.$"),
            (Problems, r"^Found \d+ errors? \(\d+ fixed, (\d+ remaining)\)\.$"),
            (Problems, r"^(\d+ files?) would be reformatted"),
            (First, r"^(?<what>[A-Z]+\d+ .*)\n +--> (?<at>.*)$"),
            (First, r"^Would reformat: (.*)$"),
            (Fine, r"^All checks passed!| already formatted$"),
        ],
    },
    Format {
        runners: "mypy",
        is_tried: true,
        rules: &[
            (Problems, r"^Found (\d+ errors?) in \d+ files?"),
            (First, r"^\S+\.pyi?:\d+(?::\d+)?: error: .*$"),
            (Fine, r"^Success: no issues found"),
        ],
    },
    Format { runners: "go build|go vet", is_tried: false, rules: &[(Problem, GO_ERROR)] },
    Format {
        runners: "dotnet build",
        is_tried: false,
        rules: &[
            (Problems, r"^ *(\d+ Error)\(s\)$"),
            (First, MSBUILD_ERROR),
            (Broken, r"^ *Build (?:FAILED|failed with)"),
            (Fine, r"^ *Build succeeded"),
        ],
    },
    // Errors of compilers of C and the like, which `make` runs.
    Format {
        runners: "make",
        is_tried: false,
        rules: &[(Problem, r"^\S+:\d+(?::\d+)?: (?:fatal )?error: .*$")],
    },
    // What programs that run others say of a failure.
    Format {
        runners: "",
        is_tried: true,
        rules: &[
            (Broken, r"^ *make(?:\[\d+\])?: \*\*\* \[.*$"),
            (Broken, r"^ *(?:npm ERR! Test failed|npm error Lifecycle script .* failed).*$"),
            (Broken, r"^ *(?:ELIFECYCLE|error Command failed with exit code).*$"),
            (Broken, r#"^ *error: script ".*" exited with code.*$"#),
            (Broken, r"^.*: FAIL code \d+ .*cmd\[.*$"),
            (Broken, r"^ *evaluation failed :\(.*$"),
            (Fine, r"^ *congratulations :\)"),
        ],
    },
];
