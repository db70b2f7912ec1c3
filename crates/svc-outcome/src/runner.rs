//! Which test run, build or check a shell command is, inside its wrappers.

use super::shell::{LineStatus, is_assignment, is_one_of, program, simple_commands};
use super::tools::{NAMES, NamedRunner, RunKind, direct, not_a_question, one, script_kind};

const MAX_WRAPPERS: usize = 16;
/// Commands of a line that are looked at.
const MAX_COMMANDS: usize = 2000;

/// The first runner of the most significant kind: tests before a build before a check.
pub(super) fn foremost(found: &[NamedRunner]) -> Option<&NamedRunner> {
    found.iter().rev().max_by_key(|found| found.runner.kind)
}

pub(super) fn runners_in(command: &str) -> Vec<NamedRunner> {
    runners_within(command, MAX_WRAPPERS)
}

fn runners_within(command: &str, wrappers: usize) -> Vec<NamedRunner> {
    let commands = simple_commands(command);
    let line = LineStatus::new(&commands);
    let mut all = Vec::new();
    for (n, simple) in commands.iter().take(MAX_COMMANDS).enumerate() {
        let mut inner = unwrap(&simple.words, wrappers);
        if inner.is_empty() {
            continue;
        }
        let picked = line.picked(n);
        for found in &mut inner {
            found.owns_success &= line.success_is_of(n);
            found.owns_failure &= line.failure_is_of(n);
            found.picked |= picked;
        }
        all.append(&mut inner);
    }
    all
}

/// Programs that run the program after their options, and which of the options have a value.
const WRAPPERS: [(&str, &str); 12] = [
    ("cross-env nohup command setsid", ""),
    ("env", "-u -C --unset --chdir"),
    ("timeout gtimeout", "-k -s --kill-after --signal"),
    ("time", "-f -o --format --output"),
    ("nice ionice", "-n -c --adjustment --class --classdata"),
    ("stdbuf", "-i -o -e --input --output --error"),
    (
        "sudo doas",
        "-u -g -h -p -C -D -R -r -t -T -U --user --group --host --prompt --close-from --chdir \
         --chroot --role --type --command-timeout --other-user",
    ),
    ("xargs", "-a -d -E -I -L -n -P -s --arg-file --delimiter --max-args --max-lines --max-procs"),
    (
        "xvfb-run",
        "-e -f -n -p -s -w --error-file --auth-file --server-num --xauth-protocol --server-args \
         --wait",
    ),
    ("exec", "-a"),
    (
        "uvx",
        "-p -w -i -f -c --from --with --with-editable --with-requirements --python --index \
         --index-url --default-index --extra-index-url --index-strategy --find-links --constraints \
         --overrides --directory --project --env-file --config-file --cache-dir",
    ),
    (
        "npx bunx pnpx",
        "-p -w --package --workspace --prefix --registry --cache --userconfig --node-options",
    ),
];
/// Options of programs that run others after a verb which have no value, though a word may follow.
const FLAGS: &str =
    "-- -i -t -it -ti -d -T --rm --init --privileged --interactive --tty --detach --stdin";
/// Programs that do so after a verb: `poetry run pytest`, `docker exec app pytest`.
const ENVIRONMENTS: &str = "uv poetry pipenv pdm hatch pixi pipx conda bundle mise coverage docker podman \
    docker-compose kubectl";
/// Those of them whose verb may name a script of the project.
const SCRIPTED: &str = "pipenv pdm hatch pixi mise";
const SHELLS: &str = "bash sh zsh dash ksh";
const PACKAGE_MANAGERS: &str = "npm pnpm yarn bun node";

/// Whether a word may be a runner or a wrapper of one.
fn is_program(word: &str) -> bool {
    let name = program(word);
    let lists = [NAMES, ENVIRONMENTS, SHELLS, PACKAGE_MANAGERS, "make gmake eval"];
    is_python(name)
        || options_of_wrapper(name).is_some()
        || lists.iter().any(|list| is_one_of(name, list))
}

/// The options with a value of a program that runs the program after its options.
fn options_of_wrapper(name: &str) -> Option<&'static str> {
    let found = WRAPPERS.iter().find(|(names, _)| is_one_of(name, names));
    found.map(|(_, options)| *options)
}

/// The program that such a program runs, with its arguments.
fn wrapped<'a>(args: &'a [String], with_value: &str) -> &'a [String] {
    let mut is_value = false;
    let end = args.iter().position(|word| {
        let is_option = !is_value && word.starts_with(['-', '+']);
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        let is_skipped = is_value || is_option || is_number || is_assignment(word);
        is_value = is_option && is_one_of(word, with_value);
        !is_skipped
    });
    &args[end.unwrap_or(args.len())..]
}

/// The words after options and numbers. A word after an option is taken for its value, unless it is
/// a program or one of `verbs`.
fn after_options<'a>(args: &'a [String], verbs: &str) -> &'a [String] {
    let mut is_value = false;
    let end = args.iter().position(|word| {
        let is_option = word.starts_with(['-', '+']) || is_assignment(word);
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        let is_known = is_program(word) || is_one_of(word, verbs);
        let is_skipped = is_option || is_number || (is_value && !is_known);
        is_value = is_option && !is_one_of(word, FLAGS);
        !is_skipped
    });
    &args[end.unwrap_or(args.len())..]
}

