//! What each command prints, as snapshots: its help, its errors, and its answers for people and as JSON.
//!
//! A missing or changed snapshot fails. `INSTA_UPDATE=always cargo test --test it outputs` writes them anew.

use serde_json::Value;

use crate::daemon::{Daemon, Home, Ran, svc};
use crate::expect::{new_task, peer};

/// Exit code and both outputs of a command, without what differs from run to run.
fn shown(home: &Home, args: &[&str]) -> String {
    let ran: Ran = svc(home, args);
    let text = format!(
        "$ svc {}\nexit code: {}\n--- stdout\n{}--- stderr\n{}",
        args.join(" "),
        ran.code.map_or_else(|| "none".to_owned(), |code| code.to_string()),
        pretty(&ran.stdout),
        ran.stderr,
    );
    redacted(home, &text)
}

/// A JSON document on several lines; other text as it is.
fn pretty(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) if value.is_object() => format!("{value:#}\n"),
        _ => text.to_owned(),
    }
}

/// Puts names in the place of paths, ids, times, versions, ports and process numbers.
fn redacted(home: &Home, text: &str) -> String {
    let text = text
        .replace(&home.dir().display().to_string(), "<data>")
        .replace(&home.user().display().to_string(), "<home>")
        .replace(env!("CARGO_PKG_VERSION"), "<version>");
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(c) = rest.chars().next() {
        if let Some((name, length)) = variable(&out, rest) {
            out.push_str(name);
            rest = &rest[length..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// The name and length of a text at the beginning of `rest` that differs from run to run.
fn variable(before: &str, rest: &str) -> Option<(&'static str, usize)> {
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    if before.ends_with("127.0.0.1:") && digits > 0 {
        return Some(("<port>", digits));
    }
    let is_number = ["\"pid\": ", "(pid ", "pid: ", "process "];
    if digits > 0 && is_number.iter().any(|label| before.ends_with(label)) {
        return Some(("<number>", digits));
    }
    // 2025-01-02T03:04:05.678Z
    let shape = rest.as_bytes().get(..24)?;
    let is_time = shape.iter().enumerate().all(|(index, byte)| match index {
        4 | 7 => *byte == b'-',
        10 => *byte == b'T',
        13 | 16 => *byte == b':',
        19 => *byte == b'.',
        23 => *byte == b'Z',
        _ => byte.is_ascii_digit(),
    });
    if is_time {
        return Some(("<time>", 24));
    }
    // An id has 26 letters and digits behind its prefix.
    let length = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
    (before.ends_with('_') && length >= 20).then_some(("<id>", length))
}

#[test]
fn help() {
    let home = Home::new();
    let mut paths = vec![Vec::<String>::new()];
    let mut count = 0;
    while let Some(path) = paths.pop() {
        let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
        args.push("--help");
        let ran = svc(&home, &args);
        let text = ran.ok();
        let name =
            format!("help_{}", if path.is_empty() { "svc".to_owned() } else { path.join("_") });
        insta::assert_snapshot!(name, redacted(&home, text));
        count += 1;
        let commands = text.split_once("\nCommands:\n").map(|(_, rest)| rest).unwrap_or_default();
        for line in commands.lines().take_while(|line| !line.trim().is_empty()) {
            let Some(line) = line.strip_prefix("  ").filter(|line| !line.starts_with(' ')) else {
                continue;
            };
            let name = line.split_whitespace().next().expect("a name");
            if name != "help" {
                paths.push([path.clone(), vec![name.to_owned()]].concat());
            }
        }
    }
    assert!(count > 30, "only {count} commands were found");
}

#[test]
fn usage_errors() {
    let home = Home::new();
    let cases: [(&str, &[&str]); 10] = [
        ("flag", &["--no-such-flag"]),
        ("command", &["no-such-command"]),
        ("flag_of_a_command", &["peer", "list", "--no-such-flag"]),
        ("missing_argument", &["task", "watch"]),
        ("missing_value", &["serve", "--listen"]),
        ("wrong_value", &["serve", "--listen", "nonsense"]),
        ("conflict", &["events", "tail", "--stream", "a", "--prefix", "b"]),
        ("install_nothing", &["install", "codex", "--no-hooks", "--no-mcp"]),
        ("install_unknown_client", &["install", "emacs"]),
        ("completions_unknown_shell", &["completions", "cobol"]),
    ];
    for (name, args) in cases {
        insta::assert_snapshot!(format!("usage_{name}"), shown(&home, args));
    }
}

#[test]
fn without_a_daemon() {
    let home = Home::new();
    let cases: [(&str, &[&str]); 13] = [
        ("status", &["status"]),
        ("status_json", &["status", "--json"]),
        ("stop", &["stop"]),
        ("peer_list", &["peer", "list"]),
        ("message_inbox", &["message", "inbox", "peer_x"]),
        ("task_list", &["task", "list"]),
        ("session_list", &["session", "list"]),
        ("ghap_list", &["ghap", "list"]),
        ("tools_list", &["tools", "list"]),
        ("token_show", &["token", "show"]),
        ("mcp_config", &["mcp-config", "--session", "s"]),
        ("backup", &["backup", "copy.db"]),
        ("config_check", &["config", "check", "missing.toml"]),
    ];
    for (name, args) in cases {
        insta::assert_snapshot!(format!("no_daemon_{name}"), shown(&home, args));
    }
}

#[test]
fn answers() {
    let d = Daemon::start();
    let home = &d.home;
    let ann = peer(&d, "s-1");
    let task = new_task(&d);
    let cases: [(&str, &[&str]); 19] = [
        ("peer_show", &["peer", "show", &ann]),
        ("peer_unknown", &["peer", "show", "peer_unknown"]),
        ("peer_wrong_status", &["peer", "heartbeat", &ann, "--status", "asleep"]),
        ("message_inbox_empty", &["message", "inbox", &ann]),
        ("message_send", &["message", "send", &ann, "the build is green"]),
        ("message_peek", &["message", "inbox", &ann, "--peek"]),
        ("message_unknown", &["message", "show", "msg_unknown"]),
        ("message_broadcast", &["message", "broadcast", "all of you"]),
        ("task_show", &["task", "show", &task]),
        ("task_list", &["task", "list"]),
        ("task_unknown", &["task", "show", "task_unknown"]),
        ("session_list_empty", &["session", "list"]),
        ("session_unknown", &["session", "show", "nobody"]),
        ("ghap_list_empty", &["ghap", "list"]),
        ("ghap_search_empty", &["ghap", "search", "a cache"]),
        ("ghap_unknown", &["ghap", "show", "ghap_unknown"]),
        ("tools_show", &["tools", "show", "peer_send"]),
        ("tools_unknown", &["tools", "show", "nothing"]),
        ("tools_call_refused", &["tools", "call", "peer_list", "--arg", "status=asleep"]),
    ];
    for (name, args) in cases {
        insta::assert_snapshot!(format!("answer_{name}"), shown(home, args));
        let json = [args, &["--json"]].concat();
        insta::assert_snapshot!(format!("answer_{name}_json"), shown(home, &json));
    }
}
