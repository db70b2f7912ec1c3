//! Calls of a server's tools are recorded like all calls: the next daemon settles what a daemon
//! leaves undone.

use serde_json::{Value, json};

use super::{BOTH, SOON, body, entry, failed, in_session, in_state, said, session, with_servers};
use crate::daemon::{Daemon, Home, until};
use crate::wire::Caller;

/// Begins a call in a session, and returns the id with which its stream is resumed.
#[track_caller]
fn begun(caller: &Caller, session: &str, tool: &str, value: &str) -> String {
    let request = json!({ "jsonrpc": "2.0", "id": tool, "method": "tools/call", "params": {
        "name": format!("toy__{tool}"), "arguments": { "value": value },
    } });
    let stream = in_session(caller, session, &request).follow().expect("an answer");
    let first = stream.expect("a stream").block().expect("it goes on").expect("a first event");
    first.id.expect("an id before there is an answer")
}

/// The response on a resumed stream.
#[track_caller]
fn answer_after(caller: &Caller, session: &str, last: &str) -> Value {
    let request = caller
        .request("GET", "/mcp")
        .header("Accept", "text/event-stream")
        .header("Mcp-Session-Id", session)
        .header("MCP-Protocol-Version", "2025-11-25")
        .header("Last-Event-ID", last);
    request.follow().expect("an answer").expect("a stream").message()
}

#[test]
fn interrupted_call_gets_its_response_from_the_next_daemon() {
    let ends: [fn(&mut Daemon); 2] = [
        |d| d.kill9(),
        |d| {
            d.stop();
        },
    ];
    for end in ends {
        let home = Home::new();
        let mut d = with_servers(&home, &json!({ "toy": entry(&home, &["looks"]) }));
        in_state(&d, "toy", "connected");
        let id = session(&d, &json!({}));
        let file = home.user().join("now").display().to_string();
        let looks = begun(&d, &id, "look", &file);
        let writes = begun(&d, &id, "hold", &file);
        end(&mut d);
        d.restart();
        // A read-only call is repeated.
        std::fs::write(&file, "").expect("can be written");
        assert_eq!(said(&answer_after(&d, &id, &looks)), "looked");
        // A call that may have had effects is not repeated.
        let error = failed(&answer_after(&d, &id, &writes));
        assert_eq!(error["allowed"]["outcome"], "unknown", "{error}");
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains("toy__hold")),
            "{error}"
        );
    }
}

#[test]
fn shutdown_reports_an_unknown_outcome_for_non_idempotent_calls() {
    let home = Home::new();
    let mut d = with_servers(&home, &json!({ "toy": entry(&home, &["looks"]) }));
    in_state(&d, "toy", "connected");
    let heard = |tool: &str, value: &str| {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": format!("toy__{tool}"), "arguments": { "value": value },
        } });
        let request = d.request("POST", "/mcp").header("Accept", "application/json").json(&request);
        std::thread::spawn(move || body(&request.send()))
    };
    let files = ["one", "two"].map(|name| home.user().join(name).display().to_string());
    let (writes, looks) = (heard("hold", &files[0]), heard("look", &files[1]));
    // Both have reached the server.
    let begun = |file: &str| std::path::Path::new(&format!("{file}.begun")).exists();
    until(SOON, || files.iter().all(|file| begun(file)).then_some(()));
    d.stop();
    let (writes, looks) = (writes.join().expect("an answer"), looks.join().expect("an answer"));
    assert!(writes.contains(r#""retryable":false"#) && writes.contains("unknown"), "{writes}");
    assert!(looks.contains(r#""retryable":true"#), "{looks}");
}

#[test]
fn slow_child_call_becomes_a_task_for_a_capable_client() {
    let home = Home::new();
    let servers = json!({ "toy": entry(&home, &["looks"]) });
    let d =
        Daemon::with(|plan| plan.home(&home).servers(&servers).env("SVC_MCP_TASK_AFTER_MS", "200"));
    in_state(&d, "toy", "connected");
    let modern = |method: &str, name: &str, mut params: Value| {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": { "extensions": { "io.modelcontextprotocol/tasks": {} } },
        });
        let request = json!({ "jsonrpc": "2.0", "id": 6, "method": method, "params": params });
        let request = d.request("POST", "/mcp").header("Accept", BOTH).json(&request);
        let request = request.header("MCP-Protocol-Version", "2026-07-28");
        let text = body(&request.header("Mcp-Method", method).header("Mcp-Name", name).send());
        let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
        let answer: Value = serde_json::from_str(last.unwrap_or(&text)).expect("JSON");
        answer["result"].clone()
    };
    let file = home.user().join("later").display().to_string();
    let arguments = json!({ "name": "toy__look", "arguments": { "value": file } });
    let made = modern("tools/call", "toy__look", arguments);
    assert_eq!((&made["resultType"], &made["status"]), (&json!("task"), &json!("working")));
    let task = made["taskId"].as_str().expect("an id");
    std::fs::write(&file, "").expect("can be written");
    let done = until(SOON, || {
        let task = modern("tasks/get", task, json!({ "taskId": task }));
        Some(task).filter(|task| task["status"] == "completed")
    });
    assert_eq!(done["result"]["content"][0]["text"], "looked", "{done}");
}
