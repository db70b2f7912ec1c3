//! Talking with an agent while no daemon runs: its host is found by its socket, and asked itself.

use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};

use super::agent_attach::{Printer, end_of, entry_text, paragraph, typed_lines};
use super::living_hosts::living_hosts;
use super::{Context, output};
use crate::domain::agent::{AgentInfo, HistoryQuery, SendInput, SendMode};
use crate::hosts::{HostClient, HostError};

/// What is said in place of an answer.
const NEEDS_A_DAEMON: &str =
    "svc: answering needs a daemon: `svc start`, then `svc agent answer` or attach again";

/// Talks with an agent by its host's socket until the end of the input, or of the agent.
pub(super) async fn attach(context: &Context, named: &str) -> anyhow::Result<ExitCode> {
    let (host, info) = find(context, named).await?;
    let history = host.history(&HistoryQuery { limit: 10, ..HistoryQuery::default() }).await?;
    for entry in &history.entries {
        paragraph(&entry_text(&serde_json::to_value(entry)?))?;
    }
    output::note(&format!(
        "svc: attached to the host of {} ({}), as no daemon runs; Ctrl-C ends its turn, Ctrl-D detaches",
        output::visible(&info.session_key),
        info.id
    ));
    let mut printer = Printer::of(&json!({ "backend": info.backend }));
    // What it asks already stands anywhere in its stream.
    let mut feed = host.attach(0).await?;
    let (mut is_told, mut has_caught_up) = (false, history.offset == 0);
    let mut lines = typed_lines();
    loop {
        tokio::select! {
            batch = feed.next_batch() => {
                let Some(batch) = batch? else { return Ok(ExitCode::SUCCESS) };
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
                // Once for each request.
                if has_caught_up && printer.has_request() && !is_told {
                    output::note(NEEDS_A_DAEMON);
                }
                is_told = has_caught_up && printer.has_request();
            }
            // What a number means is known only then.
            line = lines.recv(), if has_caught_up => {
                let Some(line) = line else {
                    output::note("svc: detached; the agent goes on");
                    return Ok(ExitCode::SUCCESS);
                };
                if line.trim().is_empty() {
                    continue;
                }
                if printer.chosen(&line).is_some() {
                    output::note(NEEDS_A_DAEMON);
                    continue;
                }
                let mode = SendMode::Queue;
                let input =
                    SendInput { input: line, idempotency_key: None, mode, message_id: None, from: None };
                tell(host.send(&input).await);
            }
            _ = tokio::signal::ctrl_c() => tell(host.interrupt().await),
        }
    }
}

fn tell<T>(done: Result<T, HostError>) {
    if let Err(error) = done {
        output::note(&format!("svc: {}", output::visible(&error.to_string())));
    }
}

/// The living host that a text names: by its agent's id, the beginning of that, or its session key, also without `agent:` and
/// `:main`.
async fn find(context: &Context, named: &str) -> anyhow::Result<(HostClient, AgentInfo)> {
    let mut found = living_hosts(context).await;
    found.retain(|(_, info)| is_named(info, named));
    match found.len() {
        0 => bail!(
            "no daemon runs, and no living host is that of an agent {named:?}; `svc start` starts a daemon"
        ),
        1 => Ok(found.remove(0)),
        _ => {
            let keys: Vec<&str> = found.iter().map(|(_, info)| &*info.session_key).collect();
            bail!("{named:?} may be any of: {}", keys.join(", "))
        }
    }
}

fn is_named(info: &AgentInfo, named: &str) -> bool {
    let named = named.to_ascii_lowercase();
    let is_beginning = named.len() >= 6 && info.id.as_str().starts_with(&named);
    let short = info.session_key.strip_prefix("agent:").unwrap_or_default();
    is_beginning
        || info.session_key == named
        || short == named
        || short.strip_suffix(":main") == Some(&*named)
}
