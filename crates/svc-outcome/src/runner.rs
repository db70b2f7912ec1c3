//! Which test run, build or check a shell command is, seen through what it is wrapped in.

use std::path::Path;

use serde::Serialize;

use super::shell::{Simple, Then, simple_commands};

/// How many programs may wrap one another.
const MAX_WRAPPERS: usize = 16;

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// A type check or a linter.
    Check,
    /// A build.
    Build,
    /// Tests.
    Test,
}

/// The tool of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runner {
    /// What it is called: `pytest`, `cargo test`, `npm test`.
    pub name: &'static str,
    /// What it is run for.
    pub kind: RunKind,
}

/// A runner in a command, and what the command's status says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedRunner {
    pub(super) runner: Runner,
    /// What of the command's status is its own.
    pub(super) its: Its,
    /// It runs under `timeout`, which says so with status 124.
    pub(super) timed: bool,
    /// Its status is printed, after this text.
    pub(super) echoed: Option<String>,
    /// Something picks lines out of what it says.
    pub(super) picked: bool,
}

/// Which of a command's statuses are those of a runner in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Its {
    /// A status of 0 means that the runner ended with 0.
    pub(super) success: bool,
    /// Any other means that the runner ended with it.
    pub(super) failure: bool,
}

/// Which test run, build or check `command` is, or none. Of several it is the one that says most: tests before a build
/// before a check.
pub fn runner_of(command: &str) -> Option<Runner> {
    foremost(&runners_in(command)).map(|found| found.runner)
}

/// The first of the greatest kind.
pub(super) fn foremost(found: &[NamedRunner]) -> Option<&NamedRunner> {
    found.iter().rev().max_by_key(|found| found.runner.kind)
}

/// All runners in `command`, in their order.
pub(super) fn runners_in(command: &str) -> Vec<NamedRunner> {
    runners_within(command, MAX_WRAPPERS)
}

fn runners_within(command: &str, wrappers: usize) -> Vec<NamedRunner> {
    let commands = simple_commands(command);
    let line = Line::of(&commands);
    let mut all = Vec::new();
    for (n, simple) in commands.iter().enumerate() {
        let mut inner = unwrap(&simple.words, wrappers);
        if inner.is_empty() {
            continue;
        }
        let (success, failure) = (line.success_is_of(n), line.failure_is_of(n));
        let echoed = line.echoed(n);
        let picked = line.picked(n);
        for found in &mut inner {
            found.its.success &= success;
            found.its.failure &= failure;
            found.picked |= picked;
            if found.echoed.is_none() {
                found.echoed.clone_from(&echoed);
            }
        }
        all.append(&mut inner);
    }
    all
}

/// What a whole line lets its status say. Everything here is looked up in tables made in two passes, as a line may have
/// thousands of commands.
struct Line<'a> {
    commands: &'a [Simple],
    /// For each command: what comes later hides its status.
    hidden: Vec<bool>,
    /// For each command: one before it may fail for itself, or keep it from running.
    after_another: Vec<Before>,
    /// For each command: one after it may fail for itself.
    before_another: Vec<bool>,
    pipefail: bool,
}

#[derive(Clone, Copy, Default)]
struct Before {
    may_fail: bool,
    may_skip: bool,
}