/// The runners of a simple command, inside `env`, `timeout`, `uv run`, `bash -c` and the like.
fn unwrap(words: &[String], wrappers: usize) -> Vec<NamedRunner> {
    let Some(at) = words.iter().position(|word| !is_assignment(word)) else {
        return Vec::new();
    };
    let (name, args) = (program(&words[at]), &words[at + 1..]);
    let Some(wrappers) = wrappers.checked_sub(1) else {
        return Vec::new();
    };
    if let Some(with_value) = options_of_wrapper(name) {
        let asks = name == "command" && args.first().is_some_and(|it| is_one_of(it, "-v -V"));
        let mut found = if asks { vec![] } else { unwrap(wrapped(args, with_value), wrappers) };
        for found in &mut found {
            found.timed |= is_one_of(name, "timeout gtimeout");
        }
        return found;
    }
    match name {
        "eval" => runners_within(&args.join(" "), wrappers),
        _ if is_one_of(name, SHELLS) => {
            let flag = args.iter().position(|word| {
                word.starts_with('-') && !word.starts_with("--") && word.ends_with('c')
            });
            let script = flag.and_then(|flag| args.get(flag + 1));
            script.map_or_else(Vec::new, |script| runners_within(script, wrappers))
        }
        _ if is_one_of(name, ENVIRONMENTS) => of_environment(name, args, wrappers),
        "npm" | "pnpm" | "yarn" | "bun" => of_scripts(name, args, wrappers),
        "node" => of_node(args, wrappers),
        _ if is_python(name) => match after_options(args, "") {
            [script, verb, ..] if program(script) == "manage.py" && verb == "test" => {
                one("unittest", RunKind::Test)
            }
            rest => unwrap(rest, wrappers),
        },
        _ => direct(name, args),
    }
}

/// `poetry run pytest`, `docker run image pytest`, `kubectl exec pod -- pytest`, `hatch run test`.
fn of_environment(name: &str, args: &[String], wrappers: usize) -> Vec<NamedRunner> {
    let verb = args.iter().position(|word| matches!(word.as_str(), "run" | "exec" | "x"));
    let Some((first, more)) = verb.and_then(|at| after_options(&args[at + 1..], "").split_first())
    else {
        return Vec::new();
    };
    if is_program(first) {
        let verb = verb.unwrap_or_default();
        return unwrap(after_options(&args[verb + 1..], ""), wrappers);
    }
    // The name of a container or a tool, or a script of the project.
    let found = unwrap(after_options(more, ""), wrappers);
    match script_kind(first) {
        Some(kind) if found.is_empty() && is_one_of(name, SCRIPTED) => one("script", kind),
        _ => found,
    }
}

/// Package managers of JavaScript: scripts of the project, or installed programs.
fn of_scripts(name: &str, args: &[String], wrappers: usize) -> Vec<NamedRunner> {
    const VERBS: &str = "test t tst run run-script exec dlx x workspace workspaces";
    const NO_SCRIPTS: &str = "install i ci add remove why info audit publish init link outdated update \
        up pack create config ls list";
    let args = after_options(args, VERBS);
    let Some((verb, rest)) = args.split_first() else {
        return Vec::new();
    };
    let named = |kind| {
        let (test, run) = match name {
            "npm" => ("npm test", "npm run"),
            "pnpm" => ("pnpm test", "pnpm run"),
            "yarn" => ("yarn test", "yarn run"),
            _ => ("bun run", "bun run"),
        };
        not_a_question(rest, one(if kind == RunKind::Test { test } else { run }, kind))
    };
    match verb.as_str() {
        "test" if name == "bun" => not_a_question(rest, one("bun test", RunKind::Test)),
        "test" | "t" | "tst" => named(RunKind::Test),
        "run" | "run-script" => {
            let script = after_options(rest, "").first();
            script.and_then(|script| script_kind(script)).map_or_else(Vec::new, named)
        }
        "exec" | "dlx" | "x" => unwrap(after_options(rest, ""), wrappers),
        "workspace" | "workspaces" if wrappers > 0 => {
            of_scripts(name, rest.get(1..).unwrap_or_default(), wrappers - 1)
        }
        verb if is_one_of(verb, NO_SCRIPTS) || name == "npm" => Vec::new(),
        // pnpm, yarn and bun run scripts and programs without `run`.
        _ => {
            let found = unwrap(args, wrappers);
            let kind = script_kind(verb).filter(|_| found.is_empty() && wrappers > 0);
            kind.map_or(found, named)
        }
    }
}

/// `node --test`, `node node_modules/jest/bin/jest.js`.
fn of_node(args: &[String], wrappers: usize) -> Vec<NamedRunner> {
    // What is behind the name of a script is the script's own.
    let options = &args[..args.len() - after_options(args, "").len()];
    if options.iter().any(|word| word == "--test") {
        return not_a_question(args, one("node --test", RunKind::Test));
    }
    let at = args.iter().position(|word| word.contains("node_modules"));
    let Some((script, rest)) = at.and_then(|at| args[at..].split_first()) else {
        return Vec::new();
    };
    let file = program(script);
    let stem = file.trim_start_matches('_').split('.').next().unwrap_or(file);
    let words: Vec<String> = [stem.to_owned()].into_iter().chain(rest.iter().cloned()).collect();
    unwrap(&words, wrappers)
}

fn is_python(name: &str) -> bool {
    let rest = name.strip_prefix("python").or_else(|| name.strip_prefix("pypy"));
    name == "py"
        || name.eq_ignore_ascii_case("$python")
        || rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
}
