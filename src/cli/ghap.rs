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

/// Sets the parts of a record that are lists or objects to lines of text, and leaves out those
/// that are empty.
fn tell_parts(record: &mut Value) {
    let cell = |value: &Value, key: &str| output::visible(&output::cell(value, key));
    let text = |value: &Value| output::visible(&output::plain(value));
    let version = |value: &Value| {
        let parts = ["hypothesis", "action", "prediction"];
        let parts = parts.map(|part| format!("  {part}: {}", cell(value, part))).join("\n");
        format!("{} (until {})\n{parts}", cell(value, "iteration"), cell(value, "at"))
    };
    let Some(members) = record.as_object_mut() else { return };
    members.retain(|_, value| value.as_array().is_none_or(|items| !items.is_empty()));
    for (key, value) in members {
        let lines: Vec<String> = match &*value {
            Value::Array(items) if key == "history" => items.iter().map(version).collect(),
            Value::Array(items) => items.iter().map(text).collect(),
            Value::Object(inner) => {
                inner.iter().map(|(name, value)| format!("{name}: {}", text(value))).collect()
            }
            _ => continue,
        };
        *value = lines.join("\n").into();
    }
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
            let mut record: Value = client.get(&format!("/v1/ghap/{}", encode(&id))).await?;
            if !context.json {
                tell_parts(&mut record);
            }
            let of_attempt = ["goal", "hypothesis", "action", "prediction", "result"];
            let first = [&["id", "status", "domain", "strategy"][..], &of_attempt].concat();
            context.print_object(&record, &first)
        }
        GhapCommand::Abandon { id, reason } => {
            let path = format!("/v1/ghap/{}/abandon", encode(&id));
            let record: Value = client.post(&path, &json!({ "reason": reason })).await?;
            let text = |name: &str| record[name].as_str().unwrap_or_default();
            context.print_line(&record, &format!("gave up {}: {}", text("id"), text("goal")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_record_are_lines_and_empty_ones_left_out() {
        let mut record = json!({
            "goal": "g", "history": [], "notes": ["one", "two\nlines"], "lesson": { "takeaway": "t" },
        });
        tell_parts(&mut record);
        let told = json!({ "goal": "g", "notes": "one\ntwo␊lines", "lesson": "takeaway: t" });
        assert_eq!(record, told);
        let before = json!({ "iteration": 1, "hypothesis": "h", "action": "a", "prediction": "p", "at": "T" });
        let mut record = json!({ "history": [before] });
        tell_parts(&mut record);
        let told = "1 (until T)\n  hypothesis: h\n  action: a\n  prediction: p";
        assert_eq!(record["history"], told);
    }
}
