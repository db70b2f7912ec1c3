//! Codex runs a hook only if the person has trusted the hash of its definition, and skips the others silently. Only Codex
//! can compute the hashes, so its app server is asked for them; with the person's consent they are written where Codex's
//! `/hooks` writes them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::change::FileChange;
use super::client::{InstallParts, InstallScope, KnownClient};
use super::command::ClientCommand;
use super::document::ConfigDocument;
use super::edit::{Edit, is_our_handler, matcher};
use super::file::ForeignFile;
use super::locations::ClientLocations;

/// How long Codex may take to list its hooks.
const PATIENCE: Duration = Duration::from_secs(15);

/// A hook of svc, as Codex lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodexHook {
    /// Its key in `hooks.state`: file, event, index of the group, index in it.
    pub key: String,
    /// The hash of its definition.
    pub hash: String,
    /// Whether this hash is trusted.
    pub trusted: bool,
    /// Its command, as Codex would run it.
    pub command: String,
}

/// Those of `hooks` that stand where svc writes them in this scope, and are as svc writes them: the same file, event, matcher
/// and handler, with the same program in it. What only looks like a hook of svc is the person's to review.
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

/// A file in which svc writes hooks.
struct WrittenHooks<'a> {
    path: PathBuf,
    /// What is in it now.
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
        let text = ForeignFile::read(&path).ok()?.text?;
        let document = ConfigDocument::parse(change.format, &text).ok()?.value();
        Some(Self { path, document, groups })
    }

    /// Whether the handler that the hook's key names is there, and is one of svc's.
    fn have(&self, hook: &CodexHook) -> bool {
        // The last three parts; a path may have colons.
        let mut parts = hook.key.rsplitn(4, ':');
        let index = |part: Option<&str>| part.and_then(|part| part.parse::<usize>().ok());
        let (handler, group) = (index(parts.next()), index(parts.next()));
        let (Some(handler), Some(group), Some(event), Some(file)) =
            (handler, group, parts.next(), parts.next())
        else {
            return false;
        };
        if std::fs::canonicalize(file).ok().as_ref() != Some(&self.path) {
            return false;
        }
        self.groups.iter().filter(|(name, _)| snake_case(name) == event).any(|(name, wanted)| {
            let group = self.document.get("hooks").and_then(|hooks| hooks.get(name)?.get(group));
            let there = group.and_then(|group| group.get("hooks")?.get(handler));
            let wanted_handler = wanted.get("hooks").and_then(|hooks| hooks.get(0));
            there.is_some()
                && there == wanted_handler
                && group.map(matcher) == Some(matcher(wanted))
                && there.and_then(|there| there.get("command")) == Some(&json!(hook.command))
        })
    }
}

/// `PreToolUse` as `pre_tool_use`.
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

/// Asks Codex for the hooks of svc that it reads in this project's folder. `None` if there is no Codex on the PATH.
/// `version` is that of svc, which Codex is told.
pub async fn hooks(
    locations: &ClientLocations,
    version: &str,
) -> Option<anyhow::Result<Vec<CodexHook>>> {
    let codex = locations.find("codex")?;
    Some(match timeout(PATIENCE, ask(&codex, locations, version)).await {
        Ok(answer) => answer,
        Err(_) => Err(anyhow::anyhow!("codex did not answer within {} s", PATIENCE.as_secs())),
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

/// `codex app-server`, a line of JSON for each message.
struct AppServer {
    /// Ended when this is dropped.
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
                bail!("codex refuses {method}: {error}");
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
