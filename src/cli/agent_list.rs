//! `svc agent list` prints hosted agents and attended sessions; `svc agent status` prints one agent
//! with its end, its history and the delivery of an input.

use std::path::Path;

use clap::Args;
use serde_json::{Map, Value, json};
use svc_client::{Client, ClientError, with_object, with_query};
use svc_model::{AgentFilter, ListQuery, PageQuery, backend_names};
use svc_sys::git_repository::project_root;

use super::agent_attach::{entry_text, paragraph};
use super::naming::all_items;
use super::output::{self, Column, Listing};
use super::{Context, ExitResult};

const LIST: Listing = Listing {
    items: "agents",
    columns: &[
        Column::name("NAME", "name").least(24),
        Column::state("STATUS", "status"),
        Column::text("KIND", "kind").rank(1),
        Column::text("BACKEND", "backend").rank(4),
        Column::text("MACHINE", "machine").rare(),
        Column::path("FOLDER", "folder").rank(2),
        Column::name("KEY", "key").rank(5).least(40),
        Column::time("SINCE", "since").rank(3),
    ],
    empty: "nobody is here: `svc install` connects the agents that you open, `svc agent start INSTANCE` starts one",
    next: Some("--cursor"),
};

const INSTANCES: Listing = Listing {
    items: "agents",
    columns: &[
        Column::text("INSTANCE", "instance"),
        Column::text("BACKEND", "backend"),
        Column::state("STATUS", "status"),
        Column::number("LIVE", "live").rank(1),
        Column::text("REASON", "reason").rank(2),
    ],
    empty: "no instances: no agent's program is on the daemon's PATH, and config.toml has no [agents.<instance>]",
    next: None,
};

#[derive(Debug, Clone, Args)]
pub(super) struct AgentListArgs {
    /// The configured ways to run agents, and whether each can be started
    #[arg(long, conflicts_with_all = ["state", "instance", "backend", "project", "hosted", "all", "limit", "cursor"])]
    pub(super) instances: bool,
    /// Only agents that svc runs
    #[arg(long)]
    hosted: bool,
    /// Also those that have ended
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: AgentFilter,
    /// How many agents that svc runs, 1 to 500
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// The `next_cursor` of the previous page
    #[arg(long)]
    cursor: Option<String>,
}

impl AgentListArgs {
    /// The project filter: a root or a name, or the last part of either.
    fn project(&self) -> anyhow::Result<Option<String>> {
        let Some(named) = &self.filter.project else { return Ok(None) };
        if !named.contains('/') && named != "." && named != ".." {
            return Ok(Some(named.clone()));
        }
        let folder = std::path::absolute(named)?;
        let folder = match folder.canonicalize() {
            Ok(folder) => folder,
            Err(_) if named.starts_with(['/', '.', '~']) => folder,
            // The name of a project, such as host/path.
            Err(_) => return Ok(Some(named.clone())),
        };
        Ok(Some(project_root(&folder).to_string_lossy().into_owned()))
    }
}

/// Whether the filter is a project root, or the last part of one.
fn is_project(root: &str, named: Option<&str>) -> bool {
    named.is_none_or(|named| {
        root == named || Path::new(root).file_name().is_some_and(|name| name == named)
    })
}

pub(super) async fn list(context: &Context, args: &AgentListArgs) -> ExitResult {
    let client = context.client()?;
    if args.instances {
        let all: Value = client.get("/v1/agents?limit=500").await?;
        return INSTANCES.print(context, &all);
    }
    let is_living = !args.all && args.filter.state.is_none();
    let project = args.project()?;
    let filter = AgentFilter { project: project.clone(), live: is_living, ..args.filter.clone() };
    let page = PageQuery { limit: args.limit.or(Some(500)), cursor: args.cursor.clone() };
    let hosts: Value = client.get(&with_object("/v1/hosts", &ListQuery { filter, page })).await?;
    let is_of_hosts = args.hosted
        || args.filter.state.is_some()
        || args.filter.instance.is_some()
        // Only the first page has the agents that the daemon hosts.
        || args.cursor.is_some();
    let peers = peers(&client, args, is_living).await?;
    let mut agents: Vec<Value> =
        output::items(&hosts, "hosts").iter().map(|agent| hosted(agent, &peers)).collect();
    // Living agents first, whatever the order of the page.
    agents.sort_by_key(|agent| agent["status"] == "offline");
    if !is_of_hosts {
        let is_here = |peer: &&Value| is_attended(peer) && is_within(peer, project.as_deref());
        agents.extend(peers.iter().filter(is_here).map(attended));
    }
    print_rows(context, args, &agents, hosts.get("next_cursor"))
}

