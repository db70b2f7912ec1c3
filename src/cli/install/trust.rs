//! Codex runs a hook only when its person has trusted the hash of its definition, and passes over the others without a
//! word. The hashes are Codex's own business, so we ask its app server for them; with the person's consent we write
//! them where `/hooks` would.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::clients::Places;
use super::edit::is_our_handler;

/// How long Codex may take to say what hooks it sees.
const PATIENCE: Duration = Duration::from_secs(15);

/// One of our hooks, as Codex sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hook {
    /// Its name in `hooks.state`: file, event, group, place.
    pub(super) key: String,
    /// The hash of its definition.
    pub(super) hash: String,
    /// Whether this hash is trusted.
    pub(super) trusted: bool,
}

/// Asks Codex for the hooks of ours that it sees from this project's folder. `None` if there is no Codex to ask.
pub(super) async fn hooks(places: &Places) -> Option<anyhow::Result<Vec<Hook>>> {
    let codex = places.find("codex")?;
    Some(match timeout(PATIENCE, ask(&codex, places)).await {
        Ok(answer) => answer,
        Err(_) => Err(anyhow::anyhow!("codex did not answer within {} s", PATIENCE.as_secs())),
    })
}

async fn ask(codex: &Path, places: &Places) -> anyhow::Result<Vec<Hook>> {
    let mut server = Server::start(codex, places)?;
    let us = json!({ "name": "svc", "title": "svc", "version": env!("CARGO_PKG_VERSION") });
    server.request(1, "initialize", &json!({ "clientInfo": us })).await?;
    server.send(&json!({ "method": "initialized" })).await?;
    let answer = server.request(2, "hooks/list", &json!({ "cwds": [places.project] })).await?;
    let data = answer.get("data").and_then(Value::as_array).context("codex lists no hooks")?;
    let all = data.iter().filter_map(|it| it.get("hooks")?.as_array()).flatten();
    Ok(all.filter(|hook| is_our_handler(hook)).filter_map(hook).collect())
}

fn hook(value: &Value) -> Option<Hook> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    Some(Hook {
        key: text("key")?.to_owned(),
        hash: text("currentHash")?.to_owned(),
        trusted: matches!(text("trustStatus")?, "trusted" | "managed"),
    })
}

/// `codex app-server`, a line of JSON for each message.
struct Server {
    /// Ended when this is dropped.
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Server {
    fn start(codex: &Path, places: &Places) -> anyhow::Result<Self> {
        let mut child = Command::new(codex)
            .arg("app-server")
            .current_dir(&places.project)
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
