//! Following the hosts of agents: each event goes into the log as it comes, or afterwards, once.
//!
//! A follower reads the agent's row and the head of its stream, attaches behind that, and takes in
//! what comes. If its host is not there, the lock on the spool says whether it lives; what a dead
//! one left is read from the file, and an agent whose host went without a last word is lost.

use std::{collections::HashSet, time::Duration};

use futures_util::StreamExt as _;
use svc_client::hosts::{DeadSpool, HostError, HostNews, RawAgentEvent, end_tree, remove_files};
use svc_model::{AgentId, NewEvent, agent::AgentState};
use svc_store::{AgentRow, HostProcess, StoreError};
use svc_sys::backoff::Backoff;
use svc_wire::host_protocol::StopAgent;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    Agents,
    intake::{TakenIn, finish, is_plain, plain_events, take_in, work_of},
    records::{stream_of, unknown},
};
use crate::service::{Error, process, team};

/// The waits after a host was not reached.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// A host of which nothing is known may be about to start for so long.
const START_GRACE: Duration = Duration::from_secs(20);
/// Events of a spool in one write job.
const SPOOL_BATCH: usize = 512;
/// Seconds that an agent has to end when its task is over.
const STOP_WITHIN: i64 = 10;
/// How often requests past their deadline are looked for.
const REQUEST_SWEEP: Duration = Duration::from_secs(5);

/// What became of following a host.
enum FollowedAgent {
    /// The agent has ended, and the log has all of it.
    ToItsEnd,
    /// The connection is gone.
    Cut {
        /// Something was taken in before.
        has_progress: bool,
    },
    /// Nothing was reached.
    Unreached(HostError),
}

impl Agents {
    /// Follows all live agents, and those that start, until it is dropped. Gives work to agents and
    /// denies what nobody answers meanwhile.
    pub async fn run(self) {
        let receiver = {
            let mut slot =
                self.live.to_follow.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            slot.take()
        };
        let Some(mut starts) = receiver else { return };
        let mut followers = JoinSet::new();
        let mut followed: HashSet<AgentId> = HashSet::new();
        match self.core.store.agents().live().await {
            Ok(rows) => {
                for row in rows {
                    followed.insert(row.info.id.clone());
                    self.live.dispatching().insert(row.info.id.clone());
                    followers.spawn(self.clone().serve(row.info.id));
                }
            }
            Err(error) => tracing::error!(%error, "cannot read which agents live"),
        }
        self.look_for_strangers(&followed);
        let mut queue = Box::pin(self.clone().run_queue());
        let mut sweeps = Box::pin(self.clone().run_request_sweeps());
        loop {
            tokio::select! {
                id = starts.recv() => {
                    let Some(id) = id else { return };
                    if followed.insert(id.clone()) {
                        followers.spawn(self.clone().serve(id));
                    }
                }
                Some(ended) = followers.join_next() => {
                    if let Ok(id) = ended {
                        followed.remove(&id);
                        self.live.dispatching().remove(&id);
                    }
                    // Its end may be what somebody in the queue waits for.
                    self.core.work.notify_one();
                }
                () = &mut queue => return,
                // Beside all else: a host that does not answer holds up no work.
                () = &mut sweeps => return,
            }
        }
    }

    /// Denies requests past their deadline until it is dropped.
    async fn run_request_sweeps(self) {
        let mut sweep = interval(REQUEST_SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            sweep.tick().await;
            if let Err(error) = self.sweep_requests().await {
                tracing::error!(%error, "cannot deny requests past their deadline");
            }
        }
    }

    /// Sockets and spools in the folder that no live agent of ours has: the files of one that has
    /// ended go, a living one that nobody knows is left alone and told of.
    fn look_for_strangers(&self, known: &HashSet<AgentId>) {
        let Ok(entries) = std::fs::read_dir(&self.settings.folder) else { return };
        let strangers: Vec<AgentId> = entries
            .filter_map(Result::ok)
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter_map(|name| {
                let stem = name.strip_suffix(".sock").or_else(|| name.strip_suffix(".spool"))?;
                AgentId::parse(stem)
            })
            .filter(|id| !known.contains(id))
            .collect::<HashSet<_>>()
            .into_iter()
            .collect();
        if strangers.is_empty() {
            return;
        }
        let agents = self.clone();
        tokio::spawn(async move {
            let probes = strangers.into_iter().map(|id| {
                let agents = agents.clone();
                async move { agents.probe_stranger(id).await }
            });
            futures_util::stream::iter(probes).buffer_unordered(16).collect::<Vec<()>>().await;
        });
    }

