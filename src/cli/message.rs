//! `svc message`: messages between participants and their delivery.

use std::collections::HashMap;
use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use svc_client::{Client, encode, with_object};
use svc_model::{ListQuery, MessageFilter, PageQuery};

use super::naming::{LatestItem, identified, peer_found, peer_names};
use super::output::{self, Column, Listing};
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
            let answer: Value =
                client.post("/v1/peers/broadcast", &message.body(circle.as_deref())?).await?;
            let line = if context.json { String::new() } else { reached(&client, &answer).await };
            context.print_line(&answer, &line)
        }
        MessageCommand::List(query) => {
            let mut page: Value = client.get(&with_object("/v1/messages", &query)).await?;
            if !context.json {
                tell_rows(&mut page, &HashMap::new());
            }
            ALL.of_filter(&query.filter).print(context, &page)
        }
        MessageCommand::Inbox { peer, take, page } => {
            let path = format!("/v1/peers/{}/messages?peek={}", encode(&peer), !take);
            let path = with_object(&path, &page);
            let mut page: Value = peer_found(&client, &peer, client.get(&path).await).await?;
            if !context.json {
                tell_rows(&mut page, &peer_names(&client, "peer_id").await);
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

/// Sets `from` and `to` of each message: names, or ids of those who are no participants. The state
/// of a question becomes `open` or `answered`, which a person wants to know first; not if its
/// receiver has ended.
fn tell_rows(page: &mut Value, names: &HashMap<String, String>) {
    for message in page.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten() {
        for (end, name, id) in [("from", "from_name", "from_peer"), ("to", "to_name", "to_peer")] {
            let known = names.get(&output::cell(message, id)).cloned().map(Value::from);
            let named = known.or_else(|| message.get(name).or(message.get(id)).cloned());
            message[end] = named.unwrap_or_default();
        }
        if message["open"] == true {
            message["state"] = "open".into();
        } else if message["type"] == "query" && message["answered"] == true {
            message["state"] = "answered".into();
        }
    }
}

async fn reached(client: &Client, answer: &Value) -> String {
    let cell = |key| output::cell(answer, key);
    let (all, now, later) = (cell("delivered_to"), cell("now"), cell("later"));
    let mut text = format!("delivered to {all}: {now} now, {later} when they are back");
    let full: Vec<String> = output::items(answer, "refused_by").iter().map(output::plain).collect();
    if !full.is_empty() {
        let known = peer_names(client, "peer_id").await;
        let names = full.iter().take(NAMED).map(|id| output::visible(known.get(id).unwrap_or(id)));
        let names = names.collect::<Vec<_>>().join(", ");
        let more = if full.len() > NAMED { ", …" } else { "" };
        let count = full.len().to_string();
        text.extend(["; not taken by ", &count, ", whose inbox is full: ", &names, more]);
    }
    text
}

impl Compose {
    fn body(self, circle: Option<&str>) -> Result<Value> {
        Ok(json!({
            "text": text_or_input(self.text)?, "from_peer": self.from, "type": self.kind, "circle": circle,
            "correlation_id": self.correlation_id, "idempotency_key": self.idempotency_key,
        }))
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
    if context.json {
        return output::json(message).map(|()| ExitCode::SUCCESS);
    }
    let names = peer_names(client, "peer_id").await;
    let mut shown = message.clone();
    for (end, id) in [("from", "from_peer"), ("to", "to_peer")] {
        let id = shown[id].take();
        let name = id.as_str().and_then(|id| names.get(id)).filter(|name| id != **name);
        shown[end] =
            name.map_or(id.clone(), |name| format!("{name} ({})", output::plain(&id)).into());
    }
    if let Some(members) = shown.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    output::block(&output::readable(&shown, context.screen.fit_width())).map(|()| ExitCode::SUCCESS)
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
        tell_rows(&mut page, &HashMap::new());
        let states: Vec<String> = output::items(&page, "messages")
            .iter()
            .map(|message| output::cell(message, "state"))
            .collect();
        assert_eq!(states, ["open", "answered", "injected", "injected"]);
    }
}
