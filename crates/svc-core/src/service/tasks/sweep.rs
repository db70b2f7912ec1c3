//! Ends tasks that their runners do not end.

use std::time::Duration;

use svc_model::{MachineProcess, ProcessIdentity, Task, TaskChange, TaskStatus, limits};

use super::{Tasks, change::apply};
use crate::service::{Error, core::Core};

impl Tasks {
    /// Ends tasks that no runner began within `age`.
    pub async fn expire_tasks(&self, age: Duration) -> Result<(), Error> {
        for row in self.core.store.tasks().old_pending(self.core.now().minus(age)).await? {
            let days = age.as_secs() / (24 * 60 * 60);
            let why = Some(format!("nobody began it within {days} days"));
            end_or_note(&self.core, row.task, TaskChange::to(TaskStatus::Expired, why)).await?;
        }
        Ok(())
    }

    /// Ends tasks whose runner's process is gone, or that have had no event for too long.
    pub async fn sweep_tasks(&self) -> Result<(), Error> {
        let now = self.core.now();
        for row in self.core.store.tasks().silent(now.minus(self.core.tuning.runner_grace)).await? {
            let silence = now.since(row.task.updated_at);
            let end = match &row.process {
                Some(process) if !self.core.is_gone(process) => {
                    if row.task.reason.is_none() {
                        continue;
                    }
                    // Its machine was away, and is back.
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

/// Ends a task, or notes why it does not go on, unless it got an event since it was read.
pub(in crate::service) async fn end_or_note(
    core: &Core,
    read: Task,
    change: TaskChange,
) -> Result<(), Error> {
    let Task { task_id: id, last_id, .. } = read;
    core.store
        .write(move |tx| {
            Box::pin(async move {
                let Some(mut row) = tx.tasks().get(&id).await? else {
                    return Ok(());
                };
                if row.task.last_id == last_id && !row.task.is_over() {
                    apply(tx, &mut row, &change, None).await?;
                }
                Ok::<(), Error>(())
            })
        })
        .await
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::{Caller, TaskEvent, TaskEventBody, TaskId};
    use svc_store::testing::TestStore;

    use super::*;
    use crate::service::testing::services;

    #[tokio::test]
    async fn a_task_expires_if_no_runner_begins_it_and_not_while_it_runs() {
        const AGE: Duration = Duration::from_hours(720);
        let test = TestStore::open().await;
        let services = services(&test);
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
