//! The sweeps of tasks that their runners do not end.

use std::time::Duration;

use svc_model::{MachineProcess, ProcessIdentity, Task, TaskChange, TaskStatus, limits};
use svc_store::job;

use super::{Tasks, apply};
use crate::boxed;
use crate::service::{Error, Result, assignments::end_otherwise, core::Core};

impl Tasks {
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

/// Ends a task and notifies its requester, or notes why it does not continue; does nothing if the
/// task got an event after it was read.
pub(in crate::service) async fn end_or_note(
    core: &Core,
    read: Task,
    change: TaskChange,
) -> Result<()> {
    let Task { task_id: id, last_id, .. } = read;
    let ending = core.clone();
    let write = core.store.write(job!(|tx| {
        let Some(mut row) = tx.tasks().get(&id).await? else {
            return Ok(());
        };
        if row.task.last_id != last_id || row.task.is_over() {
            return Ok(());
        }
        if change.status.is_terminal() {
            end_otherwise(tx, &ending, &mut row, &change).await?;
        } else {
            apply(tx, &mut row, &change, None).await?;
        }
        Ok::<(), Error>(())
    }));
    write.await
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::{Caller, NewTask, RunId, TaskEvent, TaskEventBody, TaskId};
    use svc_store::AssignmentRow;

    use super::*;
    use crate::service::{
        PageBounds,
        tasks::make,
        team,
        testing::{opened, session},
    };

    #[tokio::test]
    async fn whoever_gave_work_hears_that_it_expired() {
        const AGE: Duration = Duration::from_hours(720);
        let (test, services) = opened().await;
        let core = services.tasks.core.clone();
        let made = test.store.write(job!(|tx| {
            let caller = session("s-1", &[]);
            let peer = team::peer_of_speaker(tx, &core, &caller, "s-1").await?.peer_id;
            let new = NewTask { prompt: Some("go".to_owned()), ..NewTask::default() };
            let task = make(tx, &core, &caller, new).await?.task.task_id;
            let row = AssignmentRow {
                task_id: Some(task.clone()),
                instance: "slow".to_owned(),
                ..AssignmentRow::new(RunId::from_task(&task), "s-1".to_owned(), tx.now())
            };
            tx.assignments().insert(&row).await?;
            Ok::<_, Error>((peer, task))
        }));
        let (peer, task) = made.await.unwrap();
        test.clock.advance(AGE);
        services.tasks.expire_tasks(AGE).await.unwrap();
        let (caller, page) = (session("s-1", &[]), PageBounds::new(None, None));
        let inbox = services.team.take_messages(&caller, peer.as_str(), page).await.unwrap();
        let texts: Vec<&str> = inbox.items.iter().map(|message| &*message.text).collect();
        let expected =
            format!("Task {task} for slow has expired.\nError: nobody began it within 30 days");
        assert_eq!(texts, [expected]);
    }

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
