//! `svc mcp import`: servers of another client, copied once.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};
use svc_install::apply::diff;

use super::super::{Context, output};
use super::edit::{ServerFile, tell_daemon};
use crate::config::sources::ImportedClient;
use crate::domain::source::{SourceEntry, SourceProblem, SourceTransport, source_name};

pub(super) async fn import(context: &Context, client: ImportedClient) -> anyhow::Result<ExitCode> {
    let file = client.file(&context.env);
    let path = file.path().display().to_string();
    let entries = match file.read() {
        None => bail!("{} has no servers here: there is no {path}", client.as_str()),
        Some(Err(problem)) => bail!("{path} {problem}"),
        Some(Ok(entries)) => entries,
    };
    let (mut good, mut bad): (Vec<(String, Value)>, Vec<String>) = (Vec::new(), Vec::new());
    for (written, entry) in entries {
        let checked = source_name(&written).and_then(|name| {
            let (parsed, warnings) = SourceEntry::parse(&entry, true)?;
            // The built-in server has roots and rights that only the person gives it.
            if matches!(parsed.transport, SourceTransport::Builtin { .. }) {
                return Err(SourceProblem::new("type", "builtin is not taken over"));
            }
            Ok((name, warnings))
        });
        match checked {
            Ok((name, warnings)) => {
                for warning in warnings {
                    output::note(&format!("warning: {written}: {warning}"));
                }
                good.push((name, entry));
            }
            Err(problem) => {
                output::note(&format!("{written} is left out: {problem}"));
                bad.push(written);
            }
        }
    }
    let target = ServerFile::of_user(context);
    let (before, after, there) = target.insert_missing(&good)?;
    for name in &there {
        output::note(&format!(
            "{name} is left out: {} has a server of that name",
            target.path.display()
        ));
    }
    good.retain(|(name, _)| !there.contains(name));
    let names: Vec<&str> = good.iter().map(|(name, _)| name.as_str()).collect();
    let patch = diff(&target.path, Some(&before), Some(&after));
    if context.json {
        let left_out: Vec<&String> = there.iter().chain(&bad).collect();
        output::json(
            &json!({ "imported": names, "left_out": left_out, "file": target.path, "diff": patch }),
        )?;
    } else if names.is_empty() {
        output::line(&format!("nothing of {path} is new"))?;
    } else {
        for line in patch.lines() {
            output::line(line)?;
        }
        output::line(&format!("{} of {path} in {}", names.join(", "), target.path.display()))?;
    }
    if !names.is_empty() {
        tell_daemon(context).await;
    }
    Ok(ExitCode::SUCCESS)
}
