//! How assigned work ends: the terminal event of its task, the message to the requester, which the
//! daemon writes in the agent's name, and another attempt if the agent has said nothing yet.

use std::fmt::Write as _;

use serde_json::json;
use svc_model::{
    Caller, DeliveryState, Message, MessageId, MessageType, NewEvent, NewMessage, PeerId,
    Principal, RunId, Task, TaskChange, TaskReport, TaskStatus, Timestamp,
    agent::{AgentBackend, AgentState, TurnEnd, TurnOutcome},
    conversation::{RunState, SourceTool},
    limits,
};
use svc_store::{
    AgentRow, AssignmentEnd, AssignmentRow, DeliveryTerms, StoreError, TaskRow, WriteTx,
};
use svc_sys::process_list;

use super::{AssignmentEvent, AssignmentOutcome, apply};
use crate::service::{Error, Result, core::Core, tasks, team};

/// Attempts with agents that were lost before they had the prompt.
const LOST_ATTEMPTS: u32 = 5;

pub(in crate::service) struct TaskEnd {
    outcome: AssignmentOutcome,
    result: Option<String>,
    report: TaskReport,
    /// Another instance may try: nobody said anything, and the prompt certainly had no effect.
    may_retry: bool,
}

impl TaskEnd {
    pub(in crate::service) fn new(outcome: AssignmentOutcome, error: Option<String>) -> Self {
        let report = TaskReport { error, ..TaskReport::default() };
        Self { outcome, result: None, report, may_retry: false }
    }

    /// The failure of work that nobody has begun.
    pub(in crate::service) fn not_begun(error: String) -> Self {
        Self { may_retry: true, ..Self::new(AssignmentOutcome::Failed, Some(error)) }
    }
}

/// Why an ended turn gives no answer: a code, and a text for people. `None` if the turn was
/// completed.
pub(super) fn failure_of(turn: &TurnEnd) -> Option<(&'static str, String)> {
    let (code, otherwise) = match turn.outcome {
        TurnOutcome::Completed => return None,
        TurnOutcome::Interrupted => ("interrupted", INTERRUPTED),
        TurnOutcome::Failed => ("failed", "the turn failed"),
        TurnOutcome::Refused => ("refused", "the vendor refused"),
        TurnOutcome::Ended => ("target_ended", "the program ended in the turn"),
    };
    Some((code, turn.error.clone().unwrap_or_else(|| otherwise.to_owned())))
}

pub(super) const INTERRUPTED: &str = "the turn was interrupted";

/// Settles a task whose turn ended. An `exec` agent that was started for the task settles it at its
/// exit instead, which has the exit code and the signal.
pub(in crate::service) async fn settle_turn(
    tx: &mut WriteTx,
    core: &Core,
    row: &AgentRow,
    work: &mut AssignmentRow,
    turn: &TurnEnd,
) -> Result<()> {
    let Some(task) = task_of(tx, work).await? else { return Ok(()) };
    let is_cancelled = task.task.cancel_requested_at.is_some();
    let waits_for_exit = row.info.backend == AgentBackend::Exec
        || is_cancelled
        || turn.outcome == TurnOutcome::Ended;
    if work.is_spawned && waits_for_exit {
        work.turn = Some(turn.clone());
        tx.assignments().update(work).await?;
        return Ok(());
    }
    let end = of_turn(turn, work, is_cancelled);
    settle(tx, core, row, work, task, end).await
}

/// Settles the work of an agent that has ended.
pub(in crate::service) async fn settle_exit(
    tx: &mut WriteTx,
    core: &Core,
    row: &AgentRow,
    work: &mut AssignmentRow,
) -> Result<()> {
    let Some(task) = task_of(tx, work).await? else { return Ok(()) };
    let is_cancelled = task.task.cancel_requested_at.is_some();
    let turn = work.turn.take();
    let turn = turn.as_ref();
    let at_its_end = turn.filter(|turn| turn.outcome != TurnOutcome::Ended);
    let mut end = if let Some(turn) = at_its_end {
        of_turn(turn, work, is_cancelled)
    } else {
        let result = turn.and_then(|turn| turn.result.clone());
        TaskEnd { result, ..of_exit(row, work) }
    };
    if turn.is_some() && end.outcome != AssignmentOutcome::Cancelled {
        end.report.exit_code = row.info.exit_code.or(end.report.exit_code);
    }
    // A program that was stopped because its turn was over failed not by its signal.
    if turn.is_some() && end.outcome == AssignmentOutcome::Failed {
        end.report.signal = row.info.signal.map(signal_name);
    }
    if is_cancelled {
        end = TaskEnd { outcome: AssignmentOutcome::Cancelled, may_retry: false, ..end };
    }
    settle(tx, core, row, work, task, end).await
}

