//! Work for a session that a person started and that hooks have reported. The session gets the
//! prompt as a question in its inbox. Its answer is the result of the task, and ends the task in
//! the commit that stores the answer. This file delivers the prompt, and ends the task if no answer
//! comes.

use svc_model::{
    Caller, DeliveryState, Message, MessageType, NewMessage, Ownership, Peer, PeerId, PeerStatus,
    Principal, TaskId, conversation::SourceTool, hook::HookClient, limits,
};
use svc_store::{
    AssignmentEnd, AssignmentRow, AssignmentState, DeliveryTerms, PeerRow, TaskRow, WriteTx, job,
};

use super::state::{give_to, set_reason};
use crate::service::{
    Error, Result,
    assignments::{self, AssignmentEvent, AssignmentOutcome, TaskEnd, caller_as, end_or_retry},
    core::Core,
    team,
};

/// The attended sessions that may take a dispatch: of this backend and seen by the requester; those
/// of its project first.
pub(super) async fn attended_for(
    tx: &mut WriteTx,
    backend: &str,
    owned: &Ownership,
) -> Result<Vec<PeerRow>> {
    let Some(client) = HookClient::parse(backend) else { return Ok(Vec::new()) };
    let mut rows = tx.peers().attended(client.as_str(), limits::PAGE_MAX).await?;
    let is_near = |row: &PeerRow| row.project.is_some() && row.project == owned.project;
    rows.retain(|row| match &owned.owner {
        Some(Principal::Operator) => true,
        // A session does not take its own dispatch.
        Some(Principal::Session(key)) => row.owner.as_deref() != Some(&**key) && is_near(row),
        None => false,
    });
    rows.sort_by_key(|row| !is_near(row));
    Ok(rows)
}

/// The session that a peer speaks for: its key, and its principal.
pub(super) fn session_of(row: &PeerRow) -> (String, &str) {
    let principal = row.owner.as_deref().or(row.peer.session_id.as_deref()).unwrap_or_default();
    (row.session_key().unwrap_or_else(|| principal.to_owned()), principal)
}

pub(super) async fn ask_attended(
    tx: &mut WriteTx,
    core: &Core,
    work: &mut AssignmentRow,
    task: &mut TaskRow,
    row: &PeerRow,
) -> Result<()> {
    let (caller, from) = asker(tx, core, task).await?;
    work.source_peer = PeerId::parse(&from).unwrap_or_else(PeerId::operator);
    let input = NewMessage {
        idempotency_key: Some(format!("task-{}", task.task.task_id)),
        ..team::plain_message(task.task.prompt.clone().unwrap_or_default(), MessageType::Query)
    };
    let tool = SourceTool::SendMessage;
    let outgoing = team::OutgoingMessage {
        run_id: Some(work.run_id.clone()),
        ..team::OutgoingMessage::new(core.clone(), caller, from, input, tool)
    };
    let to = row.peer.peer_id.clone();
    let terms = DeliveryTerms::default();
    let message = team::deliver(tx, &outgoing, to.clone(), MessageType::Query, terms).await?;
    let (session, principal) = session_of(row);
    work.set_target(AssignmentEnd { session, peer: to, agent: None });
    work.message_id = Some(message.id);
    assignments::apply(tx, work, AssignmentEvent::Stored).await?;
    give_to(tx, task, principal).await?;
    set_reason(tx, task, Some(waits_in_inbox(&row.peer))).await
}

/// Ends the tasks whose questions will get no answer.
pub(super) async fn end_unanswered(core: &Core) -> Result<()> {
    let store = &core.store;
    let mut work = store.assignments().in_state(AssignmentState::Sent).await?;
    work.extend(store.assignments().in_state(AssignmentState::Running).await?);
    for work in work {
        let (Some(id), Some(task)) = (work.message_id, work.task_id) else { continue };
        let message = store.messages().get(&id).await?;
        let Some(end) = no_answer(core, &task, message.as_ref()).await? else { continue };
        let (owned, of) = (core.clone(), task.clone());
        let ended = store.write(job!(|tx| end_as(tx, &owned, &of, message, end).await));
        if let Err(error) = ended.await {
            if error.is_of_daemon() {
                return Err(error);
            }
            tracing::warn!(%task, %error, "cannot end the task of a message without an answer");
        }
    }
    Ok(())
}