impl<'a> Line<'a> {
    fn of(commands: &'a [Simple]) -> Self {
        let sets = |letter: char, name: &str| {
            commands.iter().any(|simple| {
                simple.words.first().is_some_and(|word| word == "set")
                    && simple.words[1..].iter().any(|word| {
                        word == name
                            || word
                                .strip_prefix('-')
                                .is_some_and(|letters| letters.contains(letter))
                    })
            })
        };
        // `set -o pipefail` has no letter.
        let pipefail = sets('\0', "pipefail");
        let errexit = sets('e', "errexit");

        // The shallowest depth of an operator that hides what is before it, from the end on.
        let (mut hides, mut pipes) = (usize::MAX, usize::MAX);
        let mut another = usize::MAX;
        let mut hidden = vec![false; commands.len()];
        let mut before_another = vec![false; commands.len()];
        for (n, simple) in commands.iter().enumerate().rev() {
            let next = commands.get(n + 1);
            let exits = next.is_some_and(|next| ends_in_failure(&next.words));
            match simple.then {
                Then::Or if exits => {}
                Then::Next if errexit => {}
                Then::Or | Then::Background | Then::Next if next.is_some() => {
                    hides = hides.min(simple.then_depth);
                }
                Then::Background => hides = hides.min(simple.then_depth),
                _ => {}
            }
            if simple.then == Then::And
                && next.is_some_and(|next| !next.lost && !is_harmless(&next.words))
            {
                another = another.min(simple.then_depth);
            }
            let piped = !pipefail && simple.then == Then::Pipe;
            hidden[n] = simple.lost
                || hides <= simple.depth
                || piped
                || (!pipefail && pipes < simple.depth);
            before_another[n] = another <= simple.depth;
            if piped {
                pipes = pipes.min(simple.then_depth);
            }
        }

        let mut before = Before::default();
        let mut after_another = Vec::with_capacity(commands.len());
        for simple in commands {
            after_another.push(before);
            match simple.then {
                Then::Or => before.may_skip = true,
                Then::And if !simple.lost && !is_harmless(&simple.words) => before.may_fail = true,
                Then::Next if errexit && !is_harmless(&simple.words) => before.may_fail = true,
                Then::Next if simple.then_depth == 0 => {
                    before = Before { may_fail: errexit && before.may_fail, ..Before::default() };
                }
                _ => {}
            }
        }
        Self { commands, hidden, after_another, before_another, pipefail }
    }

    fn success_is_of(&self, n: usize) -> bool {
        !self.hidden[n] && !self.after_another[n].may_skip
    }

    fn failure_is_of(&self, n: usize) -> bool {
        self.success_is_of(n) && !self.after_another[n].may_fail && !self.before_another[n]
    }

    /// Whether a command's output goes through one that lets only some lines pass. A tail has what sums up.
    fn picked(&self, n: usize) -> bool {
        const PICKS: &[&str] =
            &["head", "grep", "egrep", "rg", "awk", "sed", "cut", "wc", "sort", "uniq", "jq"];
        let pipes = self.commands[n..].windows(2).take_while(|pair| pair[0].then == Then::Pipe);
        pipes.take(8).any(|pair| PICKS.contains(&program(&pair[1].words[0])))
    }

    /// What is printed before the status of a command: `pytest; echo "exit: $?"`.
    fn echoed(&self, n: usize) -> Option<String> {
        let end = (n..self.commands.len().min(n + 8))
            .find(|&at| self.commands[at].then != Then::Pipe)
            .filter(|&at| self.commands[at].then == Then::Next)?;
        let echo = &self.commands.get(end + 1)?.words;
        if !matches!(echo.first()?.as_str(), "echo" | "printf") {
            return None;
        }
        let text = echo[1..].join(" ");
        let of_pipe = "${PIPESTATUS[0]}";
        let (before, _) = match text.split_once("$?") {
            Some(split) if end == n || self.pipefail => split,
            _ => text.split_once(of_pipe)?,
        };
        Some(before.trim_start_matches("-e ").trim_start_matches("-n ").trim().to_owned())
    }
}

/// Whether a command hardly fails, or fails for all that follows when it does: `cd`, `echo`.
fn is_harmless(words: &[String]) -> bool {
    let first = words.iter().find(|word| !is_assignment(word));
    first.is_none_or(|word| {
        matches!(
            word.as_str(),
            "cd" | "pushd"
                | "popd"
                | "export"
                | "unset"
                | "set"
                | "source"
                | "."
                | "echo"
                | "printf"
                | "true"
                | ":"
                | "mkdir"
                | "sleep"
                | "date"
                | "pwd"
                | "ulimit"
        )
    })
}

fn ends_in_failure(words: &[String]) -> bool {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["false"] => true,
        ["exit" | "return", status] => status != "0",
        _ => false,
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The name of a program, without its folder.
fn program(word: &str) -> &str {
    let name = word.rsplit(['/', '\\']).next().unwrap_or(word);
    name.strip_suffix(".exe").or_else(|| name.strip_suffix(".cmd")).unwrap_or(name)
}

/// `words` without the options at their head. Those of `valued` take the next word.
fn skip_options<'a>(mut words: &'a [String], valued: &[&str]) -> &'a [String] {
    while let Some((word, rest)) = words.split_first() {
        if !word.starts_with('-') && !word.starts_with('+') {
            break;
        }
        words = rest;
        if word == "--" {
            break;
        }
        if valued.contains(&word.as_str()) {
            words = rest.get(1..).unwrap_or_default();
        }
    }
    words
}