fn of_turn(turn: &TurnEnd, work: &AssignmentRow, is_cancelled: bool) -> TaskEnd {
    let result = turn.result.clone();
    let Some((_, error)) = failure_of(turn) else {
        return TaskEnd { result, ..TaskEnd::new(AssignmentOutcome::Answered, None) };
    };
    if is_cancelled && turn.outcome == TurnOutcome::Interrupted {
        return TaskEnd { result, ..TaskEnd::new(AssignmentOutcome::Cancelled, None) };
    }
    let may_retry = matches!(turn.outcome, TurnOutcome::Refused | TurnOutcome::Failed);
    TaskEnd {
        result,
        may_retry: may_retry && !work.has_words,
        ..TaskEnd::new(AssignmentOutcome::Failed, Some(error))
    }
}

/// The end of a task whose agent ended without reporting the end of the turn.
fn of_exit(row: &AgentRow, work: &AssignmentRow) -> TaskEnd {
    let info = &row.info;
    let failed = |otherwise: String, may_retry: bool| TaskEnd {
        outcome: AssignmentOutcome::Failed,
        result: None,
        report: TaskReport {
            exit_code: info.exit_code,
            signal: info.signal.map(signal_name),
            error: Some(info.error.clone().unwrap_or(otherwise)),
        },
        may_retry,
    };
    if work.taken_at.is_none() {
        // The host has every prompt on record before the agent has it.
        return failed("the agent ended before it took the prompt".to_owned(), true);
    }
    if info.state == AgentState::Lost {
        let mut lost = failed(String::new(), false);
        lost.report.error = Some("outcome unknown".to_owned());
        return lost;
    }
    // For `exec`, the exit of the program is the answer. An agent of another backend that ended
    // before it answered has no answer, whatever its exit code.
    let is_answer = info.backend == AgentBackend::Exec && info.state == AgentState::Done;
    match (info.exit_code, info.signal) {
        (Some(0), _) if is_answer => TaskEnd {
            report: TaskReport { exit_code: Some(0), ..TaskReport::default() },
            ..TaskEnd::new(AssignmentOutcome::Answered, None)
        },
        (Some(0), _) => failed("the agent ended before it answered".to_owned(), false),
        (Some(code), _) => {
            failed(format!("the program ended with exit code {code}"), !work.has_words)
        }
        (None, Some(signal)) => {
            failed(format!("the program was ended by {}", signal_name(signal)), false)
        }
        (None, None) => failed("outcome unknown".to_owned(), false),
    }
}

async fn settle(
    tx: &mut WriteTx,
    core: &Core,
    row: &AgentRow,
    work: &mut AssignmentRow,
    mut task: TaskRow,
    end_as: TaskEnd,
) -> Result<()> {
    if task.task.is_over() {
        return Ok(());
    }
    let was_lost = row.info.state == AgentState::Lost && work.taken_at.is_none();
    if was_lost && end_as.may_retry && work.attempt < LOST_ATTEMPTS {
        let (same, error) = (work.instance.clone(), end_as.report.error.unwrap_or_default());
        return retry(tx, work, &task, same, &error).await;
    }
    end_or_retry(tx, core, work, &mut task, end_as).await
}

/// Ends work and its task, or gives them to the next instance of the failover.
pub(in crate::service) async fn end_or_retry(
    tx: &mut WriteTx,
    core: &Core,
    work: &mut AssignmentRow,
    task: &mut TaskRow,
    end_as: TaskEnd,
) -> Result<()> {
    let is_named = work.requirements.agent_id.is_some();
    if !end_as.may_retry || is_named || work.requirements.failover.is_empty() {
        return end(tx, core, work, task, end_as).await;
    }
    let next = work.requirements.failover.remove(0);
    work.requirements.peer_id = None;
    retry(tx, work, task, next, &end_as.report.error.unwrap_or_default()).await?;
    core.work.notify_one();
    Ok(())
}

async fn task_of(tx: &mut WriteTx, work: &AssignmentRow) -> Result<Option<TaskRow>, StoreError> {
    match &work.task_id {
        Some(id) => tx.tasks().get(id).await,
        None => Ok(None),
    }
}

