//! A change of a task, with its event.

use svc_model::{MachineProcess, NewEvent, StreamName, TaskChange, TaskId};
use svc_store::{StoreError, TaskRow, WriteTx};

use crate::service::process;

/// The stream of a task.
pub(in crate::service) fn stream_of(id: &TaskId) -> StreamName {
    StreamName::new("task", id)
}

/// Changes a task's state and says so in its stream; a final state closes it.
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
