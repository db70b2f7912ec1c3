use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::RunResult::{self, Fail, Pass, Unknown};
use super::{MAX_SUMMARY_BYTES, RunKind, RunVerdict, Runner, ToolRun, foremost, judge, runners_in};

fn runner_of(command: &str) -> Option<Runner> {
    foremost(&runners_in(command)).map(|found| found.runner)
}

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
    for (name, kind, commands) in [
        (
            "pytest",
            Test,
            "pytest ;; cd app && pytest -q tests/test_cart.py::test_total ;; \
             CI=1 PYTHONPATH=. pytest ;; env -u HOME CI=1 pytest ;; timeout 60 pytest ;; \
             timeout -k 5 60s pytest -x ;; time pytest ;; sudo -n pytest ;; sudo -u web -- pytest ;; \
             docker exec -it app pytest ;; docker run --rm python:3 pytest ;; \
             xvfb-run -a -s '-screen 0 1024x768x24' pytest ;; time -p nice -n 10 pytest ;; \
             python -m pytest ;; python3.11 -X dev -m pytest tests/ ;; \
             .venv/bin/python -m pytest ;; /home/user/.venv/bin/pytest ;; uv run pytest ;; \
             uv run --with pytest-xdist -m pytest -n 4 ;; uv run --frozen python -m pytest ;; \
             poetry run pytest ;; pipenv run pytest ;; \
             coverage run -m pytest && coverage report ;; conda run -n web pytest ;; \
             eval 'pytest -q' ;; docker compose exec -T app pytest -q ;; \
             docker run --rm -v $PWD:/w -w /w python:3 python -m pytest ;; \
             kubectl exec pod-1 -- pytest ;; pytest 2>&1 | tee log ;; pytest; echo done ;; \
             if pytest; then echo good; fi ;; out=$(pytest 2>&1); echo \"$out\" ;; \
             set -euo pipefail\ncd app\npytest -q ;; \
             cat > t.py <<'END'\ndef test_x(): pass\nEND\npytest t.py ;; \
             find . -name '*_test.py' | xargs pytest ;; cd app &&\n  pytest \\\n  -q",
        ),
        ("unittest", Test, "python -m unittest discover -s tests ;; python manage.py test cart"),
        ("tox", Test, "tox -e py311"),
        ("script", Test, "hatch run test ;; pdm run test:unit ;; mise run e2e"),
        (
            "npm test",
            Test,
            "npm test ;; npm t -- --coverage ;; npm run test:unit ;; \
             npm --prefix web run test -- --run ;; bash -c 'cd app && npm test' ;; \
             { npm test; } > log",
        ),
        ("npm run", Build, "npm run build"),
        ("npm run", Check, "npm run type-check"),
        ("pnpm test", Test, "pnpm test ;; pnpm --filter shop run test ;; pnpm -r test"),
        ("vitest", Test, "pnpm exec vitest run ;; npx --yes vitest run ;; vitest"),
        ("yarn test", Test, "yarn test ;; yarn workspace shop test"),
        (
            "jest",
            Test,
            "yarn jest cart ;; npx jest ;; npx --prefix web jest ;; npx --registry http://r jest ;; \
             node --experimental-vm-modules node_modules/jest/bin/jest.js",
        ),
        ("bun test", Test, "bun test"),
        ("bun run", Test, "bun run test"),
        ("mocha", Test, "node_modules/.bin/mocha ;; mocha --recursive"),
        ("node --test", Test, "node --test ;; node --import tsx --test test/*.ts"),
        (
            "go test",
            Test,
            "go test ./... ;; go vet ./... && go test -race ./... ;; (cd app && go test ./...)",
        ),
        (
            "cargo test",
            Test,
            "cargo test ;; cargo +nightly test --workspace -- --nocapture ;; \
             RUST_BACKTRACE=1 cargo t -p shop cart:: ;; bash -lc \"timeout 60 cargo test\" ;; \
             cargo test 2>&1 | tail -20 ;; cargo test || true ;; \
             for i in 1 2 3; do cargo test || break; done ;; \
             cargo clippy && cargo build && cargo test",
        ),
        ("nextest", Test, "cargo nextest run --no-fail-fast"),
        ("cargo build", Build, "cargo test --no-run ;; cargo build --release"),
        ("cargo check", Check, "cargo check --all-targets"),
        ("cargo clippy", Check, "cargo clippy -- -D warnings"),
        ("cargo fmt", Check, "cargo fmt --all -- --check"),
        ("dotnet test", Test, "dotnet test"),
        ("dotnet build", Build, "dotnet build -c Release"),
        ("mvn", Test, "mvn -q test ;; ./mvnw verify"),
        ("mvn", Build, "mvn package -DskipTests"),
        ("gradle", Test, "./gradlew test ;; ./gradlew :app:testDebugUnitTest --tests CartTest"),
        ("gradle", Build, "gradle build ;; gradle build -x test"),
        ("rspec", Test, "rspec ;; bundle exec rspec spec/cart_spec.rb:3"),
        ("phpunit", Test, "./vendor/bin/phpunit --filter Cart"),
        ("make", Test, "make test ;; make -C lib -j 4 check"),
        ("make", Build, "make -j8 ;; make build"),
        ("tsc", Check, "tsc --noEmit ;; npx tsc -p ."),
        ("eslint", Check, "npx eslint src"),
        ("ruff", Check, "ruff check ."),
        ("mypy", Check, "mypy src"),
    ] {
        for command in commands.split(" ;; ") {
            let runner = runner_of(command).unwrap_or_else(|| panic!("nothing seen in {command}"));
            assert_eq!((runner.name, runner.kind), (name, kind), "{command}");
        }
    }
}

