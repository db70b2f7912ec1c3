//! Agents while no daemon runs: finds their hosts by their sockets and asks the hosts directly.

use std::fs;
use std::process::ExitCode;

use anyhow::{Error, Result, bail};
use serde_json::{Value, json};
use svc_client::hosts::{HostClient, HostError, HostUpdate};
use svc_model::agent::{AgentInfo, AgentState};
use svc_model::{AgentId, LATEST};
use svc_wire::host_protocol::{HistoryQuery, HostStatus, SendInput};
use tokio::task::JoinSet;

use super::agent_attach::{Printer, end_of, entry_text, note_failure, paragraph, typed_lines};
use super::agent_list::{self, AgentListArgs, print_agent};
use super::{Context, ExitResult, output};

const NEEDS_A_DAEMON: &str =
    "svc: answering needs a daemon: `svc start`, then `svc agent answer` or attach again";

/// Lists the agents whose hosts respond. Fails with `away` (no daemon runs) if there are none.
pub(super) async fn list(context: &Context, args: &AgentListArgs, away: Error) -> ExitResult {
    let found = living_hosts(context).await;
    if found.is_empty() || args.instances {
        return Err(away);
    }
    let mut agents: Vec<Value> = found.iter().map(view).collect();
    // As in the daemon's list: the latest first.
    agents.sort_by_key(|agent| std::cmp::Reverse(output::cell(agent, "started_at")));
    let printed = agent_list::print_hosts(context, args, &agents)?;
    output::note(&format!("svc: {ONLY_HOSTS}"));
    Ok(printed)
}

const ONLY_HOSTS: &str = "no daemon runs: these are the agents that svc runs, as their hosts tell; `svc start` shows all who take part";

pub(super) async fn status(context: &Context, named: &str, away: Error) -> ExitResult {
    let found = find(context, named, away).await?;
    print_agent(context, &view(&found))
}

/// Sends lines of standard input to an agent until the input or the agent ends.
pub(super) async fn attach(context: &Context, named: &str, away: Error) -> ExitResult {
    let (host, status) = find_answering(context, named, away).await?;
    let info = status.agent;
    let history = host.history(&HistoryQuery { limit: 10, ..HistoryQuery::default() }).await?;
    for entry in &history.entries {
        paragraph(&entry_text(&serde_json::to_value(entry)?))?;
    }
    output::note(&format!(
        "svc: attached to the host of {} ({}), as no daemon runs; Ctrl-C ends its turn, Ctrl-D detaches",
        output::visible(&info.session_key),
        info.id
    ));
    let mut printer = Printer::from_agent(&json!({ "backend": info.backend }));
    // An open request can be anywhere in the stream, so the stream is read from its start.
    let mut feed = host.attach(0).await?;
    let (mut is_told, mut has_caught_up) = (false, history.offset == 0);
    let mut lines = typed_lines();
    loop {
        tokio::select! {
            update = feed.recv() => {
                let batch = match update? {
                    Some(HostUpdate::Events(batch)) => batch,
                    Some(HostUpdate::Delta(words)) => {
                        // The history that was printed has finished entries only, so no delta
                        // repeats it.
                        printer.speak(&serde_json::to_value(words)?)?;
                        continue;
                    }
                    None => return Ok(ExitCode::SUCCESS),
                };
                for raw in batch {
                    let event: Value = serde_json::from_str(&raw.line)?;
                    let is_past = raw.event.offset <= history.offset;
                    if is_past {
                        printer.remember(&event);
                    } else {
                        printer.print(&event)?;
                    }
                    if let Some(end) = end_of(&event).filter(|_| !is_past) {
                        return Ok(end);
                    }
                    if raw.event.offset == history.offset {
                        printer.show_request();
                        has_caught_up = true;
                    }
                }
                if has_caught_up && printer.has_request() && !is_told {
                    output::note(NEEDS_A_DAEMON);
                }
                is_told = has_caught_up && printer.has_request();
            }
            // Until the stream has caught up, the open request that a number answers is unknown.
            line = lines.next_line(), if has_caught_up => {
                let Ok(Some(line)) = line else {
                    output::note("svc: detached; the agent keeps running");
                    return Ok(ExitCode::SUCCESS);
                };
                if line.trim().is_empty() {
                    continue;
                }
                if printer.chosen(&line).is_some() {
                    output::note(NEEDS_A_DAEMON);
                    continue;
                }
                note_failure(host.send(&SendInput::new(line)).await);
            }
            _ = tokio::signal::ctrl_c() => note_failure(host.interrupt().await),
        }
    }
}

