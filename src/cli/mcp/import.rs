//! `svc mcp import`: copies or moves servers of another client.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};
use svc_install::apply::{diff, format_of};
use svc_install::{Edit, FileChange, FileOutcome, InstallRecord, InstallScope, Installer};
use svc_model::source::{SourceEntry, SourceProblem, SourceTransport, source_name};
use svc_sys::bounded_file;
use svc_sys::config::sources::{ImportFile, ImportedClient};

use super::super::{Context, output};
use super::edit::{InsertedEntries, ServerFile, tell_daemon};

/// Largest file of a client, in bytes. Some clients keep a history in it.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// A server of the client that config.toml has now.
struct TakenServer {
    /// The name as the client spells it.
    written: String,
    name: String,
}

pub(super) async fn import(
    context: &Context,
    client: ImportedClient,
    is_move: bool,
) -> anyhow::Result<ExitCode> {
    let file = client.file(&context.env);
    let path = file.path().display().to_string();
    let entries = match file.read() {
        None => bail!("{} has no servers here: there is no {path}", client.as_str()),
        Some(Err(problem)) => bail!("{path} {problem}"),
        Some(Ok(entries)) => entries,
    };
    let (mut good, mut bad): (Vec<(String, Value)>, Vec<String>) = (Vec::new(), Vec::new());
    let mut taken: Vec<TakenServer> = Vec::new();
    for (written, entry) in entries {
        let checked = source_name(&written).and_then(|name| {
            let (parsed, warnings) = SourceEntry::parse(&entry, true)?;
            // Only a person grants roots and rights to the built-in server.
            if matches!(parsed.transport, SourceTransport::Builtin { .. }) {
                return Err(SourceProblem::new("type", "builtin servers are not copied"));
            }
            Ok((name, warnings))
        });
        match checked {
            Ok((name, warnings)) => {
                for warning in warnings {
                    output::note(&format!("warning: {written}: {warning}"));
                }
                taken.push(TakenServer { written, name: name.clone() });
                good.push((name, entry));
            }
            Err(problem) => {
                output::note(&format!("{written} is left out: {problem}"));
                bad.push(written);
            }
        }
    }
    let target = ServerFile::of_user(context);
    let InsertedEntries { before, after, there } = target.insert_missing(&good)?;
    for (name, is_same) in &there {
        let what =
            if *is_same { "it has it already" } else { "it has another server of that name" };
        output::note(&format!("{name} is left out of {}: {what}", target.path.display()));
        // An entry that differs is for the person to decide.
        if !is_same {
            taken.retain(|server| server.name != *name);
        }
    }
    good.retain(|(name, _)| there.iter().all(|(known, _)| known != name));
    let names: Vec<&str> = good.iter().map(|(name, _)| name.as_str()).collect();
    let patch = diff(&target.path, Some(&before), Some(&after));
    if !names.is_empty() {
        tell_daemon(context).await;
    }
    let doubled: Vec<String> = taken.iter().map(|server| server.written.clone()).collect();
    let moved = if is_move { take_out(context, &file, &doubled)? } else { None };
    if context.json {
        let left_out: Vec<&String> = there.iter().map(|(name, _)| name).chain(&bad).collect();
        let still: &[String] = if is_move { &[] } else { &doubled };
        output::json(&json!({
            "imported": names, "left_out": left_out, "file": target.path, "diff": patch,
            "moved": moved.as_ref().map(|_| &doubled), "starts_twice": still,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if names.is_empty() {
        output::line(&format!("{path} has nothing new"))?;
    } else {
        for line in patch.lines() {
            output::line(line)?;
        }
        output::line(&format!("{} of {path} in {}", names.join(", "), target.path.display()))?;
    }
    if let Some(change) = moved {
        for line in change.lines() {
            output::line(line)?;
        }
        output::line(&format!(
            "{} removed from {path}; restart open sessions of {}. `svc uninstall {2}` puts them back",
            doubled.join(", "),
            client.as_str(),
            client.as_str()
        ))?;
    } else if !is_move && !doubled.is_empty() {
        output::note(&format!(
            "{} starts its own entries of these, too, so each runs twice: {}. `svc mcp import {0} --move` removes them",
            client.as_str(),
            doubled.join(", ")
        ));
    }
    let text = bounded_file::read_text(file.path(), MAX_FILE).ok().flatten().unwrap_or_default();
    if is_move && !client.has_us(&text) {
        output::note(&format!(
            "{} does not have svc yet, so it has none of these tools now: `svc install {0}`",
            client.as_str()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes servers from the client's file. The removal is recorded, so that an uninstallation puts
/// them back. Returns the change.
fn take_out(
    context: &Context,
    file: &ImportFile,
    names: &[String],
) -> anyhow::Result<Option<String>> {
    let home = &context.paths.home;
    let locations = context.client_locations()?;
    let record = InstallRecord::read(home)?;
    let mut installer = Installer { home, locations: &locations, record, dry_run: false };
    let table = vec![file.client.key().to_owned()];
    let change = FileChange {
        path: file.path().to_owned(),
        format: format_of(file.path()),
        edits: vec![Edit::Take { table, names: names.to_vec() }],
    };
    let outcome = installer.install(file.client.known(), InstallScope::User, &change);
    match outcome {
        Ok(FileOutcome::Changed(change)) => Ok(Some(change)),
        Ok(FileOutcome::Unchanged) => Ok(None),
        Err(error) => bail!("{} {error}; it is left as it is", file.path().display()),
    }
}