    async fn probe_stranger(&self, id: AgentId) {
        // One that was started since has a row by now.
        let row = self.core.store.agents().get(&id).await;
        let Ok(row) = row else { return };
        if row.as_ref().is_some_and(|row| row.ended_at.is_none()) {
            return;
        }
        match self.host(&id).status().await {
            Err(HostError::Absent) if row.is_some() => remove_files(&self.settings.folder, &id),
            // Its host stays for a moment after the end. The log has all of it, or the row would
            // have no end.
            Ok(status) if row.is_some() && status.agent.state.is_final() => {
                remove_files(&self.settings.folder, &id);
            }
            // It was given up before it had begun.
            Ok(_) if row.is_some() => self.stop_given_up(&id).await,
            Err(HostError::Absent) => {}
            Ok(status) => {
                let pid = status.host.pid;
                tracing::warn!(agent = %id, pid, "a host runs that this database does not know");
            }
            Err(error) => {
                tracing::warn!(agent = %id, %error, "a socket is no host of this database");
            }
        }
    }

    /// Follows one agent to its end, and hands its messages over meanwhile; answers its id.
    async fn serve(self, id: AgentId) -> AgentId {
        let agents = self.clone();
        tokio::select! {
            id = self.follow(id.clone()) => id,
            () = agents.deliver_mail(&id) => id,
            () = agents.watch_host(&id) => id,
        }
    }

    /// Follows one agent to its end; answers its id.
    async fn follow(self, id: AgentId) -> AgentId {
        let mut failures = 0_u32;
        let mut is_told = false;
        loop {
            match self.follow_once(&id).await {
                Ok(FollowedAgent::ToItsEnd) => {
                    remove_files(&self.settings.folder, &id);
                    return id;
                }
                Ok(FollowedAgent::Cut { has_progress: true }) => failures = 0,
                // An event that this version cannot read is met again and again.
                Ok(FollowedAgent::Cut { has_progress: false }) => {}
                Ok(FollowedAgent::Unreached(why)) => match self.without_host(&id).await {
                    Ok(true) => {
                        remove_files(&self.settings.folder, &id);
                        return id;
                    }
                    Ok(false) => {
                        if !std::mem::replace(&mut is_told, true) && failures > 3 {
                            tracing::warn!(agent = %id, error = %why, "a host is not reached");
                        }
                    }
                    Err(error) => {
                        tracing::error!(agent = %id, %error, "cannot read what a host left");
                    }
                },
                Err(error) => tracing::error!(agent = %id, %error, "cannot take over events"),
            }
            sleep(PAUSE.wait(failures)).await;
            failures = failures.saturating_add(1);
        }
    }