/// An agent as the daemon renders it. Most members are empty for a host that does not respond.
fn view(found: &FoundHost) -> Value {
    let socket = found.client.socket().to_string_lossy();
    match &found.said {
        Ok(HostStatus { host, agent }) => {
            let mut view = serde_json::to_value(agent).unwrap_or_default();
            view["host_pid"] = host.pid.into();
            view["socket_path"] = socket.into();
            view
        }
        Err(error) => json!({
            "id": found.id, "state": AgentState::Unreachable, "error": error.to_string(), "socket_path": socket,
        }),
    }
}

pub(super) async fn find_answering(
    context: &Context,
    named: &str,
    away: Error,
) -> Result<(HostClient, HostStatus)> {
    let found = find(context, named, away).await?;
    match found.said {
        Ok(status) => Ok((found.client, status)),
        Err(error) => bail!("agent {} is unreachable: {error}", found.id),
    }
}

/// The living host that `named` identifies: by the agent's id, a prefix of the id, or its session
/// key, with or without `agent:` and `:main`, else by the name that it was started with. [`LATEST`]
/// is the one that was started last.
async fn find(context: &Context, named: &str, away: Error) -> Result<FoundHost> {
    let mut found = living_hosts(context).await;
    if found.is_empty() {
        return Err(away);
    }
    if named == LATEST {
        let started = |host: &FoundHost| host.said.as_ref().ok().map(|it| it.agent.started_at);
        let latest = found.into_iter().max_by_key(started);
        return latest.ok_or(away);
    }
    found.retain(|host| match &host.said {
        Ok(status) => is_named(&status.agent, named),
        Err(_) => is_beginning(host.id.as_str(), named),
    });
    match found.len() {
        0 => bail!(
            "no daemon runs, and no living host is that of an agent {named:?}; `svc agent list` shows them, `svc start` starts a daemon"
        ),
        1 => Ok(found.remove(0)),
        _ => {
            let keys = found.iter().map(|host| match &host.said {
                Ok(status) => &*status.agent.session_key,
                Err(_) => host.id.as_str(),
            });
            bail!("{named:?} may be any of: {}", keys.collect::<Vec<_>>().join(", "))
        }
    }
}

fn is_beginning(id: &str, named: &str) -> bool {
    named.len() >= 6 && id.starts_with(&named.to_ascii_lowercase())
}

fn is_named(info: &AgentInfo, named: &str) -> bool {
    let named = named.to_ascii_lowercase();
    let short = info.session_key.strip_prefix("agent:").unwrap_or_default();
    is_beginning(info.id.as_str(), &named)
        || info.session_key == named
        || short == named
        || short.strip_suffix(":main") == Some(&*named)
        // The name that it was started with.
        || info.session_key == format!("agent:{}:{named}", info.instance)
}

pub(super) struct FoundHost {
    /// The agent's id, from the name of the socket.
    pub(super) id: AgentId,
    pub(super) client: HostClient,
    pub(super) said: Result<HostStatus, HostError>,
}

/// All hosts with a listening socket, sorted by agent id. They are asked concurrently, so one that
/// does not respond delays no other.
pub(super) async fn living_hosts(context: &Context) -> Vec<FoundHost> {
    let mut asked = JoinSet::new();
    for entry in fs::read_dir(&context.paths.agents).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_socket = path.extension().is_some_and(|extension| extension == "sock");
        let id = path.file_stem().and_then(|stem| stem.to_str()).and_then(AgentId::parse);
        let Some(id) = id.filter(|_| is_socket) else { continue };
        let client = HostClient::new(id.clone(), path);
        asked.spawn(async move {
            let said = client.status().await;
            FoundHost { id, client, said }
        });
    }
    let mut found = asked.join_all().await;
    // A host that was killed leaves its socket behind.
    found.retain(|host| !matches!(host.said, Err(HostError::Absent)));
    found.sort_by(|one, other| one.id.cmp(&other.id));
    found
}
