//! `svc message`: messages between participants and their delivery.

use std::io::Read as _;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use svc_client::{Client, encode, with_object, with_query};
use svc_model::{ListQuery, MessageFilter, PageQuery, PeerId};

use super::context::members;
use super::naming::{LatestItem, all_items, identified, peer_found, peer_names};
use super::output::{self, Column, Listing, Screen};
use super::{Context, ExitResult};

const NAMED: usize = 10;

const LIST: Listing = Listing {
    items: "messages",
    columns: &[
        Column::id("MESSAGE", "id").rank(3),
        Column::time("TIME", "timestamp").rank(1),
        Column::name("FROM", "from"),
        Column::text("TYPE", "type").rank(2),
        Column::state("STATE", "state").rank(4),
        Column::text("TEXT", "text"),
    ],
    empty: "the inbox is empty",
    next: Some("--cursor"),
};

const ALL: Listing = Listing {
    items: "messages",
    columns: &[
        Column::id("MESSAGE", "id").spare(),
        Column::time("TIME", "timestamp").rank(2),
        Column::name("FROM", "from"),
        Column::name("TO", "to"),
        Column::text("TYPE", "type").rank(3),
        Column::state("STATE", "state"),
        Column::text("TEXT", "text"),
    ],
    empty: "no messages; `svc tell NAME TEXT` sends one",
    next: Some("--cursor"),
};

const LATEST_MESSAGE: LatestItem =
    LatestItem { path: "/v1/messages", items: ALL.items, id: "id", empty: ALL.empty };
const SOME: Listing = Listing { empty: "no such messages", ..ALL };
const OPEN: Listing = Listing { empty: "no open questions", ..ALL };

#[derive(Debug, Subcommand)]
pub(super) enum MessageCommand {
    /// Send a message to a peer's inbox
    #[command(after_help = "Examples:\n  svc message send peer_… 'the build is green'\n  \
        git diff | svc message send peer_… - --type query")]
    Send {
        /// The receiver: a name, an id or its beginning, or a session's key
        peer: String,
        #[command(flatten)]
        message: Compose,
    },
    /// Send a message to everyone else
    #[command(after_help = "Example:\n  svc message broadcast 'main is frozen' --circle backend")]
    Broadcast {
        #[command(flatten)]
        message: Compose,
        /// Only to this circle
        #[arg(long)]
        circle: Option<String>,
    },
    /// List messages from everybody to everybody, the latest first
    #[command(after_help = "Examples:\n  svc message list --peer peer_…\n  \
        svc message list --open    unanswered questions")]
    List(ListQuery<MessageFilter>),
    /// Look at what waits in an inbox, or take it
    #[command(after_help = "Examples:\n  svc message inbox reviewer\n  \
        svc message inbox reviewer --take")]
    Inbox {
        /// The reader: a name, an id or its beginning, or a session's key
        peer: String,
        /// Take it: it comes again in 60 s unless acknowledged
        #[arg(long)]
        take: bool,
        /// Only look, which is the default
        #[arg(long, conflicts_with = "take", hide = true)]
        peek: bool,
        #[command(flatten)]
        page: PageQuery,
    },
    /// Acknowledge messages, so that they do not come again
    #[command(after_help = "Example:\n  svc message ack peer_… msg_… msg_…")]
    Ack {
        /// The reader: a name, an id or its beginning, or a session's key
        peer: String,
        /// The messages' ids
        #[arg(required = true, value_name = "MESSAGE")]
        ids: Vec<String>,
    },
    /// Show a message with its way so far
    #[command(after_help = "Example:\n  svc message show msg_…")]
    Show {
        /// The message: its id or the beginning of it, or `latest`
        id: String,
    },
}