/// How a task ends whose question will get no answer by a turn or a call; `None` if an answer may
/// come.
async fn no_answer(
    core: &Core,
    task: &TaskId,
    message: Option<&Message>,
) -> Result<Option<TaskEnd>> {
    let not_begun = |why: &str| Some(TaskEnd::not_begun(why.to_owned()));
    let Some(message) = message else { return Ok(not_begun("its message is gone")) };
    let task = core.store.tasks().get(task).await?;
    if task.is_some_and(|row| row.task.cancel_requested_at.is_some()) {
        return Ok(Some(TaskEnd::new(AssignmentOutcome::Cancelled, None)));
    }
    let peer = core.store.peers().get(&message.to_peer).await?;
    let is_there = peer.is_some_and(|row| row.peer.status != PeerStatus::Offline);
    Ok(match message.state {
        DeliveryState::Expired | DeliveryState::Refused | DeliveryState::Undeliverable => {
            not_begun("the session did not take the prompt")
        }
        _ if is_there => None,
        // What its client was given it may have begun.
        DeliveryState::Offered | DeliveryState::Injected | DeliveryState::Acked => {
            Some(TaskEnd::new(AssignmentOutcome::Failed, Some("outcome unknown".to_owned())))
        }
        _ => not_begun("the session ended before it took the prompt"),
    })
}

/// Ends a task whose question will get no answer, unless another job has moved the message since
/// it was read: then the next look decides.
async fn end_as(
    tx: &mut WriteTx,
    core: &Core,
    task: &TaskId,
    message: Option<Message>,
    end: TaskEnd,
) -> Result<()> {
    if let Some(read) = &message {
        let now = tx.messages().get(&read.id).await?;
        if now.map(|now| now.state) != Some(read.state) {
            return Ok(());
        }
    }
    let known = tx.assignments().of_task(task).await?.filter(|it| it.ended_at.is_none());
    let (Some(mut work), Some(mut task)) = (known, tx.tasks().get(task).await?) else {
        return Ok(());
    };
    take_back(tx, message).await?;
    end_or_retry(tx, core, &mut work, &mut task, end).await
}

/// Why a prompt waits in the inbox of a session, and what has to happen before the session gets it.
fn waits_in_inbox(peer: &Peer) -> String {
    let (name, status) = (&peer.display_name, peer.status.as_str());
    let is_woken = HookClient::parse(&peer.backend) == Some(HookClient::ClaudeCode);
    let until = match peer.status {
        PeerStatus::Waiting if peer.is_limited() => ": its vendor refuses for usage",
        PeerStatus::Waiting => ": somebody has to answer at its terminal first",
        PeerStatus::Online | PeerStatus::Idle if !is_woken => {
            ": it reads the prompt when somebody types there"
        }
        _ => "",
    };
    format!("waits in the inbox of {name}, which is {status}{until}")
}

/// Withdraws a message that its receiver does not have yet. A message that the receiver has is no
/// open question any more.
async fn take_back(tx: &mut WriteTx, message: Option<Message>) -> Result<()> {
    const TASK_OVER: &str = "its task is over";
    let Some(mut message) = message else { return Ok(()) };
    let to: PeerId = message.to_peer.clone();
    let question = std::slice::from_mut(&mut message);
    match question[0].state {
        DeliveryState::Accepted | DeliveryState::Queued => {
            let gone = DeliveryState::Undeliverable;
            team::advance(tx, &to, question, gone, Some(TASK_OVER)).await?;
        }
        DeliveryState::Offered | DeliveryState::Injected | DeliveryState::Acked => {
            team::close_questions(tx, &to, question, TASK_OVER).await?;
        }
        DeliveryState::Expired | DeliveryState::Refused | DeliveryState::Undeliverable => {}
    }
    Ok(())
}

/// The requester, and the peer that its answer goes to. A session without a peer gets one.
async fn asker(tx: &mut WriteTx, core: &Core, task: &TaskRow) -> Result<(Caller, String)> {
    // A `from` that is not a peer id names a principal, and no answer can be sent to it.
    let named = task.task.from.clone().filter(|from| PeerId::parse(from).is_some());
    Ok(match &task.owned.owner {
        Some(Principal::Session(key)) => {
            let caller = caller_as(key, task.owned.project.as_deref());
            let from = if let Some(named) = named {
                named
            } else {
                let own = team::peer_of_speaker(tx, core, &caller, key).await?;
                own.peer_id.to_string()
            };
            (caller, from)
        }
        Some(Principal::Operator) => {
            (Caller::Operator, named.unwrap_or_else(|| PeerId::OPERATOR.to_owned()))
        }
        // An owner that does not parse is not the operator.
        None => return Err(Error::Forbidden("the owner of this task is unknown".to_owned())),
    })
}
