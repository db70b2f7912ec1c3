//! Programs that run tests, builds and checks themselves, by their names and arguments.

use std::sync::LazyLock;

use regex_automata::meta::Regex;

use super::shell::is_one_of;

/// Kinds in ascending order of significance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunKind {
    /// A type check or a linter.
    Check,
    Build,
    Test,
}

use RunKind::{Build, Check, Test};

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
        --list-tests --showConfig --show-config --clearCache --clear-cache --print-config --init \
        --dry-run --just-print --setup-plan";
    let asks = args.iter().any(|arg| is_one_of(arg, QUESTIONS));
    let last_asks = args.last().is_some_and(|word| word == "-h" || word == "help");
    if asks || last_asks { Vec::new() } else { found }
}

pub(super) const NAMES: &str = "pytest py.test unittest tox mypy ruff jest vitest mocha _mocha playwright tsc \
    eslint cargo go dotnet mvn mvnw mvnd gradle gradlew gradlew.bat rspec phpunit phpunit.phar";

/// The program with its arguments. The first pattern that matches counts; without a name the
/// command runs nothing that counts. `OPTIONS` stands for any options, with values or without.
const PROGRAMS: [(&str, RunKind, &str); 39] = [
    ("", Check, r"^(?:pytest|py\.test|mypy) (?:.* )?-V "),
    ("pytest", Test, r"^(?:pytest|py\.test) "),
    ("unittest", Test, r"^unittest "),
    ("", Check, r"^tox (?:.* )?(?:-l|-a|list|config|devenv) "),
    ("tox", Test, r"^tox "),
    ("mypy", Check, r"^mypy "),
    ("ruff", Check, r"^ruff OPTIONScheck |^ruff OPTIONSformat (?:.* )?--(?:check|diff) "),
    ("jest", Test, r"^jest "),
    ("", Check, r"^vitest OPTIONS(?:list|init) "),
    ("vitest", Test, r"^vitest "),
    ("mocha", Test, r"^_?mocha "),
    ("playwright", Test, r"^playwright OPTIONStest "),
    ("", Check, r"^(?:tsc|eslint) (?:.* )?(?:-v|-w|--watch) "),
    ("tsc", Check, r"^tsc "),
    ("eslint", Check, r"^eslint "),
    ("cargo build", Build, r"^cargo OPTIONS(?:test|t|nextest) (?:.* )?--no-run "),
    ("cargo test", Test, r"^cargo OPTIONS(?:test|t) "),
    ("nextest", Test, r"^cargo OPTIONSnextest OPTIONS(?:run|r) "),
    ("cargo build", Build, r"^cargo OPTIONS(?:build|b|rustc) "),
    ("cargo check", Check, r"^cargo OPTIONS(?:check|c) "),
    ("cargo clippy", Check, r"^cargo OPTIONSclippy "),
    ("cargo fmt", Check, r"^cargo OPTIONSfmt (?:.* )?--check "),
    ("", Check, r"^go OPTIONStest (?:.* )?-list[ =]"),
    ("go build", Build, r"^go OPTIONStest (?:.* )?-c "),
    ("go test", Test, r"^go OPTIONStest "),
    ("go build", Build, r"^go OPTIONS(?:build|install) "),
    ("go vet", Check, r"^go OPTIONSvet "),
    ("", Check, r"^dotnet OPTIONStest (?:.* )?-t "),
    ("dotnet test", Test, r"^dotnet OPTIONS(?:test|vstest) "),
    ("dotnet build", Build, r"^dotnet OPTIONS(?:build|publish|msbuild) "),
    ("", Check, r"^(?:mvnw?d?) (?:.* )?-v |^gradlew?(?:\.bat)? (?:.* )?-m "),
    ("mvn", Build, r"^mvnw?d? (?:.* )?(?:-DskipTests(?:=true)?|-Dmaven\.test\.skip(?:=true)?) "),
    ("mvn", Test, r"^mvnw?d? (?:.* )?(?:test|verify|install|package|integration-test|deploy) "),
    ("mvn", Build, r"^mvnw?d? (?:.* )?(?:compile|test-compile) "),
    ("gradle", Build, r"^gradlew?(?:\.bat)? (?:.* )?build (?:.* )?(?:-x|--exclude-task) \S*test "),
    (
        "gradle",
        Test,
        r"^gradlew?(?:\.bat)? (?:.* )?(?:check|\S*:check|\S*\b(?:test|connected)\S*|\w*Tests?) ",
    ),
    ("gradle", Build, r"^gradlew?(?:\.bat)? (?:.* )?(?:\S*:)?(?:build|assemble|compile|jar)\w* "),
    ("rspec", Test, r"^rspec "),
    ("phpunit", Test, r"^phpunit(?:\.phar)? "),
];
/// Words of a command that are looked at.
const MOST_WORDS: usize = 100;
const OPTIONS: &str = r"(?:[-+]\S+ (?:[^-+ ]\S* )??)*?";

pub(super) fn direct(name: &str, args: &[String]) -> Vec<NamedRunner> {
    static PATTERNS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
        let patterns = PROGRAMS.iter().map(|(.., pattern)| pattern.replace("OPTIONS", OPTIONS));
        patterns.map(|it| Regex::new(&it).expect("is well formed")).collect()
    });
    if matches!(name, "make" | "gmake") {
        return not_a_question(args, of_make(args));
    }
    if !is_one_of(name, NAMES) {
        return Vec::new();
    }
    // A bound on the work: what is asked for is among the first words.
    let words: Vec<&str> = args.iter().take(MOST_WORDS).map(String::as_str).collect();
    let line = format!("{name} {} ", words.join(" ")).replace("  ", " ");
    let mut programs = PROGRAMS.iter().zip(PATTERNS.iter());
    let found = match programs.find(|(_, pattern)| pattern.is_match(&line)) {
        Some((&("", ..), _)) | None => Vec::new(),
        Some((&(name, kind, _), _)) => one(name, kind),
    };
    not_a_question(args, found)
}

fn of_make(args: &[String]) -> Vec<NamedRunner> {
    let mut targets = Vec::new();
    if args.iter().any(|word| word == "-n") {
        return Vec::new();
    }
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-C" | "-f" | "-I" | "-o" | "-W" | "--directory" | "--file" => {
                words.next();
            }
            // `-j 4`
            _ if word.bytes().all(|byte| byte.is_ascii_digit()) => {}
            _ if word.starts_with('-') || word.contains('=') => {}
            target => targets.push(target),
        }
    }
    let kind_of = |target: &&str| match *target {
        "all" => Some(Build),
        "check" | "distcheck" => Some(Test),
        target => script_kind(target),
    };
    let kind =
        if targets.is_empty() { Some(Build) } else { targets.iter().filter_map(kind_of).max() };
    kind.map_or_else(Vec::new, |kind| one("make", kind))
}

/// The purpose of a script by its name, such as `test:unit`, `build`, `type-check`.
pub(super) fn script_kind(name: &str) -> Option<RunKind> {
    let parts = || name.split([':', '-', '_', '.']);
    let any = |words: &str| parts().any(|part| is_one_of(part, words));
    if any("watch dev serve fix install clean update ui report") {
        None
    } else if any("test tests spec unit e2e integration jest vitest") {
        Some(Test)
    } else if any("lint typecheck types tsc eslint check typescript") {
        Some(Check)
    } else if any("build compile bundle") {
        Some(Build)
    } else {
        None
    }
}