#[derive(Debug, Clone, Args)]
pub(super) struct Compose {
    /// The text; `-` reads it from standard input
    text: String,
    /// The sender: a peer's name or id; only the operator may choose
    #[arg(long, value_name = "PEER")]
    from: Option<String>,
    /// query, response, notification or broadcast [default: notification]
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// The message that this one answers
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,
    /// A repeat with the same key sends nothing again
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

pub(super) async fn run(context: &Context, command: MessageCommand) -> ExitResult {
    let client = context.client()?;
    match command {
        MessageCommand::Send { peer, message } => {
            let body = message.body(None)?;
            let sent = client.post(&format!("/v1/peers/{}/messages", encode(&peer)), &body).await;
            let sent: Value = peer_found(&client, &peer, sent).await?;
            let first =
                ["id", "type", "from_peer", "to_peer", "timestamp", "state", "delivery", "text"];
            context.print_object(&sent, &first)
        }
        MessageCommand::Broadcast { message, circle } => {
            let answer: Value = client.post("/v1/peers/broadcast", &message.body(circle)?).await?;
            let line = if context.json { String::new() } else { reached(&client, &answer).await };
            context.print_line(&answer, &line)
        }
        MessageCommand::List(query) => {
            let mut page: Value = client.get(&with_object("/v1/messages", &query)).await?;
            if !context.json {
                name_both_ends(&mut page);
                mark_questions(&mut page);
            }
            let MessageFilter { peer, kind, open, .. } = query.filter;
            let listing = match (open, peer.is_some() || kind.is_some()) {
                (true, _) => OPEN,
                (false, true) => SOME,
                (false, false) => ALL,
            };
            listing.print(context, &page)
        }
        MessageCommand::Inbox { peer, take, peek: _, page } => {
            let path = format!("/v1/peers/{}/messages?peek={}", encode(&peer), !take);
            let path = with_object(&path, &page);
            let mut page: Value = peer_found(&client, &peer, client.get(&path).await).await?;
            if !context.json {
                name_senders(&client, &mut page).await;
            }
            LIST.print(context, &page)
        }
        MessageCommand::Ack { peer, ids } => {
            let path = format!("/v1/peers/{}/messages/ack", encode(&peer));
            let answer = client.post(&path, &json!({ "ids": ids })).await;
            let answer: Value = peer_found(&client, &peer, answer).await?;
            let line = format!("acknowledged {}", output::cell(&answer, "count"));
            context.print_line(&answer, &line)
        }
        MessageCommand::Show { id } => {
            let id = identified(&client, id, LATEST_MESSAGE).await?;
            let message: Value = client.get(&format!("/v1/messages/{}", encode(&id))).await?;
            show(context, &client, &message).await
        }
    }
}

/// Sets `from` and `to` of each message: names, or ids of those who are no participants.
fn name_both_ends(page: &mut Value) {
    for message in page.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten() {
        for (end, name, id) in [("from", "from_name", "from_peer"), ("to", "to_name", "to_peer")] {
            message[end] = message.get(name).or(message.get(id)).cloned().unwrap_or_default();
        }
    }
}

/// Sets `from` of each message in an inbox: the sender's name, or the id of one who is no
/// participant.
async fn name_senders(client: &Client, page: &mut Value) {
    let names = peer_names(client, "peer_id").await;
    for message in page.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten() {
        let id = output::cell(message, "from_peer");
        message["from"] = names.get(&id).cloned().unwrap_or(id).into();
    }
}

/// In a table the state of a question is `open` or `answered`, which a person wants to know first.
fn mark_questions(page: &mut Value) {
    for message in page.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(state) = question_state(message) {
            message["state"] = state.into();
        }
    }
}

/// Whether a question in a list is open or answered. `None` for all others, and for a question
/// whose receiver has ended.
fn question_state(message: &Value) -> Option<&'static str> {
    if message["open"] == true {
        return Some("open");
    }
    (message["type"] == "query" && message["answered"] == true).then_some("answered")
}

/// The question as lists have it, which say whether it is open. `None` if it is in no list.
async fn listed_question(client: &Client, message: &Value) -> Option<Value> {
    let receiver = output::cell(message, "to_peer");
    let query = [("peer", Some(&*receiver)), ("type", Some("query"))];
    let is_it = |listed: &Value| listed["id"] == message["id"];
    all_items(client, &with_query("/v1/messages", &query), "messages", 1, is_it).await.ok()?.pop()
}

async fn reached(client: &Client, answer: &Value) -> String {
    let cell = |key| output::cell(answer, key);
    let (all, now, later) = (cell("delivered_to"), cell("now"), cell("later"));
    let mut text = format!("delivered to {all}: {now} now, {later} when they are back");
    let full = output::items(answer, "refused_by");
    if !full.is_empty() {
        let mut names = Vec::new();
        for id in full.iter().take(NAMED).map(output::plain) {
            let peer: Option<Value> = client.get(&format!("/v1/peers/{}", encode(&id))).await.ok();
            let name = peer.as_ref().and_then(|peer| peer["display_name"].as_str());
            names.push(output::visible(name.unwrap_or(&id)));
        }
        let more = if full.len() > NAMED { ", …" } else { "" };
        let count = full.len().to_string();
        text.extend([
            "; not taken by ",
            &count,
            ", whose inbox is full: ",
            &names.join(", "),
            more,
        ]);
    }
    text
}

