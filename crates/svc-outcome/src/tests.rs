use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::RunResult::{self, Fail, Pass, Unknown};
use super::{MAX_SUMMARY_BYTES, RunKind, RunVerdict, ToolRun, judge, runner_of};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn output_of(case: &str) -> String {
    let path = fixtures().join("outcomes").join(format!("{case}.txt"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn runner_is_found_inside_its_wrappers() {
    use RunKind::{Build, Check, Test};
    for (command, name, kind) in [
        ("pytest", "pytest", Test),
        ("cd app && pytest -q tests/test_cart.py::test_total", "pytest", Test),
        ("CI=1 PYTHONPATH=. pytest", "pytest", Test),
        ("env -u HOME CI=1 pytest", "pytest", Test),
        ("timeout 60 pytest", "pytest", Test),
        ("timeout -k 5 60s pytest -x", "pytest", Test),
        ("time pytest", "pytest", Test),
        ("time -p nice -n 10 pytest", "pytest", Test),
        ("python -m pytest", "pytest", Test),
        ("python3.11 -X dev -m pytest tests/", "pytest", Test),
        (".venv/bin/python -m pytest", "pytest", Test),
        ("/home/user/.venv/bin/pytest", "pytest", Test),
        ("uv run pytest", "pytest", Test),
        ("uv run --with pytest-xdist -m pytest -n 4", "pytest", Test),
        ("uv run --frozen python -m pytest", "pytest", Test),
        ("poetry run pytest", "pytest", Test),
        ("pipenv run pytest", "pytest", Test),
        ("coverage run -m pytest && coverage report", "pytest", Test),
        ("conda run -n web pytest", "pytest", Test),
        ("python -m unittest discover -s tests", "unittest", Test),
        ("python manage.py test cart", "unittest", Test),
        ("tox -e py311", "tox", Test),
        ("nox -s tests", "nox", Test),
        ("npm test", "npm test", Test),
        ("npm t -- --coverage", "npm test", Test),
        ("npm run test:unit", "npm test", Test),
        ("npm --prefix web run test -- --run", "npm test", Test),
        ("npm run build", "npm run", Build),
        ("npm run type-check", "npm run", Check),
        ("pnpm test", "pnpm test", Test),
        ("pnpm --filter shop run test", "pnpm test", Test),
        ("pnpm -r test", "pnpm test", Test),
        ("pnpm exec vitest run", "vitest", Test),
        ("yarn test", "yarn test", Test),
        ("yarn workspace shop test", "yarn test", Test),
        ("yarn jest cart", "jest", Test),
        ("bun test", "bun test", Test),
        ("bun run test", "bun run", Test),
        ("npx jest", "jest", Test),
        ("npx --yes vitest run", "vitest", Test),
        ("node_modules/.bin/mocha", "mocha", Test),
        ("node --experimental-vm-modules node_modules/jest/bin/jest.js", "jest", Test),
        ("vitest", "vitest", Test),
        ("mocha --recursive", "mocha", Test),
        ("node --test", "node --test", Test),
        ("node --import tsx --test test/*.ts", "node --test", Test),
        ("deno test -A", "deno test", Test),
        ("go test ./...", "go test", Test),
        ("go vet ./... && go test -race ./...", "go test", Test),
        ("cargo test", "cargo test", Test),
        ("cargo +nightly test --workspace -- --nocapture", "cargo test", Test),
        ("RUST_BACKTRACE=1 cargo t -p shop cart::", "cargo test", Test),
        ("cargo nextest run --no-fail-fast", "nextest", Test),
        ("cargo test --no-run", "cargo build", Build),
        ("cargo check --all-targets", "cargo check", Check),
        ("cargo clippy -- -D warnings", "cargo clippy", Check),
        ("cargo build --release", "cargo build", Build),
        ("cargo fmt --all -- --check", "cargo fmt", Check),
        ("dotnet test", "dotnet test", Test),
        ("dotnet build -c Release", "dotnet build", Build),
        ("mvn -q test", "mvn", Test),
        ("./mvnw verify", "mvn", Test),
        ("mvn package -DskipTests", "mvn", Build),
        ("./gradlew test", "gradle", Test),
        ("./gradlew :app:testDebugUnitTest --tests CartTest", "gradle", Test),
        ("gradle build", "gradle", Build),
        ("gradle build -x test", "gradle", Build),
        ("rspec", "rspec", Test),
        ("bundle exec rspec spec/cart_spec.rb:3", "rspec", Test),
        ("bin/rails test", "rake test", Test),
        ("rake test", "rake test", Test),
        ("ruby -Itest test/cart_test.rb", "minitest", Test),
        ("./vendor/bin/phpunit --filter Cart", "phpunit", Test),
        ("ctest --test-dir build -V", "ctest", Test),
        ("cmake --build build", "cmake", Build),
        ("make test", "make", Test),
        ("make -C lib -j 4 check", "make", Test),
        ("make -j8", "make", Build),
        ("make build", "make", Build),
        ("just test", "just", Test),
        ("tsc --noEmit", "tsc", Check),
        ("npx tsc -p .", "tsc", Check),
        ("npx eslint src", "eslint", Check),
        ("ruff check .", "ruff", Check),
        ("mypy src", "mypy", Check),
        ("swift test", "swift test", Test),
        ("bazel test //...", "bazel test", Test),
        ("bash -c 'cd app && npm test'", "npm test", Test),
        ("bash -lc \"timeout 60 cargo test\"", "cargo test", Test),
        ("eval 'pytest -q'", "pytest", Test),
        ("docker compose exec -T app pytest -q", "pytest", Test),
        ("docker run --rm -v $PWD:/w -w /w python:3 python -m pytest", "pytest", Test),
        ("kubectl exec pod-1 -- pytest", "pytest", Test),
        ("pytest 2>&1 | tee log", "pytest", Test),
        ("cargo test 2>&1 | tail -20", "cargo test", Test),
        ("cargo test || true", "cargo test", Test),
        ("pytest; echo done", "pytest", Test),
        ("(cd app && go test ./...)", "go test", Test),
        ("{ npm test; } > log", "npm test", Test),
        ("if pytest; then echo good; fi", "pytest", Test),
        ("for i in 1 2 3; do cargo test || break; done", "cargo test", Test),
        ("out=$(pytest 2>&1); echo \"$out\"", "pytest", Test),
        ("set -euo pipefail\ncd app\npytest -q", "pytest", Test),
        ("cat > t.py <<'END'\ndef test_x(): pass\nEND\npytest t.py", "pytest", Test),
        ("cargo clippy && cargo build && cargo test", "cargo test", Test),
        ("find . -name '*_test.py' | xargs pytest", "pytest", Test),
        ("cd app &&\n  pytest \\\n  -q", "pytest", Test),
    ] {
        let runner = runner_of(command).unwrap_or_else(|| panic!("nothing seen in {command}"));
        assert_eq!((runner.name, runner.kind), (name, kind), "{command}");
    }
}

#[test]
fn mention_of_a_runner_is_not_a_run() {
    for command in [
        "",
        "   ",
        "echo \"cargo test\"",
        "echo 'run pytest' && ls",
        "grep -rn \"npm test\" .",
        "rg 'cargo test' docs | head",
        "git commit -m \"fix cargo test\"",
        "git commit -m \"$(cat <<'END'\nMake it so\n\npytest didn't run; npm test (and\ncargo test) do\nEND\n)\"",
        "cat test.log",
        "tail -f pytest.log",
        "pip install pytest",
        "uv add --dev pytest",
        "npm install jest",
        "npm ci",
        "npx create-react-app test",
        "cargo add nextest",
        "cargo install cargo-nextest",
        "pytest --collect-only",
        "pytest --co -q",
        "pytest --version",
        "pytest --help",
        "python -m pytest --version",
        "cargo test --help",
        "cargo test -- --list",
        "cargo nextest list",
        "go test -list .",
        "npx jest --listTests",
        "ctest -N",
        "make -n test",
        "make clean",
        "cat <<END > run.sh\ncargo test\npytest\nEND",
        "cat > Makefile <<-'END'\n\ttest:\n\t\tpytest\n\tEND\nls",
        "# pytest",
        "ls # && pytest",
        "test -f pytest && cat pytest",
        "which pytest",
        "command -v cargo",
        "vim tests/test_cart.py",
        "python -c 'import pytest'",
        "python test_cart.py",
        "npm run dev",
        "npm run test:watch",
        "docker compose up -d",
        "dotnet --version",
        "ruff format .",
        "kill $(pgrep pytest)",
        "alias t='cargo test'",
        "tests=(pytest tests)",
    ] {
        assert_eq!(runner_of(command), None, "{command}");
    }
}

#[test]
fn failure_in_the_output_wins_over_the_status() {
    for (command, output, verdict) in [
        ("pytest || true", "pytest/fail", Fail),
        ("pytest 2>&1 | tee log", "pytest/fail", Fail),
        ("cargo test --no-fail-fast | tail -40; echo done", "cargo-test/fail-no-fail-fast", Fail),
        ("go test ./... || true", "go-test/mixed", Fail),
        ("npm test || true", "jest/fail", Fail),
        ("make test || true", "make/test-fail", Fail),
        ("tsc --noEmit | cat", "tsc/fail", Fail),
        ("pytest | tee log", "pytest/pass", Pass),
    ] {
        let (command, output) = (command.to_owned(), output_of(output));
        let run = ToolRun { command, output, failed: Some(false), ..ToolRun::default() };
        assert_eq!(judge(&run).expect("a run").verdict, verdict, "{}", run.command);
    }
}

/// A verdict and its summary, for a command that ended with a status and this output.
fn verdict_of(command: &str, output: &str, exit_code: Option<i32>) -> (RunResult, String) {
    let (command, output) = (command.to_owned(), output.to_owned());
    let run = ToolRun { command, output, exit_code, ..ToolRun::default() };
    let RunVerdict { verdict, summary, .. } = judge(&run).expect("a run");
    (verdict, summary)
}

#[test]
fn status_counts_where_it_is_the_runners_own() {
    let passed = "42 passed in 1.20s";
    for (command, output, exit_code, verdict, summary) in [
        ("pytest", passed, Some(0), Pass, "pytest: 42 passed"),
        ("pytest", passed, None, Pass, "pytest: 42 passed"),
        // Such as a threshold for coverage.
        ("pytest", passed, Some(1), Fail, "pytest: 42 passed, exit status 1"),
        ("cd app && pytest", passed, Some(1), Fail, "pytest: 42 passed, exit status 1"),
        ("pytest && ./deploy", passed, Some(1), Unknown, "pytest: 42 passed, the command failed"),
        ("pytest; ./deploy", passed, Some(1), Unknown, "pytest: 42 passed, the command failed"),
        ("./prepare && pytest", "no disk", Some(1), Unknown, "pytest: the command failed"),
        ("pytest && echo done", passed, Some(1), Fail, "pytest: 42 passed, exit status 1"),
        ("pytest > log", "", Some(0), Pass, "pytest: exit status 0"),
        ("pytest > log", "", Some(1), Fail, "pytest: exit status 1"),
        ("pytest > log || true", "", Some(0), Unknown, "pytest: no result in the output"),
        ("pytest > log; ls", "log", Some(0), Unknown, "pytest: no result in the output"),
        ("pytest | tail -1", "", Some(0), Unknown, "pytest: no result in the output"),
        (
            "set -o pipefail; pytest | tee log > /dev/null",
            "",
            Some(1),
            Fail,
            "pytest: exit status 1",
        ),
        ("set -e\npytest > log\nls", "log", Some(0), Pass, "pytest: exit status 0"),
        ("pytest > log || exit 1", "", Some(0), Pass, "pytest: exit status 0"),
        ("if pytest > log; then ls; fi", "", Some(0), Unknown, "pytest: no result in the output"),
        ("! pytest > log", "", Some(0), Unknown, "pytest: no result in the output"),
        (
            "which jest || npm test",
            "/usr/bin/jest",
            Some(0),
            Unknown,
            "npm test: no result in the output",
        ),
        ("bash -c 'pytest > log'", "", Some(1), Fail, "pytest: exit status 1"),
        ("bash -c 'pytest > log' || true", "", Some(0), Unknown, "pytest: no result in the output"),
        ("(pytest > log) | cat", "", Some(0), Unknown, "pytest: no result in the output"),
        ("pytest > log && git log | head", "", Some(0), Pass, "pytest: exit status 0"),
        ("make test > log; echo \"exit: $?\"", "exit: 2\n", Some(0), Fail, "make: exit status 2"),
        ("make test > log; echo \"exit: $?\"", "exit: 0\n", Some(0), Pass, "make: exit status 0"),
        ("make test | tail -1; echo $?", "0\n", Some(0), Unknown, "make: no result in the output"),
        ("make test | tail -1; echo ${PIPESTATUS[0]}", "2\n", Some(0), Fail, "make: exit status 2"),
        ("timeout 5 pytest", "", Some(124), Unknown, "pytest: timed out"),
        ("pytest", "pytest: command not found", Some(127), Unknown, "pytest: 0 tests"),
        ("pytest", "", Some(137), Unknown, "pytest: exit status 137"),
        ("npm test", "npm error Missing script: \"test\"", Some(1), Unknown, "npm test: 0 tests"),
        (
            "make test",
            "make: *** No rule to make target 'test'.  Stop.",
            Some(2),
            Unknown,
            "make: 0 tests",
        ),
        (
            "cargo test",
            "error: could not find `Cargo.toml` in `/home/user`",
            Some(101),
            Unknown,
            "cargo test: 0 tests",
        ),
        ("eslint .", "", Some(0), Pass, "eslint: exit status 0"),
        ("pytest", "3 failed, 42 passed in 2.00s", Some(1), Fail, "pytest: 3 failed, 42 passed"),
        (
            "pytest",
            "== 3 failed, 42 passed in 61.02s (0:01:01) ==",
            None,
            Fail,
            "pytest: 3 failed, 42 passed",
        ),
        ("pytest", "2 failed in 0.10s", None, Fail, "pytest: 2 failed"),
        (
            "make",
            "cc -c cart.c\ncart.c:3:5: error: unknown type\nmake: *** [Makefile:2: cart.o] Error 1",
            Some(2),
            Fail,
            "make: 1 error; first: cart.c:3:5: error: unknown type",
        ),
        // Output of tests is not their summary.
        (
            "npm test",
            "server.js:12: error connecting\n[ERROR]: x\n 2 passing (3ms)".trim_start(),
            Some(0),
            Pass,
            "npm test: 2 passed",
        ),
        ("npm test", "api.js:12: error: refused", Some(0), Pass, "npm test: exit status 0"),
        (
            "pytest",
            "server: 3 failed, 2 passed\n1 passed in 0.10s",
            Some(0),
            Pass,
            "pytest: 1 passed",
        ),
    ] {
        assert_eq!(
            verdict_of(command, output, exit_code),
            (verdict, summary.to_owned()),
            "{command} {exit_code:?}"
        );
    }
}

#[test]
fn success_of_a_cut_output_is_unknown() {
    let target = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
    let cut = format!("{target}... [5000 characters truncated] ...\n{target}");
    let missing = "cargo test: 6 passed, some of the output is missing";
    assert_eq!(verdict_of("cargo test", &cut, None), (Unknown, missing.to_owned()));
    assert_eq!(verdict_of("cargo test", &cut, Some(0)), (Pass, "cargo test: 6 passed".to_owned()));
    let two = target.repeat(2);
    let picked = "cargo test | grep 'test result: ok'";
    assert_eq!(verdict_of(picked, &two, Some(0)), (Unknown, missing.to_owned()));
    let cut = "... [5000 characters truncated] ...\n42 passed in 1.20s";
    assert_eq!(verdict_of("pytest", cut, None), (Pass, "pytest: 42 passed".to_owned()));
}

#[test]
fn stopped_run_has_no_verdict() {
    let run = ToolRun {
        command: "pytest".to_owned(),
        output: "3 failed, 42 passed in 2.00s".to_owned(),
        interrupted: true,
        ..ToolRun::default()
    };
    let verdict = judge(&run).expect("a run");
    assert_eq!(verdict.verdict, Unknown);
    assert_eq!(verdict.summary, "pytest: 3 failed, 42 passed, interrupted");
    let run = ToolRun { interrupted: false, timed_out: true, ..run };
    assert_eq!(judge(&run).expect("a run").verdict, Unknown);
    let run = ToolRun { command: "ls".to_owned(), ..run };
    assert_eq!(judge(&run), None);
}

#[test]
fn first_failing_tool_of_a_chain_is_judged() {
    let chain = "cargo clippy -- -D warnings && cargo test";
    let run = |output: String| {
        let (command, exit_code) = (chain.to_owned(), Some(101));
        let run = ToolRun { command, output, exit_code, ..ToolRun::default() };
        judge(&run).expect("a run")
    };
    let linted = run(output_of("cargo-clippy/fail"));
    assert_eq!((linted.verdict, linted.runner, linted.failed), (Fail, "cargo clippy", Some(2)));
    let tested = run(output_of("cargo-clippy/pass") + &output_of("cargo-test/fail"));
    assert_eq!((tested.verdict, tested.runner, tested.kind), (Fail, "cargo test", RunKind::Test));
    assert_eq!((tested.passed, tested.failed, tested.skipped), (Some(1), Some(1), Some(1)));
}

struct Recorded {
    case: &'static str,
    command: &'static str,
    status: i32,
    verdict: RunResult,
    summary: &'static str,
}

fn recorded() -> impl Iterator<Item = Recorded> {
    let table = include_str!("../../../fixtures/outcomes/verdicts.tsv");
    table.lines().skip(1).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [case, command, status, verdict, summary] = fields[..] else { panic!("{line}") };
        let verdict = match verdict {
            "Pass" => Pass,
            "Fail" => Fail,
            _ => Unknown,
        };
        let status = status.parse().expect("a status");
        Recorded { case, command, status, verdict, summary }
    })
}

#[test]
fn recorded_outputs_are_judged() {
    for Recorded { case, command, status, verdict, summary } in recorded() {
        let output = output_of(case);
        let judged = verdict_of(command, &output, Some(status));
        assert_eq!(judged, (verdict, summary.to_owned()), "{case}");

        // Without the status, which some clients do not report, or with another one's, nothing is
        // misread.
        let untold = verdict_of(command, &output, None).0;
        assert!(untold == verdict || untold == Unknown, "{case}: {untold:?} without a status");
        let masked = verdict_of(&format!("{command} || true"), &output, Some(0)).0;
        assert_eq!(masked, untold, "{case}: masked");

        // Nor if the tool is unknown.
        let wrapped = verdict_of("npm test", &output, None).0;
        assert!(wrapped == verdict || wrapped == Unknown, "{case}: {wrapped:?} from npm test");
    }
}

#[test]
fn every_recorded_output_is_in_the_table() {
    let mut found = Vec::new();
    for folder in fs::read_dir(fixtures().join("outcomes")).expect("a folder") {
        let folder = folder.expect("an entry").path();
        for file in fs::read_dir(&folder).into_iter().flatten() {
            let file = file.expect("an entry").path();
            let name = folder.file_name().expect("a name").to_string_lossy();
            found.push(format!("{name}/{}", file.file_stem().expect("a name").to_string_lossy()));
        }
    }
    found.sort();
    let mut listed: Vec<_> = recorded().map(|it| it.case.to_owned()).collect();
    listed.sort();
    assert_eq!(found, listed);
}

#[test]
fn large_inputs_take_linear_time() {
    const SIZE: usize = 4 * 1024 * 1024;
    let lines = "test result: ok. 1 passed; 0 failed; 0 ignored\n".repeat(SIZE / 47);
    let line = "3 failed, ".repeat(SIZE / 10);
    let escapes = "\u{1b}[31m\u{1b}]0;title".repeat(SIZE / 14);
    let began = Instant::now();
    for output in [&lines, &line, &escapes] {
        for command in ["cargo test", "npm test", "cargo clippy && cargo test && pytest"] {
            let (_, summary) = verdict_of(command, output, None);
            assert!(summary.len() <= MAX_SUMMARY_BYTES);
        }
    }
    for part in
        ["$(", "`", "{ ", "(", "<<E\n", "a && ", "pytest; ", "if ", "'", "\"$(", "bash -c '"]
    {
        let command = part.repeat(SIZE / part.len());
        let run = ToolRun { command, ..ToolRun::default() };
        assert!(judge(&run).is_none_or(|verdict| verdict.verdict == Unknown), "{part}");
    }
    // Quadratic time would take hours.
    assert!(began.elapsed() < Duration::from_mins(2), "{:?}", began.elapsed());
}

fn words() -> impl Strategy<Value = String> {
    const PLAIN: &str = "pytest cargo test npm run bash -c -m python env timeout 60 A=1 docker exec uv && || | ; \
        & ( ) { } $( ` ' <<E 2>&1 if then fi ! # -- - set -e echo $? é 1..2 passed failed 3 in \
        0.1s Ran tests m Tests: total ✖ %";
    const OTHER: [&str; 12] = [
        "\"",
        "\nE\n",
        "\n",
        " ",
        "\\",
        "test result:",
        "\u{1b}[",
        "FAIL\t",
        "ok  \t",
        " tests passed",
        "Exit Code: ",
        "Output: ",
    ];
    let parts: Vec<&str> = PLAIN.split(' ').chain(OTHER).collect();
    let parts = prop::sample::select(parts);
    prop::collection::vec(parts, 0..60).prop_map(|parts| parts.join(" "))
}

proptest! {
    #[test]
    fn no_input_makes_judge_panic(
        command in prop_oneof![any::<String>(), words()],
        output in prop_oneof![any::<String>(), words(), prop::collection::vec(any::<u8>(), 0..400)
            .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())],
        exit_code in any::<Option<i32>>(),
        failed in any::<Option<bool>>(),
    ) {
        for command in [command.as_str(), "npm test", "cargo test", "pytest; echo $?", "tsc"] {
            let (command, output) = (command.to_owned(), output.clone());
            let run = ToolRun { command, output, exit_code, failed, ..ToolRun::default() };
            prop_assert_eq!(judge(&run).is_some(), runner_of(&run.command).is_some());
            if let Some(verdict) = judge(&run) {
                prop_assert!(verdict.summary.len() <= MAX_SUMMARY_BYTES);
                prop_assert!(!verdict.summary.contains(char::is_control));
                prop_assert!(verdict.summary.starts_with(verdict.runner));
            }
        }
    }
}
