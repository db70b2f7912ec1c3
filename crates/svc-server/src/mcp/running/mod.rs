//! The calls at work in this process, as they are shared by those who run them, wait for them and end them.
//!
//! Reading order: `record` is a call as it is stored, `conversation` the questions and answers between a tool and its
//! client, `table` all calls at work, `questions` what legacy clients are asked.

mod conversation;
mod questions;
mod record;
mod table;

pub(super) use conversation::{
    AskOutcome, CallConversation, CallRound, InputRequests, MessageSink, TaskQuestions,
};
pub(super) use questions::OpenQuestions;
pub(super) use record::CallRecord;
pub(super) use table::{RequestKey, RunningCalls};
