//! `svc ask`: a question, and the wait for its answer.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};
use svc_client::{ClientError, FollowItem, Follower, backoff, encode, with_query};
use svc_model::PeerId;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::{OperatorPresence, inbox_path, name_of, peer, present, reaches_nobody, send};
use crate::cli::message::{expected, text_or_input};
use crate::cli::naming::peer_found;
use crate::cli::{Context, ExitResult, output};

/// The exit code of a command that SIGINT ended.
const INTERRUPTED: u8 = 130;

#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    /// The receiver: a name, key or id of `svc agent list`
    name: String,
    /// The question; `-` reads it from standard input
    text: String,
    /// Seconds to wait; 0 does not wait (exit code 1) [default: until there is an answer]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
}

enum AskEnd {
    Answer(Value),
    /// The question did not reach its receiver, in this state.
    Lost(String),
}

pub(crate) async fn ask(context: &Context, args: AskArgs) -> ExitResult {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let client = context.client()?;
    let text = text_or_input(args.text)?;
    let receiver = client.get(&format!("/v1/peers/{}", encode(&args.name))).await;
    let receiver: Value = peer_found(&client, &args.name, receiver).await?;
    let to = output::cell(&receiver, "peer_id");
    present(&client).await?;
    // The receiver's inbox tells what becomes of the question, and the operator's has the answer.
    // Both are followed before the question is sent, so that no answer is missed.
    let query = [("stream_prefix", Some("peer/")), ("after", Some("latest"))];
    let mut inboxes = Follower::new(context.discovery()?, with_query("/v1/events", &query));
    inboxes.open().await?;
    let question = send(context, &to, json!({ "text": text, "type": "query" })).await??;
    let id = output::cell(&question, "id");
    let name = output::visible(&name_of(&receiver));
    if reaches_nobody(&question) {
        if context.json {
            output::json(&question)?;
            return Ok(ExitCode::FAILURE);
        }
        bail!("{name} gets no question: its agent has ended");
    }
    let _presence = OperatorPresence::keep(context);
    let wait = AnswerWait { context, question: &question, name: &name };
    let asked = format!("asked {name}, {}", expected(&question, &receiver));
    wait.note(&format!("{asked}; waiting for the answer to {id}, which Ctrl-C leaves open"));
    let end = wait.end(&mut inboxes);
    let end = async {
        let Some(seconds) = args.timeout else { return end.await.map(Some) };
        timeout(Duration::from_secs(seconds), end).await.ok().transpose()
    };
    let end = tokio::select! {
        end = end => end?,
        _ = interrupt.recv() => {
            output::note(&format!("svc: the question {id} stays open; the answer will be in `svc inbox`"));
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    match end {
        Some(AskEnd::Answer(answer)) => wait.print(&answer).await,
        Some(AskEnd::Lost(state)) => bail!("{name} did not get the question {id}: it is {state}"),
        None => {
            let seconds = args.timeout.unwrap_or_default();
            let present = peer(&client, &to).await;
            let status = output::cell(&present, "status");
            bail!(
                "no answer within {seconds} s; {name} is {status}. The question {id} stays open, and the \
                 answer will be in `svc inbox`"
            )
        }
    }
}

struct AnswerWait<'a> {
    context: &'a Context,
    question: &'a Value,
    name: &'a str,
}

impl AnswerWait<'_> {
    async fn end(&self, inboxes: &mut Follower) -> Result<AskEnd> {
        let own_inbox = format!("peer/{}", PeerId::OPERATOR);
        loop {
            let end = match inboxes.next().await? {
                Some(FollowItem::Event { data, .. }) => {
                    let event: Value = serde_json::from_str(&data)?;
                    let message = &event["data"];
                    if message["id"] == self.question["id"] {
                        self.lost(message)
                    } else if event["kind"] == "message.queued" && event["stream"] == own_inbox {
                        let message = self.message(message).await?;
                        self.is_answer(&message).then_some(AskEnd::Answer(message))
                    } else {
                        None
                    }
                }
                // Events of the outage may be missing.
                Some(FollowItem::Resumed | FollowItem::Gap(_)) => {
                    match self.waiting_answer().await? {
                        Some(answer) => Some(AskEnd::Answer(answer)),
                        None => self.lost(&self.message(self.question).await?),
                    }
                }
                Some(FollowItem::Disconnected { .. }) => {
                    self.note("lost the daemon; the wait continues when it answers");
                    None
                }
                None => bail!("the stream of the inboxes has ended"),
            };
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    async fn message(&self, known: &Value) -> Result<Value> {
        self.read(&format!("/v1/messages/{}", encode(&output::cell(known, "id")))).await
    }

    /// The answer, if it waits in the operator's inbox.
    async fn waiting_answer(&self) -> Result<Option<Value>> {
        let mut cursor: Option<String> = None;
        loop {
            let query =
                [("peek", Some("true")), ("limit", Some("500")), ("cursor", cursor.as_deref())];
            let page = self.read(&with_query(&inbox_path("/messages"), &query)).await?;
            let messages = output::items(&page, "messages");
            if let Some(answer) = messages.iter().find(|message| self.is_answer(message)) {
                return Ok(Some(answer.clone()));
            }
            cursor = page["next_cursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return Ok(None);
            }
        }
    }

    /// Whether a message answers the question: it comes from whom was asked, and says so or says
    /// not what it answers. Others can name the question, too, and answer nothing by that.
    fn is_answer(&self, message: &Value) -> bool {
        if message["from_peer"] != self.question["to_peer"] {
            return false;
        }
        match message["correlation_id"].as_str() {
            Some(answered) => self.question["id"] == answered,
            None => message["type"] == "response",
        }
    }

    /// The end of the question itself, if it was not delivered.
    fn lost(&self, question: &Value) -> Option<AskEnd> {
        let state = output::cell(question, "state");
        match state.as_str() {
            "undeliverable" | "refused" | "expired" => return Some(AskEnd::Lost(state)),
            // `offered` is too early: the hook may time out, and then the model does not have the
            // question.
            "injected" => self.note(&format!("{} has the question", self.name)),
            _ => {}
        }
        None
    }

    /// Reads from a daemon that may be about to restart.
    async fn read(&self, path: &str) -> Result<Value> {
        let mut failures = 0;
        loop {
            let error = match self.context.client()?.get(path).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if !error.is_transient() {
                return Err(error.into());
            }
            sleep(backoff(failures, error.retry_after())).await;
            failures += 1;
        }
    }

    /// Prints the answer and acknowledges it.
    async fn print(&self, answer: &Value) -> ExitResult {
        let is_failure = self.is_failure(answer);
        if self.context.json {
            output::json(answer)?;
        } else if is_failure {
            self.note(&output::visible(&output::cell(answer, "text")));
        } else {
            output::block(&format!("{}\n", output::cell(answer, "text")))?;
        }
        if answer["type"] == "query" {
            let from =
                name_of(&peer(&self.context.client()?, &output::cell(answer, "from_peer")).await);
            output::note(&format!("svc: {from} asks in return; answer with `svc reply latest …`"));
            return Ok(ExitCode::SUCCESS);
        }
        let acked: Result<Value, ClientError> = self
            .context
            .client()?
            .post(&inbox_path("/messages/ack"), &json!({ "ids": [answer["id"]] }))
            .await;
        if let Err(error) = acked {
            output::note(&format!("svc: the answer stays in `svc inbox`: {error}"));
        }
        Ok(if is_failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Whether a message is the daemon's word that the question came to nothing: its turn failed,
    /// or ended without text.
    fn is_failure(&self, message: &Value) -> bool {
        let beginning = format!("No answer to {}:", output::cell(self.question, "id"));
        message["type"] == "notification"
            && message["text"].as_str().is_some_and(|text| text.starts_with(&beginning))
    }

    /// Reports progress on standard error: standard output has the answer alone.
    fn note(&self, text: &str) {
        if !self.context.json {
            output::note(&format!("svc: {text}"));
        }
    }
}
