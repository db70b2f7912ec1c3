//! Answers to prompts: those that a hook passes on, and those of prompts that a connection to the
//! client holds. The client decides: an answer counts when the client shows that it has taken the
//! answer.

use std::time::Duration;

use serde_json::{Map, Value, json};
use svc_model::{
    AgentRequestId, Caller, ProcessIdentity,
    agent::RequestOptionKind,
    hook::{AnswerRequest, AttendedPrompts, ClientPrompt, RefusedAnswer, one_line},
};
use svc_store::{RequestAnswerRow, RequestRow, WriteTx, job};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    HeldPrompt, HeldPromptState, Prompts,
    settle::{self, NewPrompt, PromptEnd},
};
use crate::boxed;
use crate::service::{Error, Result};

/// How long a call waits for the client to show that it has taken the answer.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);
/// How often the row is read meanwhile.
const LOOK: Duration = Duration::from_millis(50);

impl Prompts {
    /// Holds an open prompt of the caller's session, for its hook. opencode's outlives a hold that
    /// broke, and can be answered here again when it is held again.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the caller has no such prompt; [`Error::Conflict`] if it is over, or
    /// another hook holds it.
    #[boxed]
    pub async fn hold(&self, caller: &Caller, id: &str) -> Result<HeldPrompt> {
        let row = self.own(caller, id).await?;
        if row.closed_at.is_some() {
            return Err(Error::Conflict(format!("request {id} is over")));
        }
        let held = self.take_hold(&row.request_id);
        let held =
            held.ok_or_else(|| Error::Conflict(format!("another hook holds request {id}")))?;
        let asked = settle::asked(&row).filter(|it| matches!(it, ClientPrompt::Opencode(_)));
        if let (AttendedPrompts::Answer, Some(asked)) = (self.core.attended, asked) {
            let id = row.request_id;
            let again = self.core.store.write(job!(|tx| {
                // Read again: a job that found no holder may have removed the options since.
                let now = tx.requests().get(&id).await?;
                if now.is_some_and(|row| row.options.is_empty()) {
                    take_up(tx, &id, &asked, true).await?;
                }
                Ok::<_, Error>(())
            }));
            again.await?;
        }
        Ok(held)
    }

    /// Gives the answer of `by` to the client that shows a prompt. The row is still open if the
    /// client was given the answer and has not shown yet what it took.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the prompt is over or cannot be answered here; [`Error::Unconfirmed`]
    /// if the option holds from now on; [`Error::Invalid`] if it takes no such answer.
    pub(in crate::service) async fn answer(
        &self,
        by: String,
        row: RequestRow,
        answer: AnswerRequest,
    ) -> Result<RequestRow> {
        if row.options.is_empty() {
            let why = "nobody can answer it here: its dialog is at the session's terminal";
            return Err(Error::Conflict(format!("request {}: {why}", row.request_id)));
        }
        let chosen = match answer.option_id.as_deref() {
            None => None,
            Some(id) => {
                let option = row.options.iter().find(|option| option.option_id == id);
                Some(option.ok_or_else(|| invalid(&row, RefusedAnswer::Option))?)
            }
        };
        if let Some(option) = chosen
            && option.kind == RequestOptionKind::AllowAlways
            && answer.confirm != Some(true)
        {
            return Err(Error::Unconfirmed { rule: option.name.clone() });
        }
        let is_denial = chosen.is_some_and(|option| option.kind == RequestOptionKind::Deny);
        let unreadable = || Error::Conflict("the prompt cannot be read any more".to_owned());
        let prompt = settle::asked(&row).ok_or_else(unreadable)?;
        // The hook makes the output itself, from the prompt that its client gave it.
        prompt.output(&answer).map_err(|refused| invalid(&row, refused))?;
        let text = answer.text.clone().or_else(|| answer.answers.as_ref().map(words_of));
        let given = RequestAnswerRow { option_id: answer.option_id.clone(), text, by };
        // Noted before the client is given it, so that it is known after a restart.
        let (id, noted) = (row.request_id.clone(), given.clone());
        let noting = self.core.store.write(job!(|tx| {
            if tx.requests().set_answering(&id, &noted).await? {
                return Ok(());
            }
            Err(Error::Conflict(format!("request {id} is over, or has an answer already")))
        }));
        noting.await?;
        let Some(mut state) = self.give(&row.request_id, answer) else {
            self.withdraw(&row.request_id, true).await?;
            return Err(not_taken(&row));
        };
        let end = Instant::now() + TAKEN_WITHIN;
        let printed = state.wait_for(|state| *state == HeldPromptState::Printed);
        if timeout_at(end, printed).await.is_ok_and(|printed| printed.is_ok())
            && matches!(prompt, ClientPrompt::Claude(_))
            && !is_denial
        {
            // Claude Code takes what its hook prints; opencode reports which answer it took.
            self.end(&row.request_id, PromptEnd::Answered).await?;
        }
        self.outcome(&row, &given, end).await
    }

