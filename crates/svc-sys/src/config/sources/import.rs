//! Servers in the files of coding agents, converted from each client's format.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};
use svc_install::{
    KnownClient,
    document::{ConfigDocument, DocumentError, FileFormat},
    entries::{command_of, is_our_server, url_of},
};
use svc_model::hook::HookClient;

use super::{super::Env, FoundSource, SourceDocument};
use crate::{bounded_file, config::DEFAULT_LISTEN};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportFile {
    pub client: HookClient,
    path: PathBuf,
}

impl ImportFile {
    /// The file of a client, which need not exist.
    pub fn new(client: HookClient, env: &Env) -> Self {
        let folder = |name: &str| env.os(name).map(PathBuf::from);
        let home = folder("HOME").unwrap_or_else(|| PathBuf::from("/"));
        let path = match client {
            HookClient::ClaudeCode => {
                folder("CLAUDE_CONFIG_DIR").unwrap_or(home).join(".claude.json")
            }
            HookClient::Codex => {
                folder("CODEX_HOME").unwrap_or_else(|| home.join(".codex")).join("config.toml")
            }
            HookClient::Gemini => {
                folder("GEMINI_CLI_HOME").unwrap_or(home).join(".gemini/settings.json")
            }
            HookClient::Opencode => {
                let folder = folder("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
                let file = |name: &str| folder.join("opencode").join(name);
                let commented = file("opencode.jsonc");
                if commented.exists() { commented } else { file("opencode.json") }
            }
        };
        Self { client, path }
    }

    pub const fn known_client(&self) -> KnownClient {
        match self.client {
            HookClient::ClaudeCode => KnownClient::ClaudeCode,
            HookClient::Codex => KnownClient::Codex,
            HookClient::Gemini => KnownClient::Gemini,
            HookClient::Opencode => KnownClient::Opencode,
        }
    }

    /// The key of the table of servers.
    pub const fn key(&self) -> &'static str {
        key_of(self.client)
    }

    /// Whether svc is among the servers in the text of the file.
    pub fn has_us(&self, text: &str) -> bool {
        let servers = servers(self.client, text).unwrap_or_default();
        servers.iter().any(|(name, entry)| leads_to_us(name, entry))
    }

    /// The entries of the file, except those that start svc itself; `None` if it does not exist.
    pub fn read(&self) -> Option<Result<Vec<(String, Value)>, String>> {
        match bounded_file::read_text(&self.path, bounded_file::CLIENT_FILE_BYTES) {
            Ok(text) => text.map(|text| entries(self.client, &text)),
            Err(error) => Some(Err(format!("cannot be read: {error}"))),
        }
    }