impl Compose {
    fn body(self, circle: Option<String>) -> Result<Value> {
        let body = members([
            ("text", Some(text_or_input(self.text)?)),
            ("from_peer", self.from),
            ("type", self.kind),
            ("correlation_id", self.correlation_id),
            ("idempotency_key", self.idempotency_key),
            ("circle", circle),
        ]);
        Ok(body.into())
    }
}

pub(super) fn text_or_input(text: String) -> Result<String> {
    if text != "-" {
        return Ok(text);
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("cannot read the message from standard input")?;
    // Drops trailing line feeds, as a shell's `$(…)` does.
    Ok(text.trim_end_matches('\n').to_owned())
}

async fn show(context: &Context, client: &Client, message: &Value) -> ExitResult {
    let mut shown = Vec::new();
    if !context.json {
        let (from, to) =
            tokio::join!(party(client, message, "from_peer"), party(client, message, "to_peer"));
        let listed = match message["type"].as_str() {
            Some("query") => listed_question(client, message).await,
            _ => None,
        };
        let question = listed.as_ref().and_then(question_state);
        shown = rows(&context.screen, message, question, (from, to));
    }
    context.print(message, || output::wrapped_fields(&context.screen, &shown))
}

fn rows(
    screen: &Screen,
    message: &Value,
    question: Option<&'static str>,
    (from, to): (String, String),
) -> Vec<(&'static str, String)> {
    // A colour code must not become part of a field's value.
    let screen = &Screen { color: false, ..*screen };
    let kind = match message["type"].as_str() {
        Some("query") => "question".to_owned(),
        Some("response") => "answer".to_owned(),
        _ => output::cell(message, "type"),
    };
    // The words of lists and of `--json`, each with what it means.
    let state = [question.map(str::to_owned), Some(delivery_state(message))];
    let state = state.into_iter().flatten().collect::<Vec<_>>().join("; ");
    let mut rows = vec![
        ("message", format!("{} ({kind})", output::cell(message, "id"))),
        ("from", from),
        ("to", to),
        ("sent", screen.time(&output::cell(message, "timestamp"))),
        ("state", state),
    ];
    let way: Vec<String> = output::items(message, "states")
        .iter()
        .map(|step| {
            let why =
                step["reason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
            let at = output::clock(screen, &output::cell(step, "at"));
            format!("{at}  {}{why}", delivery_state(step))
        })
        .collect();
    if !way.is_empty() {
        rows.push(("delivery", way.join("\n")));
    }
    if let Some(answered) = message["correlation_id"].as_str() {
        rows.push(("answers", answered.to_owned()));
    }
    if let Some(source) = delivery_source(&message["provenance"]) {
        rows.push(("came by", source));
    }
    rows.push(("text", output::cell(message, "text")));
    rows
}

async fn party(client: &Client, message: &Value, end: &str) -> String {
    let id = output::cell(message, end);
    let known: Option<Value> = client.get(&format!("/v1/peers/{}", encode(&id))).await.ok();
    match known.as_ref().and_then(|peer| peer["display_name"].as_str()) {
        Some(name) if id != PeerId::OPERATOR => format!("{name} ({id})"),
        Some(name) => name.to_owned(),
        None => id,
    }
}

/// When a message that was just sent reaches its receiver, as a clause. Empty if the daemon is an
/// earlier version that does not say.
pub(super) fn when<'a>(sent: &'a Value, receiver: &Value) -> &'a str {
    let status = output::cell(receiver, "status");
    match sent["delivery"].as_str().unwrap_or_default() {
        "wakes" => "the message wakes it now",
        "now" => "it gets the message in its present turn",
        "next_turn" if status == "idle" => {
            "it reads the message when somebody types there: the message does not wake it"
        }
        "next_turn" if receiver["waiting_for"]["kind"] == "limit" => {
            "it reads the message when its usage limit is over"
        }
        // OpenCode in a terminal has no hook at the end of a turn that could deliver messages.
        "next_turn" if receiver["backend"] == "opencode" && receiver["agent"].is_null() => {
            "it reads the message with its next tool call, or when somebody types there"
        }
        "next_turn" => "it reads the message in its next turn",
        "when_back" => "it gets the message when it is back",
        "never" => "its agent has ended, and the message cannot be delivered",
        // A state that a later version may add.
        other => other,
    }
}

/// Like `when`, after the state of the receiver, and with what a person has to do before the
/// receiver goes on.
pub(super) fn expected(sent: &Value, receiver: &Value) -> String {
    let status = output::cell(receiver, "status");
    let mut words = match when(sent, receiver) {
        "" => format!("which is {status}"),
        when => format!("which is {status}: {when}"),
    };
    if let Some(needs) = needs(receiver) {
        words.push_str("; ");
        words.push_str(&needs);
    }
    words
}

