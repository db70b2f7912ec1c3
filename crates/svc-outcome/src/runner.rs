//! Which test run, build or check a shell command is, inside its wrappers.

use super::shell::{LineStatus, is_assignment, is_one_of, program, simple_commands, skip_options};
use super::tools::{NamedRunner, RunKind, direct, not_a_question, one, script_kind};

const MAX_WRAPPERS: usize = 16;

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
    for (n, simple) in commands.iter().enumerate() {
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

/// The runners of a simple command, inside `env`, `timeout`, `uv run`, `bash -c` and the like.
fn unwrap(words: &[String], wrappers: usize) -> Vec<NamedRunner> {
    let Some(at) = words.iter().position(|word| !is_assignment(word)) else {
        return Vec::new();
    };
    let (name, args) = (program(&words[at]), &words[at + 1..]);
    let Some(wrappers) = wrappers.checked_sub(1) else {
        return Vec::new();
    };
    let within = |words: &[String]| unwrap(words, wrappers);
    let after = |valued: &str| within(skip_options(args, valued));
    match name {
        "env" | "cross-env" => after("-u --unset -C --chdir"),
        "timeout" | "gtimeout" => {
            let rest = skip_options(args, "-k --kill-after -s --signal");
            let mut found = within(rest.get(1..).unwrap_or_default());
            for found in &mut found {
                found.timed = true;
            }
            found
        }
        "time" => after("-f --format -o --output"),
        "nice" | "ionice" => after("-n -c --adjustment --class"),
        "stdbuf" => after("-i -o -e"),
        "sudo" | "doas" => after("-u -g -C -D"),
        "xargs" => after("-n -P -I -d -L -s -a"),
        "xvfb-run" => after("-s --server-args -n -e"),
        "nohup" | "exec" | "command" | "setsid" => after("-a"),
        "eval" => runners_within(&args.join(" "), wrappers),
        "bash" | "sh" | "zsh" | "dash" | "ksh" => {
            let flag = args.iter().position(|word| {
                word.starts_with('-') && !word.starts_with("--") && word.ends_with('c')
            });
            let script = flag.and_then(|flag| args.get(flag + 1));
            script.map_or_else(Vec::new, |script| runners_within(script, wrappers))
        }
        "docker" | "podman" | "docker-compose" | "kubectl" => in_container(args, wrappers),
        "uvx" => after("--with --from --python -p"),
        "uv" | "poetry" | "pipenv" | "pdm" | "hatch" | "pixi" | "pipx" | "conda" | "bundle"
        | "mise" | "coverage" => of_environment(name, args, wrappers),
        "npx" | "bunx" | "pnpx" => after("-p --package -c --call -w --workspace"),
        "npm" | "pnpm" | "yarn" | "bun" => of_scripts(name, args, wrappers),
        "node" => of_node(args, wrappers),
        _ if is_python(name) => of_python(args, wrappers),
        _ => direct(name, args),
    }
}

/// `docker compose exec app pytest`, `docker run image pytest`, `kubectl exec pod -- pytest`.
fn in_container(args: &[String], wrappers: usize) -> Vec<NamedRunner> {
    const VALUED: &str = "-e --env -u --user -w --workdir -v --volume -p --publish --name --network \
        --entrypoint --platform --mount --env-file --index -c -n -m --memory --cpus";
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
    const VALUED: &str = "-n --name -p --prefix --python --with --extra --group --project --directory -C \
        --env-file --package --from -e --environment --spec --source --rcfile \
        --with-requirements --only-group --with-editable";
    let args = skip_options(args, VALUED);
    let Some((verb, rest)) = args.split_first() else {
        return Vec::new();
    };
    match (name, verb.as_str()) {
        ("uv", "tool") => of_environment(name, rest, wrappers),
        ("coverage", "run") => of_python(rest, wrappers),
        (_, "run" | "exec" | "x") => {
            let rest = skip_options(rest, VALUED);
            // `mise exec node@20 -- npm test`
            let rest = match rest.iter().position(|word| word == "--") {
                Some(at) if name == "mise" => &rest[at + 1..],
                _ => rest,
            };
            let found = match rest.first().map(String::as_str) {
                // A module, as for `python -m`.
                Some("-m") => of_python(rest, wrappers),
                _ => unwrap(rest, wrappers),
            };
            match rest.first() {
                // A script of the project.
                Some(script)
                    if found.is_empty()
                        && matches!(name, "hatch" | "pdm" | "pixi" | "pipenv" | "mise") =>
                {
                    script_kind(script).map_or_else(Vec::new, |kind| one("script", kind))
                }
                _ => found,
            }
        }
        _ => Vec::new(),
    }
}

/// Package managers of JavaScript: scripts of the project, or installed programs.
fn of_scripts(name: &str, args: &[String], wrappers: usize) -> Vec<NamedRunner> {
    const VALUED: &str = "--prefix -w --workspace --filter -F -C --cwd --dir --config --loglevel";
    const NO_SCRIPTS: &str = "install i ci add remove why info audit publish init link outdated update \
        up pack create config ls list";
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
        verb if is_one_of(verb, NO_SCRIPTS) => Vec::new(),
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
    const VALUED: &str = "-r --require --import --loader -C --conditions -e --eval -p --print";
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
