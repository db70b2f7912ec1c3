//! What a hosted agent is saying: it is told to who listens as it comes, and to its task as lines
//! come to their ends.

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

/// How long words wait for the end of their line before they are a frame without it.
const LINE_PATIENCE: Duration = Duration::from_secs(1);

/// The unfinished entry of an agent that is followed. Nobody hears of it any more once this is
/// gone.
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
    /// When what is no whole line yet becomes a frame.
    due: Option<Instant>,
}

impl AgentDeltas {
    /// Nothing was said yet.
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

    /// Takes words that follow the events up to `head`.
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

    /// Makes frames of whole lines, and of the rest if it `is_due`.
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

    /// Waits until words without an end of their line are due; for ever if there are none.
    pub(super) async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Events follow, which may have the entry in them.
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
