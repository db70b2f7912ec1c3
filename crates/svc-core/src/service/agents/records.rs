//! What all files of this room say of an agent's records.

use serde_json::{Value, json};
use svc_model::{AgentId, NewEvent, StreamName, StreamVisibility, Task};
use svc_store::{AgentRow, StoreError, TaskRow, WriteTx};

use crate::service::{Error, ResourceKind, tasks};

/// The stream of an agent, whose numbers are its host's.
pub(super) fn stream_of(id: &AgentId) -> StreamName {
    StreamName::new("agent", id)
}

/// There is no such agent, or the caller may not see it.
pub(super) fn unknown(id: &str) -> Error {
    Error::not_found(ResourceKind::Agent, id)
}

/// Tells everybody about an agent. Everybody reads it, so it holds presence and no more.
pub(super) async fn tell_team(
    tx: &mut WriteTx,
    kind: &'static str,
    row: &AgentRow,
    about: Value,
) -> Result<(), StoreError> {
    let info = &row.info;
    let mut data = json!({
        "agent_id": info.id, "instance": info.instance, "backend": info.backend,
        "session_key": info.session_key, "state": info.state,
    });
    if let (Some(data), Value::Object(about)) = (data.as_object_mut(), about) {
        data.extend(about.into_iter().filter(|(_, value)| !value.is_null()));
    }
    let team = StreamName::fixed(StreamName::TEAM);
    tx.streams().open(&team, &StreamVisibility::Team).await?;
    tx.append(&team, vec![NewEvent::new(kind, &data)]).await?;
    Ok(())
}

/// Says what a task waits for, or that it does not wait any more.
pub(super) async fn set_reason(
    tx: &mut WriteTx,
    task: &mut TaskRow,
    reason: Option<String>,
) -> Result<(), Error> {
    if task.task.reason == reason {
        return Ok(());
    }
    task.task.reason = reason;
    note(tx, task).await
}

/// Stores a change of a task that is no change of its state, and says so in its stream.
pub(super) async fn note(tx: &mut WriteTx, task: &TaskRow) -> Result<(), Error> {
    let stream = tasks::stream_of(&task.task.task_id);
    let head = tx.streams().state(&stream).await?.map_or(0, |state| state.head);
    let shown = Task { last_id: head + 1, updated_at: tx.now(), ..task.task.clone() };
    tx.append(&stream, vec![NewEvent::new("task", &shown)]).await?;
    tx.tasks().update(task).await?;
    Ok(())
}
