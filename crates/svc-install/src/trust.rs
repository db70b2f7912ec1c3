//! Codex runs a hook only if the person has trusted the hash of its definition, and skips others
//! without a message. Only Codex can compute the hashes, so its app-server is asked for them. With
//! the person's consent they are written to where Codex's own `/hooks` writes them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::client::{ClientCommand, ClientLocations, InstallParts, InstallScope, KnownClient};
use super::document::content;
use super::edit::{Edit, FileChange, HASH, STATE};
use super::entries::{at, is_our_handler, matcher};

/// A hook of svc in Codex's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodexHook {
    /// Its key in `hooks.state`: file, event, index of the group, index within the group.
    pub key: String,
    pub hash: String,
    pub trusted: bool,
    pub command: String,
}

/// The hooks that are exactly as svc writes them in this scope: same file, event, matcher and
/// handler, with the same program. A hook that only resembles one of svc's has to be reviewed by
/// the person.
pub fn written(
    hooks: Vec<CodexHook>,
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
) -> Vec<CodexHook> {
    let changes = KnownClient::Codex.changes(locations, command, scope, InstallParts::ALL);
    let files: Vec<WrittenHooks<'_>> = changes.iter().filter_map(WrittenHooks::read).collect();
    hooks.into_iter().filter(|hook| files.iter().any(|file| file.have(hook))).collect()
}

/// For each hook that svc wrote in this scope, whether Codex's file has a trusted hash. Only Codex
/// can check that hash.
pub(crate) fn recorded(
    locations: &ClientLocations,
    command: &ClientCommand,
    scope: InstallScope,
) -> Vec<bool> {
    let config = content(&KnownClient::Codex.folder(locations).join("config.toml"));
    let state = at(&config, STATE).and_then(Value::as_object);
    let trusted: Vec<&str> = state
        .into_iter()
        .flatten()
        .filter(|(_, hook)| hook.get(HASH).is_some_and(Value::is_string))
        .map(|(key, _)| key.as_str())
        .collect();
    let changes = KnownClient::Codex.changes(locations, command, scope, InstallParts::ALL);
    changes
        .iter()
        .filter_map(WrittenHooks::read)
        .flat_map(|file| {
            let is_trusted = |event: &str| trusted.iter().any(|key| file.names(key, event));
            file.groups.iter().map(|(event, _)| is_trusted(event)).collect::<Vec<_>>()
        })
        .collect()
}

/// A file in which svc writes hooks.
struct WrittenHooks<'a> {
    path: PathBuf,
    document: Value,
    /// Event and group, as svc writes them.
    groups: &'a [(&'static str, Value)],
}

impl<'a> WrittenHooks<'a> {
    fn read(change: &'a FileChange) -> Option<Self> {
        let groups = change.edits.iter().find_map(|edit| match edit {
            Edit::Hooks { groups } => Some(groups.as_slice()),
            _ => None,
        })?;
        let path = std::fs::canonicalize(&change.path).ok()?;
        // The name before links are followed shows the format.
        let document = Some(content(&change.path)).filter(|document| !document.is_null())?;
        Some(Self { path, document, groups })
    }

    fn have(&self, hook: &CodexHook) -> bool {
        self.groups.iter().any(|(event, wanted)| {
            let Some((group, there)) = self.handler(&hook.key, event) else { return false };
            let wanted_handler = wanted.get("hooks").and_then(|hooks| hooks.get(0));
            Some(there) == wanted_handler
                && matcher(group) == matcher(wanted)
                && there.get("command") == Some(&json!(hook.command))
        })
    }

    fn names(&self, key: &str, event: &str) -> bool {
        self.handler(key, event).is_some_and(|(_, handler)| is_our_handler(handler))
    }

    /// The group and the handler of a key of `hooks.state`, if the key is of this event and file.
    fn handler(&self, key: &str, event: &str) -> Option<(&Value, &Value)> {
        // The last three parts of the key; the path may contain colons.
        let mut parts = key.rsplitn(4, ':');
        let mut index = || parts.next()?.parse::<usize>().ok();
        let (handler, group) = (index()?, index()?);
        if parts.next()? != snake_case(event)
            || std::fs::canonicalize(parts.next()?).ok()? != self.path
        {
            return None;
        }
        let group = self.document.get("hooks")?.get(event)?.get(group)?;
        Some((group, group.get("hooks")?.get(handler)?))
    }
}

fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

/// Asks Codex for svc's hooks in this project's folder. `None` if Codex is not on the PATH.
/// `version` is svc's own version.
pub async fn hooks(
    locations: &ClientLocations,
    version: &str,
    max_wait: Duration,
) -> Option<anyhow::Result<Vec<CodexHook>>> {
    let codex = locations.find("codex")?;
    Some(match timeout(max_wait, ask(&codex, locations, version)).await {
        Ok(answer) => answer,
        Err(_) => Err(anyhow::anyhow!("codex did not answer within {max_wait:?}")),
    })
}

async fn ask(
    codex: &Path,
    locations: &ClientLocations,
    version: &str,
) -> anyhow::Result<Vec<CodexHook>> {
    let mut server = AppServer::start(codex, locations)?;
    let info = json!({ "name": "svc", "title": "svc", "version": version });
    server.request(1, "initialize", &json!({ "clientInfo": info })).await?;
    server.send(&json!({ "method": "initialized" })).await?;
    let answer = server.request(2, "hooks/list", &json!({ "cwds": [locations.project] })).await?;
    let data = answer.get("data").and_then(Value::as_array).context("codex lists no hooks")?;
    let all = data.iter().filter_map(|folder| folder.get("hooks")?.as_array()).flatten();
    Ok(all.filter(|hook| is_our_handler(hook)).filter_map(hook).collect())
}

fn hook(value: &Value) -> Option<CodexHook> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    Some(CodexHook {
        key: text("key")?.to_owned(),
        hash: text("currentHash")?.to_owned(),
        trusted: matches!(text("trustStatus")?, "trusted" | "managed"),
        command: text("command")?.to_owned(),
    })
}

/// A process `codex app-server`, with one line of JSON per message.
struct AppServer {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl AppServer {
    fn start(codex: &Path, locations: &ClientLocations) -> anyhow::Result<Self> {
        let mut child = Command::new(codex)
            .arg("app-server")
            .current_dir(&locations.project)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", codex.display()))?;
        let input = child.stdin.take().context("codex has no input")?;
        let output = child.stdout.take().context("codex has no output")?;
        Ok(Self { _child: child, input, output: BufReader::new(output).lines() })
    }

    async fn request(&mut self, id: u32, method: &str, params: &Value) -> anyhow::Result<Value> {
        self.send(&json!({ "id": id, "method": method, "params": params })).await?;
        while let Some(line) = self.output.next_line().await? {
            let Ok(mut message) = serde_json::from_str::<Value>(&line) else { continue };
            if message.get("id") != Some(&json!(id)) {
                continue;
            }
            if let Some(error) = message.get("error") {
                // An earlier Codex responds with an error that lists all its methods.
                let text = error.get("message").and_then(Value::as_str).unwrap_or_default();
                let text: String = text.chars().take(80).collect();
                bail!("codex refuses {method}: {text}");
            }
            return Ok(message.get_mut("result").map(Value::take).unwrap_or_default());
        }
        bail!("codex ended before it answered {method}")
    }

    async fn send(&mut self, message: &Value) -> anyhow::Result<()> {
        self.input.write_all(format!("{message}\n").as_bytes()).await?;
        Ok(())
    }
}
