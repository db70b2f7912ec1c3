//! Assignments on record: the row, the events in the streams of both ends, and the task that
//! begins.

use serde_json::json;
use svc_model::{MessageId, NewEvent, TaskChange, TaskStatus, conversation::RunState};
use svc_store::{AssignmentRow, StoreError, WriteTx};

use super::state::{AssignmentEffect, AssignmentEvent, next};
use crate::service::{tasks, team};

/// Stores an assignment that is in an inbox from the beginning, and says so to both ends.
pub(in crate::service) async fn open(
    tx: &mut WriteTx,
    row: &AssignmentRow,
) -> Result<(), StoreError> {
    tx.assignments().insert(row).await?;
    tell_ends(tx, row).await
}

/// Stores what an event makes of an assignment, with what else has changed of the row. Returns how
/// its task ends now, which the caller sees to.
pub(in crate::service) async fn apply(
    tx: &mut WriteTx,
    row: &mut AssignmentRow,
    event: AssignmentEvent,
) -> Result<Option<TaskStatus>, StoreError> {
    let Some(step) = next(row.state, row.mode, event) else { return Ok(None) };
    row.state = step.state;
    if event == AssignmentEvent::Begun {
        row.begun_at.get_or_insert(tx.now());
    }
    if row.state.is_over() {
        row.ended_at.get_or_insert(tx.now());
    }
    tx.assignments().update(row).await?;
    let mut ends = None;
    for effect in step.effects {
        match effect {
            AssignmentEffect::Tell => tell_ends(tx, row).await?,
            AssignmentEffect::BeginTask => begin_task(tx, row).await?,
            AssignmentEffect::EndTask(status) => ends = Some(*status),
        }
    }
    Ok(ends)
}

async fn begin_task(tx: &mut WriteTx, row: &AssignmentRow) -> Result<(), StoreError> {
    let Some(id) = &row.task_id else { return Ok(()) };
    if let Some(mut task) = tx.tasks().get(id).await?
        && task.task.status == TaskStatus::Pending
    {
        let change = TaskChange::to(TaskStatus::Active, None);
        tasks::apply(tx, &mut task, &change, None).await?;
    }
    Ok(())
}

/// Says in the streams of both ends how far a message is.
async fn tell_ends(tx: &mut WriteTx, row: &AssignmentRow) -> Result<(), StoreError> {
    if row.message_id.is_none() {
        return Ok(());
    }
    let state = row.state.as_run();
    let kind = match state {
        RunState::Queued => "run.queued",
        RunState::Running => "run.began",
        _ => "run.ended",
    };
    let mut data = json!({
        "run_id": row.run_id, "message_id": row.message_id, "state": state, "mode": row.mode,
        "source_session": row.source_session, "target_session": row.target_session,
    });
    for (name, text) in [
        ("reply_id", row.reply_id.as_ref().map(MessageId::as_str)),
        ("reason", row.reason.as_deref()),
        ("error", row.error.as_deref()),
    ] {
        if let Some(text) = text {
            data[name] = text.into();
        }
    }
    for peer in [&row.source_peer, &row.target_peer] {
        team::append_to_peer(tx, peer, vec![NewEvent::new(kind, &data)]).await?;
    }
    Ok(())
}
