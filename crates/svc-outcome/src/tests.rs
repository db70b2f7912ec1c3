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
fn a_runner_is_seen_through_what_it_is_wrapped_in() {
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
fn what_only_mentions_a_runner_is_none() {
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
fn a_failure_in_the_output_wins_over_the_status() {
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
        let output = output_of(output);
        let run = ToolRun {
            command: command.to_owned(),
            output,
            failed: Some(false),
            ..ToolRun::default()
        };
        assert_eq!(judge(&run).expect("a run").verdict, verdict, "{command}");
    }
}

/// A verdict and its summary, for a command that ended with a status and this output.
fn verdict_of(command: &str, output: &str, exit_code: Option<i32>) -> (RunResult, String) {
    let run = ToolRun {
        command: command.to_owned(),
        output: output.to_owned(),
        exit_code,
        ..ToolRun::default()
    };
    let RunVerdict { verdict, summary, .. } = judge(&run).expect("a run");
    (verdict, summary)
}

#[test]
fn the_status_counts_where_it_is_the_runners_own() {
    let passed = "42 passed in 1.20s";
    for (command, output, exit_code, verdict, summary) in [
        ("pytest", passed, Some(0), Pass, "pytest: 42 passed"),
        ("pytest", passed, None, Pass, "pytest: 42 passed"),
        // As with a threshold for coverage.
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
        // What tests print is not what sums them up.
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
fn what_is_cut_out_may_hide_a_failure() {
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
fn a_run_that_was_stopped_has_no_verdict() {
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
fn the_first_tool_of_a_chain_that_failed_is_judged() {
    let chain = "cargo clippy -- -D warnings && cargo test";
    let run = |output: String| {
        let run = ToolRun {
            command: chain.to_owned(),
            output,
            exit_code: Some(101),
            ..ToolRun::default()
        };
        judge(&run).expect("a run")
    };
    let linted = run(output_of("cargo-clippy/fail"));
    assert_eq!((linted.verdict, linted.runner, linted.failed), (Fail, "cargo clippy", Some(2)));
    let tested = run(output_of("cargo-clippy/pass") + &output_of("cargo-test/fail"));
    assert_eq!((tested.verdict, tested.runner, tested.kind), (Fail, "cargo test", RunKind::Test));
    assert_eq!((tested.passed, tested.failed, tested.skipped), (Some(1), Some(1), Some(1)));
}

/// What was recorded: the output, the command, its status, the verdict and the summary.
const RECORDED: &[(&str, &str, i32, RunResult, &str)] = &[
    (
        "bazel-test/fail",
        "bazel test //...",
        3,
        Fail,
        "bazel test: 1 failed, 1 passed; first: //shop:total_test",
    ),
    (
        "bun-test/fail",
        "bun test",
        1,
        Fail,
        "bun test: 1 failed, 1 passed, 1 skipped; first: cart > total of items",
    ),
    (
        "cargo-build/fail",
        "cargo build",
        101,
        Fail,
        "cargo build: 1 error; first: src/lib.rs:12:22: error[E0308]: mismatched types",
    ),
    ("cargo-build/pass", "cargo build", 0, Pass, "cargo build: no errors"),
    (
        "cargo-clippy/fail",
        "cargo clippy",
        101,
        Fail,
        "cargo clippy: 2 errors; first: src/lib.rs:13:5: error: unreachable expression",
    ),
    ("cargo-clippy/pass", "cargo clippy", 0, Pass, "cargo clippy: no errors"),
    ("cargo-clippy/warnings", "cargo clippy", 0, Pass, "cargo clippy: 2 warnings"),
    (
        "cargo-test/compile-error",
        "cargo test",
        101,
        Fail,
        "cargo test: could not compile `shop` (lib); first: error[E0308]: mismatched types",
    ),
    (
        "cargo-test/fail-no-fail-fast",
        "cargo test",
        101,
        Fail,
        "cargo test: 2 failed, 3 passed, 1 skipped; first: tests::total_of_cart",
    ),
    (
        "cargo-test/fail",
        "cargo test",
        101,
        Fail,
        "cargo test: 1 failed, 1 passed, 1 skipped; first: tests::total_of_cart",
    ),
    ("cargo-test/none", "cargo test", 0, Unknown, "cargo test: 0 tests"),
    ("cargo-test/pass", "cargo test", 0, Pass, "cargo test: 3 passed, 1 skipped"),
    (
        "cargo-test/quiet-fail",
        "cargo test",
        101,
        Fail,
        "cargo test: 1 failed, 1 passed, 1 skipped; first: tests::total_of_cart",
    ),
    ("ctest/fail", "ctest", 8, Fail, "ctest: 1 failed, 1 passed; first: total (Failed)"),
    ("ctest/none", "ctest", 1, Unknown, "ctest: 0 tests"),
    ("ctest/pass", "ctest", 0, Pass, "ctest: 2 passed"),
    ("deno/fail", "deno test", 1, Fail, "deno test: 1 failed, 1 passed; first: total of items"),
    ("deno/pass", "deno test", 0, Pass, "deno test: 1 passed, 1 skipped"),
    (
        "dotnet-build/fail",
        "dotnet build",
        1,
        Fail,
        "dotnet build: 1 error; first: /home/user/work/Shop/Cart.cs(5,20): error CS1002: ; expected [/home/user/work/Shop/Shop.csproj]",
    ),
    (
        "dotnet-test/build-error",
        "dotnet test",
        1,
        Fail,
        "dotnet test: build failed; first: /home/user/work/Shop/Cart.cs(5,20): error CS1002: ; expected [/home/user/work/Shop/Shop.csproj]",
    ),
    (
        "dotnet-test/fail",
        "dotnet test",
        1,
        Fail,
        "dotnet test: 1 failed, 6 passed; first: Shop.Tests.CartTests.Total",
    ),
    ("dotnet-test/pass", "dotnet test", 0, Pass, "dotnet test: 2 passed, 1 skipped"),
    (
        "dotnet-test/terminal-logger",
        "dotnet test",
        1,
        Fail,
        "dotnet test: 1 failed, 2 passed; first: Shop.Tests.CartTests.Total",
    ),
    (
        "eslint/fail",
        "eslint",
        1,
        Fail,
        "eslint: 2 errors; first: /home/user/work/es_fail/a.js:1:7: 'a' is assigned a value but never used no-unused-vars",
    ),
    ("eslint/pass", "eslint", 0, Pass, "eslint: exit status 0"),
    ("eslint/warn", "eslint", 0, Pass, "eslint: 2 warnings"),
    (
        "go-build/fail",
        "go build ./...",
        1,
        Fail,
        "go build: 2 errors; first: total/total.go:3:9: undefined: sum",
    ),
    (
        "go-test/build-failed",
        "go test ./...",
        1,
        Fail,
        "go test: FAIL shop/total [build failed]; first: total/total_test.go:9:5: undefined: Total",
    ),
    ("go-test/mixed", "go test ./...", 1, Fail, "go test: 1 failed; first: TestTotal"),
    ("go-test/none", "go test ./...", 0, Unknown, "go test: 0 tests"),
    ("go-test/panic", "go test ./...", 1, Fail, "go test: FAIL shop/total"),
    ("go-test/pass", "go test ./...", 0, Pass, "go test: passed"),
    (
        "go-test/verbose-fail",
        "go test ./...",
        1,
        Fail,
        "go test: 1 failed, 1 passed, 1 skipped; first: TestTotal",
    ),
    (
        "gradle/compile-error",
        "./gradlew test",
        1,
        Fail,
        "gradle: task ':compileJava' failed; first: /home/user/work/src/main/java/shop/Cart.java:3: error: ';' expected",
    ),
    (
        "gradle/fail",
        "./gradlew test",
        1,
        Fail,
        "gradle: 1 failed, 1 passed, 1 skipped; first: CartTest > total()",
    ),
    ("gradle/none", "./gradlew test", 0, Unknown, "gradle: 0 tests"),
    ("gradle/pass", "./gradlew test", 0, Pass, "gradle: passed"),
    (
        "jest/fail",
        "jest",
        1,
        Fail,
        "jest: 1 failed, 2 passed, 2 skipped; first: cart › total of items",
    ),
    ("jest/none", "jest", 1, Unknown, "jest: 0 tests"),
    (
        "jest/npm-fail",
        "npm test",
        1,
        Fail,
        "npm test: 1 failed, 2 passed, 2 skipped; first: cart › total of items",
    ),
    ("jest/pass", "jest", 0, Pass, "jest: 1 passed, 2 skipped"),
    ("jest/suite-error", "jest", 1, Fail, "jest: 1 test suite failed; first: ./cart.test.js"),
    ("make/build-fail", "make build", 2, Fail, "make: *** [Makefile:4: build] Error 1"),
    (
        "make/test-fail",
        "make test",
        2,
        Fail,
        "make: 2 failed, 1 error, 1 passed; first: test_cart.py::test_total - assert (1 + 2) == 4",
    ),
    (
        "minitest/fail",
        "ruby -Itest test/cart_test.rb",
        1,
        Fail,
        "minitest: 1 failed, 1 error, 2 passed; first: CartTest#test_total",
    ),
    ("minitest/pass", "ruby -Itest test/cart_test.rb", 0, Pass, "minitest: 2 passed, 1 skipped"),
    (
        "mocha/error",
        "mocha",
        1,
        Fail,
        "mocha: Exception during run: Error: Cannot find module './nothing'",
    ),
    ("mocha/fail", "mocha", 1, Fail, "mocha: 1 failed, 1 passed; first: cart total of items"),
    ("mocha/none", "mocha", 0, Unknown, "mocha: 0 tests"),
    ("mocha/pass", "mocha", 0, Pass, "mocha: 1 passed, 2 skipped"),
    (
        "mvn/compile-error",
        "mvn test",
        1,
        Fail,
        "mvn: COMPILATION ERROR; first: /home/user/work/src/main/java/shop/Cart.java:[3,40] ';' expected",
    ),
    (
        "mvn/fail",
        "mvn test",
        1,
        Fail,
        "mvn: 1 failed, 1 error, 1 passed; first: CartTest.total:9 expected: <4> but was: <3>",
    ),
    ("mvn/pass", "mvn test", 0, Pass, "mvn: 2 passed, 1 skipped"),
    (
        "mypy/fail",
        "mypy",
        1,
        Fail,
        "mypy: 2 errors; first: a.py:2: error: Incompatible types in assignment (expression has type \"str\", variable has type \"int\") [assignment]",
    ),
    ("mypy/pass", "mypy", 0, Pass, "mypy: no errors"),
    (
        "nextest/compile-error",
        "cargo nextest run",
        101,
        Fail,
        "nextest: could not compile `shop` (lib); first: error[E0308]: mismatched types",
    ),
    (
        "nextest/fail",
        "cargo nextest run",
        100,
        Fail,
        "nextest: 2 failed, 2 passed, 1 skipped; first: shop::cart loses_items",
    ),
    ("nextest/none", "cargo nextest run", 4, Unknown, "nextest: 3 skipped, 0 tests"),
    ("nextest/pass", "cargo nextest run", 0, Pass, "nextest: 2 passed, 1 skipped"),
    (
        "node-test/fail-spec",
        "node --test",
        1,
        Fail,
        "node --test: 2 failed, 1 passed; first: total of items",
    ),
    (
        "node-test/fail-tap",
        "node --test",
        1,
        Fail,
        "node --test: 2 failed, 1 passed; first: total of items",
    ),
    ("node-test/none", "node --test", 0, Unknown, "node --test: 0 tests"),
    ("node-test/pass-spec", "node --test", 0, Pass, "node --test: 1 passed, 2 skipped"),
    ("node-test/pass-tap", "node --test", 0, Pass, "node --test: 1 passed, 2 skipped"),
    (
        "nox/fail",
        "nox",
        1,
        Fail,
        "nox: 1 failed, 1 error, 1 passed; first: test_empty (test_cart.Cart.test_empty)",
    ),
    ("nox/pass", "nox", 0, Pass, "nox: 1 passed, 1 skipped"),
    (
        "phpunit/fail",
        "phpunit",
        2,
        Fail,
        "phpunit: 1 failed, 1 error, 1 passed, 1 skipped; first: CartTest::testEmpty",
    ),
    ("phpunit/none", "phpunit", 1, Unknown, "phpunit: 0 tests"),
    ("phpunit/pass", "phpunit", 0, Pass, "phpunit: 3 passed"),
    ("phpunit/skipped", "phpunit", 0, Pass, "phpunit: 1 passed, 1 skipped"),
    (
        "playwright/fail",
        "npx playwright test",
        1,
        Fail,
        "playwright: 1 failed, 1 passed, 1 skipped; first: [chromium] › cart.spec.ts:7:5 › total of items",
    ),
    (
        "pyright/fail",
        "pyright",
        1,
        Fail,
        "pyright: 1 error; first: /home/user/work/a.py:2:10 - error: Type \"str\" is not assignable to declared type \"int\"",
    ),
    ("pytest/deselected", "pytest", 5, Unknown, "pytest: 0 tests"),
    ("pytest/err", "pytest", 2, Fail, "pytest: 1 error; first: test_cart.py"),
    (
        "pytest/fail-colour",
        "pytest",
        1,
        Fail,
        "pytest: 2 failed, 1 error, 1 passed; first: test_cart.py::test_total - assert (1 + 2) == 4",
    ),
    (
        "pytest/fail-quiet",
        "pytest",
        1,
        Fail,
        "pytest: 2 failed, 1 error, 1 passed; first: test_cart.py::test_total - assert (1 + 2) == 4",
    ),
    (
        "pytest/fail-terse",
        "pytest",
        1,
        Fail,
        "pytest: 2 failed, 1 error; first: test_cart.py::test_total - assert (1 + 2) == 4",
    ),
    (
        "pytest/fail-verbose",
        "pytest",
        1,
        Fail,
        "pytest: 2 failed, 1 error, 1 passed; first: test_cart.py::test_total - assert (1 + 2) == 4",
    ),
    (
        "pytest/fail",
        "pytest",
        1,
        Fail,
        "pytest: 2 failed, 1 error, 1 passed; first: test_cart.py::test_total - assert (1 + 2) == 4",
    ),
    ("pytest/no-file", "pytest", 4, Unknown, "pytest: 0 tests"),
    ("pytest/no-summary", "pytest", 1, Fail, "pytest: 2 failed, 1 error, 1 passed"),
    ("pytest/none", "pytest", 5, Unknown, "pytest: 0 tests"),
    ("pytest/pass-quiet", "pytest", 0, Pass, "pytest: 2 passed, 1 skipped"),
    ("pytest/pass", "pytest", 0, Pass, "pytest: 2 passed, 1 skipped"),
    (
        "pytest/stop-first",
        "pytest",
        1,
        Fail,
        "pytest: 1 failed, 1 passed; first: test_cart.py::test_total - assert (1 + 2) == 4",
    ),
    ("pytest/usage-error", "pytest", 4, Unknown, "pytest: 0 tests"),
    (
        "pytest/xdist",
        "pytest",
        1,
        Fail,
        "pytest: 2 failed, 1 error, 1 passed; first: test_cart.py::test_total - assert (1 + 2) == 4",
    ),
    (
        "rspec/error",
        "rspec",
        1,
        Fail,
        "rspec: 1 error; first: An error occurred while loading ./spec/cart_spec.rb.",
    ),
    (
        "rspec/fail",
        "rspec",
        1,
        Fail,
        "rspec: 1 failed, 1 passed; first: ./spec/cart_spec.rb:7 # Cart totals its items",
    ),
    ("rspec/pass", "rspec", 0, Pass, "rspec: 2 passed, 1 skipped"),
    (
        "ruff/fail",
        "ruff check",
        1,
        Fail,
        "ruff: 2 errors; first: a.py:1:1: I001 [*] Import block is un-sorted or un-formatted",
    ),
    ("ruff/format-fail", "ruff format --check", 1, Fail, "ruff: 1 error"),
    ("ruff/format-pass", "ruff format --check", 0, Pass, "ruff: no errors"),
    ("ruff/pass", "ruff check", 0, Pass, "ruff: no errors"),
    (
        "swift-test/fail",
        "swift test",
        1,
        Fail,
        "swift test: 1 failed, 1 passed; first: CartTests.testTotal : XCTAssertEqual failed: (\"3\") is not equal to (\"4\") -",
    ),
    ("swift-test/pass", "swift test", 0, Pass, "swift test: 2 passed"),
    (
        "tox/fail",
        "tox",
        1,
        Fail,
        "tox: 1 failed, 1 error, 1 passed; first: test_empty (test_cart.Cart.test_empty)",
    ),
    ("tox/pass", "tox", 0, Pass, "tox: 1 passed, 1 skipped"),
    (
        "tsc/fail-pretty",
        "tsc",
        1,
        Fail,
        "tsc: 2 errors; first: a.ts:1:7 - error TS2322: Type 'string' is not assignable to type 'number'.",
    ),
    (
        "tsc/fail",
        "tsc",
        1,
        Fail,
        "tsc: 2 errors; first: a.ts(1,7): error TS2322: Type 'string' is not assignable to type 'number'.",
    ),
    ("tsc/pass-pretty", "tsc", 0, Pass, "tsc: exit status 0"),
    ("tsc/pass", "tsc", 0, Pass, "tsc: exit status 0"),
    (
        "unittest/error",
        "python -m unittest",
        1,
        Fail,
        "unittest: 1 error; first: test_cart (unittest.loader._FailedTest.test_cart)",
    ),
    (
        "unittest/fail-verbose",
        "python -m unittest",
        1,
        Fail,
        "unittest: 1 failed, 1 error, 1 passed; first: test_empty (test_cart.Cart.test_empty)",
    ),
    (
        "unittest/fail",
        "python -m unittest",
        1,
        Fail,
        "unittest: 1 failed, 1 error, 1 passed; first: test_empty (test_cart.Cart.test_empty)",
    ),
    ("unittest/none", "python -m unittest", 0, Unknown, "unittest: 0 tests"),
    ("unittest/pass-verbose", "python -m unittest", 0, Pass, "unittest: 1 passed, 1 skipped"),
    ("unittest/pass", "python -m unittest", 0, Pass, "unittest: 1 passed, 1 skipped"),
    (
        "vitest/colour-fail",
        "vitest",
        1,
        Fail,
        "vitest: 1 failed, 2 passed, 1 skipped; first: total.test.mjs > cart > total of items",
    ),
    (
        "vitest/err",
        "vitest",
        1,
        Fail,
        "vitest: 1 test file failed; first: cart.test.mjs [ cart.test.mjs ]",
    ),
    (
        "vitest/fail",
        "vitest",
        1,
        Fail,
        "vitest: 1 failed, 2 passed, 1 skipped; first: total.test.mjs > cart > total of items",
    ),
    ("vitest/none", "vitest", 1, Unknown, "vitest: 0 tests"),
    ("vitest/pass", "vitest", 0, Pass, "vitest: 1 passed, 1 skipped"),
];

#[test]
fn recorded_outputs_are_judged() {
    for (case, command, status, verdict, summary) in RECORDED {
        let output = output_of(case);
        assert_eq!(
            verdict_of(command, &output, Some(*status)),
            (*verdict, (*summary).to_owned()),
            "{case}"
        );

        // Without the status, as some clients have it, or with another one's, nothing is taken for what it is not.
        let untold = verdict_of(command, &output, None).0;
        assert!(untold == *verdict || untold == Unknown, "{case}: {untold:?} without a status");
        let masked = verdict_of(&format!("{command} || true"), &output, Some(0)).0;
        assert_eq!(masked, untold, "{case}: masked");

        // Nor if it is not known which tool writes.
        let wrapped = verdict_of("npm test", &output, None).0;
        assert!(wrapped == *verdict || wrapped == Unknown, "{case}: {wrapped:?} from npm test");
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
    let mut listed: Vec<_> = RECORDED.iter().map(|(case, ..)| (*case).to_owned()).collect();
    listed.sort();
    assert_eq!(found, listed);
}

#[test]
fn large_inputs_are_bounded() {
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
    // Quadratic time would be hours.
    assert!(began.elapsed() < Duration::from_mins(2), "{:?}", began.elapsed());
}

fn words() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        "pytest",
        "cargo",
        "test",
        "npm",
        "run",
        "bash",
        "-c",
        "-m",
        "python",
        "env",
        "timeout",
        "60",
        "A=1",
        "docker",
        "exec",
        "uv",
        "&&",
        "||",
        "|",
        ";",
        "&",
        "(",
        ")",
        "{",
        "}",
        "$(",
        "`",
        "'",
        "\"",
        "<<E",
        "\nE\n",
        "\n",
        " ",
        "\\",
        "2>&1",
        "if",
        "then",
        "fi",
        "!",
        "#",
        "--",
        "-",
        "set",
        "-e",
        "echo",
        "$?",
        "é",
        "1..2",
        "passed",
        "failed",
        "3",
        "in",
        "0.1s",
        "test result:",
        "Ran",
        "tests",
        "\u{1b}[",
        "m",
        "Tests:",
        "total",
        "FAIL\t",
        "ok  \t",
        "✖",
        "(",
        "%",
        " tests passed",
        "Exit Code: ",
        "Output: ",
    ]);
    prop::collection::vec(parts, 0..60).prop_map(|parts| parts.join(" "))
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(
        command in prop_oneof![any::<String>(), words()],
        output in prop_oneof![any::<String>(), words(), prop::collection::vec(any::<u8>(), 0..400)
            .prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())],
        exit_code in any::<Option<i32>>(),
        failed in any::<Option<bool>>(),
    ) {
        for command in [command.as_str(), "npm test", "cargo test", "pytest; echo $?", "tsc"] {
            let run = ToolRun {
                command: command.to_owned(),
                output: output.clone(),
                exit_code,
                failed,
                ..ToolRun::default()
            };
            prop_assert_eq!(judge(&run).is_some(), runner_of(command).is_some());
            if let Some(verdict) = judge(&run) {
                prop_assert!(verdict.summary.len() <= MAX_SUMMARY_BYTES);
                prop_assert!(!verdict.summary.contains(char::is_control));
                prop_assert!(verdict.summary.starts_with(verdict.runner));
            }
        }
    }
}
