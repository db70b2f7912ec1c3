//! The way of an assignment: what it is after an event, and what follows from that.

use svc_model::{TaskStatus, conversation::RunMode};
use svc_store::AssignmentState;

/// What happens to an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum AssignmentEvent {
    /// A participant is to have it, and is being told.
    Taken,
    /// The host or the inbox has it.
    Stored,
    /// The model has it.
    Begun,
    /// It is over.
    Ended(AssignmentOutcome),
    /// That attempt came to nothing, and there is another one.
    Retried,
}

/// How an assignment ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum AssignmentOutcome {
    /// There is an answer.
    Answered,
    /// The turn ended without words.
    Silent,
    /// Nobody took it in time.
    Expired,
    /// It came to nothing.
    Failed,
    /// Nobody wants it any more.
    Cancelled,
}

/// What follows from a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum AssignmentEffect {
    /// Both ends are told how far their message is.
    Tell,
    BeginTask,
    EndTask(TaskStatus),
}

/// An assignment after an event, with what follows from it in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) struct AssignmentStep {
    pub(in crate::service) state: AssignmentState,
    pub(in crate::service) effects: &'static [AssignmentEffect],
}

/// What an event makes of an assignment; `None` if nothing. What is over stays as it is.
pub(in crate::service) fn next(
    state: AssignmentState,
    mode: RunMode,
    event: AssignmentEvent,
) -> Option<AssignmentStep> {
    use AssignmentEffect::{BeginTask, EndTask, Tell};
    use AssignmentState::{Error, NoReply, Ok, Queued, Running, Sent, Starting, Timeout};
    let step = |state, effects| Some(AssignmentStep { state, effects });
    match (state, event) {
        (Queued, AssignmentEvent::Taken) => step(Starting, &[]),
        (Queued | Starting, AssignmentEvent::Stored) => step(Sent, &[Tell]),
        // What asks for nothing is over when it is known.
        (Queued | Starting | Sent, AssignmentEvent::Begun) => match mode {
            RunMode::Followup => step(Running, &[Tell, BeginTask]),
            RunMode::Notify | RunMode::Steer => step(Ok, &[Tell]),
        },
        (Queued | Starting | Sent | Running, AssignmentEvent::Ended(outcome)) => match outcome {
            AssignmentOutcome::Answered => step(Ok, &[Tell, EndTask(TaskStatus::Done)]),
            AssignmentOutcome::Silent => step(NoReply, &[Tell, EndTask(TaskStatus::Done)]),
            AssignmentOutcome::Expired => step(Timeout, &[Tell, EndTask(TaskStatus::Failed)]),
            AssignmentOutcome::Failed => step(Error, &[Tell, EndTask(TaskStatus::Failed)]),
            AssignmentOutcome::Cancelled => step(Error, &[Tell, EndTask(TaskStatus::Cancelled)]),
        },
        (Queued | Starting | Sent | Running, AssignmentEvent::Retried) => step(Queued, &[]),
        // It is over, or this is a later report of what is known already.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use AssignmentState::{Error, NoReply, Ok, Queued, Running, Sent, Starting, Timeout};

    use super::*;

    const ALL: [AssignmentState; 8] =
        [Queued, Starting, Sent, Running, Ok, NoReply, Timeout, Error];

    fn states(event: AssignmentEvent) -> [Option<AssignmentState>; 8] {
        ALL.map(|state| next(state, RunMode::Followup, event).map(|step| step.state))
    }

    /// One line an event: what it makes of each state, in their order.
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
    fn a_task_ends_with_every_end_and_both_ends_are_told_first() {
        for (outcome, status) in [
            (AssignmentOutcome::Answered, TaskStatus::Done),
            (AssignmentOutcome::Silent, TaskStatus::Done),
            (AssignmentOutcome::Expired, TaskStatus::Failed),
            (AssignmentOutcome::Failed, TaskStatus::Failed),
            (AssignmentOutcome::Cancelled, TaskStatus::Cancelled),
        ] {
            let step = next(Running, RunMode::Followup, AssignmentEvent::Ended(outcome));
            let effects = step.expect("it ends").effects;
            assert_eq!(
                effects,
                [AssignmentEffect::Tell, AssignmentEffect::EndTask(status)],
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn a_text_that_asks_nothing_is_over_when_the_model_has_it() {
        for mode in [RunMode::Notify, RunMode::Steer] {
            let step = next(Sent, mode, AssignmentEvent::Begun).expect("it is read");
            assert_eq!((step.state, step.effects), (Ok, &[AssignmentEffect::Tell][..]));
        }
    }
}
