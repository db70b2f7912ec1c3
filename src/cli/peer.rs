//! `svc peer`: participants.

use clap::Subcommand;
use serde_json::{Value, json};
use svc_client::{ClientError, TokenSource, encode, with_object};
use svc_model::{ListQuery, PeerFilter, PeerId, RegisterInput};

use super::naming::peer_found;
use super::output::{self, Column, Listing};
use super::{Context, ExitResult};

const LIST: Listing = Listing {
    items: "peers",
    columns: &[
        Column::id("PEER", "peer_id").rank(2),
        Column::name("NAME", "display_name"),
        Column::state("STATUS", "status"),
        Column::text("BACKEND", "backend").rank(5),
        Column::text("CIRCLE", "circle").usual("default").rank(7),
        Column::text("ROLE", "role").usual("agent").rank(6),
        Column::text("MACHINE", "machine").rare(),
        Column::path("PATH", "path").rank(3),
        Column::time("SEEN", "last_seen").rank(4),
        Column::text("WAITS FOR", "waits_for").rank(1),
    ],
    empty: "nobody is here (--all shows offline peers); coding agents register themselves after `svc install`",
    next: Some("--cursor"),
};

#[derive(Debug, Subcommand)]
pub(super) enum PeerCommand {
    /// List who is here
    #[command(after_help = "Examples:\n  svc peer list\n  svc peer list --all --circle backend")]
    List {
        /// Include offline peers
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        query: ListQuery<PeerFilter>,
    },
    /// Register a peer, or update the one with the same identity
    #[command(
        after_help = "Example:\n  svc peer register --display-name reviewer --backend claude --path \"$PWD\"\n\n\
        The identity is backend and session id, or without a session id backend, path and tmux pane."
    )]
    Register(Box<RegisterInput>),
    /// Report that a peer is alive
    #[command(after_help = "Example:\n  svc peer heartbeat peer_… --status busy")]
    Heartbeat {
        /// The peer: a name, an id or its beginning, or a session's key
        peer: String,
        /// Its status from now on: online, busy, idle or offline
        #[arg(long)]
        status: Option<String>,
    },
    /// Show one peer
    #[command(after_help = "Example:\n  svc peer show peer_…")]
    Show {
        /// The peer: a name, an id or its beginning, or a session's key
        peer: String,
    },
    /// Remove a peer
    #[command(after_help = "Example:\n  svc peer remove peer_…")]
    Remove {
        /// The peer: a name, an id or its beginning, or a session's key
        peer: String,
    },
}

pub(super) async fn run(context: &Context, command: PeerCommand) -> ExitResult {
    let client = context.client()?;
    let peer: Value = match command {
        PeerCommand::List { all, query } => {
            let is_all = all || query.filter.status.is_some();
            let path = if is_all { "/v1/peers" } else { "/v1/peers?live=true" };
            let mut page: Value = client.get(&with_object(path, &query)).await?;
            if !context.json {
                // A program gets the names as they are.
                if context.screen.is_for_people()
                    && client.target().token_source != TokenSource::Env
                {
                    mark_operator(&mut page);
                }
                let requests: Result<Value, ClientError> =
                    client.get("/v1/requests?open=true&limit=500").await;
                // The token of a session may not read requests.
                mark_waiting(&mut page, &requests.unwrap_or_default());
                leave_out_tasks(&mut page);
            }
            return LIST.of_filter(&query.filter).print(context, &page);
        }
        PeerCommand::Register(input) => client.post("/v1/peers/register", &*input).await?,
        PeerCommand::Heartbeat { peer, status } => {
            let body = json!({ "status": status });
            let path = format!("/v1/peers/{}/heartbeat", encode(&peer));
            peer_found(&client, &peer, client.post(&path, &body).await).await?
        }
        PeerCommand::Show { peer } => {
            let answer = client.get(&format!("/v1/peers/{}", encode(&peer))).await;
            peer_found(&client, &peer, answer).await?
        }
        PeerCommand::Remove { peer } => {
            let answer = client.delete(&format!("/v1/peers/{}", encode(&peer))).await;
            let removed: Value = peer_found(&client, &peer, answer).await?;
            let cell = |key| output::visible(&output::cell(&removed, key));
            let line = format!("removed {} ({})", cell("display_name"), cell("peer_id"));
            return context.print_line(&removed, &line);
        }
    };
    let first = ["peer_id", "display_name", "status", "backend", "circle", "role", "path"];
    context.print_object(&peer, &first)
}

