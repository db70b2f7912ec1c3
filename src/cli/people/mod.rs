//! `svc ask`, `tell`, `reply`, `answer` and `inbox`: a person talks with the team as the operator's
//! own peer.

mod ask;
mod inbox;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use svc_client::{Client, ClientError, ClientProblem, TokenSource, encode, post_keyed, with_query};
use svc_model::{AgentRequestId, LATEST, PeerId};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::message::{expected, text_or_input};
use super::naming::{AdvisedError, all_items, peer_found};
use super::{Context, ExitResult, UsageError, output};

pub(super) use ask::{AskArgs, ask};
pub(super) use inbox::{InboxArgs, inbox};

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

#[derive(Debug, Args)]
pub(super) struct ReplyArgs {
    /// The message: its id or the beginning of it, or `latest`: the last question to you that is
    /// open
    message: String,
    /// The answer; `-` reads it from standard input
    text: String,
}

pub(super) async fn tell(context: &Context, args: TellArgs) -> ExitResult {
    let client = context.client()?;
    let text = text_or_input(args.text)?;
    let body = json!({ "text": text, "type": "notification", "no_wake": args.no_wake });
    let sent = peer_found(&client, &args.name, send(context, &args.name, body).await?).await?;
    report_sent(context, &client, &sent).await
}

/// Answers a message to the operator, which acknowledges it.
pub(super) async fn reply(context: &Context, args: ReplyArgs) -> ExitResult {
    let client = context.client()?;
    present(&client).await?;
    let answered = if args.message == LATEST {
        match open_questions(&client, 1).await?.pop() {
            Some(question) => question,
            None => return Err(no_open_question().into()),
        }
    } else {
        client.get(&format!("/v1/messages/{}", encode(&args.message))).await?
    };
    let id = output::cell(&answered, "id");
    if answered["to_peer"] != PeerId::OPERATOR {
        let to = output::cell(&answered, "to_peer");
        bail!("{id} is a message to {to} and not to you: `svc inbox` shows yours");
    }
    let body = json!({
        "text": text_or_input(args.text)?, "type": "response", "correlation_id": id,
    });
    let sent = send(context, &output::cell(&answered, "from_peer"), body).await??;
    client.post::<Value>(&inbox_path("/messages/ack"), &json!({ "ids": [id] })).await?;
    report_sent(context, &client, &sent).await
}

fn no_open_question() -> AdvisedError {
    let problem =
        ClientProblem::stated(StatusCode::NOT_FOUND, "not_found", "no question to you is open");
    let advice = "`svc tell NAME …` says something, `svc reply ID …` answers another message, and `svc answer` what \
                  needs permission";
    AdvisedError::new(ClientError::Problem(Box::new(problem)), advice)
}

/// Questions to the operator that nobody has answered, the latest first, at most `most`.
async fn open_questions(client: &Client, most: usize) -> Result<Vec<Value>, ClientError> {
    let query = [("peer", Some(PeerId::OPERATOR)), ("open", Some("true"))];
    let path = with_query("/v1/messages", &query);
    let is_to_operator = |message: &Value| message["to_peer"] == PeerId::OPERATOR;
    all_items(client, &path, "messages", most, is_to_operator).await
}

/// Sends a message exactly once, also when the daemon ends before it answers.
async fn send(context: &Context, to: &str, body: Value) -> Result<Result<Value, ClientError>> {
    let path = format!("/v1/peers/{}/messages", encode(to));
    Ok(post_keyed(&context.discovery()?, &path, body).await)
}

/// Prints the receiver of a message, and when it gets the message.
async fn report_sent(context: &Context, client: &Client, sent: &Value) -> ExitResult {
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
    Ok(ExitCode::SUCCESS)
}

/// Whether the receiver has ended, so that the message cannot be delivered.
fn reaches_nobody(sent: &Value) -> bool {
    sent["delivery"] == "never" || sent["state"] == "undeliverable"
}

fn inbox_path(rest: &str) -> String {
    format!("/v1/peers/{}{rest}", PeerId::OPERATOR)
}

/// A peer; only its id if it is gone.
async fn peer(client: &Client, id: &str) -> Value {
    let known = client.get(&format!("/v1/peers/{}", encode(id))).await;
    known.unwrap_or_else(|_: ClientError| json!({ "peer_id": id }))
}

fn name_of(peer: &Value) -> String {
    let key = if peer["display_name"].is_string() { "display_name" } else { "peer_id" };
    output::cell(peer, key)
}

