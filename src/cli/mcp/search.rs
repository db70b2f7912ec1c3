//! `svc mcp search`: searches the tools of the configured servers, or the servers of a registry.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use svc_model::{Clock as _, SystemClock};
use svc_sys::config::Flags;
use svc_sys::{bounded_file, private_file};
use svc_wire::choose_tls;

use super::super::output::{self, Column, Listing};
use super::super::{Context, ExitResult, tools};
use super::show::ProjectClient;

const KEPT_FOR: Duration = Duration::from_hours(24);
const MAX_PAGES: usize = 200;
/// Longest page, in bytes.
const MAX_PAGE: usize = 16 * 1024 * 1024;
/// Largest list of a registry that is cached, in bytes.
const MAX_CACHE: u64 = 256 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);

const SERVERS: Listing = Listing {
    items: "servers",
    columns: &[
        Column::text("SERVER", "name"),
        Column::text("VERSION", "version").rank(2),
        Column::text("START IT WITH", "start").rank(1),
        Column::text("WHAT IT IS", "description"),
    ],
    empty: "no server of the registry has all of these words",
    next: None,
};

const FOUND: Listing = Listing {
    items: "tools",
    columns: &[
        Column::text("TOOL", "name"),
        Column::text("SERVER", "source").rank(1),
        Column::text("WHAT IT DOES", "description"),
    ],
    empty: "no tool fits these words; `svc tools list` shows all",
    next: None,
};

/// A server as a registry describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RegisteredServer {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    version: String,
    /// A command or a URL for `svc mcp add`.
    #[serde(default)]
    start: String,
}

#[derive(Serialize, Deserialize)]
struct RegistryCache {
    /// Milliseconds since 1970.
    read_at: i64,
    servers: Vec<RegisteredServer>,
}

pub(super) async fn search(context: &Context, query: &str, of_registry: bool) -> ExitResult {
    if !of_registry {
        let caller = ProjectClient::new(context, &[]).await?;
        let found =
            tools::structured(&caller.client, "ToolSearch", json!({ "query": query })).await;
        caller.end().await;
        return FOUND.print(context, &found?);
    }
    let registry = context.config(&Flags::default())?.sources_registry.value;
    let servers = servers_of(context, &registry).await?;
    let words: Vec<String> = query.split_whitespace().map(str::to_lowercase).collect();
    let found: Vec<&RegisteredServer> =
        servers.iter().filter(|server| server.has(&words)).collect();
    SERVERS.print(context, &json!({ "count": found.len(), "servers": found }))
}

impl RegisteredServer {
    fn has(&self, words: &[String]) -> bool {
        let text = format!("{} {}", self.name, self.description).to_lowercase();
        words.iter().all(|word| text.contains(word))
    }

    /// Parses an entry of a registry, which has the server in an envelope.
    fn parse(entry: &Value) -> Option<Self> {
        let server = entry.get("server")?;
        let text =
            |name: &str| server.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let name = text("name");
        (!name.is_empty()).then(|| Self {
            name,
            description: text("description"),
            version: text("version"),
            start: start_of(server).unwrap_or_default(),
        })
    }
}

/// The command or URL that starts a server: its first package that a common launcher can run, else
/// its address.
fn start_of(server: &Value) -> Option<String> {
    let list = |name: &str| server.get(name).and_then(Value::as_array).into_iter().flatten();
    let package = list("packages").find_map(|package| {
        let text = |name: &str| package.get(name).and_then(Value::as_str);
        let id = text("identifier")?;
        match (text("registryType")?, text("version")) {
            ("npm", Some(version)) => Some(format!("npx -y {id}@{version}")),
            ("npm", None) => Some(format!("npx -y {id}")),
            ("pypi", _) => Some(format!("uvx {id}")),
            ("oci", _) => Some(format!("docker run -i --rm {id}")),
            _ => None,
        }
    });
    package.or_else(|| {
        list("remotes").find_map(|remote| Some(remote.get("url")?.as_str()?.to_owned()))
    })
}

