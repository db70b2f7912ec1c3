//! `svc ghap`: records of attempts.

use clap::Subcommand;
use serde_json::{Value, json};
use svc_client::{encode, with_object};
use svc_model::{GhapFilter, GhapSearch, ListQuery};

use super::output::{self, Column, Listing};
use super::{Context, ExitResult};

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

#[derive(Debug, Subcommand)]
pub(super) enum GhapCommand {
    /// List records, the latest first
    #[command(after_help = "Example:\n  svc ghap list --status falsified --domain debugging")]
    List(ListQuery<GhapFilter>),
    /// Search records, the best match first
    #[command(after_help = "Examples:\n  svc ghap search \"why do tenants share a cache?\"\n  \
        svc ghap search 'database is locked' --domain debugging --project \"$PWD\"")]
    Search(GhapSearch),
    /// Show a record and its earlier versions
    #[command(after_help = "Example:\n  svc ghap show ghap_…")]
    Show {
        /// The record's id or the beginning of it, or `latest`
        id: String,
    },
    /// Abandon a record that a session left open
    #[command(
        after_help = "Examples:\n  svc ghap abandon ghap_…\n  svc ghap abandon ghap_… --reason 'the branch was dropped'\n\n\
        Works only if the session of the record has ended, or was silent for half an hour."
    )]
    Abandon {
        /// The record's id or the beginning of it, or `latest`
        id: String,
        /// Why there will be no result
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

pub(super) async fn run(context: &Context, command: GhapCommand) -> ExitResult {
    let client = context.client()?;
    match command {
        GhapCommand::List(query) => {
            let page: Value = client.get(&with_object("/v1/ghap", &query)).await?;
            LIST.of_filter(&query.filter).print(context, &page)
        }
        GhapCommand::Search(search) => {
            let page: Value = client.get(&with_object("/v1/ghap/search", &search)).await?;
            FOUND.print(context, &page)
        }
        GhapCommand::Show { id } => {
            let record: Value = client.get(&format!("/v1/ghap/{}", encode(&id))).await?;
            let width = context.screen.fit_width();
            context.print(&record, || output::block(&output::readable(&record, width)))
        }
        GhapCommand::Abandon { id, reason } => {
            let path = format!("/v1/ghap/{}/abandon", encode(&id));
            let record: Value = client.post(&path, &json!({ "reason": reason })).await?;
            let text = |name: &str| record[name].as_str().unwrap_or_default();
            context.print_line(&record, &format!("gave up {}: {}", text("id"), text("goal")))
        }
    }
}