#[test]
fn mention_of_a_runner_is_not_a_run() {
    const MENTIONS: &str = "echo \"cargo test\" ;; echo 'run pytest' && ls ;; grep -rn \"npm test\" . ;; \
        rg 'cargo test' docs | head ;; git commit -m \"fix cargo test\" ;; \
        git commit -m \"$(cat <<'END'\nMake it so\n\npytest didn't run; npm test (and\ncargo test) do\nEND\n)\" ;; \
        cat test.log ;; tail -f pytest.log ;; pip install pytest ;; uv add --dev pytest ;; \
        npm install jest ;; npm ci ;; npx create-react-app test ;; cargo add nextest ;; \
        cargo install cargo-nextest ;; pytest --collect-only ;; pytest --co -q ;; \
        pytest --version ;; pytest --help ;; python -m pytest --version ;; \
        cargo test --help ;; cargo test -- --list ;; cargo nextest list ;; \
        go test -list . ;; npx jest --listTests ;; make -n test ;; make clean ;; \
        cat <<END > run.sh\ncargo test\npytest\nEND ;; \
        cat > Makefile <<-'END'\n\ttest:\n\t\tpytest\n\tEND\nls ;; # pytest ;; \
        ls # && pytest ;; test -f pytest && cat pytest ;; which pytest ;; \
        command -v cargo ;; command -v pytest ;; sudo -n apt-get -y install mocha ;; \
        sudo -u mocha apt-get -y install jest ;; env -i apt-get -y install mocha ;; \
        npx --yes create-react-app mocha ;; docker run --rm node:20 apt-get -y install mocha ;; \
        docker exec -it app apt-get -y install mocha ;; kubectl exec pod-1 -- apt-get -y install mocha ;; \
        xargs -a mocha ls ;; nice -n 5 apt-get -y install mocha ;; vim tests/test_cart.py ;; python -c 'import pytest' ;; \
        python test_cart.py ;; npm run dev ;; npm run test:watch ;; docker compose up -d ;; \
        docker exec test-db ls ;; docker compose exec -T e2e sh ;; kubectl exec build-1 -- ls ;; \
        uv run test_cart.py ;; poetry run check.py ;; node build.js --test ;; \
        dotnet --version ;; ruff format . ;; kill $(pgrep pytest) ;; alias t='cargo test' ;; \
        tests=(pytest tests)";
    for command in MENTIONS.split(" ;; ").chain(["", "   "]) {
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
    const NONE: &str = "no result in the output";
    let passed = "42 passed in 1.20s";
    for (command, output, exit_code, verdict, summary) in [
        ("pytest", passed, Some(0), Pass, "42 passed"),
        ("pytest", passed, None, Pass, "42 passed"),
        // For example, coverage below its threshold.
        ("pytest", passed, Some(1), Fail, "42 passed, exit status 1"),
        ("cd app && pytest", passed, Some(1), Fail, "42 passed, exit status 1"),
        ("pytest && ./deploy", passed, Some(1), Unknown, "42 passed, the command failed"),
        ("pytest; ./deploy", passed, Some(1), Unknown, "42 passed, the command failed"),
        ("./prepare && pytest", "no disk", Some(1), Unknown, "the command failed"),
        ("pytest && echo done", passed, Some(1), Fail, "42 passed, exit status 1"),
        ("pytest > log", "", Some(0), Pass, "exit status 0"),
        ("pytest > log", "", Some(1), Fail, "exit status 1"),
        ("pytest > log || true", "", Some(0), Unknown, NONE),
        ("pytest > log; ls", "log", Some(0), Unknown, NONE),
        ("pytest | tail -1", "", Some(0), Unknown, NONE),
        ("set -o pipefail; pytest | tee log > /dev/null", "", Some(1), Fail, "exit status 1"),
        ("set -e\npytest > log\nls", "log", Some(0), Pass, "exit status 0"),
        ("set -e\npytest > log\nls", "log", Some(1), Unknown, "the command failed"),
        ("set -e\n./prepare\npytest", "no disk", Some(1), Unknown, "the command failed"),
        ("./prepare\npytest", "", Some(1), Fail, "exit status 1"),
        ("pytest > log || exit 1", "", Some(0), Pass, "exit status 0"),
        ("if pytest > log; then ls; fi", "", Some(0), Unknown, NONE),
        ("! pytest > log", "", Some(0), Unknown, NONE),
        ("which jest || npm test", "/usr/bin/jest", Some(0), Unknown, NONE),
        ("bash -c 'pytest > log'", "", Some(1), Fail, "exit status 1"),
        ("bash -c 'pytest > log' || true", "", Some(0), Unknown, NONE),
        ("(pytest > log) | cat", "", Some(0), Unknown, NONE),
        ("pytest > log && git log | head", "", Some(0), Pass, "exit status 0"),
        ("make test | tail -1; echo $?", "0\n", Some(0), Unknown, NONE),
        ("timeout 5 pytest", "", Some(124), Unknown, "timed out"),
        ("pytest", "pytest: command not found", Some(127), Unknown, "0 tests"),
        ("pytest", "", Some(137), Unknown, "exit status 137"),
        ("npm test", "npm error Missing script: \"test\"", Some(1), Unknown, "0 tests"),
        (
            "make test",
            "make: *** No rule to make target 'test'.  Stop.",
            Some(2),
            Unknown,
            "0 tests",
        ),
        (
            "cargo test",
            "error: could not find `Cargo.toml` in `/home/user`",
            Some(101),
            Unknown,
            "0 tests",
        ),
        ("eslint .", "", Some(0), Pass, "exit status 0"),
        ("pytest", "3 failed, 42 passed in 2.00s", Some(1), Fail, "3 failed, 42 passed"),
        (
            "pytest",
            "== 3 failed, 42 passed in 61.02s (0:01:01) ==",
            None,
            Fail,
            "3 failed, 42 passed",
        ),
        ("pytest", "2 failed in 0.10s", None, Fail, "2 failed"),
        (
            "make",
            "cc -c cart.c\ncart.c:3:5: error: unknown type\nmake: *** [Makefile:2: cart.o] Error 1",
            Some(2),
            Fail,
            "1 error; first: cart.c:3:5: error: unknown type",
        ),
        // Output of tests is not their summary.
        (
            "npm test",
            "server.js:12: error connecting\n[ERROR]: x\n 2 passing (3ms)".trim_start(),
            Some(0),
            Pass,
            "2 passed",
        ),
        ("npm test", "api.js:12: error: refused", Some(0), Pass, "exit status 0"),
        ("pytest", "server: 3 failed, 2 passed\n1 passed in 0.10s", Some(0), Pass, "1 passed"),
    ] {
        let summary = format!("{}: {summary}", runner_of(command).expect("a run").name);
        assert_eq!(verdict_of(command, output, exit_code), (verdict, summary), "{command}");
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

        // Without the status, which some clients do not report, or with that of another command,
        // the verdict is the same or unknown.
        let untold = verdict_of(command, &output, None).0;
        assert!(untold == verdict || untold == Unknown, "{case}: {untold:?} without a status");
        let masked = verdict_of(&format!("{command} || true"), &output, Some(0)).0;
        assert_eq!(masked, untold, "{case}: masked");

        // A terminal, as that of `docker run -t`, ends lines with two characters.
        let on_terminal = output.replace("\r\n", "\n").replace('\n', "\r\n");
        let told = verdict_of(command, &on_terminal, Some(status));
        assert_eq!(told, (verdict, summary.to_owned()), "{case}: on a terminal");

        // The same holds if the tool is unknown.
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
    let marks = "  ✓ 3 failed\n".repeat(SIZE / 15);
    let began = Instant::now();
    for output in [&lines, &line, &escapes, &marks] {
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