pub(super) fn print_hosts(context: &Context, args: &AgentListArgs, agents: &[Value]) -> ExitResult {
    let project = args.project()?;
    let mut wanted = json!(args.filter);
    if let Some(backend) = args.filter.backend.as_deref() {
        wanted["backend"] = backend_names(backend).1.into();
    }
    let is_wanted = |agent: &&Value| {
        ["state", "instance", "backend"]
            .iter()
            .all(|member| wanted[*member].is_null() || agent[*member] == wanted[*member])
            && is_project(agent["project"].as_str().unwrap_or_default(), project.as_deref())
    };
    // The socket of an ended agent's host stays for some seconds.
    let is_shown =
        |row: &Value| args.all || args.filter.state.is_some() || row["status"] != "offline";
    let rows = agents.iter().filter(is_wanted).map(|agent| hosted(agent, &[])).filter(is_shown);
    let rows: Vec<Value> = rows.take(args.limit.unwrap_or(500) as usize).collect();
    print_rows(context, args, &rows, None)
}

fn print_rows(
    context: &Context,
    args: &AgentListArgs,
    agents: &[Value],
    cursor: Option<&Value>,
) -> ExitResult {
    let mut page = json!({ "count": agents.len(), "agents": agents });
    if let Some(cursor) = cursor {
        page["next_cursor"] = cursor.clone();
    }
    let mut filter = json!(args.filter);
    filter["hosted"] = args.hosted.into();
    LIST.of_filter(&filter).print(context, &page)
}

fn is_within(peer: &Value, project: Option<&str>) -> bool {
    let folder = Path::new(peer["path"].as_str().unwrap_or_default());
    is_project(&project_root(folder).to_string_lossy(), project)
}

async fn peers(
    client: &Client,
    args: &AgentListArgs,
    is_living: bool,
) -> Result<Vec<Value>, ClientError> {
    let backend = args.filter.backend.as_deref().map(backend_names);
    let path = with_query("/v1/peers", &[("live", is_living.then_some("true"))]);
    let is_wanted = |peer: &Value| {
        is_hosted(peer)
            || backend
                .is_none_or(|(name, other)| peer["backend"] == name || peer["backend"] == other)
    };
    all_items(client, &path, "peers", usize::MAX, is_wanted).await
}

pub(super) fn is_hosted(peer: &Value) -> bool {
    peer["agent"].is_string()
}

/// Whether a participant is an attended session, or a program that registered itself.
pub(super) fn is_attended(peer: &Value) -> bool {
    !is_hosted(peer) && peer["role"] != "human"
}

fn hosted(agent: &Value, peers: &[Value]) -> Value {
    // If a host does not respond, the id may be all that is known.
    let key = agent["session_key"].as_str().or(agent["id"].as_str()).unwrap_or_default();
    let own = peers.iter().find(|peer| is_hosted(peer) && peer["agent"] == agent["session_key"]);
    let short = key.strip_prefix("agent:").unwrap_or(key);
    let short = short.strip_suffix(":main").unwrap_or(short);
    let name = own.and_then(|peer| peer["display_name"].as_str()).unwrap_or(short);
    let status = match agent["state"].as_str().unwrap_or_default() {
        "starting" | "running" | "stopping" => "busy",
        "requires_action" | "limited" => "waiting",
        "done" | "error" | "lost" => "offline",
        // `idle`, `unreachable`, and states that a later version may add.
        other => other,
    };
    let mut row = agent.as_object().cloned().unwrap_or_default();
    row.extend(common(key, name, "hosted", status));
    row.insert("folder".to_owned(), agent["worktree"].clone());
    // The status of an ended agent has no start time.
    let since = own.map_or(&agent["started_at"], |peer| &peer["since"]);
    row.insert("since".to_owned(), since.clone());
    if let Some(evidence) = own.and_then(|peer| peer.get("evidence")) {
        row.insert("evidence".to_owned(), evidence.clone());
    }
    row.into()
}