    pub(super) fn found(&self) -> Option<Result<Vec<FoundSource>, String>> {
        Some(self.read()?.map(|entries| SourceDocument::from_members(entries, false).0))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

const fn key_of(client: HookClient) -> &'static str {
    match client {
        HookClient::ClaudeCode | HookClient::Gemini => "mcpServers",
        HookClient::Codex => "mcp_servers",
        HookClient::Opencode => "mcp",
    }
}

fn entries(client: HookClient, text: &str) -> Result<Vec<(String, Value)>, String> {
    let servers = servers(client, text).map_err(|error| error.to_string())?;
    let others = servers.into_iter().filter(|(name, entry)| !leads_to_us(name, entry));
    Ok(others.map(|(name, entry)| (name, converted(client, entry))).collect())
}

fn servers(client: HookClient, text: &str) -> Result<Map<String, Value>, DocumentError> {
    let is_toml = client == HookClient::Codex;
    let format = if is_toml { FileFormat::Toml } else { FileFormat::Json };
    let mut document = ConfigDocument::parse(format, text)?.value();
    Ok(match document.get_mut(key_of(client)).map(Value::take) {
        Some(Value::Object(servers)) => servers,
        _ => Map::new(),
    })
}

fn converted(client: HookClient, entry: Value) -> Value {
    let Value::Object(entry) = entry else { return entry };
    Value::Object(match client {
        HookClient::ClaudeCode => entry,
        HookClient::Codex => from_codex(&entry),
        HookClient::Gemini => from_gemini(&entry),
        HookClient::Opencode => from_opencode(&entry),
    })
}

fn leads_to_us(name: &str, entry: &Value) -> bool {
    url_of(entry).map_or_else(|| runs_us(entry), |_| is_our_url(name, entry))
}

/// Other local programs also have servers at `/mcp`. An entry is svc's if it has the name that
/// `svc install` gives, the usual port, or a token of ours.
fn is_our_url(name: &str, entry: &Value) -> bool {
    let (text, port) = (entry.to_string(), DEFAULT_LISTEN.rsplit(':').next().unwrap_or_default());
    is_our_server(entry)
        && (name == "svc"
            || text.contains(&format!(":{port}/"))
            || ["svc_", "SVC_TOKEN"].iter().any(|word| text.contains(word)))
}

/// Whether an entry runs svc, also through a shell or another launcher.
fn runs_us(entry: &Value) -> bool {
    const STARTERS: [&str; 12] = [
        "sh", "bash", "dash", "zsh", "ksh", "fish", "env", "exec", "nohup", "nice", "setsid",
        "timeout",
    ];
    if is_our_server(entry) {
        return true;
    }
    let (Some(program), arguments) = command_of(entry) else { return false };
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !STARTERS.contains(&name) && !program.contains(char::is_whitespace) {
        return false;
    }
    let line = [vec![program], arguments].concat().join(" ");
    let is_between = |c: char| c.is_whitespace() || "()\"'".contains(c);
    line.split([';', '&', '|', '\n']).any(|command| {
        let words: Vec<&str> = command.split(is_between).filter(|word| !word.is_empty()).collect();
        let mut starts = (0..words.len()).map(|at| words.split_at(at).1);
        starts.any(|words| is_our_server(&json!({ "command": words[0], "args": &words[1..] })))
    })
}

/// Escapes `${`.
fn literal(text: &str) -> String {
    text.replace("${", "$${")
}

/// Converts `$NAME` to `${NAME}`.
fn with_bare_variables(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let name =
            after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
        let is_name = name > 0 && !after.starts_with(|c: char| c.is_ascii_digit());
        if is_name {
            write!(out, "${{{}}}", &after[..name]).expect("writing to a string does not fail");
            rest = &after[name..];
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// Converts `{env:NAME}` to `${NAME}`.
fn with_braced_variables(text: &str) -> String {
    let text = literal(text);
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("{env:") {
        out.push_str(before);
        if let Some((name, after)) = after.split_once('}') {
            write!(out, "${{{name}}}").expect("writing to a string does not fail");
            rest = after;
        } else {
            out.push_str("{env:");
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

fn mapped(value: &Value, change: fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => json!(change(text)),
        Value::Array(items) => items.iter().map(|item| mapped(item, change)).collect(),
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), mapped(value, change))).collect()
        }
        other => other.clone(),
    }
}

/// Copies members of an entry: those with the same name here, and those that are renamed (their
/// name, our name).
fn renamed(
    entry: &Map<String, Value>,
    same: &[&str],
    other: &[(&str, &str)],
    change: fn(&str) -> String,
) -> Map<String, Value> {
    let names = same.iter().map(|name| (*name, *name)).chain(other.iter().copied());
    let members = names
        .filter_map(|(theirs, ours)| Some((ours.to_owned(), mapped(entry.get(theirs)?, change))));
    members.collect()
}

fn millis(seconds: &Value) -> Option<Value> {
    let duration = std::time::Duration::try_from_secs_f64(seconds.as_f64()?).ok()?;
    u64::try_from(duration.as_millis()).ok().map(|millis| json!(millis))
}

fn from_codex(entry: &Map<String, Value>) -> Map<String, Value> {
    let same = ["command", "args", "env", "cwd", "url", "enabled"];
    let other = [
        ("env_vars", "env_inherit"),
        ("http_headers", "headers"),
        ("startup_timeout_ms", "startup_timeout"),
        ("enabled_tools", "tools"),
        ("disabled_tools", "exclude_tools"),
    ];
    let mut ours = renamed(entry, &same, &other, literal);
    for (theirs, name) in
        [("startup_timeout_sec", "startup_timeout"), ("tool_timeout_sec", "timeout")]
    {
        ours.extend(entry.get(theirs).and_then(millis).map(|millis| (name.to_owned(), millis)));
    }
    if ours.contains_key("url") {
        ours.insert("type".to_owned(), json!("http"));
        let mut headers = ours.get("headers").cloned().unwrap_or_else(|| json!({}));
        let named = entry.get("env_http_headers").and_then(Value::as_object);
        for (header, variable) in named.into_iter().flatten() {
            headers[header] = json!(format!("${{{}}}", variable.as_str().unwrap_or_default()));
        }
        if let Some(variable) = entry.get("bearer_token_env_var").and_then(Value::as_str) {
            headers["Authorization"] = json!(format!("Bearer ${{{variable}}}"));
        }
        if headers.as_object().is_some_and(|headers| !headers.is_empty()) {
            ours.insert("headers".to_owned(), headers);
        }
    }
    ours
}

fn from_gemini(entry: &Map<String, Value>) -> Map<String, Value> {
    let same = ["command", "args", "env", "cwd", "headers", "timeout", "description"];
    let other = [("includeTools", "tools"), ("excludeTools", "exclude_tools")];
    let mut ours = renamed(entry, &same, &other, with_bare_variables);
    let kind = entry.get("type").and_then(Value::as_str);
    for (theirs, usual) in [("url", "sse"), ("httpUrl", "http")] {
        if let Some(url) = entry.get(theirs) {
            ours.insert("url".to_owned(), mapped(url, with_bare_variables));
            ours.insert("type".to_owned(), json!(kind.unwrap_or(usual)));
        }
    }
    ours
}

fn from_opencode(entry: &Map<String, Value>) -> Map<String, Value> {
    let other = [("environment", "env"), ("timeout", "startup_timeout")];
    let mut ours = renamed(entry, &["url", "headers", "enabled"], &other, with_braced_variables);
    if let Some(Value::Array(line)) = entry.get("command") {
        let mut words = line.iter().map(|word| mapped(word, with_braced_variables));
        ours.extend(words.next().map(|program| ("command".to_owned(), program)));
        let args: Vec<Value> = words.collect();
        if !args.is_empty() {
            ours.insert("args".to_owned(), json!(args));
        }
    }
    if ours.contains_key("url") {
        ours.insert("type".to_owned(), json!("http"));
    }
    ours
}

#[cfg(test)]
mod tests {
    use svc_model::source::SourceEntry;