pub(super) fn needs(receiver: &Value) -> Option<String> {
    let is_asked =
        matches!(receiver["waiting_for"]["kind"].as_str(), Some("permission" | "question"));
    if receiver["status"] != "waiting" || !is_asked {
        return None;
    }
    Some(match receiver["agent"].as_str() {
        Some(key) => {
            format!(
                "it needs your answer first: svc agent answer {} latest OPTION",
                output::visible(key)
            )
        }
        None => "somebody has to answer at its terminal first".to_owned(),
    })
}

/// The state of a message or of a step on its way, and what it means.
fn delivery_state(of: &Value) -> String {
    let state = output::cell(of, "state");
    let meaning = match &*state {
        "accepted" => "taken by the daemon",
        "queued" => "waits in the inbox",
        "offered" => "was given to the receiver's client",
        "injected" => "the receiver has it",
        "acked" => "the receiver acknowledged or answered it",
        "expired" => "waited too long and is gone",
        "refused" => "not taken",
        "undeliverable" => "cannot be delivered",
        _ => return state,
    };
    format!("{state}: {meaning}")
}

fn delivery_source(provenance: &Value) -> Option<String> {
    let call = match provenance.get("sourceTool").and_then(Value::as_str)? {
        "peer_send" => "a message to one peer",
        "peer_broadcast" => "a message to all",
        "sessions_send" => "a message from session to session",
        "sessions_spawn" => "the end of an agent that was started for it",
        "SendMessage" => "the end of work that was asked for",
        "agent_request" => "a request of an agent for permission",
        other => other,
    };
    Some(match provenance.get("sourceSessionKey").and_then(Value::as_str) {
        Some(session) => format!("{call}, from {session}"),
        None => call.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_delivery_kind_has_a_text() {
        for (delivery, words) in [
            ("wakes", "wakes it now"),
            ("now", "in its present turn"),
            ("next_turn", "does not wake it"),
            ("when_back", "when it is back"),
            ("never", "its agent has ended, and the message cannot be delivered"),
        ] {
            let said = expected(&json!({ "delivery": delivery }), &json!({ "status": "idle" }));
            assert!(said.starts_with("which is idle: ") && said.ends_with(words), "{said}");
        }
        let next = json!({ "delivery": "next_turn" });
        let busy = expected(&next, &json!({ "status": "busy" }));
        assert_eq!(busy, "which is busy: it reads the message in its next turn");
        let idle = json!({ "status": "idle" });
        assert_eq!(expected(&json!({}), &idle), "which is idle", "of an earlier daemon");
    }

    #[test]
    fn blocked_receiver_says_what_it_needs() {
        let waiting = |kind: &str, agent: Option<&str>| {
            let receiver =
                json!({ "status": "waiting", "waiting_for": { "kind": kind }, "agent": agent });
            expected(&json!({ "delivery": "next_turn" }), &receiver)
        };
        let hosted = waiting("permission", Some("agent:claude:main"));
        assert!(
            hosted.ends_with(
                "; it needs your answer first: svc agent answer agent:claude:main latest OPTION"
            ),
            "{hosted}"
        );
        let attended = waiting("question", None);
        assert!(attended.ends_with("; somebody has to answer at its terminal first"), "{attended}");
        let limited = waiting("limit", Some("agent:claude:main"));
        assert!(limited.ends_with("when its usage limit is over"), "{limited}");
    }

    #[test]
    fn table_says_of_a_question_whether_it_is_open_or_answered() {
        let message = |kind: &str, open: bool, answered: bool| json!({ "type": kind, "open": open, "answered": answered, "state": "injected" });
        let mut page = json!({ "messages": [
            message("query", true, false), message("query", false, true),
            // Its receiver has ended.
            message("query", false, false), message("notification", false, false),
        ] });
        mark_questions(&mut page);
        let states: Vec<String> = output::items(&page, "messages")
            .iter()
            .map(|message| output::cell(message, "state"))
            .collect();
        assert_eq!(states, ["open", "answered", "injected", "injected"]);
    }

    #[test]
    fn shown_message_has_the_words_of_the_list() {
        let screen = Screen::for_tests(None);
        let message = json!({ "type": "query", "state": "acked", "states": [{ "state": "queued", "at": "t" }] });
        let shown = rows(&screen, &message, Some("answered"), (String::new(), String::new()));
        let row = |key: &str| shown.iter().find(|row| row.0 == key).map(|row| &*row.1);
        assert_eq!(row("state"), Some("answered; acked: the receiver acknowledged or answered it"));
        assert_eq!(row("delivery"), Some("t  queued: waits in the inbox"));
    }
}
