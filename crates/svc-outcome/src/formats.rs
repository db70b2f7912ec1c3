//! What the output of each runner looks like: patterns, and what a match of each says.
//!
//! Only lines that the runner itself prints count, as tested code may print anything. Where a
//! pattern has groups, they are the text of the match. The first name and the first reason in the
//! order of the rules are shown.

use Says::{
    Broken, Failed, Fine, First, Marks, Nothing, Passed, Problem, Problems, Skipped, Stopped, Tests,
};

/// What a match of a pattern says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// Numbers of tests: `3 failed, 42 passed`, `Tests run: 3, Failures: 1`.
    Tests,
    /// Marks of progress, one character for each test: `.F.Es`. They count if no line has numbers.
    Marks,
    /// One test that passed.
    Passed,
    Failed,
    Skipped,
    /// Numbers of errors and warnings of a build or a check; without errors it succeeded.
    Problems,
    /// One error of a build or a check.
    Problem,
    /// The name of the first failure.
    First,
    /// A failure without a number.
    Broken,
    /// A success without a number, unless a later rule says that nothing ran.
    Fine,
    /// There was nothing to run.
    Nothing,
    /// Somebody stopped it.
    Stopped,
}

/// The runners whose output may be that of any tool.
pub(super) const WRAPPERS: &str = "make|script|npm test|npm run|pnpm test|pnpm run|yarn test|\
    yarn run|bun run|tox";

/// The runners whose output is read only if they are named.
pub(super) const KNOWN_ONLY: &str = "playwright|cargo build|cargo check|cargo clippy|cargo fmt|go build|\
    go vet|dotnet build|make";

const CARGO: &str = "cargo build|cargo check|cargo clippy|cargo fmt";
/// Programs that run others.
const OTHERS: &str = "";
const RUST_ERROR: &str = r"^(error(?:\[E\d+\])?: .*)\n +-->";
const NOT_COMPILED: &str = r"^error: (could not compile .*?)(?: due to .*)?$";
const MSBUILD_ERROR: &str = r"^ *(\S.*\(\d+,\d+\): error [A-Z]+\d+: .*)$";
const GO_ERROR: &str = r"^\S+\.go:\d+(?::\d+)?: .*$";

