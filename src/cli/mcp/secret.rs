//! Secrets of servers. Values come from standard input, and are never shown.

use std::io::{IsTerminal as _, Read as _};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::json;

use super::super::{Context, UsageError, output};
use super::edit::tell_daemon;
use crate::config::sources::{MAX_SOURCE_SECRET, SourceVault};
use crate::domain::source::source_name;

fn vault(context: &Context) -> SourceVault {
    SourceVault::of(&context.paths.home)
}

fn checked(name: &str, key: &str) -> Result<String, UsageError> {
    let mut chars = key.chars();
    let is_name = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Err(UsageError(format!(
            "{key:?}: a name has letters, digits and _, and begins with no digit"
        )));
    }
    source_name(name).map_err(|problem| UsageError(problem.to_string()))
}

/// What is typed is not shown.
fn typed(key: &str) -> anyhow::Result<String> {
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

fn value_of(key: &str) -> anyhow::Result<String> {
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

pub(super) async fn set(context: &Context, name: &str, key: &str) -> anyhow::Result<ExitCode> {
    let name = checked(name, key)?;
    let value = value_of(key)?;
    vault(context).set_secret(&name, key, &value)?;
    tell_daemon(context).await;
    done(context, &name, key, &format!("{key} of {name} is kept"))
}

pub(super) fn list(context: &Context, name: &str) -> anyhow::Result<ExitCode> {
    let name = checked(name, "_")?;
    let keys: Vec<String> = vault(context).secrets(&name)?.into_keys().collect();
    if context.json {
        output::json(&json!({ "name": name, "secrets": keys, "count": keys.len() }))?;
    } else if keys.is_empty() {
        output::note(&format!("{name} has no secrets; `svc mcp secret set {name} KEY` keeps one"));
    } else {
        for key in keys {
            output::line(&key)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn unset(context: &Context, name: &str, key: &str) -> anyhow::Result<ExitCode> {
    let name = checked(name, key)?;
    if !vault(context).unset_secret(&name, key)? {
        bail!("{name} has no secret {key}");
    }
    tell_daemon(context).await;
    done(context, &name, key, &format!("{key} of {name} is forgotten"))
}

fn done(context: &Context, name: &str, key: &str, text: &str) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(&json!({ "name": name, "key": key }))?;
    } else {
        output::line(text)?;
    }
    Ok(ExitCode::SUCCESS)
}
