//! Answers to prompts. The client decides: an answer counts when the client shows that it has taken
//! it.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use svc_model::{
    Caller, NOT_BLANK,
    agent::{RequestOption, RequestOptionKind},
    hook::{ClientPrompt, PromptAnswer, RefusedAnswer},
    limits,
};
use svc_store::{RequestAnswerRow, RequestRow};
use tokio::time::{Instant, sleep, timeout_at};

use super::{HeldPromptState, Prompts, settle};
use crate::service::{Error, check};

/// How long an answer waits for the client to show that it has taken it.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);
/// How often the row is read meanwhile.
const LOOK: Duration = Duration::from_millis(50);

/// An answer to a request.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct AnswerRequest {
    /// The chosen option.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = NOT_BLANK))]
    pub option_id: Option<String>,
    /// The answer to a question, as text.
    #[schemars(regex(pattern = NOT_BLANK))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Answers by question, each a text or a list of texts: of a request with several questions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<Map<String, Value>>,
    /// That an option which holds from now on is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirm: Option<bool>,
}

/// What became of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptOutcome {
    /// The client has taken it.
    Taken(RequestRow),
    /// The client was given it, and has not shown yet what it took.
    Sent(RequestRow),
}

impl Prompts {
    /// Gives an answer to the client that shows a prompt.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the prompt is over or cannot be answered here; [`Error::Unconfirmed`]
    /// if the option holds from now on; [`Error::Invalid`] if it takes no such answer.
    pub(in crate::service) async fn answer(
        &self,
        caller: &Caller,
        row: RequestRow,
        answer: AnswerRequest,
    ) -> Result<PromptOutcome, Error> {
        if row.options.is_empty() {
            let why = "nobody can answer it here: its dialog is at the session's terminal";
            return Err(Error::Conflict(format!("request {}: {why}", row.request_id)));
        }
        check::long("text", answer.text.as_deref().unwrap_or_default(), limits::REPLY_BYTES)?;
        let chosen = chosen(&row, answer.option_id.as_deref())?;
        if let Some(option) = chosen
            && option.kind == RequestOptionKind::AllowAlways
            && answer.confirm != Some(true)
        {
            return Err(Error::Unconfirmed { rule: option.name.clone() });
        }
        let is_denial = chosen.is_some_and(|option| option.kind == RequestOptionKind::Deny);
        let unreadable = || Error::Conflict("the prompt cannot be read any more".to_owned());
        let prompt = settle::asked(&row).ok_or_else(unreadable)?;
        // The hook makes the output itself, from what its client told it.
        prompt
            .output(PromptAnswer {
                option_id: answer.option_id.as_deref(),
                text: answer.text.as_deref(),
                answers: answer.answers.as_ref(),
            })
            .map_err(|refused| invalid(&row, refused))?;
        let told = serde_json::to_value(&answer).unwrap_or_default();
        let text = answer.text.or_else(|| answer.answers.as_ref().map(words_of));
        let by = caller.principal().to_string();
        let given = RequestAnswerRow { option_id: answer.option_id, text, by };
        self.note_given(&row, given.clone()).await?;
        let Some(mut state) = self.held.answer(&row.request_id, told) else {
            self.withdraw(&row.request_id, true).await?;
            return Err(not_taken(&row));
        };
        let end = Instant::now() + TAKEN_WITHIN;
        let printed = state.wait_for(|state| *state == HeldPromptState::Printed);
        if timeout_at(end, printed).await.is_ok_and(|printed| printed.is_ok())
            && matches!(prompt, ClientPrompt::Claude(_))
            && !is_denial
        {
            // Claude Code takes what its hook prints; opencode tells what it took.
            self.close(&row, settle::TERMINAL).await?;
        }
        self.outcome(&row, &given, end).await
    }

    /// Notes an answer before the client is given it, so that it is known after a restart.
    async fn note_given(&self, row: &RequestRow, given: RequestAnswerRow) -> Result<(), Error> {
        let id = row.request_id.clone();
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    if tx.requests().set_answering(&id, &given).await? {
                        return Ok(());
                    }
                    let why = format!("request {id} is over, or has an answer already");
                    Err(Error::Conflict(why))
                })
            })
            .await
    }

    /// Waits until the prompt is over.
    async fn outcome(
        &self,
        row: &RequestRow,
        given: &RequestAnswerRow,
        end: Instant,
    ) -> Result<PromptOutcome, Error> {
        loop {
            let now = self
                .core
                .store
                .requests()
                .get(&row.request_id)
                .await?
                .unwrap_or_else(|| row.clone());
            match &now.answer {
                Some(answer) if answer == given => return Ok(PromptOutcome::Taken(now)),
                Some(answer) => {
                    let by = &answer.by;
                    let why = format!("request {} was answered by {by}", row.request_id);
                    return Err(Error::Conflict(why));
                }
                None if now.answering.is_none() => return Err(not_taken(row)),
                None if Instant::now() >= end => return Ok(PromptOutcome::Sent(now)),
                None => sleep(LOOK).await,
            }
        }
    }
}

/// Answers to several questions as one text, a line for each.
fn words_of(answers: &Map<String, Value>) -> String {
    let line = |(question, answer): (&String, &Value)| {
        let answer = match answer {
            Value::String(text) => text.clone(),
            Value::Array(texts) => {
                let texts: Vec<&str> = texts.iter().filter_map(Value::as_str).collect();
                texts.join(", ")
            }
            other => other.to_string(),
        };
        format!("{question}: {answer}")
    };
    let lines: Vec<String> = answers.iter().map(line).collect();
    lines.join("\n")
}

fn not_taken(row: &RequestRow) -> Error {
    let why = "its client is not waiting for an answer any more, and did not take this one";
    Error::Conflict(format!("request {}: {why}", row.request_id))
}

/// The option that is chosen, if one is.
fn chosen<'a>(row: &'a RequestRow, id: Option<&str>) -> Result<Option<&'a RequestOption>, Error> {
    let Some(id) = id else { return Ok(None) };
    let option = row.options.iter().find(|option| option.option_id == id);
    option.map(Some).ok_or_else(|| invalid(row, RefusedAnswer::Option))
}

fn invalid(row: &RequestRow, refused: RefusedAnswer) -> Error {
    let known: Vec<_> = row.options.iter().map(|option| option.option_id.as_str()).collect();
    match refused {
        RefusedAnswer::Option => {
            Error::invalid("option_id", format!("must be one of {}", known.join(", ")))
        }
        RefusedAnswer::Text => Error::invalid("text", "is not taken with this option"),
        RefusedAnswer::Answers => {
            Error::invalid("answers", "must have an answer to each question, and nothing else")
        }
    }
}
