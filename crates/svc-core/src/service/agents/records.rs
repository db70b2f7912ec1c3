//! Functions on an agent's rows that the files of this service share.

use serde_json::{Value, json};
use svc_model::{
    AgentId, DeliveryState, NewEvent, Ownership, Principal, StreamName, StreamVisibility, Task,
    conversation::SourceTool, limits,
};
use svc_store::{AgentRow, DeliveryTerms, RequestRow, StoreError, TaskRow, WriteTx};

use crate::service::{
    Error, ResourceKind,
    assignments::{AgentSender, sender_of, tell},
    core::Core,
    tasks, team,
};

/// The stream of an agent. Its sequence numbers are the host's offsets.
pub(super) fn stream_of(id: &AgentId) -> StreamName {
    StreamName::new("agent", id)
}

/// The error for an agent that does not exist or that the caller may not see.
pub(super) fn unknown(id: &str) -> Error {
    Error::not_found(ResourceKind::Agent, id)
}

/// Appends an event about an agent to the team stream. Everybody reads that stream, so the event
/// holds presence and no more.
pub(super) async fn append_team_event(
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

/// Stores what a task waits for; `None` if it no longer waits.
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

/// Stores a change of a task other than of its state, and appends it to the task's stream.
pub(super) async fn note(tx: &mut WriteTx, task: &TaskRow) -> Result<(), Error> {
    let stream = tasks::stream_of(&task.task.task_id);
    let head = tx.streams().state(&stream).await?.map_or(0, |state| state.head);
    let shown = Task { last_id: head + 1, updated_at: tx.now(), ..task.task.clone() };
    tx.append(&stream, vec![NewEvent::new("task", &shown)]).await?;
    tx.tasks().update(task).await?;
    Ok(())
}

/// Makes a session the runner of a task, so that the agent may write to the task's stream.
pub(super) async fn give_to(
    tx: &mut WriteTx,
    task: &mut TaskRow,
    session: &str,
) -> Result<(), Error> {
    task.owned =
        Ownership { runner: Some(Principal::Session(session.into())), ..task.owned.clone() };
    let stream = tasks::stream_of(&task.task.task_id);
    tx.streams().set_visibility(&stream, &StreamVisibility::shared(&task.owned)).await?;
    let waited = task.task.reason.take().is_some();
    if waited {
        note(tx, task).await
    } else {
        tx.tasks().update(task).await?;
        Ok(())
    }
}

/// Notifies the operator's peers of an opened request.
pub(super) async fn notify_operator(
    tx: &mut WriteTx,
    core: &Core,
    row: &AgentRow,
    request: &RequestRow,
) -> Result<(), Error> {
    let info = &row.info;
    let options: Vec<&str> =
        request.options.iter().map(|option| option.option_id.as_str()).collect();
    // The question comes first, as lists show only the beginning.
    let text = format!(
        "May I? {}\n{} ({}) waits for your answer: svc agent answer {} {} OPTION ({})",
        request.title,
        info.session_key,
        info.id,
        info.id,
        request.request_id,
        options.join(", ")
    );
    let own = sender_of(tx, &info.session_key).await?;
    for peer in tx.peers().of_operator(limits::NOTIFIED_PEERS).await? {
        let terms = (Some(message_key(request)), DeliveryTerms::default());
        let from = AgentSender {
            session: &info.session_key,
            peer: own.clone(),
            project: row.owned.project.as_deref(),
        };
        let asks = (SourceTool::AgentRequest, text.clone());
        tell(tx, core, from, peer, asks, terms).await?;
    }
    Ok(())
}

/// The idempotency key of the messages about a request.
fn message_key(request: &RequestRow) -> String {
    format!("request-{}", request.request_id)
}

/// Acknowledges the messages about a closed request, as nobody has to answer it any more.
pub(super) async fn withdraw_from_operator(
    tx: &mut WriteTx,
    row: &AgentRow,
    request: &RequestRow,
) -> Result<(), StoreError> {
    let key = message_key(request);
    // The sender that `tell` used.
    let own = sender_of(tx, &row.info.session_key).await?;
    for message in tx.messages().all_by_key(&own, &key).await? {
        let to = message.to_peer.clone();
        team::advance(tx, &to, &mut [message], DeliveryState::Acked, None).await?;
    }
    Ok(())
}
