//! `svc mcp-config`: mints a token for one agent session and writes the document that its client
//! reads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use svc_model::limits;
use svc_sys::{bounded_file, private_file};

use super::daemon::daemon_url;
use super::{Context, ExitResult, UsageError, output, program};

pub(super) const EXAMPLES: &str = "\
Examples:
  svc mcp-config --session reviewer --write /tmp/reviewer.json
  claude --mcp-config /tmp/reviewer.json

  svc mcp-config --session ci --http --env SVC_SESSION_TOKEN > mcp.json

The document is for the option --mcp-config of Claude Code, and for each client that reads `mcpServers`. The client starts `svc stdio`, which reads the token from a file of mode 0600 and sends it to the daemon alone. The token is the \
session's identity: whoever has it acts as the session.";

/// Folder of the tokens, below the data folder.
const TOKENS: &str = "session-tokens";

#[derive(Debug, Clone, Args)]
pub(super) struct McpConfigArgs {
    /// The session that the token stands for
    #[arg(long, value_name = "KEY")]
    session: String,
    /// The session's working folder: the session reads the data of its project [default: the
    /// present one]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Print a URL with the token, for a client that starts no programs
    #[arg(long)]
    http: bool,
    /// With --http: write a placeholder for this variable, and print NAME=token on standard error
    #[arg(long, value_name = "NAME", requires = "http")]
    env: Option<String>,
    /// Write the document to this file, mode 0600, in place of standard output
    #[arg(long, value_name = "PATH")]
    write: Option<PathBuf>,
    /// How long the token is valid, in seconds [default: 43200]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=2_592_000))]
    ttl: Option<u32>,
    /// What the token may do; repeatable [default: what a session needs]
    #[arg(long, value_name = "SCOPE")]
    scope: Vec<String>,
}

/// A token, which the daemon shows once.
#[derive(Debug, Deserialize)]
pub(super) struct FreshToken {
    pub(super) token_id: String,
    pub(super) token: String,
    expires_at: String,
}

