//! Hosted agents: their instances, start and stop, the events of their hosts, their requests, and
//! the work that they are given. This file runs what lives as long as the daemon: a follower for
//! each live agent, the queue, and the removal of agents.
//!
//! A row is stored before anything starts. `control` has the operations of callers and their waits,
//! `requests` answers what agents ask, and `allowance` decides what a caller may set for an agent.
//! `start` makes the row and launches the host. `follow` takes the host's events into the log and
//! notices its end; `intake` applies a batch of events in one write job. `mailing` makes turns of
//! messages. `dispatch` accepts work, `queue` decides which agent gets it and when, and `attended`
//! gives it to an attended session. `service/assignments` decides how the work ends. `state` has
//! [`Agents`], and what the others share.
//!
//! Agents that were started for a task of which nothing else remains are removed once who asked for
//! it has been told of its end: the agent with its requests, its sessions, and the streams of
//! these. The task stays with its stream, and so do messages, records and memories. The agent's row
//! goes last, so a removal that a crash has cut short goes on at the next start.

mod allowance;
mod attended;
mod control;
mod dispatch;
mod follow;
mod intake;
mod mailing;
mod queue;
mod requests;
mod start;
mod state;

use std::{collections::HashSet, time::Duration};

use futures_util::StreamExt as _;
use serde_json::json;
use svc_client::hosts::remove_files;
use svc_model::{AgentId, Principal, limits};
use svc_store::{AgentRow, job};
use svc_sys::telemetry::chain;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use self::{
    follow::AgentFollower,
    state::{append_team_event, stream_of},
};
use crate::boxed;
use crate::service::{Error, Result, core::lock, team};

pub use control::{AnswerWaiter, ReturnedAnswer, SendToAgent};
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
        let mut queue = Box::pin(agents.run_queue());
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

impl Agents {
    /// Removes agents as they become due, until the future is dropped. Each maintenance interval it
    /// also removes the agents that another daemon did not.
    async fn run_removals(&self) {
        loop {
            if let Err(error) = self.remove_due().await {
                error.report("cannot remove agents of which nothing remains");
            }
            let _ = timeout(self.core.tuning.maintenance, self.live.removals.notified()).await;
        }
    }

    /// Removes all agents that are due. An agent that cannot be removed holds up no other: it is
    /// tried again at the next call.
    async fn remove_due(&self) -> Result<()> {
        let due = self.core.store.agents().to_remove(limits::PAGE_MAX).await?;
        // Read after the rows: a call that has started one of these agents is in the list by then,
        // or has ended.
        let calls = lock(&self.live.start_calls).clone();
        for row in due {
            // The end of the call notifies again.
            if calls.iter().any(|call| call.may_read(&row)) {
                continue;
            }
            let id = row.info.id.clone();
            if let Err(error) = self.remove(row).await {
                if error.is_of_daemon() && !matches!(error, Error::Internal(_)) {
                    return Err(error);
                }
                let error = chain(&error);
                tracing::error!(agent = %id, error, "cannot remove an agent of which nothing remains");
            }
        }
        self.core.store.upkeep().remove_retired().await?;
        Ok(())
    }

    async fn remove(&self, row: AgentRow) -> Result<()> {
        let core = &self.core;
        // No other agent ever has this key: it contains the id of the task.
        let owner = Principal::Session(row.info.session_key.as_str().into());
        let id = row.info.id;
        if row.machine_id == core.store.machine().machine_id {
            // Left by a crash: at a start, files are removed by the rows of their agents.
            remove_files(&self.settings.folder, &id);
        }
        loop {
            let (owner, id) = (owner.clone(), id.clone());
            let removed = core.change(job!(|tx| {
                let sessions = team::remove_sessions(tx, &owner).await?;
                // In the commit that finds no session: a late hook may begin one until then, and
                // none afterwards.
                if sessions.is_empty()
                    && let Some(row) = tx.agents().get(&id).await?
                {
                    tx.streams().retire(&stream_of(&id)).await?;
                    tx.agents().remove(&id).await?;
                    append_team_event(tx, "agent.removed", &row, json!({})).await?;
                }
                Ok(sessions)
            }));
            let removed = removed.await?;
            if removed.is_empty() {
                return Ok(());
            }
            let Some(secrets) = &core.sessions.secrets else { continue };
            for session in &removed {
                if let Err(error) = secrets.remove(session) {
                    tracing::warn!(%error, "cannot remove the secret of a removed session");
                }
            }
        }
    }
}

/// Removes what agents that have ended left in the folder: the files of their hosts, and hosts
/// whose start was given up. Files of agents that this database does not know stay.
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
    use svc_model::TaskId;
    use svc_store::testing::TestStore;

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

    /// Two agents that are due to be removed.
    async fn insert_ended(test: &TestStore) {
        test.execute(
            "
            insert into stream (name, created_at, visibility)
            values ('agent/ag_1', 1, 'team'), ('agent/ag_2', 1, 'team'),
                ('task/task_1', 1, 'team'), ('task/task_2', 1, 'team');
            insert into task (task_id, stream_id, status, created_by, created_at, closed_at)
            select substr(name, 6), id, 'done', 'operator', 1, 1 from stream where name like 'task/%';
            insert into agent (agent_id, stream_id, instance, backend, session_key, project, cwd, created_by, state, pid,
                request_timeout, started_at, ended_at, task_id)
            select substr(name, 7), id, 'a', 'exec', 'agent:a:' || substr(name, 10), '/p', '/c', 'operator', 'done', 1,
                1, 1, substr(name, 10), 'task_' || substr(name, 10) from stream where name like 'agent/%';
            insert into assignment (run_id, task_id, mode, state, source_session, created_at, ended_at, removes_peer)
            select 'run_' || task_id, task_id, 'followup', 'ok', 'operator', 1, 1, 1 from task;",
        )
        .await;
    }

    async fn left(test: &TestStore) -> Vec<String> {
        let due = test.store.agents().to_remove(9).await.unwrap();
        due.into_iter().map(|row| row.info.id.to_string()).collect()
    }

    #[tokio::test]
    async fn agent_that_cannot_be_removed_holds_up_no_other() {
        let (test, services) = opened().await;
        insert_ended(&test).await;
        test.execute(
            "
            create trigger stuck before delete on agent when old.agent_id = 'ag_1' begin
                select raise(abort, 'stuck');
            end;",
        )
        .await;
        assert_eq!(left(&test).await.len(), 2);
        for _ in 0..2 {
            services.agents.remove_due().await.unwrap();
            assert_eq!(left(&test).await, ["ag_1"]);
        }
        test.execute("drop trigger stuck").await;
        services.agents.remove_due().await.unwrap();
        assert!(left(&test).await.is_empty());
    }

    #[tokio::test]
    async fn call_that_starts_an_agent_holds_up_the_removal_of_that_agent_alone() {
        let (test, services) = opened().await;
        insert_ended(&test).await;
        let agents = &services.agents;
        let slow = agents.begin_start_call();
        slow.note_task(&TaskId::parse("task_1").unwrap());
        agents.remove_due().await.unwrap();
        assert_eq!(left(&test).await, ["ag_1"]);
        drop(slow);
        timeout(Duration::from_mins(1), agents.live.removals.notified()).await.unwrap();
        // Its agents began before it, so it did not start them.
        let _early = agents.begin_start_call();
        agents.remove_due().await.unwrap();
        assert!(left(&test).await.is_empty());
    }
}