async fn servers_of(context: &Context, registry: &str) -> Result<Vec<RegisteredServer>> {
    let hash = hex::encode(&Sha256::digest(registry)[..8]);
    let file = context.paths.home.join("cache").join(format!("registry-{hash}.json"));
    let now = SystemClock.now().as_millis();
    let kept = bounded_file::read(&file, MAX_CACHE)
        .ok()
        .flatten()
        .and_then(|text| serde_json::from_slice::<RegistryCache>(&text).ok());
    let age = |cache: &RegistryCache| {
        Duration::from_millis(u64::try_from(now - cache.read_at).unwrap_or(u64::MAX))
    };
    if let Some(kept) = kept.filter(|kept| age(kept) < KEPT_FOR) {
        return Ok(kept.servers);
    }
    let servers = fetch(registry).await?;
    let cache = RegistryCache { read_at: now, servers };
    let written = serde_json::to_vec(&cache)?;
    let folder = file.parent().context("the file has a folder")?;
    let kept = private_file::create_folder(folder)
        .and_then(|()| private_file::replace_fleeting(&file, &written));
    if let Err(error) = kept {
        output::note(&format!("the list was not stored: {}: {error}", file.display()));
    }
    Ok(cache.servers)
}

async fn fetch(registry: &str) -> Result<Vec<RegisteredServer>> {
    choose_tls();
    let client = reqwest::Client::builder().timeout(TIMEOUT).build()?;
    let (mut servers, mut cursor) = (Vec::new(), None::<String>);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..MAX_PAGES {
        let mut url = reqwest::Url::parse(&format!("{registry}/v0/servers"))
            .with_context(|| format!("{registry} is no URL"))?;
        url.query_pairs_mut().append_pair("limit", "100").append_pair("version", "latest");
        if let Some(cursor) = &cursor {
            url.query_pairs_mut().append_pair("cursor", cursor);
        }
        let page =
            page_of(&client, url).await.with_context(|| format!("{registry} cannot be asked"))?;
        let entries = page.get("servers").and_then(Value::as_array);
        let entries = entries.with_context(|| format!("{registry} returned no list of servers"))?;
        servers.extend(entries.iter().filter_map(RegisteredServer::parse));
        let next = page["metadata"]["nextCursor"].as_str();
        match next.filter(|next| !next.is_empty()) {
            Some(next) if seen.insert(next.to_owned()) => cursor = Some(next.to_owned()),
            _ => return Ok(servers),
        }
    }
    Ok(servers)
}

async fn page_of(client: &reqwest::Client, url: reqwest::Url) -> Result<Value> {
    let mut reply = client.get(url).send().await?.error_for_status()?;
    let mut body = Vec::new();
    while let Some(part) = reply.chunk().await? {
        if body.len() + part.len() > MAX_PAGE {
            bail!("its page is longer than 16 MiB");
        }
        body.extend_from_slice(&part);
    }
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_by_table() {
        let cases = json!([
            [{ "server": { "name": "a/b", "packages": [{ "registryType": "npm", "identifier": "p", "version": "1" }] } }, "npx -y p@1"],
            [{ "server": { "name": "a/b", "packages": [{ "registryType": "pypi", "identifier": "p" }] } }, "uvx p"],
            [{ "server": { "name": "a/b", "packages": [{ "registryType": "mcpb", "identifier": "p" }], "remotes": [{ "type": "sse", "url": "https://h" }] } }, "https://h"],
            [{ "server": { "name": "a/b" } }, ""],
        ]);
        for case in cases.as_array().expect("a list") {
            let server = RegisteredServer::parse(&case[0]).expect("is one");
            assert_eq!((json!(server.name), json!(server.start)), (json!("a/b"), case[1].clone()));
        }
        assert_eq!(RegisteredServer::parse(&json!({ "server": {} })), None);
    }
}