fn mark_operator(page: &mut Value) {
    let peers = page["peers"].as_array_mut();
    for peer in peers.into_iter().flatten().filter(|peer| peer["peer_id"] == PeerId::OPERATOR) {
        peer["display_name"] = format!("{} (you)", output::cell(peer, "display_name")).into();
    }
}

/// Adds the open requests to peers that wait for a person.
fn mark_waiting(page: &mut Value, requests: &Value) {
    for peer in page["peers"].as_array_mut().into_iter().flatten() {
        if let Some(asked) = waits_at_terminal(peer) {
            peer["waits_for"] = asked.into();
        }
        let own = output::items(requests, "requests").iter();
        let mut own = own
            .filter(|request| request["peer_id"] == peer["peer_id"] && !only_at_terminal(request));
        if let Some(request) = own.next() {
            peer["waits_for"] =
                format!("your permission: {}", output::cell(request, "title")).into();
        }
    }
}

/// Whether a request can be answered only at the terminal of its session.
pub(super) fn only_at_terminal(request: &Value) -> bool {
    request["agent_id"].is_null() && request["options"].as_array().is_some_and(Vec::is_empty)
}

/// What a peer waits for, if only a person at its terminal or the end of a limit ends the wait.
pub(super) fn waits_at_terminal(peer: &Value) -> Option<String> {
    let waits = &peer["waiting_for"];
    let asked = match waits["kind"].as_str()? {
        "permission" => "permission",
        "question" => "an answer",
        _ => {
            let until = waits["until"].as_str().and_then(|until| until.get(..16));
            let until = until.map(|until| format!(" at {} UTC", until.replace('T', " ")));
            return Some(format!("the end of its usage limit{}", until.unwrap_or_default()));
        }
    };
    let title = waits["title"].as_str().filter(|title| !title.is_empty());
    let title = title.map(|title| format!(": {title}")).unwrap_or_default();
    Some(format!("{asked}, at its terminal{title}"))
}

/// Whether a name is that of an agent of one task, which ends with the task.
pub(super) fn is_of_task(name: &str) -> bool {
    name.contains(":task-")
}

/// Removes the agents of tasks, except those that wait for a person: a person looks for the others
/// in the list of tasks.
fn leave_out_tasks(page: &mut Value) {
    if let Some(peers) = page["peers"].as_array_mut() {
        peers.retain(|peer| {
            peer["waits_for"].is_string() || !is_of_task(&output::cell(peer, "display_name"))
        });
        let count = peers.len();
        page["count"] = count.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_peers_are_marked_and_agents_of_tasks_left_out() {
        let peer = |id: &str, status: &str, seen: &str| json!({ "peer_id": id, "status": status, "last_seen": seen });
        let mut page = json!({ "peers": [
            peer("a", "busy", "2026-01-01"), peer("b", "offline", "2026-01-02"), peer("c", "offline", "2026-01-03"),
            { "peer_id": "d", "display_name": "codex:task-01", "status": "busy" },
        ] });
        page["peers"][0]["display_name"] = "codex:task-02".into();
        let requests = json!({ "requests": [{ "peer_id": "a", "title": "Write: /etc/x" }, { "title": "of nobody" }] });
        mark_waiting(&mut page, &requests);
        leave_out_tasks(&mut page);
        let ids: Vec<String> = output::items(&page, "peers")
            .iter()
            .map(|peer| output::cell(peer, "peer_id"))
            .collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(page["peers"][0]["waits_for"], "your permission: Write: /etc/x");
        assert!(page["peers"][1]["waits_for"].is_null());

        let mut page = json!({ "peers": [peer("e", "offline", "2026-01-04")], "next_cursor": "c" });
        page["peers"][0]["display_name"] = "codex:task-03".into();
        leave_out_tasks(&mut page);
        assert_eq!(LIST.text_without_rows(&page), "none on this page");
        page["next_cursor"].take();
        assert!(LIST.text_without_rows(&page).starts_with("nobody is here"));
    }
}
