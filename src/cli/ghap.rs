//! `svc ghap`: records of attempts.

use std::io::{BufRead as _, BufReader, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
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

/// Records in one request: a request's body has a bound.
const BATCH: usize = 50;

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
    /// Print all records as JSON lines, the oldest first
    #[command(after_help = "Example:\n  svc ghap export > journal.jsonl")]
    Export,
    /// Take in records from JSON lines: an export, or an earlier system's `session_entries.jsonl` and archives
    #[command(
        after_help = "Examples:\n  svc ghap import .claude/journal/session_entries.jsonl\n  \
        svc ghap import journal.jsonl --project /src/app\n\n\
        A second import of the same file changes nothing. Lines that cannot be parsed are reported and skipped; the exit code is then 1."
    )]
    Import {
        /// The file; - for standard input
        file: PathBuf,
        /// Project of records that name none
        #[arg(long)]
        project: Option<String>,
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
        GhapCommand::Export => {
            let mut cursor: Option<String> = None;
            loop {
                let query = [("limit", Some("500")), ("cursor", cursor.as_deref())];
                let page: Value = client.get(&with_query("/v1/ghap/export", &query)).await?;
                for record in output::items(&page, "ghap") {
                    output::ndjson(record)?;
                }
                cursor = page.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
                if cursor.is_none() {
                    break;
                }
            }
        }
        GhapCommand::Import { file, project } => return import(context, &file, project).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn import(
    context: &Context,
    file: &PathBuf,
    project: Option<String>,
) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let source: Box<dyn Read + Send> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(
            std::fs::File::open(file).with_context(|| format!("cannot open {}", file.display()))?,
        )
    };
    let (mut imported, mut known, mut refused) = (0, 0, 0_u64);
    let mut batch: Vec<(usize, Value)> = Vec::new();
    let mut lines = BufReader::new(source).lines().enumerate();
    loop {
        let next = lines.next();
        let is_end = next.is_none();
        if let Some((number, line)) = next {
            let line = line.with_context(|| format!("cannot read {}", file.display()))?;
            match serde_json::from_str::<Value>(&line) {
                _ if line.trim().is_empty() => {}
                Ok(mut record) => {
                    if let (Some(project), Some(object)) = (&project, record.as_object_mut()) {
                        object.entry("project").or_insert_with(|| json!(project));
                    }
                    batch.push((number + 1, record));
                }
                Err(error) => {
                    refused += 1;
                    output::note(&format!("line {}: {error}", number + 1));
                }
            }
        }
        if batch.len() == BATCH || (is_end && !batch.is_empty()) {
            for outcome in send_batch(std::mem::take(&mut batch), &client).await? {
                match outcome {
                    Ok((new, old)) => {
                        imported += new;
                        known += old;
                    }
                    Err((number, problem)) => {
                        refused += 1;
                        output::note(&format!("line {number}: {problem}"));
                    }
                }
            }
        }
        if is_end {
            break;
        }
    }
    if context.json {
        output::json(&json!({ "imported": imported, "known": known, "refused": refused }))?;
    } else {
        output::line(&format!("imported {imported}, known already {known}, refused {refused}"))?;
    }
    Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How many records of a request were new and how many known; or the number of a refused line, and why.
type ImportOutcome = Result<(u64, u64), (usize, String)>;

/// Sends records together. If one of them is refused, sends them one by one, so that it alone is left out.
async fn send_batch(
    batch: Vec<(usize, Value)>,
    client: &svc_client::Client,
) -> anyhow::Result<Vec<ImportOutcome>> {
    let send = async |records: Vec<&Value>| -> Result<(u64, u64), svc_client::ClientError> {
        let answer: Value = client.post("/v1/ghap/import", &json!({ "ghap": records })).await?;
        let count = |key: &str| answer.get(key).and_then(Value::as_u64).unwrap_or(0);
        Ok((count("imported"), count("known")))
    };
    match send(batch.iter().map(|(_, record)| record).collect()).await {
        Ok(counts) => return Ok(vec![Ok(counts)]),
        Err(svc_client::ClientError::Problem(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let mut outcomes = Vec::new();
    for (number, record) in &batch {
        outcomes.push(match send(vec![record]).await {
            Ok(counts) => Ok(counts),
            Err(svc_client::ClientError::Problem(problem)) => {
                Err((*number, problem.to_string().replace("ghap[0].", "")))
            }
            Err(error) => return Err(error.into()),
        });
    }
    Ok(outcomes)
}