/// Puts a task back into the queue for another attempt, with an event about the failed one.
async fn retry(
    tx: &mut WriteTx,
    work: &mut AssignmentRow,
    task: &TaskRow,
    next: String,
    error: &str,
) -> Result<()> {
    let stream = tasks::stream_of(&task.task.task_id);
    let head = tx.streams().state(&stream).await?.map_or(0, |state| state.head);
    let shown = Task { last_id: head + 1, updated_at: tx.now(), ..task.task.clone() };
    let mut event = json!(shown);
    event["attempt"] = json!(work.attempt);
    event["instance"] = json!(work.instance);
    event["error"] = json!(error);
    tx.append(&stream, vec![NewEvent::new("task", &event)]).await?;
    work.instance = next;
    work.attempt += 1;
    (work.message_id, work.is_spawned) = (None, false);
    work.set_target(AssignmentEnd::default());
    (work.taken_at, work.begun_at, work.turn) = (None, None, None);
    (work.has_words, work.said) = (false, 0);
    apply(tx, work, AssignmentEvent::Retried).await?;
    Ok(())
}

/// Ends work and its task, and notifies the requester.
pub(in crate::service) async fn end(
    tx: &mut WriteTx,
    core: &Core,
    work: &mut AssignmentRow,
    task: &mut TaskRow,
    mut end: TaskEnd,
) -> Result<()> {
    let is_late = is_late(work.deadline, task.task.cancel_requested_at, tx.now());
    if is_late && end.outcome == AssignmentOutcome::Cancelled {
        // The deadline cancelled the work, not its source, so the source is told the reason.
        end.report.error = Some("its time was over".to_owned());
    }
    if work.message_id.is_some() && end.report.error.is_some() {
        work.error.clone_from(&end.report.error);
    }
    let Some(status) = apply(tx, work, AssignmentEvent::Ended(end.outcome)).await? else {
        return Ok(());
    };
    task.task.set_result(end.result);
    let change = TaskChange { report: end.report, ..TaskChange::to(status, None) };
    tasks::apply(tx, task, &change, None).await?;
    notify_requester(tx, core, work, task).await
}

/// Whether cancelled work was cancelled at its deadline or after it. A stop takes time, so an
/// earlier cancel may have its effect only after the deadline.
fn is_late(deadline: Option<Timestamp>, asked: Option<Timestamp>, now: Timestamp) -> bool {
    deadline.is_some_and(|deadline| deadline <= asked.unwrap_or(now))
}

/// Ends an assignment that is a message, and its task if it has one, with the outcome of its turn
/// or with an answer by a call. If the assignment has ended already, only stores the reply.
pub(in crate::service) async fn end_answered(
    tx: &mut WriteTx,
    core: &Core,
    work: &mut AssignmentRow,
    outcome: AssignmentOutcome,
    result: Option<String>,
) -> Result<()> {
    let Some(mut task) = task_of(tx, work).await?.filter(|_| work.ended_at.is_none()) else {
        if work.ended_at.is_some() {
            tx.assignments().update(work).await?;
        }
        apply(tx, work, AssignmentEvent::Ended(outcome)).await?;
        return Ok(());
    };
    let is_cancelled =
        task.task.cancel_requested_at.is_some() && outcome == AssignmentOutcome::Failed;
    let end_as = if is_cancelled {
        TaskEnd::new(AssignmentOutcome::Cancelled, None)
    } else {
        TaskEnd { result, ..TaskEnd::new(outcome, work.error.clone()) }
    };
    end(tx, core, work, &mut task, end_as).await?;
    let is_of_person = task.task.from.is_none() && task.owned.owner == Some(Principal::Operator);
    if is_of_person && task.task.status == TaskStatus::Done {
        // There is no peer to notify: the person reads the answer in the task.
        note_returned(tx, work).await?;
    }
    Ok(())
}

/// Ends a task by a change that is no outcome of its assignment, and notifies the requester.
pub(in crate::service) async fn end_otherwise(
    tx: &mut WriteTx,
    core: &Core,
    task: &mut TaskRow,
    change: &TaskChange,
) -> Result<()> {
    let work = tx.assignments().of_task(&task.task.task_id).await?;
    tasks::apply(tx, task, change, None).await?;
    match work {
        Some(work) => notify_requester(tx, core, &work, task).await,
        None => Ok(()),
    }
}

