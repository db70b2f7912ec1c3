//! Texts that were given to participants, and what comes of them: with or without a task, with or
//! without an answer that is waited for. A task for an agent, a task for a session that a person
//! started and a message of one session to another are one kind of row, and go one way.
//!
//! `state` says what an event makes of an assignment, without reading or writing anything. `record`
//! carries that out: the row, the events of both ends, the task that begins. `settle` ends tasks
//! and tells who asked; `turns` says what the turn of a participant is to the messages that began
//! it. `notice` writes what the daemon says in an agent's name. Which agent gets a task, and when,
//! is decided in `agents/queue.rs`. All of this is part of write jobs.

mod notice;
mod record;
mod settle;
mod state;
mod turns;

pub(super) use notice::{AgentSender, caller_as, sender_of, tell};
pub(super) use record::{apply, open};
pub(super) use settle::{
    TaskEnd, end, end_answered, note_returned, retry, settle_exit, settle_turn,
};
pub(super) use state::{AssignmentEvent, AssignmentOutcome};
pub(super) use turns::{
    agent_ended, late_turn_prompted, mail_refused, silent_turn_ended, terms_of_reply, turn_began,
    turn_ended, turn_failed, turn_prompted, turn_said,
};