pub(super) async fn run(context: &Context, args: &McpConfigArgs) -> ExitResult {
    if let Some(name) = &args.env
        && !is_variable(name)
    {
        bail!(UsageError(format!(
            "--env {name}: not the name of a variable (letters, digits and _)"
        )));
    }
    if let Some(path) = &args.write {
        refuse_foreign(path)?;
    }
    let client = context.client()?;
    let given = args.cwd.as_deref().unwrap_or(Path::new("."));
    let cwd =
        given.canonicalize().with_context(|| format!("there is no folder {}", given.display()))?;
    let url = if args.http { Some(daemon_url(context).await?) } else { None };
    let request = json!({
        "session": args.session, "project": cwd, "ttl_seconds": args.ttl, "scopes": args.scope,
    });
    let minted: FreshToken = client.post("/v1/tokens", &request).await?;
    let (server, token_file) = if let Some(url) = url {
        (url_server(&url, args.env.as_deref(), &minted.token), None)
    } else {
        let file = keep(context, &minted)?;
        (program_server(context, &file)?, Some(file))
    };
    let document = json!({ "mcpServers": { "svc": server } });
    match &args.write {
        Some(path) => {
            let text = format!("{}\n", serde_json::to_string_pretty(&document)?);
            private_file::replace(path, text.as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
            let FreshToken { token_id, expires_at, .. } = &minted;
            let report = json!({
                "path": path, "session": args.session, "token_id": token_id,
                "token_file": token_file, "expires_at": expires_at,
            });
            let line = format!("wrote {}; the token expires at {expires_at}", path.display());
            context.print_line(&report, &line)?;
        }
        None => output::json(&document)?,
    }
    if args.http {
        output::note(&readers(args.env.as_deref()));
    }
    if let Some(name) = &args.env {
        output::note(&format!("{name}={}", minted.token));
    }
    Ok(ExitCode::SUCCESS)
}

/// Who could read a token that a client sends to a URL.
fn readers(env: Option<&str>) -> String {
    let place = match env {
        Some(name) => {
            format!("the environment of the client ({name}), which its child processes inherit")
        }
        None => "this document, and the client's arguments if it is given as one".to_owned(),
    };
    format!(
        "svc: the token is in {place}; and the client sends it to any program that listens at the URL, even while the daemon is down. Without --http neither is the case"
    )
}

fn keep(context: &Context, minted: &FreshToken) -> Result<PathBuf> {
    let folder = context.paths.home.join(TOKENS);
    private_file::prepare_home(&context.paths.home)?;
    private_file::prepare_home(&folder)?;
    remove_expired(&folder);
    let file = folder.join(&minted.token_id);
    private_file::replace(&file, format!("{}\n", minted.token).as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn remove_expired(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|meta| meta.modified()).ok();
        if age.and_then(|at| at.elapsed().ok()).is_some_and(|age| age > limits::TOKEN_TTL_MAX) {
            fs::remove_file(entry.path()).ok();
        }
    }
}

fn program_server(context: &Context, token_file: &Path) -> Result<Value> {
    let mut arguments = vec!["stdio".to_owned()];
    if let Some(url) = context.discovery()?.fixed() {
        arguments.extend(["--url".to_owned(), url.to_string()]);
    }
    arguments.extend(["--token-file".to_owned(), token_file.display().to_string()]);
    let mut server = json!({ "command": program::own_name(&context.env)?, "args": arguments });
    if context.paths.explicit_home {
        server["env"] = json!({ "SVC_HOME": context.paths.home });
    }
    Ok(server)
}

fn url_server(url: &str, env: Option<&str>, token: &str) -> Value {
    let credential = env.map_or_else(|| token.to_owned(), |name| format!("${{{name}}}"));
    json!({
        "type": "http",
        "url": format!("{url}/mcp"),
        "headers": { "Authorization": format!("Bearer {credential}") },
    })
}

pub(super) fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Largest document that this command writes, in bytes.
const MAX_DOCUMENT: u64 = 1024 * 1024;

/// Refuses to overwrite a file that is no earlier document of this command.
fn refuse_foreign(path: &Path) -> Result<()> {
    let known: Option<Value> = match bounded_file::read_text(path, MAX_DOCUMENT) {
        Ok(None) => return Ok(()),
        Ok(Some(text)) => serde_json::from_str(&text).ok(),
        // A pipe, a device, or a file larger than any such document.
        Err(_) => None,
    };
    let servers = known.as_ref().and_then(Value::as_object).filter(|map| map.len() == 1);
    let servers = servers.and_then(|map| map.get("mcpServers")).and_then(Value::as_object);
    if servers.is_some_and(|map| map.keys().all(|key| key == "svc")) {
        return Ok(());
    }
    bail!(
        "{} holds more than the server `svc` and is left as it is; choose another path, or merge the output of this \
         command without --write by hand",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_entry_has_the_token_or_a_placeholder() {
        let plain = url_server("http://127.0.0.1:6334", None, "tok");
        assert_eq!(
            plain.to_string(),
            r#"{"headers":{"Authorization":"Bearer tok"},"type":"http","url":"http://127.0.0.1:6334/mcp"}"#
        );
        let named = url_server("http://h:1", Some("T"), "tok");
        assert_eq!(named["headers"]["Authorization"], "Bearer ${T}");
        assert!(!named.to_string().contains("tok\""));
    }

    #[test]
    fn foreign_file_is_not_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mcp.json");
        refuse_foreign(&path).expect("does not exist");
        let cases = [
            (r#"{"mcpServers":{"svc":{}}}"#, true),
            (r#"{"mcpServers":{}}"#, true),
            (r#"{"mcpServers":{"svc":{},"other":{}}}"#, false),
            (r#"{"mcpServers":{"svc":{}},"x":1}"#, false),
            ("notes", false),
        ];
        for (text, fine) in cases {
            fs::write(&path, text).expect("writes");
            assert_eq!(refuse_foreign(&path).is_ok(), fine, "{text}");
        }
    }
}