/// The runners that print it, separated by `|`, what a match says, and the pattern. The rules of a
/// runner stand together.
pub(super) const RULES: [(&str, Says, &str); 115] = [
    // `== 2 failed, 1 passed, 1 error in 0.02s ==`; with `-q` without the marks
    (
        "pytest",
        Tests,
        r"^=* ?((?:\d+ (?:passed|failed|skipped|errors?|xfailed|xpassed|deselected|warnings?|reruns?|subtests passed)(?:, )?)+) in [\d.]+s\b",
    ),
    ("pytest", Nothing, r"^=* ?no tests ran in |^pytest: error: |^ERROR: usage: "),
    ("pytest", Stopped, r"^!!!.*KeyboardInterrupt"),
    ("pytest", First, r"^(?:FAILED|ERROR) (\S+(?:::|\.py\b).*)$"),
    ("pytest", First, r"^(\S+::\S+) (?:FAILED|ERROR)\b"),
    ("pytest", First, r"^____+ (.*?) _+$"),
    // `-qq` has no summary, only the marks, the lines of which all but the last are full.
    ("pytest", Marks, r"^(?:[.FEsxXR]+ +\[ *\d+%\]\n)*[.FEsxXR]+ +\[100%\]$"),
    ("pytest", Broken, r"^(FAILED|ERROR) \S+(?:::|\.py\b)"),
    ("pytest", Broken, r"^FAIL (Required test coverage.*)$"),
    ("pytest", Broken, r"^INTERNALERROR>"),
    ("unittest", Tests, r"^Ran \d+ tests? in .*\n+(?:OK|FAILED)\b.*$"),
    ("unittest", Nothing, r"^NO TESTS RAN"),
    ("unittest", First, r"^(?:FAIL|ERROR): (.*\(.*)$"),
    ("jest", Tests, r"^Tests: +.* total$"),
    ("jest", Nothing, r"^No tests found, exiting"),
    ("jest", First, r"^  ● (.* › .*)$"),
    ("jest", First, r"^FAIL (\S+)"),
    ("jest", Broken, r"^Test Suites: \d+ failed"),
    ("jest", Broken, r#"^Jest: ("global" coverage threshold.*)$"#),
    ("vitest", Tests, r"^ *Tests  \d.*\)$"),
    ("vitest", Nothing, r"^ *Tests  no tests|^No test files found"),
    ("vitest", First, r"^ FAIL  (.*)$"),
    ("vitest", Broken, r"^ *Test Files  \d+ failed"),
    ("vitest", Broken, r"^ *Errors  \d+ errors?"),
    ("mocha", Tests, r"^ +\d+ (?:passing|failing|pending)\b.*$"),
    // The name of the suite and that of the test, on two lines.
    ("mocha", First, r"failing\n+ +1\) ((?:.*\n)*?.*):$"),
    ("mocha", Broken, r"^ *(Exception during run: .*)$"),
    ("playwright", Tests, r"^ +\d+ (?:passed|failed|skipped)\b.*$"),
    ("playwright", Nothing, r"No tests found"),
    ("playwright", First, r"^ +1\) (.*?)[ ─]*$"),
    ("node --test", Tests, r"^[#ℹ] (?:pass|fail|cancelled|skipped|todo) \d+$"),
    ("node --test", First, r"^ *not ok \d+ - ([^#\n]+)$"),
    ("node --test", First, r"^ *✖ (.+?) \([\d.]+ms\)$"),
    (
        "bun test",
        Tests,
        r"(?:^ \d+ (?:pass|skip|todo|fail|errors?)\n)+(?:.*\n)?Ran \d+ tests? across",
    ),
    ("bun test", First, r"^(?:\(fail\)|✗) (.+?)(?: \[.*\])?$"),
    // Once for each target.
    ("cargo test", Tests, r"^test result: .*$"),
    ("cargo test", First, r"^test (.*) \.\.\. FAILED$"),
    ("cargo test", First, r"^---- (.*) stdout ----$"),
    ("cargo test", First, RUST_ERROR),
    ("cargo test", Broken, NOT_COMPILED),
    ("cargo test", Broken, r"^error: ((?:test|doctest) failed)"),
    ("nextest", Tests, r"^ *Summary \[.*$"),
    ("nextest", Nothing, r"^error: no tests to run"),
    ("nextest", First, r"^ *(?:FAIL|TIMEOUT|ABORT|SIG\w+) \[[^\]]*\] +(?:\([^)]*\) )?(.*)$"),
    ("nextest", First, RUST_ERROR),
    ("nextest", Broken, NOT_COMPILED),
    // Only `-v` names tests that pass.
    ("go test", Passed, r"^--- PASS: "),
    ("go test", Failed, r"^--- FAIL: "),
    ("go test", Skipped, r"^--- SKIP: "),
    ("go test", First, r"^--- FAIL: (\S+)"),
    ("go test", First, GO_ERROR),
    ("go test", Broken, r"^FAIL\t[^\t\n]+"),
    ("go test", Nothing, r"^ok  \t.*\[no tests to run\]$|^\?   \t.*\[no test files\]$"),
    ("go test", Fine, r"^ok  \t\S+\t[^\[\n]*$"),
    ("rspec", Tests, r"^\d+ examples?, \d+ failures?.*$"),
    ("rspec", First, r"^rspec (['.].*)$"),
    ("rspec", First, r"^An error occurred while loading .*$"),
    ("dotnet test", Tests, r"^(?:Failed|Passed)!  - .*$"),
    ("dotnet test", Tests, r"^Test summary: .*$"),
    ("dotnet test", Tests, r"^Total tests: \d+\n(?: +(?:Passed|Failed|Skipped): \d+\n?)+"),
    ("dotnet test", Nothing, r"^ *(?:No test is available in|No test matches)"),
    ("dotnet test", First, r"^  Failed (\S+)"),
    ("dotnet test", First, r"\): error TESTERROR: *\n +(\S+)"),
    ("dotnet test", First, MSBUILD_ERROR),
    ("dotnet test", Broken, r"\(\d+,\d+\): (error [A-Z]+\d+): "),
    ("dotnet test", Broken, r"^Build FAILED\."),
    // Once for each module; lines of classes have a time.
    ("mvn", Tests, r"^(?:\[\w+\] )?Tests run: \d+, Failures: \d+, Errors: \d+, Skipped: \d+$"),
    ("mvn", First, r"^\[ERROR\]   (\S.*)$"),
    ("mvn", First, r"^\[ERROR\] (.*:\[\d+,\d+\] .*)$"),
    ("mvn", Broken, r"COMPILATION ERROR"),
    ("mvn", Broken, r"BUILD FAILURE"),
    ("mvn", Fine, r"BUILD SUCCESS$"),
    ("mvn", Nothing, r"No tests to run"),
    ("gradle", Tests, r"^\d+ tests? completed, .*$"),
    ("gradle", First, r"^([^>\n].* > .*) FAILED$"),
    ("gradle", First, r"^(\S+:\d+: error: .*|e: file://.*)$"),
    ("gradle", Broken, r"^Execution failed for task '.*'"),
    ("gradle", Broken, r"^BUILD FAILED"),
    ("gradle", Fine, r"^BUILD SUCCESSFUL"),
    ("gradle", Nothing, r"^> Task .*est NO-SOURCE$"),
    ("phpunit", Tests, r"^OK \(\d+ tests?, .*$"),
    ("phpunit", Tests, r"^Tests: \d+, Assertions: .*$"),
    ("phpunit", Nothing, r"^No tests executed!"),
    ("phpunit", First, r"^1\) (.*::.*)$"),
    ("phpunit", Broken, r"^(?:FAILURES|ERRORS)!"),
    (CARGO, Problem, r"^(?<what>error(?:\[E\d+\])?: .*)\n +--> (?<at>.*)$"),
    (CARGO, Problem, r"^Diff in .*$"),
    (CARGO, Problems, r" generated (\d+ warnings?)"),
    (CARGO, Broken, NOT_COMPILED),
    (CARGO, Fine, r"^ *Finished `"),
    ("tsc", Problem, r"^.*\berror TS\d+: .*$"),
    ("eslint", Problems, r"^✖ \d+ problems? \((.*)\)$"),
    (
        "eslint",
        First,
        r"^(?<at>[/.].*|[A-Z]:\\.*)\n(?:  .*\n)*?  (?<line>\d+:\d+) +error +(?<what>.*)$",
    ),
    ("ruff", Problems, r"^Found (\d+ errors?)\.$"),
    ("ruff", Problems, r"^Found \d+ errors? \(\d+ fixed, (\d+ remaining)\)\.$"),
    ("ruff", Problems, r"^(\d+ files?) would be reformatted"),
    ("ruff", First, r"^(?<what>[A-Z]+\d+ .*)\n +--> (?<at>.*)$"),
    ("ruff", First, r"^Would reformat: (.*)$"),
    ("ruff", Fine, r"^All checks passed!| already formatted$"),
    ("mypy", Problems, r"^Found (\d+ errors?) in \d+ files?"),
    ("mypy", First, r"^\S+\.pyi?:\d+(?::\d+)?: error: .*$"),
    ("mypy", Fine, r"^Success: no issues found"),
    ("go build|go vet", Problem, GO_ERROR),
    ("dotnet build", Problems, r"^ *(\d+ Error)\(s\)$"),
    ("dotnet build", First, MSBUILD_ERROR),
    ("dotnet build", Broken, r"^ *Build (?:FAILED|failed with)"),
    ("dotnet build", Fine, r"^ *Build succeeded"),
    // Errors of compilers of C and the like, which `make` runs.
    ("make", Problem, r"^\S+:\d+(?::\d+)?: (?:fatal )?error: .*$"),
    // What programs that run others say of a failure.
    (OTHERS, Broken, r"^ *make(?:\[\d+\])?: \*\*\* \[.*$"),
    (OTHERS, Broken, r"^ *(?:npm ERR! Test failed|npm error Lifecycle script .* failed).*$"),
    (OTHERS, Broken, r"^ *(?:ELIFECYCLE|error Command failed with exit code).*$"),
    (OTHERS, Broken, r#"^ *error: script ".*" exited with code.*$"#),
    (OTHERS, Broken, r"^.*: FAIL code \d+ .*cmd\[.*$"),
    (OTHERS, Broken, r"^ *evaluation failed :\(.*$"),
    (OTHERS, Fine, r"^ *congratulations :\)"),
];
