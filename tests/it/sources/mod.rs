//! Child MCP servers: one for all callers, whatever process is killed.

mod asking;
mod calls;
pub(crate) mod commands;
mod core;
mod crash;
mod files;
mod folders;
mod login;
mod processes;
mod record;
mod relay;
mod remote;
mod toy_http;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, until};
use crate::expect::text;
use crate::wire::{Caller, Reply, tool_call};

/// Deadline for what must come, on a machine that is busy with other tests.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// Writes the test server into a home, and returns its file.
fn toy(home: &Home) -> PathBuf {
    let path = home.user().join("toy_server.py");
    fs::write(&path, include_str!("toy_server.py")).expect("can be written");
    path
}

/// The entry of the test server, with these arguments.
fn entry(home: &Home, words: &[&str]) -> Value {
    let mut args = vec![toy(home).display().to_string()];
    args.extend(words.iter().map(|word| (*word).to_owned()));
    json!({ "command": "python3", "args": args })
}

/// A daemon that starts these servers.
pub(super) fn with_servers(home: &Home, servers: &Value) -> Daemon {
    Daemon::with(|plan| plan.home(home).servers(servers))
}

/// Writes the file of a project that names these servers.
pub(super) fn project_file(folder: &Path, servers: &Value) -> PathBuf {
    let file = folder.join(".mcp.json");
    fs::write(&file, json!({ "mcpServers": servers }).to_string()).expect("can be written");
    file
}

/// A server in `/v1/sources`.
pub(super) fn source(caller: &Caller, name: &str) -> Value {
    caller.get(&format!("/v1/sources/{name}")).ok(200)
}

#[track_caller]
pub(super) fn in_state(caller: &Caller, name: &str, state: &str) -> Value {
    until(SOON, || Some(source(caller, name)).filter(|source| source["state"] == state))
}

pub(super) fn call(caller: &Caller, tool: &str, arguments: &Value) -> Value {
    caller.post("/mcp", &tool_call(tool, arguments)).answer()
}

#[track_caller]
pub(super) fn said(answer: &Value) -> String {
    text(&answer["result"]["content"][0], "text")
}

/// Ten calls at the same time, of the server `web`.
fn ten_calls_succeed(caller: &Caller) {
    let calls = (0..10).map(|number: u32| {
        let caller = caller.clone();
        std::thread::spawn(move || {
            said(&call(&caller, "web__echo", &json!({ "value": number.to_string() })))
        })
    });
    for (number, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(call.join().expect("answers"), number.to_string());
    }
}

#[track_caller]
fn failed(answer: &Value) -> Value {
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    answer["result"]["structuredContent"]["error"].clone()
}

pub(super) fn body(reply: &Reply) -> String {
    String::from_utf8_lossy(&reply.body).into_owned()
}

pub(super) fn of_project(d: &Daemon, session: &str, project: &str) -> Caller {
    let input = json!({ "session": session, "project": project });
    d.minted(&input)
}

const BOTH: &str = "application/json, text/event-stream";

/// Opens a session of a legacy client.
pub(super) fn session(caller: &Caller, capabilities: &Value) -> String {
    let open = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": { "name": "t", "version": "1" },
    } });
    let opened = caller.request("POST", "/mcp").header("Accept", BOTH).json(&open).send();
    opened.header("mcp-session-id").expect("a session").to_owned()
}

pub(super) fn in_session(caller: &Caller, session: &str, body: &Value) -> crate::wire::Request {
    let request =
        caller.request("POST", "/mcp").header("Accept", BOTH).header("Mcp-Session-Id", session);
    request.header("MCP-Protocol-Version", "2025-11-25").json(body)
}
