//! Follows the host of an agent: stores each of its events in the log once, live or afterwards.
//!
//! A follower reads the agent's row and the head of its stream, attaches to the host behind that
//! head, and stores what arrives. If the host cannot be reached, the lock on the spool tells
//! whether the host lives. The remaining events of a dead host are read from the spool file. An
//! agent whose host left no `exit` event is lost.
//!
//! [`AgentDeltas`] has the entry that an agent is producing. Listeners get its text as it arrives;
//! the agent's task gets a frame for each line that has ended.

use std::{sync::Arc, time::Duration};

use svc_client::hosts::{
    DeadSpool, HostError, HostUpdate, RawAgentEvent, SpoolLines, end_tree, remove_files,
};
use svc_model::{
    AgentId, NewEvent, ProcessIdentity, StreamName, StreamVisibility,
    agent::{AgentDelta, AgentEventBody, AgentState, HistoryRole},
};
use svc_store::{PrecedingEvent, StoreError, job};
use svc_sys::backoff::Backoff;
use svc_wire::host_protocol::StopAgent;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    Agents,
    intake::{IntakeResult, finish, give_unfinished, is_plain, logged, take_in, work_of},
    mailing::deliver_mail,
    state::stream_of,
};
use crate::service::{Error, Result, core::lock, process, team};

/// Backoff after a failed attempt to reach a host.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// How long after an agent's start its host may have neither a process on record nor a spool.
const START_GRACE: Duration = Duration::from_secs(20);
/// The number of failed attempts in a row after which the log tells of them, once.
const TOLD_FAILURE: u32 = 4;
/// Events of a spool per write job.
const SPOOL_BATCH: usize = 512;
/// Seconds for an agent to end after its task is over.
const STOP_WITHIN: i64 = 10;

#[derive(Clone)]
pub(super) struct AgentFollower {
    agents: Agents,
    id: AgentId,
}

impl AgentFollower {
    pub(super) fn new(agents: &Agents, id: &AgentId) -> Self {
        Self { agents: agents.clone(), id: id.clone() }
    }

    /// Follows the agent to its end. Meanwhile delivers its messages and probes its host. Returns
    /// the agent's id.
    pub(super) async fn serve(self) -> AgentId {
        let Self { agents, id } = &self;
        tokio::select! {
            () = self.follow() => {}
            () = deliver_mail(agents, id) => {}
            () = agents.watch_host(id) => {}
        }
        self.id
    }

