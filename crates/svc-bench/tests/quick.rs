//! A quick run measures every scenario. How fast anything is, is no matter of a test.

use std::{path::Path, process::Command};

use serde_json::Value;

/// The daemon that cargo builds with this test: an example of this package, next to its programs.
fn svc() -> std::path::PathBuf {
    let programs = Path::new(env!("CARGO_BIN_EXE_svc-bench")).parent().expect("a folder");
    programs.join("examples/svc")
}

/// What the program prints for these arguments. It leaves nothing behind.
fn measure(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    // Where we are root, PostgreSQL runs as another user, who has to come through.
    let passable = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(folder.path(), passable).expect("it is ours");
    let output = Command::new(env!("CARGO_BIN_EXE_svc-bench"))
        .args(arguments)
        .arg("--svc")
        .arg(svc())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("TMPDIR", folder.path())
        .output()
        .expect("it runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    assert!(left.is_empty(), "{left:?}");
    serde_json::from_slice(&output.stdout).expect("a document")
}

/// Whether a scenario has a figure above 0.
fn has_measured(document: &Value, scenario: &str) -> bool {
    let results = document["results"].as_array().expect("a list");
    let named =
        |result: &&Value| result["name"].as_str().is_some_and(|it| it.starts_with(scenario));
    // A round trip may take longer than its window on a busy machine; that it was answered is
    // checked where it is measured.
    let is_measured =
        |it: &Value| it["value"].as_f64() > Some(0.0) || it["unit"] == "round trips/s";
    results.iter().filter(named).any(is_measured)
}

#[test]
fn a_quick_bench_measures_everything_and_leaves_nothing_behind() {
    let document = measure(&["--quick", "--json"]);
    assert_eq!(document["quick"], Value::Bool(true));
    assert!(document["machine"]["cores"].as_u64() > Some(0), "{document}");
    let results = document["results"].as_array().expect("a list");
    for scenario in [
        "append-inproc",
        "check-in",
        "append-http",
        "fanout",
        "mixed",
        "replay",
        "startup",
        "memory",
        "retrieval",
        "binary",
        "mcp-call",
        "hook",
        "mcp-memory",
        "neighbour",
        "floods/readers that do not read",
        "floods/large pages of tasks",
        "floods/searches of memories",
        "floods/bodies without a token",
        "floods/half-open connections",
        "floods/broadcasts of 1 MB",
        "floods/a child's standard error",
        "floods/a child's changes of its list",
        "agents/line to watcher",
        "agents/lines to the spool",
        "agents/host",
        "sessions/round trip",
    ] {
        // A window of a few milliseconds may see nothing on a busy machine, and many will not.
        let alone = ["--quick", "--json", "--only", scenario.split('/').next().expect("a name")];
        let is_measured = has_measured(&document, scenario)
            || (0..10).any(|_| has_measured(&measure(&alone), scenario));
        assert!(is_measured, "{scenario} measured nothing");
    }
    for result in results {
        // On a busy machine a window of a few milliseconds may see nothing; but it was measured.
        assert!(result["value"].as_f64() >= Some(0.0), "{result}");
        assert!(result["unit"].is_string(), "{result}");
        if let Some(ratio) = result.get("ratio").filter(|ratio| !ratio.is_null()) {
            assert!(ratio.is_number() && result["beside"]["name"].is_string(), "{result}");
        }
        // A miss is told as one: whoever has a goal says whether it is met.
        assert_eq!(result["goal"].is_null(), result["met"].is_null(), "{result}");
    }
}

#[test]
fn the_growth_of_each_operation_is_measured() {
    let document =
        measure(&["growth", "--share", "0.002", "--times", "2", "--rest", "0", "--json"]);
    let memory = document["memory"].as_array().expect("a list");
    assert_eq!(memory.len(), 3, "{document}");
    assert!(memory.iter().all(|at| at["anonymous"].as_f64() > Some(0.0)), "{document}");
    let lines = document["lines"].as_array().expect("a list");
    assert!(lines.iter().any(|line| line["name"] == "calibration"), "{lines:?}");
    for line in lines {
        let sizes = line["sizes"].as_array().expect("a list");
        assert_eq!(sizes.len(), 3, "{line}");
        assert!(sizes.iter().all(|times| times[0].as_f64() > Some(0.0)), "{line}");
    }
}

#[test]
fn a_quick_fleet_measures_what_each_agent_costs() {
    let document = measure(&["fleet", "--quick", "--json"]);
    let fleets = document["fleets"].as_array().expect("a list");
    assert_eq!(fleets.len(), 2, "with the programs and without: {document}");
    for (fleet, direct) in fleets.iter().zip([false, true]) {
        assert_eq!(fleet["direct"], Value::Bool(direct), "{fleet}");
        for figure in ["hooks", "hook_p99_ms", "messages", "delivery_p99_ms", "disk_mib_day"] {
            assert!(fleet[figure].as_f64() > Some(0.0), "{figure}: {fleet}");
        }
    }
    let programs = &fleets[0];
    for figure in ["daemon_cpu_ms", "hooks_cpu_ms", "programs_mib", "daemon_mib"] {
        assert!(programs[figure].as_f64() > Some(0.0), "{figure}: {programs}");
    }
}

#[test]
fn servers_that_are_installed_are_measured_beside_it() {
    let only = ["peers-append", "peers-mixed", "peers-replay"].map(|name| ["--only", name]);
    let document = measure(&[&["--quick", "--json", "--peers"], only.as_flattened()].concat());
    let said = document["machine"]["peers"].to_string();
    let results = document["results"].as_array().expect("a list");
    let measured = |scenario: &str, peer: &str| {
        results.iter().any(|result| {
            result["name"].as_str().is_some_and(|name| name.starts_with(scenario))
                && result["beside"]["name"] == peer
                && result["beside"]["value"].as_f64() > Some(0.0)
        })
    };
    for (absent, server, scenarios) in [
        ("redis-server: ", "Redis always", &["peers-append", "peers-mixed", "peers-replay"][..]),
        ("redis-server: ", "Redis always, PUBLISH", &["peers-append", "peers-mixed"]),
        ("postgres: ", "PostgreSQL", &["peers-append", "peers-mixed", "peers-replay"]),
    ] {
        if said.contains(absent) {
            println!("skipped: {said}");
            continue;
        }
        for scenario in scenarios {
            assert!(measured(scenario, server), "{server} in {scenario}: {document}");
        }
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_svc-bench"))
        .args(["--quick", "--only", "startup", "--svc", "/nowhere/svc"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(complaint, "error: there is no program /nowhere/svc\n");
}

/// A program that begins 300 ms later is worse at its start, and a replay through it is compared,
/// too.
#[test]
fn a_comparison_names_the_lines_that_are_worse() {
    let folder = tempfile::tempdir().expect("a folder");
    let slow = folder.path().join("svc");
    let script = format!("#!/bin/sh\nsleep 3\nexec '{}' \"$@\"\n", svc().display());
    std::fs::write(&slow, script).expect("a script");
    let runnable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&slow, runnable).expect("a program");
    let work = folder.path().join("work");
    std::fs::create_dir(&work).expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_svc-bench"))
        .args(["compare", "--quick", "--json"])
        .args(["--only", "startup", "--only", "replay", "--only", "append-inproc"])
        .args([svc(), slow])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("TMPDIR", &work)
        .output()
        .expect("it runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(document["turns"], 2, "{document}");
    let lines = document["lines"].as_array().expect("a list");
    let line = |name: &str| {
        let named = lines.iter().find(|line| line["name"] == name);
        named.unwrap_or_else(|| panic!("no line {name} in {document}"))
    };
    let start = line("startup/empty");
    assert_eq!(start["verdict"], "worse", "{start}");
    assert!(start["second"].as_f64() > start["first"].as_f64().map(|ms| ms + 1000.0), "{start}");
    assert!(line("replay/20000")["first"].as_f64() > Some(0.0), "{document}");
    // What is measured within svc-bench cannot be seen through a program, and no svc-bench stands
    // beside the script.
    let left_out = document["left_out"].as_array().expect("a list");
    assert_eq!(left_out.len(), 1, "{document}");
    assert!(left_out[0].as_str().is_some_and(|why| why.starts_with("append-inproc: ")));
    let left = std::fs::read_dir(&work).expect("the folder").count();
    assert_eq!(left, 0, "something was left behind");
}
