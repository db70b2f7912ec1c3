//! Shows servers as the daemon knows them, and calls their tools.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use http::StatusCode;
use serde_json::{Value, json};
use svc_client::{Client, Token, encode, with_query};
use svc_sys::config::sources::project_files;

use super::super::mcp_config::FreshToken;
use super::super::naming::source_missing;
use super::super::output::{self, Column, Listing, Screen};
use super::super::{Context, ExitResult, tools};
use super::server_file::here;

/// How long a call waits for the first list of tools of a server that was never connected, and the
/// poll interval.
const FIRST_LISTS: Duration = Duration::from_secs(5);
const FIRST_LISTS_POLL: Duration = Duration::from_millis(100);

const LIST: Listing = Listing {
    items: "sources",
    columns: &[
        Column::text("SERVER", "name"),
        Column::state("STATE", "state"),
        Column::text("TRANSPORT", "transport").rank(5),
        Column::text("SHARING", "sharing").rank(4),
        Column::number("TOOLS", "tools").rank(1),
        Column::number("CHANGED", "changed").rank(2),
        Column::path("FROM", "from").rank(3),
        Column::path("HIDDEN BY", "hidden_by").rank(6),
    ],
    empty: "no servers; `svc mcp add` adds one",
    next: None,
};

const TOOLS: &[Column] = &[Column::text("TOOL", ""), Column::text("WHAT IT DOES", "")];

/// The path of a request about servers, with the current folder.
fn path(route: &str) -> Result<String> {
    let here = here()?;
    let has_file = project_files(&here).iter().any(|file| file.symlink_metadata().is_ok());
    let folder = has_file.then(|| here.display().to_string());
    Ok(with_query(route, &[("project", folder.as_deref())]))
}

pub(super) fn path_of(name: &str, action: &str) -> Result<String> {
    path(&format!("/v1/sources/{}{action}", encode(name)))
}