fn one(name: &'static str, kind: RunKind) -> Vec<NamedRunner> {
    vec![NamedRunner {
        runner: Runner { name, kind },
        its: Its { success: true, failure: true },
        timed: false,
        echoed: None,
        picked: false,
    }]
}

/// The runners of a simple command, seen through `env`, `timeout`, `uv run`, `bash -c` and their like.
fn unwrap(words: &[String], wrappers: usize) -> Vec<NamedRunner> {
    let Some(at) = words.iter().position(|word| !is_assignment(word)) else {
        return Vec::new();
    };
    let (name, args) = (program(&words[at]), &words[at + 1..]);
    let Some(wrappers) = wrappers.checked_sub(1) else {
        return Vec::new();
    };
    let within = |words: &[String]| unwrap(words, wrappers);
    let after = |valued: &[&str]| within(skip_options(args, valued));
    match name {
        "env" | "cross-env" => after(&["-u", "--unset", "-C", "--chdir"]),
        "timeout" | "gtimeout" => {
            let rest = skip_options(args, &["-k", "--kill-after", "-s", "--signal"]);
            let mut found = within(rest.get(1..).unwrap_or_default());
            for found in &mut found {
                found.timed = true;
            }
            found
        }
        "taskset" | "chrt" => within(skip_options(args, &[]).get(1..).unwrap_or_default()),
        "time" => after(&["-f", "--format", "-o", "--output"]),
        "nice" | "ionice" => after(&["-n", "-c", "--adjustment", "--class"]),
        "stdbuf" => after(&["-i", "-o", "-e"]),
        "sudo" | "doas" => after(&["-u", "-g", "-C", "-D"]),
        "xargs" => after(&["-n", "-P", "-I", "-d", "-L", "-s", "-a"]),
        "xvfb-run" => after(&["-s", "--server-args", "-n", "-e"]),
        "nohup" | "exec" | "command" | "builtin" | "setsid" | "chronic" | "caffeinate"
        | "unbuffer" | "dotenv" => after(&["-a", "-e"]),
        "eval" => runners_within(&args.join(" "), wrappers),
        "bash" | "sh" | "zsh" | "dash" | "ksh" => {
            let flag = args.iter().position(|word| {
                word.starts_with('-') && !word.starts_with("--") && word.ends_with('c')
            });
            let script = flag.and_then(|flag| args.get(flag + 1));
            script.map_or_else(Vec::new, |script| runners_within(script, wrappers))
        }
        "docker" | "podman" | "nerdctl" | "docker-compose" | "podman-compose" | "kubectl"
        | "oc" => in_container(args, wrappers),
        "uvx" => after(&["--with", "--from", "--python", "-p"]),
        "uv" | "poetry" | "pipenv" | "pdm" | "hatch" | "rye" | "pixi" | "pipx" | "conda"
        | "mamba" | "micromamba" | "bundle" | "mise" | "asdf" | "rbenv" | "pyenv" | "direnv"
        | "coverage" | "nix" => of_environment(name, args, wrappers),
        "npx" | "bunx" | "pnpx" => after(&["-p", "--package", "-c", "--call", "-w", "--workspace"]),
        "npm" | "pnpm" | "yarn" | "bun" => of_scripts(name, args, wrappers),
        "node" => of_node(args, wrappers),
        _ if is_python(name) => of_python(args, wrappers),
        _ => direct(name, args),
    }
}

/// `docker compose exec app pytest`, `docker run image pytest`, `kubectl exec pod -- pytest`.
fn in_container(args: &[String], wrappers: usize) -> Vec<NamedRunner> {
    const VALUED: &[&str] = &[
        "-e",
        "--env",
        "-u",
        "--user",
        "-w",
        "--workdir",
        "-v",
        "--volume",
        "-p",
        "--publish",
        "--name",
        "--network",
        "--entrypoint",
        "--platform",
        "--mount",
        "--env-file",
        "--index",
        "-c",
        "-n",
        "-m",
        "--memory",
        "--cpus",
    ];
    let Some(verb) = args.iter().position(|word| matches!(word.as_str(), "exec" | "run")) else {
        return Vec::new();
    };
    let rest = &args[verb + 1..];
    let target = skip_options(rest, VALUED);
    let command = skip_options(target.get(1..).unwrap_or_default(), VALUED);
    unwrap(command, wrappers)
}

