//! What the daemon knows of servers.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::super::output::{self, Column, Listing};
use super::super::{Context, tools};
use super::project::ProjectClient;
use crate::client::{encode, with_query};
use crate::config::Flags;
use crate::config::sources::project_root;

const LIST: Listing = Listing {
    items: "sources",
    columns: &[
        Column::text("SERVER", "name"),
        Column::state("STATE", "state"),
        Column::text("TRANSPORT", "transport").rank(5),
        Column::text("SHARING", "sharing").rank(4),
        Column::number("TOOLS", "tools").rank(1),
        Column::path("FROM", "from").rank(3),
        Column::path("HIDDEN BY", "hidden_by").rank(6),
        Column::text("NEXT", "next_action").rank(2),
    ],
    empty: "no servers; `svc mcp add` names one",
    next: None,
};

const TOOLS: Listing = Listing {
    items: "tools",
    columns: &[Column::text("TOOL", "name"), Column::text("WHAT IT DOES", "description")],
    empty: "it has no tools, or has not given them yet: `svc mcp list` shows what it is doing",
    next: None,
};

/// The path of a request about servers, for callers of this folder.
fn path(route: &str) -> anyhow::Result<String> {
    let here = std::env::current_dir().context("cannot tell the present folder")?;
    let root = project_root(&here);
    let root = root.join(".mcp.json").exists().then(|| root.display().to_string());
    Ok(with_query(route, &[("project", root.as_deref())]))
}

pub(super) fn path_of(name: &str, action: &str) -> anyhow::Result<String> {
    path(&format!("/v1/sources/{}{action}", encode(name)))
}

pub(super) async fn list(context: &Context) -> anyhow::Result<ExitCode> {
    let page: Value = context.client()?.get(&path("/v1/sources")?).await?;
    LIST.print(context, &page)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn get(context: &Context, name: &str) -> anyhow::Result<ExitCode> {
    let mut source: Value = context.client()?.get(&path_of(name, "")?).await?;
    let from = source.get("from").and_then(Value::as_str).unwrap_or_default().to_owned();
    let files = context.config(&Flags::default())?.sources;
    let here = std::env::current_dir().context("cannot tell the present folder")?;
    let plan = files.plan(Some(&here));
    let planned = plan.sources.into_iter().find(|it| it.name == name && it.from == from);
    // Where the entry came with a flag, only the daemon has it.
    if let Some(planned) = planned {
        source["entry"] = masked(planned.written);
    }
    if context.json {
        output::json(&source)?;
    } else {
        let entry = source.as_object_mut().and_then(|source| source.remove("entry"));
        output::object(&context.screen, &source, &["name", "state", "reason", "next_action"])?;
        if let Some(entry) = entry {
            output::fields(&[("entry", entry.to_string())])?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// An entry without the values that may be secrets: what is written out in `env` and `headers`, and no name of a variable.
fn masked(mut entry: Value) -> Value {
    for field in ["env", "headers"] {
        let values = entry.get_mut(field).and_then(Value::as_object_mut);
        for value in values.into_iter().flat_map(serde_json::Map::values_mut) {
            let is_variable = value.as_str().is_some_and(|text| {
                text.starts_with("${") && text.ends_with('}') && !text.contains(":-")
            });
            if !is_variable {
                *value = json!("***");
            }
        }
    }
    entry
}

pub(super) async fn tools(context: &Context, name: &str) -> anyhow::Result<ExitCode> {
    // Unknown names are an error, and no empty list.
    context.client()?.get::<Value>(&path_of(name, "")?).await.map(drop)?;
    let caller = caller_of(context, name).await?;
    let own = tools::of_source(&caller.client, name).await;
    caller.end().await;
    let own = own?;
    TOOLS.print(context, &json!({ "count": own.len(), "tools": own }))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn reconnect(context: &Context, name: &str) -> anyhow::Result<ExitCode> {
    let source: Value = context.client()?.post(&path_of(name, "/reconnect")?, &json!({})).await?;
    if context.json {
        output::json(&source)?;
    } else {
        output::line(&format!("{name} is started anew; `svc mcp list` shows what it is doing"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn logs(context: &Context, name: &str) -> anyhow::Result<ExitCode> {
    let log: Value = context.client()?.get(&path_of(name, "/log")?).await?;
    if context.json {
        output::json(&log)?;
    } else {
        let text = log.get("log").and_then(Value::as_str).unwrap_or_default();
        for line in text.lines() {
            output::line(line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn call(
    context: &Context,
    name: &str,
    tool: &str,
    arguments: Vec<String>,
) -> anyhow::Result<ExitCode> {
    let caller = caller_of(context, name).await?;
    let done = call_as(context, &caller, name, tool, arguments).await;
    caller.end().await;
    done
}

/// Who may call a server: as a session of this folder's project, with the scope that the server asks for.
async fn caller_of(context: &Context, name: &str) -> anyhow::Result<ProjectClient> {
    let here = std::env::current_dir().context("cannot tell the present folder")?;
    let plan = context.config(&Flags::default())?.sources.plan(Some(&here));
    let planned = plan.sources.iter().find(|source| source.name == name);
    let entry = planned.and_then(|source| source.entry.as_ref().ok());
    ProjectClient::new(context, entry.and_then(|entry| entry.scope.as_deref())).await
}

async fn call_as(
    context: &Context,
    caller: &ProjectClient,
    name: &str,
    tool: &str,
    arguments: Vec<String>,
) -> anyhow::Result<ExitCode> {
    let own = tools::of_source(&caller.client, name).await?;
    let names = own.iter().filter_map(|tool| tool.get("name").and_then(Value::as_str));
    let plain = format!("{name}__{tool}");
    let found = names.clone().find(|known| *known == tool || *known == plain);
    let found = found
        .with_context(|| format!("{name} has no tool {tool:?}; see `svc mcp tools {name}`"))?
        .to_owned();
    tools::call_by_name(context, &caller.client, found, arguments).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_may_be_secrets_are_not_shown() {
        let entry = json!({
            "command": "x", "env": { "A": "secret", "B": "${VAR}", "C": "${VAR:-secret}", "D": "a${VAR}" },
            "headers": { "Authorization": "Bearer secret" },
        });
        let shown = masked(entry);
        assert_eq!(shown["env"], json!({ "A": "***", "B": "${VAR}", "C": "***", "D": "***" }));
        assert_eq!(shown["headers"], json!({ "Authorization": "***" }));
        assert_eq!(shown["command"], "x");
    }
}