/// Notifies the requester of a task, by a message in the inbox of the requester's peer.
async fn notify_requester(
    tx: &mut WriteTx,
    core: &Core,
    work: &AssignmentRow,
    task: &TaskRow,
) -> Result<()> {
    // The answer of an attended session is a message already, to the requester or to another
    // session of the requester's process.
    let is_answered = work.message_id.is_some() && task.task.status == TaskStatus::Done;
    let reply = match &work.reply_id {
        Some(id) if is_answered => tx.messages().get(id).await?,
        _ => None,
    };
    let named = task.task.from.as_deref().and_then(PeerId::parse);
    let peer = match (&task.owned.owner, named) {
        (_, Some(id)) => tx.peers().get(&id).await?,
        (Some(Principal::Session(session)), None) => tx.peers().of_key(session).await?,
        (Some(Principal::Operator) | None, None) => None,
    };
    let Some(peer) = peer else { return Ok(()) };
    // The operator reads the messages of all people's peers.
    let has_reply =
        |reply: Message| reply.to_peer == peer.peer.peer_id || peer.peer.peer_id.is_operator();
    if is_answered && reply.is_none_or(has_reply) {
        return Ok(());
    }
    if let (Some(agent), Some(Principal::Session(key))) = (&work.source_agent, &task.owned.owner) {
        // A later agent of this name did not ask.
        let live = tx.agents().live(key).await?;
        if live.is_none_or(|live| live.info.id != *agent) {
            return Ok(());
        }
    }
    let text = describe_end(&task.task, &work.instance);
    let session = writer_of(work, task);
    let from = writing_peer(tx, work, &session).await?;
    let key = end_key(&task.task);
    let project = task.owned.project.as_deref();
    let tool = work.source_tool.unwrap_or(SourceTool::SendMessage);
    let held_until = work.waits_until.filter(|until| *until > tx.now());
    let terms = DeliveryTerms { held_until, ..DeliveryTerms::default() };
    let from = AgentSender { session: &session, peer: from, project, run: Some(&work.run_id) };
    tell(tx, core, from, peer.peer.peer_id, (tool, text), (Some(key), terms)).await
}

/// Notes that the call which waited for the answer has returned it, so that the requester is not
/// notified again.
pub(in crate::service) async fn note_returned(
    tx: &mut WriteTx,
    work: &mut AssignmentRow,
) -> Result<()> {
    work.waits_until = None;
    work.answered.get_or_insert(work.state.as_run());
    tx.assignments().update(work).await?;
    for mut message in messages_with_outcome(tx, work).await? {
        let (to, why) = (message.to_peer.clone(), Some("the call had it"));
        let had = std::slice::from_mut(&mut message);
        team::advance(tx, &to, had, DeliveryState::Acked, why).await?;
    }
    Ok(())
}

/// Holds the messages with the outcome of ended work until the end of the last wait for it. If no
/// call waits any more, the inbox hands them out now.
pub(in crate::service) async fn hold_answer(
    tx: &mut WriteTx,
    work: &AssignmentRow,
) -> Result<(), StoreError> {
    for message in messages_with_outcome(tx, work).await? {
        if message.state < DeliveryState::Offered {
            team::hold(tx, &message, work.waits_until).await?;
        }
    }
    Ok(())
}

/// Whether the inbox has handed out the answer of work, so that no call returns it again. What no
/// call waits for goes to a hosted agent's host at once, and has its state until its turn begins.
pub(in crate::service) async fn is_answer_given(
    tx: &mut WriteTx,
    work: &AssignmentRow,
) -> Result<bool, StoreError> {
    use DeliveryState::{Acked, Injected, Offered};
    let is_held = work.waits_until.is_some_and(|until| until > tx.now());
    let is_with_host = work.source_agent.is_some() && !is_held;
    let messages = messages_with_outcome(tx, work).await?;
    Ok(messages.iter().any(|message| {
        matches!(message.state, Offered | Injected | Acked)
            || is_with_host && message.state < Offered
    }))
}

/// Sends the messages with the outcome of ended work once more: the call that took the outcome was
/// cut before its response was handed over.
pub(in crate::service) async fn tell_again(
    tx: &mut WriteTx,
    core: &Core,
    work: &mut AssignmentRow,
) -> Result<(), StoreError> {
    work.answered = Some(RunState::Queued);
    for taken in messages_with_outcome(tx, work).await? {
        if taken.state != DeliveryState::Acked {
            continue;
        }
        let now = tx.now();
        let mut again =
            Message { id: MessageId::new(&core.ids, now), timestamp: now, ..taken.clone() };
        let sender = match PeerId::parse(&taken.from_peer) {
            Some(id) => tx.peers().get(&id).await?,
            None => None,
        };
        let sent_by = sender.map_or(taken.from_peer, |row| row.principal().to_string());
        // A late reply may be answered.
        let turn = (taken.kind == MessageType::Response).then_some(1);
        let terms = DeliveryTerms { turn, ..DeliveryTerms::default() };
        team::put(tx, &mut again, (&sent_by, None), terms).await?;
        if work.reply_id == Some(taken.id) {
            work.reply_id = Some(again.id);
        }
    }
    tx.assignments().update(work).await
}

