//! What a hosted agent is saying: it is told to who listens as it comes, and to its task as lines
//! come to their ends.

use std::{sync::Arc, time::Duration};

use svc_client::hosts::RawAgentEvent;
use svc_model::{
    AgentId, StreamName, StreamVisibility,
    agent::{AgentDelta, AgentEventBody, HistoryRole},
};
use svc_store::{PrecedingEvent, Store, StoreError};
use tokio::time::{Instant, sleep_until};

use super::{Agents, intake::give_unfinished, records::stream_of};
use crate::service::Error;

/// How long words wait for the end of their line before they are a frame without it.
const LINE_PATIENCE: Duration = Duration::from_secs(1);

/// The unfinished entry of an agent that is followed. Nobody hears of it any more once this is
/// gone.
#[derive(Debug)]
pub(super) struct AgentDeltas {
    store: Store,
    stream: StreamName,
    visibility: Arc<StreamVisibility>,
    after: PrecedingEvent,
    of: Option<String>,
    text: String,
    /// When what is no whole line yet becomes a frame.
    due: Option<Instant>,
}

impl AgentDeltas {
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
            self.store.bus().sayings().finish(&self.stream);
        }
    }
}

impl Drop for AgentDeltas {
    fn drop(&mut self) {
        self.store.bus().sayings().finish(&self.stream);
    }
}

impl Agents {
    /// Nothing was said yet.
    pub(super) async fn words_of(&self, id: &AgentId) -> Result<AgentDeltas, Error> {
        let stream = stream_of(id);
        let view = self.core.store.streams().view(&stream).await?.ok_or(StoreError::NoStream)?;
        Ok(AgentDeltas {
            store: self.core.store.clone(),
            stream,
            visibility: Arc::new(view.visibility),
            after: PrecedingEvent { seq: 0, position: 0 },
            of: None,
            text: String::new(),
            due: None,
        })
    }

    /// Takes words that follow the events up to `head`.
    pub(super) async fn hear(
        &self,
        id: &AgentId,
        words: &mut AgentDeltas,
        delta: &AgentDelta,
        head: i64,
    ) -> Result<(), Error> {
        if words.of.as_ref() != Some(&delta.of) {
            let (_, position) = self.core.store.events().bounds().await?;
            words.after = PrecedingEvent { seq: head, position };
            words.of = Some(delta.of.clone());
            words.text.clear();
            words.due = None;
        }
        words.text.push_str(&delta.text);
        let said = self.core.store.bus().sayings();
        said.say(&words.stream, &words.visibility, words.after, delta, self.core.now());
        if !self.live.dispatching().contains(id) {
            return Ok(());
        }
        words.due.get_or_insert_with(|| Instant::now() + LINE_PATIENCE);
        if delta.text.contains('\n') {
            self.append_delta(id, words, false).await?;
        }
        Ok(())
    }

    /// Makes frames of whole lines, and of the rest if it `is_due`.
    pub(super) async fn append_delta(
        &self,
        id: &AgentId,
        words: &mut AgentDeltas,
        is_due: bool,
    ) -> Result<(), Error> {
        let (key, said) = (id.clone(), words.text.clone());
        let is_whole = said.ends_with('\n');
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move { give_unfinished(tx, &key, &said, is_due).await })
            })
            .await?;
        if is_due || is_whole {
            words.due = None;
        }
        Ok(())
    }
}