    use super::*;

    #[test]
    fn entry_that_starts_this_program_is_skipped() {
        for (command, args, is_ours) in [
            ("svc", json!(["stdio"]), true),
            ("sh", json!(["-c", "svc stdio"]), true),
            ("/bin/bash", json!(["-lc", "cd /p && exec '/opt/bin/svc' stdio --url x"]), true),
            ("env", json!(["A=b", "svc", "stdio"]), true),
            ("svc stdio", json!([]), true),
            ("sh", json!(["-c", "other stdio"]), false),
            ("sh", json!(["-c", "svc mcp list; other stdio"]), false),
            ("sh", json!(["-c", "exec server-svc stdio"]), false),
            ("docker", json!(["run", "svc", "stdio"]), false),
        ] {
            let document = json!({ "mcpServers": { "a": { "command": command, "args": args } } });
            let entries = entries(HookClient::ClaudeCode, &document.to_string());
            assert_eq!(entries.expect("can be read").is_empty(), is_ours, "{command} {args}");
        }
        let document = r#"{"mcp":{"a":{"type":"local","command":["sh","-c","svc stdio"]}}}"#;
        assert_eq!(entries(HookClient::Opencode, document), Ok(Vec::new()));
    }

    #[test]
    fn other_local_servers_are_not_skipped() {
        let plain = json!({ "type": "http", "url": "http://127.0.0.1:3845/mcp" });
        let mut token = plain.clone();
        token["headers"] = json!({ "Authorization": "Bearer ${SVC_TOKEN}" });
        for (name, entry, is_ours) in [
            ("figma", plain.clone(), false),
            ("svc", plain, true),
            ("team", token, true),
            ("team", json!({ "type": "http", "url": "http://localhost:6334/mcp" }), true),
            ("far", json!({ "type": "http", "url": "https://h:6334/mcp" }), false),
        ] {
            let document = json!({ "mcpServers": { name: entry } });
            let entries = entries(HookClient::ClaudeCode, &document.to_string());
            assert_eq!(entries.expect("can be read").is_empty(), is_ours, "{document}");
        }
    }

