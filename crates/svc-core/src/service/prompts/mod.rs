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

use serde_json::Value;
use svc_model::{AccessLevel, AgentRequestId, Caller, hook::AttendedPrompts};
use svc_store::RequestRow;
use tokio::sync::watch;

use super::{
    Error, ResourceKind, Result,
    core::{Core, lock},
};
use crate::boxed;

pub use answer::{AnswerRequest, PromptOutcome};
pub(super) use answer::{ConnectedPrompt, GivenAnswer};
pub(super) use settle::{NewPrompt, PromptEnd, follow_event, open};

/// What a hook that holds a prompt must do.
#[derive(Debug, Clone, PartialEq)]
pub enum HeldPromptState {
    /// Wait: there is no answer yet.
    Open,
    /// Print the client's form of this answer `{option_id?, text?, answers?}`, and report that.
    Answered(Value),
    Printed,
    /// Print nothing: the prompt is over.
    Over,
}

/// The prompts that a hook or a connection holds.
#[derive(Debug, Default)]
struct HeldPrompts(Mutex<HeldPromptTable>);

type HeldPromptTable = HashMap<AgentRequestId, watch::Sender<HeldPromptState>>;

/// A hook's or a connection's hold of a prompt, until it is dropped.
#[derive(Debug)]
struct PromptHold {
    held: Arc<HeldPrompts>,
    request: AgentRequestId,
    state: watch::Receiver<HeldPromptState>,
}

impl PromptHold {
    /// Lets go of the prompt. Returns whether the holder was given an answer and did not pass it
    /// on.
    fn release(self) -> bool {
        let state = self.state.clone();
        // Before the state is read: without a holder, no further answer can come.
        drop(self);
        matches!(*state.borrow(), HeldPromptState::Answered(_))
    }
}

impl Drop for PromptHold {
    fn drop(&mut self) {
        lock(&self.held.0).remove(&self.request);
    }
}

impl HeldPrompts {
    /// Takes the hold of a prompt; `None` if another hook or connection holds it.
    fn hold(self: &Arc<Self>, request: &AgentRequestId) -> Option<PromptHold> {
        let mut table = lock(&self.0);
        if table.contains_key(request) {
            return None;
        }
        let (sender, state) = watch::channel(HeldPromptState::Open);
        table.insert(request.clone(), sender);
        Some(PromptHold { held: Arc::clone(self), request: request.clone(), state })
    }

    fn is_held(&self, request: &AgentRequestId) -> bool {
        lock(&self.0).contains_key(request)
    }

    /// Gives an answer to the holder of a prompt. The receiver shows what the holder does with it.
    /// `None` if the prompt has no holder, or has an answer already.
    fn answer(
        &self,
        request: &AgentRequestId,
        answer: Value,
    ) -> Option<watch::Receiver<HeldPromptState>> {
        let table = lock(&self.0);
        let sender = table.get(request)?;
        let is_open = *sender.borrow() == HeldPromptState::Open;
        is_open.then(|| {
            sender.send_replace(HeldPromptState::Answered(answer));
            sender.subscribe()
        })
    }

    /// Notes that the hook has printed its answer. Returns false if the hook was given no answer.
    fn printed(&self, request: &AgentRequestId) -> bool {
        let table = lock(&self.0);
        let is_answered = |state: &HeldPromptState| matches!(state, HeldPromptState::Answered(_));
        let Some(sender) = table.get(request).filter(|it| is_answered(&it.borrow())) else {
            return false;
        };
        sender.send_replace(HeldPromptState::Printed);
        true
    }
}

/// How often the daemon tells a hook that its prompt is still open.
pub const OPEN_PROMPT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Prompts {
    core: Core,
    held: Arc<HeldPrompts>,
    attended: AttendedPrompts,
}

/// A prompt that a hook holds. Once this is dropped, nobody can answer the prompt here.
#[derive(Debug)]
pub struct HeldPrompt {
    prompts: Prompts,
    /// `None` while it is dropped.
    hold: Option<PromptHold>,
}

impl HeldPrompt {
    /// What the hook must do: returns as soon as that changes, but at the latest after
    /// [`OPEN_PROMPT_INTERVAL`].
    #[boxed]
    pub async fn next(&mut self) -> HeldPromptState {
        let Some(hold) = &mut self.hold else { return HeldPromptState::Over };
        let changed = tokio::time::timeout(OPEN_PROMPT_INTERVAL, hold.state.changed()).await;
        let state = hold.state.borrow_and_update().clone();
        if changed.is_ok() || state != HeldPromptState::Open {
            return state;
        }
        match self.prompts.core.store.requests().get(&hold.request).await {
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
        let Some(hold) = self.hold.take() else { return };
        let (prompts, request) = (self.prompts.clone(), hold.request.clone());
        let is_unprinted = hold.release();
        tokio::spawn(async move {
            if let Err(error) = prompts.withdraw(&request, is_unprinted).await {
                tracing::warn!(%error, request = request.as_str(), "cannot remove the options of a prompt");
            }
        });
    }
}

impl Prompts {
    pub(super) fn new(core: Core, attended: AttendedPrompts) -> Self {
        Self { core, held: Arc::default(), attended }
    }

    /// Notes that the hook of a prompt has printed its answer.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the caller has no such prompt; [`Error::Conflict`] if its hook was
    /// given no answer.
    #[boxed]
    pub async fn printed(&self, caller: &Caller, id: &str) -> Result<()> {
        let row = self.own(caller, id).await?;
        if self.held.printed(&row.request_id) {
            return Ok(());
        }
        Err(Error::Conflict(format!("the hook of request {id} was given no answer")))
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
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_answer_goes_to_the_hook_that_holds_the_prompt() {
        let held = Arc::new(HeldPrompts::default());
        let id = AgentRequestId::from("req_1".to_owned());
        assert!(held.answer(&id, json!(1)).is_none(), "no hook holds it");
        let hold = held.hold(&id).unwrap();
        assert!(held.hold(&id).is_none(), "one hook holds it");
        assert!(!held.printed(&id), "it was given nothing");
        let seen = held.answer(&id, json!(1)).unwrap();
        assert!(held.answer(&id, json!(2)).is_none(), "the first answer counts");
        assert_eq!(*hold.state.borrow(), HeldPromptState::Answered(json!(1)));
        assert!(held.printed(&id));
        assert_eq!(*seen.borrow(), HeldPromptState::Printed);
        assert!(!hold.release());
        assert!(held.answer(&id, json!(3)).is_none());
        let hold = held.hold(&id).unwrap();
        held.answer(&id, json!(4)).unwrap();
        assert!(hold.release(), "it was printed by nobody");
    }
}
