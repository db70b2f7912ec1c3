//! Tasks. `records` creates, reads, writes and watches them, and ends those that their runners do
//! not end. This file has the change of a task's state, which other services use, too.

mod records;

use std::sync::Arc;

use serde::Serialize;
use svc_model::{MachineProcess, NewEvent, Ownership, StreamName, Task, TaskChange, TaskId};
use svc_store::{StoreError, TaskRow, WriteTx};

use crate::service::{core::Core, process, reads::ReadCache};

pub use records::{Cancelled, Created, TaskWatch};

pub(super) use records::{end_or_note, make};

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
