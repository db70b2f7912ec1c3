//! `svc message`: messages between participants.

use std::fmt::Write as _;
use std::io::Read as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use svc_client::{Client, encode, with_object};
use svc_model::{ListQuery, MessageFilter, PageQuery};

use super::naming::{message_found, peer_found, peer_names};
use super::output::{self, Column, Listing};
use super::{Context, delivery, message_view};

/// How many receivers with a full inbox are named.
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
        Column::id("MESSAGE", "id"),
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

/// The text for an empty list under a filter.
const SOME: Listing = Listing { empty: "no such messages", ..ALL };
const OPEN: Listing = Listing { empty: "no open questions", ..ALL };

/// `svc message …`.
#[derive(Debug, Subcommand)]
pub(super) enum MessageCommand {
    /// Send a message to a peer's inbox
    #[command(
        after_help = "Examples:\n  svc message send peer_… 'the build is green'\n  git diff | svc message send peer_… - --type query"
    )]
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
    #[command(
        after_help = "Examples:\n  svc message list --peer peer_…\n  svc message list --open    unanswered questions"
    )]
    List(ListQuery<MessageFilter>),
    /// Look at what waits in an inbox, or take it
    #[command(
        after_help = "Examples:\n  svc message inbox reviewer\n  svc message inbox reviewer --take"
    )]
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

/// What a message is made of.
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

pub(super) async fn run(context: &Context, command: MessageCommand) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    match command {
        MessageCommand::Send { peer, message } => {
            let body = message.body(None)?;
            let sent = client.post(&format!("/v1/peers/{}/messages", encode(&peer)), &body).await;
            let sent: Value = peer_found(&client, &peer, sent).await?;
            print(context, &sent)?;
        }
        MessageCommand::Broadcast { message, circle } => {
            let answer: Value = client.post("/v1/peers/broadcast", &message.body(circle)?).await?;
            if context.json {
                output::json(&answer)?;
            } else {
                output::line(&reached(&client, &answer).await)?;
            }
        }
        MessageCommand::List(query) => {
            let mut page: Value = client.get(&with_object("/v1/messages", &query)).await?;
            if !context.json {
                name_both_ends(&mut page);
            }
            if !context.json {
                mark_questions(&mut page);
            }
            let MessageFilter { peer, kind, open, .. } = query.filter;
            let listing = match (open, peer.is_some() || kind.is_some()) {
                (true, _) => OPEN,
                (false, true) => SOME,
                (false, false) => ALL,
            };
            listing.print(context, &page)?;
        }
        MessageCommand::Inbox { peer, take, peek: _, page } => {
            let path = format!("/v1/peers/{}/messages?peek={}", encode(&peer), !take);
            let path = with_object(&path, &page);
            let mut page: Value = peer_found(&client, &peer, client.get(&path).await).await?;
            if !context.json {
                name_senders(&client, &mut page).await;
            }
            LIST.print(context, &page)?;
        }
        MessageCommand::Ack { peer, ids } => {
            let path = format!("/v1/peers/{}/messages/ack", encode(&peer));
            let answer = client.post(&path, &json!({ "ids": ids })).await;
            let answer: Value = peer_found(&client, &peer, answer).await?;
            if context.json {
                output::json(&answer)?;
            } else {
                output::line(&format!("acknowledged {}", output::cell(&answer, "count")))?;
            }
        }
        MessageCommand::Show { id } => {
            let message = client.get(&format!("/v1/messages/{}", encode(&id))).await;
            let message: Value = message_found(&client, &id, message).await?;
            message_view::show(context, &client, &message).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
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
        if delivery::is_open(message) {
            message["state"] = "open".into();
        } else if message["type"] == "query" && message["answered"] == true {
            message["state"] = "answered".into();
        }
    }
}

/// Who got a broadcast, and who did not.
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
        write!(
            text,
            "; not taken by {}, whose inbox is full: {}{more}",
            full.len(),
            names.join(", ")
        )
        .expect("writing to a string does not fail");
    }
    text
}

impl Compose {
    fn body(self, circle: Option<String>) -> anyhow::Result<Value> {
        let fields = [
            ("text", Some(text_or_input(self.text)?)),
            ("from_peer", self.from),
            ("type", self.kind),
            ("correlation_id", self.correlation_id),
            ("idempotency_key", self.idempotency_key),
            ("circle", circle),
        ];
        let body: Map<String, Value> = fields
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), Value::String(value?))))
            .collect();
        Ok(Value::Object(body))
    }
}

/// The text of a message, from standard input if it is `-`.
pub(super) fn text_or_input(text: String) -> anyhow::Result<String> {
    if text != "-" {
        return Ok(text);
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .context("cannot read the message from standard input")?;
    // The last line feed belongs to the pipe, as in a shell's `$(…)`.
    Ok(text.trim_end_matches('\n').to_owned())
}

fn print(context: &Context, message: &Value) -> anyhow::Result<()> {
    if context.json {
        return output::json(message);
    }
    let first = ["id", "type", "from_peer", "to_peer", "timestamp", "state", "delivery", "text"];
    output::object(&context.screen, message, &first)
}
