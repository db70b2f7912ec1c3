//! `svc session`: the sessions of clients.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use http::StatusCode;
use serde_json::{Value, json};
use svc_client::{Client, ClientError, encode, with_object};
use svc_model::{ListQuery, SessionFilter, limits};

use super::agent;
use super::naming::{AdvisedError, peer_names};
use super::output::{self, Column, Listing, Screen};
use super::tools::structured;
use super::{Context, ExitResult};

const LIST: Listing = Listing {
    items: "sessions",
    columns: &[
        Column::name("SESSION", "session_id"),
        Column::name("NAME", "name"),
        Column::text("CLIENT", "client").rank(6),
        Column::path("PROJECT", "project").rank(2),
        Column::text("SOURCE", "source").rank(5),
        Column::number("TOOLS", "tool_calls").rank(4),
        Column::time("SEEN", "last_seen_at").rank(1),
        Column::time("ENDED", "ended_at").rank(3),
    ],
    empty: "no sessions of coding agents; `svc install` connects them, and `svc session tree` shows who can be written to",
    next: Some("--cursor"),
};

const TOOLS: Listing = Listing {
    items: "tools",
    columns: &[
        Column::text("TOOL", "tool_name"),
        Column::text("AGENT", "agent_id").rank(2),
        Column::number("CALLS", "count"),
        Column::time("LAST", "last_at").rank(1),
    ],
    empty: "no tool calls",
    next: None,
};

const TREE: Listing = Listing {
    items: "sessions",
    columns: &[
        Column::name("SESSION", "key").least(64),
        Column::state("STATUS", "state"),
        Column::name("NAME", "label").least(40),
        Column::text("KIND", "kind").rank(3),
        Column::path("FOLDER", "cwd").rank(4),
        Column::time("SEEN", "updatedAt").rank(2),
    ],
    empty: "no sessions; `svc agent start` starts one",
    next: None,
};

#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// List sessions, the most recently active first
    #[command(after_help = "Example:\n  svc session list --open --project ~/src/svc")]
    List(ListQuery<SessionFilter>),
    /// Send a message to a session, and print what it answers
    #[command(
        hide = true,
        after_help = "Examples:
  svc session send agent:reviewer:main 'Is main green?'
  git diff | svc session send agent:reviewer:main - --timeout 600
  svc session send agent:claude:5f0c… 'main is frozen' --notify"
    )]
    Send {
        /// Its key, which `svc session tree` lists, or the name of its peer
        #[arg(value_name = "KEY")]
        key: String,
        /// The text; - for standard input
        message: String,
        /// How long to wait for the answer, in seconds; 0 does not wait
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        timeout: u32,
        /// Tell it, and want no answer
        #[arg(long, conflicts_with = "steer")]
        notify: bool,
        /// Send it into the present turn
        #[arg(long)]
        steer: bool,
        /// A repeat with the same key sends nothing again
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
    },
    /// Print what was said in a session, the oldest first
    #[command(after_help = "Example:\n  svc session history agent:reviewer:main --limit 20")]
    History {
        /// Its key or id, the beginning of either, `latest`, or the name of its peer
        #[arg(value_name = "KEY")]
        key: String,
        /// How many of the last texts, 1 to 500
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
        /// The cursor of the page before: older texts
        #[arg(long, value_name = "CURSOR")]
        before: Option<String>,
        /// Include tool calls and their results
        #[arg(long)]
        tools: bool,
    },
    /// Show all sessions, each below the one that started it
    #[command(after_help = "Example:\n  svc session tree")]
    Tree,
    /// Show a session: when it was at work, which tools it called, what it is trying
    #[command(after_help = "Example:\n  svc session show 5f0c…")]
    Show {
        /// Its key or id, the beginning of either, `latest`, or the name of its peer
        id: String,
    },
}

