//! What the fuzzer feeds: for each parser of bytes from outside one function that takes any bytes,
//! and panics only where a promise is broken. Each has a target beside this file. The tests here
//! run each with its seeds, whole, cut off, and changed.

use serde_json::{Value, json};
use svc_host::host;
use svc_install::{Edit, FileFormat, document::ConfigDocument, edit, edit::EditState};
use svc_model::hook::{self, HookClient, HookFormat};
use svc_sys::config::{FileConfig, sources::SourceDocument};

/// Longest input that is looked at, in bytes.
const MOST: usize = 256 * 1024;

/// The payload of a client's hook.
///
/// # Panics
/// If two readers of it find different sessions.
pub fn hook_payload(bytes: &[u8]) {
    let Ok(payload) = serde_json::from_slice::<Value>(bounded(bytes)) else { return };
    for client in HookClient::ALL {
        for name in [None, Some("PostToolUse"), Some("tool.execute.after")] {
            let Ok(event) = hook::read(client, name, &payload) else { continue };
            assert_eq!(Some(&event.session_id), hook::session_of(client, &payload).as_ref());
            let run = event.finished_run();
            assert!(run.is_none() || event.counted_tool().is_some() || event.is_of_sub_agent());
            // What the daemon answers is checked by the hook before it prints it: here the payload
            // stands for it.
            for format in [HookFormat::Client, HookFormat::Spec] {
                hook::checked_output(|| Some(event.clone()), format, &payload).ok();
            }
        }
    }
}

/// A message of a child MCP server.
///
/// # Panics
/// If what is passed on of it is another document.
pub fn child_message(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bounded(bytes)) else { return };
    svc_sources::read_message(text);
}

/// Lines of an agent's output, each for every kind of agent.
///
/// # Panics
/// If what is written to the agent is not one line of JSON for each message.
pub fn agent_output(bytes: &[u8]) {
    host::read_output(bounded(bytes));
}

/// What comes in on a host's socket, and what a host writes.
///
/// # Panics
/// If the values depend on the pieces in which the bytes come.
pub fn host_socket(bytes: &[u8]) {
    let bytes = bounded(bytes);
    host::read_socket(bytes);
    for line in bytes.split(|byte| *byte == b'\n') {
        svc_client::hosts::RawAgentEvent::parse(line).ok();
    }
}

/// A file with settings: of a client that svc edits, of a repository, and of svc itself.
///
/// # Panics
/// If an edit is not found where it was made, or cannot be taken back.
pub fn settings_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bounded(bytes)) else { return };
    SourceDocument::parse_json(text).ok();
    FileConfig::parse(text, "config.toml".as_ref()).ok();
    let entry = json!({ "command": "/opt/svc", "args": ["stdio"] });
    let handler = json!({ "type": "command", "command": "/opt/svc hook codex", "timeout": 5 });
    let edits = [
        (FileFormat::Json, Edit::Server { table: "mcpServers", entry: entry.clone() }),
        (FileFormat::Toml, Edit::Server { table: "mcp_servers", entry }),
        (FileFormat::Json, Edit::Hooks { groups: vec![("Stop", json!({ "hooks": [handler] }))] }),
    ];
    for (format, wanted) in edits {
        edit::find(text, format, &wanted).ok();
        let Ok((after, undo)) = edit::apply(text, format, &wanted) else { continue };
        assert_eq!(edit::find(&after, format, &wanted), Ok(EditState::Same), "{after}");
        let back = edit::undo(&after, format, &wanted, &undo);
        assert!(back.is_ok(), "{back:?}: {after}");
        if let Ok(Some(back)) = back {
            assert!(ConfigDocument::parse(format, &back).is_ok(), "{back}");
        }
    }
}

fn bounded(bytes: &[u8]) -> &[u8] {
    bytes.get(..MOST).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Bytes that begin, end and separate things in what is parsed here.
    const SIGNS: &[u8] = b"{}[]\",:\n\\0-<=\0\xff";

    /// Runs a target with each of its seeds: whole, cut off, without a part of it, and with other
    /// signs in it.
    fn run(name: &str, target: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/fuzz").join(name);
        let mut seeds = 0;
        for entry in fs::read_dir(&folder).expect("has seeds") {
            let path = entry.expect("an entry").path();
            let seed = fs::read(&path).expect("is there");
            assert!(seed.len() < 4096, "{} is longer than the fuzzer's inputs", path.display());
            seeds += 1;
            target(&seed);
            let step = seed.len() / 40 + 1;
            for at in (0..seed.len()).step_by(step) {
                target(&seed[..at]);
                target(&[&seed[..at], &seed[at + 1..]].concat());
                let mut changed = seed.clone();
                changed[at] = SIGNS[at % SIGNS.len()];
                target(&changed);
                target(&[&seed[..at], &seed[at / 2..]].concat());
            }
        }
        assert!(seeds > 0, "{}", folder.display());
    }

    #[test]
    fn payloads_of_hooks() {
        run("hook_payload", hook_payload);
    }

    #[test]
    fn messages_of_child_servers() {
        run("child_message", child_message);
    }

    #[test]
    fn output_of_agents() {
        run("agent_output", agent_output);
    }

    #[test]
    fn sockets_of_hosts() {
        run("host_socket", host_socket);
    }

    #[test]
    fn files_with_settings() {
        run("settings_file", settings_file);
    }
}