    async fn outcome(
        &self,
        row: &RequestRow,
        given: &RequestAnswerRow,
        end: Instant,
    ) -> Result<RequestRow> {
        loop {
            let now = self.core.store.requests().get(&row.request_id).await?;
            let now = now.unwrap_or_else(|| row.clone());
            match &now.answer {
                Some(answer) if answer == given => return Ok(now),
                Some(answer) => {
                    let by = &answer.by;
                    let why = format!("request {} was answered by {by}", row.request_id);
                    return Err(Error::Conflict(why));
                }
                None if now.answering.is_none() => return Err(not_taken(row)),
                None if Instant::now() >= end => return Ok(now),
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
        RefusedAnswer::Empty(question) => {
            Error::invalid("answers", format!("has an empty answer to {:?}", one_line(&question)))
        }
    }
}

/// A prompt that a connection to its client reported.
#[derive(Debug)]
pub(in crate::service) struct ConnectedPrompt {
    pub(in crate::service) id: AgentRequestId,
    pub(in crate::service) asked: ClientPrompt,
    /// `None` if it is shown and not answered here.
    hold: Option<HeldPrompt>,
}

impl ConnectedPrompt {
    /// Completes with the answer that is given here, in the client's form; never for a prompt that
    /// is not held.
    pub(in crate::service) fn answer(&self) -> impl Future<Output = Option<GivenAnswer>> + use<> {
        let hold = self.hold.as_ref().map(|hold| hold.state.clone());
        let asked = self.asked.clone();
        async move {
            let Some(mut state) = hold else { return std::future::pending().await };
            let is_given = |state: &HeldPromptState| matches!(state, HeldPromptState::Answered(_));
            let given = state.wait_for(is_given).await.ok()?.clone();
            let HeldPromptState::Answered(told) = given else { return None };
            let output = asked.output(&told).ok()?;
            let is_denial = settle::denies(&asked, told.option_id.as_deref());
            Some(GivenAnswer { output, is_denial })
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) struct GivenAnswer {
    /// What the hook prints, in the form of the session's client.
    pub(in crate::service) output: Value,
    pub(in crate::service) is_denial: bool,
}

impl Prompts {
    /// Stores a prompt that the process of a session asks, or takes up the row of a prompt that was
    /// asked on an earlier connection. `None` if the session is not of this process. The prompt is
    /// held if `takes_answers`.
    pub(in crate::service) async fn connect(
        &self,
        session: &str,
        process: &ProcessIdentity,
        asked: ClientPrompt,
        cwd: Option<String>,
        takes_answers: bool,
    ) -> Result<Option<ConnectedPrompt>> {
        let open = self.core.store.requests().open_prompts().await?;
        let known = open.into_iter().filter(|row| row.session == session).find_map(|row| {
            let known = settle::asked(&row).filter(|known| known.is_same(&asked));
            known.map(|known| (row.request_id, known))
        });
        let is_known = known.is_some();
        // The first report of a prompt may have more details than a repeated one.
        let (id, asked) =
            known.unwrap_or_else(|| (AgentRequestId::new(&self.core.ids, self.core.now()), asked));
        // Takes the hold before anybody can see the options.
        let hold = if takes_answers { self.take_hold(&id) } else { None };
        let is_held = hold.is_some();
        let prompt = ConnectedPrompt { id: id.clone(), asked: asked.clone(), hold };
        let (session, process) = (session.to_owned(), process.clone());
        let job = self.core.store.write(job!(|tx| {
            let peer = tx.peers().of_session(&session).await?;
            let is_its = peer.is_some_and(|peer| peer.is_in(&process));
            let owned = tx.sessions().owner(&session).await?.filter(|_| is_its);
            let Some(owned) = owned else { return Ok(false) };
            if is_known {
                take_up(tx, &id, &asked, is_held).await?;
                return Ok(true);
            }
            let new = NewPrompt { id, session: &session, cwd, prompt: &asked, owned, is_held };
            settle::open(tx, new).await?;
            Ok::<_, Error>(true)
        }));
        let is_its = job.await?;
        Ok(is_its.then_some(prompt))
    }

    pub(in crate::service) fn sent(&self, prompt: &ConnectedPrompt) {
        self.note_printed(&prompt.id);
    }

    /// The open prompts of a session of this process that only an earlier connection reported.
    pub(in crate::service) async fn left_of(
        &self,
        session: &str,
        process: &ProcessIdentity,
        connected: &[AgentRequestId],
    ) -> Result<Vec<AgentRequestId>> {
        let peer = self.core.store.peers().of_session(session).await?;
        if !peer.is_some_and(|peer| peer.is_in(process)) {
            return Ok(Vec::new());
        }
        let mut open = self.core.store.requests().open_prompts().await?;
        open.retain(|row| row.session == session && !connected.contains(&row.request_id));
        Ok(open.into_iter().map(|row| row.request_id).collect())
    }
}

/// Offers a prompt again that the client asks again: an earlier answer did not arrive.
async fn take_up(
    tx: &mut WriteTx,
    id: &AgentRequestId,
    asked: &ClientPrompt,
    is_held: bool,
) -> Result<()> {
    tx.requests().clear_answering(id).await?;
    let Some(row) = tx.requests().get(id).await?.filter(|row| row.closed_at.is_none()) else {
        return Ok(());
    };
    if is_held && tx.requests().offer_options(id, &asked.options()).await? {
        settle::append_team_event(tx, "request.offered", &row, json!({})).await?;
    }
    Ok(())
}
