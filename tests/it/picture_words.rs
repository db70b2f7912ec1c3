//! The messages of commands and tools are true: refusals that say how a person lifts them, a daemon
//! that starts and stops as announced, and unambiguous flags.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Home, eventually, free_port, svc, svc_with_input};
use crate::identity::FakeClient;

const SOON: Duration = Duration::from_secs(20);

/// The failure of a tool.
#[track_caller]
fn refused(client: &mut FakeClient, tool: &str, arguments: &Value) -> (String, String) {
    let answer = client.call(tool, arguments);
    let error = &answer["result"]["structuredContent"]["error"];
    let text = |name: &str| error[name].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    (text("type"), text("message"))
}

/// A home whose daemon does not take the port of another.
fn home() -> Home {
    let home = Home::new();
    home.write("config.toml", &format!("listen = [\"127.0.0.1:{}\"]\n", free_port()));
    home
}

#[cfg(target_os = "linux")]
#[test]
fn missing_scope_error_says_how_to_grant_it() {
    let d = Daemon::start();
    let mut before = FakeClient::begun(&d.home, "claude", "p", "s-before");
    let work = json!({ "prompt": "x", "agent": "no-such-agent" });
    let delegated = json!({ "name": "SendMessage", "arguments": work });
    let child = json!({ "task": "x", "agentId": "no-such-agent" });
    for (tool, arguments) in
        [("SendMessage", &work), ("ToolCall", &delegated), ("sessions_spawn", &child)]
    {
        let (kind, message) = refused(&mut before, tool, arguments);
        assert_eq!(kind, "forbidden", "{tool}: {message}");
        for words in ["the scope `agents`", "svc install --scope agents", "restarts this session"] {
            assert!(message.contains(words), "{tool}: {message}");
        }
    }

    // All terminals of Codex are one process, so another terminal is not enough there.
    let mut codex = FakeClient::begun(&d.home, "codex", "p", "s-codex");
    let (_, message) = refused(&mut codex, "SendMessage", &work);
    assert!(message.contains("codex app-server daemon stop"), "{message}");

    let planned = svc(&d.home, &["install", "claude-code", "--scope", "agents", "--dry-run"]);
    assert!(planned.ok().contains("+scopes = [\"agents\"]"), "{planned:?}");
    assert!(!d.home.path("config.toml").exists(), "nothing is written");
    let granted = svc(&d.home, &["install", "claude-code", "--scope", "agents"]);
    assert!(granted.ok().contains("have the scope agents; restart open ones"), "{granted:?}");
    assert!(!granted.ok().contains("app-server"), "{granted:?}");
    let scopes = ["--scope", "approve", "--scope", "agents"];
    let both = svc(&d.home, &[&["install", "claude-code", "codex"][..], &scopes].concat());
    assert!(both.ok().contains("`codex app-server daemon stop` ends it"), "{both:?}");
    let config = String::from_utf8(d.home.read("config.toml")).expect("text");
    assert!(config.contains("scopes = [\"agents\", \"approve\"]"), "{config}");

    // The daemon goes on, and earlier sessions keep their rights.
    assert_eq!(refused(&mut before, "SendMessage", &work).0, "forbidden");
    let mut after = FakeClient::begun(&d.home, "gemini", "p", "s-after");
    for (tool, arguments) in [("SendMessage", &work), ("sessions_spawn", &child)] {
        let (kind, message) = refused(&mut after, tool, arguments);
        assert_eq!(kind, "validation_error", "{tool}: {message}");
    }
    // Earlier versions used the flag for something else.
    let files = svc(&d.home, &["install", "claude-code", "--scope", "project"]);
    assert_eq!(files.code, Some(2));
    assert!(files.stderr.contains("--project"), "{files:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn configuration_bounds_what_tool_call_reaches() {
    let mut d = Daemon::start();
    d.home.write("config.toml", "[sources]\ntool_call = [\"peer_*\"]\n");
    d.restart();
    let mut client = FakeClient::begun(&d.home, "claude", "p", "s");
    let answer = client.call("ToolCall", &json!({ "name": "peer_list" }));
    let called = json!({ "svc/server": "svc", "svc/tool": "peer_list" });
    assert_eq!(answer["result"]["_meta"]["svc/tool"], called["svc/tool"], "{answer}");
    assert_eq!(answer["result"]["_meta"]["svc/server"], called["svc/server"], "{answer}");
    assert!(answer["result"]["structuredContent"]["peers"].is_array(), "{answer}");
    let (kind, message) = refused(&mut client, "ToolCall", &json!({ "name": "TaskList" }));
    assert_eq!(kind, "forbidden", "{message}");
    assert!(message.contains("tool_call under [sources]"), "{message}");
    client.ok("TaskList", &json!({}));
    let ran = svc(&d.home, &["tools", "call", "ToolCall", "--arg", "name=TaskList"]);
    assert!(ran.ok().contains("tasks"), "the operator is not bounded: {ran:?}");
}

#[test]
fn install_starts_the_daemon_and_the_last_uninstall_stops_it() {
    let home = home();
    let told = svc(&home, &["install", "claude-code", "--no-start"]);
    assert!(told.ok().contains("`svc start` or a client's next session"), "{told:?}");
    assert!(home.daemon_json().is_none());
    let told = svc(&home, &["install", "claude-code", "codex"]);
    assert!(told.ok().contains("started the daemon: http://127.0.0.1:"), "{told:?}");
    let daemon = home.daemon_json().expect("it runs");

    let told = svc(&home, &["uninstall", "codex"]);
    assert!(!told.ok().contains("was stopped"), "a client is left: {told:?}");
    assert_eq!(home.daemon_json().expect("it runs")["pid"], daemon["pid"]);
    let told = svc(&home, &["uninstall", "--no-stop"]);
    let stays = format!("stay in {}", home.dir().display());
    assert!(told.ok().contains(&stays) && told.stdout.contains("config.toml"), "{told:?}");
    assert_eq!(home.daemon_json().expect("it runs")["pid"], daemon["pid"]);

    svc(&home, &["install", "claude-code"]).ok();
    let told = svc(&home, &["uninstall"]);
    assert!(told.ok().contains("no client is left, so the daemon was stopped"), "{told:?}");
    assert!(home.daemon_json().is_none());
    assert!(!home.rows("select * from stream").is_empty(), "what was recorded stays");
}

#[test]
fn stop_names_running_agents_and_stay_keeps_the_daemon_stopped() {
    let home = home();
    let begin = || {
        let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "t", "version": "1" },
        } });
        let said = svc_with_input(&home, &["stdio"], format!("{initialize}\n").as_bytes());
        serde_json::from_str::<Value>(said.stdout.lines().next().unwrap_or_default())
            .unwrap_or_else(|_| panic!("{said:?}"))
    };
    svc(&home, &["start"]).ok();
    let told = svc(&home, &["stop"]);
    assert!(
        told.ok().contains("the next prompt in a connected client starts it again"),
        "{told:?}"
    );
    assert!(told.stdout.contains("`svc stop --stay` keeps it stopped"), "{told:?}");
    assert_eq!(begin()["result"]["serverInfo"]["name"], "svc", "a client starts it");

    let told = svc(&home, &["stop", "--stay"]);
    assert!(told.ok().contains("it stays stopped until `svc start`"), "{told:?}");
    let prompt = json!({ "session_id": "s", "hook_event_name": "UserPromptSubmit",
        "prompt": "go on", "cwd": "/nowhere/p" });
    let hook = svc_with_input(&home, &["hook", "claude"], prompt.to_string().as_bytes());
    assert_eq!((hook.code, hook.stdout.as_str(), hook.stderr.as_str()), (Some(0), "", ""));
    let refused = begin();
    let message = refused["error"]["message"].as_str().unwrap_or_else(|| panic!("{refused}"));
    assert!(message.contains("`svc start`") && message.contains("--stay"), "{message}");
    let installed = svc(&home, &["install", "claude-code"]);
    assert!(installed.ok().contains("the daemon stays stopped"), "{installed:?}");
    assert_eq!(svc(&home, &["status"]).code, Some(1));
    assert!(home.daemon_json().is_none());

    let started = svc(&home, &["start", "--json"]);
    assert_eq!(started.json()["started"], true, "nobody else had started it");
    // It gets the events of the meantime.
    eventually(SOON, || svc(&home, &["session", "list"]).stdout.contains("claude"));
    svc(&home, &["stop"]).ok();
    assert_eq!(begin()["result"]["serverInfo"]["name"], "svc", "that is over");
    svc(&home, &["stop"]).ok();
}

