//! `svc mcp list --tools`: the tools, resources and prompts of each server.

use serde_json::{Value, json};
use svc_client::Client;
use svc_sys::config::Flags;

use super::super::output;
use super::super::{Context, tools};
use super::project::ProjectClient;

/// The kinds of offers: kind, member with the list, and member that names an item.
const KINDS: [(&str, &str, &str); 3] =
    [("tool", "tools", "name"), ("resource", "resources", "uri"), ("prompt", "prompts", "name")];

/// Adds `offers` to each server of a page: what the server offers in this folder.
pub(super) async fn add_to(context: &Context, page: &mut Value) -> anyhow::Result<()> {
    let here = std::env::current_dir()?;
    let plan = context.config(&Flags::default())?.sources.plan(Some(&here));
    let entries = plan.sources.iter().filter_map(|source| source.entry.as_ref().ok());
    let mut scopes: Vec<&str> = entries.filter_map(|entry| entry.scope.as_deref()).collect();
    scopes.sort_unstable();
    scopes.dedup();
    let caller = ProjectClient::new(context, &scopes).await?;
    let done = add_as(&caller.client, page).await;
    caller.end().await;
    done
}

async fn add_as(client: &Client, page: &mut Value) -> anyhow::Result<()> {
    let all = tools::of_sources(client).await?;
    let resources = tools::structured(client, "ListMcpResources", json!({})).await?;
    let prompts = tools::result_of(client, "prompts/list", json!({})).await?;
    for source in page["sources"].as_array_mut().into_iter().flatten() {
        // A hidden server offers nothing: its name belongs to another entry.
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
pub(super) fn shown(source: &Value) -> Option<String> {
    let offers = &source["offers"];
    let lines: Vec<String> = KINDS
        .iter()
        .flat_map(|(kind, list, name)| {
            output::items(offers, list).iter().map(move |offer| line_of(kind, name, offer))
        })
        .collect();
    let head = format!("\n{}\n", output::visible(&output::cell(source, "name")));
    (!lines.is_empty()).then(|| head + &lines.concat())
}

fn line_of(kind: &str, name: &str, offer: &Value) -> String {
    let mut about = ["title", "description"].iter().filter_map(|member| offer[member].as_str());
    let about = about.find(|text| !text.is_empty()).unwrap_or_default();
    let first = about.lines().next().unwrap_or_default();
    let name = output::visible(&output::cell(offer, name));
    format!("  {kind:<9} {name}  {}", output::visible(first)).trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_listed_below_their_server() {
        let source = json!({ "name": "toy", "offers": {
            "tools": [{ "name": "toy__read", "description": "Reads a file.\nAll of it." }],
            "resources": [{ "uri": "toy://one\u{1b}", "name": "one" }],
            "prompts": [{ "name": "toy__greet", "title": "Greet" }],
        } });
        let text = shown(&source).expect("it offers something");
        assert_eq!(
            text,
            "\ntoy\n  tool      toy__read  Reads a file.\n  resource  toy://one␛\n  prompt    toy__greet  Greet\n"
        );
        assert_eq!(shown(&json!({ "name": "idle" })), None);
    }
}
