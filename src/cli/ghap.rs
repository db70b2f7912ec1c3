//! `svc ghap`: records of attempts.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};
use svc_client::{encode, with_query};

use super::Context;
use super::output::{self, Column, Listing};

const LIST: Listing = Listing {
    items: "ghap",
    columns: COLUMNS,
    empty: "no records; models create them with the tool start_ghap",
    next: Some("--cursor"),
};

const FOUND: Listing = Listing {
    items: "ghap",
    columns: COLUMNS,
    empty: "no match; `svc ghap list` shows all records",
    next: None,
};

const COLUMNS: &[Column] = &[
    Column::id("RECORD", "id").rank(3),
    Column::state("STATUS", "status"),
    Column::text("TIER", "confidence_tier").rank(4),
    Column::text("DOMAIN", "domain").rank(2),
    Column::text("GOAL", "goal"),
    Column::time("CREATED", "created_at").rank(1),
];

/// `svc ghap …`.
#[derive(Debug, Subcommand)]
pub(super) enum GhapCommand {
    /// List records, the latest first
    #[command(after_help = "Example:\n  svc ghap list --status falsified --domain debugging")]
    List {
        /// Only this state: active, confirmed, falsified or abandoned
        #[arg(long)]
        status: Option<String>,
        /// Only this domain, such as debugging
        #[arg(long)]
        domain: Option<String>,
        /// Only of this project
        #[arg(long)]
        project: Option<String>,
        /// Only of this session
        #[arg(long)]
        session: Option<String>,
        /// How many, 1 to 500
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
        /// The `next_cursor` of the previous page
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Search records, the best match first
    #[command(after_help = "Examples:\n  svc ghap search \"why do tenants share a cache?\"\n  \
        svc ghap search 'database is locked' --domain debugging --project \"$PWD\"")]
    Search {
        /// Any text: a question, an error message, code
        query: String,
        /// Only this domain, such as debugging
        #[arg(long)]
        domain: Option<String>,
        /// Only this outcome: confirmed, falsified or abandoned
        #[arg(long)]
        status: Option<String>,
        /// Records of this project come first
        #[arg(long)]
        project: Option<String>,
        /// How many, 1 to 50
        #[arg(long, value_name = "N")]
        limit: Option<u32>,
    },
    /// Show a record and its earlier versions
    #[command(after_help = "Example:\n  svc ghap show ghap_…")]
    Show {
        /// The record's id
        id: String,
    },
    /// Abandon a record that a session left open
    #[command(
        after_help = "Examples:\n  svc ghap abandon ghap_…\n  svc ghap abandon ghap_… --reason 'the branch was dropped'\n\n\
        Works only if the session of the record has ended, or was silent for half an hour."
    )]
    Abandon {
        /// The record's id
        id: String,
        /// Why there will be no result
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

pub(super) async fn run(context: &Context, command: GhapCommand) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    match command {
        GhapCommand::List { status, domain, project, session, limit, cursor } => {
            let limit = limit.map(|limit| limit.to_string());
            let query = [
                ("status", status.as_deref()),
                ("domain", domain.as_deref()),
                ("project", project.as_deref()),
                ("session_id", session.as_deref()),
                ("limit", limit.as_deref()),
                ("cursor", cursor.as_deref()),
            ];
            let page: Value = client.get(&with_query("/v1/ghap", &query)).await?;
            LIST.print(context, &page)?;
        }
        GhapCommand::Search { query, domain, status, project, limit } => {
            let limit = limit.map(|limit| limit.to_string());
            let query = [
                ("q", Some(query.as_str())),
                ("domain", domain.as_deref()),
                ("status", status.as_deref()),
                ("project", project.as_deref()),
                ("limit", limit.as_deref()),
            ];
            let page: Value = client.get(&with_query("/v1/ghap/search", &query)).await?;
            FOUND.print(context, &page)?;
        }
        GhapCommand::Show { id } => {
            let record: Value = client.get(&format!("/v1/ghap/{}", encode(&id))).await?;
            if context.json {
                output::json(&record)?;
            } else {
                let first = [
                    "id",
                    "status",
                    "domain",
                    "strategy",
                    "goal",
                    "hypothesis",
                    "action",
                    "prediction",
                    "result",
                ];
                output::object(&context.screen, &record, &first)?;
            }
        }
        GhapCommand::Abandon { id, reason } => {
            let path = format!("/v1/ghap/{}/abandon", encode(&id));
            let record: Value = client.post(&path, &json!({ "reason": reason })).await?;
            if context.json {
                output::json(&record)?;
            } else {
                let text = |name: &str| record[name].as_str().unwrap_or_default();
                output::line(&format!("gave up {}: {}", text("id"), text("goal")))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