fn attended(peer: &Value) -> Value {
    let backend = output::cell(peer, "backend");
    let kind = backend_names(&backend).1;
    let session = peer["session_id"].as_str().or(peer["peer_id"].as_str()).unwrap_or_default();
    let (name, status) = (output::cell(peer, "display_name"), output::cell(peer, "status"));
    let mut row = peer.as_object().cloned().unwrap_or_default();
    row.extend(common(&format!("agent:{kind}:{session}"), &name, "attended", &status));
    row.insert("folder".to_owned(), peer["path"].clone());
    row.into()
}

fn common(key: &str, name: &str, kind: &str, status: &str) -> Map<String, Value> {
    [("key", key), ("name", name), ("kind", kind), ("status", status)]
        .map(|(name, value)| (name.to_owned(), Value::from(value)))
        .into_iter()
        .collect()
}

/// Members that a person looks for first.
const AGENT_FIELDS: [&str; 8] =
    ["id", "state", "session_key", "instance", "backend", "worktree", "started_at", "pid"];

pub(super) fn print_agent(context: &Context, agent: &Value) -> ExitResult {
    context.print_object(agent, &AGENT_FIELDS)
}

pub(super) fn print_stopped(context: &Context, agent: &str, stopped: &Value) -> ExitResult {
    let agent = output::visible(agent);
    let line = if stopped["stopped"] == true {
        format!("{agent} has ended")
    } else {
        format!("{agent} has not ended yet: `svc agent status {agent}` says how it is")
    };
    context.print_line(stopped, &line)
}

pub(super) fn print_history(context: &Context, page: &Value) -> ExitResult {
    let mut entries = output::items(page, "entries").iter();
    context.print(page, || entries.try_for_each(|entry| paragraph(&entry_text(entry))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hosted_agents_and_attended_sessions_share_one_table() {
        let peers = [
            json!({ "peer_id": "peer_1", "display_name": "worker", "session_id": "c", "agent": "agent:codex:b", "role": "agent", "status": "online" }),
            json!({ "peer_id": "peer_2", "display_name": "claude-code@web", "backend": "claude-code", "session_id": "s", "role": "agent", "status": "busy" }),
            json!({ "peer_id": "peer_operator", "display_name": "operator", "role": "human", "status": "online" }),
        ];
        let agent =
            |key: &str, state: &str| json!({ "id": "ag_1", "session_key": key, "state": state });
        let row = hosted(&agent("agent:codex:b", "running"), &peers);
        assert_eq!((&row["name"], &row["status"]), (&json!("worker"), &json!("busy")));
        assert_eq!((&row["key"], &row["kind"]), (&json!("agent:codex:b"), &json!("hosted")));
        assert_eq!(row["id"], "ag_1", "and all that is said of it");
        for (state, status) in [
            ("starting", "busy"),
            ("stopping", "busy"),
            ("idle", "idle"),
            ("requires_action", "waiting"),
            ("limited", "waiting"),
            ("unreachable", "unreachable"),
            ("done", "offline"),
            ("lost", "offline"),
        ] {
            let row = hosted(&agent("agent:claude:main", state), &peers);
            assert_eq!((&row["name"], &row["status"]), (&json!("claude"), &json!(status)));
        }
        let others: Vec<Value> = peers.iter().filter(|it| is_attended(it)).map(attended).collect();
        assert_eq!(others.len(), 1, "{others:?}");
        let row = &others[0];
        assert_eq!((&row["key"], &row["kind"]), (&json!("agent:claude:s"), &json!("attended")));
        assert_eq!((&row["name"], &row["status"]), (&json!("claude-code@web"), &json!("busy")));
    }
}