#[derive(Debug, Args)]
pub(super) struct AnswerArgs {
    /// The option's id; `-` for words alone. A request may stand before it: its id or the beginning
    /// of it, or `latest`, which is meant without one
    #[arg(value_name = "OPTION")]
    first: String,
    /// Words: the reason of a denial, or the answer to a question
    #[arg(value_name = "TEXT")]
    second: Option<String>,
    /// The words, if a request stands first
    #[arg(hide = true)]
    third: Option<String>,
    /// The option holds from now on, and is meant so
    #[arg(long)]
    confirm: bool,
}

impl AnswerArgs {
    /// The request, the option and the words. A first word that names no request is the option.
    /// The option is `None` if only a request is named.
    fn split(self) -> Result<(String, Option<String>, Option<String>), UsageError> {
        let Self { first, second, third, .. } = self;
        if first == LATEST || first.starts_with(AgentRequestId::PREFIX) {
            return Ok((first, second, third));
        }
        if third.is_some() {
            let text = format!("{first:?} is no request: requests are `latest` or req_…");
            return Err(UsageError(text));
        }
        Ok((LATEST.to_owned(), Some(first), second))
    }
}

pub(super) async fn answer(context: &Context, args: AnswerArgs) -> ExitResult {
    let confirm = args.confirm;
    let (request, option, text) = args.split()?;
    let client = context.client()?;
    let Some(option) = option else {
        let usage = "say which option, or - for words alone: `svc answer [REQUEST] OPTION [TEXT]`; \
                     `svc inbox` shows the options";
        bail!(UsageError(usage.to_owned()));
    };
    let option_id = (option != "-").then_some(option);
    let body = json!({ "option_id": option_id, "text": text, "confirm": confirm });
    let path = format!("/v1/requests/{}/answer", encode(&request));
    let body = serde_json::to_vec(&body)?;
    let reply = client.exchange(Method::POST, &path, Some(body.into())).await?;
    if request == LATEST && reply.status == StatusCode::NOT_FOUND {
        bail!("no request is open");
    }
    if !reply.status.is_success() {
        return Err(ClientError::Problem(Box::new(reply.problem())).into());
    }
    let answered: Value = reply.json()?;
    if context.json {
        output::json(&answered)?;
        return Ok(ExitCode::SUCCESS);
    }
    let key = output::cell(&answered, "session_key");
    // A hosted agent is known by its key.
    let is_hosted = !answered["agent_id"].is_null();
    let asker = if is_hosted { key } else { name_of(&peer(&client, &key).await) };
    let title = format!("{asker}, {}", output::cell(&answered, "title"));
    let title = output::visible(&title);
    let given = output::visible(option_id.as_deref().or(text.as_deref()).unwrap_or(LATEST));
    output::line(&if reply.status == StatusCode::ACCEPTED {
        format!("sent the answer to {title}: {given}; the client has not shown yet that it took it")
    } else {
        format!("answered {title}: {given}")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The heartbeat's period: a peer without one for a minute is away.
const INTERVAL: Duration = Duration::from_secs(10);

/// Sends one heartbeat of the operator; the first one creates the operator's peer.
pub(super) async fn present(client: &Client) -> Result<Value, ClientError> {
    client.post(&format!("/v1/peers/{}/heartbeat", PeerId::OPERATOR), &json!({})).await
}

/// Sends heartbeats until it is dropped.
pub(super) struct OperatorPresence(JoinHandle<()>);

impl OperatorPresence {
    pub(super) fn keep(context: &Context) -> Self {
        let context = context.clone();
        Self(tokio::spawn(async move {
            loop {
                // Failures are ignored: the next heartbeat reaches a daemon that is back. A token
                // from the environment belongs to a session and not to the operator.
                if let Ok(client) = context.client()
                    && client.target().token_source != TokenSource::Env
                {
                    present(&client).await.ok();
                }
                sleep(INTERVAL).await;
            }
        }))
    }
}

impl Drop for OperatorPresence {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_without_a_request_id_means_the_latest() {
        let split = |words: &[&str]| {
            let word = |at: usize| words.get(at).map(|word| (*word).to_owned());
            let first = word(0).unwrap_or_default();
            AnswerArgs { first, second: word(1), third: word(2), confirm: false }.split()
        };
        for (words, request, option, text) in [
            (&["allow"][..], "latest", Some("allow"), None),
            (&["deny", "use make"], "latest", Some("deny"), Some("use make")),
            (&["latest", "allow"], "latest", Some("allow"), None),
            (&["latest"], "latest", None, None),
            (&["req_1", "deny", "no"], "req_1", Some("deny"), Some("no")),
            (&["-", "blue"], "latest", Some("-"), Some("blue")),
        ] {
            let (asked, chosen, said) = split(words).unwrap();
            let parts = (&*asked, chosen.as_deref(), said.as_deref());
            assert_eq!(parts, (request, option, text), "{words:?}");
        }
        split(&["allow", "a", "b"]).unwrap_err();
    }
}
