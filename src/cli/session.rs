//! `svc session`: what each client is doing.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::Value;

use super::Context;
use super::output::{self, Column, Listing};
use crate::client::{encode, with_query};

const LIST: Listing = Listing {
    items: "sessions",
    columns: &[
        Column::text("SESSION", "session_id"),
        Column::text("CLIENT", "client"),
        Column::path("PROJECT", "project").rank(2),
        Column::text("SOURCE", "source").rank(5),
        Column::number("TOOLS", "tool_calls").rank(4),
        Column::time("SEEN", "last_seen_at").rank(1),
        Column::time("ENDED", "ended_at").rank(3),
    ],
    empty: "no sessions; a coding agent's session is here once `svc install` has told the agent of svc",
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

/// `svc session …`.
#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// List sessions, those heard of last first
    #[command(after_help = "Example:\n  svc session list --open --project ~/src/svc")]
    List {
        /// Only of this project
        #[arg(long)]
        project: Option<String>,
        /// Only of this client
        #[arg(long)]
        client: Option<String>,
        /// Only those that are not over
        #[arg(long)]
        open: bool,
        /// How many, 1 to 500
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
        /// Where the page before left off
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a session: when it was at work, which tools it called, what it is trying
    #[command(after_help = "Example:\n  svc session show 5f0c…")]
    Show {
        /// The client's own id of the session
        id: String,
    },
}

pub(super) async fn run(context: &Context, command: SessionCommand) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    match command {
        SessionCommand::List { project, client: program, open, limit, cursor } => {
            let limit = limit.map(|limit| limit.to_string());
            let query = [
                ("project", project.as_deref()),
                ("client", program.as_deref()),
                ("open", open.then_some("true")),
                ("limit", limit.as_deref()),
                ("cursor", cursor.as_deref()),
            ];
            let page: Value = client.get(&with_query("/v1/sessions", &query)).await?;
            LIST.print(context, &page)?;
        }
        SessionCommand::Show { id } => {
            let mut session: Value = client.get(&format!("/v1/sessions/{}", encode(&id))).await?;
            if context.json {
                output::json(&session)?;
                return Ok(ExitCode::SUCCESS);
            }
            let tools = session.get_mut("tools").map(Value::take).unwrap_or_default();
            let active = session.get_mut("active_ghap").map(Value::take).unwrap_or_default();
            let first = ["session_id", "client", "project", "source", "started_at"];
            output::object(&context.screen, &session, &first)?;
            if let Some(goal) = active.get("goal").and_then(Value::as_str) {
                output::fields(&[(
                    "active record",
                    format!("{} {goal}", output::cell(&active, "id")),
                )])?;
            }
            TOOLS.print_table(&context.screen, &serde_json::json!({ "tools": tools }))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
