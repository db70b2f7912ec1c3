//! Which entries in a client's file are svc's.
//!
//! These are the server named `svc` that runs `svc stdio` (or has the URL of a daemon on this
//! machine), and all handlers whose command is a line for the shell with `svc hook …`, at any
//! place. All other entries belong to the person and stay.

use std::path::Path;

use serde_json::{Value, json};

/// The name of svc's entry among a client's servers.
pub const SERVER: &str = "svc";

pub(crate) const HOOKS: &str = "hooks";
/// The words that may follow `svc hook` in a handler.
const HOOK_WORDS: &[&str] = &["claude-code", "claude", "codex", "gemini", "opencode", "wait"];

/// The first line of a file that svc writes whole.
pub const OUR_FILE: &str = "// Written by `svc install`";
/// The first line of a file of rules that svc writes whole.
pub(crate) const OUR_RULES: &str = "# Written by `svc install`";

pub(crate) fn is_our_file(text: &str) -> bool {
    text.starts_with(OUR_FILE) || text.starts_with(OUR_RULES)
}

/// Whether a server's entry was written by `svc install`, or by a person as documented.
pub fn is_our_server(entry: &Value) -> bool {
    let (program, arguments) = command_of(entry);
    if let Some(program) = program {
        return is_our_program(program) && arguments.contains(&"stdio");
    }
    url_of(entry).is_some_and(|url| {
        let local = ["http://127.0.0.1:", "http://localhost:", "http://[::1]:"];
        local.iter().any(|start| url.starts_with(start)) && url.ends_with("/mcp")
    })
}

/// Program and arguments of a server that is a process.
pub fn command_of(entry: &Value) -> (Option<&str>, Vec<&str>) {
    fn strings(value: &Value) -> Vec<&str> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }
    match entry.get("command") {
        Some(Value::String(program)) => {
            (Some(program), entry.get("args").map(strings).unwrap_or_default())
        }
        Some(line @ Value::Array(_)) => {
            let mut words = strings(line).into_iter();
            (words.next(), words.collect())
        }
        _ => (None, Vec::new()),
    }
}

pub fn url_of(entry: &Value) -> Option<&str> {
    ["url", "httpUrl", "serverUrl"].iter().find_map(|key| entry.get(key)?.as_str())
}

fn is_our_program(program: &str) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "svc")
}

/// Whether a handler runs `svc hook …`.
pub fn is_our_handler(handler: &Value) -> bool {
    let Some(line) = handler.get("command").and_then(Value::as_str) else { return false };
    if runs_hook_if_installed(line) {
        return true;
    }
    // As [`super::ClientCommand`] writes lines. The name of a folder may contain ` hook `.
    line.match_indices(" hook ").any(|(at, between)| {
        let (before, after) = (&line[..at], &line[at + between.len()..]);
        let program = before.trim_end_matches('\'').rsplit(['/', ' ', '\'']).next();
        let client = after.split(' ').next().unwrap_or_default();
        program == Some("svc") && HOOK_WORDS.contains(&client)
    })
}

/// Whether a line has the form of [`super::ClientCommand::shell_line`]. Nobody else writes this
/// form, so the program may have any name.
fn runs_hook_if_installed(line: &str) -> bool {
    let parts = line.strip_prefix("test -x ").and_then(|rest| rest.split_once(" || exit 0; exec "));
    let words = parts.and_then(|(program, run)| run.strip_prefix(program)?.strip_prefix(" hook "));
    words.is_some_and(|words| HOOK_WORDS.contains(&words.split(' ').next().unwrap_or_default()))
}

/// The handlers of svc, each with its event.
pub(crate) fn our_handlers(document: &Value) -> Vec<(&str, &Value)> {
    let events = document.get(HOOKS).and_then(Value::as_object).into_iter().flatten();
    let all = events.flat_map(|(event, groups)| {
        handlers(groups).map(move |(_, _, _, handler)| (event.as_str(), handler))
    });
    all.filter(|(_, handler)| is_our_handler(handler)).collect()
}

pub(crate) fn events_of_ours(document: &Value) -> Vec<&str> {
    let mut events: Vec<&str> =
        our_handlers(document).into_iter().map(|(event, _)| event).collect();
    events.dedup();
    events
}

/// Index of the group, index within the group, the group, the handler.
pub(crate) fn handlers(groups: &Value) -> impl Iterator<Item = (usize, usize, &Value, &Value)> {
    groups.as_array().into_iter().flatten().enumerate().flat_map(|(index, group)| {
        let inner = group.get(HOOKS).and_then(Value::as_array).into_iter().flatten();
        inner.enumerate().map(move |(within, handler)| (index, within, group, handler))
    })
}

/// The matcher of a group. A missing matcher, an empty one and `*` mean the same.
pub(crate) fn matcher(group: &Value) -> Value {
    match group.get("matcher") {
        None | Some(Value::Null) => json!("*"),
        Some(Value::String(text)) if text.is_empty() => json!("*"),
        Some(other) => other.clone(),
    }
}

pub fn at<'a>(document: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(document, |value, key| value.get(key))
}
