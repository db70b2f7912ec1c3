//! Assignments: texts that were given to participants, and how they end, with or without a task,
//! with or without a caller that waits for the answer. A task for an agent, a task for a session
//! that a person started, and a message from one session to another are rows of the same kind with
//! the same states.
//!
//! `next` is the state machine: it decides which state an event leads to, without I/O. `apply`
//! carries that out: it updates the row, appends events to the streams of both ends, and begins
//! the task. `settle` ends tasks and notifies the requester; `turns` relates the turn of a
//! participant to the messages that began it. `agents/queue.rs` decides which agent gets a task,
//! and when. All of this runs inside write jobs.

mod settle;
mod turns;

use serde_json::json;
use svc_model::{
    MessageId, NewEvent, TaskChange, TaskStatus,
    conversation::{RunMode, RunState},
};
use svc_store::{AssignmentRow, AssignmentState, StoreError, WriteTx};

use super::{tasks, team};

pub(super) use settle::{
    AgentSender, TaskEnd, caller_as, end, end_answered, end_or_retry, end_otherwise, hold_answer,
    is_answer_given, note_returned, sender_of, settle_exit, settle_turn, tell, tell_again,
};
pub(super) use turns::{
    agent_ended, late_turn_prompted, mail_refused, silent_turn_ended, terms_of_reply, turn_began,
    turn_ended, turn_failed, turn_prompted, turn_said,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AssignmentEvent {
    /// A participant is chosen; delivery to it begins.
    Taken,
    /// The host or the inbox has the text.
    Stored,
    /// The model has the text.
    Begun,
    Ended(AssignmentOutcome),
    /// The attempt failed; another one follows.
    Retried,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AssignmentOutcome {
    Answered,
    /// The turn ended without a text.
    Silent,
    /// No participant took the text in time.
    Expired,
    Failed,
    Cancelled,
}

impl AssignmentOutcome {
    /// The state that the assignment ends in, and that of its task.
    const fn ends(self) -> (AssignmentState, TaskStatus) {
        match self {
            Self::Answered => (AssignmentState::Ok, TaskStatus::Done),
            Self::Silent => (AssignmentState::NoReply, TaskStatus::Done),
            Self::Expired => (AssignmentState::Timeout, TaskStatus::Failed),
            Self::Failed => (AssignmentState::Error, TaskStatus::Failed),
            Self::Cancelled => (AssignmentState::Error, TaskStatus::Cancelled),
        }
    }
}

/// The state of an assignment after an event; `None` if the event changes nothing. An assignment
/// that has ended does not change.
fn next(state: AssignmentState, mode: RunMode, event: AssignmentEvent) -> Option<AssignmentState> {
    use AssignmentState::{Ok, Queued, Running, Sent, Starting};
    match (state, event) {
        (Queued, AssignmentEvent::Taken) => Some(Starting),
        (Queued | Starting, AssignmentEvent::Stored) => Some(Sent),
        // A text that asks for no answer is done when the model has it.
        (Queued | Starting | Sent, AssignmentEvent::Begun) => match mode {
            RunMode::Followup => Some(Running),
            RunMode::Notify | RunMode::Steer => Some(Ok),
        },
        (Queued | Starting | Sent | Running, AssignmentEvent::Ended(outcome)) => {
            Some(outcome.ends().0)
        }
        (Queued | Starting | Sent | Running, AssignmentEvent::Retried) => Some(Queued),
        // The assignment is over, or the event repeats what is known.
        _ => None,
    }
}

/// Stores an assignment that is in an inbox from the beginning, and appends its state to the
/// streams of both ends.
pub(super) async fn open(tx: &mut WriteTx, row: &AssignmentRow) -> Result<(), StoreError> {
    tx.assignments().insert(row).await?;
    tell_ends(tx, row).await
}

/// Applies an event to an assignment and stores the row, with all changes that the caller made to
/// it. Returns the status with which the assignment's task ends now; the caller must end the task.
pub(super) async fn apply(
    tx: &mut WriteTx,
    row: &mut AssignmentRow,
    event: AssignmentEvent,
) -> Result<Option<TaskStatus>, StoreError> {
    let Some(state) = next(row.state, row.mode, event) else { return Ok(None) };
    row.state = state;
    if event == AssignmentEvent::Begun {
        row.begun_at.get_or_insert(tx.now());
    }
    if row.state.is_over() {
        row.ended_at.get_or_insert(tx.now());
    }
    tx.assignments().update(row).await?;
    if !matches!(event, AssignmentEvent::Taken | AssignmentEvent::Retried) {
        tell_ends(tx, row).await?;
    }
    if state == AssignmentState::Running {
        begin_task(tx, row).await?;
    }
    Ok(match event {
        AssignmentEvent::Ended(outcome) => Some(outcome.ends().1),
        _ => None,
    })
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

/// Appends the state of a message to the streams of its sender and receiver.
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

#[cfg(test)]
mod tests {
    use AssignmentState::{Error, NoReply, Ok, Queued, Running, Sent, Starting, Timeout};

    use super::*;

    const ALL: [AssignmentState; 8] =
        [Queued, Starting, Sent, Running, Ok, NoReply, Timeout, Error];

    fn states(event: AssignmentEvent) -> [Option<AssignmentState>; 8] {
        ALL.map(|state| next(state, RunMode::Followup, event))
    }

    /// Each line: an event, and the state that it leads to from each state of `ALL`.
    #[test]
    fn each_event_makes_of_each_state_what_the_table_says() {
        let over = [None; 4];
        let table = [
            (AssignmentEvent::Taken, [Some(Starting), None, None, None]),
            (AssignmentEvent::Stored, [Some(Sent), Some(Sent), None, None]),
            (AssignmentEvent::Begun, [Some(Running), Some(Running), Some(Running), None]),
            (AssignmentEvent::Ended(AssignmentOutcome::Answered), [Some(Ok); 4]),
            (AssignmentEvent::Ended(AssignmentOutcome::Silent), [Some(NoReply); 4]),
            (AssignmentEvent::Ended(AssignmentOutcome::Expired), [Some(Timeout); 4]),
            (AssignmentEvent::Ended(AssignmentOutcome::Failed), [Some(Error); 4]),
            (AssignmentEvent::Ended(AssignmentOutcome::Cancelled), [Some(Error); 4]),
            (AssignmentEvent::Retried, [Some(Queued); 4]),
        ];
        for (event, open) in table {
            let states = states(event);
            assert_eq!(states[..4], open, "{event:?}");
            assert_eq!(states[4..], over, "{event:?}: what is over stays as it is");
        }
    }

    #[test]
    fn a_text_that_asks_nothing_is_over_when_the_model_has_it() {
        for mode in [RunMode::Notify, RunMode::Steer] {
            assert_eq!(next(Sent, mode, AssignmentEvent::Begun), Some(Ok));
        }
    }
}
