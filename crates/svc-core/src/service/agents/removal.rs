//! Removes agents that were started for a task of which nothing else remains, once who asked for
//! it has been told of its end: the agent with its requests, its sessions, and the streams of
//! these. The task stays with its stream, and so do messages, records and memories.
//!
//! The agent's row goes last, so a removal that a crash has cut short goes on at the next start.

use std::sync::{Arc, OnceLock};

use serde_json::json;
use svc_client::hosts::remove_files;
use svc_model::{Principal, TaskId, limits};
use svc_store::{AgentRow, job};
use tokio::time::timeout;

use super::{
    Agents,
    state::{append_team_event, stream_of},
};
use crate::service::{Result, team};

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
        self.agents.live.start_calls().retain(|call| !Arc::ptr_eq(call, &self.task));
        self.agents.live.removals.notify_one();
    }
}

impl Agents {
    pub(in crate::service) fn begin_start_call(&self) -> StartCall {
        let task = Arc::new(OnceLock::new());
        self.live.start_calls().push(Arc::clone(&task));
        StartCall { agents: self.clone(), task }
    }

    /// Removes agents as they become due, until the future is dropped. Each maintenance interval it
    /// also removes the agents that another daemon did not.
    pub(super) async fn run_removals(&self) {
        loop {
            if let Err(error) = self.remove_due().await {
                error.report("cannot remove agents of which nothing remains");
            }
            let _ = timeout(self.core.tuning.maintenance, self.live.removals.notified()).await;
        }
    }

    async fn remove_due(&self) -> Result<()> {
        loop {
            let mut due = self.core.store.agents().to_remove(limits::PAGE_DEFAULT).await?;
            due.retain(|row| !self.is_awaited(row));
            if due.is_empty() {
                break;
            }
            for row in due {
                self.remove(row).await?;
            }
        }
        self.core.store.upkeep().remove_retired().await?;
        Ok(())
    }

    /// Whether a call may yet read the rows of this agent.
    fn is_awaited(&self, row: &AgentRow) -> bool {
        let calls = self.live.start_calls();
        calls.iter().any(|call| call.get().is_none_or(|task| row.task_id.as_ref() == Some(task)))
    }

    async fn remove(&self, row: AgentRow) -> Result<()> {
        let core = &self.core;
        // No other agent ever has this key: it contains the id of the task.
        let owner = Principal::Session(row.info.session_key.as_str().into());
        loop {
            let owner = owner.clone();
            let removed = core.change(job!(|tx| team::remove_sessions(tx, &owner).await)).await?;
            if removed.is_empty() {
                break;
            }
            let Some(secrets) = core.session_secrets() else { continue };
            for id in &removed {
                if let Err(error) = secrets.remove(id) {
                    tracing::warn!(%error, "cannot remove the secret of a removed session");
                }
            }
        }
        let id = row.info.id;
        if row.machine_id == core.store.machine().machine_id {
            // Left by a crash: at a start, files are removed by the rows of their agents.
            remove_files(&self.settings.folder, &id);
        }
        let write = core.change(job!(|tx| {
            let Some(row) = tx.agents().get(&id).await? else { return Ok(()) };
            tx.streams().retire(&stream_of(&id)).await?;
            tx.agents().remove(&id).await?;
            append_team_event(tx, "agent.removed", &row, json!({})).await
        }));
        write.await
    }
}
