//! Hosted agents: their instances, start and stop, the events of their hosts, their requests, and
//! the work that they are given. This file runs what lives as long as the daemon: a follower for
//! each live agent, the queue, and the sweep of requests that nobody answers.
//!
//! A row is stored before anything starts. `control` has the operations of callers, `requests`
//! answers what agents ask, and `allowance` decides what a caller may set for an agent. `start`
//! makes the row and launches the host. `follow` takes the host's events into the log and notices
//! its end; `intake` applies a batch of events in one write job. `mailing` makes turns of messages.
//! `answer_wait` knows the calls that wait for an answer.
//! `dispatch` accepts work, `queue` decides which agent gets it and when, and `attended` gives it
//! to an attended session. `service/assignments` decides how the work ends. `state` has
//! [`Agents`], and what the others share. `removal` removes agents of which nothing remains.

mod allowance;
mod answer_wait;
mod attended;
mod control;
mod dispatch;
mod follow;
mod intake;
mod mailing;
mod queue;
mod removal;
mod requests;
mod start;
mod state;

use std::{collections::HashSet, time::Duration};

use futures_util::StreamExt as _;
use svc_client::hosts::{HostError, remove_files};
use svc_model::AgentId;
use svc_store::AgentRow;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use self::{follow::AgentFollower, queue::AgentQueue};
use crate::boxed;
use crate::service::{Error, core::lock};

pub use answer_wait::AnswerWaiter;
pub use control::{AgentView, ReturnedAnswer, SendToAgent, StartedAgent};
pub use dispatch::{DispatchedTask, NewDispatch, WantedMode};
pub(super) use follow::lose_agent;
pub use start::NewAgent;
pub use state::{AgentSettings, Agents};

const REQUEST_SWEEP: Duration = Duration::from_secs(5);
/// The wait before the next attempt to take over the agents of an earlier process.
const TAKE_OVER_PAUSE: Duration = Duration::from_secs(1);

impl Agents {
    /// Follows all live agents, and those that start, until the future is dropped. Also gives
    /// queued work to agents and denies requests past their deadline.
    #[boxed]
    pub async fn run(self) {
        let agents = self;
        let receiver = lock(&agents.live.to_follow).take();
        let Some(mut starts) = receiver else { return };
        let mut followers = JoinSet::new();
        let mut followed: HashSet<AgentId> = HashSet::new();
        let here = &agents.core.store.machine().machine_id;
        // Agents of another machine have their hosts and spools there.
        for row in agents.taken_over().await.into_iter().filter(|row| row.machine_id == *here) {
            followed.insert(row.info.id.clone());
            lock(&agents.live.dispatching).insert(row.info.id.clone());
            followers.spawn(AgentFollower::new(&agents, &row.info.id).serve());
        }
        look_for_unknown_agents(&agents, &followed);
        let mut queue = Box::pin(AgentQueue::new(agents.clone()).run());
        let mut sweeps = Box::pin(run_request_sweeps(&agents));
        let mut removals = Box::pin(agents.run_removals());
        loop {
            tokio::select! {
                id = starts.recv() => {
                    let Some(id) = id else { return };
                    if followed.insert(id.clone()) {
                        followers.spawn(AgentFollower::new(&agents, &id).serve());
                    }
                }
                Some(ended) = followers.join_next() => {
                    if let Ok(id) = ended {
                        followed.remove(&id);
                        lock(&agents.live.dispatching).remove(&id);
                    }
                    // Queued work may wait for this agent's end.
                    agents.core.work.notify_one();
                }
                () = &mut queue => return,
                // Separate from the queue: a host that does not answer must not hold up work.
                () = &mut sweeps => return,
                () = &mut removals => return,
            }
        }
    }
}

impl Agents {
    /// The live agents, as soon as the waits of an earlier process are over: a follower may store
    /// the end of work at once, and the message about the end would be held for a call that waits
    /// no more. While the database is away, tries again.
    async fn taken_over(&self) -> Vec<AgentRow> {
        loop {
            let ended = self.end_former_waits().await;
            let live = match ended {
                Ok(()) => self.core.store.agents().live().await.map_err(Error::from),
                Err(error) => Err(error),
            };
            match live {
                Ok(live) => return live,
                Err(error) => error.report("cannot take over the agents of an earlier process"),
            }
            sleep(TAKE_OVER_PAUSE).await;
        }
    }
}

async fn run_request_sweeps(agents: &Agents) {
    let mut sweep = interval(REQUEST_SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        sweep.tick().await;
        if let Err(error) = agents.sweep_requests().await {
            error.report("cannot deny requests past their deadline");
        }
    }
}

/// Checks the sockets and spools in the folder that belong to no live agent of this database.
/// Removes the files of ended agents; reports a running host without a row and leaves it alone.
fn look_for_unknown_agents(agents: &Agents, known: &HashSet<AgentId>) {
    let Ok(entries) = std::fs::read_dir(&agents.settings.folder) else { return };
    let unknown: Vec<AgentId> = entries
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
    if unknown.is_empty() {
        return;
    }
    let agents = agents.clone();
    tokio::spawn(async move {
        let probes = unknown.into_iter().map(|id| probe_unknown_agent(agents.clone(), id));
        futures_util::stream::iter(probes).buffer_unordered(16).collect::<Vec<()>>().await;
    });
}

async fn probe_unknown_agent(agents: Agents, id: AgentId) {
    // An agent that was started meanwhile has a row by now.
    let row = agents.core.store.agents().get(&id).await;
    let Ok(row) = row else { return };
    if row.as_ref().is_some_and(|row| row.ended_at.is_none()) {
        return;
    }
    match agents.host(&id).status().await {
        Err(HostError::Absent) if row.is_some() => remove_files(&agents.settings.folder, &id),
        // The host outlives the agent's end for a moment. The log is complete, or the row would
        // have no end.
        Ok(status) if row.is_some() && status.agent.state.is_final() => {
            remove_files(&agents.settings.folder, &id);
        }
        // The start of this agent was given up before its host began.
        Ok(_) if row.is_some() => AgentFollower::new(&agents, &id).stop_given_up().await,
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

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::service::testing::{insert_agent, opened};

    #[tokio::test]
    async fn agents_are_taken_over_once_their_rows_can_be_read() {
        let (test, services) = opened().await;
        insert_agent(&test).await;
        test.execute("update agent set backend = 'none'").await;
        let mut taken = Box::pin(services.agents.taken_over());
        timeout(TAKE_OVER_PAUSE / 4, &mut taken).await.unwrap_err();
        test.execute("update agent set backend = 'exec'").await;
        let rows = timeout(Duration::from_mins(1), taken).await.unwrap();
        assert_eq!(rows.len(), 1);
    }
}