/// The messages that tell a requester how work ended.
async fn messages_with_outcome(
    tx: &mut WriteTx,
    work: &AssignmentRow,
) -> Result<Vec<Message>, StoreError> {
    let mut messages = Vec::new();
    if let Some(task) = task_of(tx, work).await? {
        let from = writing_peer(tx, work, &writer_of(work, &task)).await?;
        messages = tx.messages().all_by_key(&from, &end_key(&task.task)).await?;
    }
    if work.message_id.is_some()
        && let Some(reply) = &work.reply_id
    {
        messages.extend(tx.messages().get(reply).await?);
    }
    Ok(messages)
}

/// The session that had the task. The message about the end is sent in its name.
fn writer_of(work: &AssignmentRow, task: &TaskRow) -> String {
    match &task.owned.runner {
        Some(Principal::Session(key)) => key.to_string(),
        _ => format!("agent:{}", work.instance),
    }
}

/// The sender of the message about the end of a task. A process may have several sessions, so this
/// is the peer that got the question.
async fn writing_peer(
    tx: &mut WriteTx,
    work: &AssignmentRow,
    session: &str,
) -> Result<String, StoreError> {
    match &work.message_id {
        Some(_) => Ok(work.target_peer.to_string()),
        None => sender_of(tx, session).await,
    }
}

fn end_key(task: &Task) -> String {
    format!("task-end-{}", task.task_id)
}

fn describe_end(task: &Task, instance: &str) -> String {
    let how = match task.status {
        TaskStatus::Failed | TaskStatus::Expired => "has",
        TaskStatus::Cancelled => "was",
        TaskStatus::Pending | TaskStatus::Active | TaskStatus::Done => "is",
    };
    let (id, status) = (&task.task_id, task.status.as_str());
    let mut text = format!("Task {id} for {instance} {how} {status}.");
    if let Some(error) = &task.report.error {
        write!(text, "\nError: {error}").expect("writing to a string does not fail");
    }
    if let Some(result) = task.result.as_deref().filter(|result| !result.is_empty()) {
        text.push('\n');
        text.extend(result.chars().take(limits::NOTIFIED_RESULT_CHARS));
    }
    text
}

fn signal_name(signal: i32) -> String {
    process_list::signal_name(signal).map_or_else(|| signal.to_string(), str::to_owned)
}

/// The sender of a session's messages: its peer, else its key.
pub(in crate::service) async fn sender_of(
    tx: &mut WriteTx,
    session: &str,
) -> Result<String, StoreError> {
    let own = tx.peers().of_key(session).await?;
    Ok(own.map_or_else(|| session.to_owned(), |own| own.peer.peer_id.as_str().to_owned()))
}

/// The caller with which the daemon sends for a session.
pub(in crate::service) fn caller_as(key: &str, project: Option<&str>) -> Caller {
    Caller::of_session("tok_of_agent", key, project, &[])
}

pub(in crate::service) struct AgentSender<'a> {
    pub(in crate::service) session: &'a str,
    /// The id of the agent's peer, or its session key if it has no peer.
    pub(in crate::service) peer: String,
    pub(in crate::service) project: Option<&'a str>,
    /// The work that the message tells of.
    pub(in crate::service) run: Option<&'a RunId>,
}

/// Sends a message of an agent to a peer. Drops the message if the inbox has no room: its content
/// is also on record elsewhere.
pub(in crate::service) async fn tell(
    tx: &mut WriteTx,
    core: &Core,
    sender: AgentSender<'_>,
    to: PeerId,
    (tool, text): (SourceTool, String),
    (key, terms): (Option<String>, DeliveryTerms),
) -> Result<()> {
    let kind = MessageType::Notification;
    let input = NewMessage { idempotency_key: key, ..team::plain_message(text, kind) };
    let caller = caller_as(sender.session, sender.project);
    let mut outgoing = team::OutgoingMessage::new(core.clone(), caller, sender.peer, input, tool);
    outgoing.run_id = sender.run.cloned();
    match team::deliver(tx, &outgoing, to, kind, terms).await {
        Ok(_) => Ok(()),
        Err(Error::LimitReached(reason)) => {
            tracing::warn!(reason, "an inbox has no room for a notice about an agent");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_late_only_if_its_deadline_came_before_its_cancel() {
        let at = Timestamp::from_millis;
        for (deadline, asked, is_late_work) in [
            (Some(10), Some(9), false),
            (Some(10), Some(10), true),
            (Some(10), None, true),
            (Some(30), None, false),
            (None, Some(9), false),
        ] {
            let late = is_late(deadline.map(at), asked.map(at), at(20));
            assert_eq!(late, is_late_work, "{deadline:?} {asked:?}");
        }
    }
}