#[test]
fn bad_configuration_does_not_hide_a_running_daemon() {
    let d = Daemon::start();
    for text in ["listne = []\n", "not toml at all", "[sessions]\nvisibility = \"nobody\"\n"] {
        d.home.write("config.toml", text);
        let status = svc(&d.home, &["status", "--json"]);
        assert_eq!(status.json()["running"], true, "{text}: {status:?}");
        assert!(status.stderr.contains("config.toml"), "{text}: {status:?}");
        assert!(
            status.stderr.contains("keeps the configuration that it has read"),
            "{text}: {status:?}"
        );
        assert!(svc(&d.home, &["peer", "list", "--json"]).json()["peers"].is_array(), "{text}");
        assert_ne!(svc(&d.home, &["config", "check"]).code, Some(0), "{text}");
        assert_ne!(svc(&d.home, &["restart"]).code, Some(0), "{text}: nothing is stopped for it");
    }
    assert_eq!(svc(&d.home, &["status"]).code, Some(0));
}

#[test]
fn import_warns_of_duplicates_and_move_is_undone_by_uninstall() {
    let home = home();
    let file = home.user().join(".claude.json");
    let before = "{\n  \"mcpServers\": {\n    \"files\": {\n      \"command\": \"/bin/cat\"\n    },\n    \
                  \"db\": {\n      \"command\": \"/bin/false\"\n    }\n  }\n}\n";
    fs::write(&file, before).expect("a file");
    let servers = || {
        let text = fs::read_to_string(&file).expect("it is there");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        let servers = value["mcpServers"].as_object().expect("servers");
        servers.keys().cloned().collect::<BTreeSet<String>>()
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let installed = svc(&home, &["install", "claude-code", "--no-start", "--no-hooks"]);
    installed.ok();
    let told = svc(&home, &["mcp", "import", "claude-code"]);
    assert_eq!(told.code, Some(0));
    for words in ["each runs twice: ", "files", "db", "svc mcp import claude-code --move"] {
        assert!(told.stderr.contains(words), "{words}: {told:?}");
    }
    assert_eq!(servers(), names(&["db", "files", "svc"]), "nothing is taken out unasked");

    // A server that differs in config.toml stays with the client.
    let config = String::from_utf8(home.read("config.toml")).expect("text");
    home.write("config.toml", &config.replace("/bin/false", "/bin/true"));
    let told = svc(&home, &["mcp", "import", "claude-code", "--move"]);
    assert!(told.ok().contains("files removed from"), "{told:?}");
    assert!(told.stdout.contains("-    \"files\""), "it shows what changed: {told:?}");
    assert!(told.stderr.contains("another server of that name"), "{told:?}");
    assert_eq!(servers(), names(&["db", "svc"]));
    let again = svc(&home, &["mcp", "import", "claude-code", "--move", "--json"]).json();
    assert_eq!(again["moved"], Value::Null, "{again}");

    svc(&home, &["uninstall", "claude-code", "--no-stop"]).ok();
    assert_eq!(fs::read_to_string(&file).expect("it is there"), before, "byte for byte");
    // The same after another program has changed the file, and without an earlier installation.
    svc(&home, &["mcp", "import", "claude-code", "--move"]).ok();
    assert_eq!(servers(), names(&["db"]));
    let left = fs::read_to_string(&file).expect("it is there");
    fs::write(&file, left.replacen("{\n", "{\n  \"theme\": 1,\n", 1)).expect("a file");
    svc(&home, &["uninstall", "claude-code", "--no-stop"]).ok();
    assert_eq!(servers(), names(&["db", "files"]));
    assert!(fs::read_to_string(&file).expect("it is there").contains("theme"), "theirs stays");
}