pub(super) async fn list(context: &Context, with_offers: bool) -> ExitResult {
    let mut page: Value = context.client()?.get(&path("/v1/sources?limit=500")?).await?;
    if with_offers {
        add_offers(context, &mut page).await?;
    }
    LIST.print(context, &page)?;
    if !context.json {
        let sources = output::items(&page, "sources").iter();
        let offers = sources.clone().filter_map(|source| offers_of(&context.screen, source));
        for text in offers.chain(sources.filter_map(trouble)) {
            output::block(&text)?;
        }
        for problem in page["problems"].as_array().into_iter().flatten() {
            output::note(problem.as_str().unwrap_or_default());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Why a server is in its state and what to do, on separate lines, as a table would truncate them.
fn trouble(source: &Value) -> Option<String> {
    let cell = |key| output::visible(&output::cell(source, key));
    let lines: Vec<String> = [("reason", "reason"), ("next", "next_action")]
        .into_iter()
        .filter(|(_, key)| source[*key].is_string())
        .map(|(label, key)| format!("  {:<8}{}\n", format!("{label}:"), cell(key)))
        .collect();
    let head = format!("\n{} is {}\n", cell("name"), cell("state"));
    (!lines.is_empty()).then(|| head + &lines.concat())
}

pub(super) async fn get(context: &Context, name: &str) -> ExitResult {
    let name = &known_name(context, name).await?;
    let mut source: Value = context.client()?.get(&path_of(name, "")?).await?;
    let from = source.get("from").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut plan = context.source_plan()?.sources.into_iter();
    let planned = plan.find(|it| it.name == *name && it.from == from);
    // Only the daemon knows entries from a flag.
    if let Some(planned) = planned {
        source["entry"] = masked(planned.written);
    }
    context.print(&source, || {
        let mut shown = source.clone();
        let entry = shown.as_object_mut().and_then(|source| source.remove("entry"));
        output::object(&context.screen, &shown, &["name", "state", "reason", "next_action"])?;
        entry.map_or(Ok(()), |entry| output::fields(&[("entry", entry.to_string())]))
    })
}

/// Masks values of an entry that may be secrets: literals in `env` and `headers`, but not names of
/// variables.
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

pub(super) async fn tools(context: &Context, name: &str) -> ExitResult {
    // An unknown name is an error, not an empty list.
    let name = &known_name(context, name).await?;
    let caller = caller_of(context, name).await?;
    let own = tools::of_source(&caller.client, name).await;
    caller.end().await;
    let own = own?;
    let row = |tool: &Value| {
        let purpose = tools::purpose(&context.screen, &output::cell(tool, "description"));
        vec![Some(output::cell(tool, "name")), Some(purpose)]
    };
    let rows: Vec<_> = own.iter().map(row).collect();
    let empty = "it has no tools, or has not listed them yet: `svc mcp list` shows its state";
    context.print(&json!({ "count": own.len(), "tools": own }), || {
        output::table(&context.screen, TOOLS, &rows, empty)
    })
}

pub(super) async fn reconnect(context: &Context, name: &str) -> ExitResult {
    let name = &known_name(context, name).await?;
    let source: Value = context.client()?.post(&path_of(name, "/reconnect")?, &json!({})).await?;
    context.print_line(&source, &format!("{name} restarts; `svc mcp list` shows its state"))
}

pub(super) async fn logs(context: &Context, name: &str) -> ExitResult {
    let name = &known_name(context, name).await?;
    let log: Value = context.client()?.get(&path_of(name, "/log")?).await?;
    let mut lines = log["log"].as_str().unwrap_or_default().lines();
    context.print(&log, || lines.try_for_each(output::line))
}

pub(super) async fn call(
    context: &Context,
    name: &str,
    tool: &str,
    arguments: Vec<String>,
) -> ExitResult {
    let name = &known_name(context, name).await?;
    let caller = caller_of(context, name).await?;
    let done = call_as(context, &caller, name, tool, arguments).await;
    caller.end().await;
    done
}

/// The client for a call: a session in this folder's project, with the scope that the server
/// requires.
async fn caller_of(context: &Context, name: &str) -> Result<ProjectClient> {
    let plan = context.source_plan()?;
    let planned = plan.sources.iter().find(|source| source.name == name);
    let entry = planned.and_then(|source| source.entry.as_ref().ok());
    let scope = entry.and_then(|entry| entry.scope.as_deref());
    ProjectClient::new(context, scope.as_slice()).await
}

async fn call_as(
    context: &Context,
    caller: &ProjectClient,
    name: &str,
    tool: &str,
    arguments: Vec<String>,
) -> ExitResult {
    let plain = format!("{name}__{tool}");
    let deadline = Instant::now() + FIRST_LISTS;
    loop {
        let source: Value = context.client()?.get(&path_of(name, "")?).await?;
        let own = tools::of_source(&caller.client, name).await?;
        let mut names = own.iter().filter_map(|tool| tool.get("name").and_then(Value::as_str));
        if let Some(found) = names.find(|known| *known == tool || *known == plain) {
            return tools::call_by_name(context, &caller.client, found.to_owned(), arguments).await;
        }
        let is_coming = matches!(source["state"].as_str(), Some("pending" | "connecting"));
        if !is_coming || Instant::now() >= deadline {
            bail!("{}", missing_tool(&source, name, tool));
        }
        tokio::time::sleep(FIRST_LISTS_POLL).await;
    }
}

/// Why a server has no such tool: a server that is not connected has no list of tools.
fn missing_tool(source: &Value, name: &str, tool: &str) -> String {
    let state = source["state"].as_str().unwrap_or_default();
    if matches!(state, "connected" | "") {
        return format!("{name} has no tool {tool:?}; see `svc mcp tools {name}`");
    }
    let cell = |key: &str| source[key].as_str().filter(|text| !text.is_empty());
    let state = output::visible(&state.replace('_', " "));
    let mut text = format!("{name} is {state}, so its tools are not known yet");
    for part in [cell("reason"), cell("next_action")].into_iter().flatten() {
        text.extend(["; ", &output::visible(part)]);
    }
    text
}

/// The server of this name, or the only one whose name has this prefix.
async fn known_name(context: &Context, name: &str) -> Result<String> {
    let client = context.client()?;
    let page: Value = client.get(&path("/v1/sources?limit=500")?).await?;
    let names = output::items(&page, "sources").iter().filter_map(|source| source["name"].as_str());
    let names: Vec<&str> = names.collect();
    if let Some(meant) = meant(&names, name) {
        return Ok(meant.to_owned());
    }
    match client.get::<Value>(&path_of(name, "")?).await {
        Ok(_) => Ok(name.to_owned()),
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => {
            Err(source_missing(error, name).into())
        }
        Err(error) => Err(error.into()),
    }
}

fn meant<'a>(names: &[&'a str], name: &str) -> Option<&'a str> {
    if let Some(known) = names.iter().find(|known| **known == name) {
        return Some(known);
    }
    let mut near: Vec<&str> =
        names.iter().filter(|known| !name.is_empty() && known.starts_with(name)).copied().collect();
    near.dedup();
    match near[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// Kinds of offers: kind, member that holds the list, and member that names an item.
const KINDS: [(&str, &str, &str); 3] =
    [("tool", "tools", "name"), ("resource", "resources", "uri"), ("prompt", "prompts", "name")];

async fn add_offers(context: &Context, page: &mut Value) -> Result<()> {
    let plan = context.source_plan()?;
    let entries = plan.sources.iter().filter_map(|source| source.entry.as_ref().ok());
    let mut scopes: Vec<&str> = entries.filter_map(|entry| entry.scope.as_deref()).collect();
    scopes.sort_unstable();
    scopes.dedup();
    let caller = ProjectClient::new(context, &scopes).await?;
    let done = add_offers_as(&caller.client, page).await;
    caller.end().await;
    done
}

async fn add_offers_as(client: &Client, page: &mut Value) -> Result<()> {
    let all = tools::fetch(client, Some("sources")).await?;
    let resources = tools::structured(client, "ListMcpResources", json!({})).await?;
    let prompts = tools::result_of(client, "prompts/list", json!({})).await?;
    for source in page["sources"].as_array_mut().into_iter().flatten() {
        // A hidden server offers nothing: another entry of its name counts.
        if source["state"] == "hidden" {
            continue;
        }
        let name = output::cell(source, "name");
        let prefix = format!("{name}__");
        let is_own = |offer: &&Value| output::cell(offer, "name").starts_with(&prefix);
        source["offers"] = json!({
            "tools": all.iter().filter(|tool| tools::is_of_source(tool, &name)).collect::<Vec<_>>(),
            "resources": output::items(&resources, "resources").iter()
                .filter(|resource| resource["server"] == *name).collect::<Vec<_>>(),
            "prompts": output::items(&prompts, "prompts").iter().filter(is_own).collect::<Vec<_>>(),
        });
    }
    Ok(())
}

/// What a server offers, one item a line; `None` if nothing.
fn offers_of(screen: &Screen, source: &Value) -> Option<String> {
    let offers = &source["offers"];
    let lines: Vec<String> = KINDS
        .iter()
        .flat_map(|(kind, list, name)| {
            output::items(offers, list).iter().map(move |offer| line_of(screen, kind, name, offer))
        })
        .collect();
    let head = format!("\n{}\n", output::visible(&output::cell(source, "name")));
    (!lines.is_empty()).then(|| head + &lines.concat())
}

fn line_of(screen: &Screen, kind: &str, name: &str, offer: &Value) -> String {
    let mut about = ["title", "description"].iter().filter_map(|member| offer[member].as_str());
    let about = about.find(|text| !text.is_empty()).unwrap_or_default();
    let purpose = output::visible(&tools::purpose(screen, about));
    let name = output::visible(&output::cell(offer, name));
    format!("  {kind:<9} {name}  {purpose}").trim_end().to_owned() + "\n"
}

/// Lifetime of the token in seconds, in case this process is killed.
const TTL: u64 = 3600;

/// A client that calls in the project of the current folder.
pub(super) struct ProjectClient {
    pub(super) client: Client,
    minted: Option<(Client, String)>,
}

impl ProjectClient {
    /// Mints a token for the project, since the operator's requests belong to none. A caller who is
    /// not the operator keeps its own token.
    pub(super) async fn new(context: &Context, more: &[&str]) -> Result<Self> {
        let operator = context.client()?;
        let project = std::env::current_dir().ok();
        let mut scopes = vec!["read", "exec"];
        scopes.extend(more);
        let input = json!({
            "session": format!("svc-mcp-{}", std::process::id()), "project": project, "scopes": scopes, "ttl_seconds": TTL,
        });
        let Ok(minted) = operator.post::<FreshToken>("/v1/tokens", &input).await else {
            return Ok(Self { client: operator, minted: None });
        };
        let mut target = operator.target().clone();
        target.token = Some(Token::parse(&minted.token, Path::new("the token of this call"))?);
        Ok(Self { client: Client::new(target), minted: Some((operator, minted.token_id)) })
    }

    pub(super) async fn end(self) {
        if let Some((operator, token)) = self.minted {
            // If this fails, the token expires.
            operator.delete::<Value>(&format!("/v1/tokens/{token}")).await.ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_and_next_action_are_separate_lines() {
        let source = json!({ "name": "db", "state": "failed", "reason": "exit code 1", "next_action": "svc mcp logs db" });
        let text = trouble(&source).expect("it has trouble");
        assert_eq!(text, "\ndb is failed\n  reason: exit code 1\n  next:   svc mcp logs db\n");
        assert_eq!(trouble(&json!({ "name": "db", "state": "connected" })), None);
    }

    #[test]
    fn unique_prefix_names_a_server() {
        let names = ["toy", "toy-two", "files"];
        for (name, is) in
            [("toy", Some("toy")), ("fi", Some("files")), ("to", None), ("", None), ("x", None)]
        {
            assert_eq!(meant(&names, name), is, "{name}");
        }
    }

    #[test]
    fn unconnected_server_has_no_tools_yet() {
        let source = json!({ "state": "connecting" });
        assert_eq!(
            missing_tool(&source, "toy", "echo"),
            "toy is connecting, so its tools are not known yet"
        );
        let source = json!({ "state": "backing_off", "reason": "no such file", "next_action": "it is started again" });
        assert_eq!(
            missing_tool(&source, "toy", "echo"),
            "toy is backing off, so its tools are not known yet; no such file; it is started again"
        );
        let source = json!({ "state": "connected" });
        assert!(missing_tool(&source, "toy", "echo").starts_with("toy has no tool"));
    }

    #[test]
    fn possible_secrets_are_masked() {
        let entry = json!({
            "command": "x", "env": { "A": "secret", "B": "${VAR}", "C": "${VAR:-secret}", "D": "a${VAR}" },
            "headers": { "Authorization": "Bearer secret" },
        });
        let shown = masked(entry);
        assert_eq!(shown["env"], json!({ "A": "***", "B": "${VAR}", "C": "***", "D": "***" }));
        assert_eq!(shown["headers"], json!({ "Authorization": "***" }));
        assert_eq!(shown["command"], "x");
    }

    #[test]
    fn offers_are_listed_below_their_server() {
        let source = json!({ "name": "toy", "offers": {
            "tools": [{ "name": "toy__read", "description": "Reads a file.\nAll of it." }],
            "resources": [{ "uri": "toy://one\u{1b}", "name": "one" }],
            "prompts": [{ "name": "toy__greet", "title": "Greet" }],
        } });
        let screen = Screen::for_tests(Some(40));
        let text = offers_of(&screen, &source).expect("it offers something");
        assert_eq!(
            text,
            "\ntoy\n  tool      toy__read  Reads a file.\n  resource  toy://one␛\n  prompt    toy__greet  Greet\n"
        );
        assert_eq!(offers_of(&screen, &json!({ "name": "idle" })), None);
    }
}
