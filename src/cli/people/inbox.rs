//! `svc inbox`: messages and requests that wait for the operator.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};
use svc_client::{Client, ClientError, with_object};

use super::{inbox_path, name_of, open_questions, present};
use crate::cli::agent_list::is_hosted;
use crate::cli::naming::peer_names;
use crate::cli::peer::{only_at_terminal, waits_at_terminal};
use crate::cli::{Context, ExitResult, output};

/// Most further lines of one argument of a call.
const MOST_LINES: usize = 40;

#[derive(Debug, Args)]
pub(crate) struct InboxArgs {
    /// Take them: they come again in 60 s unless acknowledged
    #[arg(long, conflicts_with = "cursor")]
    take: bool,
    /// Acknowledge what is shown, so that it does not come again; a question waits for its answer
    #[arg(long)]
    ack: bool,
    /// How many, 1 to 500
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// The `next_cursor` of the previous page
    #[arg(long)]
    cursor: Option<String>,
}

pub(crate) async fn inbox(context: &Context, args: InboxArgs) -> ExitResult {
    let client = context.client()?;
    present(&client).await?;
    let peek = (!args.take).then_some(true);
    let query = json!({ "peek": peek, "limit": args.limit, "cursor": args.cursor });
    let mut page: Value = client.get(&with_object(&inbox_path("/messages"), &query)).await?;
    let waiting = waiting_at_terminals(&client).await?;
    if context.json {
        page["waiting"] = waiting.into();
        output::json(&page)?;
    } else {
        let requests = untold_requests(&client, &page).await?;
        print_waiting(context, &waiting, &requests)?;
        print(context, &client, &page, waiting.len() + requests.len()).await?;
    }
    if args.ack && !output::items(&page, "messages").is_empty() {
        acknowledge(&client, output::items(&page, "messages")).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Peers that show a prompt at their own terminals. Requests of hosted agents are among the
/// messages.
async fn waiting_at_terminals(client: &Client) -> Result<Vec<Value>, ClientError> {
    let page: Value = client.get("/v1/peers?status=waiting&limit=500").await?;
    let waiting = output::items(&page, "peers").iter();
    Ok(waiting.filter(|peer| !is_hosted(peer)).cloned().collect())
}

/// Open requests that can be answered here and that no message of this page is about: to
/// acknowledge such a message does not answer its request.
async fn untold_requests(client: &Client, page: &Value) -> Result<Vec<Value>, ClientError> {
    let open: Value = client.get("/v1/requests?open=true&limit=500").await?;
    let messages = output::items(page, "messages");
    let is_told = |request: &Value| {
        let id = request["request_id"].as_str().unwrap_or_default();
        messages.iter().any(|it| it["text"].as_str().is_some_and(|text| text.contains(id)))
    };
    let is_shown = |request: &&Value| !only_at_terminal(request) && !is_told(request);
    Ok(output::items(&open, "requests").iter().filter(is_shown).cloned().collect())
}

/// Shows who waits for a person: at a terminal, or for an answer to a request.
fn print_waiting(context: &Context, waiting: &[Value], requests: &[Value]) -> Result<()> {
    for request in requests {
        let cell = |member| output::visible(&output::cell(request, member));
        let since = context.screen.time(&output::cell(request, "opened_at"));
        let asker = waiting.iter().find(|peer| peer["peer_id"] == request["peer_id"]);
        let name = asker.map_or_else(|| output::cell(request, "session_key"), name_of);
        output::block(&format!(
            "{} {}: {} ({since})\n{}  svc answer {} OPTION ({})\n{}\n",
            output::visible(&name),
            wants(request),
            cell("title"),
            asked_call(request),
            cell("request_id"),
            option_ids(request),
            option_names(request)
        ))?;
    }
    let is_told = |peer: &&Value| requests.iter().any(|it| it["peer_id"] == peer["peer_id"]);
    for peer in waiting.iter().filter(|peer| !is_told(peer)) {
        let asked = waits_at_terminal(peer).unwrap_or_else(|| "you, at its terminal".to_owned());
        let since = context.screen.time(&output::cell(&peer["waiting_for"], "since"));
        let (name, asked) = (output::visible(&name_of(peer)), output::visible(&asked));
        output::block(&format!("{name} waits for {asked} ({since})\n\n"))?;
    }
    Ok(())
}

/// What whoever opened a request wants of a person.
fn wants(request: &Value) -> &'static str {
    if request["kind"] == "question" { "asks a question" } else { "needs permission" }
}

fn option_ids(request: &Value) -> String {
    let options = output::items(request, "options").iter();
    let ids = options.map(|option| output::visible(&output::cell(option, "option_id")));
    ids.collect::<Vec<_>>().join(", ")
}

fn asked_call(request: &Value) -> String {
    let mut lines = Vec::new();
    if let Some(folder) = request["cwd"].as_str() {
        lines.push(format!("in {}", output::visible(folder)));
    }
    let tool = &request["tool"];
    if let Some(name) = tool["name"].as_str() {
        lines.push(output::visible(name));
    }
    for (name, value) in tool["input"].as_object().into_iter().flatten() {
        let value = output::plain(value);
        let mut rows = value.lines();
        let first = output::visible(rows.next().unwrap_or_default());
        lines.push(format!("  {}: {first}", output::visible(name)));
        let next = rows.by_ref().take(MOST_LINES);
        lines.extend(next.map(|row| format!("    {}", output::visible(row))));
        let more = rows.count();
        if more > 0 {
            lines.push(format!("    … {more} more lines: `svc top` shows them"));
        }
    }
    indented(&lines)
}

fn option_names(request: &Value) -> String {
    let options = output::items(request, "options").iter();
    let lines: Vec<_> = options
        .map(|option| ["option_id", "name"].map(|it| output::visible(&output::cell(option, it))))
        .filter(|[id, name]| !name.is_empty() && name != id)
        .map(|[id, name]| format!("  {id}: {name}"))
        .collect();
    indented(&lines)
}

fn indented(lines: &[String]) -> String {
    lines.iter().fold(String::new(), |text, line| text + "  " + line + "\n")
}

/// Shows the messages, below the notes on `waiting` peers and requests.
async fn print(context: &Context, client: &Client, page: &Value, waiting: usize) -> Result<()> {
    let messages = output::items(page, "messages");
    if messages.is_empty() {
        let empty = "your inbox is empty; `svc ask NAME …` asks an agent, `svc agent list` shows who is here";
        return if waiting > 0 { Ok(()) } else { output::line(empty) };
    }
    let names = peer_names(client, "peer_id").await;
    for message in messages {
        let from = output::cell(message, "from_peer");
        output::block(&letter(context, message, names.get(&from).unwrap_or(&from)))?;
    }
    if let Some(cursor) = page["next_cursor"].as_str() {
        output::note(&format!("there is more: svc inbox --cursor {cursor}"));
    }
    Ok(())
}

/// Acknowledges messages but the unanswered questions.
async fn acknowledge(client: &Client, messages: &[Value]) -> Result<()> {
    let has_questions = messages.iter().any(|message| message["type"] == "query");
    let open = if has_questions { open_questions(client, usize::MAX).await? } else { Vec::new() };
    let is_open = |id: &Value| open.iter().any(|question| question["id"] == *id);
    let (left, ids): (Vec<&Value>, Vec<&Value>) =
        messages.iter().map(|message| &message["id"]).partition(|id| is_open(id));
    if !ids.is_empty() {
        client.post::<Value>(&inbox_path("/messages/ack"), &json!({ "ids": ids })).await?;
    }
    if !left.is_empty() {
        let (count, stay) =
            if left.len() == 1 { (1, "question stays") } else { (left.len(), "questions stay") };
        output::note(&format!(
            "svc: {count} open {stay} in the inbox until answered: `svc reply ID …`; `svc message ack operator ID` gives one up"
        ));
    }
    Ok(())
}

/// A message with its sender and the command that answers it.
fn letter(context: &Context, message: &Value, from: &str) -> String {
    let cell = |key| output::cell(message, key);
    let verb = match cell("type").as_str() {
        "query" => "asks",
        "response" => "answers",
        "broadcast" => "tells everybody",
        _ if message["correlation_id"].is_string() => "answers",
        _ => "tells you",
    };
    let (from, id) = (output::visible(from), cell("id"));
    let at = context.screen.time(&cell("timestamp"));
    let answered = message["correlation_id"].as_str();
    let answered = answered.map(|id| format!(" {}", output::visible(id))).unwrap_or_default();
    let mut text = format!("{from} {verb}{answered} ({id}, {at})\n");
    for line in cell("text").split('\n') {
        text.extend(["  ", &output::visible(line), "\n"]);
    }
    if message["type"] == "query" {
        text.extend(["  -> svc reply ", &id, " '…'\n"]);
    }
    text + "\n"
}