/// Programs that run others in an environment: `poetry run pytest`, `bundle exec rspec`.
fn of_environment(name: &str, args: &[String], wrappers: usize) -> Vec<NamedRunner> {
    const VALUED: &[&str] = &[
        "-n",
        "--name",
        "-p",
        "--prefix",
        "--python",
        "--with",
        "--extra",
        "--group",
        "--project",
        "--directory",
        "-C",
        "--env-file",
        "--package",
        "--from",
        "-e",
        "--environment",
        "--spec",
        "--source",
        "--rcfile",
        "--with-requirements",
        "--only-group",
        "--with-editable",
    ];
    let args = skip_options(args, VALUED);
    let Some((verb, rest)) = args.split_first() else {
        return Vec::new();
    };
    match (name, verb.as_str()) {
        ("uv", "tool") => of_environment(name, rest, wrappers),
        ("coverage", "run") => of_python(rest, wrappers),
        ("direnv", "exec") => unwrap(rest.get(1..).unwrap_or_default(), wrappers),
        ("nix", "develop" | "shell") => {
            let command = rest.iter().position(|word| word == "-c" || word == "--command");
            command.map_or_else(Vec::new, |at| unwrap(&rest[at + 1..], wrappers))
        }
        (_, "run" | "exec" | "x") => {
            let rest = skip_options(rest, VALUED);
            // `mise exec node@20 -- npm test`
            let rest = match rest.iter().position(|word| word == "--") {
                Some(at) if name == "mise" => &rest[at + 1..],
                _ => rest,
            };
            let found = match rest.first().map(String::as_str) {
                // A module of its own, as `python -m` would run it.
                Some("-m") => of_python(rest, wrappers),
                _ => unwrap(rest, wrappers),
            };
            match rest.first() {
                // A script of the project's.
                Some(script)
                    if found.is_empty()
                        && matches!(name, "hatch" | "pdm" | "rye" | "pixi" | "pipenv" | "mise") =>
                {
                    script_kind(script).map_or_else(Vec::new, |kind| one("script", kind))
                }
                _ => found,
            }
        }
        _ => Vec::new(),
    }
}

/// What a script is for, by its name: `test:unit`, `build`, `type-check`.
fn script_kind(name: &str) -> Option<RunKind> {
    let parts = || name.split([':', '-', '_', '.']);
    let any = |words: &[&str]| parts().any(|part| words.contains(&part));
    if any(&["watch", "dev", "serve", "fix", "install", "clean", "update", "ui", "report"]) {
        None
    } else if any(&["test", "tests", "spec", "unit", "e2e", "integration", "jest", "vitest"]) {
        Some(RunKind::Test)
    } else if any(&["lint", "typecheck", "types", "tsc", "eslint", "check", "typescript"]) {
        Some(RunKind::Check)
    } else if any(&["build", "compile", "bundle"]) {
        Some(RunKind::Build)
    } else {
        None
    }
}

/// The package managers of JavaScript: scripts of the project, or programs that it has installed.
fn of_scripts(name: &str, args: &[String], wrappers: usize) -> Vec<NamedRunner> {
    const VALUED: &[&str] = &[
        "--prefix",
        "-w",
        "--workspace",
        "--filter",
        "-F",
        "-C",
        "--cwd",
        "--dir",
        "--config",
        "--loglevel",
    ];
    let args = skip_options(args, VALUED);
    let Some((verb, rest)) = args.split_first() else {
        return Vec::new();
    };
    let label = |test: &'static str, run: &'static str, kind| {
        not_a_question(rest, one(if kind == RunKind::Test { test } else { run }, kind))
    };
    let named = |kind| match name {
        "npm" => label("npm test", "npm run", kind),
        "pnpm" => label("pnpm test", "pnpm run", kind),
        "yarn" => label("yarn test", "yarn run", kind),
        _ => label("bun run", "bun run", kind),
    };
    match verb.as_str() {
        "test" if name == "bun" => not_a_question(rest, one("bun test", RunKind::Test)),
        "test" | "t" | "tst" => named(RunKind::Test),
        "run" | "run-script" | "rum" => {
            let script = skip_options(rest, VALUED);
            let Some(script) = script.first() else { return Vec::new() };
            script_kind(script).map_or_else(Vec::new, named)
        }
        "exec" | "dlx" | "x" => unwrap(skip_options(rest, VALUED), wrappers),
        "workspace" if name == "yarn" => {
            of_scripts(name, rest.get(1..).unwrap_or_default(), wrappers)
        }
        "workspaces" | "-r" if name == "yarn" => {
            let run = rest.iter().position(|word| word == "run");
            run.map_or_else(Vec::new, |at| of_scripts(name, &rest[at..], wrappers))
        }
        "install" | "i" | "ci" | "add" | "remove" | "why" | "info" | "audit" | "publish"
        | "init" | "link" | "outdated" | "update" | "up" | "pack" | "create" | "config" | "ls"
        | "list" => Vec::new(),
        // pnpm, yarn and bun run scripts and programs without `run`.
        _ if name != "npm" => {
            let found = unwrap(args, wrappers);
            if found.is_empty() && wrappers > 0 {
                script_kind(verb).map_or_else(Vec::new, named)
            } else {
                found
            }
        }
        _ => Vec::new(),
    }
}

