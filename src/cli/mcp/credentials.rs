//! Logins to servers, and their secrets. The daemon runs the flow of a login, and a person confirms
//! it in a browser; the value of a secret comes from standard input and is never shown.

use std::io::{IsTerminal as _, Read as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use svc_model::source::source_name;
use svc_sys::config::sources::{MAX_SOURCE_SECRET, SecretBearer, SourceVault};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::super::mcp_config::is_variable;
use super::super::naming::source_found;
use super::super::open::open_browser;
use super::super::output::{self, Column, Listing};
use super::super::{Context, ExitResult, UsageError};
use super::server_file::tell_daemon;
use super::show::path_of;

/// A secret goes to the server for which it was set, and to no other of the same name.
const SECRETS: Listing = Listing {
    items: "secrets",
    columns: &[Column::text("KEY", "key"), Column::text("SET FOR", "for")],
    empty: "no secrets; `svc mcp secret set NAME KEY` stores one",
    next: None,
};

pub(super) async fn log_in(
    context: &Context,
    name: &str,
    no_browser: bool,
    port: Option<u16>,
) -> ExitResult {
    let client = context.client()?;
    let begun = client.post(&path_of(name, "/login")?, &json!({ "port": port })).await;
    let begun: Value = source_found(name, begun)?;
    let url = begun.get("authorization_url").and_then(Value::as_str).unwrap_or_default();
    if context.json {
        output::json(&begun)?;
    } else {
        output::note(&format!("open this in a browser to log in to {name}:"));
        output::line(url)?;
    }
    if !no_browser {
        open_browser(context, url);
    }
    let mut pasted = None;
    let may_paste = std::io::stdin().is_terminal();
    if may_paste {
        output::note("if the browser runs elsewhere, paste the address to which it was redirected");
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let wait = path_of(name, "/login/wait")?;
    loop {
        let body = json!({ "redirect": pasted.take() });
        let waiting = client.post::<Value>(&wait, &body);
        let told = tokio::select! {
            told = waiting => told?,
            line = lines.next_line(), if may_paste => {
                pasted = line?.filter(|line| !line.trim().is_empty());
                continue;
            }
        };
        let reason = told.get("reason").and_then(Value::as_str).unwrap_or_default();
        match told.get("state").and_then(Value::as_str) {
            Some("done") => break,
            Some("failed") => bail!("{name}: {reason}"),
            _ => {}
        }
    }
    if !context.json {
        output::line(&format!("logged in to {name}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn log_out(context: &Context, name: &str) -> ExitResult {
    let told = context.client()?.post(&path_of(name, "/logout")?, &json!({})).await;
    let told: Value = source_found(name, told)?;
    let line = match (told["logged_out"] == true, told["revoked"] == true) {
        (false, _) => format!("there was no login to {name}"),
        (true, true) => format!("logged out of {name}, and its tokens are revoked"),
        (true, false) => format!(
            "logged out of {name}: its tokens are deleted here, but were not revoked at the issuer"
        ),
    };
    context.print_line(&told, &line)
}

/// The entry that the name resolves to in the current folder.
fn bearer_of(context: &Context, name: &str) -> Result<Option<SecretBearer>> {
    let plan = context.source_plan()?;
    let bearer = plan.meant(name).and_then(|planned| {
        let destination = planned.secret_destination()?;
        Some(SecretBearer { server: name.to_owned(), destination, is_own: planned.is_own })
    });
    Ok(bearer)
}

fn checked(name: &str, key: &str) -> Result<String, UsageError> {
    if !is_variable(key) {
        return Err(UsageError(format!(
            "{key:?}: a name has letters, digits and _, and begins with no digit"
        )));
    }
    source_name(name).map_err(|problem| UsageError(problem.to_string()))
}

fn typed(key: &str) -> Result<String> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

    let input = std::io::stdin();
    let before = tcgetattr(&input)?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    output::note(&format!("{key}, which is not shown:"));
    tcsetattr(&input, OptionalActions::Flush, &silent)?;
    let mut line = String::new();
    let read = input.read_line(&mut line);
    tcsetattr(&input, OptionalActions::Flush, &before)?;
    read?;
    Ok(line)
}

fn value_of(key: &str) -> Result<String> {
    let text = if std::io::stdin().is_terminal() {
        typed(key)?
    } else {
        let most = u64::try_from(MAX_SOURCE_SECRET + 2).unwrap_or(u64::MAX);
        let mut text = String::new();
        std::io::stdin().take(most).read_to_string(&mut text).context("standard input")?;
        text
    };
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.is_empty() {
        bail!("there is no value on standard input");
    }
    if value.len() > MAX_SOURCE_SECRET {
        bail!("the value is longer than {MAX_SOURCE_SECRET} bytes");
    }
    Ok(value.to_owned())
}

pub(super) async fn set_secret(context: &Context, name: &str, key: &str) -> ExitResult {
    let name = checked(name, key)?;
    let value = value_of(key)?;
    let bearer = bearer_of(context, &name)?;
    SourceVault::new(&context.paths.home).set_secret(&name, bearer.as_ref(), key, &value)?;
    tell_daemon(context).await;
    let text = match bearer {
        Some(bearer) => format!("stored {key} of {name} for {}", bearer.destination),
        None => format!("stored {key} of {name} for the {name} of your own configuration"),
    };
    context.print_line(&json!({ "name": name, "key": key }), &text)
}

pub(super) fn list_secrets(context: &Context, name: &str) -> ExitResult {
    let name = checked(name, "_")?;
    let kept = SourceVault::new(&context.paths.home).kept()?;
    let secrets = kept.of_server(&name).into_iter().map(|(key, destination)| {
        json!({ "key": key, "for": destination.as_ref().map(ToString::to_string) })
    });
    let secrets: Vec<_> = secrets.collect();
    let document = json!({ "name": name, "count": secrets.len(), "secrets": secrets });
    SECRETS.print(context, &document)
}

pub(super) async fn unset_secret(context: &Context, name: &str, key: &str) -> ExitResult {
    let name = checked(name, key)?;
    if !SourceVault::new(&context.paths.home).unset_secret(&name, key)? {
        bail!("{name} has no secret {key}");
    }
    tell_daemon(context).await;
    let line = format!("deleted {key} of {name}");
    context.print_line(&json!({ "name": name, "key": key }), &line)
}
