//! `svc ask`, `tell`, `reply` and `inbox`: a person talks with the team as the operator's own peer.

mod answer;
mod ask;
mod inbox;

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use http::StatusCode;
use serde_json::{Value, json};
use svc_client::{Client, ClientError, ClientProblem, TokenSource, encode, post_keyed, with_query};
use svc_model::{LATEST, PeerId};

use super::delivery::expected;
use super::message::text_or_input;
use super::naming::{AdvisedError, message_found, peer_found};
use super::presence::say as present;
use super::{Context, UsageError, output};

pub(super) use answer::{AnswerArgs, answer};
pub(super) use ask::{AskArgs, ask};
pub(super) use inbox::{InboxArgs, inbox};

/// Which of the four ways to speak is meant, for the help of each.
macro_rules! which_one {
    () => {
        "Which one:
  svc tell NAME TEXT    says something that needs no answer
  svc ask NAME TEXT     asks, and waits for the answer
  svc reply ID TEXT     answers what somebody asked you
  svc send NAME PROMPT  gives work as a task, and prints the answer"
    };
}
pub(super) use which_one;

/// Most characters of what was answered that are shown again.
const FIRST_WORDS: usize = 60;

/// Arguments of `svc tell`.
#[derive(Debug, Args)]
pub(super) struct TellArgs {
    /// The receiver: a name, key or id of `svc agent list`
    name: String,
    /// What to say; `-` reads it from standard input
    text: String,
    /// Leave an idle session idle: it reads the message in its next turn
    #[arg(long)]
    no_wake: bool,
}

/// Arguments of `svc reply`.
#[derive(Debug, Args)]
pub(super) struct ReplyArgs {
    /// The message: its id or the beginning of it, or `latest`: the last question to you that is
    /// open
    message: String,
    /// The answer; `-` reads it from standard input
    text: String,
}

/// Sends a notification as the operator.
pub(super) async fn tell(context: &Context, args: TellArgs) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let text = text_or_input(args.text)?;
    let mut body = json!({ "text": text, "type": "notification" });
    if args.no_wake {
        body["no_wake"] = true.into();
    }
    let sent = peer_found(&client, &args.name, send(context, &args.name, body).await?).await?;
    report_sent(context, &client, &sent).await
}

/// Answers a message to the operator, which acknowledges it.
pub(super) async fn reply(context: &Context, args: ReplyArgs) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    present(&client).await?;
    let answered = if args.message == LATEST {
        match open_questions(&client, 1).await?.pop() {
            Some(question) => question,
            None => return Err(no_open_question(&client).await.into()),
        }
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
    let sent = send(context, &output::cell(&answered, "from_peer"), body).await??;
    client.post::<Value>(&inbox_path("/messages/ack"), &json!({ "ids": [id] })).await?;
    let result = report_sent(context, &client, &sent).await;
    if !context.json && result.is_ok() {
        let (from, text) = (output::cell(&answered, "from_peer"), output::cell(&answered, "text"));
        let from = name_of(&peer(&client, &from).await);
        let verb = if answered["type"] == "query" { "asked" } else { "said" };
        let (from, beginning) = (output::visible(&from), first_words(&text));
        output::line(&format!("it answers what {from} {verb}: {beginning}"))?;
    }
    result
}

/// Says that there is nothing to answer, or what answers the request of an agent that is open.
async fn no_open_question(client: &Client) -> AdvisedError {
    let problem = ClientProblem {
        status: StatusCode::NOT_FOUND,
        code: "not_found".to_owned(),
        detail: "no question to you is open".to_owned(),
        field: None,
        request_id: None,
        retry_after: None,
        token: TokenSource::Withheld,
    };
    let advice = "`svc tell NAME …` says something, and `svc reply ID …` answers another message";
    let page: Value = client
        .get("/v1/requests?open=true&limit=1")
        .await
        .unwrap_or_else(|_: ClientError| json!({}));
    let advice = match output::items(&page, "requests").first() {
        None => advice.to_owned(),
        Some(request) => {
            let cell = |key| output::visible(&output::cell(request, key));
            format!(
                "{} needs permission ({}), and `svc agent answer {} latest OPTION` answers that ({})",
                cell("session_key"),
                cell("title"),
                cell("session_key"),
                option_ids(request)
            )
        }
    };
    AdvisedError::new(ClientError::Problem(Box::new(problem)), &advice)
}

/// The options of an open request, in the words that `svc agent answer` takes.
fn option_ids(request: &Value) -> String {
    let options = output::items(request, "options").iter();
    let ids = options.map(|option| output::visible(&output::cell(option, "option_id")));
    ids.collect::<Vec<_>>().join(", ")
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

/// Sends a message, once, also when the daemon ends before it answers.
async fn send(
    context: &Context,
    to: &str,
    body: Value,
) -> anyhow::Result<Result<Value, ClientError>> {
    let path = format!("/v1/peers/{}/messages", encode(to));
    Ok(post_keyed(&context.discovery()?, &path, body).await)
}

/// Says whom a message went to, and when that one gets it.
async fn report_sent(context: &Context, client: &Client, sent: &Value) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(sent)?;
        return Ok(if reaches_nobody(sent) { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let receiver = peer(client, &output::cell(sent, "to_peer")).await;
    let name = output::visible(&name_of(&receiver));
    if reaches_nobody(sent) {
        bail!("{name} gets no message: its agent has ended");
    }
    let when = expected(sent, &receiver);
    output::line(&format!("sent {} to {name}, {when}", output::cell(sent, "id")))?;
    note_successor(client, &receiver).await;
    Ok(ExitCode::SUCCESS)
}

/// Whether the receiver of a message that was just sent is over.
fn reaches_nobody(sent: &Value) -> bool {
    sent["delivery"] == "never" || sent["state"] == "undeliverable"
}

/// Says who else of the same client is here in the folder of one who is away: that one may be
/// meant.
async fn note_successor(client: &Client, receiver: &Value) {
    let cell = |key| output::cell(receiver, key);
    if cell("status") != "offline" || receiver["path"].is_null() {
        return;
    }
    let (backend, path) = (cell("backend"), cell("path"));
    let query = [("backend", Some(&*backend)), ("path", Some(&*path)), ("live", Some("true"))];
    // The message is stored: a failed look for others fails nothing.
    let page: Value = client.get(&with_query("/v1/peers", &query)).await.unwrap_or_default();
    let names: Vec<String> = output::items(&page, "peers")
        .iter()
        .filter(|peer| peer["role"] == receiver["role"])
        .map(|peer| output::visible(&name_of(peer)))
        .collect();
    if !names.is_empty() {
        let verb = if names.len() == 1 { "is" } else { "are" };
        output::note(&format!("svc: {} {verb} here in the same folder", names.join(", ")));
    }
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
