//! Work for a session that a person started and that hooks have reported. The session gets the
//! prompt as a question in its inbox. Its answer is the result of the task, and ends the task in
//! the commit that stores the answer. This file delivers the prompt, and ends the task if no answer
//! comes.

use svc_model::{
    Caller, DeliveryState, Message, MessageType, NewMessage, Ownership, Peer, PeerId,
    PeerReference, PeerStatus, Principal, Reader, TaskId, conversation::SourceTool,
    hook::HookClient, limits,
};
use svc_store::{
    AssignmentEnd, AssignmentRow, AssignmentState, DeliveryTerms, PeerRow, TaskRow, WriteTx, job,
};

use super::state::{give_to, set_reason};
use crate::service::{
    Error, Result,
    assignments::{
        self, AssignmentEvent, AssignmentOutcome, TaskEnd, caller_as, end_answered, retry,
    },
    core::Core,
    team,
};

/// Why the question of a task gets no answer by a turn or a call.
enum NoAnswer {
    /// The session or the message is gone, or the session did not take the message.
    Gone(&'static str),
    /// The session took the message; the outcome is unknown.
    Unknown,
    /// The requester cancelled the task.
    Cancelled,
    /// There is an answer that did not end the task: to another peer of the requester, or from a
    /// version in which answers ended no task.
    Answered(String),
}

/// The attended session with this key, if the caller may see it.
pub(super) async fn attended_of_key(
    core: &Core,
    caller: &Caller,
    named: &str,
) -> Result<Option<PeerRow>> {
    let Some(PeerReference::SessionKey(key)) = PeerReference::parse(named) else {
        return Ok(None);
    };
    let reader = Reader::from_caller(caller);
    let rows = core.store.peers().of_session_key(&key.session_id, limits::PAGE_DEFAULT).await?;
    let is_meant = |row: &PeerRow| {
        let is_there = row.peer.status != PeerStatus::Offline && row.peer.session_id.is_some();
        is_there && key.is_of(&row.clone().shown_to(&reader))
    };
    Ok(rows.into_iter().find(is_meant))
}

/// The attended sessions that may take a dispatch: of this backend and seen by the requester; those
/// of its project first.
pub(super) async fn attended_for(
    tx: &mut WriteTx,
    backend: &str,
    owned: &Ownership,
) -> Result<Vec<PeerRow>> {
    let Some(client) = HookClient::parse(backend) else { return Ok(Vec::new()) };
    let mut rows = tx.peers().attended(client.as_str(), limits::PAGE_DEFAULT).await?;
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
        let question = AttendedQuestion { core: core.clone(), task: task.clone(), message };
        let Some(end) = question.no_answer().await? else { continue };
        let ended = store.write(job!(|tx| question.end(tx, end).await));
        if let Err(error) = ended.await {
            if error.is_of_daemon() {
                return Err(error);
            }
            tracing::warn!(%task, %error, "cannot end the task of a message without an answer");
        }
    }
    Ok(())
}

struct AttendedQuestion {
    core: Core,
    task: TaskId,
    message: Option<Message>,
}

impl AttendedQuestion {
    /// Why no answer will come; `None` if one still may.
    async fn no_answer(&self) -> Result<Option<NoAnswer>> {
        let store = &self.core.store;
        let Some(message) = &self.message else {
            return Ok(Some(NoAnswer::Gone("its message is gone")));
        };
        if let Some(answer) = store.messages().answer_to(&message.id, &message.to_peer).await?
            && answer.kind == MessageType::Response
        {
            return Ok(Some(NoAnswer::Answered(answer.text)));
        }
        let task = store.tasks().get(&self.task).await?;
        if task.is_some_and(|row| row.task.cancel_requested_at.is_some()) {
            return Ok(Some(NoAnswer::Cancelled));
        }
        let peer = store.peers().get(&message.to_peer).await?;
        let is_there = peer.is_some_and(|row| row.peer.status != PeerStatus::Offline);
        Ok(match message.state {
            DeliveryState::Expired | DeliveryState::Refused | DeliveryState::Undeliverable => {
                Some(NoAnswer::Gone("the session did not take the prompt"))
            }
            _ if is_there => None,
            // What its client was given it may have begun.
            DeliveryState::Offered | DeliveryState::Injected | DeliveryState::Acked => {
                Some(NoAnswer::Unknown)
            }
            _ => Some(NoAnswer::Gone("the session ended before it took the prompt")),
        })
    }

    async fn end(self, tx: &mut WriteTx, why: NoAnswer) -> Result<()> {
        let Self { core, task: id, message } = self;
        // Another job may have moved the message since it was read. Then the next look decides.
        let message = match message {
            Some(read) => {
                let now = tx.messages().get(&read.id).await?;
                if now.as_ref().map(|now| now.state) != Some(read.state) {
                    return Ok(());
                }
                now
            }
            None => None,
        };
        let known = tx.assignments().of_task(&id).await?.filter(|it| it.ended_at.is_none());
        let (Some(mut work), Some(mut task)) = (known, tx.tasks().get(&id).await?) else {
            return Ok(());
        };
        let end = match why {
            NoAnswer::Answered(text) => {
                let (text, outcome) = (Some(text), AssignmentOutcome::Answered);
                return end_answered(tx, &core, &mut work, outcome, text).await;
            }
            NoAnswer::Gone(why) if !work.requirements.failover.is_empty() => {
                take_back(tx, message).await?;
                let next = work.requirements.failover.remove(0);
                work.requirements.peer_id = None;
                return retry(tx, &mut work, &task, next, why).await;
            }
            NoAnswer::Gone(why) => TaskEnd::new(AssignmentOutcome::Failed, Some(why.to_owned())),
            NoAnswer::Unknown => {
                TaskEnd::new(AssignmentOutcome::Failed, Some("outcome unknown".to_owned()))
            }
            NoAnswer::Cancelled => TaskEnd::new(AssignmentOutcome::Cancelled, None),
        };
        take_back(tx, message).await?;
        assignments::end(tx, &core, &mut work, &mut task, end).await
    }
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
