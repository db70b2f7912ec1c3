//! Prompts that a connection to their client holds.

use serde_json::{Value, json};
use svc_model::{
    AgentRequestId, ProcessIdentity,
    hook::{ClientPrompt, PromptAnswer},
};
use svc_store::WriteTx;

use super::{
    AnswerRequest, HeldPromptState, Prompts,
    held::PromptHold,
    settle::{self, NewPrompt},
};
use crate::service::Error;

/// A prompt that a connection to its client told of.
#[derive(Debug)]
pub(in crate::service) struct ConnectedPrompt {
    pub(in crate::service) id: AgentRequestId,
    asked: ClientPrompt,
    /// `None` if it is shown and not answered here.
    hold: Option<PromptHold>,
}

impl ConnectedPrompt {
    /// What the client takes for the answer that is given here, once one is; pending without.
    pub(in crate::service) fn answer(&self) -> impl Future<Output = Option<GivenAnswer>> + use<> {
        let hold = self.hold.as_ref().map(|hold| hold.state.clone());
        let asked = self.asked.clone();
        async move {
            let Some(mut state) = hold else { return std::future::pending().await };
            let is_given = |state: &HeldPromptState| matches!(state, HeldPromptState::Answered(_));
            let given = state.wait_for(is_given).await.ok()?.clone();
            let HeldPromptState::Answered(told) = given else { return None };
            let told: AnswerRequest = serde_json::from_value(told).ok()?;
            let answer = PromptAnswer {
                option_id: told.option_id.as_deref(),
                text: told.text.as_deref(),
                answers: told.answers.as_ref(),
            };
            let output = asked.output(answer).ok()?;
            Some(GivenAnswer {
                output,
                is_denial: settle::denies(&asked, told.option_id.as_deref()),
            })
        }
    }

    fn is_unsent(&self) -> bool {
        let state = self.hold.as_ref().map(|hold| hold.state.borrow().clone());
        matches!(state, Some(HeldPromptState::Answered(_)))
    }
}

/// An answer that was given here.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::service) struct GivenAnswer {
    /// In the client's form.
    pub(in crate::service) output: Value,
    pub(in crate::service) is_denial: bool,
}

impl Prompts {
    /// Stores a prompt that the process of a session asks, or takes up the row of one that was
    /// asked on an earlier connection. `None` if the session is not of this process. It is held if
    /// `takes_answers`.
    pub(in crate::service) async fn connect(
        &self,
        session: &str,
        process: &ProcessIdentity,
        asked: ClientPrompt,
        cwd: Option<String>,
        takes_answers: bool,
    ) -> Result<Option<ConnectedPrompt>, Error> {
        let open = self.core.store.requests().open_prompts().await?;
        let known = open.into_iter().filter(|row| row.session_key == session).find_map(|row| {
            let known = settle::asked(&row).filter(|known| known.is_same(&asked));
            known.map(|known| (row.request_id, known))
        });
        let is_known = known.is_some();
        // What was told of it first may be more than what is told again.
        let (id, asked) =
            known.unwrap_or_else(|| (AgentRequestId::new(&self.core.ids, self.core.now()), asked));
        // Before anybody sees the options.
        let hold = if takes_answers { self.held.hold(&id) } else { None };
        let is_held = hold.is_some();
        let prompt = ConnectedPrompt { id: id.clone(), asked: asked.clone(), hold };
        let (session, process) = (session.to_owned(), process.clone());
        let is_its = self
            .core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let peer = tx.peers().of_session(&session).await?;
                    let Some(owned) = tx.sessions().owner(&session).await? else {
                        return Ok(false);
                    };
                    if !peer.is_some_and(|peer| peer.is_in(&process)) {
                        return Ok(false);
                    }
                    if is_known {
                        take_up(tx, &id, &asked, is_held).await?;
                        return Ok(true);
                    }
                    let new =
                        NewPrompt { id, session: &session, cwd, prompt: &asked, owned, is_held };
                    settle::open(tx, new).await?;
                    Ok::<_, Error>(true)
                })
            })
            .await?;
        Ok(is_its.then_some(prompt))
    }

    /// Notes that the client was sent its answer.
    pub(in crate::service) fn sent(&self, prompt: &ConnectedPrompt) {
        self.held.printed(&prompt.id);
    }

    /// Lets go of a prompt whose connection is gone: nobody answers it here until there is another.
    pub(in crate::service) async fn disconnect(
        &self,
        prompt: ConnectedPrompt,
    ) -> Result<(), Error> {
        let (id, is_unsent) = (prompt.id.clone(), prompt.is_unsent());
        drop(prompt);
        self.withdraw(&id, is_unsent).await
    }

    /// The open prompts of a session of this process that an earlier connection told of, and not
    /// this one.
    pub(in crate::service) async fn left_of(
        &self,
        session: &str,
        process: &ProcessIdentity,
        connected: &[AgentRequestId],
    ) -> Result<Vec<AgentRequestId>, Error> {
        let peer = self.core.store.peers().of_session(session).await?;
        if !peer.is_some_and(|peer| peer.is_in(process)) {
            return Ok(Vec::new());
        }
        let mut open = self.core.store.requests().open_prompts().await?;
        open.retain(|row| row.session_key == session && !connected.contains(&row.request_id));
        Ok(open.into_iter().map(|row| row.request_id).collect())
    }
}

/// Offers a prompt again that the client asks again: what was answered did not arrive.
pub(super) async fn take_up(
    tx: &mut WriteTx,
    id: &AgentRequestId,
    asked: &ClientPrompt,
    is_held: bool,
) -> Result<(), Error> {
    tx.requests().clear_answering(id).await?;
    let Some(row) = tx.requests().get(id).await?.filter(|row| row.closed_at.is_none()) else {
        return Ok(());
    };
    if is_held && tx.requests().offer_options(id, &asked.options()).await? {
        settle::append_team_event(tx, "request.offered", &row, json!({})).await?;
    }
    Ok(())
}
