//! Events of a task: what producers send, and what its stream stores.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::state::TaskChange;
use crate::{TaskId, Timestamp};

/// Which pipe of a process a line came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FrameKind {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEvent {
    /// The producer's own id of the event, if it may have to repeat the request.
    pub producer_id: Option<String>,
    pub body: TaskEventBody,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEventBody {
    /// A line of output.
    Frame {
        /// The line, without its terminator.
        line: String,
        /// The pipe that it came from.
        kind: FrameKind,
        /// When it was written, if the producer knows.
        ts: Option<Timestamp>,
    },
    /// A change of state: a final status ends the task.
    Change(TaskChange),
}

/// The `data` of a stored `frame` event.
#[derive(Debug, Serialize)]
pub struct Frame<'a> {
    pub task_id: &'a TaskId,
    /// The line, without its terminator.
    pub line: &'a str,
    /// The pipe that it came from.
    pub kind: FrameKind,
    /// When it was written.
    pub ts: Timestamp,
    /// Whether the output went on beyond what was stored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Whether the next frame continues this line.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

/// What a reply is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplyKind {
    /// How far it has come.
    #[default]
    Progress,
    /// What came of it. The task goes on until its runner ends it.
    Result,
    /// A question, or the answer to one.
    Clarification,
    /// What went wrong. The task goes on until its runner ends it.
    Error,
}

/// The `data` of a stored `reply` event of a task.
#[derive(Debug, Serialize)]
pub struct TaskReply<'a> {
    pub kind: ReplyKind,
    /// The caller's text.
    pub body: &'a str,
    /// The author as the daemon knows it: a peer, a session, or `operator`.
    pub from: &'a str,
    pub ts: Timestamp,
}
