//! Programs that run tests, builds and checks themselves, by their names and arguments.

use super::shell::{is_assignment, is_one_of, skip_options};

/// Kinds in ascending order of significance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunKind {
    /// A type check or a linter.
    Check,
    Build,
    Test,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Runner {
    /// Such as `pytest`, `cargo test`, `npm test`.
    pub(super) name: &'static str,
    pub(super) kind: RunKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the command")]
pub(super) struct NamedRunner {
    pub(super) runner: Runner,
    /// Whether a status of 0 means that the runner ended with 0.
    pub(super) owns_success: bool,
    /// Whether any other status is that of the runner.
    pub(super) owns_failure: bool,
    /// Whether it runs under `timeout`, whose status 124 is a time-out.
    pub(super) timed: bool,
    /// Whether a filter such as `grep` drops lines of its output.
    pub(super) picked: bool,
}

pub(super) fn one(name: &'static str, kind: RunKind) -> Vec<NamedRunner> {
    vec![NamedRunner {
        runner: Runner { name, kind },
        owns_success: true,
        owns_failure: true,
        timed: false,
        picked: false,
    }]
}

/// `found`, or nothing if the arguments ask for help, a version or a list.
pub(super) fn not_a_question(args: &[String], found: Vec<NamedRunner>) -> Vec<NamedRunner> {
    const QUESTIONS: &str = "--help --version --collect-only --co --fixtures --markers --listTests --list \
        --list-tests --list-sessions --showConfig --show-config --clearCache --clear-cache \
        --print-config --init --dry-run --just-print --show-only --setup-plan";
    let last_asks = args.last().is_some_and(|word| word == "-h" || word == "help");
    if has(args, QUESTIONS) || last_asks { Vec::new() } else { found }
}

pub(super) fn direct(name: &str, args: &[String]) -> Vec<NamedRunner> {
    use RunKind::{Build, Check, Test};
    let found = match (name, verb_of(args)) {
        ("pytest" | "py.test", _) if !has(args, "-V") => one("pytest", Test),
        ("unittest", _) => one("unittest", Test),
        ("tox", _) if !has(args, "-l -a list config devenv") => one("tox", Test),
        ("mypy", _) if !has(args, "-V") => one("mypy", Check),
        ("ruff", Some("check")) => one("ruff", Check),
        ("ruff", Some("format")) if has(args, "--check --diff") => one("ruff", Check),
        ("jest", _) => one("jest", Test),
        ("vitest", verb) if !matches!(verb, Some("list" | "init")) => one("vitest", Test),
        ("mocha" | "_mocha", _) => one("mocha", Test),
        ("playwright", Some("test")) => one("playwright", Test),
        ("tsc", _) if !has(args, "-v -w --watch") => one("tsc", Check),
        ("eslint", _) if !has(args, "-v") => one("eslint", Check),
        ("cargo", _) => of_cargo(args),
        ("go", _) => of_go(args),
        ("dotnet", Some("test")) if has(args, "-t") => Vec::new(),
        ("dotnet", Some("test" | "vstest")) => one("dotnet test", Test),
        ("dotnet", Some("build" | "publish" | "msbuild")) => one("dotnet build", Build),
        ("mvn" | "mvnw" | "mvnd", _) => of_maven(args),
        ("gradle" | "gradlew" | "gradlew.bat", _) => of_gradle(args),
        ("rspec", _) => one("rspec", Test),
        ("phpunit" | "phpunit.phar", _) => one("phpunit", Test),
        ("make" | "gmake", _) if !has(args, "-n") => of_make(args),
        _ => Vec::new(),
    };
    not_a_question(args, found)
}

fn has(args: &[String], words: &str) -> bool {
    args.iter().any(|arg| is_one_of(arg, words))
}

fn verb_of(args: &[String]) -> Option<&str> {
    args.iter().map(String::as_str).find(|word| !word.starts_with('-'))
}

fn of_go(args: &[String]) -> Vec<NamedRunner> {
    use RunKind::{Build, Check, Test};
    match verb_of(args) {
        Some("test") if args.iter().any(|arg| arg == "-list" || arg.starts_with("-list=")) => {
            Vec::new()
        }
        Some("test") if has(args, "-c") => one("go build", Build),
        Some("test") => one("go test", Test),
        Some("build" | "install") => one("go build", Build),
        Some("vet") => one("go vet", Check),
        _ => Vec::new(),
    }
}

fn of_cargo(args: &[String]) -> Vec<NamedRunner> {
    use RunKind::{Build, Check, Test};
    const VALUED: &str = "--color --config -C -Z --manifest-path --target-dir -p --package";
    let rest = skip_options(args, VALUED);
    let Some((verb, rest)) = rest.split_first() else {
        return Vec::new();
    };
    match verb.as_str() {
        "test" | "t" if has(args, "--no-run") => one("cargo build", Build),
        "test" | "t" => one("cargo test", Test),
        "nextest" => match skip_options(rest, VALUED).first().map(String::as_str) {
            Some("run" | "r") if has(args, "--no-run") => one("cargo build", Build),
            Some("run" | "r") => one("nextest", Test),
            _ => Vec::new(),
        },
        "build" | "b" | "rustc" => one("cargo build", Build),
        "check" | "c" => one("cargo check", Check),
        "clippy" => one("cargo clippy", Check),
        "fmt" if has(args, "--check") => one("cargo fmt", Check),
        _ => Vec::new(),
    }
}

fn of_maven(args: &[String]) -> Vec<NamedRunner> {
    const SKIPS: &str = "-DskipTests -DskipTests=true -Dmaven.test.skip=true -Dmaven.test.skip";
    const TESTS: &str = "test verify install package integration-test surefire:test deploy";
    if has(args, "-v") {
        Vec::new()
    } else if has(args, TESTS) && !has(args, SKIPS) {
        one("mvn", RunKind::Test)
    } else if has(args, "compile test-compile package install verify") {
        one("mvn", RunKind::Build)
    } else {
        Vec::new()
    }
}

fn of_gradle(args: &[String]) -> Vec<NamedRunner> {
    if has(args, "-m") {
        return Vec::new();
    }
    let mut kind = None;
    let mut words = args.iter();
    while let Some(word) = words.next() {
        if is_one_of(word, "-x --exclude-task -p -b --tests -I") {
            words.next();
            continue;
        }
        let task = word.rsplit(':').next().unwrap_or(word);
        let starts = |starts: &str| starts.split(' ').any(|start| task.starts_with(start));
        let of_word = if word.starts_with('-') {
            None
        } else if task == "check"
            || starts("test connected")
            || task.ends_with("Test")
            || task.ends_with("Tests")
        {
            Some(RunKind::Test)
        } else if starts("build assemble compile") || is_one_of(task, "classes jar") {
            Some(RunKind::Build)
        } else if starts("lint checkstyle") || task == "detekt" {
            Some(RunKind::Check)
        } else {
            None
        };
        kind = kind.max(of_word);
    }
    kind.map_or_else(Vec::new, |kind| one("gradle", kind))
}

fn of_make(args: &[String]) -> Vec<NamedRunner> {
    let mut targets = Vec::new();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-C" | "-f" | "-I" | "-o" | "-W" | "--directory" | "--file" => {
                words.next();
            }
            // `-j 4`
            _ if word.bytes().all(|byte| byte.is_ascii_digit()) => {}
            _ if word.starts_with('-') || is_assignment(word) => {}
            target => targets.push(target),
        }
    }
    let kind_of = |target: &&str| match *target {
        "all" => Some(RunKind::Build),
        "check" | "distcheck" => Some(RunKind::Test),
        target => script_kind(target),
    };
    let kind = if targets.is_empty() {
        Some(RunKind::Build)
    } else {
        targets.iter().filter_map(kind_of).max()
    };
    kind.map_or_else(Vec::new, |kind| one("make", kind))
}

/// The purpose of a script by its name, such as `test:unit`, `build`, `type-check`.
pub(super) fn script_kind(name: &str) -> Option<RunKind> {
    let parts = || name.split([':', '-', '_', '.']);
    let any = |words: &str| parts().any(|part| is_one_of(part, words));
    if any("watch dev serve fix install clean update ui report") {
        None
    } else if any("test tests spec unit e2e integration jest vitest") {
        Some(RunKind::Test)
    } else if any("lint typecheck types tsc eslint check typescript") {
        Some(RunKind::Check)
    } else if any("build compile bundle") {
        Some(RunKind::Build)
    } else {
        None
    }
}
