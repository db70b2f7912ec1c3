//! A quick run measures every scenario. How fast anything is, is no matter of a test.

use std::{path::Path, process::Command};

use serde_json::Value;

/// The daemon that cargo builds with this test: an example of this package, next to its programs.
fn svc() -> std::path::PathBuf {
    let programs = Path::new(env!("CARGO_BIN_EXE_svc-bench")).parent().expect("a folder");
    programs.join("examples/svc")
}

#[test]
fn a_quick_bench_measures_everything_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_svc-bench"))
        .args(["--quick", "--json", "--svc"])
        .arg(svc())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("TMPDIR", folder.path())
        .output()
        .expect("it runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
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
    ] {
        let named =
            |result: &&Value| result["name"].as_str().is_some_and(|it| it.starts_with(scenario));
        let some = results.iter().filter(named).any(|it| it["value"].as_f64() > Some(0.0));
        assert!(some, "{scenario} measured nothing");
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
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    assert!(left.is_empty(), "{left:?}");
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
