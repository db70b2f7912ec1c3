//! The commands on pages: each block is run, or it says why it cannot be and names only commands
//! that exist.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::daemon::{Home, PATIENT, Ran, Running, svc};
use crate::pages::{Page, pages, root, wrong_with};

/// The marks of the README's first block, which `.ci/run` reads.
const OPENING: &str = "cargo run --release -- serve\ncargo test --locked\n";

/// Programs that pages need beside `svc`.
const TOOLS: [&str; 4] = ["bash", "curl", "jq", "sqlite3"];

fn is_run(info: &str) -> bool {
    matches!(info, "sh tour" | "sh check")
}

/// The runnable blocks of a page, in order, as one script.
fn script(page: &Page) -> String {
    let blocks = page.blocks();
    blocks.iter().filter(|block| is_run(&block.info)).map(|block| block.text.as_str()).collect()
}

/// Runs a page in a home of its own, without listening on a port that another program may have.
fn run(page: &Page) -> (Home, Ran) {
    let home = Home::new();
    // The data folder is `~/.local/share/svc`, as pages say, and at the same time the one that the
    // test's home cleans up.
    std::fs::create_dir_all(home.user().join(".local")).expect("a folder");
    std::os::unix::fs::symlink(home.user(), home.user().join(".local/share")).expect("a link");
    let setting = "set -euo pipefail\n\
                   mktemp() { mkdir -p \"$HOME/svc\"; echo \"$HOME/svc\"; }\n\
                   trap 'svc stop >/dev/null 2>&1 || true' EXIT\n";
    let binary = Path::new(env!("CARGO_BIN_EXE_svc")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command
        .args(["-c", &format!("{setting}{}", script(page))])
        .env_clear()
        .env("PATH", format!("{}:{path}", binary.display()))
        .env("HOME", home.user())
        .env("SVC_LISTEN", "127.0.0.1:0")
        // A build without optimisation on a busy machine would miss a hook's deadline.
        .envs([PATIENT])
        .current_dir(home.user());
    let finished = Running::spawn(command).wait(Duration::from_mins(2));
    (home, finished)
}

fn is_installed(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[expect(clippy::print_stdout, reason = "who skips a test says so")]
fn has_tools() -> bool {
    let missing: Vec<_> = TOOLS.into_iter().filter(|tool| !is_installed(tool)).collect();
    if !missing.is_empty() {
        println!("skipped: the commands of the pages were not run ({missing:?} not installed)");
    }
    missing.is_empty()
}

#[test]
fn tour_commands_work_as_printed() {
    only_if!(has_tools());
    let (home, finished) = run(&Page::named("docs/guide/tour.md"));
    let printed = finished.ok();
    for expected in [
        "is main green?",
        "\"acked\"",
        "event: frame",
        "event: terminal",
        "exit code 3",
        "building",
        "peer.registered",
        "waited_seconds",
    ] {
        assert!(printed.contains(expected), "{expected:?} in {finished:?}");
    }
    // After the crash the watcher resumed after its last event, and the repeated line was not
    // doubled.
    let resumed = printed.rsplit("retry: 1000").next().unwrap_or_default();
    assert!(!resumed.contains("\"line\":\"one\""), "{resumed}");
    assert!(!resumed.contains("id: 6\n"), "five events and no sixth: {resumed}");
    assert!(!home.path("daemon.json").exists(), "the tour ends with the daemon stopped");
}

#[test]
fn readme_example_survives_the_kill() {
    only_if!(has_tools());
    let (home, finished) = run(&Page::named("README.md"));
    let printed = finished.ok();
    let (before, after) = printed.rsplit_once("started: ").expect("it starts twice");
    assert!(before.contains("started: "), "{finished:?}");
    for (part, name) in [(before, "before"), (after, "after")] {
        assert!(part.contains("The tests of web are green."), "{name} the kill: {finished:?}");
    }
    assert!(after.contains("building\ndone"), "{finished:?}");
    assert!(!home.path("daemon.json").exists(), "it ends with the daemon stopped");
}

#[test]
fn every_command_of_every_other_page_works_as_printed() {
    only_if!(has_tools());
    let known = ["docs/guide/tour.md", "README.md"];
    let pages: Vec<Page> =
        pages().into_iter().filter(|page| !known.contains(&page.name.as_str())).collect();
    let runnable: Vec<&Page> = pages.iter().filter(|page| !script(page).is_empty()).collect();
    assert!(runnable.len() > 6, "the guide shows commands");
    // A few at a time: each has a daemon.
    let problems: Vec<String> = runnable
        .chunks(3)
        .flat_map(|some| {
            thread::scope(|scope| {
                let running: Vec<_> =
                    some.iter().map(|page| scope.spawn(move || problem_of(page))).collect();
                let ended = running.into_iter().map(|it| it.join().expect("a page was run"));
                ended.flatten().collect::<Vec<String>>()
            })
        })
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Runs a page and returns its mistakes.
fn problem_of(page: &Page) -> Option<String> {
    let (home, finished) = run(page);
    let leaves_a_daemon = home.path("daemon.json").exists();
    match finished.code {
        Some(0) if leaves_a_daemon => Some(format!("{} leaves a daemon", page.name)),
        Some(0) => None,
        _ => Some(format!("{}: {finished:?}", page.name)),
    }
}

#[test]
fn recordings_match_the_programs_output() {
    let missing: Vec<_> =
        ["python3", "jq"].into_iter().filter(|tool| !is_installed(tool)).collect();
    if !missing.is_empty() {
        println!("skipped: the recordings in docs were not compared ({missing:?} not installed)");
        return;
    }
    let home = Home::new();
    let mut command = Command::new(root().join("docs/record"));
    command
        .args(["--check", "--svc", env!("CARGO_BIN_EXE_svc")])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.user())
        .env("TMPDIR", home.user());
    // Twenty commands and two daemons, beside all other tests.
    let compared = Running::spawn(command).wait(Duration::from_mins(5));
    assert_eq!(compared.code, Some(0), "docs/record makes it anew\n{compared:?}");
}

#[test]
fn every_command_block_is_run_or_has_a_reason() {
    let mut problems = Vec::new();
    for page in pages() {
        for block in page.blocks() {
            let place = format!("{}:{}", page.name, block.line);
            let language = block.info.split(' ').next().unwrap_or_default();
            let reason = block.info.strip_prefix("sh manual:").map(str::trim);
            match language {
                "sh" if is_run(&block.info) => {}
                "sh" if reason.is_some_and(|reason| reason.len() > 5) => {
                    problems.extend(wrong_lines(&block.text).map(|it| format!("{place}: {it}")));
                }
                "sh" if page.name == "README.md" && block.text == OPENING => {}
                "json" => {
                    let parsed = serde_json::from_str::<serde_json::Value>(&block.text);
                    problems.extend(parsed.err().map(|error| format!("{place}: {error}")));
                }
                "toml" => {
                    problems.extend(wrong_settings(&block.text).map(|it| format!("{place}: {it}")));
                }
                "text" | "http" | "sql" => {}
                _ => problems.push(format!("{place}: marked `{}`, and so not checked", block.info)),
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The mistakes in the calls of `svc` in a block.
fn wrong_lines(block: &str) -> impl Iterator<Item = String> {
    let whole = block.replace("\\\n", " ");
    let calls: Vec<String> = whole
        .lines()
        .flat_map(|line| line.split(['|', ';', '&']))
        .map(|call| call.trim().to_owned())
        .filter(|call| call.starts_with("svc "))
        .collect();
    calls.into_iter().filter_map(|call| wrong_with(&call))
}

/// The mistakes in an example of a configuration file.
fn wrong_settings(text: &str) -> Option<String> {
    let home = Home::new();
    home.write("config.toml", text);
    let path = home.path("config.toml");
    let path = path.to_str().expect("UTF-8");
    let checked = svc(&home, &["config", "check", path]);
    (checked.code != Some(0)).then(|| format!("{checked:?}"))
}

#[test]
fn inline_commands_exist() {
    let mut problems = Vec::new();
    let mut count = 0;
    for page in pages() {
        for code in page.inline_code().filter(|code| code.starts_with("svc ")) {
            count += 1;
            problems.extend(wrong_with(code).map(|it| format!("{}: {it} ({code})", page.name)));
        }
    }
    assert!(count > 50, "{count}");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_link_resolves() {
    let mut problems = Vec::new();
    let pages = pages();
    for page in &pages {
        for line in page.prose() {
            for link in line.split("](").skip(1) {
                let target = link.split(')').next().unwrap_or_default();
                if target.contains("://") {
                    continue;
                }
                let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
                let path = match file {
                    "" => root().join(&page.name),
                    file => page.folder().join(file),
                };
                let Ok(path) = path.canonicalize() else {
                    problems.push(format!("{}: {target} is not there", page.name));
                    continue;
                };
                let real_root = root().canonicalize().expect("the root");
                let name =
                    path.strip_prefix(&real_root).expect("links stay inside").display().to_string();
                let has = |page: &Page| page.anchors().iter().any(|it| it == fragment);
                if !fragment.is_empty() && !pages.iter().any(|it| it.name == name && has(it)) {
                    problems.push(format!("{}: {target} has no such heading", page.name));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_page_is_reached_from_the_contents() {
    let contents = Page::named("docs/README.md");
    let decisions = Page::named("docs/decisions/README.md");
    for page in pages() {
        let Some(below) = page.name.strip_prefix("docs/") else { continue };
        let (list, name) = match below.strip_prefix("decisions/") {
            Some(name) if name != "README.md" => (&decisions, name),
            _ => (&contents, below),
        };
        let is_listed = list.text.contains(&format!("({name})"));
        assert!(is_listed || below == "README.md", "{} is not in {}", page.name, list.name);
    }
    let readme = Page::named("README.md");
    assert!(readme.text.contains("docs/README.md"), "the README leads to the contents");
    assert!(readme.text.lines().count() <= 150, "the README is one screen and a start");
}