fn of_node(args: &[String], wrappers: usize) -> Vec<NamedRunner> {
    const VALUED: &[&str] = &[
        "-r",
        "--require",
        "--import",
        "--loader",
        "-C",
        "--conditions",
        "-e",
        "--eval",
        "-p",
        "--print",
    ];
    let rest = skip_options(args, VALUED);
    let options = &args[..args.len() - rest.len()];
    if options.iter().any(|word| word == "--test") {
        return not_a_question(args, one("node --test", RunKind::Test));
    }
    let Some((script, rest)) = rest.split_first() else {
        return Vec::new();
    };
    let file = program(script);
    let stem = file.trim_start_matches('_').split('.').next().unwrap_or(file);
    let runs = script.contains("node_modules")
        && matches!(stem, "jest" | "vitest" | "mocha" | "tsc" | "eslint" | "playwright");
    if !runs {
        return Vec::new();
    }
    let mut words = vec![stem.to_owned()];
    words.extend_from_slice(rest);
    unwrap(&words, wrappers)
}

fn is_python(name: &str) -> bool {
    let rest = name.strip_prefix("python").or_else(|| name.strip_prefix("pypy"));
    name == "py"
        || name.eq_ignore_ascii_case("$python")
        || rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

fn of_python(args: &[String], wrappers: usize) -> Vec<NamedRunner> {
    let mut rest = args;
    while let Some((word, after)) = rest.split_first() {
        match word.as_str() {
            "-m" => {
                return match after.split_first() {
                    Some((module, args)) if module == "coverage" => {
                        of_environment("coverage", args, wrappers.saturating_sub(1))
                    }
                    Some((module, args)) if module == "unittest" => {
                        not_a_question(args, one("unittest", RunKind::Test))
                    }
                    Some(_) if wrappers > 0 => unwrap(after, wrappers - 1),
                    _ => Vec::new(),
                };
            }
            "-c" => return Vec::new(),
            "-W" | "-X" | "--source" | "--rcfile" => rest = after.get(1..).unwrap_or_default(),
            _ if word.starts_with('-') => rest = after,
            _ => {
                let args: Vec<_> = after.iter().map(String::as_str).collect();
                return match (program(word), args.first()) {
                    ("manage.py", Some(&"test")) => one("unittest", RunKind::Test),
                    _ => Vec::new(),
                };
            }
        }
    }
    Vec::new()
}

/// Nothing, if the words ask the runner about itself or for a list, and do not make it run.
fn not_a_question(args: &[String], found: Vec<NamedRunner>) -> Vec<NamedRunner> {
    const QUESTIONS: &[&str] = &[
        "--help",
        "--version",
        "--collect-only",
        "--co",
        "--fixtures",
        "--markers",
        "--listTests",
        "--list",
        "--list-tests",
        "--list-sessions",
        "--showConfig",
        "--show-config",
        "--clearCache",
        "--clear-cache",
        "--print-config",
        "--init",
        "--dry-run",
        "--just-print",
        "--show-only",
        "--setup-plan",
    ];
    let asks = |word: &String| QUESTIONS.contains(&word.as_str());
    let last_asks = args.last().is_some_and(|word| word == "-h" || word == "help");
    if args.iter().any(asks) || last_asks { Vec::new() } else { found }
}

/// A program that is a runner itself.
fn direct(name: &str, args: &[String]) -> Vec<NamedRunner> {
    let found = match name {
        "pytest" | "py.test" | "unittest" | "tox" | "nox" | "mypy" | "pyright" | "ruff" => {
            of_python_tools(name, args)
        }
        "jest" | "vitest" | "mocha" | "_mocha" | "playwright" | "tsc" | "eslint" | "deno" => {
            of_javascript_tools(name, args)
        }
        "cargo" => of_cargo(args),
        "go" => of_go(args),
        "dotnet" => match verb_of(args) {
            Some("test") if has(args, &["-t"]) => Vec::new(),
            Some("test" | "vstest") => one("dotnet test", RunKind::Test),
            Some("build" | "publish" | "msbuild") => one("dotnet build", RunKind::Build),
            _ => Vec::new(),
        },
        "mvn" | "mvnw" | "mvnd" => of_maven(args),
        "gradle" | "gradlew" | "gradlew.bat" => of_gradle(args),
        "rspec" | "rake" | "rails" | "ruby" => of_ruby(name, args),
        "phpunit" | "phpunit.phar" => one("phpunit", RunKind::Test),
        "php" => match args.first().map(|word| program(word)) {
            Some("phpunit" | "phpunit.phar") => one("phpunit", RunKind::Test),
            _ => Vec::new(),
        },
        "ctest" if !has(args, &["-N"]) => one("ctest", RunKind::Test),
        "cmake" if has(args, &["--build"]) => {
            let tests = args.iter().any(|word| matches!(word.as_str(), "test" | "check"));
            if tests { one("ctest", RunKind::Test) } else { one("cmake", RunKind::Build) }
        }
        "make" | "gmake" if !has(args, &["-n"]) => of_make(args),
        "just" if !has(args, &["-l", "-n"]) => {
            let words = args.iter().filter(|word| !word.starts_with('-') && !word.contains('='));
            let kind = words.filter_map(|word| script_kind(word)).max();
            kind.map_or_else(Vec::new, |kind| one("just", kind))
        }
        "swift" => match verb_of(args) {
            Some("test") if !has(args, &["list"]) => one("swift test", RunKind::Test),
            Some("build") => one("swift build", RunKind::Build),
            _ => Vec::new(),
        },
        "bazel" | "bazelisk" => match verb_of(args) {
            Some("test" | "coverage") => one("bazel test", RunKind::Test),
            Some("build") => one("bazel build", RunKind::Build),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    not_a_question(args, found)
}

/// Whether one of `words` is an argument.
fn has(args: &[String], words: &[&str]) -> bool {
    args.iter().any(|arg| words.contains(&arg.as_str()))
}

/// The first argument that is no option.
fn verb_of(args: &[String]) -> Option<&str> {
    args.iter().map(String::as_str).find(|word| !word.starts_with('-'))
}

fn of_python_tools(name: &str, args: &[String]) -> Vec<NamedRunner> {
    use RunKind::{Check, Test};
    match name {
        "pytest" | "py.test" if !has(args, &["-V"]) => one("pytest", Test),
        "unittest" => one("unittest", Test),
        "tox" if !has(args, &["-l", "-a", "list", "config", "devenv"]) => one("tox", Test),
        "nox" if !has(args, &["-l"]) => one("nox", Test),
        "mypy" if !has(args, &["-V"]) => one("mypy", Check),
        "pyright" => one("pyright", Check),
        "ruff" => match verb_of(args) {
            Some("check") => one("ruff", Check),
            Some("format") if has(args, &["--check", "--diff"]) => one("ruff", Check),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

fn of_javascript_tools(name: &str, args: &[String]) -> Vec<NamedRunner> {
    use RunKind::{Check, Test};
    let verb = verb_of(args);
    match name {
        "jest" => one("jest", Test),
        "vitest" if !matches!(verb, Some("list" | "init")) => one("vitest", Test),
        "mocha" | "_mocha" => one("mocha", Test),
        "playwright" if verb == Some("test") => one("playwright", Test),
        "tsc" if !has(args, &["-v", "-w", "--watch"]) => one("tsc", Check),
        "eslint" if !has(args, &["-v"]) => one("eslint", Check),
        "deno" if verb == Some("test") => one("deno test", Test),
        _ => Vec::new(),
    }
}

fn of_go(args: &[String]) -> Vec<NamedRunner> {
    use RunKind::{Build, Check, Test};
    match verb_of(args) {
        Some("test")
            if has(args, &["-list"]) || args.iter().any(|arg| arg.starts_with("-list=")) =>
        {
            Vec::new()
        }
        Some("test") if has(args, &["-c"]) => one("go build", Build),
        Some("test") => one("go test", Test),
        Some("build" | "install") => one("go build", Build),
        Some("vet") => one("go vet", Check),
        _ => Vec::new(),
    }
}

fn of_ruby(name: &str, args: &[String]) -> Vec<NamedRunner> {
    use RunKind::Test;
    if name == "rspec" {
        return one("rspec", Test);
    }
    if name == "ruby" {
        let is_ruby = |word: &&String| Path::new(word).extension().is_some_and(|end| end == "rb");
        let file = args.iter().find(is_ruby).map(|word| program(word));
        let tests = |file: &str| file.ends_with("_test.rb") || file.starts_with("test_");
        return if file.is_some_and(tests) { one("minitest", Test) } else { Vec::new() };
    }
    match verb_of(args) {
        Some(task) if task == "spec" || task.starts_with("spec:") => one("rspec", Test),
        Some(task) if task == "test" || task.starts_with("test:") => one("rake test", Test),
        None if name == "rake" && !has(args, &["-T", "-P"]) => one("rake test", Test),
        _ => Vec::new(),
    }
}

fn of_cargo(args: &[String]) -> Vec<NamedRunner> {
    use RunKind::{Build, Check, Test};
    const VALUED: &[&str] =
        &["--color", "--config", "-C", "-Z", "--manifest-path", "--target-dir", "-p", "--package"];
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let rest = skip_options(args, VALUED);
    let Some((verb, rest)) = rest.split_first() else {
        return Vec::new();
    };
    match verb.as_str() {
        "test" | "t" if has("--no-run") => one("cargo build", Build),
        "test" | "t" => one("cargo test", Test),
        "nextest" => match skip_options(rest, VALUED).first().map(String::as_str) {
            Some("run" | "r") if has("--no-run") => one("cargo build", Build),
            Some("run" | "r") => one("nextest", Test),
            _ => Vec::new(),
        },
        "build" | "b" | "rustc" => one("cargo build", Build),
        "check" | "c" => one("cargo check", Check),
        "clippy" => one("cargo clippy", Check),
        "fmt" if has("--check") => one("cargo fmt", Check),
        _ => Vec::new(),
    }
}

fn of_maven(args: &[String]) -> Vec<NamedRunner> {
    let skips = args.iter().any(|arg| {
        matches!(
            arg.as_str(),
            "-DskipTests" | "-DskipTests=true" | "-Dmaven.test.skip=true" | "-Dmaven.test.skip"
        )
    });
    let goal = |goals: &[&str]| args.iter().any(|arg| goals.contains(&arg.as_str()));
    if goal(&["-v"]) {
        Vec::new()
    } else if goal(&[
        "test",
        "verify",
        "install",
        "package",
        "integration-test",
        "surefire:test",
        "deploy",
    ]) && !skips
    {
        one("mvn", RunKind::Test)
    } else if goal(&["compile", "test-compile", "package", "install", "verify"]) {
        one("mvn", RunKind::Build)
    } else {
        Vec::new()
    }
}

fn of_gradle(args: &[String]) -> Vec<NamedRunner> {
    if args.iter().any(|arg| arg == "-m") {
        return Vec::new();
    }
    let mut kind = None;
    let mut words = args.iter();
    while let Some(word) = words.next() {
        if matches!(word.as_str(), "-x" | "--exclude-task" | "-p" | "-b" | "--tests" | "-I") {
            words.next();
            continue;
        }
        let task = word.rsplit(':').next().unwrap_or(word);
        let of_word = if word.starts_with('-') {
            None
        } else if task == "check"
            || task.starts_with("test")
            || task.ends_with("Test")
            || task.ends_with("Tests")
            || task.starts_with("connected")
        {
            Some(RunKind::Test)
        } else if task.starts_with("build")
            || task.starts_with("assemble")
            || task.starts_with("compile")
            || task == "classes"
            || task == "jar"
        {
            Some(RunKind::Build)
        } else if task.starts_with("lint") || task.starts_with("checkstyle") || task == "detekt" {
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
