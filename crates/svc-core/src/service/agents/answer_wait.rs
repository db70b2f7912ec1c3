//! Calls that wait for the answer to work, and the end of such a wait without the answer.

use svc_model::{TaskId, Timestamp};
use svc_store::{AssignmentState, job};
use tokio::runtime::Handle;

use super::Agents;
use crate::service::Result;

/// A call that waits for an answer. If it is dropped before it has the answer, as its connection
/// was cut, a message brings the answer.
#[derive(Debug)]
pub struct AnswerWaiter {
    agents: Agents,
    task: TaskId,
    /// When the wait ends. It identifies the call: no two waits for one answer end alike.
    until: Timestamp,
    has_answer: bool,
}

impl AnswerWaiter {
    pub fn note_answer(&mut self) {
        self.has_answer = true;
    }
}

impl Drop for AnswerWaiter {
    fn drop(&mut self) {
        let wait = (self.task.clone(), self.until);
        self.agents.live.waits().remove(&wait);
        let (false, Ok(runtime)) = (self.has_answer, Handle::try_current()) else { return };
        let (agents, (task, until)) = (self.agents.clone(), wait);
        runtime.spawn(async move {
            if let Err(error) = agents.stop_waiting(task, until).await {
                error.report("cannot note that a call waits no more");
            }
        });
    }
}

impl Agents {
    /// Begins the wait of a call until `until`, which is also in the assignment's row.
    pub(super) fn wait_for_answer(&self, task: &TaskId, until: Timestamp) -> AnswerWaiter {
        self.live.waits().insert((task.clone(), until));
        AnswerWaiter { agents: self.clone(), task: task.clone(), until, has_answer: false }
    }

    fn last_wait(&self, task: &TaskId) -> Option<Timestamp> {
        let waits = self.live.waits();
        waits.iter().filter(|(waited, _)| waited == task).map(|(_, until)| *until).max()
    }

    /// Ends the wait of the call that waited until `until`. If a later call waits, the assignment's
    /// row has the end of that later wait and stays unchanged. An earlier call may still wait.
    /// Every call of this process that waits is known before its row is committed.
    pub(super) async fn stop_waiting(&self, task: TaskId, until: Timestamp) -> Result<()> {
        let agents = self.clone();
        let write = self.core.store.write(job!(|tx| {
            let Some(mut work) = tx.assignments().of_task(&task).await? else { return Ok(()) };
            if work.ended_at.is_none() && work.waits_until == Some(until) {
                work.waits_until = agents.last_wait(&task);
                tx.assignments().update(&work).await?;
            }
            Ok(())
        }));
        write.await
    }

    /// Calls that waited for an answer ended with the process that had them. Where several machines
    /// share the database, nobody knows whose call a wait is, and it lasts until its end.
    pub(super) async fn end_former_waits(&self) -> Result<()> {
        if !self.core.machine_names().await?.is_empty() {
            return Ok(());
        }
        for state in [
            AssignmentState::Queued,
            AssignmentState::Starting,
            AssignmentState::Sent,
            AssignmentState::Running,
        ] {
            for work in self.core.store.assignments().in_state(state).await? {
                if let (Some(task), Some(until)) = (work.task_id, work.waits_until) {
                    self.stop_waiting(task, until).await?;
                }
            }
        }
        Ok(())
    }
}