    #[test]
    fn entries_of_each_client_are_converted() {
        let claude = r#"{"numStartups": 3, "mcpServers": {
            "a": {"type": "stdio", "command": "x", "args": ["${A:-b}"], "env": {"K": "v"}},
            "svc": {"command": "/opt/bin/svc", "args": ["stdio"]}
        }}"#;
        let codex = r#"
            model = "o"
            [mcp_servers.a]
            command = "x"
            args = ["${literal}"]
            env_vars = ["K"]
            startup_timeout_sec = 1.5
            tool_timeout_sec = 60
            enabled_tools = ["t"]
            [mcp_servers.b]
            url = "https://h/mcp"
            bearer_token_env_var = "TOK"
            http_headers = { "X-A" = "1" }
            env_http_headers = { "X-B" = "VARB" }
            [mcp_servers.svc]
            command = "svc"
            args = ["stdio"]
        "#;
        let gemini = r#"{"mcpServers": {
            "a": {"command": "x", "env": {"K": "$TOK-${OTHER}$"}, "trust": true, "includeTools": ["t"]},
            "b": {"httpUrl": "https://h/mcp"}, "c": {"url": "https://h/sse"}
        }}"#;
        let opencode = r#"{ // comments
            "mcp": {
                "a": {"type": "local", "command": ["x", "-y"], "environment": {"K": "{env:TOK}!${x}"}, "enabled": false},
                "b": {"type": "remote", "url": "https://h/mcp", "headers": {"A": "Bearer {env:TOK}"}},
            }
        }"#;
        for (client, text, expected) in [
            (
                HookClient::ClaudeCode,
                claude,
                json!({ "a": { "type": "stdio", "command": "x", "args": ["${A:-b}"], "env": { "K": "v" } } }),
            ),
            (
                HookClient::Codex,
                codex,
                json!({
                    "a": {
                        "command": "x", "args": ["$${literal}"], "env_inherit": ["K"], "startup_timeout": 1500,
                        "timeout": 60_000, "tools": ["t"],
                    },
                    "b": {
                        "type": "http", "url": "https://h/mcp",
                        "headers": { "X-A": "1", "X-B": "${VARB}", "Authorization": "Bearer ${TOK}" },
                    },
                }),
            ),
            (
                HookClient::Gemini,
                gemini,
                json!({
                    "a": { "command": "x", "env": { "K": "${TOK}-${OTHER}$" }, "tools": ["t"] },
                    "b": { "type": "http", "url": "https://h/mcp" }, "c": { "type": "sse", "url": "https://h/sse" },
                }),
            ),
            (
                HookClient::Opencode,
                opencode,
                json!({
                    "a": { "command": "x", "args": ["-y"], "env": { "K": "${TOK}!$${x}" }, "enabled": false },
                    "b": { "type": "http", "url": "https://h/mcp", "headers": { "A": "Bearer ${TOK}" } },
                }),
            ),
        ] {
            let entries = entries(client, text).expect("can be read");
            for (name, entry) in &entries {
                SourceEntry::parse(entry, true)
                    .unwrap_or_else(|problem| panic!("{name}: {problem}"));
            }
            let entries: Value = entries.into_iter().collect::<Map<_, _>>().into();
            assert_eq!(entries, expected, "{}", client.as_str());
        }
        assert_eq!(entries(HookClient::Codex, "").expect("is empty"), []);
        entries(HookClient::Gemini, "{").expect_err("is no JSON");
    }

    #[test]
    fn files_are_where_clients_read_them() {
        let env: Env = [("HOME", "/h"), ("CODEX_HOME", "/c")].into_iter().collect();
        for (client, path) in [
            ("claude-code", "/h/.claude.json"),
            ("codex", "/c/config.toml"),
            ("gemini", "/h/.gemini/settings.json"),
            ("opencode", "/h/.config/opencode/opencode.json"),
        ] {
            let client = HookClient::parse(client).expect("is known");
            assert_eq!(ImportFile::new(client, &env).path(), Path::new(path));
        }
    }
}
