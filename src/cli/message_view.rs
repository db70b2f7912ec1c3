//! One message for a person: names, states in words, and text that fits the screen.

use serde_json::Value;
use svc_client::{Client, encode};
use svc_model::PeerId;

use super::Context;
use super::delivery;
use super::output::{self, Screen, cell, clock, items};

/// Prints a message with its deliveries.
pub(super) async fn show(
    context: &Context,
    client: &Client,
    message: &Value,
) -> anyhow::Result<()> {
    if context.json {
        return output::json(message);
    }
    let (from, to) =
        tokio::join!(party(client, message, "from_peer"), party(client, message, "to_peer"));
    output::wrapped_fields(&context.screen, &rows(context, message, from, to))
}

fn rows(
    context: &Context,
    message: &Value,
    from: String,
    to: String,
) -> Vec<(&'static str, String)> {
    // The value of a field must not contain colour codes.
    let screen = &Screen { color: false, ..context.screen };
    let kind = match message["type"].as_str() {
        Some("query") => "question".to_owned(),
        Some("response") => "answer".to_owned(),
        _ => cell(message, "type"),
    };
    let mut rows = vec![
        ("message", format!("{} ({kind})", cell(message, "id"))),
        ("from", from),
        ("to", to),
        ("sent", screen.time(&cell(message, "timestamp"))),
        ("state", delivery::state(&cell(message, "state")).to_owned()),
    ];
    let way: Vec<String> = items(message, "states")
        .iter()
        .map(|step| {
            let why =
                step["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
            let at = clock(screen, &cell(step, "at"));
            format!("{at}  {}{why}", delivery::state(&cell(step, "state")))
        })
        .collect();
    if !way.is_empty() {
        rows.push(("delivery", way.join("\n")));
    }
    if let Some(answered) = message["correlation_id"].as_str() {
        rows.push(("answers", answered.to_owned()));
    }
    if let Some(source) = delivery::source(&message["provenance"]) {
        rows.push(("came by", source));
    }
    rows.push(("text", cell(message, "text")));
    rows
}

/// The sender or receiver of a message: name and id.
async fn party(client: &Client, message: &Value, end: &str) -> String {
    let id = cell(message, end);
    let known: Option<Value> = client.get(&format!("/v1/peers/{}", encode(&id))).await.ok();
    match known.as_ref().and_then(|peer| peer["display_name"].as_str()) {
        Some(name) if id != PeerId::OPERATOR => format!("{name} ({id})"),
        Some(name) => name.to_owned(),
        None => id,
    }
}
