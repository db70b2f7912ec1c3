//! Tasks. `records` creates, reads, writes and watches them. This file has the sweep of tasks that
//! their runners do not end, and the change of a task's state that both use.

mod records;

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use svc_model::{
    MachineProcess, NewEvent, Ownership, ProcessIdentity, StreamName, Task, TaskChange, TaskId,
    TaskStatus, limits,
};
use svc_store::{StoreError, TaskRow, WriteTx, job};

use crate::boxed;
use crate::service::{Error, Result, core::Core, process, reads::ReadCache};

pub use records::{Cancelled, Created, LastFrames, TaskWatch};

pub(super) use records::make;

#[derive(Debug, Clone)]
pub struct Tasks {
    core: Core,
    read: Arc<ReadCache<OwnedTask>>,
}

#[derive(Debug, Serialize)]
struct OwnedTask {
    task: Arc<Task>,
    #[serde(skip)]
    owned: Ownership,
}

impl Tasks {
    pub(in crate::service) fn new(core: Core) -> Self {
        Self { core, read: Arc::default() }
    }

    /// Ends tasks that no runner began within `age`.
    #[boxed]
    pub async fn expire_tasks(&self, age: Duration) -> Result<()> {
        for row in self.core.store.tasks().old_pending(self.core.now().minus(age)).await? {
            let days = age.as_secs() / (24 * 60 * 60);
            let why = Some(format!("nobody began it within {days} days"));
            end_or_note(&self.core, row.task, TaskChange::to(TaskStatus::Expired, why)).await?;
        }
        Ok(())
    }

    /// Ends tasks whose runner's process is gone, or that have had no event for too long.
    #[boxed]
    pub async fn sweep_tasks(&self) -> Result<()> {
        let now = self.core.now();
        for row in self.core.store.tasks().silent(now.minus(self.core.tuning.runner_grace)).await? {
            let silence = now.since(row.task.updated_at);
            let end = match &row.process {
                Some(process) if !self.core.is_gone(process) => {
                    if row.task.reason.is_none() {
                        continue;
                    }
                    // The runner's machine was away, and is back.
                    TaskChange::to(TaskStatus::Active, None)
                }
                Some(MachineProcess { process: ProcessIdentity { pid, .. }, .. }) => {
                    TaskChange::to(
                        TaskStatus::Failed,
                        Some(format!("the process that ran it (pid {pid}) is gone")),
                    )
                }
                None if silence < limits::TASK_SILENCE => continue,
                None => TaskChange::to(
                    TaskStatus::Expired,
                    Some(format!("nothing was heard of it for {} h", silence.as_secs() / 3600)),
                ),
            };
            end_or_note(&self.core, row.task, end).await?;
        }
        Ok(())
    }
}

pub(in crate::service) fn stream_of(id: &TaskId) -> StreamName {
    StreamName::new("task", id)
}

/// Changes a task's state and appends the change to its stream; a final state closes the stream.
pub(in crate::service) async fn apply(
    tx: &mut WriteTx,
    row: &mut TaskRow,
    change: &TaskChange,
    producer_id: Option<String>,
) -> Result<i64, StoreError> {
    let stream = stream_of(&row.task.task_id);
    let head = tx.streams().state(&stream).await?.ok_or(StoreError::NoStream)?.head;
    row.task.apply(change, tx.now(), head + 1);
    if let Some(runner) = &change.runner {
        let machine_id = tx.machine_id().clone();
        row.process = Some(MachineProcess { machine_id, process: process::identity(runner.pid) });
    }
    let over = row.task.is_over();
    let mut event = NewEvent::new(if over { "terminal" } else { "task" }, &row.task);
    event.producer_id = producer_id.map(Into::into);
    let placed = tx.append(&stream, vec![event]).await?;
    tx.tasks().update(row).await?;
    if over {
        tx.streams().close(&stream).await?;
    }
    Ok(placed.last)
}

/// Ends a task, or notes why it does not continue; does nothing if the task got an event after it
/// was read.
pub(in crate::service) async fn end_or_note(
    core: &Core,
    read: Task,
    change: TaskChange,
) -> Result<()> {
    let Task { task_id: id, last_id, .. } = read;
    let write = core.store.write(job!(|tx| {
        let Some(mut row) = tx.tasks().get(&id).await? else {
            return Ok(());
        };
        if row.task.last_id == last_id && !row.task.is_over() {
            apply(tx, &mut row, &change, None).await?;
        }
        Ok::<(), Error>(())
    }));
    write.await
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::{Caller, TaskEvent, TaskEventBody};

    use super::*;
    use crate::service::testing::opened;

    #[tokio::test]
    async fn a_task_expires_if_no_runner_begins_it_and_not_while_it_runs() {
        const AGE: Duration = Duration::from_hours(720);
        let (test, services) = opened().await;
        let tasks = &services.tasks;
        let make = async |title: &str| {
            let input = serde_json::from_value(json!({ "title": title })).unwrap();
            tasks.create_task(&Caller::Operator, input).await.unwrap().task.task_id
        };
        let (old, begun) = (make("old").await, make("begun").await);
        test.clock.advance(AGE);
        let young = make("young").await;
        let body = TaskEventBody::Change(TaskChange::to(TaskStatus::Active, None));
        let active = TaskEvent { producer_id: None, body };
        tasks.append_task_events(&Caller::Operator, begun.as_str(), vec![active]).await.unwrap();
        tasks.expire_tasks(AGE).await.unwrap();
        let task = async |id: &TaskId| tasks.task(&Caller::Operator, id.as_str()).await.unwrap();
        assert_eq!(task(&old).await.status, TaskStatus::Expired);
        let why = task(&old).await.report.error.clone();
        assert_eq!(why.as_deref(), Some("nobody began it within 30 days"));
        assert_eq!(task(&begun).await.status, TaskStatus::Active);
        assert_eq!(task(&young).await.status, TaskStatus::Pending);
    }
}
