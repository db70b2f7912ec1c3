//! Removes agents that were started for a task of which nothing else remains, once who asked for
//! it has been told of its end: the agent with its requests, its sessions, and the streams of
//! these. The task stays with its stream, and so do messages, records and memories.
//!
//! The agent's row goes last, so a removal that a crash has cut short goes on at the next start.

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock},
};

use serde_json::json;
use svc_client::hosts::remove_files;
use svc_model::{AgentId, Principal, TaskId, limits};
use svc_store::{AgentRow, job};
use svc_sys::telemetry::chain;
use tokio::time::timeout;

use super::{
    Agents,
    state::{append_team_event, stream_of},
};
use crate::service::{Error, Result, core::lock, team};

/// A call that starts an agent and answers from the agent's rows. Until it is dropped, its agent is
/// not removed, however soon that ends.
#[derive(Debug)]
pub(in crate::service) struct StartCall {
    agents: Agents,
    task: Arc<OnceLock<TaskId>>,
}

impl StartCall {
    /// Names the task of the agent. Before, the call holds up the removal of every agent.
    pub(in crate::service) fn is_of(&self, task: &TaskId) {
        self.task.set(task.clone()).ok();
    }
}

impl Drop for StartCall {
    fn drop(&mut self) {
        lock(&self.agents.live.start_calls).retain(|call| !Arc::ptr_eq(call, &self.task));
        self.agents.live.removals.notify_one();
    }
}

impl Agents {
    pub(in crate::service) fn begin_start_call(&self) -> StartCall {
        let task = Arc::new(OnceLock::new());
        lock(&self.live.start_calls).push(Arc::clone(&task));
        StartCall { agents: self.clone(), task }
    }

    /// Removes agents as they become due, until the future is dropped. Each maintenance interval it
    /// also removes the agents that another daemon did not.
    pub(super) async fn run_removals(&self) {
        let mut reported = HashSet::new();
        loop {
            if let Err(error) = self.remove_due(&mut reported).await {
                error.report("cannot remove agents of which nothing remains");
            }
            let _ = timeout(self.core.tuning.maintenance, self.live.removals.notified()).await;
        }
    }

    /// Removes all agents that are due. An agent that cannot be removed holds up no other: it is
    /// tried again at the next call. `reported` are those whose failure the log has already.
    async fn remove_due(&self, reported: &mut HashSet<AgentId>) -> Result<()> {
        let mut failed = HashSet::new();
        loop {
            // Agents whose removal failed are read again, and must not fill the page.
            let limit = u32::try_from(failed.len()).unwrap_or(u32::MAX);
            let limit = limit.saturating_add(limits::PAGE_DEFAULT);
            let mut due = self.core.store.agents().to_remove(limit).await?;
            due.retain(|row| !failed.contains(&row.info.id) && !self.is_awaited(row));
            if due.is_empty() {
                break;
            }
            for row in due {
                let id = row.info.id.clone();
                let Err(error) = self.remove(row).await else {
                    reported.remove(&id);
                    continue;
                };
                if error.is_of_daemon() && !matches!(error, Error::Internal(_)) {
                    return Err(error);
                }
                if reported.insert(id.clone()) {
                    let error = chain(&error);
                    tracing::error!(agent = %id, error, "cannot remove an agent of which nothing remains");
                }
                failed.insert(id);
            }
        }
        self.core.store.upkeep().remove_retired().await?;
        Ok(())
    }

    /// Whether a call may yet read the rows of this agent.
    fn is_awaited(&self, row: &AgentRow) -> bool {
        let calls = lock(&self.live.start_calls);
        calls.iter().any(|call| call.get().is_none_or(|task| row.task_id.as_ref() == Some(task)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::testing::opened;

    #[tokio::test]
    async fn agent_that_cannot_be_removed_holds_up_no_other() {
        let (test, services) = opened().await;
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
            select 'run_' || task_id, task_id, 'followup', 'ok', 'operator', 1, 1, 1 from task;
            create trigger stuck before delete on agent when old.agent_id = 'ag_1' begin
                select raise(abort, 'stuck');
            end;",
        )
        .await;
        let mut reported = HashSet::new();
        let left = async || {
            let due = test.store.agents().to_remove(9).await.unwrap();
            due.into_iter().map(|row| row.info.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(left().await.len(), 2);
        for _ in 0..2 {
            services.agents.remove_due(&mut reported).await.unwrap();
            assert_eq!(left().await, ["ag_1"]);
            assert_eq!(reported.len(), 1);
        }
        test.execute("drop trigger stuck").await;
        services.agents.remove_due(&mut reported).await.unwrap();
        assert!(left().await.is_empty() && reported.is_empty());
    }
}
