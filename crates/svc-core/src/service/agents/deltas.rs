//! The entry that a hosted agent is producing. Listeners get its text as it arrives; the agent's
//! task gets a frame for each line that has ended.

use std::{sync::Arc, time::Duration};

use svc_client::hosts::RawAgentEvent;
use svc_model::{
    AgentId, StreamName, StreamVisibility,
    agent::{AgentDelta, AgentEventBody, HistoryRole},
};
use svc_store::{PrecedingEvent, StoreError};
use tokio::time::{Instant, sleep_until};

use super::{Agents, intake::give_unfinished, records::stream_of, state::LiveAgents};
use crate::service::{Error, core::Core};

/// How long an unfinished line waits before it becomes a partial frame.
const LINE_PATIENCE: Duration = Duration::from_secs(1);

/// The unfinished entry of a followed agent. Dropping it ends the entry for listeners.
#[derive(Debug)]
pub(super) struct AgentDeltas {
    core: Core,
    live: Arc<LiveAgents>,
    agent: AgentId,
    stream: StreamName,
    visibility: Arc<StreamVisibility>,
    after: PrecedingEvent,
    of: Option<String>,
    text: String,
    /// When the unfinished line becomes a partial frame.
    due: Option<Instant>,
}

impl AgentDeltas {
    pub(super) async fn new(agents: &Agents, agent: &AgentId) -> Result<Self, Error> {
        let stream = stream_of(agent);
        let core = agents.core.clone();
        let view = core.store.streams().view(&stream).await?.ok_or(StoreError::NoStream)?;
        Ok(Self {
            core,
            live: Arc::clone(&agents.live),
            agent: agent.clone(),
            stream,
            visibility: Arc::new(view.visibility),
            after: PrecedingEvent { seq: 0, position: 0 },
            of: None,
            text: String::new(),
            due: None,
        })
    }

    /// Adds text that follows the events up to `head`.
    pub(super) async fn hear(&mut self, delta: &AgentDelta, head: i64) -> Result<(), Error> {
        if self.of.as_ref() != Some(&delta.of) {
            let (_, position) = self.core.store.events().bounds().await?;
            self.after = PrecedingEvent { seq: head, position };
            self.of = Some(delta.of.clone());
            self.text.clear();
            self.due = None;
        }
        self.text.push_str(&delta.text);
        let said = self.core.store.bus().sayings();
        said.say(&self.stream, &self.visibility, self.after, delta, self.core.now());
        if !self.live.dispatching().contains(&self.agent) {
            return Ok(());
        }
        self.due.get_or_insert_with(|| Instant::now() + LINE_PATIENCE);
        if delta.text.contains('\n') {
            self.make_frames(false).await?;
        }
        Ok(())
    }

    /// Makes frames of complete lines; with `is_due` also of the unfinished last line.
    pub(super) async fn make_frames(&mut self, is_due: bool) -> Result<(), Error> {
        let (agent, said) = (self.agent.clone(), self.text.clone());
        let is_whole = said.ends_with('\n');
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move { give_unfinished(tx, &agent, &said, is_due).await })
            })
            .await?;
        if is_due || is_whole {
            self.due = None;
        }
        Ok(())
    }

    /// Waits until the unfinished line is due; for ever if there is none.
    pub(super) async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Called before `events` are stored. Ends the unfinished entry if they contain the finished
    /// one or the end of its turn.
    pub(super) fn before(&mut self, events: &[RawAgentEvent]) {
        let ends = |event: &RawAgentEvent| match event.body() {
            AgentEventBody::ChatEntry { chat_entry: entry } => {
                entry.role == HistoryRole::Assistant && entry.content.is_some()
            }
            AgentEventBody::State { turn, .. } => turn.is_some(),
            AgentEventBody::Exit { .. } => true,
            _ => false,
        };
        if self.of.is_some() && events.iter().any(ends) {
            (self.of, self.due) = (None, None);
            self.text.clear();
            self.core.store.bus().sayings().finish(&self.stream);
        }
    }
}

impl Drop for AgentDeltas {
    fn drop(&mut self) {
        self.core.store.bus().sayings().finish(&self.stream);
    }
}