    /// Follows the agent to its end; reconnects with a backoff.
    async fn follow(&self) {
        let Self { agents, id } = self;
        let mut failures = 0_u32;
        loop {
            match self.follow_once(&mut failures).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => tracing::error!(agent = %id, %error, "cannot take over events"),
            }
            sleep(PAUSE.wait(failures)).await;
            failures = failures.saturating_add(1);
        }
        remove_files(&agents.settings.folder, id);
    }

    /// Follows the agent on one connection to its host. Returns whether the agent has ended and the
    /// log has all its events. Sets `failures` to zero if events arrive; else the next attempt
    /// backs off further, as an event that this version cannot read ends every connection.
    async fn follow_once(&self, failures: &mut u32) -> Result<bool> {
        let Self { agents, id } = self;
        // An agent that has ended may have been removed meanwhile.
        let live = agents.core.store.agents().get(id).await?.filter(|row| row.ended_at.is_none());
        let Some(row) = live else { return Ok(true) };
        let host = agents.host(id);
        if row.host.is_none() {
            match host.status().await {
                Ok(status) => {
                    let process = process::identity(status.host.pid);
                    self.note_host(process, status.agent.pid).await?;
                }
                Err(error) => return self.without_host(&error, *failures).await,
            }
        }
        let mut head = self.head().await?;
        let mut feed = match host.attach(head).await {
            Ok(feed) => feed,
            Err(error) => return self.without_host(&error, *failures).await,
        };
        // An empty batch completes what an earlier daemon left undone.
        let mut taken = self.take(Vec::new()).await?;
        let mut deltas = AgentDeltas::new(agents, id).await?;
        let mut is_stopping = false;
        loop {
            if taken.has_ended {
                return Ok(true);
            }
            if taken.is_spent && !std::mem::replace(&mut is_stopping, true) {
                self.stop_spent();
            }
            let update = tokio::select! {
                update = feed.recv() => update,
                () = deltas.due() => {
                    deltas.make_frames(true).await?;
                    continue;
                }
            };
            let batch = match update {
                Ok(Some(HostUpdate::Events(batch))) => batch,
                Ok(Some(HostUpdate::Delta(delta))) => {
                    deltas.append(&delta, head).await?;
                    continue;
                }
                Ok(None) => return Ok(false),
                Err(error) => {
                    tracing::debug!(agent = %id, %error, "the connection to a host broke");
                    return Ok(false);
                }
            };
            *failures = 0;
            deltas.before(&batch);
            let is_due = batch.first().is_some_and(|first| first.offset() == head + 1);
            let last = batch.last().map_or(head, RawAgentEvent::offset);
            let is_dispatching = lock(&agents.live.dispatching).contains(id);
            if is_due && !is_dispatching && batch.iter().all(is_plain) {
                // The common case: one statement, which all appends of a commit share. This
                // follower alone writes to the stream, so its seqs equal the host's offsets.
                agents.core.store.append(stream_of(id), logged(&batch)).await?;
            } else {
                taken = self.take(batch).await?;
            }
            head = last;
        }
    }

    pub(super) async fn note_host(&self, host: ProcessIdentity, pid: u32) -> Result<()> {
        let id = self.id.clone();
        let write = self.agents.core.store.write(job!(|tx| {
            let Some(mut row) = tx.agents().get(&id).await? else { return Ok(()) };
            let has_ended = row.ended_at.is_some();
            if has_ended && row.last_pid != 0 {
                return Ok(());
            }
            row.last_pid = pid;
            if !has_ended {
                (row.host, row.info.pid) = (Some(host), pid);
            }
            tx.agents().update(&row).await?;
            Ok(())
        }));
        write.await
    }

    /// The last event that the log has. Read by a write job, which comes after an append whose
    /// outcome was unknown: else that one could be committed later, and its events come twice.
    async fn head(&self) -> Result<i64> {
        let id = self.id.clone();
        let state = self.agents.core.change(job!(|tx| tx.streams().state(&stream_of(&id)).await));
        Ok(state.await?.ok_or(StoreError::NoStream)?.head)
    }

    async fn take(&self, events: Vec<RawAgentEvent>) -> Result<IntakeResult> {
        let (key, core) = (self.id.clone(), self.agents.core.clone());
        let store = &self.agents.core.store;
        let taken = store.write(job!(|tx| take_in(tx, &core, &key, events).await)).await?;
        self.after(&taken).await;
        Ok(taken)
    }

    /// Acts on a committed batch: ends deliveries, forgets tokens and notifies the queue.
    async fn after(&self, taken: &IntakeResult) {
        let Self { agents, id } = self;
        if let Some(peer) = &taken.has_mail
            && let Err(error) = team::end_deliveries(&agents.core, peer, team::AGENT_ENDED).await
        {
            // The sweep retries.
            tracing::warn!(agent = %id, %error, "cannot end the deliveries to an agent yet");
        }
        agents.access.forget(&taken.revoked);
        if taken.is_removable {
            agents.live.removals.notify_one();
        }
        if taken.has_ended {
            agents.forget_reach(id);
        }
        let is_free = {
            let mut dispatching = lock(&agents.live.dispatching);
            if taken.is_dispatching {
                // The queue may have given the agent work during an earlier commit that did not see
                // it.
                dispatching.insert(id.clone());
            }
            !taken.is_dispatching && dispatching.remove(id)
        };
        if taken.is_spent || taken.has_ended || is_free {
            agents.core.work.notify_one();
        }
    }

    /// Stops a host that began after its start was given up, and removes its files. A host outlives
    /// the end of its agent for a moment, and refuses then: its log is complete.
    pub(super) async fn stop_given_up(&self) {
        let Self { agents, id } = self;
        let reason = Some("its start was given up".to_owned());
        let stop = StopAgent { force: true, timeout: 0, reason };
        match agents.host(id).stop(&stop).await {
            Ok(_) | Err(HostError::Absent | HostError::Refused(_)) => {
                remove_files(&agents.settings.folder, id);
            }
            Err(error) => tracing::warn!(agent = %id, %error, "a late host was not stopped"),
        }
    }

    fn stop_spent(&self) {
        let Self { agents, id } = self.clone();
        tokio::spawn(async move {
            let reason = Some("its task is over".to_owned());
            let stop = StopAgent { force: false, timeout: STOP_WITHIN, reason };
            if let Err(error) = agents.host(&id).stop(&stop).await {
                tracing::debug!(agent = %id, %error, "an agent whose task is over was not stopped");
            }
        });
    }

    /// Handles a host that cannot be reached. Returns whether the host has ended; if so, the events
    /// that it left are stored and the agent is ended.
    async fn without_host(&self, error: &HostError, failures: u32) -> Result<bool> {
        let Self { agents, id } = self;
        if failures == TOLD_FAILURE {
            tracing::warn!(agent = %id, %error, "cannot reach a host");
        }
        let live = agents.core.store.agents().get(id).await?.filter(|row| row.ended_at.is_none());
        let Some(row) = live else { return Ok(true) };
        if row.host_process().is_some_and(|host| !agents.core.is_gone(&host)) {
            return Ok(false);
        }
        let head = self.head().await?;
        let spool = DeadSpool::open(&agents.settings.folder, id, head);
        let mut lines = match spool.map_err(|error| disk(&error))? {
            // Another process holds the spool: the host lives, or is about to end.
            DeadSpool::Held => return Ok(false),
            DeadSpool::Absent => {
                let age = agents.core.now().since(row.info.started_at);
                if row.host.is_none() && age < START_GRACE {
                    return Ok(false);
                }
                return self.lose().await;
            }
            DeadSpool::Left(lines) => lines,
        };
        if self.take_lines(&mut lines).await? { Ok(true) } else { self.lose().await }
    }

    /// Stores the events that a dead host left. Returns whether they have the agent's end.
    async fn take_lines(&self, lines: &mut SpoolLines) -> Result<bool> {
        loop {
            let batch = lines.next_batch(SPOOL_BATCH).map_err(|error| disk(&error))?;
            if batch.is_empty() {
                return Ok(false);
            }
            if self.take(batch).await?.has_ended {
                return Ok(true);
            }
        }
    }

    async fn lose(&self) -> Result<bool> {
        // Ends the processes before it stores the end, so that a reader of the end finds none
        // running.
        end_tree(&self.id).await;
        self.end_as(AgentState::Lost, "its host ended before it".to_owned()).await?;
        Ok(true)
    }

    /// Ends an agent whose host has failed to start.
    pub(super) async fn end_without_host(&self, reason: &str) -> Result<()> {
        let Self { agents, id } = self;
        let head = self.head().await?;
        if let Ok(DeadSpool::Left(mut lines)) = DeadSpool::open(&agents.settings.folder, id, head) {
            match self.take_lines(&mut lines).await {
                Ok(true) => {
                    remove_files(&agents.settings.folder, id);
                    return Ok(());
                }
                Ok(false) | Err(Error::NotNow(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.stop_given_up().await;
        end_tree(id).await;
        self.end_as(AgentState::Error, reason.to_owned()).await?;
        remove_files(&agents.settings.folder, id);
        Ok(())
    }

    /// Ends an agent whose host left no `exit` event and sends nothing more. The daemon numbers the
    /// events, as there is no host to do so.
    pub(super) async fn end_as(&self, state: AgentState, why: String) -> Result<()> {
        let (key, core) = (self.id.clone(), self.agents.core.clone());
        let write = self.agents.core.store.write(job!(|tx| {
            let mut taken = IntakeResult::default();
            let found = tx.agents().get(&key).await?.filter(|row| row.ended_at.is_none());
            let Some(mut row) = found else { return Ok::<_, Error>(taken) };
            row.info.state = state;
            row.info.error = Some(why.clone());
            let stream = stream_of(&key);
            let head = tx.streams().state(&stream).await?.ok_or(StoreError::NoStream)?.head;
            let end = [
                serde_json::json!({ "type": "error", "error": why }),
                serde_json::json!({ "type": "exit", "final_state": row.info.state }),
            ];
            let mut events = Vec::new();
            for (mut event, offset) in end.into_iter().zip(head + 1..) {
                event["agent_id"] = key.as_str().into();
                event["offset"] = offset.into();
                event["timestamp"] = serde_json::json!(tx.now());
                let kind = event["type"].as_str().unwrap_or_default().to_owned();
                events.push(NewEvent::new(kind, &event));
            }
            tx.append(&stream, events).await?;
            let mut work = work_of(tx, &key).await?;
            finish(tx, &mut row, &mut work, &core, &mut taken).await?;
            tx.agents().update(&row).await?;
            Ok(taken)
        }));
        let taken = write.await?;
        self.after(&taken).await;
        Ok(())
    }
}

/// Ends an agent whose machine does not come back.
pub(in crate::service) async fn lose_agent(
    agents: &Agents,
    id: &AgentId,
    why: String,
) -> Result<()> {
    AgentFollower::new(agents, id).end_as(AgentState::Lost, why).await
}

fn disk(error: &std::io::Error) -> Error {
    Error::NotNow(format!("the spool of a host cannot be read: {error}"))
}

/// How long an unfinished line waits before it becomes a partial frame.
const LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// The unfinished entry of a followed agent. Dropping it ends the entry for listeners.
#[derive(Debug)]
struct AgentDeltas {
    agents: Agents,
    agent: AgentId,
    stream: StreamName,
    visibility: Arc<StreamVisibility>,
    after: PrecedingEvent,
    of: Option<String>,
    text: String,
    due: Option<Instant>,
}

impl AgentDeltas {
    async fn new(agents: &Agents, agent: &AgentId) -> Result<Self> {
        let stream = stream_of(agent);
        let view = agents.core.store.streams().view(&stream).await?.ok_or(StoreError::NoStream)?;
        Ok(Self {
            agents: agents.clone(),
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
    async fn append(&mut self, delta: &AgentDelta, head: i64) -> Result<()> {
        if self.of.as_ref() != Some(&delta.of) {
            let (_, position) = self.agents.core.store.events().bounds().await?;
            self.after = PrecedingEvent { seq: head, position };
            self.of = Some(delta.of.clone());
            self.text.clear();
            self.due = None;
        }
        self.text.push_str(&delta.text);
        let entries = self.agents.core.store.bus().unfinished_entries();
        entries.append(&self.stream, &self.visibility, self.after, delta, self.agents.core.now());
        if !lock(&self.agents.live.dispatching).contains(&self.agent) {
            return Ok(());
        }
        self.due.get_or_insert_with(|| Instant::now() + LINE_TIMEOUT);
        if delta.text.contains('\n') {
            self.make_frames(false).await?;
        }
        Ok(())
    }

    /// Makes frames of complete lines; with `is_due` also of the unfinished last line.
    async fn make_frames(&mut self, is_due: bool) -> Result<()> {
        let (agent, said) = (self.agent.clone(), self.text.clone());
        let is_whole = said.ends_with('\n');
        let write = self
            .agents
            .core
            .store
            .write(job!(|tx| give_unfinished(tx, &agent, &said, is_due).await));
        write.await?;
        if is_due || is_whole {
            self.due = None;
        }
        Ok(())
    }

    async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Called before `events` are stored. Ends the unfinished entry if they contain the finished
    /// one or the end of its turn.
    fn before(&mut self, events: &[RawAgentEvent]) {
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
            self.agents.core.store.bus().unfinished_entries().finish(&self.stream);
        }
    }
}

impl Drop for AgentDeltas {
    fn drop(&mut self) {
        self.agents.core.store.bus().unfinished_entries().finish(&self.stream);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::{Caller, limits};
    use tokio::time::timeout;

    use super::*;
    use crate::service::testing::{insert_agent, opened};

    /// The next agent of its name may start at once, before any sweep.
    #[tokio::test]
    async fn mail_beyond_one_write_job_ends_with_its_agent() {
        let (test, services) = opened().await;
        insert_agent(&test).await;
        let (core, id) = (services.agents.core.clone(), AgentId::from("ag_1".to_owned()));
        let named = id.clone();
        let made = test.store.write(job!(|tx| {
            let row = tx.agents().get(&named).await?.expect("it is stored");
            team::hosted_peer(tx, &core, &row, None).await?;
            Ok::<_, Error>(team::peer_of_agent(tx, &row).await?)
        }));
        let peer = made.await.unwrap().expect("it has a peer").peer.peer_id;
        for _ in 0..=limits::ENDED_MESSAGES_PER_JOB {
            let message = serde_json::from_value(json!({ "text": "hello" })).unwrap();
            let team = &services.team;
            team.send_message(&Caller::Operator, peer.as_str(), message).await.unwrap();
        }
        let follower = AgentFollower::new(&services.agents, &id);
        follower.end_as(AgentState::Lost, "its host is gone".to_owned()).await.unwrap();
        assert_eq!(test.store.inboxes().count_mail(&peer).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn events_that_the_daemon_numbers_have_the_time_as_text() {
        let (test, services) = opened().await;
        insert_agent(&test).await;
        let follower = AgentFollower::new(&services.agents, &AgentId::from("ag_1".to_owned()));
        follower.end_as(AgentState::Lost, "its host is gone".to_owned()).await.unwrap();
        let stream = StreamName::fixed("agent/ag_1");
        let view = test.store.streams().view(&stream).await.unwrap().unwrap();
        let take = svc_store::PageSize::rows(10);
        let page = test.store.events().of_stream(view.id, &stream, 0, None, take).await.unwrap();
        let now = json!(services.now());
        for event in &page.rows {
            let data: serde_json::Value = serde_json::from_str(&event.data).unwrap();
            assert_eq!(data["timestamp"], now, "{data}");
        }
        assert_eq!(page.rows.len(), 2);
    }

    /// The end of the agent was stored, and the answer to that was lost.
    #[tokio::test]
    async fn follower_of_an_agent_that_was_removed_ends() {
        let (_test, services) = opened().await;
        let follower = AgentFollower::new(&services.agents, &AgentId::from("ag_1".to_owned()));
        let error = HostError::Absent;
        assert!(follower.without_host(&error, 0).await.unwrap());
        timeout(Duration::from_mins(1), follower.follow()).await.unwrap();
    }
}