    async fn follow_once(&self, id: &AgentId) -> Result<FollowedAgent, Error> {
        let row = self.core.store.agents().get(id).await?.ok_or_else(|| unknown(id.as_str()))?;
        if row.ended_at.is_some() {
            return Ok(FollowedAgent::ToItsEnd);
        }
        let host = self.host(id);
        if row.host.is_none() {
            match host.status().await {
                Ok(status) => {
                    let started = svc_sys::process_list::ProcessEntry::read(status.host.pid);
                    let started = started.map_or(0, |entry| entry.started);
                    let process = HostProcess { pid: status.host.pid, started };
                    self.note_host(id, process, status.agent.pid).await?;
                }
                Err(error) => return Ok(FollowedAgent::Unreached(error)),
            }
        }
        let mut head = self.head(id).await?;
        let mut feed = match host.attach(head).await {
            Ok(feed) => feed,
            Err(error) => return Ok(FollowedAgent::Unreached(error)),
        };
        // What an earlier daemon left undone is done by an empty batch.
        let mut taken = self.take(id, Vec::new()).await?;
        let mut words = self.words_of(id).await?;
        let (mut is_stopping, mut has_progress) = (false, false);
        loop {
            if taken.has_ended {
                return Ok(FollowedAgent::ToItsEnd);
            }
            if taken.is_spent && !std::mem::replace(&mut is_stopping, true) {
                self.stop_spent(id);
            }
            let news = tokio::select! {
                news = feed.recv() => news,
                () = words.due() => {
                    self.append_delta(id, &mut words, true).await?;
                    continue;
                }
            };
            let batch = match news {
                Ok(Some(HostNews::Events(batch))) => batch,
                Ok(Some(HostNews::Delta(delta))) => {
                    self.hear(id, &mut words, &delta, head).await?;
                    continue;
                }
                Ok(None) => return Ok(FollowedAgent::Cut { has_progress }),
                Err(error) => {
                    tracing::debug!(agent = %id, %error, "the connection to a host broke");
                    return Ok(FollowedAgent::Cut { has_progress });
                }
            };
            has_progress = true;
            words.before(&batch);
            let is_due = batch.first().is_some_and(|first| first.offset() == head + 1);
            let last = batch.last().map_or(head, RawAgentEvent::offset);
            let is_dispatching = self.live.dispatching().contains(id);
            if is_due && !is_dispatching && batch.iter().all(is_plain) {
                // The common case: one statement, which all appends of a commit share.
                self.append(id, head, plain_events(&batch)).await?;
            } else {
                taken = self.take(id, batch).await?;
            }
            head = last;
        }
    }

    /// Appends what changes nothing but the log. This follower alone writes into the stream, so the
    /// numbers agree.
    async fn append(&self, id: &AgentId, head: i64, events: Vec<NewEvent>) -> Result<(), Error> {
        let seqs = self.core.store.append(stream_of(id), events).await?;
        if seqs.first != head + 1 {
            tracing::error!(agent = %id, head, first = seqs.first, "the numbers of a stream disagree");
        }
        Ok(())
    }

    async fn head(&self, id: &AgentId) -> Result<i64, Error> {
        let id = id.clone();
        let state = self
            .core
            .store
            .write(move |tx| Box::pin(async move { tx.streams().state(&stream_of(&id)).await }))
            .await?;
        Ok(state.ok_or(StoreError::NoStream)?.head)
    }

    async fn take(&self, id: &AgentId, events: Vec<RawAgentEvent>) -> Result<TakenIn, Error> {
        let (key, core) = (id.clone(), self.core.clone());
        let taken = self
            .core
            .store
            .write(move |tx| Box::pin(async move { take_in(tx, &core, &key, events).await }))
            .await?;
        self.after(id, &taken).await;
        Ok(taken)
    }

    /// What follows from a commit.
    async fn after(&self, id: &AgentId, taken: &TakenIn) {
        if let Some(peer) = &taken.has_mail
            && let Err(error) = team::end_deliveries(&self.core, peer, team::AGENT_ENDED).await
        {
            // The sweep tries again.
            tracing::warn!(agent = %id, %error, "cannot end the deliveries to an agent yet");
        }
        self.access.forget(&taken.revoked);
        if taken.has_ended {
            self.forget_reach(id);
        }
        let is_free = {
            let mut dispatching = self.live.dispatching();
            if taken.is_dispatching {
                // The queue may have given it work while an earlier commit, without work, was under
                // way.
                dispatching.insert(id.clone());
            }
            !taken.is_dispatching && dispatching.remove(id)
        };
        if taken.is_spent || taken.has_ended || is_free {
            self.core.work.notify_one();
        }
    }

    /// Ends the agent of a host that began after it had been given up.
    async fn stop_given_up(&self, id: &AgentId) {
        let reason = Some("its start was given up".to_owned());
        let stop = StopAgent { force: true, timeout: 0, reason };
        match self.host(id).stop(&stop).await {
            Ok(_) => remove_files(&self.settings.folder, id),
            Err(HostError::Absent) => {}
            Err(error) => tracing::warn!(agent = %id, %error, "a late host was not stopped"),
        }
    }

