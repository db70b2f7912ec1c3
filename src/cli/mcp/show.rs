//! Shows servers as the daemon knows them, and calls their tools.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use svc_client::{Client, Token, encode, with_query};
use svc_sys::config::sources::project_files;

use super::super::mcp_config::FreshToken;
use super::super::naming::source_found;
use super::super::output::{self, Column, Listing, Screen};
use super::super::{Context, ExitResult, tools};
use super::server_file::here;

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
    let source = server(context, name).await?;
    context.print_object(&source, &["name", "state", "reason", "next_action"])
}

pub(super) async fn tools(context: &Context, name: &str) -> ExitResult {
    // An unknown name is an error, not an empty list.
    server(context, name).await?;
    let caller = caller_of(context, name).await?;
    let own = tools::of_source(&caller.client, name).await;
    caller.end().await;
    let empty = "it has no tools, or has not listed them yet: `svc mcp list` shows its state";
    tools::print(context, own?, empty)
}

pub(super) async fn reconnect(context: &Context, name: &str) -> ExitResult {
    server(context, name).await?;
    let source: Value = context.client()?.post(&path_of(name, "/reconnect")?, &json!({})).await?;
    context.print_line(&source, &format!("{name} restarts; `svc mcp list` shows its state"))
}

pub(super) async fn logs(context: &Context, name: &str) -> ExitResult {
    server(context, name).await?;
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
    server(context, name).await?;
    let caller = caller_of(context, name).await?;
    let done = async {
        let plain = format!("{name}__{tool}");
        let own = tools::of_source(&caller.client, name).await?;
        let mut names = own.iter().filter_map(|tool| tool["name"].as_str());
        let known = names.find(|known| *known == tool || *known == plain);
        if known.is_none() && !own.is_empty() {
            bail!("{name} has no tool {tool:?}; see `svc mcp tools {name}`");
        }
        // The daemon waits for the first list of a server, and says why there is none.
        let meant = known.unwrap_or(&plain);
        tools::call_by_name(context, &caller.client, meant.to_owned(), arguments).await
    }
    .await;
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

/// The server of this name.
async fn server(context: &Context, name: &str) -> Result<Value> {
    let client = context.client()?;
    source_found(name, client.get(&path_of(name, "")?).await)
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