pub(super) async fn run(context: &Context, command: SessionCommand) -> ExitResult {
    let client = context.client()?;
    match command {
        SessionCommand::List(mut query) => {
            // Without the flag the list has open and closed sessions.
            query.filter.open = query.filter.open.filter(|open| *open);
            let mut page: Value = client.get(&with_object("/v1/sessions", &query)).await?;
            if !context.json {
                name_sessions(&client, &mut page).await;
            }
            LIST.of_filter(&query.filter).print(context, &page)?;
        }
        SessionCommand::Send { key, message, timeout, notify, steer, idempotency_key } => {
            let mode = match (notify, steer) {
                (true, _) => "notify",
                (_, true) => "steer",
                _ => "followup",
            };
            let mut arguments = json!({
                "sessionKey": key, "message": agent::text(message)?, "mode": mode,
                "timeoutSeconds": timeout,
            });
            if let Some(key) = idempotency_key {
                arguments["idempotencyKey"] = key.into();
            }
            return send(context, &client, arguments).await;
        }
        SessionCommand::History { key, limit, before, tools } => {
            let tools = tools.then_some(true);
            let query = json!({ "limit": limit, "before": before, "include_tools": tools });
            let path =
                |key: &str| with_object(&format!("/v1/sessions/{}/history", encode(key)), &query);
            let id = match found(&client, &key).await? {
                Found::Session(session) => output::cell(&session, "session_id"),
                Found::Peer(peer) => output::cell(&peer, "peer_id"),
            };
            let history: Value = client.get(&path(&id)).await?;
            context.print(&history, || print_history(&context.screen, &history))?;
        }
        SessionCommand::Tree => {
            let limit = limits::SESSIONS_MAX;
            let page = structured(&client, "sessions_list", json!({ "limit": limit })).await?;
            context.print(&page, || print_tree(context, &page))?;
        }
        SessionCommand::Show { id } => {
            let mut session = match found(&client, &id).await? {
                Found::Session(session) => session,
                Found::Peer(peer) => {
                    let Some(session) = peer["session_id"].as_str() else {
                        bail!("{} has not reported a session", output::visible(&id));
                    };
                    client.get(&format!("/v1/sessions/{}", encode(session))).await?
                }
            };
            if context.json {
                return context.print_object(&session, &[]);
            }
            let tools = session["tools"].take();
            let active = session["active_ghap"].take();
            let first = ["session_id", "client", "project", "source", "started_at"];
            output::object(&session, &first)?;
            if let Some(goal) = active.get("goal").and_then(Value::as_str) {
                output::fields(&[(
                    "active record",
                    format!("{} {goal}", output::cell(&active, "id")),
                )])?;
            }
            TOOLS.print_table(&context.screen, &json!({ "tools": tools }))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn name_sessions(client: &Client, page: &mut Value) {
    let names = peer_names(client, "session_id").await;
    for session in page.get_mut("sessions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(name) = names.get(&output::cell(session, "session_id")) {
            session["name"] = name.as_str().into();
        }
    }
}

enum Found {
    Session(Value),
    /// The participant of a name that no session has.
    Peer(Value),
}

/// What an argument names: a session by its id, its key, the beginning of either, or `latest`; else
/// a participant.
async fn found(client: &Client, named: &str) -> Result<Found> {
    let is_unknown = |error: &ClientError| error.status() == Some(StatusCode::NOT_FOUND);
    let unknown = match client.get(&format!("/v1/sessions/{}", encode(named))).await {
        Ok(session) => return Ok(Found::Session(session)),
        Err(error) if is_unknown(&error) => error,
        Err(error) => return Err(error.into()),
    };
    match client.get(&format!("/v1/peers/{}", encode(named))).await {
        Err(error) if is_unknown(&error) => {
            let advice = "no peer has this name either: `svc session list` and `svc session tree` show the sessions";
            Err(AdvisedError::new(unknown, advice).into())
        }
        peer => Ok(Found::Peer(peer?)),
    }
}

/// Sends a message and prints only the reply; notes about it go to standard error.
async fn send(context: &Context, client: &Client, arguments: Value) -> ExitResult {
    let answer =
        if arguments["mode"] == "notify" { "" } else { "; its answer comes to `svc inbox`" };
    let mut sent = structured(client, "sessions_send", arguments).await?;
    if sent["reason"] == "unknown_session" {
        sent["error"] = "no session and no peer has this name: `svc session list` and `svc session tree` show the \
                         sessions"
            .into();
    }
    let status = output::cell(&sent, "status");
    let is_done = !matches!(status.as_str(), "error" | "forbidden" | "timeout");
    if context.json {
        output::json(&sent)?;
    } else {
        match (status.as_str(), sent.get("reply").and_then(Value::as_str)) {
            ("ok", Some(reply)) => output::block(&ended(reply))?,
            ("accepted", _) => output::note(&format!(
                "{} has the message {}{answer}",
                output::cell(&sent, "sessionKey"),
                output::cell(&sent, "messageId")
            )),
            ("no_reply", _) => output::note("the turn ended without text"),
            _ => {
                let (error, reason) = (output::cell(&sent, "error"), output::cell(&sent, "reason"));
                output::note(&format!("error: {error} ({reason})"));
            }
        }
    }
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A text by others, with a line feed at its end.
pub(super) fn ended(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(output::visible).collect();
    format!("{}\n", lines.join("\n"))
}

fn print_history(screen: &Screen, history: &Value) -> Result<()> {
    let texts = output::items(history, "messages");
    if texts.is_empty() {
        output::line("nothing was said there; --tools includes calls of tools")?;
    }
    for text in texts {
        output::block(&said(screen, text))?;
    }
    if let Some(before) = history.get("before").and_then(Value::as_str) {
        output::note(&format!("older ones: --before {before}"));
    }
    Ok(())
}

/// What was said once: a line with the time and who said it, and the text, indented.
fn said(screen: &Screen, text: &Value) -> String {
    let (at, role) = (output::cell(text, "at"), output::cell(text, "role"));
    let tool = text["tool"].as_str().map(|tool| format!(" {tool}")).unwrap_or_default();
    let head = output::visible(&format!("{at} {role}{tool}"));
    let room = screen.fit_width().map(|width| usize::from(width).saturating_sub(2));
    let words = output::wrapped(&output::cell(text, "text"), room);
    let lines: Vec<String> =
        words.lines().map(|line| format!("  {}", output::visible(line))).collect();
    format!("{head}\n{}\n", lines.join("\n"))
}

/// Levels below this one are indented like it, so that keys stay in view.
const DEEPEST: usize = 8;

/// The sessions, each once: a parent before its children. Each has its level, at most [`DEEPEST`].
fn tree(sessions: &[Value]) -> Vec<(usize, &Value)> {
    let texts = |name: &str| -> Vec<String> {
        sessions.iter().map(|session| output::cell(session, name)).collect()
    };
    let (keys, parents) = (texts("key"), texts("parentSessionKey"));
    let all = 0..sessions.len();
    let roots = all.clone().filter(|at| !keys.contains(&parents[*at]));
    let mut is_shown = vec![false; sessions.len()];
    let mut rows = Vec::new();
    // Keys of ended agents are used again, so parents can form a cycle, which has no root.
    for root in roots.chain(all.clone()) {
        let mut open = vec![(0, root)];
        while let Some((level, at)) = open.pop() {
            if std::mem::replace(&mut is_shown[at], true) {
                continue;
            }
            rows.push((level, &sessions[at]));
            let children = all.clone().rev().filter(|child| parents[*child] == keys[at]);
            open.extend(children.map(|child| ((level + 1).min(DEEPEST), child)));
        }
    }
    rows
}

fn print_tree(context: &Context, page: &Value) -> Result<()> {
    let rows = tree(output::items(page, "sessions")).into_iter().map(|(level, session)| {
        let mut row = session.clone();
        row["key"] = format!("{}{}", "  ".repeat(level), output::cell(session, "key")).into();
        row
    });
    TREE.print_table(&context.screen, &json!({ "sessions": rows.collect::<Vec<_>>() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_shows_each_session_once_however_deep() {
        let session = |key: &str, parent: &str| json!({ "key": key, "parentSessionKey": parent });
        let chain: Vec<Value> =
            (0..12).map(|n| session(&n.to_string(), &(n - 1).to_string())).rev().collect();
        let shown = tree(&chain);
        let keys: Vec<String> = shown.iter().map(|(_, it)| output::cell(it, "key")).collect();
        assert_eq!(keys, (0..12).map(|n| n.to_string()).collect::<Vec<_>>());
        let levels: Vec<usize> = shown.iter().map(|(level, _)| *level).collect();
        assert_eq!(levels, [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8]);
        // `a` started `b` and ended, and `b` started the present `a`.
        let cycle = [session("root", ""), session("a", "b"), session("b", "a")];
        assert_eq!(tree(&cycle), [(0, &cycle[0]), (0, &cycle[1]), (1, &cycle[2])]);
        let twice = [session("a", ""), session("a", "b"), session("b", "a")];
        assert_eq!(tree(&twice), [(0, &twice[0]), (1, &twice[2]), (2, &twice[1])]);
    }

    #[test]
    fn history_is_wrapped_at_the_screen_but_not_with_the_full_flag() {
        let text = json!({ "at": "2026-03-31T11:57:00Z", "role": "user", "text": "one two three four five" });
        let shown = |full| said(&Screen { full, ..Screen::for_tests(Some(20)) }, &text);
        let head = "2026-03-31T11:57:00Z user\n";
        assert_eq!(shown(false), format!("{head}  one two three four\n  five\n"));
        assert_eq!(shown(true), format!("{head}  one two three four five\n"));
    }
}
