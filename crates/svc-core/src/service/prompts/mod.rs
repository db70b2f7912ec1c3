//! Prompts that a client shows to the person who started it. The client's hook, or a connection to
//! the client, holds the prompt, and the first answer counts: the person's at the dialog, or one
//! that is given here and that the holder passes on.
//!
//! A prompt is a row of `request`, from the client's report of it until the client shows that it is
//! over. The row has options only while a hook or a connection holds the prompt. A dialog that only
//! the client's record shows, and no hook reports, is a row without options. This file tracks who
//! holds a prompt; `answer` passes answers on, `settle` opens and closes prompts.

mod answer;
mod settle;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use svc_model::{AccessLevel, AgentRequestId, Caller, hook::AnswerRequest};
use svc_store::RequestRow;
use tokio::{runtime::Handle, sync::watch};

use super::{
    Error, ResourceKind, Result,
    core::{Core, lock},
};
use crate::boxed;

pub(super) use answer::{ConnectedPrompt, GivenAnswer};
pub(super) use settle::{NewPrompt, PromptEnd, follow_event, open};

/// What a hook that holds a prompt must do.
#[derive(Debug, Clone, PartialEq)]
pub enum HeldPromptState {
    /// Wait: there is no answer yet.
    Open,
    /// Print the client's form of this answer, and report that.
    Answered(AnswerRequest),
    Printed,
    /// Print nothing: the prompt is over.
    Over,
}

/// How often the daemon tells a hook that its prompt is still open.
pub const OPEN_PROMPT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Prompts {
    core: Core,
    /// The prompts that a hook or a connection holds.
    held: Arc<Mutex<HashMap<AgentRequestId, watch::Sender<HeldPromptState>>>>,
}

/// A prompt that a hook or a connection holds. Once this is dropped, nobody can answer the prompt
/// here until it is held again.
#[derive(Debug)]
pub struct HeldPrompt {
    prompts: Prompts,
    request: AgentRequestId,
    state: watch::Receiver<HeldPromptState>,
}

impl HeldPrompt {
    /// What the hook must do: returns as soon as that changes, but at the latest after
    /// [`OPEN_PROMPT_INTERVAL`].
    #[boxed]
    pub async fn next(&mut self) -> HeldPromptState {
        let changed = tokio::time::timeout(OPEN_PROMPT_INTERVAL, self.state.changed()).await;
        let state = self.state.borrow_and_update().clone();
        if changed.is_ok() || state != HeldPromptState::Open {
            return state;
        }
        match self.prompts.core.store.requests().get(&self.request).await {
            Ok(Some(row)) if row.closed_at.is_none() => HeldPromptState::Open,
            Ok(_) => HeldPromptState::Over,
            // The hook ends, and the dialog at the terminal stays.
            Err(error) => {
                tracing::warn!(%error, "cannot read a prompt");
                HeldPromptState::Over
            }
        }
    }
}

impl Drop for HeldPrompt {
    fn drop(&mut self) {
        lock(&self.prompts.held).remove(&self.request);
        // Read after that: without a holder, no further answer can come.
        let is_unprinted = matches!(*self.state.borrow(), HeldPromptState::Answered(_));
        let Ok(runtime) = Handle::try_current() else { return };
        let (prompts, request) = (self.prompts.clone(), self.request.clone());
        runtime.spawn(async move {
            if let Err(error) = prompts.withdraw(&request, is_unprinted).await {
                tracing::warn!(%error, request = request.as_str(), "cannot remove the options of a prompt");
            }
        });
    }
}

impl Prompts {
    pub(super) fn new(core: Core) -> Self {
        Self { core, held: Arc::default() }
    }

    /// Notes that the hook of a prompt has printed its answer.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the caller has no such prompt; [`Error::Conflict`] if its hook was
    /// given no answer.
    #[boxed]
    pub async fn printed(&self, caller: &Caller, id: &str) -> Result<()> {
        let row = self.own(caller, id).await?;
        if self.note_printed(&row.request_id) {
            return Ok(());
        }
        Err(Error::Conflict(format!("the hook of request {id} was given no answer")))
    }

    /// Takes the hold of a prompt; `None` if another hook or connection holds it.
    fn take_hold(&self, request: &AgentRequestId) -> Option<HeldPrompt> {
        let mut table = lock(&self.held);
        if table.contains_key(request) {
            return None;
        }
        let (sender, state) = watch::channel(HeldPromptState::Open);
        table.insert(request.clone(), sender);
        Some(HeldPrompt { prompts: self.clone(), request: request.clone(), state })
    }

    fn is_held(&self, request: &AgentRequestId) -> bool {
        lock(&self.held).contains_key(request)
    }

    /// Gives an answer to the holder of a prompt. The receiver shows what the holder does with it.
    /// `None` if the prompt has no holder, or has an answer already.
    fn give(
        &self,
        request: &AgentRequestId,
        answer: AnswerRequest,
    ) -> Option<watch::Receiver<HeldPromptState>> {
        let table = lock(&self.held);
        let sender = table.get(request)?;
        let is_open = *sender.borrow() == HeldPromptState::Open;
        is_open.then(|| {
            sender.send_replace(HeldPromptState::Answered(answer));
            sender.subscribe()
        })
    }

    /// Notes that the holder has passed its answer on. Returns false if it was given no answer.
    fn note_printed(&self, request: &AgentRequestId) -> bool {
        let table = lock(&self.held);
        table.get(request).is_some_and(|sender| {
            sender.send_if_modified(|state| {
                let is_answered = matches!(state, HeldPromptState::Answered(_));
                if is_answered {
                    *state = HeldPromptState::Printed;
                }
                is_answered
            })
        })
    }

    async fn own(&self, caller: &Caller, id: &str) -> Result<RequestRow> {
        let unknown = || Error::not_found(ResourceKind::AgentRequest, id);
        let key = AgentRequestId::parse(id).ok_or_else(unknown)?;
        let row = self.core.store.requests().get(&key).await?.ok_or_else(unknown)?;
        let is_own = caller.access_to(&row.owned) == AccessLevel::Write;
        if row.agent_id.is_none() && is_own { Ok(row) } else { Err(unknown()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::testing::opened;

    #[tokio::test]
    async fn the_first_answer_goes_to_the_hook_that_holds_the_prompt() {
        let (_test, services) = opened().await;
        let prompts = &services.prompts;
        let id = AgentRequestId::from("req_1".to_owned());
        let answer = |option: &str| AnswerRequest {
            option_id: Some(option.to_owned()),
            ..AnswerRequest::default()
        };
        assert!(prompts.give(&id, answer("1")).is_none(), "no hook holds it");
        let hold = prompts.take_hold(&id).unwrap();
        assert!(prompts.take_hold(&id).is_none(), "one hook holds it");
        assert!(!prompts.note_printed(&id), "it was given nothing");
        let seen = prompts.give(&id, answer("1")).unwrap();
        assert!(prompts.give(&id, answer("2")).is_none(), "the first answer counts");
        assert_eq!(*hold.state.borrow(), HeldPromptState::Answered(answer("1")));
        assert!(prompts.note_printed(&id));
        assert!(!prompts.note_printed(&id), "it is printed already");
        assert_eq!(*seen.borrow(), HeldPromptState::Printed);
        drop(hold);
        assert!(prompts.give(&id, answer("3")).is_none());
        assert!(prompts.take_hold(&id).is_some());
    }
}
