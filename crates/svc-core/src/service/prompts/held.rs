//! Who waits for the answer to a prompt: a hook, or a connection to its client.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;
use svc_model::AgentRequestId;
use tokio::sync::watch;

/// What a hook that holds a prompt is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum HeldPromptState {
    /// Wait: nobody has answered.
    Open,
    /// Print what the client takes for this answer `{option_id?, text?, answers?}`, and say that it
    /// is printed.
    Answered(Value),
    /// The answer is printed.
    Printed,
    /// Print nothing: the prompt is over.
    Over,
}

/// The hook of each prompt that one holds.
#[derive(Debug, Default)]
pub(super) struct HeldPrompts(Mutex<HeldPromptTable>);

type HeldPromptTable = HashMap<AgentRequestId, watch::Sender<HeldPromptState>>;

/// A hook's hold of a prompt, until it is dropped.
#[derive(Debug)]
pub(super) struct PromptHold {
    held: Arc<HeldPrompts>,
    pub(super) request: AgentRequestId,
    pub(super) state: watch::Receiver<HeldPromptState>,
}

impl Drop for PromptHold {
    fn drop(&mut self) {
        self.held.lock().remove(&self.request);
    }
}

impl HeldPrompts {
    fn lock(&self) -> MutexGuard<'_, HeldPromptTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if another hook holds the prompt.
    pub(super) fn hold(self: &Arc<Self>, request: &AgentRequestId) -> Option<PromptHold> {
        let mut table = self.lock();
        if table.contains_key(request) {
            return None;
        }
        let (sender, state) = watch::channel(HeldPromptState::Open);
        table.insert(request.clone(), sender);
        Some(PromptHold { held: Arc::clone(self), request: request.clone(), state })
    }

    pub(super) fn is_held(&self, request: &AgentRequestId) -> bool {
        self.lock().contains_key(request)
    }

    /// Gives an answer to the hook of a prompt, and shows what becomes of it; `None` if no hook
    /// holds the prompt, or if it has an answer.
    pub(super) fn answer(
        &self,
        request: &AgentRequestId,
        answer: Value,
    ) -> Option<watch::Receiver<HeldPromptState>> {
        let table = self.lock();
        let sender = table.get(request)?;
        let is_first = sender.send_if_modified(|state| {
            let is_open = *state == HeldPromptState::Open;
            if is_open {
                *state = HeldPromptState::Answered(answer);
            }
            is_open
        });
        is_first.then(|| sender.subscribe())
    }

    /// Notes that the hook has printed its answer; `false` if it was given none.
    pub(super) fn printed(&self, request: &AgentRequestId) -> bool {
        let table = self.lock();
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
        drop(hold);
        assert!(held.answer(&id, json!(3)).is_none());
    }
}