    /// Ends an agent whose task is over.
    fn stop_spent(&self, id: &AgentId) {
        let (agents, id) = (self.clone(), id.clone());
        tokio::spawn(async move {
            let reason = Some("its task is over".to_owned());
            let stop = StopAgent { force: false, timeout: STOP_WITHIN, reason };
            if let Err(error) = agents.host(&id).stop(&stop).await {
                tracing::debug!(agent = %id, %error, "an agent whose task is over was not stopped");
            }
        });
    }

    /// A host that is not reached: whether it has ended. Then what it left is taken in, and the
    /// agent is over.
    async fn without_host(&self, id: &AgentId) -> Result<bool, Error> {
        let row = self.core.store.agents().get(id).await?.ok_or_else(|| unknown(id.as_str()))?;
        if row.ended_at.is_some() {
            return Ok(true);
        }
        if is_host_alive(&row) {
            return Ok(false);
        }
        let head = self.head(id).await?;
        let spool = DeadSpool::open(&self.settings.folder, id, head);
        let mut lines = match spool.map_err(|error| disk(&error))? {
            // Another process holds it: the host lives, or is about to end.
            DeadSpool::Held => return Ok(false),
            DeadSpool::Absent => {
                let age = self.core.now().since(row.info.started_at);
                if row.host.is_none() && age < START_GRACE {
                    return Ok(false);
                }
                end_tree(id).await;
                return self.lose(id, None).await.map(|()| true);
            }
            DeadSpool::Left(lines) => lines,
        };
        loop {
            let batch = lines.next_batch(SPOOL_BATCH).map_err(|error| disk(&error))?;
            if batch.is_empty() {
                // Whoever hears of the end finds nothing of the agent left.
                end_tree(id).await;
                return self.lose(id, None).await.map(|()| true);
            }
            if self.take(id, batch).await?.has_ended {
                return Ok(true);
            }
        }
    }

    /// Ends an agent whose host has failed to start.
    pub(super) async fn end_without_host(&self, id: &AgentId, reason: &str) -> Result<(), Error> {
        let head = self.head(id).await?;
        if let Ok(DeadSpool::Left(mut lines)) = DeadSpool::open(&self.settings.folder, id, head) {
            while let Ok(batch) = lines.next_batch(SPOOL_BATCH) {
                if batch.is_empty() {
                    break;
                }
                if self.take(id, batch).await?.has_ended {
                    remove_files(&self.settings.folder, id);
                    return Ok(());
                }
            }
        }
        self.stop_given_up(id).await;
        end_tree(id).await;
        self.lose(id, Some(reason.to_owned())).await?;
        remove_files(&self.settings.folder, id);
        Ok(())
    }

    /// Ends an agent that has said nothing of its end: as an error if it never began for a reason
    /// that is known, else as lost. The event is the daemon's own, as nobody else is left to number
    /// it.
    async fn lose(&self, id: &AgentId, reason: Option<String>) -> Result<(), Error> {
        let (key, core) = (id.clone(), self.core.clone());
        let taken = self
            .core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let mut taken = TakenIn::default();
                    let found = tx.agents().get(&key).await?.filter(|row| row.ended_at.is_none());
                    let Some(mut row) = found else { return Ok::<_, Error>(taken) };
                    let is_error = reason.is_some();
                    row.info.state = if is_error { AgentState::Error } else { AgentState::Lost };
                    let why = reason.unwrap_or_else(|| "its host ended before it".to_owned());
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
                        event["timestamp"] = tx.now().as_millis().into();
                        let kind = event["type"].as_str().unwrap_or_default().to_owned();
                        events.push(NewEvent::new(kind, &event));
                    }
                    tx.append(&stream, events).await?;
                    let mut work = work_of(tx, &key).await?;
                    finish(tx, &mut row, &mut work, &core, &mut taken).await?;
                    tx.agents().update(&row).await?;
                    Ok(taken)
                })
            })
            .await?;
        self.after(id, &taken).await;
        Ok(())
    }
}

/// Whether the process that is on record as the host still runs.
fn is_host_alive(row: &AgentRow) -> bool {
    row.host.is_some_and(|host| {
        let started = (host.started != 0).then(|| host.started.to_string());
        process::is_same_alive(host.pid, started.as_deref())
    })
}

fn disk(error: &std::io::Error) -> Error {
    Error::NotNow(format!("the spool of a host cannot be read: {error}"))
}
