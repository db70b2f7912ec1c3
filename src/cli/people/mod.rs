//! `svc ask`, `tell`, `reply` and `inbox`: a person talks with the team as the operator's own peer.

mod ask;
mod inbox;

use std::process::ExitCode;

use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};

use super::delivery::expected;
use super::message::text_or_input;
use super::naming::{AdvisedError, message_found, peer_found};
use super::{Context, UsageError, output};
use crate::client::{Client, ClientError, ClientProblem, TokenSource, encode, with_query};
use crate::domain::PeerId;

pub(super) use ask::{AskArgs, ask};
pub(super) use inbox::{InboxArgs, inbox};

/// Names the last open question to the operator.
const LATEST: &str = "latest";
/// Most characters of what was answered that are shown again.
const FIRST_WORDS: usize = 60;

/// Arguments of `svc tell`.
#[derive(Debug, Args)]
pub(super) struct TellArgs {
    /// Whom: a name, an id or its beginning, or a session's key
    name: String,
    /// What to say; `-` reads it from standard input
    text: String,
}

/// Arguments of `svc reply`.
#[derive(Debug, Args)]
pub(super) struct ReplyArgs {
    /// The message: its id or the beginning of it, or `latest`: the last question to you that is open
    message: String,
    /// The answer; `-` reads it from standard input
    text: String,
}

/// Sends a notification as the operator.
pub(super) async fn tell(context: &Context, args: TellArgs) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let text = text_or_input(args.text)?;
    let body = json!({ "text": text, "type": "notification" });
    let sent = peer_found(&client, &args.name, send(&client, &args.name, &body).await).await?;
    report_sent(context, &client, &sent).await
}

/// Answers a message to the operator, which acknowledges it.
pub(super) async fn reply(context: &Context, args: ReplyArgs) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    present(&client).await?;
    let answered = if args.message == LATEST {
        open_questions(&client, 1).await?.pop().ok_or_else(no_open_question)?
    } else {
        let answered = client.get(&format!("/v1/messages/{}", encode(&args.message))).await;
        message_found(&client, &args.message, answered).await?
    };
    let id = output::cell(&answered, "id");
    if answered["to_peer"] != PeerId::OPERATOR {
        let to = output::cell(&answered, "to_peer");
        return Err(UsageError(format!(
            "{id} is a message to {to} and not to you: `svc inbox` shows yours"
        ))
        .into());
    }
    let body = json!({
        "text": text_or_input(args.text)?, "type": "response", "correlation_id": id,
    });
    let sent = send(&client, &output::cell(&answered, "from_peer"), &body).await?;
    client.post::<Value>(&inbox_path("/messages/ack"), &json!({ "ids": [id] })).await?;
    let result = report_sent(context, &client, &sent).await;
    if !context.json {
        let (from, text) = (output::cell(&answered, "from_peer"), output::cell(&answered, "text"));
        let from = name_of(&peer(&client, &from).await);
        let verb = if answered["type"] == "query" { "asked" } else { "said" };
        let (from, beginning) = (output::visible(&from), first_words(&text));
        output::line(&format!("it answers what {from} {verb}: {beginning}"))?;
    }
    result
}

fn no_open_question() -> AdvisedError {
    let problem = ClientProblem {
        status: StatusCode::NOT_FOUND,
        code: "not_found".to_owned(),
        detail: "no question to you is open".to_owned(),
        field: None,
        request_id: None,
        retry_after: None,
        token: TokenSource::Withheld,
    };
    let advice = "`svc tell NAME …` says something to somebody, and `svc reply ID …` answers another message";
    AdvisedError::new(ClientError::Problem(Box::new(problem)), advice)
}

/// Questions to the operator that nobody has answered, the latest first, at most `most`.
async fn open_questions(client: &Client, most: usize) -> Result<Vec<Value>, ClientError> {
    let mut questions = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let query = [
            ("peer", Some(PeerId::OPERATOR)),
            ("open", Some("true")),
            ("limit", Some("500")),
            ("cursor", cursor.as_deref()),
        ];
        let page: Value = client.get(&with_query("/v1/messages", &query)).await?;
        let to_operator = |message: &&Value| message["to_peer"] == PeerId::OPERATOR;
        let room = most - questions.len();
        questions.extend(
            output::items(&page, "messages").iter().filter(to_operator).take(room).cloned(),
        );
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() || questions.len() == most {
            return Ok(questions);
        }
    }
}

/// The beginning of a text, on one line.
fn first_words(text: &str) -> String {
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(FIRST_WORDS) {
        words.truncate(end);
        words.push('…');
    }
    output::visible(&words)
}

async fn send(client: &Client, to: &str, body: &Value) -> Result<Value, ClientError> {
    client.post(&format!("/v1/peers/{}/messages", encode(to)), body).await
}

/// Says whom a message went to, and when that one gets it.
async fn report_sent(context: &Context, client: &Client, sent: &Value) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(sent)?;
        return Ok(ExitCode::SUCCESS);
    }
    let receiver = peer(client, &output::cell(sent, "to_peer")).await;
    let name = output::visible(&name_of(&receiver));
    let status = output::cell(&receiver, "status");
    let when = expected(sent, &status);
    output::line(&format!("sent {} to {name}, {when}", output::cell(sent, "id")))?;
    Ok(ExitCode::SUCCESS)
}

/// Says that the operator is here, which also makes the operator's own peer if there is none yet.
async fn present(client: &Client) -> Result<Value, ClientError> {
    client.post(&inbox_path("/heartbeat"), &json!({})).await
}

/// Where the operator's own peer is, and `rest` behind it.
fn inbox_path(rest: &str) -> String {
    format!("/v1/peers/{}{rest}", PeerId::OPERATOR)
}

/// A peer, or what is left of one that is gone: its id.
async fn peer(client: &Client, id: &str) -> Value {
    let known = client.get(&format!("/v1/peers/{}", encode(id))).await;
    known.unwrap_or_else(|_: ClientError| json!({ "peer_id": id }))
}

/// What a peer is called.
fn name_of(peer: &Value) -> String {
    let key = if peer["display_name"].is_string() { "display_name" } else { "peer_id" };
    output::cell(peer, key)
}
