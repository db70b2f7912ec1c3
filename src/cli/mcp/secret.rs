//! Secrets of servers. Values come from standard input and are never shown.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Read as _};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::json;
use svc_model::source::source_name;
use svc_sys::config::Flags;
use svc_sys::config::sources::{MAX_SOURCE_SECRET, SecretBearer, SourceVault};

use super::super::{Context, UsageError, output};
use super::edit::tell_daemon;

fn vault(context: &Context) -> SourceVault {
    SourceVault::new(&context.paths.home)
}

/// The entry that the name resolves to in the current folder.
fn bearer_of(context: &Context, name: &str) -> anyhow::Result<Option<SecretBearer>> {
    let here = std::env::current_dir().ok();
    let plan = context.config(&Flags::default())?.sources.plan(here.as_deref());
    let bearer = plan.meant(name).and_then(|planned| {
        let destination = planned.secret_destination()?;
        Some(SecretBearer { server: name.to_owned(), destination, is_own: planned.is_own })
    });
    Ok(bearer)
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

/// Reads a value from the terminal without echo.
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
    let bearer = bearer_of(context, &name)?;
    vault(context).set_secret(&name, bearer.as_ref(), key, &value)?;
    tell_daemon(context).await;
    let text = match bearer {
        Some(bearer) => format!("stored {key} of {name} for {}", bearer.destination),
        None => format!("stored {key} of {name} for the {name} of your own configuration"),
    };
    done(context, &name, key, &text)
}

pub(super) fn list(context: &Context, name: &str) -> anyhow::Result<ExitCode> {
    let name = checked(name, "_")?;
    let kept = vault(context).kept()?;
    let here = bearer_of(context, &name)?;
    let given = here.as_ref().map(|bearer| kept.given_to(bearer)).unwrap_or_default();
    let all = kept.of_server(&name);
    let keys: BTreeSet<&str> = all.iter().map(|(key, _)| key.as_str()).collect();
    if context.json {
        let bound = all.iter().map(|(key, destination)| {
            let destination = destination.as_ref().map(ToString::to_string);
            json!({ "key": key, "for": destination })
        });
        let bound: Vec<_> = bound.collect();
        output::json(
            &json!({ "name": name, "secrets": keys, "count": keys.len(), "bound": bound }),
        )?;
    } else if keys.is_empty() {
        output::note(&format!("{name} has no secrets; `svc mcp secret set {name} KEY` stores one"));
    } else {
        for key in keys {
            output::line(key)?;
        }
        for (key, destination) in &all {
            if let Some(other) = destination.as_ref().filter(|_| !given.contains_key(key)) {
                output::note(&format!(
                    "{key} was set for {other}: the {name} of this folder does not get it"
                ));
            }
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
    done(context, &name, key, &format!("deleted {key} of {name}"))
}

fn done(context: &Context, name: &str, key: &str, text: &str) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(&json!({ "name": name, "key": key }))?;
    } else {
        output::line(text)?;
    }
    Ok(ExitCode::SUCCESS)
}
