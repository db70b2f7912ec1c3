//! `svc bench` runs to its end and says what it measured. How fast anything is, is no matter of a test.

use std::time::Duration;

use serde_json::Value;

use crate::daemon::{Home, Running};

#[test]
fn a_quick_bench_measures_everything_and_leaves_nothing_behind() {
    let home = Home::new();
    let mut command = home.command(&["bench", "--quick", "--json"]);
    command.env("TMPDIR", home.user());
    let ran = Running::spawn(command).wait(Duration::from_mins(3));
    let document = ran.json();
    assert_eq!(document["quick"], Value::Bool(true));
    assert!(document["machine"]["cores"].as_u64() > Some(0), "{document}");
    let results = document["results"].as_array().expect("a list");
    for scenario in [
        "append-inproc",
        "append-http",
        "fanout",
        "mixed",
        "replay",
        "startup",
        "memory",
        "retrieval",
        "mcp-call",
        "mcp-memory",
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
    let left: Vec<_> = std::fs::read_dir(home.user())
        .expect("the folder")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("svc-bench"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
