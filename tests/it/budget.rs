//! What one principal may take of the machine: memory, disk, streams, calls; and that its neighbours do not notice.

use std::fs;

use crate::daemon::Daemon;
use crate::wire::{Caller, Reply};

/// Memory of the daemon, in bytes.
fn resident(d: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", d.pid())).expect("is running");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn initialize(caller: &Caller, capabilities: &str) -> Reply {
    post(
        caller,
        "/mcp",
        &format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-06-18","capabilities":{capabilities}}}}}"#
        ),
    )
}

fn post(caller: &Caller, target: &str, body: &str) -> Reply {
    let request = caller.request("POST", target).header("Content-Type", "application/json");
    request.body(body).send()
}

/// Objects of one member each, which take eighty times their length in memory. `bytes` of text.
fn dense(bytes: usize) -> String {
    format!("[{}0]", r#"{"":0},"#.repeat(bytes / 7))
}

#[test]
fn what_a_client_says_of_itself_takes_no_memory() {
    let d = Daemon::start();
    let agent = d.session("greedy");
    assert_eq!(initialize(&agent, "{}").status(), 200);
    let before = resident(&d);
    let long = format!(r#"{{"experimental":"{}"}}"#, "x".repeat(2_400_000));
    let (heavy, small) =
        [2_400_000, 60_000].map(|bytes| format!(r#"{{"roots":{}}}"#, dense(bytes))).into();
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
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"get_session","_meta":{{"x":{}}}}}}}"#,
        dense(4_000_000)
    );
    assert_eq!(post(&agent, "/mcp", &call).status(), 413, "too many values");
    let task = format!(r#"{{"title":"t","metadata":{{"x":{}}}}}"#, dense(1_000_000));
    assert_eq!(post(&agent, "/v1/tasks", &task).status(), 413, "too many values");
    let grown = resident(&d).saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB for 120 sessions", grown >> 20);
}
