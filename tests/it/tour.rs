//! The README's tour, run line by line as it stands there.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::daemon::{Home, Running};

/// Everything between the fences that are marked as the tour.
fn tour() -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = fs::read_to_string(readme).expect("the README");
    let blocks: Vec<&str> = text
        .split("```sh tour\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default())
        .collect();
    assert!(blocks.len() > 3, "the tour has several parts");
    blocks.concat()
}

fn is_installed(tool: &str) -> bool {
    Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success())
}

#[test]
fn the_tour_in_the_readme_works_as_printed() {
    let missing: Vec<_> =
        ["bash", "curl", "jq", "sqlite3"].into_iter().filter(|tool| !is_installed(tool)).collect();
    if !missing.is_empty() {
        println!("skipped: the README's tour was not taken ({missing:?} not installed)");
        return;
    }
    let home = Home::new();
    // The scratch folder is ours, so that what the tour starts ends with the test.
    let script = format!(
        "set -euo pipefail\nmktemp() {{ mkdir -p \"$HOME/svc\"; echo \"$HOME/svc\"; }}\n{}",
        tour()
    );
    let binary = Path::new(env!("CARGO_BIN_EXE_svc")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    command
        .args(["-c", &script])
        .env_clear()
        .env("PATH", format!("{}:{path}", binary.display()))
        .env("HOME", home.user())
        .current_dir(home.user());
    let ran = Running::spawn(command).wait(Duration::from_mins(1));
    let said = ran.ok();
    for expected in [
        "is main green?",
        "\"acked\"",
        "event: frame",
        "event: terminal",
        "exit code 3",
        "building",
        "peer.registered",
        "daemon.started",
    ] {
        assert!(said.contains(expected), "{expected:?} in {ran:?}");
    }
    // After the crash the watcher resumed behind what it had, and the repeated line was not doubled.
    let resumed = said.rsplit("retry: 1000").next().unwrap_or_default();
    assert!(!resumed.contains("\"line\":\"one\""), "{resumed}");
    assert!(!resumed.contains("id: 6\n"), "five events and no sixth: {resumed}");
    assert!(!home.path("daemon.json").exists(), "the tour ends with the daemon stopped");
}
