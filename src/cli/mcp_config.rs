//! `svc mcp-config`: gives one agent session a token of its own and the document that its client reads.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Value, json};

use super::daemon::daemon_url;
use super::{Context, UsageError, output};
use crate::{bounded_file, private_file};

pub(super) const EXAMPLES: &str = "\
Examples:
  svc mcp-config --session reviewer --write /tmp/reviewer.json
  claude --mcp-config /tmp/reviewer.json

  svc mcp-config --session ci --env SVC_SESSION_TOKEN > mcp.json   # the token goes to standard error

The token is the session's identity: whoever has it speaks for the session.";

/// Arguments of `svc mcp-config`.
#[derive(Debug, Clone, Args)]
pub(super) struct McpConfigArgs {
    /// The session that the token stands for
    #[arg(long, value_name = "KEY")]
    session: String,
    /// The folder that its session works in: it reads the things of this folder's project [default: the present one]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Put a placeholder for this variable into the document, and NAME=token on standard error
    #[arg(long, value_name = "NAME")]
    env: Option<String>,
    /// Write the document to this file, mode 0600, and not to standard output
    #[arg(long, value_name = "PATH")]
    write: Option<PathBuf>,
    /// The server's name in the document
    #[arg(long, default_value = "svc")]
    name: String,
    /// How long the token is good for, in seconds [default: 43200]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=2_592_000))]
    ttl: Option<u32>,
    /// What the token may do; repeatable [default: what a session needs]
    #[arg(long, value_name = "SCOPE")]
    scope: Vec<String>,
}

pub(super) async fn run(context: &Context, args: &McpConfigArgs) -> anyhow::Result<ExitCode> {
    if let Some(name) = &args.env
        && !is_variable(name)
    {
        return Err(UsageError(format!(
            "--env {name}: not the name of a variable (letters, digits and _)"
        ))
        .into());
    }
    if let Some(path) = &args.write {
        refuse_foreign(path, &args.name)?;
    }
    let client = context.client()?;
    let url = daemon_url(context).await?;
    let given = args.cwd.as_deref().unwrap_or(Path::new("."));
    let cwd = given
        .canonicalize()
        .map_err(|error| UsageError(format!("--cwd {}: {error}", given.display())))?;
    let mut request = json!({ "session": args.session, "project": cwd });
    if let Some(ttl) = args.ttl {
        request["ttl_seconds"] = json!(ttl);
    }
    if !args.scope.is_empty() {
        request["scopes"] = json!(args.scope);
    }
    let minted: Value = client.post("/v1/tokens", &request).await?;
    let token = minted
        .get("token")
        .and_then(Value::as_str)
        .context("the daemon answered without a token")?;
    let document = document(&url, &args.name, args.env.as_deref(), token);
    match &args.write {
        Some(path) => {
            let text = format!("{}\n", serde_json::to_string_pretty(&document)?);
            private_file::replace(path, text.as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
            if context.json {
                output::json(&json!({
                    "path": path,
                    "session": args.session,
                    "token_id": minted.get("token_id"),
                    "expires_at": minted.get("expires_at"),
                }))?;
            } else {
                output::line(&format!(
                    "wrote {}; the token expires at {}",
                    path.display(),
                    output::cell(&minted, "expires_at")
                ))?;
            }
        }
        None => output::json(&document)?,
    }
    if let Some(name) = &args.env {
        output::note(&format!("{name}={token}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn document(url: &str, name: &str, env: Option<&str>, token: &str) -> Value {
    let credential = env.map_or_else(|| token.to_owned(), |name| format!("${{{name}}}"));
    json!({ "mcpServers": { name: {
        "type": "http",
        "url": format!("{url}/mcp"),
        "headers": { "Authorization": format!("Bearer {credential}") },
    } } })
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Largest document of ours, in bytes.
const MAX_DOCUMENT: u64 = 1024 * 1024;

/// A file that holds anything but an earlier document of ours is someone's work.
fn refuse_foreign(path: &Path, name: &str) -> anyhow::Result<()> {
    let known: Option<Value> = match bounded_file::read_text(path, MAX_DOCUMENT) {
        Ok(None) => return Ok(()),
        Ok(Some(text)) => serde_json::from_str(&text).ok(),
        // A pipe, a device, or more than any document of ours.
        Err(_) => None,
    };
    let servers = known.as_ref().and_then(Value::as_object).filter(|map| map.len() == 1);
    let servers = servers.and_then(|map| map.get("mcpServers")).and_then(Value::as_object);
    if servers.is_some_and(|map| map.keys().all(|key| key == name)) {
        return Ok(());
    }
    bail!(
        "{} holds more than the server `{name}` and is left as it is; choose another path, or merge the output of this \
         command without --write by hand",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_what_clients_read() {
        let plain = document("http://127.0.0.1:6334", "svc", None, "tok");
        assert_eq!(
            plain.to_string(),
            r#"{"mcpServers":{"svc":{"headers":{"Authorization":"Bearer tok"},"type":"http","url":"http://127.0.0.1:6334/mcp"}}}"#
        );
        let named = document("http://h:1", "team", Some("T"), "tok");
        assert_eq!(named["mcpServers"]["team"]["headers"]["Authorization"], "Bearer ${T}");
        assert!(!named.to_string().contains("tok\""));
    }

    #[test]
    fn someone_elses_file_is_not_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mcp.json");
        refuse_foreign(&path, "svc").expect("does not exist");
        let cases = [
            (r#"{"mcpServers":{"svc":{}}}"#, true),
            (r#"{"mcpServers":{}}"#, true),
            (r#"{"mcpServers":{"svc":{},"other":{}}}"#, false),
            (r#"{"mcpServers":{"svc":{}},"x":1}"#, false),
            ("notes", false),
        ];
        for (text, fine) in cases {
            std::fs::write(&path, text).expect("writes");
            assert_eq!(refuse_foreign(&path, "svc").is_ok(), fine, "{text}");
        }
    }
}
