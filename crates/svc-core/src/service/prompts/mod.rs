//! Prompts that a client shows the person who started it. Its hook or a connection to the client
//! holds the prompt, and the first answer counts: the person's at the dialog, or one that is given
//! here and that the holder passes on.
//!
//! A prompt is a row of `request` from the client's word of it to the moment at which the client
//! shows that it is over. The row has options only while somebody holds the prompt. A dialog that
//! the client's record shows, and of which no hook tells, is a row without options.

mod answer;
mod connected;
mod dialogs;
mod held;
mod settle;

pub use answer::{AnswerRequest, PromptOutcome};
pub(in crate::service) use connected::{ConnectedPrompt, GivenAnswer};
pub use held::HeldPromptState;
pub(in crate::service) use settle::{NewPrompt, follow_event, open};

use std::{sync::Arc, time::Duration};

use svc_model::{AccessLevel, AgentRequestId, Caller, hook::AttendedPrompts};
use svc_store::RequestRow;

use self::held::{HeldPrompts, PromptHold};
use super::{Error, ResourceKind, core::Core};

/// How often the daemon tells a hook that its prompt is still open.
pub const PROMPT_PULSE: Duration = Duration::from_secs(1);

/// Prompts of attended sessions.
#[derive(Debug, Clone)]
pub struct Prompts {
    core: Core,
    held: Arc<HeldPrompts>,
    attended: AttendedPrompts,
}

/// A prompt that a hook holds. When it is dropped, nobody can answer the prompt here any more.
#[derive(Debug)]
pub struct HeldPrompt {
    prompts: Prompts,
    hold: PromptHold,
}

impl HeldPrompt {
    /// What the hook is to do, as soon as that changes, and at least every [`PROMPT_PULSE`].
    pub async fn next(&mut self) -> HeldPromptState {
        let changed = tokio::time::timeout(PROMPT_PULSE, self.hold.state.changed()).await;
        let state = self.hold.state.borrow_and_update().clone();
        if changed.is_ok() || state != HeldPromptState::Open {
            return state;
        }
        match self.prompts.core.store.requests().get(&self.hold.request).await {
            Ok(Some(row)) if row.closed_at.is_none() => HeldPromptState::Open,
            Ok(_) => HeldPromptState::Over,
            // The dialog stands all the time.
            Err(error) => {
                tracing::warn!(%error, "cannot read a prompt");
                HeldPromptState::Over
            }
        }
    }
}

impl Drop for HeldPrompt {
    fn drop(&mut self) {
        let (prompts, request) = (self.prompts.clone(), self.hold.request.clone());
        let is_unprinted = matches!(*self.hold.state.borrow(), HeldPromptState::Answered(_));
        tokio::spawn(async move {
            if let Err(error) = prompts.withdraw(&request, is_unprinted).await {
                tracing::warn!(%error, request = request.as_str(), "a prompt keeps its options");
            }
        });
    }
}

impl Prompts {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core, held: Arc::default(), attended: AttendedPrompts::default() }
    }

    /// Sets what becomes of the prompts of attended sessions.
    pub(in crate::service) fn set_attended(&mut self, attended: AttendedPrompts) {
        self.attended = attended;
    }

    /// Holds an open prompt of the caller's session, for its hook. After a hold that broke it can be
    /// answered here again.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the caller has no such prompt; [`Error::Conflict`] if it is over, or
    /// another hook holds it.
    pub async fn hold(&self, caller: &Caller, id: &str) -> Result<HeldPrompt, Error> {
        let row = self.own(caller, id).await?;
        if row.closed_at.is_some() {
            return Err(Error::Conflict(format!("request {id} is over")));
        }
        let hold = self.held.hold(&row.request_id);
        let hold =
            hold.ok_or_else(|| Error::Conflict(format!("another hook holds request {id}")))?;
        let held = HeldPrompt { prompts: self.clone(), hold };
        let asked = settle::asked(&row);
        if let (AttendedPrompts::Answer, true, Some(asked)) =
            (self.attended, row.options.is_empty(), asked)
        {
            let id = row.request_id;
            let again = self.core.store.write(move |tx| {
                Box::pin(async move { connected::take_up(tx, &id, &asked, true).await })
            });
            again.await?;
        }
        Ok(held)
    }

    /// Notes that the hook of a prompt has printed its answer.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the caller has no such prompt; [`Error::Conflict`] if its hook was
    /// given no answer.
    pub async fn printed(&self, caller: &Caller, id: &str) -> Result<(), Error> {
        let row = self.own(caller, id).await?;
        if self.held.printed(&row.request_id) {
            return Ok(());
        }
        Err(Error::Conflict(format!("the hook of request {id} was given no answer")))
    }

    /// A prompt of a session that is the caller's.
    async fn own(&self, caller: &Caller, id: &str) -> Result<RequestRow, Error> {
        let unknown = || Error::not_found(ResourceKind::AgentRequest, id);
        let key = AgentRequestId::parse(id).ok_or_else(unknown)?;
        let row = self.core.store.requests().get(&key).await?.ok_or_else(unknown)?;
        let is_own = caller.access_to(&row.owned) == AccessLevel::Write;
        if row.agent_id.is_none() && is_own { Ok(row) } else { Err(unknown()) }
    }
}
