//! Hosted agents: their instances, start and stop, the events of their hosts, their requests, and
//! the work that they are given. This file runs what lives as long as the daemon: a follower for
//! each live agent, the queue, and the removal of agents.
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
use svc_model::AgentId;
use svc_store::AgentRow;
use tokio::{task::JoinSet, time::sleep};

use self::{follow::AgentFollower, queue::AgentQueue};
use crate::boxed;
use crate::service::{Error, core::lock};

pub use answer_wait::AnswerWaiter;
pub use control::{ReturnedAnswer, SendToAgent};
pub use dispatch::{DispatchedTask, NewDispatch};
pub(super) use follow::lose_agent;
pub use start::{NewAgent, StartedAgent};
pub use state::{AgentSettings, AgentView, Agents};

/// The wait before the next attempt to take over the agents of an earlier process.
const TAKE_OVER_PAUSE: Duration = Duration::from_secs(1);

impl Agents {
    /// Follows all live agents, and those that start, until the future is dropped. Also gives
    /// queued work to agents.
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
        clean_folder(&agents, &followed);
        let mut queue = Box::pin(AgentQueue::new(agents.clone()).run());
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
                () = &mut removals => return,
            }
        }
    }

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

/// Removes what agents that have ended left in the folder: the files of their hosts, and hosts whose
/// start was given up. Files of agents that this database does not know stay.
fn clean_folder(agents: &Agents, live: &HashSet<AgentId>) {
    let Ok(entries) = std::fs::read_dir(&agents.settings.folder) else { return };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let ids = names.filter_map(|name| {
        AgentId::parse(name.strip_suffix(".sock").or_else(|| name.strip_suffix(".spool"))?)
    });
    let left: HashSet<AgentId> = ids.filter(|id| !live.contains(id)).collect();
    let agents = agents.clone();
    tokio::spawn(futures_util::stream::iter(left).for_each_concurrent(16, move |id| {
        let agents = agents.clone();
        async move {
            // An agent that was started meanwhile lives.
            let row = agents.core.store.agents().get(&id).await;
            if row.is_ok_and(|row| row.is_some_and(|row| row.ended_at.is_some())) {
                AgentFollower::new(&agents, &id).stop_given_up().await;
            }
        }
    }));
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
