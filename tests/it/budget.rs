//! What one principal may take of the machine: memory, disk, streams, calls; and that its neighbours do not notice.

use std::fs;

use serde_json::{Value, json};

use crate::daemon::Daemon;
use crate::wire::{Caller, Reply};

/// Memory of the daemon, in bytes.
fn resident(d: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", d.pid())).expect("is running");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn initialize(caller: &Caller, capabilities: &Value) -> Reply {
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": capabilities });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    caller.request("POST", "/mcp").json(&body).send()
}

/// Objects of one member each, which take eighty times their length in memory. `bytes` of text.
fn dense(bytes: usize) -> Value {
    Value::Array(vec![json!({ "": 0 }); bytes / 7])
}

#[test]
fn what_a_client_says_of_itself_takes_no_memory() {
    let d = Daemon::start();
    let agent = d.session("greedy");
    assert_eq!(initialize(&agent, &json!({})).status(), 200);
    let before = resident(&d);
    let long = json!({ "experimental": "x".repeat(2_400_000) });
    let (heavy, small) = (json!({ "x": dense(2_400_000) }), json!({ "roots": dense(60_000) }));
    for (capabilities, status, said) in
        [(&long, 413, "65536 bytes"), (&heavy, 413, "too many values"), (&small, 200, "")]
    {
        for _ in 0..40 {
            let reply = initialize(&agent, capabilities);
            assert_eq!(reply.status(), status, "{reply:?}");
            let error = &reply.json()["error"]["message"];
            assert!(error.as_str().unwrap_or_default().contains(said), "{error}");
        }
    }
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "get_session", "arguments": {}, "_meta": { "x": dense(4_000_000) } } });
    let reply = agent.request("POST", "/mcp").json(&call).send();
    assert_eq!(reply.status(), 413, "too many values: {:?}", reply.head);
    let body = json!({ "title": "t", "metadata": { "x": dense(1_000_000) } });
    assert_eq!(agent.request("POST", "/v1/tasks").json(&body).send().status(), 413);
    let grown = resident(&d).saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB for 120 sessions", grown >> 20);
}
